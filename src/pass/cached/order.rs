//! What hides later tokens from a row of attention: found from how masks are computed of positions.
//!
//! Of each value that has one element for every two tokens it is asked what all elements are that stand for a token
//! and a later one. Positions are followed as sums, comparisons of them as what they are wherever the one position is
//! at least one ahead of the other, and numbers through what masks are made with. It holds for sequences of any
//! length. An abstract interpretation after Cousot and Cousot, "Abstract interpretation: a unified lattice model" (1977).

use super::super::HIDDEN;
use super::sequence::Sequence;
use crate::ir::{Attention, Binary, Compare, DType, NodeId, Op, ReduceKind, Slice, Tensor, Unary, ValueId};

/// What all elements are that stand for a token and a later one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Later {
    /// This number.
    Is(f64),
    /// At most this, but for what scores add, which are small beside numbers that hide.
    AtMost(f64),
    /// What a table of the model says, whose numbers are not known yet. It is taken for a mask.
    Stored,
}

impl Later {
    fn number(self) -> Option<f64> {
        match self {
            Self::Is(number) => Some(number),
            Self::AtMost(_) | Self::Stored => None,
        }
    }

    /// The most that it is, where that hides.
    fn hidden(self) -> Option<f64> {
        match self {
            Self::Is(most) | Self::AtMost(most) => (most <= HIDDEN).then_some(most),
            Self::Stored => None,
        }
    }
}

/// A number that grows along the axes of the sequence: `first`, and so much with each position along each.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    steps: [f64; 2],
    first: f64,
}

/// What is known of a value. Its axes of the sequence, at most two, are counted in their order.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    count: Option<Count>,
    /// Where the position along the second axis is ahead, and where that along the first is.
    later: [Option<Later>; 2],
}

impl Known {
    fn number(number: f64) -> Self {
        Self { count: Some(Count { steps: [0.0; 2], first: number }), later: [None; 2] }
    }

    fn later(&self, ahead: usize) -> Option<Later> {
        let uniform = self.count.filter(|count| count.steps == [0.0; 2]);
        uniform.map(|count| Later::Is(count.first)).or(self.later[ahead])
    }

    /// With axes at other places: `places[i]` is that of axis `i`.
    fn moved(self, places: &[usize]) -> Self {
        let count = self.count.map(|count| {
            let mut steps = [0.0; 2];
            places.iter().zip(count.steps).for_each(|(&place, step)| steps[place] = step);
            Count { steps, ..count }
        });
        let later = match places {
            [0, 1] => self.later,
            [1, 0] => [self.later[1], self.later[0]],
            _ => [None; 2],
        };
        Self { count, later }
    }
}

/// What is known of all values of a graph.
pub(super) struct Order<'g> {
    sequence: Sequence<'g>,
    known: Vec<Known>,
}

impl<'g> Order<'g> {
    /// O(nodes x axes + bytes of constants).
    pub(super) fn new(sequence: Sequence<'g>) -> Self {
        let known = vec![Known::default(); sequence.graph.value_count()];
        let mut order = Self { sequence, known };
        for id in sequence.graph.node_ids() {
            let first = sequence.graph.node(id).first_result;
            if sequence.axes(first).len() <= 2 {
                order.known[first.index()] = order.made(id);
            }
        }
        order
    }

    /// Whether products with a value, summed along an axis of the sequence, leave out what comes later.
    pub(super) fn weighs_no_later(&self, value: ValueId, keys: usize) -> bool {
        matches!(self.later(value, keys), Some(Later::Is(0.0) | Later::Stored))
    }

    /// Whether scores along an axis of the sequence are hidden where it is ahead.
    pub(super) fn hides_later(&self, value: ValueId, keys: usize) -> bool {
        let later = self.later(value, keys);
        later.is_some_and(|later| later == Later::Stored || later.hidden().is_some())
    }

