//! Scalar expressions of kernels: index arithmetic that simplifies itself, and what is computed of
//! elements.
//!
//! Index expressions are sums of multiples of variables, quotients and remainders by constants.
//! They are simplified as they are made, so that the linear position of a position taken apart is
//! the position again, and a vector of neighbouring elements is seen to be one. Equal expressions
//! are one expression.

use std::collections::HashMap;
use std::fmt;

use crate::ir::{Binary, Compare, DType, Real, Unary};

/// An expression of a program; prints as `e7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExprId(pub u32);

impl fmt::Display for ExprId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// A variable that runs from 0 up to its extent; prints as `i2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Var(pub u32);

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}", self.0)
    }
}

/// What an expression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// A position: a whole number, 32 or 64 bits wide as the kernel needs.
    Index,
    /// An element. Halves are computed with in f32 and rounded where they are stored or converted.
    Value(DType),
}

/// How elements are folded into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest; not a number where one is not.
    Max,
    /// The smallest; not a number where one is not.
    Min,
    /// The position (i64) of the largest, the first or the last of equal ones.
    ArgMax {
        /// The last.
        last: bool,
    },
    /// The position (i64) of the smallest, the first or the last of equal ones.
    ArgMin {
        /// The last.
        last: bool,
    },
}

impl Fold {
    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::ArgMax { last: false } => "argmax",
            Self::ArgMax { last: true } => "argmax_last",
            Self::ArgMin { last: false } => "argmin",
            Self::ArgMin { last: true } => "argmin_last",
        }
    }

    /// True where the result is a position.
    pub const fn is_position(self) -> bool {
        matches!(self, Self::ArgMax { .. } | Self::ArgMin { .. })
    }
}

/// One operation on expressions that stand before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Index: a constant and multiples of indices that are no sums, ascending, none zero.
    Sum {
        /// The constant.
        constant: i64,
        /// (index, factor).
        terms: Box<[(ExprId, i64)]>,
    },
    /// Index: a variable.
    Var(Var),
    /// Index: the quotient of an index that is not negative by a positive number.
    Div(ExprId, i64),
    /// Index: the remainder likewise.
    Mod(ExprId, i64),
    /// Index: the smaller of two.
    Min(ExprId, ExprId),
    /// Index: an integer element as a position on an axis of that size: a negative one counts from
    /// the end, and what lies outside is moved to the nearest end.
    Wrapped(ExprId, i64),
    /// An index as an i64 element.
    Position(ExprId),
    /// A constant.
    Constant(Real, DType),
    /// A constant integer or bool.
    Whole(i64, DType),
    /// An element of an argument, or, where the guard is false, a constant (then nothing is read).
    Load {
        /// Which argument.
        arg: u32,
        /// Which element.
        index: ExprId,
        /// Bool.
        guard: Option<ExprId>,
        /// What stands in its place.
        other: Real,
    },
    /// A function of one element.
    Unary(Unary, ExprId),
    /// A function of two elements of one type.
    Binary(Binary, ExprId, ExprId),
    /// A comparison of two elements of one type, or of two indices.
    Compare(Compare, ExprId, ExprId),
    /// The second where the first is true, else the third.
    Select(ExprId, ExprId, ExprId),
    /// Another type.
    Convert(DType, ExprId),
    /// A fold of the body over all values of a variable, in ascending order.
    Fold {
        /// What is computed.
        kind: Fold,
        /// The variable.
        var: Var,
        /// What is folded.
        body: ExprId,
    },
    /// The result of a row's reduction, by its place in the program.
    Reduced(u32, DType),
    /// What the program's hero made at this point.
    Hero(DType),
}

/// The expressions of a program, each once, operands before users.
#[derive(Clone, Debug, Default)]
pub struct Exprs {
    nodes: Vec<Expr>,
    types: Vec<Ty>,
    /// By expression: the variables that it depends on, one bit for each.
    free: Vec<u64>,
    /// By expression: the least and the greatest value of an index.
    ranges: Vec<(i64, i64)>,
    extents: Vec<i64>,
    known: HashMap<Expr, ExprId>,
}

