//! What each function of `keras.ops` is in operations of the intermediate representation.

use serde_json::Value;

use super::super::config::number;
use super::super::lower::Site;
use super::item::item;
use super::{Composed, Extreme, Operation, Reduce, Reduction};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Shape, Size, Tensor, Unary, ValueId};

/// An operand of a call, in the order of the call.
#[derive(Clone, Debug)]
pub(in super::super) enum Operand {
    Value(ValueId),
    List(Vec<Operand>),
    /// A number, or what says which elements are meant.
    Constant(Value),
}

impl Operand {
    /// Makes values of the tensors that the call holds.
    pub(in super::super) fn settle(&mut self, site: &mut Site<'_>) -> Result<()> {
        match self {
            Self::Value(_) => {}
            Self::List(items) => items.iter_mut().try_for_each(|item| item.settle(site))?,
            Self::Constant(held) => {
                if let Some(tensor) = constant(site, held)? {
                    *self = Self::Value(tensor);
                }
            }
        }
        Ok(())
    }
}

impl Operation {
    /// The results of a call.
    pub(in super::super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        match self {
            Self::Arrange(arrange) => arrange.lower(site, operands),
            Self::Join(join) => join.lower(site, operands),
            Self::Make(make) => make.lower(site, operands),
            Self::Spectrum(spectrum) => spectrum.lower(site, operands),
            Self::Statistics(statistics) => statistics.lower(site, operands),
            _ => self.one(site, operands).map(|value| vec![value]),
        }
    }

    fn one(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::Arrange(_) | Self::Join(_) | Self::Make(_) | Self::Spectrum(_) | Self::Statistics(_) => {
                Err(site.error("has several results"))
            }
            Self::Image(image) => image.lower(site, operands),
            Self::Linear(linear) => linear.lower(site, operands),
            Self::Loss(loss) => loss.lower(site, operands),
            Self::Near(near) => near.lower(site, operands),
            Self::Norm(norm) => norm.lower(site, operands),
            Self::Place(place) => place.lower(site, operands),
            Self::Ranked(ranked) => ranked.lower(site, operands),
            Self::Numeric(numeric) => numeric.lower(site, operands),
            Self::Scalar(scalar) => scalar.lower(site, operands),
            Self::Neural(neural) => neural.lower(site, operands),
            Self::Activation(activation) => {
                let own = value(site, operands, 0)?;
                let x = float(site, own)?;
                let y = activation.lower(site, x)?;
                let is_whole = site.dtype(own).is_integer() && activation.keeps_whole();
                if is_whole { site.convert(y, site.dtype(own)) } else { Ok(y) }
            }
            Self::Unary(unary) => function(site, *unary, value(site, operands, 0)?),
            Self::Composed(composed) => composed.lower(site, value(site, operands, 0)?),
            Self::Binary(binary) => arithmetic(site, *binary, operands),
            Self::Round { decimals } => round(site, value(site, operands, 0)?, *decimals),
            Self::FloorDivide => {
                let (x, y) = pair(site, operands, 0)?;
                floor_divide(site, x, y)
            }
            Self::Compare(compare) => {
                let (x, y) = pair(site, operands, 0)?;
                site.apply(Op::Compare(*compare), &[x, y])
            }
            Self::Where => select(site, operands),
            Self::Clip { low, high } => clip(site, value(site, operands, 0)?, *low, *high),
            Self::Cast(to) => {
                let x = value(site, operands, 0)?;
                site.convert(x, *to)
            }
            Self::Reduce(reduce) => reduce.lower(site, value(site, operands, 0)?),
            Self::Extreme(extreme) => extreme.lower(site, value(site, operands, 0)?),
            Self::Reshape(target) => reshape(site, value(site, operands, 0)?, target),
            Self::Transpose(_) | Self::Swap(..) | Self::ExpandDims(_) | Self::Squeeze(_) | Self::Flip(_) => {
                self.rearrange(site, value(site, operands, 0)?)
            }
            Self::Concatenate(axis) => concatenate(site, operands, *axis),
            Self::Stack(axis) => stack(site, operands, *axis),
            Self::MatMul => product(site, operands),
            Self::Triangle { upper, diagonal } => {
                triangle(site, value(site, operands, 0)?, *upper, *diagonal)
            }
            Self::Einsum(equation) => {
                let values = (0..operands.len()).map(|at| tensor_of(site, operands, at));
                let values = values.collect::<Result<Vec<ValueId>>>()?;
                let values = common(site, &values)?;
                super::super::einsum::einsum(site, equation, &values)
            }
            Self::TakeAlong(axis) => {
                let (x, places) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                match axis {
                    Some(axis) => take_along(site, x, places, *axis),
                    None => {
                        let (x, places) = (flat(site, x)?, flat(site, places)?);
                        take_along(site, x, places, 0)
                    }
                }
            }
            Self::Item => match operands {
                [Operand::Value(x), Operand::Constant(key)] => item(site, *x, key),
                _ => Err(site.unsupported("an index that is computed")),
            },
        }
    }

    /// The functions that only move the elements of `x`.
    fn rearrange(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let rank = site.rank(x);
        match self {
            Self::Transpose(None) => site.transpose(x, &(0..rank).rev().collect::<Vec<_>>()),
            Self::Transpose(Some(axes)) => {
                let perm = axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<_>>>()?;
                let mut sorted = perm.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..rank) {
                    let message =
                        format!("{axes:?} is no permutation of the axes of an input of rank {rank}");
                    return Err(site.error(&message));
                }
                site.transpose(x, &perm)
            }
            Self::Swap(first, second) => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(site.axis(x, *first)?, site.axis(x, *second)?);
                site.transpose(x, &perm)
            }
            Self::ExpandDims(axes) => expand(site, x, axes),
            Self::Squeeze(axes) => squeeze(site, x, axes.as_deref()),
            Self::Flip(axes) => {
                let all: Vec<i64> = (0..rank as i64).collect();
                axes.as_ref().unwrap_or(&all).iter().try_fold(x, |x, &axis| {
                    let axis = site.axis(x, axis)?;
                    site.reverse(x, axis)
                })
            }
            _ => Err(site.error("computes more than it moves")),
        }
    }
}

