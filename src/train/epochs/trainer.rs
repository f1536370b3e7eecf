//! A training step that is planned and ready to run.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::compile;
use crate::control::Control;
use crate::data::Field;
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, InputRule, ParamId, Tensor};
use crate::pass::gradient::build::constant;
use crate::plan::Plan;
use crate::run::{Engines, Gpus, RunReport, Runner};
use crate::strategy::pipeline::Figures;
use crate::topology::Topology;
use crate::train::epochs::last_batch::LastBatch;
use crate::train::epochs::numerics::{OF_RATE, first_fault, is_finite};
use crate::train::layers::{Layer, layers};
use crate::train::optimize::rate::Rate;
use crate::train::optimize::{Moment, Optimizer, Scalar};
use crate::train::options::Options;
use crate::train::plan::{Planned, all_planned, check_names, fields, program};
use crate::train::spread::names::part_of;
use crate::train::spread::spares::{count_name, counts};
use crate::train::spread::turns::{Arrays, Workers};
use crate::train::step::accumulate::{joined, parts};
use crate::train::step::ignored::{Ignoring, shares_of};
use crate::train::step::loss::Loss;
use crate::train::step::noise::{STREAMS, streams};
use crate::train::step::scaling::{FACTOR, SKIPPED, Scaling};
use crate::train::step::{LOSS, Step, Target, trainable};

/// What a step gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The loss of the batch, before the update.
    pub loss: f64,
    /// How long the step took.
    pub wall: Duration,
    /// The network's outputs, where the recipe keeps them.
    pub outputs: Vec<(String, Tensor)>,
}

/// A network that is being trained: its parameters live in the arenas of the devices.
pub struct Trainer {
    pub(crate) program: Runner,
    /// Those who make gradients, where `program` only updates.
    pub(crate) workers: Option<Workers>,
    /// Batches that were handed over and no step was made of yet, where there are no workers.
    begun: VecDeque<Arrays>,
    pub(crate) plan: Plan,
    pub(crate) pipeline: Option<Figures>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) fields: Vec<Field>,
    pub(crate) optimizer: Optimizer,
    pub(crate) rate: Rate,
    pub(crate) total_steps: u64,
    pub(crate) seed: u64,
    pub(crate) model: String,
    pub(crate) batch: usize,
    pub(crate) microbatches: u32,
    /// Replicas, where some of them are last_batch, and how many are.
    spares: Option<(usize, usize)>,
    /// The step of a batch that is not full, once one came.
    pub(crate) short: Option<Box<Self>>,
    /// What such a step is made of, where the batch is open.
    pub(crate) last_batch: Option<LastBatch>,
    pub(crate) step: u64,
    /// The step's graph, where it is to be told what first is not finite.
    pub(crate) checked: Option<Graph>,
    /// Whether layers draw random numbers.
    pub(crate) disturbed: bool,
    /// Targets of which a class is left out.
    pub(crate) ignoring: Vec<Ignoring>,
    /// Whether a step whose gradients are not finite changes nothing.
    pub(crate) skips: bool,
    /// Names of the network's own parameters; all others are the optimizer's.
    pub(crate) own: BTreeSet<String>,
    /// The network without its training, for validation.
    pub(crate) forward: Graph,
    pub(crate) loss: Loss,
    pub(crate) compile: compile::Options,
    pub(crate) topology: Topology,
    pub(crate) gpus: Gpus,
}

impl Trainer {
    /// Plans the training step of a network and loads its parameters: the model's own data, else what
    /// their initialisers make of the seed.
    ///
    /// Errors: those of making the training step, of planning, and of allocating the arenas.
    pub fn new(graph: Graph, topology: &Topology, options: &Options) -> Result<Self> {
        Self::with(graph, topology, options, &Control::new())
    }

