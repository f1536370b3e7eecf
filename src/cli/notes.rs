//! Notes on stderr where something was read or planned otherwise than the caller might expect.

use std::collections::BTreeMap;

use super::terminal::Console;
use crate::compile::{Compiled, Options, gap_passed_over};
use crate::ir::{DimId, Graph};

/// Notes the dimensions that nobody bound.
pub(super) fn note_assumptions(compiled: &Compiled, console: &Console) {
    let assumed = compiled.network.as_ref().map_or(&[][..], |network| &network.assumed);
    if !assumed.is_empty() {
        let names = assumed.join(", ");
        console.note(&format!("planned with {names} = 1; --dim NAME=N plans for another size"));
    }
}

/// Notes that the search went on at the gap that was asked for, because that was no gap to all plans.
pub(super) fn note_gap(compiled: &Compiled, options: &Options, console: &Console) {
    let Some((own, all)) = gap_passed_over(compiled, options) else { return };
    let percent = |gap: f64| format!("{:.1}%", gap * 100.0);
    let plans =
        if compiled.plan.options.splits.is_empty() { "of whole operations" } else { "with these splits" };
    let all = all.map_or("of all plans no bound is known".to_owned(), |all| {
        format!("among all it is {}", percent(all))
    });
    console.note(&format!(
        "--until was not reached: the gap of {} is that among plans {plans}, {all} (--split none plans whole operations alone)",
        percent(own)
    ));
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
