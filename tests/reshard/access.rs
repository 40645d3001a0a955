//! Contents of buffers in memory of the host. In: bytes. Out: a buffer that holds them, or what it holds.

use crossmesh::comm::Buffer;

/// Makes a buffer hold `bytes`.
pub(super) fn put(buffer: &Buffer, bytes: &[u8]) {
    buffer.write().expect("nobody uses the buffer between rounds").copy_from_slice(bytes);
}

/// What a buffer holds.
pub(super) fn take(buffer: &Buffer) -> Vec<u8> {
    buffer.read().expect("a finished transfer holds no buffer").to_vec()
}
