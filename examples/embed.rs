//! An engine of its own plans with this library and runs what comes back.
//!
//! The engine here is a list of functions over vectors. It tells the planner what each costs, gets
//! a plan, and follows its steps: a launch runs a function where its device's memory is, a copy
//! moves a vector to another device's memory.
//!
//! `cargo run --example embed`

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use partition::{
    Action, Builder, Bytes, Control, CostGraph, Error, Nanos, NodeSpec, Objective, Options, Plan, Progress,
    Topology,
};

/// What the engine can do: each function reads the results of others by name.
struct Function {
    name: String,
    reads: Vec<String>,
    run: fn(&[&[f64]]) -> Vec<f64>,
}

/// Twelve layers in a row, each of which adds what the one before the last has made.
fn network() -> Vec<Function> {
    let layer = |number: usize| Function {
        name: format!("layer{number}"),
        reads: (number.saturating_sub(2)..number).map(|before| format!("layer{before}")).collect(),
        run: |inputs| (0..4).map(|i| 1.0 + inputs.iter().map(|input| 0.5 * input[i]).sum::<f64>()).collect(),
    };
    (0..12).map(layer).collect()
}

/// What the planner has to know: times by device kind, bytes held, bytes made, who reads what.
fn cost_graph(network: &[Function]) -> partition::Result<CostGraph> {
    let mut builder = Builder::new("my-engine", vec!["a100-80g".into()]);
    let mut nodes = BTreeMap::new();
    for function in network {
        let node = builder.add(&NodeSpec {
            name: &function.name,
            op: "layer",
            times: &[Some(Nanos(4_000_000))],
            param_bytes: Bytes(3_000_000_000),
            outputs: &[Bytes(8_000_000)],
            ..NodeSpec::default()
        })?;
        function.reads.iter().for_each(|read| builder.connect(nodes[read], 0, node));
        nodes.insert(function.name.clone(), node);
    }
    builder.finish()
}

/// Follows a plan. `memory` holds for each device what lies there.
fn run(plan: &Plan, network: &[Function]) -> BTreeMap<String, Vec<f64>> {
    let functions: BTreeMap<&str, &Function> = network.iter().map(|f| (f.name.as_str(), f)).collect();
    let mut memory: BTreeMap<&str, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for step in &plan.steps {
        match &step.action {
            Action::Launch(launch) => {
                let here = memory.entry(&step.device).or_default();
                for name in &launch.nodes {
                    let function = functions[name.as_str()];
                    let inputs: Vec<&[f64]> = function.reads.iter().map(|read| &here[read][..]).collect();
                    let made = (function.run)(&inputs);
                    here.insert(name.clone(), made);
                }
            }
            Action::Copy(copy) => {
                let node = copy.node.clone().unwrap_or_default();
                let moved = memory[copy.from.as_str()][&node].clone();
                memory.entry(&step.device).or_default().insert(node, moved);
            }
        }
    }
    memory.into_values().flatten().collect()
}

fn main() -> partition::Result<()> {
    let network = network();
    let graph = cost_graph(&network)?;
    let topology = Topology::parse("4xa100-80g:memory=16GB")?;
    let options = Options { objective: Objective::Transfer, ..Options::default() };
    // All optional: threads, a limit, a way to cancel from elsewhere, news of progress.
    let cancel = AtomicBool::new(false);
    let listener = |progress: Progress<'_>| {
        eprintln!("{} {}/{}", progress.stage, progress.done, progress.total);
    };
    let control =
        Control::new().threads(2).time_limit(Duration::from_secs(10)).cancel(&cancel).progress(&listener);
    let plan = partition::plan_with(&graph, &topology, &options, &control)?;
    for (node, device) in &plan.placement {
        println!("{node} on {device}");
    }
    println!("{} moved in a step of {}", plan.cost.step_bytes, plan.cost.latency_ns);
    let spread = run(&plan, &network);
    let whole = run(&partition::plan(&graph, &Topology::parse("a100-80g")?, &options)?, &network);
    if spread["layer11"] != whole["layer11"] {
        return Err(Error::Internal("the placement changed the result".into()));
    }
    println!("layer11 is {:?}, as on one device", spread["layer11"]);
    Ok(())
}
