//! What the loads of a placement depend on, in flat arrays: times of units, nets with their times
//! at each rate, the bytes that stay, and those that are needed for a moment.
//!
//! A model is made of a problem, or of a finer model whose units were put together to clusters;
//! both have the same loads wherever clusters are placed whole.

use super::charges::Charges;
use super::peaks::Needs;
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::csr::Csr;
use crate::place::context::Context;
use crate::place::nets::NetKind;
use crate::place::orders;
use crate::place::problem::{Home, NONE, Problem};
use crate::units::Bytes;

/// Cells of the tables by net and device, or by net and rate, that a model may have.
const MOST_CELLS: usize = 1 << 26;

/// Time that no placement's load may reach, so that sums never overflow.
const MOST_TIME: u128 = 1 << 62;

/// Where a net's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The net's first unit makes the tensor.
    Unit,
    /// An input that is pinned to this device.
    Device(u32),
    /// An input that lives with the reader where most of its bytes are read.
    Floating,
    /// A parameter, held by each device that reads it.
    Resident,
    /// As [`Source::Resident`], and held on this device too.
    ResidentAt(u32),
}

impl Source {
    /// The device that is touched whatever is chosen.
    pub(super) fn device(self) -> Option<usize> {
        match self {
            Self::Device(id) | Self::ResidentAt(id) => Some(id as usize),
            Self::Unit | Self::Floating | Self::Resident => None,
        }
    }

    /// True where the net is a parameter.
    pub(super) fn is_resident(self) -> bool {
        matches!(self, Self::Resident | Self::ResidentAt(_))
    }
}

/// The model of a problem's loads.
#[derive(Debug)]
pub(super) struct Model<'c> {
    /// What copies load.
    pub(super) charges: &'c Charges,
    /// Units of each net, a making unit first.
    pub(super) nets: Csr,
    /// Nets of each unit, ascending.
    pub(super) of_unit: Csr,
    /// Where each net's bytes come from.
    pub(super) source: Vec<Source>,
    /// Bytes of each net.
    pub(super) bytes: Vec<u64>,
    /// By net and rate, the time of its bytes.
    net_time: Vec<u64>,
    /// Inputs of several tensors, whose home depends on all of them: ranges of nets, at the end.
    bundles: Vec<(u32, u32)>,
    /// By unit and column, the time; [`u64::MAX`] where it cannot run.
    unit_time: Vec<u64>,
    /// Bytes that stay with each unit.
    pub(super) resident: Vec<u64>,
    /// What each unit needs while it computes.
    pub(super) needs: Needs,
    /// The units in the order in which the forward pass reaches them.
    pub(super) line: Vec<u32>,
    /// Where each unit stands in `line`.
    pub(super) position: Vec<u32>,
    /// Devices that each unit may be on, as a position in `choices`.
    pub(super) choice: Vec<u32>,
    /// The distinct sets of devices.
    pub(super) choices: &'c Choices,
}

/// The distinct sets of devices that units may be on, and the devices' columns of times.
#[derive(Debug)]
pub(super) struct Choices {
    /// Column of unit times, by device.
    column: Vec<u32>,
    columns: usize,
    /// Devices of each set, ascending.
    pub(super) sets: Vec<Vec<u32>>,
    of_unit: Vec<u32>,
}

impl Choices {
    /// The sets of a problem. O(units x devices).
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let mut kinds: Vec<usize> = problem.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        let column = |kind| kinds.binary_search(kind).unwrap_or(0) as u32;
        let sets = problem.sets().iter().map(|set| set.iter().map(|id| id.0).collect()).collect();
        let of_unit = (0..problem.unit_count()).map(|unit| problem.set_of(unit) as u32).collect();
        Self { column: problem.kinds.iter().map(column).collect(), columns: kinds.len(), sets, of_unit }
    }
}

