//! A decoder that is run token by token: what its attention reads of earlier tokens is kept in caches.
//!
//! A network over whole sequences becomes one over the next tokens of them. Along an axis that is as long as the
//! sequence a value is either of the new tokens, as nearly all are, or of all tokens so far, as keys, values and the
//! columns of scores and masks. Going backwards from each product that sums over the sequence, the pass finds what has
//! to be there for all tokens: what follows from positions alone is made anew for the whole context, the layout of keys
//! and values is as it was, and what computes them becomes a cache, which is a state: the new rows are written where
//! the filled part ends.
//!
//! On exit the network has an input [`PAST`], how many tokens were there before, and a dimension [`CONTEXT`], how
//! many the caches hold. Positions count from there. All else must treat positions alike, one by one; what does
//! not is an error that names it. That a sum over the sequence leaves out what comes later is seen from its weights
//! ([`order`]) and said again by the rows' own positions, so that attention reads caches as far as they are filled.

mod length;
mod local;
mod order;
mod sequence;

use std::collections::HashMap;

use super::rewrite::Rewriter;
use crate::error::{Error, Report, Result};
use crate::ir::{
    Absent, Attention, Binary, Compare, DType, Graph, Init, InputRule, Limit, NodeId, Op, ParamId, Shape,
    Size, Slice, Source, SourceId, SourceRole, State, Tensor, Type, ValueId,
};
use length::Lengths;
use local::Wider;
use order::Order;
use sequence::Sequence;
pub use sequence::sequence;

/// The input that says how many tokens the caches hold already, `i64[]`.
pub const PAST: &str = "past_length";
/// The dimension of the caches: how many tokens they can hold.
pub const CONTEXT: &str = "context";

/// The network with caches. O(nodes x axes).
///
/// Errors: a network without a sequence of tokens or that attends to what comes later; an operation that
/// mixes positions in another way; names that are taken.
pub fn cached(graph: &Graph) -> Result<Graph> {
    let sequence = Sequence { graph, dim: sequence(graph)? };
    let taken = graph.dims().iter().any(|dim| dim.name == CONTEXT);
    if taken || graph.inputs().iter().any(|(name, _)| name == PAST) {
        return Err(refused("", &format!("the model has a {PAST} or {CONTEXT} of its own")));
    }
    let mut incremental = Incremental::new(graph, sequence)?;
    for id in graph.node_ids() {
        incremental.node(id)?;
    }
    incremental.finish()
}

fn refused(place: &str, message: &str) -> Error {
    let report = Report::new(place, message);
    Error::Unsupported(report.help("a context is for decoders, whose tokens follow from those before them"))
}

/// What a value is needed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Need {
    /// Of the new tokens.
    New(ValueId),
    /// Of all tokens along an axis.
    All(ValueId, usize),
}

/// How a value of all tokens comes about.
enum Way {
    /// From the rows of earlier tokens, which are kept.
    Cache,
    /// By the same operation of other operands.
    Again(Op, Vec<Need>),
    /// From positions alone.
    Count(u32),
    /// From a table that has a row for each position: those of new tokens along these axes.
    Rows(Vec<usize>, Need),
}

struct Incremental<'g> {
    old: &'g Graph,
    new: Rewriter<'g>,
    sequence: Sequence<'g>,
    order: Order<'g>,
    lengths: Lengths,
    context: Size,
    past: ValueId,
    /// By old value: it follows from positions alone.
    free: Vec<bool>,
    /// By old value: it has a form of the new tokens.
    made: Vec<bool>,
    /// Values that have rows before and behind those of the tokens.
    wider: HashMap<ValueId, Wider>,
    all: HashMap<(ValueId, usize), ValueId>,
    states: Vec<(ParamId, ValueId)>,
    /// As many positions as the smallest table of them has.
    positions: Option<Limit>,
}

