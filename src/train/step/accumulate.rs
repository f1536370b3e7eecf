//! A batch in microbatches: parts that run one after the other, whose gradients add up in a slot of
//! each parameter, until the last one updates the parameters by their mean.
//!
//! A step then takes the activations of a part alone. Batch normalisation sees each part by itself, and
//! its stored statistics follow each; draws of dropout are those of the whole batch.

use crate::compile;
use crate::error::{Error, Result};
use crate::ir::{Graph, ParamId, SourceId, Tensor, ValueId};
use crate::pass::gradient::build::Build;
use crate::train::optimize::{Owner, Scalar, Scalars, Slot, Updates};

/// What the slot of a parameter's sum is called, after the parameter.
const ACCUMULATED: &str = "accumulated";

/// The name of the slot in which a parameter's gradients add up.
pub(crate) fn sum_name(param: &str) -> String {
    format!("{param}/{ACCUMULATED}")
}

impl Updates {
    /// Puts the sum over the microbatches so far in place of each gradient; slots take their names from
    /// `names`, as those of the optimizer do.
    pub(crate) fn accumulate(
        &self,
        b: &mut Build<'_>,
        scalars: &Scalars,
        gradients: &mut [(ParamId, SourceId, ValueId)],
        names: &[String],
    ) -> Result<()> {
        if self.microbatches < 2 {
            return Ok(());
        }
        for ((_, source, gradient), name) in gradients.iter_mut().zip(names) {
            b.source = *source;
            let begins = scalars.holds(b, Scalar::Begins)?;
            let own = b.scale(*gradient, 1.0 / f64::from(self.microbatches))?;
            let slot = Slot::add(b, Owner { name, value: own }, ACCUMULATED);
            let more = b.add(slot.value, own)?;
            let sum = b.select(begins, own, more)?;
            b.graph.update_param(slot.id, sum)?;
            *gradient = sum;
        }
        Ok(())
    }
}

/// Samples of a microbatch. Error: the batch does not divide.
pub(crate) fn part_of(batch: i64, microbatches: u32) -> Result<i64> {
    let parts = i64::from(microbatches.max(1));
    if microbatches == 0 || batch % parts != 0 || batch < parts {
        let message = format!("a batch of {batch} does not divide into {microbatches} parts");
        return Err(Error::usage(format!("--microbatches {microbatches}"), message)
            .with_help("a --batch that is a multiple"));
    }
    Ok(batch / parts)
}

/// Error: the network's own batch is fixed, and of another number of samples.
pub(crate) fn expect_open(graph: &Graph, samples: i64, batch: i64) -> Result<()> {
    if samples == batch || compile::has_open_batch(graph) {
        return Ok(());
    }
    let place = format!("a batch of {batch} in parts of {samples}");
    Err(Error::usage(place, compile::fixed_batch(graph))
        .with_help("export the model with an open batch, or divide operations instead (--parallel split)"))
}

/// By microbatch: the rows of each array that it takes.
pub(crate) fn parts(arrays: Vec<(String, Tensor)>, count: u32) -> Result<Vec<Vec<(String, Tensor)>>> {
    match count {
        1 => Ok(vec![arrays]),
        _ => (0..count).map(|number| part(&arrays, number, count)).collect(),
    }
}

/// Rows of each array that a microbatch takes.
fn part(arrays: &[(String, Tensor)], number: u32, count: u32) -> Result<Vec<(String, Tensor)>> {
    let part = |(name, whole): &(String, Tensor)| {
        let mut dims = whole.dims().to_vec();
        let rows = dims.first().copied().unwrap_or(0);
        if dims.is_empty() || rows % u64::from(count) != 0 {
            return Err(Error::usage(format!("input {name}"), format!("{rows} rows, for {count} parts")));
        }
        dims[0] = rows / u64::from(count);
        let bytes = whole.bytes().len() / count as usize;
        let own = &whole.bytes()[bytes * number as usize..bytes * (number as usize + 1)];
        Ok((name.clone(), Tensor::new(whole.dtype(), dims, own.to_vec())?))
    };
    arrays.iter().map(part).collect()
}

/// Outputs of the microbatches, one after the other.
pub(crate) fn joined(parts: Vec<Vec<(String, Tensor)>>) -> Result<Vec<(String, Tensor)>> {
    let mut whole: Vec<(String, Tensor, Vec<u8>)> = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        for (at, (name, tensor)) in part.into_iter().enumerate() {
            if number == 0 {
                whole.push((name, tensor.clone(), Vec::new()));
            }
            if let Some((_, _, bytes)) = whole.get_mut(at) {
                bytes.extend_from_slice(tensor.bytes());
            }
        }
    }
    let join = |(name, first, bytes): (String, Tensor, Vec<u8>)| {
        let mut dims = first.dims().to_vec();
        if let (Some(rows), false) = (dims.first_mut(), first.bytes().is_empty()) {
            *rows *= (bytes.len() / first.bytes().len()) as u64;
        }
        Ok((name, Tensor::new(first.dtype(), dims, bytes)?))
    };
    whole.into_iter().map(join).collect()
}