/// Most variables of one program.
pub const MAX_VARS: usize = 64;

impl Exprs {
    /// A variable of that extent. The same one again and again once there are [`MAX_VARS`], which
    /// the verifier then finds.
    pub fn var(&mut self, extent: i64) -> Var {
        self.extents.push(extent.max(0));
        Var(self.extents.len() as u32 - 1)
    }

    /// A variable's extent.
    pub fn extent(&self, var: Var) -> i64 {
        self.extents[var.0 as usize]
    }

    /// Number of variables.
    pub fn vars(&self) -> usize {
        self.extents.len()
    }

    /// Number of expressions.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// An expression.
    pub fn get(&self, id: ExprId) -> &Expr {
        &self.nodes[id.0 as usize]
    }

    /// What an expression is.
    pub fn ty(&self, id: ExprId) -> Ty {
        self.types[id.0 as usize]
    }

    /// The element type of an expression; i64 of an index.
    pub fn dtype(&self, id: ExprId) -> DType {
        match self.ty(id) {
            Ty::Index => DType::I64,
            Ty::Value(dtype) => dtype,
        }
    }

    /// The variables that an expression depends on, one bit for each.
    pub fn free(&self, id: ExprId) -> u64 {
        self.free[id.0 as usize]
    }

    /// True where an expression depends on a variable.
    pub fn depends(&self, id: ExprId, var: Var) -> bool {
        self.free(id) >> (var.0.min(63)) & 1 == 1
    }

    /// The least and the greatest value of an index.
    pub fn range(&self, id: ExprId) -> (i64, i64) {
        self.ranges[id.0 as usize]
    }

    /// The operands of an expression.
    pub fn operands(&self, id: ExprId) -> Vec<ExprId> {
        match self.get(id) {
            Expr::Sum { terms, .. } => terms.iter().map(|term| term.0).collect(),
            Expr::Var(_) | Expr::Constant(..) | Expr::Whole(..) | Expr::Reduced(..) | Expr::Hero(_) => vec![],
            Expr::Div(x, _) | Expr::Mod(x, _) | Expr::Wrapped(x, _) | Expr::Position(x) => vec![*x],
            Expr::Unary(_, x) | Expr::Convert(_, x) | Expr::Fold { body: x, .. } => vec![*x],
            Expr::Min(x, y) | Expr::Binary(_, x, y) | Expr::Compare(_, x, y) => vec![*x, *y],
            Expr::Load { index, guard, .. } => guard.iter().copied().chain([*index]).collect(),
            Expr::Select(c, x, y) => vec![*c, *x, *y],
        }
    }

    fn add(&mut self, expr: Expr) -> ExprId {
        if let Some(&id) = self.known.get(&expr) {
            return id;
        }
        let id = ExprId(self.nodes.len() as u32);
        let (ty, range) = (self.type_of(&expr), self.range_of(&expr));
        self.nodes.push(expr.clone());
        self.types.push(ty);
        self.ranges.push(range);
        let mut free = self.operands(id).iter().fold(0, |free, &x| free | self.free(x));
        match expr {
            Expr::Var(var) => free |= 1 << var.0.min(63),
            Expr::Fold { var, .. } => free &= !(1 << var.0.min(63)),
            _ => {}
        }
        self.free.push(free);
        self.known.insert(expr, id);
        id
    }

