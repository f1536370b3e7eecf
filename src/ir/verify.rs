//! The verifier: whether a graph holds what the module promises.
//!
//! It runs after parsing and, in debug builds, after every pass. What it accepts can be walked
//! front to back without any check.

use std::collections::{BTreeMap, HashSet};

use super::{
    BoxOf, DType, Data, DimId, Graph, Node, NodeId, Op, Piece, Repacked, Shape, Size, Type, ValueId, infer,
};
use crate::error::{Error, Result};

/// Checks a whole graph: O(nodes + operands), plus the cost of inference.
///
/// Holds afterwards: operands are made by earlier nodes; each node has the results that its
/// operation gives, with the types that [`infer`] gives; all ids are in range; parameters,
/// constants and inputs have exactly one node each and are in the order of their nodes; data
/// fits the types; names of inputs, outputs and parameters are unique; control dependencies
/// point forward.
///
/// Errors: the first thing that does not hold, with the node's source as place.
pub fn verify(graph: &Graph) -> Result<()> {
    let mut leaves = Leaves::default();
    let mut next = ValueId(0);
    for id in graph.node_ids() {
        let node = graph.node(id);
        if node.first_result != next {
            return Err(fail(
                graph,
                node,
                format!("expected results from {next}, found {}", node.first_result),
            ));
        }
        verify_node(graph, id)?;
        leaves.count(graph, node)?;
        next = ValueId(next.0 + node.op.results() as u32);
    }
    if next.index() != graph.value_count() {
        return Err(Error::model(
            "graph",
            format!("expected {} values, found {}", next.0, graph.value_count()),
        ));
    }
    leaves.complete(graph)?;
    verify_sources(graph)?;
    verify_ports(graph)?;
    verify_port_types(graph)?;
    verify_controls(graph)
}

/// What callers see in another type is of f32 to them, and of halves in the graph.
fn verify_port_types(graph: &Graph) -> Result<()> {
    let check = |what: &str, list: &[(String, ValueId)], types: &BTreeMap<String, DType>| {
        let wrong = list.iter().find(|(name, value)| {
            let seen = types.get(name);
            seen.is_some_and(|&seen| seen != DType::F32 || !graph.ty(*value).dtype.is_half())
        });
        wrong.map_or(Ok(()), |(name, _)| {
            Err(Error::model(format!("{what} {name}"), "only halves are supplied in another type, f32"))
        })
    };
    check("input", &graph.inputs, &graph.ports.inputs)?;
    check("output", &graph.outputs, &graph.ports.outputs)?;
    verify_boxes(graph)?;
    verify_counts(graph)
}

/// An input that is a box of a caller's lies within that.
fn verify_boxes(graph: &Graph) -> Result<()> {
    let is_within = |(name, value): &(String, ValueId)| {
        let ty = graph.ty(*value);
        let of = graph.input_box(name).filter(|_| ty.shape.dims().is_some());
        of.is_none_or(|of| of.bounds(ty).is_some())
    };
    graph.inputs.iter().find(|input| !is_within(input)).map_or(Ok(()), |(name, _)| {
        Err(Error::model(format!("input {name}"), "it is a box that lies beyond what callers supply"))
    })
}

/// What says how much of an output is seen is one i64, and the axis one of the output's.
fn verify_counts(graph: &Graph) -> Result<()> {
    let of: BTreeMap<&str, ValueId> =
        graph.outputs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let wrong = graph.ports.counts.iter().find(|(name, counted)| {
        let (output, count) = (of.get(name.as_str()), of.get(counted.by.as_str()));
        let fits = match (output, count) {
            (Some(&output), Some(&count)) => {
                let one = graph.ty(count);
                let rank = graph.ty(output).shape.rank();
                (counted.axis as usize) < rank && one.dtype == DType::I64 && one.shape.rank() == 0
            }
            // A graph of which only some outputs are left.
            _ => true,
        };
        !fits
    });
    wrong.map_or(Ok(()), |(name, _)| {
        Err(Error::model(
            format!("output {name}"),
            "what counts its elements is not one i64, or its axis is none",
        ))
    })
}

