//! The arguments of `partition train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::{ExecArgs, MORE, ModelArgs, PlacementArgs, Terminal};

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
Optimizers: sgd[:momentum=M,nesterov], adagrad, rmsprop, adam, adamw, lion; each with weight_decay=, clip_value=,
  clip_norm=.
Schedules: constant, step:every=N,factor=F, cosine, one-cycle; each with warmup=N.")]
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
    pub(super) data: DataArgs,
    /// What is made small
    #[arg(help_heading = "Training", long, value_name = "LOSS")]
    pub(super) loss: String,
    /// How parameters follow gradients
    #[arg(help_heading = "Training", long, value_name = "OPTIMIZER", default_value = "sgd")]
    pub(super) optimizer: String,
    /// Learning rate
    #[arg(help_heading = "Training", long, value_name = "RATE", default_value_t = 0.01)]
    pub(super) lr: f64,
    /// Course of the rate
    #[arg(help_heading = "Training", long, value_name = "SCHEDULE", default_value = "constant")]
    pub(super) lr_schedule: String,
    /// How often all records are used
    #[arg(help_heading = "Training", long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) epochs: u64,
    /// End after so many steps
    #[arg(help_heading = "Training", long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Parameters that match the pattern stay as they are (repeatable)
    #[arg(help_heading = "Training", hide_short_help = true, long, value_name = "PATTERN")]
    pub(super) freeze: Vec<String>,
    /// Factor of the loss with --precision f16 or bf16: a number, or dynamic[:start=65536,every=2000], which is
    /// halved where a gradient overflows, the step left out, and doubled after so many good steps
    /// [default: dynamic for f16, 1 for bf16]
    #[arg(help_heading = "Training", hide_short_help = true, long, value_name = "SCALE")]
    pub(super) loss_scale: Option<String>,
    /// accuracy, top5, mae, mse or auc (repeatable)
    #[arg(help_heading = "Training", long = "metric", value_name = "METRIC")]
    pub(super) metrics: Vec<String>,
    /// End after so many epochs without a better loss
    ///
    /// That of validation, where there is one.
    #[arg(help_heading = "Training", long, value_name = "EPOCHS")]
    pub(super) patience: Option<u64>,
    /// Folder for checkpoints
    ///
    /// The newest three and the best are kept, of each member of an ensemble in a folder of its own.
    #[arg(help_heading = "Output", long, value_name = "DIR")]
    pub(super) checkpoints: Option<PathBuf>,
    /// How often to write one, beside the end of each epoch: 500, 10min, or both
    #[arg(
        help_heading = "Output",
        hide_short_help = true,
        long,
        value_name = "WHEN",
        requires = "checkpoints"
    )]
    pub(super) checkpoint_every: Option<String>,
    /// Go on from the newest checkpoint
    ///
    /// An error where there is none; --resume=auto begins anew then.
    #[arg(hide_possible_values = true, help_heading = "Output", long, value_enum, value_name = "WHEN", requires = "checkpoints", num_args = 0..=1, require_equals = true,
        default_missing_value = "must")]
    pub(super) resume: Option<Resume>,
    /// Plan and write (--plan) the step, and train nothing
    ///
    /// The devices need not be here, nor the data.
    #[arg(help_heading = "Output", long, conflicts_with_all = ["ensemble", "output", "history", "report", "tensorboard", "resume"])]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) spread: SpreadArgs,
    /// Where to write the weights (safetensors or npz)
    #[arg(help_heading = "Output", long, short, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Where to write the plan of a step (JSON)
    #[arg(help_heading = "Output", long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(super) logs: LogArgs,
    /// End where a loss or parameter is infinite or no number, and name the operation that first made it
    /// so; parameters are copied in each step
    #[arg(help_heading = "Training", hide_short_help = true, long)]
    pub(super) check_numerics: bool,
    /// End the run after this time, with a checkpoint
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
    /// Records: files, or made up (ones, zeros, random)
    ///
    /// Files are CSV, npz, safetensors, TFRecord or raw.
    #[arg(long, value_name = "DATA", required_unless_present = "dry_run")]
    pub(super) data: Option<String>,
    /// Records for validation
    #[arg(long, value_name = "DATA", conflicts_with = "validation_split")]
    pub(super) validation_data: Option<String>,
    /// Share kept for validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) validation_split: f64,
    /// Leave out the last batch of an epoch where it is not full, instead of training on it as it is
    #[arg(hide_short_help = true, long)]
    pub(super) drop_remainder: bool,
    /// Records in the files' order, instead of drawn at random with --seed
    #[arg(hide_short_help = true, long)]
    pub(super) in_order: bool,
    /// Records that are drawn from at once [default: as many as 256 MiB hold]
    #[arg(hide_short_help = true, long, value_name = "N", conflicts_with = "in_order")]
    pub(super) shuffle_window: Option<usize>,
    /// What to do about a malformed record
    #[arg(hide_short_help = true, long, value_name = "WHAT", value_parser = ["fail", "skip"], default_value = "fail")]
    pub(super) on_bad_record: String,
    /// Threads that read records [default: 2]; never changes a result
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 2)]
    pub(super) readers: usize,
}

