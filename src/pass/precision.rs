//! Another precision: products in halves, and with them what is between them.
//!
//! [`Op::range`] says what an operation asks for; here it is decided for each value of f32. Values have
//! claims: what a product makes claims halves, what an operation of full range makes claims f32, and what
//! follows from parameters and constants alone claims nothing, but for numbers that halves are too coarse for. Where claims meet, f32 wins, as in
//! PyTorch's autocast; what claims nothing is as its readers want it.
//!
//! For the caller of a network its inputs and outputs keep their types. Where parameters are rounded once, so
//! are inputs that only halves are made of, when they are handed over, and outputs that are made as halves
//! are widened when they are taken: in memory either is of halves ([`Graph::input_type`],
//! [`Graph::output_type`]).
//!
//! In a training step a normalisation of halves, and its gradient, are computed in f32, scale and shift included, and
//! make halves again, as PyTorch's batch norms do: so what the step keeps of a network of convolutions is of halves. So
//! are, in bf16, the sums of a residual stream that begins with what is looked up in a table. A product that makes
//! the gradient of a weight, for its update alone, keeps its sums in f32: halves would be widened at once, and could not
//! become the weight where it lies.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::half::{f16_to_f32, f32_to_f16};
use crate::ir::{Binary, DType, Graph, NodeId, Op, ParamId, Phase, Range, SourceId, Tensor, ValueId};

/// Whether parameters are rounded once, or each time that they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// Those that only halves are made of are held as halves, and so are tables that are looked up in.
    Rounded,
    /// They keep their type, as a step that trains them needs.
    Kept,
}

/// A precision other than f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// f16 or bf16.
    pub half: DType,
    /// What becomes of parameters.
    pub params: Params,
}

/// Computes in halves what halves do for, of the nodes that read and make floats of f32 alone. Parameters
/// that are rounded say in which type they are given
/// ([`Param::supplied`](crate::ir::Param::supplied)). Numbers beyond the range of halves become the largest half
/// where they are data; where they are computed, they become infinite. What nothing reads counts as read
/// in f32, so [`super::dce`] comes before. O(nodes + operands + bytes of constants).
///
/// Error: only of a graph that does not verify.
pub fn lower_precision(graph: &mut Graph, precision: &Precision) -> Result<()> {
    let mut plan = Decided::of(graph, precision);
    if !plan.halves {
        return Ok(());
    }
    let wide = plan.keep_sums(graph);
    let mut rounding = Rounding {
        old: graph,
        half: precision.half,
        rounds_ports: precision.params == Params::Rounded,
        rewriter: Rewriter::new(graph),
        wide,
        narrowed: vec![None; graph.value_count()],
        widened: vec![None; graph.value_count()],
    };
    for node in graph.node_ids() {
        rounding.visit(node, plan.node_half[node.index()])?;
    }
    *graph = rounding.finish()?;
    // Constants that were read as halves alone.
    super::dce(graph)
}

/// What a value of f32 claims of those who read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Nothing,
    /// Made in f32 by a normalisation of halves: halves for all but its scale and shift.
    Normal,
    Half,
    Full,
}

/// By value.
struct Claims {
    /// Of no account where it is not of f32.
    of: Vec<Claim>,
    /// Operands that read it.
    readers: Vec<u32>,
}

/// Which nodes are computed, or held, in halves.
struct Decided {
    node_half: Vec<bool>,
    /// Whether any is.
    halves: bool,
}

/// Who reads a value.
#[derive(Clone, Copy, Default)]
struct Read {
    half: bool,
    full: bool,
}

