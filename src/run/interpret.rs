//! Runs a graph node by node, without a plan: what results are compared with.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::ir::{BoxOf, DType, Graph, NodeId, Op, ParamId, Tensor, Type, ValueId};
use crate::kernel::workspace::workspace;

use super::arena::Buffer;
use super::counted::cut;
use super::cpu::{self, Team, View, ViewMut};

/// Gives a parameter's data. An error ends the run.
pub type Weights<'a> = &'a dyn Fn(ParamId) -> Result<Tensor>;

/// The outputs of `graph`, by name and in its order, for `inputs` by name. Every dimension is
/// bound. Each value has memory of its own, which is freed after its last reader.
///
/// Errors: an input that is missing, unknown or of another type; a parameter that is not there or
/// of another type; an unbound dimension; an index outside its axis.
pub fn interpret(
    graph: &Graph,
    inputs: &[(String, Tensor)],
    weights: Weights<'_>,
) -> Result<Vec<(String, Tensor)>> {
    let interpreter = walk(graph, inputs, weights, &mut |_, _| true)?;
    let taken = |(number, (name, value)): (usize, &(String, ValueId))| {
        let tensor = interpreter.tensor(*value)?;
        Ok((name.clone(), as_taken(tensor, graph.output_type(number).dtype)?))
    };
    let outputs = graph.outputs().iter().enumerate().map(taken).collect::<Result<Vec<_>>>()?;
    cut(graph.counted(), outputs)
}

/// Shows each result as it is made, in the order of the arena, until `see` says that it is enough.
///
/// Errors: those of [`interpret`].
pub fn watch(
    graph: &Graph,
    inputs: &[(String, Tensor)],
    weights: Weights<'_>,
    see: &mut dyn FnMut(ValueId, Tensor) -> bool,
) -> Result<()> {
    walk(graph, inputs, weights, &mut |interpreter, node| {
        graph.results(node).all(|value| interpreter.tensor(value).is_ok_and(|tensor| see(value, tensor)))
    })
    .map(drop)
}

/// Runs node by node until `go_on` says otherwise.
fn walk<'g>(
    graph: &'g Graph,
    inputs: &[(String, Tensor)],
    weights: Weights<'_>,
    go_on: &mut dyn FnMut(&Interpreter<'g>, NodeId) -> bool,
) -> Result<Interpreter<'g>> {
    let names = graph.inputs().iter().map(|(name, _)| graph.input_box(name).map_or(name, |part| &part.name));
    let inputs = known_inputs(names.map(String::as_str), inputs)?;
    let mut interpreter = Interpreter::new(graph)?;
    for node in graph.node_ids() {
        let place = || format!("node {}", graph.source(graph.node(node).source).name);
        interpreter.step(node, &inputs, weights).map_err(|error| error.within(&place()))?;
        if !go_on(&interpreter, node) {
            break;
        }
    }
    Ok(interpreter)
}

/// What is given, by name. Looked up, never iterated.
pub(super) type Inputs<'a> = HashMap<&'a str, &'a Tensor>;

/// What is given for inputs of these names, by name. O(names + inputs).
///
/// Errors: one that is given twice, or is none of them.
pub(super) fn known_inputs<'a>(
    names: impl Iterator<Item = &'a str>,
    inputs: &'a [(String, Tensor)],
) -> Result<Inputs<'a>> {
    let mut names: Vec<&str> = names.collect();
    // Boxes of one input are handed over together.
    names.dedup();
    let known: HashSet<&str> = names.iter().copied().collect();
    let mut found = Inputs::with_capacity(inputs.len());
    for (name, tensor) in inputs {
        if !known.contains(name.as_str()) {
            return Err(Error::usage(format!("input {name}"), "the model has no such input")
                .with_help(format!("its inputs are: {}", names.join(", "))));
        }
        if found.insert(name, tensor).is_some() {
            return Err(Error::usage(format!("input {name}"), "given twice"));
        }
    }
    Ok(found)
}

