//! One ONNX node while it is lowered: its inputs, attributes and results, and shorthands for the
//! operations that many lowerings are made of.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::known::Known;
use super::lower::{Binding, Form, Lowering, Ragged, make, show};
use super::narrow::Narrow;
use super::proto::{AttributeProto, NodeProto, SparseTensorProto, TensorProto, attribute_type};
use super::tensor;
use crate::error::{Error, Report, Result};
use crate::ir::{
    Binary, DType, DimId, Graph, Noise, Op, Shape, Size, Source, SourceId, SourceRole, Statistic, Type,
    Unary, ValueId,
};

/// A node and the state of the lowering around it. Attributes that a lowering does not read are
/// an error, so that none is passed over in silence.
pub(super) struct At<'a> {
    lowering: &'a mut Lowering,
    node: &'a NodeProto,
    source: SourceId,
    /// The version of the operators in the node's domain.
    pub(super) opset: i64,
    inputs: Vec<Option<usize>>,
    outputs: Vec<Option<Binding>>,
    unread: RefCell<Vec<&'a str>>,
}

impl<'a> At<'a> {
    pub(super) fn new(
        lowering: &'a mut Lowering,
        node: &'a NodeProto,
        source: SourceId,
        opset: i64,
        inputs: Vec<Option<usize>>,
    ) -> Self {
        let outputs = node.output.iter().map(|_| None).collect();
        let unread = RefCell::new(node.attribute.iter().map(|attribute| attribute.name.as_str()).collect());
        Self { lowering, node, source, opset, inputs, outputs, unread }
    }

    /// What the outputs are. Error: an attribute that was not read.
    pub(super) fn finish(self) -> Result<Vec<Option<Binding>>> {
        match self.unread.borrow().first() {
            None => {}
            Some(name) => {
                return Err(Error::Unsupported(Report::new(
                    "",
                    format!("attribute {name} of op {} is not supported yet", self.node.op_type),
                )));
            }
        }
        Ok(self.outputs)
    }

    // Errors.

