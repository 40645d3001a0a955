//! Tensors that are stored as one along a dimension. In: extents or heads, a form, a number of ranks. Out: an axis map
//! per tensor and rank. Guarantee: at every rank the maps of all tensors have the same extent and share no position, so
//! that several tensors can be given one buffer; what does not divide is an error unless a rule for it is stated.

use super::{AxisMap, FusedError, Interval, Part, Placement, Segment, Split};

/// How fused tensors follow each other at a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FusedForm {
    /// All of the first, all of the second, …: `[Q | K | V]`, `[gate | up]`.
    Concatenated,
    /// For every key-value head its query heads, its key head, its value head: `[q … q k v] [q … q k v] …`, as
    /// Megatron stores attention.
    Grouped,
    /// One index of each in turn: `q k v q k v …`, `gate up gate up …`.
    Interleaved,
}

/// The heads of an attention layer; each is `size` indices of the fused dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub query: u64,
    /// Key heads, and as many value heads.
    pub key_value: u64,
    /// Indices of one head.
    pub size: u64,
}

/// How heads are dealt out to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadSplit {
    /// Every rank stores the same number of query heads and the key-value heads that these use. The number of ranks
    /// must divide the query heads, and divide the key-value heads or be a multiple of them, which repeats each on
    /// several ranks.
    Even,
    /// Query heads by the floor rule, and the key-value heads that these use: any numbers.
    AsNeeded,
    /// The fused dimension is cut evenly wherever heads end, by the floor rule; some ranks may store no keys.
    Rows,
}

/// What every rank stores of tensors that are fused along one dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedAxis {
    /// Of the whole tensors.
    extents: Vec<u64>,
    /// By tensor, then by rank.
    maps: Vec<Vec<AxisMap>>,
}

impl FusedAxis {
    /// Queries, keys and values, in this order, over `ranks` ranks.
    pub fn attention(heads: Heads, form: FusedForm, split: HeadSplit, ranks: u32) -> Result<Self, FusedError> {
        let extents = heads.check()?;
        if ranks == 0 {
            return Err(FusedError::Nothing { tensors: extents.len(), ranks });
        }
        match (form, split) {
            (FusedForm::Interleaved, _) if heads.query != heads.key_value => {
                let Heads { query, key_value, .. } = heads;
                return Err(FusedError::InterleavedHeads { query, key_value });
            }
            (_, HeadSplit::Rows) => {
                return Self::attention(heads, form, HeadSplit::AsNeeded, 1)?.cut_rows(ranks);
            }
            (_, HeadSplit::Even) => heads.check_even(ranks)?,
            (_, HeadSplit::AsNeeded) => {}
        }
        let held = (0..ranks).map(|rank| heads.held(rank, ranks));
        if form == FusedForm::Interleaved {
            return Self::interleaved(extents, held.map(|(query, _)| query).collect());
        }
        let sequence = held.map(|(query, key_value)| heads.sequence(form, query, key_value));
        Self::of_sequences(extents, sequence.collect())
    }

    /// Tensors of these extents, each split by `split` over `ranks` ranks: gate and up projections, for instance.
    /// Interleaved ones must have one extent; only attention is grouped.
    pub fn split(extents: &[u64], form: FusedForm, split: &Split, ranks: u32) -> Result<Self, FusedError> {
        let part = |&hi: &u64, rank: u32| split.part(Interval { lo: 0, hi }, rank, ranks);
        if ranks == 0 || extents.is_empty() {
            return Err(FusedError::Nothing { tensors: extents.len(), ranks });
        }
        if let Split::Sizes(sizes) = split {
            let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
            if sizes.len() != ranks as usize || extents.iter().any(|&extent| sum != Some(extent)) {
                return Err(FusedError::Sizes { sizes: sizes.clone(), extents: extents.to_vec(), ranks });
            }
        }
        match form {
            FusedForm::Grouped => Err(FusedError::GroupsWithoutHeads),
            FusedForm::Interleaved => {
                if extents.iter().any(|extent| *extent != extents[0]) {
                    return Err(FusedError::InterleavedExtents { extents: extents.to_vec() });
                }
                Self::interleaved(extents.to_vec(), (0..ranks).map(|rank| part(&extents[0], rank)).collect())
            }
            FusedForm::Concatenated => {
                let sequence = |rank| extents.iter().map(|extent| part(extent, rank)).enumerate().collect();
                Self::of_sequences(extents.to_vec(), (0..ranks).map(sequence).collect())
            }
        }
    }

