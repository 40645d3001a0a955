//! The `crossmesh` command.

fn main() {}
