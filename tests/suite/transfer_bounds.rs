//! Certificates of transfer against every placement there is, and against tampering.
//!
//! What a placement moves, holds and computes is counted here from the graph alone; a placement
//! counts as possible wherever its parameters, state and largest single node fit, so whatever a
//! certificate forbids, no plan can do.

use std::collections::BTreeSet;

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::place::{self, DeviceUse, Options};
use partition::unstable::plan::{self, Plan};
use partition::unstable::topology::{Description, DeviceGroup, DeviceId, Topology};
use partition::unstable::units::{Bytes, Flops, Nanos, Rate};

use super::random_costgraph::Rng;

/// Placements that are gone through for one problem.
const MOST: usize = 7000;

/// A problem: a graph, devices with caps, options.
pub(crate) struct Case {
    pub(crate) graph: CostGraph,
    pub(crate) topology: Topology,
    pub(crate) caps: Vec<u64>,
    pub(crate) options: Options,
}

impl Case {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let graph = heavy_graph(&mut rng);
        let devices = 2 + rng.below(2) as usize;
        let held: u64 =
            (0..devices).map(|device| one_device(&graph, device).held(&graph)[device]).max().unwrap_or(0);
        let caps: Vec<u64> = (0..devices).map(|_| held * (40 + rng.below(60)) / 100).collect();
        let caps = if rng.chance(50) { vec![caps[0]; devices] } else { caps };
        let topology = devices_with(&caps);
        let mut options = Options::default();
        if rng.chance(30) {
            options.balance = Some(rng.below(8) as f64 / 10.0);
        }
        match rng.below(6) {
            0 => options.devices = DeviceUse::All,
            1 => options.devices = DeviceUse::Count(2),
            _ => {}
        }
        if rng.chance(30) {
            for _ in 0..2 {
                let node = NodeIx(rng.below(graph.node_count() as u64) as u32);
                let device = &topology.devices[rng.below(devices as u64) as usize].name;
                options.pins.push((graph.node_name(node).to_owned(), device.clone()));
            }
        }
        if rng.chance(20) {
            options.colocate.push("n1*".into());
        }
        Self { graph, topology, caps, options }
    }

    /// The fewest bytes that a possible placement moves.
    pub(crate) fn optimum(&self) -> Option<u64> {
        let runs: Vec<NodeIx> =
            self.graph.nodes().filter(|&node| self.graph.role(node) == Role::Compute).collect();
        let devices = self.caps.len();
        let count = devices.checked_pow(runs.len() as u32).filter(|&count| count <= MOST)?;
        let possible = (0..count).filter_map(|number| {
            let mut placed = Placed { device: vec![0; self.graph.node_count()] };
            let mut rest = number;
            for node in &runs {
                placed.device[node.index()] = rest % devices;
                rest /= devices;
            }
            self.allows(&placed, &runs).then(|| placed.moved(&self.graph))
        });
        possible.min()
    }

    fn allows(&self, placed: &Placed, runs: &[NodeIx]) -> bool {
        let Self { graph, topology, caps, options } = self;
        let fits = placed.held(graph).iter().zip(caps).all(|(held, cap)| held <= cap);
        let used: BTreeSet<usize> = runs.iter().map(|node| placed.device[node.index()]).collect();
        let asked = match options.devices {
            DeviceUse::Auto => true,
            DeviceUse::All => used.len() == caps.len(),
            DeviceUse::Count(count) => used.len() == count as usize,
        };
        let mut last = std::collections::BTreeMap::new();
        for (name, device) in &options.pins {
            last.insert(name, topology.find(device).map(DeviceId::index));
        }
        let pinned = |(name, device): (&&String, &Option<usize>)| {
            let node = graph.nodes().find(|&node| graph.node_name(node) == name.as_str()).unwrap();
            graph.role(node) != Role::Compute || Some(placed.device[node.index()]) == *device
        };
        let together = options.colocate.is_empty() || {
            let all = runs.iter().filter(|&&node| graph.node_name(node).starts_with("n1"));
            all.map(|node| placed.device[node.index()]).collect::<BTreeSet<_>>().len() <= 1
        };
        fits && asked && together && last.iter().all(pinned) && self.is_balanced(placed, runs)
    }

    fn is_balanced(&self, placed: &Placed, runs: &[NodeIx]) -> bool {
        let Some(balance) = self.options.balance else { return true };
        let mut time = vec![0u64; self.caps.len()];
        for node in runs {
            time[placed.device[node.index()]] += self.graph.time(*node, 0).unwrap().get();
        }
        let used = match self.options.devices {
            DeviceUse::Count(count) => count as usize,
            _ => self.caps.len(),
        };
        // The share is a quotient of rounded integers: a part in a million is no matter.
        let fair = time.iter().sum::<u64>() as f64 / used as f64;
        time.iter().all(|&time| time as f64 <= fair * (1.0 + balance) * (1.0 - 1e-6))
    }
}

