//! A step divided into microbatches: which nodes run for each of them, and with what sizes.
//!
//! - Parameters are shared, and so is what is computed of parameters alone.
//! - **Updates** run once, after all microbatches: backward nodes that nothing reads and that
//!   stand for a parameter (through `forward`), hold state of their own or are called `update`;
//!   and backward nodes without a forward node whose results only updates read, such as the norm
//!   that gradients are clipped by.
//! - Every other node runs once for each microbatch, and reads what its own microbatch made.
//! - **Gradients accumulate.** What a backward node makes for updates alone is the sum over the
//!   microbatches so far: each instance reads that of the microbatch before, and the update reads
//!   the last. Anything else that an update reads, it reads of every microbatch.

use super::derive::{Derivation, Derived, Instance};
use super::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::{Error, Result};

/// What the sizes and times of a graph stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// The whole batch: a microbatch takes one of M equal parts of each, rounded up. Gradients of
    /// parameters, and what works on nothing else, are whole.
    Batch,
    /// One microbatch.
    Microbatch,
}

/// When a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Once, before what reads it: a parameter, or what is computed of parameters alone.
    First,
    /// Once for each microbatch.
    Each,
    /// Once, after all microbatches.
    Last,
}

/// By node: when it runs in a step of several microbatches. O(nodes + edges).
pub fn runs(graph: &CostGraph) -> Vec<Runs> {
    let mut runs = vec![Runs::Each; graph.node_count()];
    let order = graph.topological_order().unwrap_or_default();
    first(graph, &order, &mut runs);
    for &node in order.iter().rev() {
        if graph.is_backward(node) && is_last(graph, node, &runs) {
            runs[node.index()] = Runs::Last;
        }
    }
    runs
}

/// Marks parameters and what is computed of them alone. Where a graph has no inputs, its data comes
/// from nodes that read parameters or nothing, and those run for each microbatch.
fn first(graph: &CostGraph, order: &[NodeIx], runs: &mut [Runs]) {
    let has_inputs = graph.nodes().any(|node| graph.role(node) == Role::Input);
    let mut is_forward = vec![false; graph.node_count()];
    for forward in graph.nodes().filter_map(|node| graph.forward(node)) {
        is_forward[forward.index()] = true;
    }
    for &node in order {
        let inputs = graph.inputs(node);
        let alone = match graph.role(node) {
            Role::Param => true,
            Role::Input => false,
            Role::Compute => {
                let known = |tensor: &TensorIx| runs[graph.producer(*tensor).index()] == Runs::First;
                let derived = has_inputs && !inputs.is_empty() && inputs.iter().all(known);
                derived && !graph.is_backward(node) && !is_forward[node.index()]
            }
        };
        if alone {
            runs[node.index()] = Runs::First;
        }
    }
}

fn is_last(graph: &CostGraph, node: NodeIx, runs: &[Runs]) -> bool {
    let mut readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor)).peekable();
    if readers.peek().is_none() {
        return of_param(graph, node)
            || graph.owned_bytes(node).get() > 0
            || graph.op(node).eq_ignore_ascii_case("update");
    }
    graph.forward(node).is_none() && readers.all(|reader| runs[reader.index()] == Runs::Last)
}

/// True for a backward node of a parameter: what it makes has the parameter's size.
fn of_param(graph: &CostGraph, node: NodeIx) -> bool {
    let forward = graph.forward(node).filter(|_| graph.is_backward(node));
    forward.is_some_and(|forward| graph.role(forward) == Role::Param)
}

/// By tensor: true where it is summed up over the microbatches.
fn accumulated(graph: &CostGraph, runs: &[Runs]) -> Vec<bool> {
    let sums = |tensor: TensorIx| {
        let (producer, readers) = (graph.producer(tensor), graph.consumers(tensor));
        graph.is_backward(producer)
            && runs[producer.index()] == Runs::Each
            && !readers.is_empty()
            && readers.iter().all(|reader| runs[reader.index()] == Runs::Last)
    };
    graph.tensors().map(sums).collect()
}

/// The graph of one microbatch of `count`, sized as [`microbatches`] sizes it; its nodes have the
/// numbers and names that they have in `base`. O(nodes log nodes + edges).
///
/// Errors: `count` is zero.
pub fn one_of(base: &CostGraph, count: u32) -> Result<CostGraph> {
    let runs = runs(base);
    let accumulated = accumulated(base, &runs);
    let mut derivation = Derivation::new(base);
    let mut first = Vec::with_capacity(base.node_count());
    for node in base.nodes() {
        first.push(derivation.add(Instance::once(node))?);
    }
    let (runs, accumulated) = (runs.as_slice(), accumulated.as_slice());
    let mut replica = Replica { base, count: 1, runs, accumulated, derivation, first, stride: 0 };
    replica.divide(parts(count)?);
    replica.connect();
    Ok(replica.derivation.finish()?.graph)
}

