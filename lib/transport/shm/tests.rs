//! Tests of what only the shared-memory link has: imports, targets in segments, peers that are killed.

use super::*;
use crate::transport::tcp::tests::TrustingPeers;
use crate::transport::{TcpLink, TcpOptions};
use nix::sys::signal::{Signal as SystemSignal, kill};
use nix::unistd::Pid;
use std::path::Path;

struct Side {
    link: ShmLink,
    memory: Arc<SharedMemory>,
}

fn soon() -> Deadline {
    Deadline::seconds(30)
}

fn side(rank: u32) -> Side {
    let server = Arc::new(SegmentServer::start().unwrap());
    let memory = Arc::new(SharedMemory::create("test", 4096).unwrap());
    server.publish(&memory);
    let options = ShmOptions::new(server, Arc::new(PeerSegments::new()));
    side_with(rank, memory, options)
}

fn side_with(rank: u32, memory: Arc<SharedMemory>, options: ShmOptions) -> Side {
    Side { link: ShmLink::new(Rank(rank), options).unwrap(), memory }
}

fn connect<A: MessageLink, B: MessageLink>((first, rank): (&mut A, u32), (second, other): (&mut B, u32)) {
    let (address, other_address) = (first.address(), second.address());
    std::thread::scope(|scope| {
        scope.spawn(|| first.connect(&[(Rank(other), other_address)], soon()).unwrap());
        second.connect(&[(Rank(rank), address)], soon()).unwrap();
    });
}

fn sides() -> (Side, Side) {
    let (mut low, mut high) = (side(0), side(1));
    connect((&mut low.link, 0), (&mut high.link, 1));
    (low, high)
}

fn register(side: &mut Side, offset: u64, bytes: u64, rights: Rights) -> RegionId {
    let start = side.memory.pointer(offset, bytes).unwrap();
    // SAFETY: the segment lives in the side, beside its link, and no references into it exist.
    unsafe { side.link.register(start, bytes, rights) }.unwrap()
}

#[test]
fn targets_must_be_in_a_published_segment() {
    let mut side = side(0);
    let mut own = [0u8; 64];
    // SAFETY: the registration with a right to write fails, the other ends with the link before the array.
    unsafe {
        let refused = side.link.register(own.as_mut_ptr(), 64, Rights::REMOTE_WRITE).unwrap_err();
        assert!(matches!(refused, TransportError::NotShared { bytes: 64, .. }), "{refused}");
        assert!(side.link.register(own.as_mut_ptr(), 64, Rights::LOCAL_READ).is_ok());
    }
    let region = register(&mut side, 100, 200, Rights::REMOTE_WRITE);
    let exported = side.link.export(region).unwrap();
    assert_eq!(exported.segment, Some(SegmentPlace { segment: side.memory.id(), offset: 100 }));
    drop(side.link);
}

#[test]
fn imports_end_with_the_region() {
    let (mut low, mut high) = sides();
    for round in 0..20u64 {
        let region = register(&mut high, 0, 4096, Rights::REMOTE_WRITE);
        let exported = high.link.export(region).unwrap();
        low.link.import(Rank(1), exported, soon()).unwrap();
        low.link.import(Rank(1), exported, soon()).unwrap();
        assert_eq!(low.link.pairs[0].imported_regions(), 1, "the one of the round before is unmapped");
        let place = RemotePlace { region: exported, offset: 8 };
        assert_eq!(low.link.put_word(Rank(1), round + 1, place), Ok(Posted::Queued));
        low.link.poll(&mut Vec::new()).unwrap();
        assert_eq!(high.memory.words(8, 1).unwrap()[0].load(std::sync::atomic::Ordering::Acquire), round + 1);
        high.link.deregister(region).unwrap();
    }
    let mut foreign = RemoteRegion { key: 1 << 32, bytes: 8, segment: None };
    assert!(low.link.import(Rank(1), foreign, soon()).is_err());
    foreign.segment = Some(SegmentPlace { segment: crate::memory::SegmentId([7; 16]), offset: 0 });
    assert!(low.link.import(Rank(1), foreign, soon()).unwrap_err().to_string().contains("0707"));
    assert!(low.link.health(Rank(1)).is_ok());
}

#[test]
fn a_ring_cannot_be_opened_once_its_writer_has_it() {
    let (low, high) = sides();
    let peers = PeerSegments::new();
    for (own, other) in [(&low, &high), (&high, &low)] {
        let (ring, address) = (own.link.instance.ring(other.link.rank), own.link.options.server.address());
        assert!(peers.open(&address, ring, soon()).is_err(), "a third process could signal");
    }
}

