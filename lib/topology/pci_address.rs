//! Where a device sits on PCI. In: texts of the kernel, NVML, hwloc, NCCL. Out: [`PciAddress`]. Guarantee: the same
//! place is the same value, however it was written.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no PCI address; write domain:bus:device.function such as 0000:18:00.0")]
pub struct PciAddressError {
    /// As given.
    pub text: String,
}

/// Domain, bus, device, function; written `0000:18:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// The domain may be left out or have 8 digits, as NVML writes it.
    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let error = || PciAddressError { text: text.to_string() };
        let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (place, function) = text.trim().rsplit_once('.').ok_or_else(error)?;
        let (front, device) = place.rsplit_once(':').ok_or_else(error)?;
        let (domain, bus) = front.rsplit_once(':').unwrap_or(("0", front));
        if ![domain, bus, device, function].into_iter().all(is_hex) {
            return Err(error());
        }
        let short = |part| u8::from_str_radix(part, 16).map_err(|_| error());
        Ok(Self {
            domain: u32::from_str_radix(domain, 16).map_err(|_| error())?,
            bus: short(bus)?,
            device: short(device)?,
            function: short(function)?,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciAddressError;

    fn try_from(text: String) -> Result<Self, PciAddressError> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writing_of_a_place_is_equal() {
        for text in ["0000:0F:1a.2", "00000000:0f:1A.2", "0f:1a.2", " 0:f:1a.2\n"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), "0000:0f:1a.2", "{text:?}");
        }
        assert_eq!("10009:06:00.0".parse::<PciAddress>().unwrap().to_string(), "10009:06:00.0");
        for text in ["", "0000:00:00", "0000:100:00.0", "x:00:00.0", "0000:+1:00.0", "0:0:0:0.0", "::."] {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }
}
