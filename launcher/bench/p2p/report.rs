//! Results of `crossmesh bench p2p`. In: times. Out: columns as of perftest, JSON. Guarantee: the same figures in both.

use crate::bench::error::BenchError;
use crate::bench::statistics::quantile;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Rate of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    /// Best tenth of the run, at least twice as many transfers as are in flight.
    pub(super) peak_gb_per_s: f64,
    pub(super) average_gb_per_s: f64,
    /// Millions of transfers in a second.
    pub(super) message_rate: f64,
}

/// Latency of one size, one way, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    pub(super) t_min: f64,
    pub(super) t_max: f64,
    pub(super) t_typical: f64,
    pub(super) t_avg: f64,
    pub(super) t_stdev: f64,
    pub(super) p99: f64,
    pub(super) p99_9: f64,
}

/// One link.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LinkResults {
    pub(super) link: String,
    pub(super) depth: u32,
    pub(super) rates: Vec<Rate>,
    pub(super) latencies: Vec<Latency>,
    pub(super) wrong_bytes: u64,
}

/// The whole bench.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) crossmesh: &'static str,
    pub(super) links: Vec<LinkResults>,
}

impl Rate {
    /// From the times at which each transfer was finished, `depth` of them in flight.
    pub(super) fn of(bytes: u64, depth: u32, finished: &[Duration]) -> Self {
        let seconds: Vec<f64> = std::iter::once(0.0).chain(finished.iter().map(Duration::as_secs_f64)).collect();
        // Those in flight may end together: a shorter stretch would show more than the link can do.
        let window = (finished.len() / 10).max(2 * depth as usize).min(finished.len()).max(1);
        let shortest =
            seconds.iter().zip(seconds.iter().skip(window)).map(|(from, to)| to - from).fold(f64::INFINITY, f64::min);
        let whole = seconds.last().copied().unwrap_or(0.0);
        let per = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let average = per(finished.len(), whole);
        Self {
            bytes,
            iterations: finished.len() as u64,
            peak_gb_per_s: per(window, shortest).max(average) * bytes as f64 / 1e9,
            average_gb_per_s: average * bytes as f64 / 1e9,
            message_rate: average / 1e6,
        }
    }
}

impl Latency {
    /// From the time of each transfer.
    pub(super) fn of(bytes: u64, times: &[Duration]) -> Self {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        sorted.sort_by(f64::total_cmp);
        let share = |share| quantile(&sorted, share).unwrap_or(0.0);
        let count = sorted.len().max(1) as f64;
        let average = sorted.iter().sum::<f64>() / count;
        let variance = sorted.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count;
        Self {
            bytes,
            iterations: times.len() as u64,
            t_min: share(0.0),
            t_max: share(1.0),
            t_typical: share(0.5),
            t_avg: average,
            t_stdev: variance.sqrt(),
            p99: share(0.99),
            p99_9: share(0.999),
        }
    }
}

impl LinkResults {
    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = format!("\nlink {}: rate, {} transfers in flight\n", self.link, self.depth);
        let _ = writeln!(
            text,
            "{:>12} {:>12} {:>15} {:>18} {:>14}",
            "#bytes", "#iterations", "BW peak[GB/s]", "BW average[GB/s]", "MsgRate[Mpps]"
        );
        for rate in &self.rates {
            let _ = writeln!(
                text,
                "{:>12} {:>12} {:>15.3} {:>18.3} {:>14.6}",
                rate.bytes, rate.iterations, rate.peak_gb_per_s, rate.average_gb_per_s, rate.message_rate
            );
        }
        let _ = writeln!(text, "\nlink {}: latency, half of a round trip, in us", self.link);
        let _ = writeln!(
            text,
            "{:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%"
        );
        for time in &self.latencies {
            let _ = write!(text, "{:>12} {:>12}", time.bytes, time.iterations);
            let columns = [time.t_min, time.t_max, time.t_typical, time.t_avg, time.t_stdev, time.p99, time.p99_9];
            for column in columns {
                let _ = write!(text, " {column:>10.2}");
            }
            text.push('\n');
        }
        if self.wrong_bytes > 0 {
            let _ = writeln!(text, "WRONG: {} bytes", self.wrong_bytes);
        }
        text
    }
}

impl Results {
    /// What is wrong, in words.
    pub(super) fn complaint(&self) -> Option<BenchError> {
        let wrong = self.links.iter().filter(|link| link.wrong_bytes > 0);
        let wrong: Vec<String> = wrong.map(|link| format!("link {}: {} bytes", link.link, link.wrong_bytes)).collect();
        (!wrong.is_empty()).then(|| BenchError::Wrong(wrong.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies() {
        // 20 transfers of 1 MB, 1 ms each, but the last two twice as fast.
        let finished: Vec<Duration> = (1..=18u64)
            .map(|number| Duration::from_micros(number * 1000))
            .chain([Duration::from_micros(18_500), Duration::from_micros(19_000)])
            .collect();
        let rate = Rate::of(1_000_000, 1, &finished);
        assert!((rate.average_gb_per_s - 20.0 / 19.0).abs() < 1e-9, "{rate:?}");
        assert!((rate.peak_gb_per_s - 2.0).abs() < 1e-9, "{rate:?}");
        assert!((rate.message_rate - 20.0 / 19.0 / 1e3).abs() < 1e-9, "{rate:?}");
        let times = [1u64, 2, 3, 4, 10].map(Duration::from_micros);
        let latency = Latency::of(8, &times);
        assert_eq!((latency.t_min, latency.t_typical, latency.t_max), (1.0, 3.0, 10.0));
        assert!((latency.t_avg - 4.0).abs() < 1e-9 && (latency.t_stdev - 10f64.sqrt()).abs() < 1e-9, "{latency:?}");
        assert!(latency.p99 > 9.0 && latency.p99 < latency.p99_9);
    }

    #[test]
    fn wrong_bytes_are_a_complaint() {
        let mut results = Results {
            crossmesh: "test",
            links: vec![LinkResults {
                link: "tcp".into(),
                depth: 4,
                rates: vec![Rate::of(8, 4, &[Duration::from_millis(1)])],
                latencies: vec![Latency::of(8, &[Duration::from_millis(1)])],
                wrong_bytes: 0,
            }],
        };
        assert!(results.complaint().is_none());
        assert_eq!(results.links[0].table().lines().filter(|line| !line.is_empty()).count(), 6);
        results.links[0].wrong_bytes = 5;
        assert_eq!(results.complaint().unwrap().to_string(), "wrong results: link tcp: 5 bytes");
        assert!(results.links[0].table().contains("WRONG: 5 bytes"));
    }
}
