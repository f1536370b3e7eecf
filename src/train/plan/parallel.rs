//! Which way of spreading a step over devices takes the least time: each is planned, and all are reported.

use std::fmt;
use std::str::FromStr;

use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::place::{DeviceUse, Effort, Objective};
use crate::plan::{BufferKind, Plan};
use crate::strategy::pipeline;
use crate::topology::Topology;
use crate::train::options::Options;
use crate::train::plan::planned;
use crate::train::spread::exchange::{Replicas, Sync, Zero};
use crate::train::step::accumulate::part_of;
use crate::units::{Bytes, Nanos};

/// A way of spreading a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The whole step on one device.
    Single,
    /// The network's layers over the devices, as the planner lays them.
    Model,
    /// Operations of the step over the devices, whatever can be divided of them.
    Split,
    /// Replicas of the network, each on devices of its own.
    Data(Replicas),
    /// The network's layers as stages that work on different microbatches at once.
    Pipeline(pipeline::Options),
    /// Replicas of the network, each of them such a pipeline.
    Pipelines(Replicas, pipeline::Options),
}

impl Strategy {
    /// Whether the batch is taken in parts.
    const fn is_in_parts(&self) -> bool {
        match self {
            Self::Single | Self::Model | Self::Split => false,
            Self::Data(_) | Self::Pipeline(_) | Self::Pipelines(..) => true,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => write!(f, "one device"),
            Self::Model => write!(f, "model"),
            Self::Split => write!(f, "split"),
            Self::Pipeline(asked) => write!(f, "pipeline x{}", asked.microbatches),
            Self::Pipelines(Replicas { count, each, .. }, asked) => {
                write!(f, "hybrid {count}x{each} x{}", asked.microbatches)
            }
            Self::Data(Replicas { count, each, zero, sync, .. }) => {
                let what = match (sync, zero) {
                    (Sync::AllReduce, Zero::None) => "data".to_owned(),
                    (Sync::AllReduce, zero) => format!("zero{zero}"),
                    (sync, _) => sync.to_string(),
                };
                match each {
                    1 => write!(f, "{what} x{count}"),
                    each => write!(f, "hybrid {count}x{each}"),
                }
            }
        }
    }
}

/// What is asked for: the best of all ways, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// Whatever is predicted to take the least time and fits.
    Auto,
    /// The network's layers over the devices.
    Model,
    /// Operations divided between the devices.
    Split,
    /// A replica on each device, with what is kept once.
    Data(Zero),
    /// A replica on each device, parameters on one each.
    Server,
    /// So many devices for each replica, which is a pipeline where one is asked for.
    Hybrid(usize),
    /// The layers as stages of a pipeline.
    Pipeline,
}

impl FromStr for Parallel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            Error::usage(format!("--parallel {text}"), "there is no such way")
                .with_help("auto, model, split, data, zero1, zero2, zero3, ps, hybrid:K, pipeline")
        };
        Ok(match text {
            "auto" => Self::Auto,
            "model" => Self::Model,
            "split" => Self::Split,
            "data" => Self::Data(Zero::None),
            "zero1" => Self::Data(Zero::Optimizer),
            "zero2" => Self::Data(Zero::Gradients),
            "zero3" => Self::Data(Zero::Parameters),
            "ps" => Self::Server,
            "pipeline" => Self::Pipeline,
            _ => {
                let each = text.strip_prefix("hybrid:").and_then(|each| each.parse().ok());
                Self::Hybrid(each.filter(|&each| each > 0).ok_or_else(unknown)?)
            }
        })
    }
}

/// What a way costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Predicted time of a step.
    pub step: Nanos,
    /// Load of the busiest device or link.
    pub load: Nanos,
    /// Bytes moved in a step.
    pub moved: Bytes,
    /// Parameters and optimizer state on the device that keeps most of them.
    pub state: Bytes,
    /// The largest arena.
    pub arena: Bytes,
    /// Devices that compute something.
    pub devices: usize,
}

impl Estimate {
    /// That of a plan.
    pub fn of(plan: &Plan) -> Self {
        let state = |device: &str| -> Bytes {
            let kept = |kind| matches!(kind, BufferKind::State | BufferKind::Param);
            let own = plan.buffers.iter().filter(|buffer| buffer.device == device && kept(buffer.kind));
            own.map(|buffer| buffer.bytes).sum()
        };
        let mut used: Vec<&str> = plan.placement.iter().map(|(_, device)| device.as_str()).collect();
        used.sort_unstable();
        used.dedup();
        Self {
            step: plan.cost.latency_ns,
            load: plan.cost.max_load_ns,
            moved: plan.cost.step_bytes,
            state: plan.devices.iter().map(|device| state(&device.name)).max().unwrap_or_default(),
            arena: plan.devices.iter().map(|device| device.arena).max().unwrap_or_default(),
            devices: used.len(),
        }
    }
}

