//! How long it takes to read, plan, check and write cost graphs of 10,000 to 1,000,000 nodes.
//!
//! `cargo bench --bench scale` prints a table; `cargo bench --bench scale -- 100000` one size.
//! The graphs are residual blocks of a transformer: a chain of four nodes with a skip, a parameter
//! for every matrix product. One process makes all sizes, smallest first, so the peak of resident
//! memory belongs to the size in its row.

use std::fmt::Write;
use std::time::Instant;

use partition::load::{LoadOptions, Model, load};
use partition::place::Options;
use partition::topology::Topology;

/// A cost graph in JSON with about `nodes` nodes.
fn costgraph(nodes: usize) -> String {
    let mut out = String::from("{\"costgraph\":1,\"name\":\"blocks\",\"kinds\":[\"a100-80g\"],\"nodes\":[\n");
    let mut edges = String::new();
    let blocks = nodes / 7;
    let mut comma = "";
    for block in 0..blocks {
        let time = 20_000 + (block as u64 * 7919) % 30_000;
        for (part, op) in ["norm", "matmul", "gelu", "matmul", "add"].iter().enumerate() {
            let bytes = if part == 2 { 4_000_000 } else { 1_000_000 };
            let _ = writeln!(
                out,
                "{comma}{{\"id\":\"b{block}.{part}\",\"op\":\"{op}\",\"time_ns\":[{time}],\"param_bytes\":0,\"workspace_bytes\":0,\"outputs\":[{bytes}]}}"
            );
            comma = ",";
        }
        for (param, reader) in [(0, 1), (1, 3)] {
            let _ = writeln!(
                out,
                ",{{\"id\":\"w{block}.{param}\",\"op\":\"param\",\"time_ns\":[0],\"param_bytes\":2000000,\"workspace_bytes\":0,\"outputs\":[2000000]}}"
            );
            let _ = writeln!(edges, ",[\"w{block}.{param}\",0,\"b{block}.{reader}\"]");
        }
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)] {
            let _ = writeln!(edges, ",[\"b{block}.{from}\",0,\"b{block}.{to}\"]");
        }
        if block > 0 {
            let _ = writeln!(edges, ",[\"b{}.4\",0,\"b{block}.0\"]", block - 1);
        }
    }
    out.push_str("],\"edges\":[\n");
    out.push_str(edges.strip_prefix(',').unwrap_or(&edges));
    out.push_str("]}\n");
    out
}

/// Peak of resident memory in MB; zero where the system does not tell.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1000
}

fn main() -> partition::Result<()> {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![10_000, 100_000, 1_000_000] } else { given };
    println!(
        "{:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "nodes", "read s", "plan s", "check s", "write s", "peak MB"
    );
    for size in sizes {
        let json = costgraph(size);
        let start = Instant::now();
        let Model::CostGraph { graph, .. } = load(json.as_bytes(), None, &LoadOptions::default())? else {
            unreachable!("a cost graph was written");
        };
        drop(json);
        let read = start.elapsed();
        // Room for two thirds of the parameters on each two of eight devices: a split is forced.
        let cap = graph
            .nodes()
            .filter_map(|node| graph.param(node))
            .map(|p| graph.param_bytes(p).get())
            .sum::<u64>()
            / 6;
        let topology = Topology::parse(&format!("8xa100-80g:memory={}B", cap + 2_000_000_000))
            .or_else(|_| Topology::parse("8xa100-80g"))?;
        let start = Instant::now();
        let plan = partition::plan(&graph, &topology, &Options::default())?;
        let planned = start.elapsed();
        let start = Instant::now();
        partition::plan::check(&plan)?;
        let checked = start.elapsed();
        let start = Instant::now();
        let text = plan.to_json();
        let written = start.elapsed();
        assert!(!text.is_empty());
        println!(
            "{:>9} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8}",
            graph.node_count(),
            read.as_secs_f64(),
            planned.as_secs_f64(),
            checked.as_secs_f64(),
            written.as_secs_f64(),
            peak_mb()
        );
    }
    Ok(())
}
