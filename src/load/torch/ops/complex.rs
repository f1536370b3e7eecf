//! Complex numbers: a graph has none, so a tensor of them is two, one of each part.
//!
//! What treats both parts alike is lowered once for each by its own family; the rest is here.

use super::super::call::{Call, Emit, Number, Parts};
use super::super::schema::TensorMeta;
use super::Lower;
use super::elementwise::angle_of;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Operations that give a part of the result from the same part of their operands: a real operand beside a complex one
/// has zeros for its imaginary part, and what is no number (a condition, places, a shape) is the same for both.
const OF_EACH_PART: [&str; 104] = [
    "_neg_view",
    "_unsafe_index",
    "_unsafe_view",
    "add",
    "alias",
    "as_strided",
    "as_strided_copy",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_to",
    "cat",
    "chunk",
    "clone",
    "column_stack",
    "constant_pad_nd",
    "contiguous",
    "copy",
    "cumsum",
    "detach",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "diagonal_scatter",
    "diff",
    "dropout",
    "dsplit",
    "dstack",
    "empty",
    "expand",
    "expand_as",
    "fft_fftshift",
    "fft_ifftshift",
    "fill",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "full",
    "gather",
    "hsplit",
    "hstack",
    "index",
    "index_add",
    "index_copy",
    "index_put",
    "index_select",
    "lift_fresh",
    "lift_fresh_copy",
    "mT",
    "masked_fill",
    "masked_select",
    "mean",
    "movedim",
    "narrow",
    "neg",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "numpy_T",
    "ones",
    "pad",
    "permute",
    "ravel",
    "repeat",
    "repeat_interleave",
    "reshape",
    "roll",
    "rot90",
    "rsub",
    "scalar_tensor",
    "select",
    "select_scatter",
    "slice",
    "slice_scatter",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "swapaxes",
    "t",
    "take_along_dim",
    "tensor_split",
    "tile",
    "trace",
    "transpose",
    "tril",
    "triu",
    "unbind",
    "unflatten",
    "unfold",
    "unfold_backward",
    "unsqueeze",
    "view",
    "view_as",
    "vsplit",
    "vstack",
    "zero",
    "zeros",
];

pub(super) fn find(name: &str) -> Option<Lower> {
    let own: Lower = match name {
        "complex" => |call| {
            let dtype = call.result_dtype()?;
            let (real, imaginary) = (call.operand("real", dtype)?, call.operand("imag", dtype)?);
            let (real, imaginary) = alike(call, real, imaginary);
            call.complex(real, imaginary)
        },
        "polar" => |call| {
            let dtype = call.result_dtype()?;
            let (size, angle) = (call.operand("abs", dtype)?, call.operand("angle", dtype)?);
            let (real, imaginary) = turned(call, &size, &angle);
            call.complex(real, imaginary)
        },
        "view_as_complex" => |call| {
            let x = call.tensor("self")?;
            let Parts { real, imaginary } = parts_of(call.emit, &x);
            call.complex(real, imaginary.unwrap_or_default())
        },
        "view_as_real" => |call| {
            let x = own_parts(call)?;
            let value = interleaved(call, &x);
            call.result(value)
        },
        "real" => |call| {
            let x = call.tensor("self")?;
            call.result(x)
        },
        "imag" => |call| {
            let x = call.of_imaginary(|call| call.tensor("self"))?;
            call.result(x)
        },
        "conj" | "_conj" | "conj_physical" | "_conj_physical" => |call| {
            let Parts { real, imaginary } = conjugate(call)?;
            call.complex(real, imaginary.unwrap_or_default())
        },
        "resolve_conj" | "resolve_neg" | "positive" => of_each_part,
        "adjoint" | "mH" | "matrix_H" => |call| {
            let Parts { real, imaginary } = conjugate(call)?;
            let mut order: Vec<i64> = (0..call.rank("self")?).collect();
            if let [.., one, other] = order.as_mut_slice() {
                std::mem::swap(one, other);
            }
            let [real, imaginary] = [real, imaginary.unwrap_or_default()]
                .map(|x| call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&order))]));
            call.complex(real, imaginary)
        },
        "to" | "_to_copy" | "type_as" => |call| match is_complex_result(call)? {
            true => of_each_part(call),
            false if call.result_dtype()? == DType::Bool => {
                let x = own_parts(call)?;
                let [real, imaginary] =
                    [x.real, x.imaginary.unwrap_or_default()].map(|part| call.cast(&part, DType::Bool));
                let value = call.plain("Or", &[&real, &imaginary]);
                call.result(value)
            }
            false => super::layout::converted(call),
        },
        // Without a choice it gives places.
        "where" => |call| match call.argument("self") {
            Some(_) if !call.meta("condition")?.is_complex() => of_each_part(call),
            _ => Err(call.unsupported("whether a complex number is 0")),
        },
        "abs" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let value = size_of(call, &x, dtype);
            call.result(value)
        },
        "angle" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let value = angle_of(call, &x.imaginary.unwrap_or_default(), &x.real, dtype);
            call.result(value)
        },
        // The norm of the sizes.
        "linalg_vector_norm" | "norm" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let size = size_of(call, &x, dtype);
            super::reduce::norm_of(call, size)
        },
        "eq" | "ne" => comparison,
        "isnan" => |call| of_either(call, "IsNaN"),
        "isinf" => |call| of_either(call, "IsInf"),
        "sym_size" | "sym_numel" | "zeros_like" | "ones_like" | "empty_like" | "full_like" => |call| {
            // Of real numbers in the shape of complex ones there is one part.
            match is_complex_result(call)? {
                true => of_each_part(call),
                false => own_lowering(call)?(call),
            }
        },
        _ => {
            let other = arithmetic(name).or_else(|| super::fourier::find_complex(name));
            return other.or_else(|| OF_EACH_PART.contains(&name).then_some(of_each_part as Lower));
        }
    };
    Some(own)
}