/// How a step is spread over the devices.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Replicas and stages")]
pub(super) struct SpreadArgs {
    /// How the step is spread: auto, model, data, ...
    ///
    /// auto takes the one that is predicted to be fastest; the others force one: model, data, zero1, zero2, zero3,
    /// ps, pipeline, hybrid:K with K devices for each replica, which with --schedule is a pipeline.
    #[arg(help_heading = "Placement", long, value_name = "WAY", conflicts_with_all = ["replicas", "ensemble"])]
    pub(super) parallel: Option<String>,
    /// The network so many times, each on its part
    ///
    /// Of the batch, that is; one gradient. With --schedule each is a pipeline of its own, on as many devices
    /// as there are for each.
    #[arg(help_heading = "Placement", long, value_name = "N")]
    pub(super) replicas: Option<usize>,
    /// Devices of each replica: over several, the network is laid as the planner lays one replica [of
    /// pipelines, 1 stands for an even part of all devices]
    #[arg(hide_short_help = true, long, value_name = "K", requires = "replicas", default_value_t = 1)]
    pub(super) devices_each: usize,
    /// So many of the replicas are not waited for: a step counts the gradients of those that are done first by
    /// a logical clock, drawn from --seed, and drops the others'
    #[arg(hide_short_help = true, long, value_name = "B", requires = "replicas", default_value_t = 0)]
    pub(super) spare: usize,
    /// Parts of the batch [default: one for each replica]; the same parts give the same bits on any
    /// number of replicas
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(super) shards: Option<usize>,
    /// How replicas come to one gradient: allreduce, ps, ps:round-robin; or, each on a batch of its own and
    /// without waiting for one another: async
    #[arg(
        hide_short_help = true,
        long,
        value_name = "WAY",
        requires = "replicas",
        default_value = "allreduce"
    )]
    pub(super) sync: String,
    /// Updates that others may make while a gradient is computed, with --sync async
    #[arg(hide_short_help = true, long, value_name = "S", requires = "replicas", default_value_t = 4)]
    pub(super) staleness: u64,
    /// What becomes of gradients that are staler: drop, scale
    #[arg(hide_short_help = true, long, value_name = "WHAT", requires = "replicas", default_value = "drop")]
    pub(super) stale: String,
    /// So many steps at the start are done by one replica alone, with --sync async
    #[arg(hide_short_help = true, long, value_name = "STEPS", requires = "replicas", default_value_t = 0)]
    pub(super) warm_up: u64,
    /// The way of an all-reduce: auto (by the links), ring, tree, star
    #[arg(hide_short_help = true, long, value_name = "WAY", default_value = "auto")]
    pub(super) exchange: String,
    /// In which type gradients travel: own, f16, bf16, int8; what rounding loses is added to the next
    #[arg(hide_short_help = true, long, value_name = "TYPE", default_value = "own")]
    pub(super) transfer: String,
    /// Gradients travel together up to so many bytes [default: by the links]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    pub(super) bucket: Option<String>,
    /// What replicas keep once between them (ZeRO): 1 optimizer state, 2 also gradients, 3 also parameters
    #[arg(hide_short_help = true, long, value_name = "STAGE", requires = "replicas", default_value = "0")]
    pub(super) zero: String,
    /// So many independent networks, one on each device, results side by side
    #[arg(hide_short_help = true, long, value_name = "N", conflicts_with = "replicas")]
    pub(super) ensemble: Option<usize>,
    /// What is different for a member of the ensemble, counted from 1 (repeatable): 2:lr=0.1; keys: seed, lr,
    /// lr-schedule, optimizer, loss
    #[arg(hide_short_help = true, long = "member", value_name = "N:KEY=VALUE", requires = "ensemble")]
    pub(super) members: Vec<String>,
}

/// What is written beside the result.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub(super) struct LogArgs {
    /// Where to write each epoch's figures (.csv, .json)
    #[arg(long, value_name = "FILE")]
    pub(super) history: Option<PathBuf>,
    /// Folder for event files of TensorBoard: losses, metrics, and the plan as a graph coloured by device
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Where to write a report of plan and training as one HTML page
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}
