//! What is combined from the first element of an axis up to each, and differences of neighbours.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "cumprod" => |call| running(call, |call, x, y| call.plain("Mul", &[x, y])),
        "cummax" => |call| extremes(call, "GreaterOrEqual"),
        "cummin" => |call| extremes(call, "LessOrEqual"),
        "logcumsumexp" => |call| running(call, log_of_sum),
        "diff" => differences,
        "trapezoid" | "trapz" => |call| {
            let (areas, axis) = areas(call)?;
            let along = call.integers(&[axis]);
            let value = call.op("ReduceSum", &[&areas, &along], &[("keepdims", Attribute::Int(0))]);
            call.result(value)
        },
        "cumulative_trapezoid" => |call| {
            let (areas, axis) = areas(call)?;
            let axis = call.scalar(DType::I64, axis as f64);
            let value = call.plain("CumSum", &[&areas, &axis]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Combines each element with all before it, in a logarithm of steps: in each with what is twice as far away (Hillis
/// and Steele, 1986). `combine` has what is there, and what was before it.
fn running(call: &mut Call<'_, '_>, combine: fn(&mut Call<'_, '_>, &str, &str) -> String) -> Result<()> {
    let (along, dtype) = (Along::of(call)?, call.result_dtype()?);
    let x = call.operand("self", dtype)?;
    let value = along.combined(call, x, combine);
    call.result(value)
}

/// How long the run of equal elements is that ends at each element.
pub(super) fn run_lengths(call: &mut Call<'_, '_>, x: &str, along: &Along) -> String {
    let places = along.places(call, x);
    let [zero, one] = [0.0, 1.0].map(|number| call.scalar(DType::I64, number));
    let mut starts = call.plain("Mul", &[&places, &zero]);
    if along.size > 1 {
        let (before, behind) = neighbours(call, x, along.axis);
        let same = call.plain("Equal", &[&before, &behind]);
        let (_, own) = neighbours(call, &places, along.axis);
        let begins = call.plain("Where", &[&same, &zero, &own]);
        starts = along.joined(call, &starts, &begins, 1);
        starts = along.combined(call, starts, |call, x, y| call.plain("Max", &[x, y]));
    }
    let lengths = call.plain("Sub", &[&places, &starts]);
    call.plain("Add", &[&lengths, &one])
}

/// The largest or smallest element so far, and the last place that it was at, to which its gradient goes.
fn extremes(call: &mut Call<'_, '_>, wins: &str) -> Result<()> {
    let (along, dtype) = (Along::of(call)?, call.result_dtype()?);
    let mut x = call.operand("self", dtype)?;
    let mut places = call.is_read(1).then(|| along.places(call, &x));
    for distance in along.distances() {
        let (behind, before) = along.apart(call, &x, distance);
        let mut is_own = call.plain(wins, &[&behind, &before]);
        if dtype.is_float() {
            // What is no number stays.
            let missing = call.plain("IsNaN", &[&behind]);
            is_own = call.plain("Or", &[&is_own, &missing]);
        }
        let combined = call.plain("Where", &[&is_own, &behind, &before]);
        x = along.joined(call, &x, &combined, distance);
        if let Some(places) = &mut places {
            let (own, others) = along.apart(call, places, distance);
            let found = call.plain("Where", &[&is_own, &own, &others]);
            *places = along.joined(call, places, &found, distance);
        }
    }
    call.results([Some(x)].into_iter().chain(places.map(Some)).collect())
}

/// The axis along which elements are combined.
pub(super) struct Along {
    pub(super) axis: i64,
    pub(super) size: i64,
    pub(super) rank: i64,
}

impl Along {
    fn of(call: &Call<'_, '_>) -> Result<Self> {
        let (axis, rank) = (call.axis("dim", 0)?, call.rank("self")?);
        let size = match rank {
            0 => Some(1),
            _ => call.meta("self")?.sizes.get(axis as usize).and_then(schema::size),
        };
        let size = size.ok_or_else(|| call.unsupported("along an open axis"))?;
        Ok(Self { axis, size, rank })
    }

    fn distances(&self) -> impl Iterator<Item = i64> + use<> {
        let size = self.size;
        std::iter::successors(Some(1i64), |distance| distance.checked_mul(2))
            .take_while(move |&distance| distance < size)
    }

    /// Each element combined with all before it.
    fn combined(
        &self,
        call: &mut Call<'_, '_>,
        mut x: String,
        combine: fn(&mut Call<'_, '_>, &str, &str) -> String,
    ) -> String {
        for distance in self.distances() {
            let (behind, before) = self.apart(call, &x, distance);
            let combined = combine(call, &behind, &before);
            x = self.joined(call, &x, &combined, distance);
        }
        x
    }

    /// All elements from a distance on, and for each the one that is so far before it.
    fn apart(&self, call: &mut Call<'_, '_>, x: &str, distance: i64) -> (String, String) {
        let along = call.integers(&[self.axis]);
        let [none, from, last, end] =
            [0, distance, self.size - distance, i64::MAX].map(|bound| call.integers(&[bound]));
        let behind = call.plain("Slice", &[x, &from, &end, &along]);
        (behind, call.plain("Slice", &[x, &none, &last, &along]))
    }

    /// The elements up to a distance as they are, and the others.
    fn joined(&self, call: &mut Call<'_, '_>, x: &str, others: &str, distance: i64) -> String {
        let [none, to, along] = [0, distance, self.axis].map(|bound| call.integers(&[bound]));
        let kept = call.plain("Slice", &[x, &none, &to, &along]);
        call.op("Concat", &[&kept, others], &[("axis", Attribute::Int(self.axis))])
    }

    /// For each element its place along the axis.
    fn places(&self, call: &mut Call<'_, '_>, x: &str) -> String {
        let [zero, size, one] = [0, self.size, 1].map(|bound| call.scalar(DType::I64, bound as f64));
        let places = call.plain("Range", &[&zero, &size, &one]);
        let mut dims = vec![1; self.rank as usize];
        if let Some(own) = dims.get_mut(self.axis as usize) {
            *own = -1;
        }
        let dims = call.integers(&dims);
        let (places, shape) = (call.plain("Reshape", &[&places, &dims]), call.plain("Shape", &[x]));
        call.plain("Expand", &[&places, &shape])
    }
}

/// `log(exp(x) + exp(y))`, where either may be minus infinity.
fn log_of_sum(call: &mut Call<'_, '_>, x: &str, y: &str) -> String {
    let most = call.plain("Max", &[x, y]);
    let least = call.plain("Min", &[x, y]);
    let apart = call.plain("Sub", &[&least, &most]);
    let more = call.plain("Softplus", &[&apart]);
    let sum = call.plain("Add", &[&most, &more]);
    super::special::or_infinite(call, x, y, &sum)
}

/// More differences of differences are not taken one by one.
const MOST_ORDERS: i64 = 64;

/// Differences of neighbours, so many times; with something before or behind all elements.
fn differences(call: &mut Call<'_, '_>) -> Result<()> {
    let (axis, dtype, order) = (call.axis("dim", -1)?, call.result_dtype()?, call.int("n", 1)?);
    if !(0..=MOST_ORDERS).contains(&order) {
        return Err(call.unsupported(format!("of order {order}")));
    }
    let mut parts = Vec::new();
    for name in ["prepend", "self", "append"] {
        // Without differences nothing is put beside it.
        if call.argument(name).is_some() && (order > 0 || name == "self") {
            parts.push(call.operand(name, dtype)?);
        }
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let mut x = match parts.as_slice() {
        [one] => (*one).to_owned(),
        parts => call.op("Concat", parts, &[("axis", Attribute::Int(axis))]),
    };
    for _ in 0..order {
        let (before, behind) = neighbours(call, &x, axis);
        let operator = if dtype == DType::Bool { "Xor" } else { "Sub" };
        x = call.plain(operator, &[&behind, &before]);
    }
    call.result(x)
}

/// All elements along an axis but the last, and all but the first.
fn neighbours(call: &mut Call<'_, '_>, x: &str, axis: i64) -> (String, String) {
    let along = call.integers(&[axis]);
    let [zero, one, last, end] = [0, 1, -1, i64::MAX].map(|bound| call.integers(&[bound]));
    let before = call.plain("Slice", &[x, &zero, &last, &along]);
    let behind = call.plain("Slice", &[x, &one, &end, &along]);
    (before, behind)
}

/// Areas between neighbours, and the axis along which they lie.
fn areas(call: &mut Call<'_, '_>) -> Result<(String, i64)> {
    let rank = call.rank("y")?;
    let axis = call.axis_of(call.int("dim", -1)?, rank)?;
    let dtype = call.result_dtype()?;
    let y = call.operand("y", dtype)?;
    let (before, behind) = neighbours(call, &y, axis);
    let sum = call.plain("Add", &[&before, &behind]);
    if call.argument("x").is_none() {
        let half = call.float("dx", 1.0)? / 2.0;
        let half = call.scalar(dtype, half);
        return Ok((call.plain("Mul", &[&sum, &half]), axis));
    }
    let (half, widths) = (call.scalar(dtype, 0.5), widths(call, axis, rank)?);
    let areas = call.plain("Mul", &[&sum, &widths]);
    Ok((call.plain("Mul", &[&areas, &half]), axis))
}

/// How far the places of neighbours are apart: places are a vector along the axis, or as many as there are elements.
fn widths(call: &mut Call<'_, '_>, axis: i64, rank: i64) -> Result<String> {
    let (own, dtype) = (call.rank("x")?, call.result_dtype()?);
    let mut x = call.operand("x", dtype)?;
    let mut along = axis;
    if own == 1 {
        let others: Vec<i64> = (0..rank).filter(|&other| other != axis).collect();
        let others = call.integers(&others);
        x = call.plain("Unsqueeze", &[&x, &others]);
    } else if own != rank {
        return Err(call.unsupported("at places in another number of axes"));
    } else {
        along = call.axis_of(axis, own)?;
    }
    let (before, behind) = neighbours(call, &x, along);
    Ok(call.plain("Sub", &[&behind, &before]))
}
