//! Hands this process's segments to peers on the host.
//!
//! In: segments to publish. Out: a unix socket that gives their descriptors to processes of the same user, from
//! one thread that sleeps in `poll(2)`. Guarantee: the socket is in a directory of mode 0700, the user of every
//! client is checked, a request has a fixed size, and nothing is left in the file system after a normal exit.

use super::directory::PrivateDirectory;
use super::error::{MemoryError, errno_of};
use super::shared::{SegmentId, SharedMemory};
use super::wire::{self, Answer};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;

/// Connections the kernel keeps until they are accepted; the system lowers it to its own limit.
const BACKLOG: i32 = 4096;
/// How long no connection is accepted after the system refused a descriptor.
const ACCEPT_PAUSE: u16 = 100;

/// What is served: segments, and descriptors of other memory.
#[derive(Debug, Default)]
struct Entries {
    segments: HashMap<SegmentId, Weak<SharedMemory>>,
    descriptors: HashMap<SegmentId, Weak<Published>>,
}

type Table = Mutex<Entries>;

/// A descriptor of memory that is not mapped here, such as a device's, to be handed to peers.
#[derive(Debug)]
pub struct Published {
    id: SegmentId,
    descriptor: OwnedFd,
    bytes: u64,
}

impl Published {
    /// A descriptor of memory of `bytes` bytes, under a fresh id.
    pub fn new(descriptor: OwnedFd, bytes: u64) -> Result<Arc<Self>, MemoryError> {
        Ok(Arc::new(Self { id: SegmentId::random()?, descriptor, bytes }))
    }

    /// What peers ask for it by.
    pub fn id(&self) -> SegmentId {
        self.id
    }
}

/// Serves descriptors of this process's segments.
#[derive(Debug)]
pub struct SegmentServer {
    address: String,
    table: Arc<Table>,
    /// Dropping it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _directory: PrivateDirectory,
}

impl SegmentServer {
    /// Starts serving; nothing is published yet.
    pub fn start() -> Result<Self, MemoryError> {
        Self::start_for(geteuid().as_raw())
    }

    /// Serves clients of user `user`.
    pub(super) fn start_for(user: u32) -> Result<Self, MemoryError> {
        let directory = PrivateDirectory::create()?;
        let path = directory.socket();
        let address = path.display().to_string();
        let failed = |operation| {
            let address = address.clone();
            move |error: std::io::Error| MemoryError::Serve { address, operation, source: errno_of(&error) }
        };
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(failed("socket"))?;
        socket.bind(&SockAddr::unix(&path).map_err(failed("socket path"))?).map_err(failed("bind"))?;
        socket.listen(BACKLOG).map_err(failed("listen"))?;
        socket.set_nonblocking(true).map_err(failed("fcntl(O_NONBLOCK)"))?;
        let (stop, stopped) = UnixStream::pair().map_err(failed("socketpair"))?;
        let table = Arc::new(Table::default());
        let worker = Worker { listener: socket, stopped, table: table.clone(), user, clients: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("crossmesh-segments".into())
            .spawn(move || worker.run())
            .map_err(failed("thread"))?;
        Ok(Self { address, table, stop: Some(stop), thread: Some(thread), _directory: directory })
    }

    /// What peers need to open segments of this process.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Lets peers open `memory` while it lives; publishing twice is the same as once.
    pub fn publish(&self, memory: &Arc<SharedMemory>) {
        let segments = &mut lock(&self.table).segments;
        segments.retain(|_, segment| segment.strong_count() > 0);
        segments.insert(memory.id(), Arc::downgrade(memory));
    }

    /// Lets peers have a descriptor while it lives.
    pub fn publish_descriptor(&self, published: &Arc<Published>) {
        let descriptors = &mut lock(&self.table).descriptors;
        descriptors.retain(|_, descriptor| descriptor.strong_count() > 0);
        descriptors.insert(published.id, Arc::downgrade(published));
    }

    /// Ends it; peers that have opened the segment keep it.
    pub fn withdraw(&self, segment: SegmentId) {
        lock(&self.table).segments.remove(&segment);
    }

    /// The published segment that holds the `bytes` bytes at `address`, with their offset in it.
    pub fn find(&self, address: u64, bytes: u64) -> Option<(Arc<SharedMemory>, u64)> {
        let table = lock(&self.table);
        table.segments.values().filter_map(Weak::upgrade).find_map(|memory| {
            let offset = address.checked_sub(memory.as_ptr() as u64)?;
            (offset.checked_add(bytes)? <= memory.bytes()).then_some((memory, offset))
        })
    }
}

impl Drop for SegmentServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that served memory segments at {} had panicked", self.address);
        }
    }
}

