//! The most that can flow in a network in which every node may give and take, by pushing what is
//! in excess downhill (Goldberg and Tarjan, "A new approach to the maximum-flow problem", 1988).

/// More than any flow.
pub(super) const UNLIMITED: u64 = 1 << 62;

/// Not below any node that takes.
const NOWHERE: u32 = u32::MAX;

/// A network; flows are found in it one after the other.
#[derive(Default)]
pub(super) struct Network {
    arcs: Vec<Arc>,
    /// By node, the numbers of its arcs.
    of_node: Vec<Vec<u32>>,
    residual: Vec<u64>,
    height: Vec<u32>,
    next: Vec<u32>,
    /// By node, what it gives; what is in excess while flows are found.
    pub(super) supply: Vec<u64>,
    /// By node, what it takes.
    pub(super) demand: Vec<u64>,
    /// Arcs looked at so far.
    pub(super) work: u64,
}

/// One direction of a connection; the other is the neighbour in pairs.
struct Arc {
    to: u32,
    capacity: u64,
}

impl Network {
    /// Adds a node that neither gives nor takes.
    pub(super) fn node(&mut self) -> u32 {
        self.of_node.push(Vec::new());
        self.supply.push(0);
        self.demand.push(0);
        self.of_node.len() as u32 - 1
    }

    /// Connects two nodes; the capacities hold for each direction.
    pub(super) fn connect(&mut self, a: u32, b: u32, there: u64, back: u64) {
        for (from, to, capacity) in [(a, b, there), (b, a, back)] {
            self.of_node[from as usize].push(self.arcs.len() as u32);
            self.arcs.push(Arc { to, capacity });
        }
    }

    /// What is taken at most; uses supply and demand up.
    pub(super) fn most(&mut self) -> u64 {
        let nodes = self.of_node.len();
        self.residual.clear();
        self.residual.extend(self.arcs.iter().map(|arc| arc.capacity));
        let mut taken = 0;
        let mut active = self.sort_by_height();
        // Heights are measured anew from time to time: pushes alone raise nodes one by one.
        let mut until = self.work + 8 * (self.arcs.len() + nodes) as u64;
        let mut waits = vec![false; nodes];
        active.iter().for_each(|&node| waits[node as usize] = true);
        let mut queue = std::collections::VecDeque::from(active);
        while let Some(node) = queue.pop_front() {
            waits[node as usize] = false;
            taken += self.discharge(node, &mut queue, &mut waits);
            if self.work > until {
                active = self.sort_by_height();
                waits.fill(false);
                active.iter().for_each(|&node| waits[node as usize] = true);
                queue = active.into();
                until = self.work + 8 * (self.arcs.len() + nodes) as u64;
            }
        }
        taken
    }

    /// Measures how far each node is above those that take; the nodes with an excess that can flow.
    fn sort_by_height(&mut self) -> Vec<u32> {
        let nodes = self.of_node.len();
        self.height.clear();
        self.height.resize(nodes, NOWHERE);
        self.next.clear();
        self.next.resize(nodes, 0);
        let mut queue: Vec<u32> = (0..nodes as u32).filter(|&node| self.demand[node as usize] > 0).collect();
        queue.iter().for_each(|&node| self.height[node as usize] = 1);
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &arc in &self.of_node[node as usize] {
                self.work += 1;
                let from = self.arcs[arc as usize].to as usize;
                if self.residual[arc as usize ^ 1] > 0 && self.height[from] == NOWHERE {
                    self.height[from] = self.height[node as usize] + 1;
                    queue.push(from as u32);
                }
            }
        }
        queue.retain(|&node| self.supply[node as usize] > 0);
        queue
    }

    /// Lets what a node has in excess flow down, raising the node as far as that takes; what it
    /// takes itself.
    fn discharge(
        &mut self,
        node: u32,
        queue: &mut std::collections::VecDeque<u32>,
        waits: &mut [bool],
    ) -> u64 {
        let n = node as usize;
        let own = self.supply[n].min(self.demand[n]);
        self.spend(n, own);
        if self.demand[n] < UNLIMITED {
            self.demand[n] -= own;
        }
        while self.supply[n] > 0 && self.height[n] != NOWHERE {
            let Some(&arc) = self.of_node[n].get(self.next[n] as usize) else {
                self.raise(n);
                continue;
            };
            self.work += 1;
            let to = self.arcs[arc as usize].to;
            let flow = self.supply[n].min(self.residual[arc as usize]);
            let down = self.height[to as usize] != NOWHERE && self.height[n] == self.height[to as usize] + 1;
            if flow == 0 || !down {
                self.next[n] += 1;
                continue;
            }
            self.residual[arc as usize] -= flow;
            self.residual[arc as usize ^ 1] += flow;
            self.spend(n, flow);
            self.supply[to as usize] += flow;
            if !std::mem::replace(&mut waits[to as usize], true) {
                queue.push_back(to);
            }
        }
        own
    }

    fn spend(&mut self, node: usize, flow: u64) {
        if self.supply[node] < UNLIMITED {
            self.supply[node] -= flow;
        }
    }

    /// Raises a node just above the lowest that it can still send to.
    fn raise(&mut self, n: usize) {
        self.work += self.of_node[n].len() as u64;
        let open = self.of_node[n].iter().filter(|&&arc| self.residual[arc as usize] > 0);
        let lowest = open.map(|&arc| self.height[self.arcs[arc as usize].to as usize]).min();
        // Above the number of nodes there is no way down to one that takes.
        let above = lowest.filter(|&height| height < self.of_node.len() as u32).map(|height| height + 1);
        self.height[n] = above.unwrap_or(NOWHERE);
        self.next[n] = 0;
    }
}
