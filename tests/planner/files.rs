//! Plan files: written and read again, and every way in which one can be unfit.

use super::random::cases;
use super::{all_options, layout};
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Mesh, Placement};
use crossmesh::plan::{Manifest, ManifestDigest, Transform};
use crossmesh::route::{PlanFileError, RouteOptions, SavedPlan};
use crossmesh::topology::cluster::NicSeat;
use crossmesh::topology::{LinkRate, Machine, Seat, Topology};
use proptest::prelude::*;
use sha2::Digest;
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "step.plan";

fn saved(plan: &SavedPlan) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    plan.save(&path).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the file is left");
    std::fs::read(path).unwrap()
}

fn read(bytes: &[u8]) -> Result<SavedPlan, PlanFileError> {
    SavedPlan::from_bytes(bytes, Path::new(NAME))
}

fn example() -> (SavedPlan, Topology) {
    let topology = Topology::from_domains(&[0, 0, 1, 1]);
    let mut manifest = Manifest::new();
    let source = layout(&[8, 6], Dtype::BF16, &[2], 0..2, &[Placement::shard(0)]);
    let destination = layout(&[8, 6], Dtype::BF16, &[2], 2..4, &[Placement::chunk(1)]);
    for name in ["up", "down"] {
        manifest.push(name, source.clone(), destination.clone()).unwrap();
    }
    (SavedPlan::new(Arc::new(manifest), &topology, RouteOptions::default()).unwrap(), topology)
}

proptest! {
    #[test]
    fn files_give_back_what_was_saved(case in cases(), option in 0usize..6) {
        let options = all_options()[option];
        let plan = SavedPlan::new(case.manifest.clone(), &case.topology, options).unwrap();
        let bytes = saved(&plan);
        let again = read(&bytes).unwrap();
        prop_assert_eq!(again.manifest.tensors(), case.manifest.tensors());
        let root = |manifest: &Manifest| ManifestDigest::new(manifest, b"").root;
        prop_assert_eq!(root(&again.manifest), root(&case.manifest));
        prop_assert_eq!(again.options, options);
        prop_assert!(again.expect(&case.topology, options, Path::new(NAME)).is_ok());
        prop_assert_eq!(saved(&again), bytes, "the same plan gives the same file");
    }

    #[test]
    fn no_changed_byte_passes(at in any::<prop::sample::Index>(), bit in 0u32..8) {
        let mut bytes = saved(&example().0);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(read(&bytes).is_err(), "byte {}", at);
    }

    #[test]
    fn any_content_with_a_right_checksum_is_read_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let written = example().0;
        let mut bytes = saved(&written);
        let end = bytes.len() - 32;
        for (at, value) in edits {
            let at = 20 + at.index(end - 20);
            bytes[at] = value;
        }
        let checksum = sha2::Sha256::digest(&bytes[20..end]);
        bytes[end..].copy_from_slice(&checksum);
        // Without a panic; the digest inside finds what the checksum cannot.
        if let Ok(plan) = read(&bytes) {
            prop_assert_eq!(plan.manifest.tensors(), written.manifest.tensors());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_both_values() {
    let (plan, topology) = example();
    let bytes = saved(&plan);
    let text = |error: PlanFileError| error.to_string();
    let mut other = bytes.clone();
    other[8..12].copy_from_slice(&(SavedPlan::VERSION + 6).to_le_bytes());
    let error = text(read(&other).unwrap_err());
    assert!(error.contains(&format!("version {}", SavedPlan::VERSION + 6)), "{error}");
    assert!(error.contains(&format!("reads version {}", SavedPlan::VERSION)), "{error}");
    for cut in [0, 3, 8, 11, 19, 20, bytes.len() - 1] {
        let error = read(&bytes[..cut]).unwrap_err();
        let expected = if cut < 8 {
            matches!(error, PlanFileError::Magic { .. })
        } else {
            matches!(error, PlanFileError::Length { .. })
        };
        assert!(expected, "{cut}: {error}");
    }
    assert!(matches!(read(&[&bytes[..], b"x"].concat()), Err(PlanFileError::Length { .. })));

    let expect = |topology: &Topology, options| text(plan.expect(topology, options, Path::new(NAME)).unwrap_err());
    let moved = expect(&Topology::from_domains(&[0, 0, 0, 1]), RouteOptions::default());
    assert!(moved.contains("rank 2 in domain 1, and here it is 0"), "{moved}");
    let more = expect(&Topology::from_domains(&[0, 0, 1, 1, 1]), RouteOptions::default());
    assert!(more.contains("ranks of 4, and here it is 5"), "{more}");
    let flat = expect(&topology, all_options()[2]);
    assert!(flat.contains("route hierarchical, and here it is flat"), "{flat}");
    let single = expect(&topology, all_options()[1]);
    assert!(single.contains("injection striped, and here it is single"), "{single}");
    assert!(matches!(SavedPlan::load(Path::new("/nowhere/at.plan")), Err(PlanFileError::Io { .. })));
    assert!(plan.save(Path::new("/nowhere/at.plan")).is_err());
}

#[test]
fn links_are_followed_and_only_regular_files_replaced() {
    let plan = example().0;
    let folder = tempfile::tempdir().unwrap();
    let [file, link, nowhere, pipe] = ["file", "link", "nowhere", "pipe"].map(|name| folder.path().join(name));
    std::fs::write(&file, "before").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    plan.save(&link).unwrap();
    assert!(link.is_symlink() && SavedPlan::load(&file).is_ok());
    std::os::unix::fs::symlink("absent", &nowhere).unwrap();
    assert!(matches!(plan.save(&nowhere), Err(PlanFileError::Io { .. })));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&pipe, folder.path()] {
        let error = plan.save(path).unwrap_err();
        assert!(matches!(&error, PlanFileError::NotRegular { path: named } if named == path), "{error}");
    }
    let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&pipe.metadata().unwrap().file_type());
    assert!(is_pipe && nowhere.is_symlink(), "both are what they were");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "nothing is left");
}

