//! `crossmesh bench crossover`: where one way to all-reduce overtakes another. In: sizes. Out: a curve for each algorithm, each at its
//! best launch, as a table, JSON, SVG; S*, alpha, alpha_step and B of this machine beside what formulas make of them and beside
//! constants of others. Guarantee: collective; every point's result was checked.

use super::arguments::sizes;
use super::chain::{Chain, Form};
use super::closed::{Fit, ONE_SHOT_PULL, ONE_SHOT_PUSH, Shape, TWO_SHOT, TWO_SHOT_PUSH, crossing, crossover, fit};
use super::curves::{self, Curve, Mark};
use super::launches::algorithms;
use super::rig::Rig;
use super::sweep::{Tried, best};
use crate::bench::error::BenchError;
use crate::bench::{Complaint, output, writing};
use crate::failure::Failure;
use crossmesh::base::bytes;
use crossmesh::collective::{Algorithm, Call, Kind, ReduceOperation};
use crossmesh::comm::{ChannelOptions, Communicator};
use crossmesh::layout::Dtype;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where one way to all-reduce overtakes another; run it under crossmesh run -n 2
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Smallest size
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "1K", allow_negative_numbers = true)]
    minbytes: String,
    /// Largest size
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "64M", allow_negative_numbers = true)]
    maxbytes: String,
    /// From a size to the next: times this
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 4, allow_negative_numbers = true)]
    stepfactor: i64,
    /// Write the curves as SVG to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the results as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Largest message that goes by words with flags here; more than by default, so that curves can cross.
const PUSH_BYTES: u64 = 4 << 20;

/// Up to this size, inclusive, vLLM's custom all-reduce is one-shot: csrc/custom_all_reduce.cuh. `None`: at all sizes.
fn vllm(ranks: u32) -> Option<u64> {
    match ranks {
        0..=2 => None,
        3..=4 => Some(512 << 10),
        _ => Some(256 << 10),
    }
}

/// Up to this size SGLang pushes in a graph on sm_90: its table tuned on H200.
fn sglang(ranks: u32) -> Option<u64> {
    let limits = [
        (2, 16 << 20),
        (3, 1280 << 10),
        (4, 384 << 10),
        (5, 192 << 10),
        (6, 128 << 10),
        (7, 128 << 10),
        (8, 128 << 10),
    ];
    limits.into_iter().find(|&(known, _)| known == ranks).map(|(_, limit)| limit)
}

/// A pair of algorithms, the second for larger messages.
const PAIRS: [(Algorithm, Algorithm); 4] = [
    (Algorithm::OneShotPull, Algorithm::TwoShot),
    (Algorithm::OneShotPush, Algorithm::OneShotPull),
    (Algorithm::OneShotPush, Algorithm::TwoShot),
    (Algorithm::OneShotPush, Algorithm::TwoShotPush),
];

#[derive(Debug, Clone, Serialize)]
struct Point {
    bytes: u64,
    microseconds: f64,
    blocks: u16,
    threads: u16,
}

#[derive(Debug, Clone, Serialize)]
struct Measured {
    algorithm: &'static str,
    fit: Option<Fit>,
    points: Vec<Point>,
}

#[derive(Debug, Clone, Serialize)]
struct Crossing {
    from: &'static str,
    to: &'static str,
    /// Where the curves cross; none: nowhere between the sizes.
    measured: Option<f64>,
    /// By the formula; none: never.
    formula: Option<f64>,
    /// Between the starts of the two, microseconds.
    gap: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
struct Report {
    crossmesh: &'static str,
    gpu: String,
    ranks: u32,
    registered: bool,
    curves: Vec<Measured>,
    /// Start of one-shot pull, microseconds.
    alpha: Option<f64>,
    /// What a second step costs, microseconds: two-shot's start less one-shot pull's.
    alpha_step: Option<f64>,
    /// Of one-shot pull, 10^9 bytes a second.
    bandwidth: Option<f64>,
    crossings: Vec<Crossing>,
    /// One-shot up to here in vLLM; none: always.
    vllm: Option<u64>,
    /// Push up to here in SGLang (sm_90, graph); none: not stated.
    sglang: Option<u64>,
}

/// Runs the bench on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let places = [("json", arguments.json.as_deref()), ("svg", arguments.svg.as_deref())];
    writing(&places, |world| draw(world, arguments))
}

