//! What can be tested of GPUs without one: errors of a missing driver, the compiler where it is installed.

use super::collective::FILES as COLLECTIVES;
use super::collective::define;
use super::nvrtc::FILES;
use super::*;

/// Architectures that the kernels are written for: Ampere, Hopper, Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];
/// Registers of a thread that a kernel may use with its 512 threads resident.
const REGISTERS: u32 = 128;

#[test]
fn a_missing_driver_is_an_error() {
    if let Err(error) = Driver::load() {
        assert!(matches!(error, DeviceError::NoDriver | DeviceError::Call { .. }), "{error}");
        assert_eq!(Device::open(0).map(|_| ()), Err(error));
    } else {
        let count = Device::count().unwrap();
        assert_eq!(Device::open(count).map(|_| ()), Err(DeviceError::NoDevice { ordinal: count, count }));
    }
}

#[test]
fn all_kernels_are_embedded() {
    let collectives = COLLECTIVES.map(|(file, _)| file);
    for kernel in KERNELS.iter().chain(&collectives).chain(&["params.h", "collective.h", "ptx.cuh", "wait.cuh"]) {
        assert!(FILES.iter().any(|(name, text)| name == kernel && !text.is_empty()), "{kernel}");
    }
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

/// Every kernel file with every macro that it is compiled with.
fn compilations() -> Vec<(&'static str, Option<String>)> {
    let plain = KERNELS.iter().map(|&kernel| (kernel, None));
    let collectives = COLLECTIVES.iter().flat_map(|&(file, elements)| match elements {
        [] => vec![(file, None)],
        _ => elements.iter().map(|&element| (file, Some(define(element)))).collect(),
    });
    plain.chain(collectives).collect()
}

/// Compiles for every architecture, checks registers and spills; needs no GPU. Where the compiler is missing this says
/// so, and `./x test` fetches it.
#[test]
fn kernels_compile_without_spills() {
    let compiler = match Compiler::load() {
        Ok(compiler) => compiler,
        Err(error) if std::env::var_os("KERNELS_MUST_COMPILE").is_none() => {
            println!("not compiled: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    for (kernel, define) in compilations() {
        for architecture in ARCHITECTURES {
            let compiled = compiler.compile(kernel, define.as_deref(), architecture).unwrap();
            let registers = numbers_before(&compiled.log, "registers");
            let spills = numbers_before(&compiled.log, "bytes spill stores");
            let defined = define.as_deref().unwrap_or("-");
            println!("{kernel} {defined} {architecture} NVRTC {}: {registers:?} registers", compiler.version());
            assert!(!registers.is_empty() && !spills.is_empty(), "{}", compiled.log);
            assert!(registers.iter().all(|&count| count <= REGISTERS), "{}", compiled.log);
            assert!(spills.iter().all(|&bytes| bytes == 0), "{}", compiled.log);
        }
    }
    let error = compiler.compile("pack.cu", None, "sm_1").unwrap_err().to_string();
    assert!(error.contains("sm_1") && error.contains("pack.cu"), "{error}");
}
