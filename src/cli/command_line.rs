//! The command line as clap reads it: its commands, and planning where there is none.

use clap::{Parser, Subcommand};

use super::args::{
    CheckArgs, CompletionsArgs, ConvertArgs, DevicesArgs, DiffArgs, ExplainArgs, ExportArgs, MORE, PlanArgs,
    RunArgs,
};
#[cfg(feature = "run")]
use super::{generate_args::GenerateArgs, train_args::TrainArgs};

const EXAMPLES: &str = "\
Examples:
  partition model.onnx --devices 4xa100-80g                    plan, and print a summary
  partition model.json --devices 'cpu+2xcuda[6x1000MB]' -o plan.json
  partition model.onnx --devices 2xl4-24g --objective latency --pin 'decoder*=cuda1'
  partition check plan.json                                    prove a plan sound
  partition check model.onnx                                   list what is not supported
  partition run model.onnx --devices 'cpu[3x1MB]' --inputs in.npz --outputs out.npz

Device specifications:
  GROUP + GROUP + ...    GROUP is [COUNT x] KIND [SLICES] [: KEY=VALUE, ...]
  2xcuda[6x1000MB]       two GPUs, each cut into six virtual devices of 1000 MB
  4xa100-80g:memory=60MB four A100, 60 MB of each usable
  cluster.toml           a file with the same content

Exit codes: 0 done, 1 failed, 2 usage, 3 no plan exists or none was found,
130 and 143 ended by SIGINT or SIGTERM, with its state saved. Ctrl-C ends a
search for a plan with the best one so far: that is 0.";

/// Splits a neural network over several devices: plans, proves and runs it.
#[derive(Parser, Debug)]
#[command(name = "partition", version, about, after_help = MORE, after_long_help = EXAMPLES)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    subcommand_negates_reqs = true
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) plan: PlanArgs,
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Run a model or an existing plan; write or compare its outputs
    Run(Box<RunArgs>),
    /// Train a model on several devices
    #[cfg(feature = "run")]
    Train(Box<TrainArgs>),
    /// Generate text from a prompt with a language model on several devices
    #[cfg(feature = "run")]
    Generate(Box<GenerateArgs>),
    /// Prove a plan sound, or list what a model has that is not supported
    Check(CheckArgs),
    /// Write a plan's placement in another tool's format
    Export(ExportArgs),
    /// Write a cost graph in its binary form, or as JSON
    Convert(ConvertArgs),
    /// Explain a plan: what bounds it, and what a node would cost elsewhere
    Explain(ExplainArgs),
    /// Show what differs between two plans, and what it costs
    Diff(DiffArgs),
    /// Print this machine's devices as a specification file
    Devices(DevicesArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}
