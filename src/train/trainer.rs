//! A training step that is planned and ready to run.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::accumulate::{self, joined, part};
use super::asynchronous::Async;
use super::exchange::{Replicas, Zero};
use super::layers::{Layer, layers};
use super::loss::Loss;
use super::noise::{STREAMS, streams};
use super::numerics::{first_fault, is_finite};
use super::optimizer::{Moment, Optimizer, Scalar, Updates};
use super::planned::{Planned, all_planned, check_names, cut, evaluation_plan, fields, initial, program};
use super::rate::Rate;
use super::replicas::{base_name, part_name, part_of};
use super::scaling::{FACTOR, SKIPPED, Scaling};
use super::step::{LOSS, Recipe, Step};
use super::workers::Workers;
use crate::compile;
use crate::control::Control;
use crate::data::{Field, Position};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::pass::Params;
use crate::plan::Plan;
use crate::run::{ExecOptions, Program, RunReport, exec_plan};
use crate::state::Checkpoint;
use crate::strategy::pipeline::{self, Figures};
use crate::topology::Topology;

/// How a network is trained, and laid over devices.
#[derive(Clone, Debug)]
pub struct Options {
    /// Loss and updates.
    pub recipe: Recipe,
    /// The learning rate.
    pub rate: Rate,
    /// Steps of the whole run, for rates that depend on it.
    pub total_steps: u64,
    /// Of initial weights, where the model has no data for them.
    pub seed: u64,
    /// Replicas of the network side by side, where there are several.
    pub replicas: Option<Replicas>,
    /// The network's layers as stages that work on different microbatches at once, in place of replicas.
    pub pipeline: Option<pipeline::Options>,
    /// Workers that do not wait for one another, in place of replicas that do.
    pub asynchronous: Option<Async>,
    /// How the step is planned; the batch is the one of a step.
    pub compile: compile::Options,
    /// Ends a step that takes longer.
    pub timeout: Option<Duration>,
    /// Ends the run where a loss or a parameter is not finite, and says which operation made it so: the
    /// parameters are copied in each step.
    pub check_numerics: bool,
}

impl Options {
    /// Plain gradient descent on a loss.
    pub fn new(loss: Loss) -> Self {
        let recipe =
            Recipe { loss, updates: Updates::default(), freeze: Vec::new(), scaling: None, outputs: false };
        Self {
            recipe,
            rate: Rate::default(),
            total_steps: 0,
            seed: 0,
            replicas: None,
            pipeline: None,
            asynchronous: None,
            compile: compile::Options::default(),
            timeout: None,
            check_numerics: false,
        }
    }
}

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

/// A network and how it is trained, to plan a step of another batch.
struct Spare {
    graph: Graph,
    options: Options,
}

