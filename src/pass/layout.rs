//! Where convolutions of halves have their channels: last inside, as GPUs gather them 16 bytes at a time and libraries of
//! products read them; first at the edges, where others read and write them.
//!
//! Nodes that take either layout (convolutions, pooling, elementwise operations, concatenations, reductions of whole
//! planes) and read one another are a region, which has one layout. It changes where the values that cross its edge, and
//! are transposed there, have no more bytes than what its convolutions read, which would be transposed for each of them
//! otherwise. A parameter that nothing but such a convolution reads is held transposed, once for all steps.

use std::collections::BTreeSet;

use petgraph::unionfind::UnionFind;

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{Conv, Graph, Layout, NodeId, Op, Shape, Size, ValueId};

/// Axes of channels first in the order of channels last, those of weights likewise, and back.
const LAST: [u32; 4] = [0, 2, 3, 1];
const WEIGHTS: [u32; 4] = [2, 3, 1, 0];
const FIRST: [u32; 4] = [0, 3, 1, 2];
/// Where each axis of channels first is among those of channels last.
const PLACES: [u32; 4] = [0, 3, 1, 2];

/// Fewest channels of the result, what they are a multiple of (an access of halves), and what those of the input are as well
/// where they are more than a few, which a kernel of its own gathers however many there are.
const FEWEST: i64 = 32;
const ACCESS: i64 = 8;
const FEW: i64 = 16;

/// Gives convolutions of halves their channels last where that pays; returns how many. Dimensions are bound. O(nodes +
/// operands).
///
/// Errors: none but internal ones.
pub fn channels_last(graph: &mut Graph) -> Result<usize> {
    let regions = Regions::new(graph);
    let chosen: Vec<bool> = graph.node_ids().map(|id| regions.is_chosen(id)).collect();
    let convolutions = graph.node_ids().filter(|&id| chosen[id.index()] && is_conv(graph, id)).count();
    if convolutions == 0 {
        return Ok(0);
    }
    *graph = Relaid::new(graph, &regions, chosen).rewritten()?;
    Ok(convolutions)
}

/// How a node goes with either layout.
struct Laid {
    /// Positions of the operands that have the layout, in order.
    operands: Vec<usize>,
    /// Whether its result has it.
    makes: bool,
}

impl Laid {
    fn has(&self, position: usize) -> bool {
        self.operands.binary_search(&position).is_ok()
    }
}

fn is_conv(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op, Op::Conv(_))
}

fn dims(graph: &Graph, value: ValueId) -> Option<[i64; 4]> {
    graph.ty(value).shape.dims()?.try_into().ok()
}

/// None where a node is of one layout alone.
fn laid(graph: &Graph, id: NodeId) -> Option<Laid> {
    let node = graph.node(id);
    let first = *node.operands.first()?;
    let planes = |makes| Some(Laid { operands: vec![0], makes });
    match &node.op {
        Op::Conv(conv) => convolves(graph, id, conv).then(|| planes(true)).flatten(),
        Op::Pool(pool) => (pool.layout == Layout::ChannelsFirst && dims(graph, first).is_some())
            .then(|| planes(true))
            .flatten(),
        Op::Reduce { axes, keep, .. } => {
            // Axes that stay are in the same order in both layouts.
            let planes_go = axes.contains(&2) && axes.contains(&3);
            dims(graph, first).filter(|_| *keep || planes_go || axes.contains(&1))?;
            planes(*keep)
        }
        Op::Concat { .. } => {
            node.operands.iter().map(|&operand| dims(graph, operand)).collect::<Option<Vec<_>>>()?;
            Some(Laid { operands: (0..node.operands.len()).collect(), makes: true })
        }
        op if op.is_elementwise() => {
            let made = dims(graph, node.first_result)?;
            let (whole, others): (Vec<usize>, Vec<usize>) =
                (0..node.operands.len()).partition(|&at| dims(graph, node.operands[at]) == Some(made));
            let fits = others.iter().all(|&at| reordered(graph, node.operands[at]).is_some());
            (!whole.is_empty() && fits).then_some(Laid { operands: whole, makes: true })
        }
        _ => None,
    }
}

/// Whether a convolution is one that may have its channels last.
fn convolves(graph: &Graph, id: NodeId, conv: &Conv) -> bool {
    let node = graph.node(id);
    let [x, weights] = [node.operands[0], node.operands[1]];
    let (Some([_, inner, ..]), Some([outer, ..])) = (dims(graph, x), dims(graph, weights)) else {
        return false;
    };
    let updated = match graph.maker(weights).op {
        Op::Param(param) => graph.param(param).update.is_some(),
        _ => false,
    };
    conv.layout == Layout::ChannelsFirst
        && conv.groups == 1
        && graph.ty(x).dtype.is_half()
        && !updated
        && outer >= FEWEST
        && outer % ACCESS == 0
        && (inner <= FEW || inner % ACCESS == 0)
}

