//! Coarsening: neighbours that share the heaviest nets become clusters, level by level, until few
//! vertices are left. Vertex by vertex it keeps clusters alike; net by net, the heaviest first, it keeps together what
//! is dear to cut, whatever is left over: where weights span orders, that is what balance has to be found with. Or what
//! lies above the [`bottleneck`](super::bottleneck) becomes one vertex first.
//!
//! Source: heavy-edge rating, sum of w(e) / (|e| - 1), of hMETIS and KaHyPar; clusters by joining
//! as in Akhremtsev, Heuer, Sanders, Schlag, Engineering a Direct k-way Hypergraph Partitioning
//! Algorithm, 2017. Net by net: Kruskal, On the Shortest Spanning Subtree of a Graph, 1956, which single-linkage
//! clustering is, with a limit.

use super::arcs::Bands;
use super::bottleneck;
use super::contract::contract;
use super::hypergraph::{Blocks, Hypergraph};
use crate::place::problem::NONE;
use crate::random::Rng;

/// Of a net with more vertices than twice this, those are rated that come this closely before or
/// after a vertex: in another microbatch that reads the same parameters, say.
const RATED: usize = 32;

/// One level may shrink by this much at most, in tenths: slower coarsening keeps more choice.
const MOST_SHRINK: usize = 20;

/// As [`MOST_SHRINK`], of levels above the one where the search begins: little is decided there, and each costs time.
const MOST_SHRINK_ABOVE: usize = 30;

/// How far a hypergraph is made smaller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Vertices down to which it is in the end: what one may weigh follows from that.
    pub(super) enough: usize,
    /// Vertices at which it stops before that.
    pub(super) stop: usize,
    /// Pins at which it stops as well.
    pub(super) stop_pins: usize,
    /// How clusters are made; one of these is drawn.
    pub(super) merging: &'static [Merging],
}

impl Extent {
    /// How many vertices one level may lose.
    fn most_joined(&self, graph: &Hypergraph) -> usize {
        let shrink = if self.stop > 0 { MOST_SHRINK_ABOVE } else { MOST_SHRINK };
        let least = graph.len() * 10 / shrink;
        graph.len().saturating_sub(self.enough).min(graph.len() - least)
    }
}

/// How clusters are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merging {
    /// Vertex by vertex, each joins the cluster that it shares most with.
    Vertices {
        /// How many times the mean of the coarsest level a cluster may weigh.
        heavy: u64,
    },
    /// First the components of all nets above the bottleneck, then as [`Merging::Vertices`].
    Bottleneck {
        /// As there.
        heavy: u64,
    },
    /// Net by net, the heaviest first, its vertices become one cluster.
    Nets {
        /// How many of [`PARTS`] of what the smallest block may take a cluster may.
        share: u64,
    },
}

impl Merging {
    /// Vertex by vertex, as a search from nothing does where weights are alike.
    pub(super) const VERTICES: &'static [Self] = &[Self::Vertices { heavy: 3 }];

    /// As [`Merging::VERTICES`], of what has few pins: clusters differ more from one search to the next.
    pub(super) const OF_FEW: &'static [Self] = &[Self::Vertices { heavy: 3 }, Self::Vertices { heavy: 6 }];

    /// As [`Merging::OF_FEW`], of what is left when all above the bottleneck is joined.
    pub(super) const BOTTLENECK: &'static [Self] =
        &[Self::Bottleneck { heavy: 3 }, Self::Bottleneck { heavy: 6 }];

    /// Net by net, up to a whole block, a half or a quarter.
    pub(super) const NETS: &'static [Self] =
        &[Self::Nets { share: 4 }, Self::Nets { share: 2 }, Self::Nets { share: 1 }];

    /// As [`Merging::NETS`], before a cut: smaller clusters would not show how few nets are dear.
    pub(super) const NETS_OF_CUTS: &'static [Self] = &[Self::Nets { share: 4 }, Self::Nets { share: 2 }];
}

/// What [`Merging::Nets`] counts shares in.
pub(super) const PARTS: u64 = 4;

