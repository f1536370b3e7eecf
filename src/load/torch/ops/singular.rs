//! Singular values of small matrices, and what follows from them: by rotations of pairs of columns until all are at right
//! angles (Hestenes, 1958). Their lengths are then the singular values. As many pairs are rotated at once as there are
//! columns, by the circle method of tournaments (Brent and Luk, 1985).

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Larger matrices are not rotated.
const MOST_COLUMNS: i64 = 32;

/// How often every pair is rotated. Convergence is quadratic in the end; up to 32 columns, f64 has settled by then.
const SWEEPS: i64 = 10;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "linalg_svdvals" => |call| {
            let matrices = Matrices::of(call, "A")?;
            let values = matrices.values(call)?;
            call.result(values)
        },
        "linalg_svd" | "_linalg_svd" | "svd" => |call| {
            if call.is_read(0) || call.is_read(2) {
                return Err(call.unsupported("with its vectors, whose signs are not defined"));
            }
            let name = if call.argument("A").is_some() { "A" } else { "self" };
            let matrices = Matrices::of(call, name)?;
            let values = matrices.values(call)?;
            call.results(vec![None, Some(values)])
        },
        "linalg_eigvalsh" => |call| {
            let values = eigenvalues(call, "self")?;
            call.result(values)
        },
        "linalg_eigh" | "_linalg_eigh" => |call| {
            if call.is_read(1) {
                return Err(call.unsupported("with its vectors, whose signs are not defined"));
            }
            let name = if call.argument("A").is_some() { "A" } else { "self" };
            let values = eigenvalues(call, name)?;
            call.results(vec![Some(values)])
        },
        "linalg_pinv" | "pinverse" => pseudo_inverse,
        "linalg_matrix_rank" => rank,
        "linalg_cond" => condition,
        _ => return None,
    })
}

/// The last two axes of a tensor of sizes that are known.
struct Matrices {
    /// With at least as many rows as columns, and elements of at most 1: squares of others may be too large.
    x: String,
    /// What they were divided by, with two axes of size 1.
    scale: String,
    rows: i64,
    columns: i64,
    /// Whether rows and columns are exchanged.
    is_turned: bool,
    rank: i64,
    dtype: DType,
}

impl Matrices {
    fn of(call: &mut Call<'_, '_>, name: &str) -> Result<Self> {
        let x = call.tensor(name)?;
        Self::of_value(call, name, x)
    }

    /// A value of the sizes of an argument. Error: they are open, or too large.
    fn of_value(call: &mut Call<'_, '_>, name: &str, x: String) -> Result<Self> {
        let (sizes, dtype) = (&call.meta(name)?.sizes, call.dtype(name)?);
        let rank = sizes.len() as i64;
        let known: Option<Vec<i64>> = sizes.iter().rev().take(2).map(schema::size).collect();
        let small = |sides: &Vec<i64>| {
            sides.iter().all(|&side| side >= 1) && sides.iter().any(|&side| side <= MOST_COLUMNS)
        };
        let Some([width, height]) = known.filter(small).and_then(|sides| <[i64; 2]>::try_from(sides).ok())
        else {
            let refusal = format!("of other than matrices with a side of up to {MOST_COLUMNS}");
            return Err(call.unsupported(refusal));
        };
        let is_turned = height < width;
        let x = if is_turned { turned(call, &x, rank) } else { x };
        let (rows, columns) = (height.max(width), height.min(width));
        let (x, scale) = by_largest(call, &x, dtype);
        Ok(Self { x, scale, rows, columns, is_turned, rank, dtype })
    }

    /// The columns after rotation, at right angles to each other, and what has been rotated along with them.
    fn rotated(&self, call: &mut Call<'_, '_>, along: Option<String>) -> Result<[String; 2]> {
        // What is rotated is a row from here on: rows are chosen and joined where they lie.
        let mut all = turned(call, &self.x, self.rank);
        if let Some(along) = along {
            let along = turned(call, &along, self.rank);
            all = call.op("Concat", &[&all, &along], &[("axis", Attribute::Int(-1))]);
        }
        let rounds = if self.columns > 1 { self.columns + self.columns % 2 - 1 } else { 0 };
        call.list_steps(Some(rounds * SWEEPS))?;
        for round in 0..rounds * SWEEPS {
            all = self.round(call, &all, round % rounds);
        }
        let all = turned(call, &all, self.rank);
        let [first, edge, end, axis] = [0, self.rows, i64::MAX, -2].map(|number| call.integers(&[number]));
        let own = call.plain("Slice", &[&all, &first, &edge, &axis]);
        Ok([own, call.plain("Slice", &[&all, &edge, &end, &axis])])
    }

