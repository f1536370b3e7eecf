//! Batch normalisation as it trains: by the means and variances of the batch, which the stored ones
//! follow (Ioffe and Szegedy 2015).
//!
//! Loaders lower the layer to vectors made of the stored statistics and mark those parameters
//! ([`Param::statistic`](crate::ir::Param::statistic)). Here the layer becomes one normalisation over all axes
//! but that of the channels; where it is written in another way, what reads the stored statistics reads the
//! batch's instead.

use wildmatch::WildMatch;

use crate::error::{Error, Result};
use crate::ir::{
    Binary, CountedSteps, Graph, NodeId, Op, Param, ParamId, Phase, Real, Source, SourceId, SourceRole,
    Statistic, StatisticKind, Unary, Users, ValueId,
};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::pass::rewrite::Rewriter;

/// What a stored statistic is to become after the step.
pub(crate) struct Moved {
    pub(crate) param: ParamId,
    pub(crate) value: ValueId,
}

/// Whether a statistic is one that a pattern leaves as it is: its layer then normalises by what is stored.
pub(crate) fn is_frozen(param: &Param, freeze: &[String]) -> bool {
    param.statistic.is_some() && freeze.iter().any(|pattern| WildMatch::new(pattern).matches(&param.name))
}

/// Puts the statistics of the batch in place of the stored ones, but for those that patterns of `freeze` match; the new
/// stored ones, which follow each call of a layer that is called several times. O(nodes + operands).
///
/// Errors: statistics that no layer's input can be found for.
pub(crate) fn batch_statistics(graph: &mut Graph, freeze: &[String]) -> Result<Vec<Moved>> {
    for id in (0..graph.params().len() as u32).map(ParamId) {
        if is_frozen(graph.param(id), freeze) {
            graph.param_mut(id).statistic = None;
        }
    }
    if graph.params().iter().all(|param| param.statistic.is_none()) {
        return Ok(Vec::new());
    }
    let readers = readers(graph);
    let layers = layers(graph, &readers);
    let others = others(graph, &layers)?;
    let mut rewriter = Rewriter::new(graph);
    let mut moved = Moves { list: Vec::new(), place: vec![None; graph.params().len()] };
    for node in graph.node_ids() {
        let source = graph.node(node).source;
        match &layers.by_sum[node.index()] {
            Some(affine) => {
                affine.normalise(graph, &mut rewriter, &mut moved)?;
                continue;
            }
            None if reads_statistics(graph, node) && !layers.is_within[node.index()] => {
                let layer = others[source.index()].as_ref().ok_or_else(|| untrainable(graph, source))?;
                for &param in &readers[source.index()] {
                    layer.replace(graph, &mut rewriter, param, &mut moved)?;
                }
            }
            None => {}
        }
        rewriter.keep(node)?;
    }
    *graph = rewriter.finish()?;
    Ok(moved.list)
}

fn untrainable(graph: &Graph, source: SourceId) -> Error {
    let place = format!("node {}", graph.source(source).name);
    Error::usage(place, "its stored statistics are used in a way that cannot be trained")
        .with_help("--freeze what it reads, and leave the layer as it is")
}

/// What converts one does not read it otherwise.
fn reads_statistics(graph: &Graph, node: NodeId) -> bool {
    !matches!(graph.node(node).op, Op::Convert { .. })
        && graph.node(node).operands.iter().any(|&operand| statistic(graph, operand).is_some())
}

/// What stored statistics become, each once.
struct Moves {
    list: Vec<Moved>,
    /// By parameter: its place in the list.
    place: Vec<Option<usize>>,
}

/// The stored statistic that a value is, perhaps in another type.
pub(super) fn statistic(graph: &Graph, value: ValueId) -> Option<ParamId> {
    let maker = graph.maker(value);
    let stored = if matches!(maker.op, Op::Convert { .. }) { graph.maker(maker.operands[0]) } else { maker };
    match stored.op {
        Op::Param(id) if graph.param(id).statistic.is_some() => Some(id),
        _ => None,
    }
}

/// By source: the statistics that its nodes read, each once.
pub(super) fn readers(graph: &Graph) -> Vec<Vec<ParamId>> {
    let mut readers: Vec<Vec<ParamId>> = vec![Vec::new(); graph.sources().len()];
    for node in graph.node_ids() {
        let data = graph.node(node);
        for &operand in &data.operands {
            if let Some(param) = statistic(graph, operand) {
                let list = &mut readers[data.source.index()];
                if !list.contains(&param) {
                    list.push(param);
                }
            }
        }
    }
    readers
}

