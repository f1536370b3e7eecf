//! Recurrent layers: sequences are independent, steps and hidden units are not.

use super::{Access, Made, Shapes, Way};

pub(super) fn ways(shapes: &Shapes) -> Vec<Way> {
    // Input `[time, batch, in]`; three operands of weights; states `[directions, batch, hidden]`.
    let access = |at: usize| if matches!(at, 1..=3) { Access::Whole } else { Access::along(1) };
    let operands = (0..shapes.operands.len()).map(access).collect();
    let mut made = vec![Made::Slice(2)];
    made.resize(shapes.results.len(), Made::Slice(1));
    vec![Way { made, ..Way::axis(shapes, 2, operands) }]
}
