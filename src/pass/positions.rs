//! Integers that follow from where they stand in a tensor, computed ahead for tensors of any size.
//!
//! A decoder that another framework has exported counts its positions, looks them up by other positions, and compares
//! what it found: `position_ids[batch, key] <= position_ids[batch, row]`. The pass follows integers and truths that are an
//! affine function of their own indices, `first + sum of step * index`, through what computes them. One that is the same
//! everywhere becomes a constant, a lookup of one by others a sum of [`Op::Iota`], and a lookup whose places are
//! all places in turn the table itself. Sizes may be open, so that nothing else can compute them yet.
//!
//! An abstract interpretation over affine functions after Karr, "Affine relationships among variables of a program"
//! (1976), with indices in the place of variables.

use super::dce;
use super::gradient::build::constant;
use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{
    Binary, Compare, DType, Graph, Node, NodeId, Op, ReduceKind, Shape, Size, Slice, SourceId, Tensor, Type,
    Unary, ValueId,
};

/// Computes what follows from positions, and removes what is not read then. O(nodes x axes + bytes of constants).
pub fn positions(graph: &mut Graph) -> Result<()> {
    let known = Known::of(graph);
    let mut rewriter = Rewriter::new(graph);
    let mut is_changed = false;
    for id in graph.node_ids() {
        let made = match rewriter.is_ordered(id) {
            true => None,
            false => known.simpler(id, &mut rewriter)?,
        };
        match made {
            Some(value) => rewriter.replace_each(id, &[value]),
            None => rewriter.keep(id)?,
        }
        is_changed |= made.is_some();
    }
    if is_changed {
        *graph = rewriter.finish()?;
    }
    dce(graph)
}

/// A number at each place: `first`, and so much more with each step along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Progression {
    first: i64,
    /// By axis; 0 along those of one element.
    steps: Vec<i64>,
}

impl Progression {
    fn uniform(first: i64, rank: usize) -> Self {
        Self { first, steps: vec![0; rank] }
    }

    /// The number that stands everywhere.
    fn number(&self) -> Option<i64> {
        self.steps.iter().all(|&step| step == 0).then_some(self.first)
    }

    fn is_never_negative(&self) -> bool {
        self.first >= 0 && self.steps.iter().all(|&step| step >= 0)
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        let steps = self.steps.iter().zip(&other.steps).map(|(x, y)| x.checked_add(*y));
        Some(Self { first: self.first.checked_add(other.first)?, steps: steps.collect::<Option<_>>()? })
    }

    fn times(&self, factor: i64) -> Option<Self> {
        let steps = self.steps.iter().map(|step| step.checked_mul(factor));
        Some(Self { first: self.first.checked_mul(factor)?, steps: steps.collect::<Option<_>>()? })
    }

    fn minus(&self, other: &Self) -> Option<Self> {
        self.plus(&other.times(-1)?)
    }

    /// How it compares with 0, where that is the same everywhere.
    fn compared(&self, compare: Compare) -> Option<bool> {
        let is_never_positive = || self.first <= 0 && self.steps.iter().all(|&step| step <= 0);
        match (compare, self.number()) {
            (_, Some(number)) => Some(compare.holds(number, 0)),
            (Compare::Ge, _) if self.is_never_negative() => Some(true),
            (Compare::Lt, _) if self.is_never_negative() => Some(false),
            (Compare::Le, _) if is_never_positive() => Some(true),
            (Compare::Gt, _) if is_never_positive() => Some(false),
            (Compare::Gt | Compare::Ne, _) if self.first > 0 && self.is_never_negative() => Some(true),
            (Compare::Le | Compare::Eq, _) if self.first > 0 && self.is_never_negative() => Some(false),
            (Compare::Lt | Compare::Ne, _) if self.first < 0 && is_never_positive() => Some(true),
            (Compare::Ge | Compare::Eq, _) if self.first < 0 && is_never_positive() => Some(false),
            _ => None,
        }
    }

    /// Whether a type holds it: one number exactly, positions along axes of up to 2^26 elements.
    fn fits(&self, dtype: DType) -> bool {
        let is_within = |first: u32, step: u32| {
            let of_steps = self.steps.iter().all(|each| each.unsigned_abs() <= 1 << step);
            self.first.unsigned_abs() <= 1 << first && of_steps
        };
        match (dtype, self.number()) {
            (_, Some(number)) => constant_of(dtype, number).is_some(),
            (DType::I64, None) => is_within(53, 32),
            (DType::I32, None) => is_within(28, 2),
            _ => false,
        }
    }
}

