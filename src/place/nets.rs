//! The hypergraph of units: one net for each tensor and each parameter that several units touch.
//!
//! With λ the number of devices that a net touches, its bytes move λ - 1 times: the objective
//! `transfer` is the connectivity metric (km1) of this hypergraph. A net may also touch devices
//! that no choice can change: homes that are pinned.

use super::evaluate::is_resident_at_home;
use super::problem::{Home, NONE, Problem};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::csr::Csr;

/// What a net stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetKind {
    /// A tensor that dies once it is read.
    Tensor,
    /// A tensor that the forward pass keeps for the backward pass of the same units.
    Stash,
    /// A parameter: loaded once on each device, not moved in the step.
    Param,
}

/// The nets, and for each unit the bytes that are its own.
#[derive(Debug)]
pub(super) struct Nets {
    /// Units of each net; for a tensor made by a unit, that one first.
    pub(super) units: Csr,
    /// Nets of each unit.
    pub(super) of_unit: Csr,
    /// Bytes for each device beyond the first.
    pub(super) weight: Vec<u64>,
    /// What each net stands for.
    pub(super) kind: Vec<NetKind>,
    /// True where the first unit makes the tensor.
    pub(super) made: Vec<bool>,
    /// Device that a net touches whatever is chosen; [`NONE`] where there is none.
    pub(super) home: Vec<u32>,
    /// Bytes that stay on a unit's device through the step: its own parameters and state, the
    /// results it makes, what it keeps for its own backward pass.
    pub(super) resident: Vec<u64>,
    /// Bytes needed only while a unit runs, what crosses between units left out.
    pub(super) transient: Vec<u64>,
}

impl Nets {
    /// Builds the nets of a problem. O(nodes + edges).
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let graph = problem.graph;
        let limit = weight_limit(graph);
        let mut builder = NetBuilder {
            problem,
            limit,
            stamp: vec![NONE; problem.unit_count()],
            tick: 0,
            nets: Self {
                units: Csr::new(),
                of_unit: Csr::new(),
                weight: Vec::new(),
                kind: Vec::new(),
                made: Vec::new(),
                home: Vec::new(),
                resident: vec![0; problem.unit_count()],
                transient: (0..problem.unit_count()).map(|unit| transient(problem, unit, limit)).collect(),
            },
        };
        for tensor in graph.tensors() {
            builder.tensor(tensor);
        }
        for param in 0..graph.param_count() as u32 {
            builder.param(ParamIx(param));
        }
        for node in graph.nodes() {
            builder.owned(node, graph.owned_bytes(node).get());
        }
        let mut nets = builder.nets;
        nets.of_unit = nets.units.transposed(problem.unit_count());
        nets
    }

    /// Number of nets.
    pub(super) fn len(&self) -> usize {
        self.weight.len()
    }
}

/// The largest weight for which sums over all edges stay far below 2^64: sizes from a file may be
/// anything, and the tables of the search need not be exact beyond that.
pub(super) fn weight_limit(graph: &CostGraph) -> u64 {
    (1 << 60) / (graph.edge_count() as u64 + graph.tensor_count() as u64 + graph.node_count() as u64 + 1)
}

/// The most that one node of a unit needs while it runs: workspace and, where the unit has more
/// nodes than one, outputs.
fn transient(problem: &Problem<'_>, unit: usize, limit: u64) -> u64 {
    let graph = problem.graph;
    let inner = problem.units.row(unit).len() > 1;
    let outputs =
        |node| graph.outputs(node).map(|tensor| graph.tensor_bytes(tensor).get().min(limit)).sum::<u64>();
    let need = |node| graph.workspace_bytes(node).get().min(limit) + if inner { outputs(node) } else { 0 };
    problem.unit(unit).map(need).max().unwrap_or(0)
}

struct NetBuilder<'b, 'a> {
    problem: &'b Problem<'a>,
    limit: u64,
    stamp: Vec<u32>,
    tick: u32,
    nets: Nets,
}

impl NetBuilder<'_, '_> {
    fn touch(&mut self, unit: u32) {
        if unit != NONE && self.stamp[unit as usize] != self.tick {
            self.stamp[unit as usize] = self.tick;
            self.nets.units.push(unit);
        }
    }

    fn tensor(&mut self, tensor: TensorIx) {
        let Problem { graph, unit_of, homes, .. } = self.problem;
        let producer = graph.producer(tensor);
        if graph.role(producer) == Role::Param {
            return;
        }
        self.tick += 1;
        let bytes = graph.tensor_bytes(tensor).get().min(self.limit);
        let (mut owner, mut home) = (unit_of[producer.index()], NONE);
        match homes.get(&producer) {
            Some(Home::Pinned(id)) => home = id.0,
            Some(Home::With(unit)) => owner = *unit,
            None => {}
        }
        self.touch(owner);
        let mut kept = false;
        for &reader in graph.consumers(tensor) {
            self.touch(unit_of[reader.index()]);
            kept |= graph.is_backward(reader);
        }
        // What the forward pass keeps for the backward pass is alive when memory is tightest: it counts as
        // resident.
        let kept = kept && !graph.is_backward(producer);
        let kind = if kept { NetKind::Stash } else { NetKind::Tensor };
        if owner != NONE && (kept || graph.is_result(tensor)) {
            self.keep(owner, bytes);
        }
        self.end(bytes, kind, owner != NONE, home);
    }

    fn param(&mut self, param: ParamIx) {
        let Problem { graph, unit_of, homes, tied, .. } = self.problem;
        self.tick += 1;
        let bytes = graph.param_bytes(param).get().min(self.limit);
        let mut home = NONE;
        for &node in tied.row(param.index()) {
            // Only a parameter that is a result must be at its own home; others are wherever they are read.
            let resident = is_resident_at_home(graph, NodeIx(node));
            match homes.get(&NodeIx(node)).filter(|_| resident) {
                Some(Home::Pinned(id)) => home = id.0,
                Some(Home::With(unit)) => self.touch(*unit),
                None => {}
            }
            for tensor in graph.outputs(NodeIx(node)) {
                for &reader in graph.consumers(tensor) {
                    self.touch(unit_of[reader.index()]);
                }
            }
        }
        // Read by one unit, its bytes are the unit's own; read by several, it is a net.
        if let [only] = *self.nets.units.open() {
            self.keep(only, bytes);
        }
        self.end(bytes, NetKind::Param, false, home);
    }

    fn owned(&mut self, node: NodeIx, bytes: u64) {
        let unit = self.problem.unit_of[node.index()];
        if unit != NONE {
            self.keep(unit, bytes.min(self.limit));
        }
    }

    fn keep(&mut self, unit: u32, bytes: u64) {
        let resident = &mut self.nets.resident[unit as usize];
        *resident = resident.saturating_add(bytes);
    }

    /// Keeps the net where it can ever touch two devices.
    fn end(&mut self, bytes: u64, kind: NetKind, made: bool, home: u32) {
        let touched = self.nets.units.open().len() + usize::from(home != NONE);
        if touched < 2 || self.nets.units.open().is_empty() || bytes == 0 {
            self.nets.units.clear_open();
            return;
        }
        self.nets.units.end_row();
        self.nets.weight.push(bytes);
        self.nets.kind.push(kind);
        self.nets.made.push(made);
        self.nets.home.push(home);
    }
}
