//! The plan of a network: as it is, or split where it fits nowhere whole.

use std::collections::BTreeMap;

use super::expected::profile;
use super::step::{Asked, Step};
use super::{
    Compiled, Network, Options, grouped, labels, phases, pipeline, replan, split, unrolled, verified,
};
use crate::control::Control;
use crate::cost;
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::Sizes;
use crate::error::{Error, Infeasible, Result};
use crate::ir::{Graph, NodeId};
use crate::pass::{self, Divided, Division};
use crate::place;
use crate::plan::{self, ExpectedModel, Plan};
use crate::strategy::pipeline::Turn;
use crate::topology::Topology;

/// What a network is planned for.
pub(super) struct Problem<'a> {
    pub(super) topology: &'a Topology,
    pub(super) options: &'a Options,
    pub(super) divided: Option<&'a pipeline::Divided>,
    pub(super) control: &'a Control<'a>,
}

/// A network's plan, checked.
pub(super) struct Planned {
    step: Step,
    plan: Plan,
    graph: CostGraph,
}

/// A plan in which operations are split because that is faster, and its network.
pub(super) struct Faster {
    planned: Planned,
    network: Network,
}

impl Faster {
    pub(super) fn compiled(self, topology: &Topology) -> Compiled {
        self.planned.compiled(self.network, topology)
    }
}

impl Planned {
    pub(super) fn compiled(self, network: Network, topology: &Topology) -> Compiled {
        self.step.compiled(self.plan, Some(network), self.graph, topology)
    }
}

