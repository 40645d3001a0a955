//! `launch SIZE PROGRAM`: starts ranks on this host without any MPI, through a unique id in their environment.
//!
//! In: the number of ranks and their program. Out: what they print. Guarantee: ends with code 0 only if all ranks do.

use crossmesh::base::Deadline;
use crossmesh::bootstrap::Rendezvous;
use std::error::Error;
use std::process::{Command, ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(size), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("usage: launch SIZE PROGRAM".into());
    };
    let size: u32 = size.parse()?;
    let (rendezvous, id) = Rendezvous::serve("127.0.0.1:0".parse()?, size, Deadline::seconds(30))?;
    let start = |rank: u32| {
        Command::new(&program)
            .env("CROSSMESH_UNIQUE_ID", id.to_string())
            .env("CROSSMESH_RANK", rank.to_string())
            .env("CROSSMESH_SIZE", size.to_string())
            .spawn()
    };
    let mut ranks = (0..size).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut all_ended_well = true;
    for rank in &mut ranks {
        all_ended_well &= rank.wait()?.success();
    }
    all_ended_well &= rendezvous.wait(Deadline::seconds(5));
    Ok(if all_ended_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
