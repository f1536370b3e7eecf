//! What differs between two plans of one model: which nodes moved, came or went, and what that costs.

mod state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use super::{Bound, BufferKind, MovedState, Plan};
use crate::escape::{escaped, to_json};
use crate::units::{Bytes, Nanos};

pub use state::StateDiff;

/// Nodes that the text form names one by one.
const LISTED: usize = 20;

/// What differs. Prints as text for people; serialises as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diff {
    /// Nodes on another device; in the first plan's order.
    pub moved: Vec<Move>,
    /// Nodes that are in the first plan alone; in its order.
    pub gone: Vec<Move>,
    /// Nodes that are in the second plan alone; in its order.
    pub new: Vec<Move>,
    /// Nodes on the same device in both.
    pub kept: usize,
    /// How many nodes and how much state went from each device to each other one.
    pub flows: Vec<Flow>,
    /// State that must be loaded; none where the plans do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateDiff>,
    /// Devices that are in the second plan alone.
    pub came: Vec<String>,
    /// Devices that are in the first plan alone.
    pub went: Vec<String>,
    /// Figures that changed, of the plan and of its devices.
    pub changes: Vec<Change>,
    /// The certificates, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// What else is not the same: the model, the options.
    pub remarks: Vec<String>,
}

/// What went from one device to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// The device in the first plan; none for what is new.
    pub from: Option<String>,
    /// The device in the second plan; none for what is gone.
    pub to: Option<String>,
    /// Nodes.
    pub nodes: usize,
    /// Bytes of state that the device must load; none where the plans do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<Bytes>,
}

/// How good each plan is at least.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Of the first plan; none where it has no certificate.
    pub before: Option<Quality>,
    /// Of the second plan.
    pub after: Option<Quality>,
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// What is bounded.
    pub objective: String,
    /// No plan has less; in the objective's unit.
    pub value: u64,
    /// 1 - bound/value of the plan.
    pub gap: f64,
    /// The kind of proof.
    pub proof: String,
}

/// A node that moved, or that is in one plan alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    /// The node.
    pub node: String,
    /// Its device in the first plan; none where it is not there.
    pub from: Option<String>,
    /// Its device in the second plan; none where it is not there.
    pub to: Option<String>,
}

/// A figure that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `step_bytes`, `cuda0 arena`, ...
    pub what: String,
    /// `bytes`, `ns`, or empty for a count.
    pub unit: &'static str,
    /// In the first plan.
    pub before: u64,
    /// In the second plan.
    pub after: u64,
}

impl Diff {
    /// True where nothing differs that counts here.
    pub fn is_empty(&self) -> bool {
        let loads = self.state.as_ref().is_some_and(|state| !state.items.is_empty());
        self.nodes().next().is_none()
            && !loads
            && self.changes.is_empty()
            && self.bounds.is_none()
            && self.remarks.is_empty()
    }

    /// Every node that is not where it was.
    fn nodes(&self) -> impl Iterator<Item = &Move> {
        self.moved.iter().chain(&self.gone).chain(&self.new)
    }

    /// The JSON form, on one line.
    pub fn to_json(&self) -> String {
        to_json(self).unwrap_or_default()
    }
}

/// Compares two plans. O(size log size).
pub fn diff(before: &Plan, after: &Plan) -> Diff {
    compared(before, after, state::state(before, after))
}

/// Compares two plans of cost graphs, with the state between them as the model tells it.
pub fn diff_with_state(before: &Plan, after: &Plan, items: Vec<MovedState>) -> Diff {
    compared(before, after, Some(StateDiff::of(items)))
}

fn compared(before: &Plan, after: &Plan, state: Option<StateDiff>) -> Diff {
    let Nodes { moved, gone, new, kept } = nodes(before, after);
    let names = |plan: &Plan, other: &Plan| -> Vec<String> {
        let there: HashSet<&str> = other.devices.iter().map(|device| device.name.as_str()).collect();
        let only = plan.devices.iter().filter(|device| !there.contains(device.name.as_str()));
        only.map(|device| device.name.clone()).collect()
    };
    Diff {
        flows: flows(moved.iter().chain(&gone).chain(&new), state.as_ref()),
        state,
        came: names(after, before),
        went: names(before, after),
        moved,
        gone,
        new,
        kept,
        changes: changes(before, after),
        bounds: bounds(before, after),
        remarks: remarks(before, after),
    }
}

