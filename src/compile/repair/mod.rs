//! What would help where nothing fits: each repair was planned with, so that it does help.
//!
//! Attempts are counted, fewer for larger graphs, and made with the least effort; so what is said to be enough is
//! enough, and a better search may need less. Sizes are sought by doubling and bisection; what a successful attempt's
//! arenas take is the next size to try. Attempts are rewritten where they do not fit as they are, as planning does, and
//! divided into microbatches where that is asked for.

mod attempt;
mod with_splits;

use std::cmp::Reverse;

use self::attempt::{Attempt, Fit, fit, graph_of, rewritten};
use self::with_splits::WithSplits;
use super::pipeline::settled;
use super::{Options, batch_dim};
use crate::control::Control;
use crate::costgraph::CostGraph;
use crate::error::{Infeasible, MemberKind, Repair, Result};
use crate::load::Model;
use crate::place::{self, DeviceUse, Effort};
use crate::schedule::Schedule;
use crate::strategy::Problem;
use crate::strategy::pipeline::{self, Order};
use crate::topology::{DeviceId, Role, Topology};
use crate::units::Bytes;

/// Nodes times attempts.
const WORK: usize = 400_000;
/// Graphs up to this size are planned once more with more than the least effort where a size was
/// found.
const VERIFIED: usize = 2_000;
/// Nodes times attempts that are rewritten.
const REWRITING: usize = 100_000;
/// By how much the count of microbatches is multiplied at most.
const MORE_MICROBATCHES: u32 = 16;
/// Pins, and patterns of colocation, that are tried to be left out.
const DROPPED: usize = 8;
/// Devices to which memory is added alone.
const GROWN: usize = 3;
/// How often a size that does is cut to what the plan's arenas take.
const TRIMMED: usize = 4;
/// Values of `--balance` that are tried.
const BALANCES: [&str; 12] =
    ["0.01", "0.02", "0.03", "0.05", "0.1", "0.15", "0.2", "0.3", "0.5", "1", "2", "5"];

/// Adds to what is known of why nothing fits the changes that help: memory, a smaller reserve,
/// pins and colocation to drop, another balance, count of devices, a host that computes, batch or count of microbatches.
/// Where memory helps, and less of it helps with kernels run again or tensors offloaded, both are reported.
/// `found` is what planning `model` with these arguments ended with.
///
/// At most some dozen times the work of planning; less for large graphs, where not everything is
/// tried.
///
/// Errors: those of lowering the model.
pub fn repair(
    model: &Model,
    topology: &Topology,
    options: &Options,
    found: &mut Infeasible,
    control: &Control<'_>,
) -> Result<()> {
    let mut options = settled(options.clone())?;
    if let Some(asked) = options.pipeline {
        // The largest batch is sought from one sample for each microbatch on.
        options.batch.get_or_insert(asked.microbatches.into());
    }
    let options = &options;
    let graph = &*graph_of(model, topology, options)?;
    let base = match model {
        Model::CostGraph { .. } => options.place.clone(),
        // The network's own marks say the same.
        Model::Graph(_) => options.place.without_patterns(),
    };
    let left = (WORK / (graph.node_count() + 1)).clamp(6, 100);
    let rewrites = (REWRITING / (graph.node_count() + 1)).clamp(2, 100);
    let mut trial = Trial { model, graph, topology, options, control, base, left, rewrites };
    let mut repairs = trial.without_pins(found);
    repairs.extend(trial.without_colocation());
    repairs.extend(trial.balance());
    repairs.extend(trial.device_use());
    repairs.extend(trial.host()?);
    let mut memory = trial.memory(found);
    if let Some(Repair::Memory { device: None, more, .. }) = memory.first()
        && *more <= options.place.reserve
    {
        repairs.push(Repair::Reserve { reserve: options.place.reserve.saturating_sub(*more) });
    }
    repairs.extend(trial.batch());
    repairs.extend(trial.microbatches());
    if let (Model::Graph(graph), Some(Repair::Memory { device: None, more, .. })) = (model, memory.first()) {
        let less = WithSplits { graph, topology, options, control }.least(*more)?;
        memory.splice(0..0, less);
    }
    found.repairs = memory.into_iter().chain(repairs).collect();
    if let Some(first) = found.repairs.first() {
        found.repair = format!("{first} would do");
        if let (Repair::Memory { device: None, memory, .. }, [only]) = (first, topology.devices.as_slice()) {
            found.repair = format!("smallest cap that would do: {} bytes on {}", memory.get(), only.name);
        } else if let (Repair::Memory { device: None, memory, .. }, true) = (first, equal(topology)) {
            found.repair = format!("smallest cap that would do: {} bytes on each device", memory.get());
        }
    }
    let lines = found.repairs.iter().map(|repair| format!("would do: {repair}"));
    found.details.extend(lines);
    Ok(())
}

