//! Graphs within nodes: the branches of an `If`, the bodies of loops. Their nodes are lowered in place, each under a
//! source of its own whose name begins with the outer node's, and see the names around them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use prost::Message;

use super::lower::{Binding, Form, Lowering, Ragged, order};
use super::node::At;
use super::proto::{AttributeProto, GraphProto, NodeProto, attribute_type, shortest_of_graph};
use super::sparse;
use crate::error::{Error, Report, Result};
use crate::ir::Size;

/// How deep bodies may be nested. Lowering recurses over it.
const DEPTH: usize = 32;

/// How many nodes bodies may add, each counted as often as it is lowered.
const INLINED: usize = 1 << 20;

/// How many entries all sequences may have: each is a list of its own, whatever it was made of.
const LISTED: usize = 1 << 23;

/// The names that one graph gives.
#[derive(Default)]
pub(super) struct Scope {
    names: HashMap<String, usize>,
    /// Results of nodes that failed: nodes that read them are not lowered.
    lost: HashSet<String>,
    /// The body of a function, which sees no names but its own: its domains' versions and the attributes of its
    /// call.
    pub(super) function: Option<Call>,
    /// The bodies within the body that is lowered, where it may be lowered again.
    bodies: Rc<Bodies>,
}

/// Bodies by the node that has them, told by its address within the body around it, and its attribute.
type Bodies = RefCell<HashMap<(*const NodeProto, String), Rc<Body>>>;

impl Scope {
    /// The names of a function's body, of which there are none yet.
    pub(super) fn of_call(call: Call) -> Self {
        Self { function: Some(call), ..Self::default() }
    }
}

/// What the body of a function sees beside its inputs.
pub(super) struct Call {
    pub(super) opsets: BTreeMap<String, i64>,
    pub(super) attributes: Vec<AttributeProto>,
}

/// A graph that can be lowered any number of times. Its initialisers and constants are bound once, those of bodies in it
/// too, so that however often a loop runs, what is held of a file is what the file holds.
pub(super) struct Body {
    graph: GraphProto,
    /// Name and binding of each initialiser and constant.
    constants: Vec<(String, usize)>,
    /// Those in it that were lowered. Its nodes stay where they are.
    bodies: Rc<Bodies>,
}

impl Body {
    /// Number of its inputs.
    pub(super) fn input_count(&self) -> usize {
        self.graph.input.len()
    }

    /// Number of its outputs.
    pub(super) fn output_count(&self) -> usize {
        self.graph.output.len()
    }
}