fn arithmetic(name: &str) -> Option<Lower> {
    Some(match name {
        "mul" => |call| {
            let (x, y) = operands(call, "self", "other")?;
            let value = product(call, &x, &y, &|call, x, y| call.plain("Mul", &[x, y]));
            bind(call, value)
        },
        "square" => |call| {
            let x = own_parts(call)?;
            let value = product(call, &x, &x, &|call, x, y| call.plain("Mul", &[x, y]));
            bind(call, value)
        },
        "div" => |call| {
            let (x, y) = operands(call, "self", "other")?;
            let value = quotient(call, &x, &y)?;
            bind(call, value)
        },
        "reciprocal" => |call| {
            let (y, dtype) = (own_parts(call)?, call.dtype("self")?);
            let one = Parts { real: call.scalar(dtype, 1.0), imaginary: None };
            let value = quotient(call, &one, &y)?;
            bind(call, value)
        },
        "pow" => power,
        "exp" => |call| {
            let x = own_parts(call)?;
            let size = call.plain("Exp", &[&x.real]);
            let (real, imaginary) = turned(call, &size, &x.imaginary.unwrap_or_default());
            call.complex(real, imaginary)
        },
        "log" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let size = size_of(call, &x, dtype);
            let real = call.plain("Log", &[&size]);
            let imaginary = angle_of(call, &x.imaginary.unwrap_or_default(), &x.real, dtype);
            call.complex(real, imaginary)
        },
        "sqrt" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let size = size_of(call, &x, dtype);
            let (root, half) = (call.plain("Sqrt", &[&size]), call.scalar(dtype, 0.5));
            let angle = angle_of(call, &x.imaginary.unwrap_or_default(), &x.real, dtype);
            let angle = call.plain("Mul", &[&angle, &half]);
            let (real, imaginary) = turned(call, &root, &angle);
            call.complex(real, imaginary)
        },
        // On the unit circle, or 0.
        "sgn" => |call| {
            let (x, dtype) = (own_parts(call)?, call.dtype("self")?);
            let size = size_of(call, &x, dtype);
            let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
            let none = call.plain("Equal", &[&size, &zero]);
            let size = call.plain("Where", &[&none, &one, &size]);
            let value = each(call, x, |call, part| call.plain("Div", &[part, &size]));
            bind(call, value)
        },
        "matmul" | "mm" | "bmm" => |call| {
            let second = if call.argument("mat2").is_some() { "mat2" } else { "other" };
            matrices(call, "self", second)
        },
        "mv" => |call| matrices(call, "self", "vec"),
        "dot" => |call| matrices(call, "self", "tensor"),
        "vdot" => |call| {
            let (x, y) = (conjugate(call)?, call.parts("other", call.result_dtype()?)?);
            let value = product(call, &x, &y, &|call, x, y| call.plain("MatMul", &[x, y]));
            bind(call, value)
        },
        "outer" => |call| {
            let (x, y) = operands(call, "self", "vec2")?;
            let column = call.integers(&[1]);
            let x = each(call, x, |call, part| call.plain("Unsqueeze", &[part, &column]));
            let value = product(call, &x, &y, &|call, x, y| call.plain("Mul", &[x, y]));
            bind(call, value)
        },
        "einsum" => einsum,
        _ => return None,
    })
}

