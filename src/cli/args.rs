//! The options of each command as clap reads them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::files::Links;
use crate::place::{Effort, Objective};
use crate::strategy::pipeline::Order;

/// Stands below the common options.
pub(super) const MORE: &str = "These are the common options; --help lists all, with examples.";

#[derive(Args, Debug, Clone, Copy)]
#[command(next_help_heading = "Terminal")]
pub(super) struct Terminal {
    /// Print only errors
    #[arg(hide_short_help = true, long, short, global = true)]
    pub(super) quiet: bool,
    /// Show progress on stderr if it takes longer than a second
    #[arg(hide_short_help = true, long, value_name = "WHEN", default_value = "auto", global = true)]
    pub(super) progress: When,
    /// Colour messages
    #[arg(hide_short_help = true, long, value_name = "WHEN", default_value = "auto", global = true)]
    pub(super) color: When,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Auto,
    Always,
    Never,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emit {
    /// Table of the devices, and the plan's costs
    Summary,
    /// The same as JSON
    SummaryJson,
    /// The plan as JSON
    Plan,
    /// The plan as text
    Text,
    /// The network after simplification
    Ir,
    /// The nodes of each kernel
    Groups,
    /// The kernels: CUDA C and launch sizes for CUDA devices; for others, programs with their tiles and parts
    Kernels,
    /// The cost graph: JSON, or binary in a file that ends in .pcg
    Costgraph,
    /// The placed network, for Graphviz
    Dot,
    /// The simulated step as a Chrome trace (for Perfetto): lanes, links, memory
    Trace,
    /// What each device does when, as text
    Timeline,
    /// Devices, timeline, memory and placement as one HTML page
    Html,
}

/// What a run prints instead of running.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEmit {
    /// As `partition MODEL --emit kernels`
    Kernels,
}

/// How many samples a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batch {
    Samples(i64),
    /// As many as fit.
    Max,
}

impl std::str::FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            _ => text.parse().map(Self::Samples).map_err(|_| "expected a number, or max".to_owned()),
        }
    }
}

/// In what products are computed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum PrecisionArg {
    /// As the model has it
    #[default]
    F32,
    /// 16 bits with the range of f32
    Bf16,
    /// 16 bits with three more bits of precision, up to 65504
    F16,
}

/// How matrices of weights are held.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightsArg {
    /// Numbers of 32 bits, also of blocks in a GGUF file
    #[value(name = "f32")]
    F32,
    /// 8 bits, with a scale per 32 weights
    #[value(name = "q8_0")]
    Q8,
    /// 4 bits, with a scale per 32 weights
    #[value(name = "q4_0")]
    Q4,
}

/// Which files a model may name.
#[derive(Args, Debug, Clone, Copy, Default)]
#[command(next_help_heading = "Model")]
pub(super) struct TrustArgs {
    /// Let a model name files outside its folder: `..`, absolute paths, links
    #[arg(hide_short_help = true, long)]
    pub(super) allow_outside: bool,
}

impl TrustArgs {
    pub(super) fn links(self) -> Links {
        if self.allow_outside { Links::Outside } else { Links::Inside }
    }
}

