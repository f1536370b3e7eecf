//! What parameters add to the loss beside their network's outputs: Keras' regularizers.

use super::trainable;
use crate::error::Result;
use crate::ir::{DType, Graph, ParamId, Penalty, Source, SourceRole, Unary, ValueId};
use crate::pass::gradient::build::{Build, ReducedAxes};

/// The parameters that are trained and add something, and what.
///
/// Errors: those of [`trainable`].
pub(crate) fn penalised(network: &Graph, freeze: &[String]) -> Result<Vec<(ParamId, Penalty)>> {
    let penalties = &network.rules().penalties;
    let of = |id: ParamId| penalties.get(&network.param(id).name).map(|penalty| (id, *penalty));
    Ok(trainable(network, freeze)?.into_iter().filter_map(of).collect())
}

/// The source of what a parameter adds.
pub(crate) fn penalty_source(parameter: &str) -> Source {
    Source::new(format!("{parameter}/penalty"), "penalty", SourceRole::Node)
}

/// `l1 sum |w| + l2 sum w^2`, as a number of type `to`.
///
/// Errors: none but internal ones.
pub(crate) fn penalty(b: &mut Build<'_>, weight: ValueId, penalty: Penalty, to: DType) -> Result<ValueId> {
    let axes: Vec<u32> = (0..b.rank(weight) as u32).collect();
    let weight = b.convert(weight, to)?;
    let mut terms = Vec::new();
    if penalty.l1 != 0.0 {
        terms.push((b.unary(Unary::Abs, weight)?, penalty.l1));
    }
    if penalty.l2 != 0.0 {
        terms.push((b.mul(weight, weight)?, penalty.l2));
    }
    let mut total = b.number(to, 0.0)?;
    for (each, factor) in terms {
        let sum = b.sum(each, &axes, ReducedAxes::Dropped)?;
        let term = b.scale(sum, factor)?;
        total = b.add(total, term)?;
    }
    Ok(total)
}

/// A loss, or the loss of each sample, with what the parameters of its network add.
///
/// Errors: those of [`trainable`].
pub(super) fn with_penalties(graph: &mut Graph, loss: ValueId, freeze: &[String]) -> Result<ValueId> {
    let (own, to) = (graph.maker(loss).source, graph.ty(loss).dtype);
    let mut total = loss;
    for (id, of) in penalised(graph, freeze)? {
        let weight = graph.node(graph.param(id).node).first_result;
        let source = graph.add_source(penalty_source(&graph.param(id).name));
        let added = penalty(&mut Build { graph, source }, weight, of, to)?;
        total = Build { graph, source: own }.add(total, added)?;
    }
    Ok(total)
}