/// Checks one node, whose predecessors hold.
pub(super) fn verify_node(graph: &Graph, id: NodeId) -> Result<()> {
    let node = graph.node(id);
    if node.source.index() >= graph.sources.len() {
        return Err(Error::model(format!("node {id}"), format!("there is no source {}", node.source)));
    }
    let fail = |message: String| Err(fail(graph, node, message));
    let results = node.first_result.index()..node.first_result.index() + node.op.results();
    let Some(results) = graph.values.get(results) else {
        return fail(format!("expected {} results", node.op.results()));
    };
    for result in results {
        if result.node != id {
            return fail(format!("a result belongs to node {}", result.node));
        }
        if let Err(dim) = dims_exist(graph, result.ty.shape.sizes().iter()) {
            return fail(format!("a type mentions dimension {}, which is not there", dim.0));
        }
    }
    if let Err(dim) = dims_exist(graph, node.op.sizes()) {
        return fail(format!("an attribute mentions dimension {}, which is not there", dim.0));
    }
    if let Some(late) = node.operands.iter().find(|&&operand| operand >= node.first_result) {
        return fail(format!("operand {late} is not made by an earlier node"));
    }
    let Some(expected) = expected_types(graph, node)? else {
        return verify_leaf(graph, node, &results[0].ty);
    };
    for (result, expected) in results.iter().zip(&expected) {
        if result.ty != *expected {
            return fail(format!(
                "expected type {}, found {}",
                show(graph, expected),
                show(graph, &result.ty)
            ));
        }
    }
    Ok(())
}

/// The types that inference gives; none for operations without operands.
fn expected_types(graph: &Graph, node: &Node) -> Result<Option<Vec<Type>>> {
    if matches!(node.op, Op::Input | Op::Param(_) | Op::Constant(_) | Op::Sizes(_) | Op::Iota { .. }) {
        return Ok(None);
    }
    let operands: Vec<&Type> = node.operands.iter().map(|&value| graph.ty(value)).collect();
    let types = infer(&node.op, &operands, &|dim| graph.dim_name(dim).to_owned());
    types.map(Some).map_err(|error| error.within(&place(graph, node)))
}

/// Checks an operation without operands against the type that it was given.
fn verify_leaf(graph: &Graph, node: &Node, ty: &Type) -> Result<()> {
    let fail = |message: &str| Err(fail(graph, node, format!("{message}, found {}", show(graph, ty))));
    if !node.operands.is_empty() {
        return fail("expected no operands");
    }
    if ty.shape.sizes().iter().any(|size| size.known().is_some_and(|size| size < 0)) {
        return fail("expected sizes of 0 or more");
    }
    if ty.shape.dims().is_some() && ty.bytes().is_none() {
        return fail("expected a size that can be represented");
    }
    match &node.op {
        Op::Sizes(sizes) => {
            let vector = Type::new(DType::I64, Shape::known(&[sizes.len() as i64]));
            let scalar = Type::new(DType::I64, Shape::scalar());
            if *ty != vector && !(sizes.len() == 1 && *ty == scalar) {
                return fail("expected a type for the sizes");
            }
        }
        Op::Iota { axis } => {
            if *axis as usize >= ty.shape.rank() {
                return fail("expected an axis of the result");
            }
            if !ty.dtype.is_float() && !ty.dtype.is_integer() {
                return fail("expected a type of numbers");
            }
        }
        Op::Constant(id) => match graph.constants.get(id.index()) {
            Some(tensor) if tensor.is_of(ty) => {}
            Some(_) => return fail("expected the type of the constant's data"),
            None => return fail("expected data for the constant"),
        },
        Op::Param(id) => match graph.params.get(id.index()) {
            None => return fail("expected an entry for the parameter"),
            Some(param) => {
                if let Some(order) = &param.permuted
                    && (param.repacked.is_some() || !is_order(order, ty.shape.rank()))
                {
                    return fail("expected an order of the parameter's axes, and no packed rows beside it");
                }
                if let Some(repacked) = param.repacked
                    && !is_repacked(repacked, param.slice.as_ref(), ty)
                {
                    return fail("expected packed rows of the parameter's matrix");
                }
                if let Some(slice) = &param.slice
                    && slice.bounds(ty).is_none()
                {
                    return fail("expected a slice within the whole parameter");
                }
                if let Some(Data::Inline(tensor)) = &param.data
                    && !tensor.is_of(&param.whole_type(graph))
                {
                    return fail("expected the type of the parameter's data");
                }
            }
        },
        _ => {}
    }
    Ok(())
}

/// Whether each axis is there once.
fn is_order(order: &[u32], rank: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..rank as u32)
}

