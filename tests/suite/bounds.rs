//! Certificates: no bound is above the best of all plans of a small problem, the checker accepts
//! each, and finds each that says more than its data proves.

use std::collections::BTreeMap;

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::place::{Effort, Objective, Options, Placement, certificate, evaluate};
use partition::unstable::plan::{Bound, Plan, check_costgraph};
use partition::unstable::schedule::{self, Schedule, schedule, schedule_in_order};
use partition::unstable::topology::{
    Communication, Contention, Description, DeviceGroup, DeviceId, LinkGroup, Topology,
};
use partition::unstable::units::{Bytes, Flops, Nanos, Rate};
use partition::{Control, Error};
use serde_json::{Value, json};

use crate::random_costgraph::Rng;
use crate::sweep::Share;

/// Schedules of one problem that are gone through.
const MOST_SCHEDULES: usize = 1000;

/// One small problem.
struct Case {
    graph: CostGraph,
    topology: Topology,
    options: Options,
    /// By node, the one that it goes together with; itself where that is none before it.
    with: Vec<usize>,
    /// By node, the only device that it may be on.
    pinned: Vec<Option<u32>>,
}

/// A problem of at most `most` nodes that run, on two or three devices, alike or not, some joined
/// through a third, some loaded by their copies; pins and colocation now and then.
fn case(seed: u64, most: u64, objective: Objective) -> Case {
    let mut rng = Rng::new(seed);
    let topology = devices(&mut rng);
    let unequal = topology.ids().any(|id| topology.kind_key(id) != "cpu");
    let mut kinds = vec!["cpu".to_owned()];
    kinds.extend(topology.ids().map(|id| topology.kind_key(id)).find(|key| key != "cpu"));
    let mut b = Builder::new("small", kinds);
    let count = 2 + rng.below(most - 1) as usize;
    let (mut with, mut pinned) = (Vec::new(), Vec::new());
    let scale = [1, 10, 100][rng.below(3) as usize];
    for number in 0..count {
        let role =
            if number == 0 && rng.chance(40) { ["input", "param"][rng.below(2) as usize] } else { "f" };
        let colocate = role == "f" && rng.chance(15);
        let pin = role == "f" && !colocate && rng.chance(8);
        let pin = pin.then(|| rng.below(topology.len() as u64) as u32);
        let mut times = vec![Some(Nanos(rng.below(9) * scale))];
        if unequal {
            times.push((pin.is_some() || rng.chance(85)).then(|| Nanos(rng.below(20) * scale)));
        }
        let bytes = Bytes([0, 1, 50, 300, 2000][rng.below(5) as usize]);
        let name = format!("n{number}");
        let device = pin.map(|pin| topology.devices[pin as usize].name.clone());
        b.add(&NodeSpec {
            name: &name,
            op: role,
            times: if role == "f" { &times } else { &[] },
            param_bytes: if role == "param" { bytes } else { Bytes::ZERO },
            outputs: &[bytes, Bytes(rng.below(100))][..if role == "param" { 1 } else { 2 }],
            colocate: colocate.then_some("together"),
            pin: device.as_deref(),
            ..NodeSpec::default()
        })
        .expect("a valid node");
        let first = with.iter().position(|&(_, together)| together).filter(|_| colocate);
        with.push((first.unwrap_or(number), colocate));
        pinned.push(pin);
        for _ in 0..rng.below(3).min(number as u64) {
            let producer = rng.below(number as u64) as u32;
            let output = rng.below(u64::from(b.output_count(NodeIx(producer)))) as u32;
            if role == "f" {
                b.connect(NodeIx(producer), output, NodeIx(number as u32));
            }
        }
    }
    let options = Options { objective, ..Options::default() };
    let with = with.into_iter().map(|(with, _)| with).collect();
    Case { graph: b.finish().expect("acyclic"), topology, options, with, pinned }
}

