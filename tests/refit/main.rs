//! `crossmesh refit` as a user runs it: the real command, started by `crossmesh run` on this machine.
//!
//! In: small models. Out: pass or fail. Guarantee: every job ends within its limit, also when it hangs.

mod apart;
mod assembly;
mod bad_arguments;
mod bad_models;
mod bad_storage;
mod cases;
mod casts;
mod experts;
mod faults;
mod fused;
mod job;
mod model;
mod options;
mod output;
mod parallel;
#[path = "../rig/process.rs"]
mod process;
mod results;
mod room;
mod scales;
mod sides;
mod storage;
mod terminal;