/// Whether a parameter of this type holds the blocks of a matrix, or a part of them.
fn is_repacked(repacked: Repacked, slice: Option<&BoxOf>, ty: &Type) -> bool {
    let (format, (dtype, expected)) = (repacked.format, repacked.held_row());
    let is_known = format.is_known() && repacked.columns > 0;
    let is_there = repacked.piece == Piece::Bytes || format.has_scales_beside();
    let row = match slice {
        Some(slice) => slice.axes.get(1).map(|&(_, bytes)| bytes),
        None => ty.shape.sizes().get(1).and_then(Size::known).and_then(|size| u64::try_from(size).ok()),
    };
    is_known && is_there && ty.dtype == dtype && ty.shape.rank() == 2 && row == Some(expected)
}

/// How many parameters, constants and inputs were met: their entries are in the same order.
#[derive(Default)]
struct Leaves {
    params: usize,
    constants: usize,
    inputs: usize,
}

impl Leaves {
    fn count(&mut self, graph: &Graph, node: &Node) -> Result<()> {
        let (what, in_order) = match node.op {
            Op::Param(id) => {
                self.params += 1;
                let entry = graph.params.get(id.index());
                let own = entry.is_some_and(|param| graph.value(node.first_result).node == param.node);
                ("parameters", own && id.index() + 1 == self.params)
            }
            Op::Constant(id) => {
                self.constants += 1;
                ("constants", id.index() + 1 == self.constants)
            }
            Op::Input => {
                self.inputs += 1;
                let entry = graph.inputs.get(self.inputs - 1);
                ("inputs", entry.is_some_and(|(_, value)| *value == node.first_result))
            }
            _ => return Ok(()),
        };
        if in_order {
            Ok(())
        } else {
            Err(fail(graph, node, format!("{what} are not in the order of their nodes")))
        }
    }

    fn complete(&self, graph: &Graph) -> Result<()> {
        let counts = [
            ("parameters", graph.params.len(), self.params),
            ("constants", graph.constants.len(), self.constants),
            ("inputs", graph.inputs.len(), self.inputs),
        ];
        for (what, entries, nodes) in counts {
            if entries != nodes {
                return Err(Error::model(
                    "graph",
                    format!("expected a node for each of {entries} {what}, found {nodes}"),
                ));
            }
        }
        Ok(())
    }
}

fn verify_sources(graph: &Graph) -> Result<()> {
    for source in &graph.sources {
        if let Some(consumer) = source.consumer
            && consumer.index() >= graph.sources.len()
        {
            return Err(Error::model(
                format!("source {}", source.name),
                format!("there is no source {consumer} to consume it"),
            ));
        }
        if let Some(forward) = source.forward
            && forward.index() >= graph.sources.len()
        {
            return Err(Error::model(
                format!("source {}", source.name),
                format!("there is no source {forward} that it could belong to"),
            ));
        }
    }
    Ok(())
}

fn verify_ports(graph: &Graph) -> Result<()> {
    for (name, value) in &graph.outputs {
        if value.index() >= graph.value_count() {
            return Err(Error::model(format!("output {name}"), format!("there is no value {value}")));
        }
    }
    let mut taken = vec![false; graph.outputs.len()];
    for param in &graph.params {
        let Some(output) = param.update else { continue };
        let value = graph.outputs.get(output as usize).map(|(_, value)| *value);
        let own = graph.nodes.get(param.node.index()).map(|node| node.first_result);
        let fits = value.zip(own).is_some_and(|(value, own)| graph.ty(value) == graph.ty(own));
        if !fits || std::mem::replace(&mut taken[output as usize], true) {
            let message = format!("output {output} cannot take its place");
            return Err(Error::model(format!("parameter {}", param.name), message));
        }
    }
    unique("dimension", graph.dims.iter().map(|dim| dim.name.as_str()))?;
    unique("input", graph.inputs.iter().map(|input| input.0.as_str()))?;
    unique("output", graph.outputs.iter().map(|output| output.0.as_str()))?;
    unique("parameter", graph.params.iter().map(|param| param.name.as_str()))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::model(format!("{what} {name}"), "the name is there twice"));
        }
    }
    Ok(())
}

fn verify_controls(graph: &Graph) -> Result<()> {
    for &(before, after) in &graph.controls {
        if before >= after || after.index() >= graph.node_count() {
            return Err(Error::model(format!("control {before} -> {after}"), "does not point forward"));
        }
    }
    Ok(())
}

