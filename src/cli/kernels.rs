//! `--emit kernels`, of plans and of runs: what each group becomes on its device.

use std::collections::BTreeSet;

use crate::compile::Network;
use crate::emit;
use crate::error::Result;
use crate::kernel::GroupId;
use crate::plan::Plan;
use crate::topology::Engine;

/// Sources and launches of groups on GPUs; of those on CPUs their programs, and what the executor runs of them.
///
/// Errors: those of lowering, printing and compiling a group.
pub(super) fn kernels(network: &Network, plan: &Plan) -> Result<String> {
    let topology = &plan.topology;
    let cpus: BTreeSet<&str> = topology
        .ids()
        .filter(|&id| topology.device(id).engine() == Engine::Cpu)
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
