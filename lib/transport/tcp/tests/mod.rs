//! Tests of what only the TCP link has: authentication, strays, late and early peers.

mod strangers;

use super::{Authenticate, AuthenticateError};
use crate::base::{Deadline, Rank};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Believes what peers say.
pub(in crate::transport) struct TrustingPeers(pub(in crate::transport) Rank);

impl Authenticate for TrustingPeers {
    fn dial(&self, mut stream: &TcpStream, _peer: Rank, _deadline: Deadline) -> Result<(), AuthenticateError> {
        stream.write_all(&self.0.0.to_le_bytes()).map_err(Into::into)
    }

    fn accept(&self, mut stream: &TcpStream, _deadline: Deadline) -> Result<Rank, AuthenticateError> {
        let mut rank = [0; 4];
        stream.read_exact(&mut rank)?;
        Ok(Rank(u32::from_le_bytes(rank)))
    }
}
