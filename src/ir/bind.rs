//! Binding: named dimensions become numbers.

use std::collections::BTreeMap;

use super::infer::{bind_op, bind_type};
use super::{ConstId, Graph, Op, Shape, Size, Tensor, Type, infer};
use crate::error::{Error, Result};

impl Graph {
    /// Fixes dimensions: each size that mentions one becomes a number, and [`Op::Sizes`] become
    /// constants. Dimensions not in `values` stay. Types are inferred anew, so sizes that only now
    /// turn out not to fit are found.
    ///
    /// Errors: a name that is no dimension of the graph, a value below 1, sizes that do not fit or
    /// become negative.
    pub fn bind(&mut self, values: &BTreeMap<String, i64>) -> Result<()> {
        for (name, value) in values {
            if !self.dims.iter().any(|dim| dim.name == *name) {
                let names: Vec<&str> = self.dims.iter().map(|dim| dim.name.as_str()).collect();
                let help = if names.is_empty() {
                    "the model has no named dimensions".to_owned()
                } else {
                    format!("its dimensions are: {}", names.join(", "))
                };
                return Err(Error::usage(format!("dimension {name}"), "the model has no such dimension")
                    .with_help(help));
            }
            if *value < 1 {
                return Err(Error::usage(format!("dimension {name}"), format!("{value} is less than 1")));
            }
        }
        let value_of: Vec<Option<i64>> = self.dims.iter().map(|dim| values.get(&dim.name).copied()).collect();
        self.rebuild_bound(&value_of)
    }

    fn rebuild_bound(&mut self, value_of: &[Option<i64>]) -> Result<()> {
        let old = std::mem::take(self);
        let mut new = old.emptied();
        new.params = old.params;
        let mut constants = old.constants.into_iter();
        new.inputs = old.inputs;
        new.outputs = old.outputs;
        new.controls = old.controls;
        let mut types = old.values.into_iter().map(|value| value.ty);
        for node in old.nodes {
            let source = node.source;
            let place = |error: Error| error.within(&format!("node {}", old.sources[source.index()].name));
            let count = node.op.results();
            let mut op = node.op;
            bind_op(&mut op, value_of).map_err(place)?;
            let results: Vec<Type> = types.by_ref().take(count).collect();
            let results: Vec<Type> = match &op {
                Op::Input | Op::Param(_) | Op::Constant(_) | Op::Sizes(_) | Op::Iota { .. } => results
                    .into_iter()
                    .map(|ty| bind_type(&ty, value_of))
                    .collect::<Result<_>>()
                    .map_err(place)?,
                _ => {
                    let operands: Vec<&Type> =
                        node.operands.iter().map(|value| &new.values[value.index()].ty).collect();
                    infer(&op, &operands, &|dim| new.dims[dim.index()].name.clone()).map_err(place)?
                }
            };
            let constant = match &op {
                Op::Constant(_) => constants.next(),
                Op::Sizes(sizes) => known_sizes(sizes, &results[0].shape)?,
                _ => None,
            };
            if let Some(tensor) = constant {
                op = Op::Constant(ConstId(new.constants.len() as u32));
                new.constants.push(tensor);
            }
            new.append(op, &node.operands, results, source);
        }
        *self = new;
        Ok(())
    }

    /// Names of the dimensions that some value's type or some operation still mentions.
    pub fn unbound_dims(&self) -> Vec<String> {
        let mut used = vec![false; self.dims.len()];
        for value in &self.values {
            for size in value.ty.shape.sizes() {
                for (dim, _) in size.terms() {
                    used[dim.index()] = true;
                }
            }
        }
        for size in self.nodes.iter().flat_map(|node| node.op.sizes()) {
            for (dim, _) in size.terms() {
                used[dim.index()] = true;
            }
        }
        self.dims.iter().zip(used).filter(|(_, used)| *used).map(|(dim, _)| dim.name.clone()).collect()
    }
}

/// The tensor that a vector of sizes is, where all are known.
fn known_sizes(sizes: &[Size], shape: &Shape) -> Result<Option<Tensor>> {
    let Some(known) = sizes.iter().map(Size::known).collect::<Option<Vec<i64>>>() else { return Ok(None) };
    let dims = shape.sizes().iter().map(|size| size.constant() as u64).collect();
    Tensor::from_i64(dims, &known).map(Some)
}
