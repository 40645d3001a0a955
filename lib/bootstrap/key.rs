//! The job key. In: the system's random numbers, or hexadecimal text. Out: [`JobKey`]. Guarantee: never printed by
//! `Debug`, wiped when dropped, compared only through HMACs.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Bytes of a key, a nonce and an HMAC.
pub(super) const KEY_BYTES: usize = 32;

/// 256 bits that all ranks of a job share and nobody else knows.
#[derive(Clone)]
pub struct JobKey([u8; KEY_BYTES]);

impl JobKey {
    /// A new random key.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The key as 64 hexadecimal digits. The text is as secret as the key.
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(2 * KEY_BYTES), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * KEY_BYTES {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
        let mut key = Self([0; KEY_BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(key)
    }

    /// An HMAC-SHA256 over `parts`; parts must have fixed lengths, they are not delimited.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> [u8; KEY_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `signature` is the HMAC of `parts`, in constant time.
    pub(super) fn verify(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        self.mac(parts).verify_slice(signature).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // A key shorter than a block is padded with zeros by definition.
        let mut block = [0; 2 * KEY_BYTES];
        block[..KEY_BYTES].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new((&block).into());
        block.fill(0);
        std::hint::black_box(&mut block);
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl Drop for JobKey {
    fn drop(&mut self) {
        self.0.fill(0);
        // Makes the zeros look used, so that the stores stay.
        std::hint::black_box(&mut self.0);
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JobKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip_and_hidden_in_debug() {
        let key = JobKey::generate().unwrap();
        let text = key.to_hex();
        assert_eq!(JobKey::from_hex(&text).unwrap().0, key.0);
        assert!(!format!("{key:?}").contains(&text[..8]));
        for wrong in ["", &text[1..], &format!("{text}00"), &text.replace(&text[..1], "g")] {
            assert!(JobKey::from_hex(wrong).is_none());
        }
    }

    #[test]
    fn signature_matches_rfc_4231_case_2_padded() {
        // HMAC pads a short key with zeros, so "Jefe" followed by zeros is the published vector.
        let mut bytes = [0; KEY_BYTES];
        bytes[..4].copy_from_slice(b"Jefe");
        let key = JobKey(bytes);
        let signature = key.sign(&[b"what do ya want ", b"for nothing?"]);
        let hex = JobKey(signature).to_hex();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert!(key.verify(&[b"what do ya want for nothing?"], &signature));
        assert!(!key.verify(&[b"what do ya want for nothing"], &signature));
    }
}
