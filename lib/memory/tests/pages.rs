//! Pages of tensors' memory: every outcome of the choice, and that peers see the same bytes in each.

use crate::base::Deadline;
use crate::memory::mapping::{Mapping, page};
use crate::memory::{Buffer, PageChoice, Pages, PeerSegments, SegmentServer, SharedMemory, pages};
use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Reserved huge pages that nobody has.
fn free_reserved() -> u64 {
    let facts = fs::read_to_string("/proc/meminfo").unwrap();
    let count = |name: &str| {
        let line = facts.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |text| text.trim().parse().unwrap())
    };
    let spare =
        fs::read_to_string("/proc/sys/vm/nr_overcommit_hugepages").map_or(0, |text| text.trim().parse().unwrap());
    count("HugePages_Free:") - count("HugePages_Rsvd:") + spare
}

/// Bytes of a mapping in huge pages, as the kernel tells.
fn in_huge_pages(start: u64) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    lines.next().expect("the mapping is listed");
    let here = lines.take_while(|line| !line.contains('-') || line.contains(':') && line.ends_with("kB"));
    let fact =
        |line: &str| Some(line.strip_prefix("ShmemPmdMapped:")?.trim().strip_suffix(" kB")?.parse::<u64>().unwrap());
    here.filter_map(fact).sum::<u64>() << 10
}

fn check_shared(memory: SharedMemory) {
    let (server, peers, memory) = (SegmentServer::start().unwrap(), PeerSegments::new(), Arc::new(memory));
    server.publish(&memory);
    let opened = peers.open(&server.address(), memory.id(), Deadline::seconds(20)).unwrap();
    assert_eq!(opened.bytes(), memory.bytes());
    let places: Vec<u64> = (0..memory.bytes()).step_by(4096).chain([memory.bytes() - 1]).collect();
    let pairs = places.iter().map(|&at| (at as u8 | 1, memory.pointer(at, 1).unwrap(), opened.pointer(at, 1).unwrap()));
    // SAFETY: the bytes are inside both mappings, which nothing else uses meanwhile.
    pairs.clone().for_each(|(_, here, there)| unsafe {
        assert_eq!((here.read_volatile(), there.read_volatile()), (0, 0), "new memory is zeroed");
    });
    // SAFETY: as above.
    pairs.for_each(|(value, here, there)| unsafe {
        here.write_volatile(value);
        assert_eq!(there.read_volatile(), value);
    });
}

#[test]
fn every_choice_gives_memory_in_the_pages_that_it_tells() {
    let huge = pages::huge_page().unwrap_or(2 << 20) as u64;
    for bytes in [1, 4097, huge - 1, huge, 2 * huge + 12_345] {
        let make = |choice| SharedMemory::create_for_tensors("test", bytes, choice).unwrap();
        let small = make(PageChoice::Small);
        assert_eq!(small.pages(), Pages::Small);
        check_shared(small);
        let chosen = make(PageChoice::Huge);
        if chosen.pages() == Pages::Huge {
            assert!(bytes >= huge);
            assert_eq!(in_huge_pages(chosen.as_ptr() as u64), bytes / huge * huge);
        }
        check_shared(chosen);
    }
}

#[test]
fn reserved_pages_are_taken_while_there_are_any() {
    // Without any kind of them there are none to take either.
    let page = pages::reserved_size().unwrap_or(2 << 20);
    for bytes in [100, page, page + 1] {
        let free = free_reserved();
        let memory = SharedMemory::create_for_tensors("test", bytes, PageChoice::Reserved).unwrap();
        if free == 0 || bytes < page {
            assert_ne!(memory.pages(), Pages::Reserved, "{bytes} bytes, {free} pages free");
        }
        check_shared(memory);
    }
    // More than any machine has reserved: falls back, and does not touch what it made.
    let most = SharedMemory::create_reserved(crate::memory::SegmentId([7; 16]), "test", page << 30);
    assert!(most.is_err());
}

#[test]
fn memory_that_cannot_be_collapsed_says_so_and_keeps_its_bytes() {
    let length = |bytes| NonZeroUsize::new(bytes).unwrap();
    let below = Mapping::private(length(page()), 1).unwrap();
    assert!(pages::collapse(&below).is_err());
    assert!(below.advise(-1, page()).is_err(), "no such advice");
    // SAFETY: the bytes are inside the mapping, which nothing else uses.
    unsafe {
        assert_eq!(below.start().read(), 0);
        below.start().write(3);
        assert_eq!(below.start().read(), 3);
    }
}

#[test]
fn mappings_begin_where_they_were_asked_to_and_give_back_the_rest() {
    for alignment in [1, 1 << 16, 2 << 20, 64 << 20] {
        for bytes in [1, page(), (3 << 20) + 5] {
            let mapping = Mapping::private(NonZeroUsize::new(bytes).unwrap(), alignment).unwrap();
            let start = mapping.start() as usize;
            assert!(start.is_multiple_of(alignment.max(page())), "{bytes} {alignment}");
            // SAFETY: the last byte of the mapping, which nothing else uses.
            unsafe { mapping.start().add(bytes - 1).write(1) };
            let listed = fs::read_to_string("/proc/self/maps").unwrap();
            assert!(listed.contains(&format!("{start:x}-")) || bytes < 2 * page(), "{bytes} {alignment}");
        }
    }
}

#[test]
fn buffers_tell_their_pages() {
    assert_eq!(Buffer::private(8 << 20).unwrap().pages(), None);
    assert!(Buffer::shared(8 << 20).unwrap().pages().is_some());
    assert_eq!(Buffer::shared(10).unwrap().pages(), Some(Pages::Small));
    for (text, choice) in [("huge", PageChoice::Huge), ("reserved", PageChoice::Reserved), ("small", PageChoice::Small)]
    {
        assert_eq!(text.parse(), Ok(choice));
    }
    assert!("4k".parse::<PageChoice>().is_err() && PageChoice::default() == PageChoice::Huge);
}
