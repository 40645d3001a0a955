//! Shared segments and their way to a peer.

use crate::base::{Backoff, Deadline};
use crate::memory::wire;
use crate::memory::{Lifeline, MemoryError, PeerSegments, SegmentId, SegmentServer, SharedMemory};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::unistd::{ftruncate, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::seconds(20)
}

#[test]
fn segments_are_sealed_and_checked() {
    for bytes in [0, 1, 4096, 5 << 20] {
        let memory = SharedMemory::create("test", bytes).unwrap();
        assert_eq!(memory.bytes(), bytes);
        let seals = SealFlag::from_bits_retain(fcntl(&memory, FcntlArg::F_GET_SEALS).unwrap());
        assert!(seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL));
        assert!(ftruncate(&memory, bytes as i64 + 4096).is_err());
        assert!(memory.pointer(0, bytes).is_ok() && memory.pointer(bytes, 0).is_ok());
        assert!(matches!(memory.pointer(1, bytes), Err(MemoryError::Range { .. })));
        assert!(matches!(memory.words(4, 0), Err(MemoryError::Misaligned { .. })));
        assert_eq!(memory.words(0, bytes / 8).unwrap().len() as u64, bytes / 8);
        assert!(memory.words(0, bytes / 8 + 1).is_err() && memory.words(8, u64::MAX).is_err());
    }
    assert!(SharedMemory::create("nul\0byte", 1).is_err());
}

#[test]
fn a_peer_sees_the_same_bytes() {
    let server = SegmentServer::start().unwrap();
    let peers = PeerSegments::new();
    for bytes in [0u64, 8, 4096, 3 << 20] {
        let memory = Arc::new(SharedMemory::create("test", bytes).unwrap());
        server.publish(&memory);
        let opened = peers.open(&server.address(), memory.id(), soon()).unwrap();
        assert_eq!((opened.id(), opened.bytes()), (memory.id(), bytes));
        for (index, word) in memory.words(0, bytes / 8).unwrap().iter().enumerate() {
            word.store(index as u64 + 1, Ordering::Release);
        }
        let sees =
            |(index, word): (usize, &std::sync::atomic::AtomicU64)| word.load(Ordering::Acquire) == index as u64 + 1;
        assert!(opened.words(0, bytes / 8).unwrap().iter().enumerate().all(sees));
        let again = peers.open(&server.address(), memory.id(), soon()).unwrap();
        assert!(Arc::ptr_eq(&opened, &again), "one mapping per segment");
        let (found, offset) = server.find(memory.as_ptr() as u64 + bytes / 2, bytes / 2).unwrap();
        assert_eq!((found.id(), offset), (memory.id(), bytes / 2));
        assert!(bytes == 0 || server.find(memory.as_ptr() as u64 + 1, bytes).is_none());
    }
}

#[test]
fn missing_withdrawn_and_freed_segments_are_named() {
    let server = SegmentServer::start().unwrap();
    let (kept, freed) = [1, 2].map(|_| Arc::new(SharedMemory::create("test", 64).unwrap())).into();
    let never = SegmentId::random().unwrap();
    server.publish(&kept);
    server.publish(&freed);
    let freed_id = freed.id();
    drop(freed);
    server.withdraw(kept.id());
    let peers = PeerSegments::new();
    for segment in [never, kept.id(), freed_id] {
        let error = peers.open(&server.address(), segment, soon()).unwrap_err();
        assert_eq!(error, MemoryError::MissingSegment { address: server.address(), segment });
        let text = error.to_string();
        assert!(text.contains(&server.address()) && text.contains(&segment.to_string()), "{text}");
    }
    server.publish(&kept);
    assert!(peers.open(&server.address(), kept.id(), soon()).is_ok(), "the connection still works");
}

#[test]
fn a_client_of_another_user_is_refused() {
    let server = SegmentServer::start_for(geteuid().as_raw() + 1).unwrap();
    let memory = Arc::new(SharedMemory::create("test", 64).unwrap());
    server.publish(&memory);
    let error = PeerSegments::new().open(&server.address(), memory.id(), soon()).unwrap_err();
    let MemoryError::PeerClosed { address, subject } = &error else { panic!("{error:?}") };
    assert!(*address == server.address() && subject.contains(&memory.id().to_string()));
}

