//! Crossovers as formulas. In: times by size, the number of ranks. Out: what the alpha-beta model makes of them, and the size at
//! which one algorithm overtakes the other. Guarantee: pure.
//!
//! One-shot: every rank moves (N-1) S bytes in one step, T1 = alpha + (N-1) S / B. Two-shot: 2 (N-1)/N S bytes in two steps,
//! T2 = alpha + alpha_step + 2 (N-1)/N S / B. Words that carry a flag beside the data have twice the bytes.

/// T = alpha + bytes / B.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Fit {
    /// Microseconds.
    pub(super) alpha: f64,
    /// 10^9 bytes a second.
    pub(super) bandwidth: f64,
}

/// How bytes of a call become bytes that a rank moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) steps: u32,
    pub(super) flagged: bool,
}

pub(super) const ONE_SHOT_PULL: Shape = Shape { steps: 1, flagged: false };
pub(super) const ONE_SHOT_PUSH: Shape = Shape { steps: 1, flagged: true };
pub(super) const TWO_SHOT: Shape = Shape { steps: 2, flagged: false };
pub(super) const TWO_SHOT_PUSH: Shape = Shape { steps: 2, flagged: true };

impl Shape {
    /// Bytes over a rank's link for each byte of the vector.
    pub(super) fn factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        let plain = if self.steps == 1 { ranks - 1.0 } else { 2.0 * (ranks - 1.0) / ranks };
        if self.flagged { 2.0 * plain } else { plain }
    }
}

/// The line through `points` (bytes that are moved, microseconds) with the least relative errors.
pub(super) fn fit(points: &[(f64, f64)]) -> Option<Fit> {
    let (mut weights, mut bytes, mut squares, mut times, mut products) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(size, time) in points.iter().filter(|(_, time)| *time > 0.0) {
        let weight = 1.0 / (time * time);
        weights += weight;
        bytes += weight * size;
        squares += weight * size * size;
        times += weight * time;
        products += weight * size * time;
    }
    let determinant = weights * squares - bytes * bytes;
    let slope = (weights * products - bytes * times) / determinant;
    let alpha = (times - slope * bytes) / weights;
    (slope > 0.0 && slope.is_finite() && alpha.is_finite()).then(|| Fit { alpha, bandwidth: 1e-3 / slope })
}

/// Size from which `second` is faster than `first`, both of bandwidth `bandwidth` (GB/s), `gap` microseconds between their
/// starts; `None`: at no size.
pub(super) fn crossover(first: Shape, second: Shape, ranks: u32, gap: f64, bandwidth: f64) -> Option<f64> {
    let saved = first.factor(ranks) - second.factor(ranks);
    (saved > 1e-12).then(|| gap * bandwidth * 1e3 / saved).map(|size| size.max(0.0))
}

/// Size from which the second of two measured curves, (bytes, microseconds) by rising size, stays faster than the first;
/// interpolated between logarithms. `None`: at no size that was measured; the least size when it is everywhere.
pub(super) fn crossing(first: &[(u64, f64)], second: &[(u64, f64)]) -> Option<f64> {
    let common = |&(bytes, time): &(u64, f64)| {
        let other = second.iter().find(|&&(size, _)| size == bytes)?.1;
        Some((bytes as f64, (time / other).ln()))
    };
    let gains: Vec<(f64, f64)> = first.iter().filter_map(common).collect();
    let from = gains.iter().rposition(|&(_, gain)| gain <= 0.0).map_or(0, |last| last + 1);
    let &(after, gain) = gains.get(from)?;
    let Some(&(before, loss)) = from.checked_sub(1).and_then(|last| gains.get(last)) else { return Some(after) };
    let share = -loss / (gain - loss);
    Some(before * (after / before).powf(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_again() {
        let points: Vec<(f64, f64)> =
            (0..12).map(|power| f64::from(1 << (10 + power))).map(|s| (s, 2.5 + s / 370e3)).collect();
        let fit = fit(&points).unwrap();
        assert!((fit.alpha - 2.5).abs() < 1e-6 && (fit.bandwidth - 370.0).abs() < 1e-3, "{fit:?}");
        assert_eq!(super::fit(&points[..1]), None);
    }

    #[test]
    fn pull_crosses_where_the_formula_says() {
        let (step, bandwidth) = (1.5, 300.0);
        assert_eq!(crossover(ONE_SHOT_PULL, TWO_SHOT, 2, step, bandwidth), None);
        for ranks in [3u32, 4, 8, 72] {
            let n = f64::from(ranks);
            let formula = step * n * bandwidth * 1e3 / ((n - 1.0) * (n - 2.0));
            let found = crossover(ONE_SHOT_PULL, TWO_SHOT, ranks, step, bandwidth).unwrap();
            assert!((found - formula).abs() < 1e-6 * formula, "{ranks}");
            // Flags double the bytes of both, which halves the size.
            let found = crossover(ONE_SHOT_PUSH, TWO_SHOT_PUSH, ranks, step, bandwidth).unwrap();
            assert!((found - formula / 2.0).abs() < 1e-6 * formula, "{ranks}");
        }
    }

    #[test]
    fn push_crosses_even_between_two_ranks() {
        // alpha B / (N-1) against pull, alpha N B / (2 (N-1)^2) against two-shot.
        let close = |found: Option<f64>, formula: f64| assert!((found.unwrap() - formula).abs() < 1e-6 * formula);
        for ranks in [2u32, 3, 8] {
            let n = f64::from(ranks);
            close(crossover(ONE_SHOT_PUSH, ONE_SHOT_PULL, ranks, 2.0, 370.0), 2.0 * 370e3 / (n - 1.0));
            let formula = 2.0 * n * 370e3 / (2.0 * (n - 1.0) * (n - 1.0));
            close(crossover(ONE_SHOT_PUSH, TWO_SHOT, ranks, 2.0, 370.0), formula);
        }
    }

    #[test]
    fn measured_curves_cross_between_sizes() {
        let first = [(1024, 2.0), (4096, 4.0), (16384, 16.0)];
        let second = [(1024, 4.0), (4096, 4.4), (16384, 8.0)];
        let size = crossing(&first, &second).unwrap();
        assert!(size > 4096.0 && size < 16384.0, "{size}");
        assert_eq!(crossing(&second, &first), None);
        assert_eq!(crossing(&[(8, 2.0), (16, 3.0)], &[(8, 1.0), (16, 1.0)]), Some(8.0));
        assert_eq!(crossing(&first, &[]), None);
    }
}
