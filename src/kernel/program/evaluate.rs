//! What a kernel program computes, in f64 and i64, one point after the other: the reference for
//! printers, with which it shares no code.

mod scatter;

use super::attend::attention;
use super::{Body, Expr, ExprId, Fold, Layer, Program, Store, Var};
use crate::error::{Error, Result};
use crate::ir::{Binary, Cell, Compare, DType, Direction, ScatterKind, Unary, random_bits};

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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Real(f64),
    Whole(i64),
}

impl Scalar {
    fn real(self) -> f64 {
        match self {
            Self::Real(x) => x,
            Self::Whole(x) => x as f64,
        }
    }

    fn whole(self) -> i64 {
        match self {
            Self::Real(x) => x as i64,
            Self::Whole(x) => x,
        }
    }

    fn is_true(self) -> bool {
        self != Self::Whole(0)
    }
}

/// Runs a program on its arguments, in order; those that are written are changed.
///
/// Errors: an index outside its argument, an argument that is missing. As slow as it is plain.
pub fn evaluate(program: &Program, args: &mut [Array]) -> Result<()> {
    if program.is_empty() {
        return Ok(());
    }
    let count = program.exprs.len();
    let vars = vec![0; program.exprs.vars()];
    let mut machine =
        Machine { program, vars, reduced: Vec::new(), hero: Scalar::Whole(0), memo: vec![None; count] };
    machine.run(args).ok_or_else(|| Error::Internal(format!("kernel {} reaches outside", program.name)))
}

struct Machine<'a> {
    program: &'a Program,
    vars: Vec<i64>,
    reduced: Vec<Scalar>,
    hero: Scalar,
    /// By expression: its value while no variable changes.
    memo: Vec<Option<Scalar>>,
}

/// What stands where an update falls.
fn scattered(kind: ScatterKind, dtype: DType, old: Scalar, update: Scalar) -> Scalar {
    let fold = match kind {
        ScatterKind::Replace => return update,
        ScatterKind::Add => Fold::Sum,
        ScatterKind::Mul => Fold::Prod,
        ScatterKind::Max => Fold::Max,
        ScatterKind::Min => Fold::Min,
    };
    combine(fold, dtype, old, update)
}

