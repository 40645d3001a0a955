//! The test of the links itself. In: two GPUs. Out: its verdict, and that a kept one is used. Guarantee: a link whose writes are
//! out of order fails the case.

use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::comm::{Communicator, LinkVerdict, WorldOptions};
use std::error::Error;
use std::time::Instant;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let world = Communicator::world(&WorldOptions::from_environment()?)?;
    let begun = Instant::now();
    let fresh = world.test_links(world.rank().0, true, deadline())?;
    let taken = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let kept = world.test_links(world.rank().0, false, deadline())?;
    let again = begun.elapsed().as_secs_f64();
    let mut outcome = Outcome::passed("links", world.size() as u32).with("seconds", taken).with("kept seconds", again);
    for link in &fresh {
        match &link.verdict {
            LinkVerdict::Good { rate: Some(rate) } => {
                outcome = outcome.with(&format!("{}->{} GB/s", link.from, link.to), *rate as f64 / 1e9)
            }
            other => outcome = Outcome::failed("links", 2, format!("{}->{}: {other:?}", link.from, link.to)),
        }
    }
    if fresh.len() != 2 || kept != fresh {
        outcome = Outcome::failed("links", 2, format!("{fresh:?}, kept {kept:?}"));
    }
    if world.rank().0 == 0 {
        outcome.print();
    }
    Ok(world.finalize(deadline())?)
}
