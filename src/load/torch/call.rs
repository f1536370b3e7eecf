//! A node of an exported program while it is lowered: its arguments by name, and what is written for it.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::memory::{Memory, View};
use super::ops;
use super::schema::{Argument, Node, TensorMeta};
use crate::error::{Error, Report, Result};
use crate::ir::DType;
use crate::load::onnx::model_builder::{Attribute, ModelBuilder, Operation, number};

/// More views are not made again after something was written over.
const MOST_REMADE: usize = 100_000;

/// More steps of recurrent layers are not written one by one in the graph of a program.
const MOST_STEPS: i64 = 1 << 14;

/// More places of elements are not written one by one in the graph of a program.
const MOST_PLACES: i64 = 1 << 24;

/// The graph that is written, and what stands for the program's values in it.
pub(super) struct Emit<'d> {
    pub(super) model: ModelBuilder,
    pub(super) metas: &'d BTreeMap<String, TensorMeta>,
    /// Names of the values that the user is given.
    pub(super) outputs: HashSet<String>,
    /// Names of the values that nodes read, or that the user is given.
    pub(super) read: HashSet<String>,
    /// By the program's name, that of the value in the graph; of complex numbers, that of their real part.
    values: HashMap<String, String>,
    /// By the program's name, the imaginary part of complex numbers.
    imaginary: HashMap<String, String>,
    /// The part that operands stand for.
    part: Part,
    /// Which result of several is wanted; none where all are.
    only: Option<usize>,
    lost: HashSet<String>,
    /// Inputs, parameters and buffers that have their names in the graph too.
    placeholders: HashSet<String>,
    /// What is not written over: it lies in the same bytes as something else.
    held: HashSet<String>,
    /// Parameters: what the file holds of them stays.
    parameters: HashSet<String>,
    memory: Memory<'d>,
    /// Views that were made again after something was written over.
    remade: usize,
    /// Numbers made of sizes that may be below 0.
    below_zero: HashSet<String>,
    /// Places of elements that were written one by one.
    places: i64,
    /// Steps of recurrent layers that were written one by one.
    steps: i64,
    /// Numbers what has no name in the program.
    count: usize,
    /// Operators that the node has so far.
    operators: usize,
}

/// A part of complex numbers. The graph has none: what is done to both parts alike is lowered once for each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Real,
    Imaginary,
}

/// The values of a tensor in the graph.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) real: String,
    /// None where it has no complex numbers.
    pub(super) imaginary: Option<String>,
}

impl<'d> Emit<'d> {
    pub(super) fn new(
        model: ModelBuilder,
        metas: &'d BTreeMap<String, TensorMeta>,
        outputs: HashSet<String>,
        nodes: &'d [Node],
    ) -> Self {
        let mut read = outputs.clone();
        let computed = nodes.iter().filter(|node| !ops::is_assertion(node));
        for input in computed.flat_map(|node| &node.inputs) {
            named(input.arg.parts().1, &mut read);
        }
        Self {
            model,
            metas,
            outputs,
            read,
            values: HashMap::new(),
            imaginary: HashMap::new(),
            part: Part::Real,
            only: None,
            lost: HashSet::new(),
            placeholders: HashSet::new(),
            held: HashSet::new(),
            parameters: HashSet::new(),
            memory: Memory::of(nodes, metas),
            remade: 0,
            below_zero: HashSet::new(),
            places: 0,
            steps: 0,
            count: 0,
            operators: 0,
        }
    }

    /// Binds an input, parameter or buffer.
    pub(super) fn bind_placeholder(&mut self, name: &str, value: String) {
        if value == name {
            self.placeholders.insert(value.clone());
        }
        self.values.insert(name.to_owned(), value);
    }

    /// Binds the parts of complex numbers.
    pub(super) fn bind_parts(&mut self, name: &str, parts: Parts) {
        if let Some(imaginary) = parts.imaginary {
            self.imaginary.insert(name.to_owned(), imaginary);
        }
        self.values.insert(name.to_owned(), parts.real);
    }

    /// What lowers a node; none where its operation is not supported, of complex numbers if it has such.
    pub(super) fn find(&self, node: &Node) -> Option<ops::Lower> {
        let is_complex = |name: &str| self.metas.get(name).is_some_and(TensorMeta::is_complex);
        match operands(node).any(is_complex) || results(node).into_iter().any(is_complex) {
            true => ops::find_complex(&node.target),
            false => ops::find(&node.target),
        }
    }