#[test]
fn other_machines_with_equal_places_are_refused() {
    let (plain, topology) = example();
    let machine = |name: &str, nic, nvlink| {
        Machine::one_nic_each(name, topology.clone(), LinkRate::network(nic), LinkRate::nvlink(nvlink))
    };
    let (here, options) = (machine("here", 50, 450), RouteOptions::default());
    let plan = SavedPlan::for_machine(plain.manifest.clone(), &here, options).unwrap();
    let plan = read(&saved(&plan)).unwrap();
    let expect = |plan: &SavedPlan, machine: &Machine| plan.expect_machine(machine, options, Path::new(NAME));
    assert!(expect(&plan, &here).is_ok() && expect(&plan, &machine("by another name", 50, 450)).is_ok());
    assert!(plan.expect(&topology, options, Path::new(NAME)).is_ok(), "a job has a topology and no machine");
    for other in [machine("there", 25, 450), machine("there", 50, 300)] {
        let error = expect(&plan, &other).unwrap_err().to_string();
        assert!(error.contains("made for cluster here (") && error.contains("here it is there ("), "{error}");
        assert!(expect(&plain, &other).is_ok(), "it names no machine");
    }
    let mut shared = machine("here", 50, 450);
    shared.devices[3].nics = vec![2];
    assert!(matches!(expect(&plan, &shared), Err(PlanFileError::Other { .. })));
    let moved = Machine::one_nic_each("m", Topology::from_domains(&[0, 0, 0, 1]), here.nics[0].rate, here.nvlink);
    assert!(expect(&plain, &moved).unwrap_err().to_string().contains("rank 2 in domain 1, and here it is 0"));
}

/// `topology` where every rank has one card, on these rails and of these rates.
fn with_cards(topology: &Topology, cards: [(u32, u64); 4]) -> Topology {
    let seat = |(rail, bytes_per_second): (u32, u64)| {
        let device = format!("mlx5_{rail}");
        let nic = NicSeat { device, port: 1, pci: None, rail, rail_is_given: true, bytes_per_second };
        Seat { nics: vec![nic], ..Seat::default() }
    };
    topology.clone().with_seats(cards.map(seat).to_vec())
}

#[test]
fn other_cards_at_equal_places_are_refused_with_the_first_difference() {
    let (plain, topology) = example();
    let options = RouteOptions::default();
    let cards = [(0, 50), (1, 50), (0, 50), (1, 50)];
    let plan = SavedPlan::new(plain.manifest.clone(), &with_cards(&topology, cards), options).unwrap();
    let plan = read(&saved(&plan)).unwrap();
    let refusal = |plan: &SavedPlan, topology: &Topology| {
        plan.expect(topology, options, Path::new(NAME)).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(&plan, &with_cards(&topology, cards)), None);
    let differs = |other: &Topology, parts: &str| {
        let error = refusal(&plan, other).expect("refused");
        assert!(error.contains(parts), "{error}");
    };
    differs(
        &with_cards(&topology, [(0, 50), (1, 50), (1, 50), (0, 50)]),
        "rank 2 with network cards on rail 0 of 50 bytes/s, and here it is rail 1 of 50 bytes/s",
    );
    differs(&with_cards(&topology, [(0, 50), (1, 25), (0, 50), (1, 50)]), "rank 1 with network cards on rail 1 of 50");
    differs(&topology, "rank 0 with network cards on rail 0 of 50 bytes/s, and here it is none");
    let told = refusal(&plain, &with_cards(&topology, cards)).expect("refused");
    assert!(told.contains("rank 0 with network cards on none, and here it is rail 0"), "{told}");
}

#[test]
fn a_mesh_beyond_the_ranks_is_refused_before_anything_is_made_of_it() {
    let options = RouteOptions::default();
    let vast = Arc::new(Mesh::contiguous(vec![1 << 29], Rank(0)).unwrap());
    let vast = Layout::new(vec![1 << 20], Dtype::U8, vast, vec![Placement::shard(0)]).unwrap();
    let topology = (vec![(0u32, 0u32); 2], vec![0u32; 2], vec![Vec::<(u32, u64)>::new()]);
    let tensors = [("up", 0u32, 0u32, Transform::default())];
    let content = (options, topology, vec![vast], tensors.to_vec(), None::<()>, [0u8; 32]);
    let content = postcard::to_allocvec(&content).unwrap();
    let mut bytes = b"CMPLAN\r\n".to_vec();
    bytes.extend(SavedPlan::VERSION.to_le_bytes());
    bytes.extend((content.len() as u64).to_le_bytes());
    bytes.extend(&content);
    bytes.extend(sha2::Sha256::digest(&content));
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, PlanFileError::Outside { layout: 0, rank: Rank(536_870_911), ranks: 2, .. }), "{error}");
}
