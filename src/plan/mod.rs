//! The plan: what is computed where, in which order, in which bytes of which memory. It is all that the
//! executor needs besides the model, and all that [`check()`] needs to prove it sound. `docs/plan.md` and
//! `docs/plan.schema.json` describe its JSON form.
//!
//! A [`Plan`] is plain data, with a JSON form ([`Plan::write_json`], [`Plan::from_json`]) and a text form
//! ([`Plan::to_text`], [`Plan::from_text`]). [`build()`] makes one from a placement and its schedule. A plan
//! that was read is not trusted: check it before use.

mod build;
pub mod check;
mod device_map;
mod diff;
mod dtensor;
mod export;
mod foreign;
mod gspmd;
mod gzip;
mod json;
mod labels;
mod pairs;
mod parts;
mod replan;
mod shards;
mod text;
mod waits;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cost::Profile;
use crate::place;
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

pub use build::{Meta, build, build_derived};
pub use check::{
    Checked, ExpectedLaunch, ExpectedModel, ExpectedValue, InPlace, Origin, check, check_bound,
    check_costgraph, check_model, check_peaks,
};
pub use device_map::{cut_blocks, cut_experts, device_map};
pub use diff::{Bounds, Change, Diff, Flow, Move, Quality, StateDiff, diff, diff_with_state};
pub use export::{FORMATS, export};
pub(crate) use foreign::listed;
pub use foreign::{Foreign, Lookup};
#[cfg(feature = "cli")]
pub(crate) use gzip::{Sense, read_decompressed};
pub use gzip::{decompressed, is_compressed};
pub use labels::{Labels, NodeLabel, ParamLabel, Read, SliceLabel, ValueLabel};
pub use replan::{MovedState, Replan, circumstances};
pub(crate) use waits::{BACK, OFFLOADED};
pub use waits::{Reason, Wait};

/// The version of the form that is written and read.
pub const VERSION: u32 = 1;

/// A plan. See the module's documentation; field by field it is what the JSON form holds, in
/// its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// What is planned.
    pub model: PlanModel,
    /// What was asked for.
    pub options: PlanOptions,
    /// Every device of the specification, used or not, in its order.
    pub devices: Vec<PlanDevice>,
    /// (node, device) for every node of the source model, in the source's order; each node once.
    /// Parts of split nodes follow, as nodes named `name[2/4]`.
    #[serde(serialize_with = "pairs::serialize", deserialize_with = "parts::read_placement")]
    pub placement: Vec<(String, String)>,
    /// Nodes of `placement` that no step launches: parameters, inputs, and what was folded away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlaunched: Vec<String>,
    /// Ranges of the arenas. None in a plan from a cost graph.
    #[serde(default)]
    pub buffers: Vec<Buffer>,
    /// The distinct kernels. None in a plan from a cost graph.
    #[serde(default)]
    pub kernels: Vec<Kernel>,
    /// Kinds, rates and links as used.
    pub topology: Topology,
    /// What is done, in a topological order of `after`; the array order on one device and lane is
    /// the order of execution.
    pub steps: Vec<Step>,
    /// What a step costs.
    pub cost: Cost,
    /// The certificate; none where there is none, or where the optimum is zero.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// What is loaded because the plan replaces another; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replan: Option<Replan>,
    /// What was measured of the kinds and kernels of this plan, where it was planned with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Remarks for people, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What is planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanModel {
    /// The network's name.
    pub name: String,
    /// Digest of its content, in hexadecimal.
    pub hash: String,
    /// Nodes of the source, all of them.
    pub nodes: u64,
    /// Where it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What was asked for. Options left at their defaults are left out of the file, but for the