/// The tensor given for an input.
pub(super) fn input<'a>(inputs: &Inputs<'a>, name: &str) -> Result<&'a Tensor> {
    let found = inputs.get(name).copied();
    found.ok_or_else(|| Error::usage(format!("input {name}"), "no data is given").with_help("--inputs F.npz"))
}

/// What of a caller's input an input of type `seen` is: all of it, or its box.
pub(super) fn supplied<'t>(whole: &'t Tensor, part: Option<&BoxOf>, seen: &Type) -> Result<Cow<'t, Tensor>> {
    let Some(part) = part else { return Ok(Cow::Borrowed(whole)) };
    check_type(whole, &part.whole(seen))?;
    part.cut(Cow::Borrowed(whole), seen)
}

/// The sizes of a type as numbers. Error: a dimension is not bound.
pub(super) fn dims(ty: &Type) -> Result<Vec<i64>> {
    ty.shape.dims().ok_or_else(|| {
        Error::run("", "a dimension has no value").with_help("bind it with --dim NAME=N or --batch N")
    })
}

/// The bytes of a type. Error: a dimension is not bound, or the number overflows.
pub(super) fn bytes(ty: &Type) -> Result<u64> {
    dims(ty)?;
    ty.bytes().map(|bytes| bytes.get()).ok_or_else(|| Error::run("", "the size of a tensor overflows"))
}

/// Error: a tensor is of another type.
pub(super) fn check_type(tensor: &Tensor, ty: &Type) -> Result<()> {
    let expected = dims(ty)?;
    let same = tensor.dims().len() == expected.len()
        && tensor.dims().iter().zip(&expected).all(|(&a, &b)| i64::try_from(a) == Ok(b));
    if same && tensor.dtype() == ty.dtype {
        return Ok(());
    }
    let message = format!(
        "expected {} of sizes {expected:?}, found {} of {:?}",
        ty.dtype,
        tensor.dtype(),
        tensor.dims()
    );
    Err(Error::run("", message))
}

/// An input as the graph holds it. Error: it is not of the type in which callers supply it.
pub(super) fn as_held<'t>(input: &'t Tensor, supplied: &Type, held: &Type) -> Result<Cow<'t, Tensor>> {
    check_type(input, supplied)?;
    match supplied.dtype == held.dtype {
        true => Ok(Cow::Borrowed(input)),
        false => input.rounded(held.dtype).map(Cow::Owned),
    }
}

/// An output in the type in which callers take it.
pub(super) fn as_taken(output: Tensor, taken: DType) -> Result<Tensor> {
    if output.dtype() == taken { Ok(output) } else { output.widened() }
}

/// The data of a leaf as the graph holds it: rounded, where a parameter is held in another type than it
/// is given in.
pub(super) fn rounded(graph: &Graph, leaf: ValueId, data: Tensor) -> Result<Tensor> {
    match graph.maker(leaf).op {
        Op::Param(id) if graph.param(id).supplied == Some(data.dtype()) => data.rounded(graph.ty(leaf).dtype),
        _ => Ok(data),
    }
}

/// The element type and sizes as a tensor has them.
pub(super) fn tensor(ty: &Type, bytes: &[u8]) -> Result<Tensor> {
    let sizes = dims(ty)?.iter().map(|&dim| dim as u64).collect();
    Tensor::new(ty.dtype, sizes, bytes)
}

struct Interpreter<'a> {
    graph: &'a Graph,
    dims: Vec<Vec<i64>>,
    values: Vec<Option<Buffer>>,
    last_reader: Vec<Option<NodeId>>,
    /// By value: its number among the graph's inputs. Looked up, never iterated.
    numbers: HashMap<ValueId, usize>,
}

impl<'a> Interpreter<'a> {
    fn new(graph: &'a Graph) -> Result<Self> {
        let count = graph.value_count();
        let mut last_reader: Vec<Option<NodeId>> =
            (0..count).map(|value| Some(graph.value(ValueId(value as u32)).node)).collect();
        for node in graph.node_ids() {
            graph.node(node).operands.iter().for_each(|value| last_reader[value.index()] = Some(node));
        }
        graph.outputs().iter().for_each(|(_, value)| last_reader[value.index()] = None);
        let dims = (0..count).map(|value| dims(graph.ty(ValueId(value as u32)))).collect::<Result<_>>()?;
        let values = std::iter::repeat_with(|| None).take(count).collect();
        let inputs = graph.inputs().iter().enumerate();
        let numbers = inputs.map(|(number, (_, value))| (*value, number)).collect();
        Ok(Self { graph, dims, values, last_reader, numbers })
    }

