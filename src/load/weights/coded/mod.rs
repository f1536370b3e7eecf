//! Matrices that a tool which quantises checkpoints stores as several arrays each ([`Coding`]): integers, scales, zero points.
//!
//! Each is one array here, by the name that networks have for it: it is given in f32, or, where its groups are held packed,
//! as a piece of packed rows. What belongs to it is no array of its own. Sizes follow from the headers of the arrays, which
//! the file vouches for, and are compared with one another before anything is made of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Arrays, Source};
use crate::error::{Error, Report, Result};
use crate::ir::{BlockFormat, Coding, DType, Piece, Tensor};

mod groups;
mod halved;
mod shared;
mod table;
mod words;

use groups::Groups;

/// More experts in an array are none.
const MOST_EXPERTS: u64 = 1 << 16;

/// What of a file's arrays is coded.
#[derive(Debug)]
pub(super) struct Coded {
    coding: Coding,
    /// What the arrays of a matrix begin with, by the matrix's name.
    matrices: BTreeMap<String, String>,
}

/// How the numbers of a matrix are made.
enum Kind<'a> {
    Groups(Groups<'a>),
    Table(table::Table<'a>),
    Halved(halved::Halved<'a>),
    Shared(shared::Shared<'a>),
}

impl Arrays {
    /// The same file, with coded matrices as arrays. O(arrays), sorted.
    pub fn read_as(mut self, coding: Option<Coding>) -> Self {
        let Some(coding) = coding else { return self };
        let found = self.names.iter().flat_map(|name| self.matrices(coding, name)).collect::<Vec<_>>();
        let own: BTreeSet<String> = found
            .iter()
            .flat_map(|(_, stem)| parts(coding).iter().map(move |end| format!("{stem}{end}")))
            .collect();
        self.names.retain(|name| !own.contains(name));
        let matrices: BTreeMap<String, String> = found.into_iter().collect();
        self.names.extend(matrices.keys().cloned());
        self.coded = Some(Coded { coding, matrices });
        self
    }

    /// The names of the matrices whose integers an array holds, and what their arrays begin with.
    fn matrices(&self, coding: Coding, name: &str) -> Vec<(String, String)> {
        let Some((matrix, stem)) = self.matrix(coding, name) else { return Vec::new() };
        if coding != Coding::Mxfp4 {
            return vec![(matrix, stem)];
        }
        let header = self.header(name).ok().flatten();
        let experts =
            header.and_then(|(_, dims)| dims.first().copied()).filter(|&count| count <= MOST_EXPERTS);
        (0..experts.unwrap_or(0)).map(|number| (format!("{matrix}/{number}"), stem.clone())).collect()
    }

    /// The name of the matrix whose integers an array holds, and what its arrays begin with; none where it holds none.
    fn matrix(&self, coding: Coding, name: &str) -> Option<(String, String)> {
        let stem = |end: &str| name.strip_suffix(end).map(str::to_owned);
        let weight = |stem: String| (format!("{stem}weight"), stem);
        match coding {
            Coding::Gptq { .. } | Coding::Awq => stem("qweight").map(weight),
            Coding::Words { .. } | Coding::Mxfp4Rows | Coding::Nvfp4 { is_divided: true } => {
                stem("weight_packed").map(weight)
            }
            Coding::Nvfp4 { is_divided: false } => {
                let stem = stem("weight")?;
                self.holds_bytes(name, &format!("{stem}weight_scale_2")).then(|| weight(stem))
            }
            Coding::Bytes { .. } => {
                let stem = stem("weight")?;
                self.holds_bytes(name, &format!("{stem}weight_scale")).then(|| weight(stem))
            }
            Coding::BitsAndBytes => {
                let stem = stem("weight")?;
                let beside = ["SCB", "weight.absmax"];
                beside.iter().any(|end| self.holds_bytes(name, &format!("{stem}{end}"))).then(|| weight(stem))
            }
            Coding::Mxfp4 => stem("_blocks").map(|stem| (stem.clone(), stem)),
        }
    }

    /// Whether an array is of bytes and another one is there.
    fn holds_bytes(&self, name: &str, beside: &str) -> bool {
        let dtype = self.header(name).ok().flatten().map(|(dtype, _)| dtype);
        matches!(dtype, Some(DType::I8 | DType::U8)) && self.holds(beside)
    }

    /// Whether an array is a matrix that several arrays make.
    pub(super) fn is_coded(&self, name: &str) -> bool {
        self.coded.as_ref().is_some_and(|coded| coded.matrices.contains_key(name))
    }

    /// How the numbers of a coded matrix are made; none of other arrays.
    fn kind(&self, name: &str) -> Option<Kind<'_>> {
        let coded = self.coded.as_ref()?;
        let stem = coded.matrices.get(name)?;
        Some(match coded.coding {
            Coding::Mxfp4 => {
                let expert = Some(name.rsplit_once('/')?.1.parse().ok()?);
                Kind::Halved(halved::Halved { arrays: self, stem, expert })
            }
            Coding::Mxfp4Rows => Kind::Halved(halved::Halved { arrays: self, stem, expert: None }),
            Coding::Nvfp4 { is_divided } => Kind::Shared(shared::Shared { arrays: self, stem, is_divided }),
            Coding::BitsAndBytes if !self.holds(&format!("{stem}SCB")) => {
                Kind::Table(table::Table { arrays: self, stem })
            }
            coding => Kind::Groups(Groups { arrays: self, stem, coding }),
        })
    }

    /// Type and sizes of a coded matrix; none of other arrays. Error: its arrays do not fit one another.
    pub(super) fn coded_header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        let dims = match self.kind(name) {
            None => return Ok(None),
            Some(Kind::Groups(groups)) => groups.dims().map(Vec::from),
            Some(Kind::Table(table)) => table.dims(),
            Some(Kind::Halved(halved)) => halved.dims(),
            Some(Kind::Shared(shared)) => shared.dims(),
        };
        dims.map(|dims| Some((DType::F32, dims))).map_err(|error| self.at(error, name))
    }

    /// The numbers of a coded matrix; none of other arrays. Error: its arrays do not fit one another.
    pub(super) fn coded_numbers(&self, name: &str) -> Result<Option<Tensor>> {
        let numbers = match self.kind(name) {
            None => return Ok(None),
            Some(Kind::Groups(groups)) => groups.numbers(),
            Some(Kind::Table(table)) => table.numbers(),
            Some(Kind::Halved(halved)) => halved.numbers(),
            Some(Kind::Shared(shared)) => shared.numbers(),
        };
        numbers.map(Some).map_err(|error| self.at(error, name))
    }

    /// A piece of the packed rows that a coded matrix is; none of arrays that are none. Errors: its groups are others than
    /// these, or their columns are not neighbours.
    pub fn piece(&self, name: &str, format: BlockFormat, piece: Piece) -> Result<Option<Tensor>> {
        match self.kind(name) {
            Some(Kind::Groups(groups)) => {
                groups.piece(format, piece).map(Some).map_err(|error| self.at(error, name))
            }
            Some(Kind::Table(_) | Kind::Halved(_) | Kind::Shared(_)) | None => Ok(None),
        }
    }

    /// The blocks that a coded matrix is given in as it lies; none of others.
    pub(super) fn coded_blocks(&self, name: &str) -> Option<BlockFormat> {
        matches!(self.kind(name), Some(Kind::Halved(_))).then_some(BlockFormat::Mxfp4)
    }

    /// The bytes of such blocks. Error: its arrays do not fit one another.
    pub(super) fn coded_rows(&self, name: &str) -> Result<Option<Tensor>> {
        match self.kind(name) {
            Some(Kind::Halved(halved)) => {
                halved.rows_of_blocks().map(Some).map_err(|error| self.at(error, name))
            }
            Some(Kind::Groups(_) | Kind::Table(_) | Kind::Shared(_)) | None => Ok(None),
        }
    }

    /// So many bytes of an array that a matrix is made of, from one on. Errors: it is not there, or has fewer.
    fn part_of_part(&self, name: &str, start: u64, count: u64) -> Result<Vec<u8>> {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.bytes(name, start, count),
            Source::Shards(shards) => match shards.of(name) {
                Some(arrays) => arrays.part_of_part(name, start, count),
                None => Err(Error::model("", format!("there is no array {name} beside it"))),
            },
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => {
                Err(Error::model("", "matrices of few bits are read from safetensors"))
            }
        }
    }

    /// Whether an array is a summand of a coded layer and holds nothing but zeros: tools write some for layers that have none.
    pub(super) fn is_idle_bias(&self, name: &str) -> Result<bool> {
        let Some(stem) = name.strip_suffix("bias") else { return Ok(false) };
        if !self.is_coded(&format!("{stem}weight")) {
            return Ok(false);
        }
        Ok(self.raw(name)?.is_some_and(|bias| bias.to_f64().iter().all(|&number| number == 0.0)))
    }

    /// Type and sizes of an array that a matrix is made of. Error: it is not there.
    fn part_header(&self, name: &str) -> Result<(DType, Vec<u64>)> {
        self.raw_header(name)?.ok_or_else(|| Error::model("", format!("there is no array {name} beside it")))
    }

    /// An array that a matrix is made of. Errors: it is not there, or of another type.
    fn part(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let (found, _) = self.part_header(name)?;
        if found != dtype {
            return Err(Error::model("", format!("its {name} is {found}, expected {dtype}")));
        }
        self.raw(name)?.ok_or_else(|| Error::Internal("an array that was found".into()))
    }

    /// An array of floats that a matrix is made of, in f32. Errors: it is not there, or holds no floats.
    fn part_of_floats(&self, name: &str) -> Result<Tensor> {
        let (dtype, _) = self.part_header(name)?;
        let found = self.raw(name)?.ok_or_else(|| Error::Internal("an array that was found".into()))?;
        match dtype {
            DType::F32 => Ok(found),
            _ if dtype.is_half() => found.widened(),
            _ => Err(Error::model("", format!("its {name} is {dtype}, expected floats of 16 or 32 bits"))),
        }
    }
}

