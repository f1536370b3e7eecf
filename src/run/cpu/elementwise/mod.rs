//! Functions of each element: tile programs, and the elementary functions in them.

pub(super) mod circular;
pub(super) mod math;
mod piecewise;
pub(crate) mod tile;
pub(super) mod wide;

use crate::error::Result;
use crate::ir::{DType, Op};

use super::{Team, View, ViewMut, only, walk};

/// One operation as a tile program of its own.
pub(super) fn execute(
    team: &Team<'_>,
    op: &Op,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let out = only(outputs)?;
    let outside: Vec<(DType, Vec<usize>)> = inputs
        .iter()
        .map(|view| Ok((view.dtype, walk::sizes(view.dims)?.to_vec())))
        .collect::<Result<_>>()?;
    let operands = (0..inputs.len()).map(tile::Operand::Outside).collect();
    let dims = walk::sizes(out.dims)?.to_vec();
    let elements = dims.iter().product();
    let part = tile::Part { op, operands, dtype: out.dtype, dims };
    let program = tile::Program::new(elements, &outside, &[part], &[(0, 0)])?;
    let sources: Vec<tile::Source<'_>> = inputs.iter().map(|view| view.bytes.into()).collect();
    program.run(team, &sources, &[tile::Target::from(&mut *out.bytes)]);
    Ok(())
}
