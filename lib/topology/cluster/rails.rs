//! Rails: NICs of the same rail hang on the same leaf switches. In: used NICs of every host, `CROSSMESH_RAILS`. Out: a
//! rail for each of them. Guarantee: pure; a host that lacks a NIC keeps the rails of its others.

use crate::topology::facts::HostFacts;
use std::collections::BTreeMap;
use std::str::FromStr;
use thiserror::Error;

/// Rails by the name of the device: `mlx5_0=0,mlx5_3=1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RailMap(BTreeMap<String, u32>);

/// A text that is no map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no map of rails; write DEVICE=RAIL,... such as mlx5_0=0,mlx5_3=1")]
pub struct RailMapError {
    /// As given.
    pub text: String,
}

impl FromStr for RailMap {
    type Err = RailMapError;

    fn from_str(text: &str) -> Result<Self, RailMapError> {
        let error = || RailMapError { text: text.to_string() };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let rails = parts.map(|part| {
            let (name, rail) = part.split_once('=').ok_or_else(error)?;
            Ok((name.trim().to_string(), rail.trim().parse().map_err(|_| error())?))
        });
        rails.collect::<Result<_, _>>().map(Self)
    }
}

/// Name of a NIC's place, equal on hosts that are built alike.
fn place(facts: &HostFacts, nic: usize) -> (String, u32) {
    let nic = &facts.nics[nic];
    (nic.pci.map_or_else(|| nic.device.clone(), |address| address.to_string()), nic.port)
}

/// Rails of the used NICs of every host: the map's, else the position among the places that NICs have on any host
/// where one host has them all, else the position on the host.
pub(super) fn rails(hosts: &[(&HostFacts, Vec<usize>)], map: &RailMap) -> Vec<BTreeMap<usize, u32>> {
    let places: Vec<Vec<(String, u32)>> = hosts
        .iter()
        .map(|(facts, nics)| {
            let mut places: Vec<_> = nics.iter().map(|&nic| place(facts, nic)).collect();
            places.sort_unstable();
            places
        })
        .collect();
    let mut all: Vec<&(String, u32)> = places.iter().flatten().collect();
    all.sort_unstable();
    all.dedup();
    let alike = places.iter().any(|own| own.len() == all.len());
    let rail = |host: usize, nic: usize| {
        let (facts, own) = (hosts[host].0, place(hosts[host].0, nic));
        let by_place = || match alike {
            true => all.binary_search(&&own),
            false => places[host].binary_search(&own),
        };
        let mapped = map.0.get(&facts.nics[nic].device).copied();
        mapped.unwrap_or_else(|| by_place().unwrap_or_default() as u32)
    };
    hosts.iter().enumerate().map(|(host, (_, nics))| nics.iter().map(|&nic| (nic, rail(host, nic))).collect()).collect()
}
