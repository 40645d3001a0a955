//! The part of one rank of a job of named cases. In: names, what a case does. Out: results, printed by rank 0. Guarantee: the
//! job ends in order.

use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::comm::{Communicator, WorldOptions};
use std::error::Error;

/// Runs the cases one after the other.
pub(crate) fn run(
    names: &[String],
    case: impl Fn(&Communicator, &str) -> Result<Outcome, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let world = Communicator::world(&WorldOptions::from_environment()?)?;
    for name in names {
        let outcome = case(&world, name)?;
        if world.rank().0 == 0 {
            outcome.print();
        }
    }
    Ok(world.finalize(deadline())?)
}