/// objective and the seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// Name of the objective.
    pub objective: String,
    /// Seed of whatever was drawn.
    pub seed: u64,
    /// `all`, or a number of devices.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// `fast` or `best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// `PATTERN=DEVICE`, as given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<String>,
    /// Patterns, as given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub colocate: Vec<String>,
    /// Allowed excess over a fair share of compute time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<f64>,
    /// Whether unsupported nodes fall back to another device.
    #[serde(default, skip_serializing_if = "is_false")]
    pub soft: bool,
    /// The batch size, where it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Named dimensions and what they were bound to.
    #[serde(default, with = "pairs", skip_serializing_if = "Vec::is_empty")]
    pub dims: Vec<(String, i64)>,
    /// Those of the dimensions that were open when the model was read, where its graph depends on that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_dims: Vec<String>,
    /// Optional inputs that the model was read with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// Whether planning was stopped (by the caller or a time limit) before its work was done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Into how many microbatches the step is divided, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<u32>,
    /// How a pipeline orders its microbatches: `gpipe`, `1f1b`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The precision that values were cast to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// How matrices of weights are held: `q8_0` or `q4_0`, none where as they are supplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_as: Option<String>,
    /// `channels_last` where convolutions of halves have their channels last inside, on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Operations that are split, in the network's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<PlanSplit>,
    /// How the step trains its network; none where it only runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// Replicas, microbatches and whatever else: (name, value), in order.
    #[serde(default, with = "pairs", skip_serializing_if = "Vec::is_empty")]
    pub other: Vec<(String, String)>,
}

/// What a training step is made of, beside its network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Training {
    /// The loss, as `train --loss` has it.
    pub loss: String,
    /// The optimizer, as `train --optimizer` has it.
    pub optimizer: String,
    /// Patterns of parameters that stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// How the loss is scaled, as `train --loss-scale` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<String>,
    /// Whether the network's outputs are outputs of the step, for metrics.
    #[serde(default, skip_serializing_if = "is_false")]
    pub outputs: bool,
    /// Parts of a batch that run one after the other; the plan is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<u32>,
    /// What lies together: `layers` with their training, or these with `losses`; none where nothing has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<String>,
    /// Where the step is not that of one network: `replicas`, `pipeline` or `workers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<String>,
    /// The replicas of such a step, or its pipelines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<PlanReplicas>,
}

impl Training {
    /// What `spread` is for pipelines.
    pub const PIPELINE: &str = "pipeline";

    /// Whether the parts of the batch go through stages as microbatches.
    pub fn is_pipeline(&self) -> bool {
        self.spread.as_deref() == Some(Self::PIPELINE)
    }
}

/// Copies of the network side by side, each for a part of the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReplicas {
    /// By replica: its devices.
    pub devices: Vec<Vec<String>>,
    /// How many devices were there for each; stages may use fewer.
    pub each: usize,
    /// The dimension of the network that the batch is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Into how many parts the batch is cut, of all replicas together.
    pub shards: usize,
    /// How many of them are not waited for.
    pub spare: usize,
    /// How they come to one gradient, as `train --sync` has it.
    pub sync: String,
    /// As `train --exchange` has it.
    pub exchange: String,
    /// As `train --transfer` has it.
    pub transfer: String,
    /// What is kept once, as `train --zero` has it.
    pub zero: String,
    /// Bytes of gradients that travel together at most, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
}

/// Operations that are split alike. Part `k` of `n` of a node stands in `placement` as `name[k/n]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSplit {
    /// Operations: `name#0` is the first of those that the source's node `name` stands for.
    pub nodes: Vec<String>,
    /// `axis 1` of the first result, or `sum 1`: that axis of the first operand is summed in parts. `steps`: recurrent
    /// layers are computed step by step. `slices`: these are inputs, and devices are handed what they read of them.
    pub over: String,
    /// Where each part begins along it, and its extent.
    pub bounds: Vec<u64>,
    /// By part: the device that it was asked to be on; nothing where the planner chose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Whether the operations that one node stands for lie wherever there is room. `name#2` is then a node of the
    /// placement, and part `k` of `n` of it `name#2[k/n]`; so is what cuts and joins slices.
    #[serde(default, skip_serializing_if = "is_false")]
    pub apart: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

impl From<&place::Options> for PlanOptions {
    fn from(options: &place::Options) -> Self {
        Self {
            objective: options.objective.name().to_owned(),
            seed: options.seed,
            devices: (options.devices != place::DeviceUse::Auto).then(|| options.devices.to_string()),
            effort: (options.effort != place::Effort::Default).then(|| options.effort.to_string()),
            pins: options.pins.iter().map(|(pattern, device)| format!("{pattern}={device}")).collect(),
            colocate: options.colocate.clone(),
            balance: options.balance,
            soft: options.soft,
            ..Self::default()
        }
    }
}

/// One device's share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDevice {
    /// `cuda0.3`.
    pub name: String,
    /// What it is on a real machine: `cuda:0`, `cpu:0`, `model:a100-80g`.
    pub target: String,
    /// The cap.
    pub memory: Bytes,
    /// Bytes to allocate; sound for every interleaving that `after` allows.
    pub arena: Bytes,
    /// Most bytes live at once on the simulated timeline, everything included.
    pub peak: Bytes,
    /// Kept free of the memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserve: Bytes,
    /// No sound choice of offsets has a shorter arena: what may be alive at once under `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena_bound: Option<Bytes>,
}

