//! Checked sizes. In: extents, texts such as `64MiB`. Out: 64-bit byte counts. Guarantee: no overflow passes silently.

use thiserror::Error;

/// A size that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// The product of the extents does not fit 64 bits.
    #[error("extents {extents:?} multiply to more than 64 bits can count; use a smaller shape")]
    Overflow {
        /// The factors.
        extents: Vec<u64>,
    },
    /// A text that is no byte count.
    #[error("{text:?} is no byte count; allowed: a number with an optional unit, such as 4096, 64KiB, 64MiB, 1GB")]
    Unreadable {
        /// The text as given.
        text: String,
    },
}

/// Product of `extents`, 1 for none.
pub fn product(extents: &[u64]) -> Result<u64, SizeError> {
    if extents.contains(&0) {
        return Ok(0);
    }
    extents
        .iter()
        .try_fold(1u64, |total, &extent| total.checked_mul(extent))
        .ok_or_else(|| SizeError::Overflow { extents: extents.to_vec() })
}

/// Reads `4096`, `64KiB`, `64M`, `1.5GB`; K, M, G alone are binary as in MPI and Slurm, KB, MB, GB decimal.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let unreadable = || SizeError::Unreadable { text: text.to_string() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(unreadable()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(unreadable);
    }
    let fraction: f64 = number.parse().map_err(|_| unreadable())?;
    let bytes = fraction * scale as f64;
    if (0.0..1.8e19).contains(&bytes) { Ok(bytes as u64) } else { Err(unreadable()) }
}

/// `bytes` for people: `64.0 MiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_is_checked() {
        assert_eq!(product(&[]), Ok(1));
        assert_eq!(product(&[u64::MAX, 2, 0]), Ok(0));
        assert_eq!(product(&[1 << 32, 1 << 31]), Ok(1 << 63));
        assert!(product(&[1 << 32, 1 << 32]).is_err());
    }

    #[test]
    fn texts() {
        for (text, bytes) in
            [("0", 0), ("64MiB", 64 << 20), ("64M", 64 << 20), ("1.5GB", 1_500_000_000), (" 2 KiB ", 2048)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "1XB", "1e999GiB", "99999999999TiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
