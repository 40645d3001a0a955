//! Where programs without MPI find each other.
//!
//! In: the number of ranks. Out: the text of a unique id, and a guard that serves it. Guarantee: served until the
//! guard is dropped; ranks of this host alone are served on loopback.

use super::INIT_SECONDS;
use crossmesh::base::{Deadline, env};
use crossmesh::bootstrap::Rendezvous;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A unique id that is being served.
#[derive(Debug)]
pub(crate) struct Served {
    _rendezvous: Rendezvous,
    /// For `CROSSMESH_UNIQUE_ID`; secret.
    pub(crate) unique_id: Option<String>,
}

/// Serves `size` ranks, all of them on this host when `local`.
pub(crate) fn serve(size: u32, local: bool) -> io::Result<Served> {
    let seconds = env::integer(env::INIT_TIMEOUT).map_err(io::Error::other)?.unwrap_or(INIT_SECONDS);
    let bind: IpAddr = if local { Ipv4Addr::LOCALHOST.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let served = Rendezvous::serve(SocketAddr::new(bind, 0), size, Deadline::seconds(seconds));
    let (rendezvous, unique_id) = served.map_err(io::Error::other)?;
    Ok(Served { _rendezvous: rendezvous, unique_id: Some(unique_id.to_string()) })
}
