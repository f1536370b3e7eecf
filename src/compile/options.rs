//! What a caller asks of a plan, and how a plan records it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::split::SplitOptions;
use super::{Network, score};
use crate::cost::{self, Profile};
use crate::error::{Error, Result};
use crate::ir::{DType, Layout, Node, Op, SourceRole};
use crate::pass::{Params, Precision, WeightsAs};
use crate::place;
use crate::plan::{self, Foreign, Plan};
use crate::strategy;
use crate::topology::Topology;

/// What the caller asks of a plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Values of named dimensions that were applied when the model was read, recorded in the plan.
    pub dims: BTreeMap<String, i64>,
    /// Those of them that were open when the model was read, and have these values since.
    pub opened: BTreeSet<String>,
    /// Values of named dimensions that are still open.
    pub bind: BTreeMap<String, i64>,
    /// Size of the batch dimension.
    pub batch: Option<i64>,
    /// What a placement must respect. Pins and colocation patterns match the source's names.
    pub place: place::Options,
    /// The gap at which the search ends.
    pub until: Option<strategy::Until>,
    /// The placement that the plan replaces, by the model's names. Its stability is that of
    /// [`place::Options::from`], or the default.
    pub from: Option<Foreign>,
    /// Where the model was read from, recorded in the plan.
    pub model_path: Option<String>,
    /// Hash of the model's bytes, recorded in the plan.
    pub model_hash: String,
    /// A step in several microbatches, where that is asked for.
    pub pipeline: Option<strategy::pipeline::Options>,
    /// The order of a step that is unrolled: its graph holds all microbatches, as its sources say
    /// ([`Source::microbatch`](crate::ir::Source::microbatch)), pinned to the devices of their stages.
    pub unrolled: Option<strategy::pipeline::Unrolled>,
    /// By source, the device of a placement that was made elsewhere: nodes that it holds apart
    /// share no kernel.
    pub places: Option<BTreeMap<String, String>>,
    /// What is split.
    pub split: SplitOptions,
    /// What products are computed in, and what is between them, where that is not f32.
    pub precision: Option<Precision>,
    /// How matrices of weights are held, where that is not as they are supplied.
    pub weights_as: Option<WeightsAs>,
    /// Whether convolutions of halves may have their channels last inside, as GPUs have them.
    pub channels_last: bool,
    /// How the step that is planned trains its network, recorded in the plan.
    pub training: Option<plan::Training>,
    /// Measured times, which take the place of the roofline's. The topology is to be the one that
    /// [`Profile::applied`] gives, so that copies are timed as measured too.
    pub profile: Option<Arc<Profile>>,
}

/// Of a plan's options: the layout inside.
const CHANNELS_LAST: &str = "channels_last";

impl Options {
    /// The same for these devices: GPUs have the channels of convolutions last. What a plan has split lies as the plan
    /// says, on whatever devices.
    pub(crate) fn on(mut self, topology: &Topology) -> Self {
        self.channels_last |= topology.has_gpus() && self.split.planned.is_none();
        self
    }

    /// The same, with a network divided as a plan has it.
    pub(super) fn divided_as(&self, plan: &Foreign) -> Self {
        let planned = Some(plan.splits().to_vec());
        Self {
            split: SplitOptions { planned, ..self.split.clone() },
            channels_last: plan.layout() == Some(CHANNELS_LAST),
            ..self.clone()
        }
    }

    /// The options under which operations are split as in the plan that is replaced; none where that splits nothing, or
    /// something else is asked for.
    pub(super) fn divided_as_before(&self) -> Option<Self> {
        let before = self.from.as_ref().filter(|before| !before.splits().is_empty())?;
        let split = &self.split;
        let is_free =
            split.auto && split.planned.is_none() && split.rules.is_empty() && split.keep_whole.is_empty();
        (is_free && !split.exact).then(|| self.divided_as(before))
    }

    /// Whether convolutions may change their layout: rules for splits count the axes of the source's own.
    pub(super) fn relays(&self) -> bool {
        self.channels_last && self.split.rules.is_empty()
    }

