//! Element types.

use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// One byte, 0 or 1.
    Bool,
}

/// The types of integers, as a pattern: a `match` on types stays exhaustive without a list of them.
macro_rules! integers {
    () => {
        $crate::ir::DType::I8
            | $crate::ir::DType::I16
            | $crate::ir::DType::I32
            | $crate::ir::DType::I64
            | $crate::ir::DType::U8
            | $crate::ir::DType::U16
            | $crate::ir::DType::U32
            | $crate::ir::DType::U64
    };
}
pub(crate) use integers;

impl DType {
    /// Every type, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> u64 {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// True for the floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::Bf16)
    }

    /// True for the integer types; `bool` is not one.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    /// True for the integers of 8 bits.
    pub const fn is_byte(self) -> bool {
        matches!(self, Self::I8 | Self::U8)
    }

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(())
    }
}
