//! The command line: parses arguments, writes results to stdout and everything else to stderr, and maps
//! each kind of error to an exit code.

mod args;
#[cfg(feature = "run")]
mod arrays;
#[cfg(feature = "run")]
mod calibrate;
mod check;
mod command_line;
mod commands;
mod convert;
mod deliver;
mod destinations;
mod devices;
mod explain;
mod fit;
#[cfg(feature = "run")]
mod generate;
#[cfg(feature = "run")]
mod generate_args;
mod infeasible;
mod kernels;
#[cfg(feature = "run")]
mod machine;
mod model;
mod modes;
mod notes;
mod onnx_parts;
mod options;
mod plan;
mod planning;
mod plans;
#[cfg(feature = "run")]
mod predicted;
#[cfg(feature = "run")]
mod run;
#[cfg(feature = "run")]
mod sample;
#[cfg(feature = "run")]
mod sampling;
mod score;
mod shared_cores;
mod signals;
#[cfg(feature = "run")]
mod stats;
mod terminal;
#[cfg(feature = "run")]
mod tokens;
#[cfg(feature = "run")]
mod train;
#[cfg(feature = "run")]
mod train_args;
#[cfg(feature = "run")]
mod train_before;
#[cfg(feature = "run")]
mod train_data;
#[cfg(feature = "run")]
mod train_dry;
#[cfg(feature = "run")]
mod train_ensemble;
#[cfg(feature = "run")]
mod train_logs;
#[cfg(feature = "run")]
mod train_options;
#[cfg(feature = "run")]
mod train_table;
#[cfg(feature = "run")]
mod train_watch;
mod values;
#[cfg(feature = "run")]
mod weights;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::error::{Error, Result};
use command_line::{Cli, Command};
use modes::Explicit;
use terminal::Console;

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    let mut command = with_negative_numbers(Cli::command());
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(error) = commands::mistyped(&command, &arguments) {
        return failed(&error);
    }
    let parsed = command.try_get_matches_from_mut(arguments);
    let (cli, explicit) = match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches))) {
        Ok((cli, matches)) => (cli, explicit(&command, &matches)),
        Err(error) => return explained(&error),
    };
    signals::listen();
    match (dispatch(&cli, &explicit), signals::exit_code()) {
        (Ok(()), _) => ExitCode::SUCCESS,
        // What a signal ended has said so.
        (Err(Error::Cancelled), Some(code)) => ExitCode::from(code),
        (Err(error), _) => failed(&error),
    }
}

/// Lets numbers below 0 reach the options, which say what is wrong with them.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |argument: clap::Arg| {
        let is_option = argument.get_action().takes_values() && !argument.is_positional();
        if is_option { argument.allow_negative_numbers(true) } else { argument }
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

/// Prints what clap says of the arguments: help and version go to stdout and succeed, clap knows which is which.
fn explained(error: &clap::Error) -> ExitCode {
    use std::io::Write;
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match (error.use_stderr(), printed) {
        (true, _) => ExitCode::from(2),
        (false, Err(fault)) if fault.kind() != std::io::ErrorKind::BrokenPipe => {
            failed(&Error::io("stdout", fault))
        }
        (false, _) => ExitCode::SUCCESS,
    }
}

fn failed(error: &Error) -> ExitCode {
    terminal::report(error);
    ExitCode::from(error.exit_code())
}

/// The options that stand on the command line, of the subcommand where there is one.
fn explicit(command: &clap::Command, matches: &ArgMatches) -> Explicit {
    let inner = matches.subcommand().and_then(|(name, inner)| Some((command.find_subcommand(name)?, inner)));
    match inner {
        Some((command, matches)) => Explicit::of(command, matches),
        None => Explicit::of(command, matches),
    }
}

fn dispatch(cli: &Cli, explicit: &Explicit) -> Result<()> {
    match &cli.command {
        None => plan::plan(&cli.plan, explicit, &Console::new(&cli.plan.terminal)),
        Some(Command::Check(args)) => check::check(args, explicit, &Console::new(&args.terminal)),
        Some(Command::Export(args)) => plans::export(args, &Console::new(&args.terminal)),
        Some(Command::Convert(args)) => convert::convert(args, &Console::new(&args.terminal)),
        Some(Command::Diff(args)) => plans::diff(args, &Console::new(&args.terminal)),
        Some(Command::Explain(args)) => explain::explain(args, &Console::new(&args.terminal)),
        Some(Command::Devices(args)) => devices::devices(args, &Console::new(&args.terminal)),
        Some(Command::Completions(args)) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "partition", &mut script);
            terminal::write_stdout(&script)
        }
        #[cfg(feature = "run")]
        Some(Command::Run(args)) if args.calibrate => {
            calibrate::calibrate(args, explicit, &Console::new(&args.terminal))
        }
        #[cfg(feature = "run")]
        Some(Command::Run(args)) if args.emit == Some(args::RunEmit::Kernels) => {
            run::emit_kernels(args, explicit, &Console::new(&args.terminal))
        }
        #[cfg(feature = "run")]
        Some(Command::Run(args)) => run::run(args, explicit, &Console::new(&args.terminal)),
        #[cfg(feature = "run")]
        Some(Command::Train(args)) => train::train(args, &Console::new(&args.terminal)),
        #[cfg(feature = "run")]
        Some(Command::Generate(args)) => generate::generate(args, &Console::new(&args.terminal)),
        #[cfg(not(feature = "run"))]
        Some(Command::Run(_)) => {
            Err(crate::Error::usage("run", "this build only plans").with_help("build with feature `run`"))
        }
    }
}
