//! Workloads of a published placement benchmark ("Efficient Algorithms for Device Placement of DNN
//! Graph Operators", NeurIPS 2020): profiled networks that name their own devices.
//!
//! A workload becomes a cost graph with kinds `acc` and `cpu`, and a topology of accelerators
//! `acc1`, `acc2`, ... and CPUs `cpu0`, ... Its costs have no unit; here one unit of time is one
//! millisecond. Times round to the nearest nanosecond. The cost of sending a node's result is time
//! on the accelerator's link, whichever way and however many edges it has: it becomes that many
//! bytes over links of 1 GB/s (one unit is 1,000,000 bytes), staged through the host, and added
//! to the accelerator's load. Sizes round up and the cap down, so that what fits here fits there.

use std::collections::HashMap;

use serde::Deserialize;

use super::json::Amount;
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use crate::error::{Error, Result};
use crate::json::json_error;
use crate::topology::{Communication, Description, DeviceGroup, Engine, LinkGroup, Role, Topology};
use crate::units::{Bytes, Flops, Nanos, Rate};

/// Nanoseconds, and bytes at 1 GB/s, in one unit of time.
const UNIT: f64 = 1e6;
/// The kind of the accelerators that a workload names.
const ACCELERATOR: &str = "acc";
/// The rate of every link.
const LINK: Rate = Rate(1_000_000_000);
/// Memory of a CPU: the benchmark sets it no cap.
const CPU_MEMORY: Bytes = Bytes(1_000_000_000_000_000);
/// Peak rates of devices whose times are given; nothing is computed from them.
const RATE: u64 = 1_000_000_000_000;
/// The most that all times, or all bytes, may add up to.
const MOST: u128 = i64::MAX as u128;

