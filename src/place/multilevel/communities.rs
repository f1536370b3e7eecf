//! Communities: vertices that share more than the weight of their nets lets expect. Coarsening that keeps inside of
//! them does not cover up the cheap cuts between them.
//!
//! Source: Heuer, Schlag, Improving Coarsening Schemes for Hypergraph Partitioning by Exploiting Community Structure,
//! 2017; the method of Blondel, Guillaume, Lambiotte, Lefebvre, Fast Unfolding of Communities in Large Networks, 2008.

use super::hypergraph::Hypergraph;
use crate::place::problem::NONE;
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

/// A graph with weights. Weight inside a node counts in its volume alone.
struct Weighted {
    /// Where the edges of each node begin, and where those of the last end.
    begins: Vec<usize>,
    ends: Vec<u32>,
    weight: Vec<u64>,
    /// Weight of the edges of each node.
    volume: Vec<u64>,
}

impl Weighted {
    /// A node for each vertex and, after those, for each net; an edge for each pin, with its share of the net.
    fn bipartite(graph: &Hypergraph) -> Self {
        let vertices = graph.len();
        let share = |net: usize| graph.weight[net] / graph.nets.row(net).len().max(1) as u64 + 1;
        let mut made = Self::empty();
        for vertex in 0..vertices {
            let nets = graph.of_vertex.row(vertex);
            made.push(nets.iter().map(|&net| ((vertices + net as usize) as u32, share(net as usize))));
        }
        for net in 0..graph.nets.len() {
            made.push(graph.nets.row(net).iter().map(|&pin| (pin, share(net))));
        }
        made
    }

    fn empty() -> Self {
        Self { begins: vec![0], ends: Vec::new(), weight: Vec::new(), volume: Vec::new() }
    }

    /// Adds a node with these edges.
    fn push(&mut self, edges: impl Iterator<Item = (u32, u64)>) {
        let mut volume = 0u64;
        for (end, weight) in edges {
            self.ends.push(end);
            self.weight.push(weight);
            volume = volume.saturating_add(weight);
        }
        self.begins.push(self.ends.len());
        self.volume.push(volume);
    }

    fn len(&self) -> usize {
        self.volume.len()
    }

    fn edges(&self, node: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let range = self.begins[node]..self.begins[node + 1];
        self.ends[range.clone()].iter().copied().zip(self.weight[range].iter().copied())
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
                near.gather(self.edges(node as usize).map(|(end, weight)| (of[end as usize], weight)));
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
        numbered(&of)
    }

    /// The graph of the communities.
    fn contracted(&self, community: &[u32], count: usize) -> Self {
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); count];
        (0..self.len()).for_each(|node| members[community[node] as usize].push(node as u32));
        let mut near = Near { weight: vec![0; count], found: Vec::new() };
        let mut made = Self::empty();
        for (number, nodes) in members.iter().enumerate() {
            let edges = nodes.iter().flat_map(|&node| self.edges(node as usize));
            near.gather(edges.map(|(end, weight)| (community[end as usize], weight)));
            let others = near.found.iter().filter(|&&to| to as usize != number);
            made.push(others.map(|&to| (to, near.weight[to as usize])));
            near.forget();
            made.volume[number] = nodes.iter().map(|&node| self.volume[node as usize]).sum();
        }
        made
    }
}

/// Weight towards each community around a node.
struct Near {
    /// By community; 0 where none.
    weight: Vec<u64>,
    found: Vec<u32>,
}

impl Near {
    fn gather(&mut self, edges: impl Iterator<Item = (u32, u64)>) {
        for (community, weight) in edges {
            if self.weight[community as usize] == 0 {
                self.found.push(community);
            }
            self.weight[community as usize] += weight;
        }
    }

    fn forget(&mut self) {
        self.found.drain(..).for_each(|community| self.weight[community as usize] = 0);
    }
}

/// Communities numbered by their first node, and how many.
fn numbered(of: &[u32]) -> (Vec<u32>, usize) {
    let mut number = vec![NONE; of.len()];
    let mut count = 0;
    let numbered = of.iter().map(|&community| {
        let number = &mut number[community as usize];
        if *number == NONE {
            *number = count;
            count += 1;
        }
        *number
    });
    let numbered = numbered.collect();
    (numbered, count as usize)
}
