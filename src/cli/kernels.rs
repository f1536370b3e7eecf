//! `--emit kernels`, of plans and of runs: what each group becomes on its device.

use std::collections::BTreeMap;

use crate::compile::Network;
use crate::emit::{self, Gives};
use crate::error::Result;
use crate::kernel::GroupId;
use crate::plan::Plan;
use crate::topology::{Engine, Preset};

/// Sources and launches of groups on GPUs; of those on CPUs their programs, and what the executor runs of them.
///
/// Errors: those of lowering, printing and compiling a group.
pub(super) fn kernels(network: &Network, plan: &Plan) -> Result<String> {
    let topology = &plan.topology;
    let devices = topology.by_name();
    let device = |name: &str| devices.get(name).map(|&id| topology.device(id));
    let is_cpu = |name: &str| device(name).is_some_and(|device| device.engine() == Engine::Cpu);
    // What a GPU gives kernels; what all since sm_80 do where nobody says which one it is. None: it is a CPU.
    let gives_of = |name: &str| {
        let kind = device(name).map_or("cuda", |device| &device.kind);
        let architecture = Preset::find(kind).and_then(Preset::architecture);
        (!is_cpu(name)).then(|| architecture.map_or(Gives::SM_80, Gives::of))
    };
    let placed: BTreeMap<&str, &str> =
        plan.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect();
    let gives = |group: GroupId| {
        let first = network.grouping.groups[group.index()].nodes.first();
        let device = first.and_then(|&node| {
            let source = network.graph.node(node).source;
            placed.get(network.graph.source(source).name.as_str())
        });
        device.map_or(Some(Gives::SM_80), |device| gives_of(device))
    };
    let text = emit::listing(&network.graph, &network.grouping, &gives)?;
    #[cfg(feature = "run")]
    let text = {
        let exec = crate::run::exec_plan(plan, &network.graph, &network.grouping)?;
        text + &crate::run::listing(&network.graph, &network.grouping, &exec, &is_cpu)?
    };
    Ok(text)
}
