//! What can go wrong while ranks find each other and stay in touch. In: arguments and causes. Out: one error enum.
//! Guarantee: no message shows a job key.

use super::cause::Cause;
use super::handshake::HandshakeError;
use crate::base::Rank;
use crate::base::env::EnvError;
use crate::topology::InterfaceError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Ranks that did not arrive: the first few by name, then a count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Absentees {
    /// The lowest absent ranks.
    pub named: Vec<Rank>,
    /// How many are absent in all.
    pub total: u64,
}

impl Absentees {
    /// Most ranks that are named.
    pub const NAMED: usize = 16;

    /// Names the first of `absent`, given in ascending order, and counts all.
    pub fn new(absent: impl IntoIterator<Item = Rank>) -> Self {
        absent.into_iter().fold(Self::default(), |mut known, rank| {
            if known.named.len() < Self::NAMED {
                known.named.push(rank);
            }
            known.total += 1;
            known
        })
    }
}

impl fmt::Display for Absentees {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.total == 1 { "rank " } else { "ranks " })?;
        for (index, rank) in self.named.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index as u64 + 1 == self.total => " and ",
                _ => ", ",
            };
            write!(formatter, "{separator}{rank}")?;
        }
        match self.total.saturating_sub(self.named.len() as u64) {
            0 => Ok(()),
            more => write!(formatter, " and {more} more"),
        }
    }
}

