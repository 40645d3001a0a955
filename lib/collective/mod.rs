//! All-reduce, all-gather, reduce-scatter and broadcast. In: calls on buffers. Out: the same bits on every rank. Guarantee:
//! what is decided ([`choose()`]), what ranks compare ([`Header`]) and what is computed ([`reduce()`]) are pure functions of
//! what all ranks know alike.

mod algorithm;
mod call;
mod choose;
pub mod device;
mod element;
mod operation;
mod reduce;
mod steps;
mod table;
#[cfg(test)]
mod twin;

pub use crate::memory::device::collective::params::{Header, Operation as ReduceOperation};
pub use algorithm::{Algorithm, AlgorithmError, Determinism};
pub use call::{Call, Kind, Launch, difference, header, read as read_header};
pub use choose::{Choice, ChooseError, Connection, PREFERENCE, Situation, choose, most_blocks, obstacle};
pub use operation::{OperationError, element, reducible};
pub use reduce::reduce;
pub use steps::{Ground, Steps, steps};
pub use table::{Machine as TableMachine, Row, Table, TableError, VERSION as TABLE_VERSION};
