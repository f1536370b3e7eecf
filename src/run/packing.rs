//! Which parameters are packed while a program runs: matrices, one or a batch of them, that nothing reads but products,
//! as their right operand, and lookups of the columns of one; and weights that only convolutions read, as one matrix of
//! channels and terms. Readers that see other matrices in the same elements leave them as they are. Packing changes the
//! order of the elements alone, so plans know nothing of it. A parameter that a step updates in place lies as it is.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::ir::{DType, Graph, Node, Op, Tensor, Type, ValueId};

use super::cpu::{self, Matrices, View};
use super::interpret::{dims, tensor};

/// By value: how it is stored.
pub(super) struct Packing(Vec<Form>);

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Row-major.
    Plain,
    /// Packed, as its readers see it.
    Packed(Matrices),
}

/// What the readers of a value have been so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    /// Products of these matrices.
    Products(Matrices),
    /// Lookups of columns of a transposed matrix alone.
    Lookups(Matrices),
    Others,
}

impl Readers {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) | (other, Self::None) => other,
            (Self::Products(read), Self::Lookups(other)) | (Self::Lookups(other), Self::Products(read))
                if read == other =>
            {
                Self::Products(read)
            }
            (one, other) if one == other => one,
            _ => Self::Others,
        }
    }
}

/// How a node reads one of its operands.
fn reader(graph: &Graph, node: &Node, position: usize) -> Readers {
    let sizes = |value: ValueId| graph.ty(value).shape.dims().unwrap_or_default();
    let operand = node.operands[position];
    let dims = sizes(operand);
    match (&node.op, position) {
        // What is rounded on the way is packed on the way.
        (Op::MatMul { rounds: true, .. }, _) => Readers::Others,
        (Op::MatMul { wide: true, transpose_right, .. }, 1) if graph.ty(operand).dtype.is_byte() => {
            Matrices::of_product(&dims, *transpose_right).map_or(Readers::Others, Readers::Products)
        }
        // Products of other integers read them as they lie, as lookups of bytes do.
        _ if !graph.ty(operand).dtype.is_float() => Readers::Others,
        (Op::MatMul { transpose_left, transpose_right, .. }, 1) => {
            let left = Matrices::of_product(&sizes(node.operands[0]), *transpose_left);
            let right = Matrices::of_product(&dims, *transpose_right);
            let (Some(left), Some(right)) = (left, right) else { return Readers::Others };
            match cpu::adds_along(&left, &right, &sizes(node.first_result)) {
                true => Readers::Others,
                false => Readers::Products(right),
            }
        }
        (Op::Conv(conv), 1) => {
            let (x, out) = (node.operands[0], sizes(node.first_result));
            match cpu::conv_reads_packed(conv, graph.ty(x).dtype, &sizes(x), &dims, &out) {
                true => Matrices::of_channels(&dims).map_or(Readers::Others, Readers::Products),
                false => Readers::Others,
            }
        }
        (Op::Gather { axis: 0 }, 0) if dims.len() == 2 => {
            Matrices::of_product(&dims, true).map_or(Readers::Others, Readers::Lookups)
        }
        _ => Readers::Others,
    }
}

impl Packing {
    /// O(nodes + operands).
    pub(super) fn of(graph: &Graph) -> Self {
        let mut readers = vec![Readers::None; graph.value_count()];
        for node in graph.node_ids().map(|id| graph.node(id)) {
            for (position, operand) in node.operands.iter().enumerate() {
                readers[operand.index()] = readers[operand.index()].and(reader(graph, node, position));
            }
        }
        for (_, value) in graph.outputs() {
            readers[value.index()] = Readers::Others;
        }
        let packed = |(index, readers): (usize, Readers)| {
            let value = ValueId(index as u32);
            let ty = graph.ty(value);
            let packs = matches!(ty.dtype, DType::F32 | DType::F64) || ty.dtype.is_byte();
            let kept = match graph.maker(value).op {
                Op::Param(param) => graph.param(param).update.is_none(),
                _ => false,
            };
            match readers {
                Readers::Products(matrices) if packs && kept => Form::Packed(matrices),
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

    /// The same, with these parameters as they are.
    pub(super) fn without(mut self, graph: &Graph, plain: &BTreeSet<String>) -> Self {
        for param in graph.params().iter().filter(|param| plain.contains(&param.name)) {
            let value = graph.node(param.node).first_result;
            if let Some(form) = self.0.get_mut(value.index()) {
                *form = Form::Plain;
            }
        }
        self
    }

    /// How a value is stored.
    pub(super) fn form(&self, value: ValueId) -> Form {
        self.0.get(value.index()).copied().unwrap_or(Form::Plain)
    }
}

impl Form {
    /// Writes a tensor's elements as they are stored. Error: the sizes do not fit.
    pub(super) fn write(self, tensor: &Tensor, to: &mut [u8]) -> Result<()> {
        let Self::Packed(matrices) = self else {
            to.copy_from_slice(tensor.bytes());
            return Ok(());
        };
        let dims = Option::from_iter(tensor.dims().iter().map(|&dim| i64::try_from(dim).ok()));
        let dims: Vec<i64> = dims.ok_or_else(|| Error::Internal("a size overflows".to_owned()))?;
        cpu::pack(&View::new(tensor.dtype(), &dims, tensor.bytes())?, matrices, to)
    }

    /// The tensor that lies so. Error: the sizes do not fit.
    pub(super) fn read(self, ty: &Type, bytes: &[u8]) -> Result<Tensor> {
        let Self::Packed(matrices) = self else { return tensor(ty, bytes) };
        let dims = dims(ty)?;
        let mut plain = vec![0; bytes.len()];
        let view = View::new(ty.dtype, &dims, bytes)?;
        cpu::unpack(&View { packed: true, ..view }, matrices, &mut plain)?;
        tensor(ty, &plain)
    }
}
