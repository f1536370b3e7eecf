//! Products that a library of matrix products computes as well: matrices that are in memory row by row
//! or column by column, a matrix and a bias that are added, one of a few activations, and beside the product
//! the sums of one of its operands, as a bias's gradient is of the operand of the weights' gradient.
//!
//! An activation's gradient is not among them, though cuBLASLt has those of ReLU and GELU: the one reads a mask of
//! bits that only its own forward product writes, which is no tensor of the graph, so that plans could neither count
//! nor move it.

use super::{Along, Body, Expr, ExprId, Fold, Place, Program, Reduction, ScatterKind, Store, Var};
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

impl Strides {
    /// From one line of neighbours to the next.
    pub fn pitch(&self) -> i64 {
        if self.column == 1 { self.row } else { self.column }
    }
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

/// An operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Its sums are one for each row of the result.
    Left,
    /// Its sums are one for each column of the result.
    Right,
}

/// `out[b] = activation(left[b] * right[b] + addend[b] + bias)`, all of one type, summed in f32 where that is a half. A
/// product of halves with nothing behind it may keep these sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Type of the elements.
    pub dtype: DType,
    /// Type of the result: that of the elements, or f32.
    pub made: DType,
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
    /// `rows` x `columns`; neighbours of a row are beside one another.
    pub out: Strides,
    /// Whether each row has a bias of `columns` elements added.
    pub bias: bool,
    /// How the matrix is stored that is added, if any: `rows` x `columns`, neighbours of a row beside one another.
    pub addend: Option<Strides>,
    /// What follows.
    pub activation: Activation,
    /// The operand of which the sums over `inner` are written as well, if any.
    pub sums: Option<Side>,
}

impl Gemm {
    /// Multiplications and additions, two for each term.
    pub fn flops(&self) -> u64 {
        let product = [self.batch, self.rows, self.columns, self.inner];
        product.iter().fold(2, |all, &size| all.saturating_mul(size.max(0).unsigned_abs()))
    }
}

impl std::fmt::Display for Gemm {
    /// Sizes, type and what follows, such as `3 x 64 x 128 x 32 bf16 + bias, gelu_tanh` or `64 x 128 x 32 bf16 to f32`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.batch != 1 {
            write!(f, "{} x ", self.batch)?;
        }
        write!(f, "{} x {} x {} {}", self.rows, self.columns, self.inner, self.dtype)?;
        if self.made != self.dtype {
            write!(f, " to {}", self.made)?;
        }
        f.write_str(if self.bias { " + bias" } else { "" })?;
        f.write_str(if self.addend.is_some() { " + matrix" } else { "" })?;
        f.write_str(match self.activation {
            Activation::None => "",
            Activation::Relu => ", relu",
            Activation::GeluTanh => ", gelu_tanh",
        })?;
        f.write_str(match self.sums {
            None => "",
            Some(Side::Left) => ", sums of rows",
            Some(Side::Right) => ", sums of columns",
        })
    }
}

/// Whose bytes an operand is, and the element at which it begins.
pub type At = (Place, u64);

/// A product and where its operands lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GemmCall {
    /// The product.
    pub gemm: Gemm,
    /// The left operand.
    pub left: At,
    /// The right operand.
    pub right: At,
    /// The bias.
    pub bias: Option<At>,
    /// What is added.
    pub addend: Option<At>,
    /// The result.
    pub out: At,
    /// The sums.
    pub sums: Option<At>,
}