    /// Notes that a parameter or buffer stays as it is.
    pub(super) fn hold(&mut self, name: &str) {
        self.held.insert(name.to_owned());
    }

    /// Notes that a tensor is a parameter.
    pub(super) fn keep(&mut self, name: &str) {
        self.parameters.insert(name.to_owned());
    }

    /// Whether the program writes over a tensor.
    pub(super) fn is_rewritten(&self, name: &'d str) -> bool {
        self.memory.is_rewritten(name)
    }

    pub(super) fn reads_lost(&self, node: &Node) -> bool {
        operands(node).any(|name| self.lost.contains(name))
    }

    /// Notes that the results of a node are not there.
    pub(super) fn lose(&mut self, node: &Node) {
        self.lost.extend(results(node).into_iter().map(str::to_owned));
    }

    /// Lowers a node, in the memory that its operands lie in.
    ///
    /// Error: that of the lowering; the node writes over a parameter or buffer, or over what may be seen elsewhere.
    pub(super) fn node(&mut self, node: &'d Node, lower: ops::Lower) -> Result<()> {
        if node.inputs.iter().any(|input| input.name == "out" && input.arg.name().is_some()) {
            let message = format!("{}: a result in memory that is given (out=)", node.target);
            return Err(Error::Unsupported(Report::new("", message)));
        }
        let is_small = |name: &&str| self.metas.get(*name).is_some_and(|meta| meta.small_float().is_some());
        if results(node).iter().any(is_small) && !ops::may_be_view(ops::base(&node.target)) {
            let message = format!("{}: a result of floats of 8 bits", node.target);
            return Err(Error::Unsupported(Report::new("", message)));
        }
        self.operators = 0;
        self.model.begin(name(node), &node.target);
        for operand in operands(node) {
            self.refresh(operand)?;
        }
        let operation = ops::base(&node.target);
        let first = operands(node).next().filter(|_| ops::is_in_place(operation));
        if let Some(first) = first {
            self.check_written(first, operation).map_err(|message| {
                Error::Unsupported(Report::new("", format!("{operation} writes over {message}")))
            })?;
        }
        lower(&mut Call { emit: self, node })?;
        match (first, results(node).first()) {
            (Some(first), Some(result)) => self.written(first, result),
            _ => {
                results(node).into_iter().for_each(|name| self.memory.make(name));
                Ok(())
            }
        }
    }