/// What shapes a network before it is planned.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelArgs {
    /// Batch size; max: the largest that fits with whole operations, or in parts where none does
    #[arg(long, value_name = "N|max")]
    pub(super) batch: Option<Batch>,
    /// Divide the step into this many microbatches, which pipeline stages work on at the same time
    #[arg(hide_short_help = true, long, value_name = "M")]
    pub(super) microbatches: Option<u32>,
    /// How a pipeline orders its microbatches [default: auto]
    #[arg(hide_short_help = true, long, value_enum, requires = "microbatches")]
    pub(super) schedule: Option<Order>,
    /// Size of a named dimension (repeatable)
    #[arg(long = "dim", value_name = "NAME=N")]
    pub(super) dims: Vec<String>,
    /// Tokens that a decoder's caches hold; each step then takes only the next tokens
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(super) context: Option<i64>,
    /// Type of products, convolutions and attention
    ///
    /// That of their operands; sums are in f32, and operations that need the range stay in f32.
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f32")]
    pub(super) precision: PrecisionArg,
    /// How weight matrices are held [default: as they are supplied, also in blocks of a GGUF file]
    ///
    /// Quantised when they are loaded, or f32. Those of 4096 numbers and more are packed that only products read, with
    /// whole blocks of terms per sum, and look-ups of rows. Products read them packed.
    #[arg(hide_short_help = true, long = "weights-as", value_enum, value_name = "FORMAT")]
    pub(super) weights_as: Option<WeightsArg>,
    /// Weights file
    ///
    /// npz, safetensors, an index of shards, Keras .h5 or .keras [default for a transformers config.json:
    /// model.safetensors beside it]
    #[arg(long, value_name = "FILE")]
    pub(super) weights: Option<PathBuf>,
    /// Merge a LoRA adapter into the weights of a transformers model [default: the one beside its weights]
    #[arg(hide_short_help = true, long, value_name = "FOLDER")]
    pub(super) adapter: Option<PathBuf>,
    /// Give a transformers model an optional input: attention_mask, token_type_ids, position_ids (repeatable;
    /// implied by --inputs)
    #[arg(hide_short_help = true, long = "with-input", value_name = "NAME")]
    pub(super) with_inputs: Vec<String>,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
}

/// Where a model runs, from what, and how long.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Placement")]
pub(super) struct ExecArgs {
    /// Devices to run on [default: cpu]
    #[arg(long, short, value_name = "SPEC")]
    pub(super) devices: Option<String>,
    /// Generate weights and inputs that are not given
    ///
    /// [default for training: the seed of --seed]
    #[arg(help_heading = "Model", long, value_name = "seed=N")]
    pub(super) init: Option<String>,
    /// Fail if a step takes longer than this (30s, 500ms)
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    pub(super) timeout: Option<String>,
    /// Run the devices of all hosts on this machine
    #[arg(hide_short_help = true, long)]
    pub(super) simulate_hosts: bool,
}

/// What a placement must respect.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Placement")]
pub(super) struct PlacementArgs {
    /// What to minimise [default: transfer; of a pipeline, latency]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) objective: Option<Objective>,
    /// Devices to use: N, all or auto
    ///
    /// That many devices compute something.
    #[arg(long = "use", value_name = "N", default_value = "auto")]
    pub(super) use_devices: String,
    /// Put matching nodes on this device (repeatable)
    ///
    /// Of several that match a node, the last counts. `NODE[1/2]=DEVICE` puts the second of two parts there, of what --split
    /// divides.
    #[arg(long = "pin", value_name = "PATTERN=DEVICE")]
    pub(super) pins: Vec<String>,
    /// Keep nodes that match the pattern on one device (repeatable)
    #[arg(hide_short_help = true, long, value_name = "PATTERN")]
    pub(super) colocate: Vec<String>,
    /// Limit each device's compute time to (1+EPS) of its fair share
    #[arg(hide_short_help = true, long, value_name = "EPS")]
    pub(super) balance: Option<f64>,
    /// Let a node that its device cannot run fall back to one that can
    #[arg(hide_short_help = true, long)]
    pub(super) soft: bool,
    /// Memory to keep free on each device
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    pub(super) reserve: Option<String>,
    /// How much work to spend on planning
    ///
    /// Work is counted, not timed: the same input gives the same plan. `best` also does the work of `default` and is
    /// never worse. Each method's work is near-linear in nodes and edges, or ends at a count that does not grow with
    /// them. `best` took 9 to 36 times the processor time of `default` on graphs of 1,000 nodes, 12 to 19 times on
    /// graphs of 3,500 and 10,000.
    #[arg(hide_short_help = true, long, value_enum, default_value = "default")]
    pub(super) effort: Effort,
    /// Stop improving the plan after this time (10s, 500ms); the plan says that it was cut short
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    pub(super) time_limit: Option<String>,
    /// Stop once no plan can be better by more than this (gap<1%)
    ///
    /// Runs the efforts up to --effort in turn, the smallest first, until the proven gap is that small. A search for the
    /// fewest bytes also ends within an effort, once the bound of the effort before proves that. The gap is that to all
    /// plans which --split allows: where operations may be split, by what no plan is below whatever it splits (`peaks`);
    /// for bytes nothing is known of these, so that the search ends early with --split none, or rules, alone.
    #[arg(hide_short_help = true, long, value_name = "GAP")]
    pub(super) until: Option<String>,
    /// Memory that the search may use beyond the graph and the plan; the plan says that it was cut short
    ///
    /// Without it nothing is cut short, and searches go side by side as long as their tables take less than 512 MiB.
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    pub(super) memory_limit: Option<String>,
    /// Times measured by `partition run --calibrate`
    ///
    /// They replace estimates.
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Seed of random choices
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Threads to plan with; results do not depend on it [default: all cores]
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(super) threads: Option<usize>,
}