    fn step(&mut self, id: NodeId, inputs: &Inputs<'_>, weights: Weights<'_>) -> Result<()> {
        let node = self.graph.node(id);
        match &node.op {
            Op::Input => {
                let Some(&number) = self.numbers.get(&node.first_result) else {
                    return Err(Error::Internal("a nameless input".to_owned()));
                };
                let name = &self.graph.inputs()[number].0;
                let part = self.graph.input_box(name);
                let name = part.map_or(name, |part| &part.name);
                let within = |error: Error| error.within(&format!("input {name}"));
                let (seen, held) = (self.graph.input_type(number), self.graph.ty(node.first_result));
                let own = supplied(input(inputs, name)?, part, &seen).map_err(within)?;
                let held = as_held(&own, &seen, held).map_err(within)?;
                self.set(node.first_result, &held).map_err(within)?;
            }
            Op::Param(param) => {
                let place = format!("parameter {}", self.graph.param(*param).name);
                let data = rounded(self.graph, node.first_result, weights(*param)?)?;
                self.set(node.first_result, &data).map_err(|error| error.within(&place))?;
            }
            Op::Constant(constant) => self.set(node.first_result, self.graph.constant(*constant))?,
            op => self.compute(id, op)?,
        }
        for &value in node.operands.iter() {
            if self.last_reader[value.index()] == Some(id) {
                self.values[value.index()] = None;
            }
        }
        Ok(())
    }

    fn set(&mut self, value: ValueId, tensor: &Tensor) -> Result<()> {
        check_type(tensor, self.graph.ty(value))?;
        let mut buffer = Buffer::new(tensor.bytes().len() as u64)?;
        buffer.bytes_mut().copy_from_slice(tensor.bytes());
        self.values[value.index()] = Some(buffer);
        Ok(())
    }

    fn compute(&mut self, id: NodeId, op: &Op) -> Result<()> {
        let node = self.graph.node(id);
        let results: Vec<ValueId> = self.graph.results(id).collect();
        let mut buffers: Vec<Buffer> =
            results.iter().map(|&value| Buffer::new(bytes(self.graph.ty(value))?)).collect::<Result<_>>()?;
        let operand_types: Vec<&Type> = node.operands.iter().map(|&value| self.graph.ty(value)).collect();
        let result_types: Vec<&Type> = results.iter().map(|&value| self.graph.ty(value)).collect();
        let mut scratch = Buffer::new(workspace(op, &operand_types, &result_types).get())?;
        let views: Vec<View<'_>> =
            node.operands.iter().map(|&value| self.view(value)).collect::<Result<_>>()?;
        let mut outputs: Vec<ViewMut<'_>> = results
            .iter()
            .zip(&mut buffers)
            .map(|(&value, buffer)| {
                ViewMut::new(self.graph.ty(value).dtype, &self.dims[value.index()], buffer.bytes_mut())
            })
            .collect::<Result<_>>()?;
        cpu::execute(&Team::alone(), op, &views, &mut outputs, scratch.bytes_mut())?;
        for (value, buffer) in results.into_iter().zip(buffers) {
            self.values[value.index()] = Some(buffer);
        }
        Ok(())
    }

    fn view(&self, value: ValueId) -> Result<View<'_>> {
        let buffer = self.buffer(value)?;
        View::new(self.graph.ty(value).dtype, &self.dims[value.index()], buffer.bytes())
    }

    fn buffer(&self, value: ValueId) -> Result<&Buffer> {
        let buffer = self.values[value.index()].as_ref();
        buffer.ok_or_else(|| Error::Internal(format!("{value} is read after its last reader")))
    }

    fn tensor(&self, value: ValueId) -> Result<Tensor> {
        tensor(self.graph.ty(value), self.buffer(value)?.bytes())
    }
}
