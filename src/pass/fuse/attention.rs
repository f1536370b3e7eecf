//! Scaled dot product attention as exporters write it: two products, what scales and masks the scores
//! between them, the softmax; and the transpositions, slices and repeated heads around them, which
//! become part of how the operation reads and writes.

use super::super::HIDDEN;
use super::look::Look;
use super::positioned::{self, Causal};
use super::view::{Run, Through, View, merged, split, strides};
use super::{Found, Operand};
use crate::ir::{Attention, Binary, DType, HeadOrder, Node, NodeId, Op, Real, Shape, Unary, ValueId};

pub(super) fn pattern(look: &Look<'_>, id: NodeId) -> Option<Found> {
    let node = look.graph.node(id);
    match &node.op {
        Op::MatMul { .. } => Core::new(look, node)?.found(look, None, node.first_result),
        Op::Transpose { .. } => {
            // What is written in another order than it is made in.
            let chain = View::chain(look, node.first_result, Through::Moves);
            let view =
                chain.into_iter().find(|view| matches!(look.maker(view.base).op, Op::MatMul { .. }))?;
            let core = Core::new(look, look.maker(view.base))?;
            core.found(look, Some(&view), node.first_result)
        }
        _ => None,
    }
}

/// What is found between the products.
struct Core {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    /// The right operand of the first product is `[..., keys, size]`, that of the second
    /// `[..., size, keys]`.
    turned: [bool; 2],
    /// The axes of each product before its last two.
    lead: [Vec<i64>; 2],
    /// Sizes of the scores where the mask meets them.
    scores: Vec<i64>,
    scale: f64,
    mask: Option<Mask>,
    /// Keys that are hidden by their positions apart from the mask, and what says so.
    causal: Option<(Causal, ValueId)>,
    zeros: bool,
}

struct Mask {
    value: ValueId,
    fill: f64,
}

impl Core {
    /// Backwards from the second product.
    fn new(look: &Look<'_>, node: &Node) -> Option<Self> {
        let (Op::MatMul { transpose_left: false, transpose_right, .. }, &[weights, value]) =
            (&node.op, &node.operands[..])
        else {
            return None;
        };
        let before_rows =
            |value| look.dims(value).and_then(|dims| Some(dims[..dims.len().checked_sub(2)?].to_vec()));
        let mixed = before_rows(node.first_result)?;
        let (weights, zeros) = look.guarded(look.in_rows(weights));
        let softmax = look.maker(look.in_rows(weights));
        let Op::Softmax { axis, log: false } = softmax.op else { return None };
        let mut at = softmax.operands[0];
        let rank = look.dims(at)?.len();
        // Two axes are rows and keys; at least one before them is of heads.
        if rank < 3 || axis as usize != rank - 1 {
            return None;
        }
        let (mut scale, mut mask, mut causal) = (1.0, None, None);
        let mut scores = look.dims(at)?;
        loop {
            // Scaling and masking may stand in either order and in several nodes, so each is undone in turn.
            at = look.in_rows(at);
            let maker = look.maker(at);
            match (&maker.op, &maker.operands[..]) {
                (Op::MatMul { transpose_left: false, transpose_right: turned, .. }, &[query, key]) => {
                    let turned = [*turned, *transpose_right];
                    let lead = [before_rows(at)?, mixed];
                    return Some(Self {
                        query,
                        key,
                        value,
                        turned,
                        lead,
                        scores,
                        scale,
                        mask,
                        causal,
                        zeros,
                    });
                }
                (Op::Binary(Binary::Mul), &[x, y]) => {
                    let (x, number) =
                        look.constant(y).map(|y| (x, y)).or(look.constant(x).map(|x| (y, x)))?;
                    (at, scale) = (x, scale * number);
                }
                (Op::Binary(Binary::Div), &[x, y]) => (at, scale) = (x, scale / look.constant(y)?),
                // A mask is met once, and scaled by nothing after it.
                (Op::Binary(Binary::Add), &[x, y]) if mask.is_none() && scale == 1.0 => {
                    scores = look.dims(at)?;
                    let (x, value) = if look.leads_to_product(x) { (x, y) } else { (y, x) };
                    mask = Some(Mask { value, fill: f64::NEG_INFINITY });
                    at = x;
                }
                (Op::Select, &[shown, x, other]) if scale == 1.0 => {
                    let fill = look.constant(other)?;
                    let by_position = by_position(look, shown, fill, *look.dims(at)?.last()?);
                    match by_position.filter(|_| causal.is_none()) {
                        Some(found) => causal = Some((found, shown)),
                        None if mask.is_none() => mask = Some(Mask { value: shown, fill }),
                        None => return None,
                    }
                    scores = look.dims(at)?;
                    at = x;
                }
                _ => return None,
            }
            if look.dims(at)?.len() < 3 {
                return None;
            }
        }
    }

