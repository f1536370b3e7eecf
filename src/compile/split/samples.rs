//! Whether the samples of a batch are computed apart, so that parts of it give what the whole gives.

use std::collections::BTreeMap;

use super::choose::Choices;
use super::layout::Layout;
use crate::error::Result;
use crate::ir::{Family, GeneratorOp, Graph, LayoutOp, NodeId, Size, ValueId};

/// Samples in each of two parts: enough that a product of a part is none of few rows, which is split otherwise.
const SAMPLES: u64 = 64;

/// The first source of a network whose nodes do not compute the samples along dimension `dim` apart; none where all do.
/// `axes` are those of the inputs and outputs along which samples lie; `dims` binds other dimensions. O(nodes + edges).
///
/// Errors: none but internal ones.
pub(in crate::compile) fn mixing(
    graph: &Graph,
    dim: &str,
    axes: &BTreeMap<String, u32>,
    dims: &BTreeMap<String, i64>,
) -> Result<Option<String>> {
    let mut bound = graph.clone();
    let others = graph.unbound_dims().into_iter().map(|name| {
        let value = if name == dim { 2 * SAMPLES as i64 } else { dims.get(&name).copied().unwrap_or(1) };
        (name, value)
    });
    if bound.bind(&others.collect()).is_err() {
        // It is of some batches alone: what is wrong with this one shows when it is bound.
        return Ok(None);
    }
    let samples = Samples { graph, dim };
    let mut choices = Choices::apart(&bound);
    // What does not depend on the samples is there for each part.
    choices.boxed.fill(true);
    for (name, value) in bound.inputs() {
        if let Some(&axis) = axes.get(name) {
            choices.layouts[value.index()] = Some(Layout { axis, bounds: vec![0, SAMPLES, 2 * SAMPLES] });
            choices.boxed[value.index()] = false;
        }
    }
    let named = |node: NodeId| graph.source(graph.node(node).source).name.clone();
    for node in graph.node_ids().filter(|&node| !graph.node(node).op.is_leaf()) {
        if !choices.reads_slices(node) {
            if samples.depends_on_number(node) {
                return Ok(Some(named(node)));
            }
            // What is alike for all samples is there for each, as the states that recurrent layers begin with.
            if let Some((result, axis)) = samples.repeated(node) {
                choices.layouts[result.index()] =
                    Some(Layout { axis, bounds: vec![0, SAMPLES, 2 * SAMPLES] });
                choices.boxed[result.index()] = false;
            }
            continue;
        }
        let Some(division) = choices.following(node)? else { return Ok(Some(named(node))) };
        choices.divide(node, division)?;
        bound.results(node).for_each(|result| choices.boxed[result.index()] = false);
    }
    let is_apart = |(name, value): &&(String, ValueId)| {
        let layout = choices.layouts[value.index()].as_ref().map(|layout| layout.axis);
        layout.is_none() || layout == axes.get(name).copied()
    };
    Ok(bound.outputs().iter().find(|output| !is_apart(output)).map(|(name, _)| name.clone()))
}

/// What is computed without samples, and may depend on how many there are.
struct Samples<'g> {
    graph: &'g Graph,
    dim: &'g str,
}

impl Samples<'_> {
    /// Whether what a node computes of no sample is not alike for each number of them.
    fn depends_on_number(&self, node: NodeId) -> bool {
        let reads = || self.graph.node(node).operands.iter().any(|&operand| self.is_long(operand));
        match self.graph.node(node).op.family() {
            Family::Generator(GeneratorOp::Sizes(sizes)) => sizes.iter().any(|size| self.counts(size)),
            Family::Generator(GeneratorOp::Iota { axis }) => {
                let result = self.graph.node(node).first_result;
                let size = self.graph.ty(result).shape.sizes().get(axis as usize);
                size.is_some_and(|size| self.counts(size))
            }
            Family::Elementwise(_) | Family::Layout(LayoutOp::Broadcast { .. }) => false,
            _ => reads(),
        }
    }

    /// The result of a node that repeats something for each sample, and its axis of the samples.
    fn repeated(&self, node: NodeId) -> Option<(ValueId, u32)> {
        let node = self.graph.node(node);
        let Family::Layout(LayoutOp::Broadcast { .. }) = node.op.family() else { return None };
        let axis = self.graph.axis_of(node.first_result, self.dim)?;
        Some((node.first_result, axis as u32))
    }

    fn is_long(&self, value: ValueId) -> bool {
        self.graph.ty(value).shape.sizes().iter().any(|size| self.counts(size))
    }

    fn counts(&self, size: &Size) -> bool {
        size.terms().iter().any(|&(dim, _)| self.graph.dim_name(dim) == self.dim)
    }
}