    /// Whether attention leaves out the keys behind each row, by itself or by its mask.
    pub(super) fn attends_no_later(&self, of: &Attention, operands: &[ValueId]) -> bool {
        let by_mask = of.mask(operands).is_some_and(|&mask| match self.sequence.graph.ty(mask).dtype {
            _ if self.sequence.axes(mask) != [2, 3] => false,
            DType::Bool => of.fill.0 <= HIDDEN && self.weighs_no_later(mask, 3),
            _ => self.hides_later(mask, 3),
        });
        of.causal.is_some_and(|offset| offset <= 0) || by_mask
    }

    /// Whether a reduction over keys is one of those that a row meets.
    pub(super) fn reduces_no_later(&self, kind: ReduceKind, value: ValueId, keys: usize) -> bool {
        match kind {
            ReduceKind::Sum | ReduceKind::SumSquares => self.weighs_no_later(value, keys),
            ReduceKind::Max => self.hides_later(value, keys),
            ReduceKind::Mean | ReduceKind::Prod | ReduceKind::Min => false,
        }
    }

    /// What a value is for the first token, where each further one is one more.
    pub(super) fn first_position(&self, value: ValueId) -> Option<i64> {
        let count = self.of(value).count?;
        matches!(count.steps, [1.0, 0.0] | [0.0, 1.0]).then_some(count.first as i64)
    }

    fn later(&self, value: ValueId, keys: usize) -> Option<Later> {
        match self.sequence.axes(value)[..] {
            [_, axis] if axis == keys => self.known[value.index()].later(0),
            [axis, _] if axis == keys => self.known[value.index()].later(1),
            _ => None,
        }
    }

    fn of(&self, value: ValueId) -> Known {
        self.known[value.index()]
    }

    fn made(&self, id: NodeId) -> Known {
        let node = self.sequence.graph.node(id);
        let result = node.first_result;
        let dtype = self.sequence.graph.ty(result).dtype;
        match (&node.op, &node.operands[..]) {
            (&Op::Constant(constant), _) => {
                uniform(self.sequence.graph.constant(constant)).map_or_else(Known::default, Known::number)
            }
            (&Op::Iota { axis }, _) if holds_positions(dtype) => {
                let at = self.sequence.axes(result).iter().position(|&own| own == axis as usize);
                let count = at.map(|at| {
                    let mut steps = [0.0; 2];
                    steps[at] = 1.0;
                    Count { steps, first: 0.0 }
                });
                Known { count, ..Known::default() }
            }
            (Op::Broadcast { .. }, &[x]) => self.aligned(x, result),
            (Op::Transpose { perm }, &[x]) => {
                let (from, to) = (self.sequence.axes(x), self.sequence.axes(result));
                let place = |axis: &usize| to.iter().position(|&own| perm[own] as usize == *axis);
                let places: Option<Vec<usize>> = from.iter().map(place).collect();
                places.map_or_else(Known::default, |places| self.of(x).moved(&places))
            }
            (Op::Reshape { .. }, &[x]) if self.sequence.segments_are_equal(x, result) => self.of(x),
            (Op::Slice(_), &[x]) => self.rows(id, x),
            (&Op::Softmax { axis, log: false }, &[x]) => {
                let keys = axis as usize;
                let mut known = Known::default();
                let ahead = usize::from(self.sequence.axes(x).first() == Some(&keys));
                known.later[ahead] = self.later(x, keys).and_then(softmax);
                known
            }
            (op, operands) if op.is_elementwise() => {
                let operands: Vec<Known> = operands.iter().map(|&x| self.aligned(x, result)).collect();
                elementwise(op, &operands, dtype)
            }
            _ => Known::default(),
        }
    }

    /// What is known of an operand that is repeated to a result's sizes.
    fn aligned(&self, operand: ValueId, result: ValueId) -> Known {
        let rank = |value: ValueId| self.sequence.shape(value).rank();
        let to = self.sequence.axes(result);
        let place = |axis: usize| to.iter().position(|&own| own + rank(operand) == axis + rank(result));
        let places: Option<Vec<usize>> = self.sequence.axes(operand).into_iter().map(place).collect();
        places.map_or_else(Known::default, |places| self.of(operand).moved(&places))
    }

