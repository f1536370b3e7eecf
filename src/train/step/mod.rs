//! A network as its training step: loss, gradients, updates, all in one graph.

pub(crate) mod accumulate;
pub(crate) mod ignored;
pub(crate) mod loss;
pub(crate) mod noise;
pub(crate) mod penalty;
pub(crate) mod scaling;
pub(crate) mod statistics;
pub(crate) mod stored;

use std::collections::HashMap;

use wildmatch::WildMatch;

use crate::error::{Error, Result};
use crate::ir::{DType, Graph, Limit, Op, ParamId, Phase, Source, SourceId, SourceRole, ValueId};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::pass::gradient::{gradient, unroll};
use crate::train::optimize::{Scalars, Updates, wide_type};
use crate::train::step::ignored::{Ignoring, add_target};
use crate::train::step::loss::Loss;
use crate::train::step::noise::disturb;
use crate::train::step::penalty::with_penalties;
use crate::train::step::scaling::{Scale, Scaling};
use crate::train::step::statistics::{Moved, batch_statistics};
use crate::train::step::stored::by_stored_statistics;

/// Name of the output that holds the loss.
pub const LOSS: &str = "loss";

/// How a network is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// What is made small.
    pub loss: Loss,
    /// By what.
    pub updates: Updates,
    /// Patterns of parameters that stay as they are.
    pub freeze: Vec<String>,
    /// How the loss is scaled, where the step has a precision of its own.
    pub scaling: Option<Scaling>,
    /// Whether the network's own outputs stay outputs of the step, for metrics.
    pub outputs: bool,
}

/// A target: what one output of the network is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name among the step's inputs.
    pub name: String,
    /// The output's name.
    pub output: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes, the batch first.
    pub dims: Vec<i64>,
    /// Of class numbers: how many classes there are.
    pub classes: Option<i64>,
    /// Of class numbers: the one that the loss leaves out.
    pub ignored: Option<i64>,
    /// Whether the step has an input that says what of the batch each sample is: a class is ignored, and the network
    /// itself does not say which steps count.
    pub(crate) has_shares: bool,
    /// Whether targets that are all 0 or 1 mean -1 and 1.
    pub(crate) takes_bits: bool,
}

impl Target {
    /// What class numbers are below: those below 0 would count from the last one.
    pub(crate) fn limit(&self) -> Option<Limit> {
        let output = &self.output;
        let field = match self.ignored {
            Some(_) => format!("the classes of output {output}"),
            None => {
                format!("the classes of output {output}; --loss sparse:ignore_class=C leaves out class C")
            }
        };
        self.classes.map(|count| Limit { count, field, ignored: self.ignored })
    }
}

/// A training step.
#[derive(Clone, Debug)]
pub struct Step {
    /// The graph: inputs of the network, then targets; the loss first among the outputs.
    pub graph: Graph,
    /// What is to be fed beside the network's inputs.
    pub targets: Vec<Target>,
    /// Trained parameters.
    pub trained: usize,
    /// Whether layers draw random numbers: the step then has an input more, [`STREAMS`](crate::train::step::noise::STREAMS).
    pub(super) disturbed: bool,
}

/// The outputs that a network is fitted by: all but what its buffers become.
pub(super) fn fitted(graph: &Graph) -> Vec<(String, ValueId)> {
    let buffers = &graph.rules().buffers;
    graph.outputs().iter().filter(|(name, _)| !buffers.contains_key(name)).cloned().collect()
}

/// Parameters by name. Looked up, never iterated.
fn params_by_name(graph: &Graph) -> HashMap<&str, ParamId> {
    // The first of a name.
    let params = graph.params().iter().enumerate().rev();
    params.map(|(at, param)| (param.name.as_str(), ParamId(at as u32))).collect()
}

/// What the buffers become that the network itself writes over. O(outputs + parameters).
///
/// Error: a buffer that the network has as a constant.
fn moved_buffers(graph: &Graph) -> Result<Vec<Moved>> {
    let params = params_by_name(graph);
    let mut moved = Vec::new();
    for (output, value) in graph.outputs() {
        let Some(buffer) = graph.rules().buffers.get(output) else { continue };
        let param = params.get(buffer.as_str()).copied().ok_or_else(|| {
            Error::usage(format!("buffer {buffer}"), "it is written over, and cannot be kept in training")
        })?;
        moved.push(Moved { param, value: *value });
    }
    Ok(moved)
}