impl Lowering {
    /// The binding of a name, of the innermost graph that gives it.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        for scope in self.scopes.iter().rev() {
            match scope.names.get(name) {
                Some(&binding) => return Some(binding),
                // A function's body sees nothing of its call but the inputs.
                None if scope.function.is_some() => return None,
                None => {}
            }
        }
        None
    }

    /// Whether the innermost graph gives this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.scopes.last().is_some_and(|scope| scope.names.contains_key(name))
    }

    /// Gives a binding a name in the innermost graph. Error: it is there.
    pub(super) fn name(&mut self, name: String, binding: usize) -> Result<()> {
        let taken = || Error::model(format!("value {name}"), "it is made twice");
        let Some(scope) = self.scopes.last_mut() else { return Err(taken()) };
        match scope.names.contains_key(&name) {
            true => Err(taken()),
            false => {
                scope.names.insert(name, binding);
                Ok(())
            }
        }
    }

    pub(super) fn is_lost(&self, name: &str) -> bool {
        self.scopes.iter().any(|scope| scope.lost.contains(name))
    }

    pub(super) fn lose(&mut self, node: &NodeProto) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.lost.extend(node.output.iter().filter(|name| !name.is_empty()).cloned());
        }
    }

    /// The call whose body is lowered, if any.
    fn call_of(&self) -> Option<&Call> {
        self.scopes.iter().rev().find_map(|scope| scope.function.as_ref())
    }

    pub(super) fn opsets(&self) -> &BTreeMap<String, i64> {
        self.call_of().map_or(&self.file.opsets, |call| &call.opsets)
    }

    /// Lowers the nodes of a graph with these names bound, and finds its outputs.
    pub(super) fn within(
        &mut self,
        scope: Scope,
        bound: Vec<(String, usize)>,
        nodes: &[NodeProto],
        outputs: &[&str],
        prefix: &str,
    ) -> Result<Vec<usize>> {
        if self.scopes.len() > DEPTH {
            return Err(Error::model("", format!("graphs are nested more than {DEPTH} deep")));
        }
        self.inlined += nodes.len();
        if self.inlined > INLINED {
            let message = format!("loops and functions of more than {INLINED} nodes, unrolled,");
            return Err(Error::Unsupported(Report::new("", format!("{message} are not supported yet"))));
        }
        self.scopes.push(scope);
        let result = self.lower_within(bound, nodes, outputs, prefix);
        self.scopes.pop();
        result
    }

    fn lower_within(
        &mut self,
        bound: Vec<(String, usize)>,
        nodes: &[NodeProto],
        outputs: &[&str],
        prefix: &str,
    ) -> Result<Vec<usize>> {
        for (name, binding) in bound {
            self.name(name, binding)?;
        }
        let order = order(nodes, |name| self.has(name))?;
        let sources = self.sources(nodes, prefix);
        self.nodes(nodes, &sources, &order)?;
        let find = |name: &&str| {
            self.find(name).ok_or_else(|| Error::model(format!("output {name}"), "it is made by nothing"))
        };
        outputs.iter().map(find).collect()
    }

    /// Nodes of a function's body, or of graphs in it, with what they refer to of the call in its place. An
    /// attribute that the call lacks is one that the node lacks.
    pub(super) fn resolved(&self, mut nodes: Vec<NodeProto>) -> Vec<NodeProto> {
        let Some(call) = self.call_of() else { return nodes };
        for node in &mut nodes {
            node.attribute.retain_mut(|attribute| {
                if attribute.ref_attr_name.is_empty() {
                    return true;
                }
                let name = std::mem::take(&mut attribute.ref_attr_name);
                match call.attributes.iter().find(|stated| stated.name == name) {
                    Some(stated) => {
                        *attribute =
                            AttributeProto { name: std::mem::take(&mut attribute.name), ..stated.clone() };
                        true
                    }
                    None => false,
                }
            });
        }
        nodes
    }
}

/// Whether a node gives a stated tensor.
fn is_constant(node: &NodeProto) -> bool {
    node.op_type == "Constant" && matches!(node.domain.as_str(), "" | "ai.onnx")
}

