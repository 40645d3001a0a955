//! Ranks that an MPI's mpirun or srun started, through an adapter library that is loaded at run time.
//!
//! In: which MPI started the process. Out: a [`Bootstrap`]. Guarantee: nothing links to an MPI; an adapter of another
//! version is refused before it is called; a process whose MPI does not see the world that the starter states gets
//! an error instead of a world of one rank; the library is never unloaded.

use super::Bootstrap;
use super::error::BootstrapError;
use super::mpi_abi::{ABI_VERSION, DONE, FINALIZED, NOT_INITIALISED, TABLE_SYMBOL, TIMED_OUT, Table, World};
use super::starter::{Mpi, Seen};
use crate::base::{Deadline, Rank, env};
use libloading::Library;
use std::path::{Path, PathBuf};

/// Where the adapter of `mpi` may be: the one named in the environment, or beside the running program.
pub(super) fn places(mpi: Mpi) -> Vec<PathBuf> {
    if let Some(path) = env::text(env::MPI_ADAPTER) {
        return vec![PathBuf::from(path)];
    }
    let name = match mpi {
        Mpi::OpenMpi => "libcrossmesh_bootstrap_openmpi.so",
        Mpi::Mpich => "libcrossmesh_bootstrap_mpich.so",
    };
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let folder = program.ok().and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_default();
    // Tests and examples are built one folder below the programs.
    ["", "../lib", ".."].iter().map(|step| folder.join(step).join(name)).collect()
}

/// The first of `places` that is a file.
pub(super) fn find(places: &[PathBuf]) -> Option<&PathBuf> {
    places.iter().find(|path| path.is_file())
}

/// The MPI that the program itself is linked to.
pub(super) fn linked() -> Option<Mpi> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().find_map(|line| of_library(line.rsplit('/').next()?))
}

fn of_library(file: &str) -> Option<Mpi> {
    // MPICH and its relatives share the number 12; Open MPI's is 40 (formerly 20).
    if file.starts_with("libmpich.so") || file.starts_with("libmpi.so.12") {
        Some(Mpi::Mpich)
    } else if file.starts_with("libmpi.so") {
        Some(Mpi::OpenMpi)
    } else {
        None
    }
}

/// A rank that MPI found.
#[derive(Debug)]
pub(super) struct MpiBootstrap {
    table: &'static Table,
    world: World,
}

impl MpiBootstrap {
    /// Loads the adapter of `mpi` and lets it initialise MPI.
    pub(super) fn start(mpi: Mpi, seen: Seen) -> Result<Self, BootstrapError> {
        if let Some(loaded) = linked().filter(|loaded| *loaded != mpi) {
            return Err(BootstrapError::LinkedMpi { loaded: loaded.name(), starter: seen.starter.to_string() });
        }
        let places = places(mpi);
        let Some(path) = find(&places) else {
            return Err(BootstrapError::AdapterMissing { mpi: mpi.name(), looked_at: places });
        };
        let table = load(path)?;
        let mut world = World::default();
        // SAFETY: `load` checked the table's version; `world` is writable.
        check("MPI_Init", unsafe { (table.initialise)(&mut world) })?;
        log::debug!("{}: rank {} of {}", library(table), world.rank, world.size);
        let started = Self { table, world };
        match seen.size {
            Some(stated) if stated != world.size => {
                let library = library(table);
                // A world of this process alone can be ended at once.
                Box::new(started).finish(world.size == 1);
                let starter = seen.starter.to_string();
                Err(BootstrapError::WrongMpi { starter, stated, path: path.clone(), library, reported: world.size })
            }
            _ => Ok(started),
        }
    }

    fn send(&self, message: &mut [u8], deadline: Deadline) -> Result<(), BootstrapError> {
        let limit = u64::try_from(deadline.remaining().as_millis()).unwrap_or(u64::MAX);
        // SAFETY: the slice is writable for its length; `broadcast` keeps it for ever after a time-out.
        match unsafe { (self.table.broadcast)(message.as_mut_ptr(), message.len() as u64, limit) } {
            TIMED_OUT => Err(BootstrapError::MpiTimeout { call: "MPI_Ibcast", limit: deadline.limit() }),
            code => check("MPI_Ibcast", code),
        }
    }
}

