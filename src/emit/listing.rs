//! `--emit kernels`: what a plan's groups become, for people and for other tools.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Gives, Kernel, kernel_within, module};
use crate::error::Result;
use crate::ir::Graph;
use crate::kernel::program::lower;
use crate::kernel::{GroupId, Grouping};

/// The kernels of a network, each once: of groups on a CUDA device, whose GPU `gives` says, the source with how it is
/// launched, after the hand-written parts that sources include; of other groups the programs.
///
/// Errors: those of lowering and of printing, within the group's first node.
pub fn listing(
    graph: &Graph,
    grouping: &Grouping,
    gives: &dyn Fn(GroupId) -> Option<Gives>,
) -> Result<String> {
    let (mut sources, mut programs) = (Entries::default(), Entries::default());
    let mut kernels: Vec<Kernel> = Vec::new();
    for (position, fused) in grouping.all_fused().iter().enumerate() {
        let place = || {
            let source = fused.nodes.first().map(|&node| &graph.source(graph.node(node).source).name);
            format!("node {}", source.map_or("", String::as_str))
        };
        let gives = gives(GroupId(position as u32));
        for program in lower(graph, fused).map_err(|error| error.within(&place()))? {
            let Some(gives) = gives else {
                programs.add(program.to_string(), position);
                continue;
            };
            if let Some(kernel) = kernel_within(&program, gives).map_err(|error| error.within(&place()))? {
                sources.add(cuda_entry(&kernel), position);
                kernels.push(Kernel { text: String::new(), ..kernel });
            }
        }
    }
    let mut out = String::new();
    if !kernels.is_empty() {
        let included = module(&kernels.iter().collect::<Vec<_>>());
        out.push_str(included.trim_end());
        out.push('\n');
    }
    sources.write(&mut out);
    programs.write(&mut out);
    Ok(out)
}

/// Texts in the order in which they first come, each with the groups that it is of.
#[derive(Default)]
struct Entries {
    groups: BTreeMap<String, Vec<usize>>,
    order: Vec<String>,
}

impl Entries {
    fn add(&mut self, text: String, group: usize) {
        let groups = self.groups.entry(text.clone()).or_default();
        if groups.is_empty() {
            self.order.push(text);
        }
        groups.push(group);
    }

    fn write(&self, out: &mut String) {
        for text in &self.order {
            let groups: Vec<String> = self.groups[text].iter().map(|group| format!("g{group}")).collect();
            // Writing to a String cannot fail.
            let _ = write!(out, "\n// {}\n{text}", groups.join(" "));
        }
    }
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