    /// The operation, which makes `result`: what the second product makes, or a view of that.
    fn found(&self, look: &Look<'_>, written: Option<&View>, result: ValueId) -> Option<Found> {
        let rank = self.scores.len();
        let lead: i64 = self.scores[..rank - 2].iter().product();
        // Some ways to part the axes before the last two into batches and heads. Of those that fit every operand the one
        // counts that reads nearest to what is stored, and of equals the first: it leaves the fewest nodes beside attention.
        let mut splits = Vec::new();
        if rank == 4 {
            splits.push([self.scores[0], self.scores[1]]);
        }
        // Heads beside batches in one axis: as the query lies, or all alike.
        let query = self.chain(look, self.query, 0, Through::MovesAndFactors);
        let runs = query.last().map(|view| view.axes[..view.axes.len() - 2].concat());
        let mut outer = 1;
        for run in merged(&runs.unwrap_or_default()) {
            outer *= run.count;
            splits.push([outer, lead / outer.max(1)]);
        }
        splits.push([1, lead]);
        let fitting = splits.into_iter().filter(|split| split[0].checked_mul(split[1]) == Some(lead));
        let found = fitting.filter_map(|split| self.with_heads(look, split, written, result, &query));
        found.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(found, _)| found)
    }

    /// An operand of one of the products as views, ever deeper.
    fn chain(&self, look: &Look<'_>, value: ValueId, product: usize, through: Through) -> Vec<View> {
        let views = View::chain(look, value, through).into_iter();
        views.map(|view| view.repeated(&self.lead[product])).collect()
    }

    /// The operation with so many heads, and how many views it reads through.
    fn with_heads(
        &self,
        look: &Look<'_>,
        [batch, heads]: [i64; 2],
        written: Option<&View>,
        result: ValueId,
        query: &[View],
    ) -> Option<(Found, usize)> {
        let order = self.order(look, [batch, heads], written)?;
        // From the deepest view up: the nearer to what is stored, the fewer nodes are left beside attention.
        let deepest = |chain: &[View], lead: [i64; 3], turned: bool| {
            let mut views = chain.iter().enumerate().rev();
            views.find_map(|(at, view)| Some((StridedOperand::new(look, view, lead, turned)?, at)))
        };
        let (q, of_query) = deepest(query, [batch, heads, 1], false)?;
        let keys = self.chain(look, self.key, 0, Through::MovesAndFactors);
        let values = self.chain(look, self.value, 1, Through::Moves);
        let shares = keys.last().map_or(1, |view| shared(&view.axes[..view.axes.len() - 2].concat()));
        // First as the keys are shared; where that does not fit, each head with keys of its own.
        let (share, (k, of_key), (v, of_value)) = [shares, 1].into_iter().find_map(|share| {
            if share < 1 || heads % share != 0 {
                return None;
            }
            let lead = [batch, heads / share, share];
            let (key, value) =
                (deepest(&keys, lead, !self.turned[0])?, deepest(&values, lead, self.turned[1])?);
            Some((share, key, value))
        })?;
        let Masked { mask, causal } = self.masked(look, [batch, heads])?;
        let position = causal
            .and_then(|causal| causal.position)
            .map(|value| Operand { value, shape: Some(Shape::scalar()) });
        let op = Attention {
            heads,
            key_heads: heads / share,
            first: [q.first, k.first, v.first],
            orders: [q.order, k.order, v.order, order],
            scale: Real(self.scale * q.factor * k.factor),
            causal: causal.map(|causal| causal.offset),
            positioned: position.is_some(),
            fill: Real(self.mask.as_ref().map_or(f64::NEG_INFINITY, |mask| mask.fill)),
            zeros: self.zeros,
        };
        let operands = [q, k, v].into_iter().map(StridedOperand::operand);
        let operands = operands.chain(mask).chain(position).collect();
        let shape = look.graph.ty(result).shape.clone();
        let by_position = self.causal.iter().map(|(_, shown)| *shown);
        let known = self.mask.iter().map(|mask| mask.value).chain(by_position).collect();
        let found =
            Found { op: Op::Attention(Box::new(op)), operands, then: Some(Op::Reshape { shape }), known };
        Some((found, of_query + of_key + of_value))
    }

    /// Position of the axis of heads in what is written.
    fn order(&self, look: &Look<'_>, [batch, heads]: [i64; 2], written: Option<&View>) -> Option<HeadOrder> {
        let Some(view) = written else { return Some(HeadOrder::HeadsFirst) };
        let made = look.dims(view.base)?;
        let [.., rows, size] = made[..] else { return None };
        let heads_apart = rows.checked_mul(size)?;
        let expected = [
            Run { count: batch, stride: heads.checked_mul(heads_apart)? },
            Run { count: rows, stride: size },
            Run { count: heads, stride: heads_apart },
            Run { count: size, stride: 1 },
        ];
        let same = view.offset == 0 && merged(&view.axes.concat()) == merged(&expected);
        same.then_some(HeadOrder::RowsFirst)
    }

    /// The mask as an operand of rank 4, and that keys after the row are hidden. None where it does not fit.
    fn masked(&self, look: &Look<'_>, heads: [i64; 2]) -> Option<Masked> {
        let Masked { mask, causal } = self.masked_apart(look, heads)?;
        let causal = match (causal, self.causal.map(|(causal, _)| causal)) {
            (Some(one), Some(other)) => {
                let offset = one.offset.min(other.offset);
                Some((one.position == other.position).then_some(Causal { offset, ..one })?)
            }
            (one, other) => one.or(other),
        };
        Some(Masked { mask, causal })
    }

    /// What the mask alone is.
    fn masked_apart(&self, look: &Look<'_>, heads: [i64; 2]) -> Option<Masked> {
        let Some(mask) = &self.mask else { return Some(Masked { mask: None, causal: None }) };
        let Placed { outer, ends } = self.placed(look, mask.value, heads)?;
        let rank = self.scores.len();
        let is_plain = outer == [1, 1] && ends == self.scores[rank - 2..];
        if is_plain && let Some(offset) = look.causal(mask, ends) {
            let causal = Some(Causal { offset, position: None });
            return Some(Masked { mask: None, causal });
        }
        let keys = self.scores[rank - 1];
        let (shown, fill) = look.shown(mask.value).unwrap_or((mask.value, mask.fill));
        // What hides later keys is a property of the operation; only the rest of the mask stays an operand.
        if let Some(causal) = by_position(look, shown, fill, keys) {
            return Some(Masked { mask: None, causal: Some(causal) });
        }
        if let Some([one, other]) = look.binary(shown, Binary::And) {
            for (first, rest) in [(one, other), (other, one)] {
                let Some(causal) = by_position(look, first, fill, keys) else { continue };
                let mask = Some(self.operand(look, rest, heads)?);
                return Some(Masked { mask, causal: Some(causal) });
            }
        }
        Some(Masked { mask: Some(self.operand(look, mask.value, heads)?), causal: None })
    }

    /// A mask as an operand of rank 4.
    fn operand(&self, look: &Look<'_>, value: ValueId, heads: [i64; 2]) -> Option<Operand> {
        let Placed { outer, ends } = self.placed(look, value, heads)?;
        let dtype = look.graph.ty(value).dtype;
        if dtype != DType::Bool && !dtype.is_float() {
            return None;
        }
        let shape = Some(Shape::known(&[outer[0], outer[1], ends[0], ends[1]]));
        Some(Operand { value, shape })
    }

    /// How a mask's axes meet those of the scores. None where they do not.
    fn placed(&self, look: &Look<'_>, value: ValueId, [batch, heads]: [i64; 2]) -> Option<Placed> {
        let own = look.dims(value)?;
        let rank = self.scores.len();
        let mut dims = vec![1; rank.checked_sub(own.len())?];
        dims.extend(&own);
        let (outer, ends) = dims.split_at(rank - 2);
        let full = &self.scores[..rank - 2];
        let outer =
            if outer.iter().all(|&dim| dim == 1) { [1, 1] } else { spread(outer, full, [batch, heads])? };
        Some(Placed { outer, ends: [ends[0], ends[1]] })
    }
}

