//! Random problems for the planner, each a pure function of a seed, and what must hold of its
//! answer: shapes of graphs that real networks do not have, sizes that overflow, devices that are
//! unlike one another, options that contradict one another.
#![allow(dead_code, reason = "each user takes its own part")]

use partition::Error;
use partition::unstable::compile::plan_with;
use partition::unstable::control::Control;
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::place::{DeviceUse, Effort, Objective, Options, Placement};
use partition::unstable::plan::{Plan, check, check_costgraph};
use partition::unstable::schedule::{self, schedule};
use partition::unstable::topology::{
    Communication, Contention, Description, DeviceGroup, DeviceId, LinkGroup, Role, Topology,
};
use partition::unstable::units::{Bytes, Flops, Nanos, Rate};

use crate::random_costgraph::Rng;

/// What the edges look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Empty,
    Single,
    Unconnected,
    Components,
    Chain,
    Fan,
    Gather,
    Clique,
    Layers,
    Training,
    Shared,
}

const SHAPES: [Shape; 11] = [
    Shape::Empty,
    Shape::Single,
    Shape::Unconnected,
    Shape::Components,
    Shape::Chain,
    Shape::Fan,
    Shape::Gather,
    Shape::Clique,
    Shape::Layers,
    Shape::Training,
    Shape::Shared,
];

/// How large tensors and times are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    Mixed,
    Equal,
    Zero,
    FreeTensors,
    FreeNodes,
    Skewed,
    Enormous,
}

const SIZES: [Sizes; 7] = [
    Sizes::Mixed,
    Sizes::Equal,
    Sizes::Zero,
    Sizes::FreeTensors,
    Sizes::FreeNodes,
    Sizes::Skewed,
    Sizes::Enormous,
];

/// Kinds of device that the graphs list.
const KINDS: [&str; 4] = ["cpu", "small", "large", "odd"];

/// A problem for the planner.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) sizes: Sizes,
    pub(crate) graph: CostGraph,
    pub(crate) topology: Topology,
    pub(crate) options: Options,
}

/// The problem of a seed, with at most about `most` nodes.
pub(crate) fn problem(seed: u64, most: usize) -> Problem {
    let mut rng = Rng::new(seed);
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let sizes = if rng.chance(50) { Sizes::Mixed } else { SIZES[rng.below(7) as usize] };
    let devices = devices(&mut rng);
    let graph = graph(&mut rng, shape, sizes, most);
    let topology = room(&mut rng, &graph, devices);
    let options = options(&mut rng, &graph, &topology);
    Problem { seed, shape, sizes, graph, topology, options }
}

/// Nodes and edges of a graph in the making.
struct Draft<'r> {
    rng: &'r mut Rng,
    sizes: Sizes,
    kinds: bool,
    builder: Builder,
    count: usize,
}

