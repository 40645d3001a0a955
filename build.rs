//! Embeds the GPU kernels and says plainly what this build has and what is off.
//!
//! In: `kernels/`, the enabled features. Out: `kernels.rs`, a table of the kernel sources; `CROSSMESH_BUILD`, a line that
//! `crossmesh --version` prints. Guarantee: a default build needs no system package and no CUDA.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    println!(
        "cargo::rustc-env=CROSSMESH_BUILD={profile} {target}; host memory, shm, process_vm, tcp; mpi, cuda, nvrtc: loaded at run time"
    );
    embed_kernels();
}

/// A table of (name, text) of every kernel source, in order of names.
fn embed_kernels() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("kernels");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", root.display()))
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().is_some_and(|extension| ["cu", "cuh", "h"].iter().any(|known| extension == *known))
        })
        .collect();
    files.sort();
    let mut table =
        String::from("/// Name and text of every kernel source.\npub(super) const FILES: &[(&str, &str)] = &[\n");
    for file in &files {
        let name = file.file_name().map(Path::new).map(|name| name.display().to_string()).unwrap_or_default();
        // No absolute path: a build folder may outlive the place of its sources.
        let _ = writeln!(
            table,
            "    ({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/kernels/\", {name:?}))),"
        );
    }
    table.push_str("];\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.rs");
    std::fs::write(&out, table).unwrap_or_else(|error| panic!("{} cannot be written: {error}", out.display()));
}
