//! How the elements of a tensor of a GGUF file are stored, by the format's numbers.

use super::lattice::{Lattice, NUMBERS};
use crate::error::{Error, Report, Result};
use crate::ir::{BlockFormat, DType};

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain(DType),
    Blocks(BlockFormat),
    /// Blocks that are not held as such.
    Lattice(Lattice),
}

impl Kind {
    /// What a number of the format stands for. Error: a type that is not read.
    pub(crate) fn of(number: u32) -> Result<Self> {
        if let Some((_, _, kind)) = READ.iter().find(|(read, ..)| *read == number) {
            return Ok(*kind);
        }
        let name = NAMES.iter().find(|(other, _)| *other == number).map_or("unknown", |(_, name)| name);
        let known: Vec<&str> = READ.iter().map(|(_, name, _)| *name).collect();
        let report = Report::new("", format!("element type {number} ({name}) is not read"));
        Err(Error::Unsupported(report.help(format!("{} are", known.join(", ")))))
    }
}

/// Types that are read: the format's number and name, and what is kept.
const READ: &[(u32, &str, Kind)] = &[
    (0, "F32", Kind::Plain(DType::F32)),
    (1, "F16", Kind::Plain(DType::F16)),
    (30, "BF16", Kind::Plain(DType::Bf16)),
    (8, "Q8_0", Kind::Blocks(BlockFormat::Q8_0)),
    (2, "Q4_0", Kind::Blocks(BlockFormat::Q4_0)),
    (3, "Q4_1", Kind::Blocks(BlockFormat::Q4_1)),
    (6, "Q5_0", Kind::Blocks(BlockFormat::Q5_0)),
    (7, "Q5_1", Kind::Blocks(BlockFormat::Q5_1)),
    (10, "Q2_K", Kind::Blocks(BlockFormat::Q2K)),
    (11, "Q3_K", Kind::Blocks(BlockFormat::Q3K)),
    (12, "Q4_K", Kind::Blocks(BlockFormat::Q4K)),
    (13, "Q5_K", Kind::Blocks(BlockFormat::Q5K)),
    (14, "Q6_K", Kind::Blocks(BlockFormat::Q6K)),
    (20, "IQ4_NL", Kind::Blocks(BlockFormat::Iq4Nl)),
    (23, "IQ4_XS", Kind::Blocks(BlockFormat::Iq4Xs)),
    (39, "MXFP4", Kind::Blocks(BlockFormat::Mxfp4)),
    (19, "IQ1_S", Kind::Lattice(Lattice::Iq1S)),
    (29, "IQ1_M", Kind::Lattice(Lattice::Iq1M)),
    (16, "IQ2_XXS", Kind::Lattice(Lattice::Iq2Xxs)),
    (17, "IQ2_XS", Kind::Lattice(Lattice::Iq2Xs)),
    (22, "IQ2_S", Kind::Lattice(Lattice::Iq2S)),
    (18, "IQ3_XXS", Kind::Lattice(Lattice::Iq3Xxs)),
    (21, "IQ3_S", Kind::Lattice(Lattice::Iq3S)),
    (34, "TQ1_0", Kind::Lattice(Lattice::Tq1_0)),
    (35, "TQ2_0", Kind::Lattice(Lattice::Tq2_0)),
    (28, "F64", Kind::Plain(DType::F64)),
    (24, "I8", Kind::Plain(DType::I8)),
    (25, "I16", Kind::Plain(DType::I16)),
    (26, "I32", Kind::Plain(DType::I32)),
    (27, "I64", Kind::Plain(DType::I64)),
];

/// The types that are read, and how many bits a number of each has in the file.
pub(crate) fn types() -> Vec<(&'static str, f64)> {
    let bits = |kind: &Kind| match kind {
        Kind::Plain(dtype) => 8.0 * dtype.size() as f64,
        Kind::Blocks(format) => 8.0 * format.bytes() as f64 / format.elements() as f64,
        Kind::Lattice(lattice) => 8.0 * lattice.bytes() as f64 / NUMBERS as f64,
    };
    READ.iter().map(|(_, name, kind)| (*name, bits(kind))).collect()
}

/// Types that are not read, for messages.
const NAMES: &[(u32, &str)] = &[(9, "Q8_1"), (15, "Q8_K"), (40, "NVFP4")];
