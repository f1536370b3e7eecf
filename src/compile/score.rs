//! A placement that was made elsewhere, as a plan: read by name, checked, and timed by the same
//! simulator as our own.

use std::collections::{BTreeMap, HashMap};

use super::{Compiled, Network, Options, grouped, labels, prepare, profile, simplified, split};
use crate::cost::{self, Lowered, Origin};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Op, Source, SourceId};
use crate::load::Model;
use crate::place::{self, Completed};
use crate::plan::{self, Foreign, Lookup, Plan, listed};
use crate::strategy::{self, Problem, Scored};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// Names in an error that are listed one by one.
const LISTED: usize = 8;

/// A placement that was made elsewhere, scored.
#[derive(Clone, Debug)]
pub struct ScoredPlan {
    /// The plan that it makes. It is checked and sound where nothing is broken.
    pub compiled: Compiled,
    /// Devices that it needs more of than there is, and by how much.
    pub over: Vec<(DeviceId, Bytes)>,
    /// All that it breaks, one line each: caps, pins, colocation. Empty for a sound plan.
    pub violations: Vec<String>,
}

impl ScoredPlan {
    /// Error: the placement of `file` breaks something. [`Error::Overfull`] where it does not fit,
    /// else [`Error::Check`]; the details list each violation.
    pub fn verdict(&self, file: &str) -> Result<()> {
        let report =
            |what: &str| Report::new(file, what).details(listed(self.violations.clone(), "violations"));
        match (self.violations.is_empty(), self.over.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::Check(report("the placement breaks what was asked for"))),
            (false, false) => Err(Error::Overfull(report("the placement does not fit under the caps"))),
        }
    }
}

/// Scores a placement on a model. Only groups that it splits are unlike those that planning
/// fuses. Near-linear in nodes and edges.
///
/// Errors: names that the model does not have, devices that are not there or cannot run what is
/// placed on them, nodes without a device (all of them at once); those of lowering the model.
pub fn score(model: Model, topology: &Topology, options: &Options, foreign: &Foreign) -> Result<ScoredPlan> {
    if options.pipeline.is_some() {
        return Err(Error::usage("--score", "a placement is scored without microbatches")
            .with_help("leave out --score or --microbatches"));
    }
    match model {
        Model::CostGraph { graph, .. } => score_cost_graph(graph, topology, options, foreign),
        Model::Graph(graph) => score_network(graph, topology, options, foreign),
    }
}

fn score_cost_graph(
    graph: CostGraph,
    topology: &Topology,
    options: &Options,
    foreign: &Foreign,
) -> Result<ScoredPlan> {
    let mut lookup = Lookup::new(foreign, topology);
    let name = |node: NodeIx| graph.node_name(node);
    let devices: Vec<_> = graph.nodes().map(|node| lookup.find(name(node))).collect();
    let mut completed = place::complete(&graph, topology, &options.place, &devices)?;
    readable(&graph, topology, &lookup, &completed, name)?;
    completed.placement.launches = launches(&graph, foreign, |node| vec![name(node)]);
    let scored = strategy::score(Problem::new(&graph, topology, &options.place), &completed.placement)?;
    let mut meta = options.meta(&graph.name, graph.node_count(), &BTreeMap::new());
    meta.options.other.push(mark());
    let plan = plan::build(&graph, topology, &completed.placement, &scored.schedule, None, meta)?;
    finish(scored, completed, topology, plan, graph, None)
}