fn equal(topology: &Topology) -> bool {
    topology.devices.windows(2).all(|pair| pair[0].memory == pair[1].memory)
}

/// Plans variations, as many as are allowed.
struct Trial<'t, 'c> {
    model: &'t Model,
    graph: &'t CostGraph,
    topology: &'t Topology,
    options: &'t Options,
    control: &'t Control<'c>,
    /// What the caller asked for, as the planner proper sees it.
    base: place::Options,
    left: usize,
    /// Of those, the ones that may be rewritten.
    rewrites: usize,
}

/// Devices that are tried with more memory.
struct Growth<'d> {
    devices: &'d [DeviceId],
    /// What all devices have.
    caps: Vec<Bytes>,
    base: place::Options,
    way: Attempt,
}

impl Growth<'_> {
    fn options(&self, more: u64) -> place::Options {
        let mut caps = self.caps.clone();
        self.devices.iter().for_each(|id| caps[id.index()] += Bytes(more));
        place::Options { caps: Some(caps), ..self.base.clone() }
    }

    /// What the arenas of a plan take beyond the caps, reserve included.
    fn excess(&self, schedule: &Schedule) -> u64 {
        let over = |id: &DeviceId| {
            let arena = schedule.devices[id.index()].arena + self.base.reserve;
            arena.saturating_sub(self.caps[id.index()]).get()
        };
        self.devices.iter().map(over).max().unwrap_or(0)
    }
}

/// A plan with so much more memory, of which its arenas take `excess`.
struct Grown {
    more: u64,
    excess: u64,
    fit: Fit,
}

impl Trial<'_, '_> {
    /// What is found for what is asked for.
    fn plan(
        &mut self,
        graph: &CostGraph,
        options: &place::Options,
        divided: Option<pipeline::Options>,
        way: Attempt,
    ) -> Option<Fit> {
        if self.control.stopped() {
            self.left = 0;
        }
        self.left = self.left.checked_sub(1)?;
        let quick = place::Options { effort: Effort::Fast, ..options.clone() };
        let as_is = fit(Problem::new(graph, self.topology, &quick), divided, Attempt::AsIs, self.control);
        if as_is.is_some() || way == Attempt::AsIs {
            return as_is;
        }
        self.rewrites = self.rewrites.checked_sub(1)?;
        rewritten(Problem::new(graph, self.topology, &quick), divided, self.control)
    }

    /// True where no further attempt is made.
    fn is_over(&self, way: Attempt) -> bool {
        self.left == 0 || way == Attempt::Rewritten && self.rewrites == 0
    }

    /// As [`Trial::plan`] on the graph at hand.
    fn attempt(&mut self, options: &place::Options, way: Attempt) -> Option<Fit> {
        let graph = self.graph;
        self.plan(graph, options, self.options.pipeline, way)
    }

    /// What the usual effort gives, where that is what the caller asked for: none where that finds
    /// nothing.
    fn confirmed(&self, options: &place::Options, way: Attempt, found: Fit) -> Option<Fit> {
        if self.graph.node_count() > VERIFIED || options.effort == Effort::Fast {
            return Some(found);
        }
        let usual = place::Options { effort: Effort::Default, ..options.clone() };
        fit(Problem::new(self.graph, self.topology, &usual), self.options.pipeline, way, self.control)
    }

    fn helps(&mut self, options: &place::Options) -> bool {
        self.attempt(options, Attempt::Rewritten).is_some()
    }

    /// Plans with other marks on the source's nodes, another batch or other microbatches.
    fn otherwise(&mut self, options: &Options) -> Option<Fit> {
        if self.left == 0 || self.control.stopped() {
            return None;
        }
        let graph = graph_of(self.model, self.topology, options).ok()?;
        let place = match self.model {
            Model::CostGraph { .. } => options.place.clone(),
            Model::Graph(_) => place::Options { objective: options.place.objective, ..self.base.clone() },
        };
        self.plan(&graph, &place, options.pipeline, Attempt::Rewritten)
    }

    fn helps_otherwise(&mut self, options: &Options) -> bool {
        self.otherwise(options).is_some()
    }

