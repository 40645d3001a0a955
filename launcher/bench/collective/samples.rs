//! Times of all ranks as figures. In: microseconds of a call, sample by sample, of each rank. Out: mean, quantiles, skew, rates.
//! Guarantee: pure; a sample counts as long as its slowest rank took.

use crate::bench::statistics::quantile;
use serde::{Deserialize, Serialize};

/// Time of a call, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Mean over the samples.
    pub(super) mean: f64,
    /// Median.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// How much longer the slowest rank took than the fastest, median.
    pub(super) skew: f64,
}

impl Figures {
    /// Of samples that all ranks took together; `None` where there are none.
    pub(super) fn of(ranks: &[Vec<f64>]) -> Option<Self> {
        let samples = ranks.iter().map(Vec::len).min()?;
        let of = |sample: usize| ranks.iter().map(move |times| times[sample]);
        let mut slowest: Vec<f64> = (0..samples).map(|sample| of(sample).fold(f64::MIN, f64::max)).collect();
        let mut skews: Vec<f64> =
            (0..samples).map(|sample| slowest[sample] - of(sample).fold(f64::MAX, f64::min)).collect();
        slowest.sort_by(f64::total_cmp);
        skews.sort_by(f64::total_cmp);
        Some(Self {
            mean: slowest.iter().sum::<f64>() / samples.max(1) as f64,
            p50: quantile(&slowest, 0.5)?,
            p99: quantile(&slowest, 0.99)?,
            skew: quantile(&skews, 0.5)?,
        })
    }
}

/// Bytes over a time in microseconds, 10^9 bytes a second.
pub(super) fn rate(bytes: u64, microseconds: f64) -> f64 {
    if microseconds > 0.0 { bytes as f64 / microseconds / 1e3 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts() {
        let figures = Figures::of(&[vec![1.0, 5.0, 2.0], vec![2.0, 3.0, 2.0]]).unwrap();
        assert_eq!((figures.mean, figures.p50, figures.skew), (3.0, 2.0, 1.0));
        assert!(figures.p99 > 4.9 && figures.p99 <= 5.0);
        assert_eq!(Figures::of(&[vec![], vec![1.0]]), None);
        assert_eq!(Figures::of(&[]), None);
    }

    #[test]
    fn rates() {
        assert_eq!(rate(1_000_000, 10.0), 100.0);
        assert_eq!(rate(1, 0.0), 0.0);
    }
}
