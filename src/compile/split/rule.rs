//! `PATTERN=AXIS:PARTS[@DEVICE,...]`: what a caller asks to be split.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use wildmatch::WildMatch;

use super::choose::Choices;
use super::layout::share;
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, NodeId};
use crate::kernel::split::{Loop, Split, splits};
use crate::pass::Division;
use crate::place;

/// The axis of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitAxis {
    /// Of the result; from the last where negative.
    Result(i32),
    /// The first that is summed.
    Sum,
}

/// Splits the nodes whose names match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// With `*` and `?`.
    pub pattern: String,
    /// The axis.
    pub axis: SplitAxis,
    /// Number of parts; at least 2.
    pub parts: u32,
    /// Where each is, or nothing: then the planner decides.
    pub devices: Vec<String>,
    /// The option that it stands for, where it was asked for by another.
    pub asked_as: Option<String>,
}

impl fmt::Display for SplitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.axis {
            SplitAxis::Result(axis) => write!(f, "{}={axis}:{}", self.pattern, self.parts)?,
            SplitAxis::Sum => write!(f, "{}=sum:{}", self.pattern, self.parts)?,
        }
        match self.devices.is_empty() {
            true => Ok(()),
            false => write!(f, "@{}", self.devices.join(",")),
        }
    }
}

impl FromStr for SplitRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "expected auto, none or PATTERN=AXIS:PARTS[@DEVICE,...], as fc1=1:2@gpu0,gpu1, found {text}"
            )
        };
        // Names may hold `=` and `:`, axes and devices neither.
        let (pattern, rest) = text.rsplit_once('=').ok_or_else(form)?;
        let (cut, devices) = match rest.split_once('@') {
            Some((cut, devices)) => (cut, devices.split(',').map(str::to_owned).collect()),
            None => (rest, Vec::new()),
        };
        let (axis, parts) = cut.split_once(':').ok_or_else(form)?;
        let axis = match axis {
            "sum" => SplitAxis::Sum,
            axis => SplitAxis::Result(axis.parse().map_err(|_| form())?),
        };
        let parts: u32 = parts.parse().map_err(|_| form())?;
        if parts < 2 || pattern.is_empty() {
            return Err(form());
        }
        if !devices.is_empty() && devices.len() != parts as usize {
            return Err(format!("{text}: {parts} parts, but {} devices", devices.len()));
        }
        Ok(Self { pattern: pattern.to_owned(), axis, parts, devices, asked_as: None })
    }
}

/// How the nodes that rules match are divided, and with them the elementwise nodes that read nothing else.
///
/// Errors: a rule that matches no node, or none that can be divided so.
pub(super) fn divisions(
    graph: &Graph,
    rules: &[SplitRule],
    exact: bool,
) -> Result<BTreeMap<NodeId, Division>> {
    let globs: Vec<WildMatch> = rules.iter().map(|rule| WildMatch::new(&rule.pattern)).collect();
    let rule_of: Vec<Option<usize>> = graph
        .sources()
        .iter()
        .map(|source| globs.iter().rposition(|glob| glob.matches(&source.name)))
        .collect();
    for (at, rule) in rules.iter().enumerate() {
        if !graph.sources().iter().any(|source| globs[at].matches(&source.name)) {
            let names: Vec<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
            return Err(place::no_match(&format!("--split {rule}"), &rule.pattern, &names));
        }
    }
    let mut used = vec![false; rules.len()];
    let mut others: Vec<Vec<String>> = vec![Vec::new(); rules.len()];
    let mut choices = Choices::new(graph);
    for node in graph.node_ids() {
        let Some(at) = rule_of[graph.node(node).source.index()] else {
            if choices.reads_slices_alone(node) {
                choices.follow(node)?;
            }
            continue;
        };
        let found = splits(graph, node)?;
        match found.iter().find(|split| is_asked(graph, node, split, &rules[at], exact)) {
            Some(split) => {
                used[at] = true;
                let bounds = even(split, u64::from(rules[at].parts));
                let devices = rules[at].devices.iter().cloned().map(Some).collect();
                choices.divide(node, Division { split: split.clone(), bounds, devices, apart: false })?;
            }
            None => {
                others[at].extend(found.iter().map(|split| offered(graph, node, split)));
                choices.follow(node)?;
            }
        }
    }
    if let Some(at) = used.iter().position(|used| !used) {
        return Err(unused(&rules[at], std::mem::take(&mut others[at])));
    }
    Ok(choices.finish())
}

