//! Parameters: their data, how they start, what follows batches and not gradients.

use std::borrow::Cow;
use std::path::PathBuf;

use super::packing::Packing;
use super::{BlockFormat, BoxOf, DType, Graph, NodeId, Packed, Real, Shape, Size, Tensor, Type};
use crate::error::{Error, Result};

/// How a parameter starts where no data is given. Deviations and bounds of the scaled ones
/// follow from the shape when it is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// Every element the same.
    Constant(Real),
    /// Uniform between two bounds.
    Uniform {
        /// Lower bound.
        low: Real,
        /// Upper bound.
        high: Real,
    },
    /// Normal; `truncated` draws again beyond two deviations.
    Normal {
        /// Mean.
        mean: Real,
        /// Standard deviation.
        deviation: Real,
        /// Cut at two deviations.
        truncated: bool,
    },
    /// Variance `scale / fan` (Glorot, He, LeCun are special cases).
    VarianceScaling {
        /// Numerator.
        scale: Real,
        /// Which fan divides.
        fan: Fan,
        /// The distribution.
        distribution: Distribution,
    },
    /// Orthogonal rows or columns, scaled.
    Orthogonal {
        /// Factor.
        gain: Real,
    },
    /// The identity matrix, scaled.
    Identity {
        /// Factor.
        gain: Real,
    },
    /// An LSTM bias in Keras' gate order: zeros, but ones for the forget gate (second quarter).
    UnitForgetBias,
}

/// What divides a variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Inputs of a unit.
    In,
    /// Outputs of a unit.
    Out,
    /// The mean of both.
    Average,
}

/// Distribution of a variance-scaled initialiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Normal, cut at two deviations.
    TruncatedNormal,
    /// Normal.
    Normal,
    /// Uniform.
    Uniform,
}

impl Init {
    /// Glorot uniform: what Keras gives kernels.
    pub fn glorot_uniform() -> Self {
        Self::VarianceScaling { scale: Real(1.0), fan: Fan::Average, distribution: Distribution::Uniform }
    }

    /// Every element zero.
    pub fn zeros() -> Self {
        Self::Constant(Real(0.0))
    }

    /// Every element one.
    pub fn ones() -> Self {
        Self::Constant(Real(1.0))
    }
}

/// Where a parameter's data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the model file itself.
    Inline(Tensor),
    /// Raw little-endian bytes of another file, which may be absent.
    File {
        /// The file.
        path: PathBuf,
        /// Where they begin.
        offset: u64,
        /// How many there are.
        length: u64,
    },
    /// An array of an npz or safetensors file, which may be absent.
    Array {
        /// The file.
        path: PathBuf,
        /// The array's name in it.
        name: String,
    },
    /// A matrix and what an adapter adds to it, in f32.
    Sum {
        /// The matrix.
        matrix: Box<Data>,
        /// What is added.
        added: Box<LowRank>,
    },
}

/// A matrix of low rank: a factor times the product of two arrays of a file, of which the first has few columns and the
/// second as few rows (Hu et al., LoRA, 2021).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowRank {
    /// The file, which may be absent.
    pub path: PathBuf,
    /// The array of few columns.
    pub left: String,
    /// The array of few rows.
    pub right: String,
    /// What their product is multiplied by.
    pub factor: Real,
    /// It is the product's transpose.
    pub turned: bool,
}

/// What a stored statistic of a normalisation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticKind {
    /// Of each channel.
    Mean,
    /// Of each channel: the mean square.
    Variance,
    /// Of each channel: the batch has the mean square, and the stored one follows it times `n / (n - 1)`, where `n`
    /// elements have that channel.
    SampleVariance,
}

/// A parameter that follows the batches and not a gradient: in training the layer uses the batch's own,
/// and `stored = momentum stored + (1 - momentum) batch` afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Which one.
    pub kind: StatisticKind,
    /// How long it remembers.
    pub momentum: Real,
}

/// How a parameter is made of the matrix that is supplied, where it holds that in fewer bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repacked {
    /// How blocks are stored.
    pub format: BlockFormat,
    /// Numbers of a row.
    pub columns: i64,
    /// What is supplied has the rows as its columns.
    pub turned: bool,
    /// What of the blocks it holds.
    pub piece: Piece,
}

/// What a parameter holds of a matrix in blocks: all of it where blocks hold their scales, else one of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// The bytes of the blocks.
    Bytes,
    /// The scale of each block.
    Scales,
    /// The zero point of each block, as many bits as a number.
    Zeros,
}

impl Piece {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bytes, Self::Scales, Self::Zeros];

    /// Its name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Scales => "scales",
            Self::Zeros => "zeros",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|piece| piece.name() == name)
    }
}

impl Repacked {
    /// The packed rows of which it is a piece.
    pub const fn packed(self) -> Packed {
        Packed { format: self.format, columns: self.columns }
    }

    /// The type of its elements, and how many of them a row has.
    pub fn held_row(self) -> (DType, u64) {
        let packed = self.packed();
        match self.piece {
            Piece::Bytes => (DType::U8, packed.row_bytes()),
            Piece::Scales => (DType::F32, packed.blocks()),
            Piece::Zeros => (DType::U8, packed.zero_bytes()),
        }
    }

    /// The sizes of what is supplied for so many rows.
    fn supplied_sizes(self, rows: Size) -> Shape {
        let columns = Size::Known(self.columns);
        Shape::new(if self.turned { [columns, rows] } else { [rows, columns] })
    }

