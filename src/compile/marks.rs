//! The caller's pins and colocation patterns, put on the sources that they match.

use std::collections::{BTreeMap, BTreeSet};

use wildmatch::WildMatch;

use super::split::is_of_parts;
use crate::error::Result;
use crate::ir::{Graph, SourceId, SourceRole};
use crate::place;

/// Puts the caller's pins and colocation patterns on the sources they match. Inputs match too. Pins of parts are left for
/// what divides the graph.
pub(super) fn mark(graph: &mut Graph, options: &place::Options) -> Result<()> {
    let computes = computing(graph);
    for (pattern, device) in &options.pins {
        if is_of_parts(graph, pattern) {
            continue;
        }
        let what = format!("--pin {pattern}={device}");
        for id in matching(graph, &computes, pattern, &what)? {
            graph.source_mut(id).pin = Some(device.clone());
        }
    }
    for pattern in &options.colocate {
        let what = format!("--colocate {pattern}");
        for id in matching(graph, &computes, pattern, &what)? {
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

/// By source: whether any node of it computes.
fn computing(graph: &Graph) -> Vec<bool> {
    let mut computes = vec![false; graph.sources().len()];
    for node in graph.node_ids().map(|id| graph.node(id)).filter(|node| !node.op.is_leaf()) {
        computes[node.source.index()] = true;
    }
    computes
}

/// Sources whose name matches a glob. One that computes nothing itself stands for those under its name: the call of a function
/// that a file defines. O(sources x length). Error: there are none.
fn matching(graph: &Graph, computes: &[bool], pattern: &str, what: &str) -> Result<Vec<SourceId>> {
    let glob = WildMatch::new(pattern);
    let ids: Vec<SourceId> = (0..graph.sources().len() as u32)
        .map(SourceId)
        .filter(|&id| glob.matches(&graph.source(id).name))
        .collect();
    if ids.is_empty() {
        let names: Vec<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
        return Err(place::no_match(what, pattern, &names));
    }
    let found = ids.iter().filter(|id| !computes[id.index()]).map(|&id| graph.source(id));
    let calls: BTreeSet<&str> =
        found.filter(|source| source.role == SourceRole::Node).map(|source| source.name.as_str()).collect();
    let is_within = |name: &str| name.match_indices('/').any(|(at, _)| calls.contains(&name[..at]));
    let within = (0..graph.sources().len() as u32)
        .map(SourceId)
        .filter(|&id| !calls.is_empty() && is_within(&graph.source(id).name));
    Ok(ids.iter().copied().chain(within).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, Op, Shape, Source, Type, Unary};

    #[test]
    fn a_call_stands_for_what_it_calls() {
        let mut graph = Graph::new("calls");
        let [call, inner, next] = ["call", "call/neg", "call2/neg"]
            .map(|name| graph.add_source(Source::new(name, "Neg", SourceRole::Node)));
        let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[2])), call);
        let y = graph.apply(Op::Unary(Unary::Neg), &[x], inner).unwrap();
        let z = graph.apply(Op::Unary(Unary::Neg), &[y], next).unwrap();
        graph.add_output("z", z);
        let options = place::Options {
            pins: vec![("call".to_owned(), "cpu1".to_owned())],
            ..place::Options::default()
        };
        mark(&mut graph, &options).unwrap();
        let pins = [call, inner, next].map(|id| graph.source(id).pin.as_deref());
        assert_eq!(pins, [Some("cpu1"), Some("cpu1"), None]);
    }
}
