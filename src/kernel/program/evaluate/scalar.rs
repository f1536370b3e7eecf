//! One element in f64 or i64, and what the operations make of it.

use crate::ir::{Binary, Compare, DType, ScatterKind, Unary, random_bits};
use crate::kernel::program::Fold;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    Real(f64),
    Whole(i64),
}

impl Scalar {
    pub(super) fn real(self) -> f64 {
        match self {
            Self::Real(x) => x,
            Self::Whole(x) => x as f64,
        }
    }

    pub(super) fn whole(self) -> i64 {
        match self {
            Self::Real(x) => x as i64,
            Self::Whole(x) => x,
        }
    }

    pub(super) fn is_true(self) -> bool {
        self != Self::Whole(0)
    }
}

/// What stands where an update falls.
pub(super) fn scattered(kind: ScatterKind, dtype: DType, old: Scalar, update: Scalar) -> Scalar {
    let fold = match kind {
        ScatterKind::Replace => return update,
        ScatterKind::Add => Fold::Sum,
        ScatterKind::Mul => Fold::Prod,
        ScatterKind::Max => Fold::Max,
        ScatterKind::Min => Fold::Min,
    };
    combine(fold, dtype, old, update)
}

/// Whether a later element takes the place of the best one so far. One that is not a number is the
/// extreme one, as for the CPU's kernels.
pub(super) fn takes_over(kind: Fold, best: Scalar, value: Scalar) -> bool {
    let (largest, last) = match kind {
        Fold::ArgMax { last } => (true, last),
        Fold::ArgMin { last } => (false, last),
        Fold::Sum | Fold::Prod | Fold::Max | Fold::Min => return false,
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

pub(super) fn neutral(kind: Fold, dtype: DType) -> Scalar {
    let whole = |value: i64| Scalar::Whole(value);
    let (lowest, highest) = match dtype {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U8 => (0, 255),
        DType::U16 => (0, i64::from(u16::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        // Those of 64 bits are held as the signed numbers of the same bits.
        DType::U64 => (0, -1),
        DType::Bool => (0, 1),
        // Floats have infinities for it, below.
        DType::I64 | DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => (i64::MIN, i64::MAX),
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

pub(super) fn combine(kind: Fold, dtype: DType, x: Scalar, y: Scalar) -> Scalar {
    let op = match kind {
        Fold::Sum => Binary::Add,
        Fold::Prod => Binary::Mul,
        Fold::Max | Fold::ArgMax { .. } => Binary::Max,
        Fold::Min | Fold::ArgMin { .. } => Binary::Min,
    };
    binary(op, dtype, x, y)
}

/// An integer in the width of its type.
pub(super) fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(value as i8),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::U8 => i64::from(value as u8),
        DType::U16 => i64::from(value as u16),
        DType::U32 => i64::from(value as u32),
        DType::Bool => i64::from(value != 0),
        DType::I64 | DType::U64 | DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => value,
    }
}

pub(super) fn convert(to: DType, value: Scalar) -> Scalar {
    match (to, value) {
        (DType::Bool, Scalar::Real(x)) => Scalar::Whole(i64::from(x != 0.0)),
        (to, value) if to.is_float() => Scalar::Real(value.real()),
        (DType::U16, Scalar::Real(x)) => Scalar::Whole(i64::from(x as u16)),
        (DType::U32, Scalar::Real(x)) => Scalar::Whole(i64::from(x as u32)),
        (DType::U64, Scalar::Real(x)) => Scalar::Whole(x as u64 as i64),
        (DType::I8, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i8)),
        (DType::I16, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i16)),
        (DType::I32, Scalar::Real(x)) => Scalar::Whole(i64::from(x as i32)),
        (DType::U8, Scalar::Real(x)) => Scalar::Whole(i64::from(x as u8)),
        (DType::I64 | DType::F32 | DType::F64 | DType::F16 | DType::Bf16, Scalar::Real(x)) => {
            Scalar::Whole(x as i64)
        }
        (to, Scalar::Whole(x)) => Scalar::Whole(wrap(to, x)),
    }
}

pub(super) fn compare(f: Compare, order: Option<std::cmp::Ordering>) -> Scalar {
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

pub(super) fn binary(f: Binary, dtype: DType, x: Scalar, y: Scalar) -> Scalar {
    match (x, y) {
        (Scalar::Whole(x), Scalar::Whole(y)) => Scalar::Whole(wrap(dtype, integers(f, dtype, x, y))),
        (x, y) => Scalar::Real(reals(f, x.real(), y.real())),
    }
}

pub(super) fn integers(f: Binary, dtype: DType, x: i64, y: i64) -> i64 {
    let (whole, other) = (x as u64, y as u64);
    match f {
        Binary::Div if dtype == DType::U64 => whole.checked_div(other).unwrap_or(0) as i64,
        Binary::Mod | Binary::Rem if dtype == DType::U64 => whole.checked_rem(other).unwrap_or(0) as i64,
        Binary::Max if dtype == DType::U64 => whole.max(other) as i64,
        Binary::Min if dtype == DType::U64 => whole.min(other) as i64,
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

pub(super) fn reals(f: Binary, x: f64, y: f64) -> f64 {
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

pub(super) fn unary(f: Unary, dtype: DType, x: Scalar) -> Scalar {
    let x = match x {
        Scalar::Real(x) => x,
        Scalar::Whole(x) => {
            let unsigned = dtype == DType::U64;
            return Scalar::Whole(match f {
                Unary::Abs | Unary::Relu if unsigned => x,
                Unary::Sign if unsigned => i64::from(x != 0),
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
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Detach => x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => libm::erf(x),
        Unary::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Unary::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
        Unary::Silu => x * sigmoid(x),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::Not => return Scalar::Whole(i64::from(x == 0.0)),
        Unary::IsNan => return Scalar::Whole(i64::from(x.is_nan())),
        Unary::IsInf => return Scalar::Whole(i64::from(x.is_infinite())),
    })
}
