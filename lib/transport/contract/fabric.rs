//! The links under test.
//!
//! In: a rank. Out: a link, and where its targets must be published. Guarantee: queues of a few frames.

use crate::base::Rank;
use crate::memory::{PeerSegments, SegmentServer, SharedMemory};
use crate::transport::tcp::tests::TrustingPeers;
use crate::transport::{FaultOptions, FaultyLink, MessageLink, ShmLink, ShmOptions, TcpLink, TcpOptions};
use std::sync::Arc;

/// Frames or items that wait per connection.
pub(super) const QUEUE: usize = 3;

/// A kind of link.
pub(super) trait Fabric {
    type Link: MessageLink;
    /// The link of `rank`, and what keeps its targets reachable.
    fn link(rank: Rank) -> (Self::Link, Published);
}

/// Publishes targets where the link needs it.
pub(super) struct Published(Option<Arc<SegmentServer>>);

impl Published {
    pub(super) fn publish(&self, memory: &Arc<SharedMemory>) {
        if let Some(server) = &self.0 {
            server.publish(memory);
        }
    }
}

pub(super) struct Tcp;

impl Fabric for Tcp {
    type Link = TcpLink;

    fn link(rank: Rank) -> (TcpLink, Published) {
        let options = TcpOptions { queue_frames: QUEUE, ..TcpOptions::new(Arc::new(TrustingPeers(rank))) };
        (TcpLink::new(rank, options).unwrap(), Published(None))
    }
}

pub(super) struct Shm;

impl Fabric for Shm {
    type Link = ShmLink;

    fn link(rank: Rank) -> (ShmLink, Published) {
        let server = Arc::new(SegmentServer::start().unwrap());
        let options = ShmOptions::new(server.clone(), Arc::new(PeerSegments::new()));
        let options = ShmOptions { queue_items: QUEUE, ring_signals: 4, ..options };
        (ShmLink::new(rank, options).unwrap(), Published(Some(server)))
    }
}

pub(super) struct Faulty<F>(std::marker::PhantomData<F>);

impl<F: Fabric> Fabric for Faulty<F> {
    type Link = FaultyLink<F::Link>;

    fn link(rank: Rank) -> (Self::Link, Published) {
        let (inner, published) = F::link(rank);
        let options = FaultOptions { seed: u64::from(rank.0), busy: 200, delay: 200, drop_at: None };
        (FaultyLink::new(inner, options), published)
    }
}
