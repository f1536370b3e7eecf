//! A network in parts of its batch: all that computes samples apart is divided alike, so that nothing moves between the
//! parts, and each needs room for its own samples alone.

use super::choose::{Choices, Limits};
use super::rule::{even, parts};
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::kernel::split::{Loop, part, splits};
use crate::pass::Division;

impl Choices<'_> {
    /// Divides a node as what it reads is divided, where nothing moves then; a reader of the network's inputs along their
    /// first axis, in so many parts; and what takes too much that way, or cannot be divided so, at the least cost.
    ///
    /// Errors: none but internal ones.
    pub(super) fn along_batch(&mut self, node: NodeId, parts: u64, limits: Limits) -> Result<()> {
        if !self.may_divide(node) {
            return Ok(());
        }
        let alike = match self.following(node)? {
            Some(division) => Some(division),
            None => self.of_inputs(node, parts)?,
        };
        match alike {
            Some(division) if self.largest_part(node, &division)? <= limits.bytes => {
                self.divide(node, division)
            }
            Some(_) | None => self.cheapest(node, limits),
        }
    }

    /// A reader of the network's inputs, divided along the first axis of one of them.
    fn of_inputs(&self, node: NodeId, number: u64) -> Result<Option<Division>> {
        let operands = &self.graph.node(node).operands;
        let Some(at) = operands.iter().position(|&value| is_input(self.graph, value)) else {
            return Ok(None);
        };
        for split in splits(self.graph, node)? {
            let is_whole_axis = matches!(split.over, Loop::Axis(_)) && !split.is_partial();
            if !is_whole_axis || parts(&split) < number {
                continue;
            }
            let region = part(self.graph, node, &split, 0, split.extent)?.operands[at];
            if region.is_some_and(|region| region.axis == 0) {
                let bounds = even(&split, number);
                let division = Division { split, bounds, devices: Vec::new(), apart: self.apart };
                return Ok(self.may_have(node, division.parts()).then_some(division));
            }
        }
        Ok(None)
    }
}

fn is_input(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.maker(value).op, Op::Input)
}
