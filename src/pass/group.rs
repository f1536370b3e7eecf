//! Fusion: which nodes become one kernel.
//!
//! Greedy, in the arena's order. First, an elementwise node joins the latest group among those that
//! make its operands, where all works out (see [`Fuser::joins`]); every other node begins a group of
//! its own. Reshapes are views of what they reshape and join nothing. Then a group whose results
//! nothing but one group of elementwise nodes reads, however often, moves down to that group and
//! becomes its head (see [`Fuser::heads`]): what is saved is the result, written and read.
//!
//! A matrix product of few rows joins the norm that makes them for it alone. Any product joins the sum of an
//! operand's rows over what it sums itself, as the gradients of a dense layer's weights and bias are: both
//! read the same, and a library makes both at once.
//!
//! Zeros that updates are added to, as in the gradient of a table, go with what adds to them: nothing is filled before.
//!
//! Groups stay in topological order by construction: a group reads only leaves and groups that
//! began before it. A node joins only the latest group among its operands' makers, and a product only
//! a norm or a sum that began after what else it reads, so this holds for every node of a group and not
//! only for its first. A group that moves down is read by nothing on the way.

use std::collections::{BTreeMap, BTreeSet};

use super::same_marks;
use crate::ir::{
    AttentionOp, Family, Graph, IndexOp, LayoutOp, Node, NodeId, NormalizeOp, Op, Phase, ReduceKind,
    ReduceOp, SourceId, ValueId,
};
use crate::kernel::{Group, GroupId, Grouping, Hero, is_staged, normalizes_rows, zeros_before};

/// Limits of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Most nodes.
    pub nodes: usize,
    /// Most values read from outside.
    pub reads: usize,
}

/// As many groups down a group moves however much it reads: longer ways keep what it reads in memory,
/// and are gone only where that is less than what it makes.
const NEAR: usize = 8;

/// Most sweeps of groups that move down: one that has moved may be moved to.
const SWEEPS: usize = 3;

impl Default for GroupOptions {
    fn default() -> Self {
        Self { nodes: 64, reads: 16 }
    }
}

/// Groups the nodes of a graph whose dimensions are bound. O(nodes + edges), the limits taken as
/// constants.
pub fn group(graph: &Graph, options: &GroupOptions) -> Grouping {
    group_placed(graph, options, &[])
}

/// As [`group`], but nodes share a kernel only where their sources are at one place: `place` holds
/// a number for each source, or nothing where all are at one.
pub fn group_placed(graph: &Graph, options: &GroupOptions, place: &[u32]) -> Grouping {
    let mut fuser = Fuser::new(graph, *options, place);
    for node in graph.node_ids() {
        fuser.visit(node);
    }
    for _ in 0..SWEEPS {
        if !fuser.move_down() {
            break;
        }
    }
    fuser.finish()
}

/// Who reads a value from outside the group that makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    One(GroupId),
    Several,
}

struct Fuser<'g> {
    graph: &'g Graph,
    options: GroupOptions,
    /// By source: where it is, in places that no kernel spans.
    place: &'g [u32],
    groups: Vec<Group>,
    group_of: Vec<Option<GroupId>>,
    /// What each group is known to read.
    listed: BTreeSet<(GroupId, ValueId)>,
    base: Vec<ValueId>,
    /// By the base of a matrix: the group that sums up its rows, and how many columns there are.
    sums: BTreeMap<ValueId, (GroupId, u64)>,
    /// By node: the zeros that it alone adds to, which go where it goes; and whether a node is such zeros.
    zeros_of: Vec<Option<NodeId>>,
    is_zeros: Vec<bool>,
    /// By value: an output of the graph, or the base of one.
    is_output: Vec<bool>,
    /// By value, counted at its base: operands that read it.
    readers: Vec<u32>,
}

