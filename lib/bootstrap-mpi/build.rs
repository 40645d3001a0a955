//! Says in one line what an MPI adapter needs when it is missing.
//!
//! In: `MPICC`, the system's compilers. Out: nothing, or an error before the MPI bindings are built. Guarantee: only
//! looks for programs and libraries, changes nothing.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MPICC");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    if !runs(&compiler) {
        let packages = if compiler.contains("mpich") { "mpich libmpich-dev" } else { "libopenmpi-dev openmpi-bin" };
        println!(
            "cargo::error={compiler} (the MPI compiler) is missing: apt install {packages} libclang-dev clang pkg-config"
        );
    }
    if !has_libclang() {
        println!("cargo::error=libclang (for the MPI bindings) is missing: apt install libclang-dev clang pkg-config");
    }
}

fn runs(compiler: &str) -> bool {
    Command::new(compiler).arg("-show").output().is_ok_and(|output| output.status.success())
}

/// Looks where the bindings' generator does: its own variable, llvm-config, the usual folders.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() || runs_llvm_config() {
        return true;
    }
    let folders =
        ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let llvm = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path().join("lib"));
    folders.iter().map(|folder| Path::new(folder).to_path_buf()).chain(llvm).any(|folder| holds_libclang(&folder))
}

fn runs_llvm_config() -> bool {
    let output = Command::new("llvm-config").arg("--libdir").output();
    output.is_ok_and(|output| holds_libclang(Path::new(String::from_utf8_lossy(&output.stdout).trim())))
}

fn holds_libclang(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libclang.so") || name.starts_with("libclang-") && name.contains(".so")
    })
}
