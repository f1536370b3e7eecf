//! Plans of small graphs under tight caps: no move of one node leaves a better one, and none that fits is far better.

use partition::Control;
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::place::{self, Moves, Objective, Options, Placement};
use partition::unstable::schedule::{self, Packing, schedule_in_order};
use partition::unstable::strategy::{self, Problem};
use partition::unstable::topology::{Communication, Contention, Topology};
use partition::unstable::units::{ALIGNMENT, Bytes, Nanos};

use crate::random_costgraph::{Links, Rng, topology};

/// Nodes with parameters, workspaces and outputs of very unlike sizes, each of which reads some of the five before it;
/// all bytes together.
fn random(rng: &mut Rng, nodes: usize) -> (CostGraph, u64) {
    let mut builder = Builder::new("tight", vec!["cpu".into()]);
    let mut made: Vec<NodeIx> = Vec::new();
    let mut total = 0;
    for number in 0..nodes {
        let output = [10, 1000, 100_000, 1_000_000][rng.below(4) as usize] * (1 + rng.below(5));
        let owned = [0, 0, 100_000, 1_000_000][rng.below(4) as usize];
        total += output + owned;
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &[Some(Nanos(1000))],
            param_bytes: Bytes(owned),
            outputs: &[Bytes(output)],
            ..NodeSpec::default()
        };
        let node = builder.add(&spec).unwrap();
        let recent = made.len().min(5);
        let mut read = Vec::new();
        for _ in 0..(1 + rng.below(3)).min(recent as u64) {
            let maker = made[made.len() - 1 - rng.below(recent as u64) as usize];
            if !read.contains(&maker) {
                builder.connect(maker, 0, node);
                read.push(maker);
            }
        }
        made.push(node);
    }
    (builder.finish().unwrap(), total)
}

fn devices(count: u32, memory: u64) -> Topology {
    let links = Links::Direct(Contention::Link);
    topology(count, 1, Bytes(memory), links, Nanos(2000), Communication::Overlapped)
}

/// Bytes that a placement moves, where its schedule fits.
fn scored(problem: Problem<'_>, placement: &Placement) -> Option<u64> {
    let scored = strategy::score(problem, placement).unwrap();
    scored.over.is_empty().then(|| strategy::value(Objective::Transfer, &scored.schedule.cost))
}

#[test]
fn no_single_move_moves_fewer_bytes() {
    let options = Options::default();
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let (graph, total) = random(&mut rng, 8 + 2 * seed as usize);
        let percent = [25, 35, 50, 70][seed as usize % 4];
        let topology = devices(2 + seed as u32 % 3, total * percent / 100);
        let problem = Problem::new(&graph, &topology, &options);
        let Ok((placement, schedule)) = strategy::solve(problem, &Control::new()) else { continue };
        let ours = strategy::value(Objective::Transfer, &schedule.cost);
        let moves = Moves::new(&graph, &topology, &options, &placement.device).unwrap();
        for node in graph.nodes() {
            let unit = moves.unit(node).unwrap();
            for id in topology.ids().filter(|&id| id != moves.device(unit)) {
                let moved = moves.moved(unit, id);
                let bytes = place::evaluate(&graph, &topology, &moved).unwrap().transfer_bytes().get();
                let fits = bytes < ours && scored(problem, &moved).is_some();
                assert!(
                    !fits,
                    "seed {seed}: node {} on {id:?} moves {bytes} bytes, not {ours}",
                    node.index()
                );
            }
        }
    }
}

#[test]
fn few_nodes_are_placed_as_by_brute_force() {
    let options = Options::default();
    for seed in 0..40 {
        let mut rng = Rng::new(100 + seed);
        let (graph, total) = random(&mut rng, 5 + seed as usize % 4);
        let topology = devices(2, total * [35, 50, 70][seed as usize % 3] / 100);
        let problem = Problem::new(&graph, &topology, &options);
        let found = strategy::solve(problem, &Control::new());
        let ours = found.ok().map(|(_, schedule)| strategy::value(Objective::Transfer, &schedule.cost));
        let ids: Vec<_> = topology.ids().collect();
        for bits in 0..1usize << graph.node_count() {
            let device = (0..graph.node_count()).map(|node| ids[bits >> node & 1]).collect();
            let placement = Placement { device, ..Placement::default() };
            let evaluation = place::evaluate(&graph, &topology, &placement).unwrap();
            if ours.is_none_or(|ours| evaluation.transfer_bytes().get() < ours) {
                assert_eq!(scored(problem, &placement), None, "seed {seed}: {bits:b} fits, not {ours:?}");
            }
        }
    }
}

/// All orders of the nodes in which each comes after those that it reads from.
fn orders(graph: &CostGraph) -> Vec<Vec<NodeIx>> {
    let mut all = vec![Vec::new()];
    for _ in graph.nodes() {
        all = all.iter().flat_map(|order| longer(graph, order)).collect();
    }
    all
}

fn longer(graph: &CostGraph, order: &[NodeIx]) -> Vec<Vec<NodeIx>> {
    let is_made = |node: NodeIx| graph.inputs(node).iter().all(|&read| order.contains(&graph.producer(read)));
    let next = graph.nodes().filter(|&node| !order.contains(&node) && is_made(node));
    next.map(|node| order.iter().copied().chain([node]).collect()).collect()
}

/// The lowest arenas of all orders are caps that a schedule meets without being told the order, but for the bytes between
/// buffers.
#[test]
fn an_order_that_fits_is_found_where_there_is_one() {
    for seed in 0..60 {
        let mut rng = Rng::new(500 + seed);
        let (graph, _) = random(&mut rng, 5 + seed as usize % 4);
        let count = 1 + seed as u32 % 2;
        let roomy = devices(count, 1 << 40);
        let ids: Vec<_> = roomy.ids().collect();
        let device = graph.nodes().map(|_| ids[rng.below(count.into()) as usize]).collect();
        let placement = Placement { device, ..Placement::default() };
        let options = schedule::Options::default();
        let arena = |order: &Vec<NodeIx>| {
            let made = schedule_in_order(&graph, &roomy, &placement, order, &options)
                .unwrap()
                .pack(&graph, Packing::new(1 << 20));
            made.devices.iter().map(|device| device.arena).max().unwrap()
        };
        let lowest = orders(&graph).iter().map(arena).min().unwrap();
        let tight =
            schedule::Options { caps: vec![lowest + Bytes(ALIGNMENT); count as usize], ..options.clone() };
        let made = schedule::schedule(&graph, &roomy, &placement, &tight);
        assert!(made.is_ok(), "seed {seed}: {lowest} bytes are enough");
    }
}