impl Decided {
    fn of(graph: &Graph, precision: &Precision) -> Self {
        let claims = claims(graph, precision);
        let mut reads = vec![Read::default(); graph.value_count()];
        for ((_, value), becomes) in graph.outputs().iter().zip(graph.updates()) {
            // What becomes a state is as the state is: attention reads it.
            let is_rounded = |id: ParamId| graph.param(id).state.is_some() && may_round(graph, id, precision);
            reads[value.index()].full |= !becomes.is_some_and(is_rounded);
        }
        let mut node_half = vec![false; graph.node_count()];
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            let half = is_half(graph, id, precision, &claims, &reads);
            node_half[id.index()] = half;
            for (position, operand) in node.operands.iter().enumerate() {
                let read = &mut reads[operand.index()];
                let as_half = half && !node.op.takes_full(position);
                *(if as_half { &mut read.half } else { &mut read.full }) = true;
            }
        }
        let computed = |id: NodeId| node_half[id.index()] && !graph.node(id).op.is_leaf();
        let halves = graph.node_ids().any(computed);
        Self { node_half, halves }
    }

    /// By node: whether it is a product of halves that keeps its sums, as nothing but an update of a parameter reads it.
    /// That then runs behind the product, in the bytes of what it updates (`is_staged`), and no gradient is ever stored
    /// or rounded. Views between the two are of f32, too.
    fn keep_sums(&mut self, graph: &Graph) -> Vec<bool> {
        let readers = lone_readers(graph);
        let mut becomes_state = vec![false; graph.value_count()];
        for output in graph.params().iter().filter_map(|param| param.update) {
            becomes_state[graph.outputs()[output as usize].1.index()] = true;
        }
        let mut wide = vec![false; graph.node_count()];
        for id in graph.node_ids() {
            let is_product = matches!(graph.node(id).op, Op::MatMul { .. });
            if is_product
                && self.node_half[id.index()]
                && self.is_updated_behind(graph, id, &readers, &becomes_state)
            {
                wide[id.index()] = true;
            }
        }
        wide
    }

    /// Whether a chain of elementwise nodes leads from a product to what a parameter becomes, and nothing else reads any
    /// of it. Views on the way are of f32 from now on.
    fn is_updated_behind(
        &mut self,
        graph: &Graph,
        product: NodeId,
        readers: &[Option<NodeId>],
        becomes_state: &[bool],
    ) -> bool {
        let mut value = graph.node(product).first_result;
        let elements = graph.ty(value).elements();
        let mut views = Vec::new();
        while !becomes_state[value.index()] {
            let Some(id) = readers[value.index()] else { return false };
            let reader = graph.node(id);
            match reader.op {
                Op::Reshape { .. } => views.push(id),
                _ if !reader.op.is_elementwise() || self.node_half[id.index()] => return false,
                _ => {}
            }
            value = reader.first_result;
            if graph.ty(value).elements() != elements {
                return false;
            }
        }
        views.iter().for_each(|view| self.node_half[view.index()] = false);
        true
    }
}

/// By value: the only node that reads it, where it reads it once and the value is no output.
fn lone_readers(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut count = vec![0u32; graph.value_count()];
    let mut reader = vec![None; graph.value_count()];
    for id in graph.node_ids() {
        for operand in &graph.node(id).operands {
            count[operand.index()] += 1;
            reader[operand.index()] = Some(id);
        }
    }
    graph.outputs().iter().for_each(|(_, value)| count[value.index()] += 1);
    reader.iter_mut().zip(count).filter(|(_, count)| *count != 1).for_each(|(reader, _)| *reader = None);
    reader
}

/// Whether a node is computed in halves, once it is known how its results are read.
fn is_half(graph: &Graph, id: NodeId, precision: &Precision, claims: &Claims, reads: &[Read]) -> bool {
    let node = graph.node(id);
    let makes = graph.results(id).any(|value| is_f32(graph, value));
    let reads_any = node.operands.iter().any(|&value| is_f32(graph, value));
    if !(makes || reads_any) || !takes_halves(graph, id) {
        return false;
    }
    let wanted = makes
        && graph.results(id).any(|value| reads[value.index()].half)
        && graph.results(id).all(|value| !reads[value.index()].full);
    match (node.op.range(), &node.op) {
        (Range::Half, _) => true,
        (Range::Full, Op::Input) => wanted && precision.params == Params::Rounded,
        (Range::Full, _) => false,
        (Range::Own, Op::Param(param)) => wanted && may_round(graph, *param, precision),
        (Range::Own, _) if is_update(graph, id, precision) || is_scale(graph, id, claims) => false,
        (Range::Own, _) => match (table(graph, id), strongest(graph, id, claims)) {
            (Some(param), _) => may_round(graph, param, precision),
            (None, Claim::Nothing) => wanted,
            (None, Claim::Normal | Claim::Half) => true,
            // What is only arranged otherwise may as well be rounded before.
            (None, Claim::Full) => wanted && arranges(&node.op),
        },
    }
}

