//! The order of earliest starts (ETF: Hwang, Chow, Anger and Lee, "Scheduling precedence graphs in
//! systems with interprocessor communication times", SIAM J. Comput. 1989) on devices that are given.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::place::Placement;
use crate::topology::{DeviceId, Topology};
use crate::units::Nanos;

/// The launches by earliest start on the devices that they are placed on, copies undisturbed; of
/// equals the one with the longest way to the end, then the first. Sound for any placement of the
/// graph on this topology. O((nodes + edges) log nodes + nodes x devices).
pub fn earliest_first(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Vec<NodeIx> {
    let kinds = topology.kinds_in(&graph.kinds);
    let device = |node: NodeIx| placement.device[node.index()];
    let runs = |node: NodeIx| graph.role(node) == Role::Compute;
    let time = |node: NodeIx| match kinds[device(node).index()] {
        Some(kind) if runs(node) => graph.time(node, kind).unwrap_or_default(),
        _ => Nanos::ZERO,
    };
    let mut tail = vec![Nanos::ZERO; graph.node_count()];
    for &node in graph.topological_order().unwrap_or_default().iter().rev() {
        let readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
        tail[node.index()] =
            time(node) + readers.map(|reader| tail[reader.index()]).max().unwrap_or_default();
    }
    let made = |node: NodeIx| {
        let producers = graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
        producers.filter(|&producer| runs(producer)).count()
    };
    let mut waits: Vec<usize> = graph.nodes().map(made).collect();
    let mut arrival = vec![Nanos::ZERO; graph.node_count()];
    let mut queues = vec![Queue::default(); topology.len()];
    let entry = |node: NodeIx| (Reverse(tail[node.index()]), node);
    for node in graph.nodes().filter(|&node| runs(node) && waits[node.index()] == 0) {
        queues[device(node).index()].push(Nanos::ZERO, entry(node));
    }
    let mut order = Vec::new();
    while let Some((_, _, id)) = (queues.iter().zip(topology.ids()))
        .filter_map(|(queue, id)| queue.first().map(|(start, entry)| (start, entry, id)))
        .min()
    {
        let Some((start, node)) = queues[id.index()].pop() else { break };
        let end = start + time(node);
        queues[id.index()].release(end);
        order.push(node);
        for tensor in graph.outputs(node) {
            for &reader in graph.consumers(tensor) {
                let to: DeviceId = device(reader);
                let copy = topology.copy_time(id, to, graph.tensor_bytes(tensor));
                arrival[reader.index()] = arrival[reader.index()].max(end + copy);
                waits[reader.index()] -= 1;
                if waits[reader.index()] == 0 {
                    queues[to.index()].push(arrival[reader.index()], entry(reader));
                }
            }
        }
    }
    order
}

/// The least is the most urgent.
type Entry = (Reverse<Nanos>, NodeIx);

/// What waits for one device.
#[derive(Clone, Default)]
struct Queue {
    /// When the device is done with what it was given.
    free: Nanos,
    /// What can start then.
    ready: BinaryHeap<Reverse<Entry>>,
    /// What can start only later: when, and what.
    later: BinaryHeap<Reverse<(Nanos, Entry)>>,
}

impl Queue {
    fn push(&mut self, arrival: Nanos, entry: Entry) {
        if arrival <= self.free {
            self.ready.push(Reverse(entry));
        } else {
            self.later.push(Reverse((arrival, entry)));
        }
    }

    /// The earliest start, and what would start.
    fn first(&self) -> Option<(Nanos, Entry)> {
        match self.ready.peek() {
            Some(&Reverse(entry)) => Some((self.free, entry)),
            None => self.later.peek().map(|&Reverse(first)| first),
        }
    }

    fn pop(&mut self) -> Option<(Nanos, NodeIx)> {
        match self.ready.pop() {
            Some(Reverse((_, node))) => Some((self.free, node)),
            None => self.later.pop().map(|Reverse((start, (_, node)))| (start, node)),
        }
    }

    /// The device is free from then on.
    fn release(&mut self, free: Nanos) {
        self.free = free;
        while let Some(&Reverse((arrival, entry))) = self.later.peek()
            && arrival <= free
        {
            self.later.pop();
            self.ready.push(Reverse(entry));
        }
    }
}
