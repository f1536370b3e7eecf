//! Validation: the network alone, with the loss of each sample, beside its training step.

use crate::error::{Error, Result};
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::run::{GroupedGraph, Runner};
use crate::train::epochs::trainer::Trainer;
use crate::train::plan::{evaluation_plan, initial};
use crate::train::step::LOSS;

/// The network alone, with the loss of each sample.
pub(crate) struct Evaluator {
    program: Runner,
    batch: usize,
}

impl Evaluator {
    /// Plans it for the same devices.
    ///
    /// Errors: those of planning and of allocating arenas.
    pub(crate) fn new(trainer: &Trainer) -> Result<Self> {
        let Trainer { forward, loss, plan, topology, compile, gpus, .. } = trainer;
        let compiled = evaluation_plan(forward, loss, plan, topology, compile)?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        let weights = |id: ParamId| initial(&network.graph, id, &mut ParamReader::new(), 0);
        let of = GroupedGraph { graph: &network.graph, grouping: &network.grouping };
        let program = Runner::new(of, &compiled.plan, &weights, None, gpus)?;
        Ok(Self { program, batch: trainer.batch / trainer.microbatches as usize })
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

    /// The loss of each sample, and the network's outputs.
    pub(crate) fn run(&mut self, arrays: &[(String, Tensor)]) -> Result<(Vec<f64>, Vec<(String, Tensor)>)> {
        let (mut outputs, _) = self.program.run(arrays)?;
        let at = outputs.iter().position(|(name, _)| name == LOSS);
        let at = at.ok_or_else(|| Error::Internal("an evaluation without a loss".into()))?;
        Ok((outputs.remove(at).1.to_f64(), outputs))
    }
}
