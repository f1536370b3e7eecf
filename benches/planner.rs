//! What can be measured of the planner in one process; `scripts/bench_planner` prints these tables
//! and those that need other programs.
//!
//! `cargo bench --bench planner` prints all; `-- fast [COSTGRAPH.json...]` how long planning takes
//! at the least effort, reading the file not counted; `-- memory` how memory grows with the graph;
//! `-- reading [NODES...]` what a cost graph takes to be built, and to be read in each form;
//! `-- robust [N]` what becomes of N random problems; `-- threads` whether plans are the same bytes
//! for any number of threads and any run; `-- idle [COSTGRAPH.json...]` how much of 2 and of 12 threads planning uses.

#[allow(missing_docs, unreachable_pub, reason = "shared with the tests")]
#[path = "../tests/suite/random_costgraph.rs"]
mod random_costgraph;
#[allow(missing_docs, unreachable_pub, reason = "shared with the tests")]
#[path = "../tests/suite/random_problem.rs"]
mod random_problem;

use std::panic::catch_unwind;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partition::unstable::control::Control;
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::load::{
    LoadOptions, Model, load, read_costgraph, write_costgraph, write_costgraph_binary,
};
use partition::unstable::place::{DeviceUse, Effort, Objective, Options};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};

use random_costgraph::Rng;
use random_problem::{described, judged, problem};

const EFFORTS: [(Effort, &str); 3] =
    [(Effort::Fast, "fast"), (Effort::Default, "default"), (Effort::Best, "best")];

/// Residual blocks of a transformer, about `nodes` nodes in all: a chain of four nodes with a skip,
/// a parameter for every matrix product.
fn blocks(nodes: usize) -> partition::Result<CostGraph> {
    let mut builder = Builder::new("blocks", vec!["a100-80g".into()]);
    let mut last: Option<NodeIx> = None;
    for block in 0..nodes.div_ceil(7) {
        let mut add = |part: &str, op: &str, bytes: u64, inputs: &[Option<NodeIx>]| {
            let param = op == "param";
            let node = builder.add(&NodeSpec {
                name: &format!("b{block}.{part}"),
                op,
                times: &[Some(Nanos(20_000 + (block as u64 * 7919) % 30_000))],
                param_bytes: Bytes(if param { bytes } else { 0 }),
                outputs: &[Bytes(bytes)],
                ..NodeSpec::default()
            })?;
            inputs.iter().flatten().for_each(|&input| builder.connect(input, 0, node));
            partition::Result::Ok(Some(node))
        };
        let norm = add("norm", "norm", 1_000_000, &[last])?;
        let first = add("w0", "param", 2_000_000, &[])?;
        let up = add("up", "matmul", 1_000_000, &[norm, first])?;
        let gelu = add("gelu", "gelu", 4_000_000, &[up])?;
        let second = add("w1", "param", 2_000_000, &[])?;
        let down = add("down", "matmul", 1_000_000, &[gelu, second])?;
        last = add("add", "add", 1_000_000, &[norm, down])?;
    }
    builder.finish()
}

/// Eight devices, each of which holds a sixth of the parameters.
fn eight(graph: &CostGraph) -> partition::Result<Topology> {
    let params = graph.nodes().filter_map(|node| graph.param(node));
    let cap = params.map(|param| graph.param_bytes(param).get()).sum::<u64>() / 6 + 64_000_000;
    Topology::parse(&format!("8xa100-80g:memory={cap}B"))
}

/// A cost graph from a file.
fn read(path: &str) -> partition::Result<CostGraph> {
    let bytes = std::fs::read(path).map_err(|source| partition::Error::Io { path: path.into(), source })?;
    match load(&bytes, None, &LoadOptions::default())? {
        Model::CostGraph { graph, .. } => Ok(graph),
        Model::Graph(_) => Err(partition::Error::model(path, "this is not a cost graph")),
    }
}

/// Seconds on the clock, and of the processor, that planning takes.
fn timed(graph: &CostGraph, topology: &Topology, options: &Options) -> partition::Result<[f64; 2]> {
    let (before, start) = (processor(), Instant::now());
    partition::unstable::compile::plan(graph, topology, options)?;
    let wall = start.elapsed().as_secs_f64();
    Ok([wall, (processor() - before).as_secs_f64()])
}

/// Processor time of this process so far; zero where the system does not tell.
fn processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process' name, in brackets, may hold spaces; times are the 12th and 13th field after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Peak of resident memory in bytes; zero where the system does not tell.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// What fast effort may take: 20 ms at 1,000 nodes, 200 ms at 10,000, 2 s at 175,000, in proportion
/// between and beyond.
fn allowed(nodes: usize) -> f64 {
    if nodes <= 10_000 {
        20e-6 * nodes.max(1000) as f64
    } else {
        0.2 + 1.8 * (nodes - 10_000) as f64 / 165_000.0
    }
}

