//! What splitting operations is worth: predicted latency of a step on several devices beside splits that are written
//! by hand, all scored by one simulator.
//!
//! `cargo bench --bench split` prints a table of every network, topology and batch, and one of how long it takes to plan
//! llama 70B; `cargo bench --bench split -- WORD` the rows whose name holds a word (`planning` those of the second table).
//! By hand are: one device (where it fits); layers placed whole (what
//! `--split none` finds, with pipelines among it); the batch cut evenly (data parallelism); columns of the first product
//! of attention and of the feed-forward part and sums of the second (Megatron-LM's two cuts), heads between them.
//! The corpus is read from `../shared`.

use std::path::Path;
use std::time::Instant;

use partition::unstable::compile::{Options, SplitOptions, SplitRule, compile};
use partition::unstable::error::Error;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{Effort, Objective};
use partition::unstable::topology::Topology;

/// A network, how its parameters are made, and what Megatron-LM cuts of it.
struct Row {
    name: &'static str,
    file: String,
    dims: &'static [(&'static str, i64)],
    /// (pattern, axis)
    cuts: &'static [(&'static str, &'static str)],
}

const LLAMA: &[(&str, &str)] = &[
    ("*q_proj", "-1"),
    ("*k_proj", "-1"),
    ("*v_proj", "-1"),
    ("*o_proj", "sum"),
    ("*gate_proj", "-1"),
    ("*up_proj", "-1"),
    ("*down_proj", "sum"),
    ("lm_head", "-1"),
];

const MIXTRAL: &[(&str, &str)] = &[
    ("*q_proj", "-1"),
    ("*k_proj", "-1"),
    ("*v_proj", "-1"),
    ("*o_proj", "sum"),
    ("*w1", "-1"),
    ("*w3", "-1"),
    ("*w2", "sum"),
    ("lm_head", "-1"),
];

const LLAMA_70B: &str = r#"{"model_type":"llama","hidden_size":8192,"intermediate_size":28672,
"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":32000,
"max_position_embeddings":4096,"rms_norm_eps":1e-5,"torch_dtype":"bfloat16","tie_word_embeddings":false}"#;

fn rows(folder: &Path) -> Vec<Row> {
    let corpus = "../shared/corpus";
    let large = folder.join("config.json");
    std::fs::write(&large, LLAMA_70B).expect("a temporary folder that can be written");
    vec![
        Row {
            name: "llama 7B",
            file: format!("{corpus}/hf/llama_default_7b.config.json"),
            dims: &[("sequence", 512)],
            cuts: LLAMA,
        },
        Row {
            name: "llama 7B, a token",
            file: format!("{corpus}/hf/llama_default_7b.config.json"),
            dims: &[("sequence", 1)],
            cuts: LLAMA,
        },
        Row {
            name: "llama 70B",
            file: large.to_string_lossy().into_owned(),
            dims: &[("sequence", 512)],
            cuts: LLAMA,
        },
        Row {
            name: "gpt2",
            file: format!("{corpus}/hf/gpt2.config.json"),
            dims: &[("sequence", 512)],
            cuts: &[("*c_fc", "-1"), ("*mlp.c_proj", "sum"), ("lm_head", "-1")],
        },
        Row {
            name: "mixtral 8x7B",
            file: format!("{corpus}/hf/mixtral_default_8x7b.config.json"),
            dims: &[("sequence", 512)],
            cuts: MIXTRAL,
        },
        Row { name: "resnet50", file: format!("{corpus}/onnx/resnet50.onnx"), dims: &[], cuts: &[] },
    ]
}

const TOPOLOGIES: [&str; 5] = ["2xh100-80g", "4xh100-80g", "8xh100-80g", "4xl4-24g", "2xh100-80g+2xl4-24g"];