/// Refuses a network that writes over its buffers where no step sees what the one before left.
pub(super) fn check_without_buffers(graph: &Graph, how: &str) -> Result<()> {
    match graph.rules().buffers.values().next() {
        None => Ok(()),
        Some(buffer) => {
            let message = format!("it is written over in each step, which is not known {how}");
            Err(Error::usage(format!("buffer {buffer}"), message))
        }
    }
}

/// The targets of a network's outputs: `target` where there is one output, else `target_NAME`.
///
/// Errors: an output without a batch, or of no float; a dimension that is not bound.
pub fn targets(graph: &Graph, loss: &Loss) -> Result<Vec<Target>> {
    let outputs = fitted(graph);
    let single = outputs.len() == 1;
    let of = |(output, value): &(String, ValueId)| {
        let ty = graph.ty(*value);
        let place = || format!("output {output}");
        let dims = ty.shape.dims().ok_or_else(|| {
            Error::usage(place(), "a dimension has no value").with_help("--batch N or --dim NAME=N")
        })?;
        if dims.is_empty() || !ty.dtype.is_float() {
            return Err(Error::usage(place(), "a loss needs an output of floats with a batch axis first"));
        }
        let axis = loss.class_axis(dims.len()).map_err(|error| error.within(&place()))?;
        let classes = axis.filter(|_| loss.has_class_numbers()).map(|axis| dims[axis]);
        let (dtype, dims) = loss.target(ty.dtype, &dims)?;
        let name = if single { "target".to_owned() } else { format!("target_{output}") };
        let ignored = loss.ignored();
        let takes_bits = *loss == Loss::Hinge && graph.rules().targets.hinge_takes_bits;
        let has_shares = ignored.is_some() && graph.counted_steps(*value).is_none();
        Ok(Target { name, output: output.clone(), dtype, dims, classes, ignored, has_shares, takes_bits })
    };
    outputs.iter().map(of).collect()
}

/// Makes the training step of a network whose dimensions are bound. The loss is the sum over the
/// outputs of the mean over each output's samples, and of what parameters add to it. O(nodes).
///
/// Errors: those of [`targets`] and of [`gradient`]; nothing to train; a pattern that matches nothing.
pub fn training_step(mut graph: Graph, recipe: &Recipe) -> Result<Step> {
    let Lossy { targets, loss, statistics, disturbed } = with_loss(&mut graph, recipe)?;
    let (trained, scalars) = update(&mut graph, loss, recipe)?;
    for Moved { param, value } in statistics {
        keep_statistic(&mut graph, &scalars, param, value)?;
    }
    Ok(Step { graph, targets, trained, disturbed })
}

/// Says what a statistic becomes: what it is, where the step is to change nothing.
pub(super) fn keep_statistic(
    graph: &mut Graph,
    scalars: &Scalars,
    param: ParamId,
    value: ValueId,
) -> Result<()> {
    let old = graph.node(graph.param(param).node).first_result;
    let source = graph.maker(value).source;
    let value = scalars.where_finite(&mut Build { graph, source }, value, old)?;
    graph.update_param(param, value)
}

/// What gradients are called, as outputs of a [`gradient_step`] and inputs of an [`update_step`]: this, then
/// the parameter's name.
pub(super) const GRADIENT: &str = "gradient/";

