//! The arena: nodes and values, and tables of what they refer to.

use std::collections::BTreeMap;
#[cfg(feature = "run")]
use std::collections::HashMap;
use std::fmt;

use super::infer::unequal;
use super::ports::PortTypes;
use super::{DType, Data, DimId, Init, Op, Param, Rules, Shape, Size, Source, Tensor, Type, infer};
use crate::error::{Error, Result};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $sigil:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The position as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($sigil, "{}"), self.0)
            }
        }
    };
}

id! {
    /// A node of a graph.
    NodeId, "n"
}
id! {
    /// A value: one result of one node.
    ValueId, "%"
}
id! {
    /// A parameter of a graph.
    ParamId, "p"
}
id! {
    /// A constant of a graph.
    ConstId, "c"
}
id! {
    /// A node of the source model.
    SourceId, "s"
}

/// A named dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Its name.
    pub name: String,
    /// What it was found to be while the model was read, in terms of the others: no size mentions it then.
    pub is: Option<Size>,
}

/// One operation in the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads, in order.
    pub operands: Box<[ValueId]>,
    /// Its first result; the others follow.
    pub first_result: ValueId,
    /// The source node that it comes from.
    pub source: SourceId,
}

/// One result of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Element type and sizes.
    pub ty: Type,
    /// The node that makes it.
    pub node: NodeId,
}