/// When a buffer is made, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferKind {
    /// Handed over before the step.
    Input,
    /// Loaded before the step, never written in it.
    Param,
    /// There before the step, and may be updated in it.
    State,
    /// A constant of the model; loaded before the step, never written in it.
    Const,
    /// Made in the step, read to its last use.
    Temp,
    /// Made in the step, and still there when it ends.
    Output,
    /// Arrives by a copy.
    Copy,
    /// Scratch memory of one launch.
    Workspace,
}

impl BufferKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Input,
        Self::Param,
        Self::State,
        Self::Const,
        Self::Temp,
        Self::Output,
        Self::Copy,
        Self::Workspace,
    ];

    /// The name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Param => "param",
            Self::State => "state",
            Self::Const => "const",
            Self::Temp => "temp",
            Self::Output => "output",
            Self::Copy => "copy",
            Self::Workspace => "workspace",
        }
    }

    /// True for what is there before the step begins.
    pub const fn is_resident(self) -> bool {
        match self {
            Self::Input | Self::Param | Self::State | Self::Const => true,
            Self::Temp | Self::Output | Self::Copy | Self::Workspace => false,
        }
    }
}

/// A range of one device's arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// `b3`; unique.
    pub id: String,
    /// Type and shape: `f32[64,1024]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The device's name.
    pub device: String,
    /// Where it begins in the device's arena.
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
    /// When it is made, and by what.
    pub kind: BufferKind,
    /// The buffer whose bytes it shares, for a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Name of the value or parameter that it holds; for a workspace, of the node that uses it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The microbatch whose value it holds; none where all share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
    /// Where it holds a part of a value: a parameter's name or that of the node that makes it, and `:1` behind
    /// for its second result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Which part. By axis: the first element, and the one behind the last.
    #[serde(default, rename = "box", skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<(u64, u64)>,
    /// Of a partial result: its number, and how many are to be folded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<(u32, u32)>,
    /// The state that takes its bytes on for the next step, where it is not there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feeds: Option<String>,
    /// The axis along which the values of all microbatches make up that of the batch, for inputs
    /// and outputs of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<u32>,
}

/// One kernel, launched once or often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// `k1`; unique.
    pub id: String,
    /// What shapes it: `map`, `row`, `matmul`, ...
    pub hero: String,
    /// Digest of what it computes, in hexadecimal.
    pub hash: String,
    /// The source's nodes that its launches compute, launch by launch.
    pub nodes: Vec<String>,
}

/// Which of a device's queues runs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies that arrive.
    Copy,
}

impl Lane {
    /// The name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Copy => "copy",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Unique; other steps name it in `after`.
    pub id: u64,
    /// The device that runs it: for a copy, the one that receives. Steps share the name.
    pub device: Arc<str>,
    /// The lane that runs it.
    pub lane: Lane,
    /// Steps that must be done before. Those that come before it on its own lane are implied.
    pub after: Vec<u64>,
    /// What it does.
    pub action: Action,
    /// Why it is there or waits, where that does not follow from the data.
    pub why: Option<String>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a kernel.
    Launch(Launch),
    /// Moves one value. Launches are far more, and take no room for it.
    Copy(Box<CopyAction>),
}

/// Runs a kernel: `nodes` alone in a plan from a cost graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The kernel's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The source's nodes that it computes, in execution order.
    pub nodes: Vec<String>,
    /// The number of the part that it computes, from 0, where its nodes are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Ids of the buffers read, in the order of the kernel's operands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<String>,
    /// Ids of the buffers written: outputs in order, then the workspace where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// The number of the group in the model's grouping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The microbatch that it works on; none where it runs once for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
    /// True where it makes again what an earlier launch has made.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
}

/// Moves one value. With buffers, `from` and `to` are their ids; in a plan from a cost graph they
/// are devices, and `node` and `output` say what is moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyAction {
    /// The node whose output is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Which of its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u32>,
    /// The microbatch whose output it is, where `node` runs for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
    /// True where it is the output of a launch that computes `node` again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
    /// What is read.
    pub from: String,
    /// What is written.
    pub to: String,
    /// How much is moved.
    pub bytes: Bytes,
    /// Where the moved bytes begin in the value, and how many they are; none for all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<(Bytes, Bytes)>,
    /// In a plan from a cost graph, for a value that comes back to the device that made it: the
    /// nodes there that read it only then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readers: Vec<String>,
}