/// The sizes of a broadcast operand beside values of channels last, where its elements stay in their order; none where
/// they do not.
fn reordered(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    let own = graph.ty(value).shape.dims()?;
    let missing = 4usize.checked_sub(own.len())?;
    if own.is_empty() {
        return Some(own);
    }
    let dims = [vec![1; missing], own].concat();
    let (channels, planes) = (dims[1], dims[2].checked_mul(dims[3])?);
    (channels == 1 || planes == 1).then(|| LAST.iter().map(|&axis| dims[axis as usize]).collect())
}

/// Nodes that read one another and take either layout.
struct Regions {
    laid: Vec<Option<Laid>>,
    /// By node: one that stands for its region.
    region: Vec<usize>,
    /// By node that stands for its region: bytes that convolutions read, and that cross its edge.
    worth: Vec<[u64; 2]>,
    /// By node: somebody reads its result with channels first.
    leaves: Vec<bool>,
}

impl Regions {
    fn new(graph: &Graph) -> Self {
        let ordered: BTreeSet<NodeId> = graph.controls().iter().flat_map(|&(a, b)| [a, b]).collect();
        let free = |id: &NodeId| !ordered.contains(id);
        let laid: Vec<Option<Laid>> =
            graph.node_ids().map(|id| Some(id).filter(free).and_then(|id| laid(graph, id))).collect();
        let count = graph.node_count();
        let mut regions =
            Self { laid, region: Vec::new(), worth: vec![[0; 2]; count], leaves: vec![false; count] };
        regions.region = regions.joined(graph);
        regions.weigh(graph);
        regions
    }

    /// The maker of a value, where it has the layout of its region.
    fn maker(&self, graph: &Graph, value: ValueId) -> Option<usize> {
        let maker = graph.value(value).node.index();
        self.laid[maker].as_ref().filter(|laid| laid.makes).map(|_| maker)
    }

    fn joined(&self, graph: &Graph) -> Vec<usize> {
        let mut regions = UnionFind::new(graph.node_count());
        for id in graph.node_ids() {
            let Some(laid) = &self.laid[id.index()] else { continue };
            for &at in &laid.operands {
                if let Some(maker) = self.maker(graph, graph.node(id).operands[at]) {
                    regions.union(id.index(), maker);
                }
            }
        }
        regions.into_labeling()
    }

    fn weigh(&mut self, graph: &Graph) {
        let bytes = |value: ValueId| graph.ty(value).bytes().map_or(u64::MAX, |bytes| bytes.get());
        let mut entering = BTreeSet::new();
        for id in graph.node_ids() {
            let (operands, region) = (&graph.node(id).operands, self.region[id.index()]);
            let laid = self.laid[id.index()].as_ref();
            for (at, &operand) in operands.iter().enumerate() {
                match (laid.is_some_and(|laid| laid.has(at)), self.maker(graph, operand)) {
                    (true, None) => {
                        entering.insert((region, operand));
                    }
                    (false, Some(maker)) => self.leaves[maker] = true,
                    _ => {}
                }
            }
            if laid.is_some() && is_conv(graph, id) {
                self.worth[region][0] = self.worth[region][0].saturating_add(bytes(operands[0]));
            }
        }
        for (_, value) in graph.outputs() {
            if let Some(maker) = self.maker(graph, *value) {
                self.leaves[maker] = true;
            }
        }
        let leaving: Vec<(usize, ValueId)> = (graph.node_ids().filter(|id| self.leaves[id.index()]))
            .map(|id| (self.region[id.index()], graph.node(id).first_result))
            .collect();
        for (region, value) in entering.into_iter().chain(leaving) {
            self.worth[region][1] = self.worth[region][1].saturating_add(bytes(value));
        }
    }

    fn is_chosen(&self, id: NodeId) -> bool {
        let [read, crossing] = self.worth[self.region[id.index()]];
        self.laid[id.index()].is_some() && read > 0 && crossing <= read
    }
}

/// A graph with another layout inside.
struct Relaid<'g> {
    old: &'g Graph,
    new: Rewriter<'g>,
    regions: &'g Regions,
    chosen: Vec<bool>,
    /// By old value: itself with channels last.
    last: Vec<Option<ValueId>>,
    /// By node: a parameter that is held as a convolution of channels last reads it.
    permuted: Vec<bool>,
}

