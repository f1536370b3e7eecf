//! `--emit kernels`, of plans and of runs: what each group becomes on its device.

use std::collections::BTreeSet;

use crate::compile::Network;
use crate::emit;
#[cfg(feature = "run")]
use crate::error::Error;
use crate::error::Result;
use crate::kernel::GroupId;
#[cfg(feature = "run")]
use crate::load::Model;
use crate::plan::Plan;

/// `partition run --emit kernels`: of a model planned for the devices given, or of a plan.
///
/// Errors: those of planning, or of reading a plan; of [`kernels`].
#[cfg(feature = "run")]
pub(super) fn of_run(args: &super::args::RunArgs, console: &super::terminal::Console) -> Result<()> {
    use super::run::{Given, Request, from_plan};
    use crate::compile::compile_with;
    let Some(path) = &args.model else {
        return Err(Error::usage("MODEL", "no model is given").with_help("partition run --help"));
    };
    let (file, given) = (super::model::ModelFile::read(path)?, Given::open(args)?);
    let (plan, network) = if Plan::is_json(&file.bytes) {
        from_plan(&file, args, &given, true)?
    } else {
        let Request { graph, topology, options } = Request::new(&file, args, &given, true)?;
        let compiled = super::planning::planning(&args.placement, console, |control| {
            compile_with(Model::Graph(graph), &topology, &options, control)
                .map_err(|error| error.within(&file.name()))
        })?;
        super::plan::tell_assumptions(&compiled, console);
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        (compiled.plan, network)
    };
    super::terminal::write_stdout(kernels(&network, &plan)?.as_bytes())
}

/// Sources and launches of groups on GPUs; of those on CPUs their programs, and what the executor runs of them.
///
/// Errors: those of lowering, printing and compiling a group.
pub(super) fn kernels(network: &Network, plan: &Plan) -> Result<String> {
    let topology = &plan.topology;
    let cpus: BTreeSet<&str> = topology
        .ids()
        .filter(|&id| topology.device(id).kind == "cpu")
        .map(|id| topology.device(id).name.as_str())
        .collect();
    let on_cpu: BTreeSet<&str> = plan
        .placement
        .iter()
        .filter(|(_, device)| cpus.contains(device.as_str()))
        .map(|(node, _)| node.as_str())
        .collect();
    let on_cuda = |group: GroupId| {
        let first = network.grouping.groups[group.index()].nodes.first();
        first.is_none_or(|&node| {
            let source = network.graph.node(node).source;
            !on_cpu.contains(network.graph.source(source).name.as_str())
        })
    };
    let text = emit::listing(&network.graph, &network.grouping, &on_cuda)?;
    #[cfg(feature = "run")]
    let text = {
        let exec = crate::run::exec_plan(plan, &network.graph, &network.grouping)?;
        let is_cpu = |name: &str| cpus.contains(name);
        text + &crate::run::listing(&network.graph, &network.grouping, &exec, &is_cpu)?
    };
    Ok(text)
}