/// A bool mask that leaves each row the keys up to its own position and gives this number to the scores of the others.
fn by_position(look: &Look<'_>, shown: ValueId, fill: f64, keys: i64) -> Option<Causal> {
    // A row that meets no key has equal weights where a number hides them, and none where nothing is left.
    let meets = |causal: &Causal| fill == f64::NEG_INFINITY || causal.offset >= 0;
    if fill > HIDDEN { None } else { positioned::causal(look, shown, keys).filter(meets) }
}

/// What hides keys.
struct Masked {
    mask: Option<Operand>,
    causal: Option<Causal>,
}

/// The axes of a mask: one for batches and one for heads, each 1 where all have one mask; rows and keys.
struct Placed {
    outer: [i64; 2],
    ends: [i64; 2],
}

/// The axes of a mask before its last two as one for batches and one for heads, each 1 where all have
/// one mask. `full`: the scores' axes there. None where it is not stored so.
fn spread(outer: &[i64], full: &[i64], [batch, heads]: [i64; 2]) -> Option<[i64; 2]> {
    if outer == full {
        return Some([batch, heads]);
    }
    let size = |own: &[i64], full: &[i64]| {
        let count: i64 = full.iter().product();
        if own.iter().all(|&dim| dim == 1) { Some(1) } else { (own == full).then_some(count) }
    };
    (0..=full.len()).find_map(|at| {
        let ((own_batch, own_heads), (all_batch, all_heads)) = (outer.split_at(at), full.split_at(at));
        let fits = all_batch.iter().product::<i64>() == batch && all_heads.iter().product::<i64>() == heads;
        fits.then_some(())?;
        Some([size(own_batch, all_batch)?, size(own_heads, all_heads)?])
    })
}