/// A network that is being trained: its parameters live in the arenas of the devices.
pub struct Trainer {
    program: Program,
    /// Those who make gradients, where `program` only updates.
    workers: Option<Workers>,
    plan: Plan,
    pipeline: Option<Figures>,
    layers: Vec<Layer>,
    fields: Vec<Field>,
    optimizer: Optimizer,
    rate: Rate,
    total_steps: u64,
    seed: u64,
    model: String,
    batch: usize,
    microbatches: u32,
    /// The step of a batch that is not full, once one came.
    short: Option<Box<Self>>,
    /// What such a step is made of, where the batch is open.
    spare: Option<Spare>,
    step: u64,
    /// The step's graph, where it is to be told what first is not finite.
    checked: Option<Graph>,
    /// Whether layers draw random numbers.
    disturbed: bool,
    /// Names of the network's own parameters; all others are the optimizer's.
    own: BTreeSet<String>,
    /// The network without its training, for validation.
    forward: Graph,
    loss: Loss,
    compile: compile::Options,
    topology: Topology,
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
        let mut spare = graph.clone();
        spare.forget_data();
        let spare =
            takes_any_batch(&graph, options).then(|| Spare { graph: spare, options: options.clone() });
        let microbatches = options.recipe.updates.microbatches;
        let mut own = options.clone();
        if let Some(batch) = own.compile.batch {
            own.compile.batch = Some(accumulate::part_of(batch, microbatches)?);
        }
        if let Some(precision) = &mut own.compile.precision {
            precision.params = Params::Kept;
            own.recipe.scaling.get_or_insert(Scaling::of(precision.half));
        }
        let options = &own;
        check_microbatches(options)?;
        check_scaling(options)?;
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
        let updates = program(compiled, &forward, options)?;
        let workers = match options.asynchronous {
            Some(asynchronous) => {
                let programs = others.into_iter().map(|one| program(one.compiled, &forward, options));
                Some(Workers::new(programs.collect::<Result<_>>()?, asynchronous, options.seed))
            }
            None => None,
        };
        let mut forward = forward;
        let layers = layers(&forward, &plan);
        forward.forget_data();
        let (fields, batch) = fields(&forward, &targets)?;
        Ok(Self {
            program: updates,
            workers,
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
            short: None,
            spare,
            step: 0,
            checked,
            disturbed,
            own,
            forward,
            loss: options.recipe.loss,
            compile: asked,
            topology: topology.clone(),
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
        let mut arrays = arrays.to_vec();
        if self.disturbed {
            arrays.push((STREAMS.to_owned(), streams(self.seed, self.step, self.batch)?));
        }
        let count = self.microbatches;
        let (mut loss, mut wall, mut outputs) = (0.0, Duration::ZERO, Vec::new());
        for number in 0..count {
            let (own, took, made) = match count {
                1 => self.microbatch(&arrays, (0, 1)),
                _ => self.microbatch(&part(&arrays, (number, count))?, (number, count)),
            }?;
            loss += own / f64::from(count);
            wall += took;
            outputs.push(made);
        }
        self.step += 1;
        if !loss.is_finite() {
            let report = Report::new(format!("step {}", self.step), format!("the loss is {loss}"));
            return Err(Error::Run(report.help(
                "a smaller --lr, or clip_norm=1 in --optimizer; --check-numerics names the operation",
            )));
        }
        let outputs = if count > 1 { joined(outputs)? } else { outputs.pop().unwrap_or_default() };
        Ok(Outcome { loss, wall, outputs })
    }

    /// Loss, time and outputs of a part of the batch.
    fn microbatch(&mut self, arrays: &[(String, Tensor)], at: (u32, u32)) -> Result<Part> {
        if self.workers.is_some() {
            return self.turn(arrays);
        }
        self.set_scalars(at, 1.0)?;
        let before = if self.checked.is_some() { self.held()? } else { Vec::new() };
        self.program.feed(arrays)?;
        let wall = self.program.step()?;
        let outputs = self.program.outputs()?;
        self.check(arrays, before, &outputs)?;
        part_of_outputs(outputs, wall)
    }

    /// The next turn of a worker that does not wait: its gradient for these arrays, what it changes, and
    /// the parameters that it goes on with.
    fn turn(&mut self, arrays: &[(String, Tensor)]) -> Result<Part> {
        let missing = || Error::Internal("there are no workers".into());
        let turn = self.workers.as_mut().ok_or_else(missing)?.next();
        let made = self.workers.as_mut().ok_or_else(missing)?.gradients(&turn, arrays)?;
        let mut wall = made.wall;
        if let Some(factor) = turn.factor {
            self.set_scalars((0, 1), factor)?;
            self.program.feed(&made.gradients)?;
            wall += self.program.step()?;
        }
        let held: BTreeSet<&str> = self.program.params().collect();
        let params = self.arrays(|name| self.own.contains(name) && held.contains(name))?;
        self.workers.as_mut().ok_or_else(missing)?.take(&turn, &params)?;
        part_of_outputs(made.outputs, wall)
    }

    /// Every array of the step's program, as it is held.
    fn held(&self) -> Result<Vec<(String, Tensor)>> {
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
        let made = self.held()?;
        let Some((name, _)) = outputs.iter().chain(&made).find(|(_, tensor)| !is_finite(tensor)) else {
            return Ok(());
        };
        let found = first_fault(graph, arrays, &before.into_iter().collect())?;
        let report =
            found.unwrap_or_else(|| Report::new(name.clone(), "is not finite once kernels are fused"));
        let help = "a smaller --lr, or clip_norm=1 in --optimizer";
        Err(Error::Run(report.help(help)).within(&format!("step {}", self.step + 1)))
    }

    /// Whether a batch of fewer samples can be trained on: the network's batch is open.
    pub(super) fn takes_short(&self) -> bool {
        self.spare.is_some()
    }

    /// Plans the step of a batch of fewer samples, for the same devices and caps.
    ///
    /// Errors: those of [`Trainer::new`]; the network has a batch of its own.
    pub(super) fn prepare_short(&mut self, samples: usize) -> Result<()> {
        if self.short.as_ref().is_some_and(|short| short.batch == samples) {
            return Ok(());
        }
        let spare = self.spare.as_ref().ok_or_else(|| Error::Internal("a batch that is not open".into()))?;
        let mut options = spare.options.clone();
        options.compile.batch = Some(samples as i64);
        let most = self.batch / self.microbatches as usize;
        let fits = |parts: &usize| samples.is_multiple_of(*parts) && samples / parts <= most;
        let parts = (1..=samples).find(fits).unwrap_or(1);
        options.recipe.updates.microbatches = parts as u32;
        options.replicas = options.replicas.filter(|replicas| replicas.shards * parts <= samples);
        if let Some(pipeline) = &mut options.pipeline {
            let each = samples / options.replicas.map_or(1, |replicas| replicas.count.max(1));
            pipeline.microbatches = pipeline.microbatches.min(each as u32);
        }
        let place = format!("a last batch of {samples} samples");
        let short = Self::new(spare.graph.clone(), &self.topology, &options)
            .map_err(|error| error.within(&place).with_help("--drop-remainder leaves it out"))?;
        self.short = Some(Box::new(short));
        Ok(())
    }

    /// As [`Trainer::step`], of a batch of fewer samples.
    pub(super) fn short_step(&mut self, arrays: &[(String, Tensor)], samples: usize) -> Result<Outcome> {
        self.prepare_short(samples)?;
        let Some(mut short) = self.short.take() else {
            return Err(Error::Internal("a step that was not planned".into()));
        };
        hand_over(&self.program, &mut short.program)?;
        (short.step, short.seed, short.total_steps) = (self.step, self.seed, self.total_steps);
        let outcome = short.step(arrays);
        self.step = short.step;
        hand_over(&short.program, &mut self.program)?;
        self.short = Some(short);
        outcome
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
            if let Some(held) = self.program.param(scalar.name())? {
                let value = self.optimizer.scalar(scalar, at);
                let value = crate::pass::gradient::build::constant(held.dtype(), &[], &[value])?;
                self.program.set_param(scalar.name(), &value)?;
            }
        }
        Ok(())
    }

