//! A program without any MPI inside that joins whatever started it: mpirun of either MPI, srun, a unique id.
//!
//! In: the environment. Out: `rank R of N: ok`. Guarantee: links to no MPI.

mod common;

fn main() -> std::process::ExitCode {
    common::run()
}
