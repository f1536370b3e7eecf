//! What is asked of training: how a network is trained, and how its step is laid over devices.

use std::time::Duration;

use super::step::Recipe;
use crate::compile;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::pass::Params;
use crate::run::Gpus;
use crate::strategy::pipeline;
use crate::train::optimize::Updates;
use crate::train::optimize::rate::Rate;
use crate::train::spread::asynchronous::Async;
use crate::train::spread::exchange::{Replicas, Zero};
use crate::train::step::accumulate::{expect_open, part_of};
use crate::train::step::loss::Loss;
use crate::train::step::scaling::Scaling;

/// How a network is trained, and laid over devices.
#[derive(Clone, Debug)]
pub struct Options {
    /// Loss and updates.
    pub recipe: Recipe,
    /// The learning rate.
    pub rate: Rate,
    /// Steps of the whole run, for rates that depend on it.
    pub total_steps: u64,
    /// Of initial weights, where the model has no data for them.
    pub seed: u64,
    /// Replicas of the network side by side, where there are several.
    pub replicas: Option<Replicas>,
    /// The network's layers as stages that work on different microbatches at once, in place of replicas.
    pub pipeline: Option<pipeline::Options>,
    /// Whether operations are split where that makes a step faster, in place of laying out whole layers.
    pub split: bool,
    /// Workers that do not wait for one another, in place of replicas that do.
    pub asynchronous: Option<Async>,
    /// How the step is planned; the batch is the one of a step.
    pub compile: compile::Options,
    /// Ends a step that takes longer.
    pub timeout: Option<Duration>,
    /// Where devices of the plan that are GPUs run.
    pub gpus: Gpus,
    /// Ends the run where a loss or a parameter is not finite, and says which operation made it so: the
    /// parameters are copied in each step.
    pub check_numerics: bool,
}

impl Options {
    /// Plain gradient descent on a loss.
    pub fn new(loss: Loss) -> Self {
        let recipe =
            Recipe { loss, updates: Updates::default(), freeze: Vec::new(), scaling: None, outputs: false };
        Self {
            recipe,
            rate: Rate::default(),
            total_steps: 0,
            seed: 0,
            replicas: None,
            pipeline: None,
            split: false,
            asynchronous: None,
            compile: compile::Options::default(),
            timeout: None,
            gpus: Gpus::default(),
            check_numerics: false,
        }
    }

    /// As a step of one part of the batch is planned, where the batch is taken in parts that run one after the
    /// other.
    ///
    /// Errors: the batch does not divide; what is asked for does not go together.
    pub(super) fn of_a_part(&self, graph: &Graph) -> Result<Self> {
        let mut own = self.clone();
        if let Some(batch) = own.compile.batch {
            let part = part_of(batch, own.recipe.updates.microbatches)?;
            expect_open(graph, part, batch)?;
            own.compile.batch = Some(part);
        }
        if let Some(precision) = &mut own.compile.precision {
            precision.params = Params::Kept;
            own.recipe.scaling.get_or_insert(Scaling::of(precision.half));
        }
        own.check()?;
        Ok(own)
    }

    /// Error: what is asked for does not go together.
    fn check(&self) -> Result<()> {
        check_pipeline(self)?;
        check_scaling(self)
    }
}

/// Error: a pipeline, or rules of splitting, with workers that do not wait.
fn check_pipeline(options: &Options) -> Result<()> {
    if options.asynchronous.is_some() && !options.compile.split.rules.is_empty() {
        return Err(Error::usage(
            "--split",
            "workers that do not wait have a step each, beside that of the updates",
        )
        .with_help("leave the rules out, or --sync allreduce"));
    }
    if options.pipeline.is_some() && options.asynchronous.is_some() {
        return Err(Error::usage("--schedule", "the microbatches of a pipeline wait for one another")
            .with_help("--sync allreduce"));
    }
    Ok(())
}

/// Error: steps that may change nothing, where that is not to be known in time.
fn check_scaling(options: &Options) -> Result<()> {
    let Some(scaling) = options.recipe.scaling else { return Ok(()) };
    let place = || format!("--loss-scale {scaling}");
    if options.compile.precision.is_none() {
        return Err(Error::usage(place(), "gradients of f32 need no scaling").with_help("--precision f16"));
    }
    let parts = options.replicas.is_some_and(|replicas| replicas.zero != Zero::None);
    if scaling.skips() && (parts || options.asynchronous.is_some()) {
        return Err(Error::usage(place(), "neither with --zero nor with --sync async")
            .with_help("--precision bf16 needs no scaling"));
    }
    Ok(())
}
