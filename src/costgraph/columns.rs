//! A cost graph as flat arrays: what an engine hands over that has such arrays already, and what the binary form holds.
//!
//! [`CostGraph::from_columns`] takes the arrays over as they are and checks them; nothing is copied. It trusts
//! nothing: arrays may come from a file.

use std::collections::HashSet;

use super::names::Names;
use super::{CostGraph, NONE, NodeIx, Role, TensorIx};
use crate::csr::Csr;
use crate::error::{Error, Result};

/// The most that all times, or all bytes, may add up to: beyond it sums would saturate.
const MOST: u128 = i64::MAX as u128;

/// The arrays of a cost graph. Nodes, outputs and parameters are numbered from 0; the outputs of all nodes are numbered
/// one node after the other. [`u32::MAX`] stands for "none".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The network's name.
    pub name: String,
    /// The kinds of devices that times are given for, each once.
    pub kinds: Vec<String>,
    /// The nodes' names, each once, one after the other.
    pub names: String,
    /// By node: where its name ends in `names`.
    pub name_ends: Vec<u32>,
    /// The operations' names, each once. `param` and `input` are reserved: such nodes take no time.
    pub op_names: Vec<String>,
    /// By node: its operation's position in `op_names`.
    pub ops: Vec<u16>,
    /// By node, and in that by kind: nanoseconds; [`u64::MAX`] where that kind cannot run the node. 0 for `param` and `input`.
    pub times: Vec<u64>,
    /// By node: bytes that stay where the node is. 0 for `param`.
    pub owned_bytes: Vec<u64>,
    /// By node: bytes that it needs only while it runs.
    pub workspace_bytes: Vec<u64>,
    /// By node: for `param` the number of its parameter, which tied nodes share; none for other nodes.
    pub params: Vec<u32>,
    /// By parameter: bytes on each device that holds it.
    pub param_bytes: Vec<u64>,
    /// By parameter: its name.
    pub param_names: Vec<String>,
    /// By node: its colocation class, or none. Classes are numbered from 0, and each has nodes.
    pub colocate: Vec<u32>,
    /// By node: the forward node whose backward or update it is, or none.
    pub forward: Vec<u32>,
    /// By node: whether it is of the backward pass.
    pub backward: Vec<bool>,
    /// Nodes, ascending, with the name of the device that each must be on.
    pub pins: Vec<(NodeIx, String)>,
    /// (node, input, output), ascending by node: that output may be written where that input is.
    pub in_place: Vec<(NodeIx, u32, u32)>,
    /// (output, output of an `input` node that it takes the place of after the step), ascending.
    pub updates: Vec<(TensorIx, TensorIx)>,
    /// Nodes, ascending, whose output is a part of their input, with the byte at which it begins there.
    pub views: Vec<(NodeIx, u64)>,
    /// By node: its first output's number; then the number of outputs.
    pub output_starts: Vec<u32>,
    /// By output: its bytes.
    pub output_bytes: Vec<u64>,
    /// By output: whether it must stay to the end of the step. Those that nothing reads do in any case.
    pub results: Vec<bool>,
    /// By node: where its inputs begin in `inputs`; then the number of inputs.
    pub input_starts: Vec<u32>,
    /// The outputs that nodes read, one node after the other, in order, each once for a node.
    pub inputs: Vec<TensorIx>,
}

impl CostGraph {
    /// The graph of these arrays, which become its own. O(size).
    ///
    /// Errors: no nodes, or too many; arrays of lengths that do not fit together; nodes' names that are empty or used twice;
    /// parameters of one name; a number that refers to nothing; times or bytes that add up to more than 2^63 - 1; a cycle.
    pub fn from_columns(columns: Columns) -> Result<Self> {
        check_lengths(&columns)?;
        check_words(&columns)?;
        check_references(&columns)?;
        let roles = roles(&columns)?;
        let classes = numbered(&columns.colocate, columns.ops.len(), "colocate")?;
        let tensor_node = producers(&columns.output_starts);
        let mut tensor_is_result = columns.results;
        for &(made, _) in &columns.updates {
            tensor_is_result[made.index()] = true;
        }
        let mut graph = Self {
            name: columns.name,
            kinds: columns.kinds,
            names: columns.names,
            name_ends: columns.name_ends,
            ops: columns.ops,
            op_names: columns.op_names,
            roles,
            times: columns.times,
            owned: columns.owned_bytes,
            workspace: columns.workspace_bytes,
            params: columns.params,
            param_bytes: columns.param_bytes,
            param_names: columns.param_names,
            colocate: columns.colocate,
            colocation_classes: classes,
            forward: columns.forward,
            backward: columns.backward,
            pins: columns.pins,
            in_place: columns.in_place,
            updates: columns.updates,
            views: columns.views,
            output_start: columns.output_starts,
            tensor_bytes: columns.output_bytes,
            tensor_node,
            tensor_is_result,
            consumers: Csr::new(),
            inputs: Csr::from_parts(columns.input_starts, columns.inputs),
        };
        graph.check_names()?;
        graph.check_params()?;
        graph.check_sums()?;
        graph.check_rows()?;
        graph.index_readers()?;
        graph.checked()
    }