impl Machine<'_> {
    fn run(&mut self, args: &mut [Array]) -> Option<()> {
        let program = self.program;
        let extent = |var: Var| program.exprs.extent(var);
        match &program.body {
            Body::Map { point, stores } => (0..extent(*point)).try_for_each(|p| {
                self.set(&[(*point, p)]);
                self.store(stores, args)
            }),
            Body::Lines { line, step, running, stores } => (0..extent(*line)).try_for_each(|l| {
                let mut sum = match program.exprs.dtype(running.as_ref().map_or(ExprId(0), |r| r.value)) {
                    dtype if dtype.is_float() => Scalar::Real(0.0),
                    _ => Scalar::Whole(0),
                };
                (0..extent(*step)).try_for_each(|s| {
                    self.set(&[(*line, l), (*step, s)]);
                    if let Some(running) = running {
                        let dtype = program.exprs.dtype(running.value);
                        let next = combine(Fold::Sum, dtype, sum, self.value(running.value, args)?);
                        self.set(&[(*line, l), (*step, s)]);
                        self.hero = if running.exclusive { sum } else { next };
                        sum = next;
                    }
                    self.store(stores, args)
                })
            }),
            Body::Rows { row, column, reductions, stores, row_stores, .. } => {
                (0..extent(*row)).try_for_each(|r| {
                    self.reduced.clear();
                    for reduction in reductions {
                        self.set(&[(*row, r)]);
                        let result = self.fold(reduction.kind, *column, reduction.value, args)?;
                        self.reduced.push(result);
                    }
                    self.set(&[(*row, r)]);
                    self.store(row_stores, args)?;
                    if stores.is_empty() {
                        return Some(());
                    }
                    (0..extent(*column)).try_for_each(|c| {
                        self.set(&[(*row, r), (*column, c)]);
                        self.store(stores, args)
                    })
                })
            }
            Body::Tile { batch, row, column, value, stores } => {
                self.grid(&[*batch, *row, *column], args, |machine, args| {
                    machine.hero = machine.value(*value, args)?;
                    machine.memo.fill(None);
                    machine.store(stores, args)
                })
            }
            Body::Product { batch, row, column, inner, left, right, stores } => {
                self.grid(&[*batch, *row, *column], args, |machine, args| {
                    machine.hero = machine.dot(*inner, *left, *right, args)?;
                    machine.memo.fill(None);
                    machine.store(stores, args)
                })
            }
            Body::Scatter(scatter) => self.scatter(scatter, args),
            Body::Recurrent(layer) => recurrent(layer, args),
            Body::Attention(heads) => attention(heads, args),
        }
    }

    /// Runs `body` at every point of the variables' ranges.
    fn grid(
        &mut self,
        vars: &[Var],
        args: &mut [Array],
        mut body: impl FnMut(&mut Self, &mut [Array]) -> Option<()>,
    ) -> Option<()> {
        let extents: Vec<i64> = vars.iter().map(|&var| self.program.exprs.extent(var)).collect();
        for point in 0..extents.iter().product::<i64>() {
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
        // All is computed before anything is written: a result may lie where an operand did.
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
                let order = match (self.value(*x, args)?, self.value(*y, args)?) {
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

/// Whether a later element takes the place of the best one so far. One that is not a number is the
/// extreme one, as for the CPU's kernels.
fn takes_over(kind: Fold, best: Scalar, value: Scalar) -> bool {
    let (largest, last) = match kind {
        Fold::ArgMax { last } => (true, last),
        Fold::ArgMin { last } => (false, last),
        _ => return false,
    };
    let order = match (best, value) {
        (Scalar::Whole(x), Scalar::Whole(y)) => y.partial_cmp(&x),
        (x, y) => y.real().partial_cmp(&x.real()),
    };
    let order = if largest { order } else { order.map(std::cmp::Ordering::reverse) };
    match order {
        Some(std::cmp::Ordering::Greater) => true,
        Some(std::cmp::Ordering::Equal) => last,
        _ => false,
    }
}

fn neutral(kind: Fold, dtype: DType) -> Scalar {
    let whole = |value: i64| Scalar::Whole(value);
    let (lowest, highest) = match dtype {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U8 => (0, 255),
        DType::Bool => (0, 1),
        _ => (i64::MIN, i64::MAX),
    };
    match (kind, dtype.is_float()) {
        (Fold::Sum, true) => Scalar::Real(0.0),
        (Fold::Sum, false) | (Fold::ArgMax { .. } | Fold::ArgMin { .. }, _) => whole(0),
        (Fold::Prod, true) => Scalar::Real(1.0),
        (Fold::Prod, false) => whole(1),
        (Fold::Max, true) => Scalar::Real(f64::NEG_INFINITY),
        (Fold::Max, false) => whole(lowest),
        (Fold::Min, true) => Scalar::Real(f64::INFINITY),
        (Fold::Min, false) => whole(highest),
    }
}

fn combine(kind: Fold, dtype: DType, x: Scalar, y: Scalar) -> Scalar {
    let op = match kind {
        Fold::Sum => Binary::Add,
        Fold::Prod => Binary::Mul,
        Fold::Max | Fold::ArgMax { .. } => Binary::Max,
        Fold::Min | Fold::ArgMin { .. } => Binary::Min,
    };
    binary(op, dtype, x, y)
}

/// An integer in the width of its type.
fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::U8 => i64::from(value as u8),
        DType::Bool => i64::from(value != 0),
        _ => value,
    }
}

fn convert(to: DType, value: Scalar) -> Scalar {
    match (to, value) {
        (DType::Bool, Scalar::Real(x)) => Scalar::Whole(i64::from(x != 0.0)),
        (to, value) if to.is_float() => Scalar::Real(value.real()),
        (DType::I8, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i8)),
        (DType::I16, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i16)),
        (DType::I32, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i32)),
        (DType::U8, Scalar::Real(x)) => Scalar::Whole(i64::from(x as u8)),
        (_, Scalar::Real(x)) => Scalar::Whole(x as i64),
        (to, Scalar::Whole(x)) => Scalar::Whole(wrap(to, x)),
    }
}

