//! The table through which the core library calls an MPI adapter; compiled into both.
//!
//! In: nothing. Out: plain C types. Guarantee: `abi_version` comes first in every version, and what follows changes
//! only together with [`ABI_VERSION`].

/// Version of [`Table`].
pub(super) const ABI_VERSION: u32 = 1;
/// Name of the adapter's exported static of type [`Table`].
pub(super) const TABLE_SYMBOL: &str = "CROSSMESH_BOOTSTRAP_MPI";
/// A call did what it should.
pub(super) const DONE: i32 = 0;
/// MPI was finalised before.
pub(super) const FINALIZED: i32 = -1;
/// A call did not complete in time.
pub(super) const TIMED_OUT: i32 = -2;
/// A call came before `initialise` or after `finish`.
pub(super) const NOT_INITIALISED: i32 = -3;

/// The world as MPI reports it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct World {
    /// This process.
    pub(super) rank: u32,
    /// Number of processes.
    pub(super) size: u32,
}

/// The adapter's functions. Codes that are not named above are MPI error codes.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Table {
    /// [`ABI_VERSION`] of the adapter.
    pub(super) abi_version: u32,
    /// Initialises MPI unless the program has, and reports the world; `world` must be writable.
    pub(super) initialise: unsafe extern "C" fn(world: *mut World) -> i32,
    /// Copies the name of the MPI library, at most `capacity` bytes to `text`; gives the number of bytes.
    pub(super) library: unsafe extern "C" fn(text: *mut u8, capacity: u64) -> u64,
    /// Gives `length` bytes of rank 0 at `bytes` to all. After [`TIMED_OUT`] MPI may still access them: they must
    /// stay.
    pub(super) broadcast: unsafe extern "C" fn(bytes: *mut u8, length: u64, limit_milliseconds: u64) -> i32,
    /// Ends the use of MPI: finalises it if `initialise` initialised it and `clean` is not 0.
    pub(super) finish: unsafe extern "C" fn(clean: i32) -> i32,
}
