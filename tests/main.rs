//! The integration tests, one binary.
//!
//! In: the built library and the `crossmesh` command beside it (or at `CROSSMESH_TEST_BIN`). Out: pass or fail.
//! Guarantee: every test ends within its own limit, also when what it starts hangs.

mod kernels;
mod layering;
mod planner;
mod reshard;
mod rig;
mod topology;
