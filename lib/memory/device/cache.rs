//! Compiled kernels on disk. In: what a kernel is compiled from. Out: its machine code, compiled at most once per machine:
//! while one process compiles an entry, others that want it wait, and compile it themselves if that takes too long.
//! Guarantee: an entry belongs to one source, set of options, compiler version and architecture; it is written beside its
//! place and renamed, in a folder that only this user can enter; one that does not match its own digest is compiled
//! again. A folder that cannot be used costs a compilation and a warning, never the kernel.

use super::error::DeviceError;
use super::nvrtc::{Compiler, FILES, OPTIONS};
use crate::base::env;
use crate::memory::shared::fill_random;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a digest, which stands before the code in a file.
const DIGEST: usize = 32;

/// Longest wait for another process that compiles; the slowest file takes a quarter of it on one core. Never more than half of
/// what a call may take, so that time is left to compile.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at what another process has done.
const POLL: Duration = Duration::from_millis(5);

/// Machine code of kernel file `kernel`, compiled with a macro where it wants one, for `architecture`.
pub fn machine_code(kernel: &str, define: Option<&str>, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    let compiler = Compiler::load()?;
    let compile = || Ok(compiler.compile(kernel, define, architecture)?.code);
    match folder() {
        Some(folder) => {
            let name = entry_name(kernel, define, architecture, &compiler.version());
            let half = env::seconds(env::TIMEOUT).ok().flatten().map_or(PATIENCE, |limit| limit / 2);
            kept_or_made(&folder, &name, PATIENCE.min(half), compile)
        }
        None => compile(),
    }
}

/// What is kept as `name`. What is not is made, by one thread of one process of the host; others wait for it, so long
/// at most.
fn kept_or_made(
    folder: &Path,
    name: &str,
    patience: Duration,
    make: impl FnOnce() -> Result<Vec<u8>, DeviceError>,
) -> Result<Vec<u8>, DeviceError> {
    let place = folder.join(name);
    if let Some(code) = read(&place) {
        return Ok(code);
    }
    let ready = private(folder);
    let lock_place = folder.join(format!("{name}.lock"));
    let lock = ready.is_ok().then(|| OpenOptions::new().append(true).create(true).mode(0o600).open(&lock_place));
    let lock = lock.and_then(Result::ok);
    let until = Instant::now() + patience;
    let (locked, kept) = loop {
        // The kernel lets go of the lock of a process that dies.
        let locked = lock.as_ref().map(File::try_lock);
        // Who had the lock has finished, maybe.
        let kept = read(&place);
        match locked {
            Some(Err(TryLockError::WouldBlock)) if kept.is_none() && Instant::now() < until => std::thread::sleep(POLL),
            locked => break (matches!(locked, Some(Ok(()))), kept),
        }
    };
    let code = kept.map_or_else(|| made(&place, ready, make), Ok);
    if locked {
        // While it is locked: who waits for it finds the entry. Left over, it would do no harm.
        let _ = fs::remove_file(&lock_place);
    }
    code
}

/// Makes an entry and keeps it where the folder is `ready` for it.
fn made(
    place: &Path,
    ready: io::Result<()>,
    make: impl FnOnce() -> Result<Vec<u8>, DeviceError>,
) -> Result<Vec<u8>, DeviceError> {
    if place.exists() {
        log::warn!("{} is damaged and is compiled again", place.display());
    }
    let code = make()?;
    if let Err(error) = ready.and_then(|()| write(place, &code)) {
        log::warn!("compiled kernels are not kept: {}: {error}; set CROSSMESH_CACHE", place.display());
    }
    Ok(code)
}

/// Keeps code that was compiled without the cache, for [`machine_code`]; where that is not possible, a warning says so.
pub fn keep(kernel: &str, define: Option<&str>, architecture: &str, code: &[u8]) -> Result<(), DeviceError> {
    kept::write(&entry_name(kernel, define, architecture, &Compiler::load()?.version()), code);
    Ok(())
}

/// Small results that are kept beside the kernels, under the same rules.
pub mod kept {
    use super::{folder, private, read as read_file, write as write_file};

    /// What was kept as `name`.
    pub fn read(name: &str) -> Option<Vec<u8>> {
        read_file(&folder()?.join(name))
    }

    /// Keeps `bytes` as `name`; where that is not possible, a warning says so.
    pub fn write(name: &str, bytes: &[u8]) {
        let Some(folder) = folder() else { return };
        if let Err(error) = private(&folder).and_then(|()| write_file(&folder.join(name), bytes)) {
            log::warn!("{name} is not kept: {}: {error}; set CROSSMESH_CACHE", folder.display());
        }
    }
}

/// `CROSSMESH_CACHE`, else `crossmesh` in the user's cache folder.
fn folder() -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = || home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
    env::text(env::CACHE).map(PathBuf::from).or_else(|| Some(user()?.join("crossmesh")))
}