/// The latency of a step in nanoseconds, and how long it took to plan, in seconds; none where nothing fits.
fn plan(row: &Row, devices: &str, batch: i64, split: SplitOptions) -> Result<Option<(u64, f64)>, Error> {
    let bytes = std::fs::read(&row.file).unwrap_or_else(|error| panic!("{}: {error}", row.file));
    let model = load(&bytes, Some(Path::new(&row.file)), &LoadOptions::default())?;
    let mut options = Options { batch: Some(batch), split, ..Options::default() };
    options.bind = row.dims.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    options.place.objective = Objective::Latency;
    options.place.effort = Effort::Default;
    let Model::Graph(_) = &model else { return Ok(None) };
    let begin = Instant::now();
    match compile(model, &Topology::parse(devices)?, &options) {
        Ok(compiled) => Ok(Some((compiled.plan.cost.latency_ns.get(), begin.elapsed().as_secs_f64()))),
        Err(Error::Infeasible(_) | Error::Usage(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn rules(cuts: &[(&str, &str)], names: &[String]) -> SplitOptions {
    let rule = |(pattern, axis): &(&str, &str)| -> SplitRule {
        let text = format!("{pattern}={axis}:{}@{}", names.len(), names.join(","));
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    SplitOptions { auto: false, rules: cuts.iter().map(rule).collect(), ..SplitOptions::default() }
}

fn cell(found: Option<(u64, f64)>) -> String {
    found.map_or_else(|| "-".to_owned(), |(time, _)| format!("{:.2}", time as f64 / 1e6))
}

fn seconds(found: Option<(u64, f64)>) -> String {
    found.map_or_else(|| "-".to_owned(), |(_, time)| format!("{time:.1}"))
}

/// Devices that llama 70B is planned for, to see how long that takes.
const PLANNED_FOR: [&str; 2] = ["8xh100-80g", "64xh100-80g"];

fn main() -> Result<(), Error> {
    let word = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let folder = std::env::temp_dir().join(format!("partition-split-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    println!("Latency of a step in ms, predicted.\n");
    println!(
        "| network | devices | batch | split | whole | one device | batch cut | two cuts of a block | of the best by hand | planned in s |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for row in rows(&folder) {
        for devices in TOPOLOGIES {
            for batch in [1, 8, 64] {
                let name = format!("{} {devices} {batch}", row.name);
                if name.contains(&word) {
                    print_row(&row, devices, batch)?;
                }
            }
        }
    }
    println!("\n| planning llama 70B | batch | split | planned in s |");
    println!("|---|--:|--:|--:|");
    for row in rows(&folder).iter().filter(|row| row.name == "llama 70B") {
        for devices in PLANNED_FOR {
            if format!("planning {devices}").contains(&word) {
                let found = plan(row, devices, 1, SplitOptions::default())?;
                println!("| {devices} | 1 | {} | {} |", cell(found), seconds(found));
            }
        }
    }
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}

fn print_row(row: &Row, devices: &str, batch: i64) -> Result<(), Error> {
    let topology = Topology::parse(devices)?;
    let names: Vec<String> = topology.computing().map(|id| topology.device(id).name.clone()).collect();
    let none = SplitOptions { auto: false, ..SplitOptions::default() };
    let split = plan(row, devices, batch, SplitOptions::default())?;
    let first = devices.split(['x', '+']).find(|part| part.contains('-')).unwrap_or(devices);
    let by_hand = [
        plan(row, devices, batch, none.clone())?,
        plan(row, first, batch, none)?,
        plan(row, devices, batch, rules(&[("*", "0")], &names))?,
        if row.cuts.is_empty() { None } else { plan(row, devices, batch, rules(row.cuts, &names))? },
    ];
    let best = by_hand.iter().flatten().map(|found| found.0).min();
    let ratio = match (split, best) {
        (Some((found, _)), Some(best)) => format!("{:.3}", found as f64 / best as f64),
        (Some(_), None) => "only".to_owned(),
        (None, _) => "-".to_owned(),
    };
    let time = seconds(split);
    let cells: Vec<String> = by_hand.into_iter().map(cell).collect();
    println!(
        "| {} | {devices} | {batch} | {} | {} | {ratio} | {time} |",
        row.name,
        cell(split),
        cells.join(" | ")
    );
    Ok(())
}
