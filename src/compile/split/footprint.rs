//! What a device holds at once for a node or a part of one, as far as that is known before anything is placed: what
//! it reads and makes, with its workspace, or an operand while that is cut or put together.

use super::choose::{Choices, total};
use super::layout::{Layout, bytes, own_bytes, region_bytes};
use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId, Op, Shape, Size, Type, ValueId};
use crate::kernel::split::{Made, Region, part};
use crate::kernel::workspace::workspace;
use crate::pass::{Division, scattered};
use crate::units::Bytes;

/// A value or a region of it.
type Piece = (ValueId, Option<Region>);

impl Choices<'_> {
    /// Bytes for an undivided node.
    pub(super) fn footprint(&self, node: NodeId) -> Result<u64> {
        let operands: Vec<Piece> =
            self.graph.node(node).operands.iter().map(|&value| (value, None)).collect();
        let results: Vec<Piece> = self.graph.results(node).map(|value| (value, None)).collect();
        let mut most = together(self.graph, &self.graph.node(node).op, &operands, &results)?;
        for &(value, _) in &operands {
            if let Some(layout) = &self.layouts[value.index()] {
                let pieces = layout.bounds.len() as u64;
                most = most.max(joined(bytes(self.graph.ty(value))?, pieces));
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
        let mut most = together(self.graph, &part.op, &operands, &results)?;
        for &(value, region) in operands.iter().filter(|&&(value, _)| !self.is_stored(value)) {
            most = most.max(self.put_together(value, region, number)?);
        }
        if let Made::Partial(_) = division.split.made {
            for result in self.graph.results(node) {
                most = most.max(folded(self.graph.ty(result), division.parts() as u64)?);
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
            Some(layout) => joined(asked, layout.bounds.len() as u64),
        })
    }
}

/// Bytes of what an operation reads and makes, and of its workspace.
fn together(graph: &Graph, op: &Op, operands: &[Piece], results: &[Piece]) -> Result<u64> {
    let ty = |&(value, region): &Piece| resized(graph.ty(value), region);
    let (read, made): (Vec<Type>, Vec<Type>) =
        (operands.iter().map(ty).collect(), results.iter().map(ty).collect());
    let (read_as, made_as): (Vec<&Type>, Vec<&Type>) = (read.iter().collect(), made.iter().collect());
    let own = workspace(op, &read_as, &made_as).get();
    let all = total(read.iter().chain(&made).map(|ty| Ok(aligned(bytes(ty)?))))?;
    Ok(all.saturating_add(aligned(own)))
}

/// Bytes where so many are put together from pieces.
fn joined(asked: u64, pieces: u64) -> u64 {
    // Each piece begins at a multiple of the alignment.
    let gaps = pieces.saturating_mul(crate::units::ALIGNMENT - 1);
    aligned(asked).saturating_add(asked).saturating_add(gaps.min(asked))
}

/// Bytes where partial results of so many parts are folded.
fn folded(ty: &Type, parts: u64) -> Result<u64> {
    let all = bytes(ty)?;
    Ok(match scattered(ty, parts) {
        // The whole partial result, and one slice of it from each part.
        Some(_) => aligned(all).saturating_mul(2).saturating_add(aligned(all / parts)),
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