impl Estimate {
    /// That of as many parts of a batch, one after the other.
    fn times(self, parts: u32) -> Self {
        let all = |number: u64| number.saturating_mul(parts.into());
        Self {
            step: Nanos(all(self.step.get())),
            load: Nanos(all(self.load.get())),
            moved: Bytes(all(self.moved.get())),
            ..self
        }
    }
}

/// A way that was planned for: what it costs, or why there is no plan.
#[derive(Debug)]
pub struct Candidate {
    /// The way.
    pub strategy: Strategy,
    /// What it costs.
    pub estimate: Result<Estimate>,
}

/// Plans the ways that are asked for at little effort, and for the shortest step: of all of them one device; the layers
/// over all devices; operations divided between them; replicas on all, a half, a quarter of them, ... with all state and
/// with shards of it, by parameter servers; replicas over several devices each, as the planner lays them and as pipelines;
/// stages of one pipeline. Those that take the batch in parts are left out where its samples are computed together. Once one
/// is planned, a search that is cut short plans no further ones. O(log devices) plans.
///
/// Errors: microbatches that the batch does not divide into, which no way would take. A way without a plan is reported.
pub fn candidates(
    graph: &Graph,
    topology: &Topology,
    options: &Options,
    way: Parallel,
    control: &Control<'_>,
) -> Result<Vec<Candidate>> {
    let microbatches = options.recipe.updates.microbatches;
    if let Some(batch) = options.compile.batch.filter(|_| way == Parallel::Auto && microbatches > 1) {
        part_of(batch, microbatches)?;
    }
    let plan = |strategy| {
        let mut asked = spread(options, strategy);
        asked.compile.place.effort = Effort::Fast;
        asked.compile.place.objective = Objective::Latency;
        let parts = asked.recipe.updates.microbatches;
        let planned =
            asked.of_a_part(graph).and_then(|part| planned(graph.clone(), topology, &part, control));
        Candidate {
            strategy,
            estimate: planned.map(|planned| Estimate::of(planned.plan()).times(parts.max(1))),
        }
    };
    let mut ways = way.strategies(topology, options);
    if way == Parallel::Auto && compile::not_apart(graph, &options.compile.bind)?.is_some() {
        ways.retain(|way| !way.is_in_parts());
    }
    let mut found: Vec<Candidate> = Vec::with_capacity(ways.len());
    for strategy in ways {
        // What is cut short while it is planned may look worse than it is.
        let is_ended = found.iter().any(|one| one.estimate.is_ok()) && control.stopped();
        found.push(match is_ended {
            false => plan(strategy),
            true => {
                let ended = Error::usage("", "the search was cut short before it was planned");
                Candidate { strategy, estimate: Err(ended) }
            }
        });
    }
    Ok(found)
}

/// The candidate that takes the least time, of equals the first. None where nothing fits.
pub fn best(candidates: &[Candidate]) -> Option<Strategy> {
    let fitting = candidates.iter().filter_map(|one| Some((one.strategy, one.estimate.as_ref().ok()?)));
    fitting.min_by_key(|(_, estimate)| (estimate.step, estimate.moved)).map(|(strategy, _)| strategy)
}

/// Microbatches of a pipeline that is not told how many: two for each device, one, a half.
const DEPTHS: usize = 3;

/// The pipelines that are asked for: of as many microbatches as are said, else of several numbers, the most first, such as
/// the batch of each of `replicas` divides into where there are any. None where there is nothing to divide.
fn pipelines(replicas: usize, devices: usize, options: &Options) -> Vec<pipeline::Options> {
    if let Some(asked) = options.pipeline {
        return vec![asked];
    }
    let of = |microbatches| pipeline::Options { microbatches, order: pipeline::Order::Auto };
    if options.recipe.updates.microbatches > 1 {
        return vec![of(options.recipe.updates.microbatches)];
    }
    let batch = options.compile.batch.unwrap_or(1) / replicas.max(1) as i64;
    let most = i64::try_from(devices.saturating_mul(2)).unwrap_or(i64::MAX).min(batch);
    let counts = std::iter::successors(Some(most), |count| Some(count / 2)).take_while(|&count| count > 1);
    let even = |count: i64| (2..=count).rev().find(|part| batch % part == 0).unwrap_or(count);
    let mut counts: Vec<i64> = counts.take(DEPTHS).map(even).collect();
    counts.dedup();
    counts.into_iter().filter_map(|count| u32::try_from(count).ok()).map(of).collect()
}

