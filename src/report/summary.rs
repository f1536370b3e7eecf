//! What a plan comes to, for people and as JSON.

use serde::Serialize;

use super::BatchLine;
#[cfg(feature = "cli")]
use super::{Column, TextTable};
use crate::control::Mark;
use crate::costgraph::{CostGraph, Role};
use crate::escape::escaped;
use crate::explain::Fewer;
use crate::place::{Objective, Placement};
use crate::plan::{Bound, Plan, Replan};
use crate::schedule::{Action, Overlap, Schedule};
use crate::strategy::pipeline::Figures;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// One device's share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceLine {
    /// The device's name.
    pub device: String,
    /// What it is on a real machine.
    pub target: String,
    /// The cap.
    pub memory: Bytes,
    /// Bytes that the run allocates.
    pub arena: Bytes,
    /// Most bytes live at once on the simulated timeline.
    pub peak: Bytes,
    /// No sound choice of offsets allocates less; none where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bytes>,
    /// Bytes of parameters, state and inputs.
    pub resident: Bytes,
    /// Kernels launched in a step.
    pub launches: usize,
    /// Time in which it computes.
    pub busy: Nanos,
    /// Bytes that arrive in a step.
    pub received: Bytes,
}

/// What another objective would give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlternativeLine {
    /// The objective.
    pub objective: &'static str,
    /// Predicted time of a step.
    pub latency: Nanos,
    /// Highest load of a device or link in steady state.
    pub max_load: Nanos,
    /// Bytes moved.
    pub transfer_bytes: Bytes,
    /// Devices that compute something.
    pub devices: usize,
}

/// How good the best plan was at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchLine {
    /// Time since the search began.
    pub after_ns: Nanos,
    /// What the objective came to; in its unit.
    pub value: u64,
    /// What was proven by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<u64>,
    /// 1 - bound/value.
    pub gap: f64,
}

impl From<&Mark> for SearchLine {
    fn from(mark: &Mark) -> Self {
        let after = u64::try_from(mark.after.as_nanos()).unwrap_or(u64::MAX);
        Self { after_ns: Nanos(after), value: mark.value, bound: mark.bound, gap: mark.gap() }
    }
}

/// What the objective came to at a time of the search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurveLine {
    /// Time since the search began.
    pub after_ns: Nanos,
    /// What the objective came to; in its unit.
    pub value: u64,
    /// 1 - bound/value, by the highest bound that the search proved, then or later.
    pub gap: f64,
}

/// The curve of a search.
pub fn curve(marks: &[Mark]) -> Vec<CurveLine> {
    let bound = marks.iter().filter_map(|mark| mark.bound).max();
    let line = |mark: &Mark| {
        let mark = Mark { bound, ..*mark };
        let SearchLine { after_ns, value, gap, .. } = SearchLine::from(&mark);
        CurveLine { after_ns, value, gap: gap.max(0.0) }
    };
    marks.iter().map(line).collect()
}

/// How good the plan is at least.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundLine {
    /// No plan has less; in the objective's unit.
    pub value: u64,
    /// 1 - bound/value of the plan.
    pub gap: f64,
    /// The kind of proof.
    pub proof: String,
    /// What no plan is below that splits operations too, in nanoseconds, where that is known.
    pub peaks: Option<Nanos>,
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The network's name.
    pub model: String,
    /// Nodes of the source model.
    pub nodes: usize,
    /// What is launched in a step.
    pub launches: usize,
    /// What was made small.
    pub objective: &'static str,
    /// The devices, used or not.
    pub devices: Vec<DeviceLine>,
    /// Copies in a step.
    pub copies: usize,
    /// The part of the copies' time that is not on the critical path, from 0 to 1; none where
    /// nothing is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<f64>,
    /// Bytes moved in a step.
    pub step_bytes: Bytes,
    /// Bytes of parameters held beyond one copy of each.
    pub load_bytes: Bytes,
    /// Their sum.
    pub transfer_bytes: Bytes,
    /// Predicted time of a step.
    pub latency: Nanos,
    /// Highest load of a device or link in steady state.
    pub max_load: Nanos,
    /// True where the plan is optimal beyond doubt: the objective is zero, or meets its bound.
    pub optimal: bool,
    /// The certificate, where there is one.
    pub bound: Option<BoundLine>,
    /// The plans of which the certificate speaks.
    #[serde(skip)]
    pub scope: Scope,
    /// Nodes that are split, where some are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<usize>,
    /// Other objectives that gain something in their own measure.
    pub alternatives: Vec<AlternativeLine>,
    /// What the planner's own placement comes to, beside one that was made elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<AlternativeLine>,
    /// Whether fewer devices are as good, where that was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fewer: Option<Fewer>,
    /// The type that products are computed in, where it is not that of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// The state that must be loaded because the plan replaces another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replan: Option<Replan>,
    /// What a pipeline comes to, where the step is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Figures>,
    /// What a placement that was made elsewhere breaks.
    pub violations: Vec<String>,
    /// The largest batch that fits, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<BatchLine>,
    /// How good the plan was after each part of the search, where its end was asked for or it was cut short.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<SearchLine>,
    /// What the objective came to over time, within the parts of the search too; empty where `search` is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<CurveLine>,
}

