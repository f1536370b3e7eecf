//! The plan of a network: as it is, or split where it fits nowhere whole.

use std::collections::BTreeMap;

use super::expected::profile;
use super::split::Parted;
use super::step::{Asked, Step};
use super::{Compiled, Network, Options, labels, phases, pipeline, replan, split, unrolled};
use crate::control::Control;
use crate::cost::{self, Lowered};
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::Sizes;
use crate::error::{Error, Infeasible, Result};
use crate::ir::{Graph, NodeId};
use crate::pass::Division;
use crate::place;
use crate::plan::{self, BufferKind, ExpectedModel, Meta, Plan};
use crate::strategy::{self, pipeline::Turn};
use crate::topology::Topology;
use crate::units::Nanos;

/// What a network is planned for.
pub(super) struct Problem<'a> {
    pub(super) topology: &'a Topology,
    pub(super) options: &'a Options,
    pub(super) divided: Option<&'a pipeline::Divided>,
    pub(super) control: &'a Control<'a>,
}

/// A network's plan, checked.
pub(super) struct Planned {
    objective: place::Objective,
    step: Step,
    plan: Plan,
    graph: CostGraph,
}

/// What the step of a network is sought with.
struct Sought {
    lowered: Lowered,
    place: place::Options,
    turns: Option<Vec<Turn>>,
    may_rewrite: bool,
}

impl Sought {
    fn asked<'a>(&'a self, problem: &Problem<'a>) -> Asked<'a> {
        let Problem { topology, options, .. } = *problem;
        Asked {
            graph: &self.lowered.graph,
            sizes: Sizes::Microbatch,
            topology,
            place: &self.place,
            pipeline: options.pipeline,
            unrolled: options.unrolled.zip(self.turns.as_deref()),
            may_rewrite: self.may_rewrite,
        }
    }
}

/// The step of a network that was found, not yet a plan.
struct Found {
    sought: Sought,
    meta: Meta,
    step: Step,
}

impl Found {
    /// What it comes to, by the objective.
    fn value(&self) -> u64 {
        strategy::value(self.sought.place.objective, &self.step.schedule.cost)
    }
}

/// A plan in which operations are split, and its network.
pub(super) struct SplitPlan {
    planned: Planned,
    network: Network,
}

impl SplitPlan {
    pub(super) fn value(&self) -> u64 {
        self.planned.value()
    }

    pub(super) fn compiled(self, topology: &Topology) -> Compiled {
        self.planned.compiled(self.network, topology)
    }
}

impl Planned {
    /// What it comes to, by the objective.
    pub(super) fn value(&self) -> u64 {
        strategy::value(self.objective, &self.step.schedule.cost)
    }

    pub(super) fn compiled(self, network: Network, topology: &Topology) -> Compiled {
        self.step.compiled(self.plan, Some(network), self.graph, topology)
    }

    /// Whether what a step makes takes much of the memory of a device that is nearly full.
    fn is_cramped(&self) -> bool {
        let mut resident: BTreeMap<&str, u64> = BTreeMap::new();
        for buffer in self.plan.buffers.iter().filter(|buffer| buffer.alias.is_none()) {
            if matches!(buffer.kind, BufferKind::Param | BufferKind::Const | BufferKind::State) {
                let all = resident.entry(&buffer.device).or_default();
                *all = all.saturating_add(buffer.bytes.get());
            }
        }
        self.plan.devices.iter().any(|device| {
            let made = device.peak.get().saturating_sub(resident.get(&*device.name).copied().unwrap_or(0));
            let memory = device.memory.get();
            device.arena.get() > memory / 4 * 3 && made > memory / 8
        })
    }
}

