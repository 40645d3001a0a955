//! How large chunks are. In: the staging that is left, the chunk asked for, the number of hops. Out: [`StagingShare`].
//! Guarantee: pure, equal on all ranks that agree on these; every hop and sending has at least two slots.

/// Default of `CROSSMESH_STAGING`.
pub const DEFAULT_STAGING: u64 = 64 << 20;
/// Default of `CROSSMESH_CHUNK`.
pub const DEFAULT_CHUNK: u64 = 1 << 20;
/// Smallest chunk worth having.
pub(super) const SMALLEST_CHUNK: u64 = 256;
pub(super) const SLOT_ALIGNMENT: u64 = 64;

/// What a transfer takes of the staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingShare {
    /// Largest message.
    pub chunk_bytes: u64,
    /// Most staging memory of a rank.
    pub bytes: u64,
}

/// The share of a transfer of `hops` hops, with `left` bytes left and chunks of `chunk` bytes asked for; the bytes that
/// are needed when fewer are left.
pub fn staging_share(left: u64, chunk: u64, hops: u32) -> Result<StagingShare, u64> {
    let slots = 2 * u64::from(hops.max(1)) + 2;
    let needed = slots * (SMALLEST_CHUNK + SLOT_ALIGNMENT);
    if left < needed {
        return Err(needed);
    }
    // A quarter of what is left keeps room for more transfers; none takes less than it needs.
    let bytes = (left / 4).max(needed);
    let chunk_bytes = (bytes / slots - SLOT_ALIGNMENT).clamp(SMALLEST_CHUNK, chunk.max(SMALLEST_CHUNK));
    Ok(StagingShare { chunk_bytes, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_what_is_left() {
        let share = |left, chunk, hops| staging_share(left, chunk, hops).map(|share| (share.chunk_bytes, share.bytes));
        assert_eq!(share(DEFAULT_STAGING, DEFAULT_CHUNK, 2), Ok((1 << 20, 16 << 20)));
        // 16 MiB for 18 slots.
        assert_eq!(share(DEFAULT_STAGING, DEFAULT_CHUNK, 8), Ok(((16 << 20) / 18 - 64, 16 << 20)));
        assert_eq!(share(DEFAULT_STAGING, 1, 0), Ok((256, 16 << 20)));
        assert_eq!(share(1280, 1 << 20, 1), Ok((256, 1280)));
        assert_eq!(share(1279, 1 << 20, 1), Err(1280));
    }
}
