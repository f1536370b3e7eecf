//! The tree of forks: for each node the fork that everything it waits for comes from.
//!
//! It is the tree of dominators (Lengauer and Tarjan, "A fast algorithm for finding dominators in a
//! flowgraph", 1979; in an acyclic graph the lowest common ancestor of a node's operands, taken in
//! topological order), but for operands that arrive before the fork ends: activations that a backward step reads,
//! skip connections over many layers, masks. Those hold nothing up.

use std::cmp::Reverse;

use super::chains::Chains;

/// Parents, depths and skips by node; the last entry is the root, above what has no operands.
pub(super) struct ForkTree {
    parent: Vec<u32>,
    depth: Vec<u32>,
    /// An ancestor further up, so that common ancestors are found in logarithmically many steps (Myers, "An
    /// applicative random-access stack", 1983).
    skip: Vec<u32>,
    /// The nearest ancestor with several readers.
    branching: Vec<u32>,
}

impl ForkTree {
    /// `ends` says of each node when it ends on the longest chain, copies left out. O(edges log nodes).
    pub(super) fn new(chains: &Chains, ends: &[u64]) -> Self {
        let root = ends.len();
        let mut tree = Self {
            parent: vec![root as u32; root + 1],
            depth: vec![0; root + 1],
            skip: vec![root as u32; root + 1],
            branching: vec![root as u32; root + 1],
        };
        let mut operands = Vec::new();
        for &node in &chains.order {
            operands.clear();
            operands.extend_from_slice(chains.before.row(node as usize));
            operands.sort_unstable_by_key(|arc| (Reverse(ends[arc.node as usize]), arc.node));
            let mut fork = operands.first().map_or(root as u32, |arc| arc.node);
            // True once it is what several operands have in common.
            let mut is_common = false;
            for arc in operands.iter().skip(1) {
                let arrival = ends[arc.node as usize].saturating_add(arc.copy);
                let begins = match tree.branching[fork as usize] as usize {
                    _ if fork as usize == root => break,
                    _ if is_common => ends[fork as usize],
                    branching if branching != root => ends[branching],
                    _ => ends[fork as usize] - chains.time[fork as usize],
                };
                if arrival > begins {
                    fork = tree.common(fork, arc.node);
                    is_common = true;
                }
            }
            let branches = fork as usize != root && chains.after.row(fork as usize).len() > 1;
            tree.hang(node, fork, branches);
        }
        tree
    }

    /// The fork of a node; none where its operands have nothing in common.
    pub(super) fn fork(&self, node: u32) -> Option<u32> {
        Some(self.parent[node as usize]).filter(|&fork| fork as usize + 1 < self.parent.len())
    }

    fn hang(&mut self, node: u32, parent: u32, branches: bool) {
        let (at, above) = (node as usize, parent as usize);
        let far = self.skip[above] as usize;
        let even =
            self.depth[above] - self.depth[far] == self.depth[far] - self.depth[self.skip[far] as usize];
        self.parent[at] = parent;
        self.depth[at] = self.depth[above] + 1;
        self.skip[at] = if even { self.skip[far] } else { parent };
        self.branching[at] = if branches { parent } else { self.branching[above] };
    }

    /// The lowest common ancestor.
    fn common(&self, a: u32, b: u32) -> u32 {
        let (mut low, mut high) =
            if self.depth[a as usize] > self.depth[b as usize] { (a, b) } else { (b, a) };
        while self.depth[low as usize] > self.depth[high as usize] {
            let far = self.skip[low as usize];
            let within = self.depth[far as usize] >= self.depth[high as usize];
            low = if within { far } else { self.parent[low as usize] };
        }
        while low != high {
            let (left, right) = (self.skip[low as usize], self.skip[high as usize]);
            (low, high) = if left == right {
                (self.parent[low as usize], self.parent[high as usize])
            } else {
                (left, right)
            };
        }
        low
    }
}
