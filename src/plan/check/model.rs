//! Whether a plan is a plan of this model: operands, results and sizes as the model has them.

use std::collections::HashMap;

use super::super::{Action, Buffer, BufferKind, Labels, Launch, Plan, Read};
use super::{Checked, Faults, check};
use crate::costgraph::microbatch::{self, Runs};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::Result;
use crate::units::Bytes;

/// What a model demands of its plan, as plain data that the caller derives from the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedModel {
    /// Digest of the model.
    pub hash: String,
    /// The source's nodes, in its order.
    pub nodes: Vec<String>,
    /// What must be launched, each at least once.
    pub launches: Vec<ExpectedLaunch>,
}

/// One group of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedLaunch {
    /// The group's number.
    pub group: u32,
    /// Digest of its kernel, in hexadecimal.
    pub kernel: String,
    /// The source's nodes, in execution order.
    pub nodes: Vec<String>,
    /// (name, bytes) of the operands in order.
    pub reads: Vec<(String, Bytes)>,
    /// (name, bytes) of the results in order.
    pub writes: Vec<(String, Bytes)>,
    /// Bytes of the workspace; zero where there is none.
    pub workspace: Bytes,
    /// (operand, result), by their names, of which the result may lie where the operand does.
    pub in_place: Vec<(String, String)>,
    /// True where it runs for each microbatch of a step that is divided.
    pub each: bool,
}

impl ExpectedModel {
    /// What a labelled cost graph demands. O(nodes + edges).
    pub fn new(graph: &CostGraph, labels: &Labels, hash: impl Into<String>) -> Self {
        let runs = microbatch::runs(graph);
        let launches = graph.nodes().zip(&labels.nodes);
        let launches = launches.filter(|(node, _)| graph.role(*node) == Role::Compute);
        Self {
            hash: hash.into(),
            nodes: labels.placement.iter().map(|(node, _)| node.clone()).collect(),
            launches: launches
                .map(|(node, label)| ExpectedLaunch {
                    group: label.group,
                    kernel: format!("{:016x}", label.hash),
                    nodes: label.nodes.clone(),
                    reads: reads(graph, labels, node, label.reads.as_deref()),
                    writes: graph
                        .outputs(node)
                        .filter_map(|tensor| {
                            let name = labels.tensors.get(tensor.index())?.name.clone();
                            Some((name, graph.tensor_bytes(tensor)))
                        })
                        .collect(),
                    workspace: graph.workspace_bytes(node),
                    in_place: in_place(graph, labels, node),
                    each: runs[node.index()] == Runs::Each,
                })
                .collect(),
        }
    }
}

fn reads(graph: &CostGraph, labels: &Labels, node: NodeIx, named: Option<&[Read]>) -> Vec<(String, Bytes)> {
    let param = |param| {
        let label = labels.params.get(crate::costgraph::ParamIx::index(param))?;
        Some((label.name.clone(), graph.param_bytes(param)))
    };
    let tensor = |tensor: TensorIx| match graph.param(graph.producer(tensor)) {
        Some(found) => param(found),
        None => Some((labels.tensors.get(tensor.index())?.name.clone(), graph.tensor_bytes(tensor))),
    };
    let mut reads: Vec<(String, Bytes)> = match named {
        Some(named) => named
            .iter()
            .filter_map(|read| match *read {
                Read::Tensor(found) => tensor(found),
                Read::Param(found) => param(found),
            })
            .collect(),
        None => graph.inputs(node).iter().filter_map(|&found| tensor(found)).collect(),
    };
    if graph.owned_bytes(node) > Bytes::ZERO {
        reads.push((graph.node_name(node).to_owned(), graph.owned_bytes(node)));
    }
    reads
}

fn in_place(graph: &CostGraph, labels: &Labels, node: NodeIx) -> Vec<(String, String)> {
    let name = |tensor: TensorIx| labels.tensors.get(tensor.index()).map(|label| label.name.clone());
    let pairs = graph.in_place(node).filter_map(|(input, output)| {
        let read = graph.inputs(node).get(input as usize).copied()?;
        let written = graph.outputs(node).nth(output as usize)?;
        Some((name(read)?, name(written)?))
    });
    pairs.collect()
}

/// Proves a plan sound, and a plan of this model: its digest, its nodes, and for each launch
/// kernel, operands and results, in order, with their sizes.
///
/// Errors: [`Error::Check`](crate::Error::Check), with the violations of [`check`] alone where
/// there are any.
pub fn check_model(plan: &Plan, model: &ExpectedModel) -> Result<Checked> {
    let checked = check(plan)?;
    let mut faults = Faults::default();
    if plan.model.hash != model.hash {
        faults.add(|| format!("the plan is of model {}, this is {}", plan.model.hash, model.hash));
    }
    nodes(plan, model, &mut faults);
    launches(plan, model, &mut faults);
    faults.result(plan).map(|()| checked)
}