    /// The graph's arrays, as [`CostGraph::from_columns`] takes them.
    pub fn into_columns(self) -> Columns {
        let (input_starts, inputs) = self.inputs.into_parts();
        Columns {
            name: self.name,
            kinds: self.kinds,
            names: self.names,
            name_ends: self.name_ends,
            op_names: self.op_names,
            ops: self.ops,
            times: self.times,
            owned_bytes: self.owned,
            workspace_bytes: self.workspace,
            params: self.params,
            param_bytes: self.param_bytes,
            param_names: self.param_names,
            colocate: self.colocate,
            forward: self.forward,
            backward: self.backward,
            pins: self.pins,
            in_place: self.in_place,
            updates: self.updates,
            views: self.views,
            output_starts: self.output_start,
            output_bytes: self.tensor_bytes,
            results: self.tensor_is_result,
            input_starts,
            inputs,
        }
    }

    /// Error: a name is empty or used twice.
    fn check_names(&self) -> Result<()> {
        if let Some(node) = self.nodes().find(|&node| self.node_name(node).is_empty()) {
            return Err(Error::model(format!("node {}", node.0), "its id is empty"));
        }
        let mut names = Names::with_capacity(self.node_count());
        match self.nodes().find(|&node| !names.add(self, node)) {
            None => Ok(()),
            Some(node) => Err(self.fault(node, "this id is used twice")),
        }
    }

    /// Error: two parameters have a name, by which nodes are tied, but for a node's own.
    fn check_params(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let tied = self.param_names.iter().zip(self.own_params()).filter(|(_, is_own)| !is_own);
        match tied.map(|(name, _)| name).find(|name| !seen.insert(name.as_str())) {
            None => Ok(()),
            Some(name) => Err(Error::model("param_names", format!("\"{name}\" is there twice"))),
        }
    }

    /// Errors: an op that takes no time has some, or bytes beside its parameter's; times or bytes add up to too much.
    fn check_sums(&self) -> Result<()> {
        let (mut time, mut bytes) = (0u128, 0u128);
        for node in self.nodes() {
            let kinds = self.kinds.len();
            let times = &self.times[node.index() * kinds..(node.index() + 1) * kinds];
            if self.role(node) != Role::Compute && times.iter().any(|&time| time != 0) {
                return Err(self.fault(node, "ops `param` and `input` take no time"));
            }
            let param = self.param(node).map_or(0, |param| self.param_bytes(param).0);
            if self.role(node) == Role::Param && self.owned[node.index()] != 0 {
                return Err(self.fault(node, "the bytes of op `param` are those of its parameter"));
            }
            let longest = times.iter().filter(|&&time| time != u64::MAX).max();
            time += longest.map_or(0, |&longest| longest.into());
            let fixed = [param, self.owned[node.index()], self.workspace[node.index()]];
            let outputs = self.outputs(node).map(|output| self.tensor_bytes(output).0);
            bytes += fixed.into_iter().chain(outputs).map(u128::from).sum::<u128>();
            if time.max(bytes) > MOST {
                let what = if time > MOST { "times" } else { "bytes" };
                return Err(self.fault(node, &format!("the {what} up to here add up to more than 2^63 - 1")));
            }
        }
        Ok(())
    }

    /// Error: a node reads an output twice in its list of inputs.
    fn check_rows(&self) -> Result<()> {
        let mut seen = vec![NONE; self.tensor_count()];
        for node in self.nodes() {
            for tensor in self.inputs(node) {
                if std::mem::replace(&mut seen[tensor.index()], node.0) == node.0 {
                    return Err(self.fault(node, "an output is listed twice among its inputs"));
                }
            }
        }
        Ok(())
    }

    fn fault(&self, node: NodeIx, message: &str) -> Error {
        Error::model(format!("node {}", self.node_name(node)), message)
    }
}