/// How the names of a matrix's arrays end, behind what they begin with.
fn parts(coding: Coding) -> &'static [&'static str] {
    match coding {
        Coding::Gptq { .. } | Coding::Awq => &["qweight", "qzeros", "scales", "g_idx"],
        Coding::Words { .. } => {
            &["weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"]
        }
        Coding::Bytes { .. } => &["weight", "weight_scale", "weight_zero_point"],
        Coding::BitsAndBytes => &[
            "weight",
            "SCB",
            "weight_format",
            "weight.absmax",
            "weight.quant_map",
            "weight.nested_absmax",
            "weight.nested_quant_map",
            "weight.quant_state.bitsandbytes__nf4",
            "weight.quant_state.bitsandbytes__fp4",
        ],
        Coding::Mxfp4 => &["_blocks", "_scales"],
        Coding::Mxfp4Rows => &["weight_packed", "weight_scale"],
        Coding::Nvfp4 { is_divided: true } => {
            &["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"]
        }
        Coding::Nvfp4 { is_divided: false } => &["weight", "weight_scale", "weight_scale_2", "input_scale"],
    }
}

/// The error for a matrix that is not held as a plan has it.
fn not_as_planned(message: String) -> Error {
    Error::Model(Report::new("", message).help("plan with --weights-as f32, q8_0 or q4_0"))
}

/// So many numbers of a product of sizes. Error: they overflow.
fn whole(sizes: &[u64]) -> Result<usize> {
    let bytes = super::byte_count(DType::F32, sizes)?;
    usize::try_from(bytes / DType::F32.size()).map_err(super::damaged)
}
