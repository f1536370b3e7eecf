//! Training steps as pipelines: the network's layers are stages on devices of their own, which work on
//! different microbatches at the same time; gradients add up, and one update follows. There may be several
//! such pipelines side by side, as replicas of the network, whose gradients meet as those of others do.
//!
//! The step is unrolled with all its microbatches: they are the shards of replicas that lie over
//! several devices each, so what they add up to has the bits that shards on one device give. Stages come
//! from the planner, for the step of one microbatch on one replica's devices; the fastest of a few is taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::{DeviceUse, Effort};
use crate::strategy::pipeline::{self, Unrolled};
use crate::topology::Topology;
use crate::train::options::Options;
use crate::train::plan::{Losses, Planned, again, layers_together, of_samples};
use crate::train::spread::exchange::{Replicas, Zero};
use crate::train::spread::groups::ReplicaGroups;
use crate::train::spread::links::Links;
use crate::train::spread::replicas::replicated_step;
use crate::train::step::{Step, batch_of, training_step};

/// How many placements of the stages are planned whole; at the least effort one.
const TRIED: usize = 3;

/// Makes and plans the step of a network in microbatches on stages.
///
/// Errors: fewer samples than microbatches; replicas that do not go with a pipeline; those of
/// [`compile::stages`], of making the step, and of planning it where no stages fit.
pub(crate) fn pipelined(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    control: &Control<'_>,
) -> Result<Planned> {
    let batches = Batches::new(graph, topology, options, asked)?;
    let one = batches.one()?;
    let dims = batches.dims.clone();
    let bind = Default::default();
    let unrolled = Some(Unrolled { asked, replicas: batches.replicas.count as u32 });
    let asked_of = compile::Options { dims, bind, batch: None, unrolled, ..options.compile.clone() };
    let mut graph = training_step(one.clone(), &options.recipe)?.graph;
    layers_together(&mut graph, Losses::WithLayers);
    let mut of_one = asked_of.clone();
    if options.replicas.is_some() {
        of_one.place.devices = DeviceUse::Count(batches.replicas.each as u32);
    }
    let mut best: Option<Planned> = None;
    let mut refused: Option<Error> = None;
    let tried = if asked_of.place.effort == Effort::Fast { 1 } else { TRIED };
    for stages in compile::stages(graph, topology, &of_one, control)?.into_iter().take(tried) {
        let (mut step, groups) = unrolled_step(&batches, &one, &stages, topology)?;
        let graph = std::mem::replace(&mut step.graph, Graph::new(""));
        let mut asked = asked_of.clone();
        if let Some(training) = &mut asked.training {
            let batch = compile::batch_dim(&batches.unbound);
            training.replicas = Some(again::recorded_replicas(&batches.replicas, &groups, batch));
        }
        match compile::compile_with(Model::Graph(graph), topology, &asked, control) {
            Ok(compiled) => {
                let time = |planned: &Planned| planned.plan().cost.latency_ns;
                let planned = Planned { forward: batches.forward.clone(), step, asked, compiled };
                if best.as_ref().is_none_or(|best| time(&planned) < time(best)) {
                    best = Some(planned);
                }
            }
            Err(error @ (Error::Infeasible(_) | Error::Usage(_))) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (best, refused) {
        (Some(best), _) => Ok(best),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Internal("no stages were tried".into())),
    }
}

/// The step of a network in microbatches, where `stages` tells each layer's device in the first replica.
///
/// Errors: those of [`pipelined`], but for planning.
pub(crate) fn on_stages(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    stages: &BTreeMap<String, String>,
) -> Result<Step> {
    let batches = Batches::new(graph, topology, options, asked)?;
    unrolled_step(&batches, &batches.one()?, stages, topology).map(|(step, _)| step)
}

/// The replicas of a pipeline, each with its microbatches as shards; one, where none are asked for. Where
/// it is not said how many devices each has, it is an even part of them.
///
/// Errors: shards that are not the microbatches; parameters that are kept once; those of
/// [`Replicas::check`].
fn replicas_of(topology: &Topology, options: &Options, microbatches: u32, batch: i64) -> Result<Replicas> {
    let count = options.replicas.map_or(1, |own| own.count);
    let shards = count.saturating_mul(microbatches as usize);
    if microbatches < 1 || shards as i64 > batch {
        let message = format!("a batch of {batch} does not divide into {shards} parts");
        return Err(
            Error::usage(format!("--microbatches {microbatches}"), message).with_help("a larger --batch")
        );
    }
    let Some(own) = options.replicas else {
        return Ok(Replicas { each: topology.computing().count(), shards, ..Replicas::new(1) });
    };
    if own.shards != count && own.shards != shards {
        let message = format!("the shards of {count} pipelines are their {microbatches} microbatches each");
        return Err(Error::usage(format!("--shards {}", own.shards), message).with_help("leave it out"));
    }
    if own.zero == Zero::Parameters {
        let message = "the stages of a pipeline read their parameters in every microbatch";
        return Err(Error::usage(format!("--zero {}", own.zero), message).with_help("--zero 2"));
    }
    let even = topology.computing().count().checked_div(count).unwrap_or(0).max(1);
    let replicas = Replicas { each: if own.each > 1 { own.each } else { even }, shards, ..own };
    replicas.check(topology, batch)?;
    Ok(replicas)
}

/// A network that is bound to a batch, and can be to others.
struct Batches<'a> {
    unbound: Graph,
    forward: Graph,
    dims: BTreeMap<String, i64>,
    batch: i64,
    options: &'a Options,
    replicas: Replicas,
}