/// As [`training_step`], but with gradients as outputs in place of updates; the names of the parameters that
/// they are of. In microbatches the sums so far are what is kept, in slots of [`sum_name`](crate::train::step::accumulate::sum_name).
///
/// Errors: those of [`training_step`].
pub(super) fn gradient_step(mut graph: Graph, recipe: &Recipe) -> Result<(Step, Vec<String>)> {
    check_without_buffers(&graph, "of workers that do not wait")?;
    let Lossy { targets, loss, statistics, disturbed } = with_loss(&mut graph, recipe)?;
    let wanted = trainable(&graph, &recipe.freeze)?;
    let values: Vec<ValueId> =
        wanted.iter().map(|&id| graph.node(graph.param(id).node).first_result).collect();
    let readers = first_readers(&graph);
    let found = gradient(&mut graph, loss, &values)?;
    let mut gradients = Vec::new();
    for (id, gradient) in wanted.into_iter().zip(found) {
        let Some(gradient) = gradient else { continue };
        gradients.push((id, readers[id.index()], gradient));
    }
    if gradients.is_empty() {
        return Err(Error::usage("model", "the loss depends on no parameter that is trained"));
    }
    let names: Vec<String> = gradients.iter().map(|(id, ..)| graph.param(*id).name.clone()).collect();
    if recipe.updates.microbatches > 1 {
        let dtype = wide_type(gradients.iter().map(|&(.., gradient)| graph.ty(gradient).dtype));
        let source = graph.add_source(Source::new("optimizer", "optimizer", SourceRole::Data));
        let mut b = Build { graph: &mut graph, source };
        let scalars = Scalars::begins(&mut b, dtype);
        for (id, source, _) in &mut gradients {
            *source = update_source(b.graph, *id, *source);
        }
        recipe.updates.accumulate(&mut b, &scalars, &mut gradients, &names)?;
    } else {
        for ((.., gradient), name) in gradients.iter().zip(&names) {
            graph.add_output(format!("{GRADIENT}{name}"), *gradient);
        }
    }
    for Moved { param, value } in statistics {
        graph.update_param(param, value)?;
    }
    Ok((Step { graph, targets, trained: names.len(), disturbed }, names))
}

/// The updates alone of the network's parameters of these names, their gradients being inputs.
///
/// Errors: those of [`trainable`] and of the optimizer.
pub(super) fn update_step(network: &Graph, trained: &[String], recipe: &Recipe) -> Result<Graph> {
    let mut graph = Graph::new(network.name.clone());
    let mut gradients = Vec::new();
    let params = params_by_name(network);
    for name in trained {
        let Some(&param) = params.get(name.as_str()) else { continue };
        let param = network.param(param);
        let ty = network.ty(network.node(param.node).first_result).clone();
        let data = graph.add_source(Source::new(name.clone(), "weight", SourceRole::Data));
        let value = graph.add_param(name.clone(), ty.clone(), param.init.clone(), param.data.clone(), data);
        let input = format!("{GRADIENT}{name}");
        let source = graph.add_source(Source::new(input.clone(), "gradient", SourceRole::Data));
        let gradient = graph.add_input(input, ty, source);
        let Op::Param(id) = graph.maker(value).op else { continue };
        gradients.push((id, gradient));
    }
    let mut due = Vec::with_capacity(gradients.len());
    for (id, gradient) in gradients {
        let name = format!("{}/update", graph.param(id).name);
        let source = Source { phase: Phase::Update, ..Source::new(name, "update", SourceRole::Node) };
        due.push((id, graph.add_source(source), gradient));
    }
    // What microbatches add up to is one gradient.
    let updates = Updates { microbatches: 1, ..recipe.updates };
    apply(&mut graph, &mut due, &Recipe { updates, ..recipe.clone() }, None)?;
    Ok(graph)
}

/// A network with its loss.
struct Lossy {
    targets: Vec<Target>,
    loss: ValueId,
    statistics: Vec<Moved>,
    disturbed: bool,
}

fn with_loss(graph: &mut Graph, recipe: &Recipe) -> Result<Lossy> {
    unroll(graph)?;
    by_stored_statistics(graph)?;
    let batch = batch_of(graph);
    let disturbed = disturb(graph, batch)?;
    let mut statistics = batch_statistics(graph, &recipe.freeze)?;
    statistics.extend(moved_buffers(graph)?);
    let targets = targets(graph, &recipe.loss)?;
    let outputs = fitted(graph);
    let source = loss_source(graph, &outputs);
    let mut total: Option<ValueId> = None;
    for (target, (_, output)) in targets.iter().zip(&outputs) {
        let each = sample_losses(graph, source, &recipe.loss, target, *output)?;
        let mut b = Build { graph, source };
        let loss = b.mean(each, &[0], ReducedAxes::Dropped)?;
        total = Some(match total {
            Some(total) => b.add(total, loss)?,
            None => loss,
        });
    }
    let loss = total.ok_or_else(|| Error::usage("model", "it has no output to train"))?;
    let loss = with_penalties(graph, loss, &recipe.freeze)?;
    graph.set_outputs(vec![(LOSS.to_owned(), loss)]);
    if recipe.outputs {
        outputs.iter().for_each(|(name, value)| graph.add_output(name.clone(), *value));
    }
    Ok(Lossy { targets, loss, statistics, disturbed })
}