impl<'g> Incremental<'g> {
    fn new(old: &'g Graph, sequence: Sequence<'g>) -> Result<Self> {
        let mut new = Rewriter::new(old);
        let graph = new.graph_mut();
        let context = Size::dim(graph.dim(CONTEXT));
        let source = graph.add_source(Source::new(PAST, "input", SourceRole::Data));
        let past = graph.add_input(PAST, Type::new(DType::I64, Shape::scalar()), source);
        let begins = InputRule { below: None, absent: Some(Absent::Usual(0)) };
        graph.rules_mut().inputs.insert(PAST.to_owned(), begins);
        let mut incremental = Self {
            old,
            new,
            sequence,
            order: Order::new(sequence),
            lengths: Lengths::new(sequence),
            context,
            past,
            free: vec![false; old.value_count()],
            made: vec![false; old.value_count()],
            wider: HashMap::new(),
            all: HashMap::new(),
            states: Vec::new(),
            positions: None,
        };
        for id in old.node_ids() {
            let node = old.node(id);
            let of_tokens = node.op == Op::Input;
            let free = !of_tokens && node.operands.iter().all(|operand| incremental.free[operand.index()]);
            old.results(id).for_each(|value| incremental.free[value.index()] = free);
        }
        Ok(incremental)
    }

    fn finish(self) -> Result<Graph> {
        if self.states.is_empty() {
            return Err(refused("", "it attends to no earlier tokens"));
        }
        let mut graph = self.new.finish()?;
        graph.rules_mut().dims.extend(self.positions.map(|limit| (CONTEXT.to_owned(), limit)));
        for (param, value) in self.states {
            graph.update_param(param, value)?;
        }
        Ok(graph)
    }

    fn fail(&self, id: NodeId) -> Error {
        let node = self.old.node(id);
        let name = &self.old.source(node.source).name;
        refused(&format!("node {name}"), &format!("{} mixes positions of the sequence", node.op.name()))
    }

