//! Operators that a file defines by others: lowered in place, as bodies are.

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::body::{Call, Scope};
use super::lower::{Binding, Form, Lowering};
use super::proto::{AttributeProto, FunctionProto, NodeProto, OperatorSetIdProto};
use crate::error::{Error, Result};
use crate::ir::SourceId;

/// The functions of a file.
#[derive(Default)]
pub(super) struct Functions {
    functions: Vec<FunctionProto>,
    /// By domain, name and overload.
    index: HashMap<[String; 3], usize>,
}

/// The version of each domain; that of ONNX itself is called by the empty name.
pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> BTreeMap<String, i64> {
    let domain = |import: &OperatorSetIdProto| plain(&import.domain).to_owned();
    imports.iter().map(|import| (domain(import), import.version)).collect()
}

fn plain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

impl Functions {
    pub(super) fn of(files: &[Vec<u8>]) -> Result<Self> {
        let mut all = Self::default();
        for bytes in files {
            let function = FunctionProto::decode(bytes.as_slice());
            let function =
                function.map_err(|error| Error::format("", format!("damaged function: {error}")))?;
            let key = [plain(&function.domain).to_owned(), function.name.clone(), function.overload.clone()];
            all.index.insert(key, all.functions.len());
            all.functions.push(function);
        }
        Ok(all)
    }

    /// The function that a node calls.
    pub(super) fn find(&self, node: &NodeProto) -> Option<usize> {
        if self.functions.is_empty() {
            return None;
        }
        let key = [plain(&node.domain).to_owned(), node.op_type.clone(), node.overload.clone()];
        self.index.get(&key).copied()
    }
}

impl Lowering {
    /// Lowers the body of a function in place of the node that calls it. Returns the outputs.
    pub(super) fn call(
        &mut self,
        index: usize,
        node: &NodeProto,
        source: SourceId,
        inputs: &[Option<usize>],
    ) -> Result<Vec<Option<Binding>>> {
        let function = self.file.functions.functions[index].clone();
        let attributes = with_defaults(&node.attribute, function.attribute_proto);
        let call = Call { opsets: opsets(&function.opset_import), attributes };
        let mut bound = Vec::with_capacity(function.input.len());
        for (i, name) in function.input.into_iter().enumerate() {
            let binding = match inputs.get(i).copied().flatten() {
                Some(binding) => binding,
                None => self.add_binding(Binding::of_form(source, Form::Optional(None))),
            };
            bound.push((name, binding));
        }
        let scope = Scope::of_call(call);
        let prefix = format!("{}/", self.graph.source(source).name);
        let outputs: Vec<&str> = function.output.iter().map(String::as_str).collect();
        self.scopes.push(scope);
        let nodes = self.resolved(function.node);
        let Some(scope) = self.scopes.pop() else { return Ok(Vec::new()) };
        let found = self.within(scope, bound, &nodes, &outputs, &prefix)?;
        found
            .into_iter()
            .map(|index| {
                if self.binding(index).is_pending() {
                    self.value(index)?;
                }
                Ok(Some(self.binding(index).same()))
            })
            .collect()
    }
}

/// The attributes of a call, and the defaults of those that it lacks.
fn with_defaults(stated: &[AttributeProto], defaults: Vec<AttributeProto>) -> Vec<AttributeProto> {
    let missing = |default: &AttributeProto| !stated.iter().any(|attribute| attribute.name == default.name);
    stated.iter().cloned().chain(defaults.into_iter().filter(missing)).collect()
}