impl Draft<'_> {
    fn bytes(&mut self) -> Bytes {
        let plain = [0u64, 1, 63, 64, 1000, 4096, 10_000, 100_000][self.rng.below(8) as usize];
        Bytes(match self.sizes {
            Sizes::Mixed | Sizes::FreeNodes => plain,
            Sizes::Equal => 4096,
            Sizes::Zero | Sizes::FreeTensors => 0,
            Sizes::Skewed if self.rng.chance(5) => 10_000_000_000,
            Sizes::Skewed => 1 + self.rng.below(100),
            Sizes::Enormous if self.rng.chance(20) => (1 << 63) - 1 + self.rng.below(3),
            Sizes::Enormous if self.rng.chance(10) => u64::MAX - self.rng.below(3),
            Sizes::Enormous => plain << self.rng.below(40),
        })
    }

    fn time(&mut self) -> Nanos {
        let plain = self.rng.below(6) * 100;
        Nanos(match self.sizes {
            Sizes::Mixed | Sizes::FreeTensors => plain,
            Sizes::Equal => 1000,
            Sizes::Zero | Sizes::FreeNodes => 0,
            Sizes::Skewed if self.rng.chance(5) => 1_000_000_000,
            Sizes::Skewed => 1 + self.rng.below(10),
            Sizes::Enormous if self.rng.chance(10) => u64::MAX - self.rng.below(3),
            Sizes::Enormous => plain << self.rng.below(40),
        })
    }

    /// A node that reads output 0 of others.
    fn node(&mut self, inputs: &[NodeIx]) -> NodeIx {
        self.node_with("f", Bytes::ZERO, None, inputs)
    }

    fn param(&mut self, tie: Option<&str>) -> NodeIx {
        let bytes = if tie.is_some() { Bytes(512) } else { self.bytes() };
        self.node_with("param", bytes, tie, &[])
    }

    fn node_with(&mut self, op: &str, owned: Bytes, tie: Option<&str>, inputs: &[NodeIx]) -> NodeIx {
        let times: Vec<Option<Nanos>> = (0..KINDS.len())
            .map(|kind| {
                let time = self.time();
                // Only the first kind runs everything, and not always.
                let refused = self.kinds && self.rng.chance(if kind == 0 { 1 } else { 10 });
                (!refused).then_some(time)
            })
            .collect();
        let equal = vec![times[1].or(Some(Nanos(1))); KINDS.len()];
        let outputs: Vec<Bytes> = (0..1 + self.rng.below(5) / 4).map(|_| self.bytes()).collect();
        let workspace = if self.rng.chance(10) { self.bytes() } else { Bytes::ZERO };
        let state = if op == "f" && self.rng.chance(10) { self.bytes() } else { owned };
        let class = format!("class{}", self.rng.below(3));
        let spec = NodeSpec {
            name: &format!("n{}", self.count),
            op,
            times: if self.kinds { &times } else { &equal },
            param_bytes: state,
            params: tie,
            workspace: if op == "f" { workspace } else { Bytes::ZERO },
            outputs: &outputs,
            colocate: self.rng.chance(2).then_some(class.as_str()),
            ..NodeSpec::default()
        };
        self.count += 1;
        let node = self.builder.add(&spec).expect("a valid node");
        for &input in inputs {
            let output = self.rng.below(u64::from(self.builder.output_count(input))) as u32;
            self.builder.connect(input, output, node);
        }
        node
    }

    fn chain(&mut self, nodes: usize) -> Vec<NodeIx> {
        let mut made: Vec<NodeIx> = Vec::new();
        for _ in 0..nodes {
            let last: Vec<NodeIx> = made.last().copied().into_iter().collect();
            made.push(self.node(&last));
        }
        made
    }
}

fn graph(rng: &mut Rng, shape: Shape, sizes: Sizes, most: usize) -> CostGraph {
    let kinds = rng.chance(60);
    let nodes = 1 + rng.below(most as u64) as usize;
    let builder = Builder::new("random", KINDS.map(String::from).to_vec());
    let mut draft = Draft { rng, sizes, kinds, builder, count: 0 };
    shaped(&mut draft, shape, nodes);
    draft.builder.finish().expect("an acyclic graph")
}

fn shaped(draft: &mut Draft<'_>, shape: Shape, nodes: usize) {
    match shape {
        Shape::Empty if draft.rng.chance(50) => {}
        Shape::Empty => {
            draft.param(None);
            draft.node_with("input", Bytes::ZERO, None, &[]);
        }
        Shape::Single => {
            draft.node(&[]);
        }
        Shape::Unconnected => (0..nodes).for_each(|_| _ = draft.node(&[])),
        Shape::Components => {
            while draft.count < nodes {
                let length = 1 + draft.rng.below(6) as usize;
                draft.chain(length);
            }
        }
        Shape::Chain => _ = draft.chain(nodes),
        Shape::Fan => {
            let hub = draft.node(&[]);
            (1..nodes).for_each(|_| _ = draft.node(&[hub]));
        }
        Shape::Gather => {
            let leaves: Vec<NodeIx> = (1..nodes).map(|_| draft.node(&[])).collect();
            draft.node(&leaves);
        }
        Shape::Clique => {
            let mut made = Vec::new();
            for _ in 0..nodes.min(25) {
                made.push(draft.node(&made));
            }
        }
        Shape::Layers => _ = layers(draft, nodes),
        Shape::Training => training(draft, nodes),
        Shape::Shared => shared(draft, nodes),
    }
}

