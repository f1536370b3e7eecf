//! Element types of less than a byte, and floats of eight bits or less: held as bytes, one for each element. Integers
//! are held as numbers, floats as their bits. They are converted, and moved as they are; nothing is computed in them.
//! Texts that a file states are held as their numbers in a table.

use std::collections::HashMap;
use std::rc::Rc;

use super::node::At;
use super::proto::TensorProto;
use super::tensor;
use crate::error::{Error, Result};
use crate::ir::{Binary, Compare, DType, ReduceKind, Unary, ValueId};

/// One of these types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Narrow {
    Int {
        bits: u32,
        signed: bool,
    },
    Float(Format),
    /// Numbers of texts in a table of the lowering.
    Text(TextTable),
}

/// The number of a table of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextTable(u32);

/// ONNX's number of the type of texts.
pub(super) const STRING: i32 = 8;

/// The most texts of a table that a note shows.
const SHOWN: usize = 16;

/// Tables of texts: each list that a file states is there once.
#[derive(Debug, Default)]
pub(super) struct Texts {
    tables: Vec<Rc<[String]>>,
    numbers: HashMap<Rc<[String]>, TextTable>,
}

impl Texts {
    pub(super) fn add(&mut self, texts: &[String]) -> TextTable {
        if let Some(&table) = self.numbers.get(texts) {
            return table;
        }
        let table = TextTable(self.tables.len() as u32);
        let texts: Rc<[String]> = texts.into();
        self.tables.push(Rc::clone(&texts));
        self.numbers.insert(texts, table);
        table
    }

    pub(super) fn get(&self, table: TextTable) -> &[String] {
        self.tables.get(table.0 as usize).map_or(&[], |texts| texts)
    }

    /// A tensor of texts as one of integers, and the table that they are numbers in. Error: it holds something else.
    pub(super) fn numbered(&mut self, mut proto: TensorProto) -> Result<(TensorProto, TextTable)> {
        check_texts(&proto)?;
        let mut texts: Vec<String> = Vec::new();
        let mut known: HashMap<String, i64> = HashMap::new();
        for bytes in std::mem::take(&mut proto.string_data) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let number = *known.entry(text.clone()).or_insert(texts.len() as i64);
            if number as usize == texts.len() {
                texts.push(text);
            }
            proto.int64_data.push(number);
        }
        proto.data_type = 7;
        Ok((proto, self.add(&texts)))
    }

    /// `0 "ant", 1 "bee"`.
    pub(super) fn shown(&self, table: TextTable) -> String {
        let texts = self.get(table);
        let each = texts.iter().take(SHOWN).enumerate().map(|(number, text)| format!("{number} {text:?}"));
        let more = if texts.len() > SHOWN { ", ..." } else { "" };
        each.collect::<Vec<_>>().join(", ") + more
    }
}

/// Error: a tensor of texts holds numbers, or bytes that say nothing of texts.
pub(super) fn check_texts(proto: &TensorProto) -> Result<()> {
    if tensor::is_external(proto) || proto.raw_data.is_some() || !proto.int64_data.is_empty() {
        let message = "a tensor of texts (element type STRING) must hold them in `string_data` alone";
        return Err(Error::model("", message));
    }
    Ok(())
}

/// A float of few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    E4M3Fn,
    E4M3FnUz,
    E5M2,
    E5M2FnUz,
    E2M1,
    /// A power of two.
    E8M0,
}