/// Samples in a batch: the first axis of the inputs.
pub(super) fn batch_of(graph: &Graph) -> i64 {
    let first = graph.inputs().first().and_then(|(_, value)| graph.ty(*value).shape.dims());
    first.and_then(|dims| dims.first().copied()).unwrap_or(1)
}

/// The loss belongs to what makes the first output.
fn loss_source(graph: &mut Graph, outputs: &[(String, ValueId)]) -> SourceId {
    let last = outputs.first().map(|(_, value)| graph.maker(*value).source);
    let colocate = last.and_then(|last| graph.source(last).colocate.clone());
    graph.add_source(Source { colocate, ..Source::new("loss", "loss", SourceRole::Node) })
}

/// The loss of each sample of one output, against an input for its target.
fn sample_losses(
    graph: &mut Graph,
    source: SourceId,
    loss: &Loss,
    target: &Target,
    output: ValueId,
) -> Result<ValueId> {
    let value = add_target(graph, target);
    loss.per_sample(&mut Build { graph, source }, output, value)
}

/// Adds gradients and updates; how many parameters are trained.
fn update(graph: &mut Graph, loss: ValueId, recipe: &Recipe) -> Result<(usize, Scalars)> {
    let wanted = trainable(graph, &recipe.freeze)?;
    let readers = first_readers(graph);
    let values: Vec<ValueId> =
        wanted.iter().map(|&id| graph.node(graph.param(id).node).first_result).collect();
    let scale = recipe.scaling.filter(|scaling| scaling.skips()).map(|scaling| Scale::add(graph, scaling));
    let loss = match &scale {
        Some(scale) => {
            let source = graph.maker(loss).source;
            scale.scaled(&mut Build { graph, source }, loss)?
        }
        None => loss,
    };
    let found = gradient(graph, loss, &values)?;
    let mut gradients = Vec::new();
    for (id, gradient) in wanted.into_iter().zip(found) {
        let Some(gradient) = gradient else { continue };
        let source = update_source(graph, id, readers[id.index()]);
        gradients.push((id, source, gradient));
    }
    if let Some(scale) = &scale {
        for (_, source, gradient) in &mut gradients {
            *gradient = scale.unscaled(&mut Build { graph, source: *source }, *gradient)?;
        }
    }
    let scalars = apply(graph, &mut gradients, recipe, scale)?;
    Ok((gradients.len(), scalars))
}

/// Clips gradients and updates their parameters.
fn apply(
    graph: &mut Graph,
    gradients: &mut [(ParamId, SourceId, ValueId)],
    recipe: &Recipe,
    scale: Option<Scale>,
) -> Result<Scalars> {
    let Some(&(_, source, _)) = gradients.first() else {
        return Err(Error::usage("model", "the loss depends on no parameter that is trained"));
    };
    let dtype = wide_type(gradients.iter().map(|&(.., gradient)| graph.ty(gradient).dtype));
    let hyper = graph.add_source(Source::new("optimizer", "optimizer", SourceRole::Data));
    let mut b = Build { graph, source: hyper };
    let mut scalars = Scalars::add(&mut b, &recipe.updates, dtype);
    b.source = source;
    let names: Vec<String> = gradients.iter().map(|(id, ..)| b.graph.param(*id).name.clone()).collect();
    recipe.updates.accumulate(&mut b, &scalars, gradients, &names)?;
    if let Some(scale) = &scale {
        scalars.finite = scale.finite(&mut b, gradients)?;
        scale.follow(&mut b, &recipe.updates, &scalars)?;
    }
    recipe.updates.clip(&mut b, gradients)?;
    for &(id, source, gradient) in &*gradients {
        b.source = source;
        recipe.updates.apply(&mut b, &scalars, id, gradient)?;
    }
    Ok(scalars)
}

/// Error: the model is trained in a way that is not known here.
pub(crate) fn check_trained(graph: &Graph) -> Result<()> {
    match graph.rules().untrained.first() {
        None => Ok(()),
        Some(what) => Err(Error::usage("training", format!("{what} is not known here"))
            .with_help("the model can be run; save it without that to train it")),
    }
}