/// Vertices that are left at least for each that a block must keep.
pub(super) const FEWEST: usize = 4;

/// One step of coarsening.
#[derive(Debug)]
pub(super) struct Level {
    /// The coarser hypergraph.
    pub(super) graph: Hypergraph,
    /// Its vertex for each vertex of the finer one.
    pub(super) cluster: Vec<u32>,
}

/// Limits of what becomes one vertex.
pub(super) struct Caps {
    time: Vec<u64>,
    bytes: u64,
}

/// Coarser and coarser hypergraphs, until few enough vertices are left or no two can be
/// merged; vertices of different `constraint` are never merged. O(pins) each.
pub(super) fn levels(
    graph: &Hypergraph,
    blocks: &Blocks,
    constraint: Option<&[u32]>,
    extent: Extent,
    rng: &mut Rng,
) -> Vec<Level> {
    let Extent { enough, stop, stop_pins, .. } = extent;
    let merging = match drawn(extent.merging, rng) {
        // Nets know no order.
        Merging::Nets { .. } | Merging::Bottleneck { .. } if blocks.ordered => Merging::VERTICES[0],
        merging => merging,
    };
    let caps = Caps::new(graph, blocks, enough, merging);
    let mut levels: Vec<Level> = Vec::new();
    let mut constraint: Option<Vec<u32>> = constraint.map(<[u32]>::to_vec);
    if matches!(merging, Merging::Bottleneck { .. }) && graph.len() > enough && blocks.bind() {
        let whole = Caps::new(graph, blocks, enough, Merging::Nets { share: PARTS });
        let fewest = FEWEST * blocks.least.iter().sum::<u32>() as usize;
        let (cluster, count) = bottleneck::components(graph, &whole, constraint.as_deref(), fewest);
        constraint = constraint.map(|constraint| project_up(&constraint, &cluster, count));
        levels.push(Level { graph: contract(graph, &cluster, count, false), cluster });
    }
    loop {
        let fine = levels.last().map_or(graph, |level| &level.graph);
        if fine.len() <= enough.max(stop) || fine.nets.entries().len() <= stop_pins {
            break;
        }
        let stalls = |count: usize| count * 20 > fine.len() * 19;
        let most = extent.most_joined(fine);
        let (cluster, count) = match merging {
            Merging::Nets { .. } => by_nets(fine, &caps, constraint.as_deref(), most, rng),
            Merging::Vertices { .. } | Merging::Bottleneck { .. } => {
                let arcs = fine.arcs.as_ref().filter(|_| blocks.ordered);
                let odd = levels.len() % 2 == 1;
                let bands = |odd: bool| arcs.map(|arcs| Bands::new(arcs, odd));
                let found = by_vertices(fine, &caps, constraint.as_deref(), bands(odd), most, rng);
                // In bands that begin one level later other pairs may be merged.
                match arcs.is_some() && stalls(found.1) {
                    true => by_vertices(fine, &caps, constraint.as_deref(), bands(!odd), most, rng),
                    false => found,
                }
            }
        };
        if stalls(count) {
            break;
        }
        let coarse = contract(fine, &cluster, count, blocks.ordered);
        constraint = constraint.map(|constraint| project_up(&constraint, &cluster, count));
        levels.push(Level { graph: coarse, cluster });
    }
    levels
}

/// One of some values; where there is one only, nothing is drawn.
pub(super) fn drawn<T: Copy>(of: &[T], rng: &mut Rng) -> T {
    if let [only] = *of { only } else { of[rng.below(of.len())] }
}

/// What the members of each cluster have in common.
pub(super) fn project_up(fine: &[u32], cluster: &[u32], count: usize) -> Vec<u32> {
    let mut coarse = vec![0; count];
    fine.iter().zip(cluster).for_each(|(&of, &to)| coarse[to as usize] = of);
    coarse
}

