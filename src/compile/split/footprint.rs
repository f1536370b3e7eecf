//! What a device holds at once for a node or a part of one, as far as that is known before anything is placed: what
//! it reads and makes, with its workspace, or an operand while that is cut or put together.

use super::choose::{Choices, total};
use super::layout::{Layout, bytes, own_bytes, region_bytes};
use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId, Op, Shape, Size, Type, ValueId};
use crate::kernel::split::{Made, Region, part, splits};
use crate::pass::{Division, JOINED_AT_ONCE, in_stages, scattered};
use crate::units::Bytes;

/// A value or a region of it.
type Piece = (ValueId, Option<Region>);

impl Choices<'_> {
    /// Bytes for an undivided node.
    pub(super) fn footprint(&self, node: NodeId) -> Result<u64> {
        let operands: Vec<Piece> =
            self.graph.node(node).operands.iter().map(|&value| (value, None)).collect();
        let results: Vec<Piece> = self.graph.results(node).map(|value| (value, None)).collect();
        let mut most = self.together(&self.graph.node(node).op, &operands, &results)?;
        for &(value, _) in &operands {
            if let Some(layout) = &self.layouts[value.index()] {
                most = most.max(joined(self.graph.ty(value), None, layout, self.apart)?);
            }
        }
        Ok(most)
    }

    /// Bytes for the part of a node that takes most.
    pub(super) fn largest_part(&self, node: NodeId, division: &Division) -> Result<u64> {
        let longest = division.bounds.windows(2).enumerate().max_by_key(|(_, pair)| pair[1] - pair[0]);
        let Some((number, pair)) = longest else { return Err(Error::Internal("no parts".to_owned())) };
        let part = part(self.graph, node, &division.split, pair[0], pair[1])?;
        let operands: Vec<Piece> =
            self.graph.node(node).operands.iter().copied().zip(part.operands).collect();
        let results: Vec<Piece> = self.graph.results(node).zip(part.results).collect();
        let mut most = self.together(&part.op, &operands, &results)?;
        for &(value, region) in operands.iter().filter(|&&(value, _)| !self.is_stored(value)) {
            most = most.max(self.put_together(value, region, number)?);
        }
        for (result, made) in self.graph.results(node).zip(&division.split.made) {
            let ty = self.graph.ty(result);
            match *made {
                Made::Partial(_) => most = most.max(folded(ty, division.parts() as u64, self.apart)?),
                // Put together for the caller.
                Made::Slice(axis) if self.is_output[result.index()] => {
                    let layout = Layout { axis, bounds: self.result_bounds(result, axis, division) };
                    most = most.max(joined(ty, None, &layout, self.apart)?);
                }
                Made::Slice(_) => {}
            }
        }
        Ok(most)
    }

    /// Bytes where a region of a value is cut from the whole, or put together from slices.
    fn put_together(&self, value: ValueId, region: Option<Region>, number: usize) -> Result<u64> {
        let ty = self.graph.ty(value);
        let (all, asked) = (bytes(ty)?, region_bytes(ty, region)?);
        Ok(match &self.layouts[value.index()] {
            None if asked < all => aligned(all).saturating_add(aligned(asked)),
            None => aligned(asked),
            Some(Layout { axis, bounds }) if own_bytes(asked, region, *axis, bounds, number) == asked => {
                aligned(asked)
            }
            Some(layout) => joined(ty, region, layout, self.apart)?,
        })
    }

    /// Bytes of what an operation reads and makes, and of its workspace.
    fn together(&self, op: &Op, operands: &[Piece], results: &[Piece]) -> Result<u64> {
        let ty = |&(value, region): &Piece| resized(self.graph.ty(value), region);
        let (read, made): (Vec<Type>, Vec<Type>) =
            (operands.iter().map(ty).collect(), results.iter().map(ty).collect());
        let (read_as, made_as): (Vec<&Type>, Vec<&Type>) = (read.iter().collect(), made.iter().collect());
        let own = (self.workspace)(op, &read_as, &made_as).get();
        let all = total(read.iter().chain(&made).map(|ty| Ok(aligned(bytes(ty)?))))?;
        Ok(all.saturating_add(aligned(own)))
    }
}

/// Bytes where a region of a value is put together from its slices: that, and of each slice what is in it, which begins
/// at a multiple of the alignment; short ones a few at a time where they need not go together.
fn joined(ty: &Type, region: Option<Region>, layout: &Layout, apart: bool) -> Result<u64> {
    let asked = region_bytes(ty, region)?;
    let pieces = 0..layout.bounds.len().saturating_sub(1);
    let pieces = pieces.map(|number| own_bytes(asked, region, layout.axis, &layout.bounds, number));
    let mut pieces: Vec<u64> = pieces.filter(|&bytes| bytes > 0).collect();
    let mut most = 0;
    while apart && in_stages(&pieces) {
        let stages =
            pieces.chunks(JOINED_AT_ONCE).map(|few| side_by_side(few).saturating_add(aligned(sum(few))));
        most = stages.fold(most, u64::max);
        pieces = pieces.chunks(JOINED_AT_ONCE).map(sum).collect();
    }
    Ok(most.max(side_by_side(&pieces).saturating_add(aligned(asked))))
}

/// Bytes of the buffers of some slices.
fn side_by_side(pieces: &[u64]) -> u64 {
    pieces.iter().fold(0, |sum, &bytes| sum.saturating_add(aligned(bytes)))
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

/// Bytes of the smallest part of a node, of all ways to divide it along one loop: what it reads and makes.
pub(super) fn smallest_part(graph: &Graph, node: NodeId) -> Result<u64> {
    let values = || graph.node(node).operands.iter().copied().chain(graph.results(node));
    let mut least = total(values().map(|value| bytes(graph.ty(value))))?;
    for split in splits(graph, node)? {
        let shortest = split.least.max(split.unit).next_multiple_of(split.unit.max(1)).min(split.extent);
        let part = part(graph, node, &split, 0, shortest)?;
        let regions = part.operands.into_iter().chain(part.results);
        least = least
            .min(total(values().zip(regions).map(|(value, region)| region_bytes(graph.ty(value), region)))?);
    }
    Ok(least)
}

/// Bytes where partial results of so many parts are folded; two at a time where they need not go together.
fn folded(ty: &Type, parts: u64, apart: bool) -> Result<u64> {
    let all = bytes(ty)?;
    Ok(match scattered(ty, parts) {
        // The whole partial result, and one slice of it from each part.
        Some(_) => aligned(all).saturating_mul(2).saturating_add(aligned(all / parts)),
        None if apart => aligned(all).saturating_mul(parts.min(3)),
        None => aligned(all).saturating_mul(parts),
    })
}

fn aligned(bytes: u64) -> u64 {
    Bytes(bytes).aligned().get()
}

fn resized(ty: &Type, region: Option<Region>) -> Type {
    let Some(region) = region else { return ty.clone() };
    let sizes = ty.shape.sizes().iter().enumerate().map(|(axis, size)| match axis == region.axis as usize {
        true => Size::Known(region.size as i64),
        false => size.clone(),
    });
    Type { dtype: ty.dtype, shape: Shape::new(sizes) }
}
