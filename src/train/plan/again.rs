//! A training step made anew from its network and what its plan says of it, to explain and to check the plan.

use super::{Losses, layers_together, only_floats, step_of};
use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::plan::{Plan, Training};
use crate::train::options::Options;

/// What a plan says of a step.
pub(super) fn recorded(options: &Options) -> Training {
    let recipe = &options.recipe;
    let spreads = [
        ("replicas", options.replicas.is_some()),
        ("pipeline", options.pipeline.is_some()),
        ("workers", options.asynchronous.is_some()),
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
    }
}

/// The step that a plan is of; `network` is the plan's own, which it is where the plan trains nothing.
///
/// Errors: the step is spread over copies of the network; the plan's words are malformed; those of making a step.
pub fn step_of_plan(network: Graph, plan: &Plan) -> Result<Graph> {
    let Some(training) = &plan.options.training else { return Ok(network) };
    if let Some(spread) = &training.spread {
        let message = format!("a step of {spread} is not made anew from its plan");
        return Err(Error::usage("plan", message).with_help("explain and check it without its model"));
    }
    let mut options = Options::new(training.loss.parse()?);
    let recipe = &mut options.recipe;
    recipe.updates = training.optimizer.parse()?;
    recipe.updates.microbatches = training.microbatches.unwrap_or(1);
    recipe.freeze.clone_from(&training.freeze);
    recipe.scaling = training.loss_scale.as_deref().map(str::parse).transpose()?;
    recipe.outputs = training.outputs;
    options.compile = compile::Options::of_plan(plan)?;
    let mut network = network;
    only_floats(&mut network);
    let (_, mut step, _) = step_of(network, &plan.topology, &options, &Control::new())?;
    if let Some(name) = &training.together {
        layers_together(&mut step.graph, Losses::from_name(name)?);
    }
    Ok(step.graph)
}