/// The nodes of two plans.
#[derive(Default)]
struct Nodes {
    moved: Vec<Move>,
    gone: Vec<Move>,
    new: Vec<Move>,
    kept: usize,
}

fn nodes(before: &Plan, after: &Plan) -> Nodes {
    let place = |plan| -> HashMap<&str, &str> {
        let plan: &Plan = plan;
        plan.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect()
    };
    let (first, second) = (place(before), place(after));
    let mut nodes = Nodes::default();
    for (node, from) in &before.placement {
        let to = second.get(node.as_str()).map(|&to| to.to_owned());
        let list = match &to {
            Some(to) if to == from => {
                nodes.kept += 1;
                continue;
            }
            Some(_) => &mut nodes.moved,
            None => &mut nodes.gone,
        };
        list.push(Move { node: node.clone(), from: Some(from.clone()), to });
    }
    let new = after.placement.iter().filter(|(node, _)| !first.contains_key(node.as_str()));
    nodes.new.extend(new.map(|(node, to)| Move { node: node.clone(), from: None, to: Some(to.clone()) }));
    nodes
}

/// Sums what moved, came and went by pairs of devices.
fn flows<'a>(nodes: impl Iterator<Item = &'a Move>, state: Option<&StateDiff>) -> Vec<Flow> {
    let mut flows: BTreeMap<(Option<&str>, Option<&str>), (usize, Bytes)> = BTreeMap::new();
    for Move { from, to, .. } in nodes {
        flows.entry((from.as_deref(), to.as_deref())).or_default().0 += 1;
    }
    for item in state.iter().flat_map(|state| &state.items) {
        let pair = (item.from.first().map(String::as_str), Some(item.to.as_str()));
        flows.entry(pair).or_default().1 += item.bytes;
    }
    let flow = |((from, to), (nodes, state_bytes)): ((Option<&str>, Option<&str>), (usize, Bytes))| Flow {
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
        nodes,
        state_bytes: state.map(|_| state_bytes),
    };
    flows.into_iter().map(flow).collect()
}

fn changes(before: &Plan, after: &Plan) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut compare = |what: String, unit, before, after| {
        if before != after {
            changes.push(Change { what, unit, before, after });
        }
    };
    let (a, b) = (&before.cost, &after.cost);
    compare("transfer_bytes".into(), "bytes", a.transfer_bytes.0, b.transfer_bytes.0);
    compare("step_bytes".into(), "bytes", a.step_bytes.0, b.step_bytes.0);
    compare("load_bytes".into(), "bytes", a.load_bytes.0, b.load_bytes.0);
    compare("latency_ns".into(), "ns", a.latency_ns.0, b.latency_ns.0);
    compare("max_load_ns".into(), "ns", a.max_load_ns.0, b.max_load_ns.0);
    compare("steps".into(), "", before.steps.len() as u64, after.steps.len() as u64);
    compare("params held".into(), "", params(before), params(after));
    for (device, other) in pair_devices(before, after) {
        let name = &device.or(other).map(|device| device.name.clone()).unwrap_or_default();
        let figure = |of: fn(&super::PlanDevice) -> Bytes| {
            (device.map_or(0, |device| of(device).0), other.map_or(0, |device| of(device).0))
        };
        for (what, (a, b)) in [
            ("memory", figure(|device| device.memory)),
            ("arena", figure(|device| device.arena)),
            ("peak", figure(|device| device.peak)),
        ] {
            compare(format!("{name} {what}"), "bytes", a, b);
        }
    }
    changes
}

fn bounds(before: &Plan, after: &Plan) -> Option<Bounds> {
    let quality = |plan: &Plan| {
        let Bound { objective, value, gap, proof, .. } = plan.bound.as_ref()?;
        Some(Quality { objective: objective.clone(), value: *value, gap: *gap, proof: proof.clone() })
    };
    let (before, after) = (quality(before), quality(after));
    (before != after).then_some(Bounds { before, after })
}

fn params(plan: &Plan) -> u64 {
    plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param).count() as u64
}