    /// Pins without any one of which there is a plan; those of the conflict first.
    fn without_pins(&mut self, found: &Infeasible) -> Vec<Repair> {
        let pins = &self.options.place.pins;
        let text = |(pattern, device): &(String, String)| format!("{pattern}={device}");
        let concerned = |(pattern, device): &(String, String)| {
            let glob = wildmatch::WildMatch::new(pattern);
            let names = found.members.iter().filter(|member| member.kind == MemberKind::Pin);
            let mut pinned = names.filter_map(|member| member.name.rsplit_once('='));
            pinned.any(|(node, to)| to == device && (node == pattern || glob.matches(node)))
        };
        let mut order: Vec<usize> = (0..pins.len()).collect();
        order.sort_by_key(|&at| !concerned(&pins[at]));
        order.truncate(DROPPED);
        let mut repairs = Vec::new();
        for &at in &order {
            if self.helps_without(&[at]) {
                repairs.push(Repair::Unpin { pins: vec![text(&pins[at])] });
            }
        }
        // No pin alone stands in the way: several may.
        if repairs.is_empty() && order.len() > 1 {
            let dropped = self.needed_of(order);
            repairs.extend(dropped.map(|dropped| Repair::Unpin {
                pins: dropped.into_iter().map(|at| text(&pins[at])).collect(),
            }));
        }
        repairs
    }

    /// True where there is a plan without these pins.
    fn helps_without(&mut self, dropped: &[usize]) -> bool {
        let mut options = self.options.clone();
        let mut at = 0..;
        options.place.pins.retain(|_| at.next().is_none_or(|at| !dropped.contains(&at)));
        self.helps_otherwise(&options)
    }

    /// Some of `pins` without which there is a plan, and none of which can be kept.
    fn needed_of(&mut self, pins: Vec<usize>) -> Option<Vec<usize>> {
        if !self.helps_without(&pins) {
            return None;
        }
        let mut dropped = pins.clone();
        for &at in pins.iter().rev() {
            let rest: Vec<usize> = dropped.iter().copied().filter(|&other| other != at).collect();
            if self.helps_without(&rest) {
                dropped = rest;
            }
        }
        dropped.sort_unstable();
        Some(dropped)
    }

    fn without_colocation(&mut self) -> Vec<Repair> {
        let patterns = &self.options.place.colocate;
        let mut repairs = Vec::new();
        for at in 0..patterns.len().min(DROPPED) {
            let mut options = self.options.clone();
            options.place.colocate.remove(at);
            if self.helps_otherwise(&options) {
                repairs.push(Repair::Uncolocate { pattern: patterns[at].clone() });
            }
        }
        repairs
    }

    /// The least of some values of `--balance` that does, or none.
    fn balance(&mut self) -> Option<Repair> {
        let asked = self.base.balance?;
        let larger = BALANCES.iter().filter(|text| text.parse::<f64>().is_ok_and(|value| value > asked));
        for text in larger.map(Some).chain([None]) {
            let balance = text.and_then(|text| text.parse().ok());
            let options = place::Options { balance, ..self.base.clone() };
            if self.helps(&options) {
                return Some(Repair::Balance { balance: text.map(|text| (*text).to_owned()) });
            }
        }
        None
    }

    fn device_use(&mut self) -> Option<Repair> {
        if self.base.devices == DeviceUse::Auto {
            return None;
        }
        let options = place::Options { devices: DeviceUse::Auto, ..self.base.clone() };
        self.helps(&options).then(|| Repair::Use { devices: "auto".into() })
    }

    /// The host with the most memory as a device that computes. Errors: those of lowering the model.
    fn host(&mut self) -> Result<Option<Repair>> {
        let hosts = self.topology.ids().filter(|&id| self.topology.device(id).role == Role::Host);
        let Some(host) = hosts.max_by_key(|&id| (self.topology.device(id).memory, Reverse(id))) else {
            return Ok(None);
        };
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let mut topology = self.topology.clone();
        topology.devices[host.index()].role = Role::Compute;
        let graph = graph_of(self.model, &topology, self.options)?;
        let quick = place::Options { effort: Effort::Fast, ..self.base.clone() };
        let found = fit(Problem::new(&graph, &topology, &quick), None, Attempt::AsIs, self.control);
        let device = self.topology.device(host).name.clone();
        Ok(found.map(|_| Repair::Host { device }))
    }