    /// The factor of the loss and how many steps changed nothing because a gradient was not finite; none
    /// where the loss is not scaled.
    ///
    /// Errors: none but internal ones.
    pub fn loss_scale(&self) -> Result<Option<(u64, u64)>> {
        let read = |name: &str| -> Result<Option<u64>> {
            let held = self.program.param(name)?.and_then(|tensor| tensor.to_i64());
            Ok(held.and_then(|values| values.first().copied()).map(i64::unsigned_abs))
        };
        Ok(read(FACTOR)?.zip(read(SKIPPED)?))
    }

    /// The network's parameters as they are now, by name.
    ///
    /// Errors: none but internal ones.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>> {
        self.arrays(|name| self.own.contains(name))
    }

    fn arrays(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = Vec::new();
        let others = self.workers.iter().flat_map(Workers::names);
        let mut known = BTreeSet::new();
        for held in self.program.params().chain(others).filter(|name| known.insert(name.to_owned())) {
            let (name, count) = match part_of(held) {
                Some((0, count, name)) => (name, count),
                Some(_) => continue,
                None => (held, 1),
            };
            if !wanted(name) {
                continue;
            }
            let found = if name == held { self.param(held)? } else { Some(self.joined(name, count)?) };
            arrays.extend(found.map(|tensor| (name.to_owned(), tensor)));
        }
        Ok(arrays)
    }

    /// A parameter by its own name, however it is held.
    fn param(&self, name: &str) -> Result<Option<Tensor>> {
        if let Some(tensor) = self.program.param(name)? {
            return Ok(Some(tensor));
        }
        let mut parts = self.program.params().filter_map(part_of);
        let found = parts.find(|&(number, _, whole)| number == 0 && whole == name);
        match (found, &self.workers) {
            (Some((_, count, whole)), _) => self.joined(whole, count).map(Some),
            (None, Some(workers)) => workers.param(name),
            (None, None) => Ok(None),
        }
    }

    /// What is held in parts, with the sizes of the parameter that it belongs to.
    fn joined(&self, name: &str, count: usize) -> Result<Tensor> {
        let missing = || Error::Internal(format!("a part of {name} is missing"));
        let mut bytes = Vec::new();
        let mut dtype = None;
        for number in 0..count {
            let part = self.program.param(&part_name(number, count, name))?.ok_or_else(missing)?;
            bytes.extend_from_slice(part.bytes());
            dtype = Some(part.dtype());
        }
        let graph = &self.forward;
        let owners = graph.params().iter().filter(|param| {
            name.strip_prefix(param.name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let owner = owners.max_by_key(|param| param.name.len()).ok_or_else(missing)?;
        let dims = graph.ty(graph.node(owner.node).first_result).shape.dims().ok_or_else(missing)?;
        let dims = dims.iter().map(|dim| dim.unsigned_abs()).collect();
        Tensor::new(dtype.ok_or_else(missing)?, dims, bytes)
    }

    /// Everything that a run needs to go on; `position` is where its data stands.
    ///
    /// Errors: none but internal ones.
    pub fn checkpoint(&self, position: Position) -> Result<Checkpoint> {
        let scalar = |name: &str| Scalar::ALL.iter().any(|scalar| scalar.name() == name);
        let mut optimizer =
            self.arrays(|name| !self.own.contains(name) && !scalar(name) && base_name(name) == name)?;
        if let Some(workers) = &self.workers {
            optimizer.extend(workers.arrays()?);
        }
        Ok(Checkpoint {
            step: self.step,
            position,
            seed: self.seed,
            model: self.model.clone(),
            weights: self.weights()?,
            optimizer,
            ..Checkpoint::default()
        })
    }

    /// Goes on from a checkpoint, whatever devices the run that wrote it was laid over.
    ///
    /// Errors: it is of another model, or its arrays are not those of this step.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        if checkpoint.model != self.model {
            return Err(Error::usage("--resume", "the checkpoint is of another model"));
        }
        let scalar = |name: &str| Scalar::ALL.iter().any(|scalar| scalar.name() == name);
        let held: Vec<String> =
            self.program.params().filter(|name| !scalar(name)).map(str::to_owned).collect();
        let arrays = checkpoint.weights.iter().chain(&checkpoint.optimizer);
        // Looked up, never iterated; the first of a name counts.
        let arrays: HashMap<&str, &Tensor> =
            arrays.rev().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        for name in held {
            let whole = part_of(&name).map_or(base_name(&name), |(_, _, whole)| whole);
            let Some(&tensor) = arrays.get(whole) else {
                let message = format!("it has no array {name}: another optimizer or precision?");
                return Err(Error::usage("--resume", message));
            };
            match part_of(&name) {
                Some((number, count, _)) => self.program.set_param(&name, &cut(tensor, number, count)?)?,
                None => self.program.set_param(&name, tensor)?,
            };
        }
        if let Some(workers) = &mut self.workers {
            let array = |name: &str| arrays.get(name).copied();
            workers.restore(checkpoint.step, array)?;
        }
        self.step = checkpoint.step;
        self.seed = checkpoint.seed;
        Ok(())
    }

    /// The network alone with the loss of each sample, planned for the same devices.
    ///
    /// Errors: those of planning and of allocating arenas.
    pub(super) fn evaluator(&self) -> Result<Evaluator> {
        Evaluator::new(self)
    }
}