    /// A part of the operation that is not supported.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        let message = format!("op {} {what} is not supported yet", self.node.op_type);
        Error::Unsupported(Report::new("", message))
    }

    /// An input has as many elements as data says, and the node does something else with them than what is known.
    pub(super) fn depends_on_data(&self) -> Error {
        self.unsupported("of a tensor whose size depends on data")
    }

    /// The node is wrong.
    pub(super) fn wrong(&self, message: impl Into<String>) -> Error {
        Error::model(self.node.op_type.as_str(), message)
    }

    /// A size cannot be computed before the model's dimensions have values.
    pub(super) fn undecided(&self, what: &str, sizes: &[Size]) -> Error {
        let of_sizes = |sizes: &[Size]| -> BTreeSet<DimId> {
            sizes.iter().flat_map(|size| size.terms()).map(|term| term.0).collect()
        };
        let mut dims = of_sizes(sizes);
        if dims.is_empty() {
            // Those of the inputs which are still open.
            let inputs = self.graph().inputs().iter().map(|&(_, input)| &self.graph().ty(input).shape);
            dims = inputs.flat_map(|shape| of_sizes(shape.sizes())).collect();
        }
        let message = format!("{what} cannot be computed before the model's dimensions are bound");
        let names: Vec<String> =
            dims.iter().map(|&dim| format!("--dim {}=N", self.graph().dim_name(dim))).collect();
        match names.is_empty() {
            true => self.unsupported(format!("whose {what} depends on data")),
            false => self.wrong(message).with_help(format!("bind with {}", names.join(" "))),
        }
    }

    // The lowering around the node.

    pub(super) fn lowering(&mut self) -> &mut Lowering {
        self.lowering
    }

    /// The node's name.
    pub(super) fn name(&self) -> String {
        self.graph().source(self.source).name.clone()
    }

    pub(super) fn source(&self) -> SourceId {
        self.source
    }

    /// Where the node lies.
    pub(super) fn node_address(&self) -> *const NodeProto {
        self.node
    }

    /// The bindings of the inputs.
    pub(super) fn bindings(&self) -> &[Option<usize>] {
        &self.inputs
    }

    /// Input `i` is another binding from here on.
    pub(super) fn read_instead(&mut self, i: usize, binding: usize) {
        if let Some(input) = self.inputs.get_mut(i) {
            *input = Some(binding);
        }
    }

    /// The operator's name.
    pub(super) fn op_type(&self) -> &'a str {
        &self.node.op_type
    }

    /// Output `i` is this. No effect where the output is unused.
    pub(super) fn set_output(&mut self, i: usize, binding: Binding) {
        if let Some(output) = self.outputs.get_mut(i) {
            *output = Some(binding);
        }
    }

    // Inputs.

    /// Number of inputs, absent ones included.
    pub(super) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs, unused ones included.
    pub(super) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// True where an output is used under a name.
    pub(super) fn wants(&self, output: usize) -> bool {
        self.node.output.get(output).is_some_and(|name| !name.is_empty())
    }

    /// True where input `i` is there; an optional value that is nothing is not.
    pub(super) fn has(&self, i: usize) -> bool {
        let index = self.inputs.get(i).copied().flatten();
        index.is_some_and(|index| !matches!(self.lowering.binding(index).form, Form::Optional(None)))
    }

    fn index(&self, i: usize) -> Result<usize> {
        let index = self.inputs.get(i).copied().flatten();
        index.ok_or_else(|| self.wrong(format!("its input {i} is missing")))
    }

    /// Input `i` as data.
    pub(super) fn value(&mut self, i: usize) -> Result<ValueId> {
        let index = self.index(i)?;
        self.lowering.value(index)
    }

    /// Input `i`; where it is a parameter that the file names otherwise, one of its own that begins as that does. Exporters
    /// write arrays once that are equal, and training moves a statistic apart from weights. O(1) but for its data.
    pub(super) fn untied(&mut self, i: usize) -> Result<ValueId> {
        let value = self.value(i)?;
        // Bodies have names of their own for what they are called with.
        let is_named = self.lowering.scopes.len() == 1;
        let graph = &mut self.lowering.graph;
        let (Op::Param(id), Some(name)) = (&graph.maker(value).op, self.node.input.get(i)) else {
            return Ok(value);
        };
        let param = graph.param(*id);
        if !is_named || param.name == *name {
            return Ok(value);
        }
        if let Some(&known) = self.lowering.untied.get(name) {
            return Ok(known);
        }
        let param = param.clone();
        let ty = graph.ty(value).clone();
        let source = graph.add_source(Source::new(name.clone(), "Initializer", SourceRole::Data));
        let own = graph.add_param(name.clone(), ty, param.init, param.data, source);
        self.lowering.untied.insert(name.clone(), own);
        Ok(own)
    }

    /// Says that a parameter follows the batches and not a gradient.
    pub(super) fn statistic(&mut self, param: ValueId, statistic: Statistic) {
        self.lowering.graph.set_statistic(param, statistic);
    }

    /// Takes note of a node that drops elements wherever it is run, as the file says, and here in training alone.
    pub(super) fn drops_in_training(&mut self) {
        let name = self.name();
        self.lowering.trained.dropping.push(name);
    }

    /// Takes note of a node that normalises by its batch wherever it is run.
    pub(super) fn normalises_by_batch(&mut self) {
        let name = self.name();
        self.lowering.trained.normalising.push(name);
    }

    /// A value as a node that disturbs it leaves it at inference.
    pub(super) fn disturbed(&mut self, x: ValueId, noise: Noise) -> Result<ValueId> {
        self.lowering.graph.disturbed(x, noise, self.source)
    }

    /// Input `i` as data, where it is there.
    pub(super) fn optional(&mut self, i: usize) -> Result<Option<ValueId>> {
        if self.has(i) { self.value(i).map(Some) } else { Ok(None) }
    }

    /// All inputs as data.
    pub(super) fn values(&mut self) -> Result<Vec<ValueId>> {
        (0..self.inputs.len()).map(|i| self.value(i)).collect()
    }

    /// The inputs that are there, as data.
    pub(super) fn values_present(&mut self) -> Result<Vec<ValueId>> {
        (0..self.inputs.len()).filter_map(|i| self.optional(i).transpose()).collect()
    }

    /// The type of input `i`.
    pub(super) fn ty(&self, i: usize) -> Result<Type> {
        Ok(self.lowering.binding(self.index(i)?).ty.clone())
    }

    /// The rank of input `i`.
    pub(super) fn rank(&self, i: usize) -> Result<usize> {
        Ok(self.lowering.binding(self.index(i)?).ty.shape.rank())
    }

    /// The elements of input `i`, where they are known.
    pub(super) fn known(&self, i: usize) -> Option<&Known> {
        self.lowering.binding(self.inputs.get(i).copied().flatten()?).known.as_ref()
    }

    /// Input `i` as sizes. Error: they depend on data or are not affine.
    pub(super) fn sizes(&self, i: usize, what: &str) -> Result<Vec<Size>> {
        let index = self.index(i)?;
        match self.known(i).map(|known| known.sizes()) {
            Some(Some(sizes)) => Ok(sizes.to_vec()),
            Some(None) => Err(self.wrong(format!("{what} are not integers"))),
            None => {
                let large = self.lowering.binding(index).is_pending();
                match large {
                    true => Err(self.unsupported(format!("with so many {what}"))),
                    false => Err(self.undecided(what, &[])),
                }
            }
        }
    }

    /// Input `i` as integers. Error: one is not a number.
    pub(super) fn integers(&self, i: usize, what: &str) -> Result<Vec<i64>> {
        let sizes = self.sizes(i, what)?;
        sizes.iter().map(Size::known).collect::<Option<_>>().ok_or_else(|| self.undecided(what, &sizes))
    }

    /// Input `i` as one integer.
    pub(super) fn integer(&self, i: usize, what: &str) -> Result<i64> {
        match self.integers(i, what)?.as_slice() {
            [one] => Ok(*one),
            other => Err(self.wrong(format!("expected one {what}, found {}", other.len()))),
        }
    }

    /// Input `i` as real numbers. Error: they depend on data.
    pub(super) fn reals(&self, i: usize, what: &str) -> Result<Vec<f64>> {
        match self.known(i).map(|known| known.reals()) {
            Some(Some(reals)) => Ok(reals.to_vec()),
            Some(None) => Ok(self.integers(i, what)?.into_iter().map(|value| value as f64).collect()),
            None => Err(self.undecided(what, &[])),
        }
    }

    // Attributes.

    pub(super) fn attribute(&self, name: &str, expected: i32) -> Result<Option<&'a AttributeProto>> {
        let Some(found) = self.node.attribute.iter().find(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        self.unread.borrow_mut().retain(|unread| *unread != name);
        if !found.ref_attr_name.is_empty() {
            return Err(self.unsupported(format!("with attribute {name} of a function")));
        }
        // Files from before IR version 3 do not say the type.
        if found.r#type != expected && found.r#type != 0 {
            return Err(self.wrong(format!("attribute {name} has another type than expected")));
        }
        Ok(Some(found))
    }

    /// Takes note of attributes that change nothing here.
    pub(super) fn ignore(&self, names: &[&str]) {
        self.unread.borrow_mut().retain(|unread| !names.contains(unread));
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.attribute(name, attribute_type::INT)?.map(|attribute| attribute.i))
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An attribute that is 0 or 1.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name)?.map_or(default, |value| value != 0))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.attribute(name, attribute_type::FLOAT)?.map(|attribute| f64::from(attribute.f)))
    }

    pub(super) fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.attribute(name, attribute_type::INTS)?.map(|attribute| attribute.ints.clone()))
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let floats = self.attribute(name, attribute_type::FLOATS)?;
        Ok(floats.map(|attribute| attribute.floats.iter().map(|&value| value.into()).collect()))
    }

    pub(super) fn text(&self, name: &str, default: &str) -> Result<String> {
        let text = self.attribute(name, attribute_type::STRING)?;
        Ok(text.map_or_else(|| default.to_owned(), |attribute| String::from_utf8_lossy(&attribute.s).into()))
    }

    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        let texts = self.attribute(name, attribute_type::STRINGS)?;
        Ok(texts
            .map(|attribute| attribute.strings.iter().map(|s| String::from_utf8_lossy(s).into()).collect()))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Option<&'a TensorProto>> {
        Ok(self.attribute(name, attribute_type::TENSOR)?.and_then(|attribute| attribute.t.as_deref()))
    }

    pub(super) fn sparse(&self, name: &str) -> Result<Option<&'a SparseTensorProto>> {
        let attribute = self.attribute(name, attribute_type::SPARSE_TENSOR)?;
        Ok(attribute.and_then(|attribute| attribute.sparse_tensor.as_deref()))
    }

    // Axes.

    /// An axis below `rank`; negative ones count from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let wrong = || self.wrong(format!("axis {axis} is out of range for rank {rank}"));
        let signed = i64::try_from(rank).map_err(|_| wrong())?;
        let axis = if axis < 0 { axis.checked_add(signed) } else { Some(axis) };
        axis.filter(|axis| (0..signed).contains(axis)).map(|axis| axis as usize).ok_or_else(wrong)
    }

    /// Several axes, ascending. Error: one is there twice.
    pub(super) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut sorted: Vec<usize> = axes.iter().map(|&a| self.axis(a, rank)).collect::<Result<_>>()?;
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(self.wrong("an axis is there twice"));
        }
        Ok(sorted)
    }

    // Making operations.

    pub(super) fn graph(&self) -> &Graph {
        &self.lowering.graph
    }

    /// The type of a value of the graph.
    pub(super) fn type_of(&self, value: ValueId) -> Type {
        self.graph().ty(value).clone()
    }

    pub(super) fn show(&self, size: &Size) -> String {
        show(self.graph(), size)
    }

    /// Adds an operation and returns its first result.
    pub(super) fn apply(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        Ok(self.apply_all(op, operands)?[0])
    }

    /// Adds an operation and returns its results; there is at least one.
    pub(super) fn apply_all(&mut self, op: Op, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let graph = &mut self.lowering.graph;
        let node = graph.push_inferred(op, operands, self.source)?;
        Ok(graph.results(node).collect())
    }

    pub(super) fn unary(&mut self, unary: Unary, x: ValueId) -> Result<ValueId> {
        self.apply(Op::Unary(unary), &[x])
    }

    pub(super) fn binary(&mut self, binary: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Binary(binary), &[x, y])
    }

    /// A binary operation with a number on the right.
    pub(super) fn binary_scalar(&mut self, binary: Binary, x: ValueId, number: f64) -> Result<ValueId> {
        let number = self.scalar(self.graph().ty(x).dtype, number)?;
        self.binary(binary, x, number)
    }

    /// A number as a constant of rank 0.
    pub(super) fn scalar(&mut self, dtype: DType, number: f64) -> Result<ValueId> {
        let tensor = tensor::scalar(dtype, number)?;
        Ok(self.constant(tensor))
    }

    pub(super) fn constant(&mut self, tensor: crate::ir::Tensor) -> ValueId {
        self.lowering.graph.add_constant(tensor, self.source)
    }

    /// Positions along an axis.
    pub(super) fn iota(&mut self, ty: Type, axis: usize) -> ValueId {
        self.lowering.graph.add_iota(ty, axis as u32, self.source)
    }

    /// The elements under another shape; the value itself where that is its shape.
    pub(super) fn reshape(&mut self, x: ValueId, sizes: impl IntoIterator<Item = Size>) -> Result<ValueId> {
        let shape = Shape::new(sizes);
        if self.graph().ty(x).shape == shape {
            return Ok(x);
        }
        self.apply(Op::Reshape { shape }, &[x])
    }

    pub(super) fn broadcast(&mut self, x: ValueId, shape: Shape) -> Result<ValueId> {
        if self.graph().ty(x).shape == shape {
            return Ok(x);
        }
        self.apply(Op::Broadcast { shape }, &[x])
    }

    pub(super) fn convert(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        if self.graph().ty(x).dtype == to {
            return Ok(x);
        }
        self.apply(Op::Convert { to }, &[x])
    }

    pub(super) fn transpose(&mut self, x: ValueId, perm: Vec<u32>) -> Result<ValueId> {
        if perm.iter().enumerate().all(|(axis, &from)| axis == from as usize) {
            return Ok(x);
        }
        self.apply(Op::Transpose { perm }, &[x])
    }

    /// Known elements as a value.
    pub(super) fn make(&mut self, known: &Known) -> Result<ValueId> {
        make(&mut self.lowering.graph, known, self.source)
    }

    // Results.

    /// Output `i` is this value. No effect where the output is unused.
    pub(super) fn set(&mut self, i: usize, value: ValueId) {
        let binding = Binding::of_value(&self.lowering.graph, self.source, value);
        if let Some(output) = self.outputs.get_mut(i) {
            *output = Some(binding);
        }
    }

    /// What input `i` holds, where that is not what its type says.
    pub(super) fn narrow(&self, i: usize) -> Option<Narrow> {
        self.lowering.binding(self.inputs.get(i).copied().flatten()?).narrow
    }

    /// Says of output `i` what it holds.
    pub(super) fn set_narrow_output(&mut self, i: usize, narrow: Narrow) {
        if let Some(output) = self.outputs.get_mut(i).and_then(Option::as_mut) {
            output.narrow = Some(narrow);
        }
    }

    /// Says of all outputs what they hold.
    pub(super) fn set_narrow(&mut self, narrow: Narrow) {
        self.outputs.iter_mut().flatten().for_each(|output| output.narrow = Some(narrow));
    }

    /// Of output `i` only the first elements of an axis count.
    pub(super) fn set_ragged_output(&mut self, i: usize, ragged: Ragged) {
        if let Some(Some(output)) = self.outputs.get_mut(i) {
            output.ragged = Some(ragged);
        }
    }

    /// Of all outputs that are made only the first elements of an axis count.
    pub(super) fn set_ragged(&mut self, ragged: Ragged) -> Result<()> {
        for output in self.outputs.iter_mut().flatten() {
            output.ragged = Some(ragged);
            // How many of them count is not known, so they are data from here on.
            if let Some(known) = output.known.take().filter(|_| output.value.is_none()) {
                output.value = Some(make(&mut self.lowering.graph, &known, self.source)?);
            }
        }
        Ok(())
    }

    /// The shape of output `i`, once it is set.
    pub(super) fn output_shape(&self, i: usize) -> Option<Shape> {
        Some(self.outputs.get(i)?.as_ref()?.ty.shape.clone())
    }

    pub(super) fn output_rank(&self, i: usize) -> Option<usize> {
        self.output_shape(i).map(|shape| shape.rank())
    }

    /// Output `i` as data, once it is set.
    pub(super) fn output_value(&mut self, i: usize) -> Result<Option<ValueId>> {
        let Some(Some(output)) = self.outputs.get_mut(i) else { return Ok(None) };
        if let (None, Some(known)) = (output.value, &output.known) {
            output.value = Some(make(&mut self.lowering.graph, known, self.source)?);
        }
        Ok(output.value)
    }

    /// Output `i` has these elements.
    pub(super) fn set_known(&mut self, i: usize, known: Known) {
        let binding = Binding::of_known(self.source, known);
        if let Some(output) = self.outputs.get_mut(i) {
            *output = Some(binding);
        }
    }

    /// Of output `i`, which is computed from parameters, these are the elements as long as those do not change.
    pub(super) fn know(&mut self, i: usize, known: Known) {
        if let Some(Some(output)) = self.outputs.get_mut(i) {
            (output.known, output.of_weights) = (Some(known), true);
        }
    }

    /// Output `i`, where it is there.
    pub(super) fn output(&self, i: usize) -> Option<&Binding> {
        self.outputs.get(i).and_then(Option::as_ref)
    }

    /// Output `i`, which is computed from constants, has these elements, where they are known.
    pub(super) fn note(&mut self, i: usize, known: Option<Known>) {
        if let Some(Some(output)) = self.outputs.get_mut(i) {
            output.known = known;
        }
    }

    /// Whether how many elements of an axis of output `i` count depends on data.
    pub(super) fn is_ragged_output(&self, i: usize) -> bool {
        self.output(i).is_some_and(|output| output.ragged.is_some())
    }

    /// Whether input `i` is a parameter, or computed from some whose elements are known.
    pub(super) fn is_of_weights(&self, i: usize) -> bool {
        let index = self.inputs.get(i).copied().flatten();
        index.is_some_and(|index| self.lowering.binding(index).of_weights)
    }

    /// Output `i` is input `input`, whatever that is.
    pub(super) fn alias(&mut self, i: usize, input: usize) -> Result<()> {
        let index = self.index(input)?;
        if !matches!(self.lowering.binding(index).form, Form::Tensor) {
            let same = self.lowering.binding(index).same();
            self.set_output(i, same);
            return Ok(());
        }
        let known = self.known(input).cloned();
        let binding = self.lowering.binding(index);
        // A parameter stays one, which training moves, however small.
        let is_param = |value| matches!(self.graph().maker(value).op, Op::Param(_));
        let stays = binding.is_pending() || binding.of_weights || binding.value.is_some_and(is_param);
        let of_weights = binding.of_weights;
        if let Some(known) = known.clone().filter(|_| !stays) {
            self.set_known(i, known);
            return Ok(());
        }
        let value = self.lowering.value(index)?;
        self.set(i, value);
        if let Some(Some(output)) = self.outputs.get_mut(i) {
            (output.known, output.of_weights) = (known, of_weights);
        }
        Ok(())
    }
}
