//! Values of records as the elements that a network takes.

use crate::ir::DType;
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// A value of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// A whole number.
    Int(i64),
    /// Any other.
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Real(value) => value,
        }
    }

    /// The whole number that this is; none where it has a fraction.
    fn whole(self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(value),
            Self::Real(value) => (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64),
        }
    }
}

/// How the values of one field become elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Encoding {
    /// Type of the elements.
    pub(super) dtype: DType,
    /// Values are multiplied by this.
    pub(super) scale: Option<f64>,
    /// A value is a class, and becomes this many elements of which one is 1.
    pub(super) onehot: Option<u64>,
    /// Words, each of which stands for its number.
    pub(super) classes: Vec<String>,
}

impl Encoding {
    /// Whether elements are the values themselves.
    pub(super) fn is_plain(&self) -> bool {
        self.scale.is_none() && self.onehot.is_none()
    }

    /// Elements that each value becomes.
    pub(super) fn width(&self) -> u64 {
        self.onehot.unwrap_or(1)
    }

    /// Appends the elements of a value. Error, in words: the type does not hold it, it is no class.
    pub(crate) fn push(&self, value: Number, out: &mut Vec<u8>) -> Result<(), String> {
        let value = match self.scale {
            Some(scale) => Number::Real(value.real() * scale),
            None => value,
        };
        let Some(classes) = self.onehot else { return push(self.dtype, value, out) };
        let class =
            value.whole().and_then(|class| u64::try_from(class).ok()).filter(|&class| class < classes);
        let class = class.ok_or_else(|| format!("{} is no class below {classes}", value.real()))?;
        (0..classes).try_for_each(|one| push(self.dtype, Number::Int(i64::from(one == class)), out))
    }

    /// Appends the elements of one value so many times. Error: as [`Encoding::push`].
    pub(super) fn repeat(&self, value: Number, times: usize, out: &mut Vec<u8>) -> Result<(), String> {
        let mut one = Vec::new();
        self.push(value, &mut one)?;
        out.extend_from_slice(&one.repeat(times));
        Ok(())
    }

    /// Appends the elements of a word: a class's name, or a number.
    pub(super) fn push_text(&self, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
        let text = text.trim();
        if !self.classes.is_empty() {
            let class = self.classes.iter().position(|class| class == text);
            let class = class.ok_or_else(|| {
                let known: Vec<&str> = self.classes.iter().take(20).map(String::as_str).collect();
                format!("{:?} is none of its classes: {}", shown(text), known.join(", "))
            })?;
            return self.push(Number::Int(class as i64), out);
        }
        self.push(number(text)?, out)
    }
}

/// The number that a text is. Error, in words: it is none.
pub(super) fn number(text: &str) -> Result<Number, String> {
    if let Ok(value) = text.parse() {
        return Ok(Number::Int(value));
    }
    match text {
        "true" | "True" | "TRUE" => Ok(Number::Int(1)),
        "false" | "False" | "FALSE" => Ok(Number::Int(0)),
        _ => match text.parse::<f64>() {
            // Digits of a number that is too large are not the word for infinity.
            Ok(value) if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) => {
                Err(format!("{:?} is too large a number", shown(text)))
            }
            Ok(value) => Ok(Number::Real(value)),
            Err(_) => Err(format!("{:?} is no number", shown(text))),
        },
    }
}

