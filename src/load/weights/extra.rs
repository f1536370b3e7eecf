//! Arrays of a file that no parameter takes: buffers, what another model needs, and what this one
//! would have to.

use std::collections::{BTreeMap, BTreeSet};

use wildmatch::WildMatch;

use super::Arrays;
use super::keras::is_counter;
use crate::error::{Error, Report, Result};
use crate::ir::Graph;

/// What files of any model hold beside weights and counters: arrays of inputs and outputs, the
/// state of an optimizer.
const BESIDE: [&str; 7] = [
    "*num_batches_tracked",
    "in_*",
    "out_*",
    "outsample*_*",
    "optimizer/*",
    "optimizer_weights/*",
    "*seed_generator*",
];

/// Arrays that no parameter takes, in the order of the file. `chosen`: the array of each parameter.
///
/// Error: one of them is of a layer that gives others to a parameter, such as a bias that the model
/// does not have. O(arrays, sorted).
pub(super) fn extra(graph: &Graph, arrays: &Arrays, chosen: &[Option<String>]) -> Result<Vec<String>> {
    let names = &graph.rules().arrays;
    let patterns: Vec<WildMatch> =
        BESIDE.iter().copied().chain(names.unread.iter().map(String::as_str)).map(WildMatch::new).collect();
    let mut used: BTreeSet<&str> = chosen.iter().flatten().map(String::as_str).collect();
    let layers: BTreeMap<&str, &str> = used.iter().filter_map(|name| Some((split(name)?.0, *name))).collect();
    used.extend(names.aliases.values().flatten().map(String::as_str));
    used.extend(names.beside.iter().map(|beside| beside.name.as_str()));
    let is_extra = |name: &&String| {
        !used.contains(name.as_str())
            && !patterns.iter().any(|pattern| pattern.matches(name))
            && !arrays.is_scale(name)
    };
    let mut extra: Vec<String> = Vec::new();
    for name in arrays.names().iter().filter(is_extra) {
        if !is_counter(&arrays.header(name)?) && !arrays.is_idle_bias(name)? {
            extra.push(name.clone());
        }
    }
    let of_layer = |name: &String| {
        let (layer, _) = split(name)?;
        let taken = layers.get(layer)?;
        Some(format!("array {name}: no parameter takes it, though the model takes {taken}"))
    };
    let denied: Vec<String> = extra.iter().filter_map(of_layer).collect();
    match denied.first() {
        None => Ok(extra),
        Some(first) => {
            let report = Report::new(arrays.path().display().to_string(), first.as_str());
            let help = "the weights are of another model than the configuration describes";
            Err(Error::Model(report.help(help).details(denied)))
        }
    }
}

/// A layer and what it calls its array.
fn split(name: &str) -> Option<(&str, &str)> {
    let end = name.rfind(['.', '/'])?;
    Some((&name[..end], &name[end + 1..]))
}
