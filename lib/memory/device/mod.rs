//! GPUs: devices, their memory, streams and kernels.
//!
//! In: numbers of devices, pointers of the caller, handles of peers. Out: mapped memory, copies, launches. Guarantee: the
//! driver and the run-time compiler are loaded when first asked for, and a missing one is an error; no CUDA is needed to
//! build; every unsafe call of the driver stands in this folder.

mod allocation;
mod bridge;
mod cache;
pub mod collective;
mod contents;
mod driver;
mod error;
mod gate;
mod gpu;
mod graph;
mod inspect;
mod kernels;
mod link;
mod moves;
mod nvrtc;
mod page_locked;
pub mod params;
mod share;
mod stream;
mod table;
#[cfg(test)]
mod tests;

pub use allocation::DeviceMemory;
pub use bridge::{Bridge, BridgeBoxes, Shore};
pub use cache::{keep, kept, machine_code};
pub use contents::{Contents, DeviceBox};
pub use driver::Driver;
pub use error::DeviceError;
pub use gate::StreamGate;
pub use gpu::{Device, DeviceProperties};
pub use graph::{Capture, Graph};
pub use inspect::{Inspected, Origin, inspect};
pub use kernels::{KERNELS, Kernels, PACK_WARPS};
pub use link::LinkEnd;
pub use moves::{ENGINE_FROM, Mover, Moves, Place, Work};
pub use nvrtc::{Compiled, Compiler};
pub use share::{Handles, MappedBy, PeerMemory, SharedBuffer, SharedHandle, fabric_probe, share};
pub use stream::{End, Event, Pinned, Rows, Stream};
pub use table::{DeviceSpan, EngineTable, Flags, MoveTable, uploaded};
