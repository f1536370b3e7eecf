//! Training steps as pipelines: the network's layers are stages on devices of their own, which work on
//! different microbatches at the same time; gradients add up, and one update follows.
//!
//! The step is written out with all its microbatches: they are the shards of one replica that lies over
//! several devices, so what they add up to has the bits that shards on one device give. Stages come from
//! the planner, for the step of one microbatch; the fastest of a few is taken.

use std::collections::{BTreeMap, BTreeSet};

use super::exchange::{Links, Replicas};
use super::planned::{Losses, Planned, layers_together};
use super::replicas::{Groups, replicated_step};
use super::step::{Step, batch_of, training_step};
use super::trainer::Options;
use crate::compile::{self, Compiled};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::Effort;
use crate::strategy::pipeline;
use crate::topology::Topology;

/// How many placements of the stages are planned whole; at the least effort one.
const TRIED: usize = 3;

/// Makes and plans the step of a network in microbatches on stages.
///
/// Errors: fewer samples than microbatches; those of [`compile::stages`], of making the step, and of
/// planning it where no stages fit.
pub(super) fn pipelined(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    control: &Control<'_>,
) -> Result<Planned> {
    let batches = Batches::new(graph, options, asked)?;
    let one = batches.bound((batches.batch + count_of(asked) - 1) / count_of(asked))?;
    let dims = batches.dims.clone();
    let bind = Default::default();
    let written = Some(asked);
    let asked_of = compile::Options { dims, bind, batch: None, written, ..options.compile.clone() };
    let mut graph = training_step(one.clone(), &options.recipe)?.graph;
    layers_together(&mut graph, Losses::WithLayers);
    let mut best: Option<(Step, Compiled)> = None;
    let mut refused: Option<Error> = None;
    let tried = if asked_of.place.effort == Effort::Fast { 1 } else { TRIED };
    for stages in compile::stages(graph, topology, &asked_of, control)?.into_iter().take(tried) {
        let mut step = written_out(&batches, (&one, &stages), topology, asked)?;
        let graph = std::mem::replace(&mut step.graph, Graph::new(""));
        match compile::compile_with(Model::Graph(graph), topology, &asked_of, control) {
            Ok(compiled) => {
                let time = |compiled: &Compiled| compiled.plan.cost.latency_ns;
                if best.as_ref().is_none_or(|(_, best)| time(&compiled) < time(best)) {
                    best = Some((step, compiled));
                }
            }
            Err(error @ (Error::Infeasible(_) | Error::Usage(_))) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (best, refused) {
        (Some((step, compiled)), _) => {
            Ok(Planned { forward: batches.forward, step, asked: asked_of, compiled })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Internal("no stages were tried".into())),
    }
}

/// The step of a network in microbatches, where `stages` tells each layer's device.
///
/// Errors: fewer samples than microbatches; those of making the step.
pub(super) fn on_stages(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    stages: &BTreeMap<String, String>,
) -> Result<Step> {
    let batches = Batches::new(graph, options, asked)?;
    let one = batches.bound((batches.batch + count_of(asked) - 1) / count_of(asked))?;
    written_out(&batches, (&one, stages), topology, asked)
}

fn count_of(asked: pipeline::Options) -> i64 {
    i64::from(asked.microbatches.max(1))
}

/// A network that is bound to a batch, and can be to others.
struct Batches<'a> {
    unbound: Graph,
    forward: Graph,
    dims: BTreeMap<String, i64>,
    batch: i64,
    options: &'a Options,
}

impl<'a> Batches<'a> {
    /// Error: fewer samples than microbatches.
    fn new(graph: Graph, options: &'a Options, asked: pipeline::Options) -> Result<Self> {
        let unbound = graph.clone();
        let (forward, dims) = compile::bound(graph, &options.compile)?;
        let batch = batch_of(&forward);
        let count = asked.microbatches;
        if count < 1 || i64::from(count) > batch {
            let message = format!("a batch of {batch} does not divide into {count} parts");
            return Err(
                Error::usage(format!("--microbatches {count}"), message).with_help("a larger --batch")
            );
        }
        Ok(Self { unbound, forward, dims, batch, options })
    }

    fn bound(&self, samples: i64) -> Result<Graph> {
        if samples == self.batch {
            return Ok(self.forward.clone());
        }
        let asked = compile::Options { batch: Some(samples), ..self.options.compile.clone() };
        compile::bound(self.unbound.clone(), &asked).map(|(graph, _)| graph)
    }
}

/// The step with all its microbatches, pinned to the devices of `stages`.
fn written_out(
    batches: &Batches<'_>,
    (one, stages): (&Graph, &BTreeMap<String, String>),
    topology: &Topology,
    asked: pipeline::Options,
) -> Result<Step> {
    let used: BTreeSet<&str> = stages.values().map(String::as_str).collect();
    let names = topology.devices.iter().map(|device| device.name.clone());
    let devices: Vec<String> = names.filter(|name| used.contains(name.as_str())).collect();
    let place = |name: &str| {
        let device = stages.get(name)?;
        devices.iter().position(|own| own == device)
    };
    let groups = Groups::several(vec![devices.clone()], one, place);
    let replicas = Replicas { each: devices.len(), shards: asked.microbatches as usize, ..Replicas::new(1) };
    let links = Links::of(topology, devices.len());
    let bound = |samples: i64| batches.bound(samples);
    replicated_step(batches.batch, &bound, &batches.options.recipe, &replicas, &groups, links)
}