fn draw(world: &Communicator, arguments: &Arguments) -> Result<Complaint, BenchError> {
    let sizes = sizes((&arguments.minbytes, &arguments.maxbytes), arguments.stepfactor, 16)?;
    if world.size() < 2 {
        return Err(BenchError::TooFewRanks { needed: 2, ranks: world.size() });
    }
    let form = Form { captured: true, cold: false, in_place: false };
    let of = |bytes: u64| Call {
        kind: Kind::AllReduce,
        count: bytes / 2,
        dtype: Dtype::BF16,
        operation: ReduceOperation::Sum,
        root: 0,
    };
    let (rank, ranks) = (world.rank().0, world.size() as u32);
    let most = sizes.last().copied().unwrap_or(0);
    let room = Chain { call: of(most), form, rank, ranks, calls: 2 }.bytes();
    let options = ChannelOptions { push_bytes: Some(PUSH_BYTES), ..ChannelOptions::default() };
    let mut rig = Rig::new(world, room, true, &options)?;
    if rig.is_ordered() {
        return Err(BenchError::Ordered { what: "there is one algorithm" });
    }
    let mut curves: Vec<(Algorithm, Vec<(u64, Tried)>)> = Vec::new();
    for algorithm in algorithms(Kind::AllReduce) {
        let mut points = Vec::new();
        for &bytes in &sizes {
            points.extend(best(&mut rig, &of(bytes), form, algorithm)?.map(|tried| (bytes, tried)));
        }
        curves.push((algorithm, points));
    }
    if rig.rank() != 0 {
        return Ok(None);
    }
    let gpu = rig.rehearsal.channel().device().properties().name.clone();
    let report = report(gpu, ranks, rig.registered, &curves);
    if output::leaves_room_for_a_table(arguments.json.as_deref()) {
        print!("{}", text(&report));
    }
    if let Some(path) = &arguments.svg {
        output::write(&drawing(&report), path)?;
    }
    if let Some(path) = &arguments.json {
        output::write_json(&report, path)?;
    }
    Ok(None)
}

/// How bytes of an algorithm become bytes over the link; none for those without a formula here.
fn shape(algorithm: Algorithm) -> Option<Shape> {
    match algorithm {
        Algorithm::OneShotPush => Some(ONE_SHOT_PUSH),
        Algorithm::OneShotPull => Some(ONE_SHOT_PULL),
        Algorithm::TwoShotPush => Some(TWO_SHOT_PUSH),
        Algorithm::TwoShot | Algorithm::ShardPush => Some(TWO_SHOT),
        _ => None,
    }
}

fn report(gpu: String, ranks: u32, registered: bool, curves: &[(Algorithm, Vec<(u64, Tried)>)]) -> Report {
    let times = |wanted: Algorithm| -> Vec<(u64, f64)> {
        let found = curves.iter().find(|(algorithm, _)| *algorithm == wanted);
        found.map_or(Vec::new(), |(_, points)| {
            points.iter().map(|&(bytes, tried)| (bytes, tried.microseconds)).collect()
        })
    };
    let fitted = |algorithm: Algorithm| {
        let factor = shape(algorithm)?.factor(ranks);
        fit(&times(algorithm).iter().map(|&(bytes, time)| (bytes as f64 * factor, time)).collect::<Vec<_>>())
    };
    let pull = fitted(Algorithm::OneShotPull);
    let crossings = PAIRS.map(|(from, to)| {
        let gap = fitted(from).zip(fitted(to)).map(|(from, to)| to.alpha - from.alpha);
        let shapes = shape(from).zip(shape(to));
        let formula = shapes
            .zip(gap)
            .zip(pull)
            .and_then(|(((from, to), gap), pull)| crossover(from, to, ranks, gap, pull.bandwidth));
        let measured = crossing(&times(from), &times(to));
        Crossing { from: from.name(), to: to.name(), measured, formula, gap }
    });
    let measured = curves.iter().map(|(algorithm, points)| Measured {
        algorithm: algorithm.name(),
        fit: fitted(*algorithm),
        points: points.iter().map(|(bytes, tried)| point(*bytes, tried)).collect(),
    });
    Report {
        crossmesh: crossmesh::BUILD,
        gpu,
        ranks,
        registered,
        curves: measured.collect(),
        alpha: pull.map(|fit| fit.alpha),
        alpha_step: crossings[0].gap,
        bandwidth: pull.map(|fit| fit.bandwidth),
        crossings: crossings.to_vec(),
        vllm: vllm(ranks),
        sglang: sglang(ranks),
    }
}

