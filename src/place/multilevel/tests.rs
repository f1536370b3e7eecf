//! Partitions of small random hypergraphs against enumeration and recomputation.

use super::arcs::Arcs;
use super::bisect::{self, Leeway};
use super::coarsen::{self, Extent, Merging};
use super::communities::communities;
use super::contract::contract;
use super::cycle::{self, Scheme, Start};
use super::effort::Clustering;
use super::escape;
use super::flows::{self, Cuts};
use super::fm::{self, Search};
use super::hypergraph::{Blocks, Hypergraph};
use super::label;
use super::nested::{self, Nested};
use super::rebalance::rebalance;
use super::state::State;
use super::stopping;
use crate::control::Control;
use crate::csr::Csr;
use crate::random::Rng;

const SEARCH: Search = Search {
    passes: 10,
    seeds: 25,
    fruitless: 200,
    patience: stopping::USUAL,
    worthwhile: 400,
    beyond: 1,
    cuts: Cuts { work: 1_000_000, most: 1000 },
};

const EXTENT: Extent = Extent { enough: 20, stop: 0, stop_pins: 0, merging: Merging::VERTICES };

const SCHEME: Scheme<'static> = Scheme {
    extent: Extent { enough: 50, stop: 0, stop_pins: 0, merging: Merging::VERTICES },
    communities: None,
    cuts: bisect::Effort::ALL,
    leeway: 0,
    nested: None,
    search: SEARCH,
};

/// A hypergraph of `vertices` with nets of two to five of them that lie near one another.
fn random(vertices: usize, nets: usize, rng: &mut Rng) -> Hypergraph {
    let mut graph = Hypergraph {
        nets: Csr::new(),
        kinds: 1,
        time: (0..vertices).map(|_| 1 + rng.below(9) as u64).collect(),
        bytes: (0..vertices).map(|_| rng.below(5) as u64).collect(),
        class: vec![0; vertices],
        positions: vec![(0..vertices as u32).collect()],
        ..Hypergraph::default()
    };
    for _ in 0..nets {
        let first = rng.below(vertices);
        let mut pins: Vec<u32> =
            (0..2 + rng.below(4)).map(|_| ((first + rng.below(8)) % vertices) as u32).collect();
        pins.sort_unstable();
        pins.dedup();
        if pins.len() > 1 {
            pins.iter().for_each(|&pin| graph.nets.push(pin));
            graph.nets.end_row();
            graph.weight.push(1 + rng.below(100) as u64);
            graph.resident.push(rng.below(3) as u64);
        }
    }
    graph.of_vertex = graph.nets.transposed(vertices);
    graph
}

/// Equal blocks that may take a little more than their share.
fn balanced(graph: &Hypergraph, count: usize, percent: u64) -> Blocks {
    let limit = graph.total_time(0) * (100 + percent) / (100 * count as u64) + 1;
    Blocks {
        kind: vec![0; count],
        limit: vec![limit; count],
        capacity: vec![u64::MAX; count],
        may: vec![true; count],
        least: vec![0; count],
        bytes_bind: false,
        ordered: false,
    }
}

fn scattered(graph: &Hypergraph, count: usize, rng: &mut Rng) -> Vec<u32> {
    (0..graph.len()).map(|_| rng.below(count) as u32).collect()
}

/// The fewest bytes of all assignments within the limits.
fn enumerated(graph: &Hypergraph, blocks: &Blocks) -> Option<u64> {
    let (vertices, count) = (graph.len(), blocks.len());
    let of = |number: usize, vertex: usize| (number / count.pow(vertex as u32) % count) as u32;
    let all = (0..count.pow(vertices as u32)).map(|number| (0..vertices).map(|v| of(number, v)).collect());
    let within = |block: &Vec<u32>| State::new(graph, blocks, block.clone()).excess() == (0, 0);
    all.filter(within).map(|block: Vec<u32>| graph.connectivity(&block)).min()
}