/// Whether an operation makes the elements that it reads, all of them, in another order, once or more often; or puts them
/// into a cache.
fn arranges(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Broadcast { .. }
            | Op::Concat { .. }
            | Op::UpdateSlice { .. }
    )
}

fn claims(graph: &Graph, precision: &Precision) -> Claims {
    let trains = precision.params == Params::Kept;
    let mut readers = vec![0; graph.value_count()];
    for operand in graph.node_ids().flat_map(|id| graph.node(id).operands.iter()) {
        readers[operand.index()] += 1;
    }
    let mut claims = Claims { of: vec![Claim::Nothing; graph.value_count()], readers };
    for id in graph.node_ids() {
        let node = graph.node(id);
        let found = strongest(graph, id, &claims);
        if trains
            && normalizes(&node.op)
            && matches!(claims.of[node.operands[0].index()], Claim::Normal | Claim::Half)
        {
            graph.results(id).for_each(|value| claims.of[value.index()] = Claim::Full);
            claims.of[node.first_result.index()] = Claim::Normal;
            continue;
        }
        let claim = match (node.op.range(), &node.op) {
            (_, Op::Input) => Claim::Full,
            (_, &Op::Constant(constant)) if vanishes(graph.constant(constant), precision.half) => Claim::Full,
            (_, Op::Convert { .. }) if !is_f32(graph, node.operands[0]) => of_conversion(graph, id),
            (Range::Half, _) if takes_halves(graph, id) => Claim::Half,
            (Range::Half | Range::Full, _) if found == Claim::Nothing => Claim::Nothing,
            (Range::Half | Range::Full, _) => Claim::Full,
            (Range::Own, _) if is_update(graph, id, precision) => Claim::Full,
            (Range::Own, _) if table(graph, id).is_some() => of_sums(precision),
            (Range::Own, _) if found == Claim::Normal && !is_scale(graph, id, &claims) => Claim::Half,
            (Range::Own, _) => found,
        };
        graph.results(id).for_each(|value| claims.of[value.index()] = claim);
    }
    claims
}

/// How much of a constant rounding may take away.
const LOST: f64 = 0.01;

/// Whether a number is too small for halves, as what keeps a divisor from being 0 may be: what reads it needs it. One that
/// is too large becomes infinite, as what hides scores may. Of several, some may be as small as rounding is.
fn vanishes(tensor: &Tensor, half: DType) -> bool {
    if tensor.dtype() != DType::F32 || tensor.elements() != 1 {
        return false;
    }
    let number = tensor.to_f64()[0];
    let rounded = match half {
        DType::F16 => f64::from(f16_to_f32(f32_to_f16(number as f32))),
        _ => number,
    };
    rounded.is_finite() && (rounded - number).abs() > LOST * number.abs()
}

/// What is looked up in a table, where the sums of a residual stream begin, claims. A training step keeps all
/// of them from one pass to the other: as bf16, as Megatron-LM does; in f16 they may grow beyond what it
/// holds.
fn of_sums(precision: &Precision) -> Claim {
    match (precision.params, precision.half) {
        (Params::Kept, DType::Bf16) => Claim::Half,
        _ => Claim::Full,
    }
}

/// What was true or false is exact in any type; other numbers may need f32.
fn of_conversion(graph: &Graph, id: NodeId) -> Claim {
    match graph.ty(graph.node(id).operands[0]).dtype {
        DType::Bool => Claim::Nothing,
        _ => Claim::Full,
    }
}

/// Whether a node is a part of a parameter's update: small steps would be lost in halves.
fn is_update(graph: &Graph, id: NodeId, precision: &Precision) -> bool {
    let node = graph.node(id);
    let updates = precision.params == Params::Kept && graph.source(node.source).phase == Phase::Update;
    updates && node.op.is_elementwise()
}