/// Loss, time and outputs.
type Part = (f64, Duration, Vec<(String, Tensor)>);

/// Gives one program the parameters that another has too.
fn hand_over(from: &Program, to: &mut Program) -> Result<()> {
    let names: Vec<String> = to.params().map(str::to_owned).collect();
    for name in names {
        if let Some(tensor) = from.param(base_name(&name))? {
            to.set_param(&name, &tensor)?;
        }
    }
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

/// Whether a step of another batch can be planned beside this one: the batch is open, and parameters
/// are whole and of one program.
fn takes_any_batch(graph: &Graph, options: &Options) -> bool {
    let whole = options.replicas.is_none_or(|replicas| replicas.zero == Zero::None);
    compile::has_open_batch(graph) && whole && options.asynchronous.is_none()
}

/// Error: a pipeline, or microbatches, with workers that do not wait.
fn check_microbatches(options: &Options) -> Result<()> {
    if options.pipeline.is_some() && options.asynchronous.is_some() {
        return Err(Error::usage("--schedule", "the microbatches of a pipeline wait for one another")
            .with_help("--sync allreduce"));
    }
    let count = options.recipe.updates.microbatches;
    if count > 1 && options.asynchronous.is_some() {
        let message = "not with --sync async";
        return Err(Error::usage(format!("--microbatches {count}"), message).with_help("leave it out"));
    }
    Ok(())
}

/// Error: steps that may change nothing, where that is not to be known in time.
fn check_scaling(options: &Options) -> Result<()> {
    let Some(scaling) = options.recipe.scaling else { return Ok(()) };
    let place = || format!("--loss-scale {scaling}");
    if options.compile.precision.is_none() {
        return Err(Error::usage(place(), "gradients of f32 need no scaling").with_help("--precision f16"));
    }
    let parts = options.replicas.is_some_and(|replicas| replicas.zero != Zero::None);
    if scaling.skips() && (parts || options.asynchronous.is_some()) {
        return Err(Error::usage(place(), "neither with --zero nor with --sync async")
            .with_help("--precision bf16 needs no scaling"));
    }
    Ok(())
}

/// The network alone, with the loss of each sample.
pub(super) struct Evaluator {
    program: Program,
    batch: usize,
}

impl Evaluator {
    fn new(trainer: &Trainer) -> Result<Self> {
        let Trainer { forward, loss, plan, topology, compile, .. } = trainer;
        let compiled = evaluation_plan(forward, loss, plan, topology, compile)?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping)?;
        let weights = |id: ParamId| initial(&network.graph, id, &mut ParamReader::new(), 0);
        let groups = network.grouping.all_fused();
        let program = Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default())?;
        Ok(Self { program, batch: trainer.batch / trainer.microbatches as usize })
    }

    /// Samples that it takes at once: those of a microbatch.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// Takes the parameters as the trainer has them now.
    pub(super) fn follow(&mut self, trainer: &Trainer) -> Result<()> {
        let names: Vec<String> = self.program.params().map(str::to_owned).collect();
        for name in names {
            if let Some(tensor) = trainer.param(&name)? {
                self.program.set_param(&name, &tensor)?;
            }
        }
        Ok(())
    }

    /// The loss of each sample, and the network's outputs.
    pub(super) fn run(&mut self, arrays: &[(String, Tensor)]) -> Result<(Vec<f64>, Vec<(String, Tensor)>)> {
        let (mut outputs, _) = self.program.run(arrays)?;
        let at = outputs.iter().position(|(name, _)| name == LOSS);
        let at = at.ok_or_else(|| Error::Internal("an evaluation without a loss".into()))?;
        Ok((outputs.remove(at).1.to_f64(), outputs))
    }
}
