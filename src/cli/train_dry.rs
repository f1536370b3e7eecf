//! `partition train --dry-run`: the step planned, proven, printed and written, and nothing trained.

use super::deliver::summary;
use super::model::ModelFile;
use super::planning::{Search, searching};
use super::terminal::Console;
use super::train_args::TrainArgs;
use super::train_table::{layer_table, memory_table, report_plan};
use crate::error::Result;
use crate::ir::Graph;
use crate::topology::Topology;
use crate::train::{self, DryRun};

pub(super) fn dry_run(
    (args, search): (&TrainArgs, Search),
    graph: Graph,
    topology: &Topology,
    options: &train::Options,
    file: &ModelFile,
    console: &Console,
) -> Result<()> {
    let DryRun { layers, compiled } = searching(search, &args.placement, console, |control| {
        train::dry_run(graph, topology, options, control).map_err(|error| error.within(&file.name()))
    })?;
    console.print(&layer_table(&layers, console.width()))?;
    console.print(&summary(&compiled, &options.compile, Vec::new()).text())?;
    console.print(&memory_table(&compiled.plan, console.width()))?;
    report_plan(args, &compiled.plan, console)?;
    console.print("the plan is sound; nothing was trained\n")
}