/// Layers of random width; each node reads up to three of those before it.
fn layers(draft: &mut Draft<'_>, nodes: usize) -> Vec<NodeIx> {
    let mut made = vec![draft.node_with("input", Bytes::ZERO, None, &[])];
    let width = 1 + draft.rng.below(8) as usize;
    while made.len() < nodes {
        let mut inputs = Vec::new();
        for _ in 0..draft.rng.below(4) {
            let reach = if draft.rng.chance(10) { made.len() } else { made.len().min(2 * width) };
            inputs.push(made[made.len() - 1 - draft.rng.below(reach as u64) as usize]);
        }
        if draft.rng.chance(30) {
            inputs.push(draft.param(None));
        }
        made.push(draft.node(&inputs));
    }
    made
}

/// Forward nodes with a parameter each, then their backward nodes and updates.
fn training(draft: &mut Draft<'_>, nodes: usize) {
    let depth = 1 + nodes / 4;
    let mut forward: Vec<(NodeIx, NodeIx)> = Vec::new();
    for _ in 0..depth {
        let param = draft.param(None);
        let mut inputs = vec![param];
        inputs.extend(forward.last().map(|&(node, _)| node));
        forward.push((draft.node(&inputs), param));
    }
    let mut gradient: Option<NodeIx> = None;
    for &(node, param) in forward.iter().rev() {
        let mut inputs = vec![node];
        inputs.extend(gradient);
        let back = draft.node(&inputs);
        draft.builder.set_forward(back, node);
        let update = draft.node(&[back, param]);
        draft.builder.set_forward(update, node);
        gradient = Some(back);
    }
}

/// Few parameters, tied or not, that many nodes read.
fn shared(draft: &mut Draft<'_>, nodes: usize) {
    let params: Vec<NodeIx> = (0..1 + draft.rng.below(4))
        .map(|_| if draft.rng.chance(50) { draft.param(Some("tied")) } else { draft.param(None) })
        .collect();
    let mut last: Option<NodeIx> = None;
    for _ in 0..nodes {
        let mut inputs = vec![params[draft.rng.below(params.len() as u64) as usize]];
        inputs.extend(last.filter(|_| draft.rng.chance(70)));
        let node = draft.node(&inputs);
        if draft.rng.chance(10) {
            draft.builder.set_result(node, 0);
        }
        last = Some(node);
    }
}

/// One to four groups of one to three devices, joined in one of several ways; memory comes later.
fn devices(rng: &mut Rng) -> Description {
    let gigabyte = Rate(1_000_000_000);
    let mut description = Description::default();
    let added = rng.chance(20);
    let host = rng.chance(30);
    for group in 0..1 + rng.below(4) {
        let kind = if host && group == 0 { KINDS[0] } else { KINDS[1 + rng.below(3) as usize] };
        description.devices.push(DeviceGroup {
            name: Some(format!("d{group}x")),
            count: Some(1 + rng.below(3) as u32),
            flops: Some(Flops(1_000_000_000 * (1 + group))),
            bandwidth: Some(Rate(8_000_000_000)),
            launch: Some(Nanos::ZERO),
            role: (kind == KINDS[0] && rng.chance(50)).then_some(Role::Compute),
            communication: if added { Communication::Added } else { Communication::Overlapped },
            link: rng.chance(40).then_some(gigabyte),
            latency: Some(Nanos(rng.below(3) * 1000)),
            contention: if rng.chance(30) { Contention::None } else { Contention::Link },
            host: rng.chance(10).then(|| "far".to_owned()),
            ..DeviceGroup::new(kind)
        });
    }
    let every = |bandwidth| LinkGroup::new("d*", "d*", bandwidth);
    let near: Vec<&DeviceGroup> = description.devices.iter().filter(|group| group.host.is_none()).collect();
    let first = near.first().and_then(|group| group.name.as_ref()).map(|name| format!("{name}0"));
    if near.iter().filter_map(|group| group.count).sum::<u32>() > 1 {
        match rng.below(4) {
            0 => description.links.push(LinkGroup { via: first, ..every(gigabyte) }),
            1 => description.links.push(LinkGroup { shared: Some("bus".into()), ..every(gigabyte) }),
            _ => {}
        }
    }
    description
}

