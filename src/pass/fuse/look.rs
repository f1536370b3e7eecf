//! What patterns look at: who makes a value, who reads it, which constants it is.

use super::super::same_marks;
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ir::{Binary, DType, Graph, Node, NodeId, Op, Tensor, Unary, ValueId, float_element};

/// Most nodes of a pattern.
const LARGEST: usize = 48;

/// A graph with what is known of it.
pub(super) struct Look<'g> {
    pub(super) graph: &'g Graph,
    place: &'g [u32],
    /// By constant: the number that all its elements are.
    uniform: Vec<Option<f64>>,
    /// By value: operands and outputs that it is.
    uses: Vec<u32>,
    /// By node: a control dependency begins or ends there.
    ordered: Vec<bool>,
}

impl<'g> Look<'g> {
    pub(super) fn new(graph: &'g Graph, place: &'g [u32]) -> Self {
        let mut uses = vec![0; graph.value_count()];
        let operands = graph.node_ids().flat_map(|id| graph.node(id).operands.iter());
        let outputs = graph.outputs().iter().map(|(_, value)| value);
        operands.chain(outputs).for_each(|value| uses[value.index()] += 1);
        let mut ordered = vec![false; graph.node_count()];
        for &(before, after) in graph.controls() {
            (ordered[before.index()], ordered[after.index()]) = (true, true);
        }
        Self { graph, place, uniform: graph.constants().iter().map(number).collect(), uses, ordered }
    }

    pub(super) fn maker(&self, value: ValueId) -> &'g Node {
        self.graph.maker(value)
    }

    /// The nodes between a pattern's operands and its last node; none where anything but one
    /// another reads them, or something sets them apart.
    pub(super) fn inner(&self, root: NodeId, operands: &[ValueId]) -> Option<Vec<NodeId>> {
        let mut nodes = vec![root];
        let mut next = 0;
        while let Some(&id) = nodes.get(next) {
            next += 1;
            for &value in &self.graph.node(id).operands {
                let maker = self.graph.value(value).node;
                let inner = !operands.contains(&value) && !self.graph.node(maker).op.is_leaf();
                if inner && !nodes.contains(&maker) {
                    nodes.push(maker);
                }
            }
            if nodes.len() > LARGEST {
                return None;
            }
        }
        let reads = |value: ValueId| {
            let all = nodes.iter().flat_map(|&id| self.graph.node(id).operands.iter());
            all.filter(|&&operand| operand == value).count() as u32
        };
        let source = self.graph.node(root).source;
        let alone = nodes[1..].iter().all(|&id| {
            // What training disturbs is part of no pattern.
            self.graph.disturbance(id).is_none()
                && same_marks(self.graph, self.place, source, self.graph.node(id).source)
                && self.graph.results(id).all(|value| self.uses[value.index()] == reads(value))
        });
        let free = nodes.iter().all(|id| !self.ordered[id.index()]);
        (alone && free).then(|| nodes.split_off(1))
    }

    /// What a value repeats along axes.
    pub(super) fn unrepeated(&self, mut value: ValueId) -> ValueId {
        for _ in 0..LARGEST {
            let node = self.maker(value);
            let (Op::Broadcast { .. }, Some(&from)) = (&node.op, node.operands.first()) else { break };
            value = from;
        }
        value
    }

    /// True where nothing reads a value but one operand.
    pub(super) fn is_read_once(&self, value: ValueId) -> bool {
        self.uses[value.index()] == 1
    }

    /// True where nothing reads a value but this node.
    pub(super) fn is_read_by(&self, node: &Node, value: ValueId) -> bool {
        let own = node.operands.iter().filter(|&&operand| operand == value).count();
        self.uses[value.index()] as usize == own
    }

    /// A value's sizes, where all are known.
    pub(super) fn dims(&self, value: ValueId) -> Option<Vec<i64>> {
        self.graph.ty(value).shape.dims()
    }

    /// The number that all elements of a value are.
    pub(super) fn constant(&self, value: ValueId) -> Option<f64> {
        match self.maker(value).op {
            Op::Constant(id) => self.uniform[id.index()],
            _ => None,
        }
    }

    /// True where a value is this number, rounded to its type.
    pub(super) fn is(&self, value: ValueId, number: f64) -> bool {
        let rounded = match self.graph.ty(value).dtype {
            DType::F32 => f64::from(number as f32),
            DType::F16 => f16_to_f32(f32_to_f16(number as f32)).into(),
            DType::Bf16 => bf16_to_f32(f32_to_bf16(number as f32)).into(),
            _ => number,
        };
        self.constant(value) == Some(rounded)
    }

    pub(super) fn unary(&self, value: ValueId, unary: Unary) -> Option<ValueId> {
        let node = self.maker(value);
        (node.op == Op::Unary(unary)).then(|| node.operands[0])
    }

    pub(super) fn binary(&self, value: ValueId, binary: Binary) -> Option<[ValueId; 2]> {
        let node = self.maker(value);
        (node.op == Op::Binary(binary)).then(|| [node.operands[0], node.operands[1]])
    }

    /// The other operand of a commutative operation with this number.
    pub(super) fn with(&self, value: ValueId, binary: Binary, number: f64) -> Option<ValueId> {
        let [x, y] = self.binary(value, binary)?;
        if self.is(y, number) { Some(x) } else { self.is(x, number).then_some(y) }
    }

    /// `1 / y` as the value `y` that it is of.
    pub(super) fn reciprocal(&self, value: ValueId) -> Option<ValueId> {
        let quotient = || self.binary(value, Binary::Div).filter(|&[one, _]| self.is(one, 1.0));
        self.unary(value, Unary::Reciprocal).or_else(|| quotient().map(|[_, y]| y))
    }

    /// `x * x`, or `x ^ 2`, of as many elements as `x`: powers of more repeat it.
    pub(super) fn square(&self, value: ValueId) -> Option<ValueId> {
        let of = match self.binary(value, Binary::Mul) {
            Some([x, y]) => (x == y).then_some(x),
            None => self.binary(value, Binary::Pow).and_then(|[x, two]| self.is(two, 2.0).then_some(x)),
        };
        of.filter(|&x| self.graph.ty(x) == self.graph.ty(value))
    }
}

/// The number that every element of a float constant is. O(bytes), less where two differ.
fn number(tensor: &Tensor) -> Option<f64> {
    let first = tensor.bytes().get(..tensor.dtype().size() as usize)?;
    if tensor.is_uniform() { float_element(tensor.dtype(), first) } else { None }
}