fn score_network(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    foreign: &Foreign,
) -> Result<ScoredPlan> {
    let options = &options.clone().on(topology);
    let mut lookup = Lookup::new(foreign, topology);
    if let Some((pattern, device)) = split::pins_of_parts(&graph, &options.place.pins).first() {
        let message = "a foreign placement is scored on whole operations, which have no parts";
        return Err(Error::usage(format!("--pin {pattern}={device}"), message));
    }
    let network = match foreign.splits() {
        [] => whole(graph, options, &mut lookup)?,
        _ => prepare(graph, &options.divided_as(foreign))?,
    };
    for param in network.graph.params() {
        // Parameters float: to be known is all that is asked of their names.
        lookup.find(&param.name);
    }
    let wanted: Vec<_> = network.graph.sources().iter().map(|source| lookup.find(&source.name)).collect();
    let lowered = cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?;
    let place = options.place.without_patterns();
    let source = |node: NodeIx| source_of(&network, lowered.origins[node.index()]);
    let placed = |node| source(node).and_then(|source| wanted[source.index()]);
    let mut devices: Vec<_> = lowered.graph.nodes().map(placed).collect();
    let name = |node| match source(node) {
        Some(source) => network.graph.source(source).name.as_str(),
        None => lowered.graph.node_name(node),
    };
    let is_weight = |node: NodeIx| match lowered.origins[node.index()] {
        Origin::Data(value) => {
            matches!(network.graph.maker(value).op, Op::Param(_)) && network.graph.ty(value).dtype.is_float()
        }
        Origin::Input(_) | Origin::Group(_) => false,
    };
    put_beside_readers(&lowered.graph, &mut devices, is_weight, |node| !lookup.covers(name(node)));
    lookup.ignore_modules_of(&network.graph.rules().arrays.unread);
    let mut completed = place::complete(&lowered.graph, topology, &place, &devices)?;
    readable(&lowered.graph, topology, &lookup, &completed, name)?;
    completed.placement.launches =
        launches(&lowered.graph, foreign, |node| sources(&network, &lowered, node));
    let scored = strategy::score(Problem::new(&lowered.graph, topology, &place), &completed.placement)?;
    let labels = labels::labels(&network, &lowered, topology, &completed.placement);
    let meta = options.network_meta(&network);
    let (placement, labels) = (&completed.placement, Some(&labels));
    let mut plan = plan::build(&lowered.graph, topology, placement, &scored.schedule, labels, meta)?;
    plan.profile = labels.and_then(|labels| profile(options, topology, labels));
    plan.options.other.push(mark());
    finish(scored, completed, topology, plan, lowered.graph, Some(network))
}

/// A network that nothing is split of, in which nothing that is placed apart shares a kernel.
fn whole(graph: Graph, options: &Options, lookup: &mut Lookup<'_>) -> Result<Network> {
    let device = |source: &Source| lookup.find(&source.name).map_or(u32::MAX, |id| id.0);
    let places: Vec<u32> = graph.sources().iter().map(device).collect();
    let (graph, assumed, dims) = simplified(graph, options, &places)?;
    let grouping = grouped(&graph, &places)?;
    Ok(Network::whole(graph, grouping, assumed, dims))
}

/// Puts what is computed of no weight, as masks and tables of positions are, and what nobody speaks of, where it is first
/// read: lists of modules leave it out. O(nodes + edges).
fn put_beside_readers(
    graph: &CostGraph,
    devices: &mut [Option<DeviceId>],
    is_weight: impl Fn(NodeIx) -> bool,
    is_unspoken: impl Fn(NodeIx) -> bool,
) {
    let mut is_of_weights = vec![false; graph.node_count()];
    for node in graph.nodes() {
        let mut makers = graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
        is_of_weights[node.index()] = is_weight(node) || makers.any(|maker| is_of_weights[maker.index()]);
    }
    for node in graph.nodes().rev() {
        let is_placed = devices[node.index()].is_some() || is_of_weights[node.index()];
        if is_placed || graph.role(node) != Role::Compute || !is_unspoken(node) {
            continue;
        }
        let readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
        devices[node.index()] = readers.filter_map(|reader| devices[reader.index()]).next();
    }
}

/// Stands among the options of a plan whose placement was made elsewhere: no kernel of it spans
/// what that placement holds apart.
fn mark() -> (String, String) {
    ("placement".to_owned(), "given".to_owned())
}

/// By name, the devices of a plan whose placement was made elsewhere; none for others.
pub(super) fn places_of(plan: &Plan) -> Option<BTreeMap<String, String>> {
    plan.options.other.contains(&mark()).then(|| plan.placement.iter().cloned().collect())
}

/// By source: a number for the device that it is given.
pub(super) fn numbered_places(graph: &Graph, devices: &BTreeMap<String, String>) -> Vec<u32> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut places = Vec::with_capacity(graph.sources().len());
    for source in graph.sources() {
        places.push(devices.get(&source.name).map_or(u32::MAX, |device| {
            let next = numbers.len() as u32;
            *numbers.entry(device).or_insert(next)
        }));
    }
    places
}

/// The source that decides where a node of the cost graph is. Parameters float.
pub(super) fn source_of(network: &Network, origin: Origin) -> Option<SourceId> {
    let graph = &network.graph;
    match origin {
        Origin::Data(_) => None,
        Origin::Input(value) => Some(graph.maker(value).source),
        Origin::Group(group) => {
            Some(graph.node(*network.grouping.groups[group.index()].nodes.last()?).source)
        }
    }
}