/// The plans of which a certificate speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Every plan.
    #[default]
    All,
    /// Those that split no operation.
    Whole,
    /// Those that split the same operations in the same way.
    Split,
}

impl Scope {
    /// Of a plan of so many devices that splits so many operations.
    pub(super) fn new(devices: usize, splits: usize) -> Self {
        match (splits, devices) {
            (0, 0 | 1) => Self::All,
            (0, _) => Self::Whole,
            _ => Self::Split,
        }
    }

    /// Of the certificate of a plan; operations of a cost graph have no kernels, and cannot be split.
    pub(super) fn of_plan(plan: &Plan) -> Self {
        match plan.kernels.is_empty() {
            true => Self::All,
            false => Self::new(plan.topology.devices.len(), plan.options.splits.len()),
        }
    }

    /// What follows `proven optimal`.
    pub(super) const fn among(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Whole => " where nothing is split",
            Self::Split => " among plans with these splits",
        }
    }

    /// What follows `no plan`.
    const fn plans(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Whole => " of whole operations",
            Self::Split => " with these splits",
        }
    }
}

impl Summary {
    /// Sums up a plan. `nodes` counts the source model's nodes. O(steps).
    pub fn new(
        graph: &CostGraph,
        topology: &Topology,
        placement: &Placement,
        schedule: &Schedule,
        objective: Objective,
        nodes: usize,
    ) -> Self {
        let mut launches = vec![0; topology.len()];
        let mut copies = 0;
        for step in &schedule.steps {
            match step.action {
                Action::Launch(_) => launches[step.device.index()] += 1,
                Action::Copy { .. } => copies += 1,
            }
        }
        let line = |device: DeviceId| {
            let (usage, described) = (&schedule.devices[device.index()], topology.device(device));
            DeviceLine {
                device: described.name.clone(),
                target: described.target.to_string(),
                memory: described.memory,
                arena: usage.arena,
                peak: usage.peak,
                bound: usage.bound,
                resident: usage.resident,
                launches: launches[device.index()],
                busy: usage.busy,
                received: usage.received,
            }
        };
        let cost = &schedule.cost;
        let transfer_bytes = cost.step_bytes + cost.load_bytes;
        let reached = match objective {
            Objective::Transfer => transfer_bytes.get(),
            Objective::Latency => cost.latency.get(),
            Objective::Throughput => cost.max_load.get(),
        };
        Self {
            model: graph.name.clone(),
            nodes,
            launches: graph.nodes().filter(|&node| graph.role(node) == Role::Compute).count(),
            objective: objective.name(),
            devices: topology.ids().map(line).collect(),
            copies,
            hidden: Overlap::new(topology, schedule).hidden(),
            step_bytes: cost.step_bytes,
            load_bytes: cost.load_bytes,
            transfer_bytes,
            latency: cost.latency,
            max_load: cost.max_load,
            optimal: reached == 0,
            bound: None,
            scope: Scope::All,
            split: None,
            alternatives: Vec::new(),
            planned: None,
            fewer: None,
            precision: None,
            notes: placement.notes.clone(),
            replan: None,
            pipeline: None,
            violations: Vec::new(),
            largest: None,
            search: Vec::new(),
            curve: Vec::new(),
        }
    }

    /// The summary with the certificate of its plan.
    #[must_use]
    pub fn with_bound(mut self, bound: Option<&Bound>) -> Self {
        let line = |bound: &Bound| BoundLine {
            value: bound.value,
            gap: bound.gap,
            proof: bound.proof.clone(),
            peaks: bound.peaks.as_ref().map(|peaks| Nanos(peaks.value)),
        };
        self.bound = bound.map(line);
        self.optimal |= bound.is_some_and(|bound| bound.gap <= 0.0);
        self
    }

    /// The summary of a network's plan, in which operations may be split: as many as `nodes`.
    #[must_use]
    pub fn with_splits(mut self, nodes: usize) -> Self {
        self.split = (nodes > 0).then_some(nodes);
        self.scope = Scope::new(self.devices.len(), nodes);
        self
    }