impl Problem<'_> {
    /// Plans a network as it is.
    pub(super) fn plan(&self, network: &Network) -> Result<Planned> {
        self.plan_as(network, As::Whole)
    }

    fn plan_as(&self, network: &Network, kind: As) -> Result<Planned> {
        self.planned(network, self.found(network, kind)?)
    }

    /// Finds the step of a network.
    fn found(&self, network: &Network, kind: As) -> Result<Found> {
        let Self { options, divided, control, .. } = *self;
        let (lowered, mut place) = self.lowered(network)?;
        let is_late = place.effort != place::Effort::Fast && control.stopped();
        if is_late || kind == As::Trial || kind != As::Whole && is_large(network) {
            place.effort = place::Effort::Fast;
        }
        let turns = options.unrolled.map(|_| unrolled::turns(network, &lowered, Turn::Sum));
        let mut meta = options.network_meta(network);
        // The sizes are those of a microbatch; the plan names the whole batch.
        if let Some(divided) = divided {
            meta.options.batch = u64::try_from(divided.batch).ok();
        }
        let may_rewrite = matches!(kind, As::Whole | As::RewrittenWay);
        let sought = Sought { lowered, place, turns, may_rewrite };
        let step = Step::find(&sought.asked(self), &meta, control)?;
        Ok(Found { sought, meta, step })
    }

    /// The plan of a network whose step is found.
    fn planned(&self, network: &Network, found: Found) -> Result<Planned> {
        let Self { topology, options, divided, .. } = *self;
        let Found { sought, meta, step } = found;
        let Sought { lowered, place, .. } = &sought;
        let labels = labels::labels(network, lowered, topology, &step.base());
        let mut plan = step.plan(&sought.asked(self), Some(&labels), meta, self.control)?;
        plan.profile = profile(options, topology, &labels);
        if let Some(bound) = &mut plan.bound
            && options.pipeline.is_none()
            && options.unrolled.is_none()
        {
            let reached = strategy::value(place.objective, &step.schedule.cost);
            bound.peaks = options.peaks(network, topology, reached);
        }
        if let Some(divided) = divided {
            divided.annotate(&mut plan, network, lowered, &step)?;
        }
        plan::check_model(&plan, &ExpectedModel::new(&lowered.graph, &labels, plan.model.hash.clone()))?;
        Ok(Planned { objective: place.objective, step, plan, graph: sought.lowered.graph })
    }

    /// The cost graph of a network, and what its placement must respect.
    fn lowered(&self, network: &Network) -> Result<(Lowered, place::Options)> {
        let Self { topology, options, .. } = *self;
        let lowered = cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?;
        let from = replan::of_network(network, &lowered, topology, options);
        Ok((lowered, place::Options { from, ..options.place.without_patterns() }))
    }

    /// Whether operations of a network may be split without having been asked for. A training step on one device is made
    /// smaller by microbatches.
    pub(super) fn may_split(&self, network: &Network) -> bool {
        may_split(network, self.options)
            && (!network.graph.has_updates() || self.topology.computing().count() > 1)
    }

    /// Why no way to split a network fits, where that is known at once.
    pub(super) fn beyond_splits(&self, network: &Network) -> Result<Option<String>> {
        split::beyond_all(&network.graph, self.topology, &self.options.place, self.options.split.exact)
    }

    /// The best plan found in which parts of operations are computed on several devices, so that a step takes less time,
    /// or the busiest device or link less of it.
    ///
    /// Errors: those of planning, but that a way fits nowhere.
    pub(super) fn faster(&self, network: &Network) -> Result<Option<SplitPlan>> {
        match self.options.place.objective {
            place::Objective::Transfer => Ok(None),
            _ => self.best_way(network),
        }
    }

    /// The best plan found of a network that fits nowhere whole. Splitting no more than must be is rarely the fastest, and
    /// what is expected to be the fastest may move more. Error: `why`, where no way to split it fits either.
    pub(super) fn smaller(
        &self,
        network: Network,
        faster: Option<SplitPlan>,
        why: Box<Infeasible>,
    ) -> Result<SplitPlan> {
        let place = &self.options.place;
        let faster = match faster {
            // Under any other objective they were looked for.
            None if place.objective == place::Objective::Transfer && place.effort != place::Effort::Fast => {
                self.best_way(&network)?
            }
            faster => faster,
        };
        let faster = match faster {
            Some(faster) if self.control.stopped() => return Ok(faster),
            faster => faster,
        };
        match (self.split(network, why), faster) {
            (Ok(split), Some(faster)) if faster.value() < split.value() => Ok(faster),
            (Err(Error::Infeasible(_)), Some(faster)) => Ok(faster),
            (split, _) => split,
        }
    }

    /// The best plan found of a network in parts of its batch that moves clearly fewer bytes than one that fits whole:
    /// parts need less memory at once, so that more stays together.
    ///
    /// Errors: those of planning, but that a way fits nowhere.
    pub(super) fn fewer_bytes(&self, network: &Network, planned: &Planned) -> Result<Option<SplitPlan>> {
        let Self { topology, options, .. } = *self;
        let asked = &options.place;
        let is_of_use = asked.objective == place::Objective::Transfer
            && asked.effort != place::Effort::Fast
            && asked.balance.is_none()
            && !self.replaces()
            && planned.value() > 0
            && planned.is_cramped();
        if !is_of_use {
            return Ok(None);
        }
        let places = phases(&network.graph, Vec::new(), false);
        let whole = Parted::whole(network.graph.clone(), places);
        let mut tried = TriedWays::new(options.place.effort);
        let ways = split::by_batch(whole, topology, asked, options.split.exact)?;
        self.try_ways(ways, (&network.assumed, &network.dims), &mut tried)?;
        // For less it is not worth more kernels.
        Ok(tried.best.filter(|split| split.value() < planned.value() / 16 * 15))
    }

    /// Whether the plan takes another's place: what moves then is whole parameters.
    fn replaces(&self) -> bool {
        self.options.from.is_some() || self.options.place.from.is_some()
    }

    /// The best plan found among the ways that are expected to take the least time.
    fn best_way(&self, network: &Network) -> Result<Option<SplitPlan>> {
        let Self { topology, control, .. } = *self;
        if self.replaces() || topology.computing().count() < 2 {
            return Ok(None);
        }
        for Tried { network, found, .. } in self.ways(network)? {
            let found = found.map_or_else(|| self.found(&network, As::Way), Ok);
            match found.and_then(|found| self.planned(&network, found)) {
                Ok(planned) => return Ok(Some(SplitPlan { planned, network })),
                Err(error) if is_no_plan(&error) && !control.stopped() => {}
                Err(error) if is_no_plan(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// A network split in the ways that are expected to take the least time: the best by trial first, and last those
    /// that do not fit so soon.
    fn ways(&self, network: &Network) -> Result<Vec<Tried>> {
        let Self { topology, options, control, .. } = *self;
        let Network { graph, grouping, assumed, dims, .. } = network;
        let places = phases(graph, Vec::new(), false);
        let whole = Whole { assumed: assumed.clone(), dims: dims.clone(), places };
        let most = most_ways(options.place.effort);
        let most_nodes = if graph.has_updates() { MOST_NODES } else { MOST_NODES_OF_WAYS };
        let mut tried: Vec<Tried> = Vec::new();
        let mut least: Option<Nanos> = None;
        for (time, divisions) in
            split::faster(graph, grouping, topology, &options.place, options.split.exact, control)?
        {
            // Estimates are not that far off.
            let is_slow = least.is_some_and(|least| time.get() / 5 * 4 > least.get());
            if is_slow || tried.len() == most || control.stopped() {
                break;
            }
            let Some(network) = whole.split_within(graph, &divisions, most_nodes)? else { continue };
            if most == 1 {
                tried.push(Tried { value: 0, network, found: None });
                break;
            }
            match self.found(&network, As::Trial) {
                Ok(found) => {
                    least = least.or(Some(time));
                    // A large one is not sought with more effort.
                    let value = found.value();
                    let is_kept = is_large(&network) && tried.iter().all(|other| value < other.value);
                    if is_kept {
                        tried.iter_mut().for_each(|other| other.found = None);
                    }
                    tried.push(Tried { value, network, found: is_kept.then_some(found) });
                }
                Err(error) if is_no_plan(&error) && is_large(&network) => {}
                Err(error) if is_no_plan(&error) => {
                    tried.push(Tried { value: u64::MAX, network, found: None });
                }
                Err(error) => return Err(error),
            }
        }
        tried.sort_by_key(|way| way.value);
        Ok(tried)
    }

    /// Whether every plan of a network as it is, with nothing split, comes to more than `value`.
    pub(super) fn is_always_worse(&self, network: &Network, value: u64) -> Result<bool> {
        let (lowered, place) = self.lowered(network)?;
        let limit = value.saturating_add(1);
        // What keeps a plan from being made at all is for planning to say.
        let proof = place::none_below(&lowered.graph, self.topology, &place, self.control, limit);
        Ok(matches!(proof, Ok(Some(_))))
    }

    /// Splits a network that fits nowhere as far as it must be, and plans that; of a training step, with recomputation and
    /// offloading too. Error: `why`, where no way to split it fits either.
    fn split(&self, network: Network, mut why: Box<Infeasible>) -> Result<SplitPlan> {
        let Network { graph, assumed, dims, .. } = network;
        let Self { topology, options, .. } = *self;
        let exact = options.split.exact;
        let places = phases(&graph, Vec::new(), options.pipeline.is_some());
        let whole = Parted::whole(graph, places);
        let mut tried = TriedWays::new(options.place.effort);
        // Parts of the batch make room; who asks for a balance that whole operations do not have is told so.
        if options.place.balance.is_none() {
            let ways = split::by_batch(whole.clone(), topology, &options.place, exact)?;
            self.try_ways(ways, (&assumed, &dims), &mut tried)?;
        }
        let ways = split::narrower(whole, topology, &options.place, exact)?;
        self.try_ways(ways, (&assumed, &dims), &mut tried)?;
        let TriedWays { best, closest, coarsest, .. } = tried;
        if let Some(best) = best {
            return Ok(best);
        }
        // What steps keep for their gradients may be made again, or offloaded, beside.
        for network in coarsest {
            if self.control.stopped() {
                break;
            }
            match self.plan_as(&network, As::RewrittenWay) {
                Ok(planned) => return Ok(SplitPlan { planned, network }),
                Err(error) if is_no_plan(&error) => {}
                Err(error) => return Err(error),
            }
        }
        // What was proven is so of plans that split nothing.
        why.proven = false;
        why.details.push("operations were split too, and no way that was tried makes enough room".to_owned());
        why.details.extend(closest.map(|conflict| format!("split most finely: {conflict}")));
        Err(Error::Infeasible(why))
    }

    /// Plans a way to split a network where none is known to fit: what lacks much with the least effort is not sought
    /// with more, nor what would take more than is `left` of the nodes times devices that are.
    fn first_way(&self, network: &Network, left: &mut usize) -> Result<Planned> {
        if is_large(network) || self.options.place.effort == place::Effort::Fast {
            return self.plan_as(network, As::Way);
        }
        match self.found(network, As::Trial) {
            Err(Error::Infeasible(trial)) => {
                let pairs = self.pairs(network);
                if trial.proven || self.is_far(&trial) || pairs > *left {
                    return Err(Error::Infeasible(trial));
                }
                *left -= pairs;
                self.plan_as(network, As::Way)
            }
            Ok(trial) => match self.plan_as(network, As::Way) {
                Err(error) if is_no_plan(&error) => self.planned(network, trial),
                planned => planned,
            },
            Err(error) if !is_no_plan(&error) => Err(error),
            Err(_) => self.plan_as(network, As::Way),
        }
    }

    /// Nodes of a network times devices.
    fn pairs(&self, network: &Network) -> usize {
        network.graph.node_count().saturating_mul(self.topology.computing().count())
    }

    /// Whether what came closest lacks more than half of the memory that all devices have.
    fn is_far(&self, closest: &Infeasible) -> bool {
        let lacking = closest.short.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes.get()));
        let memory = self.topology.computing().map(|id| self.topology.device(id).memory.get());
        lacking > memory.fold(0u64, u64::saturating_add) / 2
    }

    /// Plans ways to split a network, from the coarsest: as far as the first that fits, and a few that are finer. Where
    /// others fit already, only a few.
    fn try_ways(
        &self,
        mut ways: split::Splits,
        (assumed, dims): (&[String], &BTreeMap<String, i64>),
        tried: &mut TriedWays,
    ) -> Result<()> {
        let mut more = finer_ways(self.options.place.effort);
        let most = MOST_NODES.max(2 * ways.nodes());
        let each = NODES_TRIED_FOR_EACH * self.topology.computing().count();
        let mut left = nodes_tried(self.options.place.effort).max(each.saturating_mul(ways.nodes()));
        while !self.control.stopped()
            && let Some(parted) = ways.next(left)?
        {
            let nodes = parted.graph.node_count();
            if nodes > most.min(left) {
                continue;
            }
            left -= nodes;
            let network = parted.network(assumed.to_vec(), dims.clone())?;
            let is_quick = nodes <= QUICK && self.pairs(&network) <= QUICK_PAIRS;
            let is_small = nodes <= FEW && self.pairs(&network) <= FEW_PAIRS;
            let planned = match tried.best.is_some() {
                true => self.plan_as(&network, As::Way),
                false => self.first_way(&network, &mut tried.sought_left),
            };
            match planned {
                Ok(planned) => tried.take(planned, network),
                Err(error) if tried.best.is_some() && is_no_plan(&error) => {}
                Err(error) => tried.failed(error, network)?,
            }
            let counts = !is_small || self.options.place.effort == place::Effort::Fast;
            if tried.best.is_some() && counts && (more == 0 || !is_quick) {
                break;
            }
            more -= usize::from(tried.best.is_some() && counts);
        }
        Ok(())
    }
}

/// What came of ways to split a network.
struct TriedWays {
    /// Nodes times devices of ways that may still be sought with more than the least effort, though that finds none.
    sought_left: usize,
    best: Option<SplitPlan>,
    /// What the finest of those that do not fit lacked, in words.
    closest: Option<String>,
    /// Of a training step, those of the fewest nodes that do not fit.
    coarsest: Vec<Network>,
}

impl TriedWays {
    fn new(effort: place::Effort) -> Self {
        Self { sought_left: pairs_sought(effort), best: None, closest: None, coarsest: Vec::new() }
    }

    fn take(&mut self, planned: Planned, network: Network) {
        if self.best.as_ref().is_none_or(|best| planned.value() < best.value()) {
            self.best = Some(SplitPlan { planned, network });
        }
    }

    /// Error: it is none that says that a way does not fit.
    fn failed(&mut self, error: Error, network: Network) -> Result<()> {
        match error {
            // Parts that are laid on a device each are pinned there by nobody who would know.
            Error::Infeasible(split) if self.closest.is_some() && lays_parts(&network) => drop(split),
            Error::Infeasible(split) => self.closest = Some(split.conflict),
            // Other devices are asked for than those that it puts parts on.
            Error::Usage(split) => self.closest = self.closest.take().or(Some(split.message)),
            error => return Err(error),
        }
        if network.graph.has_updates() {
            self.coarsest.push(network);
            self.coarsest.sort_by_key(|network| network.graph.node_count());
            self.coarsest.truncate(REWRITTEN);
        }
        Ok(())
    }
}

/// Whether parts of a network have devices of their own.
fn lays_parts(network: &Network) -> bool {
    network.splits.iter().any(|split| !split.devices.is_empty())
}

/// Whether operations of a network may be split without having been asked for. Pipelines have a strategy of their own.
pub(super) fn may_split(network: &Network, options: &Options) -> bool {
    may_split_freely(options) && network.splits.is_empty()
}

/// As [`may_split`], of a network of which no rule splits anything.
pub(super) fn may_split_freely(options: &Options) -> bool {
    let is_one_step = options.unrolled.is_none() && options.pipeline.is_none();
    options.split.auto && options.split.planned.is_none() && is_one_step
}

/// Ways that are tried, by effort.
const fn most_ways(effort: place::Effort) -> usize {
    match effort {
        place::Effort::Fast => 1,
        place::Effort::Default => 4,
        place::Effort::Best => 8,
    }
}

/// Nodes of all ways that are tried because nothing fits whole, of a small network: one that fits in no dozen ways rarely does
/// in thousands of parts.
const fn nodes_tried(effort: place::Effort) -> usize {
    match effort {
        place::Effort::Fast => 1 << 13,
        place::Effort::Default => 1 << 14,
        place::Effort::Best => 1 << 16,
    }
}

/// Nodes times devices of all ways that are sought with this effort though the least finds none: more than a hundred of a
/// small network on eight devices, one or two on a hundred.
const fn pairs_sought(effort: place::Effort) -> usize {
    match effort {
        place::Effort::Fast => 0,
        place::Effort::Default => 1 << 17,
        place::Effort::Best => 1 << 21,
    }
}

/// Ways that split more finely than the first that fits and are compared with it, by effort: what is coarser leaves less
/// to place, and may move more.
const fn finer_ways(effort: place::Effort) -> usize {
    match effort {
        place::Effort::Fast => 0,
        place::Effort::Default => 3,
        place::Effort::Best => 16,
    }
}

/// Nodes of a split network up to which all such ways are compared but at the least effort.
const FEW: usize = 1 << 8;

/// The same times devices.
const FEW_PAIRS: usize = 1 << 13;

/// Nodes of a split network up to which such ways are compared: it is planned in a second or two.
const QUICK: usize = 1 << 12;

/// The same times devices.
const QUICK_PAIRS: usize = 1 << 15;

/// Whether a split network is planned with the least effort: where each part is on a device of its own, little is left to
/// decide but orders.
fn is_large(network: &Network) -> bool {
    network.graph.node_count() > 1 << 14
}

/// A network split one of several ways, and what it comes to with the least effort.
struct Tried {
    value: u64,
    network: Network,
    /// The step that was found, where it is not sought again.
    found: Option<Found>,
}

/// What a network that is planned is among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    /// The only one.
    Whole,
    /// One of several ways to split: where it does not fit, the next is tried and it is not rewritten.
    Way,
    /// The same with the least effort.
    Trial,
    /// One of those ways, when none fits as it is.
    RewrittenWay,
}