fn nodes(plan: &Plan, model: &ExpectedModel, faults: &mut Faults) {
    if plan.placement.len() != model.nodes.len() {
        faults.add(|| {
            format!("the plan places {} nodes, the model has {}", plan.placement.len(), model.nodes.len())
        });
    }
    for ((placed, _), node) in plan.placement.iter().zip(&model.nodes) {
        if placed != node {
            faults.add(|| format!("the plan places {placed} where the model has {node}"));
        }
    }
}

fn launches(plan: &Plan, model: &ExpectedModel, faults: &mut Faults) {
    let buffers: HashMap<&str, usize> =
        plan.buffers.iter().enumerate().map(|(i, buffer)| (buffer.id.as_str(), i)).collect();
    let kernels: HashMap<&str, &str> =
        plan.kernels.iter().map(|kernel| (kernel.id.as_str(), kernel.hash.as_str())).collect();
    let groups: HashMap<u32, usize> =
        model.launches.iter().enumerate().map(|(i, launch)| (launch.group, i)).collect();
    let mut launched = vec![false; model.launches.len()];
    for step in &plan.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let Some(&expected) = launch.group.as_ref().and_then(|group| groups.get(group)) else {
            faults.add(|| format!("step {} launches a group that the model does not have", step.id));
            continue;
        };
        launched[expected] = true;
        let expected = &model.launches[expected];
        if launch.nodes != expected.nodes {
            faults.add(|| format!("step {} launches other nodes than group {}", step.id, expected.group));
        }
        if plan.options.microbatches.is_some() && launch.microbatch.is_some() != expected.each {
            let (one, all) = ("one microbatch", "all microbatches");
            let (found, wanted) = if expected.each { (all, one) } else { (one, all) };
            faults.add(|| format!("step {} launches its group for {found}, not for {wanted}", step.id));
        }
        let kernel = launch.kernel.as_deref().and_then(|kernel| kernels.get(kernel).copied());
        if kernel != Some(&expected.kernel) {
            let found = kernel.unwrap_or("none");
            faults.add(|| format!("step {} launches kernel {found}, not {}", step.id, expected.kernel));
        }
        let held = |id: &String| {
            let buffer = &plan.buffers[buffers[id.as_str()]];
            (buffer.value.clone(), buffer.bytes)
        };
        let reads: Vec<_> = launch.reads.iter().map(held).collect();
        compare(step.id, "reads", &reads, &expected.reads, faults);
        let (results, workspace) = results(plan, &buffers, launch);
        let writes: Vec<_> = results.iter().map(|id| held(id)).collect();
        compare(step.id, "writes", &writes, &expected.writes, faults);
        for (read, write) in
            launch.reads.iter().flat_map(|read| results.iter().map(move |write| (read, *write)))
        {
            let (read, write) =
                (&plan.buffers[buffers[read.as_str()]], &plan.buffers[buffers[write.as_str()]]);
            let pair = (read.value.clone(), write.value.clone());
            if share(read, write) && !expected.in_place.contains(&pair) {
                faults.add(|| {
                    let (old, new) = pair;
                    format!(
                        "step {} writes {new} in place of {old}, which its kernel does not allow",
                        step.id
                    )
                });
            }
        }
        if workspace != expected.workspace {
            faults.add(|| {
                let (found, needed) = (workspace.0, expected.workspace.0);
                format!("step {} has {found} bytes of workspace, and needs {needed}", step.id)
            });
        }
    }
    for (expected, launched) in model.launches.iter().zip(launched) {
        if !launched {
            faults.add(|| format!("group {} is never launched", expected.group));
        }
    }
}

/// True where two buffers of one device have a byte in common.
fn share(one: &Buffer, other: &Buffer) -> bool {
    let ends_after = |a: &Buffer, b: &Buffer| a.offset.0.saturating_add(a.bytes.0) > b.offset.0;
    let both = one.bytes > Bytes::ZERO && other.bytes > Bytes::ZERO;
    both && ends_after(one, other) && ends_after(other, one)
}

/// A launch's results, and the bytes of its workspaces.
fn results<'a>(plan: &Plan, buffers: &HashMap<&str, usize>, launch: &'a Launch) -> (Vec<&'a String>, Bytes) {
    let buffer = |id: &String| &plan.buffers[buffers[id.as_str()]];
    let is_workspace = |id: &&String| buffer(id).kind == BufferKind::Workspace;
    let results = launch.writes.iter().filter(|id| !is_workspace(id)).collect();
    (results, launch.writes.iter().filter(is_workspace).map(|id| buffer(id).bytes).sum())
}

fn compare(
    step: u64,
    verb: &str,
    found: &[(String, Bytes)],
    expected: &[(String, Bytes)],
    faults: &mut Faults,
) {
    if found.len() != expected.len() {
        faults.add(|| format!("step {step} {verb} {} values, not {}", found.len(), expected.len()));
    }
    for ((name, bytes), (wanted, wanted_bytes)) in found.iter().zip(expected) {
        if name != wanted {
            faults.add(|| format!("step {step} {verb} {name} where the model has {wanted}"));
        } else if bytes != wanted_bytes {
            faults
                .add(|| format!("step {step} {verb} {name} with {} bytes, not {}", bytes.0, wanted_bytes.0));
        }
    }
}
