//! Facts of this host that starting a job depends on.
//!
//! In: `/sys`, the network interfaces, the search path. Out: name, cores, addresses, programs. Guarantee: what cannot
//! be read is replaced by a value that is safe to go on with.

use crossmesh::base::env;
use crossmesh::topology::discover;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// `CROSSMESH_INTERFACE` names nothing that is here.
#[derive(Debug, Error)]
#[error(
    "{}={value:?} is no address and no interface of this host that is up; interfaces here: {present}",
    env::INTERFACE.name
)]
pub(crate) struct InterfaceError {
    value: String,
    present: String,
}

/// Name of this host, without its domain.
pub(crate) fn name() -> String {
    let name = discover::host_name();
    name.split('.').next().unwrap_or_default().to_string()
}

/// Cores, not hardware threads: what Open MPI counts as slots.
pub(crate) fn cores() -> u32 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_string());
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let cores: BTreeSet<_> = cpus
        .filter_map(|cpu| {
            let topology = cpu.path().join("topology");
            Some((read(topology.join("physical_package_id"))?, read(topology.join("core_id"))?))
        })
        .collect();
    let count = if cores.is_empty() { threads } else { threads.min(cores.len()) };
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Allows descriptors for so many ranks where the hard limit does; programs of few ranks see the limit unchanged.
pub(crate) fn raise_descriptor_limit(ranks: u32) {
    // A connection and two files for each rank, and some for everything else.
    let wanted = u64::from(ranks) * 3 + 256;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let allowed = wanted.min(hard);
        if soft < allowed { setrlimit(Resource::RLIMIT_NOFILE, allowed, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        log::warn!("cannot raise the limit of open files to {wanted}: {error}");
    }
}

/// Addresses that agents on other hosts may reach the launcher at, best first; loopback alone when there are none.
pub(crate) fn addresses() -> Result<Vec<IpAddr>, InterfaceError> {
    let interfaces: Vec<InterfaceAddress> = getifaddrs().into_iter().flatten().collect();
    let chosen = env::text(env::INTERFACE);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for interface in interfaces.iter().filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP)) {
        let Some(address) = address_of(interface) else { continue };
        let wanted = match &chosen {
            Some(chosen) => interface.interface_name == *chosen || address.to_string() == *chosen,
            None => !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        };
        if wanted && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.sort_by_key(IpAddr::is_ipv6);
    match chosen {
        Some(value) if addresses.is_empty() => {
            let names: BTreeSet<_> = interfaces.iter().map(|interface| interface.interface_name.as_str()).collect();
            Err(InterfaceError { value, present: names.into_iter().collect::<Vec<_>>().join(", ") })
        }
        None if addresses.is_empty() => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        _ => Ok(addresses),
    }
}

/// Link-local IPv6 addresses mean nothing on another host, so they count as none.
fn address_of(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    if let Some(address) = address.as_sockaddr_in() {
        return Some(address.ip().into());
    }
    let address = address.as_sockaddr_in6()?.ip();
    (!address.is_unicast_link_local()).then(|| address.into())
}

/// The executable file `name` in the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| executable(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_cores_addresses_and_a_shell() {
        assert!(cores() >= 1);
        assert!(!addresses().unwrap().is_empty());
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program-here"), None);
        assert!(!name().contains('.'));
    }
}
