//! Element types. In: names as safetensors spells them. Out: [`Dtype`] and its size. Guarantee: every element is a
//! whole number of bytes, so that boxes are byte ranges; types packed below a byte are refused by name.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A type name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DtypeError {
    /// A type whose elements share bytes.
    #[error(
        "dtype {name} packs its elements below a byte, which cannot be cut at element borders; \
         store the packed bytes as a U8 tensor whose last dimension counts bytes"
    )]
    SubByte {
        /// The name as given.
        name: String,
    },
    /// A name that is no type.
    #[error("dtype {name:?} is unknown; allowed are {}", allowed())]
    Unknown {
        /// The name as given.
        name: String,
    },
}

/// Types that safetensors or its neighbours name and that pack their elements below a byte.
const SUB_BYTE: [&str; 10] = ["F4", "F4_E2M1", "F6_E2M3", "F6_E3M2", "I4", "U4", "I2", "U2", "I1", "U1"];

macro_rules! dtypes {
    ($($(#[$meta:meta])* $variant:ident $name:literal $bytes:literal,)+) => {
        /// The type of a tensor's elements; serialised under its safetensors name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "&'static str")]
        pub enum Dtype {
            $($(#[$meta])* $variant,)+
        }

        impl Dtype {
            /// Every type, in declaration order.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)+];

            /// Bytes of one element.
            pub const fn bytes(self) -> u64 {
                match self {
                    $(Dtype::$variant => $bytes,)+
                }
            }

            /// The safetensors name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)+
                }
            }
        }
    };
}

dtypes! {
    /// IEEE 754 binary64.
    F64 "F64" 8,
    /// IEEE 754 binary32.
    F32 "F32" 4,
    /// IEEE 754 binary16.
    F16 "F16" 2,
    /// The upper half of a binary32.
    BF16 "BF16" 2,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3 "F8_E4M3" 1,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2 "F8_E5M2" 1,
    /// 8-bit power of two: the scale of the microscaling formats.
    F8E8M0 "F8_E8M0" 1,
    /// [`Dtype::F8E4M3`] with one NaN and no negative zero.
    F8E4M3Fnuz "F8_E4M3FNUZ" 1,
    /// [`Dtype::F8E5M2`] with one NaN, no infinities and no negative zero.
    F8E5M2Fnuz "F8_E5M2FNUZ" 1,
    /// Signed, 64 bits.
    I64 "I64" 8,
    /// Signed, 32 bits.
    I32 "I32" 4,
    /// Signed, 16 bits.
    I16 "I16" 2,
    /// Signed, 8 bits.
    I8 "I8" 1,
    /// Unsigned, 64 bits.
    U64 "U64" 8,
    /// Unsigned, 32 bits.
    U32 "U32" 4,
    /// Unsigned, 16 bits.
    U16 "U16" 2,
    /// Unsigned, 8 bits.
    U8 "U8" 1,
    /// A truth value in a byte.
    Bool "BOOL" 1,
    /// A pair of binary32: real and imaginary part.
    C64 "C64" 8,
}

impl Dtype {
    /// The type called `name`, exactly as safetensors spells it.
    pub fn parse(name: &str) -> Result<Dtype, DtypeError> {
        if let Some(&dtype) = Dtype::ALL.iter().find(|dtype| dtype.name() == name) {
            return Ok(dtype);
        }
        let name = name.to_string();
        if SUB_BYTE.contains(&name.as_str()) {
            return Err(DtypeError::SubByte { name });
        }
        Err(DtypeError::Unknown { name })
    }
}

fn allowed() -> String {
    Dtype::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = DtypeError;

    fn from_str(name: &str) -> Result<Dtype, DtypeError> {
        Dtype::parse(name)
    }
}

impl TryFrom<String> for Dtype {
    type Error = DtypeError;

    fn try_from(name: String) -> Result<Dtype, DtypeError> {
        Dtype::parse(&name)
    }
}

impl From<Dtype> for &'static str {
    fn from(dtype: Dtype) -> &'static str {
        dtype.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes() {
        let sizes = [8, 4, 2, 2, 1, 1, 1, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8];
        assert_eq!(Dtype::ALL.iter().map(|dtype| dtype.bytes()).collect::<Vec<_>>(), sizes);
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::parse(dtype.name()), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{}\"", dtype.name()));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
        }
        assert_eq!(format!("{:>6}|", Dtype::BF16), "  BF16|");
    }

    #[test]
    fn packed_types_are_refused_with_the_way_out() {
        for name in SUB_BYTE {
            let error = Dtype::parse(name).unwrap_err();
            assert_eq!(error, DtypeError::SubByte { name: name.to_string() });
            assert!(error.to_string().contains("U8 tensor"), "{error}");
        }
    }

    #[test]
    fn unknown_names_list_what_is_allowed() {
        for name in ["", "f32", "float32", "F8", "F32 ", "U128"] {
            let error = Dtype::parse(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("BF16, F8_E4M3, F8_E5M2"), "{error}");
        }
        let error = serde_json::from_str::<Dtype>("\"F4\"").unwrap_err().to_string();
        assert!(error.contains("below a byte"), "{error}");
    }
}