/// Real and imaginary part of a value whose last axis has both.
pub(in super::super) fn parts_of(emit: &mut Emit<'_>, value: &str) -> Parts {
    let [real, imaginary] = [0, 1].map(|at| {
        let (place, part) = (emit.fresh(), emit.fresh());
        emit.model.scalar(&place, DType::I64, f64::from(at));
        emit.operation("Gather", &[value, &place], &[&part], &[("axis", Attribute::Int(-1))]);
        part
    });
    Parts { real, imaginary: Some(imaginary) }
}

/// Both parts along a last axis.
pub(super) fn interleaved(call: &mut Call<'_, '_>, x: &Parts) -> String {
    let behind = call.integers(&[-1]);
    let parts = [Some(&x.real), x.imaginary.as_ref()];
    let parts: Vec<String> =
        parts.into_iter().flatten().map(|part| call.plain("Unsqueeze", &[part, &behind])).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    call.op("Concat", &parts, &[("axis", Attribute::Int(-1))])
}

/// The operand of a view, whose result number `part` is now `value`.
///
/// Error: as for real numbers.
pub(in super::super) fn put_back(call: &mut Call<'_, '_>, value: Parts, part: usize) -> Result<Parts> {
    let own = call.argument("self").and_then(|argument| argument.name());
    let is_complex = own.is_some_and(|name| call.emit.metas.get(name).is_some_and(TensorMeta::is_complex));
    match call.operation() {
        "view_as_real" => Ok(parts_of(call.emit, &value.real)),
        "view_as_complex" => Ok(Parts { real: interleaved(call, &value), imaginary: None }),
        "real" if is_complex => {
            let imaginary = call.of_imaginary(|call| call.tensor("self"))?;
            Ok(Parts { real: value.real, imaginary: Some(imaginary) })
        }
        "imag" => Ok(Parts { real: call.tensor("self")?, imaginary: Some(value.real) }),
        "_conj" | "conj" if is_complex => {
            let imaginary = value.imaginary.map(|part| call.plain("Neg", &[&part]));
            Ok(Parts { real: value.real, imaginary })
        }
        _ => {
            let real = super::replace::put_back(call, &value.real, part)?;
            let imaginary = value
                .imaginary
                .map(|imaginary| call.of_imaginary(|call| super::replace::put_back(call, &imaginary, part)));
            Ok(Parts { real, imaginary: imaginary.transpose()? })
        }
    }
}

fn own_lowering(call: &Call<'_, '_>) -> Result<Lower> {
    super::find(&call.node.target).ok_or_else(|| call.unsupported("of complex numbers"))
}

/// The real parts by the operation's own lowering, and the imaginary ones likewise.
fn of_each_part(call: &mut Call<'_, '_>) -> Result<()> {
    let lower = own_lowering(call)?;
    lower(call)?;
    call.of_imaginary(|call| lower(call))
}

fn is_complex_result(call: &Call<'_, '_>) -> Result<bool> {
    let name = call.result_name(0)?;
    Ok(call.emit.metas.get(name).is_some_and(TensorMeta::is_complex))
}

fn own_parts(call: &mut Call<'_, '_>) -> Result<Parts> {
    let dtype = call.dtype("self")?;
    call.parts("self", dtype)
}

fn operands(call: &mut Call<'_, '_>, left: &str, right: &str) -> Result<(Parts, Parts)> {
    let dtype = call.result_dtype()?;
    Ok((call.parts(left, dtype)?, call.parts(right, dtype)?))
}

fn bind(call: &mut Call<'_, '_>, value: Parts) -> Result<()> {
    let imaginary = value.imaginary.ok_or_else(|| call.wrong("its result is not complex"))?;
    call.complex(value.real, imaginary)
}

/// The same of both parts.
fn each(call: &mut Call<'_, '_>, x: Parts, mut of: impl FnMut(&mut Call<'_, '_>, &str) -> String) -> Parts {
    let real = of(call, &x.real);
    Parts { real, imaginary: x.imaginary.map(|part| of(call, &part)) }
}

