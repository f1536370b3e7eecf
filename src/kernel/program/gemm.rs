//! Products that a library of matrix products computes as well: matrices that lie in memory row by row
//! or column by column, a bias along the columns, one of a few activations.

use super::{Body, Expr, ExprId, Program, ScatterKind, Var};
use crate::ir::{Binary, DType, Unary};

/// Elements between neighbours of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From one matrix of the batch to the next.
    pub batch: i64,
    /// From one row to the next.
    pub row: i64,
    /// From one column to the next.
    pub column: i64,
}

/// What is done with each sum, and its bias, before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// What is negative becomes zero.
    Relu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
}

/// `out[b] = activation(left[b] * right[b] + bias)`, all of one type, summed in f32 where that is a half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Type of the elements.
    pub dtype: DType,
    /// Number of products.
    pub batch: i64,
    /// Rows of the left operand.
    pub rows: i64,
    /// Columns of the right operand.
    pub columns: i64,
    /// What is summed over.
    pub inner: i64,
    /// `rows` x `inner`; one of the two strides is 1.
    pub left: Strides,
    /// `inner` x `columns`; one of the two strides is 1.
    pub right: Strides,
    /// `rows` x `columns`; neighbours of a row lie beside one another.
    pub out: Strides,
    /// Whether each row has a bias of `columns` elements added.
    pub bias: bool,
    /// What follows.
    pub activation: Activation,
}

impl Gemm {
    /// Multiplications and additions, two for each term.
    pub fn flops(&self) -> u64 {
        let product = [self.batch, self.rows, self.columns, self.inner];
        product.iter().fold(2, |all, &size| all.saturating_mul(size.max(0).unsigned_abs()))
    }
}

impl std::fmt::Display for Gemm {
    /// Sizes, type and what follows, such as `3 x 64 x 128 x 32 bf16 + bias, gelu_tanh`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.batch != 1 {
            write!(f, "{} x ", self.batch)?;
        }
        write!(f, "{} x {} x {} {}", self.rows, self.columns, self.inner, self.dtype)?;
        f.write_str(if self.bias { " + bias" } else { "" })?;
        f.write_str(match self.activation {
            Activation::None => "",
            Activation::Relu => ", relu",
            Activation::GeluTanh => ", gelu_tanh",
        })
    }
}

/// A product and the arguments of its program, each with the element at which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GemmCall {
    /// The product.
    pub gemm: Gemm,
    /// The left operand.
    pub left: (u32, u64),
    /// The right operand.
    pub right: (u32, u64),
    /// The bias.
    pub bias: Option<(u32, u64)>,
    /// The result.
    pub out: (u32, u64),
}

/// A program as one call of a library; none where a library has no such product. O(expressions of the
/// stored value).
pub fn gemm(program: &Program) -> Option<GemmCall> {
    let Body::Product { batch, row, column, inner, left, right, stores } = &program.body else {
        return None;
    };
    let reader = Reader { program, vars: [*batch, *row, *column, *inner] };
    let [store] = &stores[..] else { return None };
    if store.guard.is_some() || store.kind != ScatterKind::Replace {
        return None;
    }
    let extent = |var: &Var| program.exprs.extent(*var);
    let [b, m, n, k] = [batch, row, column, inner].map(extent);
    let dtype = program.exprs.dtype(*left);
    let known = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16);
    if !known || [b, m, n, k].iter().any(|&size| size < 1) {
        return None;
    }
    let (left_arg, x) = reader.load(*left, dtype)?;
    let (right_arg, y) = reader.load(*right, dtype)?;
    let out = reader.index(store.index)?;
    let written = &program.args[store.arg as usize];
    let left = Strides { batch: x.along[0], row: x.stride(1, m, k), column: x.stride(3, k, m) };
    let right = Strides { batch: y.along[0], row: y.stride(3, k, n), column: y.stride(2, n, k) };
    let result = Strides { batch: out.along[0], row: out.stride(1, m, n), column: out.stride(2, n, 1) };
    let apart = x.along[2] == 0 && y.along[1] == 0 && out.along[3] == 0 && written.dtype == dtype;
    if !apart || !is_matrix(left, m, k) || !is_matrix(right, k, n) || result.column != 1 || result.row < n {
        return None;
    }
    let (bias, activation) = reader.epilogue(store.value, dtype)?;
    let gemm = Gemm {
        dtype,
        batch: b,
        rows: m,
        columns: n,
        inner: k,
        left,
        right,
        out: result,
        bias: bias.is_some(),
        activation,
    };
    Some(GemmCall {
        gemm,
        left: (left_arg, x.start),
        right: (right_arg, y.start),
        bias,
        out: (store.arg, out.start),
    })
}

/// Whether rows or columns lie one after the other without overlapping.
fn is_matrix(strides: Strides, rows: i64, columns: i64) -> bool {
    strides.batch >= 0
        && (strides.column == 1 && strides.row >= columns || strides.row == 1 && strides.column >= rows)
}

/// An index that is a constant and multiples of the product's variables.
struct Linear {
    start: u64,
    /// By batch, row, column, inner.
    along: [i64; 4],
}

impl Linear {
    /// The stride along a variable; one that does no harm where the variable has but one value.
    fn stride(&self, var: usize, extent: i64, other: i64) -> i64 {
        match extent {
            1 => other.max(1),
            _ => self.along[var],
        }
    }
}

struct Reader<'a> {
    program: &'a Program,
    vars: [Var; 4],
}

impl Reader<'_> {
    fn index(&self, id: ExprId) -> Option<Linear> {
        let (constant, terms) = self.program.exprs.terms(id);
        let mut linear = Linear { start: u64::try_from(constant).ok()?, along: [0; 4] };
        for (term, factor) in terms {
            let Expr::Var(var) = *self.program.exprs.get(term) else { return None };
            linear.along[self.vars.iter().position(|&own| own == var)?] = factor;
        }
        Some(linear)
    }

    /// An element that is loaded as it is.
    fn load(&self, id: ExprId, dtype: DType) -> Option<(u32, Linear)> {
        match *self.program.exprs.get(id) {
            Expr::Load { arg, index, guard: None, .. } if self.program.exprs.dtype(id) == dtype => {
                Some((arg, self.index(index)?))
            }
            _ => None,
        }
    }

    fn is_hero(&self, id: ExprId) -> bool {
        matches!(self.program.exprs.get(id), Expr::Hero(_))
    }

    /// The bias and the activation of a stored value.
    fn epilogue(&self, value: ExprId, dtype: DType) -> Option<(Option<(u32, u64)>, Activation)> {
        let (inner, activation) = match *self.program.exprs.get(value) {
            Expr::Unary(Unary::Relu, x) => (x, Activation::Relu),
            Expr::Unary(Unary::GeluTanh, x) => (x, Activation::GeluTanh),
            _ => (value, Activation::None),
        };
        if self.is_hero(inner) {
            return Some((None, activation));
        }
        let Expr::Binary(Binary::Add, x, y) = *self.program.exprs.get(inner) else { return None };
        let other = match (self.is_hero(x), self.is_hero(y)) {
            (true, false) => y,
            (false, true) => x,
            _ => return None,
        };
        let (arg, index) = self.load(other, dtype)?;
        (index.along == [0, 0, 1, 0]).then_some((Some((arg, index.start)), activation))
    }
}