impl<'c> Model<'c> {
    /// The model of a problem; none where it is too large for tables or its times for sums.
    /// O((nodes + edges) log).
    pub(super) fn new(context: &Context<'_, '_>, charges: &'c Charges, choices: &'c Choices) -> Option<Self> {
        let problem = context.problem;
        let mut draft = Draft::new(charges, problem.unit_count());
        for tensor in problem.graph.tensors() {
            draft.tensor(problem, tensor);
        }
        for net in (0..context.nets.len()).filter(|&net| context.nets.kind[net] == NetKind::Param) {
            let home = context.nets.home[net];
            let source = if home == NONE { Source::Resident } else { Source::ResidentAt(home) };
            draft.units.extend(context.nets.units.row(net));
            let bytes = Bytes(context.nets.weight[net]);
            let times = if charges.with_params { draft.times(bytes) } else { Vec::new() };
            draft.push(source, bytes.get(), &times);
        }
        for node in problem.graph.nodes().filter(|&node| is_bundle(problem, node)) {
            draft.bundle(problem, node);
        }
        if draft.cells() > MOST_CELLS {
            return None;
        }
        let mut unit_time = vec![0; problem.unit_count() * choices.columns];
        for id in problem.topology.ids() {
            let column = choices.column[id.index()] as usize;
            for unit in 0..problem.unit_count() {
                unit_time[unit * choices.columns + column] = problem.unit_time(unit, id).unwrap_or(u64::MAX);
            }
        }
        let line = orders::units(problem, &context.order);
        let resident = context.nets.resident.clone();
        let held = Held { resident, needs: Needs::new(problem) };
        let model = draft.finish(choices, unit_time, held, choices.of_unit.clone(), line);
        (model.most_time() < MOST_TIME).then_some(model)
    }

    /// The model whose units are clusters of this one's: `of` gives each unit's cluster. All units
    /// of a cluster have the same choice. O(pins log pins).
    pub(super) fn coarsened(&self, of: &[u32], clusters: usize) -> Self {
        let columns = self.choices.columns;
        let mut draft = Draft::new(self.charges, clusters);
        let mut unit_time = vec![0u64; clusters * columns];
        let mut resident = vec![0u64; clusters];
        let mut choice = vec![0; clusters];
        for (unit, &cluster) in of.iter().enumerate() {
            let cluster = cluster as usize;
            for column in 0..columns {
                let time = &mut unit_time[cluster * columns + column];
                *time = time.saturating_add(self.unit_time[unit * columns + column]);
            }
            resident[cluster] = resident[cluster].saturating_add(self.resident[unit]);
            choice[cluster] = self.choice[unit];
        }
        for net in 0..self.net_count() {
            if let Some(&(first, _)) = self.bundle(net)
                && first as usize == net
            {
                draft.open_bundle();
            }
            draft.tick += 1;
            self.nets.row(net).iter().for_each(|&unit| draft.touch(of[unit as usize]));
            // A parameter that one cluster alone reads becomes part of the cluster's own bytes.
            if self.source[net] == Source::Resident
                && let [only] = draft.units[..]
            {
                resident[only as usize] = resident[only as usize].saturating_add(self.bytes[net]);
            }
            draft.push(self.source[net], self.bytes[net], self.net_times(net));
            if let Some(&(_, end)) = self.bundle(net)
                && end as usize == net + 1
            {
                draft.close_bundle();
            }
        }
        let mut line = Vec::with_capacity(clusters);
        let mut seen = vec![false; clusters];
        for &unit in &self.line {
            if !std::mem::replace(&mut seen[of[unit as usize] as usize], true) {
                line.push(of[unit as usize]);
            }
        }
        let held = Held { resident, needs: self.needs.coarsened(of, clusters) };
        draft.finish(self.choices, unit_time, held, choice, line)
    }

    /// Number of units.
    pub(super) fn unit_count(&self) -> usize {
        self.resident.len()
    }

    /// Number of nets.
    pub(super) fn net_count(&self) -> usize {
        self.source.len()
    }

    /// Time of a unit on a device that it may be on.
    pub(super) fn time(&self, unit: usize, device: usize) -> u64 {
        self.unit_time[unit * self.choices.columns + self.choices.column[device] as usize]
    }

    /// Least time of a unit on any device.
    pub(super) fn least_time(&self, unit: usize) -> u64 {
        let columns = self.choices.columns;
        self.unit_time[unit * columns..(unit + 1) * columns].iter().copied().min().unwrap_or(0)
    }