/// Layers that read stored statistics in the way that loaders write, each call of one apart.
struct Layers {
    /// By node: the call that ends there.
    by_sum: Vec<Option<Affine>>,
    /// By node: whether it is part of such a call.
    is_within: Vec<bool>,
}

/// O(nodes).
fn layers(graph: &Graph, readers: &[Vec<ParamId>]) -> Layers {
    let count = graph.node_count();
    let mut layers = Layers { by_sum: vec![None; count], is_within: vec![false; count] };
    let users = Users::new(graph);
    for id in graph.node_ids() {
        if readers[graph.node(id).source.index()].len() == 2
            && let Some(found) = Affine::find(graph, &users, id)
        {
            found.nodes.iter().for_each(|node| layers.is_within[node.index()] = true);
            layers.by_sum[id.index()] = Some(found);
        }
    }
    layers
}

/// By source: the layer that it is, where it reads stored statistics in another way. O(nodes).
///
/// Errors: one that is called with several inputs.
fn others(graph: &Graph, layers: &Layers) -> Result<Vec<Option<NormLayer>>> {
    let mut others: Vec<Option<NormLayer>> = graph.sources().iter().map(|_| None).collect();
    let mut reads = vec![false; others.len()];
    for node in graph.node_ids() {
        let own = reads_statistics(graph, node) && !layers.is_within[node.index()];
        reads[graph.node(node).source.index()] |= own;
    }
    for node in graph.node_ids() {
        let source = graph.node(node).source;
        if !reads[source.index()] || layers.by_sum[node.index()].is_some() {
            continue;
        }
        let Some(found) = NormLayer::at(graph, node) else { continue };
        match &others[source.index()] {
            Some(other) if other.x != found.x => return Err(untrainable(graph, source)),
            Some(_) => {}
            None => others[source.index()] = Some(found),
        }
    }
    Ok(others)
}

/// `x * scale + shift`, where `scale` is `gamma / sqrt(variance + epsilon)` and `shift` is
/// `beta - mean * scale`, each without gamma or beta, and reshaped to the axis of the channels.
#[derive(Clone)]
struct Affine {
    sum: NodeId,
    x: ValueId,
    axis: usize,
    epsilon: f64,
    mean: ParamId,
    variance: ParamId,
    gamma: Option<ValueId>,
    beta: Option<ValueId>,
    /// The sizes that gamma and beta are broadcast from.
    dims: Vec<i64>,
    /// The nodes that it is made of.
    nodes: Vec<NodeId>,
}

impl Affine {
    /// The layer that ends with a node, where nothing else reads what is between.
    fn find(graph: &Graph, users: &Users, sum: NodeId) -> Option<Self> {
        let [product, moved] = operands(graph, graph.node(sum).first_result, &Op::Binary(Binary::Add))?;
        let [x, scale] = operands(graph, product, &Op::Binary(Binary::Mul))?;
        let (vector, shift) = (reshaped(graph, scale), reshaped(graph, moved));
        let (gamma, deviation) = match operands(graph, vector, &Op::Binary(Binary::Div)) {
            Some([gamma, deviation]) => (Some(gamma), deviation),
            None => (None, operands::<1>(graph, vector, &Op::Unary(Unary::Reciprocal))?[0]),
        };
        let [spread] = operands(graph, deviation, &Op::Unary(Unary::Sqrt))?;
        let [variance, epsilon] = operands(graph, spread, &Op::Binary(Binary::Add))?;
        let (beta, taken) = match operands(graph, shift, &Op::Binary(Binary::Sub)) {
            Some([beta, taken]) => (Some(beta), taken),
            None => (None, operands::<1>(graph, shift, &Op::Unary(Unary::Neg))?[0]),
        };
        let [mean, factor] = operands(graph, taken, &Op::Binary(Binary::Mul))?;
        let of = |value: ValueId, is_mean: bool| {
            let is = |statistic: Statistic| (statistic.kind == StatisticKind::Mean) == is_mean;
            statistic(graph, value).filter(|&id| graph.param(id).statistic.is_some_and(is))
        };
        let (mean, variance) = (of(mean, true)?, of(variance, false)?);
        // The layer that takes their place no longer makes what is between.
        let between = [product, moved, scale, vector, shift, deviation, spread, taken];
        let own = |&user: &NodeId| graph.node(user).source == graph.node(sum).source;
        let outputs = graph.outputs().iter().any(|(_, output)| between.contains(output));
        if outputs || !between.iter().all(|&value| users.of(value).iter().all(own)) {
            return None;
        }
        let epsilon = graph.as_constant(epsilon).filter(|tensor| tensor.elements() == 1)?.to_f64()[0];
        let dims = graph.ty(scale).shape.dims()?;
        // Broadcast from the right: a vector with ones behind it lies along the axis that many from the end.
        let (axis, own) = (graph.ty(x).shape.rank().checked_sub(dims.len())?, graph.ty(x).shape.dims()?);
        let along = own.get(axis) == dims.first() && dims[1..].iter().all(|&size| size == 1);
        let alike = graph.ty(x).dtype == graph.ty(scale).dtype;
        (factor == vector && along && alike && own.len() > 1).then_some(Self {
            sum,
            x,
            axis,
            epsilon,
            mean,
            variance,
            gamma,
            beta,
            dims,
            nodes: between.iter().map(|&value| graph.value(value).node).chain([sum]).collect(),
        })
    }