/// The strongest claim of a node's operands; nothing where none is of f32.
fn strongest(graph: &Graph, id: NodeId, claims: &Claims) -> Claim {
    let node = graph.node(id);
    let reads = node.operands.iter().enumerate();
    let floats = reads.filter(|&(at, &value)| is_f32(graph, value) && !node.op.takes_full(at));
    floats.map(|(_, value)| claims.of[value.index()]).max().unwrap_or(Claim::Nothing)
}

/// Whether an operation's first result is of the type of what it normalises, or of what that was, while it is
/// computed in f32.
fn normalizes(op: &Op) -> bool {
    matches!(op, Op::Normalize { .. } | Op::NormalizeGradient { .. })
}

/// Whether a node scales or shifts what a normalisation of halves makes, and nothing else reads, by what is no data.
fn is_scale(graph: &Graph, id: NodeId, claims: &Claims) -> bool {
    let node = graph.node(id);
    let lone =
        |value: &ValueId| claims.of[value.index()] == Claim::Normal && claims.readers[value.index()] == 1;
    let is_known = |value: &ValueId| claims.of[value.index()] == Claim::Nothing;
    match node.op {
        Op::Binary(Binary::Add | Binary::Mul | Binary::Sub) => {
            node.operands.iter().any(lone) && node.operands.iter().any(is_known)
        }
        _ => false,
    }
}

fn is_f32(graph: &Graph, value: ValueId) -> bool {
    graph.ty(value).dtype == DType::F32
}

/// Whether halves can take the place of a node's floats: all of them are of f32, and it is no
/// conversion but one whose result may be as well of halves.
fn takes_halves(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let values = graph.results(id).chain(node.operands.iter().copied());
    let fits =
        values.map(|value| graph.ty(value).dtype).all(|dtype| !dtype.is_float() || dtype == DType::F32);
    fits && (!matches!(node.op, Op::Convert { .. }) || graph.ty(node.operands[0]).dtype == DType::Bool)
}

/// Whether a parameter may be held in halves.
fn may_round(graph: &Graph, param: ParamId, precision: &Precision) -> bool {
    let param = graph.param(param);
    let is_kept = param.update.is_none() || param.state.is_some();
    precision.params == Params::Rounded && is_kept && param.supplied.is_none()
}

/// The parameter that a node looks rows up in: what it finds is where sums begin, so it goes on in f32,
/// whether the table is of halves or not.
fn table(graph: &Graph, id: NodeId) -> Option<ParamId> {
    let node = graph.node(id);
    match (&node.op, node.operands.first()) {
        (Op::Gather { .. }, Some(&table)) if is_f32(graph, table) => match graph.maker(table).op {
            Op::Param(param) => Some(param),
            _ => None,
        },
        _ => None,
    }
}

/// A graph being rounded.
struct Rounding<'g> {
    old: &'g Graph,
    half: DType,
    /// Whether inputs and outputs may be held as halves.
    rounds_ports: bool,
    rewriter: Rewriter<'g>,
    /// By node: a product that keeps its sums.
    wide: Vec<bool>,
    /// By old value that is of f32 still: it as halves, for the source that rounds it. A parameter is rounded again for
    /// every source that reads it: to keep what it is rounded to from a step's first half to its last would hold it
    /// twice.
    narrowed: Vec<Option<(SourceId, ValueId)>>,
    /// By old value that is of halves now: it in f32, for the source that it was last read in.
    widened: Vec<Option<(SourceId, ValueId)>>,
}

