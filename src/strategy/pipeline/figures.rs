//! What a pipeline comes to, beside what theory says of equal stages.

use serde::Serialize;

use super::jobs::{Jobs, Pass};
use super::{Order, pass_time};
use crate::costgraph::NodeIx;
use crate::costgraph::derive::Derived;
use crate::schedule::Schedule;
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

/// One stage: what a device does at one level of the forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Its place in the pipeline, from 0.
    pub stage: u32,
    /// Its device.
    pub device: String,
    /// Nodes of its forward pass.
    pub nodes: usize,
    /// Time of its forward pass in one microbatch.
    pub forward: Nanos,
    /// Time of what goes backward there in one microbatch.
    pub backward: Nanos,
}

/// One device's memory in the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageMemory {
    /// The device.
    pub device: String,
    /// Parameters, state and inputs.
    pub resident: Bytes,
    /// The most that microbatches in flight hold beside them.
    pub in_flight: Bytes,
}

/// What a pipeline comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Name of the order in which microbatches run.
    pub schedule: &'static str,
    /// Microbatches in a step.
    pub microbatches: u32,
    /// Pipelines side by side, each with all microbatches of its own.
    pub replicas: u32,
    /// Devices that compute.
    pub devices: usize,
    /// Time of a step where steps follow one another without end: the highest load.
    pub steady_step: Nanos,
    /// The same for one microbatch.
    pub steady_microbatch: Nanos,
    /// Fraction of a step in which its devices do not compute, on the simulated timeline.
    pub bubble: f64,
    /// The fraction that theory gives for stages of equal time and copies that take none.
    pub theoretical_bubble: f64,
    /// The stages.
    pub stages: Vec<Stage>,
    /// The devices that compute.
    pub memory: Vec<StageMemory>,
    /// Instances that make gradients of parameters, ascending; for drawings.
    #[serde(skip)]
    pub weights: Vec<NodeIx>,
}

/// The bubble of a pipeline whose stages take equal time and whose copies take none, as a fraction of
/// the step, for `stages` s on as many devices, `microbatches` m and `turns` v stages on each device;
/// `times` are those f, b, w of a device's forward, backward and weight passes in one microbatch.
///
/// A step takes (m + (s-1)/v)(f+b+w); zero bubble fills the gaps with weight passes, and takes
/// m(f+b+w) + (s-1)(f+b-w) (Qi et al. 2023, table 2, ZB-H1). With fewer microbatches than stages neither can
/// be reached where v > 1 or w > 0: no step ends before the last stage has done its share of all
/// microbatches after the first one came through, and the last one has gone back: (m-1+vs)(f+b+w)/v,
/// and for zero bubble (m+s-1)(f+b) + w.
pub fn theoretical_bubble(order: Order, stages: u64, microbatches: u64, turns: u64, times: [u64; 3]) -> f64 {
    let [forward, backward, weights] = times.map(|time| time as f64);
    let (stages, microbatches) = (stages.max(1) as f64, microbatches as f64);
    let pass = if forward + backward + weights > 0.0 { forward + backward + weights } else { 1.0 };
    let work = microbatches * pass;
    let step = match order {
        Order::ZeroBubble if weights > 0.0 => {
            let filled = work + (stages - 1.0) * (forward + backward - weights).max(0.0);
            filled.max((microbatches + stages - 1.0) * (forward + backward) + weights)
        }
        Order::Interleaved => {
            let turns = turns.max(1) as f64;
            let chunks = (microbatches * turns + stages - 1.0).max(microbatches - 1.0 + turns * stages);
            chunks * pass / turns
        }
        Order::Gpipe | Order::OneForwardOneBackward | Order::ZeroBubble | Order::Auto => {
            work + (stages - 1.0) * pass
        }
    };
    if step > 0.0 { 1.0 - work / step } else { 0.0 }
}

impl Figures {
    /// The figures with instances in place of the nodes that they name.
    pub(super) fn of_instances(self, derived: &Derived) -> Self {
        let is_weights = |node: &NodeIx| self.weights.binary_search(&derived.instance(*node).node).is_ok();
        let weights = derived.graph.nodes().filter(is_weights).collect();
        Self { weights, ..self }
    }

    pub(super) fn new(
        topology: &Topology,
        jobs: &Jobs,
        order: Order,
        microbatches: u32,
        schedule: &Schedule,
    ) -> Self {
        let devices = jobs.devices();
        let name = |id| topology.device(id).name.clone();
        let mut stages: Vec<Stage> = Vec::new();
        let mut of_job = vec![0; jobs.jobs.len()];
        let mut forward: Vec<usize> =
            (0..jobs.jobs.len()).filter(|&job| jobs.jobs[job].pass == Pass::Forward).collect();
        forward.sort_by_key(|&job| (jobs.jobs[job].level, jobs.jobs[job].device));
        for job in forward {
            of_job[job] = stages.len();
            let found = &jobs.jobs[job];
            stages.push(Stage {
                stage: found.level,
                device: name(found.device),
                nodes: found.nodes.len(),
                forward: found.time,
                backward: Nanos::ZERO,
            });
        }
        for job in jobs.jobs.iter().filter(|job| job.pass != Pass::Forward) {
            if let Some(&first) = job.links.first() {
                stages[of_job[first as usize]].backward += job.time;
            }
        }
        let busy: u64 = schedule.devices.iter().fold(0, |sum, usage| sum.saturating_add(usage.busy.get()));
        let offered = schedule.cost.latency.get() as f64 * devices.len() as f64;
        let turns = stages.len().checked_div(devices.len()).unwrap_or(1);
        let times = [Pass::Forward, Pass::Backward, Pass::Weights].map(|pass| pass_time(jobs, pass));
        let memory = devices.iter().map(|&id| {
            let usage = &schedule.devices[id.index()];
            let in_flight = usage.peak.saturating_sub(usage.resident);
            StageMemory { device: name(id), resident: usage.resident, in_flight }
        });
        let weights = jobs.jobs.iter().filter(|job| job.pass == Pass::Weights);
        let mut weights: Vec<NodeIx> = weights.flat_map(|job| job.nodes.iter().copied()).collect();
        weights.sort_unstable();
        Self {
            schedule: if jobs.trains() { order.name() } else { "forward" },
            microbatches,
            replicas: jobs.replicas,
            devices: devices.len(),
            steady_step: schedule.cost.max_load,
            steady_microbatch: Nanos(schedule.cost.max_load.get().div_ceil(u64::from(microbatches.max(1)))),
            bubble: if offered > 0.0 { (1.0 - busy as f64 / offered).max(0.0) } else { 0.0 },
            theoretical_bubble: theoretical_bubble(
                if jobs.trains() || turns < 2 { order } else { Order::Interleaved },
                jobs.devices_each().into(),
                microbatches.into(),
                turns as u64,
                times,
            ),
            memory: memory.collect(),
            stages,
            weights,
        }
    }
}