    /// The normalisation in the layer's place, whose means and variances the stored ones follow.
    fn normalise(&self, graph: &Graph, rewriter: &mut Rewriter<'_>, moved: &mut Moves) -> Result<()> {
        let x = rewriter.value(self.x)?;
        let gamma = self.gamma.map(|gamma| rewriter.value(gamma)).transpose()?;
        let beta = self.beta.map(|beta| rewriter.value(beta)).transpose()?;
        let source = graph.node(self.sum).source;
        let mut b = Build { graph: rewriter.graph_mut(), source };
        let axes: Vec<u32> = (0..b.rank(x) as u32).filter(|&axis| axis as usize != self.axis).collect();
        let elements = elements_of_channel(&b.dims(x)?, self.axis);
        let [mut y, mean, variance] = match b.graph.counted_steps(x) {
            Some(counted) => self.of_counted(&mut b, counted, &axes)?,
            None => {
                let op = Op::Normalize { axes, epsilon: Real(self.epsilon), center: true, moments: true };
                let made = b.graph.push(op, &[x], source)?;
                [0, 1, 2].map(|result| ValueId(b.graph.node(made).first_result.0 + result))
            }
        };
        if let Some(gamma) = gamma {
            let gamma = b.reshape(gamma, &self.dims)?;
            y = b.mul(y, gamma)?;
        }
        if let Some(beta) = beta {
            let beta = b.reshape(beta, &self.dims)?;
            y = b.add(y, beta)?;
        }
        for (id, found) in [(self.mean, mean), (self.variance, variance)] {
            let found = Found { value: found, layer: source, elements };
            follow(graph, rewriter, id, found, moved)?;
        }
        rewriter.replace_each(self.sum, &[y]);
        Ok(())
    }
}

/// What Keras adds to the number of steps that count.
const LEAST: f64 = 1e-7;

impl Affine {
    /// The normalised elements, means and variances of the steps that count.
    fn of_counted(&self, b: &mut Build<'_>, x: CountedSteps, axes: &[u32]) -> Result<[ValueId; 3]> {
        let CountedSteps { mask, value: x } = x;
        let dims = b.dims(x)?;
        let mask = b.convert(mask, b.dtype(x))?;
        let mask = b.broadcast(mask, &dims)?;
        let count = b.sum(mask, axes, ReducedAxes::Kept)?;
        let count = b.with(Binary::Add, count, LEAST)?;
        let mean_of = |b: &mut Build<'_>, x: ValueId| {
            let left = b.mul(x, mask)?;
            let sum = b.sum(left, axes, ReducedAxes::Kept)?;
            b.div(sum, count)
        };
        let mean = mean_of(b, x)?;
        let centred = b.sub(x, mean)?;
        let squares = b.mul(centred, centred)?;
        let variance = mean_of(b, squares)?;
        let spread = b.with(Binary::Add, variance, self.epsilon)?;
        let deviation = b.unary(Unary::Sqrt, spread)?;
        let y = b.div(centred, deviation)?;
        let channels = [dims[self.axis]];
        Ok([y, b.reshape(mean, &channels)?, b.reshape(variance, &channels)?])
    }
}

/// The operands of what makes a value, where that is this operation.
fn operands<const N: usize>(graph: &Graph, value: ValueId, op: &Op) -> Option<[ValueId; N]> {
    let maker = graph.maker(value);
    (maker.op == *op).then(|| maker.operands[..].try_into().ok()).flatten()
}

/// What a reshape reads.
fn reshaped(graph: &Graph, value: ValueId) -> ValueId {
    let maker = graph.maker(value);
    if matches!(maker.op, Op::Reshape { .. }) { maker.operands[0] } else { value }
}