impl Rounding<'_> {
    fn visit(&mut self, id: NodeId, half: bool) -> Result<()> {
        let node = self.old.node(id);
        match (&node.op, half) {
            (Op::Input, true) => return self.rewriter.keep_input_rounded(id, self.half),
            (Op::Param(_), true) => return self.rewriter.keep_rounded(id, self.half),
            (op, false) if op.is_leaf() => return self.rewriter.keep(id),
            (Op::Constant(constant), true) => {
                let tensor = self.old.constant(*constant).rounded(self.half)?;
                return self.rewriter.keep_constant(id, tensor);
            }
            _ => {}
        }
        let weight = if half { self.read_whole(id) } else { None };
        let mut operands = Vec::with_capacity(node.operands.len());
        for (position, &value) in node.operands.iter().enumerate() {
            operands.push(match half && !node.op.takes_full(position) && weight != Some(position) {
                true => self.as_half(value, node.source)?,
                false => self.as_full(value, node.source)?,
            });
        }
        let op = match &node.op {
            Op::Convert { .. } if half => Op::Convert { to: self.half },
            &Op::MatMul { transpose_left, transpose_right, .. } if half => {
                let wide = self.wide[id.index()];
                Op::MatMul { transpose_left, transpose_right, wide, rounds: weight.is_some() }
            }
            op => op.clone(),
        };
        if !half {
            return self.rewriter.keep_as(id, op, &operands);
        }
        self.rewriter.keep_inferred(id, op, &operands)
    }

    /// The operand of a product that is a parameter of f32, and has more elements than all else that the product reads
    /// and makes: a copy of it in halves would be most of what is there meanwhile, so the kernel rounds it as it reads
    /// it. Where there are many rows, a copy is little beside them, and libraries multiply halves.
    fn read_whole(&self, id: NodeId) -> Option<usize> {
        let node = self.old.node(id);
        let (Op::MatMul { .. }, &[left, right]) = (&node.op, &node.operands[..]) else { return None };
        let elements = |value: ValueId| self.old.ty(value).elements().unwrap_or(u64::MAX);
        let made = elements(node.first_result);
        let is_large = |weight: ValueId, other: ValueId| {
            let is_param = |value: ValueId| matches!(self.old.maker(value).op, Op::Param(_));
            let held = |value: ValueId| {
                self.rewriter.value(value).map(|value| self.rewriter.graph().ty(value).dtype)
            };
            let is_full = held(weight).is_ok_and(|dtype| dtype == DType::F32);
            let beside = elements(other).saturating_add(made);
            is_full && is_param(weight) && !is_param(other) && elements(weight) > beside
        };
        [is_large(left, right), is_large(right, left)].iter().position(|&is_large| is_large)
    }

    /// A value of f32 as halves; any other as it is. What is rounded goes with what made it, so that halves
    /// are moved; what is there before a step is rounded where it is read.
    fn as_half(&mut self, old: ValueId, reader: SourceId) -> Result<ValueId> {
        let value = self.rewriter.value(old)?;
        if self.rewriter.graph().ty(value).dtype != DType::F32 {
            return Ok(value);
        }
        let maker = self.old.maker(old);
        let source = if maker.op.is_leaf() { reader } else { maker.source };
        let again = matches!(maker.op, Op::Param(_));
        if let Some((known, narrowed)) = self.narrowed[old.index()]
            && (known == source || !again)
        {
            return Ok(narrowed);
        }
        let made = match maker.op {
            Op::Constant(constant) => {
                let tensor = self.old.constant(constant).rounded(self.half)?;
                self.rewriter.graph_mut().add_constant(tensor, maker.source)
            }
            _ => self.rewriter.graph_mut().apply(Op::Convert { to: self.half }, &[value], source)?,
        };
        self.narrowed[old.index()] = Some((source, made));
        Ok(made)
    }

    /// A value in the type that it had: halves become f32 where they are read, so that halves are moved.
    fn as_full(&mut self, old: ValueId, reader: SourceId) -> Result<ValueId> {
        let value = self.rewriter.value(old)?;
        let dtype = self.old.ty(old).dtype;
        if self.rewriter.graph().ty(value).dtype == dtype {
            return Ok(value);
        }
        if let Some((source, widened)) = self.widened[old.index()]
            && source == reader
        {
            return Ok(widened);
        }
        let made = self.rewriter.graph_mut().apply(Op::Convert { to: dtype }, &[value], reader)?;
        self.widened[old.index()] = Some((reader, made));
        Ok(made)
    }

    fn finish(mut self) -> Result<Graph> {
        for (name, old) in self.old.outputs() {
            let (held, supplied) = (self.rewriter.value(*old)?, self.old.ty(*old).dtype);
            if self.rounds_ports && self.rewriter.graph().ty(held).dtype != supplied {
                self.rewriter.graph_mut().take_output(name, supplied);
                continue;
            }
            let source = self.old.maker(*old).source;
            let full = self.as_full(*old, source)?;
            self.rewriter.stand_in(*old, full);
        }
        self.rewriter.finish()
    }
}
