//! A training step that is planned and ready to run.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::accumulate::{joined, part, part_of};
use super::layers::{Layer, layers};
use super::loss::Loss;
use super::noise::{STREAMS, streams};
use super::numerics::{first_fault, is_finite};
use super::optimizer::{Moment, Optimizer, Scalar, Updates};
use super::rate::Rate;
use super::replicas::{Replicas, base_name, replicated_step};
use super::step::{LOSS, Recipe, Step, Target, training_step};
use crate::compile::{self, Compiled};
use crate::control::Control;
use crate::data::{Field, Position, Role};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, ParamId, SourceId, Tensor};
use crate::load::weights::ParamReader;
use crate::load::{Model, fill};
use crate::plan::Plan;
use crate::run::{ExecOptions, Program, RunReport, exec_plan};
use crate::state::Checkpoint;
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
        let recipe = Recipe { loss, updates: Updates::default(), freeze: Vec::new(), outputs: false };
        Self {
            recipe,
            rate: Rate::default(),
            total_steps: 0,
            seed: 0,
            replicas: None,
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
    plan: Plan,
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
    /// Errors: those of [`training_step`], of planning, and of allocating the arenas.
    pub fn new(graph: Graph, topology: &Topology, options: &Options) -> Result<Self> {
        Self::with(graph, topology, options, &Control::new())
    }

    /// As [`Trainer::new`], with threads, cancellation and progress of the planning in the caller's hand.
    ///
    /// Errors: those of [`Trainer::new`].
    pub fn with(graph: Graph, topology: &Topology, options: &Options, control: &Control<'_>) -> Result<Self> {
        let mut spare = graph.clone();
        spare.forget_data();
        let spare = compile::has_open_batch(&graph).then(|| Spare { graph: spare, options: options.clone() });
        let microbatches = options.recipe.updates.microbatches;
        let mut own = options.clone();
        if let Some(batch) = own.compile.batch {
            own.compile.batch = Some(part_of(batch, microbatches)?);
        }
        let options = &own;
        let unbound = options.replicas.map(|_| graph.clone());
        let (forward, dims) = compile::bound(graph, &options.compile)?;
        let step = match (options.replicas, unbound) {
            (Some(replicas), Some(unbound)) => {
                over_replicas(&forward, &unbound, topology, options, &replicas)
            }
            _ => training_step(forward.clone(), &options.recipe),
        };
        let Step { graph, targets, disturbed, .. } = step?;
        let mut together = graph.clone();
        layers_together(&mut together);
        let own = forward.params().iter().map(|param| param.name.clone()).collect();
        let asked =
            compile::Options { dims, bind: Default::default(), batch: None, ..options.compile.clone() };
        let compiled = match compile::compile_with(Model::Graph(together), topology, &asked, control) {
            // A layer with all that its training needs may be too large for one device.
            Err(Error::Infeasible(_)) => {
                compile::compile_with(Model::Graph(graph), topology, &asked, control)
            }
            compiled => compiled,
        };
        let Compiled { plan, network, .. } = compiled?;
        let mut network = network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        let exec = exec_plan(&plan, &network.graph, &network.grouping)?;
        let reader = RefCell::new(ParamReader::new());
        let weights = |id: ParamId| initial(&network.graph, id, &mut reader.borrow_mut(), options.seed);
        let exec_options = ExecOptions { timeout: options.timeout, ..ExecOptions::default() };
        let program =
            Program::new(&network.graph, &network.grouping.all_fused(), &exec, &weights, exec_options)?;
        network.graph.forget_data();
        let mut forward = forward;
        let layers = layers(&forward, &plan);
        forward.forget_data();
        let (fields, batch) = fields(&forward, &targets)?;
        Ok(Self {
            program,
            plan,
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
            checked: options.check_numerics.then_some(network.graph),
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
        self.set_scalars(at)?;
        let before = if self.checked.is_some() { self.arrays(|_| true)? } else { Vec::new() };
        self.program.feed(arrays)?;
        let wall = self.program.step()?;
        let mut outputs = self.program.outputs()?;
        self.check(arrays, before, &outputs)?;
        match outputs.iter().position(|(name, _)| name == LOSS) {
            Some(at) => {
                let loss = outputs.remove(at).1.to_f64().first().copied().unwrap_or(f64::NAN);
                Ok((loss, wall, outputs))
            }
            None => Err(Error::Internal("a step without a loss".into())),
        }
    }

    /// Error: something that the step made is not finite.
    fn check(
        &self,
        arrays: &[(String, Tensor)],
        before: Vec<(String, Tensor)>,
        outputs: &[(String, Tensor)],
    ) -> Result<()> {
        let Some(graph) = &self.checked else { return Ok(()) };
        let made = self.arrays(|_| true)?;
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

    fn set_scalars(&mut self, microbatch: (u32, u32)) -> Result<()> {
        let at = Moment { rate: self.rate(), step: self.step + 1, microbatch };
        for scalar in Scalar::ALL {
            if let Some(held) = self.program.param(scalar.name())? {
                let value = self.optimizer.scalar(scalar, at);
                let value = crate::pass::gradient::build::constant(held.dtype(), &[], &[value])?;
                self.program.set_param(scalar.name(), &value)?;
            }
        }
        Ok(())
    }

    /// The network's parameters as they are now, by name.
    ///
    /// Errors: none but internal ones.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>> {
        self.arrays(|name| self.own.contains(name))
    }

    fn arrays(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = Vec::new();
        for name in self.program.params().filter(|name| wanted(name)) {
            if let Some(tensor) = self.program.param(name)? {
                arrays.push((name.to_owned(), tensor));
            }
        }
        Ok(arrays)
    }

    /// Everything that a run needs to go on; `position` is where its data stands.
    ///
    /// Errors: none but internal ones.
    pub fn checkpoint(&self, position: Position) -> Result<Checkpoint> {
        let scalar = |name: &str| Scalar::ALL.iter().any(|scalar| scalar.name() == name);
        Ok(Checkpoint {
            step: self.step,
            position,
            seed: self.seed,
            model: self.model.clone(),
            weights: self.weights()?,
            optimizer: self
                .arrays(|name| !self.own.contains(name) && !scalar(name) && base_name(name) == name)?,
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
        for name in held {
            let arrays = checkpoint.weights.iter().chain(&checkpoint.optimizer);
            let Some((_, tensor)) = arrays.clone().find(|(other, _)| *other == base_name(&name)) else {
                let message = format!("it has no array {name}: another optimizer?");
                return Err(Error::usage("--resume", message));
            };
            self.program.set_param(&name, tensor)?;
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

/// Marks gradients and updates to go with the layer that they belong to, but for those that are pinned.
fn layers_together(graph: &mut Graph) {
    for id in (0..graph.sources().len() as u32).map(SourceId) {
        let Some(forward) = graph.source(id).forward.filter(|_| graph.source(id).pin.is_none()) else {
            continue;
        };
        let layer = graph.source_mut(forward);
        let mark = layer.colocate.get_or_insert_with(|| format!("layer {}", layer.name)).clone();
        graph.source_mut(id).colocate = Some(mark);
    }
}

/// A parameter's first value.
fn initial(graph: &Graph, id: ParamId, reader: &mut ParamReader, seed: u64) -> Result<Tensor> {
    if let Some(tensor) = reader.read(graph, id)? {
        return Ok(tensor);
    }
    let param = graph.param(id);
    let ty = graph.ty(graph.node(param.node).first_result);
    let dims: Vec<u64> = ty.shape.sizes().iter().map(|size| size.constant().unsigned_abs()).collect();
    fill(&param.init, &dims, ty.dtype, seed, base_name(&param.name))
}

/// The step of a batch over replicas, each of which takes a part of it.
fn over_replicas(
    forward: &Graph,
    unbound: &Graph,
    topology: &Topology,
    options: &Options,
    replicas: &Replicas,
) -> Result<Step> {
    let first = forward.inputs().first().map(|(_, value)| forward.ty(*value).shape.dims());
    let batch = first.flatten().and_then(|dims| dims.first().copied()).unwrap_or(1);
    let devices = replicas.devices(topology, batch)?;
    let bound = |samples: i64| {
        let asked = compile::Options { batch: Some(samples), ..options.compile.clone() };
        compile::bound(unbound.clone(), &asked).map(|(graph, _)| graph)
    };
    replicated_step(batch, &bound, &options.recipe, replicas, &devices)
}

/// What each record gives, and the batch.
///
/// Errors: an input without a batch axis, or two sizes of it.
fn fields(forward: &Graph, targets: &[Target]) -> Result<(Vec<Field>, usize)> {
    let mut fields = Vec::new();
    let mut batch: Option<i64> = None;
    let inputs = forward.inputs().iter().map(|(name, value)| {
        let ty = forward.ty(*value);
        (name, Role::Input, ty.dtype, ty.shape.dims().unwrap_or_default())
    });
    let targets = targets.iter().map(|one| (&one.name, Role::Target, one.dtype, one.dims.clone()));
    for (name, role, dtype, dims) in inputs.chain(targets) {
        let Some((&first, rest)) = dims.split_first() else {
            return Err(Error::usage(format!("input {name}"), "it has no batch axis"));
        };
        if *batch.get_or_insert(first) != first {
            let message = format!("its first axis has {first} elements, others {}", batch.unwrap_or(0));
            return Err(Error::usage(format!("input {name}"), message)
                .with_help("the first axis of inputs and outputs is the batch"));
        }
        let rest: Vec<u64> = rest.iter().map(|dim| dim.unsigned_abs()).collect();
        fields.push(Field::new(name.clone(), role, dtype, &rest));
    }
    Ok((fields, batch.unwrap_or(1).unsigned_abs() as usize))
}

/// The network alone, with the loss of each sample.
pub(super) struct Evaluator {
    program: Program,
}

impl Evaluator {
    fn new(trainer: &Trainer) -> Result<Self> {
        let graph = super::step::evaluation(trainer.forward.clone(), &trainer.loss)?;
        let compiled = compile::compile(Model::Graph(graph), &trainer.topology, &trainer.compile)?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping)?;
        let weights = |id: ParamId| initial(&network.graph, id, &mut ParamReader::new(), 0);
        let groups = network.grouping.all_fused();
        let program = Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default())?;
        Ok(Self { program })
    }

    /// Takes the parameters as the trainer has them now.
    pub(super) fn follow(&mut self, trainer: &Trainer) -> Result<()> {
        hand_over(&trainer.program, &mut self.program)
    }

    /// The loss of each sample, and the network's outputs.
    pub(super) fn run(&mut self, arrays: &[(String, Tensor)]) -> Result<(Vec<f64>, Vec<(String, Tensor)>)> {
        let (mut outputs, _) = self.program.run(arrays)?;
        let at = outputs.iter().position(|(name, _)| name == LOSS);
        let at = at.ok_or_else(|| Error::Internal("an evaluation without a loss".into()))?;
        Ok((outputs.remove(at).1.to_f64(), outputs))
    }
}