    /// As [`Trainer::new`], with threads, cancellation and progress of the planning in the caller's hand.
    ///
    /// Errors: those of [`Trainer::new`].
    pub fn with(graph: Graph, topology: &Topology, options: &Options, control: &Control<'_>) -> Result<Self> {
        check_names(&graph)?;
        let last_batch = LastBatch::of(&graph, options);
        let microbatches = options.recipe.updates.microbatches;
        let options = &options.of_a_part(&graph)?;
        let (main, others) = all_planned(graph, topology, options, control)?;
        // The plan to show is that of the network.
        let plan = others.first().unwrap_or(&main).plan().clone();
        let Planned { forward, step, asked, compiled } = main;
        let Step { targets, disturbed, .. } = step;
        let pipeline = compiled.pipeline.clone();
        let own = forward.params().iter().map(|param| param.name.clone()).collect();
        let checked = compiled.network.as_ref().filter(|_| options.check_numerics && others.is_empty());
        let checked = checked.map(|network| {
            let mut graph = network.graph.clone();
            graph.forget_data();
            graph
        });
        let engines = Engines::default();
        let updates = program(compiled, &forward, options, &engines)?;
        let workers = match options.asynchronous {
            Some(asynchronous) => {
                let programs =
                    others.into_iter().map(|one| program(one.compiled, &forward, options, &engines));
                Some(Workers::new(programs.collect::<Result<_>>()?, &forward, asynchronous, options.seed)?)
            }
            None => None,
        };
        let mut forward = forward;
        let layers = layers(&forward, &plan);
        let names = updates.params().chain(workers.iter().flat_map(Workers::names));
        let held = names.map(|name| part_of(name).map_or(name, |(.., whole)| whole)).collect();
        forget_held(&mut forward, &held);
        limit_classes(&mut forward, &targets);
        freeze(&mut forward, &options.recipe.freeze)?;
        let (fields, batch) = fields(&forward, &targets)?;
        Ok(Self {
            program: updates,
            workers,
            begun: VecDeque::new(),
            plan,
            pipeline,
            layers,
            fields,
            optimizer: options.recipe.updates.optimizer,
            rate: options.rate,
            total_steps: options.total_steps,
            seed: options.seed,
            model: options.compile.model_hash.clone(),
            batch: batch * microbatches.max(1) as usize,
            microbatches: microbatches.max(1),
            spares: options.replicas.filter(|own| own.spare > 0).map(|own| (own.count, own.spare)),
            short: None,
            last_batch,
            step: 0,
            checked,
            disturbed,
            ignoring: targets.iter().filter_map(Ignoring::of).collect(),
            skips: options.recipe.scaling.is_some_and(Scaling::skips),
            own,
            forward,
            loss: options.recipe.loss,
            compile: asked,
            topology: topology.clone(),
            gpus: options.gpus.clone(),
        })
    }

    /// What each record is to give: the network's inputs, and a target for each output.
    pub fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    /// The plan of a step.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the step's pipeline comes to, where it is one.
    pub fn pipeline(&self) -> Option<&Figures> {
        self.pipeline.as_ref()
    }