/// Nodes of all microbatches at most.
pub const INSTANCES: u64 = 1 << 23;

fn parts(count: u32) -> Result<u32> {
    match count {
        0 => Err(Error::usage("--microbatches 0", "expected at least 1")),
        count => Ok(count),
    }
}

/// The graph of a step with `count` microbatches; with `sizes` [`Sizes::Batch`], `base` is the
/// step of the whole batch. Nodes are in order of their microbatch, updates last.
/// O(count x (nodes + edges)), times the logarithm of the nodes.
///
/// Errors: no microbatch; more than [`INSTANCES`] nodes in all of them.
pub fn microbatches(base: &CostGraph, count: u32, sizes: Sizes) -> Result<Derived> {
    parts(count)?;
    if u64::from(count).saturating_mul(base.node_count() as u64) > INSTANCES {
        let message = format!("of {} nodes each: more than {INSTANCES} in all", base.node_count());
        return Err(Error::usage(format!("--microbatches {count}"), message).with_help("fewer microbatches"));
    }
    let runs = runs(base);
    let accumulated = accumulated(base, &runs);
    let mut replica = Replica {
        base,
        count,
        runs: &runs,
        accumulated: &accumulated,
        derivation: Derivation::new(base),
        first: vec![NodeIx(0); base.node_count()],
        stride: runs.iter().filter(|&&runs| runs == Runs::Each).count() as u32,
    };
    replica.add_all(Runs::First, None)?;
    for microbatch in 0..count {
        replica.add_all(Runs::Each, Some(microbatch))?;
    }
    replica.add_all(Runs::Last, None)?;
    if sizes == Sizes::Batch {
        replica.divide(count);
    }
    replica.connect();
    let mut derived = replica.derivation.finish()?;
    derived.together(base);
    Ok(derived)
}

struct Replica<'a> {
    base: &'a CostGraph,
    count: u32,
    runs: &'a [Runs],
    accumulated: &'a [bool],
    derivation: Derivation<'a>,
    /// By base node: its first instance.
    first: Vec<NodeIx>,
    /// How far apart the instances of a node in successive microbatches are.
    stride: u32,
}

