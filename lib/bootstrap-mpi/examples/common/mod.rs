//! What both examples do once they may start: join, exchange, close.
//!
//! In: the environment. Out: one line per rank, `rank R of N: ok`. Guarantee: an error ends the process with code 1.

use crossmesh::base::{Deadline, Rank, env};
use crossmesh::bootstrap::{BootstrapError, Control, from_environment};
use std::process::ExitCode;

pub(crate) fn run() -> ExitCode {
    match join() {
        Ok((rank, size)) => {
            println!("rank {rank} of {size}: ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn join() -> Result<(Rank, u32), BootstrapError> {
    let deadline = Deadline::seconds(30);
    let mut bootstrap = from_environment(deadline)?;
    assert!(env::text(env::UNIQUE_ID).is_none(), "the unique id is erased once read");
    let control = Control::connect(bootstrap.as_mut(), "here", deadline)?;
    let (rank, size) = (control.rank(), control.size());
    let everyone: Vec<Rank> = (0..size).map(Rank).collect();
    let ranks = control.allgather(0, &everyone, &rank.0.to_le_bytes(), deadline)?;
    assert!(ranks.iter().zip(&everyone).all(|(bytes, rank)| *bytes == rank.0.to_le_bytes()));
    control.close(deadline)?;
    bootstrap.finish(true);
    Ok((rank, size))
}