    /// Memory for each device that computes, then for single ones: the least that does.
    fn memory(&mut self, found: &Infeasible) -> Vec<Repair> {
        // At least a sixty-fourth of what stays, so that doubling does not begin at a few bytes.
        let lacking = lacking(found).max(place::resident_bytes(self.graph).get() / 64);
        let devices: Vec<DeviceId> = self.topology.ids().collect();
        let compute = |id: &DeviceId| self.topology.device(*id).role == Role::Compute;
        let mut all: Vec<DeviceId> = devices.iter().copied().filter(compute).collect();
        if all.is_empty() {
            all.clone_from(&devices);
        }
        let start = (lacking / all.len().max(1) as u64).max(64);
        let mut repairs = self.growths(&all, None, start);
        if all.len() > 1 {
            let concerned = self.concerned(found).into_iter();
            let mut singles: Vec<Repair> =
                concerned.flat_map(|id| self.growths(&[id], Some(id), lacking.max(64))).collect();
            singles.sort_by_key(|repair| match repair {
                Repair::Memory { more, .. } => *more,
                _ => Bytes::MAX,
            });
            repairs.extend(singles);
        }
        repairs
    }

    /// The least memory added to each of `devices` that does: with something done to the step, where
    /// that takes less, then for the step as it is.
    fn growths(&mut self, devices: &[DeviceId], single: Option<DeviceId>, start: u64) -> Vec<Repair> {
        let as_is = self.growth(devices, single, Attempt::AsIs, start, None);
        let known = match &as_is {
            Some(Repair::Memory { more, .. }) => Some(more.get()),
            _ => None,
        };
        let rewritten = self.growth(devices, single, Attempt::Rewritten, start, known);
        // Where less of it does for the step as it is, too, the first size was just not the least.
        let plain = |repair: &Repair| matches!(repair, Repair::Memory { recomputed: 0, offloaded: 0, .. });
        let as_is = as_is.filter(|_| !rewritten.as_ref().is_some_and(plain));
        rewritten.into_iter().chain(as_is).collect()
    }

    /// Devices of the conflict, those that lack most first; without a conflict, the first ones.
    fn concerned(&self, found: &Infeasible) -> Vec<DeviceId> {
        let mut short: Vec<&(String, Bytes)> = found.short.iter().collect();
        short.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let caps = found.members.iter().filter(|member| member.kind == MemberKind::Cap);
        let names = short.into_iter().map(|(name, _)| name).chain(caps.map(|member| &member.name));
        let mut ids: Vec<DeviceId> = Vec::new();
        let mut alike = Vec::new();
        let devices = self.topology.by_name();
        for id in names.filter_map(|name| devices.get(name.as_str()).copied()).chain(self.topology.ids()) {
            let device = self.topology.device(id);
            // Without pins, devices of one kind and size are as good as one another.
            let sort = (&device.kind, device.memory);
            let recomputed = self.options.place.pins.is_empty() && alike.contains(&sort);
            if !ids.contains(&id) && !recomputed && ids.len() < GROWN {
                ids.push(id);
                alike.push(sort);
            }
        }
        ids
    }

    /// The least memory added to each of `devices` that does, to about one part in sixty-four of
    /// it; none where no amount does, or none below the one that is `known` to do.
    fn growth(
        &mut self,
        devices: &[DeviceId],
        single: Option<DeviceId>,
        way: Attempt,
        start: u64,
        known: Option<u64>,
    ) -> Option<Repair> {
        let caps: Vec<Bytes> = match &self.base.caps {
            Some(caps) => caps.clone(),
            None => self.topology.devices.iter().map(|device| device.memory).collect(),
        };
        let growth = Growth { devices, caps, base: self.base.clone(), way };
        let (mut works, mut fails) = self.doubled(&growth, start, known)?;
        while works.more - fails > (works.more / 64).max(64) {
            let middle = fails + (works.more - fails) / 2;
            // What the last plan's arenas take is a closer guess than the middle.
            let is_between = works.excess > fails && works.excess < works.more;
            let next = if is_between { works.excess } else { middle };
            let over = self.is_over(way);
            match self.grown(&growth, next) {
                Some(fit) => works = fit,
                None if over => break,
                None => fails = next,
            }
        }
        // Bisection ends near the least; what the plan's arenas take may be less than that, to the byte.
        for _ in 0..TRIMMED {
            if works.excess <= fails || works.excess >= works.more || self.is_over(way) {
                break;
            }
            let Some(fit) = self.grown(&growth, works.excess) else { break };
            works = fit;
        }
        let fit = self.confirmed(&growth.options(works.more), way, works.fit)?;
        let largest = devices.iter().map(|id| growth.caps[id.index()]).max().unwrap_or_default();
        let memory = largest + Bytes(works.more);
        let device = single.map(|id| self.topology.device(id).name.clone());
        let (more, fails) = (Bytes(works.more), Bytes(fails));
        let Fit { recomputed, offloaded, .. } = fit;
        let unequal = devices.iter().any(|id| growth.caps[id.index()] < largest);
        Some(Repair::Memory { device, more, memory, fails, recomputed, offloaded, split: false, unequal })
    }