/// Up to eight nodes whose own bytes and shared parameters are most of what a device holds.
fn heavy_graph(rng: &mut Rng) -> CostGraph {
    let mut b = Builder::new("heavy", vec!["cpu".into()]);
    let mut made = Vec::new();
    for i in 0..1 + rng.below(3) {
        let bytes = Bytes(64 * rng.below(60));
        let (name, op) = (format!("p{i}"), if i == 0 { "input" } else { "param" });
        let param_bytes = if i == 0 { Bytes::ZERO } else { bytes };
        let spec = NodeSpec { name: &name, op, param_bytes, outputs: &[bytes], ..NodeSpec::default() };
        made.push(b.add(&spec).unwrap());
    }
    for i in 0..3 + rng.below(6) {
        let spec = NodeSpec {
            name: &format!("n{i}"),
            op: "f",
            times: &[Some(Nanos(rng.below(50)))],
            param_bytes: Bytes(rng.below(100) * 64 * rng.below(2)),
            workspace: Bytes(100 * rng.below(2)),
            outputs: &[Bytes(rng.below(400))],
            ..NodeSpec::default()
        };
        let node = b.add(&spec).unwrap();
        for _ in 0..1 + rng.below(3) {
            b.connect(made[rng.below(made.len() as u64) as usize], 0, node);
        }
        made.push(node);
    }
    b.finish().unwrap()
}

/// CPUs with these caps.
fn devices_with(caps: &[u64]) -> Topology {
    let mut description = Description::default();
    for &cap in caps {
        description.devices.push(DeviceGroup {
            memory: Some(Bytes(cap)),
            flops: Some(Flops(1_000_000_000)),
            bandwidth: Some(Rate(8_000_000_000)),
            link: Some(Rate(1_000_000_000)),
            ..DeviceGroup::new("cpu")
        });
    }
    description.build().unwrap()
}

/// A device for each node that runs.
struct Placed {
    device: Vec<usize>,
}

fn one_device(graph: &CostGraph, device: usize) -> Placed {
    Placed { device: vec![device; graph.node_count()] }
}

