//! Medians and spread. In: samples. Out: quartiles. Guarantee: values that are no numbers are left out and never panic.

use serde::Serialize;

/// Median and spread of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) q1: f64,
    pub(super) q3: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) samples: usize,
}

impl Spread {
    /// Of at least one number.
    pub(super) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            q1: quantile(&sorted, 0.25)?,
            q3: quantile(&sorted, 0.75)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            samples: sorted.len(),
        })
    }
}

/// Value below which a share of sorted samples lies, interpolated between neighbours.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)? as f64);
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        let spread = Spread::of([4.0, 1.0, f64::NAN, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.q1, spread.q3), (2.5, 1.75, 3.25));
        assert_eq!((spread.min, spread.max, spread.samples), (1.0, 4.0, 4));
        assert_eq!(Spread::of([7.0]).map(|spread| (spread.q1, spread.median, spread.q3)), Some((7.0, 7.0, 7.0)));
        assert_eq!(Spread::of([f64::INFINITY]), None);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.999), Some(2.998));
    }
}