    /// How good the plan is, in words.
    fn quality(&self) -> String {
        let peaks = self.bound.as_ref().and_then(|bound| bound.peaks).filter(|_| self.scope != Scope::All);
        let beside = peaks.map_or_else(String::new, |peaks| format!(", none at all below {peaks} (peaks)"));
        match &self.bound {
            Some(bound) if self.optimal => {
                format!("proven optimal{} ({}){beside}", self.scope.among(), bound.proof)
            }
            Some(BoundLine { value, gap, proof, .. }) => {
                let least = match self.objective {
                    "transfer" => Bytes(*value).to_string(),
                    _ => Nanos(*value).to_string(),
                };
                let plans = self.scope.plans();
                format!("gap {:.1}%, no plan{plans} is below {least} ({proof}){beside}", gap * 100.0)
            }
            None if self.optimal && self.objective == "transfer" => "proven optimal, nothing moves".into(),
            None if self.optimal => "proven optimal, nothing takes time".into(),
            None => "no certificate".into(),
        }
    }

    /// The gap over time.
    fn searched(&self) -> String {
        let value = |value: u64| match self.objective {
            "transfer" => Bytes(value).to_string(),
            _ => Nanos(value).to_string(),
        };
        let line = |line: &SearchLine| {
            format!("{} with gap {:.1}% after {}", value(line.value), line.gap * 100.0, line.after_ns)
        };
        let lines: Vec<String> = self.search.iter().map(line).collect();
        if lines.is_empty() { String::new() } else { format!("search     {}\n", lines.join(", ")) }
    }

    /// Devices that compute something.
    pub fn used(&self) -> usize {
        self.devices.iter().filter(|line| line.launches > 0).count()
    }

    /// The closing lines: what moves, how long a step takes, how good the plan is.
    pub fn conclusions(&self) -> String {
        let copies = match self.copies {
            0 => "nothing moves in a step".to_owned(),
            1 => format!("{} in one copy each step", self.step_bytes),
            n => format!("{} in {n} copies each step", self.step_bytes),
        };
        let hidden = self.hidden.map_or_else(String::new, |hidden| {
            format!(", {:.0}% of their time hidden behind the rest of the step", 100.0 * hidden)
        });
        let loaded = if self.load_bytes == Bytes::ZERO {
            String::new()
        } else {
            format!(", {} of parameters held more than once", self.load_bytes)
        };
        let quality = self.quality();
        let mut text = format!(
            "transfer   {copies}{hidden}{loaded}\nlatency    {} for one step (simulated)\nload       {} on the busiest device or link\nobjective  {}: {quality}\n",
            self.latency, self.max_load, self.objective
        );
        if let Some(nodes) = self.split {
            text += &format!("split      {} over several devices\n", super::counted(nodes, "node"));
        }
        text += &self.precision.as_deref().map_or_else(String::new, precision_line);
        text += &self.pipeline.as_ref().map_or_else(String::new, pipelined);
        for line in &self.alternatives {
            let AlternativeLine { objective, latency, max_load, transfer_bytes, devices } = line;
            let gain = match *objective {
                "latency" => format!("latency {latency}"),
                "throughput" => format!("load {max_load}"),
                _ => format!("transfer {transfer_bytes}"),
            };
            text += &format!(
                "instead    --objective {objective}: {gain} on {}, {transfer_bytes} moved\n",
                super::counted(*devices, "device")
            );
        }
        if let Some(own) = &self.planned {
            let AlternativeLine { objective, latency, max_load, transfer_bytes, devices } = own;
            text += &format!(
                "planner    its own placement for {objective}: latency {latency}, load {max_load}, \
                 {transfer_bytes} moved, on {}\n",
                super::counted(*devices, "device")
            );
        }
        text += &self.replan.as_ref().map_or_else(String::new, replanned);
        text += &self.largest.as_ref().map_or_else(String::new, BatchLine::text);
        text += &self.searched();
        for violation in &self.violations {
            text += &format!("broken     {}\n", escaped(violation));
        }
        if let Some(fewer) = self.fewer.as_ref().filter(|fewer| fewer.as_good.is_some()) {
            text += &super::fewer_text(fewer, self.objective);
        }
        for note in &self.notes {
            text += &format!("note       {note}\n");
        }
        text
    }
}

/// What another precision than that of the model means.
pub(crate) fn precision_line(half: &str) -> String {
    let half = escaped(half);
    format!(
        "precision  {half}: products, convolutions and attention, added up in f32; the rest as in the model\n"
    )
}

/// Stages that are listed one by one.
const STAGES: usize = 32;