impl Caps {
    fn new(graph: &Hypergraph, blocks: &Blocks, enough: usize, merging: Merging) -> Self {
        let cap = |all: u64, least: u64, binds: bool| match merging {
            _ if !binds => u64::MAX,
            Merging::Vertices { heavy } | Merging::Bottleneck { heavy } => {
                all / enough.max(1) as u64 * heavy + 1
            }
            Merging::Nets { share } => least / PARTS * share,
        };
        let of_kind = |kind: usize| (0..blocks.len()).filter(move |&block| blocks.kind[block] == kind);
        let least = |kind: usize| of_kind(kind).map(|block| blocks.limit[block]).min().unwrap_or(u64::MAX);
        let time = (0..graph.kinds).map(|kind| cap(graph.total_time(kind), least(kind), blocks.time_binds()));
        let smallest = blocks.capacity.iter().min().copied().unwrap_or(u64::MAX);
        Self { time: time.collect(), bytes: cap(graph.total_bytes(), smallest, blocks.bytes_bind) }
    }
}

/// Clusters in the making: each is named by one of its members.
pub(super) struct Clusters<'g> {
    pub(super) graph: &'g Hypergraph,
    leader: Vec<u32>,
    members: Vec<u32>,
    time: Vec<u64>,
    bytes: Vec<u64>,
}

/// Joins each vertex that is still alone to the cluster that it shares most with, at `most` so many; clusters, and
/// how many. Each chunk of the order shrinks alike.
fn by_vertices(
    graph: &Hypergraph,
    caps: &Caps,
    constraint: Option<&[u32]>,
    mut bands: Option<Bands<'_>>,
    most: usize,
    rng: &mut Rng,
) -> (Vec<u32>, usize) {
    let mut clusters = Clusters::new(graph);
    let mut ratings = Ratings { of: vec![0; graph.len()], rated: Vec::new() };
    let all: Vec<u32> = (0..graph.len() as u32).collect();
    for chunk in rng.chunks(&all) {
        let mut joined = 0;
        for vertex in chunk.iter().copied() {
            if joined * graph.len() >= most * chunk.len() {
                break;
            }
            if clusters.members[clusters.leader[vertex as usize] as usize] > 1 {
                continue;
            }
            ratings.rate(graph, &clusters.leader, vertex);
            let same = |other: u32| {
                constraint.is_none_or(|constraint| constraint[other as usize] == constraint[vertex as usize])
            };
            let acyclic = |other: u32| {
                let members = clusters.members[other as usize];
                bands.as_ref().is_none_or(|bands| bands.allow(vertex, other, members))
            };
            let fits = |other: u32| same(other) && clusters.can_join(vertex, other, caps) && acyclic(other);
            if let Some(other) = ratings.best(fits, rng) {
                clusters.join(vertex, other);
                bands.iter_mut().for_each(|bands| bands.join(vertex, other));
                joined += 1;
            }
        }
    }
    clusters.numbered()
}

/// Joins the vertices of each net, the heaviest for each of them first, as far as limits allow, and at `most` so many;
/// clusters, and how many.
/// O(pins log nets).
fn by_nets(
    graph: &Hypergraph,
    caps: &Caps,
    constraint: Option<&[u32]>,
    most: usize,
    rng: &mut Rng,
) -> (Vec<u32>, usize) {
    let share = |net: usize| graph.weight[net] / (graph.nets.row(net).len() as u64 - 1).max(1);
    // Equals by chance.
    let mut nets: Vec<(u64, u64, u32)> =
        (0..graph.nets.len()).map(|net| (share(net), rng.next_u64(), net as u32)).collect();
    nets.sort_unstable_by(|one, other| other.cmp(one));
    let mut clusters = Clusters::new(graph);
    let mut left = most;
    let same = |one: u32, other: u32| {
        constraint.is_none_or(|constraint| constraint[one as usize] == constraint[other as usize])
    };
    for (.., net) in nets {
        let Some((&first, others)) = graph.nets.row(net as usize).split_first() else { continue };
        let into = clusters.root(first);
        for &pin in others {
            let other = clusters.root(pin);
            if left == 0 {
                return clusters.numbered();
            }
            if other != into && same(other, into) && clusters.can_join(other, into, caps) {
                clusters.join(other, into);
                left -= 1;
            }
        }
    }
    clusters.numbered()
}

