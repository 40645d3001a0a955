//! What ranks print, on its way to the terminal, to files, and to the report of a failure.
//!
//! In: lines of ranks. Out: `[role:rank host] line` on standard output and standard error, one file per rank and
//! stream when asked for, and the last lines of each rank. Guarantee: lines stay whole; memory is bounded; a reader
//! that is slow holds nothing up but the ranks that print; a reader that closed is said once and the job goes on.

use super::protocol::Stream;
use super::verdict::RankTrace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Bytes that wait for a slow reader before ranks have to wait too.
const QUEUE: usize = 1 << 20;
/// Lines of each rank that are kept for the report of a failure, and bytes of each.
const LAST_LINES: usize = 20;
const LAST_LINE_BYTES: usize = 512;

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    writing: bool,
    reader_gone: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent between any two statements, so a panic elsewhere does not spoil it.
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Writes to one stream from a thread of its own.
#[derive(Debug)]
struct Printer {
    shared: Arc<Shared>,
}

impl Printer {
    fn new(name: &'static str, writer: impl Write + AsFd + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let printer = Self { shared: shared.clone() };
        thread::Builder::new().name(name.replace(' ', "-")).spawn(move || print(name, &shared, writer))?;
        Ok(printer)
    }

    fn push(&self, parts: &[&[u8]]) {
        let mut queue = self.shared.lock();
        if !queue.reader_gone {
            parts.iter().for_each(|part| queue.bytes.extend_from_slice(part));
            self.shared.changed.notify_all();
        }
    }

    fn has_room(&self) -> bool {
        self.shared.lock().bytes.len() < QUEUE
    }

    /// Waits up to `limit` until all is written or nobody reads; whether that is so.
    fn drained(&self, limit: Duration) -> bool {
        let busy = |queue: &mut Queue| !queue.reader_gone && (queue.writing || !queue.bytes.is_empty());
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, busy);
        let (mut queue, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        !busy(&mut queue)
    }
}

/// Body of a printer's thread, which ends with the reader or with the process.
fn print(name: &str, shared: &Shared, mut writer: impl Write + AsFd) {
    let mut bytes = Vec::new();
    loop {
        let mut queue = shared.lock();
        queue.writing = false;
        shared.changed.notify_all();
        while queue.bytes.is_empty() {
            queue = shared.changed.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        queue.writing = true;
        bytes.clear();
        std::mem::swap(&mut bytes, &mut queue.bytes);
        drop(queue);
        if let Err(error) = write_whole(&mut writer, &bytes) {
            let mut queue = shared.lock();
            queue.reader_gone = true;
            queue.bytes = Vec::new();
            shared.changed.notify_all();
            drop(queue);
            log::warn!("{name} was closed ({error}); what ranks print there is lost from now on, the job goes on");
            return;
        }
    }
}

/// `write_all`, also to a stream that someone else made non-blocking.
fn write_whole(writer: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match writer.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
                poll(&mut ready, PollTimeout::from(100u8))?;
            }
            Err(error) => return Err(error),
        }
    }
    writer.flush()
}

#[derive(Debug, Default)]
struct RankOutput {
    host: String,
    prefix: String,
    last_lines: VecDeque<Vec<u8>>,
    last_error_line: Option<Duration>,
    /// Standard output and standard error, opened with the first line.
    files: [Option<File>; 2],
}

/// Where the lines of all ranks go.
#[derive(Debug)]
pub(crate) struct Output {
    output: Printer,
    error: Printer,
    ranks: Vec<RankOutput>,
    directory: Option<PathBuf>,
}

impl Output {
    /// Lines of `size` ranks go to this process's standard output and standard error, and to files in `directory`.
    pub(crate) fn new(size: u32, directory: Option<PathBuf>) -> io::Result<Self> {
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Self::to(output, io::stderr(), size, directory)
    }

    fn to(
        output: impl Write + AsFd + Send + 'static,
        error: impl Write + AsFd + Send + 'static,
        size: u32,
        directory: Option<PathBuf>,
    ) -> io::Result<Self> {
        if let Some(directory) = &directory {
            std::fs::create_dir_all(directory)?;
        }
        Ok(Self {
            output: Printer::new("standard output", output)?,
            error: Printer::new("standard error", error)?,
            ranks: (0..size).map(|_| RankOutput::default()).collect(),
            directory,
        })
    }

    /// The rank is on `host`, and its lines begin with `prefix`.
    pub(crate) fn introduce(&mut self, rank: u32, host: String, prefix: String) {
        let rank = &mut self.ranks[rank as usize];
        (rank.host, rank.prefix) = (host, prefix);
    }

    /// One line of `rank`, without newline.
    pub(crate) fn line(&mut self, rank: u32, stream: Stream, line: &[u8], now: Duration) {
        let state = &mut self.ranks[rank as usize];
        let printer = match stream {
            Stream::Output => &self.output,
            Stream::Error => {
                state.last_error_line = Some(now);
                &self.error
            }
        };
        printer.push(&[state.prefix.as_bytes(), line, b"\n"]);
        let mut kept = if state.last_lines.len() == LAST_LINES {
            state.last_lines.pop_front().unwrap_or_default()
        } else {
            Vec::new()
        };
        kept.clear();
        kept.extend_from_slice(&line[..line.len().min(LAST_LINE_BYTES)]);
        state.last_lines.push_back(kept);
        self.keep(rank, stream, line);
    }

