//! The arguments of `partition train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::{ExecArgs, MORE, ModelArgs, PlacementArgs, SplitArgs, Terminal};

#[derive(Args, Debug, Clone)]
#[command(after_help = MORE, after_long_help = "\
Examples:
  partition train model.json -d 'cpu[12x1000MB]' --use all --data ones:records=100 --loss mae --batch 10 --epochs 10
  partition train net.onnx -d 4xcpu --data train.csv --loss sparse --optimizer adam --lr 0.001 --metric accuracy
  partition train net.json -d cpu --data 'x.npz' --loss mse --validation-split 0.1 --patience 5 --checkpoints ckpt
  partition train net.json -d cpu --data 'x.npz' --loss mse --checkpoints ckpt --resume
  partition train net.json -d 4xa100-80g --batch 64 --loss mse --dry-run --plan step.json
  partition train net.json -d 2xcpu --data 'x.npz' --loss mse --history h.csv --tensorboard logs --report run.html

Losses: mse, mae, huber[:delta=D], hinge, cosine, kl, sparse, categorical, binary; the last three with :logits.
  sparse:ignore_class=C and sparse:logits,ignore_class=C leave out the targets of class C (-100, say)
Optimizers, with the values of keys that are not given:
  sgd[:momentum=0] (also sgd:momentum=M,nesterov)
  adagrad[:epsilon=1e-10]
  rmsprop[:rho=0.99,epsilon=1e-8] (this and adagrad also with epsilon_in_root, as in Keras)
  adam[:beta1=0.9,beta2=0.999,epsilon=1e-8]
  adamw[:beta1=0.9,beta2=0.999,epsilon=1e-8,weight_decay=0.01]
  lion[:beta1=0.9,beta2=0.99]
  each also with weight_decay=, clip_value=, clip_norm=
Schedules:
  constant
  step:every=N[,factor=0.1]
  cosine[:floor=0]
  one-cycle[:up=0.3]
  each also with warmup=N; the last two with steps=N, else they end with the run (--steps, or --epochs of --data)")]
pub(super) struct TrainArgs {
    /// Model file (ONNX, Keras JSON, model.json)
    #[arg(value_name = "MODEL")]
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) exec: ExecArgs,
    #[command(flatten)]
    pub(super) shape: ModelArgs,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) split: SplitArgs,
    #[command(flatten)]
    pub(super) data: DataArgs,
    /// Loss function
    #[arg(help_heading = "Training", long, value_name = "LOSS")]
    pub(super) loss: String,
    /// Optimizer
    #[arg(help_heading = "Training", long, value_name = "OPTIMIZER", default_value = "sgd")]
    pub(super) optimizer: String,
    /// Learning rate
    #[arg(help_heading = "Training", long, value_name = "RATE", default_value_t = 0.01)]
    pub(super) lr: f64,
    /// Schedule of the learning rate
    #[arg(help_heading = "Training", long, value_name = "SCHEDULE", default_value = "constant")]
    pub(super) lr_schedule: String,
    /// Number of epochs
    #[arg(help_heading = "Training", long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) epochs: u64,
    /// Stop after this many steps in all
    #[arg(help_heading = "Training", long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Do not train parameters that match the pattern; batch normalisations go by statistics that match (repeatable)
    #[arg(help_heading = "Training", hide_short_help = true, long, value_name = "PATTERN")]
    pub(super) freeze: Vec<String>,
    /// Loss scale with --precision f16 or bf16: a number, or dynamic[:start=65536,every=2000]
    ///
    /// dynamic halves it and skips the step when a gradient overflows, and doubles it after `every` good steps
    /// [default: dynamic for f16, 1 for bf16]
    #[arg(help_heading = "Training", hide_short_help = true, long, value_name = "SCALE")]
    pub(super) loss_scale: Option<String>,
    /// accuracy, top5, mae, mse or auc (repeatable)
    #[arg(help_heading = "Training", long = "metric", value_name = "METRIC")]
    pub(super) metrics: Vec<String>,
    /// Stop after this many epochs without a lower loss
    ///
    /// The validation loss, if there is one.
    #[arg(help_heading = "Training", long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) patience: Option<u64>,
    /// Folder for checkpoints
    ///
    /// Keeps the newest three and the best; members of an ensemble have a folder each.
    #[arg(help_heading = "Output", long, value_name = "DIR")]
    pub(super) checkpoints: Option<PathBuf>,
    /// When to write one besides each epoch's end: 500 (steps), 10min, or both
    #[arg(
        help_heading = "Output",
        hide_short_help = true,
        long,
        value_name = "WHEN",
        requires = "checkpoints"
    )]
    pub(super) checkpoint_every: Option<String>,
    /// Continue from the newest checkpoint
    ///
    /// An error if there is none; --resume=auto starts anew then.
    #[arg(hide_possible_values = true, help_heading = "Output", long, value_enum, value_name = "WHEN", requires = "checkpoints", num_args = 0..=1, require_equals = true,
        default_missing_value = "must")]
    pub(super) resume: Option<Resume>,
    /// Plan the step, but do not train
    ///
    /// --plan writes the plan. Neither devices nor data need be present.
    #[arg(help_heading = "Output", long, conflicts_with_all = ["ensemble", "output", "history", "report", "tensorboard", "resume"])]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) spread: SpreadArgs,
    /// File to write the weights to (safetensors or npz)
    #[arg(help_heading = "Output", long, short, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// File to write the step's plan to (JSON)
    #[arg(help_heading = "Output", long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(super) logs: LogArgs,
    /// Stop if a loss or parameter is infinite or not a number, and name the operation that first made it so
    ///
    /// Copies the parameters in each step.
    #[arg(help_heading = "Training", hide_short_help = true, long)]
    pub(super) check_numerics: bool,
    /// Stop training after this time, with a checkpoint
    #[arg(help_heading = "Training", hide_short_help = true, long, value_name = "TIME")]
    pub(super) run_limit: Option<String>,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

