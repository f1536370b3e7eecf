//! The command line: arguments in, results on stdout, everything else on stderr, an exit code
//! that means something.

mod args;
#[cfg(feature = "run")]
mod calibrate;
mod check;
mod devices;
mod explain;
mod infeasible;
mod kernels;
#[cfg(feature = "run")]
mod machine;
mod model;
mod options;
mod plan;
mod planning;
mod plans;
#[cfg(feature = "run")]
mod run;
mod score;
#[cfg(feature = "run")]
mod stats;
mod terminal;
#[cfg(feature = "run")]
mod train;
#[cfg(feature = "run")]
mod train_args;
#[cfg(feature = "run")]
mod train_ensemble;
#[cfg(feature = "run")]
mod train_logs;
#[cfg(feature = "run")]
mod train_table;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::error::Result;
use args::{Cli, Command};
use terminal::Console;

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and succeed; clap knows which is which.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match dispatch(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(cli: &Cli) -> Result<()> {
    match &cli.command {
        None => plan::plan(&cli.plan, &Console::new(&cli.plan.terminal)),
        Some(Command::Check(args)) => check::check(args, &Console::new(&args.terminal)),
        Some(Command::Export(args)) => plans::export(args, &Console::new(&args.terminal)),
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
            calibrate::calibrate(args, &Console::new(&args.terminal))
        }
        #[cfg(feature = "run")]
        Some(Command::Run(args)) if args.emit == Some(args::RunEmit::Kernels) => {
            kernels::of_run(args, &Console::new(&args.terminal))
        }
        #[cfg(feature = "run")]
        Some(Command::Run(args)) => run::run(args, &Console::new(&args.terminal)),
        #[cfg(feature = "run")]
        Some(Command::Train(args)) => train::train(args, &Console::new(&args.terminal)),
        #[cfg(not(feature = "run"))]
        Some(Command::Run(_)) => {
            Err(crate::Error::usage("run", "this build only plans").with_help("build with feature `run`"))
        }
    }
}
