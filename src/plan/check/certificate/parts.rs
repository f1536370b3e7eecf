//! What a bound on the bytes moved rests on: which nodes touch which tensors and parameters, what
//! they weigh, and what the devices hold.

use serde::Deserialize;

use super::facts::Facts;
use crate::costgraph::{NodeIx, ParamIx, Role, TensorIx};
use crate::topology::DeviceId;

/// What limits the nodes of a device.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Resource {
    /// Bytes of parameters and state.
    Memory,
    /// Compute time.
    Time,
    /// Each other device in use has a class, too.
    Units,
}

/// No class.
pub(super) const NONE: u32 = u32::MAX;

/// Classes of nodes that go together, numbered by their first nodes, and what connects them.
pub(super) struct Parts {
    /// By node, its class; [`NONE`] for nodes that do not run.
    pub(super) of_node: Vec<u32>,
    /// By class, its first node.
    pub(super) first: Vec<NodeIx>,
    /// Bytes of what several classes touch, with those classes.
    pub(super) nets: Vec<(u64, Vec<u32>)>,
    /// By class, whether a device that takes any work can run it.
    pub(super) free: Vec<bool>,
    /// By class, the least that it weighs.
    pub(super) weight: Vec<u64>,
    /// By class, what its device has room for beside all that weighs.
    pub(super) need: Vec<u64>,
    /// What each device that takes work may hold.
    pub(super) caps: Vec<u64>,
    /// The caps of as many devices as are in use, the largest first.
    largest: Vec<u64>,
    /// How many devices are in use, where that is known.
    used: Option<usize>,
}

impl Parts {
    /// O(nodes + edges). Error: the plan's options do not limit the resource.
    pub(super) fn new(facts: &Facts<'_>, resource: Resource) -> Result<Self, String> {
        let (of_node, first) = classes(facts);
        let classes = first.len();
        let works = |device: &DeviceId| facts.workers.contains(device);
        let free: Vec<bool> = first.iter().map(|&node| facts.devices(node).iter().any(works)).collect();
        // Sums over all that has a size stay below 2^60.
        let most = (1 << 60) / (1 + sizes(facts));
        let mut parts = Self {
            nets: nets(facts, &of_node, most),
            of_node,
            first,
            free,
            weight: vec![0; classes],
            need: vec![0; classes],
            caps: Vec::new(),
            largest: Vec::new(),
            used: facts.used,
        };
        parts.caps = match resource {
            Resource::Memory => {
                parts.weigh_bytes(facts, most);
                facts.workers.iter().map(|device| facts.memory[device.index()]).collect()
            }
            Resource::Time => {
                parts.weigh_time(facts, most);
                let limit = fair_share(facts).ok_or("the plan asks for no balance")?;
                vec![limit; facts.workers.len()]
            }
            Resource::Units => {
                let used = facts.used.ok_or("the plan asks for no number of devices")?;
                parts.weight.fill(1);
                let free = parts.free.iter().filter(|&&free| free).count();
                vec![free.saturating_sub(used.saturating_sub(1)) as u64; facts.workers.len()]
            }
        };
        // Classes that only other devices run take no room in the workers.
        for class in (0..classes).filter(|&class| !parts.free[class]) {
            (parts.weight[class], parts.need[class]) = (0, 0);
        }
        parts.largest = parts.caps.clone();
        parts.largest.sort_unstable_by_key(|&cap| std::cmp::Reverse(cap));
        parts.largest.truncate(facts.used.unwrap_or(parts.caps.len()));
        Ok(parts)
    }

    /// The class of a node that runs. Error: there is no such node.
    pub(super) fn class(&self, facts: &Facts<'_>, number: u32) -> Result<u32, String> {
        facts.running(number).map(|node| self.of_node[node.index()])
    }

    /// The fewest devices that hold classes of a weight, where `missing` classes are elsewhere.
    pub(super) fn devices_for(&self, weight: u64, missing: usize) -> u64 {
        let mut capacity = 0u128;
        let is_full = |&&cap: &&u64| {
            capacity += u128::from(cap);
            capacity < weight.into()
        };
        let full = self.largest.iter().take_while(is_full).count();
        let by_weight = if weight == 0 { 0 } else { (full + 1).min(self.largest.len()) };
        by_weight.max(self.used.unwrap_or(0).saturating_sub(missing)) as u64
    }

    /// What all devices in use hold beside one with this cap.
    pub(super) fn beside(&self, cap: u64) -> u64 {
        let mut others = self.largest.clone();
        // Where the cap is not among the largest in use, the smallest of those makes way.
        let own = others.iter().position(|&other| other == cap).unwrap_or(others.len().saturating_sub(1));
        if !others.is_empty() {
            others.remove(own);
        }
        others.into_iter().fold(0, u64::saturating_add)
    }