    /// The options under which a plan's model was lowered, to lower it again.
    ///
    /// Error: a pin or the precision of the plan is malformed.
    pub fn of_plan(plan: &Plan) -> Result<Self> {
        let pin = |pin: &String| match pin.rsplit_once('=') {
            Some((pattern, device)) => Ok((pattern.to_owned(), device.to_owned())),
            None => Err(Error::format("options.pins", format!("expected PATTERN=DEVICE, found {pin}"))),
        };
        let precision = match plan.options.precision.as_deref().map(str::parse::<DType>) {
            None => None,
            Some(Ok(half)) if half.is_half() => {
                let params = if plan.options.training.is_some() { Params::Kept } else { Params::Rounded };
                Some(Precision { half, params })
            }
            Some(_) => return Err(Error::format("options.precision", "expected bf16 or f16")),
        };
        let weights_as = match plan.options.weights_as.as_deref().map(WeightsAs::from_name) {
            None => None,
            Some(Some(asked)) => Some(asked),
            Some(None) => return Err(Error::format("options.weights_as", "expected f32, q8_0 or q4_0")),
        };
        let channels_last = match plan.options.layout.as_deref() {
            None => false,
            Some(CHANNELS_LAST) => true,
            Some(_) => return Err(Error::format("options.layout", "expected channels_last")),
        };
        let all = plan.options.dims.iter().cloned();
        let (bind, dims) = all.partition(|(name, _)| plan.options.open_dims.contains(name));
        Ok(Self {
            precision,
            weights_as,
            channels_last,
            dims,
            bind,
            place: place::Options {
                pins: plan.options.pins.iter().map(pin).collect::<Result<_>>()?,
                colocate: plan.options.colocate.clone(),
                ..place::Options::default()
            },
            model_path: plan.model.path.clone(),
            model_hash: plan.model.hash.clone(),
            unrolled: unrolled_of(plan),
            places: score::places_of(plan),
            split: SplitOptions { planned: Some(plan.options.splits.clone()), ..SplitOptions::default() },
            profile: plan.profile.clone().map(Arc::new),
            ..Self::default()
        })
    }

    pub(super) fn network_meta(&self, network: &Network) -> plan::Meta {
        let sources = network.graph.sources().iter();
        let nodes = sources.filter(|source| source.role == SourceRole::Node).count() - network.added;
        let mut meta = self.meta(&network.graph.name, nodes, &network.dims);
        if network.graph.rules().open_dims_matter {
            let is_open = |name: &&String| !self.dims.contains_key(*name) || self.opened.contains(*name);
            let open = network.dims.keys().filter(is_open);
            meta.options.open_dims = open.cloned().collect();
        }
        meta.options.inputs = network.graph.rules().optional_inputs();
        let convolves =
            |node: &Node| matches!(&node.op, Op::Conv(conv) if conv.layout == Layout::ChannelsLast);
        let graph = &network.graph;
        if self.relays() && graph.node_ids().any(|id| convolves(graph.node(id))) {
            meta.options.layout = Some(CHANNELS_LAST.to_owned());
        }
        meta.options.splits.clone_from(&network.splits);
        meta
    }

    /// What no plan of a network is below, whatever it splits, beside what a plan comes to; none where times are measured,
    /// or one device computes all.
    pub(super) fn peaks(&self, network: &Network, topology: &Topology, reached: u64) -> Option<plan::Peaks> {
        let is_timed = self.place.objective != place::Objective::Transfer;
        if !is_timed || self.profile.is_some() || topology.computing().count() < 2 {
            return None;
        }
        let value = cost::least_time_on(topology, network.operations).get();
        // Times are rounded down.
        (1..=reached).contains(&value).then(|| plan::Peaks::new(value, reached))
    }

    pub(super) fn meta(&self, name: &str, nodes: usize, dims: &BTreeMap<String, i64>) -> plan::Meta {
        let mut options = plan::PlanOptions::from(&self.place);
        options.dims = dims.iter().map(|(name, value)| (name.clone(), *value)).collect();
        if let Some(asked) = self.pipeline {
            options.microbatches = Some(asked.microbatches);
            options.schedule = Some(asked.order.name().to_owned());
        }
        if let Some(strategy::pipeline::Unrolled { asked, replicas }) = self.unrolled {
            options.schedule = Some(asked.order.name().to_owned());
            options.other.push(("microbatches".to_owned(), asked.microbatches.to_string()));
            if replicas > 1 {
                options.other.push(("replicas".to_owned(), replicas.to_string()));
            }
        }
        options.training = self.training.clone();
        options.weights_as = self.weights_as.map(|asked| asked.name().to_owned());
        options.precision = self.precision.map(|precision| precision.half.to_string());
        options.batch = self.batch.and_then(|batch| u64::try_from(batch).ok());
        let model = plan::PlanModel {
            name: name.to_owned(),
            hash: self.model_hash.clone(),
            nodes: nodes as u64,
            path: self.model_path.clone(),
        };
        plan::Meta { model, options, reserve: self.place.reserve, ..plan::Meta::default() }
    }
}

/// That a plan's step holds the microbatches of pipelines side by side; in which order is told by its steps.
fn unrolled_of(plan: &Plan) -> Option<strategy::pipeline::Unrolled> {
    let training = plan.options.training.as_ref()?;
    let replicas = training.replicas.as_ref().filter(|_| training.is_pipeline())?;
    let count = u32::try_from(replicas.devices.len()).ok()?.max(1);
    let microbatches = u32::try_from(replicas.shards).ok()? / count;
    let order = strategy::pipeline::Order::Auto;
    let asked = strategy::pipeline::Options { microbatches, order };
    Some(strategy::pipeline::Unrolled { asked, replicas: count })
}
