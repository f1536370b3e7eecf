//! The programs of workers that do not wait for one another: each on its device, with parameters that it
//! took some updates ago.

use super::asynchronous::{Async, Clock, Turn};
use super::options::Options;
use super::planned::{Losses, Planned, layers_together};
use super::step::{GRADIENT, Step, gradient_step, update_step};
use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};
use crate::load::Model;
use crate::run::Program;
use crate::topology::Topology;

/// What the array of a worker's parameter is called in a checkpoint.
pub(super) fn stale_name(worker: usize, name: &str) -> String {
    format!("worker{worker}/{name}")
}

/// Plans of a step that does not wait: of the updates, and of each worker's gradients. The first
/// worker's device updates too: every worker leaves room for that.
pub(super) fn planned(
    forward: &Graph,
    topology: &Topology,
    options: &Options,
    asynchronous: Async,
    control: &Control<'_>,
) -> Result<(Planned, Vec<Planned>)> {
    let devices: Vec<String> = topology.computing().map(|id| topology.device(id).name.clone()).collect();
    if asynchronous.workers == 0 || asynchronous.workers > devices.len() {
        let message = format!("there are {} devices", devices.len());
        return Err(Error::usage(format!("--replicas {}", asynchronous.workers), message)
            .with_help("--devices with one for each worker"));
    }
    let step = gradient_step(forward.clone(), &options.recipe)?;
    let plan = |graph: Graph, step: Step, number: usize, room| {
        let mut asked = compile::Options { bind: Default::default(), batch: None, ..options.compile.clone() };
        asked.place.pins.push(("*".to_owned(), devices[number].clone()));
        asked.place.reserve += room;
        let compiled = compile::compile_with(Model::Graph(graph), topology, &asked, control)?;
        Ok(Planned { forward: forward.clone(), step, asked, compiled })
    };
    let updates = update_step(forward, &step.graph, &options.recipe)?;
    let updates = plan(updates, Step { graph: Graph::new(""), ..step.clone() }, 0, Default::default())?;
    let room = updates.plan().devices.iter().map(|device| device.arena).max().unwrap_or_default();
    let mut graph = step.graph.clone();
    layers_together(&mut graph, Losses::WithLayers);
    let workers = (0..asynchronous.workers)
        .map(|number| plan(graph.clone(), Step { graph: Graph::new(""), ..step.clone() }, number, room));
    Ok((updates, workers.collect::<Result<_>>()?))
}

/// Workers with their programs.
pub(super) struct Workers {
    programs: Vec<Program>,
    options: Async,
    seed: u64,
    clock: Clock,
}

/// What a worker's turn gave.
pub(super) struct Gradients {
    pub(super) outputs: Vec<(String, Tensor)>,
    pub(super) gradients: Vec<(String, Tensor)>,
    pub(super) wall: std::time::Duration,
}

impl Workers {
    pub(super) fn new(programs: Vec<Program>, options: Async, seed: u64) -> Self {
        Self { programs, options, seed, clock: Clock::new(options, seed) }
    }

    /// Whose gradient is done next.
    pub(super) fn next(&mut self) -> Turn {
        self.clock.next()
    }

    /// The gradient of a worker for a batch, by the parameters that it has.
    pub(super) fn gradients(&mut self, turn: &Turn, arrays: &[(String, Tensor)]) -> Result<Gradients> {
        let program = &mut self.programs[turn.worker];
        program.feed(arrays)?;
        let wall = program.step()?;
        let (gradients, outputs) =
            program.outputs()?.into_iter().partition(|(name, _)| name.starts_with(GRADIENT));
        Ok(Gradients { outputs, gradients, wall })
    }

    /// Lets the worker of a turn, or all of them, take parameters.
    pub(super) fn take(&mut self, turn: &Turn, params: &[(String, Tensor)]) -> Result<()> {
        let all = turn.starts_all;
        let takes = |number: &usize| all || *number == turn.worker;
        for number in (0..self.programs.len()).filter(takes) {
            for (name, tensor) in params {
                self.programs[number].set_param(name, tensor)?;
            }
        }
        Ok(())
    }

    /// A parameter as the first worker has it: those that are not trained, and statistics.
    pub(super) fn param(&self, name: &str) -> Result<Option<Tensor>> {
        self.programs.first().map_or(Ok(None), |program| program.param(name))
    }

    /// Names of all parameters.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.programs.first().into_iter().flat_map(Program::params)
    }

    /// What each worker computes with, for a checkpoint.
    pub(super) fn arrays(&self) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = Vec::new();
        for (number, program) in self.programs.iter().enumerate() {
            for name in program.params() {
                arrays.extend(program.param(name)?.map(|tensor| (stale_name(number, name), tensor)));
            }
        }
        Ok(arrays)
    }

    /// Goes on after so many turns; `array` gives what a checkpoint holds by name.
    pub(super) fn restore<'t>(
        &mut self,
        turns: u64,
        array: impl Fn(&str) -> Option<&'t Tensor>,
    ) -> Result<()> {
        self.clock = Clock::after(self.options, self.seed, turns);
        for (number, program) in self.programs.iter_mut().enumerate() {
            let names: Vec<String> = program.params().map(str::to_owned).collect();
            for name in names {
                if let Some(tensor) = array(&stale_name(number, &name)).or_else(|| array(&name)) {
                    program.set_param(&name, tensor)?;
                }
            }
        }
        Ok(())
    }
}
