//! Finds nodes by name. The names are the graph's own text: no name is stored a second time.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{CostGraph, NodeIx};

/// Nodes by name: 4 to 8 bytes a node.
///
/// Hashes are keyed at random, so no file can choose names that all fall into one place; they decide nothing but where
/// a node is looked for.
#[derive(Debug, Default)]
pub(super) struct Names {
    keys: RandomState,
    nodes: HashTable<NodeIx>,
}

impl Names {
    /// Room for so many nodes.
    pub(super) fn with_capacity(nodes: usize) -> Self {
        Self { keys: RandomState::new(), nodes: HashTable::with_capacity(nodes) }
    }

    /// The node of this name among those of `graph` that were added.
    pub(super) fn find(&self, graph: &CostGraph, name: &str) -> Option<NodeIx> {
        let is_it = |&node: &NodeIx| graph.node_name(node) == name;
        self.nodes.find(self.keys.hash_one(name), is_it).copied()
    }

    /// Adds a node, whose name `graph` has. False where another one has that name.
    pub(super) fn add(&mut self, graph: &CostGraph, node: NodeIx) -> bool {
        let name = graph.node_name(node);
        let hash = self.keys.hash_one(name);
        if self.nodes.find(hash, |&other| graph.node_name(other) == name).is_some() {
            return false;
        }
        let keys = &self.keys;
        self.nodes.insert_unique(hash, node, |&other| keys.hash_one(graph.node_name(other)));
        true
    }
}