    /// Any form: for every rank, which indices of which tensor follow each other.
    pub fn of_sequences(extents: Vec<u64>, ranks: Vec<Vec<(usize, Interval)>>) -> Result<Self, FusedError> {
        for (rank, sequence) in ranks.iter().enumerate() {
            for &(tensor, Interval { lo, hi }) in sequence {
                let extent = extents.get(tensor).copied();
                if extent.is_none_or(|extent| hi > extent || lo > hi) {
                    let extent = extent.unwrap_or(0);
                    return Err(FusedError::Outside { rank, tensor, lo, hi, extent, tensors: extents.len() });
                }
            }
        }
        let map = |tensor: usize, sequence: &Vec<(usize, Interval)>| {
            AxisMap::of_parts(sequence.iter().map(|&(stored, interval)| match stored == tensor {
                true => Part::Global(interval),
                false => Part::Hole(interval.len()),
            }))
        };
        let maps = (0..extents.len()).map(|tensor| ranks.iter().map(|sequence| map(tensor, sequence)).collect());
        let maps = maps.collect::<Result<_, _>>()?;
        Ok(Self { extents, maps })
    }

    /// One index of each tensor in turn; `ranks` says which indices each rank stores.
    fn interleaved(extents: Vec<u64>, ranks: Vec<Interval>) -> Result<Self, FusedError> {
        let count = extents.len() as u64;
        let maps = (0..count)
            .map(|place| ranks.iter().map(|&held| AxisMap::interleaved(held, place, count)).collect())
            .collect::<Result<_, _>>()?;
        Ok(Self { extents, maps })
    }

    /// The fused dimension of the one rank that there is, cut into rows for `ranks` ranks.
    fn cut_rows(self, ranks: u32) -> Result<Self, FusedError> {
        let cut = |map: &AxisMap| {
            let whole = Interval { lo: 0, hi: map.extent() };
            (0..ranks).map(|rank| map.compose(&AxisMap::new([Split::Floor.part(whole, rank, ranks)]))).collect()
        };
        Ok(Self { maps: self.maps.iter().map(|maps| cut(&maps[0])).collect(), extents: self.extents })
    }

    /// Extents of the whole tensors.
    pub fn extents(&self) -> &[u64] {
        &self.extents
    }

    /// Local extent of the fused dimension at `rank`; zero at ranks that do not exist.
    pub fn local_extent(&self, rank: u32) -> u64 {
        self.maps.first().and_then(|maps| maps.get(rank as usize)).map_or(0, AxisMap::extent)
    }

    /// Placement of one of the tensors, which is a tensor of its own in the manifest, along a mesh axis: at every rank
    /// its part lies between those of the others, in one buffer that all are given.
    ///
    /// # Panics
    ///
    /// When there is no such tensor.
    pub fn placement(&self, tensor: usize, dim: usize) -> Placement {
        Placement::parts(dim, self.maps[tensor].clone())
    }

    /// Placement of the tensors as one tensor of the manifest, whose dimension is stored like the one rank of
    /// `whole`: a checkpoint that is fused already.
    pub fn fused_placement(&self, whole: &FusedAxis, dim: usize) -> Result<Placement, FusedError> {
        if self.extents != whole.extents || whole.maps.iter().any(|maps| maps.len() != 1) {
            return Err(FusedError::Whole { extents: self.extents.clone(), whole: whole.extents.clone() });
        }
        let ranks = self.maps.first().map_or(0, Vec::len);
        let maps: Vec<AxisMap> = (0..ranks)
            .map(|rank| {
                let pairs = self.maps.iter().zip(&whole.maps);
                let segments = pairs.flat_map(|(maps, whole)| renumbered(&maps[rank], &whole[0])).collect();
                AxisMap::of_segments(segments, self.maps[0][rank].extent())
            })
            .collect();
        Ok(Placement::parts(dim, maps))
    }