impl Bootstrap for MpiBootstrap {
    fn rank(&self) -> Rank {
        Rank(self.world.rank)
    }

    fn size(&self) -> u32 {
        self.world.size
    }

    fn broadcast(&mut self, message: &[u8], deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let mut length = Vec::from((message.len() as u64).to_le_bytes());
        keep_if_late(self.send(&mut length, deadline), &mut length)?;
        let announced = <[u8; 8]>::try_from(length.as_slice()).map(u64::from_le_bytes).unwrap_or_default();
        let mut bytes = vec![0; usize::try_from(announced).unwrap_or_default()];
        if self.world.rank == 0 {
            bytes.copy_from_slice(message);
        }
        keep_if_late(self.send(&mut bytes, deadline), &mut bytes)?;
        Ok(bytes)
    }

    fn finish(self: Box<Self>, clean: bool) {
        // SAFETY: the table's version was checked, and this is the last call.
        if let Err(error) = check("MPI_Finalize", unsafe { (self.table.finish)(i32::from(clean)) }) {
            log::warn!("{error}");
        }
    }
}

/// MPI may write to a late message at any time: its memory is never given back.
fn keep_if_late(sent: Result<(), BootstrapError>, bytes: &mut Vec<u8>) -> Result<(), BootstrapError> {
    if sent.is_err() {
        std::mem::forget(std::mem::take(bytes));
    }
    sent
}

fn check(call: &'static str, code: i32) -> Result<(), BootstrapError> {
    match code {
        DONE => Ok(()),
        FINALIZED => Err(BootstrapError::MpiEnded { call, when: "after MPI_Finalize" }),
        NOT_INITIALISED => Err(BootstrapError::MpiEnded { call, when: "after the end of the bootstrap" }),
        code => Err(BootstrapError::Mpi { call, code }),
    }
}

/// Loads the library at `path` for ever and checks its version.
fn load(path: &Path) -> Result<&'static Table, BootstrapError> {
    let failed = |source| BootstrapError::AdapterLoad { path: path.to_path_buf(), source };
    // SAFETY: an adapter has no constructors of its own, and those of an MPI library may run at any time.
    let library = unsafe { Library::new(path) }.map_err(failed)?;
    // SAFETY: in every version the symbol is a table that begins with its version.
    let version: *const u32 = unsafe { *library.get::<*const u32>(TABLE_SYMBOL).map_err(failed)? };
    // SAFETY: as above; the library stays loaded for this read.
    let found = unsafe { version.read() };
    // MPI libraries do not survive being unloaded.
    std::mem::forget(library);
    if found != ABI_VERSION {
        return Err(BootstrapError::AdapterVersion { path: path.to_path_buf(), found, needed: ABI_VERSION });
    }
    // SAFETY: a table of this version; the library is never unloaded.
    Ok(unsafe { &*version.cast::<Table>() })
}

fn library(table: &Table) -> String {
    let mut text = vec![0; 256];
    // SAFETY: the slice is writable for the capacity passed.
    let count = unsafe { (table.library)(text.as_mut_ptr(), text.len() as u64) };
    text.truncate(usize::try_from(count).unwrap_or_default());
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_apart_by_name() {
        assert_eq!(of_library("libmpi.so.40.30.4"), Some(Mpi::OpenMpi));
        assert_eq!(of_library("libmpich.so.12.2.0"), Some(Mpi::Mpich));
        assert_eq!(of_library("libmpi.so.12.0.0"), Some(Mpi::Mpich));
        assert_eq!(of_library("libmpiutil.so"), None);
        assert_eq!(linked(), None);
    }

    #[test]
    fn adapters_are_looked_for_beside_the_program() {
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        let places = places(Mpi::Mpich);
        assert_eq!(places[0], program.with_file_name("libcrossmesh_bootstrap_mpich.so"));
        assert_eq!(find(&[program.with_file_name("no such file"), program.clone()]), Some(&program));
    }

    #[test]
    fn a_library_that_is_no_adapter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnothing.so");
        std::fs::write(&path, b"no library").unwrap();
        assert!(matches!(load(&path), Err(BootstrapError::AdapterLoad { .. })));
    }
}
