//! Reverse-mode differentiation: from a scalar result the gradients of what it depends on, as nodes of
//! the same graph (Griewank and Walther, Evaluating Derivatives, section 3.2).
//!
//! Each node of the forward pass that lies between a parameter and the loss gets the nodes of its rule
//! once, in the reverse order of the arena, so the work is linear in the nodes and nothing recurses.
//! Backward nodes have sources of their own, which name the forward source that they belong to
//! ([`Source::forward`](crate::ir::Source::forward)): they prefer its device.

mod attention;
pub(crate) mod build;
mod elementwise;
mod index;
mod layout;
mod normalize;
mod product;
mod recurrent;
mod reduce;
mod rules;
mod window;

use std::collections::{HashMap, HashSet};

use self::build::Build;
use self::normalize::scaled::Scaled;
use self::rules::{Site, gradients};
use crate::error::{Error, Result};
use crate::ir::{
    Family, Graph, IndexOp, NodeId, Op, Phase, Source, SourceId, SourceRole, Unary, Users, ValueId,
};

pub use recurrent::unroll;
pub(crate) use recurrent::{steps_of, unroll_some};
pub use rules::no_gradient;

/// The gradients of `loss`, which has one element, by each of `of`; none for what it does not depend
/// on. The graph's dimensions are bound. O(nodes + operands).
///
/// Errors: a loss of several elements; a dimension that is not bound; an operation between the loss
/// and `of` whose gradient is not kept (recurrent layers are to be [unrolled](unroll()) before).
pub fn gradient(graph: &mut Graph, loss: ValueId, of: &[ValueId]) -> Result<Vec<Option<ValueId>>> {
    let count = graph.value(loss).node.index() + 1;
    let active = active(graph, of, count);
    let users = Users::new(graph);
    let of_all = of.iter().copied().collect();
    let mut tape = Tape { graph, users, of: of_all, gradients: HashMap::new(), sources: HashMap::new() };
    tape.seed(loss)?;
    for node in (0..count as u32).rev().map(NodeId) {
        tape.visit(node, &active)?;
    }
    Ok(of.iter().map(|value| tape.gradients.get(value).copied()).collect())
}

/// By value of the first `nodes` nodes: whether it is a float that depends on one of `of`, by more than what is detached.
fn active(graph: &Graph, of: &[ValueId], nodes: usize) -> Vec<bool> {
    let mut active = vec![false; graph.value_count()];
    of.iter().for_each(|value| active[value.index()] = true);
    for node in (0..nodes as u32).map(NodeId) {
        let data = graph.node(node);
        let is_detached = data.op == Op::Unary(Unary::Detach);
        if !is_detached && data.operands.iter().any(|operand| active[operand.index()]) {
            for result in graph.results(node) {
                active[result.index()] = graph.ty(result).dtype.is_float();
            }
        }
    }
    active
}

struct Tape<'g> {
    graph: &'g mut Graph,
    /// Of the values of the forward pass.
    users: Users,
    /// Values whose gradients are asked for; looked up, never iterated.
    of: HashSet<ValueId>,
    /// By value: what has been found of its gradient; looked up, never iterated.
    gradients: HashMap<ValueId, ValueId>,
    /// By forward source: that of its backward nodes; likewise.
    sources: HashMap<SourceId, SourceId>,
}

