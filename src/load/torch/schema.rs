//! The JSON of an exported program (`torch/_export/serde/schema.py`, major version 8): the fields that are read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Report, Result};
use crate::ir::DType;
use crate::load::onnx::model_builder::SmallFloat;

/// What [`super::archive`] writes.
#[derive(Deserialize)]
pub(super) struct Document {
    #[serde(rename = "torch_export")]
    pub(super) program: Program,
    #[serde(default)]
    pub(super) name: String,
    /// Parameters, buffers and constants by their names in the module.
    pub(super) arrays: BTreeMap<String, StoredArray>,
}

/// The bytes of an array: at a place of the archive, or as hexadecimal digits.
#[derive(Deserialize)]
pub(super) struct StoredArray {
    pub(super) meta: TensorMeta,
    /// Where its bytes lie in the file, also those that stand here as digits.
    #[serde(default)]
    pub(super) offset: u64,
    #[serde(default)]
    pub(super) length: u64,
    #[serde(default)]
    pub(super) digits: Option<String>,
    /// Its elements row by row, where they do not lie so in the file.
    #[serde(skip)]
    pub(super) bytes: Option<Vec<u8>>,
}

#[derive(Deserialize)]
pub(super) struct Program {
    pub(super) graph_module: GraphModule,
    pub(super) schema_version: Version,
    /// Between which bounds a symbol may be, by name.
    #[serde(default)]
    pub(super) range_constraints: BTreeMap<String, Range>,
}

#[derive(Deserialize)]
pub(super) struct Range {
    /// A number, or nothing that is one.
    #[serde(default)]
    pub(super) min_val: Value,
}

#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) major: u64,
    pub(super) minor: u64,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: Graph,
    pub(super) signature: Signature,
}

#[derive(Deserialize)]
pub(super) struct Signature {
    /// Each an object of one field, which says the kind.
    pub(super) input_specs: Vec<BTreeMap<String, Value>>,
    pub(super) output_specs: Vec<BTreeMap<String, Value>>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) inputs: Vec<Argument>,
    #[serde(default)]
    pub(super) outputs: Vec<Argument>,
    pub(super) tensor_values: BTreeMap<String, TensorMeta>,
    /// What whole numbers are that follow from sizes.
    #[serde(default)]
    pub(super) sym_int_values: BTreeMap<String, Argument>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Node {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    pub(super) outputs: Vec<Argument>,
    #[serde(default)]
    pub(super) name: Option<String>,
}

#[derive(Clone, Deserialize)]
pub(super) struct NamedArgument {
    pub(super) name: String,
    pub(super) arg: Argument,
}

/// An object of one field, which says the kind: `{"as_int": 3}`.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Argument(pub(super) BTreeMap<String, Value>);

impl Argument {
    /// Kind and value.
    pub(super) fn parts(&self) -> (&str, &Value) {
        self.0.iter().next().map_or(("as_none", &Value::Null), |(kind, value)| (kind.as_str(), value))
    }

    pub(super) fn is_true(&self) -> bool {
        matches!(self.parts(), ("as_bool", Value::Bool(true)))
    }

    /// Whether it is an order of memory: rows (1) or channels (2, 3) last, and not the one that is there.
    pub(super) fn orders_memory(&self) -> bool {
        matches!(self.parts(), ("as_memory_format", value) if matches!(value.as_u64(), Some(1..=3)))
    }

    /// The name of the tensor or number that it is.
    pub(super) fn name(&self) -> Option<&str> {
        match self.parts() {
            ("as_tensor", value) => value.get("name")?.as_str(),
            ("as_sym_int" | "as_sym_float" | "as_sym_bool", value) => value.get("as_name")?.as_str(),
            _ => None,
        }
    }

