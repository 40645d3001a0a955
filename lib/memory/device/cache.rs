//! Compiled kernels on disk. In: what a kernel is compiled from. Out: its machine code, compiled at most once per machine.
//! Guarantee: an entry belongs to one source, set of options, compiler version and architecture; it is written beside its
//! place and renamed, in a folder that only this user can enter; one that does not match its own digest is compiled
//! again. A folder that cannot be used costs a compilation and a warning, never the kernel.

use super::error::DeviceError;
use super::nvrtc::{Compiler, FILES, OPTIONS};
use crate::base::env;
use crate::memory::shared::fill_random;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a digest, which stands before the code in a file.
const DIGEST: usize = 32;

/// Machine code of kernel file `kernel`, compiled with a macro where it wants one, for `architecture`.
pub fn machine_code(kernel: &str, define: Option<&str>, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    machine_code_in(folder().as_deref(), kernel, define, architecture)
}

fn machine_code_in(
    folder: Option<&Path>,
    kernel: &str,
    define: Option<&str>,
    architecture: &str,
) -> Result<Vec<u8>, DeviceError> {
    let compiler = Compiler::load()?;
    let place = folder.map(|folder| folder.join(entry_name(kernel, define, architecture, &compiler.version())));
    if let Some(code) = place.as_deref().and_then(read) {
        return Ok(code);
    }
    let compiled = compiler.compile(kernel, define, architecture)?;
    if let (Some(folder), Some(place)) = (folder, &place)
        && let Err(error) = write(folder, place, &compiled.code)
    {
        log::warn!("compiled kernels are not kept: {}: {error}; set CROSSMESH_CACHE", folder.display());
    }
    Ok(compiled.code)
}

/// Small results that are kept beside the kernels, under the same rules.
pub mod kept {
    use super::{folder, read as read_file, write as write_file};

    /// What was kept as `name`.
    pub fn read(name: &str) -> Option<Vec<u8>> {
        read_file(&folder()?.join(name))
    }

    /// Keeps `bytes` as `name`; where that is not possible, a warning says so.
    pub fn write(name: &str, bytes: &[u8]) {
        let Some(folder) = folder() else { return };
        if let Err(error) = write_file(&folder, &folder.join(name), bytes) {
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
    log::warn!("{} is damaged and is compiled again", place.display());
    None
}

fn write(folder: &Path, place: &Path, code: &[u8]) -> io::Result<()> {
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

    #[test]
    fn entries_are_private_and_damaged_ones_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a").join("crossmesh");
        let entry = folder.join(entry_name("pack.cu", None, "sm_90", "13.0"));
        assert_eq!(read(&entry), None);
        write(&folder, &entry, b"code").unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(read(&entry).as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        let mut bytes = fs::read(&entry).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&entry, bytes).unwrap();
        assert_eq!(read(&entry), None);
        write(&folder, &entry, b"code").unwrap();
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
        assert!(write(&folder, &folder.join("x"), b"code").is_err());
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(write(&file, &file.join("x"), b"code").is_err());
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