/// What a pipeline comes to.
pub(crate) fn pipelined(figures: &Figures) -> String {
    let Figures { schedule, microbatches, devices, replicas, .. } = figures;
    let each = if *replicas > 1 { format!("{replicas} replicas, each ") } else { String::new() };
    let mut text = format!(
        "pipeline   {schedule}: {each}{microbatches} microbatches, {} stages on {} devices\n",
        figures.stages.len() / (*replicas).max(1) as usize,
        devices / (*replicas).max(1) as usize
    );
    text += &format!(
        "bubble     {:.1}% of the devices' time, {:.1}% in theory (equal stages, free copies)\n",
        figures.bubble * 100.0,
        figures.theoretical_bubble * 100.0
    );
    text += &format!(
        "steady     {} for each step, {} for each microbatch\n",
        figures.steady_step, figures.steady_microbatch
    );
    for stage in figures.stages.iter().take(STAGES) {
        let device = escaped(&stage.device);
        text +=
            &format!("stage {:<4} {device}: {} nodes, forward {}", stage.stage, stage.nodes, stage.forward);
        if stage.backward > Nanos::ZERO {
            text += &format!(", backward {}", stage.backward);
        }
        text.push('\n');
    }
    if figures.stages.len() > STAGES {
        text += &format!("           and {} more\n", figures.stages.len() - STAGES);
    }
    for memory in &figures.memory {
        let (device, resident) = (escaped(&memory.device), memory.resident);
        text +=
            &format!("memory     {device}: {resident} resident, {} in flight at most\n", memory.in_flight);
    }
    text
}

/// Items of state that are named one by one.
const LARGEST: usize = 5;

/// What a plan takes of state, and the largest items of it.
fn replanned(replan: &Replan) -> String {
    let mut parts = vec![format!("{} moved", replan.moved_bytes)];
    for (bytes, what) in
        [(replan.lost_bytes, "loaded anew for lost devices"), (replan.new_bytes, "that was not there before")]
    {
        if bytes > Bytes::ZERO {
            parts.push(format!("{bytes} {what}"));
        }
    }
    let mut text = format!("state      {}\n", parts.join(", "));
    let mut largest: Vec<_> = replan.state.iter().filter(|item| item.fate != "new").collect();
    largest.sort_by_key(|item| std::cmp::Reverse(item.bytes));
    for item in largest.iter().take(LARGEST) {
        let from = if item.from.is_empty() { "lost".to_owned() } else { item.from.join(", ") };
        let (name, from, to) = (escaped(&item.name), escaped(&from), escaped(&item.to));
        text += &format!("           {name}: {} from {from} to {to}\n", item.bytes);
    }
    if largest.len() > LARGEST {
        text += &format!("           and {} more (`partition diff`)\n", largest.len() - LARGEST);
    }
    text
}

/// Devices in a row that agree in everything but their names are listed one by one up to so many.
#[cfg(feature = "cli")]
const ALIKE: usize = 8;

/// What the table's columns are.
#[cfg(feature = "cli")]
const LEGEND: &str = "peak: most bytes live at once; bound: no sound offsets need less; arena: allocated;
resident: of that parameters, state and inputs
";

#[cfg(feature = "cli")]
impl Summary {
    /// What the table has a row for, with the names: a device, or a range of many that are alike.
    fn rows(&self) -> Vec<(&DeviceLine, String, String)> {
        let figures =
            |line: &DeviceLine| DeviceLine { device: String::new(), target: String::new(), ..line.clone() };
        let mut rows = Vec::new();
        for alike in self.devices.chunk_by(|one, other| figures(one) == figures(other)) {
            match alike {
                [first, .., last] if alike.len() > ALIKE => {
                    let device = format!("{} .. {}", escaped(&first.device), escaped(&last.device));
                    rows.push((first, device, format!("{} alike", alike.len())));
                }
                _ => {
                    rows.extend(alike.iter().map(|line| (line, escaped(&line.device), escaped(&line.target))))
                }
            }
        }
        rows
    }

    /// The summary as a table with its closing lines.
    pub fn text(&self) -> String {
        self.text_within(None)
    }

    /// The summary, its table no wider than this.
    pub fn text_within(&self, width: Option<usize>) -> String {
        let mut table = TextTable::new(&[
            Column::words("device"),
            Column::words("target"),
            Column::figures("peak"),
            Column::figures("bound"),
            Column::figures("arena"),
            Column::figures("of"),
            Column::figures("resident"),
            Column::figures("kernels"),
            Column::figures("busy"),
            Column::figures("receives"),
        ]);
        for (line, device, target) in self.rows() {
            table.row([
                device,
                target,
                line.peak.to_string(),
                line.bound.map_or_else(String::new, |bound| bound.to_string()),
                line.arena.to_string(),
                line.memory.to_string(),
                line.resident.to_string(),
                line.launches.to_string(),
                line.busy.to_string(),
                line.received.to_string(),
            ]);
        }
        format!(
            "{}: {}, {} on {} of {}\n\n{}{LEGEND}\n{}",
            escaped(&self.model),
            super::counted(self.nodes, "node"),
            super::counted(self.launches, "kernel"),
            self.used(),
            super::counted(self.devices.len(), "device"),
            table.text(width),
            self.conclusions()
        )
    }
}