/// The devices, with memory for all, for most or for little of what the graph needs.
fn room(rng: &mut Rng, graph: &CostGraph, mut description: Description) -> Topology {
    let memory = |description: &mut Description, bytes: Bytes, sliced: bool| {
        for group in &mut description.devices {
            let slices = if sliced { vec![bytes; 2] } else { Vec::new() };
            (group.memory, group.slices) = (Some(bytes).filter(|_| !sliced), slices);
        }
    };
    let sliced = rng.chance(20);
    memory(&mut description, Bytes(u64::MAX / 8), sliced);
    let built = |description: &Description| match description.build() {
        Ok(topology) => topology,
        Err(error) => panic!("{error}: {description:?}"),
    };
    let roomy = built(&description);
    let need =
        alone(graph, &roomy, DeviceId(0), Bytes(u64::MAX / 8)).map_or(1 << 20, |(_, arena)| arena.get());
    let percent = [1000, 110, 100, 90, 60, 40, 20][rng.below(7) as usize];
    let bytes = (u128::from(need) * percent / 100 + 256).min(u128::from(u64::MAX / 8)) as u64;
    memory(&mut description, Bytes(bytes), sliced);
    built(&description)
}

fn options(rng: &mut Rng, graph: &CostGraph, topology: &Topology) -> Options {
    let device = |rng: &mut Rng| topology.devices[rng.below(topology.len() as u64) as usize].name.clone();
    let mut pins = Vec::new();
    if rng.chance(10) && graph.node_count() > 0 {
        pins.push(("n*".to_owned(), device(rng)));
    }
    while rng.chance(15) && graph.node_count() > 0 {
        pins.push((format!("n{}", rng.below(graph.node_count() as u64)), device(rng)));
    }
    Options {
        objective: Objective::ALL[rng.below(3) as usize],
        devices: match rng.below(10) {
            0 => DeviceUse::All,
            1 => DeviceUse::Count(1 + rng.below(4) as u32),
            _ => DeviceUse::Auto,
        },
        pins,
        colocate: if rng.chance(10) && graph.node_count() > 1 { vec!["n1*".into()] } else { Vec::new() },
        balance: rng.chance(10).then(|| rng.below(100) as f64 / 100.0),
        soft: rng.chance(20),
        reserve: if rng.chance(20) { Bytes(64) } else { Bytes::ZERO },
        effort: match rng.below(200) {
            0 => Effort::Best,
            1..80 => Effort::Fast,
            _ => Effort::Default,
        },
        seed: rng.below(4),
        ..Options::default()
    }
}

/// What all of a graph costs on one device, and its arena; none where it cannot be there.
fn alone(
    graph: &CostGraph,
    topology: &Topology,
    id: DeviceId,
    cap: Bytes,
) -> Option<(schedule::Cost, Bytes)> {
    let placement = Placement { device: vec![id; graph.node_count()], ..Placement::default() };
    let caps = vec![cap; topology.len()];
    let found =
        schedule(graph, topology, &placement, &schedule::Options { caps, ..Default::default() }).ok()?;
    Some((found.cost, found.devices[id.index()].arena))
}

