//! The CUDA driver, loaded at run time. In: nothing. Out: proof that it is here, its errors as ours. Guarantee: a missing
//! or old driver is an error, never a panic: every function that this folder calls is looked up before the first call.

use super::error::DeviceError;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Functions that this folder calls.
const FUNCTIONS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuPointerGetAttribute",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
];

/// Proof that the driver is loaded, has what is needed, and is initialised.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    version: i32,
}

impl Driver {
    /// Loads the driver, once per process.
    pub fn load() -> Result<Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load_now).clone()
    }

    fn load_now() -> Result<Self, DeviceError> {
        // SAFETY: looks for the library and loads it, which runs its initialisers; nothing of it is called.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        // SAFETY: the library is there, so that this does not panic; a symbol is looked up and not called.
        let missing = FUNCTIONS
            .iter()
            .find(|name| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_err() });
        if let Some(symbol) = missing {
            return Err(DeviceError::OldDriver { symbol });
        }
        // SAFETY: takes no pointers.
        check("cuInit", "the driver", unsafe { sys::cuInit(0) })?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        check("cuDriverGetVersion", "the driver", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        Ok(Self { version })
    }

    /// The newest CUDA that the driver knows, as 1000 x major + 10 x minor.
    pub fn cuda_version(&self) -> i32 {
        self.version
    }
}

/// The driver's answer as a result.
pub(super) fn check(call: &'static str, device: &str, result: CUresult) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (name, text) = words(result);
    Err(DeviceError::Call { call, device: device.to_string(), name, text })
}

/// Name and description of a code.
pub(super) fn words(result: CUresult) -> (String, String) {
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both functions store the address of a static text, or leave it null for an unknown code.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
    }
    let read = |pointer: *const std::ffi::c_char| match pointer.is_null() {
        true => format!("code {}", result as u32),
        // SAFETY: not null, so a static text that ends with a zero.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
    };
    (read(name), read(text))
}
