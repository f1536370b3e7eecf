//! Parameters by the network's own names, where a program holds slices of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};

/// Which parameters of a program are slices, and of what.
#[derive(Debug, Default)]
pub(super) struct Slices {
    /// By the network's name: its slices, those that steps update first, then by axis and start.
    of: BTreeMap<String, Vec<Held>>,
    /// By the slice's name: the network's. Looked up, never iterated.
    wholes: HashMap<String, String>,
    /// Those of which some reader has all.
    whole_too: BTreeSet<String>,
}

/// One slice, along an axis of what is supplied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    stays: bool,
    axis: u32,
    start: u64,
    size: u64,
    extent: u64,
    /// The program's name of it.
    name: String,
}

impl Slices {
    /// Those of a graph. O(parameters log parameters).
    pub(super) fn new(graph: &Graph) -> Self {
        let mut slices = Self::default();
        for param in graph.params() {
            let Some(slice) = &param.slice else { continue };
            let sizes = graph.ty(graph.node(param.node).first_result).shape.dims().unwrap_or_default();
            let held = Held {
                stays: param.update.is_none(),
                axis: supplied_axis(param.permuted.as_deref(), slice.axis),
                start: slice.start,
                size: sizes.get(slice.axis as usize).map_or(0, |size| size.unsigned_abs()),
                extent: slice.extent,
                name: param.name.clone(),
            };
            slices.of.entry(slice.name.clone()).or_default().push(held);
            slices.wholes.insert(param.name.clone(), slice.name.clone());
        }
        slices.of.values_mut().for_each(|slices| slices.sort_unstable());
        let whole = graph.params().iter().filter(|param| param.slice.is_none()).map(|param| &param.name);
        slices.whole_too = whole.filter(|name| slices.of.contains_key(*name)).cloned().collect();
        slices
    }

    /// The network's name of a parameter of the program.
    pub(super) fn whole_of<'n>(&'n self, name: &'n str) -> &'n str {
        self.wholes.get(name).map_or(name, String::as_str)
    }

    /// A parameter of the network, read as it is held: whole, or joined from slices that tile it. None where it is not
    /// there, or not all of it.
    pub(super) fn joined(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<Option<Tensor>>,
    ) -> Result<Option<Tensor>> {
        let Some(slices) = self.of.get(name) else { return read(name) };
        // Slices that steps update are the only place of what they hold.
        if slices.iter().all(|slice| slice.stays)
            && let Some(whole) = read(name)?
        {
            return Ok(Some(whole));
        }
        let Some(tiles) = tiles(slices) else { return Ok(None) };
        let Some(first) = tiles.first() else { return Ok(None) };
        let axis = first.axis as usize;
        let tensors = tiles.iter().map(|slice| read(&slice.name));
        let tensors = tensors.collect::<Result<Option<Vec<Tensor>>>>()?;
        tensors.map(|tensors| Tensor::joined(&tensors, axis)).transpose()
    }

    /// What a parameter of the network comes to by each name under which slices of it are held. None where it is held
    /// whole alone.
    ///
    /// Errors: it has other sizes.
    pub(super) fn cut(&self, name: &str, value: &Tensor) -> Option<Result<Vec<(&str, Tensor)>>> {
        let part = |slice: &'_ Held| {
            let own = value.dims().get(slice.axis as usize).copied();
            if own != Some(slice.extent) {
                let message = format!(
                    "axis {} has {} elements, and is of sizes {:?}",
                    slice.axis,
                    slice.extent,
                    value.dims()
                );
                return Err(Error::usage(format!("parameter {name}"), message));
            }
            value.sliced(slice.axis as usize, slice.start, slice.size)
        };
        let slices = self.of.get(name)?.iter();
        Some(slices.map(|slice| Ok((slice.name.as_str(), part(slice)?))).collect())
    }

    /// Whether a parameter of which there are slices is held whole beside.
    pub(super) fn is_whole_too(&self, name: &str) -> bool {
        self.whole_too.contains(name)
    }
}

/// The axis of what is supplied that a parameter holds as its axis of this number.
fn supplied_axis(order: Option<&[u32]>, axis: u32) -> u32 {
    order.and_then(|order| order.get(axis as usize).copied()).unwrap_or(axis)
}

/// Slices along one axis that follow one another and together are the whole, of those in order.
fn tiles(slices: &[Held]) -> Option<Vec<&Held>> {
    slices.chunk_by(|one, other| (one.stays, one.axis) == (other.stays, other.axis)).find_map(|alike| {
        let mut found: Vec<&Held> = Vec::new();
        let mut end = 0;
        for slice in alike.iter().filter(|slice| slice.size > 0) {
            // Of those that overlap, the first that begins where the one before it ends.
            if slice.start == end {
                end += slice.size;
                found.push(slice);
            }
        }
        (end == alike.first()?.extent).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(axis: u32, start: u64, size: u64) -> Held {
        Held { stays: true, axis, start, size, extent: 10, name: format!("{axis} {start}") }
    }

    fn names(slices: &[Held]) -> Option<Vec<&str>> {
        tiles(slices).map(|tiles| tiles.iter().map(|slice| slice.name.as_str()).collect())
    }

    #[test]
    fn slices_are_joined_along_the_axis_that_they_tile() {
        let along_0 = [held(0, 0, 4), held(0, 6, 4)];
        assert_eq!(names(&along_0), None, "rows 4 and 5 are not there");
        let both = [held(0, 0, 4), held(0, 6, 4), held(1, 0, 5), held(1, 5, 5)];
        assert_eq!(names(&both), Some(vec!["1 0", "1 5"]));
        let overlap = [held(0, 0, 4), held(0, 2, 4), held(0, 4, 6)];
        assert_eq!(names(&overlap), Some(vec!["0 0", "0 4"]));
    }
}
