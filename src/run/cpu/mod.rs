//! Kernels of the CPU: every operation on borrowed bytes, in parts that follow from its sizes alone,
//! so that results are the same bits however work is spread over devices and threads. Nothing is
//! allocated but what each thread is given once (`prepare`): an area for the operands of matrix
//! products, and registers of tile programs.
//!
//! [`execute`] runs one operation. What it needs beside operands and results is
//! [`crate::kernel::workspace`]'s to say and the caller's to give. Operations that compute in f32
//! on halves widen them block by block or piece by piece (see `halves`); elementwise ones run as tile programs (see `tile`).

mod apart;
mod attention;
mod attention_gradient;
mod blocks;
mod channels;
mod conv;
mod conv_last;
mod conv_transpose;
mod depthwise;
mod direct;
mod element;
mod entropy;
mod few;
mod gather;
mod grid;
mod halves;
mod index;
mod layout;
mod math;
mod matrices;
mod normalize;
mod normalize_gradient;
mod panels;
mod phases;
mod pool;
mod pool_gradient;
mod product;
mod recurrent;
mod reduce;
mod resize;
mod rows;
mod strip;
mod team;
pub(crate) mod tile;
mod topk;
mod unfold;
mod vectors;
mod view;
mod wide;

use crate::error::{Error, Result};
use crate::ir::half;
use crate::ir::{DType, Op};
use crate::kernel::workspace::widens;

use normalize::Normalization;

pub(super) use conv::reads_packed as conv_reads_packed;
pub(super) use matrices::{Matrices, adds_along, pack, unpack};
pub use team::Team;
pub(super) use team::{Notes, Pool};
pub use view::{View, ViewMut, elements};

/// Gives this thread what its kernels need, so that none of them allocates; `registers` as
/// [`tile::Program::registers`].
pub(super) fn prepare(registers: usize) {
    product::prepare();
    halves::prepare();
    tile::reserve(registers);
}

/// Runs `op`. Operands and results are of the types that inference accepts and gives, with every
/// dimension bound; `workspace` has the bytes that [`crate::kernel::workspace::workspace`] says
/// and is aligned to 64; results are overwritten whole and do not overlap operands.
///
/// Errors: an index outside its axis; more axes than kernels walk; an operation that computes
/// nothing ([`Op::is_leaf`]). Operands that inference would refuse are an internal error or a
/// panic, never undefined behaviour.
pub fn execute(
    team: &Team<'_>,
    op: &Op,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let half =
        inputs.iter().any(|view| view.dtype.is_half()) || outputs.iter().any(|view| view.dtype.is_half());
    if half && widens(op) {
        return halves::execute(team, op, inputs, outputs, workspace);
    }
    dispatch(team, op, inputs, outputs, workspace)
}

