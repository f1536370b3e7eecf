//! What a network demands of a plan.

use std::collections::{BTreeMap, BTreeSet};

use partition::unstable::compile::Network;
use partition::unstable::ir::{Graph, NodeId, Op, Size, ValueId};
use partition::unstable::kernel::{group_workspace, in_place};
use partition::unstable::plan::{Buffer, Plan};

/// What a network's groups read and write, and what is kept.
pub(crate) struct Truth {
    /// By number.
    pub(super) groups: Vec<Group>,
    pub(super) leaves: BTreeMap<u32, Leaf>,
    pub(super) bytes: BTreeMap<u32, u64>,
    /// By output of the graph: the value that holds it.
    pub(super) outputs: Vec<u32>,
    /// By parameter that is updated: its value, and the output that takes its place.
    pub(super) updates: Vec<(u32, usize)>,
    /// Values of which there is one for each microbatch.
    pub(super) each: BTreeSet<u32>,
    /// By input or output: along which axis it is divided.
    pub(super) axes: BTreeMap<u32, Option<u32>>,
    pub(super) microbatches: Option<u32>,
    /// By value that is a contiguous slice of another: of which, and at which byte of that it begins.
    pub(super) cuts: BTreeMap<u32, (u32, u64)>,
}

pub(super) struct Group {
    pub(super) reads: Vec<u32>,
    pub(super) writes: Vec<u32>,
    pub(super) in_place: Vec<(usize, usize)>,
    pub(super) workspace: u64,
    /// At which byte of what it reads its result begins, where it only cuts a contiguous slice.
    pub(super) cut: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaf {
    Input,
    Data,
}

impl Truth {
    /// `plan` is a sound one: how inputs and outputs are divided is read from it.
    pub(crate) fn new(network: &Network, plan: &Plan) -> Self {
        let Network { graph, grouping, .. } = network;
        let group = |fused: &partition::unstable::kernel::Fused<'_>| Group {
            reads: fused.reads.iter().map(|value| value.0).collect(),
            writes: fused.writes.iter().map(|value| value.0).collect(),
            in_place: in_place(graph, fused).iter().map(|&(r, w)| (r as usize, w as usize)).collect(),
            workspace: group_workspace(graph, fused).get(),
            cut: cut(graph, fused.nodes),
        };
        let groups: Vec<Group> = grouping.all_fused().iter().map(group).collect();
        let mut leaves = BTreeMap::new();
        for node in graph.node_ids() {
            let leaf = match graph.node(node).op {
                Op::Param(_) | Op::Constant(_) => Leaf::Data,
                _ if graph.node(node).op.is_leaf() => Leaf::Input,
                _ => continue,
            };
            leaves.insert(graph.node(node).first_result.0, leaf);
        }
        let outputs: Vec<u32> =
            graph.outputs().iter().map(|(_, value)| grouping.base[value.index()].0).collect();
        let updated = |param: &partition::unstable::ir::Param| {
            Some((graph.node(param.node).first_result.0, param.update? as usize))
        };
        let bytes = |value: u32| (value, graph.ty(ValueId(value)).bytes().unwrap().get());
        let inputs = leaves.iter().filter(|(_, leaf)| **leaf == Leaf::Input).map(|(&value, _)| value);
        let mut each: BTreeSet<u32> = inputs.collect();
        for group in &groups {
            if group.reads.is_empty() || group.reads.iter().any(|value| each.contains(value)) {
                each.extend(&group.writes);
            }
        }
        let axes = plan.buffers.iter().filter(|buffer| buffer.microbatch.is_some());
        let cuts = groups.iter().filter_map(|group| Some((group.writes[0], (group.reads[0], group.cut?))));
        Self {
            cuts: cuts.collect(),
            groups,
            leaves,
            bytes: (0..graph.value_count() as u32).map(bytes).collect(),
            outputs,
            updates: graph.params().iter().filter_map(updated).collect(),
            each,
            axes: axes.filter_map(|buffer| Some((value_of(buffer)?, buffer.axis))).collect(),
            microbatches: plan.options.microbatches,
        }
    }

    pub(super) fn axis(&self, value: u32) -> Option<u32> {
        self.axes.get(&value).copied().flatten()
    }
}

/// At which byte of its operand the result of a slice begins, where its elements follow one another there: from the
/// first to the last of them there are no others.
fn cut(graph: &Graph, nodes: &[NodeId]) -> Option<u64> {
    let &[node] = nodes else { return None };
    let node = graph.node(node);
    let Op::Slice(slice) = &node.op else { return None };
    let known = |sizes: &[Size]| sizes.iter().map(Size::known).collect::<Option<Vec<i64>>>();
    let (starts, sizes) = (known(&slice.starts)?, known(&slice.sizes)?);
    let ty = graph.ty(node.operands[0]);
    let whole: Vec<i64> = ty.shape.dims()?.to_vec();
    let element =
        |of: &dyn Fn(usize) -> i64| (0..whole.len()).fold(0, |at, axis| at * whole[axis] + of(axis));
    let first = element(&|axis| starts[axis]);
    let last = element(&|axis| starts[axis] + (sizes[axis] - 1) * slice.steps[axis]);
    let follow =
        last - first + 1 == sizes.iter().product::<i64>() && slice.steps.iter().all(|&step| step == 1);
    follow.then(|| first as u64 * ty.dtype.size())
}

/// The number in `%7 name`.
pub(super) fn value_of(buffer: &Buffer) -> Option<u32> {
    buffer.value.strip_prefix('%')?.split(' ').next()?.parse().ok()
}
