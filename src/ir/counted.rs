//! Which elements of a value count in training: a choice between the value and itself, by a mask.
//!
//! Loaders write it where a mask accompanies what a loss or a statistic is taken of. It computes nothing: simplification
//! removes it, and the mask with it, and a training step reads the mask off before.

use super::{Graph, Op, Shape, Size, SourceId, ValueId};
use crate::error::Result;

/// A value, and which of its elements count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedSteps {
    /// Bools with the value's first axes, and ones behind.
    pub mask: ValueId,
    /// The value.
    pub value: ValueId,
}

impl Graph {
    /// Says which steps of a value count: `mask` has the sizes of its first axes. Error: types that do not fit.
    pub fn mark_counted(&mut self, value: ValueId, mask: ValueId, source: SourceId) -> Result<ValueId> {
        let rank = self.ty(value).shape.rank();
        let mut sizes = self.ty(mask).shape.sizes().to_vec();
        sizes.resize(rank.max(sizes.len()), Size::Known(1));
        let mask = self.apply(Op::Reshape { shape: Shape::new(sizes) }, &[mask], source)?;
        self.apply(Op::Select, &[mask, value, value], source)
    }

    /// What of a value counts; none where nothing is said of it.
    pub fn counted_steps(&self, value: ValueId) -> Option<CountedSteps> {
        let maker = self.maker(value);
        match (&maker.op, &maker.operands[..]) {
            (Op::Select, &[mask, value, other]) if value == other => Some(CountedSteps { mask, value }),
            _ => None,
        }
    }
}