impl<'g> Fuser<'g> {
    fn new(graph: &'g Graph, options: GroupOptions, place: &'g [u32]) -> Self {
        let mut is_output = vec![false; graph.value_count()];
        for (_, value) in graph.outputs() {
            is_output[value.index()] = true;
        }
        let base = views(graph, &is_output);
        for (_, value) in graph.outputs() {
            is_output[base[value.index()].index()] = true;
        }
        let mut readers = vec![0; graph.value_count()];
        for node in graph.node_ids() {
            let result = graph.node(node).first_result;
            // A view is no kernel: what reads it counts as a reader of its base.
            if base[result.index()] == result {
                for operand in graph.node(node).operands.iter() {
                    readers[base[operand.index()].index()] += 1;
                }
            }
        }
        let group_of = vec![None; graph.node_count()];
        let mut zeros_of = vec![None; graph.node_count()];
        let mut is_zeros = vec![false; graph.node_count()];
        for id in graph.node_ids() {
            let Some(zeros) = zeros_before(graph, id) else { continue };
            let (made, source) = (graph.node(zeros).first_result, graph.node(zeros).source);
            let alone = readers[made.index()] == 1 && !is_output[made.index()];
            if alone && same_marks(graph, place, source, graph.node(id).source) {
                zeros_of[id.index()] = Some(zeros);
                is_zeros[zeros.index()] = true;
            }
        }
        Self {
            graph,
            options,
            place,
            groups: Vec::new(),
            group_of,
            listed: BTreeSet::new(),
            base,
            sums: BTreeMap::new(),
            zeros_of,
            is_zeros,
            is_output,
            readers,
        }
    }

    fn visit(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let view = self.base[node.first_result.index()] != node.first_result;
        if node.op.is_leaf() || view || self.is_zeros[id.index()] {
            return;
        }
        // Only the latest of the makers is asked: in an earlier group the node would run before its other operands are
        // made.
        let behind = self.latest_maker(node).filter(|&group| self.joins(id, group));
        let beside = || self.norm_before(id).or_else(|| self.sum_beside(node));
        let group = match behind.or_else(beside) {
            Some(group) => group,
            None => {
                let hero = if node.op.is_elementwise() { Hero::Map } else { Hero::Primitive };
                self.groups.push(Group { nodes: Vec::new(), hero, reads: Vec::new(), writes: Vec::new() });
                let group = GroupId(self.groups.len() as u32 - 1);
                // A product that comes later may move in with these sums (`sum_beside`).
                if let Some(columns) = self.summed_rows(node) {
                    self.sums.insert(self.base[node.operands[0].index()], (group, columns));
                }
                group
            }
        };
        if let Some(zeros) = self.zeros_of[id.index()] {
            self.add(zeros, group);
        }
        self.add(id, group);
    }

    fn add(&mut self, id: NodeId, group: GroupId) {
        self.group_of[id.index()] = Some(group);
        self.groups[group.index()].nodes.push(id);
        for operand in self.graph.node(id).operands.iter() {
            let base = self.base[operand.index()];
            let inside = self.maker(base) == Some(group);
            if !inside && self.listed.insert((group, base)) {
                self.groups[group.index()].reads.push(base);
            }
        }
    }

    /// The group of a norm that a product of few rows reads and nobody else does: its kernel normalises the
    /// rows itself.
    fn norm_before(&self, id: NodeId) -> Option<GroupId> {
        let node = self.graph.node(id);
        let [left, right] = node.operands[..] else { return None };
        let left = self.base[left.index()];
        let into = self.maker(left)?;
        let group = &self.groups[into.index()];
        let norm = group.hero_node(self.graph)?;
        let last = self.graph.node(*group.nodes.last()?);
        let first = self.graph.node(norm);
        // What the group makes on the way is read in it alone.
        let reads_in = |value: ValueId| {
            let operands = group.nodes.iter().flat_map(|&node| self.graph.node(node).operands.iter());
            operands.filter(|operand| self.base[operand.index()] == value).count() as u32
        };
        let mut made = group.nodes.iter().flat_map(|&node| self.graph.results(node));
        let alone = last.first_result == left
            && made.all(|value| {
                let outside = self.readers[value.index()] - reads_in(value);
                outside == u32::from(value == left) && !self.is_output[value.index()]
            });
        // The other operand is made before the norm's group, or the product would run too early in it.
        let fits = normalizes_rows(self.graph, norm, id)
            && self.maker(self.base[right.index()]).is_none_or(|maker| maker < into)
            && same_marks(self.graph, self.place, node.source, first.source)
            && self.graph.source(node.source).phase == self.graph.source(first.source).phase
            && self.is_below_limits(group);
        (alone && fits).then_some(into)
    }

