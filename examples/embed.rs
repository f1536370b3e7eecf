//! Plans for an engine of one's own: a cost graph in a few lines, a plan back.
//!
//! `cargo run --example embed`

use partition::costgraph::{Builder, NodeSpec};
use partition::place::{Objective, Options};
use partition::topology::Topology;
use partition::units::{Bytes, Nanos};

fn main() -> partition::Result<()> {
    // Twelve layers of 3 GB each, 4 ms of work, handing 8 MB to the next one.
    let mut builder = Builder::new("my-engine", vec!["a100-80g".into()]);
    let mut previous = None;
    for layer in 0..12 {
        let node = builder.add(&NodeSpec {
            name: &format!("layer{layer}"),
            op: "block",
            times: &[Some(Nanos(4_000_000))],
            param_bytes: Bytes(3_000_000_000),
            outputs: &[Bytes(8_000_000)],
            ..NodeSpec::default()
        })?;
        if let Some(previous) = previous {
            builder.connect(previous, 0, node);
        }
        previous = Some(node);
    }
    let graph = builder.finish()?;
    let topology = Topology::parse("4xa100-80g:memory=16GB")?;
    let options = Options { objective: Objective::Transfer, ..Options::default() };
    let plan = partition::plan(&graph, &topology, &options)?;
    for (node, device) in &plan.placement {
        println!("{node} on {device}");
    }
    println!("{} moved in a step of {}", plan.cost.step_bytes, plan.cost.latency_ns);
    Ok(())
}
