//! Parameters by the network's own names, where a program holds slices of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fixedbitset::FixedBitSet;

use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};

/// Which parameters of a program are slices, and of what.
#[derive(Debug, Default)]
pub(super) struct Slices {
    /// By the network's name.
    of: BTreeMap<String, Whole>,
    /// By the slice's name: the network's. Looked up, never iterated.
    wholes: HashMap<String, String>,
    /// Those of which some reader has all.
    whole_too: BTreeSet<String>,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    stays: bool,
    /// By axis of what is supplied: the first element and the one behind the last.
    bounds: Vec<(u64, u64)>,
    /// The program's name of it.
    name: String,
}

/// A parameter of the network and its slices, those that steps update first, then by where they begin.
#[derive(Debug, Default)]
struct Whole {
    sizes: Vec<u64>,
    slices: Vec<Held>,
}

impl Slices {
    /// Those of a graph. O(parameters log parameters).
    pub(super) fn new(graph: &Graph) -> Self {
        let mut slices = Self::default();
        for param in graph.params() {
            let Some(slice) = &param.slice else { continue };
            let ty = graph.ty(graph.node(param.node).first_result);
            let Some(bounds) = slice.bounds(ty) else { continue };
            let mut held = Held {
                stays: param.update.is_none(),
                bounds: vec![(0, 0); bounds.len()],
                name: param.name.clone(),
            };
            let whole = slices.of.entry(slice.name.clone()).or_default();
            whole.sizes.resize(bounds.len(), 0);
            for (axis, (own, &(_, size))) in bounds.into_iter().zip(&slice.axes).enumerate() {
                let axis = supplied_axis(param.permuted.as_deref(), axis);
                (held.bounds[axis], whole.sizes[axis]) = (own, size);
            }
            whole.slices.push(held);
            slices.wholes.insert(param.name.clone(), slice.name.clone());
        }
        slices.of.values_mut().for_each(|whole| whole.slices.sort_unstable());
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
        let Some(Whole { sizes, slices }) = self.of.get(name) else { return read(name) };
        // Slices that steps update are the only place of what they hold.
        if slices.iter().all(|slice| slice.stays)
            && let Some(whole) = read(name)?
        {
            return Ok(Some(whole));
        }
        let Some(tiles) = tiles(sizes, slices) else { return Ok(None) };
        let tensors = tiles.iter().map(|slice| read(&slice.name));
        let Some(tensors) = tensors.collect::<Result<Option<Vec<Tensor>>>>()? else { return Ok(None) };
        let Some(dtype) = tensors.first().map(Tensor::dtype) else { return Ok(None) };
        let bytes = sizes.iter().product::<u64>() * dtype.size();
        let mut whole = vec![0; bytes as usize];
        for (slice, part) in tiles.iter().zip(&tensors) {
            paste(&mut whole, sizes, &slice.bounds, part)?;
        }
        Tensor::new(dtype, sizes.clone(), whole).map(Some)
    }

    /// What a parameter of the network comes to by each name under which slices of it are held. None where it is held
    /// whole alone.
    ///
    /// Errors: it has other sizes.
    pub(super) fn cut(&self, name: &str, value: &Tensor) -> Option<Result<Vec<(&str, Tensor)>>> {
        let Whole { sizes, slices } = self.of.get(name)?;
        if value.dims() != sizes {
            let message = format!("expected sizes {sizes:?}, found {:?}", value.dims());
            return Some(Err(Error::usage(format!("parameter {name}"), message)));
        }
        let part = |slice: &'_ Held| {
            let bounds = slice.bounds.iter().enumerate();
            bounds
                .zip(sizes)
                .filter(|((_, own), size)| **own != (0, **size))
                .try_fold(value.clone(), |part, ((axis, &(start, end)), _)| {
                    part.sliced(axis, start, end - start)
                })
        };
        Some(slices.iter().map(|slice| Ok((slice.name.as_str(), part(slice)?))).collect())
    }

    /// Whether a parameter of which there are slices is held whole beside.
    pub(super) fn is_whole_too(&self, name: &str) -> bool {
        self.whole_too.contains(name)
    }
}

/// The axis of what is supplied that a parameter holds as its axis of this number.
fn supplied_axis(order: Option<&[u32]>, axis: usize) -> usize {
    order.and_then(|order| order.get(axis)).map_or(axis, |&axis| axis as usize)
}

/// Slices that together are the whole, of those that steps update or else of those that stay: in order, each that has
/// something which none before it has. O(slices x cells), where planes along all their ends cut the whole into cells.
fn tiles<'s>(sizes: &[u64], slices: &'s [Held]) -> Option<Vec<&'s Held>> {
    slices.chunk_by(|one, other| one.stays == other.stays).find_map(|alike| {
        let ends = |axis: usize| {
            let ends = alike.iter().flat_map(|slice| [slice.bounds[axis].0, slice.bounds[axis].1]);
            let ends: BTreeSet<u64> = ends.chain([0, sizes[axis]]).collect();
            ends.into_iter().collect::<Vec<u64>>()
        };
        let ends: Vec<Vec<u64>> = (0..sizes.len()).map(ends).collect();
        let cells = |bounds: &[(u64, u64)]| {
            let own = bounds.iter().zip(&ends).map(|(&(start, end), ends)| {
                (ends.partition_point(|&at| at < start), ends.partition_point(|&at| at < end))
            });
            own.collect::<Vec<_>>()
        };
        let counts: Vec<usize> = ends.iter().map(|ends| ends.len() - 1).collect();
        let mut missing = FixedBitSet::with_capacity(counts.iter().product());
        missing.toggle_range(..);
        let mut found = Vec::new();
        for slice in alike {
            let mut is_new = false;
            each_place(&cells(&slice.bounds), &counts, |cell| {
                is_new |= missing.contains(cell);
                missing.set(cell, false);
            });
            if is_new {
                found.push(slice);
            }
        }
        missing.is_clear().then_some(found)
    })
}

