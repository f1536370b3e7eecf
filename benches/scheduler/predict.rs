//! Predicted time of a step beside the measured one, on two virtual devices of the CPU with a core
//! each: every network is calibrated and planned with what was measured, then all of a batch run in
//! turn, so that what disturbs the machine disturbs all of them.
//!
//! `predict [--objective latency|transfer] [NAME...]`.

use std::time::Duration;

use partition::calibrate::{self, Source};
use partition::compile::{self, Compiled, Options, compile};
use partition::ir::{ParamId, Tensor};
use partition::load::Model;
use partition::load::weights::ParamReader;
use partition::place::{self, DeviceUse, Objective};
use partition::run::{ExecOptions, Program};
use partition::topology::Topology;

use super::corpus::models;
use super::networks::Network;

/// Networks that are held ready together.
const BATCH: usize = 4;
/// Steps of each network.
const STEPS: usize = 11;
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
    name: String,
    compiled: Compiled,
    program: Program,
    inputs: Vec<(String, Tensor)>,
    walls: Vec<Duration>,
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
        let mut batch = Vec::new();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match ready(path, name.clone(), objective) {
                Ok(ready) => batch.push(ready),
                Err(error) => println!("| {name} | | | | | {error} | | |"),
            }
        }
        for _ in 0..STEPS {
            for ready in &mut batch {
                ready.program.feed(&ready.inputs).expect("inputs that fit");
                ready.walls.push(ready.program.step().expect("a step"));
            }
        }
        errors.extend(batch.into_iter().filter_map(row));
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

fn ready(path: &std::path::Path, name: String, objective: Objective) -> partition::Result<Ready> {
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
    Ok(Ready { name, compiled, program, inputs: network.inputs.clone(), walls: Vec::new() })
}

/// Prints a row; how far off the prediction is, where the network counts.
fn row(mut ready: Ready) -> Option<f64> {
    ready.walls.sort_unstable();
    let measured = ready.walls[ready.walls.len() / 2];
    let plan = &ready.compiled.plan;
    let launches = plan.steps.iter().filter(|step| matches!(step.action, partition::plan::Action::Launch(_)));
    let launches = launches.count();
    let predicted = plan.cost.latency_ns.get() as f64 / 1e6;
    let found = measured.as_secs_f64() * 1e3;
    let ratio = predicted / found;
    let counts = measured >= LEAST;
    let error = (ratio - 1.0).abs();
    println!(
        "| {} | {launches} | {} | {predicted:.2} | {found:.2} | {ratio:.3} | {} | {} |",
        ready.name,
        plan.steps.len() - launches,
        if counts { "yes" } else { "no" },
        match counts {
            true if error <= MUST => "met",
            true => "missed",
            false => "",
        }
    );
    counts.then_some(error)
}
