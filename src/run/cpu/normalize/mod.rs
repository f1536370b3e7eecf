//! Softmax, cross-entropy and normalisation, with their gradients.

mod abreast;
mod channels;
mod columns;
pub(super) mod entropy;
mod gradient;
mod norm;
pub(super) mod rows;
pub(super) mod short;

use crate::error::Result;
use crate::ir::NormalizeOp;

use super::{Team, View, ViewMut, exactly, only};

pub(super) fn execute(
    team: &Team<'_>,
    op: NormalizeOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    match op {
        NormalizeOp::Softmax(op) => {
            let [x] = exactly(inputs)?;
            norm::softmax(team, op, x, only(outputs)?)
        }
        NormalizeOp::SoftmaxGradient(op) => {
            entropy::softmax_gradient(team, op, exactly(inputs)?, only(outputs)?)
        }
        NormalizeOp::CrossEntropy => entropy::cross_entropy(team, exactly(inputs)?, only(outputs)?),
        NormalizeOp::CrossEntropyGradient => {
            entropy::cross_entropy_gradient(team, exactly(inputs)?, only(outputs)?)
        }
        NormalizeOp::Normalize(op) => {
            let [x] = exactly(inputs)?;
            norm::normalize(team, op, x, outputs, workspace)
        }
        NormalizeOp::NormalizeGradient { of, .. } => {
            gradient::normalize_gradient(team, of, inputs, outputs, workspace)
        }
        NormalizeOp::LocalResponseNorm(op) => {
            let [x] = exactly(inputs)?;
            norm::local_response_norm(op, x, only(outputs)?)
        }
    }
}
