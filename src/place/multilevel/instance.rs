//! A problem as a hypergraph: units are vertices, devices are blocks.

use super::hypergraph::{Blocks, Hypergraph};
use crate::costgraph::NodeIx;
use crate::csr::Csr;
use crate::place::context::Context;
use crate::place::nets::NetKind;
use crate::place::orders::OrderKind;
use crate::place::problem::NONE;
use crate::topology::DeviceId;

/// The hypergraph of a problem's units, with one more vertex for each device that a pinned home
/// ties nets to.
pub(super) struct Instance<'c, 'a> {
    context: &'c Context<'c, 'a>,
    /// The hypergraph; units come first.
    pub(super) graph: Hypergraph,
    /// Kind of device of each column of times.
    columns: Vec<usize>,
    /// Device of each vertex after the units.
    anchors: Vec<DeviceId>,
}

impl<'c, 'a> Instance<'c, 'a> {
    /// Builds the hypergraph. O(nodes + pins + units x kinds).
    pub(super) fn new(context: &'c Context<'c, 'a>) -> Self {
        let (problem, nets) = (context.problem, context.nets);
        let mut columns: Vec<usize> = problem.kinds.clone();
        columns.sort_unstable();
        columns.dedup();
        let mut anchors: Vec<u32> = nets.home.iter().copied().filter(|&home| home != NONE).collect();
        anchors.sort_unstable();
        anchors.dedup();
        let vertices = problem.unit_count() + anchors.len();
        let sets = problem.sets().len();
        let mut graph = Hypergraph {
            nets: pins(context, &anchors),
            weight: nets.weight.clone(),
            kinds: columns.len(),
            bytes: nets.resident.clone(),
            class: (0..problem.unit_count()).map(|unit| problem.set_of(unit) as u32).collect(),
            ..Hypergraph::default()
        };
        graph.of_vertex = graph.nets.transposed(vertices);
        let resident = |net: usize| if nets.kind[net] == NetKind::Param { nets.weight[net] } else { 0 };
        graph.resident = (0..nets.len()).map(resident).collect();
        graph.time = times(context, &columns);
        graph.time.resize(vertices * columns.len(), 0);
        graph.bytes.resize(vertices, 0);
        // Each anchor is a class of its own, which only its device takes.
        graph.class.extend((0..anchors.len()).map(|number| (sets + number) as u32));
        let orders = [&context.order, &OrderKind::Source.nodes(problem), &OrderKind::Queue.nodes(problem)];
        graph.positions = orders.map(|order| positions(context, order, vertices)).to_vec();
        Self { context, graph, columns, anchors: anchors.into_iter().map(DeviceId).collect() }
    }

    /// Blocks for some devices with `capacity` bytes each, by device.
    pub(super) fn blocks(&self, devices: &[DeviceId], capacity: &[u64]) -> Blocks {
        let problem = self.context.problem;
        let column = |id: &DeviceId| self.columns.binary_search(&problem.kinds[id.index()]).unwrap_or(0);
        let sets = problem.sets().iter();
        let may = sets.flat_map(|set| devices.iter().map(|&id| set.contains(id)));
        let anchors = self.anchors.iter().flat_map(|home| devices.iter().map(move |id| id == home));
        let least = |id: &DeviceId| u32::from(problem.count.is_some() && problem.devices.contains(id));
        let mut blocks = Blocks {
            kind: devices.iter().map(column).collect(),
            limit: devices.iter().map(|id| self.context.limits[id.index()]).collect(),
            capacity: devices.iter().map(|id| capacity[id.index()]).collect(),
            may: may.chain(anchors).collect(),
            least: devices.iter().map(least).collect(),
            bytes_bind: true,
            ordered: false,
        };
        let all = self.graph.total_bytes();
        blocks.bytes_bind = blocks.capacity.iter().any(|&capacity| capacity < all);
        blocks
    }

    /// The block of each vertex; none where a unit is on a device without a block.
    pub(super) fn to_blocks(&self, units: &[DeviceId], devices: &[DeviceId]) -> Option<Vec<u32>> {
        let block = |id: &DeviceId| devices.iter().position(|other| other == id).map(|at| at as u32);
        units.iter().chain(&self.anchors).map(block).collect()
    }

    /// The device of each unit.
    pub(super) fn to_devices(&self, block: &[u32], devices: &[DeviceId]) -> Vec<DeviceId> {
        self.context.filled(|unit| devices[block[unit] as usize])
    }
}

/// Vertices of each net, with those that stand for pinned homes.
fn pins(context: &Context<'_, '_>, anchors: &[u32]) -> Csr {
    let nets = context.nets;
    let mut rows = Csr::new();
    let mut pins = Vec::new();
    for net in 0..nets.len() {
        pins.clear();
        pins.extend_from_slice(nets.units.row(net));
        pins.sort_unstable();
        if let Ok(anchor) = anchors.binary_search(&nets.home[net]) {
            pins.push((context.problem.unit_count() + anchor) as u32);
        }
        pins.iter().for_each(|&pin| rows.push(pin));
        rows.end_row();
    }
    rows
}

/// Time of each unit on each kind of device.
fn times(context: &Context<'_, '_>, columns: &[usize]) -> Vec<u64> {
    let problem = context.problem;
    let of_kind = |kind: &usize| problem.kinds.iter().position(|of| of == kind).unwrap_or(0);
    let devices: Vec<DeviceId> = columns.iter().map(|kind| DeviceId(of_kind(kind) as u32)).collect();
    let time = |unit: usize, id: DeviceId| problem.unit_time(unit, id).unwrap_or(0);
    let of_unit = |unit: usize| devices.iter().map(move |&id| time(unit, id));
    (0..problem.unit_count()).flat_map(of_unit).collect()
}

/// Position of each unit in an order: that of its first node.
fn positions(context: &Context<'_, '_>, order: &[NodeIx], vertices: usize) -> Vec<u32> {
    let mut position = vec![NONE; vertices];
    for (at, node) in order.iter().enumerate() {
        let unit = context.problem.unit_of[node.index()];
        if unit != NONE && position[unit as usize] == NONE {
            position[unit as usize] = at as u32;
        }
    }
    position
}
