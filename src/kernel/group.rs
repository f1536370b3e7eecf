//! Groups: the nodes that become one kernel, and so the units of placement.

use std::fmt::Write;

use super::Fused;
use crate::error::{Error, Result};
use crate::escape::escaped;
use crate::ir::{Graph, NodeId, Op, Size, ValueId};
use crate::units::ALIGNMENT;

/// A group's position in [`Grouping::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What shapes a group's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hero {
    /// Elementwise nodes only, over one iteration space.
    Map,
    /// One node that is not elementwise, then elementwise ones that follow from it, if any. Before a matrix
    /// product that makes a weight's gradient may stand the sum that makes the bias's, and before one of few rows
    /// the norm that makes these, with elementwise ones behind it. Zeros stand before what adds to them.
    Primitive,
}

impl Group {
    /// The node that shapes the kernel; the first one where all are elementwise.
    pub fn hero_node(&self, graph: &Graph) -> Option<NodeId> {
        let primitive = self.nodes.iter().rev().find(|&&node| !graph.node(node).op.is_elementwise());
        primitive.or(self.nodes.first()).copied()
    }
}

/// Nodes that become one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The nodes, in the order of the arena.
    pub nodes: Vec<NodeId>,
    /// What shapes the kernel.
    pub hero: Hero,
    /// Values made outside that the nodes read, each the base of its bytes, in order of first
    /// use, each once.
    pub reads: Vec<ValueId>,
    /// Values that nodes outside read or that are outputs of the graph, in the order of the arena.
    pub writes: Vec<ValueId>,
}

/// The byte of what it reads at which the result of these nodes begins, where they are one contiguous slice whose bytes
/// begin at a multiple of the alignment, as kernels ask of all that they read.
pub(crate) fn slice_at(graph: &Graph, nodes: &[NodeId]) -> Option<u64> {
    let &[node] = nodes else { return None };
    let node = graph.node(node);
    let Op::Slice(slice) = &node.op else { return None };
    let ty = graph.ty(node.operands[0]);
    let whole = ty.shape.dims()?;
    let known = |sizes: &[Size]| sizes.iter().map(Size::known).collect::<Option<Vec<i64>>>();
    let (starts, sizes) = (known(&slice.starts)?, known(&slice.sizes)?);
    // Behind the first axis of which there are several elements, all others are there whole.
    let cut = sizes.iter().position(|&size| size != 1).unwrap_or(sizes.len());
    let is_whole = (cut + 1..sizes.len()).all(|axis| sizes[axis] == whole[axis]);
    if !is_whole || slice.steps.iter().any(|&step| step != 1) || sizes.contains(&0) {
        return None;
    }
    let mut first = 0u64;
    for (start, size) in starts.iter().zip(&whole) {
        first = first.checked_mul(size.unsigned_abs())?.checked_add(start.unsigned_abs())?;
    }
    let first = first.checked_mul(ty.dtype.size())?;
    first.is_multiple_of(ALIGNMENT).then_some(first)
}

/// A slice that may lie in what it is cut from: where, and the last group that reads it.
#[derive(Clone, Copy)]
struct Share {
    group: GroupId,
    first: u64,
    end: u64,
    last: u32,
}

/// Those of all slices of one value that may lie in it, which begin in ascending order. The value has so many `bytes`, and is
/// alive without them until group `whole`. O(slices log slices).
fn worthwhile(shares: Vec<Share>, bytes: u64, whole: u32) -> Vec<GroupId> {
    let first_cut = shares.iter().map(|share| share.group.0).min().unwrap_or(0);
    let from = first_cut.max(whole);
    // Of slices that overlap, what they have in common counts once.
    let mut behind = 0;
    let mut by_last: Vec<(Share, u64)> = Vec::new();
    for share in shares {
        by_last.push((share, share.end.saturating_sub(share.first.max(behind))));
        behind = behind.max(share.end);
    }
    by_last.sort_by_key(|(share, _)| (share.last, share.group));
    let (mut read, mut count) = (0u128, 0);
    for (number, (share, own)) in by_last.iter().enumerate() {
        let groups = u128::from(share.last.saturating_sub(from));
        read += u128::from(*own) * groups;
        if 2 * read >= u128::from(bytes) * groups {
            count = number + 1;
        }
    }
    by_last[..count].iter().map(|(share, _)| share.group).collect()
}

/// Every node of a graph in a group, but for those that are no work: leaves and views.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// The groups, in a topological order: each reads only what leaves and earlier groups make.
    pub groups: Vec<Group>,
    /// By node.
    pub group_of: Vec<Option<GroupId>>,
    /// By value: the value whose bytes it shares. Itself, but for contiguous views.
    pub base: Vec<ValueId>,
    /// Groups for which nothing need run: each makes one contiguous slice of what it reads, which lies in that value's
    /// bytes from this one on. Ascending.
    pub slices: Vec<(GroupId, u64)>,
}