fn compare(f: Compare, order: Option<std::cmp::Ordering>) -> Scalar {
    let holds = match f {
        Compare::Eq => order.is_some_and(std::cmp::Ordering::is_eq),
        Compare::Ne => !order.is_some_and(std::cmp::Ordering::is_eq),
        Compare::Lt => order.is_some_and(std::cmp::Ordering::is_lt),
        Compare::Le => order.is_some_and(std::cmp::Ordering::is_le),
        Compare::Gt => order.is_some_and(std::cmp::Ordering::is_gt),
        Compare::Ge => order.is_some_and(std::cmp::Ordering::is_ge),
    };
    Scalar::Whole(i64::from(holds))
}

fn binary(f: Binary, dtype: DType, x: Scalar, y: Scalar) -> Scalar {
    match (x, y) {
        (Scalar::Whole(x), Scalar::Whole(y)) => Scalar::Whole(wrap(dtype, integers(f, dtype, x, y))),
        (x, y) => Scalar::Real(reals(f, x.real(), y.real())),
    }
}

fn integers(f: Binary, dtype: DType, x: i64, y: i64) -> i64 {
    match f {
        Binary::Add => x.wrapping_add(y),
        Binary::Sub => x.wrapping_sub(y),
        Binary::Mul => x.wrapping_mul(y),
        Binary::Div if y == 0 => 0,
        Binary::Div => x.wrapping_div(y),
        Binary::Mod | Binary::Rem if y == 0 => 0,
        Binary::Mod => {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
        }
        Binary::Rem => x.wrapping_rem(y),
        Binary::Pow if y < 0 => convert(dtype, Scalar::Real((x as f64).powf(y as f64))).whole(),
        Binary::Pow => x.wrapping_pow(u32::try_from(y).unwrap_or(u32::MAX)),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::Hash => random_bits(x, y),
    }
}

fn reals(f: Binary, x: f64, y: f64) -> f64 {
    match f {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Mod => {
            let rest = x % y;
            if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
        }
        Binary::Rem => x % y,
        Binary::Pow => x.powf(y),
        Binary::Max if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Max => x.max(y),
        Binary::Min if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Min => x.min(y),
        Binary::And | Binary::Or | Binary::Xor | Binary::Hash => f64::NAN,
    }
}

fn unary(f: Unary, dtype: DType, x: Scalar) -> Scalar {
    let x = match x {
        Scalar::Real(x) => x,
        Scalar::Whole(x) => {
            return Scalar::Whole(match f {
                Unary::Neg => wrap(dtype, x.wrapping_neg()),
                Unary::Abs => wrap(dtype, x.wrapping_abs()),
                Unary::Sign => x.signum(),
                Unary::Relu => x.max(0),
                Unary::Not => i64::from(x == 0),
                _ => 0,
            });
        }
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    Scalar::Real(match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x > 0.0 => 1.0,
        Unary::Sign if x < 0.0 => -1.0,
        Unary::Sign => x,
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => erf(x),
        Unary::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Unary::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
        Unary::Silu => x * sigmoid(x),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::Not => return Scalar::Whole(i64::from(x == 0.0)),
        Unary::IsNan => return Scalar::Whole(i64::from(x.is_nan())),
        Unary::IsInf => return Scalar::Whole(i64::from(x.is_infinite())),
    })
}

/// The error function: its series near zero, else the continued fraction of its complement
/// (Abramowitz and Stegun, 7.1.5 and 7.1.14).
fn erf(x: f64) -> f64 {
    let square = x * x;
    if square < 6.25 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -square / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    if !x.is_finite() || x.abs() > 7.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let magnitude = x.abs();
    let rest = (1..=60).rev().fold(magnitude, |rest, n| magnitude + f64::from(n) / 2.0 / rest);
    let complement = (-square).exp() * std::f64::consts::FRAC_2_SQRT_PI / 2.0 / rest;
    x.signum() * (1.0 - complement)
}