fn lock(table: &Table) -> MutexGuard<'_, Entries> {
    table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The serving thread.
struct Worker {
    listener: Socket,
    stopped: UnixStream,
    table: Arc<Table>,
    user: u32,
    clients: Vec<Socket>,
}

impl Worker {
    fn run(mut self) {
        let mut accepting = true;
        loop {
            let ready = match self.wait(accepting) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    log::error!("memory segments are no longer served: poll failed: {errno}");
                    return;
                }
            };
            if ready.stop {
                return;
            }
            let mut index = 0;
            self.clients.retain(|client| {
                index += 1;
                !ready.clients[index - 1] || answer(client, &self.table)
            });
            accepting = !ready.listener || self.accept();
        }
    }

    /// Sleeps until something is to be done.
    fn wait(&self, accepting: bool) -> Result<Ready, Errno> {
        let interest = if accepting { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut descriptors =
            vec![PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), interest)];
        descriptors.extend(self.clients.iter().map(|client| PollFd::new(client.as_fd(), PollFlags::POLLIN)));
        // Without a timeout on purpose: the stop descriptor ends this wait.
        poll(&mut descriptors, if accepting { PollTimeout::NONE } else { PollTimeout::from(ACCEPT_PAUSE) })?;
        let ready = |entry: &PollFd<'_>| entry.any().unwrap_or(true);
        Ok(Ready {
            stop: ready(&descriptors[0]),
            listener: ready(&descriptors[1]),
            clients: descriptors[2..].iter().map(ready).collect(),
        })
    }

    /// Takes all waiting connections; `false` when the system has no descriptor left.
    fn accept(&mut self) -> bool {
        loop {
            match self.listener.accept() {
                Ok((client, _)) => match getsockopt(&client, PeerCredentials) {
                    Ok(credentials) if credentials.uid() == self.user => self.clients.push(client),
                    Ok(credentials) => {
                        log::warn!("refused memory segments to a process of user {}", credentials.uid());
                    }
                    Err(errno) => log::warn!("refused memory segments to an unknown process: {errno}"),
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(error) => match errno_of(&error) {
                    Errno::EINTR | Errno::ECONNABORTED => {}
                    errno => {
                        log::warn!("cannot accept a request for a memory segment: {errno}; raise ulimit -n");
                        return false;
                    }
                },
            }
        }
    }
}

struct Ready {
    stop: bool,
    listener: bool,
    clients: Vec<bool>,
}

/// Answers one request; `false` ends the connection.
fn answer(client: &Socket, table: &Table) -> bool {
    // One byte more than a request, so that a longer packet shows itself.
    let mut packet = [0; wire::REQUEST + 1];
    let received = nix::sys::socket::recv(client.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT);
    let segment = match received {
        Ok(0) => return false,
        Ok(length) => match wire::decode_request(&packet[..length]) {
            Some(segment) => segment,
            None => {
                log::warn!("ended a connection that asked for a memory segment with an unreadable request");
                return false;
            }
        },
        Err(Errno::EAGAIN | Errno::EINTR) => return true,
        Err(_) => return false,
    };
    let (memory, published) = {
        let table = lock(table);
        (table.segments.get(&segment).and_then(Weak::upgrade), table.descriptors.get(&segment).and_then(Weak::upgrade))
    };
    let found = memory.as_ref().map(|memory| (memory.as_fd(), memory.bytes()));
    let sent = match found.or_else(|| published.as_ref().map(|entry| (entry.descriptor.as_fd(), entry.bytes))) {
        Some((descriptor, bytes)) => send(client, Answer::Found { segment, bytes }, &[descriptor.as_raw_fd()]),
        None => send(client, Answer::Missing { segment }, &[]),
    };
    sent.is_ok()
}

fn send(client: &Socket, answer: Answer, descriptors: &[RawFd]) -> Result<usize, Errno> {
    let packet = wire::encode_answer(answer);
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(client.as_raw_fd(), &[IoSlice::new(&packet)], control, flags, None)
}

/// Room for the control message of one descriptor.
pub(super) fn descriptor_space() -> Vec<u8> {
    cmsg_space!(RawFd)
}
