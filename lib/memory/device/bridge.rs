//! Copies between tensors on devices and memory of the host, ordered by the host. In: boxes, spans of which one at least is
//! on a device. Out: copied bytes. Guarantee: a copy has been made when the call returns, and none outlives its limit;
//! nothing is allocated on the host or on a device. Segments of staging are pinned, so that engines reach them at the
//! link's rate; where the system refuses that, copies are slower and as right.

use super::error::DeviceError;
use super::gpu::Device;
use super::moves::for_each;
use super::stream::{End, Event, Rows, Stream};
use crate::base::Deadline;
use crate::memory::copy::{CopyTable, Operation};
use crate::memory::{MemoryError, SharedMemory, Span};
use cudarc::driver::sys;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest copy: a chunk takes tens of microseconds.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a wait spins before it sleeps.
const EAGER: Duration = Duration::from_millis(1);

/// Streams of the devices that a rank's tensors are on, and pinned segments.
#[derive(Debug)]
pub struct Bridge {
    lanes: Vec<Lane>,
    _pinned: Vec<PinnedSegment>,
}

/// A device with a stream of our own.
#[derive(Debug)]
struct Lane {
    device: Device,
    stream: Stream,
    done: Event,
}

impl Bridge {
    /// A bridge to `devices`; `segments` are memory of the host that most copies go from or to.
    pub fn new(devices: &[u32], segments: &[Arc<SharedMemory>]) -> Result<Self, DeviceError> {
        let lane = |&ordinal: &u32| {
            let device = Device::open(ordinal)?;
            let (stream, done) = (Stream::new(&device)?, Event::new(&device)?);
            Ok::<_, DeviceError>(Lane { device, stream, done })
        };
        let lanes: Vec<Lane> = devices.iter().map(lane).collect::<Result<_, _>>()?;
        let pinned = lanes.first().map_or(Vec::new(), |lane| {
            segments.iter().filter_map(|segment| PinnedSegment::new(&lane.device, segment)).collect()
        });
        Ok(Self { lanes, _pinned: pinned })
    }

    /// The first device, whose streams starts may be put on.
    pub fn device(&self) -> Option<&Device> {
        self.lanes.first().map(|lane| &lane.device)
    }

    /// Copies boxes `range`; offsets count from `source_base` and `destination_base`.
    pub fn copy(
        &self,
        table: &CopyTable,
        range: Range<usize>,
        (source, source_base): (&Span, u64),
        (destination, destination_base): (&Span, u64),
    ) -> Result<(), MemoryError> {
        let number = destination.device().or(source.device());
        let Some(lane) = self.lanes.iter().find(|lane| Some(lane.device.ordinal()) == number) else {
            return Err(MemoryError::OnDevice { bytes: source.bytes(), device: number.unwrap_or(0) });
        };
        let end = |span: &Span, at: u64| match span.device() {
            Some(_) => End::Device(at),
            None => End::Host(at),
        };
        for index in range {
            let (copy, loops) = table.get(index);
            if copy.operation != Operation::Move {
                return Err(MemoryError::OnDevice { bytes: source.bytes(), device: lane.device.ordinal() });
            }
            let (source_end, destination_end) = copy.ends();
            check_end(source_base, source_end, source)?;
            check_end(destination_base, destination_end, destination)?;
            let from = source.start() as u64 + source_base + copy.source;
            let to = destination.start() as u64 + destination_base + copy.destination;
            let mut put = Ok(());
            for_each(loops, copy.run, from, to, &mut |rows: Rows| {
                if put.is_ok() {
                    let (from, to) = (end(source, rows.source), end(destination, rows.destination));
                    // SAFETY: both ends were checked, spans are mapped as long as they exist, and the call returns only
                    // once the copies have been made.
                    put = unsafe { lane.stream.copy_between(to, from, rows) };
                }
            });
            put?;
        }
        lane.wait()?;
        Ok(())
    }
}

impl Lane {
    /// Returns once everything on the stream has run; by polling, since a chunk takes tens of microseconds.
    fn wait(&self) -> Result<(), DeviceError> {
        self.done.record(&self.stream)?;
        let begun = Instant::now();
        while begun.elapsed() < EAGER {
            if self.done.is_done()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.done.wait(Deadline::after(LIMIT))
    }
}

fn check_end(base: u64, end: u64, span: &Span) -> Result<(), MemoryError> {
    match base.checked_add(end) {
        Some(end) if end <= span.bytes() => Ok(()),
        _ => Err(MemoryError::Range { offset: base, bytes: end, limit: span.bytes() }),
    }
}

/// A segment that the driver has pinned.
struct PinnedSegment {
    device: Device,
    segment: Arc<SharedMemory>,
}

impl PinnedSegment {
    /// Pins a segment; `None` where that is not possible, which is logged, or where this process did it before.
    fn new(device: &Device, segment: &Arc<SharedMemory>) -> Option<Self> {
        let bytes = segment.bytes() as usize;
        let _current = device.enter().ok()?;
        // SAFETY: the segment is mapped with this size, and stays so until it is unpinned, since it is kept.
        let result =
            unsafe { sys::cuMemHostRegister_v2(segment.as_ptr().cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        match result {
            sys::CUresult::CUDA_SUCCESS => Some(Self { device: device.clone(), segment: segment.clone() }),
            sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => None,
            other => {
                if let Err(error) = device.check("cuMemHostRegister", other) {
                    log::warn!("staging memory of {bytes} bytes is not pinned, copies are slower: {error}");
                }
                None
            }
        }
    }
}

impl fmt::Debug for PinnedSegment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PinnedSegment({} bytes)", self.segment.bytes())
    }
}

impl Drop for PinnedSegment {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: pinned by `new`, and copies with it have been made.
            let _ = unsafe { sys::cuMemHostUnregister(self.segment.as_ptr().cast()) };
        }
    }
}