impl<'a> Batches<'a> {
    /// Errors: those of [`replicas_of`].
    fn new(
        graph: Graph,
        topology: &Topology,
        options: &'a Options,
        asked: pipeline::Options,
    ) -> Result<Self> {
        let unbound = graph.clone();
        let (forward, dims) = compile::bound(graph, &options.compile)?;
        let batch = batch_of(&forward);
        let replicas = replicas_of(topology, options, asked.microbatches, batch)?;
        Ok(Self { unbound, forward, dims, batch, options, replicas })
    }

    fn bound(&self, samples: i64) -> Result<Graph> {
        if samples == self.batch {
            return Ok(self.forward.clone());
        }
        of_samples(&self.unbound, samples, self.batch, &self.options.compile)
    }

    /// The network of the largest microbatch.
    fn one(&self) -> Result<Graph> {
        let shards = self.replicas.shards as i64;
        self.bound((self.batch + shards - 1) / shards)
    }

    /// The devices of the replicas: those of the first are what `stages` of its network use, the others
    /// follow in the topology's order.
    fn groups(
        &self,
        one: &Graph,
        stages: &BTreeMap<String, String>,
        topology: &Topology,
    ) -> Result<ReplicaGroups> {
        let Replicas { count, each, .. } = self.replicas;
        let used = one.sources().iter().filter_map(|source| stages.get(&source.name));
        let used: BTreeSet<&str> = used.map(String::as_str).collect();
        let named = |device: &&crate::topology::Device| used.contains(device.name.as_str());
        let first: Vec<String> =
            topology.devices.iter().filter(named).map(|device| device.name.clone()).collect();
        if first.is_empty() {
            return Err(Error::Internal("stages without a device".into()));
        }
        let rest = topology.computing().map(|id| topology.device(id).name.clone());
        let rest: Vec<String> = rest.filter(|name| !used.contains(name.as_str())).collect();
        let spare = each.saturating_sub(first.len()).min(rest.len());
        let others = rest[spare..].chunks(each.max(1)).map(|own| own[..own.len().min(first.len())].to_vec());
        let devices: Vec<Vec<String>> = std::iter::once(first.clone()).chain(others).take(count).collect();
        if devices.len() < count || devices.iter().any(|own| own.len() < first.len()) {
            let message = format!("stages take {} devices, which leaves too few for the others", first.len());
            return Err(Error::usage(format!("--replicas {count}"), message)
                .with_help("--devices-each, or more --devices"));
        }
        let place = |name: &str| {
            let device = stages.get(name)?;
            first.iter().position(|own| own == device)
        };
        Ok(ReplicaGroups::several(devices, one, place).of_pipelines())
    }
}

/// The step with all its microbatches, pinned to the devices of `stages` and of those of other replicas; and what those
/// are.
fn unrolled_step(
    batches: &Batches<'_>,
    one: &Graph,
    stages: &BTreeMap<String, String>,
    topology: &Topology,
) -> Result<(Step, ReplicaGroups)> {
    let groups = batches.groups(one, stages, topology)?;
    let replicas = &batches.replicas;
    let links = Links::of(topology, &groups);
    let bound = |samples: i64| batches.bound(samples);
    let step = replicated_step(batches.batch, &bound, &batches.options.recipe, replicas, &groups, links)?;
    Ok((step, groups))
}