fn devices(rng: &mut Rng) -> Topology {
    let group = |rng: &mut Rng, count: u32, flops: u64| DeviceGroup {
        count: Some(count),
        memory: Some(Bytes(1 << 30)),
        flops: Some(Flops(flops)),
        bandwidth: Some(Rate(8_000_000_000)),
        launch: Some(Nanos::ZERO),
        latency: Some(Nanos([0, 5, 100][rng.below(3) as usize])),
        communication: if rng.chance(50) { Communication::Added } else { Communication::Overlapped },
        contention: if rng.chance(50) { Contention::Link } else { Contention::None },
        link: Some(Rate([1_000_000_000, 4_000_000_000][rng.below(2) as usize])),
        ..DeviceGroup::new("cpu")
    };
    let mut description = Description::default();
    let staged = rng.chance(25);
    if rng.chance(20) {
        let sliced = group(rng, 1, 1_000_000_000);
        let slices = vec![Bytes(1 << 30); 2 + rng.below(2) as usize];
        description.devices.push(DeviceGroup { memory: None, slices, link: None, latency: None, ..sliced });
        return description.build().expect("a sound description");
    }
    let count = 1 + rng.below(2) as u32;
    description.devices.push(group(rng, count, 1_000_000_000));
    if rng.chance(50) || description.devices[0].count == Some(1) {
        description.devices.push(group(rng, 1, 2_000_000_000));
    }
    if staged {
        description.devices.iter_mut().for_each(|group| (group.link, group.latency) = (None, None));
        description.links.push(LinkGroup {
            latency: Some(Nanos(7)),
            via: Some("cpu0".into()),
            ..LinkGroup::new("cpu*", "cpu*", Rate(1_000_000_000))
        });
    }
    description.build().expect("a sound description")
}

/// A problem of five nodes that run, mostly one after another, each with a parameter of its own or one that
/// another reads too, on two to four devices that hold only a part of them.
fn scarce(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let group = |rng: &mut Rng, flops: u64, count: u64| DeviceGroup {
        count: Some(count as u32),
        memory: Some(Bytes(9_000 + 1_000 * rng.below(8))),
        flops: Some(Flops(flops)),
        bandwidth: Some(Rate(8_000_000_000)),
        launch: Some(Nanos::ZERO),
        latency: Some(Nanos([0, 5, 100][rng.below(3) as usize])),
        contention: if rng.chance(50) { Contention::Link } else { Contention::None },
        link: Some(Rate([1_000_000_000, 4_000_000_000][rng.below(2) as usize])),
        ..DeviceGroup::new("cpu")
    };
    let mut description = Description::default();
    let fast = 1 + rng.below(3);
    description.devices.push(group(&mut rng, 2_000_000_000, fast));
    if fast == 1 || rng.chance(40) {
        let slow = 1 + rng.below(2);
        description.devices.push(group(&mut rng, 1_000_000_000, slow));
    } else if fast == 3 {
        description.links.push(LinkGroup {
            latency: Some(Nanos(1)),
            ..LinkGroup::new("cpu0", "cpu1", Rate(100_000_000_000))
        });
    }
    let topology = description.build().expect("a sound description");
    let mut kinds = vec!["cpu".to_owned()];
    kinds.extend(topology.ids().map(|id| topology.kind_key(id)).find(|key| key != "cpu"));
    let mut b = Builder::new("scarce", kinds.clone());
    let mut last: Vec<NodeIx> = Vec::new();
    let mut params: Vec<NodeIx> = Vec::new();
    for number in 0..5u64 {
        if params.is_empty() || rng.chance(85) {
            let bytes = Bytes(1_000 * (1 + rng.below(8)));
            let param = NodeSpec {
                name: &format!("w{number}"),
                op: "param",
                param_bytes: bytes,
                outputs: &[bytes],
                ..NodeSpec::default()
            };
            params.push(b.add(&param).expect("a valid node"));
        }
        let time = 10 + rng.below(90);
        let node = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &[Some(Nanos(time)), Some(Nanos(time * (1 + rng.below(4))))][..kinds.len()],
            outputs: &[Bytes([1, 50, 300][rng.below(3) as usize])],
            ..NodeSpec::default()
        };
        let node = b.add(&node).expect("a valid node");
        let param = params[params.len() - 1 - rng.below(2.min(params.len() as u64)) as usize];
        b.connect(param, 0, node);
        if let Some(&before) = last.last() {
            b.connect(before, 0, node);
        }
        if last.len() > 1 && rng.chance(30) {
            b.connect(last[last.len() - 2], 0, node);
        }
        last.push(node);
    }
    let graph = b.finish().expect("acyclic");
    let options = Options { objective: Objective::Latency, effort: Effort::Fast, ..Options::default() };
    let (with, pinned) = ((0..graph.node_count()).collect(), vec![None; graph.node_count()]);
    Case { graph, topology, options, with, pinned }
}

