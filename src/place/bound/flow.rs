//! Maximum flow by shortest augmenting paths in layers (Dinic, "Algorithm for solution of a
//! problem of maximum flow in networks with power estimation", 1970). O(vertices^2 x edges) at
//! worst; near-linear for each phase on the shallow networks it is used for.

/// No edge, no layer.
const NONE: u32 = u32::MAX;

/// A capacity that nothing exhausts.
pub(super) const ENDLESS: u64 = u64::MAX / 4;

/// A network; edges are added in pairs, one for each direction.
pub(super) struct Network {
    first: Vec<u32>,
    next: Vec<u32>,
    to: Vec<u32>,
    left: Vec<u64>,
}

impl Network {
    /// Vertices without edges.
    pub(super) fn new(vertices: usize) -> Self {
        Self { first: vec![NONE; vertices], next: Vec::new(), to: Vec::new(), left: Vec::new() }
    }

    /// Adds an edge; gives its number.
    pub(super) fn add(&mut self, from: u32, to: u32, capacity: u64) -> u32 {
        let edge = self.to.len() as u32;
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.next.push(self.first[from as usize]);
            self.first[from as usize] = self.to.len() as u32;
            self.to.push(to);
            self.left.push(capacity);
        }
        edge
    }

    /// What flows over an edge.
    pub(super) fn flow(&self, edge: u32) -> u64 {
        self.left[edge as usize + 1]
    }

    /// Sends as much as possible, up to `enough`; gives how much. At most `phases` layerings.
    pub(super) fn send(&mut self, source: u32, sink: u32, enough: u64, phases: usize) -> u64 {
        let mut sent = 0;
        for _ in 0..phases {
            let layers = self.layers(source, sink);
            if layers[sink as usize] == NONE || sent >= enough {
                break;
            }
            let mut edge = self.first.clone();
            while sent < enough {
                let more = self.augment(source, sink, enough - sent, &layers, &mut edge);
                if more == 0 {
                    break;
                }
                sent += more;
            }
        }
        sent
    }

    /// Fewest edges from the source over which more can flow.
    fn layers(&self, source: u32, sink: u32) -> Vec<u32> {
        let mut layer = vec![NONE; self.first.len()];
        layer[source as usize] = 0;
        let mut queue = vec![source];
        let mut at = 0;
        while at < queue.len() && layer[sink as usize] == NONE {
            let vertex = queue[at];
            at += 1;
            let mut edge = self.first[vertex as usize];
            while edge != NONE {
                let to = self.to[edge as usize];
                if self.left[edge as usize] > 0 && layer[to as usize] == NONE {
                    layer[to as usize] = layer[vertex as usize] + 1;
                    queue.push(to);
                }
                edge = self.next[edge as usize];
            }
        }
        layer
    }

    /// Sends along one path from layer to layer; zero where there is none left.
    fn augment(&mut self, source: u32, sink: u32, most: u64, layers: &[u32], edge: &mut [u32]) -> u64 {
        let mut path: Vec<u32> = Vec::new();
        let mut vertex = source;
        while vertex != sink {
            let next = edge[vertex as usize];
            if next == NONE {
                let Some(last) = path.pop() else { return 0 };
                vertex = self.to[last as usize ^ 1];
                edge[vertex as usize] = self.next[last as usize];
                continue;
            }
            let to = self.to[next as usize];
            if self.left[next as usize] > 0
                && layers[to as usize] != NONE
                && layers[to as usize] == layers[vertex as usize] + 1
            {
                path.push(next);
                vertex = to;
            } else {
                edge[vertex as usize] = self.next[next as usize];
            }
        }
        let amount = path.iter().map(|&edge| self.left[edge as usize]).min().unwrap_or(0).min(most);
        for edge in path {
            self.left[edge as usize] -= amount;
            self.left[edge as usize ^ 1] += amount;
        }
        amount
    }
}