/// The nearest multiple of a power of ten; integers are whole already.
fn round(site: &mut Site<'_>, x: ValueId, decimals: i64) -> Result<ValueId> {
    if decimals >= 0 && !site.dtype(x).is_float() {
        return Ok(x);
    }
    let own = site.dtype(x);
    let x = float(site, x)?;
    let power = 10f64.powi(decimals.unsigned_abs().min(u64::from(u16::MAX)) as i32);
    let (before, after) = if decimals < 0 { (Binary::Div, Binary::Mul) } else { (Binary::Mul, Binary::Div) };
    let scaled = if decimals == 0 { x } else { site.binary_scalar(before, x, power)? };
    let whole = site.unary(Unary::Round, scaled)?;
    let rounded = if decimals == 0 { whole } else { site.binary_scalar(after, whole, power)? };
    site.convert(rounded, own)
}

/// A function of each element, of which most are of floats alone.
fn function(site: &mut Site<'_>, unary: Unary, x: ValueId) -> Result<ValueId> {
    let x = match unary {
        Unary::Not => site.convert(x, DType::Bool)?,
        // Truth values are neither negative nor more than 1.
        Unary::Abs | Unary::Sign if site.dtype(x) == DType::Bool => return Ok(x),
        Unary::Neg | Unary::Abs | Unary::Sign => x,
        Unary::Detach if !site.dtype(x).is_float() => return Ok(x),
        _ => float(site, x)?,
    };
    site.unary(unary, x)
}

/// The quotient rounded down, of whole numbers a whole number.
pub(super) fn floor_divide(site: &mut Site<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
    if !site.dtype(x).is_integer() {
        let (x, y) = (float(site, x)?, float(site, y)?);
        let quotient = site.binary(Binary::Div, x, y)?;
        return site.unary(Unary::Floor, quotient);
    }
    // Without what is left of it the dividend is a multiple.
    let rest = site.binary(Binary::Mod, x, y)?;
    let multiple = site.binary(Binary::Sub, x, rest)?;
    site.binary(Binary::Div, multiple, y)
}

/// Where a condition holds one operand, else the other.
fn select(site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
    let condition = value(site, operands, 0)?;
    let condition = site.convert(condition, DType::Bool)?;
    let (yes, no) = pair(site, operands, 1)?;
    site.apply(Op::Select, &[condition, yes, no])
}

