//! What a model demands of its plans, derived from the model alone, to check a plan against.

use std::collections::HashSet;

use super::{Network, Options, labels, prepare};
use crate::cost::{self, Profile};
use crate::costgraph::CostGraph;
use crate::error::{Error, Report, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::Placement;
use crate::plan::{self, ExpectedModel, Plan};
use crate::topology::{DeviceId, Topology};

/// The hash that plans carry of a model's bytes: XXH3, 128 bits, in hexadecimal.
pub fn model_hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Error: the plan is of another model.
pub fn check_hash(plan: &Plan, hash: &str, model: &str) -> Result<()> {
    if plan.model.hash == hash {
        return Ok(());
    }
    let message =
        format!("the plan is of another model: it has hash {}, {model} has {hash}", plan.model.hash);
    Err(Error::Check(Report::new("", message).help("plan this model anew")))
}

/// Error: the plan places what this network does not have. O(nodes).
pub(super) fn check_sources(plan: &Plan, graph: &Graph) -> Result<()> {
    // Looked up, never iterated.
    let own: HashSet<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
    let Some((name, _)) = plan.placement.iter().find(|(name, _)| !own.contains(name.as_str())) else {
        return Ok(());
    };
    let message = format!("the plan places {name}, which {} does not have", graph.name);
    Err(Error::Check(Report::new("", message).help(
        "a plan of a training step is run by partition train; of another version, plan the model anew",
    )))
}

/// Proves that a plan is of this model: its hash, its nodes, and every size derived anew.
///
/// Errors: [`Error::Check`] with what differs; those of lowering the model.
pub fn check_model(plan: &Plan, model: Model, options: &Options) -> Result<()> {
    match model {
        Model::CostGraph { graph, .. } => plan::check_costgraph(plan, &graph).map(|_| ()),
        Model::Graph(graph) => {
            let network = prepare(graph, options)?;
            check_sources(plan, &network.graph)?;
            let (expected, graph) = expected(&network, plan, options)?;
            plan::check_model(plan, &expected)?;
            plan::check_bound(plan, &graph)?;
            plan::check_peaks(plan, network.operations.map(|operations| operations.0))
        }
    }
}

/// What a network demands of its plan, for [`plan::check_model`], and the cost graph that it is lowered to.
/// O(nodes + edges).
///
/// Errors: those of lowering.
pub fn expected(network: &Network, plan: &Plan, options: &Options) -> Result<(ExpectedModel, CostGraph)> {
    let lowered = cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
    // The check compares sizes and names; where things are is the plan's own affair.
    let anywhere =
        Placement { device: vec![DeviceId(0); lowered.graph.node_count()], ..Placement::default() };
    let labels = labels::labels(network, &lowered, &plan.topology, &anywhere);
    let expected = ExpectedModel::new(&lowered.graph, &labels, options.model_hash.clone());
    Ok((expected, lowered.graph))
}

/// What a plan needs of the profile that it is made with.
pub(super) fn profile(options: &Options, topology: &Topology, labels: &plan::Labels) -> Option<Profile> {
    let profile = options.profile.as_ref()?;
    let kernels = labels.nodes.iter().map(|label| label.hash).collect();
    Some(profile.about(&topology.kind_keys(), &kernels))
}
