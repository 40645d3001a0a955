//! The private directory of a segment server's socket.
//!
//! In: the places where a user may keep run-time files. Out: [`PrivateDirectory`], mode 0700 with a random name.
//! Guarantee: it is removed on drop and at normal exit of the process; what a killed process left behind is
//! removed by the next one of the same user.

use super::error::{MemoryError, errno_of};
use super::shared::fill_random;
use nix::errno::Errno;
use nix::unistd::{Uid, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};
use std::time::Duration;

const PREFIX: &str = "crossmesh-segments-";
const SOCKET: &str = "socket";
/// Longest socket path that the system takes, with its closing zero (`sun_path`).
const LONGEST_PATH: usize = 107;
/// A directory younger than this may belong to a process that has not bound its socket yet.
const SETTLED: Duration = Duration::from_secs(60);

/// Directories to remove when the process exits without dropping their owners.
static LEFT_AT_EXIT: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());
static EXIT_HANDLER: Once = Once::new();

/// A directory that only this user can enter, with the place of one socket.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Makes one in the first of XDG_RUNTIME_DIR, TMPDIR and /tmp that takes it.
    pub(super) fn create() -> Result<Self, MemoryError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::create_in(runtime.into_iter().chain([std::env::temp_dir(), PathBuf::from("/tmp")]))
    }

    fn create_in(places: impl IntoIterator<Item = PathBuf>) -> Result<Self, MemoryError> {
        let mut token = [0; 8];
        fill_random(&mut token, "directory name")?;
        let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(token));
        let mut tried = Vec::new();
        let mut source = Errno::ENOENT;
        for place in places {
            sweep(&place, SETTLED);
            let path = place.join(&name);
            let fits = path.join(SOCKET).as_os_str().len() <= LONGEST_PATH;
            let made = if fits { DirBuilder::new().mode(0o700).create(&path) } else { Err(too_long()) };
            match made {
                Ok(()) => {
                    remove_at_exit(&path);
                    return Ok(Self { path });
                }
                Err(error) => source = errno_of(&error),
            }
            tried.push(place.display().to_string());
        }
        Err(MemoryError::Directory { tried: tried.join(", "), source })
    }

    /// Where the socket goes.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        remove(&self.path);
        let mut left = LEFT_AT_EXIT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        left.retain(|(_, path)| *path != self.path);
    }
}

fn too_long() -> io::Error {
    io::Error::from_raw_os_error(Errno::ENAMETOOLONG as i32)
}

fn remove(directory: &Path) {
    // Both may be gone already, by the exit handler or by a cleaner of temporary files.
    let _ = fs::remove_file(directory.join(SOCKET));
    let _ = fs::remove_dir(directory);
}

fn remove_at_exit(path: &Path) {
    EXIT_HANDLER.call_once(|| {
        // SAFETY: the handler is a plain function without arguments that does not unwind.
        if unsafe { libc::atexit(remove_what_is_left) } != 0 {
            log::debug!("no exit handler; a socket directory may be left if its owner is never dropped");
        }
    });
    let mut left = LEFT_AT_EXIT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    left.push((std::process::id(), path.to_path_buf()));
}

extern "C" fn remove_what_is_left() {
    // A forked child that exits must leave its parent's directories, hence the comparison of ids. A thread that
    // holds the lock for ever must not hang the exit.
    if let Ok(left) = LEFT_AT_EXIT.try_lock() {
        let own = std::process::id();
        left.iter().filter(|(process, _)| *process == own).for_each(|(_, path)| remove(path));
    }
}

/// Removes directories of this user in `place` whose server is dead. A dead one refuses connections, also
/// from another pid namespace, which a test of process ids could not tell.
fn sweep(place: &Path, settled: Duration) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && is_abandoned(&entry.path(), settled, geteuid()) {
            log::debug!("removing {}, left by a process that was killed", entry.path().display());
            remove(&entry.path());
        }
    }
}

fn is_abandoned(directory: &Path, settled: Duration, user: Uid) -> bool {
    let Ok(metadata) = fs::symlink_metadata(directory) else { return false };
    let old = metadata.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age >= settled);
    if !metadata.is_dir() || metadata.uid() != user.as_raw() || !old {
        return false;
    }
    let refused = |error: io::Error| matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT));
    let Ok(address) = SockAddr::unix(directory.join(SOCKET)) else { return false };
    let Ok(socket) = Socket::new(Domain::UNIX, Type::SEQPACKET, None) else { return false };
    socket.set_nonblocking(true).is_ok() && socket.connect(&address).err().is_some_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_private_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::create_in([place.path().to_path_buf()]).unwrap();
        let mode = fs::metadata(directory.path()).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o700);
        fs::write(directory.socket(), b"").unwrap();
        drop(directory);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn next_place_is_taken_when_one_fails() {
        let place = tempfile::tempdir().unwrap();
        let long = place.path().join("x".repeat(120));
        let absent = place.path().join("absent");
        let directory =
            PrivateDirectory::create_in([absent.clone(), long.clone(), place.path().to_path_buf()]).unwrap();
        assert_eq!(directory.path().parent(), Some(place.path()));
        let error = PrivateDirectory::create_in([absent, long]).unwrap_err().to_string();
        assert!(error.contains("absent") && error.contains("TMPDIR"), "{error}");
    }

    #[test]
    fn sweep_removes_the_dead_and_spares_the_living() {
        let place = tempfile::tempdir().unwrap();
        let [dead, empty, foreign] = ["crossmesh-segments-dead", "crossmesh-segments-empty", "crossmesh-other"]
            .map(|name| place.path().join(name));
        let living = PrivateDirectory::create_in([place.path().to_path_buf()]).unwrap();
        let bind = |path: &Path| {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            socket.bind(&SockAddr::unix(path).unwrap()).unwrap();
            socket.listen(1).unwrap();
            socket
        };
        let _listening = bind(&living.socket());
        for path in [&dead, &empty, &foreign] {
            fs::create_dir(path).unwrap();
        }
        drop(bind(&dead.join(SOCKET)));
        sweep(place.path(), Duration::from_secs(60));
        assert!(dead.exists() && empty.exists(), "young directories stay");
        sweep(place.path(), Duration::ZERO);
        assert!(!dead.exists() && !empty.exists());
        assert!(living.socket().exists() && foreign.exists());
    }
}