/// Elements of one axis by places; of the other axes, one of size 1 is that of all, on either side.
pub(super) fn take_along(site: &mut Site<'_>, x: ValueId, places: ValueId, axis: i64) -> Result<ValueId> {
    let axis = site.axis(x, axis)?;
    let (mut of_x, mut of_places) = (site.sizes(x), site.sizes(places));
    if of_x.len() != of_places.len() {
        let message = format!("takes from rank {} by places of rank {}", of_x.len(), of_places.len());
        return Err(site.error(&message));
    }
    let one = Size::Known(1);
    for (at, (own, other)) in of_x.iter_mut().zip(&mut of_places).enumerate() {
        if at == axis || own == other {
            continue;
        }
        if *own == one {
            own.clone_from(other);
        } else if *other == one {
            other.clone_from(own);
        } else {
            let message = format!("the places have another size of axis {at} than what they are taken from");
            return Err(site.error(&message));
        }
    }
    let x = site.broadcast(x, of_x)?;
    let places = site.convert(places, DType::I64)?;
    let places = site.broadcast(places, of_places)?;
    site.apply(Op::GatherElements { axis: axis as u32 }, &[x, places])
}

/// Between two bounds; whole numbers become floats where a bound is none.
fn clip(site: &mut Site<'_>, mut x: ValueId, low: Option<f64>, high: Option<f64>) -> Result<ValueId> {
    if [low, high].into_iter().flatten().any(|bound| bound.fract() != 0.0) {
        x = float(site, x)?;
    }
    if let Some(low) = low {
        x = site.binary_scalar(Binary::Max, x, low)?;
    }
    match high {
        Some(high) => site.binary_scalar(Binary::Min, x, high),
        None => Ok(x),
    }
}

pub(super) fn concatenate(site: &mut Site<'_>, operands: &[Operand], axis: i64) -> Result<ValueId> {
    let values = list(site, operands)?;
    let axis = site.axis(values[0], axis)?;
    let values = common(site, &values)?;
    site.concat(axis, &values)
}

fn stack(site: &mut Site<'_>, operands: &[Operand], axis: i64) -> Result<ValueId> {
    let values = list(site, operands)?;
    let values = common(site, &values)?;
    let expanded: Vec<ValueId> = values.iter().map(|&x| expand(site, x, &[axis])).collect::<Result<_>>()?;
    let axis = site.axis(expanded[0], axis)?;
    site.concat(axis, &expanded)
}

/// The elements on one side of a diagonal of the last two axes, and on it; zeros elsewhere.
fn triangle(site: &mut Site<'_>, x: ValueId, upper: bool, diagonal: i64) -> Result<ValueId> {
    let rank = site.rank(x);
    if rank < 2 {
        return Err(site.error("expected an input of rank 2 or more"));
    }
    let sizes = site.sizes(x).split_off(rank - 2);
    let (rows, columns) = (site.iota(&sizes, 0), site.iota(&sizes, 1));
    let from = site.positions(&[diagonal])?;
    let edge = site.binary(Binary::Add, rows, from)?;
    let side = if upper { Compare::Ge } else { Compare::Le };
    let within = site.apply(Op::Compare(side), &[columns, edge])?;
    let zero = site.scalar_like(0.0, x)?;
    site.apply(Op::Select, &[within, x, zero])
}

fn product(site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
    let (x, y) = pair(site, operands, 0)?;
    matrix_product(site, x, y)
}

/// A product of matrices, where a vector is a row on the left and a column on the right.
pub(super) fn matrix_product(site: &mut Site<'_>, mut x: ValueId, mut y: ValueId) -> Result<ValueId> {
    let (is_row, is_column) = (site.rank(x) == 1, site.rank(y) == 1);
    if site.rank(x) == 0 || site.rank(y) == 0 {
        return Err(site.error("is a product of matrices with a number"));
    }
    if is_row {
        x = expand(site, x, &[0])?;
    }
    if is_column {
        y = expand(site, y, &[1])?;
    }
    let mut product = site.matmul(x, y, false)?;
    if is_column {
        product = squeeze(site, product, Some(&[-1]))?;
    }
    if is_row {
        product = squeeze(site, product, Some(&[if is_column { -1 } else { -2 }]))?;
    }
    Ok(product)
}

