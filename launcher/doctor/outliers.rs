//! Rates that are low among their like. In: rates with the kind of each. Out: which, and the median of their kind.
//! Guarantee: pure; one alone of its kind is never low.

use std::collections::BTreeMap;

/// A rate below this share of the median of its kind is low.
pub(super) const LOW: f64 = 0.8;

/// Positions of low rates, each with the median of its kind.
pub(super) fn low<K: Ord>(rates: &[(K, f64)]) -> Vec<(usize, f64)> {
    let mut kinds: BTreeMap<&K, Vec<f64>> = BTreeMap::new();
    for (kind, rate) in rates {
        kinds.entry(kind).or_default().push(*rate);
    }
    let median = |(kind, mut rates): (_, Vec<f64>)| {
        rates.sort_by(f64::total_cmp);
        (kind, rates[rates.len() / 2])
    };
    let medians: BTreeMap<&K, f64> = kinds.into_iter().map(median).collect();
    let beside = rates.iter().enumerate().map(|(number, (kind, rate))| (number, *rate, medians[kind]));
    beside.filter(|(_, rate, median)| *rate < LOW * median).map(|(number, _, median)| (number, median)).collect()
}

/// Least, median and most of some rates; `None` of none.
pub(super) fn spread(mut rates: Vec<f64>) -> Option<[f64; 3]> {
    rates.sort_by(f64::total_cmp);
    Some([*rates.first()?, rates[rates.len() / 2], *rates.last()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_judged_apart() {
        let rates = [("a", 10.0), ("b", 1.0), ("a", 7.9), ("a", 10.0), ("b", 0.9), ("c", 0.1)];
        assert_eq!(low(&rates), [(2, 10.0)]);
        assert_eq!(low::<u8>(&[]), []);
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), Some([1.0, 2.0, 3.0]));
        assert_eq!(spread(Vec::new()), None);
    }
}
