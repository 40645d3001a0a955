//! GPUs as their driver states them. In: NVML, loaded at run time. Out: [`Gpu`]s. Guarantee: a missing library, driver or
//! answer is a fact and never an error; a link whose other end the driver cannot name is kept as unknown.

use super::pci;
use crate::topology::PciAddress;
use crate::topology::facts::{C2c, Fabric, FabricState, Gpu, NvLinkPeer, NvLinks, PciDevice, Source};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{field_id, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t};
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// The library's name where only the driver is installed; the name without a number is of the development package.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Most NVLinks of a GPU that NVML numbers.
const NVLINKS: u32 = nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;
/// Types of `nvmlIntNvLinkDeviceType_t`.
const GPU: u32 = 0;
const CPU: u32 = 1;
const SWITCH: u32 = 2;

/// All GPUs that the driver shows here, and where that is from.
pub(super) fn gpus(devices: &[PciDevice]) -> (Vec<Gpu>, Source) {
    let nvml = match Nvml::builder().lib_path(OsStr::new(LIBRARY)).init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => return (Vec::new(), Source::missing("nvml", "library not found")),
        Err(error) => return (Vec::new(), Source::missing("nvml", error.to_string())),
    };
    let count = nvml.device_count().unwrap_or_default();
    let mut gpus = Vec::new();
    let mut unread = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| gpu(&nvml, index, &device, devices)) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => unread.push(format!("GPU {index}: {error}")),
        }
    }
    let driver = nvml.sys_driver_version().unwrap_or_else(|_| "of unknown version".into());
    let mut note = format!("driver {driver}, {} GPUs", gpus.len());
    if !unread.is_empty() {
        note = format!("{note}; {}", unread.join("; "));
    }
    (gpus, Source::asked("nvml", note))
}

fn gpu(nvml: &Nvml, index: u32, device: &Device<'_>, devices: &[PciDevice]) -> Result<Gpu, NvmlError> {
    let pci: PciAddress = device.pci_info()?.bus_id.parse().map_err(|_| NvmlError::InvalidArg)?;
    let capability = device.cuda_compute_capability().ok();
    let (nvlinks, inactive_nvlinks) = nvlinks(nvml, device, devices);
    Ok(Gpu {
        index,
        pci,
        uuid: device.uuid().unwrap_or_default(),
        name: device.name().unwrap_or_default(),
        sm: capability.and_then(|version| u32::try_from(version.major * 10 + version.minor).ok()),
        memory_bytes: device.memory_info().map(|memory| memory.total).unwrap_or_default(),
        numa: devices.iter().find(|known| known.address == pci).and_then(|known| known.numa),
        memory_numa: device.numa_node_id().ok(),
        mig: device.mig_mode().is_ok_and(|mode| mode.current == 1),
        nvlinks,
        inactive_nvlinks,
        fabric: fabric(nvml, device),
        c2c: c2c(device),
    })
}

/// NVLinks that are up, by their other end, and how many are not.
fn nvlinks(nvml: &Nvml, device: &Device<'_>, devices: &[PciDevice]) -> (Vec<NvLinks>, u32) {
    let megabytes = field(device, field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON).unwrap_or_default();
    let (mut found, mut inactive) = (BTreeMap::<NvLinkPeer, u32>::new(), 0);
    for number in 0..NVLINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {
                let remote = link.remote_pci_info().ok().and_then(|info| remote_address(&info.bus_id));
                *found.entry(peer(remote_type(nvml, device, number), remote, devices)).or_default() += 1;
            }
            Ok(false) => inactive += 1,
            // The GPU has fewer links, or none.
            Err(_) => {}
        }
    }
    let bytes_per_second = megabytes.saturating_mul(1_000_000);
    (found.into_iter().map(|(peer, links)| NvLinks { peer, links, bytes_per_second }).collect(), inactive)
}

/// The address of a link's other end; the driver writes ones where a virtual machine has the GPUs and not the switches.
fn remote_address(bus_id: &str) -> Option<PciAddress> {
    bus_id.parse().ok().filter(|address: &PciAddress| address.domain != u32::MAX)
}