/// In the shape that both broadcast to.
fn alike(call: &mut Call<'_, '_>, x: String, y: String) -> (String, String) {
    let (own, other) = (call.plain("Shape", &[&x]), call.plain("Shape", &[&y]));
    (call.plain("Expand", &[&x, &other]), call.plain("Expand", &[&y, &own]))
}

/// `size (cos angle + i sin angle)`
fn turned(call: &mut Call<'_, '_>, size: &str, angle: &str) -> (String, String) {
    let (cosine, sine) = (call.plain("Cos", &[angle]), call.plain("Sin", &[angle]));
    (call.plain("Mul", &[size, &cosine]), call.plain("Mul", &[size, &sine]))
}

fn conjugate(call: &mut Call<'_, '_>) -> Result<Parts> {
    let x = own_parts(call)?;
    let imaginary = x.imaginary.map(|part| call.plain("Neg", &[&part]));
    Ok(Parts { real: x.real, imaginary })
}

/// The distance from 0, scaled by the larger part so that its square is a number where it is one.
pub(super) fn size_of(call: &mut Call<'_, '_>, x: &Parts, dtype: DType) -> String {
    let real = call.plain("Abs", &[&x.real]);
    let Some(imaginary) = &x.imaginary else { return real };
    let imaginary = call.plain("Abs", &[imaginary]);
    let most = call.plain("Max", &[&real, &imaginary]);
    let least = call.plain("Min", &[&real, &imaginary]);
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let none = call.plain("Equal", &[&most, &zero]);
    let divisor = call.plain("Where", &[&none, &one, &most]);
    let slope = call.plain("Div", &[&least, &divisor]);
    let square = call.plain("Mul", &[&slope, &slope]);
    let sum = call.plain("Add", &[&square, &one]);
    let root = call.plain("Sqrt", &[&sum]);
    let size = call.plain("Mul", &[&most, &root]);
    // However large the other part is, and if it is no number.
    let infinite = [&real, &imaginary].map(|part| call.plain("IsInf", &[part]));
    let infinite = call.plain("Or", &[&infinite[0], &infinite[1]]);
    let infinity = call.scalar(dtype, f64::INFINITY);
    call.plain("Where", &[&infinite, &infinity, &size])
}

/// A product of two numbers, by what multiplies real ones.
fn product(
    call: &mut Call<'_, '_>,
    x: &Parts,
    y: &Parts,
    of: &dyn Fn(&mut Call<'_, '_>, &str, &str) -> String,
) -> Parts {
    let real = of(call, &x.real, &y.real);
    let mut imaginary = None;
    if let Some(part) = &y.imaginary {
        imaginary = Some(of(call, &x.real, part));
    }
    let Some(part) = &x.imaginary else { return Parts { real, imaginary } };
    let crossed = of(call, part, &y.real);
    let imaginary = match imaginary {
        Some(first) => call.plain("Add", &[&first, &crossed]),
        None => crossed,
    };
    let real = match &y.imaginary {
        Some(other) => {
            let both = of(call, part, other);
            call.plain("Sub", &[&real, &both])
        }
        None => real,
    };
    Parts { real, imaginary: Some(imaginary) }
}

/// By a real number part by part; by a complex one with both over its larger part, so that no square is out of range
/// (Smith, 1962).
fn quotient(call: &mut Call<'_, '_>, x: &Parts, y: &Parts) -> Result<Parts> {
    if call.argument("rounding_mode").is_some() {
        return Err(call.unsupported("rounded"));
    }
    let Some(imaginary) = &y.imaginary else {
        return Ok(each(call, x.clone(), |call, part| call.plain("Div", &[part, &y.real])));
    };
    let dtype = call.result_dtype()?;
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let sizes = [&y.real, imaginary].map(|part| call.plain("Abs", &[part]));
    let is_wide = call.plain("GreaterOrEqual", &[&sizes[0], &sizes[1]]);
    let own = x.imaginary.as_ref().unwrap_or(&zero);
    // Which part stands with the larger one of the divisor, and which with the smaller one.
    let mut sorted = |real: &str, imaginary: &str| {
        [[real, imaginary], [imaginary, real]].map(|[yes, no]| call.plain("Where", &[&is_wide, yes, no]))
    };
    let ([large, small], [with_large, with_small]) = (sorted(&y.real, imaginary), sorted(&x.real, own));
    let none = call.plain("Equal", &[&large, &zero]);
    let divisor = call.plain("Where", &[&none, &one, &large]);
    let share = call.plain("Div", &[&small, &divisor]);
    let rest = call.plain("Mul", &[&small, &share]);
    let divisor = call.plain("Add", &[&large, &rest]);
    let divisor = call.plain("Where", &[&none, &zero, &divisor]);
    let (less, more) = (call.plain("Mul", &[&with_small, &share]), call.plain("Mul", &[&with_large, &share]));
    let real = call.plain("Add", &[&with_large, &less]);
    let imaginary = call.plain("Sub", &[&with_small, &more]);
    let turned = call.plain("Neg", &[&imaginary]);
    let imaginary = call.plain("Where", &[&is_wide, &imaginary, &turned]);
    let [real, imaginary] = [real, imaginary].map(|part| call.plain("Div", &[&part, &divisor]));
    Ok(Parts { real, imaginary: Some(imaginary) })
}

