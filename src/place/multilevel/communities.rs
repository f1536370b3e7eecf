//! Communities: vertices that share more than the weight of their nets lets expect. Coarsening that keeps inside of
//! them does not cover up the cheap cuts between them.
//!
//! Source: Heuer, Schlag, Improving Coarsening Schemes for Hypergraph Partitioning by Exploiting Community Structure,
//! 2017; the method of Blondel, Guillaume, Lambiotte, Lefebvre, Fast Unfolding of Communities in Large Networks, 2008.

use super::coarsen::numbered;
use super::hypergraph::Hypergraph;
use crate::csr::Csr;
use crate::random::Rng;

/// Rounds over the nodes of a level at most.
const ROUNDS: usize = 8;

/// A level is the last where fewer nodes than one in so many joined others.
const WORTHWHILE: usize = 50;

/// The number of a community for each vertex. O(pins) a round.
pub(super) fn communities(graph: &Hypergraph, rng: &mut Rng) -> Vec<u32> {
    let mut level = Weighted::bipartite(graph);
    let mut of: Vec<u32> = (0..level.len() as u32).collect();
    loop {
        let (community, count) = level.joined(rng);
        of.iter_mut().for_each(|node| *node = community[*node as usize]);
        let few = (level.len() - count) * WORTHWHILE <= level.len();
        if few || count == 1 {
            of.truncate(graph.len());
            return of;
        }
        level = level.contracted(&community, count);
    }
}

/// An edge of a node: its other end, and its weight.
type Edge = (u32, u64);

/// A graph with weights. Weight inside a node counts in its volume alone.
struct Weighted {
    /// The edges of each node.
    edges: Csr<Edge>,
    /// Weight of the edges of each node.
    volume: Vec<u64>,
}

impl Weighted {
    /// A node for each vertex and, after those, for each net; an edge for each pin, with its share of the net.
    fn bipartite(graph: &Hypergraph) -> Self {
        let vertices = graph.len();
        let share = |net: usize| graph.weight[net] / graph.nets.row(net).len().max(1) as u64 + 1;
        let mut edges = Csr::new();
        for vertex in 0..vertices {
            let nets = graph.of_vertex.row(vertex);
            nets.iter().for_each(|&net| edges.push(((vertices + net as usize) as u32, share(net as usize))));
            edges.end_row();
        }
        for net in 0..graph.nets.len() {
            graph.nets.row(net).iter().for_each(|&pin| edges.push((pin, share(net))));
            edges.end_row();
        }
        let volume = |node: usize| edges.row(node).iter().map(|&(_, weight)| weight).sum();
        Self { volume: (0..edges.len()).map(volume).collect(), edges }
    }

    fn len(&self) -> usize {
        self.volume.len()
    }

    /// Node after node joins the community that adds most to the modularity, until few do; communities, and how many.
    fn joined(&self, rng: &mut Rng) -> (Vec<u32>, usize) {
        let count = self.len();
        let all = self.volume.iter().map(|&volume| i128::from(volume)).sum::<i128>().max(1);
        let mut of: Vec<u32> = (0..count as u32).collect();
        let mut volume = self.volume.clone();
        let mut near = Near { weight: vec![0; count], found: Vec::new() };
        let nodes: Vec<u32> = of.clone();
        for _ in 0..ROUNDS {
            let mut moved = 0;
            for node in rng.chunks(&nodes).concat() {
                let own = of[node as usize];
                near.gather(self.edges.row(node as usize), &of);
                volume[own as usize] -= self.volume[node as usize];
                // What is saved over the expectation, times the weight of all edges.
                let gain = |community: u32, weight: u64| {
                    let expected =
                        i128::from(self.volume[node as usize]) * i128::from(volume[community as usize]);
                    i128::from(weight) * all - expected
                };
                let stay = (gain(own, near.weight[own as usize]), own);
                let found = near.found.iter().map(|&to| (gain(to, near.weight[to as usize]), to));
                let best = found.fold(stay, |best, one| if one.0 > best.0 { one } else { best });
                near.forget();
                volume[best.1 as usize] += self.volume[node as usize];
                of[node as usize] = best.1;
                moved += usize::from(best.1 != own);
            }
            if moved * WORTHWHILE < count {
                break;
            }
        }
        numbered(of.iter().copied(), count)
    }

    /// The graph of the communities.
    fn contracted(&self, community: &[u32], count: usize) -> Self {
        let members = Csr::grouped(community, count);
        let mut near = Near { weight: vec![0; count], found: Vec::new() };
        let (mut edges, mut volume) = (Csr::new(), Vec::with_capacity(count));
        for number in 0..count {
            let nodes = members.row(number).iter().map(|&node| node as usize);
            nodes.clone().for_each(|node| near.gather(self.edges.row(node), community));
            let others = near.found.iter().filter(|&&to| to as usize != number);
            others.for_each(|&to| edges.push((to, near.weight[to as usize])));
            edges.end_row();
            near.forget();
            volume.push(nodes.map(|node| self.volume[node]).sum());
        }
        Self { edges, volume }
    }
}

/// Weight towards each community around a node.
struct Near {
    /// By community; 0 where none.
    weight: Vec<u64>,
    found: Vec<u32>,
}

impl Near {
    /// Adds the weight of edges to the communities that they end in.
    fn gather(&mut self, edges: &[Edge], community: &[u32]) {
        for &(end, weight) in edges {
            let to = community[end as usize];
            if self.weight[to as usize] == 0 {
                self.found.push(to);
            }
            self.weight[to as usize] += weight;
        }
    }

    fn forget(&mut self) {
        self.found.drain(..).for_each(|community| self.weight[community as usize] = 0);
    }
}