    /// Rotates the pairs of a round of a tournament: one is fixed, the others walk around.
    fn round(&self, call: &mut Call<'_, '_>, all: &str, round: i64) -> String {
        let count = self.columns + self.columns % 2;
        let place = |at: i64| if at == 0 { 0 } else { 1 + (at - 1 + round) % (count - 1) };
        let pairs: Vec<[i64; 2]> = (0..count / 2)
            .map(|at| [place(at), place(count - 1 - at)])
            .filter(|pair| pair.iter().all(|&row| row < self.columns))
            .collect();
        let idle = (0..self.columns).filter(|row| !pairs.iter().flatten().any(|other| other == row));
        let sides = [0, 1].into_iter().flat_map(|side| pairs.iter().map(move |pair| pair[side]));
        let order: Vec<i64> = sides.chain(idle).collect();
        let half = pairs.len() as i64;
        let of = |call: &mut Call<'_, '_>, rows: &[i64]| {
            let rows = call.integers(rows);
            call.op("Gather", &[all, &rows], &[("axis", Attribute::Int(self.rank - 2))])
        };
        let (one, other) =
            (of(call, &order[..half as usize]), of(call, &order[half as usize..2 * half as usize]));
        let mut parts = self.turned_pairs(call, &one, &other).to_vec();
        if order.len() as i64 > 2 * half {
            parts.push(of(call, &order[2 * half as usize..]));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let joined = call.op("Concat", &parts, &[("axis", Attribute::Int(-2))]);
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &row)| back[row as usize] = at as i64);
        let back = call.integers(&back);
        call.op("Gather", &[&joined, &back], &[("axis", Attribute::Int(self.rank - 2))])
    }

    /// Rows and as many others, each pair turned in its plane until its first `rows` elements are at right angles.
    fn turned_pairs(&self, call: &mut Call<'_, '_>, one: &str, other: &str) -> [String; 2] {
        let [zero, unit, two] = [0.0, 1.0, 2.0].map(|number| call.scalar(self.dtype, number));
        let [first, edge, axis] = [0, self.rows, -1].map(|number| call.integers(&[number]));
        let [x, y] = [one, other].map(|rows| call.plain("Slice", &[rows, &first, &edge, &axis]));
        let [own, others, both] = [[&x, &x], [&y, &y], [&x, &y]].map(|[left, right]| {
            let product = call.plain("Mul", &[left, right]);
            call.op("ReduceSum", &[&product, &axis], &[("keepdims", Attribute::Int(1))])
        });
        let is_right = call.plain("Equal", &[&both, &zero]);
        let safe = call.plain("Where", &[&is_right, &unit, &both]);
        let apart = call.plain("Sub", &[&others, &own]);
        let twice = call.plain("Mul", &[&safe, &two]);
        let cotangent = call.plain("Div", &[&apart, &twice]);
        // The smaller of both angles: t = sign(c) / (|c| + sqrt(1 + c^2)), where the root is c itself once c is large.
        let size = call.plain("Abs", &[&cotangent]);
        let least = call.plain("Max", &[&size, &unit]);
        let [scaled, share] = [&size, &unit].map(|part| call.plain("Div", &[part, &least]));
        let [scaled, share] = [scaled, share].map(|part| call.plain("Mul", &[&part, &part]));
        let square = call.plain("Add", &[&scaled, &share]);
        let root = call.plain("Sqrt", &[&square]);
        let root = call.plain("Mul", &[&root, &least]);
        let sum = call.plain("Add", &[&size, &root]);
        let tangent = call.plain("Div", &[&unit, &sum]);
        let is_below = call.plain("Less", &[&cotangent, &zero]);
        let opposite = call.plain("Neg", &[&tangent]);
        let tangent = call.plain("Where", &[&is_below, &opposite, &tangent]);
        let tangent = call.plain("Where", &[&is_right, &zero, &tangent]);
        let square = call.plain("Mul", &[&tangent, &tangent]);
        let square = call.plain("Add", &[&square, &unit]);
        let length = call.plain("Sqrt", &[&square]);
        let [left, right] = [one, other].map(|rows| call.plain("Mul", &[rows, &tangent]));
        let less = call.plain("Sub", &[one, &right]);
        let more = call.plain("Add", &[other, &left]);
        [less, more].map(|rows| call.plain("Div", &[&rows, &length]))
    }

    /// Numbers in a last axis as they are of the matrices before these were divided.
    fn in_scale(&self, call: &mut Call<'_, '_>, values: &str) -> String {
        let last = call.integers(&[-1]);
        let scale = call.plain("Squeeze", &[&self.scale, &last]);
        call.plain("Mul", &[values, &scale])
    }

    /// Lengths of columns, the largest first.
    fn values(&self, call: &mut Call<'_, '_>) -> Result<String> {
        let [columns, _] = self.rotated(call, None)?;
        let axis = call.integers(&[-2]);
        let lengths = call.op("ReduceL2", &[&columns, &axis], &[("keepdims", Attribute::Int(0))]);
        let lengths = self.in_scale(call, &lengths);
        Ok(sorted(call, &lengths, self.columns, 1))
    }
}

