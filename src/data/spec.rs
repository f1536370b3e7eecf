//! The specification of `--data`: where records come from, and which arrays each of them gives.
//!
//! ```text
//! SPEC   := SOURCE [":" OPTION ("," OPTION)*]
//! SOURCE := FILE ("+" FILE)*            files; * and ? in a name stand for any text, any character
//!         | "ones" | "zeros" | "random"  made up
//! OPTION := KEY "=" VALUE
//! LIST   := ITEM ("+" ITEM)*            an item FIRST..LAST is a range of columns
//! ```
//!
//! | option | for | meaning |
//! |---|---|---|
//! | `format=csv\|tsv\|npz\|safetensors\|tfrecord\|raw` | files | else by content and name |
//! | `input=LIST`, `target=LIST` | files | columns, arrays, features or parts of the record |
//! | `input.NAME=LIST`, `target.NAME=LIST` | files | the same for one of several inputs or targets |
//! | `type.NAME=TYPE`, `shape.NAME=28x28` | all | type and sizes where no network says them |
//! | `scale.NAME=S`, `onehot.NAME=N` | files | values times S; a class as N numbers |
//! | `classes.NAME=A+B+C` | CSV, TFRecord | words as their number in this list |
//! | `pad.NAME=V` | lists | records of different lengths, filled up with V |
//! | `list.NAME=space\|semicolon\|...` | CSV | a cell holds a list of numbers |
//! | `header=yes\|no`, `separator=comma\|tab\|semicolon\|space`, `missing=V` | CSV | |
//! | `record=NAME:TYPE[3x32x32]@BYTE+...`, `skip=BYTES`, `endian=big` | raw | the layout of a record |
//! | `stride=BYTES` | raw | from the start of a record to that of the next: records may overlap |
//! | `bytes.NAME=TYPE` | TFRecord | elements of a feature of bytes |
//! | `records=N`, `seed=N`, `fill.NAME=ones`, `below.NAME=N` | made up | integers are below N |

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::DType;

/// Most elements of one record's array: what is more is no record.
pub(super) const MOST_ELEMENTS: u64 = 1 << 31;

/// A format of files with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines of cells.
    Csv,
    /// Arrays whose first axis counts the records.
    Npz,
    /// The same.
    Safetensors,
    /// Framed `tf.train.Example` messages.
    TfRecord,
    /// Records of one size, back to back.
    Raw,
}

/// What made-up records hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Ones.
    Ones,
    /// Zeros.
    Zeros,
    /// Numbers in [0, 1), integers below a bound.
    Random,
}

/// Where records come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum From {
    /// Names or patterns of files.
    Files(Vec<String>),
    /// Nowhere: they are made up.
    Made(Fill),
}

/// What is said about one array beside its items.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldOptions {
    pub(super) dtype: Option<DType>,
    pub(super) shape: Option<Vec<u64>>,
    pub(super) scale: Option<f64>,
    pub(super) onehot: Option<u64>,
    pub(super) classes: Vec<String>,
    pub(super) pad: Option<f64>,
    pub(super) list: Option<u8>,
    pub(super) bytes: Option<DType>,
    pub(super) fill: Option<Fill>,
    pub(super) below: Option<u64>,
}

/// A part of a raw record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordPart {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    /// Where it begins in the record; none: behind the part before it.
    pub(super) at: Option<u64>,
}

/// A specification that was read; see the module for its grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub(super) from: From,
    pub(super) format: Option<Format>,
    /// Declared inputs and targets, by name, in the order of the text.
    pub(super) inputs: Vec<(String, Vec<String>)>,
    pub(super) targets: Vec<(String, Vec<String>)>,
    pub(super) options: BTreeMap<String, FieldOptions>,
    pub(super) header: Option<bool>,
    pub(super) separator: Option<u8>,
    pub(super) missing: Option<f64>,
    pub(super) record: Vec<RecordPart>,
    pub(super) skip: u64,
    pub(super) stride: Option<u64>,
    pub(super) big_endian: bool,
    pub(super) records: Option<u64>,
    pub(super) seed: u64,
}

impl FromStr for Spec {
    type Err = Error;

    /// Error: [`Error::Usage`] with the option at fault.
    fn from_str(text: &str) -> Result<Self> {
        let (source, options) = split_options(text);
        let mut spec = Self::new(source)?;
        let mut given = BTreeSet::new();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or_else(|| wrong(option, "expected KEY=VALUE"))?;
            if !given.insert(key) && !["input", "target"].contains(&key) {
                return Err(wrong(option, &format!("{key} is given twice")));
            }
            spec.set(key, value).map_err(|message| wrong(option, &message))?;
        }
        Ok(spec)
    }
}