/// Times of planning at fast effort: the median of five runs (three of large graphs), the cost
/// graph at hand.
fn fast(files: &[String]) -> partition::Result<()> {
    println!("| graph | nodes | objective | devices | planning ms | CPU ms | allowed ms | must |");
    println!("|---|---|---|---|---|---|---|---|");
    let row = |graph: &CostGraph, objective: Objective| -> partition::Result<()> {
        let options = Options { objective, effort: Effort::Fast, ..Options::default() };
        let caps = (eight(graph)?, options.clone(), "8, caps");
        let balance = Options { devices: DeviceUse::All, balance: Some(0.03), ..options };
        let balanced = (Topology::parse("8xa100-80g:memory=1PB")?, balance, "8, balance 3%");
        let cases = if objective == Objective::Transfer { vec![caps, balanced] } else { vec![caps] };
        for (topology, options, label) in cases {
            let runs = if graph.node_count() > 50_000 { 3 } else { 5 };
            let mut times =
                (0..runs).map(|_| timed(graph, &topology, &options)).collect::<Result<Vec<_>, _>>();
            let (name, nodes) = (&graph.name, graph.node_count());
            match &mut times {
                Ok(times) => {
                    times.sort_by(|a, b| a[0].total_cmp(&b[0]));
                    let [wall, cpu] = times[runs / 2].map(|seconds| seconds * 1000.0);
                    let limit = allowed(nodes) * 1000.0;
                    let must = if wall <= limit { "yes" } else { "**no**" };
                    let objective = objective.name();
                    println!(
                        "| {name} | {nodes} | {objective} | {label} | {wall:.1} | {cpu:.0} | {limit:.0} | {must} |"
                    );
                }
                Err(error) => println!("| {name} | {nodes} | {} | {label} | {error} |", objective.name()),
            }
        }
        Ok(())
    };
    let mut graphs: Vec<CostGraph> = Vec::new();
    for nodes in [1_000, 10_000, 175_000] {
        graphs.push(blocks(nodes)?);
    }
    for file in files {
        graphs.push(read(file)?);
    }
    for graph in &graphs {
        for objective in Objective::ALL {
            row(graph, objective)?;
        }
    }
    Ok(())
}

/// Peaks of memory, each in a process of its own.
fn memory() {
    println!("| nodes | objective | planning s | CPU s | peak MB | bytes a node |");
    println!("|---|---|---|---|---|---|");
    let program = std::env::current_exe().expect("this program has a path");
    for nodes in ["10000", "100000", "1000000"] {
        for objective in Objective::ALL {
            let status = Command::new(&program).args(["--row", nodes, objective.name()]).status();
            if !status.is_ok_and(|status| status.success()) {
                println!("| {nodes} | {} | failed |", objective.name());
            }
        }
    }
}

/// One row of [`memory`].
fn memory_row(nodes: usize, objective: Objective) -> partition::Result<()> {
    let graph = blocks(nodes)?;
    let topology = eight(&graph)?;
    let [wall, cpu] = timed(&graph, &topology, &Options { objective, ..Options::default() })?;
    let peak = peak();
    println!(
        "| {} | {} | {wall:.2} | {cpu:.2} | {} | {} |",
        graph.node_count(),
        objective.name(),
        peak / 1_000_000,
        peak / graph.node_count() as u64
    );
    Ok(())
}

/// What became of a random problem.
#[derive(Default)]
struct Tally {
    planned: AtomicUsize,
    refused: AtomicUsize,
    stopped: AtomicUsize,
    faults: AtomicUsize,
}