    /// The blocks of a matrix of f32. Errors: those of [`Packing`]; it is none.
    fn pack(self, matrix: &Tensor) -> Result<Tensor> {
        let (DType::F32, &[_, width]) = (matrix.dtype(), matrix.dims()) else {
            return Err(Error::Internal(format!("a matrix of {:?} is packed", matrix.dims())));
        };
        let mut packing = Packing::new(self, matrix.dims())?;
        let stretch = packing.stretch() * (width as usize).max(1);
        for numbers in matrix.bytes().as_chunks::<4>().0.chunks(stretch) {
            let numbers: Vec<f32> = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            packing.add(&numbers)?;
        }
        packing.finish()
    }
}

/// A state: a run begins with what its initialiser says, and each step leaves it to the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The axis along which it is filled step by step, where it is a cache: no step reads beyond what is
    /// filled.
    pub grows: Option<u32>,
}

/// A trained tensor, or a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The source's own name; unique.
    pub name: String,
    /// Its node; tied parameters are one parameter with several readers.
    pub node: NodeId,
    /// How it starts.
    pub init: Init,
    /// Its data, where the source has any.
    pub data: Option<Data>,
    /// The type of its data and of what its initialiser makes, where the parameter is that rounded.
    pub supplied: Option<DType>,
    /// The number of the output that takes its place after each step; none where it stays.
    pub update: Option<u32>,
    /// What it is a statistic of, where it is none that a gradient moves.
    pub statistic: Option<Statistic>,
    /// The part of another that it is, along the axes that it holds; none where it is whole. Its data is that of the whole.
    pub slice: Option<BoxOf>,
    /// The order in which it holds the axes of what is supplied, where that is another one.
    pub permuted: Option<Vec<u32>>,
    /// How it is made of what is supplied, where that is a matrix and it holds the blocks.
    pub repacked: Option<Repacked>,
    /// Set where it is a state and no weight.
    pub state: Option<State>,
}

impl Param {
    /// The type of its data and of what its initialiser makes.
    pub fn supplied_type(&self, graph: &Graph) -> Type {
        self.supplied_for(graph.ty(graph.node(self.node).first_result))
    }

    /// Of what it holds, the sizes as they are supplied.
    pub(crate) fn supplied_shape(&self, held: &Shape) -> Shape {
        let Some(order) = &self.permuted else { return held.clone() };
        let mut sizes = held.sizes().to_vec();
        for (size, &axis) in held.sizes().iter().zip(order) {
            if let Some(own) = sizes.get_mut(axis as usize) {
                own.clone_from(size);
            }
        }
        Shape::new(sizes)
    }

    /// The name by which arrays and initialisers know it: its own, or that of the whole.
    pub fn whole_name(&self) -> &str {
        self.slice.as_ref().map_or(&self.name, |slice| &slice.name)
    }

    /// The type of its data, and of what its initialiser makes, before it is cut.
    pub fn whole_type(&self, graph: &Graph) -> Type {
        self.supplied_for(&self.whole_held(graph))
    }

    /// The type of the whole that it holds, or of which it holds a part.
    pub fn whole_held(&self, graph: &Graph) -> Type {
        let held = graph.ty(graph.node(self.node).first_result);
        self.slice.as_ref().map_or_else(|| held.clone(), |slice| slice.whole(held))
    }

    /// The type of what is supplied for one that holds this.
    fn supplied_for(&self, held: &Type) -> Type {
        match self.repacked {
            Some(repacked) => Type::new(DType::F32, repacked.supplied_sizes(held.shape[0].clone())),
            None => {
                let dtype = self.supplied.unwrap_or(held.dtype);
                Type { dtype, shape: self.supplied_shape(&held.shape) }
            }
        }
    }

    /// Its own part of the whole's data. Error: it is held in blocks of a format that is not made of numbers.
    pub fn own_part(&self, graph: &Graph, whole: Tensor) -> Result<Tensor> {
        match self.repacked {
            Some(repacked) => self.part_as_held(graph, repacked.pack(&whole)?),
            None => self.part_as_held(graph, whole),
        }
    }

    /// Its own part of the whole, whose matrix is in blocks where it holds these. Error: none but internal ones.
    pub fn part_as_held(&self, graph: &Graph, whole: Tensor) -> Result<Tensor> {
        let whole = match &self.permuted {
            Some(order) => whole.permuted(order)?,
            None => whole,
        };
        let Some(slice) = &self.slice else { return Ok(whole) };
        let ty = graph.ty(graph.node(self.node).first_result);
        slice.cut(Cow::Owned(whole), ty).map(Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices of rows of 64 numbers, of which the largest is given.
    #[test]
    fn what_the_scales_of_blocks_do_not_tell_is_refused() {
        let packed = |format: BlockFormat, largest: f32| {
            let numbers: Vec<u8> =
                (0..128).flat_map(|at| (largest * (at as f32 - 127.0) / 127.0).to_le_bytes()).collect();
            let matrix = Tensor::new(DType::F32, vec![2, 64], numbers).unwrap();
            Repacked { format, columns: 64, turned: false, piece: Piece::Bytes }.pack(&matrix)
        };
        for (format, small, large) in [(BlockFormat::Q8_0, 3e-4, 8.3e6), (BlockFormat::Q4_0, 2e-5, 5.2e5)] {
            for fine in [0.0, small, 0.02, 1.0, large] {
                assert!(packed(format, fine).is_ok(), "{format:?} {fine}");
            }
            for (beyond, told) in [
                (small / 2.0, "beyond the scales"),
                (large * 1.1, "beyond the scales"),
                (f32::INFINITY, "not finite"),
                (f32::NAN, "not finite"),
            ] {
                let error = packed(format, beyond).unwrap_err().to_string();
                assert!(
                    error.contains(told) && error.contains(format.name()),
                    "{format:?} {beyond}: {error}"
                );
            }
        }
    }
}
