//! Kernels of the CPU: every operation on borrowed bytes, in parts that follow from its sizes alone,
//! so that results are the same bits however work is spread over devices and threads. Nothing is
//! allocated but what each thread is given once (`prepare`): an area for the operands of matrix
//! products, and registers of tile programs.
//!
//! [`execute`] runs one operation. What it needs beside operands and results is
//! [`crate::kernel::workspace`]'s to say and the caller's to give. Operations that compute in f32
//! on halves widen them block by block or piece by piece (see `halves`); elementwise ones run as tile
//! programs (see `tile`).

mod attention;
mod element;
mod elementwise;
mod halves;
mod index;
mod layout;
mod normalize;
mod product;
mod recurrent;
mod reduce;
mod stored;
mod team;
mod vectors;
mod view;
mod walk;
mod window;

use crate::error::{Error, Result};
use crate::ir::{Family, Op, half};
use crate::kernel::workspace::widens;

pub(crate) use elementwise::tile;
pub(super) use product::{Matrices, adds_along, pack, unpack};
pub use team::Team;
pub(super) use team::{Notes, Pool};
pub use view::{View, ViewMut, elements};
pub(super) use window::conv_reads_packed;

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
    match op.family() {
        Family::Leaf => Err(Error::Internal(format!("{} is not computed", op.name()))),
        Family::Generator(op) => layout::generate(op, inputs, outputs),
        Family::Elementwise(_) => elementwise::execute(team, op, inputs, outputs),
        Family::Layout(op) => layout::execute(team, op, inputs, outputs),
        Family::Index(op) => index::execute(team, op, inputs, outputs, workspace),
        Family::Window(op) => window::execute(team, op, inputs, outputs, workspace),
        Family::Reduce(op) => reduce::execute(team, op, inputs, outputs),
        Family::Normalize(op) => normalize::execute(team, op, inputs, outputs, workspace),
        Family::Product(op) => product::matmul(team, op, inputs, outputs),
        Family::Packed(op) => product::packed::execute(team, op, inputs, outputs),
        Family::Attention(op) => attention::execute(team, op, inputs, outputs, workspace),
        Family::Recurrent(layer) => recurrent::recurrent(layer, inputs, outputs, workspace),
    }
}

/// So many operands. Error: more or fewer, which inference would have refused.
fn exactly<'i, 'a, const N: usize>(inputs: &'i [View<'a>]) -> Result<&'i [View<'a>; N]> {
    between(inputs, N, N)?.try_into().map_err(|_| Error::Internal("number of operands".to_owned()))
}

/// At least and at most so many operands.
fn between<'i, 'a>(inputs: &'i [View<'a>], least: usize, most: usize) -> Result<&'i [View<'a>]> {
    match inputs.len() {
        count if (least..=most).contains(&count) => Ok(inputs),
        count => Err(Error::Internal(format!("a kernel has {count} operands, not {least} to {most}"))),
    }
}

/// The only result.
fn only<'o, 'a>(outputs: &'o mut [ViewMut<'a>]) -> Result<&'o mut ViewMut<'a>> {
    match outputs {
        [out] => Ok(out),
        outputs => Err(Error::Internal(format!("a kernel has {} results, not one", outputs.len()))),
    }
}

/// Numbers between -1 and 1 that follow from their place, for tests.
#[cfg(test)]
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}