impl Composed {
    fn lower(self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        match self {
            Self::Square => {
                let x = if site.dtype(x) == DType::Bool { site.convert(x, DType::I32)? } else { x };
                site.binary(Binary::Mul, x, x)
            }
            Self::ReciprocalRoot => {
                let x = float(site, x)?;
                let root = site.unary(Unary::Sqrt, x)?;
                site.unary(Unary::Reciprocal, root)
            }
        }
    }
}

impl Extreme {
    /// The position as Keras counts it, an i32; without an axis, in the flattened input.
    fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let x = match self.axis {
            Some(_) => x,
            None => reshape(site, x, &[-1])?,
        };
        let axis = site.axis(x, self.axis.unwrap_or(0))? as u32;
        let extreme = Op::ArgReduce { kind: self.kind, axis, keep: self.keep, last: false };
        let x = if site.dtype(x) == DType::Bool { site.convert(x, DType::I32)? } else { x };
        let position = site.apply(extreme, &[x])?;
        site.convert(position, DType::I32)
    }
}

impl Reduce {
    fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let x = match self.dtype {
            Some(to) => site.convert(x, to)?,
            None => x,
        };
        let found = self.reduced(site, x)?;
        match (self.kind, self.initial) {
            (Reduction::Plain(ReduceKind::Max), Some(least)) => site.binary_scalar(Binary::Max, found, least),
            (Reduction::Plain(ReduceKind::Min), Some(most)) => site.binary_scalar(Binary::Min, found, most),
            _ => Ok(found),
        }
    }

    fn reduced(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let axes: Vec<i64> = self.axes.clone().unwrap_or_else(|| (0..site.rank(x) as i64).collect());
        let mut axes: Vec<u32> =
            axes.iter().map(|&axis| Ok(site.axis(x, axis)? as u32)).collect::<Result<_>>()?;
        axes.sort_unstable();
        axes.dedup();
        let over = |site: &mut Site<'_>, kind: ReduceKind, x: ValueId, keep: bool| {
            site.apply(Op::Reduce { kind, axes: axes.clone(), keep }, &[x])
        };
        match self.kind {
            Reduction::Plain(ReduceKind::Mean) => {
                let x = float(site, x)?;
                over(site, ReduceKind::Mean, x, self.keep)
            }
            Reduction::Plain(kind) if site.dtype(x) == DType::Bool => {
                // Counted in i32; an extreme of conditions is one.
                let numbers = site.convert(x, DType::I32)?;
                let found = over(site, kind, numbers, self.keep)?;
                let is_extreme = matches!(kind, ReduceKind::Max | ReduceKind::Min);
                site.convert(found, if is_extreme { DType::Bool } else { DType::I32 })
            }
            Reduction::Plain(kind) => over(site, kind, x, self.keep),
            Reduction::Variance | Reduction::StandardDeviation => {
                let x = float(site, x)?;
                let mean = over(site, ReduceKind::Mean, x, true)?;
                let centered = site.binary(Binary::Sub, x, mean)?;
                let squares = site.binary(Binary::Mul, centered, centered)?;
                let variance = over(site, ReduceKind::Mean, squares, self.keep)?;
                match self.kind {
                    Reduction::StandardDeviation => site.unary(Unary::Sqrt, variance),
                    _ => Ok(variance),
                }
            }
            Reduction::LogSumExp => {
                let x = float(site, x)?;
                // Less the greatest, so that no exponential overflows.
                let greatest = over(site, ReduceKind::Max, x, true)?;
                let shifted = site.binary(Binary::Sub, x, greatest)?;
                let exponentials = site.unary(Unary::Exp, shifted)?;
                let sum = over(site, ReduceKind::Sum, exponentials, self.keep)?;
                let logarithm = site.unary(Unary::Log, sum)?;
                let sizes = site.sizes(logarithm);
                let greatest = site.reshape(greatest, sizes)?;
                site.binary(Binary::Add, logarithm, greatest)
            }
        }
    }
}

/// Operand `i`, a tensor.
pub(super) fn value(site: &Site<'_>, operands: &[Operand], i: usize) -> Result<ValueId> {
    match operands.get(i) {
        Some(Operand::Value(value)) => Ok(*value),
        Some(Operand::List(_) | Operand::Constant(_)) => {
            Err(site.unsupported(&format!("a call whose argument {i} is no tensor")))
        }
        None => Err(site.error(&format!("is called without argument {i}"))),
    }
}

