//! Elements at positions that are data, the largest elements, and walks through trees.

mod gather;
pub(super) mod named;
mod rows;
mod scatter;
#[cfg(test)]
mod tests;
mod topk;
mod trees;

use crate::error::Result;
use crate::ir::IndexOp;

use super::{Team, View, ViewMut, exactly, only};

pub(super) fn execute(
    team: &Team<'_>,
    op: IndexOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    match op {
        IndexOp::Gather { axis } => {
            let [data, indices] = exactly(inputs)?;
            gather::gather(team, axis, data, indices, only(outputs)?)
        }
        IndexOp::GatherElements { axis } => {
            let [data, indices] = exactly(inputs)?;
            gather::gather_elements(team, axis, data, indices, only(outputs)?)
        }
        IndexOp::GatherNd { batch_dims } => {
            let [data, indices] = exactly(inputs)?;
            gather::gather_nd(team, batch_dims, data, indices, only(outputs)?)
        }
        IndexOp::ScatterElements { axis, kind } => {
            scatter::scatter_elements(axis, kind, exactly(inputs)?, only(outputs)?)
        }
        IndexOp::ScatterNd { kind } => {
            let (inputs, out) = (exactly(inputs)?, only(outputs)?);
            let epilogue = if inputs[0].zeros { out.take_epilogue() } else { None };
            match epilogue {
                Some(epilogue) => rows::sum(team, inputs, out, epilogue),
                None => scatter::scatter_nd(kind, inputs, out),
            }
        }
        IndexOp::UpdateSlice { axis } => scatter::update_slice(axis, exactly(inputs)?, only(outputs)?),
        IndexOp::TopK(op) => {
            let [x] = exactly(inputs)?;
            topk::topk(op, x, outputs, workspace)
        }
        IndexOp::TreeLeaves { depth } => trees::tree_leaves(team, depth, exactly(inputs)?, only(outputs)?),
    }
}