/// How many heads at the end read the same keys.
fn shared(runs: &[Run]) -> i64 {
    runs.iter().rev().take_while(|run| run.stride == 0).map(|run| run.count).product()
}

/// An operand as attention takes it: `batch` and heads and rows of contiguous elements.
struct StridedOperand {
    value: ValueId,
    shape: Shape,
    order: HeadOrder,
    first: i64,
    factor: f64,
}

impl StridedOperand {
    /// A view whose last two axes are rows and elements (`turned`: elements and rows), and whose axes
    /// before are batches, heads, and readers that share a head. None where it is stored otherwise.
    fn new(look: &Look<'_>, view: &View, [batch, heads, share]: [i64; 3], turned: bool) -> Option<Self> {
        let (lead, ends) = view.axes.split_at(view.axes.len().checked_sub(2)?);
        let [rows, elements] = if turned { [&ends[1], &ends[0]] } else { [&ends[0], &ends[1]] };
        let (rows, elements) = (one(rows)?, one(elements)?);
        // Kernels read each row's elements side by side.
        if elements.count > 1 && elements.stride != 1 {
            return None;
        }
        let (batches, rest) = split(&lead.concat(), batch)?;
        let (own, readers) = split(&rest, heads)?;
        // Readers that share a head read the same keys: between them the stride is 0.
        if readers.iter().any(|run| run.stride != 0 && run.count > 1) {
            return None;
        }
        if readers.iter().map(|run| run.count).product::<i64>() != share {
            return None;
        }
        let (batches, own) = (one(&batches)?, one(&own)?);
        let all: i64 = look.dims(view.base)?.iter().product();
        let size = elements.count;
        let plane = rows.count.checked_mul(size)?.checked_mul(batch)?;
        let total = all.checked_div(plane)?;
        for order in [HeadOrder::HeadsFirst, HeadOrder::RowsFirst] {
            let dims = match order {
                HeadOrder::HeadsFirst => [batch, total, rows.count, size],
                HeadOrder::RowsFirst => [batch, rows.count, total, size],
            };
            let own_strides = strides(&dims)?;
            let (head_axis, row_axis) = order.axes();
            let fits = |run: Run, stride: i64| run.count == 1 || run.stride == stride;
            let first = view.offset / own_strides[head_axis].max(1);
            let is_laid_out_so = dims.iter().product::<i64>() == all
                && fits(batches, own_strides[0])
                && fits(own, own_strides[head_axis])
                && fits(rows, own_strides[row_axis])
                && view.offset % own_strides[head_axis].max(1) == 0
                && first.checked_add(heads).is_some_and(|last| last <= total);
            if is_laid_out_so {
                let (value, shape, factor) = (view.base, Shape::known(&dims), view.factor);
                return Some(Self { value, shape, order, first, factor });
            }
        }
        None
    }

