//! What inputs alone decide, with its first reader.
//!
//! Masks and rotary tables are read by every layer and move the same bytes wherever they are made. Made
//! beside a late layer, they are copied back: the first device then waits for a later one, and stages of a
//! pipeline for one another.

use super::Objective;
use super::context::{Context, Incumbents};
use super::pool::{self, Candidate, Pool};
use super::problem::{NONE, Problem};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// A table is made of at most this share of a network's parameters: of frequencies, of distances.
const SMALL: u64 = 1000;

/// Moves what inputs alone decide to the device of its first reader in every placement of a pool, where that
/// costs nothing: in bytes and their time on links where these are the objective, else in whatever the
/// objective compares. O(nodes + edges) for each placement.
pub(super) fn settle(context: &Context<'_, '_>, pool: &mut Pool) {
    let tables = ReaderTables::of(context);
    if tables.units.is_empty() {
        return;
    }
    let mut incumbents = Incumbents::new(context);
    for candidate in std::mem::take(&mut pool.found) {
        let moved = tables.with_first_readers(context.problem, &candidate.units).and_then(|units| {
            let moved = evaluated(&mut incumbents, units, &candidate);
            costs_no_more(context.problem.options.objective, &moved, &candidate).then_some(moved)
        });
        pool.add(&moved.unwrap_or(candidate));
    }
}

/// Units that follow from inputs and from small constants alone, with where they are read first.
struct ReaderTables {
    /// Ascending in the order of what they read.
    units: Vec<u32>,
    /// By unit above: the unit that reads it first.
    readers: Vec<Option<u32>>,
}

impl ReaderTables {
    fn of(context: &Context<'_, '_>) -> Self {
        let problem = context.problem;
        let graph = problem.graph;
        let bytes = (0..graph.param_count()).map(|at| graph.param_bytes(ParamIx(at as u32)).get());
        let all = bytes.fold(0, u64::saturating_add);
        let mut is_early = vec![true; problem.unit_count()];
        // In topological order: makers are decided before their readers.
        for &node in problem.order.iter().filter(|&&node| graph.role(node) == Role::Compute) {
            let unit = problem.unit_of[node.index()] as usize;
            is_early[unit] &= follows_from_inputs(graph, node, all / SMALL, |maker| {
                is_early[problem.unit_of[maker.index()] as usize]
            });
        }
        let mut position = vec![NONE; problem.unit_count()];
        let mut units = Vec::new();
        for &node in &context.order {
            let unit = problem.unit_of[node.index()];
            if unit != NONE && position[unit as usize] == NONE {
                position[unit as usize] = units.len() as u32;
                units.push(unit);
            }
        }
        let first_reader = |&unit: &u32| {
            let tensors = problem.unit(unit as usize).flat_map(|node| graph.outputs(node));
            tensors
                .flat_map(|tensor| graph.consumers(tensor))
                .map(|reader| problem.unit_of[reader.index()])
                .filter(|&reader| reader != NONE && reader != unit)
                .min_by_key(|&reader| position[reader as usize])
        };
        units.retain(|&unit| is_early[unit as usize] && problem.fixed(unit as usize).is_none());
        let readers = units.iter().map(first_reader).collect();
        Self { units, readers }
    }

    /// The placement with each of them on the device of its first reader, which may be another of them; none where they
    /// are there.
    fn with_first_readers(&self, problem: &Problem<'_>, units: &[DeviceId]) -> Option<Vec<DeviceId>> {
        let mut moved = units.to_vec();
        // From last to first: where the first reader is another table, that one has been moved already.
        for (&unit, reader) in self.units.iter().zip(&self.readers).rev() {
            let Some(reader) = *reader else { continue };
            let there = moved[reader as usize];
            if problem.allowed(unit as usize).contains(there) {
                moved[unit as usize] = there;
            }
        }
        (moved != units).then_some(moved)
    }
}

/// Whether a node reads nothing but inputs, what `is_early` and parameters of at most so many bytes each, and
/// keeps nothing from step to step.
fn follows_from_inputs(
    graph: &CostGraph,
    node: NodeIx,
    most: u64,
    is_early: impl Fn(NodeIx) -> bool,
) -> bool {
    let mut makers = graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
    graph.owned_bytes(node) == Bytes::ZERO
        && makers.all(|maker| match graph.role(maker) {
            Role::Input => true,
            Role::Compute => is_early(maker),
            Role::Param => graph.param(maker).is_some_and(|param| graph.param_bytes(param).get() <= most),
        })
}

/// A placement of these units, in the order in which `like` is launched.
fn evaluated(incumbents: &mut Incumbents<'_, '_>, units: Vec<DeviceId>, like: &Candidate) -> Candidate {
    let context = incumbents.context;
    match &like.launches {
        None => incumbents.evaluate(units, &context.order),
        Some(launches) => {
            let order = context.problem.with_loads(launches);
            Candidate { launches: Some(launches.clone()), ..incumbents.evaluate(units, &order) }
        }
    }
}

fn costs_no_more(objective: Objective, moved: &Candidate, than: &Candidate) -> bool {
    let compared = match objective {
        // Bytes, and their time on links: the latency is an estimate here, and comes of what is read too late.
        Objective::Transfer => 2,
        Objective::Latency | Objective::Throughput => 4,
    };
    let key = |candidate: &Candidate| pool::key(objective, &candidate.evaluation);
    moved.is_feasible() && key(moved)[..compared] <= key(than)[..compared]
}