/// Whether a run goes on from a checkpoint.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// It does, and there must be one
    Must,
    /// Where there is one
    Auto,
}

/// Where records come from.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Data")]
pub(super) struct DataArgs {
    /// Records: files, or generated (ones, zeros, random)
    ///
    /// Files are CSV, npz, safetensors, TFRecord or raw.
    #[arg(long, value_name = "DATA", required_unless_present = "dry_run")]
    pub(super) data: Option<String>,
    /// Validation records
    #[arg(long, value_name = "DATA", conflicts_with = "validation_split")]
    pub(super) validation_data: Option<String>,
    /// Share kept for validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) validation_split: f64,
    /// Skip an epoch's last batch if it is not full
    #[arg(hide_short_help = true, long)]
    pub(super) drop_remainder: bool,
    /// Read records in the files' order instead of shuffling them by --seed
    #[arg(hide_short_help = true, long)]
    pub(super) in_order: bool,
    /// Records to shuffle at a time [default: as many as 256 MiB hold]
    #[arg(hide_short_help = true, long, value_name = "N", conflicts_with = "in_order")]
    pub(super) shuffle_window: Option<usize>,
    /// What to do with a malformed record
    #[arg(hide_short_help = true, long, value_name = "WHAT", value_parser = ["fail", "skip"], default_value = "fail")]
    pub(super) on_bad_record: String,
    /// Threads that read records, a quarter of the cores and 2 to 8 unless said; results do not depend on it
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(super) readers: Option<usize>,
}

/// What excludes --replicas, and with it whatever only replicas have: an argument that requires what is excluded is not
/// asked for it.
const OTHER_WAYS: [&str; 2] = ["parallel", "ensemble"];

