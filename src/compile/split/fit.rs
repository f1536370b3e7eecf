//! What fits nowhere whole, split as far as it must be.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::choose::{Choices, Limits, Workspace};
use super::layout::{region_bytes, share};
use super::parted::{Parted, unsplittable_layers};
use super::side_by_side::SideBySide;
use crate::error::Result;
use crate::ir::{Graph, Node, NodeId, Op, ValueId};
use crate::kernel::split::{part, splits};
use crate::kernel::workspace::{workspace, workspace_on_gpu};
use crate::pass::Division;
use crate::place;
use crate::topology::Topology;
use crate::units::Bytes;

/// How finely a graph is divided, and where parts go.
#[derive(Clone, Copy)]
struct Try {
    /// How many hundredths of the largest device's memory one part may take. A part has to leave room for what lives
    /// beside it, and for parts of other operations; but what is finer takes more copies, each of which needs room at
    /// both ends.
    hundredths: u64,
    form: Form,
}

/// What goes together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// What one node of the source stands for.
    Together,
    /// No more than must.
    Apart,
    /// Each device computes one part of whatever is divided, as large as its memory: nothing is left to place.
    SideBySide,
    /// So many parts of the batch.
    Batch(u64),
}

impl Try {
    const fn together(hundredths: u64) -> Self {
        Self { hundredths, form: Form::Together }
    }

    const fn apart(hundredths: u64) -> Self {
        Self { hundredths, form: Form::Apart }
    }

    const fn side_by_side(hundredths: u64) -> Self {
        Self { hundredths, form: Form::SideBySide }
    }

    const fn batch(parts: u64) -> Self {
        Self { hundredths: 100, form: Form::Batch(parts) }
    }
}

/// What is tried, in this order.
const TRIES: [Try; 13] = [
    Try::together(100),
    Try::together(90),
    Try::together(80),
    Try::together(65),
    Try::together(50),
    Try::apart(100),
    Try::apart(80),
    Try::apart(65),
    Try::apart(50),
    Try::apart(25),
    Try::apart(12),
    Try::apart(6),
    Try::apart(3),
];

/// What is tried of steps that update parameters before all else: a layer has half a dozen arrays as large as its
/// weights, and of each a slice lies on each device. Of other networks it is tried last.
const SIDE_BY_SIDE: [Try; 5] = [
    Try::side_by_side(50),
    Try::side_by_side(25),
    Try::side_by_side(12),
    Try::side_by_side(6),
    Try::side_by_side(3),
];

/// Parts of the batch that are tried.
const BY_BATCH: [Try; 4] = [Try::batch(2), Try::batch(4), Try::batch(8), Try::batch(16)];

/// Parts of one node for each device, at most: finer ones find room where others leave it, more copies take it.
const PARTS: u64 = 8;

/// Parts of all nodes, at most: each is planned for like a node.
const MOST_PARTS: usize = 1 << 16;

/// Rounds of dividing, at most: one for each loop of a matrix product but the one that is left.
const ROUNDS: usize = 3;

/// Ways to split a graph, from the coarsest.
pub(in crate::compile) struct Splits {
    whole: Parted,
    /// Bytes of the largest device.
    memory: u64,
    /// As the cost graph counts it.
    workspace: Workspace,
    limits: Limits,
    /// Devices that compute one part each.
    side_by_side: Rc<SideBySide>,
    /// What is still to be tried, from the last.
    left: Vec<Try>,
    last: Option<BTreeMap<NodeId, Division>>,
}

/// Ways to split a graph that fits nowhere whole, each in smaller parts than the one before. Recurrent layers that no
/// split makes small enough are computed step by step, inputs that cannot be cut on a device are handed over in slices.
///
/// Errors: none but internal ones.
pub(in crate::compile) fn narrower(
    whole: Parted,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
) -> Result<Splits> {
    let tries = if whole.graph.trains() { [&SIDE_BY_SIDE[..], &TRIES] } else { [&TRIES[..], &SIDE_BY_SIDE] };
    ways(whole, topology, place, exact, &tries.concat())
}

/// Ways to split a graph in which all that computes samples apart is divided alike, in ever more parts of the batch. Of a
/// training step there are none: its gradients are sums over the batch.
///
/// Errors: none but internal ones.
pub(in crate::compile) fn by_batch(
    whole: Parted,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
) -> Result<Splits> {
    let tries = if whole.graph.has_updates() { &[][..] } else { &BY_BATCH };
    ways(whole, topology, place, exact, tries)
}

