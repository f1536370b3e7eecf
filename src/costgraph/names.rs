//! Finds nodes by name. The names are the graph's own text: no name is stored a second time.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::{CostGraph, NodeIx};

/// Nodes by name: 8 to 16 bytes a node.
///
/// Hashes are keyed at random, so no file can choose names that all fall into one place; they decide nothing but where
/// a node is looked for.
#[derive(Debug, Default)]
pub(super) struct Names {
    keys: RandomState,
    nodes: HashTable<Named>,
}

/// A node with half of its name's hash: a table that grows reads no name again, and few are compared that differ.
#[derive(Clone, Copy, Debug)]
struct Named {
    node: NodeIx,
    hash: u32,
}

impl Named {
    fn place(&self) -> u64 {
        place(self.hash)
    }
}

/// Where the table looks for a name with this half of a hash. Both ends of it count there.
fn place(hash: u32) -> u64 {
    u64::from(hash) | u64::from(hash) << 32
}

impl Names {
    /// Room for so many nodes.
    pub(super) fn with_capacity(nodes: usize) -> Self {
        Self { keys: RandomState::new(), nodes: HashTable::with_capacity(nodes) }
    }

    /// The node of this name among those of `graph` that were added.
    pub(super) fn find(&self, graph: &CostGraph, name: &str) -> Option<NodeIx> {
        let hash = self.hash(name);
        let is_it = |named: &Named| named.hash == hash && graph.node_name(named.node) == name;
        self.nodes.find(place(hash), is_it).map(|named| named.node)
    }

    /// Adds a node, whose name `graph` has. False where another one has that name.
    pub(super) fn add(&mut self, graph: &CostGraph, node: NodeIx) -> bool {
        let name = graph.node_name(node);
        let hash = self.hash(name);
        let is_it = |named: &Named| named.hash == hash && graph.node_name(named.node) == name;
        match self.nodes.entry(place(hash), is_it, Named::place) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(Named { node, hash });
                true
            }
        }
    }

    fn hash(&self, name: &str) -> u32 {
        self.keys.hash_one(name) as u32
    }
}