    /// The same node of the new tokens, where it has such a form.
    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.old.node(id);
        let first = node.first_result;
        // Values with two axes of the sequence, as scores, are made where something needs them, over all keys (`way`).
        if self.old.results(id).any(|value| self.sequence.axes(value).len() > 1) {
            return Ok(());
        }
        if node.op.is_leaf() {
            self.new.keep(id)?;
        } else if let Some((op, needs)) = self.summed(id)? {
            let operands = self.needed(&needs)?;
            let ty = self.old.ty(first).clone();
            let made = self.new.add(op, &operands, node.source)?;
            if self.new.graph().ty(made) != &ty {
                return Err(self.fail(id));
            }
            self.new.replace_each(id, &[made]);
        } else if let Some(made) = self.local(id)? {
            self.new.replace_each(id, &made);
        } else if let Some(axis) = self.running_axis(id) {
            let made = self.running_sum(id, axis)?;
            self.new.replace_each(id, &[made]);
        } else if let Some(axes) = self.axes_of_rows(id).filter(|axes| !axes.is_empty()) {
            let table = self.find(&Need::New(node.operands[0]))?;
            let made = self.rows(first, table, &axes, &[])?;
            self.new.replace_each(id, &[made]);
        } else {
            let is_there =
                |operand: &ValueId| self.made[operand.index()] && !self.wider.contains_key(operand);
            if !node.operands.iter().all(is_there) || !self.is_alike(id) {
                return Err(self.fail(id));
            }
            self.new.keep(id)?;
            self.counted(id)?;
            self.limit_positions(id);
        }
        self.old.results(id).for_each(|value| self.made[value.index()] = true);
        Ok(())
    }

    /// Positions and lengths count from the tokens that were there before.
    fn counted(&mut self, id: NodeId) -> Result<()> {
        let node = self.old.node(id);
        let value = node.first_result;
        let own = self.new.value(value)?;
        let moved = match &node.op {
            Op::Iota { axis } if self.sequence.axes(value).contains(&(*axis as usize)) => {
                self.moved(own, node.source)?
            }
            Op::Sizes(sizes) if sizes.iter().any(|size| self.sequence.mentions(size)) => {
                let times = |size: &Size| {
                    let own = size.terms().iter().find(|&&(dim, _)| dim == self.sequence.dim);
                    own.map_or(0, |&(_, times)| times)
                };
                let bytes: Vec<u8> = sizes.iter().flat_map(|size| times(size).to_le_bytes()).collect();
                let dims = self.old.ty(value).shape.dims().unwrap_or_default();
                let dims = dims.into_iter().map(|dim| dim.unsigned_abs()).collect();
                let times = Tensor::new(DType::I64, dims, bytes)?;
                let times = self.new.graph_mut().add_constant(times, node.source);
                let past = self.new.add(Op::Binary(Binary::Mul), &[times, self.past], node.source)?;
                self.new.add(Op::Binary(Binary::Add), &[own, past], node.source)?
            }
            _ => return Ok(()),
        };
        self.new.replace_each(id, &[moved]);
        Ok(())
    }

    /// Notes how many positions a table has that a node looks them up in.
    fn limit_positions(&mut self, id: NodeId) {
        let node = self.old.node(id);
        let (&Op::Gather { axis }, &[table, places]) = (&node.op, &node.operands[..]) else { return };
        let rows = self.old.ty(table).shape[axis as usize].known();
        let (Some(rows), Some(first)) = (rows, self.order.first_position(places)) else { return };
        let count = rows.saturating_sub(first);
        if self.positions.as_ref().is_none_or(|limit| count < limit.count) {
            let name = &self.old.source(node.source).name;
            self.positions =
                Some(Limit { count, field: format!("number of positions in {name}"), ignored: None });
        }
    }

    /// Rows of a table: those of the new tokens along some axes, all that the caches could hold along others.
    fn rows(&mut self, value: ValueId, table: ValueId, new: &[usize], all: &[usize]) -> Result<ValueId> {
        let node = self.old.maker(value);
        let source = node.source;
        let Op::Slice(slice) = &node.op else { return Err(self.fail(self.old.value(value).node)) };
        // The table is to have as many.
        let mut whole = slice.clone();
        for &axis in new.iter().chain(all) {
            whole.sizes[axis] = self.context.clone();
        }
        let mut made = self.new.add(Op::Slice(whole), &[table], source)?;
        for &axis in new {
            let count = Type::new(DType::I64, Shape::new([Size::dim(self.sequence.dim)]));
            let places = self.new.graph_mut().add_iota(count, 0, source);
            let places = self.moved(places, source)?;
            made = self.new.add(Op::Gather { axis: axis as u32 }, &[made, places], source)?;
        }
        Ok(made)
    }

    fn moved(&mut self, value: ValueId, source: SourceId) -> Result<ValueId> {
        let to = self.new.graph().ty(value).dtype;
        let past = match to {
            DType::I64 => self.past,
            to => self.new.add(Op::Convert { to }, &[self.past], source)?,
        };
        self.new.add(Op::Binary(Binary::Add), &[value, past], source)
    }

    /// See [`Sequence::axes_of_rows`].
    fn axes_of_rows(&self, id: NodeId) -> Option<Vec<usize>> {
        let operands = &self.old.node(id).operands;
        self.sequence.axes_of_rows(id, operands.iter().all(|operand| self.free[operand.index()]))
    }

    /// What a node needs that sums over all tokens; none where it does not. Error: it sums over later ones, too.
    fn summed(&self, id: NodeId) -> Result<Option<(Op, Vec<Need>)>> {
        let node = self.old.node(id);
        let rank = |value: ValueId| self.old.ty(value).shape.rank();
        let (needs, is_ordered) = match (&node.op, &node.operands[..]) {
            (&Op::MatMul { transpose_left, transpose_right, .. }, &[left, right]) => {
                let along = rank(left) - if transpose_left { 2 } else { 1 };
                if !self.sequence.axes(left).contains(&along) {
                    return Ok(None);
                }
                let down = rank(right) - if transpose_right { 1 } else { 2 };
                let weighs_no_later = |value, keys| self.order.weighs_no_later(value, keys);
                let is_ordered = weighs_no_later(left, along) || weighs_no_later(right, down);
                (vec![Need::All(left, along), Need::All(right, down)], is_ordered)
            }
            (&Op::Reduce { kind, ref axes, .. }, &[x]) if self.sequence.axes(x).len() == 2 => {
                let axes = axes.iter().map(|&axis| axis as usize);
                let Some(keys) = axes.into_iter().find(|axis| self.sequence.axes(x).contains(axis)) else {
                    return Ok(None);
                };
                (vec![Need::All(x, keys)], self.order.reduces_no_later(kind, x, keys))
            }
            (Op::Attention(of), operands) => return self.attended(id, of, operands).map(Some),
            _ => return Ok(None),
        };
        if is_ordered { Ok(Some((node.op.clone(), needs))) } else { Err(self.is_unordered(id)) }
    }

    fn is_unordered(&self, id: NodeId) -> Error {
        let name = &self.old.source(self.old.node(id).source).name;
        refused(&format!("node {name}"), "it is not seen to leave out what comes later in the sequence")
    }

    /// Attention that is one operation already.
    fn attended(&self, id: NodeId, of: &Attention, operands: &[ValueId]) -> Result<(Op, Vec<Need>)> {
        let of_keys = |position: usize| {
            let (value, axis) = (operands[position], of.orders[position].axes().1);
            if self.sequence.axes(value).contains(&axis) { Need::All(value, axis) } else { Need::New(value) }
        };
        let mut needs = vec![Need::New(operands[0]), of_keys(1), of_keys(2)];
        needs.extend(of.mask(operands).map(|&mask| match self.sequence.axes(mask).contains(&3) {
            true => Need::All(mask, 3),
            false => Need::New(mask),
        }));
        if of.positioned || matches!(needs[1], Need::New(_)) {
            return Ok((Op::Attention(Box::new(of.clone())), needs));
        }
        if !self.order.attends_no_later(of, operands) {
            return Err(self.is_unordered(id));
        }
        // Stands for the number of tokens there were before (`find`).
        needs.push(Need::New(ValueId(u32::MAX)));
        let causal = Some(of.causal.map_or(0, |offset| offset.min(0)));
        Ok((Op::Attention(Box::new(Attention { positioned: true, causal, ..of.clone() })), needs))
    }

    /// Whether a node does the same at every position, of those at the same position.
    fn is_alike(&self, id: NodeId) -> bool {
        let node = self.old.node(id);
        let x = node.operands.first().map_or(Vec::new(), |&x| self.sequence.axes(x));
        let any = node.operands.iter().any(|&operand| !self.sequence.axes(operand).is_empty());
        let other = |axis: u32| !x.contains(&(axis as usize));
        match &node.op {
            Op::Reshape { .. } => self.sequence.segments_are_equal(node.operands[0], node.first_result),
            Op::Slice(_) => self.axes_of_rows(id).is_some_and(|axes| axes.is_empty()),
            Op::Pad(pad) => x.iter().all(|&axis| pad.before[axis] == 0 && pad.after[axis] == 0),
            Op::Concat { axis } => {
                node.operands.iter().all(|&operand| !self.sequence.axes(operand).contains(&(*axis as usize)))
            }
            Op::Gather { axis }
            | Op::GatherElements { axis }
            | Op::ScatterElements { axis, .. }
            | Op::ArgReduce { axis, .. }
            | Op::CumSum { axis, .. }
            | Op::Softmax { axis, .. } => other(*axis),
            Op::TopK(of) => other(of.axis),
            Op::Reduce { axes, .. } | Op::Normalize { axes, .. } => axes.iter().all(|&axis| other(axis)),
            Op::Transpose { .. } | Op::Broadcast { .. } | Op::Rotary { .. } => true,
            Op::MatMul { transpose_right, .. } => {
                let y = node.operands[1];
                let column = self.old.ty(y).shape.rank() - if *transpose_right { 2 } else { 1 };
                !self.sequence.axes(y).contains(&column)
            }
            Op::Sizes(_) | Op::Iota { .. } => true,
            op if op.is_elementwise() => true,
            _ => !any,
        }
    }

    /// The values that are needed. Without recursion: what a value needs first stands above it.
    fn needed(&mut self, needs: &[Need]) -> Result<Vec<ValueId>> {
        let mut stack: Vec<Need> = needs.iter().rev().copied().collect();
        while let Some(&need) = stack.last() {
            let Need::All(value, axis) = need else {
                stack.pop();
                continue;
            };
            if self.all.contains_key(&(value, axis)) {
                stack.pop();
                continue;
            }
            let way = self.way(value, axis)?;
            let missing: Vec<Need> = match &way {
                Way::Again(_, needs) => needs.iter().filter(|need| !self.has(need)).copied().collect(),
                Way::Rows(_, need) => [*need].into_iter().filter(|need| !self.has(need)).collect(),
                Way::Cache | Way::Count(_) => Vec::new(),
            };
            if missing.is_empty() {
                let made = self.make(value, axis, way)?;
                self.all.insert((value, axis), made);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        needs.iter().map(|need| self.find(need)).collect()
    }

    fn has(&self, need: &Need) -> bool {
        match *need {
            Need::New(_) => true,
            Need::All(value, axis) => self.all.contains_key(&(value, axis)),
        }
    }

    fn find(&self, need: &Need) -> Result<ValueId> {
        match *need {
            Need::New(value) if value.0 == u32::MAX => Ok(self.past),
            Need::New(value) if self.made[value.index()] && !self.wider.contains_key(&value) => {
                self.new.value(value)
            }
            Need::New(value) => Err(self.fail(self.old.value(value).node)),
            Need::All(value, axis) => {
                let found = self.all.get(&(value, axis)).copied();
                found.ok_or_else(|| self.fail(self.old.value(value).node))
            }
        }
    }

    /// A value's sizes with an axis of all tokens.
    fn long(&self, value: ValueId, axis: usize) -> Shape {
        let sizes = self.old.ty(value).shape.sizes().iter().enumerate();
        Shape::new(sizes.map(|(at, size)| if at == axis { self.context.clone() } else { size.clone() }))
    }

    /// How a value of all tokens along an axis comes about. Error: it does not.
    fn way(&self, value: ValueId, axis: usize) -> Result<Way> {
        let id = self.old.value(value).node;
        let node = self.old.node(id);
        let axes = self.sequence.axes(value);
        let is_pair = axes.len() == 2;
        let is_of_tokens =
            axes.contains(&axis) && self.old.ty(value).shape[axis] == Size::dim(self.sequence.dim);
        if axes.len() > 2 || !is_of_tokens {
            return Err(self.fail(id));
        }
        let repeat = |needs: Vec<Need>| Ok(Way::Again(node.op.clone(), needs));
        match &node.op {
            Op::Iota { axis } => Ok(Way::Count(*axis)),
            Op::Slice(_) if self.free[value.index()] => self.rows_way(value, axis),
            Op::Broadcast { .. } => {
                let op = Op::Broadcast { shape: self.long(value, axis) };
                Ok(Way::Again(op, vec![self.aligned(value, axis, node.operands[0])]))
            }
            Op::Transpose { perm } => repeat(vec![Need::All(node.operands[0], perm[axis] as usize)]),
            Op::Reshape { .. } if self.sequence.segments_are_equal(node.operands[0], value) => {
                self.reshape_way(value, axis)
            }
            // With one axis that is its own, its rows are cached: repeated, it would need its operands cached instead.
            op if op.is_elementwise() && (is_pair || self.free[value.index()]) => {
                let operands = node.operands.iter();
                repeat(operands.map(|&operand| self.aligned(value, axis, operand)).collect())
            }
            &Op::MatMul { transpose_left, transpose_right, .. } if is_pair => {
                // The axis of all tokens is the last but one of the left operand or the last of the right one.
                let [left, right] = [node.operands[0], node.operands[1]];
                let last =
                    |operand, or_one_before| self.axis_before_end(operand, if or_one_before { 2 } else { 1 });
                repeat(if axis + 1 == self.old.ty(value).shape.rank() {
                    vec![Need::New(left), Need::All(right, last(right, transpose_right))]
                } else {
                    vec![Need::All(left, last(left, !transpose_left)), Need::New(right)]
                })
            }
            Op::Softmax { axis: own, .. } if is_pair && *own as usize == axis => {
                repeat(vec![Need::All(node.operands[0], axis)])
            }
            Op::Concat { .. } if is_pair && self.is_pair_concat(id, axis) => {
                repeat(node.operands.iter().map(|&operand| Need::All(operand, axis)).collect())
            }
            &Op::Gather { axis: from } if is_pair => {
                let [table, places] = [node.operands[0], node.operands[1]];
                let axis = self.looked_up(table, places, axis, from).ok_or_else(|| self.fail(id))?;
                repeat(vec![Need::New(table), Need::All(places, axis)])
            }
            _ if !is_pair && !self.lengths.is_free(value) => Err(self.depends_on_length(id)),
            _ if !is_pair => Ok(Way::Cache),
            _ => Err(self.fail(id)),
        }
    }

    fn depends_on_length(&self, id: NodeId) -> Error {
        let name = &self.old.source(self.old.node(id).source).name;
        refused(&format!("node {name}"), "what it makes of a token depends on how many follow")
    }

    /// The axis of places that is this axis of what they look up in a table that has no tokens, as biases by distance are.
    fn looked_up(&self, table: ValueId, places: ValueId, axis: usize, from: u32) -> Option<usize> {
        let own = axis.checked_sub(from as usize)?;
        let is_table = self.sequence.axes(table).is_empty();
        (is_table && self.sequence.axes(places).contains(&own)).then_some(own)
    }

    /// What an operand gives to a result that it is broadcast to: all tokens along the axis that stands for the result's,
    /// counted from the last.
    fn aligned(&self, value: ValueId, axis: usize, operand: ValueId) -> Need {
        let rank = |value: ValueId| self.old.ty(value).shape.rank();
        match (axis + rank(operand)).checked_sub(rank(value)) {
            Some(own) if self.sequence.axes(operand).contains(&own) => Need::All(operand, own),
            _ => Need::New(operand),
        }
    }

    fn axis_before_end(&self, value: ValueId, count: usize) -> usize {
        self.old.ty(value).shape.rank() - count
    }

    /// A reshape that leaves axes of tokens as they are: the axis of its operand is the one in the same order.
    fn reshape_way(&self, value: ValueId, axis: usize) -> Result<Way> {
        let id = self.old.value(value).node;
        let operand = self.old.node(id).operands[0];
        let order = self.sequence.axes(value).iter().position(|&own| own == axis).unwrap_or(0);
        let own = self.sequence.axes(operand).get(order).copied().ok_or_else(|| self.fail(id))?;
        let op = Op::Reshape { shape: self.long(value, axis) };
        Ok(Way::Again(op, vec![Need::All(operand, own)]))
    }

    /// Rows of a table: all along the axis, which the slice makes or its operand has already.
    fn rows_way(&self, value: ValueId, axis: usize) -> Result<Way> {
        let id = self.old.value(value).node;
        let mut made = self.axes_of_rows(id).ok_or_else(|| self.fail(id))?;
        let table = self.old.node(id).operands[0];
        let need = if made.contains(&axis) { Need::New(table) } else { Need::All(table, axis) };
        made.retain(|&own| own != axis);
        Ok(Way::Rows(made, need))
    }

    fn is_pair_concat(&self, id: NodeId, axis: usize) -> bool {
        let node = self.old.node(id);
        let apart = matches!(node.op, Op::Concat { axis: own } if own as usize != axis);
        apart && node.operands.iter().all(|&operand| self.sequence.axes(operand).contains(&axis))
    }

    fn make(&mut self, value: ValueId, axis: usize, way: Way) -> Result<ValueId> {
        let node = self.old.maker(value);
        let source = node.source;
        match way {
            Way::Count(along) => {
                let ty = Type::new(self.old.ty(value).dtype, self.long(value, axis));
                let made = self.new.graph_mut().add_iota(ty, along, source);
                // All keys count from 0; rows are of new tokens alone and count from those before.
                match along as usize != axis && self.sequence.axes(value).contains(&(along as usize)) {
                    true => self.moved(made, source),
                    false => Ok(made),
                }
            }
            Way::Again(op, needs) => {
                let mut operands: Vec<ValueId> =
                    needs.iter().map(|need| self.find(need)).collect::<Result<_>>()?;
                if let Op::Softmax { .. } = op {
                    operands[0] = self.shown(operands[0], value, axis, source)?;
                }
                self.new.add(op, &operands, source)
            }
            Way::Cache => self.cache(value, axis),
            Way::Rows(new, need) => {
                let table = self.find(&need)?;
                self.rows(value, table, &new, &[axis])
            }
        }
    }

    /// Scores of the keys up to each row's own position, as those of later ones weigh nothing in `softmax`.
    fn shown(&mut self, scores: ValueId, softmax: ValueId, keys: usize, source: SourceId) -> Result<ValueId> {
        let axes = self.sequence.axes(softmax);
        let row = axes.into_iter().find(|&axis| axis != keys);
        let (Some(row), true) = (row, self.order.weighs_no_later(softmax, keys)) else { return Ok(scores) };
        let ty = self.new.graph().ty(scores).clone();
        let first = row.min(keys);
        let mut positions = |axis: usize, long: Size| {
            let sizes =
                (first..ty.shape.rank()).map(|at| if at == axis { long.clone() } else { Size::Known(1) });
            let ty = Type::new(DType::I64, Shape::new(sizes));
            self.new.graph_mut().add_iota(ty, (axis - first) as u32, source)
        };
        let key = positions(keys, self.context.clone());
        let row = positions(row, Size::dim(self.sequence.dim));
        let row = self.moved(row, source)?;
        let shown = self.new.add(Op::Compare(Compare::Le), &[key, row], source)?;
        let hidden = super::gradient::build::constant(ty.dtype, &[], &[f64::NEG_INFINITY])?;
        let hidden = self.new.graph_mut().add_constant(hidden, source);
        self.new.add(Op::Select, &[shown, scores, hidden], source)
    }

    /// A state that begins with zeros, called after the node whose results it follows from.
    fn state(&mut self, kind: &str, of: NodeId, ty: Type, grows: Option<u32>) -> Result<(ParamId, ValueId)> {
        let name = format!("{kind}.{}", self.old.source(self.old.node(of).source).name);
        let name = self.free_name(name);
        let graph = self.new.graph_mut();
        let source = graph.add_source(Source::new(&name, "state", SourceRole::Data));
        let state = graph.add_param(name, ty, Init::zeros(), None, source);
        let Op::Param(param) = graph.maker(state).op else { return Err(self.fail(of)) };
        graph.set_state(state, State { grows });
        Ok((param, state))
    }

    /// A name that no cache has yet: with the first number behind it that makes it so.
    fn free_name(&self, name: String) -> String {
        let is_taken =
            |name: &str| self.states.iter().any(|(id, _)| self.new.graph().param(*id).name == name);
        let numbered = (self.states.len()..).map(|number| format!("{name}.{number}"));
        std::iter::once(name.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(name)
    }

    /// The axis of the sequence along which a node adds up all tokens up to each. None for other nodes.
    fn running_axis(&self, id: NodeId) -> Option<u32> {
        let node = self.old.node(id);
        let Op::CumSum { axis, exclusive: false, reverse: false } = node.op else { return None };
        let is_made = self.made[node.operands[0].index()];
        (is_made && self.sequence.axes(node.first_result) == [axis as usize]).then_some(axis)
    }

    /// Sums of the new tokens from what those before add up to, which is kept: positions that are counted by a mask, or by
    /// tokens that are no padding.
    fn running_sum(&mut self, id: NodeId, axis: u32) -> Result<ValueId> {
        let node = self.old.node(id);
        let source = node.source;
        let rows = self.find(&Need::New(node.operands[0]))?;
        let ty = self.new.graph().ty(rows).clone();
        let mut sizes = ty.shape.sizes().to_vec();
        let last = sizes[axis as usize].sub(&Size::Known(1)).ok_or_else(|| self.fail(id))?;
        sizes[axis as usize] = Size::Known(1);
        let state = Type::new(ty.dtype, Shape::new(sizes.clone()));
        let (param, state) = self.state("sum", id, state, None)?;
        let sums = self.new.add(node.op.clone(), &[rows], source)?;
        let all = self.new.add(Op::Binary(Binary::Add), &[sums, state], source)?;
        let mut starts = vec![Size::Known(0); sizes.len()];
        starts[axis as usize] = last;
        let end = Slice { starts, steps: vec![1; sizes.len()], sizes };
        let next = self.new.add(Op::Slice(Box::new(end)), &[all], source)?;
        self.states.push((param, next));
        Ok(all)
    }

    /// A state that holds the rows of all tokens, and the new ones in it.
    fn cache(&mut self, value: ValueId, axis: usize) -> Result<ValueId> {
        let rows = self.find(&Need::New(value))?;
        let maker = self.old.maker(value);
        let ty = Type::new(self.old.ty(value).dtype, self.long(value, axis));
        let (id, state) = self.state("cache", self.old.value(value).node, ty, Some(axis as u32))?;
        let all =
            self.new.add(Op::UpdateSlice { axis: axis as u32 }, &[state, self.past, rows], maker.source)?;
        self.states.push((id, all));
        Ok(all)
    }
}
