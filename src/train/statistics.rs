//! Batch normalisation as it trains: by the means and variances of the batch, which the stored ones
//! follow (Ioffe and Szegedy 2015).
//!
//! Loaders lower the layer to vectors made of the stored statistics and mark those parameters
//! ([`Param::statistic`](crate::ir::Param::statistic)). Here what reads them reads the batch's instead.

use crate::error::{Error, Result};
use crate::ir::{
    Binary, Graph, NodeId, Op, ParamId, Phase, Source, SourceId, SourceRole, StatisticKind, ValueId,
};
use crate::pass::gradient::build::Build;
use crate::pass::rewrite::Rewriter;

/// What a stored statistic is to become after the step.
pub(super) struct Moved {
    pub(super) param: ParamId,
    pub(super) value: ValueId,
}

/// Puts the statistics of the batch in place of the stored ones; the new stored ones. A layer that is
/// called several times keeps those of its first call. O(nodes + operands).
///
/// Errors: statistics that no layer's input can be found for.
pub(super) fn batch_statistics(graph: &mut Graph) -> Result<Vec<Moved>> {
    if graph.params().iter().all(|param| param.statistic.is_none()) {
        return Ok(Vec::new());
    }
    let readers = readers(graph);
    let mut rewriter = Rewriter::new(graph);
    let mut moved: Vec<Moved> = Vec::new();
    for node in graph.node_ids() {
        let source = graph.node(node).source;
        if let Some(params) = readers.get(source.index()).filter(|params| !params.is_empty()) {
            let own = graph.node(node).operands.iter().any(|&operand| statistic(graph, operand).is_some());
            if own {
                let layer = Layer::find(graph, source)?;
                for &param in params {
                    layer.replace(graph, &mut rewriter, param, &mut moved)?;
                }
            }
        }
        rewriter.keep(node)?;
    }
    *graph = rewriter.finish()?;
    Ok(moved)
}

fn statistic(graph: &Graph, value: ValueId) -> Option<ParamId> {
    match graph.maker(value).op {
        Op::Param(id) if graph.param(id).statistic.is_some() => Some(id),
        _ => None,
    }
}

/// By source: the statistics that its nodes read, each once.
fn readers(graph: &Graph) -> Vec<Vec<ParamId>> {
    let mut readers: Vec<Vec<ParamId>> = vec![Vec::new(); graph.sources().len()];
    for node in graph.node_ids() {
        let data = graph.node(node);
        for &operand in &data.operands {
            if let Some(param) = statistic(graph, operand) {
                let list = &mut readers[data.source.index()];
                if !list.contains(&param) {
                    list.push(param);
                }
            }
        }
    }
    readers
}

/// A normalisation's input, and the axis of its channels.
struct Layer {
    source: SourceId,
    x: ValueId,
    axis: usize,
}

impl Layer {
    /// The layer multiplies its input with a vector along the channels.
    fn find(graph: &Graph, source: SourceId) -> Result<Self> {
        let own = |value: ValueId| {
            let maker = graph.maker(value);
            maker.source == source || maker.op.is_leaf()
        };
        let scales = graph.node_ids().find_map(|node: NodeId| {
            let data = graph.node(node);
            let [x, scale] = data.operands[..] else { return None };
            let scaled = data.source == source && data.op == Op::Binary(Binary::Mul);
            let outer = !own(x) || matches!(graph.maker(x).op, Op::Convert { .. } | Op::Input);
            (scaled && outer && own(scale)).then_some((x, scale))
        });
        let (x, scale) = scales.ok_or_else(|| {
            let place = format!("node {}", graph.source(source).name);
            Error::usage(place, "its stored statistics are used in a way that cannot be trained")
                .with_help("--freeze what it reads, and leave the layer as it is")
        })?;
        let axis = graph.ty(x).shape.rank() - graph.ty(scale).shape.rank();
        Ok(Self { source, x, axis })
    }

    /// Lets the batch's statistic stand for a stored one.
    fn replace(
        &self,
        graph: &Graph,
        rewriter: &mut Rewriter<'_>,
        id: ParamId,
        moved: &mut Vec<Moved>,
    ) -> Result<()> {
        let param = graph.param(id);
        let Some(statistic) = param.statistic else { return Ok(()) };
        let stored_node = param.node;
        let x = rewriter.value(self.x)?;
        let first = moved.iter().all(|one| one.param != id);
        let stored = first.then(|| rewriter.value(graph.node(stored_node).first_result)).transpose()?;
        let mut b = Build { graph: rewriter.graph_mut(), source: self.source };
        let axes: Vec<u32> = (0..b.rank(x) as u32).filter(|&axis| axis as usize != self.axis).collect();
        // Both read the same mean, which is computed once.
        let mean = b.mean(x, &axes, true)?;
        let found = match statistic.kind {
            StatisticKind::Mean => {
                let channels = b.dims(x)?[self.axis];
                b.reshape(mean, &[channels])?
            }
            StatisticKind::Variance => {
                let apart = b.sub(x, mean)?;
                let square = b.mul(apart, apart)?;
                b.mean(square, &axes, false)?
            }
        };
        let dtype = graph.ty(graph.node(stored_node).first_result).dtype;
        let found = b.convert(found, dtype)?;
        if let Some(stored) = stored {
            let forward = Source {
                forward: Some(self.source),
                phase: Phase::Update,
                ..Source::new(format!("{}/update", param.name), "update", SourceRole::Node)
            };
            b.source = b.graph.add_source(forward);
            let kept = b.scale(stored, statistic.momentum.0)?;
            let new = b.scale(found, 1.0 - statistic.momentum.0)?;
            moved.push(Moved { param: id, value: b.add(kept, new)? });
        }
        rewriter.replace_each(stored_node, &[found]);
        Ok(())
    }
}
