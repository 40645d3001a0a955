//! Files of the kernel. In: a root, `/` or a recorded copy of it. Out: their text. Guarantee: what is not there, or not
//! readable, is `None`, never an error; no file is read past a limit.

use crate::topology::PciAddress;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes read of one file; those of interest are short.
const LONGEST: u64 = 64 * 1024;

/// A tree that has `sys` and `proc`.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether it is this machine's own.
    pub(super) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Text of a file, without white space around it; `None` when there is nothing.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        File::open(self.root.join(path)).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
        let trimmed = text.trim();
        (!trimmed.is_empty()).then(|| trimmed.to_string())
    }

    /// A file that holds one value.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A file that holds one hexadecimal number.
    pub(super) fn hexadecimal(&self, path: &str) -> Option<u32> {
        u32::from_str_radix(self.text(path)?.trim_start_matches("0x"), 16).ok()
    }

    /// A NUMA node; the kernel writes -1 where the firmware does not say.
    pub(super) fn numa(&self, path: &str) -> Option<u32> {
        self.value::<i64>(path).and_then(|number| u32::try_from(number).ok())
    }

    /// Names in a folder, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// Numbers behind `prefix` among the names in a folder, ascending: 0 and 12 of `node0`, `node12`, `online`.
    pub(super) fn numbers(&self, path: &str, prefix: &str) -> Vec<u32> {
        let names = self.names(path);
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// PCI addresses on the way that a link points, outermost first.
    pub(super) fn pci_path(&self, path: &str) -> Vec<PciAddress> {
        let target = fs::read_link(self.root.join(path)).unwrap_or_default();
        target.iter().filter_map(|part| part.to_str()?.parse().ok()).collect()
    }

    /// What tells a file or folder from all others of its file system.
    pub(super) fn inode(&self, path: &str) -> Option<u64> {
        fs::metadata(self.root.join(path)).ok().map(|facts| facts.ino())
    }

    /// Whether there is something at `path`, also a link that leads nowhere.
    pub(super) fn is_there(&self, path: &str) -> bool {
        self.root.join(path).symlink_metadata().is_ok()
    }
}
