//! This host's network addresses. In: its interfaces, the one that was chosen. Out: addresses by which others may reach
//! it, best first. Guarantee: what is chosen is there and up, or the error lists what is; loopback comes last.

use crate::base::env;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;

/// A choice that names nothing that is here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{}={chosen:?} is no address and no interface of this host that is up; interfaces here: {present}",
    env::INTERFACE.name
)]
pub struct InterfaceError {
    /// As given.
    pub chosen: String,
    /// Those there are.
    pub present: String,
}

/// Addresses of the interfaces that are up; of `chosen` alone when that names an interface, or is an address.
pub fn addresses(chosen: Option<&str>) -> Result<Vec<IpAddr>, InterfaceError> {
    let interfaces: Vec<_> = getifaddrs().into_iter().flatten().filter(is_up).collect();
    let wanted: Option<IpAddr> = chosen.and_then(|text| text.parse().ok());
    let mut found: Vec<IpAddr> = Vec::new();
    for entry in &interfaces {
        let Some(address) = address(entry) else { continue };
        let is_chosen = match (chosen, wanted) {
            (None, _) => means_one_host(address),
            (Some(name), None) => entry.interface_name == name,
            (Some(_), Some(wanted)) => address == wanted,
        };
        if is_chosen && !found.contains(&address) {
            found.push(address);
        }
    }
    // All of 127.0.0.0/8 is this host, though one address of it is listed.
    found.extend(wanted.filter(|wanted| found.is_empty() && wanted.is_loopback()));
    found.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    match chosen {
        Some(chosen) if found.is_empty() => {
            let names: BTreeSet<_> = interfaces.iter().map(|entry| entry.interface_name.as_str()).collect();
            let present = names.into_iter().collect::<Vec<_>>().join(", ");
            Err(InterfaceError { chosen: chosen.to_string(), present })
        }
        None if found.is_empty() => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        _ => Ok(found),
    }
}

/// All addresses of every interface, by its name.
pub fn by_name() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found = BTreeMap::<String, Vec<IpAddr>>::new();
    for entry in getifaddrs().into_iter().flatten() {
        let storage = entry.address.as_ref();
        let four = storage.and_then(|storage| storage.as_sockaddr_in()).map(|address| IpAddr::V4(address.ip()));
        let six = || storage.and_then(|storage| storage.as_sockaddr_in6()).map(|address| IpAddr::V6(address.ip()));
        found.entry(entry.interface_name).or_default().extend(four.or_else(six));
    }
    found
}

fn is_up(entry: &InterfaceAddress) -> bool {
    entry.flags.contains(InterfaceFlags::IFF_UP)
}

/// A link-local IPv6 address needs an interface beside it, so it counts as none.
fn address(entry: &InterfaceAddress) -> Option<IpAddr> {
    let storage = entry.address.as_ref()?;
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(address), _) => Some(address.ip().into()),
        (_, Some(address)) => Some(address.ip()).filter(|address| !address.is_unicast_link_local()).map(IpAddr::from),
        _ => None,
    }
}

/// Whether an address leads to one host on every network, as a link-local one does not.
fn means_one_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !matches!(address, IpAddr::V4(address) if address.is_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_last() {
        let all = addresses(None).unwrap();
        let first_loopback = all.iter().position(|address| address.is_loopback()).unwrap_or(all.len());
        assert!(!all.is_empty());
        assert!(all[first_loopback..].iter().all(|address| address.is_loopback()), "{all:?}");
        for address in all {
            assert_eq!(addresses(Some(&address.to_string())), Ok(vec![address]));
        }
    }

    #[test]
    fn a_choice_is_kept_or_refused() {
        let loopback = addresses(Some("lo")).unwrap();
        assert!(!loopback.is_empty() && loopback.iter().all(|address| address.is_loopback()));
        assert_eq!(addresses(Some("127.0.0.9")), Ok(vec![IpAddr::from([127, 0, 0, 9])]));
        // 192.0.2.0/24 is kept for documentation.
        for chosen in ["absent0", "192.0.2.1", "", "lo "] {
            let error = addresses(Some(chosen)).unwrap_err();
            assert_eq!(error.chosen, chosen);
            assert!(error.to_string().contains("interfaces here: ") && error.present.contains("lo"), "{error}");
        }
    }
}
