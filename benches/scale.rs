//! How long it takes to read, plan, check and write cost graphs of 10,000 to 1,000,000 nodes, and
//! to build and print IR graphs of that size.
//!
//! `cargo bench --bench scale` prints two tables; `cargo bench --bench scale -- 100000` one size.
//! The cost graphs are residual blocks of a transformer: a chain of four nodes with a skip, a
//! parameter for every matrix product. Caps leave room for a sixth of the parameters on each of
//! eight devices, so that the graph must be split over at least six. Each row is measured in a
//! process of its own, whose peak of resident memory stands in the last column.

use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use partition::unstable::ir::{Binary, DType, Graph, Op, Shape, Source, SourceRole, Type, Unary};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::Options;
use partition::unstable::topology::Topology;

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];

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

/// An IR graph: layers of four nodes, each with a source of its own, as from a loader.
fn network(nodes: usize) -> partition::Result<Graph> {
    let mut graph = Graph::new("layers");
    let source = graph.add_source(Source::new("input", "Input", SourceRole::Data));
    let mut x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[8, 16, 32, 32])), source);
    while graph.node_count() < nodes {
        let layer = graph.node_count();
        for (op, both) in [
            (Op::Unary(Unary::Tanh), false),
            (Op::Binary(Binary::Add), true),
            (Op::Softmax { axis: 3, log: false }, false),
            (Op::Transpose { perm: vec![0, 1, 3, 2] }, false),
        ] {
            let name = format!("/model/layers.{layer}/{}", op.name());
            let source = graph.add_source(Source::new(name, op.name(), SourceRole::Node));
            let operands = if both { vec![x, x] } else { vec![x] };
            x = graph.apply(op, &operands, source)?;
        }
    }
    graph.add_output("y", x);
    Ok(graph)
}

/// Peak of resident memory in MB; zero where the system does not tell.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1000
}

/// Processor time of this process so far; zero where the system does not tell.
fn processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process' name, in brackets, may hold spaces; times are the 12th and 13th field after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// What `work` gives, and its time on the clock in seconds.
fn timed<T>(work: impl FnOnce() -> partition::Result<T>) -> partition::Result<(T, f64)> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed().as_secs_f64()))
}

/// One row of the first table.
fn plan_one(size: usize) -> partition::Result<()> {
    let json = costgraph(size);
    let before = processor();
    let (model, read) = timed(|| load(json.as_bytes(), None, &LoadOptions::default()))?;
    drop(json);
    let Model::CostGraph { graph, .. } = model else { unreachable!("a cost graph was written") };
    let params = graph.nodes().filter_map(|node| graph.param(node));
    let cap = params.map(|param| graph.param_bytes(param).get()).sum::<u64>() / 6 + 64_000_000;
    let topology = Topology::parse(&format!("8xa100-80g:memory={cap}B"))?;
    let (plan, planned) =
        timed(|| partition::unstable::compile::plan(&graph, &topology, &Options::default()))?;
    let (_, checked) = timed(|| partition::unstable::plan::check(&plan))?;
    let (text, written) = timed(|| Ok(plan.to_json()))?;
    let spent = (processor() - before).as_secs_f64();
    let used = plan.devices.iter().filter(|device| device.arena.get() > 0).count();
    assert!(used >= 2 && plan.cost.transfer_bytes.get() > 0, "the graph must be split");
    assert!(text.len() > size);
    println!(
        "{:>9} {used:>8} {:>8} {read:>8.3} {planned:>8.3} {checked:>8.3} {written:>8.3} {spent:>8.3} {:>8}",
        graph.node_count(),
        plan.cost.transfer_bytes.get() / 1_000_000,
        peak_mb()
    );
    Ok(())
}

/// One row of the second table.
fn print_one(size: usize) -> partition::Result<()> {
    let (graph, built) = timed(|| network(size))?;
    let alone = peak_mb();
    let (text, printed) = timed(|| Ok(graph.to_string()))?;
    println!(
        "{:>9} {built:>8.3} {printed:>8.3} {:>8} {alone:>8}",
        graph.node_count(),
        text.len() / 1_000_000
    );
    Ok(())
}

/// Measures one row in a process of its own.
fn row(table: &str, size: usize) {
    let program = std::env::current_exe().expect("this program has a path");
    let status = Command::new(program).args(["--row", table, &size.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "{table} of {size} nodes failed");
}

fn main() -> partition::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [row, table, size] = &args[..]
        && row == "--row"
    {
        let size = size.parse().expect("a size");
        return if table == "plan" { plan_one(size) } else { print_one(size) };
    }
    // Cargo adds `--bench`.
    let given: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if given.is_empty() { SIZES.to_vec() } else { given };
    println!(
        "{:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "nodes", "devices", "moved MB", "read s", "plan s", "check s", "write s", "CPU s", "peak MB"
    );
    sizes.iter().for_each(|&size| row("plan", size));
    println!("\n{:>9} {:>8} {:>8} {:>8} {:>8}", "IR nodes", "build s", "print s", "text MB", "peak MB");
    sizes.iter().for_each(|&size| row("print", size));
    Ok(())
}
