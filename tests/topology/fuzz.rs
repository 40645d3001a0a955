//! Any text is read or refused, and what has a text survives it. Files that are nearly topologies are mutated in
//! `tests/fuzz`.

use crossmesh::topology::{CpuSet, PciAddress, Synthetic, file};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        let _ = file::parse(&text);
        let _ = (text.parse::<CpuSet>(), CpuSet::from_mask(&text), text.parse::<PciAddress>());
        let _ = text.parse::<Synthetic>().map(|synthetic| synthetic.machine(&[1]));
    }

    #[test]
    fn sets_and_addresses_survive_their_text(numbers in prop::collection::vec(0..5000u32, 0..40), place in any::<(u32, u8, u8, u8)>()) {
        let set: CpuSet = numbers.iter().copied().collect();
        prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
        let mut sorted = numbers;
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), sorted);
        let address = PciAddress { domain: place.0, bus: place.1, device: place.2, function: place.3 };
        prop_assert_eq!(address.to_string().parse::<PciAddress>().unwrap(), address);
    }
}