/// What is split over devices.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Placement")]
pub(super) struct SplitArgs {
    /// Split operations: auto, none, or matching nodes along an axis (repeatable)
    ///
    /// auto (the default) splits what fits on no device, and with --objective latency or throughput also what makes a
    /// step faster (of a training step with --parallel split or auto). AXIS is an axis of the result (negative: from the last) or `sum`. With rules, nothing else is split
    /// unless `auto` is given too.
    #[arg(hide_short_help = true, long = "split", value_name = "PATTERN=AXIS:PARTS[@DEV,...]")]
    pub(super) rules: Vec<String>,
    /// Split no sums, so that results have the bits of one device
    #[arg(hide_short_help = true, long)]
    pub(super) exact: bool,
    /// Keep nodes under a prefix whole, on one device (repeatable)
    ///
    /// Prefixes end before a `/` or `.`; the shortest that matches counts: `encoder/layer_*`.
    #[arg(hide_short_help = true, long, value_name = "PATTERN")]
    pub(super) keep_whole: Vec<String>,
}

#[derive(Args, Debug, Clone)]
pub(super) struct PlanArgs {
    /// Model file, or - for stdin
    ///
    /// ONNX, Keras JSON, model.json, transformers config.json or its folder, .pt2 of torch.export, cost
    /// graph, torch.fx JSON, placement workload.
    #[arg(value_name = "MODEL", required = true)]
    pub(super) model: Option<PathBuf>,
    /// Devices to plan for, or a TOML or JSON file
    #[arg(help_heading = "Placement", long, short, value_name = "SPEC")]
    pub(super) devices: Option<String>,
    /// Find the cheapest devices in a catalogue (TOML) that reach --target
    ///
    /// docs/devices.md describes the file, examples/catalogue.toml is one. `--split none` keeps operations whole, of
    /// which more is proven. `--emit html`
    /// plots speed against price, `--emit summary-json` lists the sets.
    #[arg(
        help_heading = "Placement",
        hide_short_help = true,
        long,
        value_name = "CATALOGUE",
        requires = "target"
    )]
    pub(super) fit: Option<PathBuf>,
    /// What --fit must reach: latency<30ms, throughput>200/s, batch>=64
    ///
    /// Throughput counts samples of --batch; without it, steps.
    #[arg(help_heading = "Placement", hide_short_help = true, long, value_name = "TARGET", requires = "fit")]
    pub(super) target: Option<String>,
    /// Most that the devices of --fit may cost per hour ('$12/h')
    #[arg(help_heading = "Placement", hide_short_help = true, long, value_name = "PRICE", requires = "fit")]
    pub(super) budget: Option<String>,
    #[command(flatten)]
    pub(super) shape: ModelArgs,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) split: SplitArgs,
    /// Give each of this many devices a replica of the network, for its part of the batch
    ///
    /// As `--split '*=0:N@...'` with the first N devices: nodes without a batch, or whose first axis does not divide, stay
    /// whole.
    #[arg(
        help_heading = "Placement",
        hide_short_help = true,
        long,
        value_name = "N",
        conflicts_with_all = ["rules", "score", "microbatches"]
    )]
    pub(super) replicas: Option<u32>,
    /// Check and time this placement instead of planning
    ///
    /// A JSON map from names to devices, a plan, or an Accelerate device_map.
    #[arg(help_heading = "Placement", hide_short_help = true, long, value_name = "FILE")]
    pub(super) score: Option<PathBuf>,
    /// A plan or placement to replace: the new plan moves little state (parameters), and lists it
    #[arg(
        help_heading = "Placement",
        hide_short_help = true,
        long,
        value_name = "OLD_PLAN",
        conflicts_with = "score"
    )]
    pub(super) from: Option<PathBuf>,
    /// Most state to move (500MB), or its weight in the objective (0.5) [default: 0.01]
    #[arg(
        help_heading = "Placement",
        hide_short_help = true,
        long,
        value_name = "BYTES|WEIGHT",
        requires = "from",
        conflicts_with = "score"
    )]
    pub(super) stability: Option<String>,
    /// What to print
    #[arg(help_heading = "Output", long, value_enum, value_name = "WHAT")]
    pub(super) emit: Option<Emit>,
    /// Write to a file what --emit says; without it the plan if the name ends in .json or .json.gz (compressed), the cost graph if in .pcg
    #[arg(help_heading = "Output", short, long, value_name = "PATH")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