impl Tape<'_> {
    fn seed(&mut self, loss: ValueId) -> Result<()> {
        let ty = self.graph.ty(loss).clone();
        if ty.elements() != Some(1) || !ty.dtype.is_float() {
            let place = format!("node {}", self.graph.source(self.graph.maker(loss).source).name);
            return Err(Error::usage(place, "a loss is one number").with_help("reduce it to a scalar"));
        }
        let source = self.backward_of(self.graph.maker(loss).source);
        let mut b = Build { graph: self.graph, source };
        let dims = b.dims(loss)?;
        let one = b.constant(ty.dtype, &dims, &[1.0])?;
        self.gradients.insert(loss, one);
        Ok(())
    }

    fn visit(&mut self, node: NodeId, active: &[bool]) -> Result<()> {
        let results: Vec<ValueId> = self.graph.results(node).collect();
        let upstream: Vec<Option<ValueId>> =
            results.iter().map(|result| self.gradients.get(result).copied()).collect();
        if upstream.iter().all(Option::is_none) {
            return Ok(());
        }
        let (op, operands) = (self.graph.node(node).op.clone(), self.graph.node(node).operands.clone());
        let want: Vec<bool> = operands.iter().map(|operand| active[operand.index()]).collect();
        if !want.contains(&true) {
            return Ok(());
        }
        if let Some(scaled) = Scaled::find(self.graph, &self.users, &|value| self.of.contains(&value), node) {
            return self.visit_scaled(node, &scaled, active);
        }
        let forward = self.graph.node(node).source;
        let name = self.graph.source(forward).name.clone();
        self.refuse(&op, &name)?;
        let source = self.backward_of(forward);
        let site = Site { op: &op, operands: &operands, results: &results, upstream: &upstream, want: &want };
        let found = gradients(&mut Build { graph: self.graph, source }, &site)
            .map_err(|error| error.within(&format!("gradient of node {name}")))?;
        for ((operand, want), gradient) in operands.iter().zip(want).zip(found) {
            if let Some(gradient) = gradient.filter(|_| want) {
                self.add(*operand, gradient, source)?;
            }
        }
        Ok(())
    }

    /// Adds to what has been found of a value's gradient.
    fn add(&mut self, value: ValueId, gradient: ValueId, source: SourceId) -> Result<()> {
        let sum = match self.gradients.get(&value) {
            Some(&before) => Build { graph: self.graph, source }.add(before, gradient)?,
            None => gradient,
        };
        self.gradients.insert(value, sum);
        Ok(())
    }

    /// The gradients of a normalisation that ends with `node`, all at once.
    fn visit_scaled(&mut self, node: NodeId, scaled: &Scaled, active: &[bool]) -> Result<()> {
        let data = self.graph.node(node);
        let Some(&dy) = self.gradients.get(&data.first_result) else { return Ok(()) };
        let source = self.backward_of(data.source);
        let operands = [Some(scaled.x(self.graph)), Some(scaled.factor), scaled.shift];
        let found = scaled.gradients(&mut Build { graph: self.graph, source }, dy)?;
        for (operand, gradient) in operands.into_iter().zip(found) {
            if let Some(operand) = operand.filter(|operand| active[operand.index()]) {
                self.add(operand, gradient, source)?;
            }
        }
        Ok(())
    }

    /// Error: an operation that a gradient reaches but does not pass.
    fn refuse(&self, op: &Op, name: &str) -> Result<()> {
        // What is flat or a position passes zero on without a word, as everywhere in the field; these would not.
        let reason = match op.family() {
            Family::Normalize(_) | Family::Attention(_) | Family::Window(_) | Family::Recurrent(_) => {
                no_gradient(op)
            }
            Family::Index(IndexOp::ScatterElements { .. } | IndexOp::ScatterNd { .. }) => no_gradient(op),
            Family::Index(_)
            | Family::Leaf
            | Family::Generator(_)
            | Family::Elementwise(_)
            | Family::Layout(_)
            | Family::Reduce(_)
            | Family::Product(_)
            | Family::Packed(_) => None,
        };
        match reason {
            Some(reason) => {
                let message = format!("{} passes no gradient on: {reason}", op.name());
                Err(Error::usage(format!("node {name}"), message)
                    .with_help("detach what it reads or makes, where none is to pass"))
            }
            None => Ok(()),
        }
    }

    /// The source of the backward nodes of a forward source.
    fn backward_of(&mut self, forward: SourceId) -> SourceId {
        if let Some(&source) = self.sources.get(&forward) {
            return source;
        }
        let own = self.graph.source(forward);
        if own.forward.is_some() {
            return forward;
        }
        let source = Source {
            pin: own.pin.clone(),
            forward: Some(forward),
            phase: Phase::Backward,
            microbatch: own.microbatch,
            ..Source::new(format!("{}/gradient", own.name), "gradient", SourceRole::Node)
        };
        let source = self.graph.add_source(source);
        self.sources.insert(forward, source);
        source
    }
}
