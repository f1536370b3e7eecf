//! Bubbles of pipelines beside those of theory, and what each order comes to on given cost graphs.

use std::path::Path;

use partition::unstable::compile::{self, Compiled};
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{self, DeviceUse, Objective};
use partition::unstable::strategy::pipeline::{Options, Order};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};
use partition::{Control, Error};

const ORDERS: [Order; 4] =
    [Order::Gpipe, Order::OneForwardOneBackward, Order::Interleaved, Order::ZeroBubble];

/// Equal stages; then, for each cost graph whose path is given, every order on four devices.
pub(crate) fn print(paths: &[String]) {
    println!("\n| stages | microbatches | order | bubble | theory |\n|---|---|---|---|---|");
    for stages in [2u64, 4, 8] {
        for microbatches in [4u64, 8, 16, 32] {
            for order in ORDERS {
                match equal(stages, microbatches, order) {
                    Ok(line) => println!("| {stages} | {microbatches} | {} | {line} |", order.name()),
                    Err(error) => println!("| {stages} | {microbatches} | {} | {error} | |", order.name()),
                }
            }
        }
    }
    if paths.is_empty() {
        return;
    }
    println!("\n| graph | order | latency | over one microbatch | bubble | theory | in flight |");
    println!("|---|---|---|---|---|---|---|");
    for path in paths {
        if let Err(error) = given(path) {
            println!("{path}: {error}");
        }
    }
}

/// Every stage one layer of 1 us for each pass (two layers where stages take turns), free copies.
fn equal(stages: u64, microbatches: u64, order: Order) -> Result<String, Error> {
    let layers = if order == Order::Interleaved { 2 * stages } else { stages };
    let graph = chain(layers, microbatches)?;
    let spec = format!("{stages}xcpu:cores=1,use=compute,memory=1GB,latency=0ns,contention=none");
    let compiled = planned(&graph, &Topology::parse(&spec)?, Some(order), microbatches as u32)?;
    let figures = compiled.pipeline.ok_or_else(|| Error::Internal("a pipeline has figures".into()))?;
    Ok(format!("{:.2} % | {:.2} %", figures.bubble * 100.0, figures.theoretical_bubble * 100.0))
}

fn given(path: &str) -> Result<(), Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let Model::CostGraph { graph, .. } = load(&bytes, Some(Path::new(path)), &LoadOptions::default())? else {
        return Err(Error::model(path, "this is not a cost graph"));
    };
    let topology = Topology::parse("4xa100-80g")?;
    let plain = planned(&graph, &topology, None, 1)?.schedule.cost.latency;
    println!("| {} | none | {plain} | 1.00 | | | |", graph.name);
    for order in ORDERS.into_iter().chain([Order::Auto]) {
        for microbatches in [4, 16] {
            let compiled = match planned(&graph, &topology, Some(order), microbatches) {
                Ok(compiled) => compiled,
                Err(error) => {
                    println!("| {} | {} x {microbatches} | {error} | | | | |", graph.name, order.name());
                    continue;
                }
            };
            let Some(figures) = compiled.pipeline else { continue };
            let latency = compiled.schedule.cost.latency;
            let held = figures.memory.iter().map(|device| device.in_flight).max().unwrap_or_default();
            println!(
                "| {} | {} x {microbatches} ({}) | {latency} | {:.2} | {:.1} % | {:.1} % | {held} |",
                graph.name,
                order.name(),
                figures.schedule,
                latency.get() as f64 / plain.get().max(1) as f64,
                figures.bubble * 100.0,
                figures.theoretical_bubble * 100.0
            );
        }
    }
    Ok(())
}

fn planned(
    graph: &CostGraph,
    topology: &Topology,
    order: Option<Order>,
    microbatches: u32,
) -> Result<Compiled, Error> {
    let options = compile::Options {
        pipeline: order.map(|order| Options { microbatches, order }),
        place: place::Options {
            objective: Objective::Latency,
            devices: order.map_or(DeviceUse::Auto, |_| DeviceUse::All),
            ..place::Options::default()
        },
        ..compile::Options::default()
    };
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    compile::compile_with(model, topology, &options, &Control::new())
}

/// A chain of layers with backward nodes that tell gradients of parameters apart.
fn chain(layers: u64, batch: u64) -> Result<CostGraph, Error> {
    let mut b = Builder::new("chain", vec!["cpu".into()]);
    let time = [Some(Nanos(1000 * batch))];
    let add = |b: &mut Builder, name: String, op: &str, of: Option<NodeIx>| {
        let outputs = [Bytes(0)];
        let spec = NodeSpec {
            name: &name,
            op,
            times: &time,
            outputs: &outputs,
            backward: of.is_some(),
            ..NodeSpec::default()
        };
        let node = b.add(&spec)?;
        if let Some(of) = of {
            b.set_forward(node, of);
        }
        Ok::<NodeIx, Error>(node)
    };
    let mut made = vec![add(&mut b, "x".into(), "input", None)?];
    for layer in 0..layers {
        let node = add(&mut b, format!("f{layer}"), "layer", None)?;
        b.connect(made[layer as usize], 0, node);
        made.push(node);
    }
    let mut after = made[layers as usize];
    for layer in (0..layers).rev() {
        let own = made[layer as usize + 1];
        let back = add(&mut b, format!("b{layer}"), "backward", Some(own))?;
        let weights = add(&mut b, format!("g{layer}"), "gradient", Some(own))?;
        let update = b.add(&NodeSpec {
            name: &format!("u{layer}"),
            op: "update",
            times: &[Some(Nanos(0))],
            outputs: &[Bytes(0)],
            backward: true,
            ..NodeSpec::default()
        })?;
        b.set_forward(update, own);
        b.connect(after, 0, back);
        b.connect(own, 0, back);
        b.connect(after, 0, weights);
        b.connect(made[layer as usize], 0, weights);
        b.connect(weights, 0, update);
        after = back;
    }
    b.finish()
}