    /// Whether a product that reads one more value may join a group.
    fn is_below_limits(&self, group: &Group) -> bool {
        group.nodes.len() < self.options.nodes && group.reads.len() < self.options.reads
    }

    /// The columns of a matrix whose rows a node sums up.
    fn summed_rows(&self, node: &Node) -> Option<u64> {
        let Op::Reduce { kind: ReduceKind::Sum, axes, .. } = &node.op else { return None };
        let sizes = self.graph.ty(node.operands[0]).shape.sizes();
        let last = sizes.len().checked_sub(1)? as u32;
        let all = axes.len() == last as usize && !axes.contains(&last);
        (all && last > 0).then(|| sizes[last as usize].known()?.try_into().ok()).flatten()
    }

    /// The group of nothing but a sum of an operand's rows over what a product sums up, where it can hold
    /// the product as well: the other operand is made before, and no pin is crossed.
    fn sum_beside(&self, node: &Node) -> Option<GroupId> {
        let Op::MatMul { transpose_left, transpose_right, .. } = node.op else { return None };
        let [left, right] = node.operands[..] else { return None };
        let sides = [(right, left, !transpose_right), (left, right, transpose_left)];
        sides.into_iter().filter(|&(_, _, by_rows)| by_rows).find_map(|(operand, other, _)| {
            let &(group, columns) = self.sums.get(&self.base[operand.index()])?;
            let [sum] = self.groups[group.index()].nodes[..] else { return None };
            let sum = self.graph.node(sum);
            let matrix = self.graph.ty(operand);
            let alike = matrix.shape.rank() == 2
                && self.as_many(operand, sum.operands[0])
                && matrix.shape.sizes()[1].known().and_then(|size| u64::try_from(size).ok()) == Some(columns);
            let phase = |source: SourceId| self.graph.source(source).phase;
            let fits = self.maker(self.base[other.index()]).is_none_or(|maker| maker < group)
                && phase(sum.source) == phase(node.source)
                && same_marks(self.graph, self.place, node.source, sum.source)
                && self.is_below_limits(&self.groups[group.index()]);
            (alike && fits).then_some(group)
        })
    }

    /// Whether nodes of two lists, of each of which no two update different parameters, may share a kernel, and so a
    /// device: the length of all gradients would bring all updates to one.
    fn is_one_update(&self, one: &[NodeId], other: &[NodeId]) -> bool {
        let update = |nodes: &[NodeId]| {
            let mut sources = nodes.iter().map(|&node| self.graph.node(node).source);
            sources.find(|&source| self.graph.source(source).phase == Phase::Update)
        };
        update(one).zip(update(other)).is_none_or(|(one, other)| one == other)
    }

    fn maker(&self, value: ValueId) -> Option<GroupId> {
        self.group_of[self.graph.value(value).node.index()]
    }

    /// The latest group among those that make a node's operands.
    fn latest_maker(&self, node: &Node) -> Option<GroupId> {
        node.operands.iter().filter_map(|operand| self.maker(self.base[operand.index()])).max()
    }

    /// Whether a node joins a group: it is elementwise, has the group's elements in the group's
    /// order (a reshape between changes neither), reads whole values of the group, crosses no pin,
    /// and the limits hold. Behind a primitive, moreover, what it reads of the group is read by nobody
    /// else outside and is written over by the node's result, so the group's inner values need no
    /// memory of their own.
    fn joins(&self, id: NodeId, into: GroupId) -> bool {
        let (node, group) = (self.graph.node(id), &self.groups[into.index()]);
        if !node.op.is_elementwise() || group.nodes.len() >= self.options.nodes {
            return false;
        }
        let Some(begin) = group.hero_node(self.graph) else { return false };
        let marks = same_marks(self.graph, self.place, node.source, self.graph.node(begin).source);
        if !marks || !self.is_one_update(&group.nodes, &[id]) {
            return false;
        }
        let first = self.graph.node(begin).first_result;
        // The group's kernel runs once over the elements of its first node.
        if !self.as_many(node.first_result, first) {
            return false;
        }
        if group.hero == Hero::Primitive && !self.may_update(id, begin) {
            return false;
        }
        let new_reads =
            node.operands.iter().filter(|operand| self.maker(self.base[operand.index()]) != Some(into));
        if group.reads.len() + new_reads.count() > self.options.reads {
            return false;
        }
        node.operands.iter().filter(|operand| self.maker(self.base[operand.index()]) == Some(into)).all(
            |&operand| {
                let whole = self.as_many(operand, node.first_result);
                whole && (group.hero == Hero::Map || self.is_epilogue(group, node, operand))
            },
        )
    }

