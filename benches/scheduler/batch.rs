//! `--batch max` beside brute force, which plans for every batch: ten models on one device that
//! holds between six and thirteen times what one sample needs beside the parameters.

use partition::unstable::compile::{Options, compile, largest_batch};
use partition::unstable::control::Control;
use partition::unstable::load::Model;
use partition::unstable::place::{self, Effort};
use partition::unstable::topology::Topology;

use super::corpus::models;
use super::networks::Network;

const MODELS: [&str; 10] = [
    "mlp_small.k2",
    "mlp_small.k3",
    "cnn_small.k2",
    "cnn_small.k3",
    "gru_conv1d_small.k3",
    "siamese_multi_io.k3",
    "transformer_small.k2",
    "transformer_small.k3",
    "gru_conv1d_small.k2",
    "siamese_multi_io.k2",
];

pub(crate) fn print(words: &[String]) {
    println!("\n| model | cap | batch | planned for | brute force | equal |");
    println!("|---|---:|---:|---:|---:|---|");
    for (number, name) in MODELS.iter().enumerate() {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        for path in models(&[(*name).to_owned()]).iter().take(1) {
            match row(path, 6 + number as u64 % 8) {
                Ok(row) => println!("| {name} | {row} |"),
                Err(error) => println!("| {name} | {error} | | | | |"),
            }
        }
    }
}

fn row(path: &std::path::Path, times: u64) -> partition::Result<String> {
    let network = Network::open(path)?;
    let fast = place::Options { effort: Effort::Fast, ..place::Options::default() };
    let options = Options { place: fast, ..Options::default() };
    let of = |batch: i64| Options { batch: Some(batch), ..options.clone() };
    let model = || Model::Graph(network.graph.clone());
    let one = compile(model(), &Topology::parse("cpu:memory=64GB")?, &of(1))?;
    let usage = &one.schedule.devices[0];
    let cap = usage.resident.0 + (usage.arena.0 - usage.resident.0) * times + 100;
    let topology = Topology::parse(&format!("cpu:memory={cap}B"))?;
    let found = largest_batch(&model(), &topology, &options, &Control::new())?;
    let fits = |batch: &i64| compile(model(), &topology, &of(*batch)).is_ok();
    let most = (1..found.batch * 2 + 4).filter(fits).max().unwrap_or(0);
    let equal = if most == found.batch { "yes" } else { "NO" };
    Ok(format!("{cap} | {} | {} | {most} | {equal}", found.batch, found.tried.len()))
}
