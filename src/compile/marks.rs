//! The caller's pins and colocation patterns, put on the sources that they match.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use super::split::is_of_parts;
use crate::error::Result;
use crate::ir::{Graph, SourceId};
use crate::place;

/// Puts the caller's pins and colocation patterns on the sources they match. Inputs match too. Pins of parts are left for
/// what divides the graph.
pub(super) fn mark(graph: &mut Graph, options: &place::Options) -> Result<()> {
    for (pattern, device) in &options.pins {
        if is_of_parts(graph, pattern) {
            continue;
        }
        let what = format!("--pin {pattern}={device}");
        for id in matching(graph, pattern, &what)? {
            graph.source_mut(id).pin = Some(device.clone());
        }
    }
    for pattern in &options.colocate {
        let what = format!("--colocate {pattern}");
        for id in matching(graph, pattern, &what)? {
            // A source that two patterns match joins the first one's; its own mark, too, is kept.
            graph.source_mut(id).colocate.get_or_insert_with(|| format!("pattern {pattern}"));
        }
    }
    // Gradients and updates go where their forward source is pinned, unless a pattern says otherwise.
    for id in (0..graph.sources().len() as u32).map(SourceId) {
        let forward = graph.source(id).forward;
        if let Some(pin) = forward.and_then(|forward| graph.source(forward).pin.clone()) {
            graph.source_mut(id).pin.get_or_insert(pin);
        }
    }
    Ok(())
}

/// Sources whose name matches a glob. Error: there are none.
fn matching(graph: &Graph, pattern: &str, what: &str) -> Result<Vec<SourceId>> {
    let glob = WildMatch::new(pattern);
    let ids: Vec<SourceId> = (0..graph.sources().len() as u32)
        .map(SourceId)
        .filter(|&id| glob.matches(&graph.source(id).name))
        .collect();
    if ids.is_empty() {
        let names: Vec<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
        return Err(place::no_match(what, pattern, &names));
    }
    Ok(ids)
}

/// By source: a number for the patterns of pins and colocation that match its name.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(super) fn pattern_classes(graph: &Graph, options: &place::Options) -> Vec<u32> {
    let patterns = options.pins.iter().map(|(pattern, _)| pattern).chain(&options.colocate);
    let globs: Vec<WildMatch> = patterns.map(|pattern| WildMatch::new(pattern)).collect();
    let matching = |name: &str| globs.iter().map(|glob| glob.matches(name)).collect::<Vec<bool>>();
    let mut numbers = BTreeMap::new();
    let number = |marks: Vec<bool>| {
        let next = numbers.len() as u32;
        *numbers.entry(marks).or_insert(next)
    };
    graph.sources().iter().map(|source| matching(&source.name)).map(number).collect()
}