#[test]
fn tiny_hypergraphs_are_partitioned_as_well_as_enumeration_can() {
    let mut rng = Rng::new(11);
    let control = Control::new().threads(1);
    let (mut found, mut best) = (0, 0);
    for case in 0..40 {
        let (vertices, count) = if case % 2 == 0 { (10, 2) } else { (7, 3) };
        let graph = random(vertices, 2 * vertices, &mut rng);
        let blocks = balanced(&graph, count, 20);
        let Some(optimum) = enumerated(&graph, &blocks) else { continue };
        let parts = (0..4).map(|_| cycle::partition(&graph, &blocks, None, SCHEME, &mut rng, &control));
        let within = parts.filter(|block| State::new(&graph, &blocks, block.clone()).excess() == (0, 0));
        let bytes = within.map(|block| graph.connectivity(&block)).min();
        let bytes = bytes.expect("enumeration found a partition within the limits");
        assert!(bytes >= optimum);
        (found, best) = (found + bytes, best + optimum);
    }
    assert!(found * 100 <= best * 103, "{found} bytes where {best} will do");
}

#[test]
fn gains_are_what_moving_changes() {
    let mut rng = Rng::new(5);
    for _ in 0..20 {
        let graph = random(30, 60, &mut rng);
        let blocks = balanced(&graph, 4, 1000);
        let block = scattered(&graph, 4, &mut rng);
        let mut state = State::new(&graph, &blocks, block);
        for _ in 0..200 {
            let (vertex, to) = (rng.below(30) as u32, rng.below(4) as u32);
            if to == state.block[vertex as usize] {
                continue;
            }
            let (before, gain) = (graph.connectivity(&state.block), state.gain(vertex, to as usize));
            state.shift(vertex, to);
            let after = graph.connectivity(&state.block);
            assert_eq!(before as i64 - after as i64, gain);
            let anew = State::new(&graph, &blocks, state.block.clone());
            assert_eq!((&anew.load, &anew.resident), (&state.load, &state.resident));
            assert_eq!(anew.connectivity(), after);
            let gains = |of: &State<'_>| -> Vec<i64> {
                (0..30).flat_map(|v| (0..4).map(move |b| (v, b))).map(|(v, b)| of.gain(v, b)).collect()
            };
            assert_eq!(gains(&anew), gains(&state));
        }
    }
}

#[test]
fn refinement_never_costs_bytes_nor_breaks_limits() {
    let mut rng = Rng::new(8);
    let control = Control::new().threads(1);
    for _ in 0..30 {
        let graph = random(120, 240, &mut rng);
        let blocks = balanced(&graph, 5, 10);
        let block = scattered(&graph, 5, &mut rng);
        let mut state = State::new(&graph, &blocks, block);
        rebalance(&mut state);
        assert_eq!(state.excess(), (0, 0));
        let mut before = state.connectivity();
        for step in 0..4 {
            match step % 2 {
                0 => label::propagate(&mut state, 3, &mut rng, &control),
                _ => fm::refine(&mut state, SEARCH, &mut rng, &control),
            }
            let after = state.connectivity();
            assert!(after <= before && state.excess() == (0, 0));
            before = after;
        }
    }
}

#[test]
fn rooms_and_classes_are_kept() {
    let mut rng = Rng::new(21);
    let control = Control::new().threads(1);
    for _ in 0..10 {
        let mut graph = random(100, 200, &mut rng);
        (0..4).for_each(|vertex| graph.class[25 * vertex] = 1 + (vertex % 2) as u32);
        let mut blocks = balanced(&graph, 3, 40);
        blocks.may = vec![true, true, true, true, false, false, false, true, true];
        blocks.capacity = vec![graph.total_bytes() * 45 / 100; 3];
        blocks.bytes_bind = true;
        let block = cycle::partition(&graph, &blocks, None, SCHEME, &mut rng, &control);
        let state = State::new(&graph, &blocks, block);
        assert_eq!(state.excess(), (0, 0));
        let allowed = |vertex: usize| blocks.may(graph.class[vertex], state.block[vertex] as usize);
        assert!((0..graph.len()).all(allowed));
    }
}