fn point(bytes: u64, tried: &Tried) -> Point {
    let Tried { launch, microseconds } = *tried;
    Point { bytes, microseconds, blocks: launch.blocks, threads: launch.threads }
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "# all_reduce of bfloat16, {} ranks on {}, in a graph: us, blocks x threads\n{:>8}",
        report.ranks, report.gpu, "size"
    );
    for curve in &report.curves {
        let _ = write!(text, " {:>22}", curve.algorithm);
    }
    let mut sizes: Vec<u64> = report.curves.iter().flat_map(|curve| &curve.points).map(|point| point.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for bytes in sizes {
        let _ = write!(text, "\n{:>8}", curves::size(bytes));
        for curve in &report.curves {
            let found = curve.points.iter().find(|point| point.bytes == bytes);
            let cell = found.map_or("-".into(), |point| {
                format!("{:.2} {:>3}x{:<3}", point.microseconds, point.blocks, point.threads)
            });
            let _ = write!(text, " {cell:>22}");
        }
    }
    let number =
        |value: Option<f64>, unit: &str| value.map_or("not found".to_string(), |value| format!("{value:.2} {unit}"));
    let _ = writeln!(
        text,
        "\nalpha {}, alpha_step {}, B {}",
        number(report.alpha, "us"),
        number(report.alpha_step, "us"),
        number(report.bandwidth, "GB/s")
    );
    for Crossing { from, to, measured, formula, .. } in &report.crossings {
        let measured = measured.map_or("nowhere in these sizes".to_string(), |size| bytes::human(size as u64));
        let formula = formula.map_or("never".to_string(), |size| bytes::human(size as u64));
        let _ = writeln!(text, "{from} to {to}: S* measured {measured}, by the formula {formula}");
    }
    let limit = |limit: Option<u64>, otherwise: &str| limit.map_or(otherwise.to_string(), curves::size);
    let _ = writeln!(
        text,
        "vLLM is one-shot up to {}; SGLang pushes up to {} (sm_90, graph)",
        limit(report.vllm, "any size"),
        limit(report.sglang, "a size that it does not state")
    );
    text
}

fn drawing(report: &Report) -> String {
    let lines: Vec<Curve> = report
        .curves
        .iter()
        .map(|curve| Curve {
            name: curve.algorithm.to_string(),
            points: curve.points.iter().map(|point| (point.bytes, point.microseconds)).collect(),
        })
        .collect();
    let mark = |crossing: &Crossing| {
        Some(Mark { name: format!("{} to {}", crossing.from, crossing.to), bytes: crossing.measured? })
    };
    let marks: Vec<Mark> = report.crossings.iter().filter_map(mark).collect();
    let caption = format!(
        "bfloat16 sum, {} ranks on {}, CUDA graph, each algorithm at its best launch",
        report.ranks, report.gpu
    );
    curves::svg("All-reduce by algorithm", &caption, &lines, &marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::collective::Launch;

    /// Times by the model, alpha 3 and step 1.5 us, 370 GB/s; pushes begin 2 us earlier.
    fn modelled(ranks: u32) -> Report {
        let tried = |algorithm: Algorithm, bytes: u64| {
            let factor = shape(algorithm).map_or(3.0, |shape| shape.factor(ranks));
            let start = match algorithm {
                Algorithm::OneShotPush => 1.0,
                Algorithm::OneShotPull => 3.0,
                Algorithm::TwoShotPush => 2.5,
                _ => 4.5,
            };
            let launch = Launch { algorithm, blocks: 8, threads: 256, registered: true };
            (bytes, Tried { launch, microseconds: start + factor * bytes as f64 / 370e3 })
        };
        let sizes = || (10..27).map(|power| 1u64 << power);
        let curves: Vec<_> = algorithms(Kind::AllReduce)
            .into_iter()
            .map(|algorithm| (algorithm, sizes().map(|bytes| tried(algorithm, bytes)).collect()))
            .collect();
        report("GPU".into(), ranks, true, &curves)
    }

    #[test]
    fn formulas_agree_with_curves_that_follow_the_model() {
        for ranks in [2, 4, 8] {
            let report = modelled(ranks);
            assert!((report.alpha.unwrap() - 3.0).abs() < 1e-3 && (report.alpha_step.unwrap() - 1.5).abs() < 1e-3);
            assert!((report.bandwidth.unwrap() - 370.0).abs() < 0.1);
            for Crossing { from, to, measured, formula, .. } in report.crossings {
                match (measured, formula) {
                    (Some(measured), Some(formula)) => {
                        assert!(
                            (measured / formula - 1.0).abs() < 0.1,
                            "{from} to {to}, {ranks}: {measured}, {formula}"
                        )
                    }
                    (None, None) => assert_eq!(ranks, 2),
                    other => panic!("{from} to {to}, {ranks} ranks: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn the_report_names_everything() {
        let text = text(&modelled(4));
        for part in
            ["alpha 3.00 us", "alpha_step 1.50 us", "B 370.00 GB/s", "one-shot up to 512K", "up to 384K", "64K", "ring"]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(
            super::text(&modelled(2))
                .contains("one-shot-pull to two-shot: S* measured nowhere in these sizes, by the formula never")
        );
        let drawing = drawing(&modelled(4));
        assert_eq!(drawing.matches("<polyline").count(), algorithms(Kind::AllReduce).len());
    }
}
