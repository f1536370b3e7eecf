//! Layers within wrappers: on each step of a sequence, and what stands in place of the wrapper itself.

use super::Site;
use crate::error::Result;
use crate::ir::ValueId;
use crate::load::keras::layer::{Kind, Layer};
use crate::load::keras::mask::Masked;
use crate::load::keras::network::{Argument, CallOptions};
use crate::load::keras::steps::together;

/// Steps up to which a layer that follows the statistics of its batches is written out for each.
const MOST_STEPS: i64 = 64;

impl Site<'_> {
    /// Applies a layer to each step of a sequence.
    pub(super) fn time_distributed(&mut self, inner: &Layer, x: ValueId) -> Result<ValueId> {
        let sizes = self.sizes(x);
        if sizes.len() < 3 {
            return Err(self.error("a layer applied to each step needs an input of rank 3 or more"));
        }
        if has_statistics(inner) {
            // Each step is a batch of its own, whose statistics are its own.
            if let Some(steps) = sizes[1].known().filter(|&steps| steps <= MOST_STEPS) {
                return self.each_step(inner, x, steps);
            }
            self.unheeded("training takes the statistics of all steps together, of so many or of an open number of them");
        }
        let steps = self.product(&sizes[..2])?;
        let mut folded = vec![steps];
        folded.extend_from_slice(&sizes[2..]);
        let value = self.reshape(x, folded)?;
        let value = self.wrapped(inner, value)?;
        let mut unfolded = sizes[..2].to_vec();
        unfolded.extend(self.sizes(value).into_iter().skip(1));
        self.reshape(value, unfolded)
    }

    /// A layer on one step after the other.
    fn each_step(&mut self, inner: &Layer, x: ValueId, steps: i64) -> Result<ValueId> {
        let mut sizes = self.sizes(x);
        sizes.remove(1);
        let mut results = Vec::new();
        for step in 0..steps {
            let own = self.slice(x, 1, step, 1)?;
            let own = self.reshape(own, sizes.clone())?;
            results.push(self.wrapped(inner, own)?);
        }
        together(self, &results)
    }

    /// The layer inside of a wrapper.
    pub(super) fn wrapped(&mut self, inner: &Layer, value: ValueId) -> Result<ValueId> {
        let policy = std::mem::replace(&mut self.policy, inner.policy);
        let trainable = self.trainable;
        self.trainable &= inner.trainable;
        let path = self.path.clone();
        // Keras 2 names the weights by the wrapper alone; the order is the same.
        self.path = format!("{path}/{}", inner.name);
        let value = Masked::bare(value);
        let argument = [Argument { keyword: None, tensor: value }];
        let value = match &inner.kind {
            Kind::Model(network) => {
                let prefix = format!("{}/", self.path);
                let results = self.lowering.run(network, &[value], &prefix)?;
                results.first().copied().ok_or_else(|| self.error("the wrapped model has no output"))?
            }
            _ => {
                let results = self.layer(inner, &argument, CallOptions::default())?;
                results.first().copied().ok_or_else(|| self.error("the wrapped layer has no output"))?
            }
        };
        self.path = path;
        self.policy = policy;
        self.trainable = trainable;
        Ok(value.value)
    }
}

/// Whether a layer, or one within it, normalises by its batch while it trains.
fn has_statistics(layer: &Layer) -> bool {
    match &layer.kind {
        Kind::BatchNorm(_) => layer.trainable,
        Kind::Model(network) => network.layers.iter().any(has_statistics),
        Kind::TimeDistributed(inner) => has_statistics(inner),
        _ => false,
    }
}