    fn weigh_bytes(&mut self, facts: &Facts<'_>, most: u64) {
        let graph = facts.graph;
        for node in facts.runs() {
            let class = self.of_node[node.index()] as usize;
            self.weight[class] += graph.owned_bytes(node).0.min(most);
            let mut moving = [0u64; 2];
            let is_param = |tensor: TensorIx| graph.role(graph.producer(tensor)) == Role::Param;
            for &tensor in graph.inputs(node).iter().filter(|&&tensor| !is_param(tensor)) {
                moving[0] = moving[0].saturating_add(graph.made_bytes(tensor).0);
            }
            for tensor in graph.outputs(node) {
                moving[1] = moving[1].saturating_add(graph.made_bytes(tensor).0);
            }
            let need = moving[0].max(moving[1]).saturating_add(graph.workspace_bytes(node).0);
            self.need[class] = self.need[class].max(need);
        }
        for (param, readers) in readers(facts, &self.of_node).into_iter().enumerate() {
            if let Some(&class) = readers.first() {
                self.weight[class as usize] += graph.param_bytes(ParamIx(param as u32)).0.min(most);
            }
        }
    }

    fn weigh_time(&mut self, facts: &Facts<'_>, most: u64) {
        for node in facts.runs() {
            let fastest = facts.workers.iter().filter_map(|&device| facts.time(node, device)).min();
            self.weight[self.of_node[node.index()] as usize] += fastest.unwrap_or(0).min(most);
        }
    }
}

/// Number of all that has a size.
fn sizes(facts: &Facts<'_>) -> u64 {
    (facts.graph.tensor_count() + facts.graph.param_count() + facts.graph.node_count()) as u64
}

/// By node its class; by class its first node that runs.
fn classes(facts: &Facts<'_>) -> (Vec<u32>, Vec<NodeIx>) {
    let mut number = vec![NONE; facts.graph.node_count()];
    let mut of_node = number.clone();
    let mut first = Vec::new();
    for node in facts.runs() {
        let number = &mut number[facts.class[node.index()] as usize];
        if *number == NONE {
            *number = first.len() as u32;
            first.push(node);
        }
        of_node[node.index()] = *number;
    }
    (of_node, first)
}

/// What several classes touch: tensors that are made in the step or handed over, and parameters.
fn nets(facts: &Facts<'_>, of_node: &[u32], most: u64) -> Vec<(u64, Vec<u32>)> {
    let graph = facts.graph;
    let mut nets = Vec::new();
    for tensor in graph.tensors() {
        let producer = graph.producer(tensor);
        if graph.role(producer) != Role::Param {
            let touch = std::iter::once(&producer).chain(graph.consumers(tensor));
            let classes = touch.map(|node| of_node[node.index()]).filter(|&class| class != NONE).collect();
            nets.push((graph.tensor_bytes(tensor).0.min(most), distinct(classes)));
        }
    }
    for (param, readers) in readers(facts, of_node).into_iter().enumerate() {
        nets.push((graph.param_bytes(ParamIx(param as u32)).0.min(most), readers));
    }
    nets.retain(|(bytes, classes)| *bytes > 0 && classes.len() > 1);
    nets
}

/// By parameter, the classes that read it, ascending.
fn readers(facts: &Facts<'_>, of_node: &[u32]) -> Vec<Vec<u32>> {
    let graph = facts.graph;
    let mut readers = vec![Vec::new(); graph.param_count()];
    for node in graph.nodes() {
        let Some(param) = graph.param(node) else { continue };
        for tensor in graph.outputs(node) {
            let classes = graph.consumers(tensor).iter().map(|reader| of_node[reader.index()]);
            readers[param.index()].extend(classes.filter(|&class| class != NONE));
        }
    }
    readers.into_iter().map(distinct).collect()
}

fn distinct(mut classes: Vec<u32>) -> Vec<u32> {
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// The time that a device may compute: with the share of the work that its speed makes fair, all
/// in use end together, but for the balance's allowance.
fn fair_share(facts: &Facts<'_>) -> Option<u64> {
    let balance = facts.balance?;
    let alone = |device: &DeviceId| {
        let times = facts.graph.nodes().filter_map(|node| facts.time(node, *device));
        times.fold(0, u64::saturating_add)
    };
    let mut times: Vec<u64> = facts.workers.iter().map(alone).collect();
    times.sort_unstable();
    let used = facts.used.unwrap_or(times.len());
    let one = 1u128 << 80;
    let speed: u128 = times.iter().take(used).map(|&time| one / u128::from(time.max(1))).sum();
    Some(((one / speed.max(1)) as f64 * (1.0 + balance)).ceil() as u64)
}