impl Narrow {
    /// The type with ONNX's number.
    pub(super) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            17 => Self::Float(Format::E4M3Fn),
            18 => Self::Float(Format::E4M3FnUz),
            19 => Self::Float(Format::E5M2),
            20 => Self::Float(Format::E5M2FnUz),
            21 => Self::Int { bits: 4, signed: false },
            22 => Self::Int { bits: 4, signed: true },
            23 => Self::Float(Format::E2M1),
            24 => Self::Float(Format::E8M0),
            25 => Self::Int { bits: 2, signed: false },
            26 => Self::Int { bits: 2, signed: true },
            _ => return None,
        })
    }

    /// ONNX's number of the type.
    pub(super) fn number(self) -> i32 {
        (17..=26).find(|&number| Self::from_number(number) == Some(self)).unwrap_or(STRING)
    }

    /// The type of the bytes that hold it.
    pub(super) fn held(self) -> DType {
        match self {
            Self::Int { signed: true, .. } => DType::I8,
            Self::Int { signed: false, .. } | Self::Float(_) => DType::U8,
            Self::Text(_) => DType::I64,
        }
    }

    /// Bits in a file.
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::Int { bits, .. } => bits,
            Self::Float(Format::E2M1) => 4,
            Self::Float(_) => 8,
            Self::Text(_) => 64,
        }
    }

    /// One byte for each element, from bytes that hold several, the first in the lowest bits.
    pub(super) fn unpacked(self, packed: &[u8], elements: usize) -> Vec<u8> {
        let bits = self.bits();
        let each = (8 / bits) as usize;
        let one = |i: usize| {
            let byte = packed.get(i / each).copied().unwrap_or(0);
            self.extended(byte >> (bits * (i % each) as u32))
        };
        (0..elements).map(one).collect()
    }

    /// The least and the greatest integer; none of a float.
    pub(super) fn range(self) -> Option<(f64, f64)> {
        let Self::Int { bits, signed } = self else { return None };
        let span = f64::from(1u32 << bits);
        Some(if signed { (-span / 2.0, span / 2.0 - 1.0) } else { (0.0, span - 1.0) })
    }

    /// The lowest bits as a byte of the held type.
    fn extended(self, byte: u8) -> u8 {
        let unused = 8u32.saturating_sub(self.bits());
        match self {
            Self::Int { signed: true, .. } => (((byte << unused) as i8) >> unused) as u8,
            Self::Int { signed: false, .. } | Self::Float(_) | Self::Text(_) => (byte << unused) >> unused,
        }
    }
}

/// How a format is stored in its bits.
struct Layout {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    /// The largest code without sign that is a number.
    largest: u32,
    /// The code of what is not a number, where there is one.
    nan: Option<u8>,
    /// The code of an infinity, where there is one.
    infinity: Option<u8>,
    /// Whether there is a zero with a sign.
    signed_zero: bool,
}

impl Format {
    fn layout(self) -> Layout {
        let of = |exponent, mantissa, bias, largest| Layout {
            exponent,
            mantissa,
            bias,
            largest,
            nan: None,
            infinity: None,
            signed_zero: true,
        };
        match self {
            Self::E4M3Fn => Layout { nan: Some(0x7f), ..of(4, 3, 7, 0x7e) },
            Self::E4M3FnUz => Layout { nan: Some(0x80), signed_zero: false, ..of(4, 3, 8, 0x7f) },
            Self::E5M2 => Layout { nan: Some(0x7e), infinity: Some(0x7c), ..of(5, 2, 15, 0x7b) },
            Self::E5M2FnUz => Layout { nan: Some(0x80), signed_zero: false, ..of(5, 2, 16, 0x7f) },
            Self::E2M1 => of(2, 1, 1, 7),
            Self::E8M0 => Layout { nan: Some(0xff), ..of(8, 0, 127, 254) },
        }
    }

    /// The number of a code without sign.
    fn magnitude(self, code: u32) -> f64 {
        let Layout { mantissa, bias, .. } = self.layout();
        let (exponent, fraction) = ((code >> mantissa) as i32, f64::from(code & ((1 << mantissa) - 1)));
        let scale = f64::from(1u32 << mantissa);
        match exponent {
            0 if self != Self::E8M0 => fraction / scale * 2f64.powi(1 - bias),
            _ => (1.0 + fraction / scale) * 2f64.powi(exponent - bias),
        }
    }

    /// The number of every code.
    fn table(self) -> Vec<f64> {
        let layout = self.layout();
        let sign = layout.exponent + layout.mantissa;
        (0..256u32)
            .map(|code| {
                let (negative, rest) = (code >> sign & 1 == 1 && sign < 8, code & ((1 << sign) - 1));
                let is = |special: Option<u8>| special == Some(code as u8) || special == Some(rest as u8);
                let size = match rest {
                    _ if layout.nan == Some(code as u8) => f64::NAN,
                    _ if is(layout.infinity) => f64::INFINITY,
                    rest if rest > layout.largest => f64::NAN,
                    rest => self.magnitude(rest),
                };
                if negative { -size } else { size }
            })
            .collect()
    }