/// Errors: arrays of one thing have several lengths; there are no nodes, or too many.
fn check_lengths(columns: &Columns) -> Result<()> {
    let (nodes, outputs) = (columns.ops.len(), columns.output_bytes.len());
    if nodes == 0 {
        return Err(Error::model("nodes", "the graph has no nodes"));
    }
    if nodes.max(outputs).max(columns.names.len()).max(columns.inputs.len()) >= NONE as usize - 1 {
        return Err(Error::model("nodes", "the graph is too large"));
    }
    let params = columns.param_bytes.len();
    let lengths = [
        ("name_ends", columns.name_ends.len(), nodes),
        ("times", columns.times.len(), nodes.saturating_mul(columns.kinds.len())),
        ("owned_bytes", columns.owned_bytes.len(), nodes),
        ("workspace_bytes", columns.workspace_bytes.len(), nodes),
        ("params", columns.params.len(), nodes),
        ("param_names", columns.param_names.len(), params),
        ("colocate", columns.colocate.len(), nodes),
        ("forward", columns.forward.len(), nodes),
        ("backward", columns.backward.len(), nodes),
        ("output_starts", columns.output_starts.len(), nodes + 1),
        ("results", columns.results.len(), outputs),
        ("input_starts", columns.input_starts.len(), nodes + 1),
    ];
    for (field, found, expected) in lengths {
        if found != expected {
            return Err(Error::model(field, format!("has {found} entries, expected {expected}")));
        }
    }
    check_starts("output_starts", &columns.output_starts, outputs)?;
    check_starts("input_starts", &columns.input_starts, columns.inputs.len())
}

/// Error: where rows start does not begin with 0, falls, or does not end with `end`.
fn check_starts(field: &str, starts: &[u32], end: usize) -> Result<()> {
    let ends = starts.first() == Some(&0) && starts.last().is_some_and(|&last| last as usize == end);
    if ends && starts.is_sorted() {
        return Ok(());
    }
    Err(Error::model(field, format!("must rise from 0 to {end}")))
}

/// Errors: a kind or operation that is there twice, a kind without a name; names that are cut where no character ends.
fn check_words(columns: &Columns) -> Result<()> {
    for (field, list) in [("kinds", &columns.kinds), ("op_names", &columns.op_names)] {
        let mut seen = HashSet::new();
        let mut words = list.iter().map(String::as_str);
        if let Some(word) = words.find(|word| !seen.insert(*word) || field == "kinds" && word.is_empty()) {
            return Err(Error::model(field, format!("\"{word}\" is empty or is there twice")));
        }
    }
    let names = &columns.names;
    let ends = &columns.name_ends;
    let is_cut = ends.iter().any(|&end| !names.is_char_boundary(end as usize));
    if is_cut || !ends.is_sorted() || ends.last().is_some_and(|&last| last as usize != names.len()) {
        return Err(Error::model("name_ends", format!("must rise to {}, between characters", names.len())));
    }
    Ok(())
}

/// Error: a number refers to nothing, or a list is not in order.
fn check_references(columns: &Columns) -> Result<()> {
    let (nodes, outputs) = (columns.ops.len() as u32, columns.output_bytes.len() as u32);
    let within =
        |field: &str, what: &str, mut numbers: &mut dyn Iterator<Item = u32>, end: u32| match (&mut numbers)
            .find(|&number| number >= end)
        {
            None => Ok(()),
            Some(number) => Err(Error::model(field, format!("there is no {what} {number}"))),
        };
    within("ops", "operation", &mut columns.ops.iter().map(|&op| op.into()), columns.op_names.len() as u32)?;
    within("inputs", "output", &mut columns.inputs.iter().map(|tensor| tensor.0), outputs)?;
    within("forward", "node", &mut columns.forward.iter().copied().filter(|&node| node != NONE), nodes)?;
    within("pins", "node", &mut columns.pins.iter().map(|(node, _)| node.0), nodes)?;
    within("in_place", "node", &mut columns.in_place.iter().map(|(node, ..)| node.0), nodes)?;
    within("views", "node", &mut columns.views.iter().map(|(node, _)| node.0), nodes)?;
    within("updates", "output", &mut columns.updates.iter().flat_map(|(new, old)| [new.0, old.0]), outputs)?;
    let in_order = [
        ("pins", columns.pins.is_sorted_by(|one, other| one.0 < other.0)),
        ("in_place", columns.in_place.is_sorted_by(|one, other| one.0 <= other.0)),
        ("updates", columns.updates.is_sorted_by(|one, other| one < other)),
        ("views", columns.views.is_sorted_by(|one, other| one.0 < other.0)),
    ];
    match in_order.into_iter().find(|&(_, is_sorted)| !is_sorted) {
        None => Ok(()),
        Some((field, _)) => Err(Error::model(field, "is not in ascending order")),
    }
}