impl Case {
    /// Every placement that pins, colocation and kinds allow. Parameters are where they are read.
    fn placements(&self) -> Vec<Placement> {
        let devices = self.topology.len() as u32;
        let kinds = self.topology.kinds_in(&self.graph.kinds);
        let mut found: Vec<Vec<DeviceId>> = vec![Vec::new()];
        for node in self.graph.nodes() {
            let may = |before: &[DeviceId], device: u32| {
                let kind = kinds[device as usize].expect("a known kind");
                let first = self.with[node.index()];
                match self.graph.role(node) {
                    Role::Param => device == 0,
                    Role::Input => true,
                    Role::Compute => {
                        self.graph.time(node, kind).is_some()
                            && self.pinned[node.index()].is_none_or(|pin| pin == device)
                            && (first == node.index() || before[first].0 == device)
                    }
                }
            };
            found = found
                .iter()
                .flat_map(|before| {
                    (0..devices).filter(|&device| may(before, device)).map(|device| {
                        let mut more = before.clone();
                        more.push(DeviceId(device));
                        more
                    })
                })
                .collect();
        }
        found.into_iter().map(|device| self.placed(device)).collect()
    }

    fn placed(&self, mut device: Vec<DeviceId>) -> Placement {
        for node in self.graph.nodes().filter(|&node| self.graph.role(node) == Role::Param) {
            let mut readers = self.graph.outputs(node).flat_map(|tensor| self.graph.consumers(tensor));
            if let Some(reader) = readers.next() {
                device[node.index()] = device[reader.index()];
            }
        }
        Placement { device, ..Placement::default() }
    }

