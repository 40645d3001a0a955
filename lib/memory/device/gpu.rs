//! A GPU. In: its number among the visible ones. Out: its properties and its context. Guarantee: the primary context is
//! used, which the CUDA runtime, PyTorch and cudarc share; a caller's current context is as before after every call.

use super::driver::{Driver, check};
use super::error::DeviceError;
use crate::topology::PciAddress;
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute};
use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Devices that are open, so that each is opened once.
static OPEN: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// An open GPU; clones mean the same one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    ordinal: u32,
    handle: CUdevice,
    context: CUcontext,
    properties: DeviceProperties,
    label: String,
    /// Why allocations have no fabric handles, once one was refused.
    fabric_refusal: OnceLock<DeviceError>,
}

// SAFETY: a context handle may be used from any thread; the driver locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Name.
    pub name: String,
    /// Identity, 128 bits.
    pub uuid: [u8; 16],
    /// PCI address, such as `0000:1b:00.0`.
    pub pci: String,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Whether allocations can be exported as fabric handles, as the driver says; IMEX decides.
    pub fabric: bool,
    /// Whether a NIC can read and write allocations of the virtual memory interface.
    pub direct_rdma: bool,
}

impl Device {
    /// Number of visible devices.
    pub fn count() -> Result<u32, DeviceError> {
        Driver::load()?;
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        match unsafe { sys::cuDeviceGetCount(&mut count) } {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            result => check("cuDeviceGetCount", "the driver", result).map(|()| count.max(0) as u32),
        }
    }

    /// Number of the visible device at `address`: the driver counts in an order of its own.
    pub fn ordinal_at(address: PciAddress) -> Result<Option<u32>, DeviceError> {
        for ordinal in 0..Self::count()? {
            if pci_of(handle_of(ordinal)?, &label_of(ordinal))?.parse() == Ok(address) {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// Opens visible device `ordinal`, or returns it when it is open.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(DeviceError::NoDevice { ordinal, count });
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|device| device.strong_count() > 0);
        if let Some(device) = open.iter().filter_map(Weak::upgrade).find(|device| device.ordinal == ordinal) {
            return Ok(Self(device));
        }
        let device = Arc::new(Inner::open(ordinal)?);
        open.push(Arc::downgrade(&device));
        Ok(Self(device))
    }

    /// Its number among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// What it is.
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.properties
    }

    /// `device 0 (NVIDIA H200)`, for messages.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Architecture for the compiler, such as `sm_90`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.0.properties.capability;
        format!("sm_{major}{minor}")
    }

    /// Whether its kernels and copies can reach memory of `peer` on this host, by the driver's word.
    pub fn can_access(&self, peer: &Device) -> Result<bool, DeviceError> {
        if self == peer {
            return Ok(true);
        }
        let mut able = 0;
        // SAFETY: both handles are of open devices; the pointer is to a live integer.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut able, self.0.handle, peer.0.handle) };
        self.check("cuDeviceCanAccessPeer", result)?;
        Ok(able != 0)
    }

    /// Whether it reaches `peer` by NVLink: the only link over which a GPU's atomics are carried out on the other.
    pub fn has_nvlink_to(&self, peer: &Device) -> bool {
        let mut atomics = 0;
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: both handles are of open devices; the pointer is to a live integer.
        let result = unsafe { sys::cuDeviceGetP2PAttribute(&mut atomics, attribute, self.0.handle, peer.0.handle) };
        result == sys::CUresult::CUDA_SUCCESS && atomics != 0
    }

    /// Lets its kernels and copies reach memory that this process allocated on `peer`.
    pub fn enable_access(&self, peer: &Device) -> Result<(), DeviceError> {
        if self == peer {
            return Ok(());
        }
        let _current = self.enter()?;
        // SAFETY: the context is that of an open device; flags must be 0.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.0.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => self.check("cuCtxEnablePeerAccess", result),
        }
    }

    /// Why its allocations have no fabric handles; `None` where none was refused yet.
    pub(super) fn fabric_refusal(&self) -> Option<&DeviceError> {
        self.0.fabric_refusal.get()
    }

    /// Asks for no more fabric handles.
    pub(super) fn refuse_fabric(&self, why: DeviceError) {
        log::info!("allocations have no fabric handles: {why}");
        // Whoever was first has said it.
        let _ = self.0.fabric_refusal.set(why);
    }

    /// Makes its context current on this thread until the guard is dropped; costs next to nothing where it is already, as in
    /// callers that use the CUDA runtime and inside of another guard.
    pub(crate) fn enter(&self) -> Result<Current, DeviceError> {
        let mut now = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        self.check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut now) })?;
        let pushed = now != self.0.context;
        if pushed {
            // SAFETY: the context is retained as long as the device is open.
            self.check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0.context) })?;
        }
        Ok(Current { pushed, _thread: std::marker::PhantomData })
    }

    pub(super) fn check(&self, call: &'static str, result: sys::CUresult) -> Result<(), DeviceError> {
        check(call, &self.0.label, result)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.0.ordinal == other.0.ordinal
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.label)
    }
}

/// A context that is current on this thread.
pub(crate) struct Current {
    pushed: bool,
    /// Belongs to the thread that made it.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed on this thread.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

impl Inner {
    fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let label = label_of(ordinal);
        let handle = handle_of(ordinal)?;
        let properties = properties(handle, &label)?;
        let label = format!("device {ordinal} ({})", properties.name);
        let mut context = std::ptr::null_mut();
        // SAFETY: the handle is of a device; released on drop.
        check("cuDevicePrimaryCtxRetain", &label, unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) })?;
        Ok(Self { ordinal, handle, context, properties, label, fabric_refusal: OnceLock::new() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: gives back what `open` retained.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

fn label_of(ordinal: u32) -> String {
    format!("device {ordinal}")
}

fn handle_of(ordinal: u32) -> Result<CUdevice, DeviceError> {
    let mut handle = 0;
    // SAFETY: the pointer is to a live integer; the ordinal is below the count.
    check("cuDeviceGet", &label_of(ordinal), unsafe { sys::cuDeviceGet(&mut handle, ordinal as i32) })?;
    Ok(handle)
}

fn pci_of(handle: CUdevice, label: &str) -> Result<String, DeviceError> {
    let mut pci = [0; 32];
    // SAFETY: the array is as long as is said, and the function ends what it writes with a zero.
    let result = unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, handle) };
    check("cuDeviceGetPCIBusId", label, result)?;
    Ok(text(&pci).to_lowercase())
}

/// Text that the driver ended with a zero.
fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

fn properties(handle: CUdevice, label: &str) -> Result<DeviceProperties, DeviceError> {
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer, the handle is of a device. An attribute that an older driver does
        // not know is an error, which means that the device has not got it.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, handle) };
        if result == sys::CUresult::CUDA_SUCCESS { value.max(0) as u32 } else { 0 }
    };
    let mut name = [0; 128];
    // SAFETY: the array is as long as is said, and the function ends what it writes with a zero.
    check("cuDeviceGetName", label, unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, handle) })?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to a live structure.
    check("cuDeviceGetUuid", label, unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, handle) })?;
    Ok(DeviceProperties {
        name: text(&name),
        uuid: uuid.bytes.map(|byte| byte as u8),
        pci: pci_of(handle, label)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        fabric: attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0,
        direct_rdma: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
    })
}