    /// What a number has to be above, in f32, for each code that is at or below its own; the last is where it is too
    /// large. Numbers in the middle go to the even code, powers of two up.
    fn thresholds(self) -> Vec<f64> {
        let largest = self.layout().largest;
        (0..=largest)
            .map(|code| {
                if self == Self::E8M0 {
                    return self.magnitude(code);
                }
                let middle = (self.magnitude(code) + self.magnitude(code + 1)) / 2.0;
                // At the largest, the code that follows is none, but its number is.
                if code % 2 == 1 { f64::from((middle as f32).next_down()) } else { middle }
            })
            .collect()
    }
}

/// How numbers become one of these types.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// What is too large is the largest number, else infinite or not a number.
    pub(super) saturate: bool,
}

/// Numbers, in f32 or their integer type.
pub(super) fn widened(at: &mut At<'_>, x: ValueId, from: Narrow) -> Result<ValueId> {
    match from {
        Narrow::Int { .. } => Ok(x),
        Narrow::Text(_) => Err(of_texts(at)),
        Narrow::Float(format) => {
            let table = at.real_constant(DType::F32, &[256], &format.table())?;
            at.gather(table, x, 0)
        }
    }
}

/// Numbers as one of these types.
pub(super) fn narrowed(at: &mut At<'_>, x: ValueId, to: Narrow, by: Rounding) -> Result<ValueId> {
    match to {
        Narrow::Int { bits, signed } => {
            // The lowest bits, as two's complement has them.
            let wide = at.convert(x, DType::I32)?;
            let span = f64::from(1u32 << bits);
            let half = if signed { span / 2.0 } else { 0.0 };
            let wide = at.binary_scalar(Binary::Add, wide, half)?;
            let wide = at.binary_scalar(Binary::Mod, wide, span)?;
            let wide = at.binary_scalar(Binary::Sub, wide, half)?;
            at.convert(wide, to.held())
        }
        Narrow::Float(format) => bits_of(at, x, format, by),
        Narrow::Text(_) => Err(of_texts(at)),
    }
}

fn of_texts(at: &At<'_>) -> Error {
    at.unsupported("of texts (element type STRING)")
}

fn bits_of(at: &mut At<'_>, x: ValueId, format: Format, by: Rounding) -> Result<ValueId> {
    let layout = format.layout();
    let x = at.convert(x, DType::F32)?;
    let size = at.unary(Unary::Abs, x)?;
    let axis = at.sizes_of(x).len();
    let column = at.with_axis(size, axis)?;
    let thresholds = format.thresholds();
    let table = at.real_constant(DType::F32, &[thresholds.len() as i64], &thresholds)?;
    let above = at.compare(Compare::Gt, column, table)?;
    let above = at.convert(above, DType::I32)?;
    let count = at.reduce(ReduceKind::Sum, above, [axis], false)?;
    let mut code = at.binary_scalar(Binary::Min, count, f64::from(layout.largest))?;
    if !by.saturate {
        let beyond = at.compare_scalar(Compare::Gt, count, f64::from(layout.largest))?;
        if let Some(special) = layout.infinity.or(layout.nan) {
            let special = at.scalar(DType::I32, f64::from(special))?;
            code = at.select(beyond, special, code)?;
        }
    }
    if format != Format::E8M0 {
        let sign = f64::from(1u32 << (layout.exponent + layout.mantissa));
        // Zero has a sign too, which its reciprocal shows; that of an infinity is zero.
        let inverse = at.unary(Unary::Reciprocal, x)?;
        let inverse = at.compare_scalar(Compare::Lt, inverse, 0.0)?;
        let negative = at.compare_scalar(Compare::Lt, x, 0.0)?;
        let negative = at.binary(Binary::Or, negative, inverse)?;
        let signed = at.binary_scalar(Binary::Add, code, sign)?;
        let negative = match layout.signed_zero {
            true => negative,
            false => {
                let proper = at.compare_scalar(Compare::Gt, code, 0.0)?;
                let free = at.compare_scalar(Compare::Lt, code, sign)?;
                let proper = at.and(proper, free)?;
                at.and(negative, proper)?
            }
        };
        code = at.select(negative, signed, code)?;
    }
    let missing = at.unary(Unary::IsNan, x)?;
    // Where there is no such code, it is the zero with a sign, as the standard's reference has it.
    let none = 1u8.checked_shl(layout.exponent + layout.mantissa).unwrap_or(0);
    let nan = at.scalar(DType::I32, f64::from(layout.nan.unwrap_or(none)))?;
    let code = at.select(missing, nan, code)?;
    at.convert(code, DType::U8)
}