    /// The nodes that run in every order that their edges allow.
    fn orders(&self) -> Vec<Vec<NodeIx>> {
        let graph = &self.graph;
        let runs: Vec<NodeIx> = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).collect();
        let mut found: Vec<Vec<NodeIx>> = vec![Vec::new()];
        for _ in &runs {
            let ready = |before: &Vec<NodeIx>, node: NodeIx| {
                let made =
                    |producer: NodeIx| graph.role(producer) != Role::Compute || before.contains(&producer);
                !before.contains(&node) && graph.inputs(node).iter().all(|&t| made(graph.producer(t)))
            };
            let next = |before: &Vec<NodeIx>| {
                let ready: Vec<NodeIx> = runs.iter().copied().filter(|&node| ready(before, node)).collect();
                let before = before.clone();
                ready.into_iter().map(move |node| [before.clone(), vec![node]].concat())
            };
            found = found.iter().flat_map(next).collect();
        }
        found
    }

    fn best_load(&self) -> u64 {
        let load = |placement: &Placement| evaluate(&self.graph, &self.topology, placement).unwrap().max_load;
        self.placements().iter().map(load).min().expect("a placement").get()
    }

    /// The shortest step over all placements that fit and orders, or where those are many, over the
    /// scheduler's own orders for each placement; the greatest number where nothing fits.
    fn best_latency(&self) -> u64 {
        let options = schedule::Options::default();
        let (placements, orders) = (self.placements(), self.orders());
        let few = placements.len() * orders.len() <= MOST_SCHEDULES;
        let orders = if few { &orders[..] } else { &[] };
        let mut best = u64::MAX;
        for placement in placements {
            let mut timed = |found: partition::Result<Schedule>| match found {
                Ok(found) => best = best.min(found.cost.latency.get()),
                Err(Error::Infeasible(_)) => {}
                Err(error) => panic!("{error}"),
            };
            timed(schedule(&self.graph, &self.topology, &placement, &options));
            for order in orders {
                timed(schedule_in_order(&self.graph, &self.topology, &placement, order, &options));
            }
        }
        best
    }

    /// A plan found quickly, with the certificate that the options' effort finds; none where none is found
    /// so quickly.
    fn plan(&self) -> Option<Plan> {
        let quick = Options { effort: Effort::Fast, ..self.options.clone() };
        let mut plan = match partition::unstable::compile::plan(&self.graph, &self.topology, &quick) {
            Ok(plan) => plan,
            Err(Error::Infeasible(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        let reached = plan.cost.of(self.options.objective.name()).expect("an objective");
        let found = certificate(&self.graph, &self.topology, &self.options, &Control::new(), reached);
        plan.bound = found.expect("a sound problem").map(|found| Bound::new(found, reached));
        Some(plan)
    }

    /// Bounds sought as if plans were somewhat worse than the best are at most what the best
    /// reaches; the checker accepts what a plan says. Gives the kind of proof, and whether it is
    /// tight.
    fn confirmed(&self, best: u64, seed: u64) -> Option<(String, bool)> {
        for incumbent in [best + 1, best + 1 + best / 8, 2 * best] {
            let sought =
                certificate(&self.graph, &self.topology, &self.options, &Control::new(), incumbent.max(1));
            if let Some(found) = sought.expect("a sound problem") {
                assert!(found.value <= best, "seed {seed}: {found:?} is above the best, {best}");
            }
        }
        let plan = self.plan()?;
        check_costgraph(&plan, &self.graph).unwrap_or_else(|error| panic!("seed {seed}: {error:#?}"));
        let bound = plan.bound?;
        assert!(bound.value <= best, "seed {seed}: {bound:?} is above the best, {best}");
        Some((bound.proof, bound.value == best))
    }
}

/// How often each kind of proof was the best, and how often it was tight.
type Tally = BTreeMap<String, (usize, usize)>;

fn count(tally: &mut Tally, (proof, tight): (String, bool)) {
    let entry = tally.entry(proof).or_default();
    entry.0 += 1;
    entry.1 += usize::from(tight);
}

long! {
    no_bound_on_the_load_is_above_the_best_of_all_placements;
}

fn no_bound_on_the_load_is_above_the_best_of_all_placements() {
    let mut tally = Tally::new();
    for seed in 0..700 {
        let case = case(seed, 6, Objective::Throughput);
        case.confirmed(case.best_load(), seed).into_iter().for_each(|found| count(&mut tally, found));
    }
    let tight: usize = tally.values().map(|(_, tight)| tight).sum();
    assert!(tally.keys().map(String::as_str).eq(["boundary", "packing", "work"]), "{tally:?}");
    assert!(tight > 300, "{tally:?}");
}

sweep! {
    no_bound_on_the_latency_is_above_the_best_of_all_schedules: one of 3;
}

fn no_bound_on_the_latency_is_above_the_best_of_all_schedules(share: Share) {
    let mut tally = Tally::new();
    for seed in share.among(1000..1300) {
        let case = case(seed, 5, Objective::Latency);
        case.confirmed(case.best_latency(), seed).into_iter().for_each(|found| count(&mut tally, found));
    }
    let tight: usize = tally.values().map(|(_, tight)| tight).sum();
    assert!(tally.contains_key("critical-path") && tally.contains_key("forced-copies"), "{tally:?}");
    assert!(tight > share.least(300), "{tally:?}");
}

sweep! {
    no_bound_on_the_latency_is_above_the_best_of_all_schedules_where_memory_is_scarce: one of 3;
}

fn no_bound_on_the_latency_is_above_the_best_of_all_schedules_where_memory_is_scarce(share: Share) {
    let mut tally = Tally::new();
    for seed in share.among(0..150) {
        let case = scarce(seed);
        let best = case.best_latency();
        if best < u64::MAX {
            case.confirmed(best, seed).into_iter().for_each(|found| count(&mut tally, found));
        }
    }
    let (found, met) = tally["runs"];
    assert!(found > share.least(60) && met > share.least(30), "{tally:?}");
}

/// Kinds of proof, counted for each objective.
const KINDS: usize = 9;

/// Nodes that take so long, of which each reads others, on two devices.
fn on_two_devices(latency: Nanos, nodes: &[(u64, &[u32])]) -> Case {
    let group = DeviceGroup { count: Some(2), latency: Some(latency), ..DeviceGroup::new("cpu") };
    let topology = Description { devices: vec![group], ..Description::default() }.build().expect("sound");
    let mut b = Builder::new("small", vec!["cpu".into()]);
    for (number, &(time, operands)) in nodes.iter().enumerate() {
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &[Some(Nanos(time))],
            outputs: &[Bytes::ZERO],
            ..NodeSpec::default()
        };
        let node = b.add(&spec).expect("a valid node");
        operands.iter().for_each(|&operand| b.connect(NodeIx(operand), 0, node));
    }
    let options = Options { objective: Objective::Latency, effort: Effort::Fast, ..Options::default() };
    Case {
        graph: b.finish().expect("acyclic"),
        topology,
        options,
        with: (0..nodes.len()).collect(),
        pinned: vec![None; nodes.len()],
    }
}

/// Two first nodes and a last one, and three between them that wait for the first two and are waited for by
/// the last: between these there is too little room.
fn three_between_two() -> Case {
    let between: (u64, &[u32]) = (10, &[0, 1]);
    on_two_devices(Nanos::ZERO, &[(10, &[]), (10, &[]), between, between, between, (10, &[2, 3, 4])])
}

/// Twice a node that four others wait for, and one that waits for those four and for a mask. Copies take 2.
fn two_forks_and_joins() -> Case {
    let nodes: [(u64, &[u32]); 12] = [
        (1, &[]),
        (10, &[]),
        (12, &[1]),
        (12, &[1]),
        (10, &[1]),
        (10, &[1]),
        (10, &[0, 2, 3, 4, 5]),
        (12, &[6]),
        (12, &[6]),
        (10, &[6]),
        (10, &[6]),
        (10, &[0, 7, 8, 9, 10]),
    ];
    on_two_devices(Nanos(2), &nodes)
}

/// A fork, up to three branches of one or two nodes that may read one another, and a join; on devices as in other
/// cases.
fn fork_and_join(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let topology = devices(&mut rng);
    let mut kinds = vec!["cpu".to_owned()];
    kinds.extend(topology.ids().map(|id| topology.kind_key(id)).find(|key| key != "cpu"));
    let mut b = Builder::new("fork", kinds.clone());
    let count = 5 + rng.below(2) as u32;
    for number in 0..count {
        let times = [Some(Nanos(1 + rng.below(90))), Some(Nanos(1 + rng.below(200)))];
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &times[..kinds.len()],
            outputs: &[Bytes([1, 20, 50][rng.below(3) as usize])],
            ..NodeSpec::default()
        };
        let node = b.add(&spec).expect("a valid node");
        match number {
            0 => {}
            last if last + 1 == count => (1..last).for_each(|other| b.connect(NodeIx(other), 0, node)),
            inner => {
                b.connect(NodeIx(if rng.chance(30) { rng.below(inner.into()) as u32 } else { 0 }), 0, node)
            }
        }
    }
    let options = Options { objective: Objective::Latency, effort: Effort::Fast, ..Options::default() };
    let (with, pinned) = ((0..count as usize).collect(), vec![None; count as usize]);
    Case { graph: b.finish().expect("acyclic"), topology, options, with, pinned }
}