    /// Whether two values have as many elements, which then are in one order whatever their sizes.
    fn as_many(&self, one: ValueId, other: ValueId) -> bool {
        let (one, other) = (self.graph.ty(one), self.graph.ty(other));
        one.shape == other.shape || one.elements().is_some_and(|count| other.elements() == Some(count))
    }

    /// Whether `operand`, which a group behind a primitive makes, can be written over by a result of
    /// this node: nobody else reads it, it is no output, and elements are as large. A conversion behind
    /// what is written once anyway needs none of this: it saves that a kernel reads it again.
    fn is_epilogue(&self, group: &Group, node: &Node, operand: ValueId) -> bool {
        let size = |value: ValueId| self.graph.ty(value).dtype.size();
        let operand = self.base[operand.index()];
        let of_it = |other: &&ValueId| self.base[other.index()] == operand;
        let own_reads = node.operands.iter().filter(of_it).count() as u32;
        let last = group.nodes.last().map(|&last| self.graph.node(last));
        let lone = last.is_some_and(|last| last.first_result == operand && is_followed(&last.op));
        let hero = group.hero_node(self.graph).map(|hero| &self.graph.node(hero).op);
        if matches!(node.op, Op::Convert { .. }) && hero.is_some_and(is_converted) {
            return lone;
        }
        // A product may be converted, too: where a library computes it, a kernel behind it does that.
        let is_product = hero.is_some_and(|hero| matches!(hero, Op::MatMul { .. } | Op::Conv(_)));
        let converted = is_product && matches!(node.op, Op::Convert { .. });
        lone && self.readers[operand.index()] == own_reads
            && !self.is_output[operand.index()]
            && (converted || size(operand) == size(node.first_result))
    }

    /// Whether a node may follow a primitive: an update writes over its parameter, so it does only
    /// where the primitive lets it.
    fn may_update(&self, id: NodeId, primitive: NodeId) -> bool {
        let node = self.graph.node(id);
        let phase = |source: SourceId| self.graph.source(source).phase;
        phase(node.source) == phase(self.graph.node(primitive).source)
            || phase(node.source) != Phase::Update
            || is_staged(self.graph, primitive, &[id])
            || self.zeros_of[primitive.index()].is_some()
    }

    /// Joins groups with those that they may head; true where any moves. Of several that could head
    /// one group the latest does, so what it reads is kept for the shortest time.
    fn move_down(&mut self) -> bool {
        // Counted once: what moves below changes them, and the next sweep sees that.
        let readers = self.outside_readers();
        let mut head_of: Vec<Option<GroupId>> = vec![None; self.groups.len()];
        let mut moves = vec![false; self.groups.len()];
        for head in (0..self.groups.len() as u32).rev().map(GroupId) {
            if let Some(group) = self.heads(head, &readers)
                && head_of[group.index()].is_none()
                && !moves[group.index()]
            {
                head_of[group.index()] = Some(head);
                moves[head.index()] = true;
            }
        }
        let mut heads: Vec<Option<Group>> = vec![None; self.groups.len()];
        for (index, group) in std::mem::take(&mut self.groups).into_iter().enumerate() {
            // A head's nodes appear with the group it heads, which comes later.
            if moves[index] {
                heads[index] = Some(group);
                continue;
            }
            let id = GroupId(self.groups.len() as u32);
            let head = head_of[index].and_then(|head| heads[head.index()].take());
            let group = match head {
                Some(head) => self.joined(head, group),
                None => group,
            };
            for node in &group.nodes {
                self.group_of[node.index()] = Some(id);
            }
            self.groups.push(group);
        }
        moves.contains(&true)
    }