/// Operand `i`, a tensor or the constant that the call holds.
pub(super) fn tensor_of(site: &mut Site<'_>, operands: &[Operand], i: usize) -> Result<ValueId> {
    match operands.get(i) {
        Some(Operand::Constant(held)) => {
            let found = match constant(site, held)? {
                Some(found) => Some(found),
                None => literal(site, held)?,
            };
            found.ok_or_else(|| site.unsupported(&format!("a call whose argument {i} is no tensor")))
        }
        _ => value(site, operands, i),
    }
}

/// Numbers as Python writes them: floats are f32, whole numbers i32, truth values of their own.
pub(super) fn literal(site: &mut Site<'_>, held: &Value) -> Result<Option<ValueId>> {
    let mut dims = Vec::new();
    let mut level = held;
    while let Value::Array(items) = level {
        dims.push(items.len() as u64);
        let Some(first) = items.first() else { break };
        level = first;
    }
    let mut numbers = Vec::new();
    if !flattened(held, &dims, &mut numbers) {
        return Ok(None);
    }
    let dtype = match () {
        () if numbers.iter().all(|number| number.is_boolean()) && !numbers.is_empty() => DType::Bool,
        () if numbers.iter().all(|number| number.is_i64()) && !numbers.is_empty() => DType::I32,
        () => DType::F32,
    };
    let Some((own, bytes)) = encoded(dtype, &numbers) else { return Ok(None) };
    let value = site.constant(Tensor::new(own, dims, bytes)?);
    site.convert(value, dtype).map(Some)
}

/// The tensors of the first operand, a list.
pub(super) fn list(site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
    match operands.first() {
        Some(Operand::Value(value)) => Ok(vec![*value]),
        Some(list) => {
            let values = items(site, list)?;
            if values.is_empty() { Err(site.error("is called with an empty list")) } else { Ok(values) }
        }
        None => Err(site.error("is called without a list of tensors")),
    }
}

/// The tensors of a list, some of which may stand in the call.
pub(super) fn items(site: &mut Site<'_>, list: &Operand) -> Result<Vec<ValueId>> {
    let held: Vec<Operand>;
    let items = match list {
        Operand::List(items) => items,
        Operand::Constant(Value::Array(values)) => {
            held = values.iter().map(|value| Operand::Constant(value.clone())).collect();
            &held
        }
        _ => return Err(site.unsupported("an argument that is no list")),
    };
    (0..items.len()).map(|at| tensor_of(site, items, at)).collect()
}

pub(super) fn float(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    if site.dtype(x).is_float() { Ok(x) } else { site.convert(x, DType::F32) }
}

fn arithmetic(site: &mut Site<'_>, binary: Binary, operands: &[Operand]) -> Result<ValueId> {
    let (mut x, mut y) = pair(site, operands, 0)?;
    match binary {
        Binary::And | Binary::Or | Binary::Xor => {
            (x, y) = (site.convert(x, DType::Bool)?, site.convert(y, DType::Bool)?);
        }
        // The quotient of integers is a float.
        Binary::Div => (x, y) = (float(site, x)?, float(site, y)?),
        _ => {}
    }
    site.binary(binary, x, y)
}

/// Operands `first` and the next in one type. A number takes the type of the other operand, if that holds it.
pub(super) fn pair(site: &mut Site<'_>, operands: &[Operand], first: usize) -> Result<(ValueId, ValueId)> {
    let (x, y) = match (operands.get(first), operands.get(first + 1)) {
        (Some(Operand::Value(x)), Some(Operand::Value(y))) => (*x, *y),
        (Some(Operand::Value(x)), Some(Operand::Constant(y))) => {
            let (x, number) = beside(site, *x, y)?;
            let y = site.scalar_like(number, x)?;
            (x, y)
        }
        (Some(Operand::Constant(x)), Some(Operand::Value(y))) => {
            let (y, number) = beside(site, *y, x)?;
            let x = site.scalar_like(number, y)?;
            (x, y)
        }
        (Some(Operand::Constant(_)), Some(Operand::Constant(_))) => {
            (tensor_of(site, operands, first)?, tensor_of(site, operands, first + 1)?)
        }
        _ => return Err(site.unsupported("a call with these arguments")),
    };
    let both = common(site, &[x, y])?;
    Ok((both[0], both[1]))
}

