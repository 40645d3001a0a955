//! What a call reads and writes. In: buffers and offsets. Out: addresses that were looked at. Guarantee: an operand that is
//! too small or elsewhere is an error before anything runs.

use super::{Channel, CollectiveError};
use crate::collective::Kind;
use crate::memory::Buffer;

/// Bytes of a buffer from an offset on.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// First byte.
    pub offset: u64,
}

impl<'a> From<&'a Buffer> for Operand<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self { buffer, offset: 0 }
    }
}

impl Operand<'_> {
    /// Address of `bytes` bytes on the channel's device.
    pub(super) fn address(
        &self,
        channel: &Channel,
        kind: Kind,
        operand: &'static str,
        bytes: u64,
    ) -> Result<u64, CollectiveError> {
        let device = channel.device();
        if self.buffer.device() != Some(device.ordinal()) {
            return Err(CollectiveError::OtherMemory { kind, operand, device: device.label().to_string() });
        }
        let (offset, size) = (self.offset, self.buffer.bytes());
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(CollectiveError::TooSmall { kind, operand, needed: bytes, offset, bytes: size });
        }
        Ok(self.buffer.as_ptr() as u64 + offset)
    }
}