#[test]
fn a_server_that_is_gone_is_an_error_and_leaves_nothing() {
    let server = SegmentServer::start().unwrap();
    let address = server.address();
    let directory = Path::new(&address).parent().unwrap().to_path_buf();
    let memory = Arc::new(SharedMemory::create("test", 64).unwrap());
    server.publish(&memory);
    let peers = PeerSegments::new();
    let opened = peers.open(&address, memory.id(), soon()).unwrap();
    let lifeline = Lifeline::connect(&address, soon()).unwrap();
    assert!(lifeline.is_alive() && directory.exists());
    drop(server);
    assert!(!lifeline.is_alive() && !directory.exists());
    opened.words(0, 1).unwrap()[0].store(5, Ordering::Relaxed);
    assert_eq!(memory.words(0, 1).unwrap()[0].load(Ordering::Relaxed), 5, "what is mapped stays mapped");
    let other = SegmentId::random().unwrap();
    let error = peers.open(&address, other, soon()).unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains(&other.to_string()), "{error}");
    assert!(Lifeline::connect(&address, soon()).is_err());
    assert!(Lifeline::connect(&"x".repeat(300), soon()).is_err());
}

#[test]
fn a_silent_server_is_an_error_by_the_deadline() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("silent");
    let silent = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    silent.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    silent.listen(1).unwrap();
    let segment = SegmentId::random().unwrap();
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = PeerSegments::new().open(path.to_str().unwrap(), segment, deadline).unwrap_err();
    assert!(matches!(error, MemoryError::Deadline { .. }) && error.to_string().contains("50ms"), "{error}");
}

#[test]
fn unreadable_requests_end_their_connection_only() {
    let server = SegmentServer::start().unwrap();
    let memory = Arc::new(SharedMemory::create("test", 64).unwrap());
    server.publish(&memory);
    for request in [&b"hello"[..], &[0; wire::REQUEST], &[7; 4000]] {
        let mut stray = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        stray.connect(&SockAddr::unix(server.address()).unwrap()).unwrap();
        stray.send(request).unwrap();
        stray.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(stray.read(&mut [0; 8]).unwrap(), 0, "end of the connection");
    }
    assert!(PeerSegments::new().open(&server.address(), memory.id(), soon()).is_ok());
}

#[test]
fn an_unsealed_descriptor_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let id = SegmentId::random().unwrap();
    assert!(SharedMemory::adopt(id, file.into(), 4096).is_err());
    let sealed = SharedMemory::create("test", 64).unwrap();
    let copy = std::os::fd::AsFd::as_fd(&sealed).try_clone_to_owned().unwrap();
    let error = SharedMemory::adopt(id, copy, 65).unwrap_err();
    assert_eq!(error, MemoryError::Range { offset: 0, bytes: 65, limit: 64 });
}

#[test]
fn many_peers_open_at_once() {
    let server = SegmentServer::start().unwrap();
    let memory = Arc::new(SharedMemory::create("test", 8).unwrap());
    server.publish(&memory);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let opened = PeerSegments::new().open(&server.address(), memory.id(), soon()).unwrap();
                opened.words(0, 1).unwrap()[0].fetch_add(1, Ordering::AcqRel);
            });
        }
    });
    assert_eq!(memory.words(0, 1).unwrap()[0].load(Ordering::Acquire), 16);
}

/// The exit handler, seen from outside: a process that exits without dropping its server leaves nothing.
#[test]
fn nothing_is_left_by_a_process_that_only_exits() {
    const ROLE: &str = "SEGMENT_SERVER_EXITS_IN";
    if let Some(place) = std::env::var_os(ROLE) {
        let server = SegmentServer::start().unwrap();
        assert!(Path::new(&server.address()).starts_with(place));
        std::mem::forget(server);
        std::process::exit(0);
    }
    let place = tempfile::tempdir().unwrap();
    let name = "memory::tests::segments::nothing_is_left_by_a_process_that_only_exits";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("XDG_RUNTIME_DIR", place.path())
        .env(ROLE, place.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (mut backoff, deadline) = (Backoff::new(), Deadline::seconds(60));
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(!deadline.expired(), "the child hangs"),
        }
        backoff.snooze();
    };
    assert!(status.success());
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}