/// The tensor that a constant of a call is: `{"class_name": "__tensor__", "config": {"value", "dtype"}}`; none for
/// numbers and whatever else there is.
pub(in super::super) fn constant(site: &mut Site<'_>, constant: &Value) -> Result<Option<ValueId>> {
    let class = constant.get("class_name").and_then(Value::as_str);
    let ("__tensor__" | "__numpy__", Some(config)) = (class.unwrap_or_default(), constant.get("config"))
    else {
        return Ok(None);
    };
    let (mut dims, mut numbers) = (Vec::new(), Vec::new());
    let value = config.get("value").unwrap_or(&Value::Null);
    let mut level = value;
    while let Value::Array(items) = level {
        dims.push(items.len() as u64);
        let Some(first) = items.first() else { break };
        level = first;
    }
    if !flattened(value, &dims, &mut numbers) {
        return Err(site.error("a constant's rows differ in length"));
    }
    let named = config.get("dtype").and_then(Value::as_str);
    let Some(dtype) = named.map_or(Some(DType::F32), super::dtype) else {
        return Err(site.unsupported(&format!("a constant of type {}", named.unwrap_or_default())));
    };
    let Some((own, bytes)) = encoded(dtype, &numbers) else {
        return Err(site.error(&format!("a constant holds something else than numbers of {dtype}")));
    };
    let value = site.constant(Tensor::new(own, dims, bytes)?);
    site.convert(value, dtype).map(Some)
}

/// Adds the elements of nested lists of these lengths; false where they have others.
fn flattened<'v>(value: &'v Value, dims: &[u64], elements: &mut Vec<&'v Value>) -> bool {
    match (value, dims.split_first()) {
        (Value::Array(items), Some((&length, rest))) => {
            items.len() as u64 == length && items.iter().all(|item| flattened(item, rest, elements))
        }
        (Value::Array(_), None) | (_, Some(_)) => false,
        (value, None) => {
            elements.push(value);
            true
        }
    }
}