    /// What is cut of a value: all along the sequence, or the rows of a table.
    fn rows(&self, id: NodeId, x: ValueId) -> Known {
        let result = self.sequence.graph.node(id).first_result;
        match self.sequence.axes_of_rows(id, true) {
            Some(made) if made.is_empty() => self.of(x),
            Some(_) if self.sequence.axes(result).len() == 2 => {
                Known { count: None, later: self.in_table(id) }
            }
            _ => Known::default(),
        }
    }

    /// What a table shows of later tokens, which may be cut along one axis after the other.
    fn in_table(&self, id: NodeId) -> [Option<Later>; 2] {
        let graph = self.sequence.graph;
        let result = graph.node(id).first_result;
        let mut starts = vec![0; self.sequence.shape(result).rank()];
        let mut node = graph.node(id);
        while let (Op::Slice(slice), &[x]) = (&node.op, &node.operands[..]) {
            if !cut(&mut starts, slice) {
                return [None; 2];
            }
            node = graph.maker(x);
        }
        match (&node.op, &self.sequence.axes(result)[..]) {
            (&Op::Constant(constant), &[first, second]) => {
                let table = graph.constant(constant);
                [shown(table, &starts, [first, second]), shown(table, &starts, [second, first])]
            }
            _ => [Some(Later::Stored); 2],
        }
    }
}

/// Adds where a slice begins. False where it is not one of each row in turn from a known one on.
fn cut(starts: &mut [i64], slice: &Slice) -> bool {
    let known = slice.starts.iter().zip(&slice.steps).map(|(start, &step)| (start.known(), step));
    for (sum, (start, step)) in starts.iter_mut().zip(known) {
        match (start.and_then(|start| sum.checked_add(start)), step) {
            (Some(start), 1) => *sum = start,
            _ => return false,
        }
    }
    true
}

/// What a constant is wherever its place along one axis is behind that along another, both counted from these starts.
fn shown(table: &Tensor, starts: &[i64], [row, key]: [usize; 2]) -> Option<Later> {
    let dims = table.dims();
    let stride = |axis: usize| dims[axis + 1..].iter().product::<u64>().max(1) as usize;
    let place = |at: usize, axis: usize| (at / stride(axis) % dims[axis] as usize) as i64 - starts[axis];
    let is_later = |at: usize| place(at, row) >= 0 && place(at, key) > place(at, row);
    let all = table.to_f64();
    let later: Vec<f64> = (0..all.len()).filter(|&at| is_later(at)).map(|at| all[at]).collect();
    let (least, most) = (later.iter().copied().reduce(f64::min)?, later.iter().copied().reduce(f64::max)?);
    if later.iter().any(|number| number.is_nan()) {
        return None;
    }
    let hidden = Later::AtMost(most);
    if least == most { Some(Later::Is(most)) } else { hidden.hidden().map(|_| hidden) }
}

/// The number that all elements of a tensor are. O(bytes), less where two differ.
fn uniform(tensor: &Tensor) -> Option<f64> {
    let first = tensor.bytes().get(..tensor.dtype().size() as usize).filter(|_| tensor.is_uniform())?;
    Tensor::new(tensor.dtype(), Vec::new(), first.to_vec()).ok()?.to_f64().first().copied()
}

/// Whether a type holds every position of a sequence.
fn holds_positions(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64 | DType::F32 | DType::F64)
}

/// The weights of scores that are hidden.
fn softmax(scores: Later) -> Option<Later> {
    match scores {
        Later::Stored => Some(Later::Stored),
        scores => scores.hidden().map(|_| Later::Is(0.0)),
    }
}