/// A statistic of a batch.
struct Found {
    value: ValueId,
    layer: SourceId,
    /// How many have a channel.
    elements: i64,
}

fn elements_of_channel(dims: &[i64], axis: usize) -> i64 {
    dims.iter().enumerate().filter(|&(other, _)| other != axis).map(|(_, &size)| size).product()
}

/// Says what a stored statistic becomes, which a layer has found in the batch: it follows what an earlier call of the
/// layer has made of it.
fn follow(
    graph: &Graph,
    rewriter: &mut Rewriter<'_>,
    id: ParamId,
    found: Found,
    moved: &mut Moves,
) -> Result<()> {
    let param = graph.param(id);
    let Some(statistic) = param.statistic else { return Ok(()) };
    let before = moved.place[id.index()];
    let stored = match before {
        Some(before) => moved.list[before].value,
        None => rewriter.value(graph.node(param.node).first_result)?,
    };
    let update = Source {
        forward: Some(found.layer),
        phase: Phase::Update,
        ..Source::new(format!("{}/update", param.name), "update", SourceRole::Node)
    };
    let source = match before {
        Some(_) => rewriter.graph_mut().maker(stored).source,
        None => rewriter.graph_mut().add_source(update),
    };
    let mut b = Build { graph: rewriter.graph_mut(), source };
    // An exponential moving average, in the stored type: what a batch adds may be too little for 16 bits.
    let new = b.convert(found.value, b.dtype(stored))?;
    let kept = b.scale(stored, statistic.momentum.0)?;
    let share = match statistic.kind {
        StatisticKind::Mean | StatisticKind::Variance => 1.0,
        StatisticKind::SampleVariance => found.elements as f64 / (found.elements - 1).max(1) as f64,
    };
    let new = b.scale(new, share * (1.0 - statistic.momentum.0))?;
    let value = b.add(kept, new)?;
    match before {
        Some(before) => moved.list[before].value = value,
        None => {
            moved.place[id.index()] = Some(moved.list.len());
            moved.list.push(Moved { param: id, value });
        }
    }
    Ok(())
}

/// A normalisation's input, and the axis of its channels.
struct NormLayer {
    source: SourceId,
    x: ValueId,
    axis: usize,
}

impl NormLayer {
    /// The layer whose input a node multiplies with a vector along the channels, if it does.
    fn at(graph: &Graph, node: NodeId) -> Option<Self> {
        let data = graph.node(node);
        let source = data.source;
        let [x, scale] = data.operands[..] else { return None };
        let own = |value: ValueId| {
            let maker = graph.maker(value);
            maker.source == source || maker.op.is_leaf()
        };
        let outer = !own(x) || matches!(graph.maker(x).op, Op::Convert { .. } | Op::Input);
        if data.op != Op::Binary(Binary::Mul) || !outer || !own(scale) {
            return None;
        }
        let axis = graph.ty(x).shape.rank().checked_sub(graph.ty(scale).shape.rank())?;
        Some(Self { source, x, axis })
    }

    /// Lets the batch's statistic stand for a stored one.
    fn replace(
        &self,
        graph: &Graph,
        rewriter: &mut Rewriter<'_>,
        id: ParamId,
        moved: &mut Moves,
    ) -> Result<()> {
        let param = graph.param(id);
        let Some(statistic) = param.statistic else { return Ok(()) };
        let stored_node = param.node;
        let x = rewriter.value(self.x)?;
        let mut b = Build { graph: rewriter.graph_mut(), source: self.source };
        let axes: Vec<u32> = (0..b.rank(x) as u32).filter(|&axis| axis as usize != self.axis).collect();
        // Both read the same mean, which is computed once.
        let mean = b.mean(x, &axes, ReducedAxes::Kept)?;
        let found = match statistic.kind {
            StatisticKind::Mean => {
                let channels = b.dims(x)?[self.axis];
                b.reshape(mean, &[channels])?
            }
            StatisticKind::Variance | StatisticKind::SampleVariance => {
                let centered = b.sub(x, mean)?;
                let square = b.mul(centered, centered)?;
                b.mean(square, &axes, ReducedAxes::Dropped)?
            }
        };
        let dtype = graph.ty(graph.node(stored_node).first_result).dtype;
        let elements = elements_of_channel(&b.dims(x)?, self.axis);
        let value = b.convert(found, dtype)?;
        follow(graph, rewriter, id, Found { value, layer: self.source, elements }, moved)?;
        rewriter.replace_each(stored_node, &[value]);
        Ok(())
    }
}
