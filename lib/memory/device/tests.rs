//! What can be tested of GPUs without one: errors of a missing driver, what is embedded.

use super::collective::FILES as COLLECTIVES;
use super::nvrtc::FILES;
use super::*;

#[test]
fn a_missing_driver_is_an_error() {
    if let Err(error) = Driver::load() {
        assert!(matches!(error, DeviceError::NoDriver | DeviceError::Call { .. }), "{error}");
        assert_eq!(Device::open(0).map(|_| ()), Err(error));
    } else {
        let count = Device::count().unwrap();
        assert_eq!(Device::open(count).map(|_| ()), Err(DeviceError::NoDevice { ordinal: count, count }));
    }
}

#[test]
fn all_kernels_are_embedded() {
    let collectives = COLLECTIVES.map(|(file, _)| file);
    for kernel in KERNELS.iter().chain(&collectives).chain(&["params.h", "collective.h", "ptx.cuh", "wait.cuh"]) {
        assert!(FILES.iter().any(|(name, text)| name == kernel && !text.is_empty()), "{kernel}");
    }
}
