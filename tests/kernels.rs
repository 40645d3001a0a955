//! Every kernel on every architecture. In: the run-time compiler, where it is installed; no GPU. Out: pass or fail. Guarantee:
//! each is compiled here and now, whatever a cache has, and no kernel spills or takes too many registers. What was compiled is
//! kept in `CROSSMESH_CACHE` where that is set.

use crossmesh::memory::device::collective::{FILES, define};
use crossmesh::memory::device::{Compiler, KERNELS, keep};
use std::sync::Mutex;

/// Architectures that the kernels are written for: Ampere, Hopper, Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];
/// Registers of a thread that a kernel may use with its 512 threads resident.
const REGISTERS: u32 = 128;

/// A kernel file, the macro that it is compiled with, an architecture.
type Compilation = (&'static str, Option<String>, &'static str);

/// All of them, the longest first, so that cores end together.
fn compilations() -> Vec<Compilation> {
    let collectives = FILES.iter().flat_map(|&(file, elements)| match elements {
        [] => vec![(file, None)],
        _ => elements.iter().map(|&element| (file, Some(define(element)))).collect(),
    });
    let files = collectives.chain(KERNELS.into_iter().map(|kernel| (kernel, None)));
    files.flat_map(|(file, define)| ARCHITECTURES.map(|architecture| (file, define.clone(), architecture))).collect()
}

/// Numbers before a word in the compiler's log.
fn numbers_before(log: &str, word: &str) -> Vec<u32> {
    let words: Vec<&str> = log.split_whitespace().collect();
    let parts: Vec<&str> = word.split(' ').collect();
    let starts = words
        .windows(parts.len() + 1)
        .filter(|window| window[1..].iter().zip(&parts).all(|(found, part)| found.trim_end_matches(',') == *part));
    starts.filter_map(|window| window[0].parse().ok()).collect()
}

fn compile(compiler: &Compiler, (kernel, define, architecture): Compilation) {
    let compiled = compiler.compile(kernel, define.as_deref(), architecture).unwrap();
    let registers = numbers_before(&compiled.log, "registers");
    let spills = numbers_before(&compiled.log, "bytes spill stores");
    let defined = define.as_deref().unwrap_or("-");
    println!("{kernel} {defined} {architecture} NVRTC {}: {registers:?} registers", compiler.version());
    assert!(!registers.is_empty() && !spills.is_empty(), "{}", compiled.log);
    assert!(registers.iter().all(|&count| count <= REGISTERS), "{}", compiled.log);
    assert!(spills.iter().all(|&bytes| bytes == 0), "{}", compiled.log);
    if std::env::var_os("CROSSMESH_CACHE").is_some() {
        keep(kernel, define.as_deref(), architecture, &compiled.code).unwrap();
    }
}

/// Where the compiler is missing this says so, and `./x test` fetches it.
#[test]
fn all_compile_without_spills() {
    let compiler = match Compiler::load() {
        Ok(compiler) => compiler,
        Err(error) if std::env::var_os("KERNELS_MUST_COMPILE").is_none() => {
            println!("not compiled: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let left = Mutex::new(compilations().into_iter());
    assert!(left.lock().unwrap().len() > 3 * ARCHITECTURES.len());
    let next = || left.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| std::iter::from_fn(next).for_each(|one| compile(compiler, one)));
        }
    });
    assert!(next().is_none());
    let error = compiler.compile("pack.cu", None, "sm_1").unwrap_err().to_string();
    assert!(error.contains("sm_1") && error.contains("pack.cu"), "{error}");
}
