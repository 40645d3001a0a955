//! Names of a link's segments.
//!
//! In: an instance, drawn once per link. Out: the address that peers get, and ids that both ends derive from it,
//! so that no further exchange is needed. Guarantee: ids of two links never coincide.

use crate::base::Rank;
use crate::memory::shared::fill_random;
use crate::memory::{MemoryError, SegmentId};
use crate::transport::TransportError;
use serde::{Deserialize, Serialize};

/// Longest text that is read as an address.
const LONGEST: usize = 4096;

/// Tells a link from all others: 88 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instance([u8; 11]);

impl Instance {
    /// A fresh one.
    pub(super) fn random() -> Result<Self, MemoryError> {
        let mut bytes = [0; 11];
        fill_random(&mut bytes, "link instance")?;
        Ok(Self(bytes))
    }

    /// The ring in which `writer` signals to this link.
    pub(super) fn ring(self, writer: Rank) -> SegmentId {
        self.segment(b'r', writer.0)
    }

    /// Segment `number` of this link's table of regions.
    pub(super) fn table(self, number: u32) -> SegmentId {
        self.segment(b't', number)
    }

    fn segment(self, kind: u8, number: u32) -> SegmentId {
        let mut id = [0; 16];
        id[..11].copy_from_slice(&self.0);
        id[11] = kind;
        id[12..].copy_from_slice(&number.to_le_bytes());
        SegmentId(id)
    }
}

/// What peers need to connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) instance: Instance,
    /// Address of the segment server.
    pub(super) server: String,
}

impl Address {
    /// As it is exchanged.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The address that `peer` sent.
    pub(super) fn decode(peer: Rank, text: &[u8]) -> Result<Self, TransportError> {
        if text.len() > LONGEST {
            return Err(TransportError::Address { peer, what: format!("{} bytes are too many", text.len()) });
        }
        serde_json::from_slice(text)
            .map_err(|error| TransportError::Address { peer, what: format!("no shared-memory address ({error})") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_and_addresses_come_back() {
        let instances = [Instance::random().unwrap(), Instance::random().unwrap()];
        let ids = instances.iter().flat_map(|one| (0..100).flat_map(|n| [one.ring(Rank(n)), one.table(n)]));
        assert_eq!(ids.collect::<HashSet<_>>().len(), 400);
        let address = Address { instance: instances[0], server: "/run/somewhere".into() };
        assert_eq!(Address::decode(Rank(0), &address.encode()), Ok(address));
        for text in [&b""[..], b"{}", &[b'x'; LONGEST + 1]] {
            assert!(Address::decode(Rank(42), text).unwrap_err().to_string().contains("rank 42"));
        }
    }
}
