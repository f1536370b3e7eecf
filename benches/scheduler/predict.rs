//! Predicted time of a step beside the measured one, on two virtual devices of the CPU with a core
//! each. In each of several rounds every network of a batch is calibrated and planned with what was measured,
//! then all of them run in turn: what disturbs the machine disturbs predictions and steps alike. Medians over
//! the rounds.
//!
//! `predict [--objective latency|transfer] [NAME...]`.

use std::time::Duration;

use partition::unstable::calibrate::{self, Source};
use partition::unstable::compile::{self, Compiled, Options, compile};
use partition::unstable::ir::{ParamId, Tensor};
use partition::unstable::load::Model;
use partition::unstable::load::weights::ParamReader;
use partition::unstable::place::{self, DeviceUse, Objective};
use partition::unstable::run::{ExecOptions, Program};
use partition::unstable::topology::Topology;

use super::corpus::models;
use super::networks::Network;

/// Networks that are held ready together.
const BATCH: usize = 4;
/// How often each network is calibrated, planned and run.
const ROUNDS: usize = 3;
/// Steps of each network in a round.
const STEPS: usize = 5;
/// Steps shorter than this are shown, and do not count.
const LEAST: Duration = Duration::from_millis(5);
/// Most that prediction and measurement may differ, and what is aimed at.
const MUST: f64 = 0.20;
const AIM: f64 = 0.10;

impl Source for Network {
    fn inputs(&self, _: &compile::Network) -> partition::Result<Vec<(String, Tensor)>> {
        Ok(self.inputs.clone())
    }

    fn weight(
        &self,
        network: &compile::Network,
        id: ParamId,
        _: &mut ParamReader,
    ) -> partition::Result<Tensor> {
        self.weight(self.same(&network.graph, id))
    }
}

/// A network ready to run.
struct Ready {
    compiled: Compiled,
    program: Program,
    inputs: Vec<(String, Tensor)>,
    walls: Vec<Duration>,
}

/// What is known of a network after some rounds.
#[derive(Default)]
struct Known {
    name: String,
    launches: usize,
    copies: usize,
    predicted: Vec<f64>,
    measured: Vec<f64>,
    ratios: Vec<f64>,
}

pub(crate) fn print(arguments: &[String]) {
    let (objective, words) = match arguments {
        [flag, name, words @ ..] if flag == "--objective" => {
            let known = Objective::ALL.into_iter().find(|objective| objective.name() == name);
            (known.expect("an objective"), words)
        }
        words => (Objective::Latency, words),
    };
    println!("\nobjective {}", objective.name());
    println!(
        "| model | launches | copies | predicted ms | measured ms | predicted/measured | counts | must |"
    );
    println!("|---|---:|---:|---:|---:|---:|---|---|");
    let mut errors = Vec::new();
    for paths in models(words).chunks(BATCH) {
        let mut known: Vec<Known> = paths.iter().map(|_| Known::default()).collect();
        for _ in 0..ROUNDS {
            let mut batch = Vec::new();
            for (known, path) in known.iter_mut().zip(paths) {
                known.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                match ready(path, objective) {
                    Ok(ready) => batch.push((known, ready)),
                    Err(error) => println!("| {} | | | | | {error} | | |", known.name),
                }
            }
            for _ in 0..STEPS {
                for (_, ready) in &mut batch {
                    ready.program.feed(&ready.inputs).expect("inputs that fit");
                    ready.walls.push(ready.program.step().expect("a step"));
                }
            }
            batch.into_iter().for_each(|(known, ready)| known.learn(ready));
        }
        errors.extend(known.into_iter().filter_map(row));
    }
    let share = |most: f64| {
        100.0 * errors.iter().filter(|&&error| error <= most).count() as f64 / errors.len().max(1) as f64
    };
    println!(
        "\n{} networks with steps of {LEAST:?} or more: {:.0} % within 20 %, {:.0} % within 10 %, the worst {:.1} % off",
        errors.len(),
        share(MUST),
        share(AIM),
        100.0 * errors.iter().copied().fold(0.0, f64::max)
    );
}

fn ready(path: &std::path::Path, objective: Objective) -> partition::Result<Ready> {
    let network = Network::open(path)?;
    let topology = Topology::parse("2xcpu:cores=1")?;
    let place = place::Options { objective, devices: DeviceUse::All, ..place::Options::default() };
    let options = Options { bind: network.dims.clone(), place, ..Options::default() };
    let profile = calibrate::network(network.graph.clone(), &topology, &options, &network)?;
    let topology = profile.applied(&topology)?;
    let options = Options { profile: Some(std::sync::Arc::new(profile)), ..options };
    let compiled = compile(Model::Graph(network.graph.clone()), &topology, &options)?;
    let mut program = network.ready(&compiled, ExecOptions::default())?;
    program.feed(&network.inputs)?;
    program.step()?;
    Ok(Ready { compiled, program, inputs: network.inputs.clone(), walls: Vec::new() })
}

impl Known {
    fn learn(&mut self, mut ready: Ready) {
        ready.walls.sort_unstable();
        let measured = ready.walls[ready.walls.len() / 2].as_secs_f64() * 1e3;
        let plan = &ready.compiled.plan;
        let launch = |step: &&partition::unstable::plan::Step| {
            matches!(step.action, partition::unstable::plan::Action::Launch(_))
        };
        self.launches = plan.steps.iter().filter(launch).count();
        self.copies = plan.steps.len() - self.launches;
        let predicted = plan.cost.latency_ns.get() as f64 / 1e6;
        self.predicted.push(predicted);
        self.measured.push(measured);
        self.ratios.push(predicted / measured);
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints a row; how far off the prediction is, where the network counts.
fn row(mut known: Known) -> Option<f64> {
    if known.ratios.is_empty() {
        return None;
    }
    let (predicted, measured) = (median(&mut known.predicted), median(&mut known.measured));
    let ratio = median(&mut known.ratios);
    let counts = measured >= LEAST.as_secs_f64() * 1e3;
    let error = (ratio - 1.0).abs();
    println!(
        "| {} | {} | {} | {predicted:.2} | {measured:.2} | {ratio:.3} | {} | {} |",
        known.name,
        known.launches,
        known.copies,
        if counts { "yes" } else { "no" },
        match counts {
            true if error <= MUST => "met",
            true => "missed",
            false => "",
        }
    );
    counts.then_some(error)
}
