//! Loops over contiguous elements. In: two pointers, a count, what to do with a block. Out: written elements, how many
//! finite ones became infinite. Guarantee: no alignment is needed; a block is read before it is written, so elements may
//! shrink in place towards lower addresses.

/// Elements of a block: a whole number of vectors of every width.
pub(super) const LANES: usize = 16;

/// Writes what `each` makes of every block.
///
/// # Safety
/// `count` elements must be readable at `from` and writable at `to`; where the ranges overlap, `to` must not lie behind
/// `from` and `D` must not be larger than `S`.
#[inline(always)]
pub(super) unsafe fn map<S: Copy + Default, D: Copy + Default>(
    from: *const u8,
    to: *mut u8,
    count: usize,
    each: impl Fn([S; LANES]) -> ([D; LANES], u32),
) -> u64 {
    let (from, to) = (from.cast::<S>(), to.cast::<D>());
    let whole = count / LANES * LANES;
    let mut saturated = 0;
    let mut at = 0;
    while at < whole {
        // SAFETY: the block lies inside the elements that the caller vouches for, on both sides.
        unsafe {
            let (block, over) = each(from.add(at).cast::<[S; LANES]>().read_unaligned());
            to.add(at).cast::<[D; LANES]>().write_unaligned(block);
            saturated += u64::from(over);
        }
        at += LANES;
    }
    if whole < count {
        // SAFETY: the elements behind the last whole block.
        let (block, over) = each(unsafe { partial(from.wrapping_add(whole), count - whole) });
        // SAFETY: as many elements are written as were read; the block is this function's own.
        unsafe { to.add(whole).cast::<u8>().copy_from(block.as_ptr().cast(), (count - whole) * size_of::<D>()) };
        saturated += u64::from(over);
    }
    saturated
}

/// Writes what `each` makes of every block and of what the destination holds.
///
/// # Safety
/// As [`map`], without any overlap; the destination must hold elements.
#[inline(always)]
pub(super) unsafe fn fold<S: Copy + Default, D: Copy + Default>(
    from: *const u8,
    to: *mut u8,
    count: usize,
    each: impl Fn([S; LANES], [D; LANES]) -> [D; LANES],
) {
    let (from, to) = (from.cast::<S>(), to.cast::<D>());
    let whole = count / LANES * LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: the block lies inside the elements that the caller vouches for, on both sides.
        unsafe {
            let held = to.add(at).cast::<[D; LANES]>();
            held.write_unaligned(each(from.add(at).cast::<[S; LANES]>().read_unaligned(), held.read_unaligned()));
        }
        at += LANES;
    }
    if whole < count {
        let rest = count - whole;
        // SAFETY: the elements behind the last whole block; as many are written as were read.
        unsafe {
            let held = to.wrapping_add(whole);
            let block = each(partial(from.wrapping_add(whole), rest), partial(held, rest));
            held.cast::<u8>().copy_from_nonoverlapping(block.as_ptr().cast(), rest * size_of::<D>());
        }
    }
}

/// Fewer elements than a block, the others zero.
///
/// # Safety
/// `count` elements, less than a block, must be readable at `from`.
#[inline(always)]
unsafe fn partial<T: Copy + Default>(from: *const T, count: usize) -> [T; LANES] {
    let mut block = [T::default(); LANES];
    // SAFETY: the caller vouches for the elements; the block holds more.
    unsafe { block.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from.cast(), count * size_of::<T>()) };
    block
}

/// Applies `each` to every element of a block.
#[inline(always)]
pub(super) fn lanes<S: Copy, D: Copy + Default>(block: [S; LANES], each: impl Fn(S) -> D) -> [D; LANES] {
    let mut made = [D::default(); LANES];
    for (made, element) in made.iter_mut().zip(block) {
        *made = each(element);
    }
    made
}

/// Number of elements of a block of which `is` holds.
#[inline(always)]
pub(super) fn count<S: Copy>(block: [S; LANES], is: impl Fn(S) -> bool) -> u32 {
    let mut sum = 0;
    for element in block {
        sum += u32::from(is(element));
    }
    sum
}
