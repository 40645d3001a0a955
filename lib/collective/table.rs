//! What was measured, by size. In: JSON files, or the tables of this build. Out: [`Table`]: for each kind of collective, rows
//! of rising size. Guarantee: a table is plain data that ranks can compare; every table says where its figures come from;
//! unknown keys are refused.

use super::{Algorithm, Kind, Launch};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A table that cannot be used.
#[derive(Debug, Error)]
pub enum TableError {
    /// It cannot be read.
    #[error("tuning table {path:?} cannot be read; give a file that `crossmesh tune` wrote")]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not a table.
    #[error("tuning table {path:?} is no table of version {VERSION}; write it anew with `crossmesh tune`")]
    Syntax {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Its rows make no sense.
    #[error("tuning table {origin:?}: {what}; write it anew with `crossmesh tune`")]
    Rows {
        /// Where the table comes from.
        origin: String,
        /// What is wrong.
        what: String,
    },
}

/// Version of the file format.
pub const VERSION: u32 = 1;

/// For which machines a table holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Architecture of the GPUs, such as `sm_90`.
    pub architecture: String,
    /// Name of the GPU; empty for all of the architecture.
    #[serde(default)]
    pub gpu: String,
    /// Link between the GPUs: `nvlink` or `pcie`.
    pub link: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Version of the CUDA driver; empty for all.
    #[serde(default)]
    pub driver: String,
}

impl Machine {
    /// The first field in which this, a table's, does not hold for `here`, with both values.
    pub fn difference(&self, here: &Self) -> Option<(&'static str, String, String)> {
        let field = |name, one: &str, two: &str, holds_for_all: bool| {
            (one != two && !holds_for_all).then(|| (name, one.to_string(), two.to_string()))
        };
        field("architecture", &self.architecture, &here.architecture, false)
            .or_else(|| field("GPU", &self.gpu, &here.gpu, self.gpu.is_empty()))
            .or_else(|| field("link", &self.link, &here.link, false))
            .or_else(|| field("number of ranks", &self.ranks.to_string(), &here.ranks.to_string(), false))
            .or_else(|| field("driver", &self.driver, &here.driver, self.driver.is_empty()))
    }
}

/// Best way up to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Kind of collective.
    pub kind: String,
    /// Whether it holds for calls in captured graphs (true) or launched one by one.
    pub captured: bool,
    /// Whether it holds for registered buffers (true) or for others; for all where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// Largest total of bytes, inclusive.
    pub up_to: u64,
    /// Algorithm.
    pub algorithm: String,
    /// Blocks of the launch.
    pub blocks: u16,
    /// Threads of a block.
    pub threads: u16,
    /// Time of a call of `up_to` bytes; `None` where it was not measured.
    #[serde(default)]
    pub microseconds: Option<f64>,
}

/// Rows for one kind of machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// [`VERSION`].
    pub version: u32,
    /// Where the figures come from: measured when and by what, or taken over from which table.
    pub origin: String,
    /// Where it holds.
    pub machine: Machine,
    /// Rows; of equal kind and capture in rising order of size.
    pub rows: Vec<Row>,
}

/// Tables of this build.
const BUILT_IN: [&str; 2] = [include_str!("tables/sm_90.json"), include_str!("tables/sm_100.json")];

impl Table {
    /// A table from a file.
    pub fn load(path: &Path) -> Result<Self, TableError> {
        let text = std::fs::read(path).map_err(|source| TableError::File { path: path.into(), source })?;
        let table: Self =
            serde_json::from_slice(&text).map_err(|source| TableError::Syntax { path: path.into(), source })?;
        table.check()?;
        Ok(table)
    }

    /// The table of this build for GPUs of `architecture` and so many ranks: of the nearest number that there is, the
    /// greater of two; of the newest architecture that is not newer. `None` for older ones.
    pub fn built_in(architecture: &str, ranks: u32) -> Option<Self> {
        let tables = BUILT_IN.iter().flat_map(|text| serde_json::from_str::<Vec<Self>>(text).unwrap_or_default());
        let number = |name: &str| name.trim_start_matches("sm_").parse::<u32>().unwrap_or(0);
        let known = tables.filter(|table| number(&table.machine.architecture) <= number(architecture));
        known.min_by_key(|table| {
            let newness = u32::MAX - number(&table.machine.architecture);
            (newness, table.machine.ranks.abs_diff(ranks), u32::MAX - table.machine.ranks)
        })
    }

    /// A table of one row, which holds for every call of `kind`: to try a launch.
    pub fn of_launch(machine: Machine, kind: Kind, captured: bool, launch: &Launch) -> Self {
        let row = Row {
            kind: kind.name().into(),
            captured,
            registered: None,
            up_to: u64::MAX,
            algorithm: launch.algorithm.name().into(),
            blocks: launch.blocks,
            threads: launch.threads,
            microseconds: None,
        };
        Self { version: VERSION, origin: "tried".into(), machine, rows: vec![row] }
    }