#[test]
fn a_connection_that_ended_is_not_made_again() {
    let (mut low, mut high) = sides();
    high.link.abort(Rank(0));
    let mut events = Vec::new();
    low.link.poll(&mut events).unwrap();
    assert!(matches!(events[..], [Event::Lost { peer: Rank(1), .. }]), "{events:?}");
    let peer = [(Rank(0), low.link.address())];
    assert_eq!(high.link.connect(&peer, soon()), Err(TransportError::Aborted { peer: Rank(0) }));
}

/// A writer that was stopped in the middle of a copy keeps the region from being freed until it goes on or dies.
#[test]
fn a_region_is_not_freed_under_a_stopped_writer() {
    for dies in [false, true] {
        let (mut low, mut high) = (side(0), side(1));
        high.link.options.longest_copy = Duration::from_millis(30);
        connect((&mut low.link, 0), (&mut high.link, 1));
        let region = register(&mut high, 0, 64, Rights::REMOTE_WRITE);
        assert!(low.link.pairs[0].outbound().begin_copy(|| true));
        high.link.abort(Rank(0));
        let refused = high.link.deregister(region).unwrap_err();
        assert_eq!(refused, TransportError::StillWritten { region, peer: Rank(0) });
        if dies {
            drop(low);
        } else {
            low.link.pairs[0].outbound().end_copy();
        }
        assert_eq!(high.link.deregister(region), Ok(()));
    }
}

const ROLE: &str = "LINK_PEER_TO_KILL";

/// The other process of the test below: connects, signals, and waits to be killed.
fn be_killed(directory: &Path) -> ! {
    let mut links = links(1);
    let note = |name: &str| directory.join(name);
    for (index, link) in links.iter().enumerate() {
        std::fs::write(note(&format!("child{index}.tmp")), link.address()).unwrap();
        std::fs::rename(note(&format!("child{index}.tmp")), note(&format!("child{index}"))).unwrap();
    }
    for (index, link) in links.iter_mut().enumerate() {
        let address = read_when_there(&note(&format!("parent{index}")));
        link.connect(&[(Rank(0), address)], soon()).unwrap();
        assert_eq!(link.signal(Rank(0), Signal { epoch: 1, index: 2 }), Ok(Posted::Queued));
        link.poll(&mut Vec::new()).unwrap();
    }
    std::thread::sleep(Duration::from_secs(60));
    std::process::exit(1);
}

fn links(rank: u32) -> [Box<dyn MessageLink>; 2] {
    let options = TcpOptions::new(Arc::new(TrustingPeers(Rank(rank))));
    [Box::new(side(rank).link), Box::new(TcpLink::new(Rank(rank), options).unwrap())]
}

fn read_when_there(path: &Path) -> Vec<u8> {
    let (mut backoff, deadline) = (Backoff::new(), soon());
    loop {
        if let Ok(text) = std::fs::read(path) {
            return text;
        }
        assert!(!deadline.expired(), "no {}", path.display());
        backoff.snooze();
    }
}

fn next_event(link: &mut Box<dyn MessageLink>) -> Event {
    let (mut events, mut backoff, deadline) = (Vec::new(), Backoff::new(), soon());
    loop {
        link.poll(&mut events).unwrap();
        if let Some(event) = events.pop() {
            return event;
        }
        assert!(!deadline.expired());
        backoff.snooze();
    }
}

/// Two real processes, over both links: signals cross, and a killed peer is seen without a goodbye.
#[test]
fn a_killed_process_is_seen() {
    if let Some(directory) = std::env::var_os(ROLE) {
        be_killed(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transport::shm::tests::a_killed_process_is_seen"])
        .env(ROLE, directory.path())
        .env("XDG_RUNTIME_DIR", directory.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut links = links(0);
    for (index, link) in links.iter().enumerate() {
        std::fs::write(directory.path().join("written"), link.address()).unwrap();
        std::fs::rename(directory.path().join("written"), directory.path().join(format!("parent{index}"))).unwrap();
    }
    for (index, link) in links.iter_mut().enumerate() {
        let address = read_when_there(&directory.path().join(format!("child{index}")));
        link.connect(&[(Rank(1), address)], soon()).unwrap();
        let event = next_event(link);
        assert!(matches!(event, Event::Signalled { signal: Signal { epoch: 1, index: 2 }, .. }), "{event:?}");
    }
    kill(Pid::from_raw(child.id() as i32), SystemSignal::SIGKILL).unwrap();
    child.wait().unwrap();
    for link in &mut links {
        let event = next_event(link);
        assert!(matches!(event, Event::Lost { peer: Rank(1), .. }), "{event:?}");
        assert!(link.health(Rank(1)).is_err());
    }
}