    /// One line of the starter itself.
    pub(crate) fn starter_line(&self, starter: &str, line: &str) {
        self.error.push(&[format!("[{starter}] {line}\n").as_bytes()]);
    }

    /// Whether more lines may come without memory growing beyond its bound.
    pub(crate) fn has_room(&self) -> bool {
        self.output.has_room() && self.error.has_room()
    }

    /// Waits up to `limit` until everything is written; whether that is so.
    pub(crate) fn drained(&self, limit: Duration) -> bool {
        self.output.drained(limit) && self.error.drained(limit)
    }

    /// What a verdict needs of each rank.
    pub(crate) fn traces(&self) -> Vec<RankTrace> {
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).trim_end().to_string();
        let trace = |rank: &RankOutput| RankTrace {
            host: rank.host.clone(),
            last_lines: rank.last_lines.iter().map(text).collect(),
            last_error_line: rank.last_error_line,
        };
        self.ranks.iter().map(trace).collect()
    }

    /// Writes the line to the rank's file; the first failure is said and ends the files.
    fn keep(&mut self, rank: u32, stream: Stream, line: &[u8]) {
        let Some(directory) = &self.directory else { return };
        let (slot, ending) = match stream {
            Stream::Output => (0, "out"),
            Stream::Error => (1, "err"),
        };
        let path = directory.join(format!("rank-{rank}.{ending}"));
        let file = &mut self.ranks[rank as usize].files[slot];
        let written = match file {
            Some(file) => Ok(file),
            None => File::create(&path).map(|created| file.insert(created)),
        }
        .and_then(|file| file.write_all(&[line, b"\n"].concat()));
        if let Err(error) = written {
            log::error!("cannot write {}: {error}; no more is written to files of ranks", path.display());
            self.directory = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn everything_is_printed_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let printer = Printer::new("test", writer).unwrap();
        let reading = thread::spawn(move || {
            let mut bytes = vec![0; 500_000];
            reader.read_exact(&mut bytes).unwrap();
            bytes
        });
        for number in 0..50_000u32 {
            printer.push(&[format!("{number:09}").as_bytes(), b"\n"]);
        }
        assert!(printer.drained(LIMIT));
        let expected: String = (0..50_000u32).map(|number| format!("{number:09}\n")).collect();
        assert_eq!(reading.join().unwrap(), expected.as_bytes());
    }

    #[test]
    fn a_slow_reader_fills_the_queue_and_a_closed_one_empties_it() {
        let (reader, writer) = io::pipe().unwrap();
        let printer = Printer::new("test", writer).unwrap();
        let line = [b'x'; 4096];
        // One batch may be with the writer, so room ends within three queues.
        let pushed = (0..3 * QUEUE / line.len()).take_while(|_| printer.has_room()).inspect(|_| printer.push(&[&line]));
        pushed.count();
        assert!(!printer.has_room());
        assert!(!printer.drained(Duration::from_millis(10)));
        drop(reader);
        assert!(printer.drained(LIMIT));
        printer.push(&[&line]);
        assert!(printer.has_room() && printer.drained(LIMIT));
    }

    #[test]
    fn last_lines_and_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let nested = directory.path().join("logs");
        let printed = directory.path().join("printed");
        let file = File::create(&printed).unwrap();
        let mut output = Output::to(file.try_clone().unwrap(), file, 2, Some(nested.clone())).unwrap();
        output.introduce(1, "n1".into(), "[1 n1] ".into());
        for number in 0..25 {
            output.line(1, Stream::Output, format!("line {number}").as_bytes(), Duration::from_secs(1));
        }
        output.line(1, Stream::Error, &[b'e'; 1000], Duration::from_secs(2));
        let traces = output.traces();
        assert!(traces[0].last_lines.is_empty());
        assert_eq!(traces[1].last_lines.len(), LAST_LINES);
        assert_eq!(traces[1].last_lines[0], "line 6");
        assert_eq!(traces[1].last_lines[LAST_LINES - 1].len(), LAST_LINE_BYTES);
        assert_eq!(traces[1].last_error_line, Some(Duration::from_secs(2)));
        assert_eq!(std::fs::read_to_string(nested.join("rank-1.out")).unwrap().lines().count(), 25);
        assert_eq!(std::fs::read(nested.join("rank-1.err")).unwrap().len(), 1001);
        assert!(!nested.join("rank-0.out").exists());
        assert!(output.drained(LIMIT));
        let printed = std::fs::read_to_string(printed).unwrap();
        assert_eq!(printed.lines().filter(|line| line.starts_with("[1 n1] line ")).count(), 25);
        assert_eq!(printed.lines().count(), 26);
    }
}
