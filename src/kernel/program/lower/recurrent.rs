//! Recurrent layers, each a program of its own.

use super::{Halt, Lowered, ProgramBuilder};
use crate::ir::{NodeId, Op};
use crate::kernel::program::{Body, Layer};

impl ProgramBuilder<'_> {
    pub(super) fn recurrent(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::Recurrent(cell) = &node.op else { return Err(Halt::Unfused) };
        let dims = self.dims(node.operands[0])?;
        let mut reads = Vec::new();
        for &operand in node.operands.iter() {
            reads.push(self.arg(operand)?);
        }
        let mut writes = Vec::new();
        for value in self.graph.results(id) {
            writes.push(self.written_arg(value)?);
        }
        Ok(Body::Recurrent(Box::new(Layer {
            cell: (**cell).clone(),
            time: dims[0],
            batch: dims[1],
            features: dims[2],
            reads,
            writes,
        })))
    }
}
