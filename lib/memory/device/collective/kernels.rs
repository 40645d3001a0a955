//! Kernels of the all-reduce family and their launches. In: a device, an element type. Out: functions that can be
//! launched. Guarantee: as [`super::super::Kernels`]; a launch that may start early has the attribute of programmatic stream
//! serialisation where the device knows it, and the kernels wait for what stands before them before they read anything.

use super::params::{BUNDLE_PIECES, Call, Element, NormCall, PART_EARLY};
use crate::memory::device::cache::machine_code;
use crate::memory::device::error::DeviceError;
use crate::memory::device::gpu::Device;
use crate::memory::device::kernels::{Function, module};
use crate::memory::device::stream::Stream;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Files of the family, with the elements that each is compiled for; none: it moves bytes.
pub const FILES: [(&str, &[Element]); 4] = [
    ("reduce.cu", &Element::ALL),
    ("gather.cu", &[]),
    ("norm.cu", &[Element::F16, Element::Bf16]),
    ("multicast.cu", &[Element::F32, Element::F16, Element::Bf16]),
];

/// A kernel of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveKernel {
    /// All-reduce: every rank pushes its input to all, each reduces all of it. Takes `8 * slot_words` bytes.
    ReducePush,
    /// All-reduce: the same in lines, which links must keep together. Takes as many bytes as the bundles of a slot carry.
    ReducePushLines,
    /// All-reduce: every rank reads all inputs.
    ReducePull,
    /// All-reduce: every rank reduces a shard from all inputs and writes it to all outputs.
    ReduceTwoShot,
    /// All-reduce of large buffers: shards are written to their owners' staging, reduced and written to all outputs. Takes
    /// registered outputs alone; staging of a shard of each peer, shards rounded up to 16 bytes.
    ReducePushShards,
    /// All-reduce: shards are pushed, reduced and pushed on, without a barrier.
    ReduceTwoPush,
    /// All-reduce: partial results go round twice.
    ReduceRing,
    /// Reduce-scatter: every rank pushes each share to its owner.
    ScatterPush,
    /// Reduce-scatter: every rank reads its share of all inputs.
    ScatterPull,
    /// All-gather: every rank pushes its share to all.
    GatherPush,
    /// All-gather: every rank reads all shares.
    GatherPull,
    /// Broadcast: the root pushes, the others acknowledge.
    BroadcastPush,
    /// Broadcast: every rank reads the root's buffer.
    BroadcastPull,
}

impl CollectiveKernel {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::ReducePush,
        Self::ReducePushLines,
        Self::ReducePull,
        Self::ReduceTwoShot,
        Self::ReducePushShards,
        Self::ReduceTwoPush,
        Self::ReduceRing,
        Self::ScatterPush,
        Self::ScatterPull,
        Self::GatherPush,
        Self::GatherPull,
        Self::BroadcastPush,
        Self::BroadcastPull,
    ];

    /// Name in its file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReducePush => "reduce_push",
            Self::ReducePushLines => "reduce_push_lines",
            Self::ReducePull => "reduce_pull",
            Self::ReduceTwoShot => "reduce_two_shot",
            Self::ReducePushShards => "reduce_push_shards",
            Self::ReduceTwoPush => "reduce_two_push",
            Self::ReduceRing => "reduce_ring",
            Self::ScatterPush => "scatter_push",
            Self::ScatterPull => "scatter_pull",
            Self::GatherPush => "gather_push",
            Self::GatherPull => "gather_pull",
            Self::BroadcastPush => "broadcast_push",
            Self::BroadcastPull => "broadcast_pull",
        }
    }

    /// Whether it moves bytes, whatever their type.
    pub const fn moves_bytes(self) -> bool {
        matches!(self, Self::GatherPush | Self::GatherPull | Self::BroadcastPush | Self::BroadcastPull)
    }
}

/// Blocks and threads of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
}

/// Kernels for one element type, loaded on a device.
#[derive(Debug)]
pub struct CollectiveKernels {
    device: Device,
    element: Element,
    functions: Vec<Function>,
    /// In the order of [`PAIRS`].
    pairs: Vec<Function>,
    /// In the order of [`NORMS`]; empty where there are none for the element.
    norms: Vec<Function>,
}

static LOADED: Mutex<Vec<Weak<CollectiveKernels>>> = Mutex::new(Vec::new());

