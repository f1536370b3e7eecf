//! Acyclic mode: arcs of a hypergraph's vertices along which the number of the block may not fall,
//! so that data crosses from earlier blocks to later ones and never back.
//!
//! Coarsening keeps the arcs free of cycles: levels of longest paths are taken two at a time, and
//! what is merged lies in one such band. A cycle of merged vertices would lie in one band and pass
//! only through those that have vertices of both its levels, so no arc may join two of them.
//! Source: the levels and forbidden clusters of Herrmann, Özkaya, Uçar, Kaya, Çatalyürek,
//! Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic Graphs, 2019.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::csr::Csr;
use crate::place::context::Context;
use crate::place::problem::NONE;

/// Arcs between vertices, without cycles.
#[derive(Clone, Debug, Default)]
pub(super) struct Arcs {
    /// Vertices that come after a vertex.
    next: Csr,
    /// Vertices that come before it.
    prev: Csr,
}

impl Arcs {
    /// The arcs of a problem's units among `vertices`; none where colocation closes a cycle.
    /// O(nodes + edges).
    pub(super) fn of_units(context: &Context<'_, '_>, vertices: usize) -> Option<Self> {
        let (problem, graph) = (context.problem, context.problem.graph);
        let unit_of = &problem.unit_of;
        let units = 0..problem.unit_count();
        let readers = units.clone().map(|unit| {
            let outputs = problem.unit(unit).flat_map(|node| graph.outputs(node));
            outputs.flat_map(|tensor| graph.consumers(tensor)).map(|node| unit_of[node.index()])
        });
        let next = rows(readers.enumerate().map(|(unit, readers)| (unit as u32, readers)), vertices);
        let arcs = Self::from_next(next, vertices);
        arcs.levels().is_some().then_some(arcs)
    }

    /// Arcs to the vertices after each.
    #[cfg(test)]
    pub(super) fn new(next: impl ExactSizeIterator<Item = impl Iterator<Item = u32>>) -> Self {
        let vertices = next.len();
        Self::from_next(
            rows(next.enumerate().map(|(vertex, next)| (vertex as u32, next)), vertices),
            vertices,
        )
    }

    fn from_next(mut next: Csr, vertices: usize) -> Self {
        while next.len() < vertices {
            next.end_row();
        }
        let prev = next.transposed(vertices);
        Self { next, prev }
    }

    /// Arcs between clusters that are numbered `0..count`. O(arcs).
    pub(super) fn contracted(&self, cluster: &[u32], count: usize) -> Self {
        let members = Csr::grouped(cluster, count);
        let of = |to: usize| {
            let next = members.row(to).iter().flat_map(|&vertex| self.next.row(vertex as usize));
            next.map(|&vertex| cluster[vertex as usize])
        };
        Self::from_next(rows((0..count).map(|to| (to as u32, of(to))), count), count)
    }

    /// Arcs among some vertices, by their place among these; [`NONE`] for the others. O(arcs).
    pub(super) fn among(&self, inner: &[u32], place: &[u32]) -> Self {
        let of = |vertex: u32| self.next.row(vertex as usize).iter().map(|&next| place[next as usize]);
        let inner_next = inner.iter().zip(0..).map(|(&vertex, at)| (at, of(vertex)));
        Self::from_next(rows(inner_next, inner.len()), inner.len())
    }

    /// True where a vertex may go to a block: no vertex before it is on a later one, none after it
    /// on an earlier one. O(its arcs).
    pub(super) fn allow(&self, block: &[u32], vertex: u32, to: u32) -> bool {
        let v = vertex as usize;
        self.prev.row(v).iter().all(|&before| block[before as usize] <= to)
            && self.next.row(v).iter().all(|&after| block[after as usize] >= to)
    }

    /// True where along every arc the block's number does not fall.
    #[cfg(test)]
    pub(super) fn ascend(&self, block: &[u32]) -> bool {
        (0..self.next.len()).all(|v| self.next.row(v).iter().all(|&after| block[after as usize] >= block[v]))
    }

    /// True where all that comes before a vertex is on the first block.
    pub(super) fn is_ready(&self, block: &[u32], vertex: u32) -> bool {
        self.prev.row(vertex as usize).iter().all(|&before| block[before as usize] == 0)
    }