/// Parameters of floats that neither the model nor a pattern freezes.
///
/// Errors: those of [`check_trained`]; a pattern that matches nothing.
pub(super) fn trainable(graph: &Graph, freeze: &[String]) -> Result<Vec<ParamId>> {
    check_trained(graph)?;
    let by_model = &graph.rules().frozen;
    let mut frozen: Vec<bool> = graph.params().iter().map(|param| by_model.contains(&param.name)).collect();
    for pattern in freeze {
        let glob = WildMatch::new(pattern);
        let mut any = false;
        for (param, frozen) in graph.params().iter().zip(&mut frozen) {
            let own = glob.matches(&param.name);
            *frozen |= own;
            any |= own;
        }
        if !any {
            let names: Vec<&str> = graph.params().iter().map(|param| param.name.as_str()).collect();
            let near = crate::topology::near::pattern(pattern, &names);
            let first = || format!("parameters: {}, ...", names[..names.len().min(3)].join(", "));
            let help = if near.is_empty() { first() } else { near };
            return Err(Error::usage(format!("--freeze {pattern}"), "no parameter matches this pattern")
                .with_help(help));
        }
    }
    let float = |id: &ParamId| {
        let param = graph.param(*id);
        graph.ty(graph.node(param.node).first_result).dtype.is_float() && param.statistic.is_none()
    };
    let ids = (0..graph.params().len() as u32).map(ParamId);
    Ok(ids.filter(|id| !frozen[id.index()]).filter(float).collect())
}

/// By parameter: the source of the first node that reads it, or its own. O(nodes + operands).
fn first_readers(graph: &Graph) -> Vec<SourceId> {
    let mut readers: Vec<Option<SourceId>> = vec![None; graph.params().len()];
    for node in graph.node_ids() {
        let data = graph.node(node);
        for &operand in &data.operands {
            if let Op::Param(id) = graph.maker(operand).op {
                readers[id.index()].get_or_insert(data.source);
            }
        }
    }
    let own = graph.params().iter().map(|param| graph.node(param.node).source);
    readers.into_iter().zip(own).map(|(reader, own)| reader.unwrap_or(own)).collect()
}

/// The source of a parameter's update: it goes with the first node that reads the parameter.
pub(super) fn update_source(graph: &mut Graph, id: ParamId, forward: SourceId) -> SourceId {
    let source = Source {
        pin: graph.source(forward).pin.clone(),
        forward: Some(forward),
        phase: Phase::Update,
        ..Source::new(format!("{}/update", graph.param(id).name), "update", SourceRole::Node)
    };
    graph.add_source(source)
}

/// The outputs of an [`evaluation`] that hold losses, each with the target whose shares it has: one for all targets, or
/// one for each where any has shares.
pub(crate) fn loss_outputs(targets: &[Target]) -> Vec<(String, Option<Ignoring>)> {
    let apart = targets.iter().any(|target| target.has_shares);
    let further = targets.iter().skip(1).filter(|_| apart);
    let further = further.map(|target| (format!("{LOSS}/{}", target.name), Ignoring::of(target)));
    [(LOSS.to_owned(), targets.first().and_then(Ignoring::of))].into_iter().chain(further).collect()
}

/// A network with the loss of each sample as an output beside its own, for validation, and its targets. Means of targets
/// with shares are over counts of their own, so that each then has an output; the first has what parameters add.
///
/// Errors: those of [`targets`] and of [`trainable`].
pub(super) fn evaluation(mut graph: Graph, loss: &Loss) -> Result<(Graph, Vec<Target>)> {
    by_stored_statistics(&mut graph)?;
    let targets = targets(&graph, loss)?;
    let outputs = fitted(&graph);
    let named = loss_outputs(&targets);
    let source = loss_source(&mut graph, &outputs);
    let mut losses: Vec<ValueId> = Vec::new();
    for (target, (_, output)) in targets.iter().zip(&outputs) {
        let each = sample_losses(&mut graph, source, loss, target, *output)?;
        match losses.last_mut().filter(|_| named.len() == 1) {
            Some(total) => *total = Build { graph: &mut graph, source }.add(*total, each)?,
            None => losses.push(each),
        }
    }
    let Some(first) = losses.first_mut() else { return Err(Error::usage("model", "it has no output")) };
    *first = with_penalties(&mut graph, *first, &[])?;
    let losses = named.into_iter().map(|(name, _)| name).zip(losses);
    graph.set_outputs(losses.chain(outputs).collect());
    Ok((graph, targets))
}
