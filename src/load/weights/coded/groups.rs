//! Integers in groups along the rows of a matrix, each with a scale and some with a zero point: `(q - zero) * scale` in f32.

use super::super::Arrays;
use super::words::{Along, Order, Packing, packed, turned};
use super::{Error, Result, not_as_planned, whole};
use crate::ir::{BlockFormat, Coding, DType, Piece, Tensor};

/// A matrix, and how its arrays hold it.
pub(super) struct Groups<'a> {
    pub(super) arrays: &'a Arrays,
    /// What the names of its arrays begin with.
    pub(super) stem: &'a str,
    pub(super) coding: Coding,
}

/// One number for each group: row by row of the matrix.
struct OfGroups<T> {
    /// Groups of a row.
    blocks: u64,
    numbers: Vec<T>,
}

/// What makes an unsigned byte of a signed one, the middle of whose range is 128.
const SIGN: u8 = 0x80;

impl Groups<'_> {
    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.stem)
    }

    fn bits(&self) -> u8 {
        match self.coding {
            Coding::Gptq { bits, .. } | Coding::Words { bits, .. } => bits,
            Coding::Awq | Coding::Mxfp4 | Coding::Mxfp4Rows | Coding::Nvfp4 { .. } => 4,
            Coding::Bytes { .. } | Coding::BitsAndBytes => 8,
        }
    }

    /// How integers are in words; none where each is a byte.
    fn packing(&self) -> Option<Packing> {
        let (order, along) = match self.coding {
            Coding::Gptq { .. } => (Order::Neighbours, Along::Rows),
            Coding::Awq => (Order::EvenFirst, Along::Columns),
            Coding::Words { .. } => (Order::Neighbours, Along::Columns),
            Coding::Bytes { .. }
            | Coding::BitsAndBytes
            | Coding::Mxfp4
            | Coding::Mxfp4Rows
            | Coding::Nvfp4 { .. } => return None,
        };
        Some(Packing { bits: self.bits(), order, along })
    }

    /// How zero points are in words.
    fn packing_of_zeros(&self) -> Option<Packing> {
        let along = if matches!(self.coding, Coding::Words { .. }) { Along::Rows } else { Along::Columns };
        self.packing().map(|packing| Packing { along, ..packing })
    }

    /// Whether arrays have what goes into a layer along their first axis.
    fn is_turned(&self) -> bool {
        matches!(self.coding, Coding::Gptq { .. } | Coding::Awq)
    }

    /// Sizes of the matrix, from the headers of its arrays.
    pub(super) fn dims(&self) -> Result<[u64; 2]> {
        match self.coding {
            Coding::Gptq { .. } | Coding::Awq => {
                let [height, width] = self.sizes("qweight")?;
                let [rows, columns] =
                    if self.coding == Coding::Awq { [8, 1] } else { [1, 32 / u64::from(self.bits())] };
                let size = |words: u64, each: u64| words.checked_mul(each);
                let dims = size(width, rows).zip(size(height, columns));
                dims.map(<[u64; 2]>::from).ok_or_else(|| Error::model("", "its sizes overflow"))
            }
            Coding::Words { .. } => {
                let shape = self.arrays.part(&self.name("weight_shape"), DType::I64)?;
                let sizes = shape.to_i64().unwrap_or_default();
                let dims: Option<Vec<u64>> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect();
                let Some(&[rows, columns]) = dims.as_deref() else {
                    return Err(Error::model("", format!("its weight_shape is {sizes:?}")));
                };
                let dims = [rows, columns];
                let words = self.sizes("weight_packed")?;
                if self.packing().is_some_and(|packing| packing.words(dims) != words) {
                    return Err(Error::model(
                        "",
                        format!("words of sizes {words:?} for a shape of {dims:?}"),
                    ));
                }
                Ok(dims)
            }
            Coding::Bytes { .. }
            | Coding::BitsAndBytes
            | Coding::Mxfp4
            | Coding::Mxfp4Rows
            | Coding::Nvfp4 { .. } => self.sizes("weight"),
        }
    }

    /// Sizes of an array of two axes.
    fn sizes(&self, end: &str) -> Result<[u64; 2]> {
        let (_, dims) = self.arrays.part_header(&self.name(end))?;
        dims[..]
            .try_into()
            .map_err(|_| Error::model("", format!("its {end} has sizes {dims:?}, expected two")))
    }

    /// The integers, unsigned, row by row.
    fn integers(&self, dims: [u64; 2]) -> Result<Vec<u8>> {
        let Some(packing) = self.packing() else {
            let bytes = self.arrays.part(&self.name("weight"), DType::I8)?;
            return Ok(bytes.bytes().iter().map(|byte| byte ^ SIGN).collect());
        };
        let end = if self.is_turned() { "qweight" } else { "weight_packed" };
        let words = self.arrays.part(&self.name(end), DType::I32)?;
        let [rows, columns] = dims;
        match self.is_turned() {
            true => Ok(turned(&packing.unpack(&words, [columns, rows])?, [columns, rows])),
            false => packing.unpack(&words, dims),
        }
    }

    fn scales(&self, dims: [u64; 2]) -> Result<OfGroups<f32>> {
        let end = match self.coding {
            Coding::Gptq { .. } | Coding::Awq => "scales",
            Coding::BitsAndBytes => "SCB",
            Coding::Words { .. }
            | Coding::Bytes { .. }
            | Coding::Mxfp4
            | Coding::Mxfp4Rows
            | Coding::Nvfp4 { .. } => "weight_scale",
        };
        let scales = self.arrays.part_of_floats(&self.name(end))?;
        let numbers = scales.to_f32().ok_or_else(|| Error::Internal("floats that were widened".into()))?;
        let mut of_groups = self.by_row(numbers, scales.dims(), dims, end)?;
        if self.coding == Coding::BitsAndBytes {
            // What its bytes of 127 stand for.
            of_groups.numbers.iter_mut().for_each(|scale| *scale /= 127.0);
        }
        Ok(of_groups)
    }

    fn zeros(&self, dims: [u64; 2], blocks: u64) -> Result<Option<Vec<u8>>> {
        if !self.coding.has_zeros() {
            return Ok(None);
        }
        let [rows, _] = dims;
        let Some(packing) = self.packing_of_zeros() else {
            let zeros = self.arrays.part(&self.name("weight_zero_point"), DType::I8)?;
            let numbers = zeros.bytes().iter().map(|byte| byte ^ SIGN).collect();
            let zeros = self.by_row(numbers, zeros.dims(), dims, "weight_zero_point")?;
            return self.as_many(zeros, blocks).map(Some);
        };
        if !self.is_turned() {
            let words = self.arrays.part(&self.name("weight_zero_point"), DType::I32)?;
            return packing.unpack(&words, [rows, blocks]).map(Some);
        }
        let words = self.arrays.part(&self.name("qzeros"), DType::I32)?;
        let mut zeros = turned(&packing.unpack(&words, [blocks, rows])?, [blocks, rows]);
        if let Coding::Gptq { bits, zeros_less_one: true } = self.coding {
            let mask = u8::MAX >> (8 - bits);
            zeros.iter_mut().for_each(|zero| *zero = zero.wrapping_add(1) & mask);
        }
        Ok(Some(zeros))
    }

    /// Error: there are not as many zero points as scales.
    fn as_many(&self, zeros: OfGroups<u8>, blocks: u64) -> Result<Vec<u8>> {
        if zeros.blocks == blocks {
            return Ok(zeros.numbers);
        }
        Err(Error::model("", format!("{} zero points of a row for {blocks} scales", zeros.blocks)))
    }

    /// Numbers of groups in the order of the matrix: one for all, one for each row, or several. Error: other sizes.
    fn by_row<T: Copy>(
        &self,
        numbers: Vec<T>,
        found: &[u64],
        [rows, _]: [u64; 2],
        what: &str,
    ) -> Result<OfGroups<T>> {
        let same = |number: T| OfGroups { blocks: 1, numbers: vec![number; rows as usize] };
        match (found, &numbers[..]) {
            (&[blocks, width], _) if self.is_turned() && width == rows => {
                Ok(OfGroups { blocks, numbers: turned(&numbers, [blocks, rows]) })
            }
            (&[height, blocks], _) if !self.is_turned() && height == rows => Ok(OfGroups { blocks, numbers }),
            (&[height], _) if !self.is_turned() && height == rows => Ok(OfGroups { blocks: 1, numbers }),
            (_, &[number]) if !self.is_turned() => Ok(same(number)),
            _ => Err(Error::model("", format!("its {what} has sizes {found:?} for {rows} rows"))),
        }
    }

    /// The group of each column; none where neighbours share one, as many in each. Error: there are fewer groups.
    fn order(&self, [_, columns]: [u64; 2], blocks: u64) -> Result<Option<Vec<u32>>> {
        let name = match self.coding {
            Coding::Gptq { .. } => self.name("g_idx"),
            Coding::Words { .. } => self.name("weight_g_idx"),
            Coding::Awq
            | Coding::Bytes { .. }
            | Coding::BitsAndBytes
            | Coding::Mxfp4
            | Coding::Mxfp4Rows
            | Coding::Nvfp4 { .. } => return Ok(None),
        };
        if !self.arrays.holds(&name) {
            return Ok(None);
        }
        let order = self.arrays.part(&name, DType::I32)?.to_i64().unwrap_or_default();
        let places: Option<Vec<u32>> = order
            .iter()
            .map(|&group| u32::try_from(group).ok().filter(|&at| u64::from(at) < blocks))
            .collect();
        let places = places.filter(|places| places.len() as u64 == columns);
        let places = places.ok_or_else(|| {
            Error::model(
                "",
                format!("its {name} has not one of {blocks} groups for each of {columns} columns"),
            )
        })?;
        let size = columns / blocks.max(1);
        let in_order = |(at, &group): (u64, &u32)| u64::from(group) == at / size.max(1);
        let is_plain = columns.is_multiple_of(blocks.max(1)) && (0..).zip(&places).all(in_order);
        Ok((!is_plain).then_some(places))
    }

    /// The matrix in f32.
    pub(super) fn numbers(&self) -> Result<Tensor> {
        let dims = self.dims()?;
        let [rows, columns] = dims;
        let integers = self.integers(dims)?;
        let OfGroups { blocks, numbers: scales } = self.scales(dims)?;
        let zeros = self.zeros(dims, blocks)?;
        let group = match self.order(dims, blocks)? {
            Some(order) => order,
            None => self.neighbours(columns, blocks)?,
        };
        let (blocks, columns) = (blocks as usize, columns as usize);
        if integers.len() != whole(&dims)? || scales.len() != blocks * rows as usize {
            return Err(Error::model("", "its arrays do not fit one another"));
        }
        let middle = f32::from(1u8 << (self.bits() - 1));
        let mut numbers = Vec::with_capacity(integers.len());
        for (row, integers) in integers.chunks(columns.max(1)).enumerate() {
            let of_row = row * blocks..(row + 1) * blocks;
            let (scales, zeros) = (&scales[of_row.clone()], zeros.as_ref().map(|zeros| &zeros[of_row]));
            numbers.extend(integers.iter().zip(&group).map(|(&integer, &group)| {
                let zero = zeros.map_or(middle, |zeros| f32::from(zeros[group as usize]));
                (f32::from(integer) - zero) * scales[group as usize]
            }));
        }
        Tensor::from_f32(dims.to_vec(), &numbers)
    }

    /// The group of each column where neighbours share one. Error: groups are not of one size.
    fn neighbours(&self, columns: u64, blocks: u64) -> Result<Vec<u32>> {
        if blocks == 0 || !columns.is_multiple_of(blocks) {
            let message = format!("rows of {columns} numbers are not {blocks} groups of one size");
            return Err(Error::model("", message));
        }
        let size = (columns / blocks).max(1);
        Ok((0..columns).map(|column| (column / size) as u32).collect())
    }

    /// A piece of packed rows. Errors: the groups are others, or their columns are not neighbours.
    pub(super) fn piece(&self, format: BlockFormat, piece: Piece) -> Result<Tensor> {
        let dims = self.dims()?;
        let [rows, columns] = dims;
        let BlockFormat::Groups { bits, size } = format else {
            return Err(Error::Internal("blocks with their scales are asked of groups".into()));
        };
        let OfGroups { blocks, numbers: scales } = self.scales(dims)?;
        let is_of_size = blocks.checked_mul(u64::from(size)) == Some(columns);
        if bits != self.bits() || !is_of_size {
            let message = format!(
                "it has {blocks} groups of {} bits in a row of {columns} numbers, the configuration groups of {size} of {bits}",
                self.bits()
            );
            return Err(not_as_planned(message));
        }
        if self.order(dims, blocks)?.is_some() {
            return Err(not_as_planned(
                "the columns of its groups are not neighbours, as the configuration has it".into(),
            ));
        }
        match piece {
            Piece::Bytes => packed(&self.integers(dims)?, columns, bits, rows),
            Piece::Scales => Tensor::from_f32(vec![rows, blocks], &scales),
            Piece::Zeros => {
                let zeros = self.zeros(dims, blocks)?;
                let zeros =
                    zeros.ok_or_else(|| Error::Internal("zero points where there are none".into()))?;
                packed(&zeros, blocks, bits, rows)
            }
        }
    }
}
