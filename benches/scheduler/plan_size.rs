//! How long a plan takes to write and to load, by its number of steps: plans of cost graphs, and
//! the same with the buffers and kernels that plans of networks have.

use std::time::Instant;

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::place::{Effort, Options};
use partition::unstable::plan::{Action, Buffer, BufferKind, Kernel, Plan};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};

/// Most seconds for 100,000 steps, written and loaded.
const ALLOWED: f64 = 2.0;

pub(crate) fn print(_: &[String]) {
    println!(
        "\n| steps | of | file | bytes | write s | load s | allowed | must |\n|---:|---|---|---:|---:|---:|---:|---|"
    );
    for launches in [10_000, 90_000] {
        let plan = planned(launches);
        for (what, plan) in [("a cost graph", plan.clone()), ("a network", labelled(plan))] {
            for name in ["plan.json", "plan.json.gz"] {
                row(what, &plan, name);
            }
        }
    }
}

fn row(what: &str, plan: &Plan, name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    let start = Instant::now();
    plan.save(&path).expect("written");
    let written = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let loaded = Plan::load(&path).expect("loaded");
    let read = start.elapsed().as_secs_f64();
    assert!(loaded == *plan, "the plan does not read back");
    let bytes = std::fs::metadata(&path).map_or(0, |data| data.len());
    let steps = plan.steps.len();
    let allowed = ALLOWED * steps as f64 / 1e5;
    let met = if written + read <= allowed { "met" } else { "missed" };
    println!("| {steps} | {what} | {name} | {bytes} | {written:.3} | {read:.3} | {allowed:.2} | {met} |");
}

/// A plan of a chain with skips on four devices, about one copy for every nine launches.
fn planned(launches: usize) -> Plan {
    let graph = chain(launches).expect("a graph");
    let topology = Topology::parse("4xa100-80g").expect("a specification");
    let options = Options { effort: Effort::Fast, ..Options::default() };
    let device = graph.nodes().map(|node| partition::unstable::topology::DeviceId(node.0 / 9 % 4)).collect();
    let placement =
        partition::unstable::place::Placement { device, ..partition::unstable::place::Placement::default() };
    let schedule =
        partition::unstable::schedule::schedule(&graph, &topology, &placement, &Default::default())
            .expect("a schedule");
    let meta = partition::unstable::plan::Meta { options: (&options).into(), ..Default::default() };
    partition::unstable::plan::build(&graph, &topology, &placement, &schedule, None, meta).expect("a plan")
}

fn chain(launches: usize) -> partition::Result<CostGraph> {
    let mut builder = Builder::new("chain", vec!["a100-80g".into()]);
    let mut nodes: Vec<NodeIx> = Vec::with_capacity(launches);
    for number in 0..launches {
        let node = builder.add(&NodeSpec {
            name: &format!("block{}/layer{}", number / 9, number % 9),
            op: "matmul",
            times: &[Some(Nanos(20_000))],
            outputs: &[Bytes(1_000_000)],
            ..NodeSpec::default()
        })?;
        for back in [1, 4] {
            if let Some(&from) = nodes.len().checked_sub(back).and_then(|at| nodes.get(at)) {
                builder.connect(from, 0, node);
            }
        }
        nodes.push(node);
    }
    builder.finish()
}

/// The plan with a kernel for each launch and a buffer for each result, as plans of networks have
/// them. It is not one that could be run.
fn labelled(mut plan: Plan) -> Plan {
    for number in 0..plan.steps.len() {
        let (id, device) = (format!("b{number}"), plan.steps[number].device.clone());
        let read = number.checked_sub(1).map(|before| format!("b{before}"));
        let kind = match &mut plan.steps[number].action {
            Action::Launch(launch) => {
                launch.kernel = Some(format!("k{}", number % 500));
                (launch.reads, launch.writes) = (read.into_iter().collect(), vec![id.clone()]);
                launch.group = Some(number as u32);
                BufferKind::Temp
            }
            Action::Copy(copy) => {
                (copy.from, copy.to) = (read.unwrap_or_default(), id.clone());
                BufferKind::Copy
            }
        };
        plan.buffers.push(Buffer {
            id,
            ty: "f32[64,1024]".into(),
            device: device.to_string(),
            offset: Bytes(number as u64 * 64),
            bytes: Bytes(262_144),
            kind,
            alias: None,
            microbatch: None,
            of: None,
            bounds: Vec::new(),
            partial: None,
            feeds: None,
            axis: None,
            value: format!("%{number}"),
        });
    }
    plan.kernels = (0..500)
        .map(|number| Kernel {
            id: format!("k{number}"),
            hero: "matmul".into(),
            hash: format!("{number:016x}"),
            nodes: vec![format!("block{number}/layer0")],
        })
        .collect();
    plan
}
