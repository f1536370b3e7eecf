//! Notes on stderr where something was read or planned otherwise than the caller might expect.

use std::collections::BTreeMap;

use super::terminal::Console;
use crate::compile::Compiled;
use crate::ir::{DimId, Graph};

/// Notes the dimensions that nobody bound.
pub(super) fn note_assumptions(compiled: &Compiled, console: &Console) {
    let assumed = compiled.network.as_ref().map_or(&[][..], |network| &network.assumed);
    if !assumed.is_empty() {
        let names = assumed.join(", ");
        console.note(&format!("planned with {names} = 1; --dim NAME=N plans for another size"));
    }
}

/// Notes what should be known of a model's file, and the dimensions that are others because the model's operations fit
/// only so; not those of `known`.
pub(super) fn note_network(graph: &Graph, known: &BTreeMap<String, i64>, console: &Console) {
    graph.notes().iter().for_each(|line| console.note(line));
    let names = |dim: DimId| graph.dim_name(dim);
    let equal = graph.dims().iter().filter(|dim| !known.contains_key(&dim.name)).filter_map(|dim| {
        let size = dim.is.as_ref()?;
        Some(format!("{} = {}", dim.name, size.display(&names)))
    });
    let equal: Vec<String> = equal.collect();
    if !equal.is_empty() {
        console.note(&format!("as the model's operations need, {}", equal.join(", ")));
    }
}