/// How a step is spread over the devices.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Replicas and stages")]
pub(super) struct SpreadArgs {
    /// Parallelism of the step: auto, model, data, ...
    ///
    /// auto takes the one that is predicted to be fastest; the others force one: model (layers over the
    /// devices), split (operations over the devices), data, zero1, zero2, zero3, ps, pipeline, or hybrid:K with K
    /// devices per replica, which are a pipeline with --schedule.
    #[arg(help_heading = "Placement", long, value_name = "WAY", conflicts_with_all = ["replicas", "ensemble"])]
    pub(super) parallel: Option<String>,
    /// Number of replicas of the network
    ///
    /// Each computes the gradient of its part of the batch; their sum is the gradient. With --schedule each is a
    /// pipeline of its own, on an even share of the devices.
    #[arg(help_heading = "Placement", long, value_name = "N")]
    pub(super) replicas: Option<usize>,
    /// Devices of each replica, all placed as the planner places the first [with pipelines, 1 means an even share of
    /// all devices]
    #[arg(hide_short_help = true, long, value_name = "K", requires = "replicas", conflicts_with_all = OTHER_WAYS, default_value_t = 1)]
    pub(super) devices_each: usize,
    /// Number of backup replicas, which a step does not wait for
    ///
    /// A step counts the gradients of the replicas that are done first, by a logical clock drawn from --seed, and drops
    /// the others'.
    #[arg(hide_short_help = true, long, value_name = "B", requires = "replicas", conflicts_with_all = OTHER_WAYS, default_value_t = 0)]
    pub(super) spare: usize,
    /// Parts of the batch; the same number gives the same bits on any number of replicas [default: one per replica]
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(super) shards: Option<usize>,
    /// How replicas synchronise: allreduce, ps, ps:round-robin; or async, each on batches of its own without waiting
    #[arg(
        hide_short_help = true,
        long,
        value_name = "WAY",
        requires = "replicas",
        conflicts_with_all = OTHER_WAYS,
        default_value = "allreduce"
    )]
    pub(super) sync: String,
    /// Updates by others allowed while a gradient is computed, with --sync async [default: 4]
    #[arg(hide_short_help = true, long, value_name = "S", requires = "replicas", conflicts_with_all = OTHER_WAYS)]
    pub(super) staleness: Option<u64>,
    /// What to do with staler gradients, with --sync async: drop, scale [default: drop]
    #[arg(hide_short_help = true, long, value_name = "WHAT", requires = "replicas", conflicts_with_all = OTHER_WAYS)]
    pub(super) stale: Option<String>,
    /// Steps at the start that one replica does alone, with --sync async [default: 0]
    #[arg(hide_short_help = true, long, value_name = "STEPS", requires = "replicas", conflicts_with_all = OTHER_WAYS)]
    pub(super) warm_up: Option<u64>,
    /// Algorithm of an all-reduce: auto (by the links), ring, tree, star [default: auto]
    #[arg(hide_short_help = true, long, value_name = "WAY")]
    pub(super) exchange: Option<String>,
    /// Type in which gradients are sent: own, f16, bf16, int8; rounding errors are added to the next gradient
    /// [default: own]
    #[arg(hide_short_help = true, long, value_name = "TYPE")]
    pub(super) transfer: Option<String>,
    /// Send gradients together up to this many bytes [default: by the links]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    pub(super) bucket: Option<String>,
    /// What replicas shard (ZeRO): 1 optimizer state, 2 also gradients, 3 also parameters
    #[arg(hide_short_help = true, long, value_name = "STAGE", requires = "replicas", conflicts_with_all = OTHER_WAYS, default_value = "0")]
    pub(super) zero: String,
    /// Train this many independent networks, one per device, and show their results side by side
    #[arg(hide_short_help = true, long, value_name = "N", conflicts_with = "replicas")]
    pub(super) ensemble: Option<usize>,
    /// Override options of a member of the ensemble, counted from 1 (repeatable): 2:lr=0.1; keys: seed, lr,
    /// lr-schedule, optimizer, loss
    #[arg(hide_short_help = true, long = "member", value_name = "N:KEY=VALUE", requires = "ensemble", conflicts_with_all = ["replicas", "parallel"])]
    pub(super) members: Vec<String>,
}

/// What is written beside the result.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub(super) struct LogArgs {
    /// File to write each epoch's figures to (.csv, .json)
    ///
    /// A run that --resume continues adds to it.
    #[arg(long, value_name = "FILE")]
    pub(super) history: Option<PathBuf>,
    /// Folder for TensorBoard event files: losses, metrics, and the plan as a graph coloured by device
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// File to write a report of plan and training to, as one HTML page
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}