    /// Error: what is written over where it must not be.
    fn check_written(&self, name: &'d str, operation: &str) -> std::result::Result<(), &'static str> {
        let reshapes =
            ["as_strided_", "resize_", "set_", "squeeze_", "swapaxes_", "t_", "transpose_", "unsqueeze_"];
        if reshapes.contains(&operation) {
            return Err("the shape of a tensor, which is not supported");
        }
        let whole = self.memory.whole(name);
        // Rows that are made shorter are as short in the next call, which begins with the file's.
        let is_kept = self.parameters.contains(whole) && !ops::shortens_rows(operation);
        if is_kept || self.held.contains(whole) {
            return Err("a parameter or buffer, which is not supported");
        }
        if !self.memory.is_clear(name) {
            return Err("a tensor that may be seen elsewhere, which is not supported");
        }
        Ok(())
    }

    /// Makes a tensor again whose memory was written over since it was made, and what it is a view of.
    fn refresh(&mut self, name: &'d str) -> Result<()> {
        let mut chain = vec![];
        let mut at = name;
        while self.memory.is_stale(at)
            && let Some(view) = self.memory.view(at)
        {
            chain.push((at, view));
            at = view.of;
        }
        for (name, view) in chain.into_iter().rev() {
            self.remake(name, view)?;
        }
        Ok(())
    }

    /// Counts views that are made again, or put back. Error: there are too many.
    fn count_views(&mut self, count: usize) -> Result<()> {
        self.remade = self.remade.saturating_add(count);
        if self.remade <= MOST_REMADE {
            return Ok(());
        }
        let message = format!("more than {MOST_REMADE} views of tensors that are written over");
        Err(Error::Unsupported(Report::new("", message)))
    }

    fn remake(&mut self, name: &'d str, view: View<'d>) -> Result<()> {
        self.count_views(1)?;
        match view.by.map(|(node, _)| (node, self.find(node))) {
            None => {
                let parts = self.parts(view.of)?;
                self.bind_parts(name, parts);
                self.memory.make(name);
            }
            Some((node, Some(lower))) => {
                // Of many parts of one tensor only that one: each may be written over by itself.
                self.only = view.by.map(|(_, part)| part);
                let done = lower(&mut Call { emit: self, node });
                self.only = None;
                done?;
                self.memory.make(name);
            }
            Some((_, None)) => return Err(Error::Internal("a view that no operation makes".into())),
        }
        Ok(())
    }

    /// Puts a tensor that was written over, now `result`, in its place in whatever it is a view of.
    fn written(&mut self, first: &'d str, result: &'d str) -> Result<()> {
        self.memory.write(first);
        self.memory.make(result);
        let mut parts = self.parts(result)?;
        let mut at = first;
        loop {
            self.bind_parts(at, parts.clone());
            self.memory.make(at);
            let Some(view) = self.memory.view(at) else { return Ok(()) };
            self.count_views(1)?;
            if let Some((node, part)) = view.by {
                parts = ops::put_back(&mut Call { emit: self, node }, parts, part)?;
            }
            at = view.of;
        }
    }

    /// Makes a value one that the user is given, as number `index` of them, and says what it is called.
    pub(super) fn output(&mut self, name: &'d str, index: usize) -> Result<String> {
        // An input that is written over keeps its name.
        let is_free = !(self.placeholders.contains(name) && self.memory.is_rewritten(name));
        let own = match self.outputs.remove(name) {
            true if is_free => name.to_owned(),
            _ => format!("{name}#{index}"),
        };
        let is_stale = self.memory.is_stale(name);
        if is_stale || self.value(name)? != own {
            self.operators = 0;
            self.model.begin(&format!("output#{index}"), "output");
            self.refresh(name)?;
            let value = self.value(name)?;
            self.operation("Identity", &[&value], &[&own], &[]);
        }
        self.model.output(&own);
        Ok(own)
    }

    fn value(&self, name: &str) -> Result<String> {
        let imaginary = self.imaginary.get(name).filter(|_| self.part == Part::Imaginary);
        let value = imaginary.or_else(|| self.values.get(name)).cloned();
        let message = || format!("{name}, which it reads, is not computed");
        value.ok_or_else(|| Error::Unsupported(Report::new("", message())))
    }

    fn parts(&self, name: &str) -> Result<Parts> {
        Ok(Parts { real: self.value(name)?, imaginary: self.imaginary.get(name).cloned() })
    }

    /// Makes room for places of elements that are written one by one. Error: with those before it is too many, or fewer
    /// than none.
    pub(super) fn list_places(&mut self, count: i64) -> Result<()> {
        let sum = self.places.checked_add(count).filter(|&sum| count >= 0 && sum <= MOST_PLACES);
        self.places = sum.ok_or_else(|| {
            let message = format!("{count} elements one by one: a program has {MOST_PLACES} at most");
            Error::Unsupported(Report::new("", message))
        })?;
        Ok(())
    }

    /// A name for what the program does not name.
    pub(super) fn fresh(&mut self) -> String {
        self.count += 1;
        format!("%{}", self.count)
    }

    pub(super) fn operation(
        &mut self,
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, Attribute<'_>)],
    ) {
        self.operators += 1;
        self.model.operation(&Operation { name, inputs, outputs, attributes });
    }

    fn bind(&mut self, name: &'d str, value: String) {
        if self.part == Part::Imaginary {
            self.imaginary.insert(name.to_owned(), value);
            return;
        }
        let mut value = value;
        let is_last = self.outputs.contains(name) && !self.memory.is_rewritten(name);
        if self.operators == 0 || is_last {
            let own = if is_last { name.to_owned() } else { self.fresh() };
            self.operation("Identity", &[&value], &[&own], &[]);
            value = own;
        }
        self.values.insert(name.to_owned(), value);
    }
}

/// The names of the tensors and sizes that a node reads.
pub(super) fn operands(node: &Node) -> impl Iterator<Item = &str> {
    node.inputs.iter().flat_map(|input| names_of(&input.arg)).filter(|name| !name.is_empty())
}

fn names_of(argument: &Argument) -> Vec<&str> {
    match argument.name() {
        Some(name) => vec![name],
        None => argument.names().unwrap_or_default(),
    }
}

/// The names of tensors and open sizes in an argument, however deep in lists.
fn named(argument: &Value, found: &mut HashSet<String>) {
    match argument {
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("name" | "as_name", Value::String(name)) => drop(found.insert(name.clone())),
                    (_, value) => named(value, found),
                }
            }
        }
        _ => {}
    }
}

