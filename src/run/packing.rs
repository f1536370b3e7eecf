//! Which parameters lie packed while a program runs: matrices that nothing reads but products, as
//! their right operand, and lookups of their columns; weights that only convolutions read, which
//! are matrices of channels and terms. Packing changes the order of the elements
//! alone, so plans know nothing of it. A parameter that a step updates in place lies as it is.

use crate::error::{Error, Result};
use crate::ir::{Conv, DType, Graph, Node, Op, Tensor, Type, ValueId};

use super::cpu::{self, View};
use super::interpret::{dims, tensor};

/// By value: how it lies.
pub(super) struct Packing(Vec<Form>);

/// How a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Row-major.
    Plain,
    /// Packed; whether products read it transposed.
    Packed { transposed: bool },
}

/// What the readers of a value have been so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    /// Products, and whether they read it transposed.
    Products(bool),
    /// Lookups of columns alone.
    Lookups,
    Others,
}

impl Readers {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) | (other, Self::None) => other,
            (Self::Products(true), Self::Lookups) | (Self::Lookups, Self::Products(true)) => {
                Self::Products(true)
            }
            (one, other) if one == other => one,
            _ => Self::Others,
        }
    }
}

/// Whether a product adds up along both operands.
fn adds_along(graph: &Graph, node: &Node, transposed: bool) -> bool {
    let sizes = |value: ValueId| graph.ty(value).shape.dims().unwrap_or_default();
    cpu::adds_along(transposed, &sizes(node.operands[0]), &sizes(node.first_result))
}

/// Whether a convolution reads its weights packed.
fn reads_packed(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let sizes = |value: ValueId| graph.ty(value).shape.dims().unwrap_or_default();
    let x = node.operands[0];
    let (weights, out) = (sizes(node.operands[1]), sizes(node.first_result));
    cpu::conv_reads_packed(conv, graph.ty(x).dtype, &sizes(x), &weights, &out)
}

impl Packing {
    /// O(nodes + operands).
    pub(super) fn of(graph: &Graph) -> Self {
        let mut readers = vec![Readers::None; graph.value_count()];
        for node in graph.node_ids().map(|id| graph.node(id)) {
            for (position, operand) in node.operands.iter().enumerate() {
                let reader = match (&node.op, position) {
                    (Op::MatMul { transpose_right, .. }, 1) if adds_along(graph, node, *transpose_right) => {
                        Readers::Others
                    }
                    (Op::MatMul { transpose_right, .. }, 1) => Readers::Products(*transpose_right),
                    (Op::Conv(conv), 1) if reads_packed(graph, node, conv) => Readers::Products(true),
                    (Op::Gather { axis: 0 }, 0) if graph.ty(*operand).shape.rank() == 2 => Readers::Lookups,
                    _ => Readers::Others,
                };
                readers[operand.index()] = readers[operand.index()].and(reader);
            }
        }
        for (_, value) in graph.outputs() {
            readers[value.index()] = Readers::Others;
        }
        let packed = |(index, readers): (usize, Readers)| {
            let value = ValueId(index as u32);
            let ty = graph.ty(value);
            let matrix = ty.shape.rank() >= 2 && matches!(ty.dtype, DType::F32 | DType::F64);
            let kept = match graph.maker(value).op {
                Op::Param(param) => graph.param(param).update.is_none(),
                _ => false,
            };
            match readers {
                Readers::Products(transposed) if matrix && kept => Form::Packed { transposed },
                _ => Form::Plain,
            }
        };
        Self(readers.into_iter().enumerate().map(packed).collect())
    }

    /// Nothing is packed.
    #[cfg(feature = "cuda")]
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// How a value lies.
    pub(super) fn form(&self, value: ValueId) -> Form {
        self.0.get(value.index()).copied().unwrap_or(Form::Plain)
    }
}

impl Form {
    /// Writes a tensor's elements as they lie. Error: the sizes do not fit.
    pub(super) fn write(self, tensor: &Tensor, to: &mut [u8]) -> Result<()> {
        let Self::Packed { transposed } = self else {
            to.copy_from_slice(tensor.bytes());
            return Ok(());
        };
        let dims = Option::from_iter(tensor.dims().iter().map(|&dim| i64::try_from(dim).ok()));
        let dims: Vec<i64> = dims.ok_or_else(|| Error::Internal("a size overflows".to_owned()))?;
        cpu::pack(&View::new(tensor.dtype(), &dims, tensor.bytes())?, transposed, to)
    }

    /// The tensor that lies so. Error: the sizes do not fit.
    pub(super) fn read(self, ty: &Type, bytes: &[u8]) -> Result<Tensor> {
        let Self::Packed { transposed } = self else { return tensor(ty, bytes) };
        let dims = dims(ty)?;
        let mut plain = vec![0; bytes.len()];
        let view = View::new(ty.dtype, &dims, bytes)?;
        cpu::unpack(&View { packed: true, ..view }, transposed, &mut plain)?;
        tensor(ty, &plain)
    }
}
