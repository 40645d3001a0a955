//! Standard output, also where a path may stand for it. In: a text, a path. Out: the text, written. Guarantee: a reader of
//! standard output that has seen enough is no fault.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Stands for standard output in place of a file.
pub(crate) const NAME: &str = "-";

/// Writes to standard output.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// The same for bytes.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes to a file, or to standard output for [`NAME`].
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    if path.as_os_str() == NAME { print(text) } else { std::fs::write(path, text) }
}