/// What a link of type `kind` to `remote` ends at; drivers that do not tell the type still tell the address.
fn peer(kind: Option<u32>, remote: Option<PciAddress>, devices: &[PciDevice]) -> NvLinkPeer {
    let known = devices.iter().find(|device| Some(device.address) == remote);
    match (kind, remote) {
        (Some(GPU), Some(address)) => NvLinkPeer::Gpu(address),
        (Some(SWITCH), address) => NvLinkPeer::Switch(address),
        (Some(CPU), address) => NvLinkPeer::Cpu(address),
        (_, Some(address)) if known.is_some_and(pci::is_gpu) => NvLinkPeer::Gpu(address),
        (_, address) if known.is_some_and(|device| device.vendor == pci::NVIDIA) => NvLinkPeer::Switch(address),
        (_, address) => NvLinkPeer::Unknown(address),
    }
}

/// Type of a link's other end. The wrapper's own function gives `Unknown` always, as it hands a copy to NVML.
fn remote_type(nvml: &Nvml, device: &Device<'_>, link: u32) -> Option<u32> {
    let function = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
    let mut kind = u32::MAX;
    // SAFETY: the handle is of a device that `nvml` keeps initialised, and `kind` is writable.
    let code = unsafe { function(device.handle(), link, &mut kind) };
    (code == 0 && kind != u32::MAX).then_some(kind)
}

/// A field of one number.
fn field(device: &Device<'_>, id: u32) -> Option<u64> {
    use nvml_wrapper::enums::device::SampleValue;
    let sample = device.field_values_for(&[FieldId(id)]).ok()?.pop()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        SampleValue::I64(value) => u64::try_from(value).ok(),
        SampleValue::F64(_) => None,
    }
}

fn c2c(device: &Device<'_>) -> Option<C2c> {
    let links = field(device, field_id::NVML_FI_DEV_C2C_LINK_COUNT).filter(|&count| count > 0)?;
    let megabytes = field(device, field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW).unwrap_or_default();
    let bytes_per_second = megabytes.saturating_mul(1_000_000);
    Some(C2c { links: u32::try_from(links).ok()?, bytes_per_second })
}

/// Place in a fabric; `None` from drivers without the question.
fn fabric(nvml: &Nvml, device: &Device<'_>) -> Option<Fabric> {
    let function = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
    let ask = |version: u32, size: usize| {
        let mut info = nvmlGpuFabricInfoV_t {
            version: size as u32 | version << 24,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        };
        // SAFETY: the handle is of a device that `nvml` keeps initialised; `info` is as large as the version states,
        // and version 2 is the beginning of version 3.
        let code = unsafe { function(device.handle(), &mut info) };
        (code == 0).then_some(info)
    };
    let info = ask(3, size_of::<nvmlGpuFabricInfoV_t>()).or_else(|| ask(2, size_of::<nvmlGpuFabricInfo_v2_t>()))?;
    let state = match u32::from(info.state) {
        1 => FabricState::NotStarted,
        2 => FabricState::InProgress,
        3 => FabricState::Completed,
        _ => FabricState::NotSupported,
    };
    let health = info.healthMask;
    Some(Fabric { cluster: uuid(info.clusterUuid), clique: info.cliqueId, state, status: info.status, health })
}

/// 32 digits in the groups of a uuid.
fn uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_grouped() {
        let bytes = std::array::from_fn(|place| place as u8 * 17);
        assert_eq!(uuid(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn an_address_of_ones_is_none() {
        assert_eq!(remote_address("FFFFFFFF:FF:FF.0"), None);
        assert_eq!(remote_address("00000000:00:06.0"), "0000:00:06.0".parse().ok());
    }

    #[test]
    fn other_ends_are_named_by_type_then_by_address() {
        let address: PciAddress = "0000:1a:00.0".parse().unwrap();
        let device = |vendor, class| PciDevice {
            address,
            parent: None,
            class,
            vendor,
            device: 0,
            numa: None,
            link: None,
            virtual_function: false,
        };
        let (gpu, switch) = ([device(pci::NVIDIA, 0x030200)], [device(pci::NVIDIA, 0x068000)]);
        assert_eq!(peer(Some(SWITCH), None, &[]), NvLinkPeer::Switch(None));
        assert_eq!(peer(None, Some(address), &gpu), NvLinkPeer::Gpu(address));
        assert_eq!(peer(None, Some(address), &switch), NvLinkPeer::Switch(Some(address)));
        assert_eq!(peer(Some(GPU), None, &[]), NvLinkPeer::Unknown(None));
        assert_eq!(peer(Some(255), Some(address), &[]), NvLinkPeer::Unknown(Some(address)));
    }
}
