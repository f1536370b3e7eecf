//! Targets that a loss leaves out: the class that it ignores.
//!
//! The mean is that over the targets that are left, of the whole batch: how many those are is counted where the batch is
//! handed over, and an input of the step says by what each sample's sum is multiplied. So the loss, and each gradient, is
//! the same where the batch is taken in parts, one after the other or side by side. A batch of which nothing is left has
//! the loss 0, and gradients of 0.

use super::Target;
use crate::error::{Error, Result};
use crate::ir::{DType, Graph, Shape, Source, SourceRole, Tensor, Type, ValueId};

/// What the name of the input of a target's shares begins with.
const SHARES: &str = "training/shares/";

/// A target within a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetValue {
    /// What the output is compared with.
    pub(crate) value: ValueId,
    /// `[batch]`: what the sum over a sample's targets is multiplied by. None where nothing is ignored, or the network
    /// itself says what counts.
    pub(crate) share: Option<ValueId>,
    /// Whether a hinge takes 0 and 1 for -1 and 1.
    pub(crate) takes_bits: bool,
}

/// A target of whose class numbers one is ignored, as batches are handed over.
#[derive(Clone, Debug)]
pub(crate) struct Ignoring {
    target: String,
    class: i64,
}

/// Adds the inputs of a target: itself, and its shares.
pub(crate) fn add_target(graph: &mut Graph, target: &Target) -> TargetValue {
    let data = graph.add_source(Source::new(target.name.clone(), "target", SourceRole::Data));
    let ty = Type::new(target.dtype, Shape::known(&target.dims));
    let value = graph.add_input(target.name.clone(), ty, data);
    let share = target.has_shares.then(|| {
        let name = format!("{SHARES}{}", target.name);
        let data = graph.add_source(Source::new(name.clone(), "target", SourceRole::Data));
        let batch = target.dims.first().copied().unwrap_or(1);
        graph.add_input(name, Type::new(DType::F32, Shape::known(&[batch])), data)
    });
    TargetValue { value, share, takes_bits: target.takes_bits }
}

impl Ignoring {
    /// None where a target has no shares.
    pub(crate) fn of(target: &Target) -> Option<Self> {
        let class = target.ignored.filter(|_| target.has_shares)?;
        Some(Self { target: target.name.clone(), class })
    }

    /// How many targets of the first `samples` rows count.
    ///
    /// Errors: the batch has no such target.
    pub(crate) fn counted(&self, arrays: &[(String, Tensor)], samples: usize) -> Result<u64> {
        let target = arrays.iter().find(|(name, _)| *name == self.target).map(|(_, target)| target);
        let missing = || Error::run(format!("input {}", self.target), "there is no array for it");
        let target = target.ok_or_else(missing)?;
        let rows = target.dims().first().copied().unwrap_or(1).max(1) as usize;
        let values = target.to_i64().unwrap_or_default();
        let taken = values.len() / rows * samples.min(rows);
        Ok(values[..taken].iter().filter(|&&class| class != self.class).count() as u64)
    }

    /// The shares of a batch of `rows`, the first `samples` of which are its own, with so many targets that count.
    pub(crate) fn shares(&self, rows: usize, samples: usize, counted: u64) -> Result<(String, Tensor)> {
        let share = if counted == 0 { 0.0 } else { samples as f64 / counted as f64 };
        let values = vec![share as f32; rows];
        Ok((format!("{SHARES}{}", self.target), Tensor::from_f32(vec![rows as u64], &values)?))
    }
}

/// The shares of all targets that have some, of a whole batch.
pub(crate) fn shares_of(
    ignoring: &[Ignoring],
    arrays: &[(String, Tensor)],
    batch: usize,
) -> Result<Vec<(String, Tensor)>> {
    let of = |one: &Ignoring| one.shares(batch, batch, one.counted(arrays, batch)?);
    ignoring.iter().map(of).collect()
}
