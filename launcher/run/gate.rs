//! Where agents come in.
//!
//! In: TCP connections from anywhere. Out: agents that proved the launcher key, welcomed. Guarantee: who cannot prove
//! it within [`PROOF_LIMIT`] is dropped and counted, and disturbs nobody; memory for the unproven is bounded.

use super::connection::{Connection, ConnectionError};
use super::protocol::{FromAgent, FromLauncher, Hello, LauncherKey, Welcome, Word, random_word};
use crossmesh::base::Deadline;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Longest wait for the proof of a connection.
const PROOF_LIMIT: Duration = Duration::from_secs(20);
/// Unproven connections at once, beyond one for each rank.
const SPARE: usize = 64;

#[derive(Debug)]
struct Unproven {
    connection: Connection,
    peer: SocketAddr,
    challenge: Word,
    deadline: Deadline,
}

/// An agent that proved the key and was welcomed.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) connection: Connection,
    pub(crate) hello: Hello,
}

/// The listening side of a job.
#[derive(Debug)]
pub(crate) struct Gate {
    listeners: Vec<TcpListener>,
    key: LauncherKey,
    size: u32,
    unproven: Vec<Unproven>,
    strays: u64,
}

impl Gate {
    /// Listens at a free port of each address that can be bound; fails when none can.
    pub(crate) fn open(addresses: &[IpAddr], key: LauncherKey, size: u32) -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            let bound = TcpListener::bind((*address, 0)).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    log::debug!("cannot listen at {address}: {error}");
                    failure = error;
                }
            }
        }
        if listeners.is_empty() {
            return Err(failure);
        }
        Ok(Self { listeners, key, size, unproven: Vec::new(), strays: 0 })
    }

    /// `address:port` of each listener, with commas: what agents need.
    pub(crate) fn address_text(&self) -> io::Result<String> {
        let addresses: io::Result<Vec<_>> =
            self.listeners.iter().map(|listener| listener.local_addr().map(|address| address.to_string())).collect();
        Ok(addresses?.join(","))
    }

    /// Connections that were dropped because they could not prove the key.
    pub(crate) fn strays(&self) -> u64 {
        self.strays
    }

    /// What to wait on for reading.
    pub(crate) fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let unproven = self.unproven.iter().map(|unproven| unproven.connection.as_fd());
        self.listeners.iter().map(AsFd::as_fd).chain(unproven)
    }

    /// Takes in whoever is there and gives out those that proved the key.
    pub(crate) fn turn(&mut self, welcome: impl Fn(u32) -> Welcome) -> Vec<Admitted> {
        self.accept();
        let mut admitted = Vec::new();
        for mut unproven in std::mem::take(&mut self.unproven) {
            match self.judge(&mut unproven, &welcome) {
                Ok(Some(hello)) => admitted.push(Admitted { connection: unproven.connection, hello }),
                Ok(None) if !unproven.deadline.expired() => self.unproven.push(unproven),
                Ok(None) => self.drop_stray(unproven.peer, "sent no proof in time"),
                Err(reason) => self.drop_stray(unproven.peer, &reason),
            }
        }
        admitted
    }

    fn accept(&mut self) {
        let mut arrived = Vec::new();
        for listener in &self.listeners {
            // An error here is of that one connection, or lasts: agents then miss and are named at the deadline.
            while let Ok(accepted) = listener.accept() {
                arrived.push(accepted);
            }
        }
        for (stream, peer) in arrived {
            if self.unproven.len() >= self.size as usize + SPARE {
                self.drop_stray(peer, "came when too many others had not proved themselves");
                continue;
            }
            match Self::challenge(stream, peer) {
                Ok(unproven) => self.unproven.push(unproven),
                Err(error) => self.drop_stray(peer, &error.to_string()),
            }
        }
    }

    fn challenge(stream: TcpStream, peer: SocketAddr) -> io::Result<Unproven> {
        let challenge = random_word()?;
        let mut connection = Connection::new(stream)?;
        connection.give_up_on_silence()?;
        connection.queue(&FromLauncher::Challenge(challenge));
        connection.flush()?;
        Ok(Unproven { connection, peer, challenge, deadline: Deadline::after(PROOF_LIMIT) })
    }

    /// The proven hello; `None` while it is not there.
    fn judge(&self, unproven: &mut Unproven, welcome: impl Fn(u32) -> Welcome) -> Result<Option<Hello>, String> {
        let words = |error: ConnectionError| format!("failed before its proof: {error}");
        let connection = &mut unproven.connection;
        let open = connection.fill().map_err(words)?;
        let (json, proof) = match connection.receive().map_err(words)? {
            None if open => return Ok(None),
            None => return Err("closed before its proof".to_string()),
            Some(FromAgent::Hello { json, proof }) => (json, proof),
            Some(_) => return Err("spoke before its proof".to_string()),
        };
        if !self.key.accepts_agent(&unproven.challenge, &json, &proof) {
            return Err("does not hold this job's launcher key".to_string());
        }
        let hello: Hello =
            serde_json::from_slice(&json).map_err(|error| format!("sent an unreadable hello: {error}"))?;
        if hello.version != crossmesh::PROTOCOL_VERSION {
            let ours = crossmesh::PROTOCOL_VERSION;
            return Err(format!("speaks protocol version {}, this launcher {ours}", hello.version));
        }
        if hello.rank >= self.size {
            return Err(format!("says that it is rank {} of a job of {}", hello.rank, self.size));
        }
        let json = serde_json::to_vec(&welcome(hello.rank)).map_err(|error| error.to_string())?;
        let proof = self.key.prove_launcher(&unproven.challenge, &hello.random, &json);
        connection.queue(&FromLauncher::Welcome { json, proof });
        Ok(Some(hello))
    }

    fn drop_stray(&mut self, peer: SocketAddr, reason: &str) {
        self.strays += 1;
        log::warn!("dropped a connection from {peer}: it {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Instant;

    fn gate() -> (Gate, SocketAddr) {
        let key = LauncherKey::random().unwrap();
        let gate = Gate::open(&["127.0.0.1".parse().unwrap()], key, 2).unwrap();
        let address = gate.address_text().unwrap().parse().unwrap();
        (gate, address)
    }

    fn welcome(_: u32) -> Welcome {
        Welcome { grace_milliseconds: 1, environment: Vec::new() }
    }

    fn hello(rank: u32, version: u32) -> Vec<u8> {
        let (host, boot) = ("h".to_string(), "b".to_string());
        serde_json::to_vec(&Hello { version, rank, pid: 1, host, boot, clock: 0, random: [0; 32] }).unwrap()
    }

    /// Connects, answers the challenge with `answer`, and turns the gate until it has decided.
    fn visit(gate: &mut Gate, address: SocketAddr, answer: impl Fn(&Word) -> Vec<u8>) -> Vec<Admitted> {
        let mut stream = TcpStream::connect(address).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let strays = gate.strays();
        let mut challenge = None;
        loop {
            assert!(Instant::now() < until, "the gate did not decide");
            let admitted = gate.turn(welcome);
            if !admitted.is_empty() || gate.strays() > strays {
                return admitted;
            }
            if challenge.is_none() {
                let mut frame = [0; 37];
                stream.read_exact(&mut frame).unwrap();
                let word = frame[5..].try_into().unwrap();
                stream.write_all(&answer(&word)).unwrap();
                challenge = Some(word);
            }
        }
    }

    #[test]
    fn only_holders_of_the_key_come_in() {
        let (mut gate, address) = gate();
        let key = gate.key.clone();
        let framed = |key: &LauncherKey, challenge: &Word, json: Vec<u8>| {
            let mut bytes = Vec::new();
            FromAgent::Hello { proof: key.prove_agent(challenge, &json), json }.encode(&mut bytes);
            bytes
        };
        use super::super::protocol::Message;
        let current = crossmesh::PROTOCOL_VERSION;
        let admitted = visit(&mut gate, address, |challenge| framed(&key, challenge, hello(1, current)));
        assert_eq!((admitted.len(), admitted[0].hello.rank, gate.strays()), (1, 1, 0));
        let stranger = LauncherKey::random().unwrap();
        assert!(visit(&mut gate, address, |challenge| framed(&stranger, challenge, hello(1, current))).is_empty());
        assert!(visit(&mut gate, address, |challenge| framed(&key, challenge, hello(2, current))).is_empty());
        assert!(visit(&mut gate, address, |challenge| framed(&key, challenge, hello(0, current + 1))).is_empty());
        assert!(visit(&mut gate, address, |_| framed(&key, &[0; 32], hello(1, current))).is_empty());
        assert!(visit(&mut gate, address, |_| b"GET / HTTP/1.1\r\n\r\n".to_vec()).is_empty());
        assert_eq!(gate.strays(), 5);
    }
}