/// A scalar of a type that holds integers. None where it does not hold this one.
fn constant_of(dtype: DType, number: i64) -> Option<Tensor> {
    let exact = number.unsigned_abs() <= 1 << 53;
    let is_counted = dtype.is_integer() || dtype == DType::Bool;
    let tensor = constant(dtype, &[], &[number as f64]).ok().filter(|_| exact && is_counted)?;
    let is_held = tensor.to_i64()? == [number] && (dtype != DType::Bool || (0..2).contains(&number));
    is_held.then_some(tensor)
}

/// What is known of each value of a graph.
struct Known<'g> {
    graph: &'g Graph,
    values: Vec<Option<Progression>>,
}

impl<'g> Known<'g> {
    fn of(graph: &'g Graph) -> Self {
        let mut known = Self { graph, values: vec![None; graph.value_count()] };
        for id in graph.node_ids() {
            let result = graph.node(id).first_result;
            let dtype = graph.ty(result).dtype;
            if dtype.is_integer() || dtype == DType::Bool {
                let made = known.made(graph.node(id)).map(|made| known.with_ones_still(made, result));
                known.values[result.index()] = made.filter(|made| made.fits(dtype));
            }
        }
        known
    }

    fn get(&self, value: ValueId) -> Option<&Progression> {
        self.values[value.index()].as_ref()
    }

    fn number(&self, value: ValueId) -> Option<i64> {
        self.get(value)?.number()
    }

