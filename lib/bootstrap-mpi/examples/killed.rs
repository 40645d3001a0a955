//! The last rank dies without a goodbye while the others wait for it.
//!
//! In: the environment. Out: `rank R: <cause>` of every survivor. Guarantee: survivors end within a second of the
//! death, all with the same cause.

use crossmesh::base::{Deadline, Rank};
use crossmesh::bootstrap::{BootstrapError, Control, from_environment};
use std::time::{Duration, Instant};

fn main() -> Result<(), BootstrapError> {
    let deadline = Deadline::seconds(30);
    let mut bootstrap = from_environment(deadline)?;
    let control = Control::connect(bootstrap.as_mut(), "here", deadline)?;
    let everyone: Vec<Rank> = (0..control.size()).map(Rank).collect();
    control.barrier(0, &everyone, deadline)?;
    if control.rank().0 + 1 == control.size() {
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let start = Instant::now();
    match control.barrier(0, &everyone, deadline) {
        Err(BootstrapError::Aborted { cause }) if start.elapsed() < Duration::from_millis(1200) => {
            println!("rank {}: {cause}", control.rank());
        }
        other => println!("rank {}: wrong end after {:?}: {other:?}", control.rank(), start.elapsed()),
    }
    // The hub is in rank 0: it ends last.
    if control.rank() == Rank(0) {
        std::thread::sleep(Duration::from_millis(200));
    }
    bootstrap.finish(false);
    Ok(())
}