impl Grouping {
    /// A group's nodes with what they read and write, as kernels take them.
    pub fn fused(&self, group: GroupId) -> Fused<'_> {
        let Group { nodes, reads, writes, .. } = &self.groups[group.index()];
        Fused { nodes, reads, writes, base: &self.base }
    }

    /// Finds the groups that only cut contiguous slices which may lie in what they are cut from: of what another group
    /// makes or is handed over, and no output. O(groups log slices + values).
    pub fn find_slices(&mut self, graph: &Graph) {
        let mut is_output = vec![false; graph.value_count()];
        graph.outputs().iter().for_each(|(_, output)| is_output[self.base[output.index()].index()] = true);
        let mut found: Vec<(GroupId, u64)> = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let (&[read], &[made]) = (&group.reads[..], &group.writes[..]) else { continue };
            let is_made = match graph.maker(read).op {
                Op::Param(_) | Op::Constant(_) => false,
                Op::Input => true,
                // Of what has bytes of its own: a view names whose it has.
                _ => {
                    let maker = self.group_of[graph.value(read).node.index()];
                    maker
                        .is_some_and(|maker| found.binary_search_by_key(&maker, |&(group, _)| group).is_err())
                }
            };
            match slice_at(graph, &group.nodes) {
                Some(first) if is_made && !is_output[made.index()] => {
                    found.push((GroupId(number as u32), first))
                }
                Some(_) | None => {}
            }
        }
        self.slices = found;
        self.keep_apart(graph);
    }

    /// Of slices of one value that have bytes in common, only the first is one: a plan says of a view whose bytes it has, and
    /// not which other views have some of them. O(slices log slices).
    fn keep_apart(&mut self, graph: &Graph) {
        let bytes = |value: ValueId| graph.ty(value).bytes().map_or(u64::MAX, |bytes| bytes.get());
        let range = |&(group, first): &(GroupId, u64)| {
            let Group { reads, writes, .. } = &self.groups[group.index()];
            (reads[0], first, group, first.saturating_add(bytes(writes[0])))
        };
        let mut ranges: Vec<(ValueId, u64, GroupId, u64)> = self.slices.iter().map(range).collect();
        ranges.sort_unstable();
        let mut kept: Vec<GroupId> = Vec::with_capacity(ranges.len());
        let mut last: Option<(ValueId, u64)> = None;
        for (of, first, group, end) in ranges {
            if last.is_none_or(|(other, behind)| other != of || behind <= first) {
                kept.push(group);
                last = Some((of, end));
            }
        }
        kept.sort_unstable();
        self.slices.retain(|(group, _)| kept.binary_search(group).is_ok());
    }

    /// As [`Grouping::find_slices`], where what they keep alive is worth it. A slice that lies in what it is cut from keeps all of
    /// that alive until it is read last: of the groups from the first cut to that one, in their order, at least half as many
    /// bytes are still to be read on average as are kept. The slices that are read last are copies where it were fewer.
    /// O(groups log slices + values).
    pub fn find_shares(&mut self, graph: &Graph) {
        self.find_slices(graph);
        let (mut last, mut whole) = (vec![0; graph.value_count()], vec![0; graph.value_count()]);
        for (number, group) in (0u32..).zip(&self.groups) {
            let is_slice = self.slice(GroupId(number)).is_some();
            for read in &group.reads {
                last[read.index()] = number;
                if !is_slice {
                    whole[read.index()] = number;
                }
            }
        }
        let bytes = |value: ValueId| graph.ty(value).bytes().map_or(u64::MAX, |bytes| bytes.get());
        let mut cuts: Vec<(ValueId, Share)> = Vec::new();
        for &(group, first) in &self.slices {
            let Group { reads, writes, .. } = &self.groups[group.index()];
            let (&[read], &[made]) = (&reads[..], &writes[..]) else { continue };
            let end = first.saturating_add(bytes(made));
            cuts.push((read, Share { group, first, end, last: last[made.index()].max(group.0) }));
        }
        cuts.sort_by_key(|&(read, share)| (read, share.first, share.group));
        let mut kept: Vec<GroupId> = Vec::new();
        for of_one in cuts.chunk_by(|a, b| a.0 == b.0) {
            let read = of_one[0].0;
            let shares: Vec<Share> = of_one.iter().map(|&(_, share)| share).collect();
            kept.extend(worthwhile(shares, bytes(read), whole[read.index()]));
        }
        kept.sort_unstable();
        self.slices.retain(|(group, _)| kept.binary_search(group).is_ok());
    }

    /// Where in what it reads a group's result lies, where nothing runs for it. O(log groups).
    pub fn slice(&self, group: GroupId) -> Option<u64> {
        let found = self.slices.binary_search_by_key(&group, |&(group, _)| group).ok()?;
        Some(self.slices[found].1)
    }

    /// All groups as kernels take them, in order.
    pub fn all_fused(&self) -> Vec<Fused<'_>> {
        (0..self.groups.len() as u32).map(|group| self.fused(GroupId(group))).collect()
    }

    /// The groups for people to read: one line for each, its nodes indented below it.
    pub fn dump(&self, graph: &Graph) -> String {
        let list = |values: &[ValueId]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut out = String::new();
        for (index, group) in self.groups.iter().enumerate() {
            let hero = match group.hero {
                Hero::Map => "map",
                Hero::Primitive => group.hero_node(graph).map_or("?", |node| graph.node(node).op.name()),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "g{index} {hero}: {} -> {}", list(&group.reads), list(&group.writes));
            for &node in &group.nodes {
                let data = graph.node(node);
                let _ = writeln!(
                    out,
                    "    {} = {} {}  # {}",
                    list(&graph.results(node).collect::<Vec<_>>()),
                    data.op.name(),
                    list(&data.operands),
                    escaped(&graph.source(data.source).name)
                );
            }
        }
        out
    }

    /// Checks that the grouping is one of this graph: every node that is no leaf and no view is in
    /// exactly one group, groups are in topological order, and reads and writes are complete.
    /// O(nodes + edges).
    pub fn verify(&self, graph: &Graph) -> Result<()> {
        let wrong = |message: String| Err(Error::Internal(format!("grouping: {message}")));
        if self.group_of.len() != graph.node_count() || self.base.len() != graph.value_count() {
            return wrong("made for another graph".into());
        }
        let mut seen = vec![false; graph.node_count()];
        for (index, group) in self.groups.iter().enumerate() {
            for &node in &group.nodes {
                if std::mem::replace(&mut seen[node.index()], true) {
                    return wrong(format!("{node} is in two groups"));
                }
                if self.group_of[node.index()] != Some(GroupId(index as u32)) {
                    return wrong(format!("{node} is not recorded as in group {index}"));
                }
                for &operand in &graph.node(node).operands {
                    self.verify_read(graph, index, group, operand)?;
                }
            }
        }
        for node in graph.node_ids() {
            let result = graph.node(node).first_result;
            let view = self.base[result.index()] != result;
            if seen[node.index()] == (graph.node(node).op.is_leaf() || view) {
                return wrong(format!(
                    "{node} is {}",
                    if view { "a view in a group" } else { "in no group" }
                ));
            }
        }
        for (name, value) in graph.outputs() {
            let base = self.base[value.index()];
            let written = match self.group_of[graph.value(base).node.index()] {
                Some(group) => self.groups[group.index()].writes.contains(&base),
                None => graph.maker(base).op.is_leaf(),
            };
            if !written {
                return wrong(format!("output {name} is not written"));
            }
        }
        Ok(())
    }

    fn verify_read(&self, graph: &Graph, index: usize, group: &Group, operand: ValueId) -> Result<()> {
        let base = self.base[operand.index()];
        let maker = self.group_of[graph.value(base).node.index()];
        let fits = match maker {
            Some(maker) if maker.index() == index => true,
            Some(maker) => {
                maker.index() < index
                    && self.groups[maker.index()].writes.contains(&base)
                    && group.reads.contains(&base)
            }
            None => graph.maker(base).op.is_leaf() && group.reads.contains(&base),
        };
        if fits {
            Ok(())
        } else {
            Err(Error::Internal(format!("grouping: group {index} cannot read {operand}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which slices of a hundred bytes may lie in these: where each is, and the group that reads it last.
    fn kept(slices: &[(u64, u64, u32)], whole: u32) -> Vec<u32> {
        let shares = (0u32..).zip(slices);
        let shares =
            shares.map(|(group, &(first, end, last))| Share { group: GroupId(group), first, end, last });
        let mut kept: Vec<u32> =
            worthwhile(shares.collect(), 100, whole).into_iter().map(|group| group.0).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn what_slices_keep_alive_is_mostly_read() {
        // Thirds that are read about together, a half, and less.
        assert_eq!(kept(&[(0, 34, 7), (34, 67, 8), (67, 100, 9)], 0), [0, 1, 2]);
        assert_eq!(kept(&[(0, 50, 90)], 0), [0]);
        assert_eq!(kept(&[(0, 49, 90)], 0), [0; 0]);
        // What is cut from is alive anyway.
        assert_eq!(kept(&[(0, 10, 90)], 90), [0]);
        // One after the other.
        assert_eq!(kept(&[(0, 25, 10), (25, 50, 20), (50, 75, 30), (75, 100, 40)], 0), [0, 1, 2, 3]);
    }

    #[test]
    fn one_slice_does_not_keep_all_alive() {
        assert_eq!(kept(&[(0, 30, 8), (30, 60, 8), (60, 90, 8), (90, 100, 1000)], 0), [0, 1, 2]);
    }

    #[test]
    fn slices_that_overlap_count_once() {
        assert_eq!(kept(&[(0, 30, 90), (0, 30, 90), (10, 40, 90)], 0), [0; 0]);
        assert_eq!(kept(&[(0, 30, 90), (20, 60, 90)], 0), [0, 1]);
    }
}
