//! What would help where nothing fits: each repair was planned with, so that it does help.
//!
//! Attempts are counted, fewer for larger graphs, and made with the least effort; so what is said
//! to do does, and a better search may do with less. Sizes are sought by doubling and bisection; what
//! a successful attempt's arenas take is the next size to try.

use super::{Options, batch_dim, prepare};
use crate::control::Control;
use crate::cost;
use crate::costgraph::CostGraph;
use crate::error::{Error, Infeasible, MemberKind, Repair, Result};
use crate::load::Model;
use crate::place::{self, DeviceUse, Effort};
use crate::schedule::Schedule;
use crate::strategy;
use crate::topology::{DeviceId, Role, Topology};
use crate::units::Bytes;

/// Nodes times attempts.
const WORK: usize = 400_000;
/// Graphs up to this size are planned once more with more than the least effort where a size was
/// found.
const VERIFIED: usize = 2_000;
/// Pins, and patterns of colocation, that are tried to be left out.
const DROPPED: usize = 8;
/// Devices to which memory is added alone.
const GROWN: usize = 3;
/// Values of `--balance` that are tried.
const BALANCES: [&str; 12] =
    ["0.01", "0.02", "0.03", "0.05", "0.1", "0.15", "0.2", "0.3", "0.5", "1", "2", "5"];

/// Adds to what is known of why nothing fits the changes that help: memory, a smaller reserve,
/// pins and colocation to drop, another balance, count of devices or batch. `found` is what
/// planning `model` with these arguments ended with.
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
    let network;
    let (graph, base) = match model {
        Model::CostGraph { graph, .. } => (graph, options.place.clone()),
        Model::Graph(_) => {
            network = lowered(model, topology, options)?;
            // The network's own marks say the same.
            (&network, place::Options { pins: Vec::new(), colocate: Vec::new(), ..options.place.clone() })
        }
    };
    let left = (WORK / (graph.node_count() + 1)).clamp(6, 100);
    let mut trial = Trial { model, graph, topology, options, control, base, left };
    let mut repairs = trial.without_pins(found);
    repairs.extend(trial.without_colocation());
    repairs.extend(trial.balance());
    repairs.extend(trial.device_use());
    let memory = trial.memory(found);
    if let Some(Repair::Memory { device: None, more, .. }) = memory.first()
        && *more <= options.place.reserve
    {
        repairs.push(Repair::Reserve { reserve: options.place.reserve.saturating_sub(*more) });
    }
    repairs.extend(trial.batch());
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
}