fn wrong(option: &str, message: &str) -> Error {
    Error::usage(format!("--data: {option}"), message)
        .with_help("SOURCE:KEY=VALUE,...; for example train.csv:input=x0..x9,target=label")
}

/// The source, and the options after the colon that begins them.
fn split_options(text: &str) -> (&str, &str) {
    let begins = |rest: &str| {
        let key = rest.split('=').next().unwrap_or_default();
        rest.len() > key.len()
            && !key.is_empty()
            && key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
            && !key.contains(['/', ',', ':'])
    };
    let found = text.match_indices(':').find(|(at, _)| begins(&text[at + 1..]));
    found.map_or((text, ""), |(at, _)| (&text[..at], &text[at + 1..]))
}

impl Spec {
    fn new(source: &str) -> Result<Self> {
        let from = match source {
            "ones" => From::Made(Fill::Ones),
            "zeros" => From::Made(Fill::Zeros),
            "random" => From::Made(Fill::Random),
            "" => return Err(wrong("", "no source is given")),
            // A file's name may have a plus of its own.
            file if Path::new(file).is_file() => From::Files(vec![file.to_owned()]),
            files => From::Files(files.split('+').map(str::to_owned).collect()),
        };
        Ok(Self {
            from,
            format: None,
            inputs: Vec::new(),
            targets: Vec::new(),
            options: BTreeMap::new(),
            header: None,
            separator: None,
            missing: None,
            record: Vec::new(),
            skip: 0,
            stride: None,
            big_endian: false,
            records: None,
            seed: 0,
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key.split_once('.') {
            Some(("input", name)) => declare(&mut self.inputs, name, value),
            Some(("target", name)) => declare(&mut self.targets, name, value),
            Some((key, name)) => self.options.entry(name.to_owned()).or_default().set(key, value),
            None => self.set_whole(key, value),
        }
    }

    fn set_whole(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "input" | "inputs" | "x" => declare(&mut self.inputs, "input", value)?,
            "target" | "targets" | "y" => declare(&mut self.targets, "target", value)?,
            "format" => self.set_format(value)?,
            "header" => self.header = Some(yes(value)?),
            "separator" => self.separator = Some(separator(value)?),
            "missing" => self.missing = Some(real(value)?),
            "record" => self.record = value.split('+').map(record_part).collect::<Result<_, _>>()?,
            "skip" => self.skip = whole(value)?,
            "stride" => match whole(value)? {
                0 => return Err("expected bytes, 1 or more".to_owned()),
                bytes => self.stride = Some(bytes),
            },
            "endian" => {
                self.big_endian = match value {
                    "big" => true,
                    "little" => false,
                    _ => return Err("expected big or little".to_owned()),
                }
            }
            "records" => self.records = Some(whole(value)?),
            "seed" => self.seed = whole(value)?,
            _ => return Err(unknown(key)),
        }
        Ok(())
    }

    fn set_format(&mut self, value: &str) -> Result<(), String> {
        self.format = Some(match value {
            "csv" => Format::Csv,
            "tsv" => {
                self.separator.get_or_insert(b'\t');
                Format::Csv
            }
            "npz" => Format::Npz,
            "safetensors" => Format::Safetensors,
            "tfrecord" => Format::TfRecord,
            "raw" => Format::Raw,
            _ => return Err("expected csv, tsv, npz, safetensors, tfrecord or raw".to_owned()),
        });
        Ok(())
    }
}

impl FieldOptions {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "type" => self.dtype = Some(dtype(value)?),
            "shape" => self.shape = Some(shape(value)?),
            "scale" => self.scale = Some(real(value)?),
            "onehot" => self.onehot = Some(whole(value)?),
            "classes" => self.classes = value.split('+').map(str::to_owned).collect(),
            "pad" => self.pad = Some(real(value)?),
            "list" => self.list = Some(separator(value)?),
            "bytes" => self.bytes = Some(dtype(value)?),
            "below" => self.below = Some(whole(value)?),
            "fill" => {
                self.fill = Some(match value {
                    "ones" => Fill::Ones,
                    "zeros" => Fill::Zeros,
                    "random" => Fill::Random,
                    _ => return Err("expected ones, zeros or random".to_owned()),
                });
            }
            _ => return Err(unknown(key)),
        }
        Ok(())
    }
}

fn unknown(key: &str) -> String {
    format!("there is no option {key}")
}