/// The first dimension that is mentioned and not there.
fn dims_exist<'a>(graph: &Graph, sizes: impl Iterator<Item = &'a Size>) -> Result<(), DimId> {
    for size in sizes {
        if let Some(term) = size.terms().iter().find(|term| term.0.index() >= graph.dims.len()) {
            return Err(term.0);
        }
    }
    Ok(())
}

fn place(graph: &Graph, node: &Node) -> String {
    format!("node {}", graph.source(node.source).name)
}

fn fail(graph: &Graph, node: &Node, message: String) -> Error {
    match graph.sources.get(node.source.index()) {
        Some(_) => Error::model(place(graph, node), format!("{}: {message}", node.op.name())),
        None => Error::model(node.op.name(), message),
    }
}

fn show(graph: &Graph, ty: &Type) -> String {
    let names = |dim: DimId| graph.dims.get(dim.index()).map_or("?", |dim| dim.name.as_str());
    let sizes: Vec<String> = ty.shape.sizes().iter().map(|size| size.display(&names).to_string()).collect();
    format!("{}[{}]", ty.dtype, sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{Binary, Init, Source, SourceId, SourceRole, Tensor, Unary};
    use super::*;

    fn graph() -> Graph {
        let mut graph = Graph::new("g");
        let source = graph.add_source(Source::new("layer", "Dense", SourceRole::Node));
        let ty = Type::new(DType::F32, Shape::known(&[2, 3]));
        let x = graph.add_input("x", ty.clone(), source);
        let w = graph.add_param("w", ty, Init::zeros(), None, source);
        let c = graph.add_constant(Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]).unwrap(), source);
        let y = graph.apply(Op::Binary(Binary::Add), &[x, w], source).unwrap();
        let z = graph.apply(Op::Binary(Binary::Mul), &[y, c], source).unwrap();
        graph.add_output("z", z);
        graph
    }

    fn broken(change: impl Fn(&mut Graph), message: &str) {
        let mut graph = graph();
        assert!(verify(&graph).is_ok());
        change(&mut graph);
        let error = verify(&graph).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        broken(|g| g.nodes[3].operands[0] = ValueId(3), "operand %3 is not made by an earlier node");
        broken(|g| g.nodes[3].operands[0] = ValueId(99), "operand %99");
        broken(|g| g.nodes[3].source = SourceId(7), "there is no source s7");
        broken(|g| g.nodes[3].first_result = ValueId(4), "expected results from %3, found %4");
        broken(|g| g.nodes[3].op = Op::Unary(Unary::Neg), "expected 1 operands, found 2");
        broken(|g| g.values[3].ty.dtype = DType::I32, "expected type f32[2, 3], found i32[2, 3]");
        broken(|g| g.values[3].node = NodeId(1), "belongs to node n1");
        broken(|g| g.values[0].ty.shape = Shape::new([Size::dim(DimId(4))]), "mentions dimension 4");
        broken(|g| g.values[0].ty.shape = Shape::known(&[-1]), "sizes of 0 or more");
        broken(|g| g.values[0].ty.shape = Shape::known(&[i64::MAX, 2]), "can be represented");
        broken(|g| g.values[2].ty.shape = Shape::known(&[4]), "the constant's data");
        broken(|g| g.values.truncate(4), "expected 1 results");
        broken(|g| g.constants.clear(), "expected data for the constant");
        broken(|g| g.params.clear(), "expected an entry for the parameter");
        broken(|g| g.params[0].node = NodeId(0), "parameters are not in the order");
        broken(|g| g.inputs[0].1 = ValueId(1), "inputs are not in the order");
        broken(|g| g.inputs.push(("again".to_owned(), ValueId(0))), "a node for each of 2 inputs");
        broken(|g| g.outputs.push(("z".to_owned(), ValueId(0))), "output z: the name is there twice");
        broken(|g| g.outputs[0].1 = ValueId(5), "there is no value %5");
        broken(|g| g.controls.push((NodeId(2), NodeId(2))), "does not point forward");
        broken(|g| g.sources[0].consumer = Some(SourceId(1)), "there is no source s1");
        broken(|g| g.nodes[0].op = Op::Iota { axis: 2 }, "an axis of the result");
        broken(|g| g.nodes[0].op = Op::Sizes([Size::Known(1)].into()), "a type for the sizes");
    }
}
