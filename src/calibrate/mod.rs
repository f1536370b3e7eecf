//! Measures this machine into a [`Profile`], by running plans on it.
//!
//! [`machine`] measures copies and the rates that classes of operations reach. [`network`] measures every
//! kernel of one network within its plan, while the other devices run theirs. Both take medians over
//! consecutive steps, after warm-up steps.

mod observe;
mod probes;

use std::sync::Arc;

use crate::compile::{self, Network};
use crate::cost::{CopyTime, Profile};
use crate::error::{Error, Result};
use crate::ir::{Graph, ParamId, Tensor};
use crate::load::Model;
use crate::load::weights::ParamReader;
use crate::plan::{Action, Plan};
use crate::run::{ExecOptions, Program, RunReport, exec_plan, probe};
use crate::topology::{Engine, Topology};

use observe::observe;

/// Where inputs and weights come from.
pub trait Source {
    /// Every input of the network.
    fn inputs(&self, network: &Network) -> Result<Vec<(String, Tensor)>>;

    /// A parameter's data.
    fn weight(&self, network: &Network, param: ParamId, reader: &mut ParamReader) -> Result<Tensor>;
}

/// Plans are made and measured anew at most this often, until measuring no longer changes them.
const ROUNDS: usize = 3;

/// Measures what the classes of operations reach on one core of this machine, and copies between
/// two virtual devices. Takes a few seconds.
///
/// Errors: memory that the system does not give.
pub fn machine() -> Result<Profile> {
    let mut profile = Profile { machine: probe::probe().cpu.model, ..Profile::default() };
    let kind = profile.kind_mut(Engine::CPU);
    (kind.classes, kind.launch_ns) = probes::classes()?;
    kind.copies = probes::copies()?;
    Ok(profile)
}

/// Measures every kernel of a network in the plan that it has on these devices, and the copies of
/// that plan; plans anew with what was measured, and measures that, until the plan stays the same.
/// Adds to the profile in `options`, where there is one.
///
/// Errors: those of planning and running.
pub fn network(
    graph: Graph,
    topology: &Topology,
    options: &compile::Options,
    source: &dyn Source,
) -> Result<Profile> {
    let mut profile = match &options.profile {
        Some(profile) => profile.as_ref().clone(),
        None => Profile { machine: probe::probe().cpu.model, ..Profile::default() },
    };
    if profile.kind(Engine::CPU).is_none_or(|kind| kind.copies.is_empty()) {
        profile.kind_mut(Engine::CPU).copies = probes::copies()?;
    }
    let mut last: Option<Plan> = None;
    for _ in 0..ROUNDS {
        let topology = profile.applied(topology)?;
        let options = compile::Options { profile: Some(Arc::new(profile.clone())), ..options.clone() };
        let compiled = compile::compile(Model::Graph(graph.clone()), &topology, &options)?;
        if last.as_ref().is_some_and(|last| is_same(last, &compiled.plan)) {
            break;
        }
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        measure(&compiled.plan, &network, source, &mut profile)?;
        last = Some(compiled.plan);
    }
    Ok(profile)
}

/// Measures the kernels and copies of one plan.
///
/// Errors: those of running it.
pub fn plan(plan: &Plan, network: &Network, source: &dyn Source) -> Result<Profile> {
    let mut profile = Profile { machine: probe::probe().cpu.model, ..Profile::default() };
    profile.kind_mut(Engine::CPU).copies = probes::copies()?;
    measure(plan, network, source, &mut profile)?;
    Ok(profile)
}

/// True where the same is launched in the same order on the same devices.
fn is_same(one: &Plan, other: &Plan) -> bool {
    one.steps.len() == other.steps.len()
        && one.steps.iter().zip(&other.steps).all(|(one, other)| {
            one.device == other.device
                && match (&one.action, &other.action) {
                    (Action::Launch(one), Action::Launch(other)) => one.group == other.group,
                    (Action::Copy(one), Action::Copy(other)) => one.bytes == other.bytes,
                    (Action::Launch(_), Action::Copy(_)) | (Action::Copy(_), Action::Launch(_)) => false,
                }
        })
}

/// Runs a plan and puts what was seen into the profile.
fn measure(plan: &Plan, network: &Network, source: &dyn Source, profile: &mut Profile) -> Result<()> {
    let exec = exec_plan(plan, &network.graph, &network.grouping)?;
    let reader = std::cell::RefCell::new(ParamReader::new());
    let weights = |param: ParamId| source.weight(network, param, &mut reader.borrow_mut());
    let fused = network.grouping.all_fused();
    let mut program = Program::new(&network.graph, &fused, &exec, &weights, ExecOptions::default())?;
    let reports = reports(&mut program, &source.inputs(network)?, BUDGET)?;
    observe(plan, &reports, profile)
}

/// Steps that only warm up.
const WARM: usize = 3;
/// Fewest steps that are measured, and most.
const STEPS: std::ops::RangeInclusive<u32> = 9..=101;
/// How long measuring one plan takes, within these numbers of steps.
const BUDGET: std::time::Duration = std::time::Duration::from_secs(2);

/// Reports of steps that follow one another, for about as long as `budget`.
fn reports(
    program: &mut Program,
    inputs: &[(String, Tensor)],
    budget: std::time::Duration,
) -> Result<Vec<RunReport>> {
    let mut slowest = std::time::Duration::ZERO;
    for warm in 0..WARM {
        program.feed(inputs)?;
        let wall = program.step()?;
        if warm + 1 == WARM {
            slowest = wall;
        }
    }
    let nanos = slowest.as_nanos().max(1);
    let count =
        u32::try_from(budget.as_nanos() / nanos).unwrap_or(u32::MAX).clamp(*STEPS.start(), *STEPS.end());
    let mut reports = Vec::with_capacity(count as usize);
    for _ in 0..count {
        program.feed(inputs)?;
        let wall = program.step()?;
        reports.push(program.report(wall));
    }
    Ok(reports)
}

/// Sorts copies by size, one for each: of the same size the later one counts.
fn merged(known: &[CopyTime], seen: impl IntoIterator<Item = CopyTime>) -> Vec<CopyTime> {
    let times: std::collections::BTreeMap<_, _> =
        known.iter().copied().chain(seen).map(|copy| (copy.bytes, copy.time_ns)).collect();
    times.into_iter().map(|(bytes, time_ns)| CopyTime { bytes, time_ns }).collect()
}