/// A step as its JSON form has it.
#[derive(Deserialize)]
struct RawStep {
    id: u64,
    device: String,
    lane: Lane,
    #[serde(default)]
    after: Vec<u64>,
    #[serde(default)]
    launch: Option<Launch>,
    #[serde(default)]
    copy: Option<CopyAction>,
    #[serde(default)]
    why: Option<String>,
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawStep::deserialize(deserializer)?;
        let action = match (raw.launch, raw.copy) {
            (Some(launch), None) => Action::Launch(launch),
            (None, Some(copy)) => Action::Copy(Box::new(copy)),
            (Some(_), Some(_)) | (None, None) => {
                let message = format!("step {}: expected either `launch` or `copy`", raw.id);
                return Err(serde::de::Error::custom(message));
            }
        };
        let device = raw.device.into();
        Ok(Self { id: raw.id, device, lane: raw.lane, after: raw.after, action, why: raw.why })
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Step", 5 + usize::from(self.why.is_some()))?;
        out.serialize_field("id", &self.id)?;
        out.serialize_field("device", &*self.device)?;
        out.serialize_field("lane", &self.lane)?;
        out.serialize_field("after", &self.after)?;
        match &self.action {
            Action::Launch(launch) => out.serialize_field("launch", launch)?,
            Action::Copy(copy) => out.serialize_field("copy", copy)?,
        }
        if let Some(why) = &self.why {
            out.serialize_field("why", why)?;
        }
        out.end()
    }
}

/// What a step costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Step and load bytes together.
    pub transfer_bytes: Bytes,
    /// Bytes moved in each step, a tensor once for each device that receives it.
    pub step_bytes: Bytes,
    /// Bytes of parameters on devices beyond the first that holds each.
    pub load_bytes: Bytes,
    /// Simulated time of one step.
    pub latency_ns: Nanos,
    /// Highest load of any device or link in steady state.
    pub max_load_ns: Nanos,
}

impl Cost {
    /// What an objective, by its name, makes small; none where there is no such objective.
    pub fn of(&self, objective: &str) -> Option<u64> {
        match objective {
            "transfer" => Some(self.transfer_bytes.0),
            "latency" => Some(self.latency_ns.0),
            "throughput" => Some(self.max_load_ns.0),
            _ => None,
        }
    }
}

/// A proof that no plan is better than `value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// What is bounded.
    pub objective: String,
    /// No plan has less; in the objective's unit, above zero.
    pub value: u64,
    /// 1 - bound/value: zero where the plan is proven optimal.
    pub gap: f64,
    /// The kind of proof.
    pub proof: String,
    /// What is needed to verify it.
    #[serde(default)]
    pub data: serde_json::Value,
    /// What holds of plans that split operations too; none where times do not follow from the number of operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peaks: Option<Peaks>,
}

/// The time in which all devices together do a model's operations at their peak rates: no plan takes less, whatever it
/// splits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// No plan has less, in nanoseconds; above zero.
    pub value: u64,
    /// 1 - value of the plan by this.
    pub gap: f64,
}

impl Peaks {
    /// What no plan is below, and how far one that reaches `reached` is from it.
    pub(crate) fn new(value: u64, reached: u64) -> Self {
        Self { value, gap: gap(value, reached) }
    }
}

fn gap(value: u64, reached: u64) -> f64 {
    if reached == 0 { 0.0 } else { 1.0 - value as f64 / reached as f64 }
}

impl Bound {
    /// The same proof beside another plan, that reaches `reached`.
    pub(crate) fn beside(&self, reached: u64) -> Self {
        let peaks = self.peaks.as_ref().map(|peaks| Peaks::new(peaks.value, reached));
        Self { gap: gap(self.value, reached), peaks, ..self.clone() }
    }

    /// What a certificate says of a plan that reaches `reached`.
    pub fn new(certificate: place::Certificate, reached: u64) -> Self {
        let place::Certificate { objective, value, proof, data } = certificate;
        let gap = gap(value, reached);
        Self {
            objective: objective.name().to_owned(),
            value,
            gap,
            proof: proof.to_owned(),
            data,
            peaks: None,
        }
    }
}