#[test]
fn a_coarse_partition_costs_what_it_stands_for() {
    let mut rng = Rng::new(2);
    for _ in 0..20 {
        let graph = random(200, 400, &mut rng);
        let blocks = balanced(&graph, 4, 50);
        let levels = coarsen::levels(&graph, &blocks, None, EXTENT, &mut rng);
        assert!(levels.last().is_some_and(|level| level.graph.len() < 60));
        let mut fine: Option<&Hypergraph> = None;
        for level in &levels {
            let before = fine.unwrap_or(&graph);
            let block = scattered(&level.graph, 4, &mut rng);
            let spread: Vec<u32> = level.cluster.iter().map(|&cluster| block[cluster as usize]).collect();
            assert_eq!(before.connectivity(&spread), level.graph.connectivity(&block));
            let (coarse, exact) =
                (State::new(&level.graph, &blocks, block), State::new(before, &blocks, spread));
            assert_eq!((coarse.load, coarse.resident), (exact.load, exact.resident));
            fine = Some(&level.graph);
        }
    }
}

#[test]
fn a_cycle_keeps_what_was_good() {
    let mut rng = Rng::new(4);
    let control = Control::new().threads(1);
    let graph = random(3000, 5000, &mut rng);
    let blocks = balanced(&graph, 4, 5);
    let first = cycle::partition(&graph, &blocks, None, SCHEME, &mut rng, &control);
    let before = graph.connectivity(&first);
    let again = cycle::partition(
        &graph,
        &blocks,
        Some(Start { block: first, other: None }),
        SCHEME,
        &mut rng,
        &control,
    );
    assert!(graph.connectivity(&again) <= before);
    assert_eq!(State::new(&graph, &blocks, again).excess(), (0, 0));
}

#[test]
fn identical_nets_become_one_and_inner_nets_bytes() {
    let mut graph = random(4, 0, &mut Rng::new(1));
    for pins in [[0, 1], [0, 2], [1, 3]] {
        pins.iter().for_each(|&pin| graph.nets.push(pin));
        graph.nets.end_row();
    }
    (graph.weight, graph.resident, graph.bytes) = (vec![1, 10, 100], vec![2, 20, 200], vec![0; 4]);
    graph.of_vertex = graph.nets.transposed(4);
    let coarse = contract(&graph, &[0, 0, 1, 1], 2, false);
    assert_eq!((coarse.nets.len(), &coarse.weight, &coarse.resident), (1, &vec![110], &vec![220]));
    assert_eq!(coarse.bytes, [2, 0]);
}

/// As [`random`], with arcs from lower numbers to higher ones along the nets.
fn random_with_arcs(vertices: usize, nets: usize, rng: &mut Rng) -> Hypergraph {
    let mut graph = random(vertices, nets, rng);
    let mut next = vec![Vec::new(); vertices];
    for net in 0..graph.nets.len() {
        let (first, others) = graph.nets.row(net).split_first().expect("nets have vertices");
        next[*first as usize].extend_from_slice(others);
    }
    graph.arcs = Some(Arcs::new(next.iter().map(|next| next.iter().copied())));
    graph
}

#[test]
fn acyclic_partitions_are_nearly_as_good_as_the_best_of_them() {
    let mut rng = Rng::new(17);
    let control = Control::new().threads(1);
    let (mut found, mut best) = (0, 0);
    for case in 0..40 {
        let (vertices, count) = if case % 2 == 0 { (10, 2) } else { (7, 3) };
        let graph = random_with_arcs(vertices, 2 * vertices, &mut rng);
        let arcs = graph.arcs.as_ref().expect("it has arcs");
        let blocks = Blocks { ordered: true, ..balanced(&graph, count, 20) };
        let of = |number: usize, vertex: usize| (number / count.pow(vertex as u32) % count) as u32;
        let all =
            (0..count.pow(vertices as u32)).map(|n| (0..vertices).map(|v| of(n, v)).collect::<Vec<_>>());
        let within = |block: &Vec<u32>| {
            arcs.ascend(block) && State::new(&graph, &blocks, block.clone()).excess() == (0, 0)
        };
        let Some(optimum) = all.filter(within).map(|block| graph.connectivity(&block)).min() else {
            continue;
        };
        let parts = (0..4).map(|_| cycle::partition(&graph, &blocks, None, SCHEME, &mut rng, &control));
        let parts: Vec<Vec<u32>> = parts.collect();
        assert!(parts.iter().all(|block| arcs.ascend(block)), "data goes back");
        let Some(bytes) = parts.iter().filter(|&block| within(block)).map(|b| graph.connectivity(b)).min()
        else {
            continue;
        };
        assert!(bytes >= optimum);
        (found, best) = (found + bytes, best + optimum);
    }
    assert!(best > 0 && found * 100 <= best * 110, "{found} bytes where {best} will do");
}

