//! Which rank stores which expert. In: for every physical slot a logical expert, as a load balancer gives it at run
//! time. Out: placements of stacked experts and of single ones. Guarantee: every expert has a slot; ranks have equally
//! many slots, in order; a rank may store an expert twice.

use super::{AxisMap, ExpertError, Interval, Part, Placement};

/// Physical slots of experts, dealt out to ranks in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExpertMap {
    /// Logical expert of every slot.
    slots: Vec<u64>,
    experts: u64,
    ranks: u32,
}

impl ExpertMap {
    /// A map of `slots`, which hold all of `experts` logical experts, some maybe several times, over `ranks` ranks.
    pub fn new(experts: u64, slots: Vec<u64>, ranks: u32) -> Result<Self, ExpertError> {
        if ranks == 0 || slots.is_empty() || !slots.len().is_multiple_of(ranks as usize) {
            return Err(ExpertError::Slots { slots: slots.len(), ranks });
        }
        if let Some((slot, &expert)) = slots.iter().enumerate().find(|&(_, &expert)| expert >= experts) {
            return Err(ExpertError::Unknown { slot, expert, experts });
        }
        let mut held = slots.clone();
        held.sort_unstable();
        held.dedup();
        // Sorted and below `experts`: the first that is not in its own place is missing.
        let missing = (0..experts).find(|&expert| held.get(expert as usize) != Some(&expert));
        if let Some(expert) = missing {
            return Err(ExpertError::Missing { expert, experts });
        }
        Ok(Self { slots, experts, ranks })
    }

    /// Number of logical experts.
    pub fn experts(&self) -> u64 {
        self.experts
    }

    /// Slots of every rank.
    pub fn slots_per_rank(&self) -> usize {
        self.slots.len() / self.ranks as usize
    }

    /// Placement of a tensor whose dimension `dim` counts the logical experts.
    pub fn stacked(&self, dim: usize) -> Placement {
        let rank = |slots: &[u64]| AxisMap::new(slots.iter().map(|&lo| Interval { lo, hi: lo + 1 }));
        Placement::parts(dim, self.slots.chunks(self.slots_per_rank()).map(rank).collect::<Vec<_>>())
    }

    /// Placement of the tensor of one expert, whose dimension `dim` has extent 1, in stacks of a rank's slots: all
    /// experts are given the buffer of the stack. Ranks without the expert store nothing of it.
    pub fn single(&self, dim: usize, expert: u64) -> Result<Placement, ExpertError> {
        if expert >= self.experts {
            return Err(ExpertError::Missing { expert, experts: self.experts });
        }
        let part = |&held: &u64| match held == expert {
            true => Part::Global(Interval { lo: 0, hi: 1 }),
            false => Part::Hole(1),
        };
        let rank = |slots: &[u64]| match slots.contains(&expert) {
            // As many positions as slots, which are in memory already.
            true => AxisMap::of_parts(slots.iter().map(part)).unwrap_or_default(),
            false => AxisMap::default(),
        };
        Ok(Placement::parts(dim, self.slots.chunks(self.slots_per_rank()).map(rank).collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(placement: Placement) -> Vec<AxisMap> {
        let Placement::Parts { maps, .. } = placement else { panic!("{placement:?}") };
        maps.to_vec()
    }

    #[test]
    fn slots_follow_each_other_on_every_rank() {
        let map = ExpertMap::new(3, vec![2, 2, 0, 1, 1, 2], 3).unwrap();
        let local = |map: &AxisMap, expert| {
            map.places(Interval { lo: expert, hi: expert + 1 }).map(|place| place.local).collect::<Vec<_>>()
        };
        let stacked = maps(map.stacked(0));
        assert_eq!((map.slots_per_rank(), stacked.iter().map(AxisMap::extent).collect::<Vec<_>>()), (2, vec![2; 3]));
        assert_eq!((0..3).map(|rank| local(&stacked[rank], 2)).collect::<Vec<_>>(), [vec![0, 1], vec![], vec![1]]);
        let two = maps(map.single(1, 2).unwrap());
        assert_eq!((0..3).map(|rank| local(&two[rank], 0)).collect::<Vec<_>>(), [vec![0, 1], vec![], vec![1]]);
        assert_eq!(two.iter().map(AxisMap::extent).collect::<Vec<_>>(), [2, 0, 2]);
    }

    #[test]
    fn bad_maps() {
        let map = |slots: &[u64], ranks| ExpertMap::new(3, slots.to_vec(), ranks);
        assert_eq!(map(&[0, 1, 1], 1).unwrap_err(), ExpertError::Missing { expert: 2, experts: 3 });
        assert_eq!(map(&[2, 1, 1], 1).unwrap_err(), ExpertError::Missing { expert: 0, experts: 3 });
        assert_eq!(map(&[0, 3, 1], 1).unwrap_err(), ExpertError::Unknown { slot: 1, expert: 3, experts: 3 });
        assert_eq!(map(&[0, 1, 2], 2).unwrap_err(), ExpertError::Slots { slots: 3, ranks: 2 });
        assert!(map(&[0, 1, 2], 0).is_err() && map(&[], 1).is_err());
        assert!(ExpertMap::new(u64::MAX, vec![0, 1], 1).is_err());
        assert!(map(&[0, 2, 1], 3).unwrap().single(0, 3).is_err());
    }
}