    /// The same for tensors with one element for every `block` indices: the scales beside block-quantised weights.
    /// Every rank stores the scale of each block of which it stores an index.
    pub fn blocks(&self, block: u64) -> Result<Self, FusedError> {
        let extents = self.extents.iter().map(|extent| extent.checked_div(block)).collect::<Option<Vec<u64>>>();
        let Some(floors) = extents else { return Err(super::LayoutError::Block { block }.into()) };
        let extents =
            floors.iter().zip(&self.extents).map(|(&floor, &extent)| floor + u64::from(floor * block < extent));
        let ranks = self.maps.first().map_or(0, Vec::len);
        let sequence = |rank: usize| {
            let mut segments: Vec<(usize, Segment)> = Vec::new();
            for (tensor, maps) in self.maps.iter().enumerate() {
                segments.extend(maps[rank].segments().iter().map(|&segment| (tensor, segment)));
            }
            segments.sort_unstable_by_key(|(_, segment)| segment.local);
            if let Some((_, segment)) = segments.iter().find(|(_, segment)| segment.step > 1) {
                return Err(super::LayoutError::BlockStep { step: segment.step, block }.into());
            }
            let tiles = |global: Interval| Interval { lo: global.lo / block, hi: global.hi.div_ceil(block) };
            Ok(segments.into_iter().map(|(tensor, segment)| (tensor, tiles(segment.global))).collect())
        };
        let sequences = (0..ranks).map(sequence).collect::<Result<_, FusedError>>()?;
        Self::of_sequences(extents.collect(), sequences)
    }
}

/// `map` with every index replaced by its local position in `whole`.
fn renumbered(map: &AxisMap, whole: &AxisMap) -> Vec<Segment> {
    let mut segments = Vec::new();
    for Segment { local, step, global } in map.segments() {
        for stored in whole.segments() {
            let (lo, hi) = (global.lo.max(stored.global.lo), global.hi.min(stored.global.hi));
            let from = |index: u64| local + (index - global.lo) * step;
            let to = |index: u64| stored.local + (index - stored.global.lo) * stored.step;
            if lo < hi && stored.step == 1 {
                segments.push(Segment { local: from(lo), step: *step, global: Interval { lo: to(lo), hi: to(hi) } });
            } else {
                let one = |index| Segment {
                    local: from(index),
                    step: 1,
                    global: Interval { lo: to(index), hi: to(index) + 1 },
                };
                segments.extend((lo..hi).map(one));
            }
        }
    }
    segments
}

impl Heads {
    /// Extents of queries, keys and values.
    fn check(&self) -> Result<Vec<u64>, FusedError> {
        let Self { query, key_value, size } = *self;
        if query == 0 || key_value == 0 || size == 0 || !query.is_multiple_of(key_value) {
            return Err(FusedError::Heads { query, key_value, size });
        }
        let too_long = || FusedError::Heads { query, key_value, size };
        let (queries, keys) = (query.checked_mul(size), key_value.checked_mul(size));
        let (queries, keys) = (queries.ok_or_else(too_long)?, keys.ok_or_else(too_long)?);
        queries.checked_add(keys).and_then(|sum| sum.checked_add(keys)).ok_or_else(too_long)?;
        Ok(vec![queries, keys, keys])
    }

    fn check_even(&self, ranks: u32) -> Result<(), FusedError> {
        let (Self { query, key_value, .. }, count) = (*self, u64::from(ranks));
        let repeats = count > key_value && count.is_multiple_of(key_value);
        if !query.is_multiple_of(count) || !(key_value.is_multiple_of(count) || repeats) {
            return Err(FusedError::Uneven { query, key_value, ranks });
        }
        Ok(())
    }

    /// Query heads of a rank, and the key-value heads that these use.
    fn held(&self, rank: u32, ranks: u32) -> (Interval, Interval) {
        let query = Split::Floor.part(Interval { lo: 0, hi: self.query }, rank, ranks);
        let group = self.query / self.key_value;
        let key_value = match query.is_empty() {
            true => Interval { lo: 0, hi: 0 },
            false => Interval { lo: query.lo / group, hi: query.hi.div_ceil(group) },
        };
        let indices = |heads: Interval| Interval { lo: heads.lo * self.size, hi: heads.hi * self.size };
        (indices(query), indices(key_value))
    }

    /// What follows what at a rank with these indices of queries, and of keys and values.
    fn sequence(&self, form: FusedForm, query: Interval, key_value: Interval) -> Vec<(usize, Interval)> {
        if form != FusedForm::Grouped {
            return vec![(0, query), (1, key_value), (2, key_value)];
        }
        let group = self.query / self.key_value * self.size;
        (key_value.lo / self.size..key_value.hi / self.size)
            .flat_map(|head| {
                let queries = Interval { lo: query.lo.max(head * group), hi: query.hi.min((head + 1) * group) };
                let keys = Interval { lo: head * self.size, hi: (head + 1) * self.size };
                [(0, queries), (1, keys), (2, keys)]
            })
            .collect()
    }
}

#[cfg(test)]
#[path = "fused_tests.rs"]
mod tests;