#[test]
fn what_is_merged_along_arcs_closes_no_cycle() {
    let mut rng = Rng::new(23);
    for _ in 0..20 {
        let graph = random_with_arcs(300, 500, &mut rng);
        let blocks = Blocks { ordered: true, ..balanced(&graph, 4, 10) };
        let levels = coarsen::levels(&graph, &blocks, None, EXTENT, &mut rng);
        assert!(levels.len() > 2, "little is merged");
        for level in &levels {
            let rank: Vec<u32> = (0..level.graph.len() as u32).collect();
            let arcs = level.graph.arcs.as_ref().expect("arcs are kept");
            assert_eq!(arcs.order(&rank).len(), rank.len(), "a cycle");
        }
    }
}

#[test]
fn minimum_cuts_and_searches_beyond_the_limits_only_ever_save_bytes() {
    let mut rng = Rng::new(23);
    let control = Control::new().threads(1);
    let cuts = Cuts { work: 1_000_000, most: 1000 };
    let mut helped = [false; 2];
    for case in 0..60 {
        let graph = random(60, 120, &mut rng);
        let count = 2 + case % 3;
        let blocks = balanced(&graph, count, 10);
        let block = scattered(&graph, count, &mut rng);
        let mut state = State::new(&graph, &blocks, block);
        rebalance(&mut state);
        for (number, helped) in helped.iter_mut().enumerate() {
            let (excess, bytes) = (state.excess(), state.connectivity());
            match number {
                0 => flows::refine(&mut state, cuts, &mut rng, &control),
                _ => escape::refine(&mut state, SEARCH, &mut rng, &control),
            }
            let anew = State::new(&graph, &blocks, state.block.clone());
            assert_eq!((anew.excess(), anew.connectivity()), (state.excess(), state.connectivity()));
            assert!((state.excess(), state.connectivity()) <= (excess, bytes));
            assert_eq!(state.connectivity(), graph.connectivity(&state.block));
            *helped |= state.connectivity() < bytes;
        }
    }
    assert_eq!(helped, [true; 2]);
}