    /// One group of the nodes of two.
    fn joined(&self, head: Group, group: Group) -> Group {
        let made = head.nodes.iter().flat_map(|&node| self.graph.results(node)).collect::<BTreeSet<_>>();
        let mut nodes = [head.nodes, group.nodes].concat();
        nodes.sort_unstable();
        let mut reads = head.reads;
        let known: BTreeSet<ValueId> = reads.iter().copied().collect();
        reads.extend(group.reads.into_iter().filter(|read| !made.contains(read) && !known.contains(read)));
        Group { nodes, hero: head.hero, reads, writes: Vec::new() }
    }

    /// By value.
    fn outside_readers(&self) -> Vec<Readers> {
        let mut readers = vec![Readers::None; self.graph.value_count()];
        for (index, group) in self.groups.iter().enumerate() {
            for read in &group.reads {
                let of_it = &mut readers[read.index()];
                *of_it = match of_it {
                    Readers::None => Readers::One(GroupId(index as u32)),
                    Readers::One(_) | Readers::Several => Readers::Several,
                };
            }
        }
        readers
    }

    /// The elementwise group that a group may be the head of: nothing else reads what the head makes,
    /// both have the same elements in the same order, no pin and no update is between, and the limits
    /// hold. A primitive's result is written over by one of the group's, so it needs no memory.
    fn heads(&self, id: GroupId, readers: &[Readers]) -> Option<GroupId> {
        let head = &self.groups[id.index()];
        let (&begin, &last) = (head.nodes.first()?, head.nodes.last()?);
        let made = || head.nodes.iter().flat_map(|&node| self.graph.results(node));
        let read = || made().filter(|value| readers[value.index()] != Readers::None);
        let Readers::One(into) = readers[read().next()?.index()] else { return None };
        let group = &self.groups[into.index()];
        let &follows = group.nodes.first()?;
        let alone = !made().any(|value| self.is_output[value.index()])
            && read().all(|value| readers[value.index()] == Readers::One(into));
        if group.hero != Hero::Map || !alone {
            return None;
        }
        let result = self.graph.node(last).first_result;
        let followed = head.hero == Hero::Map
            || is_followed(&self.graph.node(last).op)
                && read().all(|value| value == result)
                && self.writes_over(group, result, readers);
        let source = |node: NodeId| self.graph.node(node).source;
        let marks = same_marks(self.graph, self.place, source(begin), source(follows));
        if !followed || !marks || !self.is_one_update(&head.nodes, &group.nodes) {
            return None;
        }
        let update = |&node: &NodeId| self.graph.source(source(node)).phase == Phase::Update;
        let begins_update = group.nodes.iter().any(update) && !head.nodes.iter().all(update);
        if !self.as_many(result, self.graph.node(follows).first_result) || begins_update {
            return None;
        }
        let new = group
            .reads
            .iter()
            .filter(|&&value| self.maker(value) != Some(id) && !head.reads.contains(&value));
        let fits = head.nodes.len() + group.nodes.len() <= self.options.nodes
            && head.reads.len() + new.count() <= self.options.reads;
        if !fits || !read().all(|value| self.reads_whole(group, value)) {
            return None;
        }
        let bytes = |value: ValueId| self.graph.ty(value).bytes().map_or(u64::MAX, |bytes| bytes.get());
        // A head that waits for its reader keeps its operands alive; leaves are alive anyway.
        let made_before = head.reads.iter().copied().filter(|&value| self.maker(value).is_some());
        let kept = made_before.map(bytes).fold(0, u64::saturating_add);
        let saved = read().map(bytes).fold(0, u64::saturating_add);
        // Over a short way memory hardly matters; over a long one the head must not hold more than it saves.
        (into.index() - id.index() <= NEAR || kept <= saved).then_some(into)
    }

    /// Whether all that a group reads of a value it reads element by element.
    fn reads_whole(&self, group: &Group, value: ValueId) -> bool {
        group.nodes.iter().map(|&node| self.graph.node(node)).all(|node| {
            let mut reads = node.operands.iter().filter(|operand| self.base[operand.index()] == value);
            reads.all(|&operand| self.as_many(operand, node.first_result))
        })
    }