/// What each node is. Errors: a parameter of a node that is none, a `param` without one, a parameter without a node.
fn roles(columns: &Columns) -> Result<Vec<Role>> {
    let of_op: Vec<Role> = columns.op_names.iter().map(|op| Role::of(op)).collect();
    let roles: Vec<Role> = columns.ops.iter().map(|&op| of_op[usize::from(op)]).collect();
    let unfit = |(&role, &param): (&Role, &u32)| (role == Role::Param) != (param != NONE);
    if let Some(node) = roles.iter().zip(&columns.params).position(unfit) {
        return Err(Error::model(format!("params: node {node}"), "a parameter is that of an op `param`"));
    }
    let params = numbered(&columns.params, columns.param_bytes.len(), "params")?;
    if params as usize != columns.param_bytes.len() {
        return Err(Error::model("params", format!("no node has parameter {params}")));
    }
    Ok(roles)
}

/// How many numbers there are, of which each node has one or none. Error: one is left out, or is `most` or more.
fn numbered(of_node: &[u32], most: usize, field: &str) -> Result<u32> {
    let mut used = vec![false; most];
    for &number in of_node.iter().filter(|&&number| number != NONE) {
        match used.get_mut(number as usize) {
            Some(used) => *used = true,
            None => return Err(Error::model(field, format!("number {number} is too large"))),
        }
    }
    let count = used.iter().position(|&used| !used).unwrap_or(most);
    match used[count..].iter().position(|&used| used) {
        None => Ok(count as u32),
        Some(_) => Err(Error::model(field, format!("number {count} is left out"))),
    }
}