/// Of two blocks, a minimum cut within the limits is found as enumeration finds it, as far as the region goes.
#[test]
fn a_minimum_cut_moves_a_large_piece_at_once() {
    // Four vertices on a heavy ring, two of them on the wrong side; single moves only cost.
    let mut graph = random(8, 0, &mut Rng::new(1));
    graph.time = vec![1; 8];
    let nets: [(&[u32], u64); 9] = [
        (&[0, 1], 50),
        (&[1, 2], 50),
        (&[2, 3], 50),
        (&[3, 0], 50),
        (&[4, 5], 50),
        (&[5, 6], 50),
        (&[6, 7], 50),
        (&[7, 4], 50),
        (&[0, 4], 1),
    ];
    for (pins, weight) in nets {
        pins.iter().for_each(|&pin| graph.nets.push(pin));
        graph.nets.end_row();
        graph.weight.push(weight);
        graph.resident.push(0);
    }
    graph.of_vertex = graph.nets.transposed(8);
    let blocks = balanced(&graph, 2, 60);
    let mut state = State::new(&graph, &blocks, vec![0, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(state.connectivity(), 101);
    let cuts = Cuts { work: 1_000_000, most: 1000 };
    flows::refine(&mut state, cuts, &mut Rng::new(3), &Control::new().threads(1));
    assert_eq!(state.connectivity(), 1, "{:?}", state.block);
}

/// Vertices that take so much time, with nets of two of them each and their weights.
fn of_pairs(time: Vec<u64>, pairs: impl Iterator<Item = ([usize; 2], u64)>) -> Hypergraph {
    let vertices = time.len();
    let mut graph = Hypergraph {
        nets: Csr::new(),
        kinds: 1,
        time,
        bytes: vec![0; vertices],
        class: vec![0; vertices],
        positions: vec![(0..vertices as u32).collect()],
        ..Hypergraph::default()
    };
    for (mut pins, weight) in pairs {
        pins.sort_unstable();
        pins.iter().for_each(|&pin| graph.nets.push(pin as u32));
        graph.nets.end_row();
        graph.weight.push(weight);
        graph.resident.push(0);
    }
    graph.of_vertex = graph.nets.transposed(vertices);
    graph
}

/// So many groups of `size` vertices in a ring: every pair inside of a group shares a net, neighbours a light one.
fn groups(count: usize, size: usize) -> Hypergraph {
    let vertices = count * size;
    let inside = |group: usize| {
        let members = group * size..(group + 1) * size;
        members.clone().flat_map(move |one| (one + 1..members.end).map(move |other| ([one, other], 10)))
    };
    let next = |group: usize| ([group * size, (group + 1) * size % vertices], 3);
    of_pairs(vec![1; vertices], (0..count).flat_map(|group| inside(group).chain([next(group)])))
}

#[test]
fn communities_are_what_shares_much() {
    let graph = groups(12, 5);
    let of = communities(&graph, &mut Rng::new(7));
    assert_eq!(of, communities(&graph, &mut Rng::new(7)), "the same seed gives the same");
    let alike = |group: usize| of[group * 5..group * 5 + 5].iter().all(|&one| one == of[group * 5]);
    assert!((0..12).all(alike), "{of:?}");
    let mut firsts: Vec<u32> = (0..12).map(|group| of[group * 5]).collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert!(firsts.len() >= 4, "the modularity of 12 groups does not merge them all: {of:?}");
}

#[test]
fn net_by_net_the_heaviest_are_kept_whole_as_far_as_limits_allow() {
    let mut rng = Rng::new(8);
    for _ in 0..20 {
        let graph = random(300, 700, &mut rng);
        let blocks = balanced(&graph, 3, 5);
        let apart: Vec<u32> = (0..300).map(|vertex| vertex % 2).collect();
        for constraint in [None, Some(&apart[..])] {
            let merging = &[Merging::Nets { share: 2 }];
            let levels = coarsen::levels(
                &graph,
                &blocks,
                constraint,
                Extent { enough: 20, stop: 0, stop_pins: 0, merging },
                &mut rng,
            );
            let mut of: Vec<u32> = (0..300).collect();
            for level in &levels {
                of.iter_mut().for_each(|vertex| *vertex = level.cluster[*vertex as usize]);
                let most = (0..level.graph.len()).map(|vertex| level.graph.time(vertex, 0)).max();
                assert!(most.is_some_and(|most| most <= blocks.limit[0] / 2));
            }
            if let Some(constraint) = constraint {
                let kept =
                    |one: usize, other: usize| of[one] != of[other] || constraint[one] == constraint[other];
                assert!((0..300).all(|one| (0..300).all(|other| kept(one, other))));
                continue;
            }
            // What one level after another merges first is the heaviest net for each of its vertices.
            let dearest = (0..graph.nets.len())
                .max_by_key(|&net| graph.weight[net] / (graph.nets.row(net).len() as u64 - 1));
            let pins = graph.nets.row(dearest.expect("there are nets"));
            let first = &levels.first().expect("it is made smaller").cluster;
            assert!(pins.iter().all(|&pin| first[pin as usize] == first[pins[0] as usize]));
        }
    }
}

/// As in training steps: a piece that dear nets hold together fills just a block, and a swarm of light vertices around
/// it the other. Clusters alike in time mix the two, and no balance is left that cuts only light nets.
#[test]
fn a_dear_piece_that_fills_a_block_stays_whole() {
    let mut rng = Rng::new(9);
    let (dear, light) = (120, 900);
    let vertices = dear + light;
    let time = (0..vertices).map(|vertex| if vertex < dear { 750 } else { 100 }).collect();
    let pairs = (1..vertices).map(|vertex| match vertex < dear {
        true => ([rng.below(vertex), vertex], 1_000_000),
        false => ([rng.below(dear), vertex], 10 + rng.below(1000) as u64),
    });
    let graph = of_pairs(time, pairs);
    let blocks = balanced(&graph, 2, 2);
    let control = Control::new().threads(1);
    let extent = Extent { merging: Merging::NETS, ..SCHEME.extent };
    let cuts = bisect::Effort { merging: Merging::NETS_OF_CUTS, ..bisect::Effort::VARIED };
    let scheme = Scheme { extent, cuts, ..SCHEME };
    // Up to a whole block is one of the three that are drawn.
    let found = (0..6).map(|_| cycle::partition(&graph, &blocks, None, scheme, &mut rng, &control));
    let within = found.filter(|block| State::new(&graph, &blocks, block.clone()).excess() == (0, 0));
    let best = within.map(|block| graph.connectivity(&block)).min();
    assert!(best.is_some_and(|best| best < 1_000_000), "{best:?}");
}

/// The parts that nets of this weight and more hold together, found by walking: for each vertex, its first one.
fn walked(graph: &Hypergraph, least: u64, constraint: Option<&[u32]>) -> Vec<usize> {
    let same = |one: usize, other: usize| constraint.is_none_or(|of| of[one] == of[other]);
    let mut first: Vec<usize> = (0..graph.len()).collect();
    loop {
        let before = first.clone();
        for net in (0..graph.nets.len()).filter(|&net| graph.weight[net] >= least) {
            let pins = graph.nets.row(net);
            // Components are joined to that of the net's first vertex alone, where they may be.
            let into = pins[0] as usize;
            for other in pins.iter().map(|&pin| pin as usize).filter(|&other| same(into, other)) {
                let (one, other) = (first[into], first[other]);
                let least = one.min(other);
                first.iter_mut().filter(|of| [one, other].contains(of)).for_each(|of| *of = least);
            }
        }
        if first == before {
            return first;
        }
    }
}

#[test]
fn above_the_bottleneck_all_is_joined_and_fits_a_block() {
    let mut rng = Rng::new(21);
    for _ in 0..6 {
        let graph = random(120, 150, &mut rng);
        let blocks = balanced(&graph, 4, 5);
        let apart: Vec<u32> = (0..120).map(|vertex| vertex / 60).collect();
        for constraint in [None, Some(&apart[..])] {
            let merging = &[Merging::Bottleneck { heavy: 3 }];
            let extent = Extent { enough: 100, stop: 0, stop_pins: 0, merging };
            let levels = coarsen::levels(&graph, &blocks, constraint, extent, &mut rng);
            let found = &levels.first().expect("something is joined").cluster;
            let fits = |of: &[usize]| {
                let time =
                    |part: usize| (0..120).filter(|&v| of[v] == part).map(|v| graph.time(v, 0)).sum::<u64>();
                (0..120).all(|part| time(part) <= blocks.limit[0] / 4 * 4)
            };
            // From the lightest up: the first weight with which all parts fit.
            let expected = (1..=101).map(|least| walked(&graph, least, constraint)).find(|of| fits(of));
            let expected = expected.expect("single vertices fit");
            let alike =
                |one: usize, other: usize| (found[one] == found[other]) == (expected[one] == expected[other]);
            assert!((0..120).all(|one| (0..120).all(|other| alike(one, other))));
        }
    }
}

/// As in training steps: pieces that dear nets hold together fill a block just so, each of two such pieces that a net a
/// little less dear joins, and a swarm of light vertices hangs on every piece by nets that cost next to nothing.
#[test]
fn what_is_above_the_bottleneck_is_not_cut() {
    let mut rng = Rng::new(22);
    let (pieces, size, swarm) = (6, 40, 600);
    let core = pieces * size;
    let vertices = core + swarm;
    let time = (0..vertices).map(|vertex| if vertex < core { 1000 } else { 200 }).collect();
    let pairs = (1..vertices).map(|vertex| match (vertex < core, vertex % size) {
        (true, 0) if vertex / size % 2 == 1 => ([vertex - 1, vertex], 400_000),
        (true, 0) => ([vertex - 1, vertex], 50_000),
        (true, _) => ([vertex - 1 - rng.below(vertex % size), vertex], 3_000_000),
        (false, _) => ([rng.below(core), vertex], 10 + rng.below(100) as u64),
    });
    let graph = of_pairs(time, pairs);
    let blocks = balanced(&graph, 4, 3);
    let control = Control::new().threads(1);
    let of = |merging: &'static [Merging], rng: &mut Rng| {
        let extent = Extent { merging, ..SCHEME.extent };
        let cuts = bisect::Effort { merging, ..bisect::Effort::VARIED };
        let scheme = Scheme { extent, cuts, ..SCHEME };
        let found = cycle::partition(&graph, &blocks, None, scheme, rng, &control);
        assert_eq!(State::new(&graph, &blocks, found.clone()).excess(), (0, 0));
        graph.connectivity(&found)
    };
    // Three pairs of pieces, each just under a block, and the fourth block of swarm alone: two nets of 50,000 are cut.
    for _ in 0..4 {
        let found = of(Merging::BOTTLENECK, &mut rng);
        assert!(found < 400_000, "{found}");
    }
}

/// What several searches find among an eighth of the vertices is as good as what one finds that goes down in one.
#[test]
fn searches_among_fewer_vertices_find_as_little() {
    let control = Control::new().threads(1);
    let (mut alone, mut nested) = (0, 0);
    for seed in 0..4 {
        let graph = random(3000, 6000, &mut Rng::new(seed));
        let blocks = balanced(&graph, 4, 3);
        let of = |nested: Option<Nested>| {
            let cuts = bisect::Effort { leeways: Leeway::BOTH, ..bisect::Effort::ALL };
            let scheme = Scheme { nested, cuts, search: Search { passes: 1, ..SEARCH }, ..SCHEME };
            let found = cycle::partition(&graph, &blocks, None, scheme, &mut Rng::new(seed), &control);
            assert_eq!(State::new(&graph, &blocks, found.clone()).excess(), (0, 0));
            graph.connectivity(&found)
        };
        alone += of(None);
        nested += of(Some(Nested {
            smaller: 8,
            enough_pins: 0,
            starts: 4,
            visited: 0,
            cycles: 2,
            beyond: 0,
            ways: Clustering::USUAL,
        }));
    }
    assert!(nested < alone, "{nested} where one search comes to {alone}");
}

/// As in training steps: four pieces, of which the two that a dear net holds together are 2 % more than half of all time.
/// The cut between the pairs costs next to nothing, and is not within a half of the leeway unless light vertices move, which is dear.
#[test]
fn the_first_cut_may_take_all_leeway() {
    let mut rng = Rng::new(31);
    let (size, swarm) = (50, 400);
    let core = 4 * size;
    let vertices = core + swarm;
    // 2 x 50 x 1000 and 200 x 20 on the one side, 2 x 50 x 960 and 200 x 20 on the other.
    let time = (0..vertices).map(|vertex| match vertex {
        _ if vertex >= core => 20,
        _ if vertex < 2 * size => 1000,
        _ => 960,
    });
    let time: Vec<u64> = time.collect();
    let pairs = (1..vertices).map(|vertex| match (vertex < core, vertex % size) {
        (true, 0) if vertex == 2 * size => ([vertex - 1, vertex], 10),
        (true, 0) => ([vertex - 1, vertex], 400_000),
        (true, _) => ([vertex - 1 - rng.below(vertex % size), vertex], 3_000_000),
        (false, _) => ([(vertex % 4) * size + rng.below(size), vertex], 1_000),
    });
    let graph = of_pairs(time, pairs);
    let blocks = balanced(&graph, 4, 3);
    let control = Control::new().threads(1);
    let of = |leeway: Leeway| {
        let first = std::sync::Mutex::new(None);
        let cut = |part: &Hypergraph, pair: &Blocks, rng: &mut Rng| {
            let side = bisect::cut(part, pair, bisect::Effort::ALL, rng, &control);
            first.lock().unwrap().get_or_insert(part.connectivity(&side));
            side
        };
        let found = bisect::partition(&graph, &blocks, leeway, cut, &mut Rng::new(5), &control);
        assert_eq!(State::new(&graph, &blocks, found).excess(), (0, 0));
        first.into_inner().unwrap().expect("there is a first cut")
    };
    assert_eq!(of(Leeway::Eager), 10);
    assert!(of(Leeway::Shared) > 1_000);
    // Each half is cut again where a dear net joins its pieces.
    let searches = Nested {
        smaller: 1,
        enough_pins: 0,
        starts: 2,
        visited: 0,
        cycles: 1,
        beyond: 0,
        ways: Clustering::OF_FEW,
    };
    let found = nested::halves(&graph, &blocks, SCHEME, searches, &mut Rng::new(5), &control);
    assert_eq!(State::new(&graph, &blocks, found.clone()).excess(), (0, 0));
    assert_eq!(graph.connectivity(&found), 2 * 400_000 + 10);
}

#[test]
fn nothing_has_no_communities() {
    assert!(communities(&groups(0, 0), &mut Rng::new(7)).is_empty());
}