    /// The names of the tensors in a list; empty for one that is absent.
    pub(super) fn names(&self) -> Option<Vec<&str>> {
        match self.parts() {
            ("as_tensors", Value::Array(tensors)) => {
                tensors.iter().map(|tensor| tensor.get("name")?.as_str()).collect()
            }
            ("as_optional_tensors", Value::Array(tensors)) => tensors
                .iter()
                .map(|tensor| match tensor.get("as_tensor") {
                    Some(tensor) => tensor.get("name")?.as_str(),
                    None => Some(""),
                })
                .collect(),
            _ => None,
        }
    }
}

/// What is known of a tensor.
#[derive(Clone, Deserialize)]
pub(super) struct TensorMeta {
    dtype: u64,
    pub(super) sizes: Vec<Argument>,
    #[serde(default)]
    pub(super) strides: Vec<Argument>,
    #[serde(default)]
    pub(super) storage_offset: Option<Argument>,
    /// Of a parameter: whether training moves it.
    #[serde(default)]
    pub(super) requires_grad: bool,
}

impl TensorMeta {
    /// Its element type; of complex numbers that of their parts. Error: it is not supported.
    pub(super) fn dtype(&self) -> Result<DType> {
        dtype(self.dtype)
    }

    /// The number that stands for its element type.
    pub(super) const fn type_number(&self) -> u64 {
        self.dtype
    }

    /// What is known of it where it is converted to another element type.
    pub(super) fn converted(&self, type_number: u64) -> Self {
        Self { dtype: type_number, requires_grad: false, ..self.clone() }
    }

    /// What is known of one of its rows.
    pub(super) fn row(&self) -> Self {
        let behind = |all: &[Argument]| all.iter().skip(1).cloned().collect();
        Self {
            dtype: self.dtype,
            sizes: behind(&self.sizes),
            strides: behind(&self.strides),
            storage_offset: None,
            requires_grad: false,
        }
    }

    /// What is known of a row that has it as its one element.
    pub(super) fn as_row(&self) -> Self {
        let one = Argument([("as_int".to_owned(), Value::from(1))].into());
        let (sizes, strides) = (vec![one.clone()], vec![one]);
        Self { sizes, strides, storage_offset: None, requires_grad: false, dtype: self.dtype }
    }

    /// What ONNX calls floats of 8 bits; none where its elements are others.
    pub(super) fn small_float(&self) -> Option<SmallFloat> {
        Some(match self.dtype {
            29 => SmallFloat::E4M3Fn,
            30 => SmallFloat::E5M2,
            31 => SmallFloat::E4M3FnUz,
            32 => SmallFloat::E5M2FnUz,
            _ => return None,
        })
    }

    /// Whether each element has a real and an imaginary part.
    pub(super) fn is_complex(&self) -> bool {
        (9..=11).contains(&self.dtype)
    }

    /// Whether its elements are of the type of another tensor's. Error: one is not supported.
    pub(super) fn is_of_type_of(&self, other: &Self) -> Result<bool> {
        self.dtype().and(other.dtype()).map(|_| self.dtype == other.dtype)
    }

    /// Its sizes where they are numbers.
    pub(super) fn dims(&self) -> Option<Vec<i64>> {
        self.sizes.iter().map(size).collect()
    }