/// The ways that there are on so many devices.
fn strategies(devices: usize, options: &Options) -> Vec<Strategy> {
    let mut all = vec![Strategy::Single];
    if devices < 2 {
        return all;
    }
    all.push(Strategy::Model);
    let split = &options.compile.split;
    all.extend((split.auto || !split.rules.is_empty()).then_some(Strategy::Split));
    let counts = std::iter::successors(Some(devices), |count| Some(count / 2)).take_while(|&count| count > 1);
    all.extend(counts.map(|count| Strategy::Data(Replicas::new(count))));
    for zero in [Zero::Optimizer, Zero::Gradients, Zero::Parameters] {
        all.push(Strategy::Data(Replicas { zero, ..Replicas::new(devices) }));
    }
    all.push(Strategy::Data(Replicas { sync: Sync::Server, ..Replicas::new(devices) }));
    let each = std::iter::successors(Some(2), |each| Some(each * 2)).take_while(|each| each * 2 <= devices);
    for each in each {
        let replicas = Replicas { each, ..Replicas::new(devices / each) };
        let several = pipelines(replicas.count, each, options);
        all.push(Strategy::Data(replicas));
        all.extend(several.into_iter().map(|asked| Strategy::Pipelines(replicas, asked)));
    }
    all.extend(pipelines(1, devices, options).into_iter().map(Strategy::Pipeline));
    all
}

impl Parallel {
    /// Whether there are replicas, or may be: what exchanges gradients.
    pub fn may_have_replicas(self) -> bool {
        !matches!(self, Self::Model | Self::Split | Self::Pipeline)
    }

    /// The ways that are asked for on these devices: one as a rule; several where it is not said what they take, or to
    /// compare them all.
    pub fn strategies(self, topology: &Topology, options: &Options) -> Vec<Strategy> {
        let count = topology.computing().count();
        match self {
            Self::Auto => strategies(count, options),
            Self::Model => vec![Strategy::Model],
            Self::Split => vec![Strategy::Split],
            Self::Pipeline => {
                let several: Vec<Strategy> =
                    pipelines(1, count, options).into_iter().map(Strategy::Pipeline).collect();
                let whole = pipeline::Options { microbatches: 1, order: pipeline::Order::Auto };
                if several.is_empty() { vec![Strategy::Pipeline(whole)] } else { several }
            }
            Self::Data(zero) => vec![Strategy::Data(Replicas { zero, ..Replicas::new(count) })],
            Self::Server => vec![Strategy::Data(Replicas { sync: Sync::Server, ..Replicas::new(count) })],
            Self::Hybrid(each) => {
                let count = (count / each.max(1)).max(1);
                let replicas = Replicas { each, ..Replicas::new(count) };
                vec![match options.pipeline {
                    Some(asked) => Strategy::Pipelines(replicas, asked),
                    None => Strategy::Data(replicas),
                }]
            }
        }
    }
}

/// The options with a way in them; what they say of replicas beside their number stays.
pub fn spread(options: &Options, strategy: Strategy) -> Options {
    let split = !options.compile.split.rules.is_empty();
    let mut spread = Options { pipeline: None, split, ..options.clone() };
    match strategy {
        Strategy::Pipeline(asked) => {
            spread.replicas = None;
            spread.recipe.updates.microbatches = 1;
            spread.pipeline = Some(asked);
        }
        Strategy::Single => {
            spread.replicas = None;
            spread.compile.place.devices = DeviceUse::Count(1);
        }
        Strategy::Model => spread.replicas = None,
        Strategy::Split => {
            spread.replicas = None;
            spread.split = true;
        }
        Strategy::Data(replicas) => {
            let asked = options.replicas.unwrap_or(replicas);
            let shards = if asked.shards.is_multiple_of(replicas.count.max(1)) {
                asked.shards.max(replicas.count)
            } else {
                replicas.count
            };
            let Replicas { exchange, transfer, bucket, spare, .. } = asked;
            spread.replicas = Some(Replicas { shards, exchange, transfer, bucket, spare, ..replicas });
        }
        Strategy::Pipelines(replicas, asked) => {
            spread.recipe.updates.microbatches = 1;
            spread.pipeline = Some(asked);
            let own = options.replicas.unwrap_or(replicas);
            let shards = if own.shards > 1 { own.shards } else { replicas.count };
            let Replicas { exchange, transfer, bucket, spare, .. } = own;
            spread.replicas = Some(Replicas { shards, exchange, transfer, bucket, spare, ..replicas });
        }
    }
    spread
}