/// By output: its node.
fn producers(starts: &[u32]) -> Vec<u32> {
    let mut node_of = Vec::with_capacity(starts.last().map_or(0, |&end| end as usize));
    for (node, pair) in starts.windows(2).enumerate() {
        node_of.extend(std::iter::repeat_n(node as u32, (pair[1] - pair[0]) as usize));
    }
    node_of
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x -> a -> b, of which `b` is on a pinned device and `w` is a parameter that it reads.
    fn sound() -> Columns {
        Columns {
            name: "g".into(),
            kinds: vec!["k".into()],
            names: "xwabb".into(),
            name_ends: vec![1, 2, 3, 5],
            op_names: vec!["input".into(), "param".into(), "f".into()],
            ops: vec![0, 1, 2, 2],
            times: vec![0, 0, 7, u64::MAX],
            owned_bytes: vec![0, 0, 5, 0],
            workspace_bytes: vec![0, 0, 0, 6],
            params: vec![NONE, 0, NONE, NONE],
            param_bytes: vec![64],
            param_names: vec!["w".into()],
            colocate: vec![NONE, NONE, 0, 0],
            forward: vec![NONE, NONE, NONE, 2],
            backward: vec![false, false, false, true],
            pins: vec![(NodeIx(3), "cpu0".into())],
            in_place: vec![(NodeIx(3), 0, 0)],
            updates: vec![(TensorIx(3), TensorIx(0))],
            views: Vec::new(),
            output_starts: vec![0, 1, 2, 3, 4],
            output_bytes: vec![4, 64, 4, 4],
            results: vec![false; 4],
            input_starts: vec![0, 0, 0, 1, 3],
            inputs: vec![TensorIx(0), TensorIx(2), TensorIx(1)],
        }
    }

    #[test]
    fn arrays_become_the_graph_that_a_builder_makes() {
        use super::super::{Builder, NodeSpec};
        use crate::units::{Bytes, Nanos};
        let mut b = Builder::new("g", vec!["k".into()]);
        let plain = NodeSpec { op: "f", outputs: &[Bytes(4)], colocate: Some("c"), ..NodeSpec::default() };
        let x = b.add(&NodeSpec { name: "x", op: "input", outputs: &[Bytes(4)], ..NodeSpec::default() });
        let param = Bytes(64);
        let w =
            NodeSpec { name: "w", op: "param", param_bytes: param, outputs: &[param], ..NodeSpec::default() };
        let w = b.add(&w);
        let a = NodeSpec { name: "a", times: &[Some(Nanos(7))], param_bytes: Bytes(5), ..plain.clone() };
        let last = NodeSpec {
            name: "bb",
            times: &[None],
            workspace: Bytes(6),
            backward: true,
            pin: Some("cpu0"),
            in_place: &[(0, 0)],
            ..plain
        };
        let [x, w, a, last] = [x, w, b.add(&a), b.add(&last)].map(Result::unwrap);
        b.connect(x, 0, a);
        b.connect(a, 0, last);
        b.connect(w, 0, last);
        b.set_forward(last, a);
        b.set_update(x, last, 0);
        let built = b.finish().unwrap();
        let taken = CostGraph::from_columns(sound()).unwrap();
        assert_eq!(taken, built);
        assert_eq!(taken.digest(), built.digest());
        assert_eq!(CostGraph::from_columns(built.clone().into_columns()).unwrap(), built);
    }

    /// Makes `x` a parameter, too, with these names for its and for that of `w`.
    fn two_params(columns: &mut Columns, names: [&str; 2]) {
        columns.ops[0] = 1;
        columns.params[0] = 1;
        columns.param_bytes.push(4);
        columns.param_names = names.map(String::from).to_vec();
        columns.updates.clear();
    }

    #[test]
    fn a_parameter_may_have_the_name_of_its_node_where_others_are_tied_by_it() {
        let mut columns = sound();
        two_params(&mut columns, ["w", "w"]);
        // `w` is that of node w; the other one is tied by the name w.
        assert_eq!(CostGraph::from_columns(columns).unwrap().own_params(), [true, false]);
    }

    #[test]
    fn arrays_that_do_not_fit_together_are_refused() {
        let cases: [(fn(&mut Columns), &str); 29] = [
            (|c| c.ops.clear(), "the graph has no nodes"),
            (|c| c.name_ends.truncate(3), "name_ends: has 3 entries, expected 4"),
            (|c| c.times.truncate(3), "times: has 3 entries, expected 4"),
            (|c| c.results.truncate(3), "results: has 3 entries, expected 4"),
            (|c| c.output_starts[0] = 1, "output_starts: must rise from 0 to 4"),
            (|c| c.output_starts[2] = 4, "output_starts: must rise"),
            (|c| c.input_starts[4] = 4, "input_starts: must rise from 0 to 3"),
            (|c| c.kinds[0].clear(), "kinds: \"\" is empty or is there twice"),
            (|c| c.op_names[2] = "input".into(), "op_names: \"input\" is empty or is there twice"),
            (|c| c.names = "xwébb".into(), "name_ends: must rise to 6"),
            (|c| c.name_ends[1] = 0, "name_ends: must rise to 5"),
            (|c| c.names = "xwxbb".into(), "node x: this id is used twice"),
            (|c| c.name_ends[0] = 0, "node 0: its id is empty"),
            (|c| two_params(c, ["t", "t"]), "param_names: \"t\" is there twice"),
            (|c| c.ops[2] = 3, "ops: there is no operation 3"),
            (|c| c.inputs[0] = TensorIx(4), "inputs: there is no output 4"),
            (|c| c.inputs[2] = TensorIx(2), "node bb: an output is listed twice"),
            (|c| c.forward[0] = 4, "forward: there is no node 4"),
            (|c| c.pins[0].0 = NodeIx(4), "pins: there is no node 4"),
            (|c| c.updates[0].1 = TensorIx(9), "updates: there is no output 9"),
            (|c| c.in_place[0].1 = 2, "cannot write output 0 in place of input 2"),
            (|c| c.views.push((NodeIx(3), 0)), "a view "),
            (|c| c.colocate[2] = 7, "colocate: number 7 is too large"),
            (|c| c.colocate = vec![NONE, 2, 0, 0], "colocate: number 1 is left out"),
            (|c| c.params[2] = 0, "a parameter is that of an op `param`"),
            (|c| c.params[1] = 1, "params: number 1 is too large"),
            (|c| c.times[0] = 1, "node x: ops `param` and `input` take no time"),
            (|c| c.output_bytes[0] = u64::MAX, "node x: the bytes up to here add up"),
            (|c| c.inputs[0] = TensorIx(3), "is on a cycle of 2 nodes"),
        ];
        for (damage, expected) in cases {
            let mut columns = sound();
            damage(&mut columns);
            let error = CostGraph::from_columns(columns).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }
}
