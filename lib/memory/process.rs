//! Another process's private memory.
//!
//! In: a process id and lists of ranges. Out: bytes copied by the kernel, once, without the other process
//! taking part. Guarantee: all bytes were moved or an error names the first address that failed; nothing is
//! allocated.

use super::error::MemoryError;
use libc::iovec;
use nix::errno::Errno;
use std::iter::Peekable;

/// Ranges that the kernel takes in one call (IOV_MAX).
const LARGEST_LIST: usize = 1024;
/// Ranges of a call that continues inside a range; such lists are copied, two of them onto the stack.
const BATCH: usize = 128;

/// Access to the memory of one process of the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The process.
    pub pid: i32,
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl ProcessMemory {
    /// Copies the `remote` ranges of the process into the `local` ranges, in order. The lists may be cut
    /// differently but must hold the same number of bytes.
    ///
    /// # Safety
    /// Every local range must be valid for writes and not be referenced by anything else meanwhile.
    pub unsafe fn read(&self, local: &[iovec], remote: &[iovec]) -> Result<u64, MemoryError> {
        // SAFETY: forwarded from the caller.
        unsafe { self.copy(Direction::Read, local, remote) }
    }

    /// Copies the `local` ranges into the `remote` ranges of the process, in order.
    ///
    /// # Safety
    /// Every local range must be valid for reads, and the process must expect its memory to change.
    pub unsafe fn write(&self, local: &[iovec], remote: &[iovec]) -> Result<u64, MemoryError> {
        // SAFETY: forwarded from the caller.
        unsafe { self.copy(Direction::Write, local, remote) }
    }

    /// Whether this process may read the word at `address` and finds `expected` there: the test that a pid
    /// means the same process on both sides and that the system allows the access.
    pub fn probe(&self, address: u64, expected: u64) -> bool {
        let mut word = 0u64;
        let local = [iovec { iov_base: (&raw mut word).cast(), iov_len: 8 }];
        let remote = [range(address, 8)];
        // SAFETY: the local range is the word above, which nothing else references during the call.
        unsafe { self.read(&local, &remote) }.is_ok() && word == expected
    }

    /// # Safety
    /// As for `read` or `write`, by direction.
    unsafe fn copy(&self, direction: Direction, local: &[iovec], remote: &[iovec]) -> Result<u64, MemoryError> {
        let total = sum(local);
        if total != sum(remote) {
            return Err(MemoryError::Unequal { pid: self.pid, local: total, remote: sum(remote) });
        }
        let mut done = 0;
        let (mut near, mut far) = (Cursor::new(local), Cursor::new(remote));
        while done < total {
            // SAFETY: the cursors walk the caller's ranges, valid by the contract of `read` and `write`.
            let moved = unsafe { step(direction, self.pid, near, far) };
            match moved {
                // Nothing moved without an error cannot be continued either.
                Ok(0) => return Err(self.failure(direction, far, total - done, Errno::EFAULT)),
                Ok(moved) => {
                    near.advance(moved);
                    far.advance(moved);
                    done += moved as u64;
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.failure(direction, far, total - done, errno)),
            }
        }
        Ok(total)
    }

    fn failure(&self, direction: Direction, far: Cursor<'_>, bytes: u64, errno: Errno) -> MemoryError {
        let operation = match direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        MemoryError::Process { operation, pid: self.pid, address: far.address(), bytes, errno }
    }
}

/// One call of the kernel, from where the cursors stand; the number of bytes moved.
///
/// # Safety
/// As for [`ProcessMemory::read`] or [`ProcessMemory::write`].
unsafe fn step(direction: Direction, pid: i32, near: Cursor<'_>, far: Cursor<'_>) -> Result<usize, Errno> {
    if let (Some(local), Some(remote)) = (near.whole(), far.whole()) {
        // SAFETY: forwarded from the caller.
        return unsafe { transfer(direction, pid, local, remote) };
    }
    let (mut near_batch, mut far_batch) = ([range(0, 0); BATCH], [range(0, 0); BATCH]);
    // SAFETY: the batches hold parts of the caller's ranges.
    unsafe { transfer(direction, pid, near.fill(&mut near_batch), far.fill(&mut far_batch)) }
}

/// # Safety
/// As for [`ProcessMemory::read`] or [`ProcessMemory::write`].
unsafe fn transfer(direction: Direction, pid: i32, local: &[iovec], remote: &[iovec]) -> Result<usize, Errno> {
    let (near, near_count) = (local.as_ptr(), local.len() as libc::c_ulong);
    let (far, far_count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
    let moved = match direction {
        // SAFETY: the lists are valid slices; their ranges by the caller's contract; the kernel checks the far side.
        Direction::Read => unsafe { libc::process_vm_readv(pid, near, near_count, far, far_count, 0) },
        // SAFETY: as above.
        Direction::Write => unsafe { libc::process_vm_writev(pid, near, near_count, far, far_count, 0) },
    };
    Errno::result(moved).map(|moved| moved as usize)
}

/// A range of another process, or of this one, as the kernel takes it.
pub fn range(address: u64, bytes: u64) -> iovec {
    iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: bytes as usize }
}

/// Takes runs (address, bytes) into `list` until it is full or the runs end; adjacent runs become one range.
/// Returns the filled part; the first run that did not fit is left in `runs`.
pub fn fill_ranges<'a>(
    runs: &mut Peekable<impl Iterator<Item = (u64, u64)>>,
    list: &'a mut [iovec],
) -> &'a mut [iovec] {
    let mut used = 0usize;
    while let Some(&(address, bytes)) = runs.peek() {
        let previous = used.checked_sub(1).map(|last| list[last]);
        match previous {
            Some(last) if last.iov_base as u64 + last.iov_len as u64 == address => {
                list[used - 1].iov_len += bytes as usize;
            }
            _ if bytes == 0 => {}
            _ if used == list.len() => break,
            _ => {
                list[used] = range(address, bytes);
                used += 1;
            }
        }
        runs.next();
    }
    &mut list[..used]
}

fn sum(list: &[iovec]) -> u64 {
    list.iter().fold(0, |total: u64, entry| total.saturating_add(entry.iov_len as u64))
}

/// A place in a list of ranges; never before an empty one.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    list: &'a [iovec],
    /// Bytes of the first range that are done.
    done: usize,
}

impl<'a> Cursor<'a> {
    fn new(list: &'a [iovec]) -> Self {
        let mut cursor = Self { list, done: 0 };
        cursor.advance(0);
        cursor
    }

    /// Address of the next byte.
    fn address(&self) -> u64 {
        self.list.first().map_or(0, |first| first.iov_base as u64 + self.done as u64)
    }

    /// The next ranges without copying them; `None` inside a range.
    fn whole(&self) -> Option<&'a [iovec]> {
        (self.done == 0).then(|| &self.list[..self.list.len().min(LARGEST_LIST)])
    }

    /// The next ranges, as many as fit.
    fn fill<'b>(&self, batch: &'b mut [iovec; BATCH]) -> &'b [iovec] {
        let count = self.list.len().min(BATCH);
        batch[..count].copy_from_slice(&self.list[..count]);
        if let Some(first) = batch[..count].first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(self.done);
            first.iov_len -= self.done;
        }
        &batch[..count]
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(first) = self.list.first() {
            let left = first.iov_len - self.done;
            if bytes < left {
                self.done += bytes;
                return;
            }
            bytes -= left;
            self.list = &self.list[1..];
            self.done = 0;
        }
    }
}