fn entry_name(kernel: &str, define: Option<&str>, architecture: &str, version: &str) -> String {
    let mut hasher = Sha256::new();
    for (name, text) in FILES.iter().filter(|(name, _)| *name == kernel || !name.ends_with(".cu")) {
        hasher.update((name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    for option in OPTIONS.into_iter().chain(define) {
        hasher.update(option);
        hasher.update([0]);
    }
    hasher.update(version);
    let digest = hasher.finalize();
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{architecture}-{hex}.cubin", kernel.trim_end_matches(".cu"))
}

/// The code in a file; `None` when there is none or it is damaged.
fn read(place: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(place).ok()?;
    if bytes.len() > DIGEST && Sha256::digest(&bytes[DIGEST..])[..] == bytes[..DIGEST] {
        return Some(bytes.split_off(DIGEST));
    }
    None
}

/// Makes the folder where there is none; only this user may write in it.
fn private(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() || metadata.uid() != nix::unistd::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("it belongs to another user, or others may write in it"));
    }
    Ok(())
}

/// Writes an entry into a folder that is [`private`].
fn write(place: &Path, code: &[u8]) -> io::Result<()> {
    let mut token = [0; 8];
    fill_random(&mut token, "file name").map_err(io::Error::other)?;
    let beside = place.with_extension(format!("{:016x}", u64::from_le_bytes(token)));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).and_then(|mut file| {
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        fs::rename(&beside, place)
    });
    if written.is_err() {
        // It may not have been made at all.
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn entries_are_private_and_damaged_ones_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a").join("crossmesh");
        let entry = folder.join(entry_name("pack.cu", None, "sm_90", "13.0"));
        assert_eq!(read(&entry), None);
        private(&folder).unwrap();
        write(&entry, b"code").unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(read(&entry).as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        let mut bytes = fs::read(&entry).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&entry, bytes).unwrap();
        assert_eq!(read(&entry), None);
        write(&entry, b"code").unwrap();
        assert!(read(&entry).is_some(), "written again");
        fs::write(&entry, b"").unwrap();
        assert_eq!(read(&entry), None);
    }

    #[test]
    fn folders_of_others_are_not_used() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("crossmesh");
        DirBuilder::new().mode(0o777).create(&folder).unwrap();
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(private(&folder).is_err());
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(private(&file).is_err());
    }

    /// As many callers at once; what each got, and how often the entry was made.
    fn at_once(folder: &Path, callers: usize, patience: Duration) -> (Vec<Vec<u8>>, usize) {
        let (together, made) = (Barrier::new(callers), AtomicUsize::new(0));
        let make = || {
            made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
            Ok(b"code".to_vec())
        };
        let call = || {
            together.wait();
            kept_or_made(folder, "pack.cubin", patience, make).unwrap()
        };
        let got = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        (got, made.into_inner())
    }

    fn entries(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn one_of_many_makes_an_entry() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("crossmesh");
        assert_eq!(at_once(&folder, 8, PATIENCE), (vec![b"code".to_vec(); 8], 1));
        assert_eq!(entries(&folder), ["pack.cubin"], "no lock is left");
        fs::write(folder.join("pack.cubin"), b"damaged").unwrap();
        assert_eq!(at_once(&folder, 8, PATIENCE), (vec![b"code".to_vec(); 8], 1));
        assert_eq!(at_once(&folder, 2, PATIENCE).1, 0);
    }

    /// Holds the lock of an entry, as a process that compiles it does.
    fn holder(folder: &Path) -> Child {
        let lock = folder.join("pack.cubin.lock");
        let script = "exec 9>>\"$0\"; flock 9; echo held; exec sleep 60 >/dev/null";
        let mut command = Command::new("sh");
        let mut holder =
            command.args(["-c", script]).arg(lock).stdout(Stdio::piped()).spawn().expect("a shell and flock");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        holder
    }

    #[test]
    fn a_process_that_dies_or_stalls_is_no_obstacle() {
        let place = tempfile::tempdir().unwrap();
        let mut holder = holder(place.path());
        let short = Duration::from_millis(100);
        let began = Instant::now();
        assert_eq!(at_once(place.path(), 1, short), (vec![b"code".to_vec()], 1));
        assert!(began.elapsed() >= short, "it waited first");
        fs::remove_file(place.path().join("pack.cubin")).unwrap();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| at_once(place.path(), 4, PATIENCE));
            std::thread::sleep(short);
            assert!(!calls.is_finished(), "they wait");
            holder.kill().unwrap();
            assert_eq!(calls.join().unwrap(), (vec![b"code".to_vec(); 4], 1));
        });
        holder.wait().unwrap();
        assert_eq!(entries(place.path()), ["pack.cubin"]);
    }

    #[test]
    fn a_folder_that_cannot_be_used_costs_a_compilation_each() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        let began = Instant::now();
        assert_eq!(at_once(&file, 3, PATIENCE), (vec![b"code".to_vec(); 3], 3));
        assert!(began.elapsed() < PATIENCE / 2);
        let fails = || Err(DeviceError::NoCompiler { tried: "none".into() });
        let folder = place.path().join("crossmesh");
        assert!(matches!(kept_or_made(&folder, "x.cubin", PATIENCE, fails), Err(DeviceError::NoCompiler { .. })));
        assert_eq!(entries(&folder), [""; 0], "the next one may try");
    }

    #[test]
    fn names_tell_everything_that_matters_apart() {
        let names = [
            entry_name("pack.cu", None, "sm_90", "13.0"),
            entry_name("pack.cu", Some("ELEMENT=0"), "sm_90", "13.0"),
            entry_name("pack.cu", Some("ELEMENT=1"), "sm_90", "13.0"),
            entry_name("pack.cu", None, "sm_100", "13.0"),
            entry_name("pack.cu", None, "sm_90", "12.9"),
            entry_name("digest.cu", None, "sm_90", "13.0"),
        ];
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name) && name.ends_with(".cubin"), "{name}");
        }
    }
}