    /// The network's layers, with their devices.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Samples in a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How often a step runs the plan: once for each part of its batch.
    pub fn parts(&self) -> u32 {
        self.microbatches
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Steps of the whole run, for rates that depend on it.
    pub fn set_total_steps(&mut self, steps: u64) {
        self.total_steps = steps;
    }

    /// True where the rate needs [`Trainer::set_total_steps`].
    pub fn needs_total_steps(&self) -> bool {
        self.rate.needs_steps() && self.total_steps == 0
    }

    /// Runs one step: `arrays` holds the inputs and the targets by name.
    ///
    /// Errors: an array that is missing, unknown or of another type; a step that fails or takes too
    /// long; a loss that is no finite number.
    pub fn step(&mut self, arrays: &[(String, Tensor)]) -> Result<Outcome> {
        self.begin(arrays)?;
        self.finish()
    }

    /// How many batches it is worth to hand over before the step of the first of them is finished: workers
    /// that do not wait compute at once then, and what a GPU is fed next is made ready beside its step. One for a step like
    /// any other.
    pub fn ahead(&self) -> usize {
        let alone = if self.program.stages_inputs() { 2 } else { 1 };
        self.workers.as_ref().map_or(alone, Workers::ahead)
    }

    /// Hands over the batch of a step, which begins as soon as it can; [`Trainer::finish`] ends the steps in
    /// the order of their batches. See [`Trainer::give_up`].
    ///
    /// Errors: an input or a target with an integer that the network does not know; an array whose rows do not divide into
    /// microbatches.
    pub fn begin(&mut self, arrays: &[(String, Tensor)]) -> Result<()> {
        self.check_values(arrays)?;
        let mut arrays = arrays.to_vec();
        if self.disturbed {
            let before = self.workers.as_ref().map_or(self.begun.len(), Workers::pending);
            let number = self.step + before as u64;
            arrays.push((STREAMS.to_owned(), streams(self.seed, number, self.batch)?));
        }
        arrays.extend(shares_of(&self.ignoring, &arrays, self.batch)?);
        match &mut self.workers {
            Some(workers) => workers.begin(parts(arrays, self.microbatches)?),
            None => {
                self.begun.push_back(arrays);
                Ok(())
            }
        }
    }

    /// Whether targets are -1 and 1, and those that are 0 and 1 are not taken for these.
    pub(crate) fn reads_signs(&self) -> bool {
        self.loss == Loss::Hinge && !self.forward.rules().targets.hinge_takes_bits
    }

    /// What a batch's loss weighs in an epoch's: its samples, or its targets that are of no class that is left out.
    pub(crate) fn weight(&self, arrays: &[(String, Tensor)], samples: usize) -> Result<u64> {
        self.ignoring.first().map_or(Ok(samples as u64), |one| one.counted(arrays, samples))
    }

    /// Error: an input or a target holds an integer that the network does not know: an id beyond its table, a class
    /// that it has no score for.
    pub(crate) fn check_values(&self, arrays: &[(String, Tensor)]) -> Result<()> {
        arrays.iter().try_for_each(|(name, tensor)| self.forward.rules().check_values(name, tensor))
    }

    /// Forgets what was handed over and no step was made of.
    ///
    /// Errors: none but internal ones.
    pub fn give_up(&mut self) -> Result<()> {
        self.begun.clear();
        match &mut self.workers {
            Some(workers) => workers.give_up(self.step),
            None => Ok(()),
        }
    }

    /// Ends the step of the first batch that was handed over and has none.
    ///
    /// Errors: those of [`Trainer::step`]; no batch was handed over.
    pub fn finish(&mut self) -> Result<Outcome> {
        let (all, mut wall) = if self.workers.is_some() { self.turn() } else { self.microbatches() }?;
        self.step += 1;
        let count = all.len();
        let (mut loss, mut outputs) = (0.0, Vec::with_capacity(count));
        for (own, took, made) in all {
            loss += own / count as f64;
            wall += took;
            outputs.push(made);
        }
        if !loss.is_finite() {
            let report = Report::new(format!("step {}", self.step), format!("the loss is {loss}"));
            let help = format!("{OF_RATE}; --check-numerics names the operation");
            return Err(Error::Run(report.help(help)));
        }
        let outputs = if count > 1 { joined(outputs)? } else { outputs.pop().unwrap_or_default() };
        Ok(Outcome { loss, wall, outputs })
    }

    /// The parts of a batch one after the other.
    fn microbatches(&mut self) -> Result<(Vec<Part>, Duration)> {
        let missing = || Error::Internal("a step without a batch".into());
        let arrays = self.begun.pop_front().ok_or_else(missing)?;
        let count = self.microbatches;
        let mut left: VecDeque<Arrays> = parts(arrays, count)?.into();
        // The batch after this one, where it is not yet to be divided.
        left.extend(self.begun.front().filter(|_| count == 1).cloned());
        let all = (0..count).map(|number| {
            let arrays = left.pop_front().ok_or_else(missing)?;
            self.microbatch(&arrays, left.front().map_or(&[], Vec::as_slice), (number, count))
        });
        Ok((all.collect::<Result<_>>()?, Duration::ZERO))
    }

    /// Loss, time and outputs of a part of the batch; beside it the next part is made ready.
    fn microbatch(
        &mut self,
        arrays: &[(String, Tensor)],
        next: &[(String, Tensor)],
        at: (u32, u32),
    ) -> Result<Part> {
        self.set_scalars(at, 1.0)?;
        let before = if self.checked.is_some() { self.local_arrays()? } else { Vec::new() };
        self.program.feed(arrays)?;
        let wall = self.program.step_beside(next)?;
        let outputs = self.program.outputs()?;
        self.check(arrays, before, &outputs)?;
        part_of_outputs(outputs, wall)
    }

    /// The next turn of a worker that does not wait: what its gradient changes, and the parameters that it
    /// goes on with.
    fn turn(&mut self) -> Result<(Vec<Part>, Duration)> {
        let missing = || Error::Internal("there are no workers".into());
        let (turn, made) = self.workers.as_mut().ok_or_else(missing)?.finish()?;
        let mut wall = made.wall;
        if let Some(factor) = turn.factor {
            self.set_scalars((0, 1), factor)?;
            self.program.feed(&made.gradients)?;
            wall += self.program.step()?;
        }
        let own_params: BTreeSet<&str> = self.program.params().collect();
        let params = self.arrays(|name| self.own.contains(name) && own_params.contains(name))?;
        self.workers.as_mut().ok_or_else(missing)?.take(&turn, params)?;
        let parts = made.outputs.into_iter().map(|outputs| part_of_outputs(outputs, Duration::ZERO));
        Ok((parts.collect::<Result<_>>()?, wall))
    }

    /// Every array of the step's program, as it is held.
    fn local_arrays(&self) -> Result<Vec<(String, Tensor)>> {
        let names = self.program.params();
        let all = names.map(|name| Ok(self.program.param(name)?.map(|tensor| (name.to_owned(), tensor))));
        all.filter_map(Result::transpose).collect()
    }

    /// Error: something that the step made is not finite.
    fn check(
        &self,
        arrays: &[(String, Tensor)],
        before: Vec<(String, Tensor)>,
        outputs: &[(String, Tensor)],
    ) -> Result<()> {
        let Some(graph) = &self.checked else { return Ok(()) };
        let made = self.local_arrays()?;
        let Some((name, _)) = outputs.iter().chain(&made).find(|(_, tensor)| !is_finite(tensor)) else {
            return Ok(());
        };
        let found = first_fault(graph, arrays, &before.into_iter().collect())?;
        let fused = || Report::new(name.clone(), "is not finite once kernels are fused").help(OF_RATE);
        let report = found.unwrap_or_else(fused);
        Err(Error::Run(report).within(&format!("step {}", self.step + 1)))
    }

    /// What the last step did; `wall` is how long it took.
    pub fn report(&self, wall: Duration) -> RunReport {
        self.program.report(wall)
    }

    /// The learning rate of the next step.
    pub fn rate(&self) -> f64 {
        self.rate.at(self.step, self.total_steps)
    }

    /// Sets what changes from step to step; the step counts `factor` of a whole one.
    fn set_scalars(&mut self, microbatch: (u32, u32), factor: f64) -> Result<()> {
        // Steps that changed nothing do not count.
        let skipped = self.loss_scale()?.map_or(0, |(_, skipped)| skipped);
        let step = (self.step + 1).saturating_sub(skipped);
        let at = Moment { rate: self.rate() * factor, step, microbatch };
        for scalar in Scalar::ALL {
            self.set_scalar(scalar.name(), self.optimizer.scalar(scalar, at))?;
        }
        if let Some((count, last_batch)) = self.spares {
            for (replica, value) in counts(self.seed, self.step, count, last_batch).into_iter().enumerate() {
                self.set_scalar(&count_name(replica), value)?;
            }
        }
        Ok(())
    }

    /// Sets a parameter of one element, where it is current.
    fn set_scalar(&mut self, name: &str, value: f64) -> Result<()> {
        match self.program.param(name)? {
            Some(current) => self.program.set_param(name, &constant(current.dtype(), &[], &[value])?),
            None => Ok(()),
        }
    }

    /// The factor of the loss and how many steps changed nothing because a gradient was not finite; none
    /// where the loss is not scaled.
    ///
    /// Errors: none but internal ones.
    pub fn loss_scale(&self) -> Result<Option<(u64, u64)>> {
        let read = |name: &str| -> Result<Option<u64>> {
            let current = self.program.param(name)?.and_then(|tensor| tensor.to_i64());
            Ok(current.and_then(|values| values.first().copied()).map(i64::unsigned_abs))
        };
        Ok(read(FACTOR)?.zip(read(SKIPPED)?))
    }
}

/// Loss, time and outputs.
type Part = (f64, Duration, Vec<(String, Tensor)>);

/// Drops the data of parameters that a program holds by now; that of others is read where the network is written.
fn forget_held(forward: &mut Graph, held: &BTreeSet<&str>) {
    for id in (0..forward.params().len() as u32).map(ParamId) {
        if held.contains(forward.param(id).name.as_str()) {
            forward.param_mut(id).data = None;
        }
    }
}

/// Says of each target of class numbers how many classes there are.
fn limit_classes(forward: &mut Graph, targets: &[Target]) {
    for target in targets {
        let Some(limit) = target.limit() else { continue };
        let rule = InputRule { below: Some(limit), absent: None };
        forward.rules_mut().inputs.insert(target.name.clone(), rule);
    }
}

/// Keeps in the network itself what training leaves as it is.
fn freeze(forward: &mut Graph, patterns: &[String]) -> Result<()> {
    let trained: BTreeSet<ParamId> = trainable(forward, patterns)?.into_iter().collect();
    let ids = (0..forward.params().len() as u32).map(ParamId);
    let names: Vec<String> =
        ids.filter(|id| !trained.contains(id)).map(|id| forward.param(id).name.clone()).collect();
    forward.rules_mut().frozen.extend(names);
    Ok(())
}

/// The loss among outputs, with the time that they took and the others.
fn part_of_outputs(mut outputs: Vec<(String, Tensor)>, wall: Duration) -> Result<Part> {
    match outputs.iter().position(|(name, _)| name == LOSS) {
        Some(at) => {
            let loss = outputs.remove(at).1.to_f64().first().copied().unwrap_or(f64::NAN);
            Ok((loss, wall, outputs))
        }
        None => Err(Error::Internal("a step without a loss".into())),
    }
}
