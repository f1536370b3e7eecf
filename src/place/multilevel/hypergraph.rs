//! The hypergraph that is partitioned: vertices with compute time and bytes, nets with the bytes
//! that each block beyond the first costs; and the blocks with their limits.

use super::arcs::Arcs;
use crate::csr::Csr;

/// A hypergraph whose vertices weigh time and bytes.
#[derive(Debug, Default)]
pub(super) struct Hypergraph {
    /// Vertices of each net, ascending.
    pub(super) nets: Csr,
    /// Nets of each vertex, ascending.
    pub(super) of_vertex: Csr,
    /// Bytes for each block beyond the first that a net touches.
    pub(super) weight: Vec<u64>,
    /// Bytes that each block which a net touches holds of it.
    pub(super) resident: Vec<u64>,
    /// Compute time of each vertex on each kind of block: `vertex * kinds + kind`.
    pub(super) time: Vec<u64>,
    /// Number of kinds.
    pub(super) kinds: usize,
    /// Bytes of each vertex, wherever it is.
    pub(super) bytes: Vec<u64>,
    /// Vertices of one class may be on the same blocks.
    pub(super) class: Vec<u32>,
    /// Mean positions of what a vertex stands for in some topological orders, one row for each.
    pub(super) positions: Vec<Vec<u32>>,
    /// Which vertices come before which, for blocks that are ordered; none where that is not known.
    pub(super) arcs: Option<Arcs>,
}

impl Hypergraph {
    /// Number of vertices.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.class.len()
    }

    /// Compute time of a vertex on a kind of block.
    #[inline]
    pub(super) fn time(&self, vertex: usize, kind: usize) -> u64 {
        self.time[vertex * self.kinds + kind]
    }

    /// Compute time of all vertices on a kind of block.
    pub(super) fn total_time(&self, kind: usize) -> u64 {
        (0..self.len()).fold(0, |sum, vertex| self.time(vertex, kind).saturating_add(sum))
    }

    /// Bytes of all vertices and, once each, of all nets that are held.
    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.iter().chain(&self.resident).fold(0, |sum, &bytes| bytes.saturating_add(sum))
    }

    /// Bytes moved by a partition: the connectivity metric. O(pins).
    #[cfg(test)]
    pub(super) fn connectivity(&self, block: &[u32]) -> u64 {
        let mut bytes = 0;
        for net in 0..self.nets.len() {
            let mut touched: Vec<u32> =
                self.nets.row(net).iter().map(|&vertex| block[vertex as usize]).collect();
            touched.sort_unstable();
            touched.dedup();
            bytes += self.weight[net] * (touched.len() as u64).saturating_sub(1);
        }
        bytes
    }
}

/// The blocks of a partition.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Column of the vertices' times.
    pub(super) kind: Vec<usize>,
    /// Compute time that a block may take.
    pub(super) limit: Vec<u64>,
    /// Bytes that a block may hold.
    pub(super) capacity: Vec<u64>,
    /// Whether a class of vertices may be on a block: `class * blocks + block`.
    pub(super) may: Vec<bool>,
    /// Vertices that a block keeps, if it has that many.
    pub(super) least: Vec<u32>,
    /// False where no choice can exceed any room.
    pub(super) bytes_bind: bool,
    /// Whether arcs may only go to the same block or a later one.
    pub(super) ordered: bool,
}

impl Blocks {
    /// Number of blocks.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.kind.len()
    }

    /// True where a class of vertices may be on a block.
    #[inline]
    pub(super) fn may(&self, class: u32, block: usize) -> bool {
        self.may[class as usize * self.len() + block]
    }

    /// True where anything limits what a block takes.
    pub(super) fn bind(&self) -> bool {
        self.bytes_bind || self.time_binds()
    }

    /// True where some block's compute time is limited.
    pub(super) fn time_binds(&self) -> bool {
        self.limit.iter().any(|&limit| limit != u64::MAX)
    }
}
