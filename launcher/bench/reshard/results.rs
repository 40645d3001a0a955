//! What a bench found. In: times of every run. Out: rates, their spread, paired ratios, JSON. Guarantee: every sample is
//! kept; a ratio compares two runs of one round.

use super::moving::Timing;
use super::shape::Shape;
use crate::bench::error::BenchError;
use crate::bench::statistics::Spread;
use serde::Serialize;

/// One run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Sample {
    pub(super) round: u32,
    pub(super) seconds: f64,
    pub(super) gb_per_s: f64,
    pub(super) start_spread_seconds: f64,
    pub(super) wrong_elements: u64,
}

/// Whose method it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Party {
    Crossmesh,
    Peer,
}

/// All runs of one method on one shape.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Method {
    pub(super) name: String,
    pub(super) party: Party,
    /// What the best of several settings is taken of.
    pub(super) group: String,
    pub(super) gb_per_s: Option<Spread>,
    /// Wrong elements of all runs, the warm-up's too.
    pub(super) wrong_elements: u64,
    pub(super) samples: Vec<Sample>,
}

/// Rate of one method over another's, round by round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ratio {
    pub(super) crossmesh: String,
    pub(super) peer: String,
    pub(super) ratio: Spread,
}

/// One shape.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ShapeResults {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) tensors: u64,
    pub(super) tensor_bytes: u64,
    pub(super) delivered_bytes: u64,
    pub(super) sources: u32,
    pub(super) destinations: u32,
    pub(super) methods: Vec<Method>,
    pub(super) ratios: Vec<Ratio>,
}

/// The whole bench.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) host: String,
    pub(super) crossmesh: &'static str,
    pub(super) cores: usize,
    pub(super) core_of_rank: Vec<Option<usize>>,
    pub(super) load_before: Option<f64>,
    pub(super) load_after: Option<f64>,
    pub(super) repeat: u32,
    pub(super) wrong_elements: u64,
    pub(super) shapes: Vec<ShapeResults>,
}

impl Method {
    pub(super) fn new(party: Party, name: String, group: String) -> Self {
        Self { name, party, group, gb_per_s: None, wrong_elements: 0, samples: Vec::new() }
    }

    /// Takes a run; round 0 warms up and only its data counts.
    pub(super) fn take(&mut self, round: u32, timing: Timing, delivered: u64) {
        self.wrong_elements += timing.wrong;
        if round > 0 {
            self.samples.push(Sample {
                round,
                seconds: timing.seconds,
                gb_per_s: delivered as f64 / timing.seconds / 1e9,
                start_spread_seconds: timing.start_spread,
                wrong_elements: timing.wrong,
            });
            self.gb_per_s = Spread::of(self.samples.iter().map(|sample| sample.gb_per_s));
        }
    }

    fn median(&self) -> f64 {
        self.gb_per_s.map_or(0.0, |spread| spread.median)
    }

    fn over(&self, other: &Self) -> Option<Ratio> {
        let pairs = self.samples.iter().filter_map(|mine| {
            let theirs = other.samples.iter().find(|theirs| theirs.round == mine.round)?;
            Some(mine.gb_per_s / theirs.gb_per_s)
        });
        Some(Ratio { crossmesh: self.name.clone(), peer: other.name.clone(), ratio: Spread::of(pairs)? })
    }
}

impl ShapeResults {
    pub(super) fn new(shape: &Shape, methods: Vec<Method>) -> Self {
        let of = |party| methods.iter().filter(move |method| method.party == party);
        let ratios = of(Party::Peer)
            .flat_map(|peer| of(Party::Crossmesh).filter_map(|own| own.over(peer)).collect::<Vec<_>>())
            .collect();
        Self {
            name: shape.name,
            meaning: shape.meaning,
            tensors: shape.tensors,
            tensor_bytes: shape.tensor_bytes(),
            delivered_bytes: shape.delivered(),
            sources: shape.sources(),
            destinations: shape.destinations(),
            methods,
            ratios,
        }
    }