impl<'g> Relaid<'g> {
    fn new(old: &'g Graph, regions: &'g Regions, chosen: Vec<bool>) -> Self {
        let mut readers = vec![0u32; old.value_count()];
        let all = old.node_ids().flat_map(|id| old.node(id).operands.iter());
        all.chain(old.outputs().iter().map(|(_, value)| value)).for_each(|value| readers[value.index()] += 1);
        let mut permuted = vec![false; old.node_count()];
        for id in old.node_ids().filter(|&id| chosen[id.index()] && is_conv(old, id)) {
            let weights = old.node(id).operands[1];
            if readers[weights.index()] == 1 && is_plain(old, weights) {
                permuted[old.value(weights).node.index()] = true;
            }
        }
        Self { old, new: Rewriter::new(old), regions, chosen, last: vec![None; old.value_count()], permuted }
    }

    fn rewritten(mut self) -> Result<Graph> {
        for id in self.old.node_ids() {
            match self.regions.laid[id.index()].as_ref().filter(|_| self.chosen[id.index()]) {
                Some(laid) => self.relay(id, laid)?,
                None if self.permuted[id.index()] => self.new.keep_permuted(id, &WEIGHTS)?,
                None => self.new.keep(id)?,
            }
        }
        self.new.finish()
    }

    /// The node with channels last; where others read its result, that is transposed behind it.
    fn relay(&mut self, id: NodeId, laid: &Laid) -> Result<()> {
        let node = self.old.node(id);
        let mut operands = Vec::with_capacity(node.operands.len());
        for (at, &operand) in node.operands.iter().enumerate() {
            operands.push(match laid.has(at) {
                true => self.with_channels_last(operand, id)?,
                false => self.beside(operand, at, id)?,
            });
        }
        let made = self.new.add(relaid(&node.op), &operands, node.source)?;
        if !laid.makes {
            self.new.replace_each(id, &[made]);
            return Ok(());
        }
        self.last[node.first_result.index()] = Some(made);
        if self.regions.leaves[id.index()] {
            let first = self.new.add(Op::Transpose { perm: FIRST.to_vec() }, &[made], node.source)?;
            self.new.replace_each(id, &[first]);
        }
        Ok(())
    }

    fn with_channels_last(&mut self, value: ValueId, reader: NodeId) -> Result<ValueId> {
        if let Some(last) = self.last[value.index()] {
            return Ok(last);
        }
        let first = self.new.value(value)?;
        let source = self.old.node(reader).source;
        let last = self.new.add(Op::Transpose { perm: LAST.to_vec() }, &[first], source)?;
        self.last[value.index()] = Some(last);
        Ok(last)
    }

    /// An operand without the layout: weights, a bias, what is broadcast.
    fn beside(&mut self, value: ValueId, at: usize, reader: NodeId) -> Result<ValueId> {
        let node = self.old.node(reader);
        let own = self.new.value(value)?;
        let op = match node.op {
            Op::Conv(_) if at == 1 && !self.permuted[self.old.value(value).node.index()] => {
                Op::Transpose { perm: WEIGHTS.to_vec() }
            }
            Op::Conv(_) => return Ok(own),
            _ => match reordered(self.old, value) {
                Some(dims) if !dims.is_empty() => {
                    Op::Reshape { shape: Shape::new(dims.into_iter().map(Size::Known)) }
                }
                _ => return Ok(own),
            },
        };
        self.new.add(op, &[own], node.source)
    }
}

/// A parameter that is held as it is supplied, whole, for ever.
fn is_plain(graph: &Graph, value: ValueId) -> bool {
    let Op::Param(param) = graph.maker(value).op else { return false };
    let param = graph.param(param);
    param.update.is_none()
        && param.statistic.is_none()
        && param.slice.is_none()
        && param.repacked.is_none()
        && param.permuted.is_none()
        && param.state.is_none()
}

/// The same operation where channels are last.
fn relaid(op: &Op) -> Op {
    match op {
        Op::Conv(conv) => Op::Conv(Box::new(Conv { layout: Layout::ChannelsLast, ..(**conv).clone() })),
        Op::Pool(pool) => {
            let mut pool = pool.clone();
            pool.layout = Layout::ChannelsLast;
            Op::Pool(pool)
        }
        Op::Reduce { kind, axes, keep } => {
            let mut axes: Vec<u32> = axes.iter().map(|&axis| PLACES[axis as usize & 3]).collect();
            axes.sort_unstable();
            Op::Reduce { kind: *kind, axes, keep: *keep }
        }
        Op::Concat { axis } => Op::Concat { axis: PLACES[*axis as usize & 3] },
        other => other.clone(),
    }
}