/// More factors are not multiplied one by one.
const MOST_FACTORS: i64 = 64;

/// To a whole power, by squares.
fn power(call: &mut Call<'_, '_>) -> Result<()> {
    let exponent = match call.number("exponent").ok().flatten() {
        Some(Number::Int(exponent)) => exponent,
        Some(Number::Float(exponent)) if exponent.fract() == 0.0 => exponent as i64,
        _ => return Err(call.unsupported("of complex numbers to a power that is not whole")),
    };
    if !(1..=MOST_FACTORS).contains(&exponent) {
        return Err(call.unsupported(format!("of complex numbers to the power of {exponent}")));
    }
    let times = |call: &mut Call<'_, '_>, x: &Parts, y: &Parts| {
        product(call, x, y, &|call, x, y| call.plain("Mul", &[x, y]))
    };
    let (mut square, mut rest, mut value) = (own_parts(call)?, exponent, None::<Parts>);
    loop {
        if rest % 2 == 1 {
            value = Some(match value {
                Some(value) => times(call, &value, &square),
                None => square.clone(),
            });
        }
        rest /= 2;
        if rest == 0 {
            return bind(call, value.unwrap_or(square));
        }
        square = times(call, &square, &square);
    }
}

fn matrices(call: &mut Call<'_, '_>, left: &str, right: &str) -> Result<()> {
    let (x, y) = operands(call, left, right)?;
    let value = product(call, &x, &y, &|call, x, y| call.plain("MatMul", &[x, y]));
    bind(call, value)
}

/// Of one or two tensors.
fn einsum(call: &mut Call<'_, '_>) -> Result<()> {
    let (equation, names) = (call.text("equation", "")?, call.list_names("tensors")?);
    let mut values = Vec::new();
    for name in names {
        let imaginary = match call.meta_of(name)?.is_complex() {
            true => Some(call.of_imaginary(|call| call.emit_value(name))?),
            false => None,
        };
        values.push(Parts { real: call.emit_value(name)?, imaginary });
    }
    let of = |call: &mut Call<'_, '_>, values: &[&str]| {
        call.op("Einsum", values, &[("equation", Attribute::Text(equation))])
    };
    let value = match values.as_slice() {
        [one] => each(call, one.clone(), |call, part| of(call, &[part])),
        [x, y] => product(call, x, y, &|call, x, y| of(call, &[x, y])),
        _ => return Err(call.unsupported("of more than two tensors with complex numbers")),
    };
    bind(call, value)
}

/// Both parts are equal, or not.
fn comparison(call: &mut Call<'_, '_>) -> Result<()> {
    let name = if call.meta("self")?.is_complex() { "self" } else { "other" };
    let dtype = call.dtype(name)?;
    let (x, y) = (call.parts("self", dtype)?, call.parts("other", dtype)?);
    let zero = call.scalar(dtype, 0.0);
    let part = |parts: &Parts| parts.imaginary.clone().unwrap_or_else(|| zero.clone());
    let (own, other) = (part(&x), part(&y));
    let (real, imaginary) = (call.plain("Equal", &[&x.real, &y.real]), call.plain("Equal", &[&own, &other]));
    let mut value = call.plain("And", &[&real, &imaginary]);
    if call.operation() == "ne" {
        value = call.plain("Not", &[&value]);
    }
    call.result(value)
}

fn of_either(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let x = own_parts(call)?;
    let [real, imaginary] =
        [x.real, x.imaginary.unwrap_or_default()].map(|part| call.plain(operator, &[&part]));
    let value = call.plain("Or", &[&real, &imaginary]);
    call.result(value)
}
