//! MPI as a run-time adapter: a table of C functions over rsmpi, for ranks to find each other.
//!
//! In: the process that an mpirun or srun started. Out: rank, size, one broadcast. Guarantee: MPI is initialised only
//! if the program has not done so, and finalised only if it was initialised here and the end is clean; messages go
//! through a duplicate of MPI_COMM_WORLD, so that they never meet the program's own; no call but MPI_Init,
//! MPI_Comm_dup and MPI_Finalize waits without a limit.

// The name of the table is for the side that looks it up.
#[allow(dead_code)]
#[path = "../../bootstrap/mpi_abi.rs"]
mod abi;
#[allow(dead_code, unreachable_pub)]
#[path = "../../base/backoff.rs"]
mod backoff;

use abi::{DONE, FINALIZED, NOT_INITIALISED, TIMED_OUT, Table, World};
use backoff::Backoff;
use mpi::environment::initialize_with_threading;
use mpi::{Threading, ffi};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes in one MPI call, whose counts are C integers.
const LONGEST: usize = 1 << 30;

/// The table that the core library looks up.
#[used]
#[unsafe(no_mangle)]
static CROSSMESH_BOOTSTRAP_MPI: Table = Table { abi_version: abi::ABI_VERSION, initialise, library, broadcast, finish };

struct Session {
    communicator: ffi::MPI_Comm,
    /// MPI was initialised here.
    ours: bool,
    /// A call did not complete, so that MPI_Finalize would not either.
    stuck: bool,
}

// SAFETY: a communicator handle is a plain value for all threads of a process; calls are serialised by the mutex,
// which is what MPI_THREAD_SERIALIZED asks for.
unsafe impl Send for Session {}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(code: std::ffi::c_int) -> Result<(), i32> {
    if code == ffi::MPI_SUCCESS as i32 { Ok(()) } else { Err(code) }
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.map_or_else(|code| code, |()| DONE)
}

unsafe extern "C" fn initialise(world: *mut World) -> i32 {
    code(open().map(|found| {
        // SAFETY: the table asks for a writable world.
        unsafe { world.write(found) };
    }))
}

fn open() -> Result<World, i32> {
    let mut session = session();
    if mpi::environment::is_finalized() {
        return Err(FINALIZED);
    }
    let ours = match initialize_with_threading(Threading::Serialized) {
        Some((universe, _)) => {
            // Dropping it would finalise MPI.
            std::mem::forget(universe);
            true
        }
        None => false,
    };
    // SAFETY: MPI is initialised and not finalised; all pointers are to locals of the right types.
    unsafe {
        let mut communicator = ffi::RSMPI_COMM_NULL;
        check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut communicator))?;
        check(ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN))?;
        let (mut rank, mut size) = (0, 0);
        check(ffi::MPI_Comm_rank(communicator, &mut rank))?;
        check(ffi::MPI_Comm_size(communicator, &mut size))?;
        *session = Some(Session { communicator, ours, stuck: false });
        Ok(World { rank: rank.unsigned_abs(), size: size.unsigned_abs() })
    }
}

unsafe extern "C" fn library(text: *mut u8, capacity: u64) -> u64 {
    let name = mpi::environment::library_version().unwrap_or_default();
    let first_line = name.lines().next().unwrap_or_default().as_bytes();
    // "Open MPI v4.1.4, package: ..." and "MPICH Version:  4.0.2": the first part says enough.
    let short = first_line.split(|byte| *byte == b',').next().unwrap_or_default();
    let count = short.len().min(usize::try_from(capacity).unwrap_or(usize::MAX));
    // SAFETY: the table asks for `capacity` writable bytes; `short` is another allocation.
    unsafe { std::ptr::copy_nonoverlapping(short.as_ptr(), text, count) };
    count as u64
}

unsafe extern "C" fn broadcast(bytes: *mut u8, length: u64, limit_milliseconds: u64) -> i32 {
    let limit = Instant::now().checked_add(Duration::from_millis(limit_milliseconds));
    let mut session = session();
    let Some(session) = session.as_mut() else { return NOT_INITIALISED };
    let Ok(length) = usize::try_from(length) else { return TIMED_OUT };
    let mut sent = 0;
    while sent < length {
        let count = (length - sent).min(LONGEST);
        // SAFETY: the table asks for `length` bytes at `bytes` that outlive a call that timed out.
        let outcome = unsafe { broadcast_piece(session, bytes.add(sent), count, limit) };
        if outcome != DONE {
            return outcome;
        }
        sent += count;
    }
    DONE
}

/// Broadcasts up to [`LONGEST`] bytes.
///
/// # Safety
/// As for [`broadcast`].
unsafe fn broadcast_piece(session: &mut Session, bytes: *mut u8, count: usize, limit: Option<Instant>) -> i32 {
    let mut request = std::mem::MaybeUninit::<ffi::MPI_Request>::uninit();
    // SAFETY: MPI is initialised; `count` fits a C integer; the bytes stay until the request completes, as the
    // caller promises.
    let begun = unsafe {
        ffi::MPI_Ibcast(
            bytes.cast(),
            count as std::ffi::c_int,
            ffi::RSMPI_UINT8_T,
            0,
            session.communicator,
            request.as_mut_ptr(),
        )
    };
    if let Err(code) = check(begun) {
        return code;
    }
    let mut backoff = Backoff::new();
    loop {
        let mut complete = 0;
        // SAFETY: the request was written by MPI_Ibcast; a null status is not read.
        let tested = unsafe { ffi::MPI_Test(request.as_mut_ptr(), &mut complete, ffi::RSMPI_STATUS_IGNORE) };
        if let Err(code) = check(tested) {
            session.stuck = true;
            return code;
        }
        if complete != 0 {
            return DONE;
        }
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            session.stuck = true;
            return TIMED_OUT;
        }
        backoff.snooze();
    }
}

unsafe extern "C" fn finish(clean: i32) -> i32 {
    let Some(mut session) = session().take() else { return NOT_INITIALISED };
    if clean == 0 || session.stuck || mpi::environment::is_finalized() {
        return DONE;
    }
    // SAFETY: MPI is initialised and not finalised; nothing is under way on the communicator.
    code(unsafe {
        check(ffi::MPI_Comm_free(&mut session.communicator))
            .and_then(|()| if session.ours { check(ffi::MPI_Finalize()) } else { Ok(()) })
    })
}
