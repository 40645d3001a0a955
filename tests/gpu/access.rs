//! Contents of buffers, wherever they are. In: bytes. Out: a buffer that holds them, or what it holds.

use crate::moving::deadline;
use crossmesh::comm::{Buffer, Device, Stream};
use crossmesh::memory::device::{End, Rows};

/// Makes a buffer hold `bytes`, or begin with them on a device.
pub(crate) fn put(buffer: &Buffer, bytes: &[u8]) {
    match buffer.device() {
        None => buffer.write().expect("nobody uses the buffer between rounds").copy_from_slice(bytes),
        Some(device) => copy(device, End::Device(address(buffer)), End::Host(bytes.as_ptr() as u64), bytes.len()),
    }
}

/// The first bytes that a buffer on a device holds.
pub(crate) fn take_first(buffer: &Buffer, count: u64) -> Vec<u8> {
    let device = buffer.device().expect("a buffer on a device");
    let mut bytes = vec![0u8; count as usize];
    copy(device, End::Host(bytes.as_mut_ptr() as u64), End::Device(address(buffer)), bytes.len());
    bytes
}

/// What a buffer holds.
pub(crate) fn take(buffer: &Buffer) -> Vec<u8> {
    let Some(device) = buffer.device() else {
        return buffer.read().expect("a finished transfer holds no buffer").to_vec();
    };
    let mut bytes = vec![0u8; buffer.bytes() as usize];
    copy(device, End::Host(bytes.as_mut_ptr() as u64), End::Device(address(buffer)), bytes.len());
    bytes
}

fn address(buffer: &Buffer) -> u64 {
    buffer.as_ptr() as u64
}

fn copy(device: u32, to: End, from: End, bytes: usize) {
    let device = Device::open(device).expect("the device of a buffer");
    let stream = Stream::new(&device).expect("a stream");
    let run = bytes as u64;
    let rows = Rows { source: 0, destination: 0, source_step: run, destination_step: run, run, rows: 1 };
    // SAFETY: the buffer and the bytes live until the copy is done, which is waited for, and no transfer is under way.
    unsafe { stream.copy_between(to, from, rows).expect("a copy") };
    stream.synchronize(deadline()).expect("a copy ends");
}
