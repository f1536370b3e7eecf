//! Attention in tiles, its gradients, and rotary embeddings.

mod abreast;
pub(super) mod forward;
pub(super) mod gradient;
mod soften;

use crate::error::Result;
use crate::ir::AttentionOp;

use super::{Team, View, ViewMut, between, exactly, only};

pub(super) fn execute(
    team: &Team<'_>,
    op: AttentionOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    match op {
        AttentionOp::Attention(op) => {
            forward::attention(team, op, between(inputs, 3, 5)?, only(outputs)?, workspace)
        }
        AttentionOp::AttentionGradient(op) => {
            gradient::attention_gradient(team, op, between(inputs, 5, 6)?, outputs, workspace)
        }
        AttentionOp::Rotary { transposed } => {
            forward::rotary(team, transposed, exactly::<3>(inputs)?, only(outputs)?)
        }
    }
}