    /// Devices that a unit may be on.
    pub(super) fn allowed(&self, unit: usize) -> &[u32] {
        &self.choices.sets[self.choice[unit] as usize]
    }

    /// Time of a net's bytes at each rate.
    pub(super) fn net_times(&self, net: usize) -> &[u64] {
        let rates = self.charges.rates.len();
        &self.net_time[net * rates..(net + 1) * rates]
    }

    /// The nets whose common source is an input with several tensors, where `net` is one of them.
    pub(super) fn bundle(&self, net: usize) -> Option<&(u32, u32)> {
        let first = self.bundles.first()?.0 as usize;
        if net < first {
            return None;
        }
        let at = self.bundles.partition_point(|&(_, end)| end as usize <= net);
        self.bundles.get(at)
    }

    /// More than any load can be.
    fn most_time(&self) -> u128 {
        let finite = |&time: &u64| if time == u64::MAX { 0 } else { u128::from(time) };
        let units: u128 = self.unit_time.iter().map(finite).sum();
        let crossings = |net: usize| 4 * (self.nets.row(net).len() as u128 + 1);
        let slowest = |net: usize| self.net_times(net).iter().copied().max().map_or(0, u128::from);
        (0..self.net_count()).fold(units, |sum, net| sum.saturating_add(crossings(net) * slowest(net)))
    }
}

/// True for an input whose home depends on several tensors.
fn is_bundle(problem: &Problem<'_>, node: NodeIx) -> bool {
    let graph = problem.graph;
    graph.role(node) == Role::Input && graph.outputs(node).len() > 1 && !problem.homes.contains_key(&node)
}

/// What units hold.
struct Held {
    resident: Vec<u64>,
    needs: Needs,
}

/// A model's nets while they are collected.
struct Draft<'c> {
    charges: &'c Charges,
    unit_count: usize,
    stamp: Vec<u32>,
    tick: u32,
    /// Units of the net at hand.
    units: Vec<u32>,
    rows: Csr,
    source: Vec<Source>,
    bytes: Vec<u64>,
    time: Vec<u64>,
    bundles: Vec<(u32, u32)>,
    in_bundle: bool,
}

impl<'c> Draft<'c> {
    fn new(charges: &'c Charges, unit_count: usize) -> Self {
        Self {
            charges,
            unit_count,
            stamp: vec![0; unit_count],
            tick: 0,
            units: Vec::new(),
            rows: Csr::new(),
            source: Vec::new(),
            bytes: Vec::new(),
            time: Vec::new(),
            bundles: Vec::new(),
            in_bundle: false,
        }
    }

    fn cells(&self) -> usize {
        self.source.len().saturating_mul(self.charges.devices.max(self.charges.rates.len()))
    }

    fn touch(&mut self, unit: u32) {
        if unit != NONE && self.stamp[unit as usize] != self.tick {
            self.stamp[unit as usize] = self.tick;
            self.units.push(unit);
        }
    }

    /// The net of a tensor that crosses at the rates of the topology; none for parameters, which
    /// do not move in the step, and for inputs of several tensors.
    fn tensor(&mut self, problem: &Problem<'_>, tensor: TensorIx) {
        let Problem { graph, unit_of, homes, .. } = problem;
        let producer = graph.producer(tensor);
        if graph.role(producer) == Role::Param || is_bundle(problem, producer) {
            return;
        }
        let (mut owner, mut source) = (unit_of[producer.index()], Source::Unit);
        match homes.get(&producer) {
            Some(Home::Pinned(id)) => source = Source::Device(id.0),
            Some(Home::With(unit)) => owner = *unit,
            None if owner == NONE => source = Source::Floating,
            None => {}
        }
        self.tick += 1;
        self.touch(owner);
        self.add(graph, unit_of, tensor, source);
    }

    fn add(&mut self, graph: &CostGraph, unit_of: &[u32], tensor: TensorIx, source: Source) {
        for &reader in graph.consumers(tensor) {
            self.touch(unit_of[reader.index()]);
        }
        let bytes = graph.tensor_bytes(tensor);
        let times = self.times(bytes);
        self.push(source, bytes.get(), &times);
    }

