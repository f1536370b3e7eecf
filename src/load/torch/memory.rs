//! Which tensors lie in the memory of others, and which of them are written over.
//!
//! A graph has values and no memory: a tensor that a program writes over is another value from there on. Views of it
//! are made anew by their own operations before they are read again, and a view that is written over has its elements
//! put back in their places (functionalisation, as `torch.func.functionalize` does it).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::call::{operands, results};
use super::ops;
use super::schema::{Node, TensorMeta, size};

/// A tensor that lies in another's memory.
#[derive(Clone, Copy)]
pub(super) struct View<'d> {
    /// The tensor that it is a view of.
    pub(super) of: &'d str,
    /// The node that makes it, and which of its results it is; none where it is that tensor itself.
    pub(super) by: Option<(&'d Node, usize)>,
}

/// Whether what a node makes lies in its operand's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    View,
    Apart,
    /// It follows from sizes that are open.
    Unclear,
}

/// The memory of a program's tensors, by their names.
#[derive(Default)]
pub(super) struct Memory<'d> {
    views: HashMap<&'d str, View<'d>>,
    /// The tensor that the memory of each view was made for.
    wholes: HashMap<&'d str, &'d str>,
    /// Whole tensors in whose memory there may be what is not known to be, from where the program makes that on.
    unclear: HashSet<&'d str>,
    /// Those of them that are written over afterwards.
    unclear_when_written: HashSet<&'d str>,
    /// Whole tensors that the program writes over somewhere.
    rewritten: HashSet<&'d str>,
    /// How often a whole tensor was written over so far, and how often it had been when a value was made.
    writes: HashMap<&'d str, usize>,
    made: HashMap<&'d str, usize>,
}

impl<'d> Memory<'d> {
    /// The memory of a whole program, before any of it runs.
    pub(super) fn of(nodes: &'d [Node], metas: &'d BTreeMap<String, TensorMeta>) -> Self {
        let mut memory = Self::default();
        // A name that is read is made already: what comes later can be no view of itself.
        let mut known: HashSet<&str> = HashSet::new();
        for node in nodes {
            known.extend(operands(node));
            if ops::may_be_view_of_list(ops::base(&node.target), operands(node).count()) {
                memory.blur(node);
                continue;
            }
            let Some(first) = node.inputs.iter().find_map(|input| input.arg.name()) else { continue };
            let made: Vec<(usize, &str)> = results(node)
                .into_iter()
                .enumerate()
                .filter(|(_, name)| !name.is_empty() && !known.contains(name))
                .collect();
            if ops::is_in_place(ops::base(&node.target)) {
                let whole = memory.whole(first);
                memory.rewritten.insert(whole);
                if memory.unclear.contains(whole) {
                    memory.unclear_when_written.insert(whole);
                }
                let itself =
                    memory.views.get(first).filter(|view| view.by.is_none()).map_or(first, |view| view.of);
                for (_, name) in made.into_iter().take(1) {
                    memory.add(name, View { of: itself, by: None });
                }
                continue;
            }
            let sharing = sharing(node, first, metas);
            if sharing == Sharing::Apart {
                continue;
            }
            if sharing == Sharing::Unclear {
                let whole = memory.whole(first);
                memory.unclear.insert(whole);
            }
            for (part, name) in made {
                memory.add(name, View { of: first, by: Some((node, part)) });
            }
        }
        memory
    }

    /// Notes that what a node lists and what it makes may be seen in each other's memory.
    fn blur(&mut self, node: &'d Node) {
        for name in operands(node).chain(results(node)) {
            let whole = self.whole(name);
            self.unclear.insert(whole);
        }
    }

    fn add(&mut self, name: &'d str, view: View<'d>) {
        let whole = self.whole(view.of);
        self.views.insert(name, view);
        self.wholes.insert(name, whole);
    }

    /// The tensor that the memory of a tensor was made for.
    pub(super) fn whole(&self, name: &'d str) -> &'d str {
        self.wholes.get(name).copied().unwrap_or(name)
    }

    pub(super) fn view(&self, name: &str) -> Option<View<'d>> {
        self.views.get(name).copied()
    }

    /// Whether anything is written over a tensor, or over what it lies in.
    pub(super) fn is_rewritten(&self, name: &'d str) -> bool {
        self.rewritten.contains(self.whole(name))
    }

    /// Whether it is known, wherever a tensor is written over, what else lies in its memory by then.
    pub(super) fn is_clear(&self, name: &'d str) -> bool {
        !self.unclear_when_written.contains(self.whole(name))
    }

    /// Whether the memory of a tensor was written over after its value was made.
    pub(super) fn is_stale(&self, name: &'d str) -> bool {
        let writes = self.writes.get(self.whole(name)).copied().unwrap_or(0);
        self.made.get(name).copied().unwrap_or(0) < writes
    }

    /// Notes that a value is as the memory is now.
    pub(super) fn make(&mut self, name: &'d str) {
        let writes = self.writes.get(self.whole(name)).copied().unwrap_or(0);
        self.made.insert(name, writes);
    }

    /// Notes that the memory of a tensor is written over: all values that lie in it are stale.
    pub(super) fn write(&mut self, name: &'d str) {
        *self.writes.entry(self.whole(name)).or_insert(0) += 1;
    }
}

/// Whether the results of a node lie in the memory of its operand `first`.
fn sharing(node: &Node, first: &str, metas: &BTreeMap<String, TensorMeta>) -> Sharing {
    let operation = ops::base(&node.target);
    if !ops::may_be_view(operation) {
        return Sharing::Apart;
    }
    let result = results(node).first().and_then(|name| metas.get(*name));
    let (Some(own), Some(result)) = (metas.get(first), result) else { return Sharing::Unclear };
    let orders = node.inputs.iter().any(|input| input.name == "memory_format" && input.arg.orders_memory());
    match operation {
        "_to_copy" => Sharing::Apart,
        "to" | "type_as" => match own.is_of_type_of(result) {
            _ if node.inputs.iter().any(|input| input.name == "copy" && input.arg.is_true()) => {
                Sharing::Apart
            }
            Ok(false) => Sharing::Apart,
            Ok(true) if !orders => Sharing::View,
            Ok(true) => match in_order(own, result) {
                // With an axis of one element the strides of two orders may be the same, and it is copied nevertheless.
                Sharing::View if own.sizes.iter().any(|dim| size(dim) == Some(1)) => Sharing::Unclear,
                sharing => sharing,
            },
            Err(_) => Sharing::Unclear,
        },
        // A copy where there is something to resolve, which the file does not say.
        "resolve_conj" | "resolve_neg" if own.is_complex() => Sharing::Unclear,
        "contiguous" if orders => in_order(own, result),
        // Elements in a row stay where they are. Those that are not can be so in the result only if they are copied.
        "contiguous" | "reshape" | "ravel" | "flatten" | "view_as" => {
            match (own.is_dense(), result.is_dense()) {
                (Some(true), _) | (_, Some(false)) => Sharing::View,
                (Some(false), Some(true)) => Sharing::Apart,
                (None, _) | (_, None) => Sharing::Unclear,
            }
        }
        _ => Sharing::View,
    }
}

/// Of a tensor that is wanted in an order of memory: it is copied if it lies in another one.
fn in_order(own: &TensorMeta, result: &TensorMeta) -> Sharing {
    match own.is_laid_out_as(result) {
        Some(true) => Sharing::View,
        Some(false) => Sharing::Apart,
        None => Sharing::Unclear,
    }
}
