//! The `crossmesh` command.

mod checkpoint;

fn main() {}