/// A plan with a certificate of each kind.
fn certified() -> BTreeMap<String, (Case, Plan)> {
    let narrow = three_between_two();
    let plan = narrow.plan().expect("it fits");
    let mut found = BTreeMap::from([("latency windows".to_owned(), (narrow, plan))]);
    for seed in 0..400 {
        if found.len() == KINDS {
            break;
        }
        let case = match seed % 3 {
            0 => case(seed, 7, Objective::Latency),
            1 => case(seed, 7, Objective::Throughput),
            _ => scarce(seed),
        };
        let Some(plan) = case.plan() else { continue };
        if let Some(bound) = &plan.bound {
            found.entry(format!("{} {}", bound.objective, bound.proof)).or_insert((case, plan));
        }
    }
    found
}

fn is_refused(case: &Case, plan: &Plan) -> bool {
    match check_costgraph(plan, &case.graph) {
        Err(Error::Check(_)) => true,
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

/// The plan with another bound, its own cost raised so that the bound may be any.
fn with_bound(plan: &Plan, change: impl FnOnce(&mut Bound)) -> Plan {
    let mut plan = plan.clone();
    let reached = plan.cost.of(&plan.options.objective).expect("an objective") * 4 + 10;
    plan.cost.latency_ns = plan.cost.latency_ns.max(Nanos(reached));
    plan.cost.max_load_ns = plan.cost.max_load_ns.max(Nanos(reached));
    if let Some(bound) = &mut plan.bound {
        change(bound);
        bound.gap = 1.0 - bound.value as f64 / plan.cost.of(&bound.objective).unwrap_or(1) as f64;
    }
    plan
}

/// Nodes of 10 in a row, whose copies add 3 to both devices.
fn chain_on_two_devices_that_copies_load() -> Case {
    let group = DeviceGroup {
        count: Some(2),
        memory: Some(Bytes(1 << 30)),
        communication: Communication::Added,
        link: Some(Rate(1_000_000_000)),
        ..DeviceGroup::new("cpu")
    };
    let topology = Description { devices: vec![group], ..Description::default() }.build().expect("sound");
    let mut b = Builder::new("chain", vec!["cpu".into()]);
    let nodes = 4;
    for number in 0..nodes {
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &[Some(Nanos(10))],
            outputs: &[Bytes(3)],
            ..NodeSpec::default()
        };
        let node = b.add(&spec).expect("a valid node");
        if number > 0 {
            b.connect(NodeIx(number - 1), 0, node);
        }
    }
    let options = Options { objective: Objective::Throughput, ..Options::default() };
    let (with, pinned) = ((0..nodes as usize).collect(), vec![None; nodes as usize]);
    Case { graph: b.finish().expect("acyclic"), topology, options, with, pinned }
}

#[test]
fn sets_that_devices_hold_are_paid_for_with_their_copies() {
    let case = chain_on_two_devices_that_copies_load();
    let plan = case.plan().expect("it fits");
    let bound = plan.bound.as_ref().expect("a bound");
    assert_eq!((bound.proof.as_str(), bound.value), ("boundary", 23));
    assert_eq!(case.best_load(), 23);
    check_costgraph(&plan, &case.graph).expect("proven");
    let refused =
        |change: &dyn Fn(&mut Value)| is_refused(&case, &with_bound(&plan, |bound| change(&mut bound.data)));
    assert!(!refused(&|_| {}));
    assert!(refused(&|data| data["bytes"] = json!(4)), "no copy is counted");
    assert!(refused(&|data| data["order"] = json!([0, 1, 2])), "one that weighs is left out");
    assert!(refused(&|data| data["weights"] = json!([[0, 1], [3, 1]])), "the devices hold these");
    assert!(refused(&|data| data["weights"] = json!([[0, 1 << 20]])), "too much to count");
    assert!(!refused(&|data| data["weights"] = json!([[0, 1], [1, 1], [2, 1], [3, 1]])));
    assert!(is_refused(&case, &with_bound(&plan, |bound| bound.value += 1)));
}

#[test]
fn forks_and_joins_add_up() {
    let case = two_forks_and_joins();
    let plan = case.plan().expect("it fits");
    let bound = plan.bound.as_ref().expect("a bound");
    // Three nodes of 10, and twice 44 on two devices of which one waits 2 for its first copy, and 2 are for its last.
    assert_eq!((bound.proof.as_str(), bound.value), ("forced-copies", 30 + 2 * 24));
    assert!(case.best_latency() >= bound.value);
    let refused = |change: &dyn Fn(&mut Value)| {
        is_refused(&case, &with_bound(&plan, |bound| change(&mut bound.data["fork_joins"])))
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|pairs| *pairs = json!([pairs[0]])), "one of two proves less");
    assert!(refused(&|pairs| pairs[0]["after_fork"] = json!(0)), "less is lost");
    assert!(refused(&|pairs| pairs[0]["after_fork"] = json!(3)), "what can be done by then is more");
    assert!(refused(&|pairs| pairs[1]["before_join"] = json!(u64::MAX)));
    assert!(refused(&|pairs| pairs[1]["join"] = json!(12)), "no such node");
    let more = with_bound(&plan, |bound| bound.value += 1);
    assert!(is_refused(&case, &more));
}