/// `count` random problems planned and checked, each also stopped at a random moment.
fn robust(first: u64, count: u64) -> usize {
    let tally = Tally::default();
    let add = |counter: &AtomicUsize| _ = counter.fetch_add(1, Ordering::Relaxed);
    let tried = |seed: u64, control: &Control<'_>| {
        let most = [12, 40, 150][seed as usize % 3];
        let judge = std::panic::AssertUnwindSafe(|| judged(&problem(seed, most), control));
        match catch_unwind(judge) {
            Ok(Ok(Some(_))) => add(&tally.planned),
            Ok(Ok(None)) => add(&tally.refused),
            Ok(Err(fault)) => {
                add(&tally.faults);
                println!("FAULT {fault}");
            }
            Err(_) => {
                add(&tally.faults);
                println!("PANIC seed {seed}, at most {most} nodes");
            }
        }
    };
    let start = Instant::now();
    Control::new().map(count as usize, |number| {
        let seed = first + number as u64;
        let begun = Instant::now();
        tried(seed, &Control::new().threads(1));
        if begun.elapsed() > Duration::from_secs(5) {
            println!("SLOW seed {seed}: {:.1} s", begun.elapsed().as_secs_f64());
        }
        let limit = Duration::from_micros(Rng::new(seed).below(3000));
        let control = Control::new().threads(1 + number % 2).time_limit(limit);
        tried(seed, &control);
        if control.was_truncated() {
            add(&tally.stopped);
        }
    });
    let told = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "| problems | planned | refused with a reason | stopped | faults | s |\n|---|---|---|---|---|---|"
    );
    println!(
        "| 2 x {count} from seed {first} | {} | {} | {} | {} | {:.0} |",
        told(&tally.planned),
        told(&tally.refused),
        told(&tally.stopped),
        told(&tally.faults),
        start.elapsed().as_secs_f64()
    );
    told(&tally.faults)
}

/// What is there of a graph before it is read or built.
const FORMS: [&str; 4] = ["nodes, by `Builder`", "arrays, by `from_columns`", "JSON", "binary"];

/// Times and memory of building a graph of `blocks`, and of reading it in each form. Each in a process of its own.
fn reading(sizes: &[usize]) -> partition::Result<()> {
    println!("| nodes | of | file MB | ms | of JSON's | peak MB beyond the file | B per node |");
    println!("|---|---|---|---|---|---|---|");
    let folder = std::env::temp_dir().join(format!("partition-reading-{}", std::process::id()));
    let failed = |source| partition::Error::Io { path: folder.display().to_string(), source };
    std::fs::create_dir_all(&folder).map_err(failed)?;
    for &nodes in sizes {
        let graph = blocks(nodes)?;
        let [json, binary] = ["graph.json", "graph.pcg"].map(|name| folder.join(name));
        std::fs::write(&json, write_costgraph(&graph)).map_err(failed)?;
        std::fs::write(&binary, write_costgraph_binary(graph)).map_err(failed)?;
        for (form, name) in FORMS.iter().enumerate() {
            let [file, other] = if form == 2 { [&json, &json] } else { [&binary, &json] };
            let own = std::env::current_exe().map_err(failed)?;
            let args = [nodes.to_string(), form.to_string()];
            let row =
                Command::new(own).arg("--read").args(args).args([file, other]).output().map_err(failed)?;
            println!("| {nodes} | {name} | {}", String::from_utf8_lossy(&row.stdout).trim_end());
        }
    }
    std::fs::remove_dir_all(&folder).map_err(failed)
}

/// Milliseconds that something takes, the best of three.
fn best_of_three(mut work: impl FnMut() -> partition::Result<CostGraph>) -> partition::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        drop(std::hint::black_box(work()?));
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

/// A row of [`reading`], the first two columns of which the caller has: of `nodes` in a form, from a file, beside the
/// same graph in JSON.
fn reading_row(nodes: usize, form: usize, file: &str, json: &str) -> partition::Result<()> {
    let read =
        |path: &str| std::fs::read(path).map_err(|source| partition::Error::Io { path: path.into(), source });
    let bytes = if form == 0 { Vec::new() } else { read(file)? };
    let before = peak();
    let (size, grown, ms) = match form {
        0 => {
            drop(std::hint::black_box(blocks(nodes)?));
            (0, peak() - before, best_of_three(|| blocks(nodes))?)
        }
        1 => {
            let columns = read_costgraph(&bytes)?.into_columns();
            let before = peak();
            let start = Instant::now();
            let graph = CostGraph::from_columns(columns)?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            drop(std::hint::black_box(graph));
            (0, peak() - before, ms)
        }
        _ => {
            drop(std::hint::black_box(read_costgraph(&bytes)?));
            (bytes.len(), peak() - before, best_of_three(|| read_costgraph(&bytes))?)
        }
    };
    let text = read(json)?;
    let of_json = ms / best_of_three(|| read_costgraph(&text))?;
    let (size, per_node) = (size as f64 / 1e6, grown as f64 / nodes as f64);
    println!("{size:.1} | {ms:.1} | {of_json:.3} | {:.0} | {per_node:.0} |", grown as f64 / 1e6);
    Ok(())
}

