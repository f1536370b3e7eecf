//! One attempt at a plan: as it is, rewritten, or in microbatches.

use std::borrow::Cow;

use super::super::pipeline::divided;
use super::super::{Options, prepare};
use crate::control::Control;
use crate::cost;
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::one_of;
use crate::error::{Error, Result};
use crate::load::Model;
use crate::schedule::Schedule;
use crate::strategy::pipeline::{self, pipeline, pipeline_within_memory};
use crate::strategy::{self, Problem, What, is_rewritable, rewrite};
use crate::topology::Topology;

/// Graphs beyond this many nodes, in all microbatches, are not rewritten for an attempt.
const REWRITTEN: usize = 5_000;

/// Whether an attempt that does not fit as it is may be rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    AsIs,
    Rewritten,
}

/// A plan that was found.
pub(super) struct Fit {
    pub(super) schedule: Schedule,
    /// Kernels that run again.
    pub(super) recomputed: usize,
    /// Tensors that are offloaded.
    pub(super) offloaded: usize,
}

/// What planning finds; none where nothing fits.
pub(super) fn fit(
    problem: Problem<'_>,
    divided: Option<pipeline::Options>,
    way: Attempt,
    control: &Control<'_>,
) -> Option<Fit> {
    // The same holds for parts of a batch.
    if control.stopped() || !is_rewritable(problem).ok()? {
        return None;
    }
    if let Some(asked) = divided {
        return match pipeline(problem, asked, control) {
            Ok(found) => Some(Fit { schedule: found.schedule, recomputed: 0, offloaded: 0 }),
            Err(Error::Infeasible(_)) if way == Attempt::Rewritten => rewritten(problem, divided, control),
            Err(_) => None,
        };
    }
    match strategy::solve(problem, control) {
        Ok((_, schedule)) => Some(Fit { schedule, recomputed: 0, offloaded: 0 }),
        Err(Error::Infeasible(_)) if way == Attempt::Rewritten => rewritten(problem, None, control),
        Err(_) => None,
    }
}

/// The step rewritten until it fits; none for large graphs.
pub(super) fn rewritten(
    problem: Problem<'_>,
    divided: Option<pipeline::Options>,
    control: &Control<'_>,
) -> Option<Fit> {
    let runs = divided.map_or(1, |asked| asked.microbatches.max(1) as usize);
    if problem.graph.node_count().saturating_mul(runs) > REWRITTEN {
        return None;
    }
    let (schedule, choices) = match divided {
        Some(asked) => {
            let found = pipeline_within_memory(problem, asked, control).ok()??;
            (found.schedule, found.choices)
        }
        None => {
            let found = rewrite(problem, control).ok()??;
            (found.schedule, found.choices)
        }
    };
    let recomputed = choices.iter().filter(|choice| matches!(choice.what, What::Recompute(_))).count();
    Some(Fit { schedule, recomputed, offloaded: choices.len() - recomputed })
}

/// The cost graph of a model under these options; of one microbatch, where the step is divided.
pub(super) fn graph_of<'m>(
    model: &'m Model,
    topology: &Topology,
    options: &Options,
) -> Result<Cow<'m, CostGraph>> {
    match (model, options.pipeline) {
        (Model::CostGraph { graph, .. }, None) => Ok(Cow::Borrowed(graph)),
        (Model::CostGraph { graph, .. }, Some(asked)) => one_of(graph, asked.microbatches).map(Cow::Owned),
        (Model::Graph(graph), _) => {
            let divided = divided(graph, options)?;
            let batch = divided.map_or(options.batch, |divided| Some(divided.microbatch));
            let network = prepare(graph.clone(), &Options { batch, ..options.clone().on(topology) })?;
            let profile = options.profile.as_deref();
            Ok(Cow::Owned(cost::lower(&network.graph, &network.grouping, topology, profile)?.graph))
        }
    }
}