#[test]
fn no_bound_by_forks_and_joins_is_above_the_best_of_all_schedules() {
    let mut relied = 0;
    for seed in 0..30 {
        let case = fork_and_join(seed);
        case.confirmed(case.best_latency(), seed);
        let bound = case.plan().and_then(|plan| plan.bound);
        relied += usize::from(bound.is_some_and(|bound| bound.data.get("fork_joins").is_some()));
    }
    assert!(relied > 0, "none relied on them");
}

#[test]
fn a_search_through_all_schedules_proves_what_windows_do_not() {
    let mut narrow = three_between_two();
    narrow.options.effort = Effort::Default;
    let plan = narrow.plan().expect("it fits");
    let bound = plan.bound.as_ref().expect("a bound");
    assert_eq!((bound.proof.as_str(), bound.value, bound.gap), ("search", 40, 0.0));
    assert_eq!(narrow.best_latency(), 40);
    check_costgraph(&plan, &narrow.graph).expect("proven");
    let cut = with_bound(&plan, |bound| bound.data = json!({ "beginnings": 3 }));
    assert!(is_refused(&narrow, &cut), "three beginnings are not all");
}

#[test]
fn a_bound_that_says_more_than_its_data_proves_is_refused() {
    let certified = certified();
    assert!(certified.len() == KINDS, "{:?}", certified.keys());
    let narrow = &certified["latency windows"].1.bound.as_ref().expect("a bound");
    assert_eq!((narrow.proof.as_str(), narrow.value), ("windows", 35));
    for (kind, (case, plan)) in &certified {
        let best = match case.options.objective {
            Objective::Throughput => case.best_load(),
            _ => case.best_latency(),
        };
        assert!(!is_refused(case, &with_bound(plan, |_| {})), "{kind}");
        let value = plan.bound.as_ref().expect("a bound").value;
        for more in [best + 1, best + 7, 2 * best + 1, value.max(best) * 3] {
            assert!(is_refused(case, &with_bound(plan, |bound| bound.value = more)), "{kind}: {more}");
        }
        if matches!(plan.bound.as_ref().expect("a bound").proof.as_str(), "work" | "critical-path") {
            assert!(is_refused(case, &with_bound(plan, |bound| bound.value += 1)), "{kind}");
        }
    }
}

