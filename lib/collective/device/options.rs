//! How a channel is made. In: the caller's wishes, the environment. Out: [`ChannelOptions`]. Guarantee: plain values; ranks
//! compare them when the channel is made.

use super::CollectiveError;
use crate::base::env;
use crate::collective::{Algorithm, Determinism, Table};
use crate::execute::ExecuteError;
use crate::memory::device::collective::params::{BUNDLE_PIECES, ChannelLayout};
use std::path::Path;
use std::time::Duration;

const DEFAULT_LIMIT: Duration = Duration::from_secs(600);
const DEFAULT_PUSH: u64 = 1 << 20;
const DEFAULT_AT_ONCE: u32 = 2;
const DEFAULT_STAGING: u64 = 64 << 20;
/// All slots of one parity together, by default.
const MOST_SLOTS: u64 = 8 << 20;
/// All slots of lines of one parity together, by default.
const MOST_LINES: u64 = 8 << 20;

/// How a channel is made; equal on all ranks.
#[derive(Debug, Clone, Default)]
pub struct ChannelOptions {
    /// Largest message that goes by words with flags, bytes; the channel holds four times as much for each rank. 1 MiB by
    /// default, less for more than 8 ranks.
    pub push_bytes: Option<u64>,
    /// Largest message that goes by lines, bytes; the channel holds a little more than twice as much for each peer. 8 MiB by
    /// default, for more than 2 ranks as much for all peers together.
    pub line_bytes: Option<u64>,
    /// Staging of buffers that are not registered, bytes; the channel holds it twice. 64 MiB by default.
    pub staging_bytes: Option<u64>,
    /// Channels whose calls may run at the same time on a device: each gets its part of the device, so that all blocks of calls
    /// that wait for other ranks are resident, whatever the order on each rank. 2 by default.
    pub at_once: Option<u32>,
    /// What every call promises.
    pub determinism: Determinism,
    /// Forces an algorithm; `CROSSMESH_ALGORITHM` otherwise.
    pub algorithm: Option<Algorithm>,
    /// Table that decides; `CROSSMESH_TUNING` names a file otherwise, and without that the build's own is used.
    pub table: Option<Table>,
    /// Longest wait of a kernel; `CROSSMESH_TIMEOUT` by default.
    pub limit: Option<Duration>,
}

/// Options with nothing left open.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) layout: ChannelLayout,
    pub(super) at_once: u32,
    pub(super) determinism: Determinism,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) table: Option<Table>,
    /// Whether the table is none of this build's.
    pub(super) is_given: bool,
    pub(super) limit: Duration,
}

impl ChannelOptions {
    pub(super) fn at_once(&self) -> u32 {
        self.at_once.unwrap_or(DEFAULT_AT_ONCE).max(1)
    }

    /// Fills in what was left open, for `ranks` ranks on GPUs of `architecture`.
    pub(super) fn settle(&self, ranks: u32, architecture: &str) -> Result<Settled, CollectiveError> {
        let unreadable = |error: env::EnvError| CollectiveError::from(ExecuteError::from(error));
        let default_push = DEFAULT_PUSH.min(MOST_SLOTS / u64::from(ranks.max(1)));
        let push = self.push_bytes.unwrap_or(default_push).max(16);
        let lines = self.line_bytes.unwrap_or(MOST_LINES / u64::from(ranks.saturating_sub(1).max(1))).max(16);
        let staging = self.staging_bytes.unwrap_or(DEFAULT_STAGING).max(4096 * u64::from(ranks));
        let algorithm = match self.algorithm {
            Some(algorithm) => Some(algorithm),
            None => env::value(env::ALGORITHM).map_err(unreadable)?,
        };
        let (table, is_given) = match (&self.table, env::text(env::TUNING)) {
            (Some(table), _) => (Some(table.clone()), true),
            (None, Some(path)) => (Some(Table::load(Path::new(&path))?), true),
            (None, None) => (Table::built_in(architecture, ranks), false),
        };
        let limit = match self.limit {
            Some(limit) => limit,
            None => env::seconds(env::TIMEOUT).map_err(unreadable)?.unwrap_or(DEFAULT_LIMIT),
        };
        let layout = ChannelLayout::new(ranks, push.div_ceil(8), lines.div_ceil(16 * BUNDLE_PIECES), staging);
        Ok(Settled {
            layout,
            at_once: self.at_once(),
            determinism: self.determinism,
            algorithm,
            table,
            is_given,
            limit,
        })
    }
}

impl Settled {
    /// What ranks compare, field by field.
    pub(super) fn fields(&self) -> Vec<(&'static str, String)> {
        let algorithm = self.algorithm.map_or("none", Algorithm::name);
        let table = self.table.as_ref().map(|table| serde_json::to_string(table).unwrap_or_default());
        vec![
            ("bytes of a slot", (self.layout.slot_words * 8).to_string()),
            ("bytes of lines", self.layout.line_bytes.to_string()),
            ("bytes of staging", self.layout.staging_bytes.to_string()),
            ("channels at once", self.at_once.to_string()),
            ("determinism", self.determinism.name().to_string()),
            ("forced algorithm (CROSSMESH_ALGORITHM)", algorithm.to_string()),
            ("tuning table (CROSSMESH_TUNING)", table.unwrap_or_else(|| "none".into())),
        ]
    }
}