    pub(super) fn ratio(&self, crossmesh: &str, peer: &str) -> Option<Spread> {
        let found = self.ratios.iter().find(|ratio| ratio.crossmesh == crossmesh && ratio.peer == peer);
        found.map(|found| found.ratio)
    }

    /// Method names of peers, each once.
    pub(super) fn peer_groups(&self) -> Vec<&str> {
        let mut groups = Vec::new();
        for method in self.methods.iter().filter(|method| method.party == Party::Peer) {
            if !groups.contains(&method.group.as_str()) {
                groups.push(method.group.as_str());
            }
        }
        groups
    }

    /// The fastest of a group: a method under its best settings.
    pub(super) fn best(&self, group: &str) -> Option<&Method> {
        let members = self.methods.iter().filter(|method| method.group == group);
        members.max_by(|one, other| one.median().total_cmp(&other.median()))
    }
}

impl Results {
    /// What is wrong, in words.
    pub(super) fn complaint(&self) -> Option<BenchError> {
        let wrong = self.shapes.iter().flat_map(|shape| {
            let methods = shape.methods.iter().filter(|method| method.wrong_elements > 0);
            methods.map(|method| format!("{}: {}: {} elements", shape.name, method.name, method.wrong_elements))
        });
        let wrong: Vec<String> = wrong.collect();
        (!wrong.is_empty()).then(|| BenchError::Wrong(wrong.join("; ")))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::reshard::shape::choose;

    /// One shape, two ways of crossmesh, two settings of a peer and another peer.
    pub(in crate::bench::reshard) fn example(wrong: u64) -> Results {
        let shape = choose("columns-1k", 4, 4, None).unwrap().remove(0);
        let method = |party, name: &str, group: &str, seconds: [f64; 3], wrong| {
            let mut method = Method::new(party, name.into(), group.into());
            method.take(0, Timing { seconds: 9.0, start_spread: 0.0, wrong }, shape.delivered());
            for (round, seconds) in (1..).zip(seconds) {
                method.take(round, Timing { seconds, start_spread: 0.0, wrong: 0 }, shape.delivered());
            }
            method
        };
        let methods = vec![
            method(Party::Crossmesh, "crossmesh shared flat", "crossmesh shared", [0.02, 0.04, 0.02], 0),
            method(Party::Crossmesh, "crossmesh private flat", "crossmesh private", [0.04, 0.08, 0.04], 0),
            method(Party::Peer, "alltoallw (a)", "alltoallw", [0.06, 0.06, 0.06], 0),
            method(Party::Peer, "alltoallw (b)", "alltoallw", [0.04, 0.04, 0.05], wrong),
            method(Party::Peer, "pull (a)", "pull", [0.02, 0.02, 0.02], 0),
        ];
        Results {
            host: "here".into(),
            crossmesh: "test",
            cores: 2,
            core_of_rank: vec![Some(0); 8],
            load_before: None,
            load_after: Some(0.5),
            repeat: 3,
            wrong_elements: wrong,
            shapes: vec![ShapeResults::new(&shape, methods)],
        }
    }

    #[test]
    fn ratios_are_paired_and_the_best_settings_count() {
        let results = example(0);
        let shape = &results.shapes[0];
        let ratio = shape.ratio("crossmesh shared flat", "alltoallw (a)").unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && (ratio.min - 1.5).abs() < 1e-9, "{ratio:?}");
        assert_eq!(shape.ratios.len(), 6);
        assert_eq!(shape.peer_groups(), ["alltoallw", "pull"]);
        assert_eq!(shape.best("alltoallw").unwrap().name, "alltoallw (b)");
        assert_eq!(shape.methods[0].samples.len(), 3);
        let rate = shape.methods[0].gb_per_s.unwrap();
        assert!((rate.median - 268.435456e6 / 0.02 / 1e9).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn wrong_element_of_anybody_is_a_complaint() {
        assert!(example(0).complaint().is_none());
        let complaint = example(7).complaint().unwrap();
        assert_eq!(complaint.to_string(), "wrong results: columns-1k: alltoallw (b): 7 elements");
        assert!(!complaint.is_bad_input());
    }
}