    /// Which bytes of its memory are its elements, row by row; none where they do not lie so.
    pub(super) fn part_of_memory(&self) -> Option<std::ops::Range<u64>> {
        let size = self.dtype().ok()?.size() * if self.is_complex() { 2 } else { 1 };
        let bytes = |count: i64| u64::try_from(count).ok()?.checked_mul(size);
        let count = match self.in_memory()? {
            InMemory::Rows(dims) | InMemory::Permuted(dims, _) => match dims.contains(&0) {
                true => 0,
                false => dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim))?,
            },
            InMemory::Apart(span, _) => span,
        };
        let start = bytes(self.begins_at()?)?;
        Some(start..start.checked_add(bytes(count)?)?)
    }

    /// How its elements lie in memory; none where sizes are open, or for both parts of complex numbers that lie apart.
    pub(super) fn in_memory(&self) -> Option<InMemory> {
        let dims = self.dims()?;
        // Without strides nothing says otherwise.
        if self.strides.is_empty() || self.is_dense()? {
            return Some(InMemory::Rows(dims));
        }
        let strides: Vec<i64> = self.strides.iter().map(size).collect::<Option<_>>()?;
        if self.is_complex() || strides.len() != dims.len() || strides.iter().any(|&stride| stride < 0) {
            return None;
        }
        // Axes from the one whose elements are furthest apart.
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
        let mut expected = 1i64;
        let mut is_permuted = true;
        for &axis in order.iter().rev().filter(|&&axis| dims[axis] != 1) {
            is_permuted &= strides[axis] == expected;
            expected = expected.checked_mul(dims[axis])?;
        }
        if is_permuted {
            let laid = order.iter().map(|&axis| dims[axis]).collect();
            return Some(InMemory::Permuted(laid, order));
        }
        let last = dims
            .iter()
            .zip(&strides)
            .try_fold(0i64, |last, (&dim, &stride)| last.checked_add((dim - 1).checked_mul(stride)?));
        Some(InMemory::Apart(last?.checked_add(1)?, strides))
    }

    /// The place of its first element in its memory; none where it is open.
    pub(super) fn begins_at(&self) -> Option<i64> {
        self.storage_offset.as_ref().map_or(Some(0), size)
    }

    /// Whether it has the strides of another one; none where open sizes decide.
    pub(super) fn is_laid_out_as(&self, other: &Self) -> Option<bool> {
        if self.strides.len() != self.sizes.len() || other.strides.len() != self.strides.len() {
            return None;
        }
        let pairs = self.strides.iter().zip(&other.strides);
        let same: Vec<Option<bool>> = pairs
            .map(|(own, other)| match (size(own), size(other)) {
                (Some(own), Some(other)) => Some(own == other),
                _ => (own.parts() == other.parts()).then_some(true),
            })
            .collect();
        if same.contains(&Some(false)) {
            return Some(false);
        }
        same.into_iter().collect::<Option<Vec<bool>>>().map(|_| true)
    }

    /// Whether its elements lie row by row, with nothing between them; none where open sizes decide.
    pub(super) fn is_dense(&self) -> Option<bool> {
        if self.sizes.len() != self.strides.len() {
            return Some(false);
        }
        if self.sizes.iter().any(|dim| size(dim) == Some(0)) {
            return Some(true);
        }
        let mut expected = Some(1i64);
        for (dim, stride) in self.sizes.iter().zip(&self.strides).rev() {
            let (dim, stride) = (size(dim), size(stride));
            if dim == Some(1) {
                continue;
            }
            match (stride, expected) {
                (Some(stride), Some(expected)) if stride != expected => return Some(false),
                (Some(_), Some(_)) => {}
                _ => return None,
            }
            expected = dim.and_then(|dim| expected?.checked_mul(dim));
        }
        Some(true)
    }
}

/// How the elements of a tensor lie in memory.
pub(super) enum InMemory {
    /// Row by row, in these sizes.
    Rows(Vec<i64>),
    /// As rows of these sizes, which are those of the tensor's axes in this order.
    Permuted(Vec<i64>, Vec<usize>),
    /// Among so many elements, so far from one another along each axis.
    Apart(i64, Vec<i64>),
}

/// A size that is a number.
pub(super) fn size(argument: &Argument) -> Option<i64> {
    match argument.parts() {
        ("as_int", value) => value.as_i64(),
        _ => None,
    }
}

/// The element type with PyTorch's number in the schema, of complex numbers (9 to 11) that of their parts. Error: it is
/// not supported.
fn dtype(number: u64) -> Result<DType> {
    Ok(match number {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        9 => DType::F16,
        10 => DType::F32,
        11 => DType::F64,
        12 => DType::Bool,
        13 => DType::Bf16,
        28 => DType::U16,
        // Floats of 8 bits are bytes, which the graph knows to be floats.
        29..=32 => DType::U8,
        other => {
            let message = format!("element type {other} of torch.export is not supported yet");
            return Err(Error::Unsupported(Report::new("", message)));
        }
    })
}
