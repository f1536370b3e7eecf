//! What fits nowhere whole, split as far as it must be.

use std::collections::BTreeMap;

use super::choose::{Choices, Limits};
use super::layout::region_bytes;
use super::rule::is_inexact;
use crate::error::Result;
use crate::ir::{Graph, Node, NodeId, Op, ValueId};
use crate::kernel::split::{Region, part, splits};
use crate::pass::Division;
use crate::place;
use crate::topology::Topology;
use crate::units::Bytes;

/// What is tried, in this order: which fraction of the largest device's memory one part may take, and whether what one
/// node of the source stands for may be apart. A part has to leave room for what lives beside it, and for
/// parts of other operations.
const TRIES: [(u64, bool); 8] =
    [(1, false), (2, false), (1, true), (2, true), (4, true), (8, true), (16, true), (32, true)];

/// Parts of one node for each device, at most: finer ones find room where others leave it, more copies take it.
const PARTS: u64 = 8;

/// Parts of all nodes, at most: each is planned for like a node.
const MOST_PARTS: usize = 1 << 16;

/// Ways to split a graph, from the coarsest.
pub(in crate::compile) struct Splits<'g> {
    graph: &'g Graph,
    /// Bytes of the largest device.
    memory: u64,
    limits: Limits,
    next: usize,
    last: BTreeMap<NodeId, Division>,
}

/// Ways to split a graph that fits nowhere whole, each in smaller parts than the one before.
pub(in crate::compile) fn narrower<'g>(
    graph: &'g Graph,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
) -> Splits<'g> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let memory = topology.computing().map(room).max().unwrap_or(0);
    let parts = (topology.computing().count() as u64 * PARTS).max(2 * PARTS);
    let limits = Limits { bytes: memory, parts, exact };
    Splits { graph, memory, limits, next: 0, last: BTreeMap::new() }
}

impl Splits<'_> {
    /// The next way that is unlike the one before; none where there is none. O(nodes + edges x parts).
    ///
    /// Errors: none but internal ones.
    pub(in crate::compile) fn next(&mut self) -> Result<Option<BTreeMap<NodeId, Division>>> {
        while let Some(&(fraction, apart)) = TRIES.get(self.next) {
            self.next += 1;
            let mut choices = match apart {
                true => Choices::apart(self.graph),
                false => Choices::new(self.graph),
            };
            for node in self.graph.node_ids() {
                choices.cheapest(node, Limits { bytes: self.memory / fraction, ..self.limits })?;
                if choices.parts() > MOST_PARTS {
                    return Ok(None);
                }
            }
            let found = choices.finish();
            if found != self.last {
                self.last.clone_from(&found);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Why even splitting does not help, where that is sure: inputs and outputs are whole on a device, what a node reads
/// and makes however it is split must fit on one, and all parameters have to be somewhere. O(nodes + edges).
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
    let ports = graph.inputs().iter().map(|port| ("input", port));
    let ports = ports.chain(graph.outputs().iter().map(|port| ("output", port)));
    for (what, (name, value)) in ports {
        if held(*value) > largest {
            let (bytes, largest) = (Bytes(held(*value)), Bytes(largest));
            return Ok(Some(format!(
                "splitting operations does not help: {what} {name} takes {bytes} and lies on one device, \
                 the largest has {largest}"
            )));
        }
    }
    if let Some(line) = beyond_joined(graph, largest, exact)? {
        return Ok(Some(line));
    }
    for node in graph.node_ids().filter(|&node| !graph.node(node).op.is_leaf()) {
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
    for (name, value) in graph.outputs() {
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

/// The fewest bytes of parameters that any part of a node reads in the way to split it that reads fewest.
fn least_params(graph: &Graph, node: NodeId, exact: bool) -> Result<u64> {
    let operands = graph.node(node).operands.iter().copied().enumerate();
    let params: Vec<(usize, ValueId)> = operands.filter(|&(_, value)| is_param(graph, value)).collect();
    let read = |regions: Option<&[Option<Region>]>| {
        let of = |&(at, value): &(usize, ValueId)| {
            region_bytes(graph.ty(value), regions.and_then(|regions| regions[at]))
        };
        params.iter().map(of).try_fold(0u64, |sum, bytes| Ok(sum.saturating_add(bytes?)))
    };
    let mut least = read(None)?;
    if params.is_empty() {
        return Ok(least);
    }
    for split in splits(graph, node)?.into_iter().filter(|split| !(exact && is_inexact(split))) {
        // The shortest part that there can be.
        let shortest = split.least.max(split.unit).min(split.extent);
        let shortest = shortest.next_multiple_of(split.unit.max(1)).min(split.extent);
        least = least.min(read(Some(&part(graph, node, &split, 0, shortest)?.operands))?);
    }
    Ok(least)
}