/// What is known of a function of each element. `to`: the type of the result.
fn elementwise(op: &Op, operands: &[Known], to: DType) -> Known {
    let later = |ahead: usize| {
        let of: Vec<Option<Later>> = operands.iter().map(|known| known.later(ahead)).collect();
        match (op, &of[..]) {
            (&Op::Compare(compare), [x, y]) => {
                let counts = operands[0].count.zip(operands[1].count);
                let by_position = counts.and_then(|(x, y)| compared(compare, minus(x, y), ahead));
                by_position.or_else(|| related(compare, (*x)?, (*y)?))
            }
            (Op::Select, &[condition, x, y]) => selected(condition, x, y),
            (&Op::Binary(binary), &[x, y]) => combined(binary, x, y),
            (&Op::Unary(unary), &[Some(x)]) => mapped(unary, x),
            (Op::Convert { .. }, &[x]) => x.map(|x| converted(x, to)),
            _ => None,
        }
    };
    Known { count: counted(op, operands, to), later: [later(0), later(1)] }
}

fn minus(x: Count, y: Count) -> Count {
    Count { steps: [x.steps[0] - y.steps[0], x.steps[1] - y.steps[1]], first: x.first - y.first }
}

/// Sums and multiples of positions.
fn counted(op: &Op, operands: &[Known], to: DType) -> Option<Count> {
    let counts: Option<Vec<Count>> = operands.iter().map(|known| known.count).collect();
    let scaled =
        |x: &Count, factor: f64| Count { steps: x.steps.map(|step| step * factor), first: x.first * factor };
    let is_number = |x: &Count| x.steps == [0.0; 2];
    match (op, &counts?[..]) {
        (Op::Binary(Binary::Add), [x, y]) => Some(minus(*x, scaled(y, -1.0))),
        (Op::Binary(Binary::Sub), [x, y]) => Some(minus(*x, *y)),
        (Op::Binary(Binary::Mul), [x, y]) if is_number(y) => Some(scaled(x, y.first)),
        (Op::Binary(Binary::Mul), [x, y]) if is_number(x) => Some(scaled(y, x.first)),
        (Op::Unary(Unary::Neg), [x]) => Some(scaled(x, -1.0)),
        (Op::Convert { .. }, [x]) if holds_positions(to) => Some(*x),
        _ => None,
    }
}

/// How a difference compares with 0 wherever one position is ahead of the other by one or more.
fn compared(compare: Compare, difference: Count, ahead: usize) -> Option<Later> {
    let [first, second] = difference.steps;
    if first != -second {
        return None;
    }
    // With each position ahead the difference changes by so much.
    let step = if ahead == 0 { second } else { first };
    let nearest = difference.first + step;
    let (least, most) = match step {
        0.0 => (nearest, nearest),
        step if step > 0.0 => (nearest, f64::INFINITY),
        _ => (f64::NEG_INFINITY, nearest),
    };
    let always = |always: bool, never: bool| match (always, never) {
        (true, _) => Some(Later::Is(1.0)),
        (_, true) => Some(Later::Is(0.0)),
        _ => None,
    };
    let equal = (least == 0.0 && most == 0.0, least > 0.0 || most < 0.0);
    match compare {
        Compare::Eq => always(equal.0, equal.1),
        Compare::Ne => always(equal.1, equal.0),
        Compare::Lt => always(most < 0.0, least >= 0.0),
        Compare::Le => always(most <= 0.0, least > 0.0),
        Compare::Gt => always(least > 0.0, most <= 0.0),
        Compare::Ge => always(least >= 0.0, most < 0.0),
    }
}

fn related(compare: Compare, x: Later, y: Later) -> Option<Later> {
    let (Some(x), Some(y)) = (x.number(), y.number()) else {
        return [x, y].contains(&Later::Stored).then_some(Later::Stored);
    };
    Some(Later::Is(f64::from(u8::from(compare.holds(x, y)))))
}

