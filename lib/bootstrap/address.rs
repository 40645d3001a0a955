//! Where a process listens and how others reach it.
//!
//! In: addresses of this host, or of others. Out: listeners with the addresses to publish, and connected,
//! authenticated streams. Guarantee: no listener on a wildcard address; a dialer tries all addresses in order until
//! its deadline, and says at once what retrying cannot mend.

use super::error::BootstrapError;
use super::handshake::{HandshakeError, Party};
use crate::base::{Deadline, Rank};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Connections that may wait to be accepted; the system cuts it to its own limit.
const BACKLOG: i32 = 4096;
/// Longest wait for one address, so that one that swallows packets does not hide the next.
const ONE_ADDRESS: Duration = Duration::from_secs(3);
/// Longest wait for one handshake.
pub(super) const ONE_HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause between two rounds over all addresses.
const RETRY: Duration = Duration::from_millis(20);
/// How long an address that refuses connections is tried again.
const REFUSED: Duration = Duration::from_secs(5);

/// Listens on each of `addresses` that can be bound; fails when none can.
pub(super) fn listen(addresses: &[SocketAddr]) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), BootstrapError> {
    let mut listeners = Vec::new();
    let mut published = Vec::new();
    let mut failure = None;
    for &address in addresses {
        match bind(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((bound, listener)) => {
                published.push(bound);
                listeners.push(listener);
            }
            Err(source) => {
                log::debug!("cannot listen at {address}: {source}");
                failure = Some(BootstrapError::Socket { operation: "listening", address: Some(address), source });
            }
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok((listeners, published)),
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Where to dial and who is meant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination<'a> {
    /// Addresses, best first.
    pub(super) addresses: &'a [SocketAddr],
    /// The rank there.
    pub(super) peer: Rank,
    /// Its name in errors.
    pub(super) meant: &'static str,
}

/// Connects to the first address at which `peer` proves itself.
pub(super) fn dial(
    destination: Destination<'_>,
    party: Party<'_>,
    deadline: Deadline,
) -> Result<TcpStream, BootstrapError> {
    let refusing = Deadline::after(REFUSED);
    loop {
        let (mut only_refused, mut only_strangers) = (true, true);
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for &address in destination.addresses {
            let handshake = |reason| BootstrapError::Handshake { meant: destination.meant.into(), address, reason };
            match dial_one(address, destination.peer, party, deadline) {
                Ok(stream) => return Ok(stream),
                Err(Attempt::Connect(error)) => {
                    only_refused &= error.kind() == io::ErrorKind::ConnectionRefused;
                    only_strangers = false;
                    failure = error;
                }
                Err(Attempt::Handshake(reason)) if is_final(&reason) || deadline.expired() => {
                    return Err(handshake(reason));
                }
                // Perhaps a stranger at this address; the peer may be at the next.
                Err(Attempt::Handshake(reason)) => {
                    log::debug!("{} is not at {address}: {reason}", destination.meant);
                    only_refused = false;
                    only_strangers &= matches!(reason, HandshakeError::Stranger | HandshakeError::WrongKey);
                    if only_strangers && Some(&address) == destination.addresses.last() {
                        return Err(handshake(reason));
                    }
                    failure = io::Error::other(reason);
                }
            }
        }
        if deadline.expired() || (only_refused && refusing.expired()) {
            return Err(BootstrapError::Unreachable {
                meant: destination.meant.into(),
                addresses: destination.addresses.to_vec(),
                limit: deadline.limit(),
                source: failure,
            });
        }
        thread::sleep(RETRY.min(deadline.remaining()));
    }
}

enum Attempt {
    Connect(io::Error),
    Handshake(HandshakeError),
}

fn dial_one(address: SocketAddr, peer: Rank, party: Party<'_>, deadline: Deadline) -> Result<TcpStream, Attempt> {
    let limit = deadline.remaining().min(ONE_ADDRESS);
    if limit.is_zero() {
        return Err(Attempt::Connect(io::ErrorKind::TimedOut.into()));
    }
    let stream = TcpStream::connect_timeout(&address, limit).map_err(Attempt::Connect)?;
    let limit = Deadline::after(deadline.remaining().min(ONE_HANDSHAKE));
    party.dial(&stream, peer, limit).map_err(Attempt::Handshake)?;
    Ok(stream)
}

/// Whether trying again or elsewhere cannot help.
fn is_final(error: &HandshakeError) -> bool {
    match error {
        HandshakeError::Refused(_) | HandshakeError::Version { .. } => true,
        HandshakeError::Purpose { .. } | HandshakeError::Random(_) => true,
        HandshakeError::Timeout | HandshakeError::Stream { .. } | HandshakeError::HungUp => false,
        HandshakeError::Stranger | HandshakeError::WrongKey => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::JobKey;

    #[test]
    fn an_address_nobody_serves_is_named() {
        let (listeners, addresses) = listen(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        drop(listeners);
        let key = JobKey::generate().unwrap();
        let party = Party { key: &key, purpose: "test", rank: Rank(1), size: 2 };
        let destination = Destination { addresses: &addresses, peer: Rank(0), meant: "rank 0" };
        let error = dial(destination, party, Deadline::after(Duration::from_millis(200))).unwrap_err();
        assert!(error.to_string().contains(&addresses[0].to_string()), "{error}");
    }
}
