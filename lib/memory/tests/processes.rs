//! Private memory of this and of another process.

use crate::base::{Backoff, Deadline};
use crate::memory::process::{fill_ranges, range};
use crate::memory::{MemoryError, ProcessMemory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Command};

fn own() -> ProcessMemory {
    ProcessMemory { pid: std::process::id() as i32 }
}

/// Ranges of `bytes` cut into pieces of the given sizes, in turn.
fn cut(bytes: &mut [u8], sizes: &[usize]) -> Vec<libc::iovec> {
    let start = bytes.as_mut_ptr() as u64;
    let (mut at, mut list) = (0, Vec::new());
    for &size in sizes.iter().cycle() {
        if at == bytes.len() {
            return list;
        }
        let size = size.min(bytes.len() - at);
        list.push(range(start + at as u64, size as u64));
        at += size;
    }
    list
}

#[test]
fn lists_longer_than_one_call_are_copied_whole() {
    for (bytes, near, far) in [(0, 1, 1), (1, 1, 1), (5000, 3, 7), (5000, 1, 5000), (300_000, 64, 17), (40_000, 9, 1)] {
        let mut source: Vec<u8> = (0..bytes).map(|index| (index * 7 % 253) as u8).collect();
        for writes in [false, true] {
            let mut target = vec![0u8; bytes];
            // An empty range among the others must not stop the copy.
            let local = if writes { cut(&mut source, &[near, 0, 2 * near]) } else { cut(&mut target, &[near, 0]) };
            let remote = if writes { cut(&mut target, &[far]) } else { cut(&mut source, &[0, far, far + 1]) };
            // SAFETY: both lists cover vectors that nothing else uses during the call.
            let moved = unsafe { if writes { own().write(&local, &remote) } else { own().read(&local, &remote) } };
            assert_eq!(moved, Ok(bytes as u64), "{bytes} {near} {far}");
            assert_eq!(source, target, "{bytes} {near} {far}");
        }
    }
}

#[test]
fn unequal_lists_are_refused() {
    let mut bytes = [0u8; 16];
    let start = bytes.as_mut_ptr() as u64;
    // SAFETY: inside the array.
    let result = unsafe { own().read(&[range(start, 8)], &[range(start + 8, 7)]) };
    assert_eq!(result, Err(MemoryError::Unequal { pid: own().pid, local: 8, remote: 7 }));
}

#[test]
fn probe_compares_a_word() {
    let word = 0x0123_4567_89ab_cdefu64;
    let address = &raw const word as u64;
    assert!(own().probe(address, word));
    assert!(!own().probe(address, word + 1));
    assert!(!own().probe(8, word));
}

#[test]
fn runs_are_merged_and_batched() {
    let runs = [(0u64, 4u64), (4, 4), (16, 0), (16, 8), (100, 1), (200, 1), (201, 3)];
    let mut runs = runs.into_iter().peekable();
    let mut list = [range(0, 0); 2];
    let seen = |list: &[libc::iovec]| list.iter().map(|r| (r.iov_base as u64, r.iov_len)).collect::<Vec<_>>();
    assert_eq!(seen(fill_ranges(&mut runs, &mut list)), [(0, 8), (16, 8)]);
    assert_eq!(seen(fill_ranges(&mut runs, &mut list)), [(100, 1), (200, 4)]);
    assert!(fill_ranges(&mut runs, &mut list).is_empty());
    let mut none = [(1u64, 1u64)].into_iter().peekable();
    assert!(fill_ranges(&mut none, &mut []).is_empty() && none.peek().is_some());
}

/// A process that only sleeps, ended on drop.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn memory(&self) -> ProcessMemory {
        ProcessMemory { pid: self.0.id() as i32 }
    }

    /// First address of its first mapping whose line in the table of mappings contains `name`.
    fn mapping(&self, name: &str) -> u64 {
        // The parent runs on before the new program is fully mapped.
        let (mut backoff, deadline) = (Backoff::new(), Deadline::seconds(20));
        loop {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
            if let Some(line) = maps.lines().find(|line| line.contains(name) && maps.contains("[vdso]")) {
                return u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            }
            assert!(!deadline.expired(), "no mapping {name} in {maps}");
            backoff.snooze();
        }
    }

    fn end(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn another_process_is_read_and_written() {
    let sleeper = Sleeper::start();
    let stack = sleeper.mapping("[stack]");
    let program = std::fs::read_link(format!("/proc/{}/exe", sleeper.0.id())).unwrap();
    let file = std::fs::read(&program).unwrap();
    let image = sleeper.mapping(program.to_str().unwrap());
    let mut read = [0u8; 256];
    let local = cut(&mut read, &[100, 3]);
    // SAFETY: the list covers an array that nothing else uses.
    unsafe { sleeper.memory().read(&local, &[range(image, 256)]) }.unwrap();
    assert_eq!(read[..], file[..256]);

    // The low end of its stack is unused while it sleeps.
    let mut words = [0x5152_5354_5556_5758u64, 77];
    let local = [range(words.as_mut_ptr() as u64, 16)];
    // SAFETY: as above.
    unsafe { sleeper.memory().write(&local, &[range(stack, 8), range(stack + 64, 8)]) }.unwrap();
    assert!(sleeper.memory().probe(stack, words[0]) && sleeper.memory().probe(stack + 64, 77));
}

#[test]
fn failures_name_process_address_and_reason() {
    let mut sleeper = Sleeper::start();
    let stack = sleeper.mapping("[stack]");
    let mut bytes = [0u8; 24];
    let local = cut(&mut bytes, &[24]);
    let remote = [range(stack, 16), range(0x10, 8)];
    // SAFETY: the list covers an array that nothing else uses.
    let error = unsafe { sleeper.memory().read(&local, &remote) }.unwrap_err();
    let MemoryError::Process { address: 0x10, bytes: 8, .. } = error else { panic!("{error:?}") };
    let text = error.to_string();
    assert!(text.contains(&sleeper.0.id().to_string()) && text.contains("0x10") && text.contains("EFAULT"), "{text}");
    sleeper.end();
    // SAFETY: as above.
    let error = unsafe { sleeper.memory().read(&local[..1], &[range(stack, 24)]) }.unwrap_err().to_string();
    assert!(error.contains("ESRCH"), "{error}");
}