/// A recurrent layer, as [`crate::ir::Recurrent`] defines it.
fn recurrent(layer: &Layer, args: &mut [Array]) -> Option<()> {
    let read = |position: usize| -> Option<Vec<f64>> {
        let Array::Real(list) = args.get(*layer.reads.get(position)? as usize)? else { return None };
        Some(list.clone())
    };
    let (x, w, r, b, initial) = (read(0)?, read(1)?, read(2)?, read(3)?, read(4)?);
    let cells = if layer.reads.len() > 5 { Some(read(5)?) } else { None };
    let size = |size: i64| usize::try_from(size).ok();
    let (time, batch, features) = (size(layer.time)?, size(layer.batch)?, size(layer.features)?);
    let hidden = size(layer.cell.hidden)?;
    let gates = match layer.cell.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let directions = if layer.cell.direction == Direction::Bidirectional { 2 } else { 1 };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for d in 0..directions {
        let backwards = layer.cell.direction == Direction::Reverse || d == 1;
        for n in 0..batch {
            let start = (d * batch + n) * hidden;
            let mut state = initial.get(start..start + hidden)?.to_vec();
            let mut cell = match &cells {
                Some(cells) => cells.get(start..start + hidden)?.to_vec(),
                None => vec![0.0; hidden],
            };
            for step in 0..time {
                let t = if backwards { time - 1 - step } else { step };
                let input = &x[(t * batch + n) * features..][..features];
                let row = |gate: usize, j: usize| d * gates * hidden + gate * hidden + j;
                let bias =
                    |gate: usize, j: usize, of: usize| b[(2 * d + of) * gates * hidden + gate * hidden + j];
                let from_input =
                    |gate, j| dot(&w[row(gate, j) * features..][..features], input) + bias(gate, j, 0);
                let from_state = |gate, j, state: &[f64]| {
                    dot(&r[row(gate, j) * hidden..][..hidden], state) + bias(gate, j, 1)
                };
                let gate = |gate, j| from_input(gate, j) + from_state(gate, j, &state);
                let next: Vec<f64> = match layer.cell.cell {
                    Cell::Rnn => (0..hidden).map(|j| gate(0, j).tanh()).collect(),
                    Cell::Lstm => (0..hidden)
                        .map(|j| {
                            let (i, o, f, c) = (gate(0, j), gate(1, j), gate(2, j), gate(3, j));
                            cell[j] = sigmoid(f) * cell[j] + sigmoid(i) * c.tanh();
                            sigmoid(o) * cell[j].tanh()
                        })
                        .collect(),
                    kind => {
                        let reset: Vec<f64> = (0..hidden).map(|j| sigmoid(gate(1, j))).collect();
                        let damped: Vec<f64> = reset.iter().zip(&state).map(|(r, h)| r * h).collect();
                        (0..hidden)
                            .map(|j| {
                                let update = sigmoid(gate(0, j));
                                let inner = match kind {
                                    Cell::Gru => from_state(2, j, &damped),
                                    _ => reset[j] * from_state(2, j, &state),
                                };
                                (1.0 - update) * (from_input(2, j) + inner).tanh() + update * state[j]
                            })
                            .collect()
                    }
                };
                state = next;
                for (j, &value) in state.iter().enumerate() {
                    let at = ((t * directions + d) * batch + n) * hidden + j;
                    args.get_mut(layer.writes[0] as usize)?.set(at, Scalar::Real(value))?;
                }
            }
            for j in 0..hidden {
                args.get_mut(*layer.writes.get(1)? as usize)?.set(start + j, Scalar::Real(state[j]))?;
                if let Some(&last) = layer.writes.get(2) {
                    args.get_mut(last as usize)?.set(start + j, Scalar::Real(cell[j]))?;
                }
            }
        }
    }
    Some(())
}
