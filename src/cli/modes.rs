//! Options that a command does not use in one of its modes are errors there; none is ignored.
//!
//! A mode lists the options that it uses, so a new option is refused by every mode that does not list it.

use clap::ArgMatches;
use clap::parser::ValueSource;

#[cfg(feature = "run")]
use super::args::{RunArgs, RunEmit};
use crate::error::{Error, Result};

/// The options that stand on the command line.
#[derive(Debug, Default)]
pub(super) struct Explicit(Vec<Stated>);

#[derive(Debug)]
struct Stated {
    /// The argument's id: the name of its field.
    id: String,
    /// `--batch`, or the name of a value without one.
    shown: String,
}

impl Explicit {
    /// Those of the command that these are the matches of.
    pub(super) fn of(command: &clap::Command, matches: &ArgMatches) -> Self {
        let stated = command.get_arguments().filter(|arg| {
            let id = arg.get_id().as_str();
            matches.ids().any(|one| one.as_str() == id)
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        });
        let stated = stated.map(|arg| Stated {
            id: arg.get_id().as_str().to_owned(),
            shown: arg.get_long().map_or_else(|| arg.get_id().to_string(), |long| format!("--{long}")),
        });
        Self(stated.collect())
    }

    /// Error: an option is none of `heeded`, nor one that all commands have.
    pub(super) fn only(&self, heeded: &[&[&str]], message: &str, help: &str) -> Result<()> {
        let heeds = |stated: &&Stated| {
            heeded.iter().chain(&[TERMINAL]).any(|list| list.contains(&stated.id.as_str()))
        };
        match self.0.iter().find(|stated| !heeds(stated)) {
            None => Ok(()),
            Some(stated) => Err(Error::usage(&stated.shown, message).with_help(help)),
        }
    }
}

/// What every command has.
const TERMINAL: &[&str] = &["quiet", "progress", "color", "allow_outside"];

/// What a search for devices heeds. Devices have no names before they are found, so none is pinned to or counted.
const FIT: &[&str] = &[
    "model",
    "fit",
    "target",
    "budget",
    "batch",
    "context",
    "dims",
    "precision",
    "weights_as",
    "weights",
    "adapter",
    "with_inputs",
    "colocate",
    "rules",
    "keep_whole",
    "exact",
    "balance",
    "soft",
    "reserve",
    "effort",
    "profile",
    "seed",
    "time_limit",
    "memory_limit",
    "threads",
    "emit",
    "output",
];

/// Error: an option that a search for devices does not heed.
pub(super) fn check_fit(explicit: &Explicit) -> Result<()> {
    explicit.only(
        &[FIT],
        "--fit seeks the devices, for plans that --target times",
        "leave it out, or plan for the devices that --fit finds",
    )
}

/// What the planning of a cost graph heeds: it has times and sizes in place of operations.
const COST_GRAPH: &[&str] = &[
    "model",
    "devices",
    "fit",
    "target",
    "budget",
    "microbatches",
    "schedule",
    "objective",
    "use_devices",
    "pins",
    "colocate",
    "rules",
    "balance",
    "soft",
    "reserve",
    "effort",
    "time_limit",
    "until",
    "memory_limit",
    "profile",
    "seed",
    "threads",
    "score",
    "from",
    "stability",
    "emit",
    "output",
];

/// Error: an option that the planning of a cost graph does not heed, or a rule that divides an operation.
pub(super) fn check_cost_graph(explicit: &Explicit, rules: &[String]) -> Result<()> {
    let help = "leave it out; the costs are those of the graph";
    explicit.only(
        &[COST_GRAPH],
        "a cost graph has its sizes and times, and no operations or weights",
        help,
    )?;
    match rules.iter().find(|rule| !matches!(rule.as_str(), "auto" | "none")) {
        None => Ok(()),
        Some(rule) => {
            let message = "a cost graph has no operations that could be divided";
            Err(Error::usage(format!("--split {rule}"), message).with_help("leave it out"))
        }
    }
}

/// What shapes a network before it is planned.
#[cfg(feature = "run")]
const SHAPE: &[&str] = &[
    "context",
    "batch",
    "microbatches",
    "schedule",
    "dims",
    "precision",
    "weights_as",
    "weights",
    "adapter",
    "with_inputs",
];

/// What a placement must respect, and how it is sought.
#[cfg(feature = "run")]
const PLACEMENT: &[&str] = &[
    "objective",
    "use_devices",
    "pins",
    "colocate",
    "rules",
    "exact",
    "keep_whole",
    "balance",
    "soft",
    "reserve",
    "effort",
    "profile",
    "seed",
];

/// How much work planning may be; where planning is done once and not as a part of something else.
#[cfg(feature = "run")]
const SEARCH: &[&str] = &["until", "time_limit", "memory_limit", "threads"];

/// What runs: neither how it was planned nor what for.
#[cfg(feature = "run")]
const RUNNING: &[&str] = &[
    "model",
    "inputs",
    "outputs",
    "expect",
    "rtol",
    "atol",
    "backend",
    "steps",
    "stats",
    "map",
    "trace",
    "json",
    "init",
    "timeout",
    "simulate_hosts",
];

/// What belongs to the network of a plan: its file, its weights, and a precision to compare with the plan's.
#[cfg(feature = "run")]
const OF_PLAN: &[&str] = &["model", "plan_model", "weights", "adapter", "precision", "weights_as"];

/// Error: an option that a run of this kind does not heed.
#[cfg(feature = "run")]
pub(super) fn check_run(args: &RunArgs, explicit: &Explicit, is_plan: bool) -> Result<()> {
    let planned = "a plan is taken as it was made";
    let anew =
        "plan the model again with it (partition MODEL ... -o PLAN), or give the model in the plan's place";
    let no_run = "nothing is run here";
    let leave = "leave it out";
    match (args.calibrate, args.emit, is_plan) {
        (true, _, _) if args.model.is_none() => explicit.only(
            &[&["calibrate", "output"]],
            "the machine is measured, without a model",
            "give a model or a plan to measure, or leave it out",
        ),
        (true, _, true) => explicit
            .only(
                &[
                    OF_PLAN,
                    SHAPE,
                    PLACEMENT,
                    SEARCH,
                    &["devices", "inputs", "init", "map", "calibrate", "output"],
                ],
                "kernels are measured, each on its own",
                leave,
            )
            .and_then(|()| {
                explicit.only(&[OF_PLAN, &["inputs", "init", "map", "calibrate", "output"]], planned, anew)
            }),
        (true, _, false) => explicit.only(
            &[SHAPE, PLACEMENT, &["model", "devices", "inputs", "init", "calibrate", "output"]],
            "kernels are measured, each on its own",
            leave,
        ),
        (false, Some(RunEmit::Kernels), true) => explicit
            .only(&[OF_PLAN, SHAPE, PLACEMENT, SEARCH, &["devices", "inputs", "emit"]], no_run, leave)
            .and_then(|()| explicit.only(&[OF_PLAN, &["inputs", "emit"]], planned, anew)),
        (false, Some(RunEmit::Kernels), false) => {
            explicit.only(&[SHAPE, PLACEMENT, SEARCH, &["model", "devices", "inputs", "emit"]], no_run, leave)
        }
        (false, None, true) => explicit.only(&[RUNNING, OF_PLAN], planned, anew),
        (false, None, false) => explicit.only(
            &[RUNNING, SHAPE, PLACEMENT, SEARCH, &["devices"]],
            "this is a model, not a plan",
            "a plan is run with --model MODEL; give the model alone, or a plan; results are written by --outputs FILE",
        ),
    }
}