/// What a node is called.
pub(super) fn name(node: &Node) -> &str {
    node.name.as_deref().or_else(|| results(node).first().copied()).unwrap_or(&node.target)
}

/// The names of what a node makes; empty for what is absent.
pub(super) fn results(node: &Node) -> Vec<&str> {
    node.outputs
        .iter()
        .flat_map(|output| output.names().unwrap_or_else(|| vec![output.name().unwrap_or("")]))
        .collect()
}

/// A node that is lowered.
pub(super) struct Call<'c, 'd> {
    pub(super) emit: &'c mut Emit<'d>,
    pub(super) node: &'d Node,
}

/// A number among the arguments.
pub(super) enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
    /// A size that is open: its value in the graph.
    Symbol(String),
}

impl<'d> Call<'_, 'd> {
    /// The name of the operation without library and overload, also of one that writes over its operand or copies what it
    /// would be a view of.
    pub(super) fn operation(&self) -> &'d str {
        let name = ops::base(&self.node.target);
        let name = if ops::is_in_place(name) { name.trim_end_matches('_') } else { name };
        ops::of_copy(name).unwrap_or(name)
    }

    pub(super) fn wrong(&self, message: impl Into<String>) -> Error {
        Error::model("", message)
    }

    pub(super) fn unsupported(&self, message: impl std::fmt::Display) -> Error {
        Error::Unsupported(Report::new("", format!("{}: {message}", self.node.target)))
    }

    /// An argument; none where it is left out or `None`.
    pub(super) fn argument(&self, name: &str) -> Option<&'d Argument> {
        let found = self.node.inputs.iter().find(|input| input.name == name)?;
        (found.arg.parts().0 != "as_none").then_some(&found.arg)
    }

    fn missing(&self, name: &str) -> Error {
        self.wrong(format!("its argument {name} is missing or of another kind"))
    }

    /// The program's name of a tensor.
    pub(super) fn tensor_name(&self, name: &str) -> Result<&'d str> {
        self.argument(name).and_then(Argument::name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<String> {
        self.emit.value(self.tensor_name(name)?)
    }

    /// A tensor that may be left out.
    pub(super) fn optional(&self, name: &str) -> Result<Option<String>> {
        self.argument(name).map(|_| self.tensor(name)).transpose()
    }

    /// The program's names of a list of tensors; empty where one is absent.
    pub(super) fn list_names(&self, name: &str) -> Result<Vec<&'d str>> {
        self.argument(name).and_then(Argument::names).ok_or_else(|| self.missing(name))
    }

    pub(super) fn list(&self, name: &str) -> Result<Vec<String>> {
        let names = self.list_names(name)?;
        let is_real = |name: &&str| {
            self.meta_of(name).is_ok_and(|meta| !meta.is_complex() && meta.dtype().is_ok_and(DType::is_float))
        };
        if self.is_imaginary() && names.iter().any(is_real) {
            return Err(self.unsupported("of complex numbers beside real ones"));
        }
        names.into_iter().map(|name| self.emit.value(name)).collect()
    }

    /// The tensors of a list as operands of a type.
    pub(super) fn list_of(&mut self, name: &str, dtype: DType) -> Result<Vec<String>> {
        self.list_names(name)?.into_iter().map(|name| self.operand_of(name, dtype)).collect()
    }

    /// Which of several results is to be made; none where all are.
    pub(super) fn only(&self) -> Option<usize> {
        self.emit.only
    }

    /// Whether it is the imaginary part that is lowered.
    pub(super) fn is_imaginary(&self) -> bool {
        self.emit.part == Part::Imaginary
    }

    /// Lowers something of the imaginary parts.
    pub(super) fn of_imaginary<T>(&mut self, lower: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.emit.part = Part::Imaginary;
        let done = lower(self);
        self.emit.part = Part::Real;
        done
    }

    /// A tensor or number; the parts of what is complex are of a type.
    pub(super) fn parts(&mut self, name: &str, dtype: DType) -> Result<Parts> {
        let argument = self.argument(name).ok_or_else(|| self.missing(name))?;
        let is_complex = match argument.parts().0 {
            "as_tensor" => self.meta(name)?.is_complex(),
            kind => kind == "as_complex",
        };
        let real = self.operand(name, dtype)?;
        let imaginary = is_complex.then(|| self.of_imaginary(|call| call.operand(name, dtype)));
        Ok(Parts { real, imaginary: imaginary.transpose()? })
    }

    /// Binds the only result, or the first one, to complex numbers.
    pub(super) fn complex(&mut self, real: String, imaginary: String) -> Result<()> {
        self.result(real)?;
        self.of_imaginary(|call| call.result(imaginary))
    }

    /// Zeros in the shape of a value.
    pub(super) fn zeros_like(&mut self, value: &str, dtype: DType) -> String {
        let (zero, shape) = (self.scalar(dtype, 0.0), self.plain("Shape", &[value]));
        self.plain("Expand", &[&zero, &shape])
    }

    /// The value of a tensor by the program's name.
    pub(super) fn emit_value(&self, name: &str) -> Result<String> {
        self.emit.value(name)
    }

    pub(super) fn meta(&self, name: &str) -> Result<&'d TensorMeta> {
        self.meta_of(self.tensor_name(name)?)
    }

    pub(super) fn meta_of(&self, name: &str) -> Result<&'d TensorMeta> {
        let metas = self.emit.metas;
        metas.get(name).ok_or_else(|| self.wrong(format!("nothing is said of {name}")))
    }

    pub(super) fn dtype(&self, name: &str) -> Result<DType> {
        self.meta(name)?.dtype()
    }

    pub(super) fn rank(&self, name: &str) -> Result<i64> {
        Ok(self.meta(name)?.sizes.len() as i64)
    }

    /// The element type of the first result.
    pub(super) fn result_dtype(&self) -> Result<DType> {
        let first = results(self.node).first().copied().unwrap_or_default();
        self.meta_of(first)?.dtype()
    }

    /// A real number. Error: it is of another kind; a complex one has two parts, which are operands.
    pub(super) fn number(&self, name: &str) -> Result<Option<Number>> {
        let Some(argument) = self.argument(name) else { return Ok(None) };
        let number = match argument.parts() {
            ("as_int", value) => value.as_i64().map(Number::Int),
            ("as_float", Value::String(text)) => text.parse().ok().map(Number::Float),
            ("as_float", value) => value.as_f64().map(Number::Float),
            ("as_bool", value) => value.as_bool().map(Number::Bool),
            ("as_complex", _) => return Err(self.unsupported(format!("{name} is a complex number"))),
            ("as_sym_int" | "as_sym_float", value) => {
                match (value.get("as_int"), value.get("as_float"), argument.name()) {
                    (Some(value), _, _) => value.as_i64().map(Number::Int),
                    (_, Some(value), _) => value.as_f64().map(Number::Float),
                    (_, _, Some(name)) => Some(Number::Symbol(self.emit.value(name)?)),
                    _ => None,
                }
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.missing(name))
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.number(name)? {
            None => Ok(default),
            Some(Number::Int(value)) => Ok(value),
            Some(Number::Bool(value)) => Ok(i64::from(value)),
            Some(Number::Float(_)) => Err(self.missing(name)),
            Some(Number::Symbol(_)) => Err(self.unsupported(format!("{name} depends on an open size"))),
        }
    }

    pub(super) fn float(&self, name: &str, default: f64) -> Result<f64> {
        match self.number(name)? {
            None => Ok(default),
            Some(Number::Float(value)) => Ok(value),
            Some(Number::Int(value)) => Ok(value as f64),
            Some(Number::Bool(value)) => Ok(f64::from(u8::from(value))),
            Some(Number::Symbol(_)) => Err(self.unsupported(format!("{name} depends on an open size"))),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(super) fn text(&self, name: &str, default: &'d str) -> Result<&'d str> {
        let Some(argument) = self.argument(name) else { return Ok(default) };
        argument.parts().1.as_str().ok_or_else(|| self.missing(name))
    }

    /// A list of numbers, or one; none where it is left out.
    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(argument) = self.argument(name) else { return Ok(None) };
        let item = |value: &Value| value.as_i64().or_else(|| value.get("as_int")?.as_i64());
        let items: Option<Vec<i64>> = match argument.parts() {
            ("as_ints" | "as_sym_ints", Value::Array(values)) => values.iter().map(item).collect(),
            ("as_int", value) => value.as_i64().map(|value| vec![value]),
            _ => None,
        };
        items.map(Some).ok_or_else(|| self.unsupported(format!("{name} depends on an open size")))
    }

    /// An axis, counted from the front, of a tensor with so many.
    pub(super) fn axis_of(&self, axis: i64, rank: i64) -> Result<i64> {
        let counted = if axis < 0 { axis + rank.max(1) } else { axis };
        match (0..rank.max(1)).contains(&counted) {
            true => Ok(counted),
            false => Err(self.wrong(format!("axis {axis} of a tensor with {rank} axes"))),
        }
    }

    /// The axis in an argument of the tensor `self`.
    pub(super) fn axis(&self, name: &str, default: i64) -> Result<i64> {
        self.axis_of(self.int(name, default)?, self.rank("self")?)
    }

    /// Writes an operator of one result.
    pub(super) fn op(&mut self, name: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        let result = self.emit.fresh();
        self.emit.operation(name, inputs, &[&result], attributes);
        result
    }

    /// Writes an operator without attributes.
    pub(super) fn plain(&mut self, name: &str, inputs: &[&str]) -> String {
        self.op(name, inputs, &[])
    }

    pub(super) fn cast(&mut self, value: &str, to: DType) -> String {
        self.op("Cast", &[value], &[("to", Attribute::Int(i64::from(number(to))))])
    }

    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> String {
        let name = self.emit.fresh();
        self.emit.model.scalar(&name, dtype, value);
        name
    }

    /// A vector of f32.
    pub(super) fn reals(&mut self, values: &[f64]) -> String {
        self.numbers(DType::F32, values)
    }

    /// A vector of numbers of a type.
    pub(super) fn numbers(&mut self, dtype: DType, values: &[f64]) -> String {
        let name = self.emit.fresh();
        self.emit.model.numbers(&name, dtype, values);
        name
    }

    /// The program's name of the result of this number.
    pub(super) fn result_name(&self, number: usize) -> Result<&'d str> {
        let name = results(self.node).get(number).copied();
        name.ok_or_else(|| self.wrong(format!("it has no result {number}")))
    }

    /// Notes that a number made of sizes may be below 0.
    pub(super) fn note_below_zero(&mut self, value: &str) {
        self.emit.below_zero.insert(value.to_owned());
    }

    pub(super) fn may_be_below_zero(&self, value: &str) -> bool {
        self.emit.below_zero.contains(value)
    }

    /// Whether anything reads the node's result of this number.
    pub(super) fn is_read(&self, number: usize) -> bool {
        results(self.node).get(number).is_some_and(|name| self.emit.read.contains(*name))
    }

    /// Makes room for places of elements that are written one by one. Error: with those before it is too many, or fewer
    /// than none.
    pub(super) fn list_places(&mut self, count: i64) -> Result<()> {
        self.emit.list_places(count).map_err(|error| error.within(&self.node.target))
    }

    /// Makes room for steps that are written one by one. Error: with those before it is too many.
    pub(super) fn list_steps(&mut self, count: Option<i64>) -> Result<()> {
        let sum = count.and_then(|count| self.emit.steps.checked_add(count)).filter(|&sum| sum <= MOST_STEPS);
        self.emit.steps = sum.ok_or_else(|| {
            self.unsupported(format!("steps one by one, of which a program has {MOST_STEPS} at most"))
        })?;
        Ok(())
    }

    /// A vector of i64.
    pub(super) fn integers(&mut self, values: &[i64]) -> String {
        let name = self.emit.fresh();
        self.emit.model.integers(&name, values);
        name
    }

    /// A tensor by the program's name as an operand of a type.
    pub(super) fn operand_of(&mut self, name: &str, dtype: DType) -> Result<String> {
        let (value, meta) = (self.emit.value(name)?, self.meta_of(name)?);
        // Of real numbers beside complex ones: conditions and places are no parts of any.
        if self.is_imaginary() && dtype.is_float() && !meta.is_complex() {
            return Ok(self.zeros_like(&value, dtype));
        }
        Ok(if meta.dtype()? == dtype { value } else { self.cast(&value, dtype) })
    }

    /// A tensor or a number as an operand of a type.
    pub(super) fn operand(&mut self, name: &str, dtype: DType) -> Result<String> {
        let argument = self.argument(name).ok_or_else(|| self.missing(name))?;
        let has_no_part = self.is_imaginary() && dtype.is_float();
        match argument.parts() {
            ("as_tensor", _) => return self.operand_of(self.tensor_name(name)?, dtype),
            ("as_complex", value) => {
                let part = value.get(if self.is_imaginary() { "imag" } else { "real" });
                let part = part.and_then(Value::as_f64).ok_or_else(|| self.missing(name))?;
                return Ok(self.scalar(dtype, part));
            }
            _ if has_no_part => return Ok(self.scalar(dtype, 0.0)),
            _ => {}
        }
        Ok(match self.number(name)?.ok_or_else(|| self.missing(name))? {
            Number::Int(value) => self.scalar(dtype, value as f64),
            Number::Float(value) => self.scalar(dtype, value),
            Number::Bool(value) => self.scalar(dtype, f64::from(u8::from(value))),
            Number::Symbol(value) if dtype == DType::I64 => value,
            Number::Symbol(value) => self.cast(&value, dtype),
        })
    }

    /// A number or tensor as an operand of a type, or a number where it is left out.
    pub(super) fn operand_or(&mut self, name: &str, dtype: DType, default: f64) -> Result<String> {
        match self.argument(name) {
            Some(_) => self.operand(name, dtype),
            None => Ok(self.scalar(dtype, default)),
        }
    }

    /// Numbers that may be open sizes, as a vector of i64.
    pub(super) fn sizes(&mut self, name: &str) -> Result<String> {
        let argument = self.argument(name).ok_or_else(|| self.missing(name))?;
        if let Ok(Some(values)) = self.ints(name) {
            return Ok(self.integers(&values));
        }
        let ("as_sym_ints" | "as_ints", Value::Array(items)) = argument.parts() else {
            return Err(self.missing(name));
        };
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            let known = item.as_i64().or_else(|| item.get("as_int")?.as_i64());
            let part = match (known, item.get("as_name").and_then(Value::as_str)) {
                (Some(size), _) => self.integers(&[size]),
                (None, Some(symbol)) => self.vector(symbol)?,
                (None, None) => return Err(self.missing(name)),
            };
            parts.push(part);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.op("Concat", &parts, &[("axis", Attribute::Int(0))]))
    }

    /// A number that may be an open size, as a vector of one i64.
    pub(super) fn size(&mut self, name: &str, default: i64) -> Result<String> {
        Ok(match self.number(name)? {
            None => self.integers(&[default]),
            Some(Number::Int(value)) => self.integers(&[value]),
            Some(Number::Symbol(value)) => {
                let axes = self.integers(&[0]);
                self.plain("Unsqueeze", &[&value, &axes])
            }
            Some(Number::Float(_) | Number::Bool(_)) => return Err(self.missing(name)),
        })
    }

    fn vector(&mut self, symbol: &str) -> Result<String> {
        let value = self.emit.value(symbol)?;
        let axes = self.integers(&[0]);
        Ok(self.plain("Unsqueeze", &[&value, &axes]))
    }

    /// Binds the only result, or the first one.
    pub(super) fn result(&mut self, value: String) -> Result<()> {
        self.results(vec![Some(value)])
    }

    /// Binds the results in order; what is absent is not there for others to read.
    pub(super) fn results(&mut self, values: Vec<Option<String>>) -> Result<()> {
        let mut values = values.into_iter();
        for (number, name) in results(self.node).into_iter().enumerate() {
            let value = values.next().flatten();
            let is_wanted = !name.is_empty() && self.emit.only.is_none_or(|only| only == number);
            if let Some(value) = value.filter(|_| is_wanted) {
                self.emit.bind(name, value);
            }
        }
        Ok(())
    }
}
