//! Where peers can dial this rank.
//!
//! In: the addresses of this host, or the one that was chosen. Out: listening sockets and the text that peers
//! get. Guarantee: no socket at a wildcard address; an address of another link or instance is recognised.

use super::TcpOptions;
use crate::base::Rank;
use crate::memory::error::errno_of;
use crate::memory::shared::fill_random;
use crate::topology::interface;
use crate::transport::TransportError;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Connections that the kernel keeps until this rank accepts them; lowered to the system's own limit.
const BACKLOG: i32 = 4096;
/// Longest text that is read as an address; hosts with hundreds of addresses stay below it.
const LONGEST: usize = 64 << 10;

/// What peers need to connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    /// Tells this link from any other that listens at the same place.
    pub(super) instance: u64,
    /// Places to dial, in order.
    pub(super) places: Vec<SocketAddr>,
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
        let address: Self = serde_json::from_slice(text)
            .map_err(|error| TransportError::Address { peer, what: format!("no TCP address ({error})") })?;
        if address.places.is_empty() {
            return Err(TransportError::Address { peer, what: "it lists no place".into() });
        }
        Ok(address)
    }
}

/// The listening sockets, one for each address.
pub(super) struct Listener {
    pub(super) sockets: Vec<TcpListener>,
    pub(super) address: Address,
}

impl Listener {
    /// Listens at the chosen address, or at each of this host; never at those that the system may gain later.
    pub(super) fn bind(options: &TcpOptions) -> Result<Self, TransportError> {
        let mut instance = [0; 8];
        fill_random(&mut instance, "link instance")?;
        let instance = u64::from_le_bytes(instance);
        let hosts = match options.bind {
            Some(address) => vec![address],
            None => interface::addresses(options.device.as_deref())?,
        };
        let (mut sockets, mut places, mut failure) = (Vec::new(), Vec::new(), None);
        for host in hosts {
            match listen(host, options) {
                Ok((socket, place)) => {
                    sockets.push(socket);
                    places.push(place);
                }
                Err(error) => failure = Some(setup("listen", &host.to_string(), &error)),
            }
        }
        match failure {
            Some(error) if sockets.is_empty() => return Err(error),
            Some(error) => log::debug!("{error}"),
            None => {}
        }
        Ok(Self { sockets, address: Address { instance, places } })
    }
}

/// A socket for `family`, tied to the chosen device.
pub(super) fn open_socket(family: &SocketAddr, options: &TcpOptions) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*family), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(device) = &options.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    Ok(socket)
}

fn listen(host: IpAddr, options: &TcpOptions) -> std::io::Result<(TcpListener, SocketAddr)> {
    let any_port = SocketAddr::new(host, 0);
    let socket = open_socket(&any_port, options)?;
    socket.bind(&any_port.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from(socket);
    let place = socket.local_addr()?;
    Ok((socket, place))
}

fn setup(operation: &'static str, subject: &str, error: &std::io::Error) -> TransportError {
    TransportError::Setup { link: "TCP", operation, subject: subject.into(), source: errno_of(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::tests::TrustingPeers;
    use std::sync::Arc;

    fn options(bind: Option<IpAddr>, device: Option<&str>) -> TcpOptions {
        TcpOptions { bind, device: device.map(String::from), ..TcpOptions::new(Arc::new(TrustingPeers(Rank(0)))) }
    }

    #[test]
    fn loopback_is_last_and_addresses_come_back() {
        let listener = Listener::bind(&options(None, None)).unwrap();
        let places = &listener.address.places;
        let first = places.iter().position(|place| place.ip().is_loopback()).expect("every host has loopback");
        assert!(places[first..].iter().all(|place| place.ip().is_loopback()), "{places:?}");
        assert_eq!(Address::decode(Rank(1), &listener.address.encode()), Ok(listener.address.clone()));
    }

    #[test]
    fn one_address_or_device_can_be_chosen() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let bound = Listener::bind(&options(Some(loopback), None)).unwrap();
        assert!(bound.address.places.iter().all(|place| place.ip() == loopback && place.port() != 0));
        let device = Listener::bind(&options(None, Some("lo"))).unwrap();
        assert!(device.address.places.iter().all(|place| place.ip().is_loopback()));
        let absent = Listener::bind(&options(None, Some("absent0"))).err().unwrap().to_string();
        assert!(absent.contains("absent0") && absent.contains("lo"), "{absent}");
        assert!(Listener::bind(&options(Some(IpAddr::from([192, 0, 2, 1])), None)).is_err());
    }

    #[test]
    fn unreadable_addresses_name_the_peer() {
        let long = vec![b' '; LONGEST + 1];
        for text in [&b""[..], b"{}", b"{\"instance\":1,\"places\":[]}", b"\xff", &long] {
            let error = Address::decode(Rank(42), text).unwrap_err().to_string();
            assert!(error.contains("rank 42"), "{error}");
        }
    }
}
