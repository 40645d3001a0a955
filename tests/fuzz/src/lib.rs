//! What reads bytes from files and peers, as functions that take any bytes. In: bytes. Out: whether they were accepted.
//! Guarantee: every target has inputs that it accepts (`seeds`), and checks what follows from accepted ones; a panic is a
//! finding. libFuzzer calls them (`fuzz_targets`), and so does a short run on mutated seeds that needs no nightly
//! compiler (`tests/mutated.rs`).

mod files;
mod launcher;
mod mutate;
#[allow(dead_code)]
#[path = "../../../launcher/plain_file.rs"]
mod plain_file;
mod texts;

pub use mutate::Mutator;

/// Something that reads bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// As `fuzz_targets` has it.
    pub name: &'static str,
    /// Reads bytes, and what follows from them; whether they were accepted.
    pub read: fn(&[u8]) -> bool,
    /// Inputs that are accepted.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 16] = [
    Target { name: "model", read: files::model, seeds: files::model_seeds },
    Target { name: "system", read: files::system, seeds: files::system_seeds },
    Target { name: "layers", read: files::layers, seeds: files::layers_seeds },
    Target { name: "rules", read: files::rules, seeds: files::rules_seeds },
    Target { name: "experts", read: files::experts, seeds: files::experts_seeds },
    Target { name: "plan", read: files::plan, seeds: files::plan_seeds },
    Target { name: "topology", read: texts::topology, seeds: texts::topology_seeds },
    Target { name: "synthetic", read: texts::synthetic, seeds: texts::synthetic_seeds },
    Target { name: "spec", read: texts::spec, seeds: texts::spec_seeds },
    Target { name: "safetensors", read: launcher::safetensors, seeds: launcher::safetensors_seeds },
    Target { name: "cases", read: launcher::cases, seeds: launcher::cases_seeds },
    Target { name: "launcher", read: launcher::frames, seeds: launcher::frames_seeds },
    Target {
        name: "control",
        read: crossmesh::bootstrap::peer_bytes::read,
        seeds: crossmesh::bootstrap::peer_bytes::examples,
    },
    Target {
        name: "segments",
        read: crossmesh::memory::peer_bytes::read,
        seeds: crossmesh::memory::peer_bytes::examples,
    },
    Target {
        name: "transport",
        read: crossmesh::transport::peer_bytes::read,
        seeds: crossmesh::transport::peer_bytes::examples,
    },
    Target {
        name: "execute",
        read: crossmesh::execute::peer_bytes::read,
        seeds: crossmesh::execute::peer_bytes::examples,
    },
];

/// Runs one target.
///
/// # Panics
///
/// When there is none of that name, or it finds something.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("no fuzz target {name:?}"));
    (target.read)(bytes);
}

/// Name of inputs in messages.
const ORIGIN: &str = "fuzzed";

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn bytes_of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