impl Problem<'_> {
    /// Plans a network as it is.
    pub(super) fn plan(&self, network: &Network) -> Result<Planned> {
        self.plan_as(network, false)
    }

    /// Plans a network. One of many ways (`is_way`) is not rewritten where it does not fit: the next is
    /// tried in its place.
    fn plan_as(&self, network: &Network, is_way: bool) -> Result<Planned> {
        let Self { topology, options, divided, control } = *self;
        let lowered = cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?;
        let from = replan::of_network(network, &lowered, topology, options);
        let place = place::Options { from, ..options.place.without_patterns() };
        let (graph, sizes) = (&lowered.graph, Sizes::Microbatch);
        let turns = options.unrolled.map(|_| unrolled::turns(network, &lowered, Turn::Sum));
        let unrolled = options.unrolled.zip(turns.as_deref());
        let asked = Asked {
            graph,
            sizes,
            topology,
            place: &place,
            pipeline: options.pipeline,
            unrolled,
            may_rewrite: !is_way,
        };
        let mut meta = options.network_meta(network);
        // The sizes are those of a microbatch; the plan names the whole batch.
        if let Some(divided) = divided {
            meta.options.batch = u64::try_from(divided.batch).ok();
        }
        let step = Step::find(&asked, &meta, control)?;
        let labels = labels::labels(network, &lowered, topology, &step.base());
        let mut plan = step.plan(&asked, Some(&labels), meta, control)?;
        plan.profile = profile(options, topology, &labels);
        if let Some(divided) = divided {
            divided.annotate(&mut plan, network, &lowered, &step)?;
        }
        plan::check_model(&plan, &ExpectedModel::new(&lowered.graph, &labels, plan.model.hash.clone()))?;
        Ok(Planned { step, plan, graph: lowered.graph })
    }

    /// Whether a network that fits nowhere may be split. Steps that update parameters, and pipelines, have
    /// strategies of their own; a plan that replaces another moves whole parameters.
    pub(super) fn may_split(&self, network: &Network) -> bool {
        let is_step = network.graph.params().iter().any(|param| param.update.is_some());
        self.options.split.auto
            && self.options.split.planned.is_none()
            && network.splits.is_empty()
            && self.options.unrolled.is_none()
            && self.options.pipeline.is_none()
            && self.options.from.is_none()
            && self.options.place.from.is_none()
            && !is_step
    }

    /// A faster plan, where parts of operations on several devices make a step take less time than `whole`, the
    /// plan in which nothing is split, where there is one.
    ///
    /// Errors: those of planning, but that a way fits nowhere.
    pub(super) fn faster(&self, network: &Network, whole: Option<&Planned>) -> Result<Option<Faster>> {
        let Self { topology, options, control, .. } = *self;
        if options.place.objective != place::Objective::Latency || topology.computing().count() < 2 {
            return Ok(None);
        }
        let Network { graph, grouping, assumed, dims, .. } = network;
        let exact = options.split.exact;
        let ways = split::faster(graph, grouping, topology, &options.place, exact, control)?;
        let places = phases(graph, Vec::new(), false);
        let as_whole = Whole { assumed: assumed.clone(), dims: dims.clone(), places };
        let mut least = whole.map(|planned| planned.plan.cost.latency_ns);
        let mut found = None;
        for divisions in ways {
            if control.stopped() {
                break;
            }
            let network = as_whole.split(graph, &divisions)?;
            let planned = match self.plan_as(&network, true) {
                Ok(planned) => planned,
                // It fits nowhere, or needs other devices than the caller's pins and number leave.
                Err(Error::Infeasible(_) | Error::Usage(_)) => continue,
                Err(error) => return Err(error),
            };
            let latency = planned.plan.cost.latency_ns;
            if least.is_none_or(|least| latency < least) {
                least = Some(latency);
                found = Some(Faster { planned, network });
            }
        }
        Ok(found)
    }

    /// Splits a network that fits nowhere as far as it must be, and plans that. Error: `why`, where no way
    /// to split it fits either.
    pub(super) fn split(&self, network: Network, mut why: Box<Infeasible>) -> Result<Compiled> {
        let Network { graph, assumed, dims, .. } = network;
        if let Some(line) =
            split::beyond_all(&graph, self.topology, &self.options.place, self.options.split.exact)?
        {
            why.details.push(line);
            return Err(Error::Infeasible(why));
        }
        let places = phases(&graph, Vec::new(), self.options.pipeline.is_some());
        let whole = Whole { assumed, dims, places };
        let exact = self.options.split.exact;
        let mut ways = split::narrower(&graph, self.topology, &self.options.place, exact);
        let mut closest = None;
        while !self.control.stopped()
            && let Some(divisions) = ways.next()?
        {
            let network = whole.split(&graph, &divisions)?;
            match self.plan_as(&network, true) {
                Ok(planned) => return Ok(planned.compiled(network, self.topology)),
                Err(Error::Infeasible(split)) => closest = Some(split.conflict),
                Err(error) => return Err(error),
            }
        }
        // What was proven is so of plans that split nothing.
        why.proven = false;
        why.details.push("operations were split too, and no way that was tried makes enough room".to_owned());
        why.details.extend(closest.map(|conflict| format!("split most finely: {conflict}")));
        Err(Error::Infeasible(why))
    }
}

/// What a network keeps when its graph is split.
pub(super) struct Whole {
    pub(super) assumed: Vec<String>,
    pub(super) dims: BTreeMap<String, i64>,
    /// By source of the graph that is not split: its place, as in [`pass::group_placed`].
    pub(super) places: Vec<u32>,
}

impl Whole {
    /// The network with some of its nodes divided.
    pub(super) fn split(&self, graph: &Graph, divisions: &BTreeMap<NodeId, Division>) -> Result<Network> {
        let splits = split::record(graph, divisions);
        let Divided { graph: divided, places, parts, slices } = pass::split(graph, divisions, &self.places)?;
        verified(&divided)?;
        let added = divided.sources().len() - graph.sources().len();
        let grouping = grouped(&divided, &places)?;
        let network = Network::whole(divided, grouping, self.assumed.clone(), self.dims.clone());
        let parts = parts.into_iter().map(|part| part.source).collect();
        Ok(Network { splits, added, parts, slices, ..network })
    }
}