fn selected(condition: Option<Later>, x: Option<Later>, y: Option<Later>) -> Option<Later> {
    match condition {
        Some(Later::Stored) => Some(Later::Stored),
        Some(Later::Is(0.0)) => y,
        Some(Later::Is(_)) => x,
        _ if x == y => x,
        _ => Some(Later::AtMost(x?.hidden()?.max(y?.hidden()?))),
    }
}

fn combined(binary: Binary, x: Option<Later>, y: Option<Later>) -> Option<Later> {
    if let (Some(Later::Is(x)), Some(Later::Is(y))) = (x, y) {
        return of_numbers(binary, x, y).map(Later::Is);
    }
    let either = |wanted: f64| [x, y].contains(&Some(Later::Is(wanted)));
    let is_stored = [x, y].contains(&Some(Later::Stored));
    let hidden = |x: Option<Later>| x.and_then(Later::hidden);
    let scaled = |x: f64, by: Option<Later>, scale: fn(f64, f64) -> f64| {
        let factor = by.and_then(Later::number).filter(|&factor| factor > 0.0)?;
        Some(Later::AtMost(scale(x, factor)))
    };
    let known = match binary {
        Binary::Add => hidden(x).or(hidden(y)).map(Later::AtMost),
        Binary::Sub => hidden(x).map(Later::AtMost),
        // Weights are finite.
        Binary::Mul | Binary::And if either(0.0) => Some(Later::Is(0.0)),
        Binary::Div if x == Some(Later::Is(0.0)) => x,
        Binary::Or if either(1.0) => Some(Later::Is(1.0)),
        Binary::Mul => match (hidden(x), hidden(y)) {
            (Some(x), None) => scaled(x, y, |x, factor| x * factor),
            (None, Some(y)) => scaled(y, x, |y, factor| y * factor),
            _ => None,
        },
        Binary::Div => hidden(x).and_then(|x| scaled(x, y, |x, factor| x / factor)),
        Binary::Min => match (hidden(x), hidden(y)) {
            (Some(x), Some(y)) => Some(Later::AtMost(x.min(y))),
            (x, y) => x.or(y).map(Later::AtMost),
        },
        Binary::Max => hidden(x).zip(hidden(y)).map(|(x, y)| Later::AtMost(x.max(y))),
        Binary::Mod | Binary::Rem | Binary::Pow | Binary::And | Binary::Or | Binary::Xor | Binary::Hash => {
            None
        }
    };
    known.or(is_stored.then_some(Later::Stored))
}

fn of_numbers(binary: Binary, x: f64, y: f64) -> Option<f64> {
    let is = |holds: bool| Some(f64::from(u8::from(holds)));
    let are_bools = [x, y].iter().all(|number| [0.0, 1.0].contains(number));
    let number = match binary {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Pow => x.powf(y),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And if are_bools => return is(x * y == 1.0),
        Binary::Or if are_bools => return is(x + y > 0.0),
        Binary::Xor if are_bools => return is(x != y),
        Binary::Mod | Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Hash => return None,
    };
    (!number.is_nan()).then_some(number)
}

fn mapped(unary: Unary, x: Later) -> Option<Later> {
    let of = |f: fn(f64) -> f64| x.number().map(|number| Later::Is(f(number)));
    let known = match unary {
        Unary::Detach => Some(x),
        Unary::Not => of(|number| f64::from(u8::from(number == 0.0))),
        Unary::Neg => of(|number| -number),
        Unary::Abs => of(f64::abs),
        Unary::Relu => of(|number| number.max(0.0)),
        Unary::Exp => x.hidden().map(|_| Later::Is(0.0)),
        _ => None,
    };
    known.or((x == Later::Stored).then_some(Later::Stored))
}

/// As another type.
fn converted(x: Later, to: DType) -> Later {
    match x {
        Later::Is(number) if to == DType::Bool => Later::Is(f64::from(u8::from(number != 0.0))),
        Later::Is(number) if !to.is_float() => Later::Is(number.trunc()),
        other => other,
    }
}
