//! `partition diff` and `partition export`: what is done with plans alone.

use super::args::{DiffArgs, ExportArgs};
use super::terminal::{Console, write_stdout};
use crate::error::Result;
use crate::plan::{self, Plan, write_atomically};

pub(super) fn diff(args: &DiffArgs, console: &Console) -> Result<()> {
    let diff = plan::diff(&Plan::load(&args.old)?, &Plan::load(&args.new)?);
    if args.json {
        return write_stdout(diff.to_json().as_bytes());
    }
    console.print(&diff.to_string())
}

pub(super) fn export(args: &ExportArgs, _console: &Console) -> Result<()> {
    let text = plan::export(&Plan::load(&args.plan)?, &args.format)?;
    match &args.output {
        Some(path) => write_atomically(path, text.as_bytes()),
        None => write_stdout(text.as_bytes()),
    }
}
