//! Files that are given by name. In: a path. Out: the open file, its bytes, its text. Guarantee: regular files only: a
//! pipe or a device, which may never end, is refused without waiting for it.

use nix::libc::O_NONBLOCK;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens `path` for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // So that a pipe is opened without its writer.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// All bytes of `path`.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All of `path`, which is UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn pipes_devices_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            assert!(read(path).unwrap_err().to_string().contains("no regular file"), "{}", path.display());
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!((read(&file).unwrap(), read_text(&file).unwrap()), (b"text".to_vec(), "text".to_string()));
    }
}
