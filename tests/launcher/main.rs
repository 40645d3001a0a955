//! `crossmesh run`, `plan`, `topo` and `env` as users start them: real processes under every starter of this machine.
//!
//! In: the built command. Out: its output, exit codes, and what is left running. Guarantee: every test is bounded in
//! time; a starter that is not installed is said, never silently passed over.

mod doctor;
mod failure;
mod job;
mod output;
mod plan;
mod plan_refused;
#[path = "../rig/process.rs"]
mod process;
mod settings;
mod signals;
mod starting;
mod topology;