/// Operators that move elements, whatever they are.
const MOVES: &[&str] = &[
    "ArrayFeatureExtractor",
    "Concat",
    "Constant",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// Whether an operator reads such elements as they are held. Error: it does not.
pub(super) fn check(at: &At<'_>) -> Result<()> {
    let operands: Vec<Narrow> = (0..at.input_count()).filter_map(|i| at.narrow(i)).collect();
    let Some(first) = operands.first() else { return Ok(()) };
    match at.op_type() {
        "Cast" | "CastLike" | "Shape" | "Size" | "If" | "Loop" | "Scan" => Ok(()),
        "DequantizeLinear" | "QuantizeLinear" | "GatherBlockQuantized" => Ok(()),
        op if MOVES.contains(&op) && operands.iter().all(|one| one == first) => Ok(()),
        "LabelEncoder" if matches!(first, Narrow::Text(_)) => Ok(()),
        _ if operands.iter().any(|one| matches!(one, Narrow::Text(_))) => Err(of_texts(at)),
        _ => Err(at.unsupported("of elements of less than eight bits, or floats of eight,")),
    }
}

/// Says of the results of a move what they hold.
pub(super) fn carry(at: &mut At<'_>) {
    let first = (0..at.input_count()).find_map(|i| at.narrow(i));
    if let Some(narrow) = first.filter(|_| MOVES.contains(&at.op_type())) {
        at.set_narrow(narrow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_codes() {
        let table = Format::E4M3Fn.table();
        assert_eq!((table[0x7e], table[1], table[0x38]), (448.0, 2f64.powi(-9), 1.0));
        assert!(table[0x7f].is_nan() && table[0xff].is_nan());
        assert_eq!(Format::E5M2.table()[0x7c], f64::INFINITY);
        assert_eq!(Format::E4M3FnUz.table()[0x7f], 240.0);
        assert_eq!(Format::E2M1.table()[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(Format::E8M0.table()[127], 1.0);
    }

    #[test]
    fn texts_are_stated_as_texts_and_each_list_once() {
        let mut tables = Texts::default();
        let texts = ["bee", "ant", "bee"].map(String::from);
        let (numbers, table) = tables.numbered(tensor::of_texts(&texts)).unwrap();
        assert_eq!((numbers.int64_data, tables.get(table)), (vec![0, 1, 0], &texts[..2]));
        assert_eq!(tables.add(&texts[..2]), table);
        assert_ne!(tables.add(&texts), table);
        let damages: [fn(&mut TensorProto); 3] = [
            |proto| proto.int64_data.push(7),
            |proto| proto.raw_data = Some(vec![0; 24]),
            |proto| proto.data_location = super::super::proto::EXTERNAL,
        ];
        for damage in damages {
            let mut proto = tensor::of_texts(&texts);
            damage(&mut proto);
            let error = tables.numbered(proto).unwrap_err().to_string();
            assert!(error.contains("string_data"), "{error}");
        }
    }

    #[test]
    fn few_bits_are_unpacked_from_the_lowest() {
        let signed = Narrow::Int { bits: 4, signed: true };
        assert_eq!(signed.unpacked(&[0x87], 2), [7, 0xf8]);
        assert_eq!(Narrow::Int { bits: 2, signed: false }.unpacked(&[0b1110_0100], 4), [0, 1, 2, 3]);
    }
}