    /// At each rate, the time that bytes take.
    fn times(&self, bytes: Bytes) -> Vec<u64> {
        self.charges.rates.iter().map(|rate| rate.time(bytes).get()).collect()
    }

    fn bundle(&mut self, problem: &Problem<'_>, node: NodeIx) {
        self.open_bundle();
        for tensor in problem.graph.outputs(node) {
            self.tick += 1;
            self.add(problem.graph, &problem.unit_of, tensor, Source::Floating);
        }
        self.close_bundle();
    }

    fn open_bundle(&mut self) {
        self.in_bundle = true;
        self.bundles.push((self.source.len() as u32, 0));
    }

    fn close_bundle(&mut self) {
        self.in_bundle = false;
        if let Some(bundle) = self.bundles.last_mut() {
            bundle.1 = self.source.len() as u32;
        }
    }

    /// Ends the net at hand, and keeps it where it can ever matter. Times that are not given are 0.
    fn push(&mut self, source: Source, bytes: u64, times: &[u64]) {
        let fixed = source.device().is_some();
        let crosses = self.in_bundle || self.units.len() + usize::from(fixed) > 1;
        if crosses && !self.units.is_empty() && bytes > 0 {
            // The maker stays first; the others are sorted, so that equal nets have equal rows.
            let maker = usize::from(source == Source::Unit);
            self.units[maker..].sort_unstable();
            self.units.iter().for_each(|&unit| self.rows.push(unit));
            self.rows.end_row();
            self.source.push(source);
            self.bytes.push(bytes);
            let rates = self.charges.rates.len();
            self.time.extend((0..rates).map(|rate| times.get(rate).copied().unwrap_or(0)));
        }
        self.units.clear();
    }

    /// Merges nets that are alike; those of bundles stay as they are.
    fn finish(
        self,
        choices: &'c Choices,
        unit_time: Vec<u64>,
        Held { resident, needs }: Held,
        choice: Vec<u32>,
        line: Vec<u32>,
    ) -> Model<'c> {
        let mut position = vec![0; line.len()];
        for (at, &unit) in line.iter().enumerate() {
            position[unit as usize] = at as u32;
        }
        let rates = self.charges.rates.len();
        let loose = self.bundles.first().map_or(self.source.len(), |bundle| bundle.0 as usize);
        let key = |net: u32| (self.rows.row(net as usize), self.source[net as usize]);
        let mut order: Vec<u32> = (0..loose as u32).collect();
        order.sort_unstable_by(|&a, &b| key(a).cmp(&key(b)));
        order.extend(loose as u32..self.source.len() as u32);
        let (mut nets, mut source, mut bytes) = (Csr::new(), Vec::new(), Vec::<u64>::new());
        let mut net_time: Vec<u64> = Vec::new();
        let mut last = None;
        for net in order {
            let times = &self.time[net as usize * rates..(net as usize + 1) * rates];
            if (net as usize) < loose && last.is_some_and(|last| key(last) == key(net)) {
                let at = source.len() - 1;
                bytes[at] = bytes[at].saturating_add(self.bytes[net as usize]);
                let sums = &mut net_time[at * rates..];
                sums.iter_mut().zip(times).for_each(|(sum, &time)| *sum = sum.saturating_add(time));
                continue;
            }
            self.rows.row(net as usize).iter().for_each(|&unit| nets.push(unit));
            nets.end_row();
            source.push(self.source[net as usize]);
            bytes.push(self.bytes[net as usize]);
            net_time.extend_from_slice(times);
            last = Some(net);
        }
        let merged = (self.source.len() - source.len()) as u32;
        let bundles = self.bundles.iter().map(|&(first, end)| (first - merged, end - merged)).collect();
        let of_unit = nets.transposed(self.unit_count);
        let charges = self.charges;
        Model {
            charges,
            nets,
            of_unit,
            source,
            bytes,
            net_time,
            bundles,
            unit_time,
            resident,
            needs,
            line,
            position,
            choice,
            choices,
        }
    }
}