/// Plans, and holds the answer against what must hold of it. The plan, or none where the planner
/// says with reason that there is none.
///
/// Errors: what is wrong, in words.
pub(crate) fn judged(problem: &Problem, control: &Control<'_>) -> Result<Option<Plan>, String> {
    let Problem { graph, topology, options, .. } = problem;
    let says = |text: String| format!("{text}\n  {}", described(problem));
    let singles = single_devices(problem);
    match plan_with(graph, topology, options, control) {
        Ok(plan) => {
            check(&plan).map_err(|error| says(format!("check: {error}")))?;
            check_costgraph(&plan, graph).map_err(|error| says(format!("check of the graph: {error}")))?;
            under_caps(problem, &plan).map_err(&says)?;
            if plan.options.truncated != control.was_truncated() {
                return Err(says(format!("truncated: {} in the plan", plan.options.truncated)));
            }
            if !control.was_truncated() {
                as_good_as_one(problem, &plan, &singles).map_err(&says)?;
            }
            Ok(Some(plan))
        }
        Err(Error::Infeasible(why)) if !singles.is_empty() && !control.was_truncated() => {
            Err(says(format!("one device fits, and the planner says: {why}")))
        }
        Err(Error::Infeasible(_) | Error::Usage(_) | Error::Unsupported(_) | Error::Model(_)) => Ok(None),
        Err(Error::Cancelled) if control.was_truncated() => Ok(None),
        Err(error) => Err(says(format!("{error}"))),
    }
}

fn under_caps(problem: &Problem, plan: &Plan) -> Result<(), String> {
    for (device, planned) in problem.topology.devices.iter().zip(&plan.devices) {
        let cap = device.memory.saturating_sub(problem.options.reserve);
        if planned.arena > cap || planned.peak > planned.arena {
            return Err(format!(
                "{}: peak {}, arena {}, cap {cap}",
                device.name, planned.peak, planned.arena
            ));
        }
    }
    Ok(())
}

/// Costs of the devices that hold all of it, where the options leave that choice.
fn single_devices(problem: &Problem) -> Vec<schedule::Cost> {
    let Problem { graph, topology, options, .. } = problem;
    let free = options.devices == DeviceUse::Auto && options.pins.is_empty() && options.balance.is_none();
    let devices = topology.ids().filter(|&id| free && topology.device(id).role == Role::Compute);
    let cap = |id: DeviceId| topology.device(id).memory.saturating_sub(options.reserve);
    devices.filter_map(|id| Some(alone(graph, topology, id, cap(id))?.0)).collect()
}

fn as_good_as_one(problem: &Problem, plan: &Plan, singles: &[schedule::Cost]) -> Result<(), String> {
    let (ours, best) = match problem.options.objective {
        Objective::Transfer => (
            plan.cost.transfer_bytes.get(),
            singles.iter().map(|cost| (cost.step_bytes + cost.load_bytes).get()).min(),
        ),
        Objective::Latency => {
            (plan.cost.latency_ns.get(), singles.iter().map(|cost| cost.latency.get()).min())
        }
        Objective::Throughput => {
            (plan.cost.max_load_ns.get(), singles.iter().map(|cost| cost.max_load.get()).min())
        }
    };
    match best {
        Some(best) if ours > best => Err(format!("one device costs {best}, the plan {ours}")),
        _ => Ok(()),
    }
}

/// A problem in a few words, to find it again.
pub(crate) fn described(problem: &Problem) -> String {
    let Problem { seed, shape, sizes, graph, topology, options } = problem;
    let devices: Vec<String> = topology
        .devices
        .iter()
        .map(|device| format!("{} {} {:?} {}", device.name, device.kind, device.role, device.memory.get()))
        .collect();
    format!("seed {seed}: {shape:?} {sizes:?}, {} nodes, {options:?}, {devices:?}", graph.node_count())
}