    /// The topological order that takes of what is ready the vertex of the lowest rank.
    /// O(arcs + vertices log vertices).
    pub(super) fn order(&self, rank: &[u32]) -> Vec<u32> {
        let mut waits: Vec<usize> = (0..rank.len()).map(|v| self.prev.row(v).len()).collect();
        let first = (0..rank.len()).filter(|&v| waits[v] == 0);
        let mut ready: BinaryHeap<_> = first.map(|v| Reverse((rank[v], v as u32))).collect();
        let mut order = Vec::with_capacity(rank.len());
        while let Some(Reverse((_, vertex))) = ready.pop() {
            order.push(vertex);
            for &after in self.next.row(vertex as usize) {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    ready.push(Reverse((rank[after as usize], after)));
                }
            }
        }
        order
    }

    /// Arcs of the longest path to each vertex; none where the arcs have a cycle. O(arcs).
    fn levels(&self) -> Option<Vec<u32>> {
        let count = self.next.len();
        let mut waits: Vec<usize> = (0..count).map(|v| self.prev.row(v).len()).collect();
        let mut ready: Vec<u32> = (0..count as u32).filter(|&v| waits[v as usize] == 0).collect();
        let mut level = vec![0u32; count];
        let mut done = 0;
        while let Some(vertex) = ready.pop() {
            done += 1;
            for &after in self.next.row(vertex as usize) {
                level[after as usize] = level[after as usize].max(level[vertex as usize] + 1);
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    ready.push(after);
                }
            }
        }
        (done == count).then_some(level)
    }
}

/// Rows of the vertices after each vertex, each once, without itself and without [`NONE`].
fn rows(all: impl Iterator<Item = (u32, impl Iterator<Item = u32>)>, vertices: usize) -> Csr {
    let mut rows = Csr::new();
    let mut seen = vec![NONE; vertices];
    for (vertex, after) in all {
        for next in after.filter(|&next| next != NONE && next != vertex) {
            if seen[next as usize] != vertex {
                seen[next as usize] = vertex;
                rows.push(next);
            }
        }
        rows.end_row();
    }
    rows
}

/// Which vertices may be merged while one level is coarsened.
pub(super) struct Bands<'a> {
    arcs: &'a Arcs,
    level: Vec<u32>,
    /// Levels are taken two at a time from this one on.
    first: u32,
    /// By vertex: merged with one of the band's other level.
    mixed: Vec<bool>,
}

impl<'a> Bands<'a> {
    /// Bands that begin at an even level, or at an odd one.
    pub(super) fn new(arcs: &'a Arcs, odd: bool) -> Self {
        let level = arcs.levels().unwrap_or_else(|| vec![0; arcs.next.len()]);
        Self { arcs, first: u32::from(odd), mixed: vec![false; level.len()], level }
    }

    fn band(&self, vertex: u32) -> u32 {
        (self.level[vertex as usize] + self.first) / 2
    }

    /// True where a vertex that is still alone may join a cluster, which is named by a member and has
    /// `members`.
    pub(super) fn allow(&self, vertex: u32, other: u32, members: u32) -> bool {
        if self.level[vertex as usize] == self.level[other as usize] {
            return !self.mixed[other as usize];
        }
        self.band(vertex) == self.band(other)
            && members == 1
            && [vertex, other].iter().all(|&member| !self.meets_mixed(member, [vertex, other]))
    }

    /// True where an arc within the band joins a vertex to a cluster of both levels.
    fn meets_mixed(&self, vertex: u32, pair: [u32; 2]) -> bool {
        let (arcs, v) = (self.arcs, vertex as usize);
        let mut around = arcs.prev.row(v).iter().chain(arcs.next.row(v));
        around.any(|&near| {
            self.mixed[near as usize] && self.band(near) == self.band(vertex) && !pair.contains(&near)
        })
    }

    /// Tells that a vertex joined a cluster.
    pub(super) fn join(&mut self, vertex: u32, other: u32) {
        if self.level[vertex as usize] != self.level[other as usize] {
            self.mixed[vertex as usize] = true;
            self.mixed[other as usize] = true;
        }
    }
}