fn ways(
    mut whole: Parted,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
    tries: &[Try],
) -> Result<Splits> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let memory = topology.computing().map(room).max().unwrap_or(0);
    let parts = (topology.computing().count() as u64 * PARTS).max(2 * PARTS);
    let limits = Limits { bytes: memory, whole: memory, parts, exact, may_go_on: true };
    // What is split so already is nothing new.
    let mut last = Some(BTreeMap::new());
    let layers = if exact { <_>::default() } else { unsplittable_layers(&whole.graph, memory)? };
    if !layers.is_empty() {
        (whole, last) = (whole.in_steps(&layers)?, None);
    }
    for name in uncuttable_inputs(&whole.graph, memory)? {
        whole.slice_input(&name);
        last = None;
    }
    let workspace = if topology.has_accelerators() { workspace_on_gpu } else { workspace };
    let left = tries.iter().rev().copied().collect();
    let side_by_side = Rc::new(SideBySide::new(topology, place)?);
    Ok(Splits { whole, memory, workspace, limits, side_by_side, left, last })
}

/// Inputs beside which a device has no room for a half of them.
fn uncuttable_inputs(graph: &Graph, memory: u64) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, value) in graph.inputs() {
        if region_bytes(graph.ty(*value), None)? > memory / 3 * 2 {
            found.push(name.clone());
        }
    }
    Ok(found)
}

impl Splits {
    /// Nodes of the graph that is split.
    pub(in crate::compile) fn nodes(&self) -> usize {
        self.whole.graph.node_count()
    }

    /// The next way of at most so many parts that is unlike the one before; none where there is none.
    /// O(nodes + edges x parts).
    ///
    /// Errors: none but internal ones.
    pub(in crate::compile) fn next(&mut self, most_parts: usize) -> Result<Option<Parted>> {
        'tries: while let Some(attempt) = self.left.pop() {
            if attempt.form == Form::SideBySide && self.side_by_side.len() < 2 {
                continue;
            }
            let bytes = share(self.memory, attempt.hundredths, 100);
            let limits = Limits { bytes, whole: bytes, ..self.limits };
            let choices = self.choices(&self.whole.graph, attempt);
            let most_parts = most_parts.min(MOST_PARTS);
            let Some(found) = divisions(choices, limits, attempt.form, most_parts)? else {
                // What is finer has more parts still; other ways have fewer.
                let is_alike =
                    |other: &Try| (other.form == Form::SideBySide) == (attempt.form == Form::SideBySide);
                self.left.retain(|other| !is_alike(other));
                continue;
            };
            let lays_nothing = found.values().all(|division| division.devices.is_empty());
            if self.last.as_ref() == Some(&found) || attempt.form == Form::SideBySide && lays_nothing {
                continue;
            }
            let mut parted = self.whole.divided(&found)?;
            self.last = Some(found);
            for round in 1..ROUNDS {
                // Parts, and what joins them, are divided again only where they fit nowhere.
                let limits = Limits { whole: self.memory, may_go_on: round + 1 < ROUNDS, ..limits };
                let again = |node| parted.may_be_divided_again(node);
                let choices = self.choices(&parted.graph, attempt);
                let Some(more) = divided_again(choices, limits, again, most_parts)? else {
                    continue 'tries;
                };
                if more.is_empty() {
                    break;
                }
                parted = parted.divided(&more)?;
            }
            return Ok(Some(parted));
        }
        Ok(None)
    }

    fn choices<'g>(&self, graph: &'g Graph, attempt: Try) -> Choices<'g> {
        let choices = if attempt.form == Form::Apart { Choices::apart(graph) } else { Choices::new(graph) };
        let choices = choices.with_workspace(self.workspace);
        match attempt.form {
            Form::SideBySide => choices.on(Rc::clone(&self.side_by_side)),
            Form::Together | Form::Apart | Form::Batch(_) => choices,
        }
    }
}

/// How the nodes of a graph are divided; none where there are too many parts.
fn divisions(
    mut choices: Choices<'_>,
    limits: Limits,
    form: Form,
    most_parts: usize,
) -> Result<Option<BTreeMap<NodeId, Division>>> {
    for node in choices.graph.node_ids() {
        match form {
            Form::Batch(parts) => choices.along_batch(node, parts, limits)?,
            Form::Together | Form::Apart | Form::SideBySide => choices.cheapest(node, limits)?,
        }
        if choices.parts() > most_parts {
            return Ok(None);
        }
    }
    Ok(Some(choices.finish()))
}

/// How those nodes of a graph that may be are divided at the least cost; none where there are too many parts.
fn divided_again(
    mut choices: Choices<'_>,
    limits: Limits,
    may_be: impl Fn(NodeId) -> bool,
    most_parts: usize,
) -> Result<Option<BTreeMap<NodeId, Division>>> {
    let graph = choices.graph;
    for node in graph.node_ids().filter(|&node| may_be(node)) {
        choices.cheapest(node, limits)?;
        if choices.parts() > most_parts {
            return Ok(None);
        }
    }
    Ok(Some(choices.finish()))
}

