//! Stretches of a cell as boxes. In: extents, an element range in row-major order. Out: few sub-boxes. Guarantee:
//! the sub-boxes are disjoint, in order, and hold exactly the range; at most 2 x rank + 1 of them.

/// A sub-box of a cell: first index and extent per dimension, and its first element's row-major number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SubBox {
    pub(super) lo: Vec<u64>,
    pub(super) extents: Vec<u64>,
    pub(super) first: u64,
}

/// Sub-boxes of elements `start..end` of a box of `extents`.
pub(super) fn sub_boxes(extents: &[u64], start: u64, end: u64) -> Vec<SubBox> {
    // inner[d] = elements of one index of dimension d - 1, so inner[0] is the whole box.
    let mut inner = vec![1u64; extents.len() + 1];
    for dim in (0..extents.len()).rev() {
        inner[dim] = inner[dim + 1] * extents[dim];
    }
    let mut boxes = Vec::new();
    let mut at = start;
    while at < end {
        let whole = (0..=extents.len()).find(|&dim| at.is_multiple_of(inner[dim]) && inner[dim] <= end - at);
        let Some(whole) = whole else { break };
        let mut lo = vec![0; extents.len()];
        let mut size = extents.to_vec();
        let mut rest = at;
        for dim in 0..whole {
            lo[dim] = rest / inner[dim + 1];
            rest %= inner[dim + 1];
            size[dim] = 1;
        }
        let mut taken = inner[whole];
        if whole > 0 {
            let dim = whole - 1;
            let count = ((end - at) / inner[whole]).min(extents[dim] - lo[dim]);
            size[dim] = count;
            taken = count * inner[whole];
        }
        boxes.push(SubBox { lo, extents: size, first: at });
        at += taken;
    }
    boxes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(extents: &[u64], sub: &SubBox) -> Vec<u64> {
        let mut numbers = vec![0u64];
        for (dim, &extent) in extents.iter().enumerate() {
            numbers = numbers
                .iter()
                .flat_map(|&number| {
                    (sub.lo[dim]..sub.lo[dim] + sub.extents[dim]).map(move |index| number * extent + index)
                })
                .collect();
        }
        numbers
    }

    #[test]
    fn every_range_of_small_boxes() {
        for extents in [vec![], vec![1], vec![5], vec![3, 4], vec![2, 3, 4], vec![2, 1, 3, 2]] {
            let total: u64 = extents.iter().product();
            for start in 0..=total {
                for end in start..=total {
                    let boxes = sub_boxes(&extents, start, end);
                    let covered: Vec<u64> = boxes.iter().flat_map(|sub| elements(&extents, sub)).collect();
                    assert_eq!(covered, (start..end).collect::<Vec<_>>(), "{extents:?} {start}..{end}");
                    assert!(boxes.iter().all(|sub| elements(&extents, sub)[0] == sub.first));
                    assert!(boxes.len() <= 2 * extents.len() + 1);
                }
            }
        }
    }
}
