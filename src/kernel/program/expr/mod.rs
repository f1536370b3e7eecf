//! Scalar expressions of kernels: index arithmetic that simplifies itself, and what is computed of
//! elements.
//!
//! Index expressions are sums of multiples of variables, quotients and remainders by constants.
//! They are simplified as they are made, so that the linear position of a position taken apart is
//! the position again, and a vector of neighbouring elements is seen to be one. Equal expressions
//! are one expression.

mod index;
mod substitute;

use std::collections::HashMap;
use std::fmt;

use crate::ir::{Binary, Compare, DType, Real, Unary};

pub(super) use index::collect;

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

/// One operation on expressions that come before it.
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
}
