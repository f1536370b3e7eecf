//! Values for a network's named dimensions.

use std::collections::BTreeMap;

use super::Options;
use crate::error::{Error, Result};
use crate::ir::Graph;

/// Binds what the caller gives, and takes the rest as 1; returns the names of the rest and all
/// that is bound, recorded in the plan.
pub(super) fn bind(graph: &mut Graph, options: &Options) -> Result<(Vec<String>, BTreeMap<String, i64>)> {
    let mut values = options.bind.clone();
    if let Some(batch) = options.batch {
        check_batch(graph, batch)?;
        values.extend(batch_dim(graph).map(|name| (name, batch)));
    }
    graph.bind(&values)?;
    let assumed = graph.unbound_dims();
    let ones: BTreeMap<String, i64> = assumed.iter().map(|name| (name.clone(), 1)).collect();
    graph.bind(&ones)?;
    let bound = options.dims.clone().into_iter().chain(values).chain(ones).collect();
    Ok((assumed, bound))
}

/// Error: a network's batch is fixed, and another.
pub(crate) fn check_batch(graph: &Graph, batch: i64) -> Result<()> {
    if batch_dim(graph).is_some() || first_sizes(graph).next().is_some_and(|(_, size)| size == batch) {
        return Ok(());
    }
    Err(Error::usage(format!("--batch {batch}"), fixed_batch(graph))
        .with_help("leave --batch out; a model that is exported with an open batch takes any"))
}

/// Whether a network has a batch dimension that is open.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) fn has_open_batch(graph: &Graph) -> bool {
    batch_dim(graph).is_some()
}

/// Why a batch cannot be chosen, in words.
pub(crate) fn fixed_batch(graph: &Graph) -> String {
    match first_sizes(graph).next() {
        Some((name, size)) => format!("the model's batch is fixed: the first axis of input {name} is {size}"),
        None => "the model has no batch dimension".to_owned(),
    }
}

/// Inputs whose first axis has a known size.
fn first_sizes(graph: &Graph) -> impl Iterator<Item = (&str, i64)> {
    let known = |value| graph.ty(value).shape.sizes().first()?.known();
    graph.inputs().iter().filter_map(move |(name, value)| Some((name.as_str(), known(*value)?)))
}

/// The dimension that is the first axis of the inputs, or that is called `batch`.
pub(crate) fn batch_dim(graph: &Graph) -> Option<String> {
    if graph.dims().iter().any(|dim| dim.name == "batch" && dim.is.is_none()) {
        return Some("batch".to_owned());
    }
    graph.inputs().iter().find_map(|(_, value)| {
        let size = graph.ty(*value).shape.sizes().first()?;
        match size.terms() {
            [(dim, 1)] if size.constant() == 0 => Some(graph.dim_name(*dim).to_owned()),
            _ => None,
        }
    })
}