fn dispatch(
    team: &Team<'_>,
    op: &Op,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let misfit = || Error::Internal(format!("operands of {}", op.name()));
    match (op, inputs, &mut *outputs) {
        (Op::Input | Op::Param(_) | Op::Constant(_), ..) => {
            Err(Error::Internal(format!("{} is not computed", op.name())))
        }
        (Op::Sizes(list), [], [out]) => layout::known_sizes(list, out),
        (Op::Iota { axis }, [], [out]) => layout::iota(*axis, out),
        (Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Convert { .. }, inputs, [out]) => {
            elementwise(team, op, inputs, out)
        }
        (Op::Reduce { kind, axes, .. }, [x], [out]) => reduce::reduce(team, *kind, axes, x, out),
        (Op::ArgReduce { kind, axis, last, .. }, [x], [out]) => {
            reduce::arg_reduce(*kind, *axis, *last, x, out)
        }
        (Op::CumSum { axis, exclusive, reverse }, [x], [out]) => {
            reduce::cum_sum(*axis, (*exclusive, *reverse), x, out)
        }
        (Op::Softmax { axis, log }, [x], [out]) => normalize::softmax(team, *axis, *log, x, out),
        (Op::SoftmaxGradient { axis, log }, [y, given], [out]) => {
            entropy::softmax_gradient(team, (*axis, *log), [y, given], out)
        }
        (Op::CrossEntropy, [logits, target], [out]) => entropy::cross_entropy(team, [logits, target], out),
        (Op::CrossEntropyGradient, [logits, target, given], [out]) => {
            entropy::cross_entropy_gradient(team, [logits, target, given], out)
        }
        (Op::NormalizeGradient { axes, epsilon, center, moments, .. }, [_, _, ..], [_] | [_, _, _]) => {
            let op = Normalization { axes, epsilon: epsilon.0, center: *center, moments: *moments };
            normalize_gradient::normalize_gradient(team, op, inputs, outputs, workspace)
        }
        (Op::Normalize { axes, epsilon, center, moments }, [x], [_] | [_, _, _]) => {
            let op = Normalization { axes, epsilon: epsilon.0, center: *center, moments: *moments };
            normalize::normalize(team, op, x, outputs, workspace)
        }
        (Op::LocalResponseNorm { size, alpha, beta, bias }, [x], [out]) => {
            let response = normalize::Response { size: *size, alpha: alpha.0, beta: beta.0, bias: bias.0 };
            normalize::local_response_norm(&response, x, out)
        }
        (Op::MatMul { transpose_left, transpose_right }, [_, _], [_]) => {
            product::matmul(team, (*transpose_left, *transpose_right), inputs, outputs)
        }
        (Op::Attention(op), [_, _, _] | [_, _, _, _], [out]) => {
            attention::attention(team, op, inputs, out, workspace)
        }
        (Op::AttentionGradient(op), [_, _, _, _, _] | [_, _, _, _, _, _], [_, _, _]) => {
            attention_gradient::attention_gradient(team, op, inputs, outputs, workspace)
        }
        (Op::Rotary { transposed }, [_, _, _], [out]) => attention::rotary(team, *transposed, inputs, out),
        (Op::Conv(op), [_, _] | [_, _, _], [out]) => conv::conv(team, op, inputs, out),
        (Op::ConvTranspose(op), [_, _] | [_, _, _], [out]) => {
            conv_transpose::conv_transpose(team, op, inputs, out, workspace)
        }
        (Op::Pool(op), [x], [out]) => pool::pool(team, op, x, out),
        (Op::MaxPoolGradient(op), [_, _, _], [out]) => {
            pool_gradient::max_pool_gradient(team, op, inputs, out)
        }
        (Op::Resize(op), [x], [out]) => resize::resize(op, x, out),
        (Op::Recurrent(layer), ..) => recurrent::recurrent(layer, inputs, outputs, workspace),
        (Op::Reshape { .. }, [x], [out]) => layout::reshape(x, out),
        (Op::Transpose { perm }, [x], [out]) => layout::transpose(team, perm, x, out),
        (Op::Broadcast { .. }, [x], [out]) => layout::broadcast(team, x, out),
        (Op::Slice(op), [x], [out]) => layout::slice(team, op, x, out),
        (Op::Pad(op), [x], [out]) => layout::pad(team, op, x, out),
        (Op::Concat { axis }, inputs, [out]) => layout::concat(team, *axis, inputs, out),
        (Op::Gather { axis }, [data, indices], [out]) => gather::gather(*axis, data, indices, out),
        (Op::GatherElements { axis }, [data, indices], [out]) => {
            gather::gather_elements(*axis, data, indices, out)
        }
        (Op::GatherNd { batch_dims }, [data, indices], [out]) => {
            gather::gather_nd(*batch_dims, data, indices, out)
        }
        (Op::ScatterElements { axis, kind }, [data, indices, updates], [out]) => {
            gather::scatter_elements(*axis, *kind, [data, indices, updates], out)
        }
        (Op::ScatterNd { kind }, [data, indices, updates], [out]) => {
            gather::scatter_nd(*kind, [data, indices, updates], out)
        }
        (Op::TopK(op), [x], outputs) => topk::topk(op, x, outputs, workspace),
        (
            Op::Sizes(_)
            | Op::Iota { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::CumSum { .. }
            | Op::Softmax { .. }
            | Op::SoftmaxGradient { .. }
            | Op::CrossEntropy
            | Op::CrossEntropyGradient
            | Op::NormalizeGradient { .. }
            | Op::Normalize { .. }
            | Op::LocalResponseNorm { .. }
            | Op::MatMul { .. }
            | Op::Attention(_)
            | Op::AttentionGradient(_)
            | Op::Rotary { .. }
            | Op::Conv(_)
            | Op::ConvTranspose(_)
            | Op::Pool(_)
            | Op::MaxPoolGradient(_)
            | Op::Resize(_)
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Broadcast { .. }
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::TopK(_),
            ..,
        ) => Err(misfit()),
    }
}

/// One operation as a tile program of its own.
fn elementwise(team: &Team<'_>, op: &Op, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    let outside: Vec<(DType, Vec<usize>)> = inputs
        .iter()
        .map(|view| Ok((view.dtype, index::sizes(view.dims)?.to_vec())))
        .collect::<Result<_>>()?;
    let operands = (0..inputs.len()).map(tile::Operand::Outside).collect();
    let dims = index::sizes(out.dims)?.to_vec();
    let elements = dims.iter().product();
    let part = tile::Part { op, operands, dtype: out.dtype, dims };
    let program = tile::Program::new(elements, &outside, &[part], &[(0, 0)])?;
    let sources: Vec<tile::Source<'_>> = inputs.iter().map(|view| view.bytes.into()).collect();
    program.run(team, &sources, &[tile::Target::from(&mut *out.bytes)]);
    Ok(())
}
