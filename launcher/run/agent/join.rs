//! How an agent finds its launcher.
//!
//! In: the environment that the starter made. Out: an authenticated connection and what the launcher says about this
//! rank. Guarantee: bounded by `CROSSMESH_INIT_TIMEOUT`; each side proves the key to the other before anything else
//! is said; the key is never sent.

use super::super::INIT_LIMIT;
use super::super::connection::{Connection, ConnectionError};
use super::super::protocol::{FromAgent, FromLauncher, Hello, LauncherKey, Message, Welcome, random_word};
use crate::failure::{BAD_INPUT, Failure};
use crossmesh::base::{Deadline, env};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;
use thiserror::Error;

/// Longest wait for one of several addresses of the launcher.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pause before the addresses are tried again.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Error)]
enum JoinError {
    #[error("{name} is {value:?}, which is no rank; crossmesh rank-agent is started by crossmesh run only")]
    NoRank { name: String, value: String },
    #[error("{name} is missing or unreadable; crossmesh rank-agent is started by crossmesh run only")]
    NoLauncher { name: &'static str },
    #[error("rank {rank} cannot reach the launcher at {addresses} within {seconds} s; is a firewall in between?")]
    Unreachable { rank: u32, addresses: String, seconds: u64, source: io::Error },
    #[error("rank {rank} got no answer from the launcher at {peer}")]
    Silent { rank: u32, peer: String, source: ConnectionError },
    #[error("rank {rank} was refused by the launcher at {peer}: another key or another version of crossmesh")]
    Refused { rank: u32, peer: String },
    #[error("what answers at {peer} does not hold this job's launcher key; is it a launcher of another job?")]
    Impostor { peer: String },
    #[error("the operating system gives no random numbers")]
    Random(#[from] getrandom::Error),
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        let exit_code = match error {
            JoinError::NoRank { .. } | JoinError::NoLauncher { .. } => BAD_INPUT,
            _ => 1,
        };
        Self::new(exit_code, error)
    }
}

/// The rank that the starter gave this process in `variable`.
pub(super) fn rank(variable: &str) -> Result<u32, Failure> {
    let value = std::env::var(variable).unwrap_or_default();
    value.parse().map_err(|_| JoinError::NoRank { name: variable.to_string(), value }.into())
}

/// The monotonic clock in nanoseconds, which all processes of a kernel share.
pub(super) fn clock() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Connects and proves.
pub(super) fn join(rank: u32, host: String) -> Result<(Connection, Welcome), Failure> {
    let addresses = env::text(env::LAUNCHER).and_then(|text| {
        let addresses: Result<Vec<SocketAddr>, _> = text.split(',').map(str::parse).collect();
        addresses.ok()
    });
    let addresses = addresses.ok_or(JoinError::NoLauncher { name: env::LAUNCHER.name })?;
    let key = env::text(env::LAUNCHER_KEY).and_then(|text| LauncherKey::from_hex(&text));
    let key = key.ok_or(JoinError::NoLauncher { name: env::LAUNCHER_KEY.name })?;
    let deadline = Deadline::after(env::seconds(env::INIT_TIMEOUT)?.unwrap_or(INIT_LIMIT));
    let (stream, peer) = connect(rank, &addresses, deadline)?;
    Ok(handshake(hello(rank, host)?, &key, stream, &peer.to_string(), deadline)?)
}

fn connect(rank: u32, addresses: &[SocketAddr], deadline: Deadline) -> Result<(TcpStream, SocketAddr), JoinError> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    loop {
        for address in addresses {
            let limit = CONNECT_LIMIT.min(deadline.remaining()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(address, limit) {
                Ok(stream) => return Ok((stream, *address)),
                Err(error) => last = error,
            }
        }
        if deadline.expired() {
            let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
            let seconds = deadline.limit().as_secs();
            return Err(JoinError::Unreachable { rank, addresses: addresses.join(", "), seconds, source: last });
        }
        std::thread::sleep(RETRY.min(deadline.remaining()));
    }
}

fn handshake(
    hello: Hello,
    key: &LauncherKey,
    stream: TcpStream,
    peer: &str,
    deadline: Deadline,
) -> Result<(Connection, Welcome), JoinError> {
    let rank = hello.rank;
    let refused = || JoinError::Refused { rank, peer: peer.to_string() };
    let silent = |source| JoinError::Silent { rank, peer: peer.to_string(), source };
    let mut connection = Connection::new(stream).map_err(|error| silent(error.into()))?;
    let FromLauncher::Challenge(challenge) = receive(&mut connection, deadline).map_err(silent)? else {
        return Err(refused());
    };
    let json = serde_json::to_vec(&hello).map_err(|error| silent(ConnectionError::Io(error.into())))?;
    let proof = key.prove_agent(&challenge, &json);
    connection.queue(&FromAgent::Hello { json, proof });
    match receive(&mut connection, deadline) {
        Ok(FromLauncher::Welcome { json, proof }) => {
            if !key.accepts_launcher(&challenge, &hello.random, &json, &proof) {
                return Err(JoinError::Impostor { peer: peer.to_string() });
            }
            let welcome = serde_json::from_slice(&json).map_err(|_| refused())?;
            Ok((connection, welcome))
        }
        Err(ConnectionError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
            Err(silent(ConnectionError::Io(error)))
        }
        _ => Err(refused()),
    }
}

fn hello(rank: u32, host: String) -> Result<Hello, JoinError> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(Hello {
        version: crossmesh::PROTOCOL_VERSION,
        rank,
        pid: std::process::id(),
        host,
        boot: boot.trim().to_string(),
        random: random_word()?,
        clock: clock(),
    })
}

/// Sends what is queued and waits for one message.
fn receive<M: Message>(connection: &mut Connection, deadline: Deadline) -> Result<M, ConnectionError> {
    loop {
        connection.flush()?;
        if let Some(message) = connection.receive()? {
            return Ok(message);
        }
        if deadline.expired() {
            return Err(ConnectionError::Io(io::ErrorKind::TimedOut.into()));
        }
        let writable = if connection.backlog() > 0 { PollFlags::POLLOUT } else { PollFlags::empty() };
        let mut ready = [PollFd::new(connection.as_fd(), PollFlags::POLLIN | writable)];
        let limit = deadline.remaining().min(Duration::from_secs(1)).as_millis() as i32 + 1;
        poll(&mut ready, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO)).map_err(io::Error::from)?;
        if !connection.fill()? {
            return match connection.receive()? {
                Some(message) => Ok(message),
                None => Err(ConnectionError::Io(io::ErrorKind::ConnectionAborted.into())),
            };
        }
    }
}