impl Replica<'_> {
    fn add_all(&mut self, when: Runs, microbatch: Option<u32>) -> Result<()> {
        for node in self.base.nodes().filter(|node| self.runs[node.index()] == when) {
            let ix = self.derivation.add(Instance { node, microbatch, again: false })?;
            if microbatch.is_none_or(|microbatch| microbatch == 0) {
                self.first[node.index()] = ix;
            }
        }
        Ok(())
    }

    fn instance(&self, node: NodeIx, microbatch: u32) -> NodeIx {
        let first = self.first[node.index()];
        match self.runs[node.index()] {
            Runs::First | Runs::Last => first,
            Runs::Each => NodeIx(first.0 + microbatch * self.stride),
        }
    }

    /// Sizes of one microbatch from those of the batch.
    fn divide(&mut self, parts: u32) {
        let base = self.base;
        let accumulated = self.accumulated;
        let whole = |tensor: TensorIx| {
            let readers = base.consumers(tensor);
            accumulated[tensor.index()]
                || !readers.is_empty() && readers.iter().all(|&reader| of_param(base, reader))
        };
        for node in base.nodes() {
            if self.runs[node.index()] == Runs::Each && !of_param(base, node) {
                for microbatch in 0..self.count {
                    let instance = self.instance(node, microbatch);
                    self.derivation.divide(instance, parts, whole);
                }
            }
        }
    }

    fn connect(&mut self) {
        for node in self.base.nodes() {
            match self.runs[node.index()] {
                Runs::First => self.read_own(node, 0),
                Runs::Each => {
                    for microbatch in 0..self.count {
                        self.read_own(node, microbatch);
                        self.accumulate(node, microbatch);
                    }
                }
                Runs::Last => self.read_all(node),
            }
        }
    }

    /// Reads what the same microbatch made.
    fn read_own(&mut self, node: NodeIx, microbatch: u32) {
        for &tensor in self.base.inputs(node) {
            self.read(node, tensor, microbatch, microbatch);
        }
    }

    /// Reads the sum of the microbatches before.
    fn accumulate(&mut self, node: NodeIx, microbatch: u32) {
        let Some(before) = microbatch.checked_sub(1) else { return };
        for tensor in self.base.outputs(node).filter(|tensor| self.accumulated[tensor.index()]) {
            self.read(node, tensor, microbatch, before);
        }
    }

    /// Reads what all microbatches made: their sum where it is summed up.
    fn read_all(&mut self, node: NodeIx) {
        for &tensor in self.base.inputs(node) {
            let each = self.runs[self.base.producer(tensor).index()] == Runs::Each;
            let last = self.count - 1;
            let from = if each && !self.accumulated[tensor.index()] { 0 } else { last };
            for microbatch in from..=last {
                self.read(node, tensor, 0, microbatch);
            }
        }
    }

    fn read(&mut self, reader: NodeIx, tensor: TensorIx, at: u32, made_at: u32) {
        let producer = self.instance(self.base.producer(tensor), made_at);
        let reader = self.instance(reader, at);
        self.derivation.read(reader, producer, self.base.output_index(tensor));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Builder, NodeSpec};
    use super::*;
    use crate::units::{Bytes, Nanos};

    /// x -> f(w) -> g(s) -> loss, with their backward nodes, the gradient of w and its update.
    fn training() -> CostGraph {
        let mut b = Builder::new("net", vec!["cpu".into()]);
        let mut add = |name: &str, op: &str, time: u64, bytes: &[u64], owned: u64| {
            let outputs: Vec<Bytes> = bytes.iter().map(|&bytes| Bytes(bytes)).collect();
            let times = [Some(Nanos(time))];
            let spec = NodeSpec {
                name,
                op,
                times: &times,
                outputs: &outputs,
                workspace: Bytes(9),
                param_bytes: Bytes(owned),
                backward: name.starts_with('d') || name == "step",
                ..NodeSpec::default()
            };
            b.add(&spec).unwrap()
        };
        let x = add("x", "input", 0, &[100], 0);
        let w = add("w", "param", 0, &[40], 40);
        let f = add("f", "matmul", 10, &[101], 0);
        let g = add("g", "relu", 5, &[103], 7);
        let dg = add("dg", "bwd", 6, &[107], 0);
        let df = add("df", "bwd", 21, &[109, 40], 0);
        let dw = add("dw", "reduce", 4, &[40], 0);
        let step = add("step", "update", 8, &[40], 80);
        for (producer, output, reader) in [
            (x, 0, f),
            (w, 0, f),
            (f, 0, g),
            (g, 0, dg),
            (f, 0, dg),
            (dg, 0, df),
            (x, 0, df),
            (df, 1, dw),
            (dw, 0, step),
            (w, 0, step),
        ] {
            b.connect(producer, output, reader);
        }
        for (backward, forward) in [(dg, g), (df, f), (dw, w), (step, w)] {
            b.set_forward(backward, forward);
        }
        b.finish().unwrap()
    }

    fn find(derived: &Derived, base: &CostGraph, name: &str, microbatch: Option<u32>) -> NodeIx {
        let node = base.nodes().find(|&node| base.node_name(node) == name).unwrap();
        derived.find(Instance { node, microbatch, again: false }).unwrap()
    }

    fn read(graph: &CostGraph, node: NodeIx) -> Vec<String> {
        let name = |&tensor: &TensorIx| {
            format!("{}:{}", graph.node_name(graph.producer(tensor)), graph.output_index(tensor))
        };
        graph.inputs(node).iter().map(name).collect()
    }

    #[test]
    fn each_microbatch_has_its_own_instances_and_updates_follow_them_all() {
        let base = training();
        let derived = microbatches(&base, 3, Sizes::Batch).unwrap();
        let graph = &derived.graph;
        // w and step once, six nodes three times.
        assert_eq!(graph.node_count(), 2 + 6 * 3);
        assert_eq!(derived.microbatches(), 3);
        let at = |name: &str, m| find(&derived, &base, name, m);
        assert_eq!(read(graph, at("f", Some(1))), ["x@1:0", "w:0"]);
        assert_eq!(read(graph, at("dg", Some(2))), ["g@2:0", "f@2:0"]);
        assert_eq!(read(graph, at("dw", Some(0))), ["df@0:1"]);
        assert_eq!(read(graph, at("dw", Some(2))), ["df@2:1", "dw@1:0"]);
        assert_eq!(read(graph, at("step", None)), ["dw@2:0", "w:0"]);
        assert_eq!(graph.forward(at("df", Some(1))), Some(at("f", Some(1))));
        assert_eq!(graph.forward(at("step", None)), Some(at("w", None)));
    }

    #[test]
    fn a_microbatch_takes_its_part_of_the_batch_rounded_up() {
        let base = training();
        let derived = microbatches(&base, 3, Sizes::Batch).unwrap();
        let graph = &derived.graph;
        let at = |name: &str, m| find(&derived, &base, name, m);
        let sizes =
            |node: NodeIx| -> Vec<u64> { graph.outputs(node).map(|t| graph.tensor_bytes(t).0).collect() };
        assert_eq!((graph.time(at("f", Some(2)), 0), sizes(at("f", Some(2)))), (Some(Nanos(4)), vec![34]));
        assert_eq!(sizes(at("x", Some(0))), [34]);
        // The gradient of w has the size of w, whatever the batch; summing it up takes its time.
        assert_eq!(
            (graph.time(at("df", Some(1)), 0), sizes(at("df", Some(1)))),
            (Some(Nanos(7)), vec![37, 40])
        );
        assert_eq!((graph.time(at("dw", Some(1)), 0), sizes(at("dw", Some(1)))), (Some(Nanos(4)), vec![40]));
        assert_eq!(graph.time(at("step", None), 0), Some(Nanos(8)));
        assert_eq!(graph.workspace_bytes(at("g", Some(0))), Bytes(3));
        assert_eq!(graph.owned_bytes(at("g", Some(0))), Bytes(7));
        assert_eq!(graph.owned_bytes(at("g", Some(1))), Bytes(0));
        assert_eq!(graph.param_bytes(graph.param(at("w", None)).unwrap()), Bytes(40));
        let as_is = microbatches(&base, 2, Sizes::Microbatch).unwrap();
        assert_eq!(as_is.graph.time(find(&as_is, &base, "f", Some(1)), 0), Some(Nanos(10)));
    }

    #[test]
    fn one_microbatch_is_the_graph_itself() {
        let base = training();
        let derived = microbatches(&base, 1, Sizes::Batch).unwrap();
        let same = |node: NodeIx| {
            let from = derived.instance(node).node;
            base.owned_bytes(from) == derived.graph.owned_bytes(node)
                && base.time(from, 0) == derived.graph.time(node, 0)
                && base.inputs(from).len() == derived.graph.inputs(node).len()
        };
        assert_eq!(derived.graph.node_count(), base.node_count());
        assert!(derived.graph.nodes().all(same));
    }

    #[test]
    fn what_is_made_of_parameters_alone_runs_once() {
        let mut b = Builder::new("net", vec!["cpu".into()]);
        let times = [Some(Nanos(6))];
        let mut add = |name, op| {
            b.add(&NodeSpec { name, op, times: &times, outputs: &[Bytes(8)], ..NodeSpec::default() }).unwrap()
        };
        let (x, w) = (add("x", "input"), add("w", "param"));
        let (turned, y) = (add("turned", "transpose"), add("y", "matmul"));
        b.connect(w, 0, turned);
        b.connect(turned, 0, y);
        b.connect(x, 0, y);
        let base = b.finish().unwrap();
        assert_eq!(runs(&base), [Runs::Each, Runs::First, Runs::First, Runs::Each]);
        let derived = microbatches(&base, 2, Sizes::Batch).unwrap();
        assert_eq!(derived.graph.time(find(&derived, &base, "turned", None), 0), Some(Nanos(6)));
        assert_eq!(read(&derived.graph, find(&derived, &base, "y", Some(1))), ["turned:0", "x@1:0"]);
        let results = derived.graph.tensors().filter(|&t| derived.graph.is_result(t)).count();
        assert_eq!(results, 2);
    }

    #[test]
    fn one_microbatch_of_several_is_sized_as_each_of_them() {
        let base = training();
        let (one, all) = (one_of(&base, 3).unwrap(), microbatches(&base, 3, Sizes::Batch).unwrap());
        let again = microbatches(&one, 3, Sizes::Microbatch).unwrap();
        assert!(one.nodes().all(|node| one.node_name(node) == base.node_name(node)));
        assert_eq!(again, all);
    }

    #[test]
    fn no_microbatch_is_an_error() {
        assert!(microbatches(&training(), 0, Sizes::Batch).is_err());
    }
}
