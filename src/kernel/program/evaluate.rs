//! What a kernel program computes, in f64 and i64, one point after the other: the reference for
//! printers, with which it shares no code.

mod recurrent;
mod scalar;
mod scatter;

use recurrent::recurrent;
use scalar::{Scalar, binary, combine, compare, convert, neutral, scattered, takes_over, unary, wrap};

use super::attend::attention;
use super::{Body, Expr, ExprId, Fold, Program, Reduction, Running, Store, Var};
use crate::error::{Error, Result};
use crate::ir::{Binary, DType};

/// The elements of an argument: floats as f64, integers and bools as i64.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Floats.
    Real(Vec<f64>),
    /// Integers and bools.
    Whole(Vec<i64>),
}

impl Array {
    /// As many zeros of a type.
    pub fn zeros(dtype: DType, elements: usize) -> Self {
        if dtype.is_float() { Self::Real(vec![0.0; elements]) } else { Self::Whole(vec![0; elements]) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Real(list) => list.len(),
            Self::Whole(list) => list.len(),
        }
    }

    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, position: usize) -> Option<Scalar> {
        match self {
            Self::Real(list) => list.get(position).map(|&x| Scalar::Real(x)),
            Self::Whole(list) => list.get(position).map(|&x| Scalar::Whole(x)),
        }
    }

    fn set(&mut self, position: usize, value: Scalar) -> Option<()> {
        match self {
            Self::Real(list) => *list.get_mut(position)? = value.real(),
            Self::Whole(list) => *list.get_mut(position)? = value.whole(),
        }
        Some(())
    }
}

/// Runs a program on its arguments, in order; those that are written are changed.
///
/// Errors: an index outside its argument, an argument that is missing. As slow as it is plain.
pub fn evaluate(program: &Program, args: &mut [Array]) -> Result<()> {
    Machine::new(program).all(0..points(program), args)
}

/// How many points a program computes apart from one another: those of a map, the lines, the rows, the
/// elements of a product, the columns of a scatter; 1 of what is computed as a whole.
pub fn points(program: &Program) -> i64 {
    let extent =
        |vars: &[Var]| vars.iter().fold(1i64, |all, &var| all.saturating_mul(program.exprs.extent(var)));
    match &program.body {
        _ if program.is_empty() => 0,
        Body::Map { point: var, .. } | Body::Lines { line: var, .. } | Body::Rows { row: var, .. } => {
            extent(&[*var])
        }
        Body::Tile { batch, row, column, .. } | Body::Product { batch, row, column, .. } => {
            extent(&[*batch, *row, *column])
        }
        Body::Scatter(scatter) => extent(&[scatter.column]),
        Body::Order(_) | Body::Recurrent(_) | Body::Attention(_) => 1,
    }
}

/// Runs a program at some of its [`points`] only: large programs are looked at here and there.
///
/// Gives what was written there: (argument, element). Errors: as of [`evaluate`].
pub fn evaluate_at(program: &Program, args: &mut [Array], points: &[i64]) -> Result<Vec<(u32, usize)>> {
    let mut machine = Machine::new(program);
    machine.all(points.iter().copied(), args)?;
    if matches!(program.body, Body::Recurrent(_) | Body::Attention(_)) {
        let written = (0u32..).zip(&program.args).filter(|(_, arg)| arg.written);
        return Ok(written.flat_map(|(at, arg)| (0..arg.elements as usize).map(move |i| (at, i))).collect());
    }
    Ok(machine.written)
}