impl Trial<'_, '_> {
    /// The schedule of what is asked for, where one is found.
    fn plan(&mut self, graph: &CostGraph, options: &place::Options) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        if self.control.stopped() {
            return None;
        }
        let quick = place::Options { effort: Effort::Fast, ..options.clone() };
        strategy::solve(graph, self.topology, &quick, self.control).ok().map(|(_, schedule)| schedule)
    }

    /// As [`Trial::plan`] on the graph at hand.
    fn attempt(&mut self, options: &place::Options) -> Option<Schedule> {
        let graph = self.graph;
        self.plan(graph, options)
    }

    /// True where the usual effort gives a plan too, where that is what the caller asked for.
    fn is_confirmed(&self, graph: &CostGraph, options: &place::Options) -> bool {
        if graph.node_count() > VERIFIED || options.effort == Effort::Fast {
            return true;
        }
        let usual = place::Options { effort: Effort::Default, ..options.clone() };
        strategy::solve(graph, self.topology, &usual, self.control).is_ok()
    }

    fn helps(&mut self, options: &place::Options) -> bool {
        self.attempt(options).is_some()
    }

    /// Plans with other marks on the source's nodes, or another batch.
    fn helps_otherwise(&mut self, options: &Options) -> bool {
        match self.model {
            Model::CostGraph { .. } => self.helps(&options.place),
            Model::Graph(_) => {
                let Ok(graph) = lowered(self.model, self.topology, options) else { return false };
                let place = self.base.clone();
                self.plan(&graph, &place).is_some()
            }
        }
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

    /// Memory for each device that computes, then for single ones: the least that does.
    fn memory(&mut self, found: &Infeasible) -> Vec<Repair> {
        let lacking = lacking(found).max(place::resident_bytes(self.graph).get() / 64);
        let devices: Vec<DeviceId> = self.topology.ids().collect();
        let compute = |id: &DeviceId| self.topology.device(*id).role == Role::Compute;
        let mut all: Vec<DeviceId> = devices.iter().copied().filter(compute).collect();
        if all.is_empty() {
            all.clone_from(&devices);
        }
        let start = (lacking / all.len().max(1) as u64).max(64);
        let mut repairs: Vec<Repair> = self.growth(&all, None, start).into_iter().collect();
        if all.len() > 1 {
            let mut singles: Vec<Repair> = self
                .concerned(found)
                .into_iter()
                .filter_map(|id| self.growth(&[id], Some(id), lacking.max(64)))
                .collect();
            singles.sort_by_key(|repair| match repair {
                Repair::Memory { more, .. } => *more,
                _ => Bytes::MAX,
            });
            repairs.extend(singles);
        }
        repairs
    }

    /// Devices of the conflict, those that lack most first; without a conflict, the first ones.
    fn concerned(&self, found: &Infeasible) -> Vec<DeviceId> {
        let mut short: Vec<&(String, Bytes)> = found.short.iter().collect();
        short.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let caps = found.members.iter().filter(|member| member.kind == MemberKind::Cap);
        let names = short.into_iter().map(|(name, _)| name).chain(caps.map(|member| &member.name));
        let mut ids: Vec<DeviceId> = Vec::new();
        let mut alike = Vec::new();
        for id in names.filter_map(|name| self.topology.find(name)).chain(self.topology.ids()) {
            let device = self.topology.device(id);
            // Without pins, devices of one kind and size are as good as one another.
            let sort = (&device.kind, device.memory);
            let again = self.options.place.pins.is_empty() && alike.contains(&sort);
            if !ids.contains(&id) && !again && ids.len() < GROWN {
                ids.push(id);
                alike.push(sort);
            }
        }
        ids
    }

    /// The least memory added to each of `devices` that does, to about one part in sixty-four of
    /// it; none where no amount does.
    fn growth(&mut self, devices: &[DeviceId], single: Option<DeviceId>, start: u64) -> Option<Repair> {
        let caps: Vec<Bytes> = match &self.base.caps {
            Some(caps) => caps.clone(),
            None => self.topology.devices.iter().map(|device| device.memory).collect(),
        };
        let base = self.base.clone();
        let grown = |more: u64| {
            let mut caps = caps.clone();
            devices.iter().for_each(|id| caps[id.index()] += Bytes(more));
            place::Options { caps: Some(caps), ..base.clone() }
        };
        // What the arenas of a plan take beyond the caps, reserve included.
        let excess = |schedule: &Schedule| {
            let over = |id: &DeviceId| {
                let arena = schedule.devices[id.index()].arena + base.reserve;
                arena.saturating_sub(caps[id.index()]).get()
            };
            devices.iter().map(over).max().unwrap_or(0)
        };
        let (mut fails, mut more) = (0u64, start);
        let mut works = loop {
            if let Some(schedule) = self.attempt(&grown(more)) {
                break (more, excess(&schedule));
            }
            fails = more;
            more = more.checked_mul(2).filter(|&more| more < 1 << 60 && self.left > 0)?;
        };
        while works.0 - fails > (works.0 / 64).max(64) {
            let middle = fails + (works.0 - fails) / 2;
            let next = if works.1 > fails && works.1 < works.0 { works.1 } else { middle };
            let before = self.left;
            match self.attempt(&grown(next)) {
                Some(schedule) => works = (next, excess(&schedule)),
                None if before == 0 => break,
                None => fails = next,
            }
        }
        if !self.is_confirmed(self.graph, &grown(works.0)) {
            return None;
        }
        let memory = devices.iter().map(|id| caps[id.index()]).max().unwrap_or_default() + Bytes(works.0);
        let device = single.map(|id| self.topology.device(id).name.clone());
        Some(Repair::Memory { device, more: Bytes(works.0), memory, fails: Bytes(fails) })
    }

    /// The largest batch that does, where the model has a batch dimension.
    fn batch(&mut self) -> Option<Repair> {
        let Model::Graph(graph) = self.model else { return None };
        let name = batch_dim(graph)?;
        let asked = self.options.batch.or_else(|| self.options.bind.get(&name).copied())?;
        let of = |batch: i64| Options { batch: Some(batch), ..self.options.clone() };
        let (mut works, mut fails) = (1, asked);
        if asked < 2 || !self.helps_otherwise(&of(1)) {
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
        Some(Repair::Batch { batch: works, fails })
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

/// The cost graph of a network under these options.
fn lowered(model: &Model, topology: &Topology, options: &Options) -> Result<CostGraph> {
    let Model::Graph(graph) = model else {
        return Err(Error::Internal("a cost graph is not lowered".into()));
    };
    let network = prepare(graph.clone(), options)?;
    Ok(cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?.graph)
}