impl Placed {
    /// By device, what is there all the time and the most that one node adds.
    fn held(&self, graph: &CostGraph) -> Vec<u64> {
        let devices = self.device.iter().max().map_or(1, |&device| device + 1).max(3);
        let (mut held, mut most) = (vec![0; devices], vec![0; devices]);
        for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
            let device = self.device[node.index()];
            held[device] += graph.owned_bytes(node).get();
            let made = |tensor: &&_| graph.role(graph.producer(**tensor)) != Role::Param;
            let reads: u64 =
                graph.inputs(node).iter().filter(made).map(|&tensor| graph.tensor_bytes(tensor).get()).sum();
            let writes: u64 = graph.outputs(node).map(|tensor| graph.tensor_bytes(tensor).get()).sum();
            let need = reads.max(writes) + graph.workspace_bytes(node).get();
            most[device] = need.max(most[device]);
        }
        for param in self.readers_of_params(graph) {
            for &device in &param.1 {
                held[device] += param.0;
            }
        }
        held.iter().zip(most).map(|(held, most)| held + most).collect()
    }

    /// Bytes of each parameter and the devices that read it.
    fn readers_of_params(&self, graph: &CostGraph) -> Vec<(u64, BTreeSet<usize>)> {
        let mut params = vec![(0, BTreeSet::new()); graph.param_count()];
        for node in graph.nodes() {
            let Some(param) = graph.param(node) else { continue };
            let entry = &mut params[param.index()];
            entry.0 = graph.param_bytes(param).get();
            let readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
            entry.1.extend(readers.map(|reader| self.device[reader.index()]));
        }
        params
    }

    /// Bytes of tensors for each device that receives them, of parameters for each beyond the first.
    fn moved(&self, graph: &CostGraph) -> u64 {
        let mut sum = 0;
        for tensor in graph.tensors() {
            let producer = graph.producer(tensor);
            let readers = graph.consumers(tensor).iter().map(|reader| self.device[reader.index()]);
            let mut devices: BTreeSet<usize> = readers.collect();
            match graph.role(producer) {
                Role::Param => continue,
                Role::Compute => drop(devices.insert(self.device[producer.index()])),
                Role::Input => {}
            }
            sum += graph.tensor_bytes(tensor).get() * (devices.len() as u64).saturating_sub(1);
        }
        let extra =
            |(bytes, devices): (u64, BTreeSet<usize>)| bytes * (devices.len() as u64).saturating_sub(1);
        sum + self.readers_of_params(graph).into_iter().map(extra).sum::<u64>()
    }
}

long! {
    no_placement_moves_less_than_a_certificate_says;
    the_checker_confirms_what_the_planner_proves;
    a_bound_that_its_proof_does_not_give_is_refused;
}

fn no_placement_moves_less_than_a_certificate_says() {
    let (mut found, mut tight) = (0, 0);
    for seed in 0..1000 {
        let case = Case::new(seed);
        // `place` errs where pins contradict one another.
        let Some(optimum) = case.optimum().filter(|&optimum| optimum > 0) else { continue };
        let control = partition::Control::new();
        let Ok(certificates) =
            place::certificate(&case.graph, &case.topology, &case.options, &control, u64::MAX)
        else {
            continue;
        };
        let value = certificates.map_or(0, |certificate| certificate.value);
        assert!(value <= optimum, "seed {seed}: {value} proven, and {optimum} suffice");
        found += 1;
        tight += usize::from(value == optimum);
    }
    println!("{tight} of {found} bounds are tight");
    assert!(found > 300 && tight * 2 > found, "{tight} of {found} bounds are tight");
}

/// Plans with a certificate of transfer.
fn certified() -> Vec<(Plan, CostGraph)> {
    let plans = (0..400).filter_map(|seed| {
        let Case { graph, topology, options, .. } = Case::new(seed);
        let plan = partition::unstable::compile::plan(&graph, &topology, &options).ok()?;
        plan.bound.is_some().then_some((plan, graph))
    });
    plans.collect()
}

fn the_checker_confirms_what_the_planner_proves() {
    let plans = certified();
    let mut kinds = BTreeSet::new();
    for (plan, graph) in &plans {
        kinds.extend(plan.bound.iter().map(|bound| bound.proof.clone()));
        plan::check_costgraph(plan, graph).unwrap();
    }
    assert_eq!(Vec::from_iter(kinds), ["cut", "cuts", "forest"]);
}

fn a_bound_that_its_proof_does_not_give_is_refused() {
    for (mut plan, graph) in certified().into_iter().take(40) {
        let bound = plan.bound.as_mut().unwrap();
        if bound.value == plan.cost.transfer_bytes.get() {
            continue;
        }
        bound.value += 1;
        bound.gap = 1.0 - bound.value as f64 / plan.cost.transfer_bytes.get() as f64;
        let fault = plan::check_costgraph(&plan, &graph).unwrap_err();
        assert!(fault.to_string().contains("its"), "{fault}");
    }
}
