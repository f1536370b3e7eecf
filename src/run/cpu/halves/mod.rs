//! Operations on halves that are computed in f32. Nothing is widened as a whole: products, convolutions and
//! attention widen their operands while they pack them, and narrow what they make where it is written; all
//! others go piece by piece (see [`crate::kernel::pieces`]). Pieces and blocks are in an area of the thread's own.

mod conv;
mod pieces;
mod product;
mod storage;
mod transpose;

use std::cell::RefCell;

use crate::error::{Error, Result};
use crate::ir::{AttentionOp, Family, Op, WindowOp};
use crate::kernel::pieces::PIECE;

use super::team::Team;
use super::view::{View, ViewMut, bytes_of_mut};
use super::{attention, between, exactly, only, recurrent};

pub(super) use product::{Begin, Left, multiply, pack_right, widen_rows};
pub(super) use storage::{RowsMut, StorageOf, with_storage};

/// Runs `$body` with `$S` as the half that elements of `$dtype` are; `$other` for any other type.
macro_rules! with_half {
    ($dtype:expr, $S:ident => $body:expr, other => $other:expr) => {
        match $dtype {
            $crate::ir::DType::Bf16 => {
                type $S = $crate::run::cpu::view::Bf16;
                $body
            }
            $crate::ir::DType::F16 => {
                type $S = $crate::run::cpu::view::F16;
                $body
            }
            _ => $other,
        }
    };
}
pub(super) use with_half;

thread_local! {
    /// Where a thread widens what it computes with: areas that are not in use.
    static WIDE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Areas that are in use at once, at most: two of a kernel's, and that of the products in it.
const AREAS: usize = 3;

/// Gives this thread what operations on halves need, so that none of them allocates. What is never used takes
/// addresses alone.
pub(super) fn prepare() {
    WIDE.with_borrow_mut(|areas| areas.resize_with(AREAS.max(areas.len()), area));
}

const ALIGNMENT: usize = 64;

fn area() -> Vec<u64> {
    vec![0; (PIECE as usize + ALIGNMENT) / size_of::<u64>()]
}

/// Calls `run` with [`PIECE`] bytes of the thread's own, aligned to 64.
pub(super) fn with_wide<R>(run: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut own = WIDE.with_borrow_mut(Vec::pop).unwrap_or_else(area);
    let bytes = bytes_of_mut(&mut own);
    let skipped = bytes.as_ptr().align_offset(ALIGNMENT);
    let result = run(&mut bytes[skipped..][..PIECE as usize]);
    WIDE.with_borrow_mut(|areas| areas.push(own));
    result
}

/// Runs an operation with halves among its operands or results that is computed in f32.
pub(super) fn execute(
    team: &Team<'_>,
    op: &Op,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let whole = op;
    match op.family() {
        Family::Product(op) => {
            let ([x, y], out) = (exactly(inputs)?, only(outputs)?);
            product::matmul(team, op, [x, y], out)
        }
        Family::Window(op) => match op {
            WindowOp::Conv(op) => conv::conv(team, op, between(inputs, 2, 3)?, only(outputs)?),
            WindowOp::ConvTranspose(op) => {
                transpose::transpose(team, op, between(inputs, 2, 3)?, only(outputs)?, workspace)
            }
            WindowOp::Pool(_) | WindowOp::MaxPoolGradient(_) | WindowOp::Resize(_) => {
                pieces::run(team, whole, inputs, outputs, workspace)
            }
        },
        Family::Packed(_) => Err(Error::Internal("packed weights are multiplied in f32".to_owned())),
        Family::Attention(op) => match op {
            // They widen block by block themselves.
            AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) => {
                attention::execute(team, op, inputs, outputs, workspace)
            }
            AttentionOp::Rotary { .. } => pieces::run(team, whole, inputs, outputs, workspace),
        },
        Family::Recurrent(layer) => recurrent::recurrent(layer, inputs, outputs, workspace),
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Layout(_)
        | Family::Index(_)
        | Family::Reduce(_)
        | Family::Normalize(_) => pieces::run(team, whole, inputs, outputs, workspace),
    }
}