/// Numbers in a type that holds all of another one, and that type; none where one of them is no number of it.
fn encoded(dtype: DType, numbers: &[&Value]) -> Option<(DType, Vec<u8>)> {
    fn bytes<const N: usize>(numbers: &[&Value], of: impl Fn(&Value) -> Option<[u8; N]>) -> Option<Vec<u8>> {
        numbers.iter().map(|number| of(number)).collect::<Option<Vec<_>>>().map(|all| all.concat())
    }
    let own = match dtype {
        DType::F64 | DType::U64 => dtype,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    let bytes = match own {
        DType::F64 => bytes(numbers, |number| real(number).map(f64::to_le_bytes)),
        DType::F32 => bytes(numbers, |number| real(number).map(|number| (number as f32).to_le_bytes())),
        DType::U64 => bytes(numbers, |number| u64::try_from(whole(number)?).ok().map(u64::to_le_bytes)),
        _ => bytes(numbers, |number| i64::try_from(whole(number)?).ok().map(i64::to_le_bytes)),
    };
    Some((own, bytes?))
}

fn real(value: &Value) -> Option<f64> {
    value.as_bool().map(|truth| f64::from(u8::from(truth))).or_else(|| number(value))
}

/// A whole number, also one that is written as a float.
fn whole(number: &Value) -> Option<i128> {
    let written = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    written.or_else(|| real(number).filter(|real| real.fract() == 0.0).map(|real| real as i128))
}

/// A tensor beside a number: integers become floats where the number is none.
pub(super) fn beside(site: &mut Site<'_>, x: ValueId, constant: &Value) -> Result<(ValueId, f64)> {
    let Some(number) = real(constant) else {
        return Err(site.unsupported("an argument that is neither a tensor nor a number"));
    };
    let x = match site.dtype(x) {
        // A truth value is of no wider type.
        _ if constant.is_boolean() => x,
        DType::Bool if constant.is_f64() => site.convert(x, DType::F32)?,
        DType::Bool => site.convert(x, DType::I32)?,
        dtype if dtype.is_integer() && constant.is_f64() => site.convert(x, DType::F32)?,
        _ => x,
    };
    Ok((x, number))
}

/// Values in the type that holds those of all, as Keras finds it: the lattice of JAX's promotion.
pub(super) fn common(site: &mut Site<'_>, values: &[ValueId]) -> Result<Vec<ValueId>> {
    let to = values.iter().map(|&value| site.dtype(value)).reduce(joined).unwrap_or(DType::Bool);
    values.iter().map(|&value| site.convert(value, to)).collect()
}

/// The least type above two: floats above integers above conditions, of integers the smallest that holds both, of two
/// halves f32.
fn joined(x: DType, y: DType) -> DType {
    let bits = |dtype: DType| 8 * dtype.size();
    let is_signed = |dtype| !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    match (x, y) {
        _ if x == y => x,
        (DType::Bool, other) | (other, DType::Bool) => other,
        _ if x.is_float() && y.is_float() && bits(x) == bits(y) => DType::F32,
        _ if x.is_float() == y.is_float() && is_signed(x) == is_signed(y) => {
            if bits(x) >= bits(y) {
                x
            } else {
                y
            }
        }
        _ if x.is_float() => x,
        _ if y.is_float() => y,
        _ => {
            let (signed, unsigned) = if is_signed(x) { (x, y) } else { (y, x) };
            match bits(unsigned) {
                own if own < bits(signed) => signed,
                8 => DType::I16,
                16 => DType::I32,
                32 => DType::I64,
                _ => DType::F32,
            }
        }
    }
}

pub(super) fn reshape(site: &mut Site<'_>, x: ValueId, target: &[i64]) -> Result<ValueId> {
    let total = site.product(&site.sizes(x))?;
    let wrong = |site: &Site<'_>| site.error(&format!("the input does not fit the sizes {target:?}"));
    if target.iter().filter(|&&size| size == -1).count() > 1 || target.iter().any(|&size| size < -1) {
        return Err(wrong(site));
    }
    let mut fixed = target.iter().filter(|&&size| size != -1);
    let fixed =
        fixed.try_fold(1i64, |product, &size| product.checked_mul(size)).ok_or_else(|| wrong(site))?;
    let rest = total.div_exact(fixed).ok_or_else(|| wrong(site))?;
    if !target.contains(&-1) && rest != Size::Known(1) {
        return Err(wrong(site));
    }
    let size = |&size: &i64| if size == -1 { rest.clone() } else { Size::Known(size) };
    site.apply(Op::Reshape { shape: Shape::new(target.iter().map(size)) }, &[x])
}

/// Axes of size 1 where they stand in the result.
pub(super) fn expand(site: &mut Site<'_>, x: ValueId, axes: &[i64]) -> Result<ValueId> {
    let rank = site.rank(x) + axes.len();
    let mut is_new = vec![false; rank];
    for &axis in axes {
        let position = if axis < 0 { axis + rank as i64 } else { axis };
        let slot = usize::try_from(position).ok().and_then(|position| is_new.get_mut(position));
        match slot {
            Some(slot) if !*slot => *slot = true,
            _ => return Err(site.error(&format!("axes {axes:?} do not exist in a result of rank {rank}"))),
        }
    }
    let mut own = site.sizes(x).into_iter();
    let sizes = is_new.into_iter().map(|new| if new { Some(Size::Known(1)) } else { own.next() });
    let sizes: Vec<Size> = sizes.flatten().collect();
    site.reshape(x, sizes)
}

/// All elements in a row.
pub(super) fn flat(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    reshape(site, x, &[-1])
}

pub(super) fn squeeze(site: &mut Site<'_>, x: ValueId, axes: Option<&[i64]>) -> Result<ValueId> {
    let sizes = site.sizes(x);
    let one = |size: &Size| *size == Size::Known(1);
    let gone: Vec<usize> = match axes {
        Some(axes) => axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<_>>()?,
        None => (0..sizes.len()).filter(|&axis| one(&sizes[axis])).collect(),
    };
    if let Some(&axis) = gone.iter().find(|&&axis| !one(&sizes[axis])) {
        return Err(site.error(&format!("axis {axis} cannot be squeezed: its size is not 1")));
    }
    let left = sizes.into_iter().enumerate().filter(|(axis, _)| !gone.contains(axis));
    let left: Vec<Size> = left.map(|(_, size)| size).collect();
    site.reshape(x, left)
}
