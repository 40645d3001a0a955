//! Rails: NICs of the same rail hang on the same leaf switches. In: used NICs of every host, `CROSSMESH_RAILS`. Out: a
//! rail for each of them. Guarantee: pure; a host that lacks a NIC keeps the rails of its others.

use crate::topology::PciAddress;
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

impl RailMap {
    /// The rail that the user states for `device`.
    pub(super) fn get(&self, device: &str) -> Option<u32> {
        self.0.get(device).copied()
    }
}

/// A NIC's place, equal on hosts that are built alike: where it is on PCI, or its name, and the port.
pub(super) type NicPlace = (String, u32);

/// The place of a NIC.
pub(super) fn place(pci: Option<PciAddress>, device: &str, port: u32) -> NicPlace {
    (pci.map_or_else(|| device.to_string(), |address| address.to_string()), port)
}

/// Rails of hosts that have NICs at such places: the position among the places that NICs have on any host where one
/// host has them all, else the position on the host.
pub(super) fn by_places(hosts: &[Vec<NicPlace>]) -> Vec<BTreeMap<NicPlace, u32>> {
    let sorted = |places: &[NicPlace]| {
        let mut places = places.to_vec();
        places.sort_unstable();
        places.dedup();
        places
    };
    let own: Vec<Vec<NicPlace>> = hosts.iter().map(|places| sorted(places)).collect();
    let all = sorted(&own.concat());
    let alike = own.iter().any(|own| own.len() == all.len());
    let numbered = |places: &[NicPlace]| -> BTreeMap<NicPlace, u32> { places.iter().cloned().zip(0..).collect() };
    let everywhere = numbered(&all);
    let rails = own.iter().map(|own| match alike {
        true => own.iter().map(|place| (place.clone(), everywhere[place])).collect(),
        false => numbered(own),
    });
    rails.collect()
}

/// Rails of the used NICs of every host: the map's, else by their places.
pub(super) fn rails(hosts: &[(&HostFacts, Vec<usize>)], map: &RailMap) -> Vec<BTreeMap<usize, u32>> {
    let place_of = |facts: &HostFacts, nic: usize| {
        let nic = &facts.nics[nic];
        place(nic.pci, &nic.device, nic.port)
    };
    let places: Vec<Vec<NicPlace>> =
        hosts.iter().map(|(facts, nics)| nics.iter().map(|&nic| place_of(facts, nic)).collect()).collect();
    let rails = by_places(&places);
    let of_host = |(host, (facts, nics)): (usize, &(&HostFacts, Vec<usize>))| {
        let rail = |nic: usize| map.get(&facts.nics[nic].device).unwrap_or_else(|| rails[host][&place_of(facts, nic)]);
        nics.iter().map(|&nic| (nic, rail(nic))).collect()
    };
    hosts.iter().enumerate().map(of_host).collect()
}