/// Devices of either plan, by name: the first plan's in its order, then those new in the second.
fn pair_devices<'a>(
    before: &'a Plan,
    after: &'a Plan,
) -> Vec<(Option<&'a super::PlanDevice>, Option<&'a super::PlanDevice>)> {
    let by_name = |plan: &'a Plan| -> HashMap<&'a str, &'a super::PlanDevice> {
        plan.devices.iter().map(|device| (device.name.as_str(), device)).collect()
    };
    let (first, second) = (by_name(before), by_name(after));
    let old = before.devices.iter().map(|device| (Some(device), second.get(device.name.as_str()).copied()));
    let new = after.devices.iter().filter(|device| !first.contains_key(device.name.as_str()));
    old.chain(new.map(|device| (None, Some(device)))).collect()
}

fn remarks(before: &Plan, after: &Plan) -> Vec<String> {
    let mut remarks = Vec::new();
    if before.model.hash != after.model.hash {
        remarks.push(format!("the models differ: {} and {}", before.model.name, after.model.name));
    }
    remarks.extend(options(before, after));
    if before.topology != after.topology {
        remarks.push("the devices or links differ".into());
    }
    remarks
}

/// One line for each option that differs.
fn options(before: &Plan, after: &Plan) -> Vec<String> {
    let fields = |plan: &Plan| match serde_json::to_value(&plan.options) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (first, second) = (fields(before), fields(after));
    let mut names: Vec<&String> = first.keys().chain(second.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let text =
        |value: Option<&serde_json::Value>| value.map_or("(not given)".to_owned(), ToString::to_string);
    let differs = names.into_iter().filter(|&name| first.get(name) != second.get(name));
    differs
        .map(|name| format!("option {name}: {} -> {}", text(first.get(name)), text(second.get(name))))
        .collect()
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "the same: {} nodes on the same devices", self.kept);
        }
        for remark in &self.remarks {
            writeln!(f, "{}", escaped(remark))?;
        }
        for (names, what) in [(&self.went, "gone"), (&self.came, "new")] {
            if !names.is_empty() {
                writeln!(f, "devices {what}: {}", escaped(&names.join(", ")))?;
            }
        }
        write!(f, "{} nodes moved", self.moved.len())?;
        for (nodes, what) in [(&self.gone, "gone"), (&self.new, "new")] {
            if !nodes.is_empty() {
                write!(f, ", {} {what}", nodes.len())?;
            }
        }
        writeln!(f, ", {} kept", self.kept)?;
        let device = |device: &Option<String>| device.as_deref().map_or("(none)".into(), escaped);
        for Move { node, from, to } in self.nodes().take(LISTED) {
            writeln!(f, "  {}: {} -> {}", escaped(node), device(from), device(to))?;
        }
        if let more @ 1.. = self.nodes().count().saturating_sub(LISTED) {
            writeln!(f, "  and {more} more (--json lists all)")?;
        }
        if let Some(StateDiff { moved_bytes, lost_bytes, new_bytes, items }) = &self.state
            && !items.is_empty()
        {
            writeln!(
                f,
                "state to load: {moved_bytes} moved, {lost_bytes} lost with devices, {new_bytes} new"
            )?;
        }
        for Flow { from, to, nodes, state_bytes } in &self.flows {
            let state = state_bytes.map_or(String::new(), |bytes| format!(", {bytes} of state"));
            writeln!(f, "  {} -> {}: {nodes} nodes{state}", device(from), device(to))?;
        }
        for change in &self.changes {
            writeln!(f, "{change}")?;
        }
        match &self.bounds {
            Some(Bounds { before, after }) => {
                writeln!(f, "certificate: {} -> {}", in_words(before.as_ref()), in_words(after.as_ref()))
            }
            None => Ok(()),
        }
    }
}

fn in_words(quality: Option<&Quality>) -> String {
    let Some(Quality { objective, value, gap, proof }) = quality else { return "none".into() };
    let value = match objective.as_str() {
        "transfer" => Bytes(*value).to_string(),
        _ => Nanos(*value).to_string(),
    };
    let (objective, proof) = (escaped(objective), escaped(proof));
    format!("{objective} at least {value}, gap {:.1}% ({proof})", gap * 100.0)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |value: u64| match self.unit {
            "bytes" => Bytes(value).to_string(),
            "ns" => Nanos(value).to_string(),
            _ => value.to_string(),
        };
        let sign = if self.after > self.before { '+' } else { '-' };
        let difference = amount(self.after.abs_diff(self.before));
        write!(
            f,
            "{}: {} -> {} ({sign}{difference})",
            escaped(&self.what),
            amount(self.before),
            amount(self.after)
        )
    }
}
