//! What hwloc knows and sysfs does not say. In: facts so far. Out: the same, completed. Guarantee: hwloc adds and never
//! takes away; it is asked only where something is missing, through an adapter library, so that nothing links to it.

use crate::base::env;
use crate::topology::PciAddress;
use crate::topology::facts::{HostFacts, Source};
use crate::topology::file;
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// Version of the adapter's functions.
const ABI_VERSION: u32 = 1;
const ADAPTER: &str = "libcrossmesh_topology_hwloc.so";

type Take = unsafe extern "C" fn(*mut c_void, *const u8, usize);

/// Completes `facts` by what hwloc states of this machine.
pub(super) fn complete(facts: &mut HostFacts) {
    if !is_incomplete(facts) {
        facts.sources.push(Source::missing("hwloc", "not asked, /sys told everything"));
        return;
    }
    let Some(path) = places().into_iter().find(|path| path.is_file()) else {
        facts.sources.push(Source::missing("hwloc", format!("no {ADAPTER} beside the program")));
        return;
    };
    let source = match ask(&path) {
        Ok(host) => {
            let filled = fill(facts, &host);
            Source::asked("hwloc", format!("stated the NUMA node of {filled} devices that /sys does not tell"))
        }
        Err(reason) => Source::missing("hwloc", format!("{}: {reason}", path.display())),
    };
    facts.sources.push(source);
}

/// Whether a device of a machine with several NUMA nodes has none, or processors are missing.
fn is_incomplete(facts: &HostFacts) -> bool {
    let several = facts.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count() > 1;
    let unplaced = facts.gpus.iter().any(|gpu| gpu.numa.is_none())
        || facts.nics.iter().any(|nic| nic.numa.is_none() && nic.pci.is_some());
    facts.cores.is_empty() || (several && unplaced)
}

/// Adds what `facts` lack; how many devices got a NUMA node.
fn fill(facts: &mut HostFacts, host: &HostFacts) -> usize {
    if facts.cores.is_empty() {
        facts.cores = host.cores.clone();
    }
    if facts.numa_nodes.is_empty() {
        facts.numa_nodes = host.numa_nodes.clone();
    }
    let known: BTreeMap<PciAddress, u32> =
        host.pci.iter().filter_map(|device| Some((device.address, device.numa?))).collect();
    let devices = facts.pci.iter_mut().map(|device| (Some(device.address), &mut device.numa));
    let gpus = facts.gpus.iter_mut().map(|gpu| (Some(gpu.pci), &mut gpu.numa));
    let nics = facts.nics.iter_mut().map(|nic| (nic.pci, &mut nic.numa));
    let mut filled = 0;
    for (address, numa) in devices.chain(gpus).chain(nics).filter(|(_, numa)| numa.is_none()) {
        *numa = address.and_then(|address| known.get(&address).copied());
        filled += usize::from(numa.is_some());
    }
    filled
}

/// Where the adapter may be: the one named in the environment, or beside the running program.
fn places() -> Vec<PathBuf> {
    if let Some(path) = env::text(env::HWLOC_ADAPTER) {
        return vec![PathBuf::from(path)];
    }
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let folder = program.ok().and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_default();
    // Tests and examples are built one folder below the programs.
    ["", "../lib", ".."].iter().map(|step| folder.join(step).join(ADAPTER)).collect()
}

/// This machine as the adapter at `path` states it.
fn ask(path: &Path) -> Result<HostFacts, String> {
    let failed = |error: libloading::Error| error.to_string();
    // SAFETY: the adapter has no constructors of its own, and those of hwloc may run at any time.
    let library = unsafe { Library::new(path) }.map_err(failed)?;
    // SAFETY: in every version the symbol is this function.
    let version =
        unsafe { library.get::<extern "C" fn() -> u32>(b"crossmesh_topology_hwloc_abi\0") }.map_err(failed)?();
    if version != ABI_VERSION {
        return Err(format!(
            "it is of version {version}, this crossmesh loads version {ABI_VERSION}: build both together"
        ));
    }
    // SAFETY: in this version the symbol is this function.
    let xml = unsafe {
        library
            .get::<unsafe extern "C" fn(*mut c_void, Take) -> i32>(b"crossmesh_topology_hwloc_xml\0")
            .map_err(failed)?
    };
    let mut bytes: Vec<u8> = Vec::new();
    // SAFETY: `take` gets the vector that lives here, during the call only.
    let code = unsafe { xml((&raw mut bytes).cast(), take) };
    if code != 0 {
        return Err("hwloc cannot read this machine".to_string());
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    file::from_hwloc_xml(&text).map_err(|error| error.to_string())
}

/// Appends bytes to the vector that `context` is.
unsafe extern "C" fn take(context: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: `ask` passes its vector, which nothing else uses meanwhile.
    let vector = unsafe { &mut *context.cast::<Vec<u8>>() };
    // SAFETY: the adapter passes `length` bytes that are valid during this call.
    vector.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes, length) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::facts::{Gpu, NumaNode};

    #[test]
    fn only_what_is_missing_is_filled() {
        let address = |bus: u8| PciAddress { domain: 0, bus, device: 0, function: 0 };
        let node = |index: u32| NumaNode { index, cpus: crate::topology::CpuSet::range(index, index), memory_bytes: 0 };
        let gpu = |bus, numa| Gpu { numa, ..Gpu::at(address(bus)) };
        let device = |bus: u8, numa: u32| {
            serde_json::from_str(&format!(r#"{{"address":"0000:{bus:02x}:00.0","numa":{numa}}}"#)).unwrap()
        };
        let mut facts = HostFacts {
            numa_nodes: vec![node(0), node(1)],
            gpus: vec![gpu(1, Some(0)), gpu(2, None), gpu(3, None)],
            ..HostFacts::default()
        };
        let host = HostFacts { pci: vec![device(1, 1), device(2, 1)], ..HostFacts::default() };
        assert!(is_incomplete(&facts));
        assert_eq!(fill(&mut facts, &host), 1);
        let nodes: Vec<_> = facts.gpus.iter().map(|gpu| gpu.numa).collect();
        assert_eq!(nodes, [Some(0), Some(1), None]);
    }

    #[test]
    fn hwloc_agrees_with_sysfs() {
        let Some(path) = places().into_iter().find(|path| path.is_file()) else {
            eprintln!("not run: no {ADAPTER}; cargo build -p crossmesh-topology-hwloc");
            return;
        };
        let host = ask(&path).unwrap();
        let own = super::super::by_sysfs(&super::super::Tree::at("/"));
        let cpus = |facts: &HostFacts| {
            let all = facts.cores.iter().fold(crate::topology::CpuSet::default(), |all, core| all.union(&core.cpus));
            (facts.cores.len(), all)
        };
        assert_eq!(cpus(&host), cpus(&own));
        assert_eq!(host.numa_nodes.len(), own.numa_nodes.len());
    }

    #[test]
    fn an_adapter_that_is_none_is_a_reason() {
        let error = ask(Path::new("/proc/self/exe")).unwrap_err();
        assert!(!error.is_empty());
    }
}