/// A start that failed or a job that ended.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// An environment variable cannot be used.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The environment does not say how to start.
    #[error("cannot tell how this process was started: {seen}; {remedy}")]
    Undecided {
        /// What was found.
        seen: String,
        /// What to type.
        remedy: String,
    },
    /// A text that is no unique id.
    #[error("the unique id cannot be read: {reason}; pass on the text that the rendezvous printed, unchanged")]
    UniqueId {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A rank or size that cannot be.
    #[error("rank {rank} of {size} ranks cannot be; use a size of at least 1 and ranks 0 to size - 1")]
    World {
        /// The rank given.
        rank: Rank,
        /// The size given.
        size: u32,
    },
    /// No adapter library for the MPI that started the process.
    #[error(
        "no adapter for {mpi} found (looked at {}); build it with lib/bootstrap-mpi/build-adapters.sh, or name it in CROSSMESH_MPI_ADAPTER",
        listed(looked_at)
    )]
    AdapterMissing {
        /// Which MPI.
        mpi: &'static str,
        /// Paths tried.
        looked_at: Vec<PathBuf>,
    },
    /// The adapter library does not load.
    #[error("the MPI adapter {} cannot be loaded; check with ldd that its MPI is installed", path.display())]
    AdapterLoad {
        /// Its path.
        path: PathBuf,
        /// What the dynamic linker said.
        #[source]
        source: libloading::Error,
    },
    /// The adapter library is of another build.
    #[error(
        "the MPI adapter {} has interface version {found}, this library needs {needed}; build it again with lib/bootstrap-mpi/build-adapters.sh",
        path.display()
    )]
    AdapterVersion {
        /// Its path.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version needed.
        needed: u32,
    },
    /// The MPI library of the adapter is not the one that started the process.
    #[error(
        "{starter} started {stated} ranks, but the adapter {} runs on {library}, which sees {reported}; start with the mpirun of that MPI, or set CROSSMESH_MPI_ADAPTER to the adapter of the other",
        path.display()
    )]
    WrongMpi {
        /// What started the process.
        starter: String,
        /// Ranks it says it started.
        stated: u32,
        /// The adapter.
        path: PathBuf,
        /// Its MPI.
        library: String,
        /// Ranks that MPI reports.
        reported: u32,
    },
    /// The program already runs on another MPI.
    #[error("this program is linked to {loaded}, but {starter} started it; start it with the mpirun of {loaded}")]
    LinkedMpi {
        /// The MPI in the process.
        loaded: &'static str,
        /// What started the process.
        starter: String,
    },
    /// An MPI call failed.
    #[error("{call} failed in the MPI adapter with code {code}; the MPI's own message is on standard error")]
    Mpi {
        /// The call.
        call: &'static str,
        /// Its code.
        code: i32,
    },
    /// An MPI call came too late.
    #[error("{call} was called {when}; start crossmesh before the program ends MPI")]
    MpiEnded {
        /// The call.
        call: &'static str,
        /// When.
        when: &'static str,
    },
    /// An MPI call took too long.
    #[error("{call} did not complete within {limit:?}; a rank may be absent or stuck before it")]
    MpiTimeout {
        /// The call.
        call: &'static str,
        /// The deadline's duration.
        limit: Duration,
    },
    /// The network interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A socket cannot be made.
    #[error("{operation} failed{}", at(address))]
    Socket {
        /// What was tried.
        operation: &'static str,
        /// Where.
        address: Option<SocketAddr>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("thread {name} cannot be started; raise the limit on processes (ulimit -u)")]
    Thread {
        /// Its name.
        name: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Too few file descriptors for one connection per rank.
    #[error("{size} ranks need {needed} open files in rank 0, the limit is {limit}; raise it with ulimit -n")]
    OpenFiles {
        /// Number of ranks.
        size: u32,
        /// Descriptors needed.
        needed: u64,
        /// Descriptors allowed.
        limit: u64,
    },
    /// No random numbers.
    #[error("the system has no random numbers for a job key")]
    Random(#[source] getrandom::Error),
    /// Nobody answers at any address.
    #[error(
        "{meant} cannot be reached at {} within {limit:?}; check that it runs and that CROSSMESH_INTERFACE names a network that all hosts share",
        addressed(addresses)
    )]
    Unreachable {
        /// Who was meant.
        meant: String,
        /// Where.
        addresses: Vec<SocketAddr>,
        /// The deadline's duration.
        limit: Duration,
        /// The last failure.
        #[source]
        source: io::Error,
    },
    /// The other end did not take this process.
    #[error("{meant} at {address} did not take this process: {reason}")]
    Handshake {
        /// Who was meant.
        meant: String,
        /// Where.
        address: SocketAddr,
        /// Why; part of the message, because it says what to do.
        reason: HandshakeError,
    },
    /// Ranks did not arrive in time.
    #[error("{absent} did not arrive at the {phase} within {limit:?}; see their output, they may have failed earlier")]
    Absent {
        /// Who.
        absent: Absentees,
        /// Of what.
        phase: &'static str,
        /// The deadline's duration.
        limit: Duration,
    },
    /// The answer did not come in time though nobody is known to be absent.
    #[error("the {phase} did not complete within {limit:?}; the control connection to rank 0 is slow or stuck")]
    Timeout {
        /// Of what.
        phase: &'static str,
        /// The deadline's duration.
        limit: Duration,
    },
    /// A member had ended cleanly before this exchange.
    #[error("rank {rank} ended before the {phase} that it is a member of; let all ranks make the same calls")]
    Left {
        /// Who.
        rank: Rank,
        /// Of what.
        phase: &'static str,
    },
    /// The job was aborted.
    #[error("the job was aborted: {cause}")]
    Aborted {
        /// The cause that all survivors hold.
        cause: Arc<Cause>,
    },
    /// The control connections were closed by this process.
    #[error("the control connections are closed; communicate before the final close")]
    Closed,
    /// Members, payloads or context that cannot be.
    #[error("the exchange cannot be made: {reason}")]
    Members {
        /// What is wrong.
        reason: String,
    },
    /// Bytes of rank 0 that cannot be read.
    #[error("{from} sent bytes that cannot be read: {reason}; use one build on all ranks")]
    Unreadable {
        /// Who sent them.
        from: &'static str,
        /// What is wrong.
        reason: String,
    },
}

fn at(address: &Option<SocketAddr>) -> String {
    address.map(|address| format!(" at {address}")).unwrap_or_default()
}

fn addressed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absentees_are_named_up_to_a_number() {
        let text = |count: u32| Absentees::new((0..count).map(Rank)).to_string();
        assert_eq!(text(1), "rank 0");
        assert_eq!(text(2), "ranks 0 and 1");
        assert_eq!(text(3), "ranks 0, 1 and 2");
        assert!(text(20).ends_with("14, 15 and 4 more"));
    }

    #[test]
    fn absentees_round_trip() {
        for count in [0, 1, 16, 17, 1000] {
            let absent = Absentees::new((0..count).map(Rank));
            assert_eq!(Absentees::decode(&absent.encode()), Some(absent));
        }
    }
}
