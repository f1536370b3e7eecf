//! Convolutions, poolings and resizes.

mod abreast;
pub(super) mod conv;
mod conv_last;
mod conv_transpose;
mod depthwise;
mod direct;
pub(super) mod grid;
mod maxima;
mod phases;
mod pool;
mod pool_gradient;
mod resize;
mod slices;
mod spread;
mod unfold;

use crate::error::Result;
use crate::ir::WindowOp;

use super::{Team, View, ViewMut, between, exactly, only};

pub(in crate::run) use conv::reads_packed as conv_reads_packed;

pub(super) fn execute(
    team: &Team<'_>,
    op: WindowOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let out = only(outputs)?;
    match op {
        WindowOp::Conv(op) => conv::conv(team, op, between(inputs, 2, 3)?, out),
        WindowOp::ConvTranspose(op) => {
            conv_transpose::conv_transpose(team, op, between(inputs, 2, 3)?, out, workspace)
        }
        WindowOp::Pool(op) => {
            let [x] = exactly(inputs)?;
            pool::pool(team, op, x, out)
        }
        WindowOp::MaxPoolGradient(op) => {
            pool_gradient::max_pool_gradient(team, op, exactly::<3>(inputs)?, out)
        }
        WindowOp::Resize(op) => {
            let [x] = exactly(inputs)?;
            resize::resize(team, op, x, out)
        }
    }
}