    fn sizes(&self, value: ValueId) -> &'g [Size] {
        self.graph.ty(value).shape.sizes()
    }

    fn rank(&self, value: ValueId) -> usize {
        self.sizes(value).len()
    }

    fn with_ones_still(&self, mut affine: Progression, value: ValueId) -> Progression {
        let steps = affine.steps.iter_mut().zip(self.sizes(value));
        steps.filter(|(_, size)| is_one(size)).for_each(|(step, _)| *step = 0);
        affine
    }

    fn made(&self, node: &Node) -> Option<Progression> {
        let result = node.first_result;
        let rank = self.rank(result);
        match (&node.op, &node.operands[..]) {
            (&Op::Constant(id), _) => of_constant(self.graph.constant(id)),
            (Op::Sizes(sizes), _) if rank == 0 => Some(Progression::uniform(sizes.first()?.known()?, 0)),
            (&Op::Iota { axis }, _) => {
                let mut affine = Progression::uniform(0, rank);
                affine.steps[axis as usize] = 1;
                Some(affine)
            }
            (Op::Broadcast { .. }, &[x]) => self.aligned(x, rank),
            (Op::Transpose { perm }, &[x]) => {
                let of = self.get(x)?;
                let steps = perm.iter().map(|&axis| of.steps[axis as usize]).collect();
                Some(Progression { first: of.first, steps })
            }
            (Op::Reshape { .. }, &[x]) => self.reshaped(x, result),
            (Op::Slice(slice), &[x]) => self.sliced(x, slice),
            (&Op::Concat { axis }, parts) => self.joined(parts, axis as usize),
            (&Op::CumSum { axis, exclusive, reverse }, &[x]) => {
                let number = self.number(x).filter(|&number| !reverse || number == 0)?;
                let mut affine = Progression::uniform(if exclusive { 0 } else { number }, rank);
                affine.steps[axis as usize] = number;
                Some(affine)
            }
            (Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }, &[x]) => {
                Some(Progression::uniform(self.number(x)?, rank))
            }
            (&Op::Gather { axis }, &[table, places]) => {
                let of = self.get(table)?;
                let axis = axis as usize;
                let found = self.looked_up(of.steps[axis], Some(places), self.rank(places))?;
                let (before, after) = (&of.steps[..axis], &of.steps[axis + 1..]);
                let steps = before.iter().chain(&found.steps).chain(after).copied().collect();
                Some(Progression { first: of.first.checked_add(found.first)?, steps })
            }
            (&Op::GatherNd { batch_dims: 0 }, &[table, places]) => self.looked_up_together(table, places),
            (op, operands) if op.is_elementwise() => {
                let all = operands.iter().map(|&operand| self.aligned(operand, rank)).collect();
                let from = operands.iter().map(|&operand| self.graph.ty(operand).dtype).collect();
                self.elementwise(op, all, from)
            }
            _ => None,
        }
    }

    /// What an operand gives to a result of more axes.
    fn aligned(&self, operand: ValueId, rank: usize) -> Option<Progression> {
        let of = self.get(operand)?;
        let mut steps = vec![0; rank - self.rank(operand)];
        steps.extend(&of.steps);
        Some(Progression { first: of.first, steps })
    }

    /// Axes of more than one element stand in the same order.
    fn reshaped(&self, x: ValueId, result: ValueId) -> Option<Progression> {
        let of = self.get(x)?;
        if let Some(number) = of.number() {
            return Some(Progression::uniform(number, self.rank(result)));
        }
        let mut own = self.sizes(x).iter().zip(&of.steps).filter(|(size, _)| !is_one(size));
        let step = |size: &Size| match is_one(size) {
            true => Some(0),
            false => own.next().filter(|(before, _)| *before == size).map(|(_, &step)| step),
        };
        let steps = self.sizes(result).iter().map(step).collect::<Option<_>>()?;
        own.next().is_none().then_some(Progression { first: of.first, steps })
    }

    fn sliced(&self, x: ValueId, slice: &Slice) -> Option<Progression> {
        let of = self.get(x)?;
        let mut affine = of.clone();
        for (axis, step) in of.steps.iter().enumerate().filter(|&(_, &step)| step != 0) {
            affine.first = affine.first.checked_add(step.checked_mul(slice.starts[axis].known()?)?)?;
            affine.steps[axis] = step.checked_mul(slice.steps[axis])?;
        }
        Some(affine)
    }

    /// Parts one after the other, if each goes on as the one before does.
    fn joined(&self, parts: &[ValueId], axis: usize) -> Option<Progression> {
        let all: Vec<&Progression> = parts.iter().map(|&part| self.get(part)).collect::<Option<_>>()?;
        let lengths = || parts.iter().map(|&part| &self.sizes(part)[axis]);
        let long = all.iter().zip(lengths()).find(|(_, length)| !is_one(length));
        let step = match (long, &all[..]) {
            (Some((part, _)), _) => part.steps[axis],
            (None, [one, two, ..]) => two.first.checked_sub(one.first)?,
            (None, _) => 0,
        };
        let mut next = all.first()?.first;
        for (part, length) in all.iter().zip(lengths()) {
            let goes_on = part.first == next && (is_one(length) || part.steps[axis] == step);
            let others = |of: &Progression| (of.steps[..axis].to_vec(), of.steps[axis + 1..].to_vec());
            if !goes_on || others(part) != others(all[0]) {
                return None;
            }
            let after = || next.checked_add(step.checked_mul(length.known()?)?);
            // What follows a part of open length is not known to go on.
            next = if step == 0 { next } else { after().unwrap_or(i64::MIN) };
        }
        let mut steps = all[0].steps.clone();
        steps[axis] = step;
        Some(Progression { first: all[0].first, steps })
    }

    /// What places along an axis add that grows by `step`. A place below 0 counts from the end.
    fn looked_up(&self, step: i64, places: Option<ValueId>, rank: usize) -> Option<Progression> {
        if step == 0 {
            return Some(Progression::uniform(0, rank));
        }
        let places = self.get(places?)?;
        places.times(step).filter(|_| places.is_never_negative())
    }

    /// By the places of each leading axis, which are the columns of one tensor.
    fn looked_up_together(&self, table: ValueId, places: ValueId) -> Option<Progression> {
        let of = self.get(table)?;
        let rank = self.rank(places) - 1;
        let depth = usize::try_from(self.sizes(places)[rank].known()?).ok()?;
        let columns = self.columns(places);
        let mut sum = Progression::uniform(of.first, rank);
        for (axis, &step) in of.steps.iter().enumerate().take(depth) {
            let column = columns.as_ref().and_then(|columns| columns.get(axis).copied());
            let mut found = self.looked_up(step, column, rank + 1)?;
            found.steps.pop();
            sum = sum.plus(&found)?;
        }
        sum.steps.extend(&of.steps[depth..]);
        Some(sum)
    }

    /// The columns that a tensor of places is made of, each with one element along the last axis.
    fn columns(&self, places: ValueId) -> Option<Vec<ValueId>> {
        let last = self.rank(places).checked_sub(1)?;
        let has_one = |value: &ValueId| is_one(&self.sizes(*value)[last]);
        if has_one(&places) {
            return Some(vec![places]);
        }
        let node = self.graph.maker(places);
        let is_stack = matches!(node.op, Op::Concat { axis } if axis as usize == last);
        (is_stack && node.operands.iter().all(has_one)).then(|| node.operands.to_vec())
    }

    fn elementwise(&self, op: &Op, all: Vec<Option<Progression>>, from: Vec<DType>) -> Option<Progression> {
        let is_nothing = |of: &Option<Progression>| of.as_ref().and_then(Progression::number) == Some(0);
        if let Op::Binary(Binary::Mul | Binary::And) = op
            && let Some(nothing) = all.iter().find(|of| is_nothing(of))
        {
            return nothing.clone();
        }
        if let (Op::Select, [Some(condition), x, y]) = (op, &all[..]) {
            return if condition.number()? == 0 { y.clone() } else { x.clone() };
        }
        let all: Vec<Progression> = all.into_iter().collect::<Option<_>>()?;
        let rank = all.first()?.steps.len();
        let of_number = |number: i64| Some(Progression::uniform(number, rank));
        match (op, &all[..]) {
            (Op::Convert { to: DType::Bool }, [x]) => of_number(x.compared(Compare::Ne)?.into()),
            (Op::Convert { .. } | Op::Unary(Unary::Detach), [x]) => Some(x.clone()),
            (Op::Unary(Unary::Not), [x]) if from == [DType::Bool] => of_number(1 - x.number()?),
            (Op::Unary(Unary::Neg), [x]) => x.times(-1),
            (Op::Unary(Unary::Abs), [x]) if x.is_never_negative() => Some(x.clone()),
            (&Op::Compare(compare), [x, y]) => of_number(x.minus(y)?.compared(compare)?.into()),
            (&Op::Binary(binary), [x, y]) => match (binary, x.number(), y.number()) {
                (Binary::Add, ..) => x.plus(y),
                (Binary::Sub, ..) => x.minus(y),
                (Binary::Mul, _, Some(factor)) => x.times(factor),
                (Binary::Mul, Some(factor), _) => y.times(factor),
                (Binary::And, Some(x), Some(y)) => of_number(x & y),
                (Binary::Or, Some(x), Some(y)) => of_number(x | y),
                (Binary::Xor, Some(x), Some(y)) => of_number(x ^ y),
                (Binary::Max, ..) => {
                    Some(if x.minus(y)?.compared(Compare::Ge)? { x.clone() } else { y.clone() })
                }
                (Binary::Min, ..) => {
                    Some(if x.minus(y)?.compared(Compare::Le)? { x.clone() } else { y.clone() })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// What stands for a node, where that is simpler. None: the node stays.
    fn simpler(&self, id: NodeId, to: &mut Rewriter<'_>) -> Result<Option<ValueId>> {
        let node = self.graph.node(id);
        let result = node.first_result;
        let (ty, source) = (self.graph.ty(result), node.source);
        if let (Op::Constant(_) | Op::Sizes(_) | Op::Broadcast { .. } | Op::Input | Op::Param(_), _)
        | (_, &[]) = (&node.op, &node.operands[..])
        {
            return Ok(None);
        }
        if let Some(number) = self.number(result).and_then(|number| constant_of(ty.dtype, number)) {
            return repeated(to, number, &ty.shape, source).map(Some);
        }
        let is_lookup = matches!(node.op, Op::Gather { .. } | Op::GatherNd { .. } | Op::CumSum { .. });
        match self.get(result) {
            Some(affine) if is_lookup => counted(to, affine, ty, source).map(Some),
            _ => self.whole(node, to),
        }
    }

    /// A lookup that takes the rows of its table once and in turn: the table, repeated along the other axes of its places.
    fn whole(&self, node: &Node, to: &mut Rewriter<'_>) -> Result<Option<ValueId>> {
        let (&[table, places], sizes) = (&node.operands[..], self.sizes(node.first_result)) else {
            return Ok(None);
        };
        // Of each axis of the table that is looked up, its places, and where their axes begin in the result.
        let (first, columns, rank) = match node.op {
            Op::Gather { axis } => (axis as usize, Some(vec![places]), self.rank(places)),
            Op::GatherNd { batch_dims: 0 } => (0, self.columns(places), self.rank(places) - 1),
            _ => return Ok(None),
        };
        let Some(columns) = columns else { return Ok(None) };
        let own = self.sizes(table);
        let mut taken = own.to_vec();
        let mut wide: Vec<Size> = own[..first].to_vec();
        wide.extend(vec![Size::Known(1); rank]);
        wide.extend(own[first + columns.len()..].iter().cloned());
        let mut last = None;
        for (from, &column) in (first..).zip(&columns) {
            let Some(places) = self.get(column).filter(|places| places.first == 0) else { return Ok(None) };
            let moving: Vec<usize> = (0..rank).filter(|&axis| places.steps[axis] != 0).collect();
            match moving[..] {
                [] if is_one(&own[from]) => {}
                [axis] if places.steps[axis] == 1 && last < Some(axis) => {
                    let count = &sizes[first + axis];
                    let rest = own[from].sub(count).map(|rest| rest.known());
                    let is_short = rest.is_none_or(|rest| rest.is_some_and(|rest| rest < 0));
                    // Of a table of known size it is to be seen that its rows are positions.
                    if *count != own[from] && (is_short || own[from].known().is_some()) {
                        return Ok(None);
                    }
                    last = Some(axis);
                    taken[from] = count.clone();
                    wide[first + axis] = count.clone();
                }
                _ => return Ok(None),
            }
        }
        let mut rows = to.value(table)?;
        if taken != own {
            let (starts, steps) = (vec![Size::Known(0); own.len()], vec![1; own.len()]);
            rows =
                to.add(Op::Slice(Box::new(Slice { starts, steps, sizes: taken })), &[rows], node.source)?;
        }
        let wide = to.add(Op::Reshape { shape: Shape::new(wide) }, &[rows], node.source)?;
        let shape = Shape::new(sizes.to_vec());
        to.add(Op::Broadcast { shape }, &[wide], node.source).map(Some)
    }
}

fn is_one(size: &Size) -> bool {
    *size == Size::Known(1)
}

fn of_constant(tensor: &Tensor) -> Option<Progression> {
    let rank = tensor.dims().len();
    if tensor.is_uniform() {
        let first = tensor.bytes().get(..tensor.dtype().size() as usize)?;
        let first = Tensor::new(tensor.dtype(), Vec::new(), first.to_vec()).ok()?.to_i64()?;
        return Some(Progression::uniform(*first.first()?, rank));
    }
    if !matches!(tensor.dtype(), DType::I32 | DType::I64) {
        return None;
    }
    let all = tensor.to_i64()?;
    let mut affine = Progression::uniform(*all.first()?, rank);
    let mut stride = 1;
    let mut strides = vec![0; rank];
    for axis in (0..rank).rev() {
        strides[axis] = stride;
        if let Some(next) = all.get(stride).filter(|_| tensor.dims()[axis] > 1) {
            affine.steps[axis] = next.checked_sub(affine.first)?;
        }
        stride = stride.checked_mul(tensor.dims()[axis] as usize)?;
    }
    let at = |place: usize| {
        let along = (0..rank).map(|axis| (place / strides[axis]) as u64 % tensor.dims()[axis]);
        let mut steps = along.zip(&affine.steps);
        steps.try_fold(affine.first, |sum, (index, step)| sum.checked_add(step.checked_mul(index as i64)?))
    };
    (0..all.len()).all(|place| at(place) == Some(all[place])).then_some(affine)
}

/// A number at every place.
fn repeated(to: &mut Rewriter<'_>, number: Tensor, shape: &Shape, source: SourceId) -> Result<ValueId> {
    let number = to.graph_mut().add_constant(number, source);
    match shape.rank() {
        0 => Ok(number),
        _ => to.add(Op::Broadcast { shape: shape.clone() }, &[number], source),
    }
}

/// The sum of positions.
fn counted(to: &mut Rewriter<'_>, affine: &Progression, ty: &Type, source: SourceId) -> Result<ValueId> {
    let mut sum = None;
    let number = |to: &mut Rewriter<'_>, number: i64| -> Result<ValueId> {
        let tensor = constant(ty.dtype, &[], &[number as f64])?;
        Ok(to.graph_mut().add_constant(tensor, source))
    };
    let steps = affine.steps.iter().enumerate().filter(|&(_, &step)| step != 0);
    for (axis, &step) in steps {
        let mut along = to.graph_mut().add_iota(ty.clone(), axis as u32, source);
        if step != 1 {
            let step = number(to, step)?;
            along = to.add(Op::Binary(Binary::Mul), &[along, step], source)?;
        }
        sum = Some(match sum {
            None => along,
            Some(sum) => to.add(Op::Binary(Binary::Add), &[sum, along], source)?,
        });
    }
    let first = number(to, affine.first)?;
    match sum {
        Some(sum) if affine.first == 0 => Ok(sum),
        Some(sum) => to.add(Op::Binary(Binary::Add), &[sum, first], source),
        None => to.add(Op::Broadcast { shape: ty.shape.clone() }, &[first], source),
    }
}
