//! Binding: named dimensions become numbers.

use std::collections::BTreeMap;

use super::infer::{bind_op, bind_type};
use super::{ConstId, Dim, DimId, Graph, Op, Shape, Size, Tensor, Type, infer};
use crate::error::{Error, Result};

impl Graph {
    /// Fixes dimensions: each size that mentions one becomes a number, and [`Op::Sizes`] become
    /// constants. Dimensions not in `values` stay. Types are inferred anew, so sizes that only now
    /// turn out not to fit are found.
    ///
    /// Errors: a name that is no dimension of the graph, a value below 0 or above its [`Limit`](super::Limit), sizes that do not fit or
    /// become negative; 0, where the graph was read for sizes of 1 and more.
    pub fn bind(&mut self, values: &BTreeMap<String, i64>) -> Result<()> {
        for (name, value) in values {
            let Some(dim) = self.find_dim(name) else {
                let names: Vec<&str> = self.dims.iter().map(|dim| dim.name.as_str()).collect();
                let help = if names.is_empty() {
                    "the model has no named dimensions".to_owned()
                } else {
                    format!("its dimensions are: {}", names.join(", "))
                };
                return Err(Error::usage(format!("dimension {name}"), "the model has no such dimension")
                    .with_help(help));
            };
            if *value < 0 {
                return Err(Error::usage(format!("dimension {name}"), format!("{value} is less than 0")));
            }
            // What was decided of open sizes holds for 1 and more.
            if *value == 0 && self.rules().open_dims_matter {
                let message = "a size of 0 has to be known when the model is read";
                return Err(Error::usage(format!("dimension {name}"), message)
                    .with_help(format!("--dim {name}=0, or inputs of such sizes")));
            }
            self.rules().check_dim(name, *value)?;
            if let Some(is) = &self.dims[dim.index()].is
                && is.known() != Some(*value)
            {
                let names = |dim: DimId| self.dims[dim.index()].name.as_str();
                let message = format!("it is {} in this model", is.display(&names));
                return Err(Error::usage(format!("dimension {name}"), message)
                    .with_help("give values before the model is read, or of what it consists of"));
            }
        }
        let value = |dim: &Dim| values.get(&dim.name).map(|&value| Size::Known(value));
        let value_of: Vec<Option<Size>> = self.dims.iter().map(value).collect();
        self.rebuild_bound(&value_of)
    }

    /// Puts sizes in the place of dimensions, in all that is there; sizes that mention one of them are
    /// not to be used any more. O(values + operations).
    ///
    /// Errors: those of [`Graph::bind`] but for the names; the graph is empty then.
    pub(crate) fn replace_dims(&mut self, sizes: &[Option<Size>]) -> Result<()> {
        let of = |dim: DimId| sizes.get(dim.index()).cloned().flatten();
        for (number, dim) in self.dims.iter_mut().enumerate() {
            dim.is = match &dim.is {
                Some(is) => is.substituted(&of),
                None => sizes.get(number).cloned().flatten(),
            };
        }
        self.rebuild_bound(sizes)
    }

    fn rebuild_bound(&mut self, value_of: &[Option<Size>]) -> Result<()> {
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