#[test]
fn damaged_data_and_wrong_kinds_are_refused() {
    for (kind, (case, plan)) in &certified() {
        let refused = |what: &str, change: &dyn Fn(&mut Bound)| {
            assert!(is_refused(case, &with_bound(plan, |bound| change(bound))), "{kind}: {what}");
        };
        refused("unknown kind", &|bound| bound.proof = "wish".into());
        refused("no data", &|bound| bound.data = Value::Null);
        refused("a field more", &|bound| bound.data["more"] = json!(1));
        refused("another objective", &|bound| bound.objective = "transfer".into());
        refused("zero", &|bound| bound.value = 0);
        let data = &plan.bound.as_ref().expect("a bound").data;
        for (field, value) in data.as_object().expect("an object") {
            let damage = match value {
                Value::Array(list) if field == "prices" => json!(vec![u64::MAX; list.len()]),
                Value::Array(list) if field == "flows" && list.is_empty() => continue,
                Value::Array(_) if field == "weights" && kind.contains("packing") => json!([[0, 0]]),
                Value::Array(_) if field == "weights" && kind.contains("boundary") => json!([[0, 0]]),
                Value::Array(list) if field == "weights" => json!(vec![0; list.len()]),
                Value::Array(_) => json!([u32::MAX]),
                _ if field == "node" => json!(u32::MAX),
                _ if field == "ancestors" => json!(1_000_000),
                // Where the times alone prove the bound it does not matter which copies are counted.
                _ if field == "bytes" => json!(-1),
                _ => json!(u64::MAX),
            };
            refused(field, &|bound| bound.data[field] = damage.clone());
            refused(field, &|bound| bound.data[field] = json!("nonsense"));
        }
    }
}
