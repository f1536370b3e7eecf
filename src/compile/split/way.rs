//! One way to compute one node: what its parts read and make, and what they take.

use super::held::{Held, Kernels};
use super::layout::{region_bytes, share};
use super::search::Work;
use super::team::{Team, Traffic};
use crate::cost::{Rates, join_time};
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::kernel::split::{Made, Part, Region, Split, part};
use crate::pass::{Division, scattered};
use crate::units::{Bytes, Nanos};

/// One way to compute one node, or any other of its kind.
pub(super) struct Way {
    /// The loop and where parts begin along it; none: all on the first device.
    divided: Option<(Split, Vec<u64>)>,
    /// By operand: by part what it reads; nothing where each reads all.
    pub(super) reads: Vec<Option<Vec<Region>>>,
    /// By result.
    pub(super) makes: Vec<Held>,
    /// What the slowest part takes, and what folding partial results takes.
    pub(super) time: Nanos,
    /// By device: bytes of parameters.
    pub(super) params: Vec<u64>,
}

impl Way {
    /// All of a node on the first device.
    pub(super) fn whole(work: &Work<'_>, team: &Team, node: NodeId) -> Result<Self> {
        let graph = work.graph;
        Ok(Self {
            divided: None,
            reads: vec![None; graph.node(node).operands.len()],
            makes: vec![Held::whole(); graph.results(node).count()],
            time: work.works[node.index()].whole_time(&team.rates[0]),
            params: vec![whole_params(graph, node)?],
        })
    }

    /// A loop divided at these bounds, one part for each device of the team.
    pub(super) fn divided(
        work: &Work<'_>,
        team: &Team,
        node: NodeId,
        split: &Split,
        bounds: Vec<u64>,
    ) -> Result<Self> {
        let operands = work.graph.node(node).operands.len();
        let mut way = Self {
            divided: None,
            reads: vec![Some(Vec::new()); operands],
            makes: Vec::new(),
            time: Nanos::ZERO,
            params: vec![0; bounds.len() - 1],
        };
        for (number, pair) in bounds.windows(2).enumerate() {
            let part = part(work.graph, node, split, pair[0], pair[1])?;
            let bytes = way.read_by(work, node, number, &part)?;
            let done = pair[1] - pair[0];
            let time = work.works[node.index()].time(done, split.extent, Bytes(bytes), &team.rates[number]);
            way.time = way.time.max(time);
        }
        for (at, value) in work.graph.results(node).enumerate() {
            way.make(work.graph, team, value, split, (at, &bounds))?;
        }
        way.divided = Some((split.clone(), bounds));
        Ok(way)
    }

    /// Enters what one part reads; the bytes that it reads and writes.
    fn read_by(&mut self, work: &Work<'_>, node: NodeId, number: usize, part: &Part) -> Result<u64> {
        let graph = work.graph;
        let mut bytes = 0u64;
        for (at, &value) in graph.node(node).operands.iter().enumerate() {
            let ty = graph.ty(value);
            let asked = region_bytes(ty, part.operands[at])?;
            let read = share(work.works[node.index()].reads[at].0, asked, region_bytes(ty, None)?);
            bytes = bytes.saturating_add(read);
            if is_param(graph, value) {
                self.params[number] = self.params[number].saturating_add(asked);
            }
            self.reads[at] = self.reads[at].take().zip(part.operands[at]).map(|(mut regions, region)| {
                regions.push(region);
                regions
            });
        }
        let writes = work.works[node.index()].writes.iter();
        for ((value, &region), _) in
            graph.results(node).zip(&part.results).zip(writes).filter(|(_, writes)| **writes)
        {
            bytes = bytes.saturating_add(region_bytes(graph.ty(value), region)?);
        }
        Ok(bytes)
    }

    /// Enters how result `at` is held, where the loop is divided at these bounds.
    fn make(
        &mut self,
        graph: &Graph,
        team: &Team,
        value: ValueId,
        split: &Split,
        (at, bounds): (usize, &[u64]),
    ) -> Result<()> {
        let ty = graph.ty(value);
        let parts = bounds.len() as u64 - 1;
        self.makes.push(match split.made[at] {
            Made::Slice(axis) => {
                let size = ty.shape.sizes()[axis as usize].known().unwrap_or(0).unsigned_abs();
                let scale = |&bound: &u64| share(size, bound, split.extent);
                Held::slices(axis, bounds.iter().map(scale).collect())
            }
            Made::Partial(_) => {
                let all = region_bytes(ty, None)?;
                let (held, received) = match scattered(ty, parts) {
                    Some((axis, bounds)) => (Held::slices(axis, bounds), all / parts * (parts - 1)),
                    None => (Held::whole(), all.saturating_mul(parts - 1)),
                };
                let moved = all.saturating_mul(parts - 1);
                self.time += team.copy_time(Traffic { most: received, all: moved });
                let cuts = if held == Held::whole() { 0 } else { parts - 1 };
                let cut = all / parts * cuts;
                self.time += kernel_time(team, Kernels { cuts, cut, joined: received.max(all / parts) });
                held
            }
        });
        Ok(())
    }

    /// How a node is divided so by the devices of a team; none where it stays whole.
    pub(super) fn division(&self, team: &Team) -> Option<Division> {
        let (split, bounds) = self.divided.as_ref()?;
        let devices = team.names.iter().cloned().map(Some).collect();
        Some(Division { split: split.clone(), bounds: bounds.clone(), devices, apart: false })
    }

    /// Whether the node is divided.
    pub(super) fn is_divided(&self) -> bool {
        self.divided.is_some()
    }
}

/// Time of kernels that cut slices and put them together, on the slowest device.
pub(super) fn kernel_time(team: &Team, kernels: Kernels) -> Nanos {
    let Kernels { cuts, cut, joined } = kernels;
    let on = |rates: &Rates| {
        // Each kernel reads and writes its bytes.
        let pass = |bytes: u64| join_time(Bytes(bytes.saturating_mul(2)), rates);
        let cutting = match cuts {
            0 => Nanos::ZERO,
            _ => pass(cut) + Nanos(rates.launch.0.saturating_mul(cuts - 1)),
        };
        cutting + if joined == 0 { Nanos::ZERO } else { pass(joined) }
    };
    team.rates.iter().map(on).max().unwrap_or_default()
}

/// Bytes of the parameters that a node reads.
pub(super) fn whole_params(graph: &Graph, node: NodeId) -> Result<u64> {
    let params = graph.node(node).operands.iter().filter(|&&value| is_param(graph, value));
    params.map(|&value| region_bytes(graph.ty(value), None)).sum()
}

fn is_param(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.maker(value).op, Op::Param(_))
}