fn declare(fields: &mut Vec<(String, Vec<String>)>, name: &str, value: &str) -> Result<(), String> {
    if fields.iter().any(|(known, _)| known == name) {
        return Err(format!("{name} is given twice"));
    }
    let items: Vec<String> = value.split('+').map(str::to_owned).collect();
    if items.iter().any(String::is_empty) {
        return Err("an item is empty".to_owned());
    }
    fields.push((name.to_owned(), items));
    Ok(())
}

fn yes(value: &str) -> Result<bool, String> {
    match value {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err("expected yes or no".to_owned()),
    }
}

fn separator(value: &str) -> Result<u8, String> {
    Ok(match value {
        "comma" => b',',
        "tab" => b'\t',
        "semicolon" | ";" => b';',
        "space" | " " => b' ',
        "bar" | "|" => b'|',
        _ => return Err("expected comma, tab, semicolon, space or bar".to_owned()),
    })
}

fn real(value: &str) -> Result<f64, String> {
    value.parse().ok().filter(|real: &f64| real.is_finite()).ok_or_else(|| "expected a number".to_owned())
}

fn whole(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| "expected a whole number".to_owned())
}

fn dtype(value: &str) -> Result<DType, String> {
    value.parse().map_err(|()| {
        let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

/// Sizes such as `3x32x32`, or `scalar` for none.
fn shape(value: &str) -> Result<Vec<u64>, String> {
    let expected = || "expected sizes such as 28x28".to_owned();
    if value == "scalar" {
        return Ok(Vec::new());
    }
    let dims: Vec<u64> =
        value.split('x').map(|size| size.parse().map_err(|_| expected())).collect::<Result<_, _>>()?;
    match elements(&dims) {
        Some(_) => Ok(dims),
        None => Err(format!("more than {MOST_ELEMENTS} elements in a record")),
    }
}

/// Number of elements; none where they are too many for one record.
pub(super) fn elements(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).filter(|&all| all <= MOST_ELEMENTS)
}

/// `NAME:TYPE[SIZES]@BYTE`, of which the last two may be left out.
fn record_part(text: &str) -> Result<RecordPart, String> {
    let (name, ty) = text.split_once(':').ok_or("expected NAME:TYPE[SIZES], such as label:u8")?;
    let (ty, at) = match ty.split_once('@') {
        None => (ty, None),
        Some((ty, at)) => (ty, Some(whole(at)?)),
    };
    let (ty, dims) = match ty.split_once('[') {
        None => (ty, Vec::new()),
        Some((ty, dims)) => (ty, shape(dims.strip_suffix(']').ok_or("a bracket is not closed")?)?),
    };
    Ok(RecordPart { name: name.to_owned(), dtype: dtype(ty)?, dims, at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn a_specification_is_read() {
        let spec: Spec =
            "a.csv+b*.csv:input=x0..x3+z,target=label,type.target=i64,header=yes".parse().unwrap();
        assert_eq!(spec.from, From::Files(vec!["a.csv".into(), "b*.csv".into()]));
        assert_eq!(spec.inputs, [("input".to_owned(), vec!["x0..x3".to_owned(), "z".to_owned()])]);
        assert_eq!(spec.options["target"].dtype, Some(DType::I64));
        assert_eq!(spec.header, Some(true));
        let raw: Spec = "cifar.bin:record=label:u8+image:u8[3x32x32],skip=16".parse().unwrap();
        assert_eq!(raw.record[1].dims, [3, 32, 32]);
        assert_eq!((raw.record[0].dims.len(), raw.skip), (0, 16));
        let text: Spec = "a.txt:format=raw,record=x:u8[64]+y:u8[64]@1,stride=16".parse().unwrap();
        assert_eq!((text.record[0].at, text.record[1].at, text.stride), (None, Some(1), Some(16)));
    }

    #[test]
    fn colons_of_a_path_are_no_options() {
        let spec: Spec = "/data/a:b.csv".parse().unwrap();
        assert_eq!(spec.from, From::Files(vec!["/data/a:b.csv".into()]));
    }

    #[test]
    fn faults_name_the_option() {
        assert!(fault("a.csv:inptu=x").contains("--data: inptu=x: there is no option inptu"));
        assert!(fault("a.csv:type.x=float").contains("expected one of f32"));
        assert!(fault("a.csv:input=a,input=b").contains("twice"));
        assert!(fault("a.csv:shape.x=9999999999x9999999999").contains("elements"));
        assert!(fault("").contains("no source"));
        assert!(fault("r.bin:record=a:u8[2").contains("bracket"));
        assert!(fault("r.bin:record=a:u8,stride=0").contains("1 or more"));
    }
}