struct Machine<'a> {
    program: &'a Program,
    vars: Vec<i64>,
    reduced: Vec<Scalar>,
    hero: Scalar,
    /// By expression: its value while no variable changes.
    memo: Vec<Option<Scalar>>,
    /// Argument and element of all that was written.
    written: Vec<(u32, usize)>,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program) -> Self {
        let (vars, memo) = (vec![0; program.exprs.vars()], vec![None; program.exprs.len()]);
        Self { program, vars, reduced: Vec::new(), hero: Scalar::Whole(0), memo, written: Vec::new() }
    }

    fn all(&mut self, points: impl Iterator<Item = i64>, args: &mut [Array]) -> Result<()> {
        let name = &self.program.name;
        self.run(points, args).ok_or_else(|| Error::Internal(format!("kernel {name} reaches outside")))
    }

    fn run(&mut self, mut points: impl Iterator<Item = i64>, args: &mut [Array]) -> Option<()> {
        let program = self.program;
        match &program.body {
            Body::Map { point, stores } => points.try_for_each(|p| {
                self.set(&[(*point, p)]);
                self.store(stores, args)
            }),
            Body::Lines { line, step, running, stores } => {
                points.try_for_each(|l| self.line((*line, l), *step, running.as_ref(), stores, args))
            }
            Body::Rows { row, column, reductions, stores, row_stores, .. } => points.try_for_each(|r| {
                self.set(&[(*row, r)]);
                self.reduce(reductions, *column, args)?;
                self.set(&[(*row, r)]);
                self.store(row_stores, args)?;
                if stores.is_empty() {
                    return Some(());
                }
                (0..program.exprs.extent(*column)).try_for_each(|c| {
                    self.set(&[(*row, r), (*column, c)]);
                    self.store(stores, args)
                })
            }),
            Body::Tile { batch, row, column, value, stores } => {
                self.grid(&[*batch, *row, *column], points, args, |machine, args| {
                    machine.hero = machine.value(*value, args)?;
                    machine.memo.fill(None);
                    machine.store(stores, args)
                })
            }
            Body::Product { batch, row, column, inner, reductions, left, right, stores, .. } => {
                let mut known = None;
                self.grid(&[*batch, *row, *column], points, args, |machine, args| {
                    // What is folded of a row is the same for each of its columns.
                    let r = machine.vars[row.0 as usize];
                    if known.replace(r) != Some(r) {
                        machine.reduce(reductions, *inner, args)?;
                    }
                    machine.hero = machine.dot(*inner, *left, *right, args)?;
                    machine.memo.fill(None);
                    machine.store(stores, args)
                })
            }
            Body::Scatter(scatter) => points.try_for_each(|column| self.scatter(scatter, column, args)),
            Body::Order(order) => points.try_for_each(|_| self.order(order, args)),
            Body::Recurrent(layer) => points.try_for_each(|_| recurrent(layer, args)),
            Body::Attention(heads) => points.try_for_each(|_| attention(heads, args)),
        }
    }

    /// A line step by step, with the sum so far where one is kept.
    fn line(
        &mut self,
        line: (Var, i64),
        step: Var,
        running: Option<&Running>,
        stores: &[Store],
        args: &mut [Array],
    ) -> Option<()> {
        let program = self.program;
        let exprs = &program.exprs;
        let mut sum = match running {
            Some(running) if !exprs.dtype(running.value).is_float() => Scalar::Whole(0),
            _ => Scalar::Real(0.0),
        };
        (0..exprs.extent(step)).try_for_each(|s| {
            self.set(&[line, (step, s)]);
            if let Some(running) = running {
                let dtype = exprs.dtype(running.value);
                let next = combine(Fold::Sum, dtype, sum, self.value(running.value, args)?);
                self.set(&[line, (step, s)]);
                self.hero = if running.exclusive { sum } else { next };
                sum = next;
            }
            self.store(stores, args)
        })
    }

    /// What is folded of a row, in place of what was of the one before; each may read those before it.
    fn reduce(&mut self, reductions: &[Reduction], column: Var, args: &[Array]) -> Option<()> {
        self.reduced.clear();
        for reduction in reductions {
            let result = self.fold(reduction.kind, column, reduction.value, args)?;
            self.reduced.push(result);
        }
        Some(())
    }

    /// Runs `body` at points of the variables' ranges, the last variable the innermost.
    fn grid(
        &mut self,
        vars: &[Var],
        points: impl Iterator<Item = i64>,
        args: &mut [Array],
        mut body: impl FnMut(&mut Self, &mut [Array]) -> Option<()>,
    ) -> Option<()> {
        let extents: Vec<i64> = vars.iter().map(|&var| self.program.exprs.extent(var)).collect();
        for point in points {
            let mut rest = point;
            let mut at = Vec::with_capacity(vars.len());
            for (&var, &extent) in vars.iter().zip(&extents).rev() {
                at.push((var, rest % extent));
                rest /= extent;
            }
            self.set(&at);
            body(self, args)?;
        }
        Some(())
    }

    fn dot(&mut self, inner: Var, left: ExprId, right: ExprId, args: &[Array]) -> Option<Scalar> {
        let dtype = self.program.exprs.dtype(left);
        let mut sum = if dtype.is_float() { Scalar::Real(0.0) } else { Scalar::Whole(0) };
        for k in 0..self.program.exprs.extent(inner) {
            self.set(&[(inner, k)]);
            let (x, y) = (self.value(left, args)?, self.value(right, args)?);
            sum = combine(Fold::Sum, dtype, sum, binary(Binary::Mul, dtype, x, y));
        }
        Some(sum)
    }

    fn set(&mut self, vars: &[(Var, i64)]) {
        for &(var, value) in vars {
            self.vars[var.0 as usize] = value;
        }
        self.memo.fill(None);
    }

    fn store(&mut self, stores: &[Store], args: &mut [Array]) -> Option<()> {
        // All is computed before anything is written: a result may be where an operand did.
        let mut writes = Vec::with_capacity(stores.len());
        for store in stores {
            if let Some(guard) = store.guard
                && !self.value(guard, args)?.is_true()
            {
                continue;
            }
            writes.push((store, self.position(store.index, args)?, self.value(store.value, args)?));
        }
        for (store, position, value) in writes {
            let array = args.get_mut(store.arg as usize)?;
            let position = usize::try_from(position).ok()?;
            let old = array.get(position)?;
            let dtype = self.program.args[store.arg as usize].dtype;
            array.set(position, scattered(store.kind, dtype, old, value))?;
            self.written.push((store.arg, position));
        }
        Some(())
    }

    fn position(&mut self, id: ExprId, args: &[Array]) -> Option<i64> {
        let exprs = &self.program.exprs;
        Some(match exprs.get(id) {
            Expr::Var(var) => self.vars[var.0 as usize],
            Expr::Sum { constant, terms } => {
                let mut sum = *constant;
                for &(x, factor) in terms {
                    sum = sum.checked_add(self.position(x, args)?.checked_mul(factor)?)?;
                }
                sum
            }
            Expr::Div(x, d) => self.position(*x, args)?.div_euclid(*d),
            Expr::Mod(x, d) => self.position(*x, args)?.rem_euclid(*d),
            Expr::Min(x, y) => self.position(*x, args)?.min(self.position(*y, args)?),
            Expr::Wrapped(x, size) => {
                let value = self.value(*x, args)?.whole();
                (if value < 0 { value.saturating_add(*size) } else { value }).clamp(0, size - 1)
            }
            _ => return None,
        })
    }

    fn value(&mut self, id: ExprId, args: &[Array]) -> Option<Scalar> {
        if let Some(value) = self.memo[id.0 as usize] {
            return Some(value);
        }
        let exprs = &self.program.exprs;
        let dtype = exprs.dtype(id);
        let value = match exprs.get(id) {
            Expr::Position(x) => Scalar::Whole(self.position(*x, args)?),
            Expr::Constant(value, _) => Scalar::Real(value.0),
            Expr::Whole(value, dtype) => Scalar::Whole(wrap(*dtype, *value)),
            Expr::Load { arg, index, guard, other } => {
                let read = match guard {
                    Some(guard) => self.value(*guard, args)?.is_true(),
                    None => true,
                };
                match read {
                    true => {
                        let position = usize::try_from(self.position(*index, args)?).ok()?;
                        args.get(*arg as usize)?.get(position)?
                    }
                    false if dtype.is_float() => Scalar::Real(other.0),
                    false => Scalar::Whole(other.0 as i64),
                }
            }
            Expr::Unary(f, x) => unary(*f, exprs.dtype(*x), self.value(*x, args)?),
            Expr::Binary(f, x, y) => binary(*f, dtype, self.value(*x, args)?, self.value(*y, args)?),
            Expr::Compare(f, x, y) if exprs.ty(*x) == super::Ty::Index => {
                let (x, y) = (self.position(*x, args)?, self.position(*y, args)?);
                compare(*f, x.partial_cmp(&y))
            }
            Expr::Compare(f, x, y) => {
                let x_id = x;
                let order = match (self.value(*x, args)?, self.value(*y, args)?) {
                    (Scalar::Whole(x), Scalar::Whole(y)) if exprs.dtype(*x_id) == DType::U64 => {
                        (x as u64).partial_cmp(&(y as u64))
                    }
                    (Scalar::Whole(x), Scalar::Whole(y)) => x.partial_cmp(&y),
                    (x, y) => x.real().partial_cmp(&y.real()),
                };
                compare(*f, order)
            }
            Expr::Select(c, x, y) => {
                let chosen = if self.value(*c, args)?.is_true() { *x } else { *y };
                self.value(chosen, args)?
            }
            Expr::Convert(to, x) => convert(*to, self.value(*x, args)?),
            Expr::Fold { kind, var, body } => return self.fold(*kind, *var, *body, args),
            Expr::Reduced(position, _) => *self.reduced.get(*position as usize)?,
            Expr::Hero(_) => self.hero,
            Expr::Sum { .. }
            | Expr::Var(_)
            | Expr::Div(..)
            | Expr::Mod(..)
            | Expr::Min(..)
            | Expr::Wrapped(..) => {
                return None;
            }
        };
        self.memo[id.0 as usize] = Some(value);
        Some(value)
    }

    fn fold(&mut self, kind: Fold, var: Var, body: ExprId, args: &[Array]) -> Option<Scalar> {
        let dtype = self.program.exprs.dtype(body);
        let mut result = neutral(kind, dtype);
        let mut best: Option<Scalar> = None;
        for i in 0..self.program.exprs.extent(var) {
            self.set(&[(var, i)]);
            let value = self.value(body, args)?;
            if kind.is_position() {
                if best.is_none_or(|best| takes_over(kind, best, value)) {
                    best = Some(value);
                    result = Scalar::Whole(i);
                }
            } else {
                result = combine(kind, dtype, result, value);
            }
        }
        self.memo.fill(None);
        Some(result)
    }
}
