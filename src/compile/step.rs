//! The step of a cost graph, as it is, rewritten where it does not fit so, or in microbatches; and
//! the plan of it.

use super::{Compiled, Network, Options, replan, rewrite};
use crate::control::Control;
use crate::costgraph::CostGraph;
use crate::costgraph::derive::Derived;
use crate::costgraph::microbatch::{Sizes, microbatches, one_of};
use crate::error::{Error, Result};
use crate::place::{self, Placement};
use crate::plan::{self, Bound, Labels, Meta, Plan};
use crate::schedule::Schedule;
use crate::strategy::pipeline::{
    self, Figures, Pipeline, Turn, Unrolled, UnrolledStep, pipeline, pipeline_within_memory,
};
use crate::strategy::{self, Choice, Problem, Rewritten};
use crate::topology::Topology;

/// What is planned: a cost graph with all that is asked of it.
pub(super) struct Asked<'a> {
    pub(super) graph: &'a CostGraph,
    /// What the sizes of the graph stand for, where the step is divided.
    pub(super) sizes: Sizes,
    pub(super) topology: &'a Topology,
    /// What a placement of this very graph must respect.
    pub(super) place: &'a place::Options,
    pub(super) pipeline: Option<pipeline::Options>,
    /// The order of a step that is unrolled in microbatches, and when its nodes run.
    pub(super) unrolled: Option<(Unrolled, &'a [Turn])>,
    /// Whether a step that does not fit may be computed again or offloaded in part.
    pub(super) may_rewrite: bool,
}

/// A step that fits.
pub(super) struct Step {
    /// By node that runs.
    pub(super) placement: Placement,
    pub(super) schedule: Schedule,
    /// What runs, where nodes run more than once.
    pub(super) derived: Option<Derived>,
    /// What the pipeline comes to, where it is one.
    pub(super) pipeline: Option<Figures>,
    /// What was done so that it fits.
    pub(super) choices: Vec<Choice>,
}

impl Step {
    /// Finds a step: see [`strategy::solve`], [`strategy::rewrite`], [`pipeline()`] and [`pipeline_within_memory`].
    /// Where nothing has changed since the plan that is replaced, which `meta` tells, it is that plan's.
    ///
    /// Errors: those of the four.
    pub(super) fn find(asked: &Asked<'_>, meta: &Meta, control: &Control<'_>) -> Result<Self> {
        if let Some(options) = asked.pipeline {
            return Self::in_microbatches(asked, options, control);
        }
        let Asked { graph, topology, place, .. } = *asked;
        let problem = Problem::new(graph, topology, place);
        if let Some((unrolled, turns)) = asked.unrolled {
            let step = UnrolledStep { problem, turns, unrolled };
            let fitted = || pipeline::order_within_memory(step, control);
            return match pipeline::ordered(step, control) {
                Ok((placement, schedule, figures)) => {
                    let pipeline = Some(figures);
                    Ok(Self { placement, schedule, derived: None, pipeline, choices: Vec::new() })
                }
                Err(Error::Infeasible(why)) => rewrite::pipeline(problem, why, fitted()?).map(Self::from),
                Err(error) => Err(error),
            };
        }
        match replan::solve(graph, topology, place, meta, control) {
            Ok((placement, schedule)) => {
                Ok(Self { placement, schedule, derived: None, pipeline: None, choices: Vec::new() })
            }
            Err(Error::Infeasible(why)) if asked.may_rewrite && !rewrite::is_in_vain(&why) => {
                let Rewritten { derived, placement, schedule, choices } =
                    rewrite::rewritten(problem, why, control)?;
                Ok(Self { placement, schedule, derived: Some(derived), pipeline: None, choices })
            }
            Err(error) => Err(error),
        }
    }

