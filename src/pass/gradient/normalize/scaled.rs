//! Normalisations with the factor and the summand behind them, whose gradients are one operation.

use super::super::build::Build;
use crate::error::{Error, Result};
use crate::ir::{Binary, Graph, NodeId, Op, Users, ValueId, Varies};
use crate::pass::same_marks;

/// `normalize(x) * factor`, perhaps `+ shift`.
pub(in crate::pass::gradient) struct Scaled {
    normalize: NodeId,
    pub(in crate::pass::gradient) factor: ValueId,
    pub(in crate::pass::gradient) shift: Option<ValueId>,
}

impl Scaled {
    /// What the node ends, where nothing else reads what is between; `taken` tells the values whose
    /// gradient is asked for.
    pub(in crate::pass::gradient) fn find(
        graph: &Graph,
        users: &Users,
        taken: &dyn Fn(ValueId) -> bool,
        node: NodeId,
    ) -> Option<Self> {
        let inner = |value: ValueId, by: NodeId| {
            let maker = graph.value(value).node;
            let marks = same_marks(graph, &[], graph.node(maker).source, graph.node(by).source);
            (marks && users.of(value) == [by] && !taken(value)).then_some(maker)
        };
        let product = |node: NodeId| {
            let data = graph.node(node);
            let (Op::Binary(Binary::Mul), &[a, b]) = (&data.op, &data.operands[..]) else { return None };
            [[a, b], [b, a]].into_iter().find_map(|[normal, factor]| {
                let normalize = inner(normal, node)?;
                (graph.node(normalize).first_result == normal).then_some(())?;
                varies(graph, normalize, factor)?;
                Some(Self { normalize, factor, shift: None })
            })
        };
        let data = graph.node(node);
        let (Op::Binary(Binary::Add), &[a, b]) = (&data.op, &data.operands[..]) else { return product(node) };
        [[a, b], [b, a]].into_iter().find_map(|[scaled, shift]| {
            let found = product(inner(scaled, node)?)?;
            let alike =
                varies(graph, found.normalize, shift)? == varies(graph, found.normalize, found.factor)?;
            alike.then_some(Self { shift: Some(shift), ..found })
        })
    }

    /// What is normalised.
    pub(in crate::pass::gradient) fn x(&self, graph: &Graph) -> ValueId {
        graph.node(self.normalize).operands[0]
    }

    /// The gradients of what is normalised, of the factor, and of the summand.
    pub(in crate::pass::gradient) fn gradients(
        &self,
        b: &mut Build<'_>,
        dy: ValueId,
    ) -> Result<[ValueId; 3]> {
        let node = b.graph.node(self.normalize);
        let Op::Normalize { axes, epsilon, center, moments } = node.op.clone() else {
            return Err(Error::Internal(format!("{} does not normalise", node.op.name())));
        };
        let beside = b.graph.results(self.normalize).skip(1);
        let operands: Vec<ValueId> = [node.operands[0], dy, self.factor].into_iter().chain(beside).collect();
        let op = Op::NormalizeGradient { axes, epsilon, center, scaled: true, moments };
        let made = b.graph.push(op, &operands, b.source)?;
        let first = b.graph.node(made).first_result;
        let [dx, factor, shift] = [0, 1, 2].map(|result| ValueId(first.0 + result));
        let shift = match self.shift {
            Some(own) => {
                let dims = b.dims(own)?;
                b.reshape(shift, &dims)?
            }
            None => shift,
        };
        Ok([dx, factor, shift])
    }
}

/// How a value varies along what a node normalises.
fn varies(graph: &Graph, normalize: NodeId, value: ValueId) -> Option<Varies> {
    let node = graph.node(normalize);
    let Op::Normalize { axes, .. } = &node.op else { return None };
    let (x, own) = (graph.ty(node.operands[0]), graph.ty(value));
    (x.dtype == own.dtype).then_some(())?;
    Varies::new(axes, x.shape.sizes(), own.shape.sizes())
}
