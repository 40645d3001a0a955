//! Pages that tensors lie in. In: new memory, what the user chose. Out: the same memory in huge pages where the system has
//! them. Guarantee: whatever fails, the memory can be used, in ordinary pages; bytes keep their values.
//!
//! A copy that fills more than the processor's cache moves a fifth to a quarter more from huge pages to huge pages than
//! between pages of 4 KiB. Private memory gets them when it is touched, if it was asked for before. Shared memory does
//! not: most systems have that switched off. But a process may ask the kernel to collapse what it has touched already
//! (Linux 6.1 and later, no privilege), so tensors' memory is touched and collapsed when it is made. That takes about
//! twice as long as touching it alone.

use super::mapping::Mapping;
use crate::base::env::{self, EnvError};
use nix::errno::Errno;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use std::fmt;
use std::fs::File;
use std::str::FromStr;
use std::sync::OnceLock;

/// What the user chose, as `CROSSMESH_PAGES` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageChoice {
    /// Huge pages that the kernel makes.
    #[default]
    Huge,
    /// Huge pages that the administrator reserved, then those that the kernel makes.
    Reserved,
    /// Ordinary pages.
    Small,
}

/// What memory lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages.
    Small,
    /// Huge pages that the kernel made, but for a rest of less than one.
    Huge,
    /// Reserved huge pages.
    Reserved,
}

impl FromStr for PageChoice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "huge" => Ok(Self::Huge),
            "reserved" => Ok(Self::Reserved),
            "small" => Ok(Self::Small),
            _ => Err(()),
        }
    }
}

impl PageChoice {
    /// What the environment says, read once.
    pub(super) fn of_environment() -> Result<Self, EnvError> {
        static CHOICE: OnceLock<Result<PageChoice, EnvError>> = OnceLock::new();
        CHOICE.get_or_init(|| Ok(env::value(env::PAGES)?.unwrap_or_default())).clone()
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Small => "ordinary pages",
            Self::Huge => "huge pages",
            Self::Reserved => "reserved huge pages",
        })
    }
}

/// Bytes of a huge page that the kernel makes; `None` where it makes none.
pub(super) fn huge_page() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
        text.trim().parse().ok().filter(|bytes: &usize| bytes.is_power_of_two())
    })
}

/// Border on which memory of `bytes` bytes begins.
pub(super) fn alignment(bytes: u64) -> usize {
    huge_page().filter(|&huge| bytes >= huge as u64).unwrap_or(1)
}

/// Bytes of the pages of a file in reserved huge pages; `None` for any other.
pub(super) fn reserved_page(file: &File) -> Option<u64> {
    let system = fstatfs(file).ok()?;
    (system.filesystem_type() == HUGETLBFS_MAGIC).then(|| system.block_size() as u64)
}

/// Bytes of a page that the administrator can reserve; `None` where there are none.
pub(super) fn reserved_size() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = facts.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Says that huge pages are welcome when memory is touched.
pub(super) fn welcome_huge(mapping: &Mapping) {
    if huge_page().is_some_and(|huge| mapping.bytes() >= huge)
        && let Err(errno) = mapping.advise(libc::MADV_HUGEPAGE, mapping.bytes())
    {
        log::debug!("no huge pages for {} bytes: {errno}", mapping.bytes());
    }
}

/// Puts new shared memory into huge pages, all of it at once.
pub(super) fn collapse(mapping: &Mapping) -> Result<(), Errno> {
    let huge = huge_page().filter(|&huge| mapping.bytes() >= huge).ok_or(Errno::ENOTSUP)?;
    let whole = mapping.bytes() / huge * huge;
    for first in (0..whole).step_by(huge) {
        // A huge page is made where there is a page already.
        // SAFETY: the byte lies inside the mapping; it is new, nobody else knows it, and it stays zero.
        unsafe { mapping.start().add(first).write_volatile(0) };
    }
    let mut attempts = 0;
    loop {
        match mapping.advise(libc::MADV_COLLAPSE, whole) {
            // Some page was in use for a moment.
            Err(Errno::EAGAIN | Errno::EBUSY) if attempts < ATTEMPTS => attempts += 1,
            result => return result,
        }
    }
}

/// Tries to collapse memory of which a page was in use.
const ATTEMPTS: u32 = 3;