    /// Whether a group writes a result whose elements are as large as a value's.
    fn writes_over(&self, group: &Group, value: ValueId, readers: &[Readers]) -> bool {
        let size = |value: ValueId| self.graph.ty(value).dtype.size();
        group.nodes.iter().flat_map(|&node| self.graph.results(node)).any(|result| {
            let written = readers[result.index()] != Readers::None
                || self.readers[result.index()] == 0
                || self.is_output[result.index()];
            written && size(result) == size(value)
        })
    }

    fn finish(mut self) -> Grouping {
        let mut written = self.is_output.clone();
        for group in &self.groups {
            for read in &group.reads {
                written[read.index()] = true;
            }
        }
        for group in &mut self.groups {
            // A result that nothing reads still needs a place to be written to.
            let results = group.nodes.iter().flat_map(|&node| self.graph.results(node));
            group.writes =
                results.filter(|value| written[value.index()] || self.readers[value.index()] == 0).collect();
        }
        Grouping { groups: self.groups, group_of: self.group_of, base: self.base, slices: Vec::new() }
    }
}

/// Whether elementwise nodes may stand behind an operation's first result. What is beside that of a
/// norm or its gradient are vectors that nothing is behind.
fn is_followed(op: &Op) -> bool {
    let is_norm = match op.family() {
        Family::Normalize(op) => match op {
            NormalizeOp::Normalize(_) | NormalizeOp::NormalizeGradient { .. } => true,
            NormalizeOp::Softmax(_)
            | NormalizeOp::SoftmaxGradient(_)
            | NormalizeOp::CrossEntropy
            | NormalizeOp::CrossEntropyGradient
            | NormalizeOp::LocalResponseNorm(_) => false,
        },
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Layout(_)
        | Family::Index(_)
        | Family::Window(_)
        | Family::Reduce(_)
        | Family::Product(_)
        | Family::Packed(_)
        | Family::Attention(_)
        | Family::Recurrent(_) => false,
    };
    is_norm || op.results() == 1
}

/// Whether what an operation makes may be converted in its kernel whoever else reads it: the kernel writes each
/// element once, and does not read it again.
fn is_converted(op: &Op) -> bool {
    match op.family() {
        Family::Layout(op) => match op {
            LayoutOp::Slice(_) | LayoutOp::Concat { .. } => true,
            LayoutOp::Reshape { .. }
            | LayoutOp::Transpose { .. }
            | LayoutOp::Broadcast { .. }
            | LayoutOp::Pad(_) => false,
        },
        Family::Index(op) => match op {
            IndexOp::Gather { .. } => true,
            IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TopK(_)
            | IndexOp::TreeLeaves { .. } => false,
        },
        Family::Reduce(op) => match op {
            ReduceOp::Reduce { .. } => true,
            ReduceOp::ArgReduce { .. } | ReduceOp::CumSum(_) => false,
        },
        Family::Normalize(op) => match op {
            NormalizeOp::Softmax(_) | NormalizeOp::Normalize(_) | NormalizeOp::NormalizeGradient { .. } => {
                true
            }
            NormalizeOp::SoftmaxGradient(_)
            | NormalizeOp::CrossEntropy
            | NormalizeOp::CrossEntropyGradient
            | NormalizeOp::LocalResponseNorm(_) => false,
        },
        Family::Attention(op) => match op {
            AttentionOp::Rotary { .. } => true,
            AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) => false,
        },
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Window(_)
        | Family::Product(_)
        | Family::Packed(_)
        | Family::Recurrent(_) => false,
    }
}

/// By value: the value whose bytes it shares. A reshape is a view, unless it is an output of the
/// graph and what it views is a leaf or an output itself: each output has a buffer of its own.
fn views(graph: &Graph, is_output: &[bool]) -> Vec<ValueId> {
    let mut base: Vec<ValueId> = (0..graph.value_count() as u32).map(ValueId).collect();
    // By value: an output of the graph is in its bytes.
    let mut taken = is_output.to_vec();
    for node in graph.node_ids() {
        let Node { op: Op::Reshape { .. }, operands, first_result, .. } = graph.node(node) else { continue };
        let under = base[operands[0].index()];
        if is_output[first_result.index()] && (graph.maker(under).op.is_leaf() || taken[under.index()]) {
            continue;
        }
        taken[under.index()] |= is_output[first_result.index()];
        base[first_result.index()] = under;
    }
    base
}
