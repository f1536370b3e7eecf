//! Batch normalisations that a file has as they train, as they are evaluated: by what is stored.
//!
//! Loaders write such a layer as one normalisation with its moments, and beside it, in the same source, what the stored
//! statistics become of these. A step and its evaluation begin with the form that every other loader writes: `x * scale +
//! shift` of what is stored, of which [`batch_statistics`](super::statistics::batch_statistics) makes the step's own.

use super::statistics::{readers, statistic};
use crate::error::{Error, Result};
use crate::ir::{Binary, Graph, NodeId, Op, ParamId, StatisticKind, Unary, ValueId};
use crate::pass::gradient::build::Build;
use crate::pass::rewrite::Rewriter;

/// A normalisation by its own moments, which two statistics follow.
#[derive(Clone)]
struct Layer {
    node: NodeId,
    mean: ParamId,
    variance: ParamId,
}

/// Lets such layers normalise by what is stored; what a batch has found, and what the stored ones become, is then what is
/// stored. O(nodes + operands).
///
/// Errors: a dimension that is not bound.
pub(crate) fn by_stored_statistics(graph: &mut Graph) -> Result<()> {
    let layers = layers(graph);
    if layers.iter().all(Option::is_none) {
        return Ok(());
    }
    let mut rewriter = Rewriter::new(graph);
    // By value: the statistic that it is of.
    let mut of: Vec<Option<ParamId>> = vec![None; graph.value_count()];
    for node in graph.node_ids() {
        let data = graph.node(node);
        let Some(layer) = &layers[data.source.index()] else {
            rewriter.keep(node)?;
            continue;
        };
        let results: Vec<ValueId> = graph.results(node).collect();
        if let (true, &[_, mean, variance]) = (node == layer.node, &results[..]) {
            let normal = layer.normalised(graph, &mut rewriter)?;
            let [stored_mean, stored_variance] = layer.stored(graph, &rewriter)?;
            rewriter.replace_each(node, &[normal, stored_mean, stored_variance]);
            of[mean.index()] = Some(layer.mean);
            of[variance.index()] = Some(layer.variance);
            continue;
        }
        let told = |&value: &ValueId| of[value.index()].or_else(|| statistic(graph, value));
        match data.operands.iter().find_map(told) {
            None => rewriter.keep(node)?,
            Some(id) => {
                let stored = rewriter.value(graph.node(graph.param(id).node).first_result)?;
                rewriter.replace_each(node, &[stored]);
                of[data.first_result.index()] = Some(id);
            }
        }
    }
    *graph = rewriter.finish()?;
    Ok(())
}

/// By source: the layer that it is.
fn layers(graph: &Graph) -> Vec<Option<Layer>> {
    let readers = readers(graph);
    let mut layers: Vec<Option<Layer>> = vec![None; graph.sources().len()];
    for node in graph.node_ids() {
        let data = graph.node(node);
        let (Op::Normalize { moments: true, .. }, &[first, second]) =
            (&data.op, &readers[data.source.index()][..])
        else {
            continue;
        };
        let is_mean = |id: ParamId| {
            graph.param(id).statistic.is_some_and(|statistic| statistic.kind == StatisticKind::Mean)
        };
        layers[data.source.index()] = match (is_mean(first), is_mean(second)) {
            (true, false) => Some(Layer { node, mean: first, variance: second }),
            (false, true) => Some(Layer { node, mean: second, variance: first }),
            (true, true) | (false, false) => None,
        };
    }
    layers
}

impl Layer {
    /// The statistics that are stored.
    fn stored(&self, graph: &Graph, rewriter: &Rewriter<'_>) -> Result<[ValueId; 2]> {
        let of = |id: ParamId| rewriter.value(graph.node(graph.param(id).node).first_result);
        Ok([of(self.mean)?, of(self.variance)?])
    }

    /// `x / deviation - mean / deviation`, along the axis of the channels.
    fn normalised(&self, graph: &Graph, rewriter: &mut Rewriter<'_>) -> Result<ValueId> {
        let data = graph.node(self.node);
        let Op::Normalize { axes, epsilon, .. } = &data.op else {
            return Err(Error::Internal(format!("{} is no normalisation", self.node)));
        };
        let x = rewriter.value(data.operands[0])?;
        let [mean, variance] = self.stored(graph, rewriter)?;
        let mut b = Build { graph: rewriter.graph_mut(), source: data.source };
        let (dtype, rank) = (b.dtype(x), b.rank(x));
        let axis = (0..rank).find(|&axis| !axes.contains(&(axis as u32))).unwrap_or(0);
        let mut along = vec![1; rank - axis];
        along[0] = b.dims(x)?[axis];
        let (mean, variance) = (b.convert(mean, dtype)?, b.convert(variance, dtype)?);
        let spread = b.with(Binary::Add, variance, epsilon.0)?;
        let deviation = b.unary(Unary::Sqrt, spread)?;
        let factor = b.unary(Unary::Reciprocal, deviation)?;
        let shift = b.mul(mean, factor)?;
        let shift = b.unary(Unary::Neg, shift)?;
        let (factor, shift) = (b.reshape(factor, &along)?, b.reshape(shift, &along)?);
        let scaled = b.mul(x, factor)?;
        b.add(scaled, shift)
    }
}