    /// An amount that does, and one that does not: twice as much each time, or halfway to the one that is `known` to
    /// do. None where that is near, or the search has been long.
    fn doubled(&mut self, growth: &Growth<'_>, start: u64, known: Option<u64>) -> Option<(Grown, u64)> {
        let way = growth.way;
        let (mut fails, mut more) = (0u64, start.min(known.unwrap_or(u64::MAX) / 2).max(64));
        loop {
            if known.is_some_and(|known| more >= known) {
                return None;
            }
            if let Some(works) = self.grown(growth, more) {
                return Some((works, fails));
            }
            fails = more;
            more = match known {
                Some(known) if known - fails <= (known / 64).max(64) || self.is_over(way) => return None,
                Some(known) => fails + (known - fails) / 2,
                None => more.checked_mul(2).filter(|&more| more < 1 << 60 && !self.is_over(way))?,
            };
        }
    }

    fn grown(&mut self, growth: &Growth<'_>, more: u64) -> Option<Grown> {
        let fit = self.attempt(&growth.options(more), growth.way)?;
        let excess = growth.excess(&fit.schedule);
        Some(Grown { more, excess, fit })
    }

    /// The largest batch that does, where the model has a batch dimension.
    fn batch(&mut self) -> Option<Repair> {
        let Model::Graph(graph) = self.model else { return None };
        let name = batch_dim(graph)?;
        let asked = self.options.batch.or_else(|| self.options.bind.get(&name).copied())?;
        // Microbatches divide it.
        let unit = self.options.pipeline.map_or(1, |asked| i64::from(asked.microbatches.max(1)));
        let of = |units: i64| Options { batch: Some(units * unit), ..self.options.clone() };
        let (mut works, mut fails) = (1, asked / unit);
        if fails < 2 || !self.helps_otherwise(&of(1)) {
            return None;
        }
        while fails - works > 1 && self.left > 0 {
            let middle = works + (fails - works) / 2;
            if self.helps_otherwise(&of(middle)) {
                works = middle;
            } else {
                fails = middle;
            }
        }
        Some(Repair::Batch { batch: works * unit, fails: fails * unit })
    }

    /// The order that is found best, more microbatches, or none: each that does.
    fn microbatches(&mut self) -> Vec<Repair> {
        let Some(asked) = self.options.pipeline else { return Vec::new() };
        let with = |pipeline| Options { pipeline, ..self.options.clone() };
        let mut repairs = Vec::new();
        let other = (asked.order != Order::Auto).then_some(Order::Auto);
        if let Some(order) = other
            && let Some(Fit { recomputed, offloaded, .. }) =
                self.otherwise(&with(Some(pipeline::Options { order, ..asked })))
        {
            let schedule = Some(order.name().to_owned());
            let microbatches = Some(asked.microbatches);
            repairs.push(Repair::Microbatches { microbatches, schedule, recomputed, offloaded });
        }
        let mut factor = 2;
        while factor <= MORE_MICROBATCHES {
            let Some(microbatches) = asked.microbatches.checked_mul(factor) else { break };
            let more = pipeline::Options { microbatches, ..asked };
            if let Some(Fit { recomputed, offloaded, .. }) = self.otherwise(&with(Some(more))) {
                let microbatches = Some(microbatches);
                repairs.push(Repair::Microbatches { microbatches, schedule: None, recomputed, offloaded });
                break;
            }
            factor *= 2;
        }
        if let Some(Fit { recomputed, offloaded, .. }) = self.otherwise(&with(None)) {
            repairs.push(Repair::Microbatches { microbatches: None, schedule: None, recomputed, offloaded });
        }
        repairs
    }
}

/// Bytes that are known to be missing: what came closest is over its caps, or a proven conflict
/// takes more than the caps in it.
fn lacking(found: &Infeasible) -> u64 {
    let short = found.short.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes.get()));
    let sum = |cap: bool| {
        let members = found.members.iter().filter(|member| match member.kind {
            MemberKind::Cap => cap,
            MemberKind::Parameter | MemberKind::State | MemberKind::Tensor | MemberKind::Workspace => !cap,
            MemberKind::Pin
            | MemberKind::Colocation
            | MemberKind::Time
            | MemberKind::Balance
            | MemberKind::Use => false,
        });
        members.fold(0u64, |sum, member| sum.saturating_add(member.amount.unwrap_or(0)))
    };
    if found.proven { short.max(sum(false).saturating_sub(sum(true))) } else { short }
}