    /// Row for a call of `bytes` in all; the largest where there is none for so many.
    pub fn row(&self, kind: Kind, captured: bool, registered: bool, bytes: u64) -> Option<&Row> {
        let holds = move |row: &&Row| {
            row.kind == kind.name() && row.captured == captured && row.registered.is_none_or(|only| only == registered)
        };
        let rows = || self.rows.iter().filter(holds);
        rows().find(|row| bytes <= row.up_to).or_else(|| rows().next_back())
    }

    /// Whether rows make sense and rise in size.
    pub fn check(&self) -> Result<(), TableError> {
        let wrong = |what: String| TableError::Rows { origin: self.origin.clone(), what };
        if self.version != VERSION {
            return Err(wrong(format!("it has version {}, this build reads {VERSION}", self.version)));
        }
        for (number, row) in self.rows.iter().enumerate() {
            if !Kind::ALL.into_iter().any(|kind| kind.name() == row.kind) {
                return Err(wrong(format!("row {number} is for {:?}, which is no collective", row.kind)));
            }
            row.algorithm.parse::<Algorithm>().map_err(|error| wrong(format!("row {number}: {error}")))?;
            if row.blocks == 0 || row.threads == 0 || !row.threads.is_multiple_of(32) || row.threads > 512 {
                let (blocks, threads) = (row.blocks, row.threads);
                return Err(wrong(format!(
                    "row {number} has {blocks} blocks of {threads} threads; allowed are 1 or more blocks of 32 to 512 \
                     threads in steps of 32"
                )));
            }
            let earlier = self.rows[..number].iter().rev();
            let same = |other: &&Row| {
                (&other.kind, other.captured, other.registered) == (&row.kind, row.captured, row.registered)
            };
            let before = earlier.clone().find(same);
            if before.is_some_and(|before| before.up_to >= row.up_to) {
                return Err(wrong(format!("row {number} is not for larger sizes than the row before of its kind")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_where_it_does_not_hold() {
        let machine = |gpu: &str, ranks, driver: &str| Machine {
            architecture: "sm_90".into(),
            gpu: gpu.into(),
            link: "nvlink".into(),
            ranks,
            driver: driver.into(),
        };
        let here = machine("NVIDIA H200", 2, "13.0");
        assert_eq!(here.difference(&here), None);
        assert_eq!(machine("", 2, "").difference(&here), None);
        let of = |table: Machine| table.difference(&here);
        assert_eq!(of(machine("NVIDIA H100", 4, "")), Some(("GPU", "NVIDIA H100".into(), "NVIDIA H200".into())));
        assert_eq!(of(machine("", 4, "12.8")), Some(("number of ranks", "4".into(), "2".into())));
        assert_eq!(of(machine("", 2, "12.8")), Some(("driver", "12.8".into(), "13.0".into())));
    }

    #[test]
    fn built_in_tables_are_read_and_checked() {
        for text in BUILT_IN {
            let tables: Vec<Table> = serde_json::from_str(text).unwrap();
            assert!(!tables.is_empty());
            for table in tables {
                table.check().unwrap();
                assert!(table.origin.len() > 20, "{:?} does not say where it comes from", table.origin);
                for captured in [false, true] {
                    assert!(table.row(Kind::AllReduce, captured, false, 1).is_some());
                }
            }
        }
    }

    #[test]
    fn the_nearest_table_is_taken() {
        let of = |architecture, ranks| Table::built_in(architecture, ranks).map(|table| table.machine);
        assert_eq!(of("sm_80", 2), None);
        for (architecture, ranks, nearest) in [("sm_90", 2, 2), ("sm_90", 3, 4), ("sm_90", 72, 8), ("sm_103", 4, 4)] {
            let machine = of(architecture, ranks).unwrap();
            assert_eq!(machine.ranks, nearest);
            assert_eq!(machine.architecture, if architecture == "sm_90" { "sm_90" } else { "sm_100" });
        }
    }

    #[test]
    fn senseless_tables_are_refused() {
        let table = Table::built_in("sm_90", 2).unwrap();
        let wrong = |change: &dyn Fn(&mut Table)| {
            let mut table = table.clone();
            change(&mut table);
            table.check().unwrap_err().to_string()
        };
        assert!(wrong(&|table| table.version = 9).contains("version 9"));
        assert!(wrong(&|table| table.rows[0].kind = "all_to_all".into()).contains("all_to_all"));
        assert!(wrong(&|table| table.rows[0].algorithm = "tree".into()).contains("one-shot-push"));
        assert!(wrong(&|table| table.rows[0].threads = 48).contains("48 threads"));
        assert!(wrong(&|table| table.rows[1].up_to = 1).contains("row 1"));
    }

    #[test]
    fn files_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        let table = Table::built_in("sm_90", 2).unwrap();
        std::fs::write(&path, serde_json::to_vec_pretty(&table).unwrap()).unwrap();
        assert_eq!(Table::load(&path).unwrap(), table);
        std::fs::write(&path, r#"{"version":1,"extra":2}"#).unwrap();
        assert!(matches!(Table::load(&path), Err(TableError::Syntax { .. })));
        assert!(matches!(Table::load(&folder.path().join("none")), Err(TableError::File { .. })));
    }
}