#[command(after_help = MORE, after_long_help = "\
Examples:
  partition run model.onnx --inputs in.npz --outputs out.npz
  partition run plan.json --inputs io.npz --expect io.npz      compare with stored outputs
  partition run model.json --devices '2xcpu[6x1000MB]' --use all --init seed=1
  partition run --calibrate -o machine.json                    what this machine reaches
  partition run model.onnx -d 2xcpu:cores=1 --calibrate -o profile.json
  partition run model.onnx -d 2xcpu:cores=1 --profile profile.json")]
pub(super) struct RunArgs {
    /// A model, or an existing plan
    #[arg(value_name = "MODEL|PLAN", required_unless_present = "calibrate")]
    pub(super) model: Option<PathBuf>,
    /// The plan's model, if it is not where the plan says
    #[arg(help_heading = "Running", hide_short_help = true, long = "model", value_name = "MODEL")]
    pub(super) plan_model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) exec: ExecArgs,
    #[command(flatten)]
    pub(super) shape: ModelArgs,
    #[command(flatten)]
    pub(super) placement: PlacementArgs,
    #[command(flatten)]
    pub(super) split: SplitArgs,
    /// Inputs by name (npz); numbers of any width
    #[arg(help_heading = "Arrays", long, value_name = "F.npz")]
    pub(super) inputs: Option<PathBuf>,
    /// File to write outputs to (npz, bf16 as f32; .safetensors)
    #[arg(help_heading = "Arrays", long, value_name = "F.npz")]
    pub(super) outputs: Option<PathBuf>,
    /// Expected outputs (npz); a mismatch is a failure
    #[arg(help_heading = "Arrays", long, value_name = "F.npz")]
    pub(super) expect: Option<PathBuf>,
    /// Relative tolerance of the comparison
    #[arg(
        help_heading = "Arrays",
        hide_short_help = true,
        long,
        value_name = "R",
        default_value_t = 1e-4,
        requires = "expect"
    )]
    pub(super) rtol: f64,
    /// Absolute tolerance of the comparison
    #[arg(
        help_heading = "Arrays",
        hide_short_help = true,
        long,
        value_name = "A",
        default_value_t = 1e-5,
        requires = "expect"
    )]
    pub(super) atol: f64,
    /// What to run on
    #[arg(help_heading = "Running", hide_short_help = true, long, value_enum, default_value = "auto")]
    pub(super) backend: Backend,
    /// Number of steps to run; the median time is reported
    #[arg(help_heading = "Running", long, visible_alias = "repeat", value_name = "N", default_value_t = 1)]
    pub(super) steps: u32,
    /// Print each step's predicted and measured time
    ///
    /// And its rates, also as fractions of the device's peak.
    #[arg(help_heading = "Output", long, conflicts_with = "json")]
    pub(super) stats: bool,
    /// Print the plan's kernels and run nothing; needs no weights
    #[arg(help_heading = "Output", hide_short_help = true, long, value_enum, conflicts_with_all = ["stats", "json", "outputs", "expect", "trace"])]
    pub(super) emit: Option<RunEmit>,
    /// Map a planned device to a real one (repeatable)
    #[arg(help_heading = "Running", hide_short_help = true, long, value_name = "PLANNED=REAL")]
    pub(super) map: Vec<String>,
    /// Write a Chrome trace (for Perfetto) of the step of median time
    #[arg(help_heading = "Output", hide_short_help = true, long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Measure this machine, or the kernels of a model
    ///
    /// Writes a profile to -o, for --profile.
    #[arg(help_heading = "Output", long, conflicts_with_all = ["outputs", "expect", "json", "trace"])]
    pub(super) calibrate: bool,
    /// File to write the profile of --calibrate to [default: standard output]
    #[arg(help_heading = "Output", short, long, value_name = "PATH", requires = "calibrate")]
    pub(super) output: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(help_heading = "Output", long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Auto,
    Cpu,
    Cuda,
}