impl CollectiveKernels {
    /// The kernels of `device` for `element`.
    pub fn load(device: &Device, element: Element) -> Result<Arc<Self>, DeviceError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|kernels| kernels.strong_count() > 0);
        let is_it = |kernels: &Arc<Self>| kernels.device == *device && kernels.element == element;
        if let Some(kernels) = loaded.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(kernels);
        }
        let kernels = Arc::new(Self::load_now(device, element)?);
        loaded.push(Arc::downgrade(&kernels));
        Ok(kernels)
    }

    /// Compiles the kernels for `element` and keeps them in the cache.
    pub fn compile(device: &Device, element: Element) -> Result<(), DeviceError> {
        let (define, architecture) = (define(element), device.architecture());
        let [(reduce, _), _, (norm, normed), _] = FILES;
        machine_code(reduce, Some(&define), &architecture)?;
        if normed.contains(&element) {
            machine_code(norm, Some(&define), &architecture)?;
        }
        Ok(())
    }

    fn load_now(device: &Device, element: Element) -> Result<Self, DeviceError> {
        let define = define(element);
        let names = |moves_bytes: bool| {
            let kernels = CollectiveKernel::ALL.iter().filter(move |kernel| kernel.moves_bytes() == moves_bytes);
            kernels.map(|kernel| kernel.name()).collect::<Vec<_>>()
        };
        let [(reduce, _), (gather, _), (norm, normed), _] = FILES;
        let reducing = [names(false), PAIRS.to_vec()].concat();
        let mut functions = module(device, reduce, Some(&define), &reducing)?;
        let pairs = functions.split_off(functions.len() - PAIRS.len());
        functions.extend(module(device, gather, None, &names(true))?);
        let norms = match normed.contains(&element) {
            true => module(device, norm, Some(&define), &NORMS)?,
            false => Vec::new(),
        };
        Ok(Self { device: device.clone(), element, functions, pairs, norms })
    }

    /// Launches `kernel`, after whatever `stream` has.
    ///
    /// # Safety
    /// All addresses of the call must be mapped until it has run, on all ranks; input and output must have the bytes that
    /// the kernel takes; the grid must be resident together with those of other ranks on this device.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        kernel: CollectiveKernel,
        call: &Call,
        grid: Grid,
    ) -> Result<(), DeviceError> {
        let argument = (&raw const *call) as *mut c_void;
        let function = match kernel {
            CollectiveKernel::ReducePush if is_a_word_each(call, grid) => self.pairs[0],
            CollectiveKernel::ReducePushLines if is_whole_pair(call) => self.pairs[1],
            _ => self.functions[kernel as usize],
        };
        // SAFETY: the kernel takes this structure; its addresses are the caller's promise.
        unsafe { self.launch_one(stream, kernel.name(), function, argument, grid, call.parts) }
    }

    /// Launches the fused all-reduce, residual addition and RMSNorm, by lines or by words; `false`: there is none for this
    /// element type.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    pub unsafe fn launch_norm(
        &self,
        stream: &Stream,
        call: &NormCall,
        grid: Grid,
        lines: bool,
    ) -> Result<bool, DeviceError> {
        let kind = match lines {
            true if is_norm_pair(call, grid) => 0,
            true => 1,
            false => 2,
        };
        let Some(&norm) = self.norms.get(kind) else { return Ok(false) };
        let argument = (&raw const *call) as *mut c_void;
        // SAFETY: as above.
        unsafe { self.launch_one(stream, NORMS[kind], norm, argument, grid, call.call.parts)? };
        Ok(true)
    }

    /// # Safety
    /// `argument` must point to what the function takes.
    unsafe fn launch_one(
        &self,
        stream: &Stream,
        name: &'static str,
        function: Function,
        argument: *mut c_void,
        grid: Grid,
        parts: u32,
    ) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: a structure of integers, for which zeros are a value.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let early = parts & PART_EARLY != 0 && self.device.properties().capability >= (9, 0);
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.handle(),
            attrs: &mut attribute,
            numAttrs: u32::from(early),
        };
        let mut arguments = [argument];
        // SAFETY: the function is loaded in this context; the driver copies the arguments before it returns.
        let result =
            unsafe { sys::cuLaunchKernelEx(&config, function.0, arguments.as_mut_ptr(), std::ptr::null_mut()) };
        self.device.check(name, result)
    }
}

/// What `ReducePush` is between two ranks with no more than a word for each thread, and `ReducePushLines` between two ranks
/// with aligned pieces.
const PAIRS: [&str; 2] = ["reduce_push_pair", "reduce_push_lines_pair"];
/// The fused kernels: of two ranks with aligned rows of no more than a bundle for each warp, of others, of others by words.
const NORMS: [&str; 3] = ["reduce_norm_pair", "reduce_norm", "reduce_norm_words"];

fn is_a_word_each(call: &Call, grid: Grid) -> bool {
    call.channel.ranks == 2 && call.bytes.div_ceil(8) <= u64::from(grid.blocks) * u64::from(grid.threads)
}

fn is_whole_pair(call: &Call) -> bool {
    call.channel.ranks == 2 && (call.input | call.output | call.bytes).is_multiple_of(16)
}

fn is_norm_pair(norm: &NormCall, grid: Grid) -> bool {
    let row = u64::from(norm.hidden) * 2;
    let read = norm.call.input | norm.residual | norm.residual_output | norm.weight | row;
    // What becomes fp8 is stored by 4 bytes.
    let written = if norm.scale == 0 { norm.call.output } else { 0 };
    let at_once = row.div_ceil(16 * BUNDLE_PIECES) <= u64::from(grid.threads) / 32;
    norm.call.channel.ranks == 2 && (read | written).is_multiple_of(16) && at_once
}

/// The macro that a file is compiled with.
pub fn define(element: Element) -> String {
    format!("ELEMENT={}", element as u32)
}