/// Why even splitting does not help, where that is sure: outputs are whole on a device, the parameters that a node reads
/// however it is split must fit on one, and all parameters have to be somewhere. O(nodes + edges).
///
/// Errors: none but internal ones.
pub(in crate::compile) fn beyond_all(
    graph: &Graph,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
) -> Result<Option<String>> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let all: u64 = topology.computing().map(room).fold(0, u64::saturating_add);
    let largest = topology.computing().map(room).max().unwrap_or(0);
    let held = |value: ValueId| {
        let ty = graph.ty(value);
        ty.elements().map_or(u64::MAX, |elements| elements.saturating_mul(ty.dtype.size()))
    };
    for (name, value) in returned(graph) {
        if held(*value) > largest {
            let (bytes, largest) = (Bytes(held(*value)), Bytes(largest));
            return Ok(Some(format!(
                "splitting operations does not help: output {name} takes {bytes} and lies on one device, \
                 the largest has {largest}"
            )));
        }
    }
    if let Some(line) = beyond_joined(graph, largest, exact)? {
        return Ok(Some(line));
    }
    // The steps of a recurrent layer are nodes of their own, where their order of sums may be another.
    let is_layer = |node: NodeId| !exact && matches!(graph.node(node).op, Op::Recurrent(_));
    for node in graph.node_ids().filter(|&node| !graph.node(node).op.is_leaf() && !is_layer(node)) {
        let least = Bytes(least_params(graph, node, exact)?);
        if least.get() > largest {
            let (name, largest) = (&graph.source(graph.node(node).source).name, Bytes(largest));
            let op = graph.node(node).op.name();
            return Ok(Some(format!(
                "splitting operations does not help: {op} of {name} reads {least} of parameters at once, however it is \
                 split, the largest device has {largest}"
            )));
        }
    }
    let params = graph.params().iter().map(|param| held(graph.node(param.node).first_result));
    let params: u64 = params.fold(0, u64::saturating_add);
    Ok((params > all).then(|| {
        let (params, all) = (Bytes(params), Bytes(all));
        format!(
            "splitting operations does not help: parameters take {params}, all devices together have {all}"
        )
    }))
}

/// An output that some device cannot put together from its parts, where one device cannot make it whole either.
fn beyond_joined(graph: &Graph, largest: u64, exact: bool) -> Result<Option<String>> {
    for (name, value) in returned(graph) {
        let maker = made_of(graph, *value);
        let output = region_bytes(graph.ty(*value), None)?;
        let params = graph.node(maker).operands.iter().filter(|&&operand| is_param(graph, operand));
        let params = params.map(|&operand| region_bytes(graph.ty(operand), None));
        let params = params.sum::<Result<u64>>()?;
        let is_split = params > largest && least_params(graph, maker, exact)? <= largest;
        if is_split && output.saturating_mul(2) > largest {
            let (bytes, largest) = (Bytes(output), Bytes(largest));
            return Ok(Some(format!(
                "splitting operations does not help: output {name} takes {bytes}, and as much again while it is put \
                 together from parts on one device, the largest has {largest}"
            )));
        }
    }
    Ok(None)
}

/// The outputs that the caller is handed: not those that take the place of parameters.
fn returned(graph: &Graph) -> impl Iterator<Item = &(String, ValueId)> {
    let outputs = graph.outputs().iter().zip(graph.updates());
    outputs.filter(|(_, updated)| updated.is_none()).map(|(output, _)| output)
}

/// The node behind a value that is no elementwise function or other shape of just one other.
fn made_of(graph: &Graph, value: ValueId) -> NodeId {
    let mut node = graph.value(value).node;
    loop {
        let Node { op, operands, .. } = graph.node(node);
        let mut computed = operands.iter().filter(|&&operand| !graph.maker(operand).op.is_leaf());
        match (computed.next(), computed.next()) {
            (Some(&only), None) if op.is_elementwise() || matches!(op, Op::Reshape { .. }) => {
                node = graph.value(only).node;
            }
            _ => return node,
        }
    }
}

fn is_param(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.maker(value).op, Op::Param(_))
}

/// The fewest bytes of parameters that a part of a node reads, along whichever loops it is divided: of each parameter
/// what is left where all loops are cut as short as they can be.
fn least_params(graph: &Graph, node: NodeId, exact: bool) -> Result<u64> {
    let operands = graph.node(node).operands.iter().copied().enumerate();
    let params: Vec<(usize, ValueId)> = operands.filter(|&(_, value)| is_param(graph, value)).collect();
    let whole = params.iter().map(|&(_, value)| region_bytes(graph.ty(value), None));
    let whole = whole.collect::<Result<Vec<u64>>>()?;
    if params.is_empty() {
        return Ok(0);
    }
    let mut least = whole.clone();
    for split in splits(graph, node)?.into_iter().filter(|split| !(exact && split.is_partial())) {
        // The shortest part that there can be.
        let shortest = split.least.max(split.unit).min(split.extent);
        let shortest = shortest.next_multiple_of(split.unit.max(1)).min(split.extent);
        let part = part(graph, node, &split, 0, shortest)?;
        for (own, (&(at, value), &all)) in least.iter_mut().zip(params.iter().zip(&whole)) {
            let read = region_bytes(graph.ty(value), part.operands[at])?;
            *own = share(*own, read, all);
        }
    }
    Ok(least.into_iter().fold(0, u64::saturating_add))
}