/// As much of a cell as a message shows.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Appends one element. Error, in words: the type does not hold the value.
pub(crate) fn push(dtype: DType, value: Number, out: &mut Vec<u8>) -> Result<(), String> {
    let outside = || format!("{} is no {dtype}", value.real());
    // What is infinite in a narrower type, and was not, does not fit.
    let held = |narrow: f32| {
        let fits = narrow.is_finite() || !value.real().is_finite();
        fits.then_some(()).ok_or_else(outside)
    };
    let single = match value {
        Number::Int(value) => value as f32,
        Number::Real(value) => value as f32,
    };
    let whole = || value.whole().ok_or_else(outside);
    match dtype {
        DType::F32 => {
            held(single)?;
            out.extend(single.to_le_bytes());
        }
        DType::F64 => out.extend(value.real().to_le_bytes()),
        DType::F16 => {
            let half = f32_to_f16(single);
            held(f16_to_f32(half))?;
            out.extend(half.to_le_bytes());
        }
        DType::Bf16 => {
            let half = f32_to_bf16(single);
            held(bf16_to_f32(half))?;
            out.extend(half.to_le_bytes());
        }
        DType::I64 => out.extend(whole()?.to_le_bytes()),
        DType::I32 => out.extend(i32::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::I16 => out.extend(i16::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::I8 => out.extend(i8::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::U8 => out.push(u8::try_from(whole()?).map_err(|_| outside())?),
        DType::U16 => out.extend(u16::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::U32 => out.extend(u32::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::U64 => out.extend(u64::try_from(whole()?).map_err(|_| outside())?.to_le_bytes()),
        DType::Bool => out.push(u8::from(value.real() != 0.0)),
    }
    Ok(())
}

/// The value of the first element of `bytes`, which hold at least one.
pub(super) fn value(dtype: DType, bytes: &[u8]) -> Number {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut element = [0; N];
        element.copy_from_slice(&bytes[..N]);
        element
    }
    match dtype {
        DType::F32 => Number::Real(f32::from_le_bytes(first(bytes)).into()),
        DType::F64 => Number::Real(f64::from_le_bytes(first(bytes))),
        DType::F16 => Number::Real(f16_to_f32(u16::from_le_bytes(first(bytes))).into()),
        DType::Bf16 => Number::Real(bf16_to_f32(u16::from_le_bytes(first(bytes))).into()),
        DType::I8 => Number::Int(i64::from(bytes[0] as i8)),
        DType::I16 => Number::Int(i16::from_le_bytes(first(bytes)).into()),
        DType::I32 => Number::Int(i32::from_le_bytes(first(bytes)).into()),
        DType::I64 => Number::Int(i64::from_le_bytes(first(bytes))),
        DType::U8 | DType::Bool => Number::Int(bytes[0].into()),
        DType::U16 => Number::Int(u16::from_le_bytes(first(bytes)).into()),
        DType::U32 => Number::Int(u32::from_le_bytes(first(bytes)).into()),
        DType::U64 => match i64::try_from(u64::from_le_bytes(first(bytes))) {
            Ok(whole) => Number::Int(whole),
            Err(_) => Number::Real(u64::from_le_bytes(first(bytes)) as f64),
        },
    }
}

/// Appends elements of type `from`, as `encoding` says.
pub(super) fn convert(
    encoding: &Encoding,
    from: DType,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    if encoding.dtype == from && encoding.is_plain() {
        out.extend_from_slice(bytes);
        return Ok(());
    }
    bytes.chunks_exact(from.size() as usize).try_for_each(|element| encoding.push(value(from, element), out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_type_does_not_hold_are_refused_and_infinities_are_not() {
        for (dtype, text, fits) in [
            (DType::F32, "3e38", true),
            (DType::F32, "1e39", false),
            (DType::F32, "-inf", true),
            (DType::F16, "65504", true),
            (DType::F16, "70000", false),
            (DType::Bf16, "1e39", false),
            (DType::F64, "1e300", true),
            (DType::F64, "1e400", false),
        ] {
            let pushed = encoding(dtype).push_text(text, &mut Vec::new());
            assert_eq!(pushed.is_ok(), fits, "{text} as {dtype}");
        }
    }

    fn encoding(dtype: DType) -> Encoding {
        Encoding { dtype, scale: None, onehot: None, classes: Vec::new() }
    }

    #[test]
    fn values_keep_to_their_type() {
        let mut out = Vec::new();
        encoding(DType::I8).push_text(" -128 ", &mut out).unwrap();
        assert_eq!(out, [0x80]);
        assert!(encoding(DType::I8).push_text("128", &mut out).is_err());
        assert!(encoding(DType::U8).push_text("1.5", &mut out).unwrap_err().contains("no u8"));
        assert!(encoding(DType::F32).push_text("1,5", &mut out).unwrap_err().contains("no number"));
        assert_eq!(out, [0x80]);
    }

    #[test]
    fn classes_become_numbers_and_vectors() {
        let classes = vec!["cat".to_owned(), "dog".to_owned()];
        let encoding = Encoding { onehot: Some(2), classes, ..encoding(DType::U8) };
        let mut out = Vec::new();
        encoding.push_text("dog", &mut out).unwrap();
        assert_eq!(out, [0, 1]);
        assert!(encoding.push_text("cow", &mut out).is_err());
        assert!(encoding.push(Number::Int(2), &mut out).is_err());
    }

    #[test]
    fn every_type_survives_conversion() {
        for dtype in DType::ALL {
            let mut out = Vec::new();
            push(dtype, Number::Int(1), &mut out).unwrap();
            assert_eq!(out.len() as u64, dtype.size());
            let mut wide = Vec::new();
            convert(&encoding(DType::F64), dtype, &out, &mut wide).unwrap();
            assert_eq!(wide, 1f64.to_le_bytes());
        }
    }
}