    fn operand(self) -> Operand {
        Operand { value: self.value, shape: Some(self.shape) }
    }
}

/// Runs that are one.
fn one(runs: &[Run]) -> Option<Run> {
    match merged(runs)[..] {
        [] => Some(Run { count: 1, stride: 0 }),
        [run] => Some(run),
        _ => None,
    }
}

impl Look<'_> {
    /// Past reshapes that leave rows as they are.
    fn in_rows(&self, mut value: ValueId) -> ValueId {
        loop {
            let node = self.maker(value);
            let (Op::Reshape { .. }, Some(&x)) = (&node.op, node.operands.first()) else { return value };
            let (Some(own), Some(under)) = (self.dims(value), self.dims(x)) else { return value };
            let same = own.len() >= 3 && under.len() >= 3 && own[own.len() - 2..] == under[under.len() - 2..];
            if !same || !self.is_read_once(value) {
                return value;
            }
            value = x;
        }
    }

    /// The `w` of `w is not a number ? 0 : w`, and whether it was one.
    fn guarded(&self, value: ValueId) -> (ValueId, bool) {
        let node = self.maker(value);
        if let (Op::Select, &[broken, zero, weights]) = (&node.op, &node.operands[..])
            && self.unary(broken, Unary::IsNan) == Some(weights)
            && self.constant(zero) == Some(0.0)
        {
            return (weights, true);
        }
        (value, false)
    }

    /// True where scaling and reshapes lead from a value back to a product.
    fn leads_to_product(&self, value: ValueId) -> bool {
        let mut at = value;
        // Bounds the walk, which is tried at each sum before the product.
        for _ in 0..4 {
            at = self.in_rows(at);
            let node = self.maker(at);
            match (&node.op, &node.operands[..]) {
                (Op::MatMul { .. }, _) => return true,
                (Op::Binary(Binary::Mul | Binary::Div), &[x, y]) if self.constant(y).is_some() => at = x,
                (Op::Binary(Binary::Mul), &[x, y]) if self.constant(x).is_some() => at = y,
                _ => return false,
            }
        }
        false
    }

    /// A mask that is added, as what shows keys and what is added to the others.
    fn shown(&self, mask: ValueId) -> Option<(ValueId, f64)> {
        let node = self.maker(self.unrepeated(mask));
        let (Op::Select, &[shown, own, other]) = (&node.op, &node.operands[..]) else { return None };
        (self.constant(own)? == 0.0).then_some((shown, self.constant(other)?))
    }

    /// How far beyond its own number a row still meets keys, where a constant mask hides the others and
    /// nothing else.
    fn causal(&self, mask: &Mask, [rows, keys]: [i64; 2]) -> Option<i64> {
        let Op::Constant(id) = self.maker(mask.value).op else { return None };
        let tensor = self.graph.constant(id);
        let bool = tensor.dtype() == DType::Bool;
        if bool && mask.fill > HIDDEN || !bool && !tensor.dtype().is_float() {
            return None;
        }
        let added =
            |number: f64| if number == 0.0 { Some(true) } else { (number <= HIDDEN).then_some(false) };
        let all: Option<Vec<bool>> = match bool {
            true => Some(tensor.bytes().iter().map(|&byte| byte != 0).collect()),
            false => tensor.to_f64().into_iter().map(added).collect(),
        };
        let (all, keys) = (all?, usize::try_from(keys).ok()?);
        let first = all.get(..keys)?.iter().take_while(|&&shown| shown).count();
        let seen = |row: usize| (first + row).min(keys);
        // Where a row meets nothing, its weights are equal, and not numbers.
        let exact = first > 0
            && first < keys
            && all.len() == usize::try_from(rows).ok()?.checked_mul(keys)?
            && all
                .chunks(keys)
                .enumerate()
                .all(|(row, own)| own.iter().enumerate().all(|(key, &shown)| shown == (key < seen(row))));
        exact.then(|| first as i64 - 1)
    }
}
