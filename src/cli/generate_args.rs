//! The options of `generate` as clap reads them.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::args::{ExecArgs, ModelArgs, PlacementArgs, Terminal};

#[derive(Args, Debug, Clone)]
#[command(group = ArgGroup::new("text").required(true))]
#[command(after_help = "\
Examples:
  partition generate llama/ -d 2xcpu --prompt 'Once upon a time'
  partition generate llama/ -d 2xcpu --tokens 1,306,4658 --max-tokens 100
  partition generate config.json -d cpu --init seed=1 --tokens 1,2,3 --context 256
  partition generate llama/ -d 'cpu[2x8GB]' --tokens 1,306 --temperature 0.8 --top-p 0.9 --seed 7")]
pub(super) struct GenerateArgs {
    /// A decoder: a transformers config.json or its folder, or another model whose sequence is open
    #[arg(value_name = "MODEL")]
    pub(super) model: PathBuf,
    /// Prompt, as text; needs a tokenizer.json beside the model
    #[arg(help_heading = "Generation", long, value_name = "TEXT", group = "text")]
    pub(super) prompt: Option<String>,
    /// Prompt, as token numbers; tokens are then printed as numbers
    #[arg(help_heading = "Generation", long, value_name = "1,2,3", value_delimiter = ',', group = "text")]
    pub(super) tokens: Vec<i64>,
    /// Maximum number of tokens to generate; 128, or what the model's files say
    #[arg(help_heading = "Generation", long, value_name = "N")]
    pub(super) max_tokens: Option<usize>,
    /// Tokens of the prompt that one step takes, by a plan of its own
    #[arg(help_heading = "Generation", long, value_name = "N", default_value_t = 128)]
    pub(super) block: usize,
    /// Sampling temperature; 0 takes the likeliest token
    #[arg(help_heading = "Generation", long, value_name = "T", default_value_t = 0.0)]
    pub(super) temperature: f32,
    /// Sample from this many of the likeliest tokens; 0 takes all
    #[arg(help_heading = "Generation", long, value_name = "K")]
    pub(super) top_k: Option<usize>,
    /// Sample from the likeliest tokens that together have this probability
    #[arg(help_heading = "Generation", long, value_name = "P")]
    pub(super) top_p: Option<f32>,
    #[command(flatten)]
    pub(super) exec: ExecArgs,
    #[command(flatten)]
    pub(super) shape: ModelArgs,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    /// Map a planned device to a real one (repeatable)
    #[arg(help_heading = "Running", hide_short_help = true, long, value_name = "PLANNED=REAL")]
    pub(super) map: Vec<String>,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}