/// A program as one call of a library; none where a library has no such product. O(expressions of the
/// stored value).
pub fn gemm(program: &Program) -> Option<GemmCall> {
    let Body::Product { batch, row, column, inner, left, right, stores, .. } = &program.body else {
        return None;
    };
    let reader = Reader { program, vars: [*batch, *row, *column, *inner] };
    let [store] = &stores[..] else { return None };
    // A library writes every element once, and has the workspace to itself.
    let is_kept = matches!(program.args[store.arg as usize].place, Place::Workspace(_));
    if store.guard.is_some() || store.kind != ScatterKind::Replace || is_kept {
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
    // Each operand depends on its own two sizes alone, or it is no matrix product as libraries know it.
    let separable = x.along[2] == 0 && y.along[1] == 0 && out.along[3] == 0;
    // Sums that are kept as they are: of what follows, too, the types would have to be told apart.
    let is_sum = matches!(program.exprs.get(store.value), Expr::Hero(_));
    let made = written.dtype;
    if made != dtype && !(dtype.is_half() && made == DType::F32 && is_sum) {
        return None;
    }
    if !separable || !is_matrix(left, m, k) || !is_matrix(right, k, n) || result.column != 1 || result.row < n
    {
        return None;
    }
    let Epilogue { bias, addend, activation } = reader.epilogue(store.value, dtype, [b, m, n])?;
    let gemm = Gemm {
        dtype,
        made,
        batch: b,
        rows: m,
        columns: n,
        inner: k,
        left,
        right,
        out: result,
        bias: bias.is_some(),
        addend: addend.map(|(strides, _)| strides),
        activation,
        sums: None,
    };
    let place = |arg: u32| program.args[arg as usize].place;
    Some(GemmCall {
        gemm,
        left: (place(left_arg), x.start),
        right: (place(right_arg), y.start),
        bias,
        addend: addend.map(|(_, at)| at),
        out: (place(store.arg), out.start),
        sums: None,
    })
}

/// A product that writes what another program does as well: the sums over `inner` of one of its operands. None
/// where the program does something else, or the library has no such product: it has them of one matrix in f32 and
/// halves, with nothing else behind the product. O(expressions of the program).
pub fn with_sums(call: &GemmCall, program: &Program) -> Option<GemmCall> {
    let gemm = &call.gemm;
    let plain = gemm.batch == 1
        && gemm.made == gemm.dtype
        && !gemm.bias
        && gemm.addend.is_none()
        && gemm.activation == Activation::None;
    let Body::Rows { row, column, along: Along::Rows, reductions, stores, row_stores, .. } = &program.body
    else {
        return None;
    };
    let ([Reduction { kind: Fold::Sum, value }], [], [store]) =
        (&reductions[..], &stores[..], &row_stores[..])
    else {
        return None;
    };
    let Store { arg, index, value: sum, guard: None, kind: ScatterKind::Replace } = *store else {
        return None;
    };
    let whole = matches!(program.exprs.get(sum), Expr::Reduced(0, _));
    let dtype = program.exprs.dtype(sum);
    if !plain || !whole || gemm.dtype != dtype || dtype == DType::F64 {
        return None;
    }
    let reader = Reader { program, vars: [*row, *column] };
    let (from, read) = reader.load(*value, dtype)?;
    let written = reader.index(index)?;
    // A reduction and a product of the same operand in the same order, or their sums would differ.
    let place = |arg: u32| program.args[arg as usize].place;
    let sizes = [*row, *column].map(|var| program.exprs.extent(var));
    let is = |(operand, start): At, strides: [i64; 2], size: i64| {
        (operand, start) == (place(from), read.start)
            && read.along == strides
            && sizes == [size, gemm.inner]
            && sizes.iter().all(|&size| size > 1)
    };
    let side = if is(call.right, [gemm.right.column, gemm.right.row], gemm.columns) {
        Side::Right
    } else if is(call.left, [gemm.left.row, gemm.left.column], gemm.rows) {
        Side::Left
    } else {
        return None;
    };
    let sums = (written.along == [1, 0]).then_some((place(arg), written.start))?;
    Some(GemmCall { gemm: Gemm { sums: Some(side), ..gemm.clone() }, sums: Some(sums), ..call.clone() })
}

/// What is done with each sum of products.
struct Epilogue {
    bias: Option<At>,
    addend: Option<(Strides, At)>,
    activation: Activation,
}

/// Whether rows or columns are stored one after the other without overlapping.
fn is_matrix(strides: Strides, rows: i64, columns: i64) -> bool {
    strides.batch >= 0
        && (strides.column == 1 && strides.row >= columns || strides.row == 1 && strides.column >= rows)
}

/// An index that is a constant and multiples of some variables.
struct Linear<const N: usize> {
    start: u64,
    /// By variable.
    along: [i64; N],
}

impl Linear<4> {
    /// The stride along a variable; one that does no harm where the variable has but one value.
    fn stride(&self, var: usize, extent: i64, other: i64) -> i64 {
        match extent {
            1 => other.max(1),
            _ => self.along[var],
        }
    }
}

struct Reader<'a, const N: usize> {
    program: &'a Program,
    vars: [Var; N],
}

impl<const N: usize> Reader<'_, N> {
    fn index(&self, id: ExprId) -> Option<Linear<N>> {
        let (constant, terms) = self.program.exprs.terms(id);
        let mut linear = Linear { start: u64::try_from(constant).ok()?, along: [0; N] };
        for (term, factor) in terms {
            let Expr::Var(var) = *self.program.exprs.get(term) else { return None };
            linear.along[self.vars.iter().position(|&own| own == var)?] = factor;
        }
        Some(linear)
    }

    /// An element that is loaded as it is.
    fn load(&self, id: ExprId, dtype: DType) -> Option<(u32, Linear<N>)> {
        match *self.program.exprs.get(id) {
            Expr::Load { arg, index, guard: None, .. } if self.program.exprs.dtype(id) == dtype => {
                Some((arg, self.index(index)?))
            }
            _ => None,
        }
    }
}

/// Most that is summed up behind a product: the product, a bias and a matrix.
const TERMS: usize = 3;

impl Reader<'_, 4> {
    /// What makes a stored value of the sum of products.
    fn epilogue(&self, value: ExprId, dtype: DType, [b, m, n]: [i64; 3]) -> Option<Epilogue> {
        let exprs = &self.program.exprs;
        let (inner, activation) = match *exprs.get(value) {
            Expr::Unary(Unary::Relu, x) => (x, Activation::Relu),
            Expr::Unary(Unary::GeluTanh, x) => (x, Activation::GeluTanh),
            _ => (value, Activation::None),
        };
        let mut epilogue = Epilogue { bias: None, addend: None, activation };
        let (mut pending, mut products, mut terms) = (vec![inner], 0, 0);
        // Sums are taken apart in any order: what is added is one product, one bias and one matrix at most.
        while let Some(id) = pending.pop() {
            match *exprs.get(id) {
                Expr::Hero(_) => products += 1,
                Expr::Binary(Binary::Add, x, y) if terms < TERMS => {
                    terms += 1;
                    pending.extend([x, y]);
                }
                _ => {
                    let (arg, index) = self.load(id, dtype)?;
                    let at = (self.program.args[arg as usize].place, index.start);
                    let matrix = Strides {
                        batch: index.along[0],
                        row: index.stride(1, m, n),
                        column: index.stride(2, n, 1),
                    };
                    if index.along == [0, 0, 1, 0] && epilogue.bias.is_none() {
                        epilogue.bias = Some(at);
                    } else if index.along[3] == 0
                        && matrix.column == 1
                        && matrix.row >= n
                        && (b == 1 || matrix.batch > 0)
                        && epilogue.addend.is_none()
                    {
                        epilogue.addend = Some((matrix, at));
                    } else {
                        return None;
                    }
                }
            }
        }
        (products == 1).then_some(epilogue)
    }
}
