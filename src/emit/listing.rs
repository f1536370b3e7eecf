//! `--emit kernels`: what a plan's groups become, for people and for other tools.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Kernel, Template, kernel};
use crate::error::Result;
use crate::ir::Graph;
use crate::kernel::Grouping;
use crate::kernel::program::lower;

/// Every kernel of a network once: for a CUDA device its source with how it is launched, else the
/// programs. The hand-written parts that sources include stand first.
///
/// Errors: those of lowering and of printing, within the group's first node.
pub fn listing(graph: &Graph, grouping: &Grouping, cuda: bool) -> Result<String> {
    let mut kernels: BTreeMap<String, (String, Vec<usize>)> = BTreeMap::new();
    let mut order = Vec::new();
    let mut templates: Vec<Template> = Vec::new();
    for (position, fused) in grouping.all_fused().iter().enumerate() {
        let place = || {
            let source = fused.nodes.first().map(|&node| graph.source(graph.node(node).source).name.clone());
            format!("node {}", source.unwrap_or_default())
        };
        for program in lower(graph, fused).map_err(|error| error.within(&place()))? {
            let text = if cuda {
                let Some(kernel) = kernel(&program).map_err(|error| error.within(&place()))? else {
                    continue;
                };
                templates.extend(kernel.template);
                cuda_entry(&kernel)
            } else {
                program.to_string()
            };
            let known = kernels.entry(text.clone()).or_insert_with(|| {
                order.push(text);
                (String::new(), Vec::new())
            });
            known.1.push(position);
        }
    }
    templates.sort_unstable();
    templates.dedup();
    let mut out = String::new();
    if cuda {
        out.push_str(Kernel::prelude());
        templates.iter().for_each(|template| out.push_str(template.text()));
    }
    for text in order {
        let groups: Vec<String> = kernels[&text].1.iter().map(|group| format!("g{group}")).collect();
        // Writing to a String cannot fail.
        let _ = write!(out, "\n// groups {}\n{text}", groups.join(" "));
    }
    Ok(out)
}

fn cuda_entry(kernel: &Kernel) -> String {
    let launch = kernel.launch;
    let args: Vec<String> = kernel.args.iter().map(|arg| arg.place.to_string()).collect();
    format!(
        "// launch {} <<<{}, ({}, {}), {}>>>({})\n{}",
        kernel.name,
        launch.grid,
        launch.block[0],
        launch.block[1],
        launch.shared,
        args.join(", "),
        kernel.text
    )
}