/// Ways to split a training step that are rewritten where none fits as it is: those of the fewest nodes.
const REWRITTEN: usize = 3;

/// Nodes of a split network that is tried, at most.
const MOST_NODES: usize = 1 << 18;
/// Nodes of all that are tried because nothing fits whole, for each node of the whole on each device.
const NODES_TRIED_FOR_EACH: usize = 64;
/// Nodes of one that is tried because it may be faster, and is no training step. Of 32 parts each result is cut in 32 for each of
/// them: 80 layers are half a million nodes.
const MOST_NODES_OF_WAYS: usize = 5 << 17;

/// Whether a way fits nowhere, or needs other devices than the caller's pins and number leave.
const fn is_no_plan(error: &Error) -> bool {
    matches!(error, Error::Infeasible(_) | Error::Usage(_))
}

/// What a network keeps when its graph is split.
pub(super) struct Whole {
    pub(super) assumed: Vec<String>,
    pub(super) dims: BTreeMap<String, i64>,
    /// By source of the graph that is not split: its place, as in [`pass::group_placed`].
    pub(super) places: Vec<u32>,
}

impl Whole {
    /// The network with some of its nodes divided; none where so much is to be cut and put together that more than `most`
    /// nodes come of it.
    fn split_within(
        &self,
        graph: &Graph,
        divisions: &BTreeMap<NodeId, Division>,
        most: usize,
    ) -> Result<Option<Network>> {
        let most = most.max(2 * graph.node_count());
        let divided = Parted::within(graph, &self.places, divisions, most)?;
        divided.map(|divided| divided.network(self.assumed.clone(), self.dims.clone())).transpose()
    }
}
