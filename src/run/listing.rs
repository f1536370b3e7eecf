//! What devices of the CPU run, for people: by group its kernels and tile programs, the workspace, and the
//! parts that threads share.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::cpu::tile::Program;
use super::executor::{ExecAction, ExecPlan};
use super::group::{Compiled, Step, Tensor};
use super::packing::Packing;
use crate::error::Result;
use crate::escape::in_comment;
use crate::ir::Graph;
use crate::kernel::{Grouping, Place};
use crate::units::Bytes;

/// What those devices of a plan run for which `is_cpu` says so, by their names: each group once for each of
/// them, in the order of the plan. No weights are read; kernels are begun on zeros, and the parts that they
/// hand out noted.
///
/// Errors: a group that cannot be compiled; memory that the system does not give for the zeros.
pub fn listing(
    graph: &Graph,
    grouping: &Grouping,
    plan: &ExecPlan,
    is_cpu: &dyn Fn(&str) -> bool,
) -> Result<String> {
    let (packing, groups) = (Packing::of(graph), grouping.all_fused());
    let mut seen = BTreeSet::new();
    let mut out = String::new();
    for step in &plan.steps {
        let ExecAction::Launch { group, .. } = &step.action else { continue };
        let device = plan.devices.get(step.device as usize).filter(|device| is_cpu(&device.name));
        let (Some(device), Some(fused)) = (device, groups.get(*group as usize)) else { continue };
        if !seen.insert((*group, step.device)) {
            continue;
        }
        let compiled = Compiled::new(graph, fused, &packing)?;
        let threads = device.cores as usize;
        let parts = compiled.parts(threads).map_err(|error| error.within(&compiled.name))?;
        let (name, workspace) = (&compiled.name, Bytes(compiled.workspace));
        let threads = if threads > 1 { format!("up to {threads} threads") } else { "one thread".to_owned() };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\n// g{group} on {}: node {}, {workspace} of workspace, {threads}",
            in_comment(&device.name),
            in_comment(name)
        );
        for (segment, parts) in compiled.segments.iter().zip(&parts) {
            write_segment(&mut out, segment, parts);
        }
    }
    Ok(out)
}

fn write_segment(out: &mut String, segment: &Step, parts: &[usize]) {
    let parts = divided(parts);
    // Writing to a String cannot fail.
    let _ = match segment {
        Step::Kernel { op, inputs, outputs, epilogue, .. } => {
            let _ = writeln!(out, "kernel {} {} -> {}: {parts}", op.name(), listed(inputs), listed(outputs));
            match epilogue {
                None => Ok(()),
                Some(epilogue) => {
                    let to = outputs.first().map(|tensor| tensor.place).into_iter();
                    write_chain(
                        out,
                        "on what each part made, a chain",
                        &epilogue.program,
                        &epilogue.sources,
                        to,
                    )
                }
            }
        }
        Step::Chain { program, sources, targets } => {
            write_chain(out, &format!("chain, {parts}"), program, sources, targets.iter().copied())
        }
    };
}

fn write_chain(
    out: &mut String,
    what: &str,
    program: &Program,
    sources: &[(Place, usize)],
    targets: impl Iterator<Item = Place>,
) -> std::fmt::Result {
    let sources =
        sources.iter().enumerate().map(|(number, &(place, _))| format!("s{number} = {}", name(place)));
    let targets = targets.enumerate().map(|(number, place)| format!("t{number} = {}", name(place)));
    let ends: Vec<String> = sources.chain(targets).collect();
    writeln!(out, "{what}: {}; {}\n{}", program.walk(), ends.join(", "), program.to_string().trim_end())
}

/// Places, types and how they are stored.
fn listed(tensors: &[Tensor]) -> String {
    let one = |tensor: &Tensor| {
        let sizes: Vec<String> = tensor.dims.iter().map(ToString::to_string).collect();
        let packed = if tensor.packed { " packed" } else { "" };
        format!("{}: {}[{}]{packed}", name(tensor.place), tensor.dtype, sizes.join(","))
    };
    tensors.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn name(place: Place) -> String {
    match place {
        Place::Read(position) => format!("r{position}"),
        Place::Write(position) => format!("w{position}"),
        Place::Workspace { offset, .. } => format!("workspace+{offset}"),
        Place::Register => "a register".to_owned(),
    }
}

/// Numbers of parts, those that follow one another and are equal once.
fn divided(parts: &[usize]) -> String {
    if parts.is_empty() {
        return "whole, on one thread".to_owned();
    }
    let text = |run: &[usize]| match run {
        [1] => "1 part".to_owned(),
        [one] => format!("{one} parts"),
        [1, ..] => format!("{} times 1 part", run.len()),
        [one, ..] => format!("{} times {one} parts", run.len()),
        [] => String::new(),
    };
    parts.chunk_by(|a, b| a == b).map(text).collect::<Vec<_>>().join(", then ")
}
