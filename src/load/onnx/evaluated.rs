//! What is known of the results of an operator whose inputs are known: what the operations that it was lowered to make
//! of constants. The arithmetic on shapes may so be of any operators; those that exporters write most are evaluated
//! before they are lowered, also on sizes that are still open (`ops/fold.rs`).

use std::collections::HashMap;

use super::known::{Known, LIMIT};
use super::lower::{Form, Lowering};
use super::node::At;
use crate::ir::{Graph, Op, Tensor, ValueId, evaluate};

/// So many operations are evaluated for one result.
const OPERATIONS: usize = 256;

/// Notes the elements of each output that has few and is computed from known inputs alone. Parameters are not known:
/// training moves them.
pub(super) fn outputs(at: &mut At<'_>) {
    let inputs: Vec<usize> = at.bindings().iter().copied().flatten().collect();
    let mut constants = Constants::new(at.lowering(), &inputs);
    for i in 0..at.output_count() {
        let Some(output) = at.output(i) else { continue };
        match &output.form {
            Form::Tensor if output.known.is_none() && output.ragged.is_none() && output.narrow.is_none() => {
                let known = output.value.and_then(|value| constants.known(at.graph(), value));
                at.note(i, known);
            }
            Form::Sequence(items) => {
                let items = items.clone();
                items.iter().for_each(|&item| constants.note(at.lowering(), item));
            }
            Form::Tensor | Form::Optional(_) => {}
        }
    }
}

/// Values whose elements are known, so far.
struct Constants {
    values: HashMap<ValueId, Tensor>,
}

impl Constants {
    /// Those of these bindings.
    fn new(lowering: &Lowering, bindings: &[usize]) -> Self {
        let mut values = HashMap::new();
        for &index in bindings {
            let binding = lowering.binding(index);
            let tensor = binding.known.as_ref().and_then(|known| known.to_tensor().ok().flatten());
            if let (Some(value), Some(tensor)) = (binding.value, tensor) {
                values.insert(value, tensor);
            }
        }
        Self { values }
    }

    /// Notes the elements of a binding, where it is a tensor of which nothing is known yet.
    fn note(&mut self, lowering: &mut Lowering, index: usize) {
        let binding = lowering.binding(index);
        let is_open = binding.known.is_none() && binding.ragged.is_none() && binding.narrow.is_none();
        if let (true, Some(value)) = (is_open, binding.value) {
            lowering.bindings_mut()[index].known = self.known(&lowering.graph, value);
        }
    }

    /// The elements of a value. None: it is large, an operation behind it is not evaluated, or there are many.
    fn known(&mut self, graph: &Graph, value: ValueId) -> Option<Known> {
        let mut waiting = vec![value];
        let mut operations = 0;
        while let Some(&next) = waiting.last() {
            if self.values.contains_key(&next) {
                waiting.pop();
                continue;
            }
            let is_small = graph.ty(next).elements().is_some_and(|count| count <= LIMIT);
            let node = graph.maker(next);
            if !is_small || node.op.results() != 1 || operations == OPERATIONS {
                return None;
            }
            let open = node.operands.iter().filter(|operand| !self.values.contains_key(operand));
            let open: Vec<ValueId> = open.copied().collect();
            if !open.is_empty() {
                waiting.extend(open);
                continue;
            }
            operations += 1;
            let operands: Vec<&Tensor> = node.operands.iter().map(|operand| &self.values[operand]).collect();
            let made = match &node.op {
                Op::Constant(id) => graph.constant(*id).clone(),
                op => evaluate(op, graph.ty(next), &operands)?,
            };
            self.values.insert(next, made);
            waiting.pop();
        }
        Known::of_tensor(self.values.get(&value)?)
    }
}
