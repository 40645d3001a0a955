//! The kernels of a device. In: a device. Out: functions that can be launched. Guarantee: compiled or taken from the cache
//! once per device and process, and loaded whole before the first launch, since loading may wait for running kernels.

use super::allocation::out_of_memory;
use super::cache::machine_code;
use super::driver::words;
use super::error::DeviceError;
use super::gpu::Device;
use super::graph::KernelGraph;
use super::nvrtc::Compiler;
use super::params::{Box, OrderedWrites, Start};
use super::stream::Stream;
use super::table::raw;
use cudarc::driver::sys::{self, CUfunction};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Kernel files that are loaded.
pub const KERNELS: [&str; 3] = ["pack.cu", "digest.cu", "ordered.cu"];
/// Threads of a block of `pack`.
const PACK_THREADS: u32 = 512;
/// Warps of a block of `pack`.
pub const PACK_WARPS: u32 = PACK_THREADS / 32;
/// Threads of a block of the others.
const THREADS: u32 = 256;
/// Blocks of a multiprocessor for digests and contents.
const WAVES: u32 = 8;

/// Kernels loaded on a device.
#[derive(Debug)]
pub struct Kernels {
    device: Device,
    pack: Function,
    digest: Function,
    fill: Function,
    ordered_writes: Function,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Function(pub(super) CUfunction);

// SAFETY: a function handle may be used from any thread; the driver locks.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

static LOADED: Mutex<Vec<Weak<Kernels>>> = Mutex::new(Vec::new());

impl Kernels {
    /// The kernels of `device`.
    pub fn load(device: &Device) -> Result<Arc<Self>, DeviceError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|kernels| kernels.strong_count() > 0);
        if let Some(kernels) = loaded.iter().filter_map(Weak::upgrade).find(|kernels| kernels.device == *device) {
            return Ok(kernels);
        }
        let [pack, digest, ordered] = KERNELS;
        let contents = module(device, digest, None, &["digest", "fill"])?;
        let kernels = Arc::new(Self {
            device: device.clone(),
            pack: module(device, pack, None, &["pack"])?[0],
            digest: contents[0],
            fill: contents[1],
            ordered_writes: module(device, ordered, None, &["ordered_writes"])?[0],
        });
        loaded.push(Arc::downgrade(&kernels));
        Ok(kernels)
    }

    /// Launches a start with `blocks` blocks, at most one for each multiprocessor.
    ///
    /// # Safety
    /// All addresses of the start and of its tables must be mapped until it has run.
    pub unsafe fn pack(&self, stream: &Stream, start: &Start, blocks: u32) -> Result<(), DeviceError> {
        let blocks = blocks.clamp(1, self.device.properties().multiprocessors.max(1));
        // SAFETY: the kernel takes this structure; its addresses are the caller's promise.
        unsafe {
            self.launch("pack", self.pack, stream, blocks, PACK_THREADS, &mut [(&raw const *start) as *mut c_void])
        }
    }

    /// The same launch, to be repeated on streams without priority.
    pub(super) fn repeated_pack(&self, start: &Start, blocks: u32) -> Result<KernelGraph, DeviceError> {
        let blocks = blocks.clamp(1, self.device.properties().multiprocessors.max(1));
        // SAFETY: the kernel takes this structure.
        unsafe { KernelGraph::new(&self.device, self.pack, (blocks, PACK_THREADS), raw(std::slice::from_ref(start))) }
    }

    /// Adds the digest of a box to the 64-bit number at `sum`.
    ///
    /// # Safety
    /// The box and `sum` must be mapped until it has run.
    pub unsafe fn digest(&self, stream: &Stream, region: &Box, sum: u64) -> Result<(), DeviceError> {
        let blocks = self.blocks_for(region.elements);
        let mut arguments = [(&raw const *region) as *mut c_void, (&raw const sum) as *mut c_void];
        // SAFETY: the kernel takes these two; the addresses are the caller's promise.
        unsafe { self.launch("digest", self.digest, stream, blocks, THREADS, &mut arguments) }
    }

    /// Fills a box with values that follow from the places of its elements.
    ///
    /// # Safety
    /// The box must be mapped until it has run, and nobody else may use it.
    pub unsafe fn fill(&self, stream: &Stream, region: &Box) -> Result<(), DeviceError> {
        let blocks = self.blocks_for(region.elements);
        // SAFETY: the kernel takes this structure; the address is the caller's promise.
        unsafe { self.launch("fill", self.fill, stream, blocks, THREADS, &mut [(&raw const *region) as *mut c_void]) }
    }

    /// Runs one end of a test of ordered writes.
    ///
    /// # Safety
    /// All addresses of the test must be mapped until it has run.
    pub unsafe fn ordered_writes(&self, stream: &Stream, test: &OrderedWrites) -> Result<(), DeviceError> {
        let mut arguments = [(&raw const *test) as *mut c_void];
        // SAFETY: the kernel takes this structure; the addresses are the caller's promise.
        unsafe { self.launch("ordered_writes", self.ordered_writes, stream, 1, THREADS, &mut arguments) }
    }

    fn blocks_for(&self, elements: u64) -> u32 {
        let most = u64::from(self.device.properties().multiprocessors.max(1) * WAVES);
        elements.div_ceil(u64::from(THREADS)).clamp(1, most) as u32
    }

    /// # Safety
    /// `arguments` must be what the function takes.
    unsafe fn launch(
        &self,
        call: &'static str,
        function: Function,
        stream: &Stream,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: the function is loaded in this context; the driver copies the arguments before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                function.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.device.check(call, result)
    }
}

/// Loads a kernel file and finds its functions. The module stays loaded as long as the context.
pub(super) fn module(
    device: &Device,
    kernel: &str,
    define: Option<&str>,
    functions: &[&str],
) -> Result<Vec<Function>, DeviceError> {
    let architecture = device.architecture();
    let code = machine_code(kernel, define, &architecture)?;
    let _current = device.enter()?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is a whole one of the compiler; the driver reads its size from its header.
    let result = unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) };
    if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(out_of_memory(device, code.len() as u64));
    }
    if result != sys::CUresult::CUDA_SUCCESS {
        let (name, text) = words(result);
        let version = Compiler::load()?.version();
        return Err(DeviceError::Load {
            kernel: kernel.to_string(),
            architecture,
            version,
            text: format!("{name}: {text}"),
        });
    }
    functions
        .iter()
        .map(|name| {
            let name = CString::new(*name).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded, the name ends with a zero.
            device.check("cuModuleGetFunction", unsafe {
                sys::cuModuleGetFunction(&mut function, module, name.as_ptr())
            })?;
            Ok(Function(function))
        })
        .collect()
}