/// A network. See the module's documentation for what holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The network's name.
    pub name: String,
    pub(super) dims: Vec<Dim>,
    /// By name: the dimension.
    dim_of: BTreeMap<String, DimId>,
    pub(super) sources: Vec<Source>,
    pub(super) nodes: Vec<Node>,
    pub(super) values: Vec<Value>,
    pub(super) params: Vec<Param>,
    pub(super) constants: Vec<Tensor>,
    pub(super) inputs: Vec<(String, ValueId)>,
    pub(super) outputs: Vec<(String, ValueId)>,
    pub(super) controls: Vec<(NodeId, NodeId)>,
    pub(super) ports: PortTypes,
    rules: Rules,
    notes: Vec<String>,
    /// See [`Graph::take_unequal`].
    unequal: Option<(Size, Size)>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// What whoever reads the network in should know of its file, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a line to what should be known.
    pub fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    /// The dimension with this name, added where it is new. O(log dimensions).
    pub fn dim(&mut self, name: &str) -> DimId {
        self.find_dim(name).unwrap_or_else(|| {
            let id = DimId(self.dims.len() as u32);
            self.dims.push(Dim { name: name.to_owned(), is: None });
            self.dim_of.insert(name.to_owned(), id);
            id
        })
    }

    /// The dimension with this name. O(log dimensions).
    pub(super) fn find_dim(&self, name: &str) -> Option<DimId> {
        self.dim_of.get(name).copied()
    }

    /// Adds a source node.
    pub fn add_source(&mut self, source: Source) -> SourceId {
        self.sources.push(source);
        SourceId(self.sources.len() as u32 - 1)
    }

    /// Adds a node and infers its results' types. Errors: operands that do not fit the operation,
    /// with the source's name as place; a leaf operation or [`Op::Sizes`], [`Op::Iota`], which
    /// need a type.
    pub fn push(&mut self, op: Op, operands: &[ValueId], source: SourceId) -> Result<NodeId> {
        self.push_inferred(op, operands, source)
            .map_err(|error| error.within(&format!("node {}", self.sources[source.index()].name)))
    }

    /// As [`Graph::push`], with the operation alone as the place of errors.
    pub(crate) fn push_inferred(&mut self, op: Op, operands: &[ValueId], source: SourceId) -> Result<NodeId> {
        let types: Vec<&Type> = operands.iter().map(|value| &self.values[value.index()].ty).collect();
        match infer(&op, &types, &|dim| self.dims[dim.index()].name.clone()) {
            Ok(results) => Ok(self.append(op, operands, results, source)),
            Err(error) => {
                self.unequal = unequal(&op, &types);
                Err(error)
            }
        }
    }

    /// The sizes that would have to be equal for the last node that was refused; none where
    /// that is not why, or it was asked before.
    #[cfg(feature = "onnx")]
    pub(crate) fn take_unequal(&mut self) -> Option<(Size, Size)> {
        self.unequal.take()
    }

    /// Adds a node with one result and returns that. Errors as [`Graph::push`].
    pub fn apply(&mut self, op: Op, operands: &[ValueId], source: SourceId) -> Result<ValueId> {
        let node = self.push(op, operands, source)?;
        Ok(self.nodes[node.index()].first_result)
    }

    /// Adds a graph input.
    pub fn add_input(&mut self, name: impl Into<String>, ty: Type, source: SourceId) -> ValueId {
        let node = self.append(Op::Input, &[], vec![ty], source);
        let value = self.nodes[node.index()].first_result;
        self.inputs.push((name.into(), value));
        value
    }

    /// Adds a parameter.
    pub fn add_param(
        &mut self,
        name: impl Into<String>,
        ty: Type,
        init: Init,
        data: Option<Data>,
        source: SourceId,
    ) -> ValueId {
        let id = ParamId(self.params.len() as u32);
        let node = self.append(Op::Param(id), &[], vec![ty], source);
        self.params.push(Param {
            name: name.into(),
            node,
            init,
            data,
            supplied: None,
            update: None,
            statistic: None,
            slice: None,
            permuted: None,
            repacked: None,
            state: None,
        });
        self.nodes[node.index()].first_result
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, tensor: Tensor, source: SourceId) -> ValueId {
        let shape = Shape::new(tensor.dims().iter().map(|&dim| Size::Known(dim as i64)));
        let ty = Type::new(tensor.dtype(), shape);
        let id = ConstId(self.constants.len() as u32);
        self.constants.push(tensor);
        let node = self.append(Op::Constant(id), &[], vec![ty], source);
        self.nodes[node.index()].first_result
    }

    /// Adds a vector of sizes (rank 1), or a scalar where `scalar` (then there is one size).
    pub fn add_sizes(&mut self, sizes: Vec<Size>, scalar: bool, source: SourceId) -> ValueId {
        let shape = if scalar { Shape::scalar() } else { Shape::known(&[sizes.len() as i64]) };
        let node = self.append(Op::Sizes(sizes.into()), &[], vec![Type::new(DType::I64, shape)], source);
        self.nodes[node.index()].first_result
    }

    /// Adds the positions along an axis of a tensor of type `ty`.
    pub fn add_iota(&mut self, ty: Type, axis: u32, source: SourceId) -> ValueId {
        let node = self.append(Op::Iota { axis }, &[], vec![ty], source);
        self.nodes[node.index()].first_result
    }

    /// Adds a node whose results' types are already known. Only for parsers and passes; the
    /// verifier finds a wrong type.
    pub(crate) fn append(
        &mut self,
        op: Op,
        operands: &[ValueId],
        results: Vec<Type>,
        source: SourceId,
    ) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let first_result = ValueId(self.values.len() as u32);
        self.values.extend(results.into_iter().map(|ty| Value { ty, node: id }));
        self.nodes.push(Node { op, operands: operands.into(), first_result, source });
        id
    }

    /// Puts these outputs in place of all others. Only where no parameter is updated yet.
    pub(crate) fn set_outputs(&mut self, outputs: Vec<(String, ValueId)>) {
        self.outputs = outputs;
    }

    /// Names a value as an output of the graph.
    pub fn add_output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push((name.into(), value));
    }

    /// Says that `after` may start only when `before` is done. Error: `after` does not stand
    /// after `before` in the arena.
    pub fn add_control(&mut self, before: NodeId, after: NodeId) -> Result<()> {
        if before >= after || after.index() >= self.nodes.len() {
            return Err(Error::model(format!("control {before} -> {after}"), "does not point forward"));
        }
        self.controls.push((before, after));
        Ok(())
    }

    /// The dimensions.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// A dimension's name.
    pub fn dim_name(&self, dim: DimId) -> &str {
        &self.dims[dim.0 as usize].name
    }

    /// The axis of a value that is as long as a dimension; none where no axis is, or another one
    /// depends on it too.
    pub fn axis_of(&self, value: ValueId, dim: &str) -> Option<usize> {
        let sizes = self.ty(value).shape.sizes();
        let depends = |size: &Size| size.terms().iter().any(|&(one, _)| self.dim_name(one) == dim);
        let axis = sizes.iter().position(depends)?;
        let alone = sizes[axis].terms().len() == 1 && sizes[axis].terms()[0].1 == 1;
        let only = sizes.iter().filter(|size| depends(size)).count() == 1;
        (alone && only && sizes[axis].constant() == 0).then_some(axis)
    }

    /// The nodes of the source model.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// A node of the source model.
    pub fn source(&self, id: SourceId) -> &Source {
        &self.sources[id.index()]
    }

    /// A node of the source model, to add a pin or a mark.
    pub fn source_mut(&mut self, id: SourceId) -> &mut Source {
        &mut self.sources[id.index()]
    }

    /// Number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Ids of all nodes, in topological order.
    pub fn node_ids(&self) -> impl ExactSizeIterator<Item = NodeId> + DoubleEndedIterator + Clone + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node's results.
    pub fn results(
        &self,
        id: NodeId,
    ) -> impl ExactSizeIterator<Item = ValueId> + DoubleEndedIterator + use<> {
        let first = self.nodes[id.index()].first_result.0;
        let next =
            self.nodes.get(id.index() + 1).map_or(self.values.len() as u32, |next| next.first_result.0);
        (first..next).map(ValueId)
    }

    /// Number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// A value's type.
    pub fn ty(&self, id: ValueId) -> &Type {
        &self.values[id.index()].ty
    }

    /// The node that makes a value.
    pub fn maker(&self, id: ValueId) -> &Node {
        &self.nodes[self.values[id.index()].node.index()]
    }

    /// The parameters.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// A parameter.
    pub fn param(&self, id: ParamId) -> &Param {
        &self.params[id.index()]
    }

    /// Drops what the parameters hold of data themselves. O(parameters).
    pub fn forget_data(&mut self) {
        self.params.iter_mut().for_each(|param| param.data = None);
    }

    /// A parameter, to set its data.
    pub fn param_mut(&mut self, id: ParamId) -> &mut Param {
        &mut self.params[id.index()]
    }

    /// Adds an output, named as the parameter with a mark behind, that takes the parameter's place
    /// after each step.
    ///
    /// Error: it is not of the parameter's type, or another output takes its place already.
    pub fn update_param(&mut self, id: ParamId, value: ValueId) -> Result<()> {
        let param = &self.params[id.index()];
        let own = self.nodes[param.node.index()].first_result;
        if param.update.is_some() || self.ty(own) != self.ty(value) {
            let message = "what takes its place is of another type, or there are two";
            return Err(Error::model(format!("parameter {}", param.name), message));
        }
        let name = format!("{}'", param.name);
        self.params[id.index()].update = Some(self.outputs.len() as u32);
        self.add_output(name, value);
        Ok(())
    }

    /// Lets nodes from number `first` on read other values, of the same types, made before them.
    #[cfg(feature = "run")]
    pub(crate) fn substitute(&mut self, first: usize, values: &HashMap<ValueId, ValueId>) {
        for node in self.nodes.iter_mut().skip(first) {
            for operand in &mut node.operands {
                *operand = values.get(operand).copied().unwrap_or(*operand);
            }
        }
    }

    /// Says that a parameter, or the one that `value` is another type of, is a statistic; nothing
    /// where it is no parameter.
    #[cfg(any(feature = "onnx", feature = "keras"))]
    pub(crate) fn set_statistic(&mut self, value: ValueId, statistic: super::Statistic) {
        let maker = self.maker(value);
        let maker = match (&maker.op, maker.operands.first()) {
            (Op::Convert { .. }, Some(&from)) => self.maker(from),
            _ => maker,
        };
        if let Op::Param(id) = maker.op {
            self.params[id.index()].statistic = Some(statistic);
        }
    }

    /// Says of all stored variances that they follow the batch's as torch has it. O(parameters).
    #[cfg(feature = "onnx")]
    pub(crate) fn follow_sample_variances(&mut self) {
        let statistics = self.params.iter_mut().filter_map(|param| param.statistic.as_mut());
        for statistic in statistics.filter(|statistic| statistic.kind == super::StatisticKind::Variance) {
            statistic.kind = super::StatisticKind::SampleVariance;
        }
    }

    /// Says that a parameter is a state and no weight; nothing where `value` is no parameter.
    pub(crate) fn set_state(&mut self, value: ValueId, state: super::State) {
        if let Op::Param(id) = self.maker(value).op {
            self.params[id.index()].state = Some(state);
        }
    }

    /// Whether a step updates a parameter.
    pub fn has_updates(&self) -> bool {
        self.params.iter().any(|param| param.update.is_some())
    }

    /// Whether a step updates a weight: what a cache or another state becomes is no training.
    pub(crate) fn trains(&self) -> bool {
        self.params.iter().any(|param| param.update.is_some() && param.state.is_none())
    }

    /// By output: the parameter whose place it takes.
    pub fn updates(&self) -> Vec<Option<ParamId>> {
        let mut of = vec![None; self.outputs.len()];
        for (id, param) in self.params.iter().enumerate() {
            if let Some(slot) = param.update.and_then(|output| of.get_mut(output as usize)) {
                *slot = Some(ParamId(id as u32));
            }
        }
        of
    }

    /// The constants.
    pub fn constants(&self) -> &[Tensor] {
        &self.constants
    }

    /// A constant.
    pub fn constant(&self, id: ConstId) -> &Tensor {
        &self.constants[id.index()]
    }

    /// The constant that a value is, where it is one.
    pub fn as_constant(&self, value: ValueId) -> Option<&Tensor> {
        match self.maker(value).op {
            Op::Constant(id) => Some(self.constant(id)),
            _ => None,
        }
    }

    /// What the network expects beside its types.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The same, to change.
    pub fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Names and values of the inputs, in order.
    pub fn inputs(&self) -> &[(String, ValueId)] {
        &self.inputs
    }

    /// Names and values of the outputs, in order.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// Control dependencies: (before, after).
    pub fn controls(&self) -> &[(NodeId, NodeId)] {
        &self.controls
    }

    /// The same graph without nodes, values, parameters, constants, inputs, outputs and controls,
    /// with its rules: what a rewriting pass fills.
    pub(crate) fn emptied(&self) -> Self {
        Self {
            name: self.name.clone(),
            dims: self.dims.clone(),
            dim_of: self.dim_of.clone(),
            sources: self.sources.clone(),
            ports: self.ports.clone(),
            rules: self.rules.clone(),
            ..Self::default()
        }
    }

    /// Sets [`Source::consumer`] of every source from the graph's edges: the first other source
    /// (in arena order) that reads one of its results. A layer that inference leaves out and nothing
    /// reads is where what it reads is made. Loaders call it once, before any pass.
    pub fn record_consumers(&mut self) {
        for node in 0..self.nodes.len() {
            let reader = self.nodes[node].source;
            for operand in 0..self.nodes[node].operands.len() {
                let value = self.nodes[node].operands[operand];
                let source = self.maker(value).source;
                if source != reader && self.sources[source.index()].consumer.is_none() {
                    self.sources[source.index()].consumer = Some(reader);
                }
            }
        }
        for node in &self.nodes {
            let source = &self.sources[node.source.index()];
            if let (Some(_), None, Some(&x)) = (&source.noise, source.consumer, node.operands.first()) {
                self.sources[node.source.index()].consumer = Some(self.maker(x).source);
            }
        }
    }
}

impl DimId {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