/// Matrices by their largest elements, and those; by 1 where all are 0.
pub(super) fn by_largest(call: &mut Call<'_, '_>, x: &str, dtype: DType) -> (String, String) {
    let both = call.integers(&[-2, -1]);
    let [zero, one] = [0.0, 1.0].map(|number| call.scalar(dtype, number));
    let size = call.plain("Abs", &[x]);
    let largest = call.op("ReduceMax", &[&size, &both], &[("keepdims", Attribute::Int(1))]);
    let is_zero = call.plain("Equal", &[&largest, &zero]);
    let scale = call.plain("Where", &[&is_zero, &one, &largest]);
    (call.plain("Div", &[x, &scale]), scale)
}

/// Singular values as norms need them, the largest first, of a value of an argument's sizes.
pub(super) fn values_of(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    let matrices = Matrices::of(call, name)?;
    matrices.values(call)
}

fn turned(call: &mut Call<'_, '_>, x: &str, rank: i64) -> String {
    let order: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    call.op("Transpose", &[x], &[("perm", Attribute::Ints(&order))])
}

fn sorted(call: &mut Call<'_, '_>, x: &str, count: i64, largest: i64) -> String {
    let (values, places) = (call.emit.fresh(), call.emit.fresh());
    let count = call.integers(&[count]);
    let attributes = [("axis", Attribute::Int(-1)), ("largest", Attribute::Int(largest))];
    call.emit.operation("TopK", &[x, &count], &[&values, &places], &attributes);
    values
}

/// Symmetric matrices of which one triangle is read.
fn symmetric(call: &mut Call<'_, '_>, name: &str, upper: i64) -> Result<String> {
    let (x, rank) = (call.tensor(name)?, call.rank(name)?);
    let offset = call.scalar(DType::I64, if upper == 1 { 1.0 } else { -1.0 });
    let zero = call.scalar(DType::I64, 0.0);
    let whole = call.op("Trilu", &[&x, &zero], &[("upper", Attribute::Int(upper))]);
    let beside = call.op("Trilu", &[&x, &offset], &[("upper", Attribute::Int(upper))]);
    let beside = turned(call, &beside, rank);
    Ok(call.plain("Add", &[&whole, &beside]))
}

/// Eigenvalues of symmetric matrices, the least first: with so much added to the diagonal that none is below 0, they are
/// the singular values.
fn eigenvalues(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    let upper = i64::from(call.text("UPLO", "L")?.eq_ignore_ascii_case("U"));
    let unit = super::solve::unit_like(call, name)?;
    let x = symmetric(call, name, upper)?;
    let (row, both) = (call.integers(&[-1]), call.integers(&[-2, -1]));
    let size = call.op("ReduceL1", &[&x, &row], &[("keepdims", Attribute::Int(1))]);
    // No eigenvalue is larger than the largest sum of a row (Gershgorin).
    let bound = call.op("ReduceMax", &[&size, &both], &[("keepdims", Attribute::Int(1))]);
    let diagonal = call.plain("Mul", &[&unit, &bound]);
    let shifted = call.plain("Add", &[&x, &diagonal]);
    let matrices = Matrices::of_value(call, name, shifted)?;
    let values = matrices.values(call)?;
    let values = sorted(call, &values, matrices.columns, 0);
    let bound = call.plain("Squeeze", &[&bound, &row]);
    Ok(call.plain("Sub", &[&values, &bound]))
}

/// How small a singular value counts as 0: what is stated, and what is so of the largest one, whose last axis is 1.
fn limit(call: &mut Call<'_, '_>, matrices: &Matrices, largest: &str) -> Result<String> {
    let dtype = matrices.dtype;
    let smallest = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let share = call.scalar(dtype, smallest * matrices.rows as f64);
    for name in ["rcond", "tol"] {
        if call.argument(name).is_some() {
            let stated = stated(call, name, dtype)?;
            let is_share = name == "rcond";
            return Ok(if is_share { call.plain("Mul", &[&stated, largest]) } else { stated });
        }
    }
    let zero = call.scalar(dtype, 0.0);
    let has_least = call.argument("atol").is_some();
    let least = if has_least { stated(call, "atol", dtype)? } else { zero.clone() };
    let share = if call.argument("rtol").is_some() {
        stated(call, "rtol", dtype)?
    } else if has_least {
        // A bound of its own stands for that of the largest.
        let is_bound = call.plain("Greater", &[&least, &zero]);
        call.plain("Where", &[&is_bound, &zero, &share])
    } else {
        share
    };
    let share = call.plain("Mul", &[&share, largest]);
    Ok(call.plain("Max", &[&least, &share]))
}