#[derive(Deserialize)]
struct Workload {
    #[serde(rename = "maxSizePerFPGA")]
    memory: Amount,
    #[serde(rename = "maxFPGAs")]
    accelerators: Amount,
    #[serde(rename = "maxCPUs")]
    cpus: Amount,
    nodes: Vec<RawNode>,
    edges: Vec<RawEdge>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNode {
    id: i64,
    supported_on_fpga: Flag,
    cpu_latency: Amount,
    fpga_latency: Amount,
    #[serde(default)]
    is_backward_node: Option<Flag>,
    #[serde(default)]
    color_class: Option<i64>,
    #[serde(default)]
    size: Option<Amount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEdge {
    source_id: i64,
    dest_id: i64,
    cost: Amount,
}

/// True and false, or 1 and 0.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Flag {
    Truth(bool),
    Number(f64),
}

impl Flag {
    fn get(self) -> bool {
        match self {
            Self::Truth(truth) => truth,
            Self::Number(number) => number != 0.0,
        }
    }
}

/// Reads a workload. Nodes are named by their ids; `name` becomes the graph's name.
/// O(text + accelerators^2).
///
/// Errors: malformed JSON (with line and column), an id used twice, an edge to a node that is not
/// there, costs or sizes that are negative, not finite or too large, no device at all, a cycle.
pub fn read_workload(text: &[u8], name: &str) -> Result<(CostGraph, Topology)> {
    let workload: Workload = serde_json::from_slice(text).map_err(|error| json_error(&error))?;
    let cpus = workload.cpus.whole("maxCPUs")?;
    let topology = topology(&workload, cpus)?;
    Ok((graph(&workload, name, cpus > 0)?, topology))
}

fn topology(workload: &Workload, cpus: u64) -> Result<Topology> {
    let accelerators = workload.accelerators.whole("maxFPGAs")?;
    if accelerators == 0 && cpus == 0 {
        return Err(Error::model("maxFPGAs", "the workload has neither accelerators nor CPUs"));
    }
    // The topology's own limit is lower; this one keeps the description small.
    for (field, count) in [("maxFPGAs", accelerators), ("maxCPUs", cpus)] {
        if count > 65_536 {
            return Err(Error::model(field, format!("{count} devices are too many")));
        }
    }
    let memory = Bytes(workload.memory.real("maxSizePerFPGA")?.min(CPU_MEMORY.0 as f64) as u64);
    let device = |name: String, kind: &str, memory: Bytes| DeviceGroup {
        name: Some(name),
        memory: Some(memory),
        flops: Some(Flops(RATE)),
        bandwidth: Some(Rate(RATE)),
        launch: Some(Nanos::ZERO),
        host_link: Some(Rate(0)),
        ..DeviceGroup::new(kind)
    };
    let mut description = Description::default();
    for number in 1..=accelerators {
        description.devices.push(DeviceGroup {
            communication: Communication::Added,
            ..device(format!("acc{number}"), ACCELERATOR, memory)
        });
    }
    for number in 0..cpus.max(1) {
        // Without CPUs the host still stages the copies, and runs nothing.
        let role = if cpus == 0 { Role::Host } else { Role::Compute };
        description.devices.push(DeviceGroup {
            role: Some(role),
            ..device(format!("cpu{number}"), Engine::CPU, CPU_MEMORY)
        });
    }
    let link =
        |from: &str, to: &str| LinkGroup { latency: Some(Nanos::ZERO), ..LinkGroup::new(from, to, LINK) };
    if accelerators > 0 {
        description.links.push(link("acc*", "cpu*"));
    }
    if cpus > 1 {
        description.links.push(link("cpu*", "cpu*"));
    }
    if accelerators > 1 {
        description.links.push(LinkGroup { via: Some("cpu0".into()), ..link("acc*", "acc*") });
    }
    description.build()
}

fn graph(workload: &Workload, name: &str, has_cpus: bool) -> Result<CostGraph> {
    let mut builder = Builder::new(name, vec![ACCELERATOR.into(), Engine::CPU.into()]);
    let sent = sent(workload)?;
    let mut nodes: HashMap<i64, NodeIx> = HashMap::with_capacity(workload.nodes.len());
    let (mut times, mut bytes) = (0u128, 0u128);
    for node in &workload.nodes {
        let name = node.id.to_string();
        let place = |error: Error| error.within(&format!("node {name}"));
        let acc = nanos(node.fpga_latency, "fpgaLatency").map_err(place)?;
        let cpu = nanos(node.cpu_latency, "cpuLatency").map_err(place)?;
        let size = match node.size {
            Some(size) => limited(size.real("size").map_err(place)?.ceil(), "size").map_err(place)?,
            None => 0,
        };
        times += u128::from(acc.max(cpu));
        bytes += u128::from(size) + u128::from(sent.get(&node.id).copied().unwrap_or(0));
        if times > MOST || bytes > MOST {
            return Err(place(Error::model("", "the costs up to here add up to more than 2^63 - 1")));
        }
        let backward = node.is_backward_node.is_some_and(Flag::get);
        let class = node.color_class.map(|class| class.to_string());
        let outputs: Vec<Bytes> = sent.get(&node.id).map(|&bytes| Bytes(bytes)).into_iter().collect();
        let ix = builder.add(&NodeSpec {
            name: &name,
            op: if backward { "backward" } else { "forward" },
            times: &[node.supported_on_fpga.get().then_some(Nanos(acc)), has_cpus.then_some(Nanos(cpu))],
            param_bytes: Bytes(size),
            outputs: &outputs,
            colocate: class.as_deref(),
            backward,
            ..NodeSpec::default()
        })?;
        nodes.insert(node.id, ix);
    }
    for edge in &workload.edges {
        let find = |id: i64| {
            nodes.get(&id).copied().ok_or_else(|| {
                let place = format!("edge from {} to {}", edge.source_id, edge.dest_id);
                Error::model(place, format!("there is no node {id}"))
            })
        };
        builder.connect(find(edge.source_id)?, 0, find(edge.dest_id)?);
    }
    let graph = builder.finish()?;
    if graph.node_count() == 0 {
        return Err(Error::model("nodes", "the workload has no nodes"));
    }
    Ok(graph)
}

/// Bytes that each node with outgoing edges sends: those of its first edge, as in the benchmark's
/// own evaluation.
fn sent(workload: &Workload) -> Result<HashMap<i64, u64>> {
    let mut sent = HashMap::new();
    for edge in &workload.edges {
        let place = |error: Error| error.within(&format!("edge from {} to {}", edge.source_id, edge.dest_id));
        let bytes = nanos(edge.cost, "cost").map_err(place)?;
        sent.entry(edge.source_id).or_insert(bytes);
    }
    Ok(sent)
}

/// Units of time as nanoseconds, to the nearest.
fn nanos(amount: Amount, field: &str) -> Result<u64> {
    limited((amount.real(field)? * UNIT).round(), field)
}

fn limited(value: f64, field: &str) -> Result<u64> {
    if value >= i64::MAX as f64 {
        return Err(Error::model(field, "is too large"));
    }
    Ok(value as u64)
}
