//! Outputs whose size depends on data: computed for the largest size that they can have, and cut to the size that they
//! have when they are handed over.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::ir::{Counted, Tensor};

/// Outputs as callers see them. Error: a count is not within its axis.
pub(super) fn cut(
    counted: &BTreeMap<String, Counted>,
    outputs: Vec<(String, Tensor)>,
) -> Result<Vec<(String, Tensor)>> {
    if counted.is_empty() {
        return Ok(outputs);
    }
    let hidden: BTreeSet<&str> = counted.values().map(|counted| counted.by.as_str()).collect();
    let counts: BTreeMap<String, i64> = outputs
        .iter()
        .filter(|(name, _)| hidden.contains(name.as_str()))
        .filter_map(|(name, tensor)| Some((name.clone(), *tensor.to_i64()?.first()?)))
        .collect();
    let mut seen = Vec::with_capacity(outputs.len());
    for (name, tensor) in outputs {
        if hidden.contains(name.as_str()) {
            continue;
        }
        let tensor = match counted.get(&name) {
            Some(Counted { axis, by }) => match counts.get(by) {
                Some(&count) => first_of(&tensor, *axis as usize, count).ok_or_else(|| {
                    Error::run(format!("output {name}"), format!("it has {count} elements"))
                })?,
                None => tensor,
            },
            None => tensor,
        };
        seen.push((name, tensor));
    }
    Ok(seen)
}

/// The first `count` elements of an axis. None: there are not as many.
fn first_of(tensor: &Tensor, axis: usize, count: i64) -> Option<Tensor> {
    let mut dims = tensor.dims().to_vec();
    let size = *dims.get(axis)?;
    let count = u64::try_from(count).ok().filter(|&count| count <= size)?;
    let inner = dims[axis + 1..].iter().product::<u64>() * tensor.dtype().size();
    let (whole, kept) = ((size * inner) as usize, (count * inner) as usize);
    dims[axis] = count;
    let bytes: Vec<u8> = match whole {
        0 => Vec::new(),
        _ => tensor.bytes().chunks_exact(whole).flat_map(|row| &row[..kept]).copied().collect(),
    };
    Tensor::new(tensor.dtype(), dims, bytes).ok()
}
