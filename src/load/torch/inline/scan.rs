//! The steps of a `scan`, one after the other, and those of a `map`, which hand nothing on.

use super::super::call::results;
use super::super::schema::{Graph, NamedArgument, Node, TensorMeta, size};
use super::{Outside, ROWS, argument, body, called, integer, list, made, tensors, unsupported, wrong};
use crate::error::Result;

/// What a scan reads, and what it gives.
struct Scan {
    step: Graph,
    /// What a step is handed by the one before it.
    carried: Vec<String>,
    sequences: Vec<String>,
    others: Vec<String>,
    /// What a row of each sequence is.
    rows: Vec<TensorMeta>,
    given: Vec<String>,
    count: usize,
}

impl Scan {
    fn of(outer: &Graph, node: Node, most: usize) -> Result<Self> {
        let given: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
        let mut inputs = node.inputs;
        if node.target == ROWS && !inputs.is_empty() {
            inputs.insert(1, argument("init", "as_tensors", list(&[])));
        }
        let [mut step, first, sequences, others] = <[NamedArgument; 4]>::try_from(inputs).map_err(|_| {
            wrong("it has not a graph, what it begins with, sequences and what it reads beside")
        })?;
        let step = called(&mut step.arg)?.ok_or_else(|| wrong("its step is no graph"))?;
        let what = "a scan of what is no tensor";
        let carried = tensors(&first, what)?;
        let (sequences, others) = (tensors(&sequences, what)?, tensors(&others, what)?);
        if carried.len() > given.len() {
            return Err(wrong("it gives fewer results than its steps hand on"));
        }
        let meta = |name: &String| {
            outer.tensor_values.get(name).ok_or_else(|| wrong("its sequence is not described"))
        };
        let rows = sequences.iter().map(|name| Ok(meta(name)?.row())).collect::<Result<_>>()?;
        let first = sequences.first().map(meta).transpose()?;
        let length = first.and_then(|meta| meta.sizes.first()).and_then(size);
        let length = length.ok_or_else(|| unsupported("a scan of an open length"))?;
        let nodes_of_step = step.nodes.len() + sequences.len();
        let count = usize::try_from(length).ok().filter(|count| count.saturating_mul(nodes_of_step) <= most);
        let count = count.ok_or_else(|| unsupported(&format!("a scan of {length} steps")))?;
        Ok(Self { step, carried, sequences, others, rows, given, count })
    }

    /// The nodes that take a row of each sequence, and the rows' names.
    fn rows(&self, outer: &mut Graph, number: usize, own: &str) -> (Vec<Node>, Vec<String>) {
        let (mut nodes, mut names) = (Vec::new(), Vec::new());
        for (i, (sequence, row)) in self.sequences.iter().zip(&self.rows).enumerate() {
            let name = format!("{own}/row{i}");
            let mut node = made("torch.ops.aten.select.int", &[("self", sequence)], &name);
            node.inputs.push(integer("dim", 0));
            node.inputs.push(integer("index", number as i64));
            nodes.push(node);
            outer.tensor_values.insert(name.clone(), row.clone());
            names.push(name);
        }
        (nodes, names)
    }
}

/// The nodes of each step of a scan: it reads what the one before gives and a row of each sequence, and gives a row of each
/// result. Steps are numbered from the first row on; a scan from the last one reads sequences that are turned.
pub(super) fn steps(outer: &mut Graph, node: Node, own: &str, most: usize) -> Result<Vec<Node>> {
    let scan = Scan::of(outer, node, most)?;
    let (ends, stacked) = scan.given.split_at(scan.carried.len());
    let (mut nodes, mut stacks) = (Vec::new(), vec![Vec::new(); stacked.len()]);
    let mut carried = scan.carried.clone();
    for number in 0..scan.count {
        let own = format!("{own}/{number}");
        let (taken, rows) = scan.rows(outer, number, &own);
        nodes.extend(taken);
        let passed = carried.into_iter().chain(rows).chain(scan.others.iter().cloned()).map(Some).collect();
        let body = body(outer, scan.step.clone(), Outside { passed, given: &[], own: &own })?;
        nodes.extend(body.nodes);
        if body.outputs.len() != scan.given.len() {
            return Err(wrong("its step gives another number of results"));
        }
        let (next, rows) = body.outputs.split_at(ends.len());
        stacks.iter_mut().zip(rows).for_each(|(stack, row)| stack.push(row.clone()));
        carried = next.to_vec();
    }
    for (carried, given) in carried.iter().zip(ends).filter(|(_, given)| !given.is_empty()) {
        nodes.push(made("torch.ops.aten.alias.default", &[("self", carried)], given));
    }
    for (stack, given) in stacks.iter().zip(stacked).filter(|(_, given)| !given.is_empty()) {
        let mut node = made("torch.ops.aten.stack.default", &[], given);
        node.inputs.push(argument("tensors", "as_tensors", list(stack)));
        node.inputs.push(integer("dim", 0));
        nodes.push(node);
    }
    Ok(nodes)
}
