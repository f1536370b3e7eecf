//! Validation: the network alone, with the loss of each sample, beside its training step.

use crate::error::{Error, Result};
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::run::{GroupedGraph, Runner};
use crate::train::epochs::trainer::Trainer;
use crate::train::plan::{evaluation_plan, initial};
use crate::train::step::ignored::Ignoring;
use crate::train::step::loss_outputs;

/// The network alone, with the loss of each sample.
pub(crate) struct Evaluator {
    program: Runner,
    batch: usize,
    /// Outputs that hold losses, and the targets of which a class is left out.
    losses: Vec<(String, Option<Ignoring>)>,
}

/// Losses of the samples that were evaluated so far.
#[derive(Debug, Default)]
pub(crate) struct MeanLoss {
    /// By output that holds losses: their sum, and how many samples or targets it is over.
    parts: Vec<(f64, u64)>,
}

impl MeanLoss {
    fn add(&mut self, part: usize, sum: f64, count: u64) {
        self.parts.resize(self.parts.len().max(part + 1), (0.0, 0));
        self.parts[part].0 += sum;
        self.parts[part].1 += count;
    }

    /// The sum of the means over all that was added; none where that was nothing.
    pub(crate) fn value(&self) -> Option<f64> {
        let mean = |&(sum, count): &(f64, u64)| if count > 0 { sum / count as f64 } else { 0.0 };
        (!self.parts.is_empty()).then(|| self.parts.iter().map(mean).sum())
    }
}

impl Evaluator {
    /// Plans it for the same devices.
    ///
    /// Errors: those of planning and of allocating arenas.
    pub(crate) fn new(trainer: &Trainer) -> Result<Self> {
        let Trainer { forward, loss, plan, topology, compile, gpus, .. } = trainer;
        let (compiled, targets) = evaluation_plan(forward, loss, plan, topology, compile)?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        let weights = |id: ParamId| initial(&network.graph, id, &mut ParamReader::new(), 0);
        let of = GroupedGraph { graph: &network.graph, grouping: &network.grouping };
        let program = Runner::new(of, &compiled.plan, &weights, None, gpus)?;
        let batch = trainer.batch / trainer.microbatches as usize;
        Ok(Self { program, batch, losses: loss_outputs(&targets) })
    }

    /// Samples that it takes at once: those of a microbatch.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// Takes the parameters as the trainer has them now.
    pub(crate) fn follow(&mut self, trainer: &Trainer) -> Result<()> {
        let names: Vec<String> = self.program.params().map(str::to_owned).collect();
        for name in names {
            if let Some(tensor) = trainer.param(&name)? {
                self.program.set_param(&name, &tensor)?;
            }
        }
        Ok(())
    }

    /// Adds the losses of a batch's first `samples`; the network's outputs.
    pub(crate) fn run(
        &mut self,
        mut arrays: Vec<(String, Tensor)>,
        samples: usize,
        mean: &mut MeanLoss,
    ) -> Result<Vec<(String, Tensor)>> {
        let mut counts = Vec::with_capacity(self.losses.len());
        for (_, ignoring) in &self.losses {
            let Some(one) = ignoring else {
                counts.push(None);
                continue;
            };
            let counted = one.counted(&arrays, samples)?;
            arrays.push(one.shares(self.batch, samples, counted)?);
            counts.push(Some(counted));
        }
        let (mut outputs, _) = self.program.run(&arrays)?;
        for (part, ((name, _), counted)) in self.losses.iter().zip(counts).enumerate() {
            let at = outputs.iter().position(|(output, _)| output == name);
            let at = at.ok_or_else(|| Error::Internal("an evaluation without a loss".into()))?;
            let sum: f64 = outputs.remove(at).1.to_f64().iter().take(samples).sum();
            match counted {
                Some(counted) => mean.add(part, sum / samples as f64 * counted as f64, counted),
                None => mean.add(part, sum, samples as u64),
            }
        }
        Ok(outputs)
    }
}