/// Calls `run` with the place of each element of a box, in their order, in an array of these sizes.
fn each_place(bounds: &[(usize, usize)], sizes: &[usize], mut run: impl FnMut(usize)) {
    if bounds.iter().any(|&(start, end)| start >= end) {
        return;
    }
    let mut at: Vec<usize> = bounds.iter().map(|&(start, _)| start).collect();
    loop {
        run(at.iter().zip(sizes).fold(0, |place, (&at, &size)| place * size + at));
        let Some(axis) = (0..at.len()).rev().find(|&axis| at[axis] + 1 < bounds[axis].1) else { return };
        at[axis] += 1;
        for later in axis + 1..at.len() {
            at[later] = bounds[later].0;
        }
    }
}

/// Writes the elements of a box to their places in the whole, row by row. Error: the part is of other sizes.
fn paste(whole: &mut [u8], sizes: &[u64], bounds: &[(u64, u64)], part: &Tensor) -> Result<()> {
    let own = bounds.iter().map(|(start, end)| end - start);
    if !part.dims().iter().copied().eq(own) {
        return Err(Error::Internal(format!("a slice {bounds:?} has sizes {:?}", part.dims())));
    }
    let element = part.dtype().size() as usize;
    let usize_of = |&(start, end): &(u64, u64)| (start as usize, end as usize);
    let mut rows: Vec<(usize, usize)> = bounds.iter().map(usize_of).collect();
    let mut length = element;
    // Of the last axis a row is all at once.
    if let Some((start, end)) = rows.last_mut() {
        length = (*end - *start) * element;
        *end = (*end).min(*start + 1);
    }
    let sizes: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
    let mut left = part.bytes();
    each_place(&rows, &sizes, |place| {
        let (row, rest) = left.split_at(length);
        whole[place * element..][..length].copy_from_slice(row);
        left = rest;
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;

    fn held(stays: bool, bounds: &[(u64, u64)]) -> Held {
        Held { stays, bounds: bounds.to_vec(), name: format!("{bounds:?}") }
    }

    fn found(sizes: &[u64], slices: &[Held]) -> Option<Vec<usize>> {
        let place = |tile: &Held| slices.iter().position(|slice| slice == tile);
        tiles(sizes, slices).map(|tiles| tiles.into_iter().filter_map(place).collect())
    }

    #[test]
    fn slices_are_the_whole_where_they_tile_it() {
        let rows = [held(true, &[(0, 4), (0, 10)]), held(true, &[(6, 10), (0, 10)])];
        assert_eq!(found(&[10, 10], &rows), None, "rows 4 and 5 are not there");
        let overlap =
            [held(true, &[(0, 4), (0, 2)]), held(true, &[(2, 4), (0, 2)]), held(true, &[(4, 9), (0, 2)])];
        assert_eq!(found(&[9, 2], &overlap), Some(vec![0, 2]));
        let both =
            [held(true, &[(0, 2), (0, 3)]), held(true, &[(0, 2), (3, 5)]), held(true, &[(2, 3), (0, 5)])];
        assert_eq!(found(&[3, 5], &both), Some(vec![0, 1, 2]));
        assert_eq!(found(&[3, 5], &both[1..]), None);
    }

    #[test]
    fn what_steps_update_is_not_mixed_with_what_stays() {
        let slices = [held(false, &[(0, 2)]), held(true, &[(2, 4)])];
        assert_eq!(found(&[4], &slices), None);
        let slices = [held(false, &[(0, 2)]), held(true, &[(0, 1)]), held(true, &[(1, 4)])];
        assert_eq!(found(&[4], &slices), Some(vec![1, 2]));
    }

    #[test]
    fn boxes_are_pasted_where_they_were_cut() {
        let sizes = [3, 4, 5];
        let numbers: Vec<f32> = (0..60).map(|x| x as f32).collect();
        let whole = Tensor::from_f32(sizes.to_vec(), &numbers).unwrap();
        let mut pasted = vec![0; whole.bytes().len()];
        for rows in [(0, 1), (1, 3)] {
            for columns in [(0, 3), (3, 4)] {
                for last in [(0, 2), (2, 5)] {
                    let bounds = [rows, columns, last];
                    let cut = bounds.iter().enumerate().fold(whole.clone(), |part, (axis, &(start, end))| {
                        part.sliced(axis, start, end - start).unwrap()
                    });
                    paste(&mut pasted, &sizes, &bounds, &cut).unwrap();
                }
            }
        }
        assert_eq!(Tensor::new(DType::F32, sizes.to_vec(), pasted).unwrap(), whole);
        let wrong = Tensor::from_f32(vec![2], &[0.0; 2]).unwrap();
        assert!(paste(&mut [0; 240], &sizes, &[(0, 1); 3], &wrong).is_err());
    }
}