/// A bound, with an axis for the singular values that it is compared with.
fn stated(call: &mut Call<'_, '_>, name: &str, dtype: DType) -> Result<String> {
    let value = call.operand(name, dtype)?;
    let is_batch = call.argument(name).is_some_and(|argument| argument.parts().0 == "as_tensor");
    if !is_batch || call.rank(name)? == 0 {
        return Ok(value);
    }
    let last = call.integers(&[-1]);
    Ok(call.plain("Unsqueeze", &[&value, &last]))
}

fn largest_of(call: &mut Call<'_, '_>, values: &str) -> String {
    let last = call.integers(&[-1]);
    call.op("ReduceMax", &[values, &last], &[("keepdims", Attribute::Int(1))])
}

/// The matrices of an operation, of which one triangle is read where they are said to be symmetric.
fn stated_matrices(call: &mut Call<'_, '_>, name: &str) -> Result<Matrices> {
    if !call.flag("hermitian", false)? {
        return Matrices::of(call, name);
    }
    let x = symmetric(call, name, 0)?;
    Matrices::of_value(call, name, x)
}

/// How many singular values are not 0.
fn rank(call: &mut Call<'_, '_>) -> Result<()> {
    let name = if call.argument("input").is_some() { "input" } else { "self" };
    let matrices = stated_matrices(call, name)?;
    let values = matrices.values(call)?;
    let largest = largest_of(call, &values);
    let limit = limit(call, &matrices, &largest)?;
    let counts = call.plain("Greater", &[&values, &limit]);
    let counts = call.cast(&counts, DType::I64);
    let last = call.integers(&[-1]);
    let value = call.op("ReduceSum", &[&counts, &last], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}

/// The largest singular value by the least, or the other way round.
fn condition(call: &mut Call<'_, '_>) -> Result<()> {
    let order = if call.argument("p").is_some() { call.float("p", 2.0) } else { Ok(2.0) };
    let is_least = match order {
        Ok(2.0) => false,
        Ok(-2.0) => true,
        _ => return Err(call.unsupported("but by singular values")),
    };
    let matrices = Matrices::of(call, "self")?;
    let values = matrices.values(call)?;
    let last = call.integers(&[-1]);
    let [most, least] = ["ReduceMax", "ReduceMin"]
        .map(|of_all| call.op(of_all, &[&values, &last], &[("keepdims", Attribute::Int(0))]));
    let value = match is_least {
        false => call.plain("Div", &[&most, &least]),
        true => call.plain("Div", &[&least, &most]),
    };
    call.result(value)
}

/// `V 1/s U^T`: with `A V = U s`, each row of `V^T` by its column of `A V`, both over the square of the value.
fn pseudo_inverse(call: &mut Call<'_, '_>) -> Result<()> {
    let matrices = stated_matrices(call, "self")?;
    let (rank, dtype) = (matrices.rank, matrices.dtype);
    let unit = unit_of(call, &matrices);
    let [images, turns] = matrices.rotated(call, Some(unit))?;
    let axis = call.integers(&[-2]);
    let squares = call.plain("Mul", &[&images, &images]);
    let squares = call.op("ReduceSum", &[&squares, &axis], &[("keepdims", Attribute::Int(1))]);
    let lengths = call.op("ReduceL2", &[&images, &axis], &[("keepdims", Attribute::Int(0))]);
    let lengths = matrices.in_scale(call, &lengths);
    let largest = largest_of(call, &lengths);
    let limit = limit(call, &matrices, &largest)?;
    let counts = call.plain("Greater", &[&lengths, &limit]);
    let counts = call.plain("Unsqueeze", &[&counts, &axis]);
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let squares = call.plain("Where", &[&counts, &squares, &one]);
    let shares = call.plain("Div", &[&turns, &squares]);
    let shares = call.plain("Where", &[&counts, &shares, &zero]);
    let across = turned(call, &images, rank);
    let value = call.plain("MatMul", &[&shares, &across]);
    let value = call.plain("Div", &[&value, &matrices.scale]);
    let value = if matrices.is_turned { turned(call, &value, rank) } else { value };
    call.result(value)
}

/// A unit matrix of as many columns for each of the matrices.
fn unit_of(call: &mut Call<'_, '_>, matrices: &Matrices) -> String {
    let (zero, sizes) = (call.scalar(matrices.dtype, 0.0), call.integers(&[matrices.columns; 2]));
    let zeros = call.plain("Expand", &[&zero, &sizes]);
    let one = call.plain("EyeLike", &[&zeros]);
    let batch = call.op("Shape", &[&matrices.x], &[("end", Attribute::Int(-2))]);
    let shape = call.op("Concat", &[&batch, &sizes], &[("axis", Attribute::Int(0))]);
    call.plain("Expand", &[&one, &shape])
}