fn unused(rule: &SplitRule, offered: Vec<String>) -> Error {
    if let Some(option) = &rule.asked_as {
        let message = format!("no batch can be divided into {} parts", rule.parts);
        return Error::usage(option, message).with_help(format!("--batch N, {} or more", rule.parts));
    }
    let mut offered = offered;
    offered.dedup();
    let message = "no node that it matches can be split so";
    let help = match offered.is_empty() {
        true => "nothing of them can be split; leave the rule out".to_owned(),
        false => "take one of the axes below, in no more parts than it says".to_owned(),
    };
    Error::Usage(Report::new(format!("--split {rule}"), message).help(help).details(offered))
}

/// A way to split, for people.
fn offered(graph: &Graph, node: NodeId, split: &Split) -> String {
    let name = &graph.source(graph.node(node).source).name;
    let most = parts(split);
    match split.over {
        Loop::Axis(axis) => {
            let sums = if split.is_partial() { ", adding up what all of it shares" } else { "" };
            format!("{name}: axis {axis}{sums}, at most {most} parts")
        }
        Loop::Summed(_) => format!("{name}: sum, at most {most} parts"),
    }
}

/// Most parts that there can be.
pub(super) fn parts(split: &Split) -> u64 {
    let units = split.extent / split.unit.max(1);
    units.min(split.extent / split.least.max(1))
}

fn is_asked(graph: &Graph, node: NodeId, split: &Split, rule: &SplitRule, exact: bool) -> bool {
    let rank = graph.ty(graph.node(node).first_result).shape.rank() as i32;
    let axis = match (split.over, rule.axis) {
        (Loop::Axis(own), SplitAxis::Result(axis)) => {
            i32::try_from(own) == Ok(if axis < 0 { axis + rank } else { axis })
        }
        (Loop::Summed(_), SplitAxis::Sum) => true,
        (Loop::Axis(_), SplitAxis::Sum) | (Loop::Summed(_), SplitAxis::Result(_)) => false,
    };
    axis && parts(split) >= u64::from(rule.parts) && !(exact && split.is_partial())
}

/// Bounds of parts as equal as units allow.
pub(super) fn even(split: &Split, parts: u64) -> Vec<u64> {
    even_by(split, parts, split.unit)
}

/// As [`even`], at multiples of `unit` where there are enough of them, each of the loop's own units.
pub(super) fn even_by(split: &Split, parts: u64, unit: u64) -> Vec<u64> {
    let fits = |unit: u64| {
        split.extent / unit >= parts && (split.extent / parts).saturating_sub(split.least) >= unit
    };
    let unit = if unit > 0 && fits(unit) { unit } else { split.unit.max(1) };
    let units = split.extent / unit;
    let bound = |part: u64| if part == parts { split.extent } else { share(units, part, parts) * unit };
    (0..=parts).map(bound).collect()
}

/// Bounds in proportion to shares, at multiples of `unit`.
pub(super) fn by_share(split: &Split, unit: u64, shares: &[u64]) -> Vec<u64> {
    let units = split.extent / unit.max(1);
    let all: u64 = shares.iter().sum();
    let mut before = 0;
    let mut bounds = vec![0];
    for &one in &shares[..shares.len() - 1] {
        before += one;
        let exact = u128::from(units) * u128::from(before);
        let rounded = (exact + u128::from(all / 2)) / u128::from(all.max(1));
        bounds.push(u64::try_from(rounded).unwrap_or(units).min(units) * unit);
    }
    bounds.push(split.extent);
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        for text in ["fc1=1:2", "a=b:c=-1:4@gpu0,gpu1,gpu2,gpu3", "block*/mlp=sum:2"] {
            assert_eq!(text.parse::<SplitRule>().unwrap().to_string(), text);
        }
        for text in ["fc1", "fc1=1", "fc1=1:1", "=1:2", "fc1=x:2", "fc1=1:2@a", "fc1=1:99999999999"] {
            text.parse::<SplitRule>().unwrap_err();
        }
    }
}
