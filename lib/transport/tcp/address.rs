//! Where peers can dial this rank.
//!
//! In: the interfaces of this host, or the one that was chosen. Out: a listening socket and the text that peers
//! get. Guarantee: loopback comes last; an address of another link or instance is recognised.

use super::TcpOptions;
use crate::base::Rank;
use crate::memory::error::errno_of;
use crate::memory::shared::fill_random;
use crate::transport::TransportError;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

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

/// The listening socket.
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) address: Address,
}

impl Listener {
    /// Listens at the chosen address or at all.
    pub(super) fn bind(options: &TcpOptions) -> Result<Self, TransportError> {
        let mut instance = [0; 8];
        fill_random(&mut instance, "link instance")?;
        let instance = u64::from_le_bytes(instance);
        let (socket, hosts) = match options.bind {
            Some(address) => (listen(address, options)?, vec![address]),
            None => {
                let hosts = own_addresses(options.device.as_deref())?;
                // One socket takes both families where the system has IPv6.
                match listen(Ipv6Addr::UNSPECIFIED.into(), options) {
                    Ok(socket) => (socket, hosts),
                    Err(_) => {
                        let hosts = hosts.into_iter().filter(IpAddr::is_ipv4).collect();
                        (listen(Ipv4Addr::UNSPECIFIED.into(), options)?, hosts)
                    }
                }
            }
        };
        let port = socket.local_addr().map_err(|error| setup("getsockname", "the listener", &error))?.port();
        let places = hosts.into_iter().map(|host| SocketAddr::new(host, port)).collect();
        Ok(Self { socket, address: Address { instance, places } })
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

fn listen(host: IpAddr, options: &TcpOptions) -> Result<TcpListener, TransportError> {
    let place = SocketAddr::new(host, 0);
    let open = || {
        let socket = open_socket(&place, options)?;
        if host.is_ipv6() && host.is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&place.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    open().map_err(|error: std::io::Error| setup("listen", &host.to_string(), &error))
}

fn setup(operation: &'static str, subject: &str, error: &std::io::Error) -> TransportError {
    TransportError::Setup { link: "TCP", operation, subject: subject.into(), source: errno_of(error) }
}

/// Addresses of the interfaces that are up, or of `device` alone; loopback last.
fn own_addresses(device: Option<&str>) -> Result<Vec<IpAddr>, TransportError> {
    let interfaces = getifaddrs().map_err(|source| TransportError::Setup {
        link: "TCP",
        operation: "getifaddrs",
        subject: "this host's interfaces".into(),
        source,
    })?;
    let interfaces: Vec<_> = interfaces.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP)).collect();
    let chosen = interfaces.iter().filter(|entry| device.is_none_or(|device| entry.interface_name == device));
    let mut addresses: Vec<IpAddr> = chosen.filter_map(usable).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    if addresses.is_empty() {
        let names: BTreeSet<_> = interfaces.iter().map(|entry| entry.interface_name.as_str()).collect();
        let present = names.into_iter().collect::<Vec<_>>().join(", ");
        return Err(TransportError::NoInterface { name: device.unwrap_or("any").into(), present });
    }
    Ok(addresses)
}

/// The address of an entry, unless it means something only together with an interface.
fn usable(entry: &InterfaceAddress) -> Option<IpAddr> {
    let storage = entry.address.as_ref()?;
    let address = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => IpAddr::V4(v4.ip()),
        (_, Some(v6)) => IpAddr::V6(v6.ip()),
        _ => return None,
    };
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    (!link_local && !address.is_unspecified()).then_some(address)
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
