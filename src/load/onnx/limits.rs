//! The largest and the least number that a tensor of integers can hold, as far as the operations that make it say: what is
//! planned where a size depends on data.

use super::known;
use crate::ir::{ArgReduce, Binary, DType, Graph, Op, ReduceKind, Size, ValueId};

/// Values that are looked at for one question, at most.
const LOOKED_AT: usize = 256;

/// At most so much is every element. None where nothing says so. O(constants on the way).
pub(super) fn most(graph: &Graph, value: ValueId) -> Option<Size> {
    Search { graph, left: LOOKED_AT }.most(value)
}

/// At least so much is every element. None where nothing says so. O(constants on the way).
pub(super) fn least(graph: &Graph, value: ValueId) -> Option<Size> {
    let mut waiting = vec![value];
    let mut found = None;
    for _ in 0..LOOKED_AT {
        let Some(value) = waiting.pop() else { break };
        let node = graph.maker(value);
        let own = match &node.op {
            Op::Constant(id) => graph.constant(*id).to_i64()?.into_iter().min().map(Size::Known),
            Op::Sizes(sizes) => match &**sizes {
                [one] => Some(one.clone()),
                _ => None,
            },
            // The larger of two is no less than either.
            Op::Binary(Binary::Max) => {
                waiting.extend(&node.operands[..]);
                None
            }
            Op::Reshape { .. } | Op::Broadcast { .. } => {
                waiting.push(node.operands[0]);
                None
            }
            _ => None,
        };
        found = match (found, own) {
            (Some(found), Some(own)) => Some(known::larger(&found, &own).unwrap_or(found)),
            (found, own) => found.or(own),
        };
    }
    found
}

/// Whether it is made of sizes and constants alone, as far as is looked.
pub(super) fn is_of_sizes(graph: &Graph, value: ValueId) -> bool {
    let mut waiting = vec![value];
    for _ in 0..LOOKED_AT {
        let Some(value) = waiting.pop() else { return true };
        let node = graph.maker(value);
        if matches!(node.op, Op::Input | Op::Param(_)) {
            return false;
        }
        waiting.extend(&node.operands[..]);
    }
    false
}

/// Walks from a value to what makes it, as deep as it may look at values.
struct Search<'g> {
    graph: &'g Graph,
    left: usize,
}

impl Search<'_> {
    fn most(&mut self, value: ValueId) -> Option<Size> {
        self.left = self.left.checked_sub(1)?;
        let dtype = self.graph.ty(value).dtype;
        let by_type = match dtype {
            DType::Bool => Some(Size::Known(1)),
            DType::I8 => Some(Size::Known(i8::MAX.into())),
            DType::U8 => Some(Size::Known(u8::MAX.into())),
            DType::I16 => Some(Size::Known(i16::MAX.into())),
            DType::U16 => Some(Size::Known(u16::MAX.into())),
            _ => None,
        };
        if dtype.is_float() {
            return None;
        }
        either(self.made(value), by_type)
    }

    fn made(&mut self, value: ValueId) -> Option<Size> {
        let node = self.graph.maker(value);
        let operands = &node.operands;
        match &node.op {
            Op::Constant(id) => {
                let numbers = self.graph.constant(*id).to_i64()?;
                numbers.into_iter().max().map(Size::Known)
            }
            Op::Sizes(sizes) => largest(sizes.iter().cloned().map(Some)),
            Op::Iota { axis } => self.graph.ty(value).shape[*axis as usize].sub(&Size::Known(1)),
            Op::ArgReduce { kind: ArgReduce::Max | ArgReduce::Min, axis, .. } => {
                self.graph.ty(operands[0]).shape[*axis as usize].sub(&Size::Known(1))
            }
            Op::TopK(best) if value != node.first_result => {
                self.graph.ty(operands[0]).shape[best.axis as usize].sub(&Size::Known(1))
            }
            Op::Binary(Binary::Min) => {
                let [left, right] = [self.most(operands[0]), self.most(operands[1])];
                either(left, right)
            }
            Op::Binary(Binary::Max) => largest(operands.iter().map(|&one| self.most(one))),
            Op::Select => largest(operands[1..].iter().map(|&one| self.most(one))),
            Op::Concat { .. } => largest(operands.iter().map(|&one| self.most(one))),
            Op::Binary(Binary::Add) => self.most(operands[0])?.add(&self.most(operands[1])?),
            Op::Reduce { kind: ReduceKind::Sum, axes, .. } => {
                let mut sum = at_least_zero(self.most(operands[0])?)?;
                for &axis in axes {
                    sum = sum.mul(&self.graph.ty(operands[0]).shape[axis as usize])?;
                }
                Some(sum)
            }
            // Of all others the bits that are left may stand for more.
            Op::Convert { .. } => {
                let (from, to) = (self.graph.ty(operands[0]).dtype, self.graph.ty(value).dtype);
                let keeps = to == DType::I64 || (to == DType::I32 && from.size() <= to.size());
                if keeps { self.most(operands[0]) } else { None }
            }
            Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Broadcast { .. }
            | Op::Slice(_)
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. } => self.most(operands[0]),
            _ => None,
        }
    }
}

fn at_least_zero(size: Size) -> Option<Size> {
    known::larger(&size, &Size::Known(0))
}

/// The largest of all; none where one has no limit.
fn largest(sizes: impl IntoIterator<Item = Option<Size>>) -> Option<Size> {
    let mut found: Option<Size> = None;
    for size in sizes {
        let size = size?;
        found = Some(match found {
            None => size,
            Some(other) => known::larger(&other, &size)?,
        });
    }
    found
}

/// The smaller of two limits, or the one that there is.
fn either(left: Option<Size>, right: Option<Size>) -> Option<Size> {
    match (left, right) {
        (Some(left), Some(right)) => Some(known::smaller(&left, &right).unwrap_or(left)),
        (left, right) => left.or(right),
    }
}