/// What the clusters around a vertex share with it.
struct Ratings {
    /// By leader of the cluster; 0 where nothing.
    of: Vec<u64>,
    /// Leaders with a rating.
    rated: Vec<u32>,
}

impl Ratings {
    /// Rates the clusters around a vertex.
    fn rate(&mut self, graph: &Hypergraph, leader: &[u32], vertex: u32) {
        for &net in graph.of_vertex.row(vertex as usize) {
            let pins = graph.nets.row(net as usize);
            let close = if pins.len() <= 2 * RATED {
                pins
            } else {
                let at = pins.partition_point(|&pin| pin < vertex);
                &pins[at.saturating_sub(RATED)..pins.len().min(at + RATED)]
            };
            // At least one, so that nets of little weight still join.
            let share = graph.weight[net as usize] / (pins.len() as u64 - 1).max(1) + 1;
            for &pin in close.iter().filter(|&&pin| pin != vertex) {
                let other = leader[pin as usize];
                if self.of[other as usize] == 0 {
                    self.rated.push(other);
                }
                self.of[other as usize] += share;
            }
        }
    }

    /// Takes the best of those that fit, and forgets all; equals by chance.
    fn best(&mut self, fits: impl Fn(u32) -> bool, rng: &mut Rng) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        for other in self.rated.drain(..) {
            let rating = std::mem::take(&mut self.of[other as usize]);
            let better = best.is_none_or(|(most, _)| rating > most || (rating == most && rng.below(2) == 0));
            if better && fits(other) {
                best = Some((rating, other));
            }
        }
        best.map(|(_, other)| other)
    }
}

impl<'g> Clusters<'g> {
    /// Each vertex alone.
    pub(super) fn new(graph: &'g Hypergraph) -> Self {
        Self {
            graph,
            leader: (0..graph.len() as u32).collect(),
            members: vec![1; graph.len()],
            time: graph.time.clone(),
            bytes: graph.bytes.clone(),
        }
    }

    pub(super) fn can_join(&self, vertex: u32, other: u32, caps: &Caps) -> bool {
        let (v, o, kinds) = (vertex as usize, other as usize, self.graph.kinds);
        let time = |kind: usize| self.time[v * kinds + kind].saturating_add(self.time[o * kinds + kind]);
        self.graph.class[v] == self.graph.class[o]
            && caps.time.iter().enumerate().all(|(kind, &cap)| time(kind) <= cap)
            && self.bytes[v].saturating_add(self.bytes[o]) <= caps.bytes
    }

    pub(super) fn join(&mut self, vertex: u32, other: u32) {
        let (v, o, kinds) = (vertex as usize, other as usize, self.graph.kinds);
        self.leader[v] = other;
        self.members[o] += 1;
        self.bytes[o] = self.bytes[o].saturating_add(self.bytes[v]);
        for kind in 0..kinds {
            self.time[o * kinds + kind] =
                self.time[o * kinds + kind].saturating_add(self.time[v * kinds + kind]);
        }
    }

    /// The leader of the cluster that a vertex has come to be in. Paths to it are halved on the way.
    pub(super) fn root(&mut self, mut vertex: u32) -> u32 {
        loop {
            let leader = self.leader[vertex as usize];
            if leader == vertex {
                return vertex;
            }
            self.leader[vertex as usize] = self.leader[leader as usize];
            vertex = leader;
        }
    }

    /// The cluster of each vertex, and how many there are.
    pub(super) fn numbered(&mut self) -> (Vec<u32>, usize) {
        let count = self.graph.len();
        numbered((0..count as u32).map(|vertex| self.root(vertex)), count)
    }
}

/// Groups numbered by their first member, and how many; `of` names each by one of `count` members.
pub(super) fn numbered(of: impl Iterator<Item = u32>, count: usize) -> (Vec<u32>, usize) {
    let mut number = vec![NONE; count];
    let mut groups = 0;
    let numbered = of.map(|name| {
        let number = &mut number[name as usize];
        if *number == NONE {
            *number = groups;
            groups += 1;
        }
        *number
    });
    let numbered = numbered.collect();
    (numbered, groups as usize)
}