/// Names of the sources that a node of the cost graph computes.
pub(super) fn sources<'n>(network: &'n Network, lowered: &Lowered, node: NodeIx) -> Vec<&'n str> {
    let Origin::Group(group) = lowered.origins[node.index()] else { return Vec::new() };
    let nodes = &network.grouping.groups[group.index()].nodes;
    let mut names: Vec<&str> = Vec::new();
    for &node in nodes {
        let name = network.graph.source(network.graph.node(node).source).name.as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The plan's launches as nodes of the cost graph; none where they are not the same, each once.
/// Launches of equal names are told apart by their groups' order.
pub(super) fn launches<'g>(
    graph: &CostGraph,
    foreign: &Foreign,
    names: impl Fn(NodeIx) -> Vec<&'g str>,
) -> Option<Vec<NodeIx>> {
    let computes: Vec<NodeIx> = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).collect();
    if foreign.launches().len() != computes.len() {
        return None;
    }
    let mut by_name: HashMap<Vec<&str>, Vec<NodeIx>> = HashMap::with_capacity(computes.len());
    // Reversed, so that the first of equal names comes first.
    for &node in computes.iter().rev() {
        by_name.entry(names(node)).or_default().push(node);
    }
    let mut order = Vec::with_capacity(computes.len());
    for launch in foreign.launches() {
        let key: Vec<&str> = launch.nodes.iter().map(String::as_str).collect();
        order.push(by_name.get_mut(&key)?.pop()?);
    }
    is_launch_order(graph, &order).then_some(order)
}

/// True where an order holds each node that computes once, after those that it reads from.
pub(super) fn is_launch_order(graph: &CostGraph, order: &[NodeIx]) -> bool {
    let computes = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).count();
    let mut done = vec![false; graph.node_count()];
    order.len() == computes
        && order.iter().all(|&node| {
            if graph.role(node) != Role::Compute || std::mem::replace(&mut done[node.index()], true) {
                return false;
            }
            let producer = |tensor| graph.producer(tensor);
            graph
                .inputs(node)
                .iter()
                .map(|&tensor| producer(tensor))
                .all(|producer| graph.role(producer) != Role::Compute || done[producer.index()])
        })
}

/// Error: the file is no placement of this graph on these devices, for all these reasons.
fn readable<'n>(
    graph: &CostGraph,
    topology: &Topology,
    lookup: &Lookup<'_>,
    completed: &Completed,
    name: impl Fn(NodeIx) -> &'n str,
) -> Result<()> {
    let faults = lookup.faults();
    // A node whose device is not there is among the faults already.
    let missing: Vec<NodeIx> =
        completed.missing.iter().copied().filter(|&node| !lookup.covers(name(node))).collect();
    let counts = [
        (faults.len(), "names or devices that are not there"),
        (missing.len(), "nodes without a device"),
        (completed.unable.len(), "nodes on devices that cannot run them"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{what}: {number}"))
        .collect();
    if counts.is_empty() {
        return Ok(());
    }
    let mut details = some(faults.into_iter());
    details.extend(some(missing.iter().map(|&node| format!("{} has no device", name(node)))));
    details.extend(some(completed.unable.iter().map(|&node| {
        let device = &topology.device(completed.placement.device[node.index()]).name;
        format!("{} (op {}) cannot run on {device}", name(node), graph.op(node))
    })));
    let report = Report::new("", format!("no placement of this model ({})", counts.join(", ")));
    Err(Error::Format(report.help("a plan's `placement` shows the names").details(details)))
}

/// The first few lines, and how many more there are.
fn some(lines: impl ExactSizeIterator<Item = String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LISTED);
    let mut lines: Vec<String> = lines.take(LISTED).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Checks the plan where it breaks nothing, and says what it breaks.
fn finish(
    scored: Scored,
    completed: Completed,
    topology: &Topology,
    plan: Plan,
    cost_graph: CostGraph,
    network: Option<Network>,
) -> Result<ScoredPlan> {
    let over = |&(id, excess): &(DeviceId, Bytes)| {
        let (device, usage) = (topology.device(id), &scored.schedule.devices[id.index()]);
        let kept = match plan.devices[id.index()].reserve {
            Bytes::ZERO => String::new(),
            kept => format!(", of which --reserve keeps {kept} free"),
        };
        format!(
            "{} needs {} ({} bytes) and has {}{kept}: {excess} over",
            device.name, usage.arena, usage.arena.0, device.memory
        )
    };
    let violations: Vec<String> = scored.over.iter().map(over).chain(completed.broken).collect();
    if scored.over.is_empty() {
        plan::check(&plan)?;
    }
    let topology = topology.clone();
    let compiled = Compiled {
        pipeline: None,
        plan,
        network,
        cost_graph,
        topology,
        placement: completed.placement,
        schedule: scored.schedule,
    };
    Ok(ScoredPlan { compiled, over: scored.over, violations })
}
