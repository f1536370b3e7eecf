//! A training step made anew from its network and what its plan says of it, to explain and to check the plan.

use std::collections::BTreeMap;

use super::{Losses, layers_together, only_floats};
use crate::compile;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::plan::{Plan, PlanReplicas, Training};
use crate::train::options::Options;
use crate::train::spread::exchange::Replicas;
use crate::train::spread::groups::ReplicaGroups;
use crate::train::spread::links::Links;
use crate::train::spread::replicas::replicated_step;
use crate::train::step::{batch_of, gradient_step, training_step};

/// What plans call the other ways in which a step is spread.
const REPLICAS: &str = "replicas";
const WORKERS: &str = "workers";

/// What a plan says of a step.
pub(super) fn recorded(options: &Options) -> Training {
    let recipe = &options.recipe;
    let spreads = [
        (Training::PIPELINE, options.pipeline.is_some()),
        (REPLICAS, options.replicas.is_some()),
        (WORKERS, options.asynchronous.is_some()),
    ];
    Training {
        loss: recipe.loss.to_string(),
        optimizer: recipe.updates.to_string(),
        freeze: recipe.freeze.clone(),
        loss_scale: recipe.scaling.map(|scaling| scaling.to_string()),
        outputs: recipe.outputs,
        microbatches: Some(recipe.updates.microbatches).filter(|&parts| parts > 1),
        together: None,
        spread: spreads.into_iter().find(|(_, is_so)| *is_so).map(|(name, _)| name.to_owned()),
        replicas: None,
    }
}

/// What a plan says of replicas on these devices, of a network with this batch dimension.
pub(super) fn recorded_replicas(
    replicas: &Replicas,
    groups: &ReplicaGroups,
    batch: Option<String>,
) -> PlanReplicas {
    PlanReplicas {
        devices: groups.devices.clone(),
        each: replicas.each,
        batch,
        shards: replicas.shards,
        spare: replicas.spare,
        sync: replicas.sync.to_string(),
        exchange: replicas.exchange.to_string(),
        transfer: replicas.transfer.to_string(),
        zero: replicas.zero.to_string(),
        bucket: replicas.bucket,
    }
}

/// The step that a plan is of; `network` is the plan's own, which it is where the plan trains nothing. Of replicas the
/// network's batch is open: each has its part of it.
///
/// Errors: the plan's words are malformed, or do not say how the step is spread; those of making a step.
pub fn step_of_plan(network: Graph, plan: &Plan) -> Result<Graph> {
    let Some(training) = &plan.options.training else { return Ok(network) };
    let options = options_of(plan, training)?;
    let mut network = network;
    only_floats(&mut network);
    let mut graph = match (&training.replicas, training.spread.as_deref()) {
        (Some(replicas), _) => replicated(&network, plan, replicas, &options)?,
        (None, None) => {
            let (forward, _) = compile::bound(network, &options.compile)?;
            training_step(forward, &options.recipe)?.graph
        }
        (None, Some(WORKERS)) => {
            let (forward, _) = compile::bound(network, &options.compile)?;
            let mut graph = gradient_step(forward, &options.recipe)?.0.graph;
            layers_together(&mut graph, Losses::WithLayers);
            graph
        }
        (None, Some(spread)) => {
            let message = format!("it does not say which {spread} its step has");
            return Err(Error::format("options.training", message)
                .with_help("plan it anew, or explain and check it without its model"));
        }
    };
    if let Some(name) = &training.together {
        layers_together(&mut graph, Losses::from_name(name)?);
    }
    Ok(graph)
}

fn options_of(plan: &Plan, training: &Training) -> Result<Options> {
    let mut options = Options::new(training.loss.parse()?);
    let recipe = &mut options.recipe;
    recipe.updates = training.optimizer.parse()?;
    recipe.updates.microbatches = training.microbatches.unwrap_or(1);
    recipe.freeze.clone_from(&training.freeze);
    recipe.scaling = training.loss_scale.as_deref().map(str::parse).transpose()?;
    recipe.outputs = training.outputs;
    options.compile = compile::Options::of_plan(plan)?;
    Ok(options)
}

/// A step of replicas, laid as the plan lays it: the first replica's layers have the network's own names.
fn replicated(network: &Graph, plan: &Plan, own: &PlanReplicas, options: &Options) -> Result<Graph> {
    let replicas = replicas_of(own, plan)?;
    let bound = |samples: Option<i64>| {
        let asked = compile::Options { batch: samples, ..options.compile.clone() };
        compile::bound(network.clone(), &asked).map(|(graph, _)| graph)
    };
    let of_plan = own.batch.as_ref().and_then(|name| plan.options.dims.iter().find(|(dim, _)| dim == name));
    let whole = of_plan.map(|(_, samples)| *samples);
    let batch = match whole {
        Some(samples) => samples,
        None => batch_of(&bound(None)?),
    };
    replicas.check(&plan.topology, batch)?;
    let is_pipeline = plan.options.training.as_ref().is_some_and(Training::is_pipeline);
    let groups = if is_pipeline || replicas.each > 1 {
        let first = own.devices.first().map(Vec::as_slice).unwrap_or_default();
        let placement: BTreeMap<&str, &str> =
            plan.placement.iter().map(|(name, device)| (name.as_str(), device.as_str())).collect();
        let place = |name: &str| {
            let device = *placement.get(name)?;
            first.iter().position(|own| own == device)
        };
        let several = ReplicaGroups::several(own.devices.clone(), &bound(whole)?, place);
        if is_pipeline { several.of_pipelines() } else { several }
    } else {
        ReplicaGroups::single(own.devices.iter().flatten().cloned().collect())
    };
    let links = Links::of(&plan.topology, &groups);
    let of_samples = |samples: i64| bound(whole.map(|_| samples));
    Ok(replicated_step(batch, &of_samples, &options.recipe, &replicas, &groups, links)?.graph)
}

/// Errors: a way that there is not; replicas without devices, of unequal numbers of them, or of others than the plan's;
/// more parts of the batch than the step has nodes.
fn replicas_of(own: &PlanReplicas, plan: &Plan) -> Result<Replicas> {
    let place = |field: &str| format!("options.training.replicas.{field}");
    let stages = own.devices.first().map_or(0, Vec::len);
    if stages == 0 || own.devices.iter().any(|devices| devices.len() != stages) {
        return Err(Error::format(place("devices"), "expected as many for each replica"));
    }
    let devices = plan.topology.by_name();
    if let Some(name) = own.devices.iter().flatten().find(|name| !devices.contains_key(name.as_str())) {
        return Err(Error::format(place("devices"), format!("the plan has no device {name}")));
    }
    if own.shards > plan.placement.len() {
        return Err(Error::format(place("shards"), format!("{}: the step has fewer nodes", own.shards)));
    }
    Ok(Replicas {
        count: own.devices.len(),
        each: own.each,
        spare: own.spare,
        shards: own.shards,
        sync: own.sync.parse()?,
        exchange: own.exchange.parse()?,
        transfer: own.transfer.parse()?,
        zero: own.zero.parse()?,
        bucket: own.bucket,
    })
}
