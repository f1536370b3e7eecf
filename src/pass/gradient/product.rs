//! Gradients of matrix products.

use super::build::{Build, Factor};
use super::rules::Site;
use crate::error::Result;
use crate::ir::{MatMul, Op, PackedOp, ValueId};

/// Of the operands of `op(left) op(right)`; those not wanted are not made.
pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: MatMul,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let (left, right) = (site.operands[0], site.operands[1]);
    let MatMul { transpose_left, transpose_right, .. } = op;
    let (left_dims, right_dims) = (b.dims(left)?, b.dims(right)?);
    let mut gradients = site.none();
    if site.want[0] {
        let product = match transpose_left {
            false => b.matmul(dy, Factor { value: right, transposed: !transpose_right })?,
            true => b.matmul(Factor { value: right, transposed: transpose_right }, Factor::transposed(dy))?,
        };
        gradients[0] = Some(b.sum_to(product, &left_dims)?);
    }
    if site.want[1] {
        let rows = |dims: &[i64]| dims[..dims.len() - 1].iter().product::<i64>();
        // A matrix that every one of a batch is multiplied with: one long product.
        let flat = right_dims.len() == 2 && left_dims.len() > 2 && !transpose_left;
        let (left, dy) = match flat {
            true => {
                let dy_dims = b.dims(dy)?;
                let left_flat = [rows(&left_dims), left_dims[left_dims.len() - 1]];
                let dy_flat = [rows(&dy_dims), dy_dims[dy_dims.len() - 1]];
                (b.reshape(left, &left_flat)?, b.reshape(dy, &dy_flat)?)
            }
            false => (left, dy),
        };
        let product = match transpose_right {
            false => b.matmul(Factor { value: left, transposed: !transpose_left }, dy)?,
            true => b.matmul(Factor::transposed(dy), Factor { value: left, transposed: transpose_left })?,
        };
        gradients[1] = Some(b.sum_to(product, &right_dims)?);
    }
    Ok(gradients)
}

/// Of the left operand alone: packed weights stay as they are.
pub(super) fn packed_gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: PackedOp,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    match op {
        PackedOp::MatMul(packed) if site.want[0] => {
            let dims = b.dims(site.operands[0])?;
            let rows = b.apply(Op::Unpack(packed), &site.operands[1..])?;
            let product = b.matmul(dy, rows)?;
            let gradient = b.sum_to(product, &dims)?;
            site.first(gradient)
        }
        PackedOp::MatMul(_) | PackedOp::Unpack(_) => Ok(site.none()),
    }
}