#[derive(Args, Debug, Clone)]
pub(super) struct CheckArgs {
    /// A plan or a model
    #[arg(value_name = "PLAN|MODEL")]
    pub(super) file: PathBuf,
    /// The plan's model, to check its hash and sizes too
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    /// Size of a named dimension, for a model (repeatable)
    #[arg(long = "dim", value_name = "NAME=N")]
    pub(super) dims: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
pub(super) struct ExportArgs {
    /// The plan
    pub(super) plan: PathBuf,
    /// Format: json, accelerate, dtensor, gspmd or onnx-parts
    ///
    /// onnx-parts makes a folder (--output) of ONNX files that run one after the other, each on one device, and a
    /// manifest.json that lists them in this order.
    #[arg(long, value_name = "NAME")]
    pub(super) format: String,
    /// Model of the plan, for accelerate and onnx-parts [default: the file that was planned]
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    /// Write to a file; for onnx-parts, to a folder
    #[arg(short, long, value_name = "PATH")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  partition convert engine.json -o engine.pcg   read by every command in a small part of the time
  partition convert engine.pcg -o engine.json   and back")]
pub(super) struct ConvertArgs {
    /// A cost graph in either form, a torch.fx graph or a placement workload; - for stdin
    #[arg(value_name = "GRAPH")]
    pub(super) graph: PathBuf,
    /// File to write: .json, or .pcg for the binary form
    #[arg(short, long, value_name = "PATH")]
    pub(super) output: PathBuf,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  partition explain plan.json                  what bounds the plan, what more memory would save
  partition explain plan.json block0/up_proj   why here, what each other device would cost")]
pub(super) struct ExplainArgs {
    /// The plan
    pub(super) plan: PathBuf,
    /// A node of the model: its name, or a prefix or pattern that only its name matches
    pub(super) node: Option<String>,
    /// The model, if it is not where the plan says
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
pub(super) struct DiffArgs {
    /// The old plan
    pub(super) old: PathBuf,
    /// The new plan
    pub(super) new: PathBuf,
    /// The new plan's cost graph, which lists the state that moves (plans of networks list it themselves)
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
pub(super) struct DevicesArgs {
    /// Query the hardware (the default; kept for scripts)
    #[arg(long)]
    pub(super) probe: bool,
    /// Print their links, too (the default; kept for scripts)
    #[arg(long)]
    pub(super) links: bool,
    /// List the presets instead
    #[arg(long, conflicts_with_all = ["spec", "probe", "links", "table"])]
    pub(super) presets: bool,
    /// Explain a specification instead, line by line; with -o as a specification file
    #[arg(long, value_name = "SPEC", conflicts_with = "probe")]
    pub(super) spec: Option<String>,
    /// Print the devices line by line instead of as a specification file
    #[arg(long)]
    pub(super) table: bool,
    /// Write to a file
    #[arg(short, long, value_name = "PATH")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) terminal: Terminal,
}

#[derive(Args, Debug, Clone)]
pub(super) struct CompletionsArgs {
    /// The shell
    pub(super) shell: clap_complete::Shell,
}