    fn in_microbatches(asked: &Asked<'_>, options: pipeline::Options, control: &Control<'_>) -> Result<Self> {
        let Asked { graph, topology, place, .. } = *asked;
        let one;
        let graph = match asked.sizes {
            Sizes::Microbatch => graph,
            Sizes::Batch => {
                one = one_of(graph, options.microbatches)?;
                &one
            }
        };
        let problem = Problem::new(graph, topology, place);
        match pipeline(problem, options, control) {
            Err(Error::Infeasible(why)) if !rewrite::is_in_vain(&why) => {
                let fitted = pipeline_within_memory(problem, options, control)?;
                rewrite::pipeline(problem, why, fitted).map(Self::from)
            }
            found => found.map(Self::from),
        }
    }

    /// Where the nodes of the graph that was asked for are.
    pub(super) fn base(&self) -> Placement {
        let device = match &self.derived {
            Some(derived) => derived.gather(&self.placement.device),
            None => self.placement.device.clone(),
        };
        Placement { device, ..Placement::default() }
    }

    /// The plan, with its certificate; not checked yet.
    ///
    /// Errors: those of building it, and of the certificate.
    pub(super) fn plan(
        &self,
        asked: &Asked<'_>,
        labels: Option<&Labels>,
        mut meta: Meta,
        control: &Control<'_>,
    ) -> Result<Plan> {
        let Asked { graph, topology, place, .. } = *asked;
        meta.bound = self.bound(asked, control)?;
        if let Some(figures) = &self.pipeline {
            meta.options.schedule = Some(figures.schedule.to_owned());
        }
        let (placement, schedule) = (&self.placement, &self.schedule);
        let mut plan = match &self.derived {
            Some(derived) => {
                plan::build_derived(graph, derived, topology, placement, schedule, labels, meta)?
            }
            None => plan::build(graph, topology, placement, schedule, labels, meta)?,
        };
        rewrite::annotate(&mut plan, schedule, &self.choices);
        plan.replan = replan::summary(graph, topology, place, &self.base());
        plan.options.truncated = control.was_truncated();
        Ok(plan)
    }

    /// How good the step is: at least what the graph as it is takes, whatever is done to make room;
    /// in microbatches, what all their instances take.
    fn bound(&self, asked: &Asked<'_>, control: &Control<'_>) -> Result<Option<Bound>> {
        let reached = strategy::value(asked.place.objective, &self.schedule.cost);
        let found = match (asked.pipeline, &self.derived) {
            (Some(options), Some(derived)) => {
                // Patterns speak of the graph's own nodes, not of instances.
                let place = asked.place.without_patterns();
                let as_is;
                let graph = match self.choices.as_slice() {
                    [] => &derived.graph,
                    _ => {
                        as_is = microbatches(asked.graph, options.microbatches, asked.sizes)?;
                        &as_is.graph
                    }
                };
                place::certificate(graph, asked.topology, &place, control, reached)
            }
            _ => place::certificate(asked.graph, asked.topology, asked.place, control, reached),
        }?;
        Ok(found.map(|certificate| Bound::new(certificate, reached)))
    }

    /// All together. `graph` is what was asked for.
    pub(super) fn compiled(
        self,
        plan: Plan,
        network: Option<Network>,
        graph: CostGraph,
        topology: &Topology,
    ) -> Compiled {
        Compiled {
            plan,
            network,
            cost_graph: self.derived.map_or(graph, |derived| derived.graph),
            topology: topology.clone(),
            placement: self.placement,
            schedule: self.schedule,
            pipeline: self.pipeline,
        }
    }
}

impl From<Pipeline> for Step {
    fn from(Pipeline { derived, placement, schedule, figures, choices }: Pipeline) -> Self {
        Self { placement, schedule, derived: Some(derived), pipeline: Some(figures), choices }
    }
}

impl From<&place::Options> for Options {
    fn from(place: &place::Options) -> Self {
        Self { place: place.clone(), ..Self::default() }
    }
}

impl From<&Self> for Options {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}
