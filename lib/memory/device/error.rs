//! What can go wrong with a GPU. In: nothing. Out: [`DeviceError`]. Guarantee: every message names the device or file,
//! the value, and what to do; the driver's own word is kept.

use std::time::Duration;
use thiserror::Error;

/// A GPU, its memory or its kernels that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No driver.
    #[error(
        "the CUDA driver library (libcuda.so.1) cannot be loaded; install the NVIDIA driver, or use host memory; in a container, start it with the GPUs"
    )]
    NoDriver,
    /// A driver without a function that is needed.
    #[error("the CUDA driver has no function {symbol}; crossmesh needs driver 570 (CUDA 12.8) or newer, update it")]
    OldDriver {
        /// The function.
        symbol: &'static str,
    },
    /// No such device.
    #[error("there is no CUDA device {ordinal}: {count} are visible; check the number and CUDA_VISIBLE_DEVICES")]
    NoDevice {
        /// Number asked for.
        ordinal: u32,
        /// Devices that are visible.
        count: u32,
    },
    /// A call of the driver that failed.
    #[error("{call} failed on {device}: {name} ({text})")]
    Call {
        /// The function.
        call: &'static str,
        /// Which device, or `the driver`.
        device: String,
        /// Name of the code.
        name: String,
        /// What the driver says about it.
        text: String,
    },
    /// Too little device memory.
    #[error("{device} has no {bytes} bytes of memory left; free some, or lower CROSSMESH_STAGING")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: u64,
    },
    /// An address that is no device memory.
    #[error(
        "address {address:#x} is not memory of a CUDA device; it was freed, or is host memory: pass it as a host buffer"
    )]
    NotDevice {
        /// The address.
        address: u64,
    },
    /// A stream of another device.
    #[error("the stream is one of {stream}, but this rank's tensors are on {device}; give a stream of that device")]
    OtherStream {
        /// Device of the stream.
        stream: String,
        /// Device of the tensors.
        device: String,
    },
    /// An address on another device.
    #[error(
        "address {address:#x} is memory of device {found}, not of device {stated}; state the device it was allocated on"
    )]
    OtherDevice {
        /// The address.
        address: u64,
        /// Device that the caller stated.
        stated: u32,
        /// Device that it is on.
        found: u32,
    },
    /// No fabric handles where they are needed.
    #[error(
        "{device} gives no fabric handles: {why}; GPUs of several hosts map each other's memory by them: look for /dev/nvidia-caps-imex-channels/channel0, at nvidia-imex-ctl -N and at nvidia-smi -q | grep -A4 Fabric"
    )]
    NoFabric {
        /// The device.
        device: String,
        /// Why.
        why: String,
    },
    /// A buffer that ends beyond its allocation.
    #[error("{bytes} bytes from address {address:#x} end beyond its allocation of {allocation} bytes at {base:#x}")]
    BeyondAllocation {
        /// First byte.
        address: u64,
        /// Stated size.
        bytes: u64,
        /// Start of the allocation.
        base: u64,
        /// Its size.
        allocation: u64,
    },
    /// Memory that no other process can map.
    #[error(
        "memory at {address:#x} ({origin}) cannot be mapped by other processes; allocate it with cudaMalloc, with a shareable handle, or with DeviceMemory"
    )]
    NotShareable {
        /// The address.
        address: u64,
        /// How it was allocated.
        origin: &'static str,
    },
    /// A handle of a peer that means something else than it should.
    #[error("a peer's memory of {bytes} bytes cannot be mapped: {what}")]
    BadHandle {
        /// Its size.
        bytes: u64,
        /// What is wrong.
        what: String,
    },
    /// No run-time compiler.
    #[error(
        "the run-time compiler of CUDA (libnvrtc.so) cannot be loaded, tried {tried}; install it (CUDA toolkit, or pip install nvidia-cuda-nvrtc) or set CROSSMESH_NVRTC to its path"
    )]
    NoCompiler {
        /// Names and paths that were tried.
        tried: String,
    },
    /// A run-time compiler without a function that is needed.
    #[error("the run-time compiler {path} has no function {symbol}; CUDA 12 or newer is needed")]
    OldCompiler {
        /// Where it was loaded from.
        path: String,
        /// The function.
        symbol: &'static str,
    },
    /// A kernel that does not compile.
    #[error("kernel {kernel} does not compile for {architecture} with NVRTC {version}: {log}")]
    Compile {
        /// Its file.
        kernel: String,
        /// Architecture.
        architecture: String,
        /// Version of the compiler.
        version: String,
        /// What the compiler says.
        log: String,
    },
    /// A compiled kernel that the driver does not take.
    #[error(
        "the driver does not take kernel {kernel} as NVRTC {version} compiled it for {architecture} ({text}); the run-time compiler is newer than the driver: update the driver, or set CROSSMESH_NVRTC to an older one"
    )]
    Load {
        /// Its file.
        kernel: String,
        /// Architecture.
        architecture: String,
        /// Version of the compiler.
        version: String,
        /// What the driver says.
        text: String,
    },
    /// A kernel that waited in vain.
    #[error(
        "{device} gave up {phase}: {what} did not come in epoch {epoch} (found {found}); a peer is late or gone, or writes between these devices do not arrive"
    )]
    GaveUp {
        /// The device.
        device: String,
        /// What the kernel was doing.
        phase: &'static str,
        /// What it waited for.
        what: String,
        /// Start that it belonged to.
        epoch: u32,
        /// Epoch that was there instead.
        found: u32,
    },
    /// Work on a stream that did not end in time.
    #[error("work on {device} has not ended within {} ms", limit.as_millis())]
    Late {
        /// The device.
        device: String,
        /// The limit.
        limit: Duration,
    },
}
