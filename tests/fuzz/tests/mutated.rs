//! The fuzz targets on mutated valid inputs, the same ones in every run. In: nothing. Out: pass or fail. Guarantee: every
//! target reads `INPUTS` inputs, and is shown to accept its seeds, to refuse some mutated inputs and to accept some.

use crossmesh_fuzz::{Mutator, TARGETS, Target};
use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::Path;

/// Inputs for each target.
const INPUTS: u64 = 1000;
/// So many of them at least are accepted, and so many refused.
const FEW: u64 = 5;

/// Mutates by target, so that each has inputs of its own.
fn mutator(target: &Target) -> Mutator {
    Mutator::new(target.name.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte)))
}

/// How many inputs were accepted; a panic shows the input.
fn accepted(target: &Target) -> u64 {
    let seeds = (target.seeds)();
    let mut mutator = mutator(target);
    let mut accepted = 0;
    for _ in 0..INPUTS {
        let input = mutator.mutated(&seeds);
        let read = catch_unwind(|| (target.read)(&input));
        let Ok(read) = read else { panic!("{}: {:?}", target.name, String::from_utf8_lossy(&input)) };
        accepted += u64::from(read);
    }
    accepted
}

#[test]
fn seeds_are_accepted() {
    for target in &TARGETS {
        for seed in (target.seeds)() {
            assert!((target.read)(&seed), "{}: {:?}", target.name, String::from_utf8_lossy(&seed));
        }
    }
}

#[test]
fn mutated_inputs_are_read_or_refused() {
    for target in &TARGETS {
        let accepted = accepted(target);
        println!("{}: {accepted} of {INPUTS} inputs accepted", target.name);
        assert!((FEW..=INPUTS - FEW).contains(&accepted), "{}: {accepted} of {INPUTS}", target.name);
    }
}

/// A reader that trusts a length in its input is found.
#[test]
fn a_panic_is_found() {
    let trusting = Target {
        name: "trusting",
        read: |bytes| bytes[1..=usize::from(bytes[0])].is_ascii(),
        seeds: || vec![b"\x04text and more".to_vec()],
    };
    assert!((trusting.read)(&(trusting.seeds)()[0]));
    assert!(catch_unwind(|| accepted(&trusting)).is_err());
}

#[test]
fn inputs_are_the_same_in_every_run() {
    let seeds = (TARGETS[0].seeds)();
    let inputs = |mut mutator: Mutator| (0..100).map(|_| mutator.mutated(&seeds)).collect::<Vec<_>>();
    let first = inputs(Mutator::new(1));
    assert_eq!(first, inputs(Mutator::new(1)));
    assert_ne!(first, inputs(Mutator::new(2)));
    assert!(first.iter().collect::<BTreeSet<_>>().len() > 90);
}

#[test]
fn every_target_has_its_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(files, TARGETS.iter().map(|target| target.name.to_string()).collect());
    for name in files {
        let source = format!("{}/fuzz_targets/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        assert!(std::fs::read_to_string(source).unwrap().contains(&format!("run({name:?}, bytes)")), "{name}");
    }
}