    fn type_of(&self, expr: &Expr) -> Ty {
        match *expr {
            Expr::Sum { .. }
            | Expr::Var(_)
            | Expr::Div(..)
            | Expr::Mod(..)
            | Expr::Min(..)
            | Expr::Wrapped(..) => Ty::Index,
            Expr::Position(_) => Ty::Value(DType::I64),
            Expr::Constant(_, dtype)
            | Expr::Whole(_, dtype)
            | Expr::Convert(dtype, _)
            | Expr::Reduced(_, dtype)
            | Expr::Hero(dtype) => Ty::Value(dtype),
            // The one who makes a load gives its type.
            Expr::Load { .. } => Ty::Value(DType::F32),
            Expr::Unary(Unary::Not | Unary::IsNan | Unary::IsInf, _) | Expr::Compare(..) => {
                Ty::Value(DType::Bool)
            }
            Expr::Unary(_, x) | Expr::Binary(_, x, _) | Expr::Select(_, x, _) => self.ty(x),
            Expr::Fold { kind, body, .. } => match kind.is_position() {
                true => Ty::Value(DType::I64),
                false => self.ty(body),
            },
        }
    }

    fn range_of(&self, expr: &Expr) -> (i64, i64) {
        match expr {
            Expr::Var(var) => (0, self.extent(*var).saturating_sub(1).max(0)),
            Expr::Div(x, d) => {
                let (low, high) = self.range(*x);
                (low.div_euclid(*d), high.div_euclid(*d))
            }
            Expr::Mod(_, d) => (0, d - 1),
            Expr::Wrapped(_, size) => (0, (size - 1).max(0)),
            Expr::Min(x, y) => {
                let (x, y) = (self.range(*x), self.range(*y));
                (x.0.min(y.0), x.1.min(y.1))
            }
            Expr::Sum { constant, terms } => {
                terms.iter().fold((*constant, *constant), |(low, high), &(x, f)| {
                    let (a, b) = self.range(x);
                    let (a, b) = (a.saturating_mul(f), b.saturating_mul(f));
                    (low.saturating_add(a.min(b)), high.saturating_add(a.max(b)))
                })
            }
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// A constant index.
    pub fn index(&mut self, constant: i64) -> ExprId {
        self.sum(constant, &[])
    }

    /// A variable as an index; the constant 0 where it has one value.
    pub fn at(&mut self, var: Var) -> ExprId {
        if self.extent(var) == 1 { self.index(0) } else { self.add(Expr::Var(var)) }
    }

    /// The constant that an index is.
    pub fn known(&self, id: ExprId) -> Option<i64> {
        match self.get(id) {
            Expr::Sum { constant, terms } if terms.is_empty() => Some(*constant),
            _ => None,
        }
    }

    /// The constant and the terms of an index.
    pub fn terms(&self, id: ExprId) -> (i64, Vec<(ExprId, i64)>) {
        match self.get(id) {
            Expr::Sum { constant, terms } => (*constant, terms.to_vec()),
            _ => (0, vec![(id, 1)]),
        }
    }

    /// `constant + sum of factor * index`.
    pub fn sum(&mut self, constant: i64, parts: &[(ExprId, i64)]) -> ExprId {
        let (mut total, mut terms) = (constant, Vec::new());
        for &(part, factor) in parts {
            let (constant, inner) = self.terms(part);
            total = total.saturating_add(constant.saturating_mul(factor));
            terms.extend(inner.into_iter().map(|(x, f)| (x, f.saturating_mul(factor))));
        }
        loop {
            collect(&mut terms);
            let Some((i, j, whole, factor)) = self.rejoined(&terms) else { break };
            terms.remove(i.max(j));
            terms.remove(i.min(j));
            let (constant, inner) = self.terms(whole);
            total = total.saturating_add(constant.saturating_mul(factor));
            terms.extend(inner.into_iter().map(|(x, f)| (x, f.saturating_mul(factor))));
        }
        match terms[..] {
            [(x, 1)] if total == 0 => x,
            _ => self.add(Expr::Sum { constant: total, terms: terms.into() }),
        }
    }

    /// Two terms `(x / (c d)) * (d e)` and `((x / c) % d) * e`, which are `(x / c) * e`: their
    /// positions, `x / c` and `e`; likewise where the first is `((x / (c d)) % f) * (d e)`, and both are
    /// `((x / c) % (d f)) * e`.
    fn rejoined(&mut self, terms: &[(ExprId, i64)]) -> Option<(usize, usize, ExprId, i64)> {
        for (i, &(low, e)) in terms.iter().enumerate() {
            let Expr::Mod(inner, d) = *self.get(low) else { continue };
            let (whole, c) = self.quotient(inner);
            for (j, &(high, f)) in terms.iter().enumerate() {
                if i == j || Some(f) != d.checked_mul(e) {
                    continue;
                }
                // `(x / c) / d` of a sum may have been taken apart: compare by making it again.
                let above = |this: &mut Self, part: ExprId| {
                    this.quotient(part) == (whole, c.saturating_mul(d)) || this.div(inner, d) == part
                };
                match self.get(high).clone() {
                    Expr::Mod(part, more) if above(self, part) => {
                        let joined = self.modulo(inner, d.saturating_mul(more));
                        if matches!(self.get(joined), Expr::Mod(..)) {
                            return Some((i, j, joined, e));
                        }
                    }
                    Expr::Div(..) if above(self, high) => return Some((i, j, inner, e)),
                    _ => {}
                }
            }
        }
        None
    }

    fn quotient(&self, id: ExprId) -> (ExprId, i64) {
        match *self.get(id) {
            Expr::Div(x, d) => (x, d),
            _ => (id, 1),
        }
    }

    /// `x + y`.
    pub fn plus(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.sum(0, &[(x, 1), (y, 1)])
    }

    /// `x / d`, rounded down; `x` is not negative and `d` positive.
    pub fn div(&mut self, x: ExprId, d: i64) -> ExprId {
        let (low, high) = self.range(x);
        if d <= 1 {
            return x;
        }
        if low >= 0 && high < d {
            return self.index(0);
        }
        match *self.get(x) {
            Expr::Div(y, c) => return self.div(y, c.saturating_mul(d)),
            Expr::Mod(y, a) if a % d == 0 => {
                let inner = self.div(y, d);
                return self.modulo(inner, a / d);
            }
            _ => {}
        }
        if let Some((g, big, _)) = self.split(x, d) {
            return if g == d { big } else { self.div(big, d / g) };
        }
        self.add(Expr::Div(x, d))
    }

    /// `x % d`; `x` is not negative and `d` positive.
    pub fn modulo(&mut self, x: ExprId, d: i64) -> ExprId {
        let (low, high) = self.range(x);
        if d <= 1 {
            return self.index(0);
        }
        if low >= 0 && high < d {
            return x;
        }
        if let Expr::Mod(y, a) = *self.get(x)
            && a % d == 0
        {
            return self.modulo(y, d);
        }
        if let Some((g, big, rest)) = self.split(x, d) {
            if g == d {
                return rest;
            }
            let big = self.modulo(big, d / g);
            return self.sum(0, &[(big, g), (rest, 1)]);
        }
        self.add(Expr::Mod(x, d))
    }

    /// `x = g * big + rest` with `g > 1` a divisor of `d` and `0 <= rest < g`.
    fn split(&mut self, x: ExprId, d: i64) -> Option<(i64, ExprId, ExprId)> {
        let (constant, terms) = self.terms(x);
        let mut divisors: Vec<i64> = terms.iter().map(|&(_, factor)| gcd(factor, d)).collect();
        divisors.sort_unstable();
        divisors.dedup();
        for &g in divisors.iter().rev().filter(|&&g| g > 1) {
            let (big, rest): (Vec<_>, Vec<_>) = terms.iter().copied().partition(|&(_, f)| f % g == 0);
            let rest = self.sum(constant.rem_euclid(g), &rest);
            let (low, high) = self.range(rest);
            if low < 0 || high >= g {
                continue;
            }
            let big: Vec<_> = big.into_iter().map(|(x, f)| (x, f / g)).collect();
            let big = self.sum(constant.div_euclid(g), &big);
            if self.range(big).0 >= 0 {
                return Some((g, big, rest));
            }
        }
        None
    }

    /// The smaller of two indices.
    pub fn min(&mut self, x: ExprId, y: ExprId) -> ExprId {
        let (a, b) = (self.range(x), self.range(y));
        if a.1 <= b.0 {
            return x;
        }
        if b.1 <= a.0 {
            return y;
        }
        self.add(Expr::Min(x, y))
    }

    /// The larger of two indices.
    pub fn max(&mut self, x: ExprId, y: ExprId) -> ExprId {
        let (x, y) = (self.sum(0, &[(x, -1)]), self.sum(0, &[(y, -1)]));
        let least = self.min(x, y);
        self.sum(0, &[(least, -1)])
    }

    /// See [`Expr::Wrapped`].
    pub fn wrapped(&mut self, value: ExprId, size: i64) -> ExprId {
        if size <= 1 { self.index(0) } else { self.add(Expr::Wrapped(value, size)) }
    }

    /// An index as an element.
    pub fn position(&mut self, index: ExprId) -> ExprId {
        match self.known(index) {
            Some(constant) => self.whole(constant, DType::I64),
            None => self.add(Expr::Position(index)),
        }
    }

    /// A constant of a type.
    pub fn constant(&mut self, value: f64, dtype: DType) -> ExprId {
        if dtype.is_float() {
            self.add(Expr::Constant(Real(value), dtype))
        } else {
            self.whole(if dtype == DType::Bool { i64::from(value != 0.0) } else { value as i64 }, dtype)
        }
    }

    /// A constant integer or bool.
    pub fn whole(&mut self, value: i64, dtype: DType) -> ExprId {
        self.add(Expr::Whole(value, dtype))
    }

    /// An element of an argument of type `dtype`, where the guard holds.
    pub fn load(
        &mut self,
        arg: u32,
        dtype: DType,
        index: ExprId,
        guard: Option<ExprId>,
        other: f64,
    ) -> ExprId {
        let id = self.add(Expr::Load {
            arg,
            index,
            guard,
            other: Real(if guard.is_some() { other } else { 0.0 }),
        });
        self.types[id.0 as usize] = Ty::Value(dtype);
        id
    }

    /// A function of one element.
    pub fn unary(&mut self, f: Unary, x: ExprId) -> ExprId {
        self.add(Expr::Unary(f, x))
    }

    /// A function of two elements.
    pub fn binary(&mut self, f: Binary, x: ExprId, y: ExprId) -> ExprId {
        self.add(Expr::Binary(f, x, y))
    }

    /// A comparison.
    pub fn compare(&mut self, f: Compare, x: ExprId, y: ExprId) -> ExprId {
        self.add(Expr::Compare(f, x, y))
    }

    /// True where `0 <= index < size`; none where that is always so.
    pub fn within(&mut self, index: ExprId, size: i64) -> Option<ExprId> {
        let (low, high) = self.range(index);
        let mut guard = None;
        if low < 0 {
            let zero = self.index(0);
            guard = Some(self.compare(Compare::Ge, index, zero));
        }
        if high >= size {
            let size = self.index(size);
            let below = self.compare(Compare::Lt, index, size);
            guard = Some(self.both(guard, Some(below)).unwrap_or(below));
        }
        guard
    }

    /// Both of two conditions.
    pub fn both(&mut self, x: Option<ExprId>, y: Option<ExprId>) -> Option<ExprId> {
        match (x, y) {
            (Some(x), Some(y)) if x != y => Some(self.binary(Binary::And, x, y)),
            (x, y) => x.or(y),
        }
    }

    /// A choice.
    pub fn select(&mut self, condition: ExprId, x: ExprId, y: ExprId) -> ExprId {
        if x == y { x } else { self.add(Expr::Select(condition, x, y)) }
    }

    /// Another type.
    pub fn convert(&mut self, to: DType, x: ExprId) -> ExprId {
        if self.dtype(x) == to { x } else { self.add(Expr::Convert(to, x)) }
    }

    /// A fold.
    pub fn fold(&mut self, kind: Fold, var: Var, body: ExprId) -> ExprId {
        self.add(Expr::Fold { kind, var, body })
    }

    /// The result of a row's reduction.
    pub fn reduced(&mut self, position: u32, dtype: DType) -> ExprId {
        self.add(Expr::Reduced(position, dtype))
    }

    /// What the hero made.
    pub fn hero(&mut self, dtype: DType) -> ExprId {
        self.add(Expr::Hero(dtype))
    }

    /// The position in row-major order of an index of each axis.
    pub fn linear(&mut self, dims: &[i64], index: &[ExprId]) -> ExprId {
        let mut stride = 1i64;
        let mut parts = Vec::with_capacity(dims.len());
        for (&dim, &at) in dims.iter().zip(index).rev() {
            parts.push((at, stride));
            stride = stride.saturating_mul(dim.max(1));
        }
        self.sum(0, &parts)
    }

    /// The index of each axis of a position in row-major order.
    pub fn apart(&mut self, dims: &[i64], position: ExprId) -> Vec<ExprId> {
        let mut stride = 1i64;
        let mut index = vec![ExprId(0); dims.len()];
        for (axis, &dim) in dims.iter().enumerate().rev() {
            let dim = dim.max(1);
            let above = self.div(position, stride);
            index[axis] = self.modulo(above, dim);
            stride = stride.saturating_mul(dim);
        }
        index
    }

    /// A copy of `id` with `from` replaced by the index `to`. `done` remembers what was copied.
    pub fn substitute(
        &mut self,
        id: ExprId,
        from: Var,
        to: ExprId,
        done: &mut HashMap<ExprId, ExprId>,
    ) -> ExprId {
        if !self.depends(id, from) {
            return id;
        }
        if let Some(&copy) = done.get(&id) {
            return copy;
        }
        let mut sub = |exprs: &mut Self, x: ExprId| exprs.substitute(x, from, to, done);
        let copy = match self.get(id).clone() {
            Expr::Var(_) => to,
            Expr::Sum { constant, terms } => {
                let terms: Vec<_> = terms.iter().map(|&(x, f)| (sub(self, x), f)).collect();
                self.sum(constant, &terms)
            }
            Expr::Div(x, d) => {
                let x = sub(self, x);
                self.div(x, d)
            }
            Expr::Mod(x, d) => {
                let x = sub(self, x);
                self.modulo(x, d)
            }
            Expr::Min(x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.min(x, y)
            }
            Expr::Wrapped(x, size) => {
                let x = sub(self, x);
                self.wrapped(x, size)
            }
            Expr::Position(x) => {
                let x = sub(self, x);
                self.position(x)
            }
            Expr::Load { arg, index, guard, other } => {
                let dtype = self.dtype(id);
                let index = sub(self, index);
                let guard = guard.map(|guard| sub(self, guard));
                self.load(arg, dtype, index, guard, other.0)
            }
            Expr::Unary(f, x) => {
                let x = sub(self, x);
                self.unary(f, x)
            }
            Expr::Binary(f, x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.binary(f, x, y)
            }
            Expr::Compare(f, x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.compare(f, x, y)
            }
            Expr::Select(c, x, y) => {
                let (c, x, y) = (sub(self, c), sub(self, x), sub(self, y));
                self.select(c, x, y)
            }
            Expr::Convert(dtype, x) => {
                let x = sub(self, x);
                self.convert(dtype, x)
            }
            Expr::Fold { kind, var, body } => {
                let body = sub(self, body);
                self.fold(kind, var, body)
            }
            constant @ (Expr::Constant(..) | Expr::Whole(..) | Expr::Reduced(..) | Expr::Hero(_)) => {
                self.add(constant)
            }
        };
        done.insert(id, copy);
        copy
    }

    /// True where an index is a multiple of `of` whatever its variables are.
    pub fn is_multiple(&self, id: ExprId, of: i64) -> bool {
        match self.get(id) {
            Expr::Sum { constant, terms } => {
                constant % of == 0 && terms.iter().all(|&(x, f)| f % of == 0 || self.is_multiple(x, of))
            }
            Expr::Mod(x, d) => d % of == 0 && self.is_multiple(*x, of),
            _ => of == 1,
        }
    }
}

/// Sorts terms, adds those of one index, and leaves out what is zero.
fn collect(terms: &mut Vec<(ExprId, i64)>) {
    terms.sort_unstable();
    terms.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 = first.1.saturating_add(later.1);
        }
        same
    });
    terms.retain(|term| term.1 != 0);
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_apart_joins_again() {
        let mut exprs = Exprs::default();
        let var = exprs.var(2 * 3 * 5 * 7);
        let p = exprs.at(var);
        let index = exprs.apart(&[2, 3, 5, 7], p);
        assert_eq!(exprs.linear(&[2, 3, 5, 7], &index), p);
        let inner = exprs.linear(&[3, 5, 7], &index[1..]);
        assert_eq!(*exprs.get(inner), Expr::Mod(p, 105));
        let outer = exprs.linear(&[2, 3], &index[..2]);
        assert_eq!(*exprs.get(outer), Expr::Div(p, 35));
    }

    #[test]
    fn vectors_of_neighbours_are_seen() {
        let mut exprs = Exprs::default();
        let (t, v) = (exprs.var(64 * 12 / 4), exprs.var(4));
        let (t, v) = (exprs.at(t), exprs.at(v));
        let p = exprs.sum(0, &[(t, 4), (v, 1)]);
        let column = exprs.modulo(p, 12);
        let (constant, terms) = exprs.terms(column);
        assert_eq!((constant, terms.len()), (0, 2));
        assert!(terms.contains(&(v, 1)));
        let row = exprs.div(p, 12);
        assert_eq!(*exprs.get(row), Expr::Div(t, 3));
    }

    #[test]
    fn simplified_indices_keep_their_values() {
        // Every expression of a small family against direct evaluation.
        for d in 1..=12 {
            for (a, b, c) in [(4, 1, 0), (6, 1, 3), (12, 4, 1), (3, 2, 5), (8, 8, 7)] {
                let mut exprs = Exprs::default();
                let (x, y) = (exprs.var(5), exprs.var(7));
                let (xe, ye) = (exprs.at(x), exprs.at(y));
                let sum = exprs.sum(c, &[(xe, a), (ye, b)]);
                let (q, r) = (exprs.div(sum, d), exprs.modulo(sum, d));
                let again = exprs.sum(0, &[(q, d), (r, 1)]);
                for i in 0..5 {
                    for j in 0..7 {
                        let value = |id| evaluate(&exprs, id, &[i, j]);
                        let expected = a * i + b * j + c;
                        assert_eq!(value(q), expected / d);
                        assert_eq!(value(r), expected % d);
                        assert_eq!(value(again), expected);
                    }
                }
            }
        }
    }

    fn evaluate(exprs: &Exprs, id: ExprId, vars: &[i64]) -> i64 {
        match exprs.get(id) {
            Expr::Var(var) => vars[var.0 as usize],
            Expr::Sum { constant, terms } => {
                constant + terms.iter().map(|&(x, f)| f * evaluate(exprs, x, vars)).sum::<i64>()
            }
            Expr::Div(x, d) => evaluate(exprs, *x, vars) / d,
            Expr::Mod(x, d) => evaluate(exprs, *x, vars) % d,
            other => panic!("{other:?}"),
        }
    }
}
