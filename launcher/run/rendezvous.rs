//! Where programs without MPI find each other.
//!
//! In: the number of ranks. Out: the text of a unique id, and a guard that serves it. Guarantee: served until the
//! guard is dropped, which is when the job is over; ranks of this host alone are served on loopback.

use crossmesh::base::Deadline;
use crossmesh::bootstrap::Rendezvous;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Ten years. A program may load for minutes before it looks for the others, and each rank brings its own deadline
/// from then on, by which it learns who is absent; the launcher ends the job in any case.
const WHOLE_JOB_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;

/// A unique id that is being served.
#[derive(Debug)]
pub(crate) struct Served {
    _rendezvous: Rendezvous,
    /// For `CROSSMESH_UNIQUE_ID`; secret.
    pub(crate) unique_id: String,
}

/// Serves `size` ranks, all of them on this host when `local`.
pub(crate) fn serve(size: u32, local: bool) -> io::Result<Served> {
    let bind: IpAddr = if local { Ipv4Addr::LOCALHOST.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let served = Rendezvous::serve(SocketAddr::new(bind, 0), size, Deadline::seconds(WHOLE_JOB_SECONDS));
    let (rendezvous, unique_id) = served.map_err(io::Error::other)?;
    Ok(Served { _rendezvous: rendezvous, unique_id: unique_id.to_string() })
}
