//! Whether a plan is a plan of this model: operands, results, sizes and what is kept, as the model has them.

use std::collections::HashMap;

use super::super::{Action, BufferKind, Plan};
use super::expected::ExpectedModel;
use super::values::{self, Names};
use super::{Checked, Faults, prove};
use crate::error::Result;

/// Proves a plan sound, and a plan of this model: its digest, its nodes, and for each launch
/// kernel, operands and results, in order, with their types and sizes. What a plan declares is not relied
/// on: results follow from the model, and are there when the step ends; what lies in the same
/// bytes follows from offsets, not from `alias`; what is written in place, and which of a state's two
/// values is read, follows from the uses. O(steps x lanes + accesses x log buffers).
///
/// Errors: [`Error::Check`](crate::Error::Check), with the violations of order and memory alone where
/// there are any.
pub fn check_model(plan: &Plan, model: &ExpectedModel) -> Result<Checked> {
    let mut faults = Faults::default();
    let names = Names::new(model);
    let (checked, resolved) = prove(plan, Some(&names), &mut faults);
    // What follows relies on a plan that is sound so far.
    if let Some(resolved) = resolved.filter(|_| faults.count == 0) {
        if plan.model.hash != model.hash {
            faults.add(|| format!("the plan is of model {}, this is {}", plan.model.hash, model.hash));
        }
        nodes(plan, model, &mut faults);
        launches(plan, model, &mut faults);
        slices(plan, &names, &mut faults);
        values::check(plan, &resolved, &names, &mut faults);
    }
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

/// What buffers say to be parts of is what the model has them be.
fn slices(plan: &Plan, names: &Names<'_>, faults: &mut Faults) {
    for buffer in plan.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Workspace) {
        let Some(value) = names.find(buffer) else { continue };
        let expected = names.value(value).slice.as_ref();
        let (of, bounds) = expected.map_or((None, &[][..]), |slice| (Some(&slice.of), &slice.bounds));
        let partial = expected.and_then(|slice| slice.partial);
        if buffer.of.as_ref() != of || buffer.bounds != bounds || buffer.partial != partial {
            faults.add(|| format!("{} is said to be another part of a value than it is", buffer.id));
        }
    }
}

/// Each launch computes its group's nodes, by its kernel, as often as the model has it. What it reads and
/// writes is for `values`.
fn launches(plan: &Plan, model: &ExpectedModel, faults: &mut Faults) {
    let kernels: HashMap<&str, &str> =
        plan.kernels.iter().map(|kernel| (kernel.id.as_str(), kernel.hash.as_str())).collect();
    let groups: HashMap<u32, usize> =
        model.launches.iter().enumerate().map(|(i, launch)| (launch.group, i)).collect();
    for step in &plan.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let Some(&expected) = launch.group.as_ref().and_then(|group| groups.get(group)) else { continue };
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
    }
}
