//! Contents for models without files. In: the seed of a tensor name, a byte offset. Out: bytes. Guarantee: a byte
//! depends only on seed and offset, so that any part can be made alone; parts of other rows or tensors differ.

use crossmesh::layout::content_digest::mix64;

/// Step between the states of neighbouring words; odd, so that no two words of a tensor share a state.
const STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// Bytes `offset`, `offset + 1`, … of the tensor with this seed (see
/// [`name_seed`](crossmesh::layout::content_digest::name_seed)). Offsets count through the row-major whole tensor.
pub(crate) fn synthesise(seed: u64, offset: u64, out: &mut [u8]) {
    let word = |index: u64| mix64(seed ^ index.wrapping_mul(STEP)).to_le_bytes();
    let skipped = (offset % 8) as usize;
    let mut index = offset / 8;
    let (head, body) = out.split_at_mut(if skipped == 0 { 0 } else { (8 - skipped).min(out.len()) });
    if !head.is_empty() {
        head.copy_from_slice(&word(index)[skipped..skipped + head.len()]);
        index += 1;
    }
    let mut words = body.chunks_exact_mut(8);
    for bytes in &mut words {
        bytes.copy_from_slice(&word(index));
        index = index.wrapping_add(1);
    }
    let tail = words.into_remainder();
    tail.copy_from_slice(&word(index)[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::layout::content_digest::name_seed;

    #[test]
    fn parts_equal_the_whole() {
        let seed = name_seed("model.norm.weight");
        let mut whole = [0u8; 97];
        synthesise(seed, 0, &mut whole);
        for from in 0..97 {
            for to in from..97 {
                let mut part = vec![0; to - from];
                synthesise(seed, from as u64, &mut part);
                assert_eq!(part, whole[from..to], "{from}..{to}");
            }
        }
        let mut last = [0u8; 16];
        synthesise(seed, u64::MAX - 7, &mut last[..8]);
        assert_ne!(last[..8], last[8..]);
    }

    #[test]
    fn rows_and_tensors_differ() {
        let row = |name: &str, at: u64| {
            let mut bytes = [0u8; 64];
            synthesise(name_seed(name), at, &mut bytes);
            bytes
        };
        let mut rows: Vec<[u8; 64]> = (0..1000).map(|index| row("experts.0.w", index * 64)).collect();
        rows.extend((1..1000).map(|expert| row(&format!("experts.{expert}.w"), 0)));
        let count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), count);
    }
}
