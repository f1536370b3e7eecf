//! The step of an epoch's last batch, where that is not full: a step of its own beside the other.

use crate::compile;
use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};
use crate::train::epochs::trainer::{Outcome, Trainer};
use crate::train::options::Options;
use crate::train::spread::exchange::Replicas;

/// A network and how it is trained, to plan a step of another batch.
pub(crate) struct LastBatch {
    graph: Graph,
    options: Options,
}

impl LastBatch {
    /// None where no other batch can be planned beside this one.
    pub(crate) fn of(graph: &Graph, options: &Options) -> Option<Self> {
        takes_any_batch(graph, options).then(|| {
            let mut graph = graph.clone();
            graph.forget_data();
            Self { graph, options: options.clone() }
        })
    }
}

impl Trainer {
    /// Whether a batch of fewer samples can be trained on: the network's batch is open.
    pub(crate) fn takes_short(&self) -> bool {
        self.last_batch.is_some()
    }

    /// Plans the step of a batch of fewer samples, for the same devices and caps.
    ///
    /// Errors: those of [`Trainer::new`]; the network has a batch of its own.
    pub(crate) fn prepare_short(&mut self, samples: usize) -> Result<()> {
        if self.short.as_ref().is_some_and(|short| short.batch == samples) {
            return Ok(());
        }
        let last_batch =
            self.last_batch.as_ref().ok_or_else(|| Error::Internal("a batch that is not open".into()))?;
        let mut options = last_batch.options.clone();
        options.compile.batch = Some(samples as i64);
        // Rules speak of the whole batch, which may have more parts than this one has samples.
        options.compile.split.rules.clear();
        options.split = false;
        let most = self.batch / self.microbatches as usize;
        let fits = |parts: &usize| samples.is_multiple_of(*parts) && samples / parts <= most;
        let parts = (1..=samples).find(fits).unwrap_or(1);
        options.recipe.updates.microbatches = parts as u32;
        let even =
            |replicas: &Replicas| replicas.spare == 0 || samples.is_multiple_of(replicas.shards * parts);
        options.replicas =
            options.replicas.filter(|replicas| replicas.shards * parts <= samples && even(replicas));
        if let Some(pipeline) = &mut options.pipeline {
            let each = samples / options.replicas.map_or(1, |replicas| replicas.count.max(1));
            pipeline.microbatches = pipeline.microbatches.min(each as u32);
        }
        let place = format!("a last batch of {samples} samples");
        let short = Self::new(last_batch.graph.clone(), &self.topology, &options)
            .map_err(|error| error.within(&place).with_help("--drop-remainder leaves it out"))?;
        self.short = Some(Box::new(short));
        Ok(())
    }

    /// As [`Trainer::step`], of a batch of fewer samples.
    pub(crate) fn short_step(&mut self, arrays: &[(String, Tensor)], samples: usize) -> Result<Outcome> {
        self.prepare_short(samples)?;
        let Some(mut short) = self.short.take() else {
            return Err(Error::Internal("a step that was not planned".into()));
        };
        short.take_over(self)?;
        (short.step, short.seed, short.total_steps) = (self.step, self.seed, self.total_steps);
        let outcome = short.step(arrays);
        self.step = short.step;
        self.take_over(&short)?;
        self.short = Some(short);
        outcome
    }
}

/// Whether a step of another batch can be planned beside this one: the batch is open, and parameters are of one program.
pub(crate) fn takes_any_batch(graph: &Graph, options: &Options) -> bool {
    compile::has_open_batch(graph) && options.asynchronous.is_none()
}