/// Processor time of this thread so far.
fn own_processor() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// How much of several threads planning at default effort would use, reading the file not counted: it is done by one, and
/// what each part of it works decides when others would be idle.
fn idle(files: &[String]) -> partition::Result<()> {
    println!(
        "| graph | nodes | objective | CPU s | on 2 threads s | 2 in use | on 12 threads s | 12 in use |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut graphs = vec![blocks(1_000)?, blocks(10_000)?, blocks(100_000)?];
    for file in files {
        graphs.push(read(file)?);
    }
    for graph in &graphs {
        for objective in Objective::ALL {
            let mut row = format!("| {} | {} | {}", graph.name, graph.node_count(), objective.name());
            for threads in [2, 12] {
                let control = Control::new().imagine(threads, own_processor);
                let options = Options { objective, ..Options::default() };
                let start = own_processor();
                partition::unstable::compile::plan_with(graph, &eight(graph)?, &options, &control)?;
                let worked = own_processor().saturating_sub(start);
                let took = worked.saturating_sub(control.saved()).as_secs_f64();
                let worked = worked.as_secs_f64();
                if threads == 2 {
                    row += &format!(" | {worked:.2}");
                }
                row += &format!(" | {took:.2} | {:.0} %", 100.0 * worked / took / threads as f64);
            }
            println!("{row} |");
        }
    }
    Ok(())
}

/// Whether plans are the same bytes for 1, 2 and 4 threads and ten runs.
fn threads(files: &[String]) -> partition::Result<usize> {
    let mut graphs = vec![blocks(1_000)?, blocks(5_000)?];
    for file in files {
        graphs.push(read(file)?);
    }
    let mut unequal = 0;
    let mut compared = 0;
    for graph in &graphs {
        let topology = eight(graph)?;
        for objective in Objective::ALL {
            for (effort, name) in EFFORTS {
                let options = Options { objective, effort, seed: 1, ..Options::default() };
                let bytes = |threads: usize| {
                    let control = Control::new().threads(threads);
                    partition::unstable::compile::plan_with(graph, &topology, &options, &control)
                        .map(|plan| plan.to_json())
                };
                let told = |plan: partition::Result<String>| plan.unwrap_or_else(|error| error.to_string());
                let one = told(bytes(1));
                // Best effort is long: two runs of it must do.
                let counts: &[usize] =
                    if effort == Effort::Best { &[2, 4] } else { &[1, 2, 4, 2, 4, 2, 4, 2, 4] };
                for &threads in counts {
                    compared += 1;
                    if told(bytes(threads)) != one {
                        unequal += 1;
                        println!("FAULT {} {} {name}: {threads} threads", graph.name, objective.name());
                    }
                }
            }
        }
    }
    for seed in 0..300 {
        let problem = problem(seed, 60);
        let bytes = |threads: usize| {
            judged(&problem, &Control::new().threads(threads)).map(|p| p.map(|p| p.to_json()))
        };
        let one = bytes(1);
        for threads in [1, 2, 4, 1, 2, 4, 1, 2, 4] {
            compared += 1;
            if bytes(threads) != one {
                unequal += 1;
                println!("FAULT {threads} threads: {}", described(&problem));
            }
        }
    }
    println!("| plans compared with one thread's | unequal |\n|---|---|\n| {compared} | {unequal} |");
    Ok(unequal)
}

fn main() -> partition::Result<()> {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let faults = match args.first().map(String::as_str) {
        Some("--row") => {
            let nodes = args[1].parse().expect("a number of nodes");
            let named = |objective: &Objective| objective.name() == args[2];
            let objective = Objective::ALL.into_iter().find(named).expect("an objective");
            return memory_row(nodes, objective);
        }
        Some("--read") => {
            let number = |at: usize| args[at].parse().expect("a number");
            return reading_row(number(1), number(2), &args[3], &args[4]);
        }
        Some("reading") => {
            let sizes: Vec<usize> =
                args[1..].iter().map(|arg| arg.parse().expect("a number of nodes")).collect();
            return reading(if sizes.is_empty() { &[100_000, 1_000_000] } else { &sizes });
        }
        Some("fast") => return fast(&args[1..]),
        Some("idle") => return idle(&args[1..]),
        Some("memory") => {
            memory();
            return Ok(());
        }
        Some("robust") => {
            let number =
                |at: usize, default: u64| args.get(at).map_or(default, |arg| arg.parse().expect("a number"));
            robust(number(2, 0), number(1, 10_000))
        }
        Some("threads") => threads(&args[1..])?,
        _ => {
            fast(&[])?;
            println!();
            memory();
            println!();
            robust(0, 10_000) + threads(&[])?
        }
    };
    assert_eq!(faults, 0, "faults found");
    Ok(())
}