impl At<'_> {
    /// The graph in an attribute, ready to be lowered.
    pub(super) fn body(&mut self, name: &str) -> Result<Rc<Body>> {
        let key = (self.node_address(), name.to_owned());
        let bodies = self.lowering().scopes.last().map(|scope| Rc::clone(&scope.bodies));
        if let Some(body) = bodies.as_ref().and_then(|bodies| bodies.borrow().get(&key).cloned()) {
            self.attribute(name, attribute_type::GRAPH)?;
            return Ok(body);
        }
        let body = Rc::new(self.new_body(name)?);
        if let Some(bodies) = bodies {
            bodies.borrow_mut().insert(key, Rc::clone(&body));
        }
        Ok(body)
    }

    fn new_body(&mut self, name: &str) -> Result<Body> {
        let bytes = self.attribute(name, attribute_type::GRAPH)?.and_then(|attribute| attribute.g.as_ref());
        let Some(bytes) = bytes else { return Err(self.wrong(format!("attribute {name} is missing"))) };
        if let Some(what) = shortest_of_graph(bytes) {
            return Err(self.wrong(format!("attribute {name} has {what} without content")));
        }
        let graph = GraphProto::decode(bytes.as_slice());
        let mut graph = graph.map_err(|error| self.wrong(format!("attribute {name} is damaged: {error}")))?;
        let prefix = format!("{}/{name}/", self.name());
        let initializers = sparse::initializers(&mut graph).map_err(|error| error.within(&self.name()))?;
        let lowering = self.lowering();
        let mut names: Vec<String> = initializers.iter().map(|proto| proto.name.clone()).collect();
        let nodes = lowering.resolved(std::mem::take(&mut graph.node));
        let (constants, nodes): (Vec<NodeProto>, Vec<NodeProto>) = nodes.into_iter().partition(is_constant);
        graph.node = nodes;
        names.extend(constants.iter().flat_map(|node| node.output.iter().cloned()));
        lowering.scopes.push(Scope::default());
        let bound = lowering.initializers(initializers, &prefix).and_then(|()| {
            let sources = lowering.sources(&constants, &prefix);
            lowering.nodes(&constants, &sources, &Vec::from_iter(0..constants.len()))
        });
        let found = names.iter().map(|name| lowering.find(name)).collect::<Option<Vec<usize>>>();
        lowering.scopes.pop();
        bound?;
        let constants = names.into_iter().zip(found.unwrap_or_default()).collect();
        Ok(Body { graph, constants, bodies: Rc::default() })
    }

    /// Lowers a body with these inputs, its sources' names with `label` in front. Returns the bindings of its
    /// outputs.
    pub(super) fn run(&mut self, body: &Body, inputs: &[usize], label: &str) -> Result<Vec<usize>> {
        let names = body.graph.input.iter().map(|input| input.name.clone());
        let constants =
            body.constants.iter().filter(|(name, _)| !body.graph.input.iter().any(|i| i.name == *name));
        let bound = names.zip(inputs.iter().copied()).chain(constants.cloned()).collect();
        let outputs: Vec<&str> = body.graph.output.iter().map(|output| output.name.as_str()).collect();
        let prefix = format!("{}/{label}/", self.name());
        let scope = Scope { bodies: Rc::clone(&body.bodies), ..Scope::default() };
        self.lowering().within(scope, bound, &body.graph.node, &outputs, &prefix)
    }

    /// The binding of input `i`.
    pub(super) fn binding(&self, i: usize) -> Option<usize> {
        self.bindings().get(i).copied().flatten()
    }

    /// What binding `index` stands for.
    pub(super) fn form(&mut self, index: usize) -> Form {
        self.lowering().binding(index).form.clone()
    }

    /// A binding of its own for a value.
    pub(super) fn bound(&mut self, value: crate::ir::ValueId) -> usize {
        let source = self.source();
        let lowering = self.lowering();
        let binding = Binding::of_value(&lowering.graph, source, value);
        lowering.add_binding(binding)
    }

    /// As [`Self::bound`], of a tensor of which only the first elements of an axis may count.
    pub(super) fn bound_ragged(&mut self, value: crate::ir::ValueId, ragged: Option<Ragged>) -> usize {
        let source = self.source();
        let lowering = self.lowering();
        let mut binding = Binding::of_value(&lowering.graph, source, value);
        binding.ragged = ragged;
        lowering.add_binding(binding)
    }

    /// A binding of its own for sizes, one of which data decides.
    pub(super) fn bound_sizes(&mut self, planned: Vec<Size>, of: Ragged) -> usize {
        let source = self.source();
        let mut binding = Binding::of_known(source, super::known::Known::vector(planned));
        binding.ragged = Some(Ragged { is_size: true, ..of });
        self.lowering().add_binding(binding)
    }

    /// A binding of its own for known elements.
    pub(super) fn bound_known(&mut self, known: super::known::Known) -> usize {
        let source = self.source();
        self.lowering().add_binding(Binding::of_known(source, known))
    }

    /// Output `i` is what binding `index` is.
    pub(super) fn set_binding(&mut self, i: usize, index: usize) -> Result<()> {
        if self.lowering().binding(index).is_pending() {
            let known = self.lowering().binding(index).known.clone();
            self.lowering().value(index)?;
            let mut binding = self.lowering().binding(index).same();
            binding.known = known;
            self.set_output(i, binding);
            return Ok(());
        }
        let binding = self.lowering().binding(index).same();
        self.set_output(i, binding);
        Ok(())
    }

    /// Output `i` is no tensor.
    pub(super) fn set_form(&mut self, i: usize, form: Form) {
        let binding = Binding::of_form(self.source(), form);
        self.set_output(i, binding);
    }

    /// Makes output `i` the list of these bindings. Error: all lists of the file have too many entries.
    pub(super) fn set_sequence(&mut self, i: usize, items: Vec<usize>) -> Result<()> {
        let lowering = self.lowering();
        lowering.listed += items.len();
        if lowering.listed > LISTED {
            return Err(
                self.wrong(format!("sequences of more than {LISTED} entries in all are not supported yet"))
            );
        }
        self.set_form(i, Form::Sequence(items.into()));
        Ok(())
    }

    /// How much of input `i` counts, where that depends on data.
    pub(super) fn ragged_input(&mut self, i: usize) -> Option<Ragged> {
        let index = self.binding(i)?;
        self.lowering().binding(index).ragged
    }

    /// How many elements of input `i` count, where data says so.
    pub(super) fn counted_input(&mut self, i: usize) -> Option<Ragged> {
        self.ragged_input(i).filter(|of| !of.is_size)
    }
}
