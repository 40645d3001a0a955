//! Says plainly what this build has and what is off.
//!
//! In: the enabled features. Out: `CROSSMESH_BUILD`, a line that `crossmesh --version` prints.
//! Guarantee: a default build needs no system package.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    println!(
        "cargo::rustc-env=CROSSMESH_BUILD={profile} {target}; host memory, shm, process_vm, tcp; mpi: loaded at run time"
    );
}
