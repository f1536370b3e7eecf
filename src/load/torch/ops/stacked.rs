//! Tensors put together, turned and spread, which PyTorch composes of simpler operations.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// More elements than these are not listed one by one.
const MOST_PLACES: i64 = 1 << 22;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "hstack" => |call| joined(call, |rank| (rank.max(1), i64::from(rank > 1)), false),
        "vstack" | "row_stack" => |call| joined(call, |rank| (rank.max(2), 0), false),
        "dstack" => |call| joined(call, |rank| (rank.max(3), 2), false),
        "column_stack" => |call| joined(call, |rank| (rank.max(2), 1), true),
        "atleast_1d" => |call| at_least(call, 1),
        "atleast_2d" => |call| at_least(call, 2),
        "atleast_3d" => |call| at_least(call, 3),
        "ravel" => |call| {
            let x = call.tensor("self")?;
            let value = row(call, &x);
            call.result(value)
        },
        "fliplr" => |call| {
            let x = call.tensor("self")?;
            let value = reversed(call, &x, 1);
            call.result(value)
        },
        "flipud" => |call| {
            let x = call.tensor("self")?;
            let value = reversed(call, &x, 0);
            call.result(value)
        },
        "rot90" => rotated,
        "kron" => kron,
        "cross" | "linalg_cross" => cross,
        "cartesian_prod" => cartesian_product,
        "block_diag" => block_diagonal,
        "diag_embed" => |call| {
            let x = call.tensor("self")?;
            if (call.int("dim1", -2)?, call.int("dim2", -1)?) != (-2, -1) {
                return Err(call.unsupported("along other axes than the last"));
            }
            on_diagonal(call, &x, call.int("offset", 0)?)
        },
        "diagflat" => |call| {
            let x = call.tensor("self")?;
            let x = row(call, &x);
            let size = call
                .meta("self")?
                .dims()
                .and_then(|dims| dims.iter().try_fold(1i64, |all, &dim| all.checked_mul(dim)));
            let size = size.ok_or_else(|| call.unsupported("of open sizes"))?;
            let value = spread(call, &x, 1, size, call.int("offset", 0)?)?;
            call.result(value)
        },
        "diag" => |call| {
            let x = call.tensor("self")?;
            match call.rank("self")? {
                1 => on_diagonal(call, &x, call.int("diagonal", 0)?),
                _ => {
                    let value = super::layout::diagonal_from(call, "diagonal")?;
                    call.result(value)
                }
            }
        },
        "tril_indices" | "triu_indices" => triangle_places,
        "combinations" => |call| {
            let (x, r) = (call.tensor("self")?, call.int("r", 2)?);
            let size = call.meta("self")?.sizes.first().and_then(schema::size);
            let repeats = call.flag("with_replacement", false)?;
            let rows = chosen(call, size, r, repeats)?;
            let flat: Vec<i64> = rows.concat();
            let (flat, sizes) = (call.integers(&flat), call.integers(&[rows.len() as i64, r]));
            let places = call.plain("Reshape", &[&flat, &sizes]);
            let value = call.op("Gather", &[&x, &places], &[("axis", Attribute::Int(0))]);
            call.result(value)
        },
        // Powers, the highest first.
        "vander" | "linalg_vander" => |call| {
            let (x, dtype, axes) =
                (call.operand("x", call.result_dtype()?)?, call.result_dtype()?, call.integers(&[-1]));
            let columns = call.meta_of(call.result_name(0)?)?.sizes.last().and_then(schema::size);
            let columns = columns.ok_or_else(|| call.unsupported("of an open axis"))?;
            let ascends = call.operation() == "linalg_vander" || call.flag("increasing", false)?;
            call.list_places(columns)?;
            let numbers: Vec<f64> =
                (0..columns).map(|at| if ascends { at as f64 } else { (columns - 1 - at) as f64 }).collect();
            let powers = call.numbers(dtype, &numbers);
            let x = call.plain("Unsqueeze", &[&x, &axes]);
            let value = call.plain("Pow", &[&x, &powers]);
            call.result(value)
        },
        _ => return None,
    })
}

/// All ways to choose so many of some elements in their order, each as often as once, or as often as it comes.
pub(super) fn chosen(
    call: &mut Call<'_, '_>,
    size: Option<i64>,
    count: i64,
    repeats: bool,
) -> Result<Vec<Vec<i64>>> {
    let size = size.ok_or_else(|| call.unsupported("of an open axis"))?;
    if !(1..=8).contains(&count) {
        return Err(call.unsupported(format!("of {count} elements each")));
    }
    let mut rows: Vec<Vec<i64>> = vec![Vec::new()];
    for _ in 0..count {
        let first = |row: &Vec<i64>| row.last().map_or(0, |last| last + i64::from(!repeats));
        let next = rows.iter().try_fold(0i64, |all, row| all.checked_add((size - first(row)).max(0)));
        call.list_places(next.and_then(|next| next.checked_mul(count)).unwrap_or(i64::MAX))?;
        let with = |row: &Vec<i64>| (first(row)..size).map(|at| [row.as_slice(), &[at]].concat()).collect();
        rows = rows.iter().flat_map::<Vec<Vec<i64>>, _>(with).collect();
    }
    Ok(rows)
}

fn row(call: &mut Call<'_, '_>, x: &str) -> String {
    let all = call.integers(&[-1]);
    call.plain("Reshape", &[x, &all])
}

fn reversed(call: &mut Call<'_, '_>, x: &str, axis: i64) -> String {
    let [start, end, along, step] = [-1, i64::MIN, axis, -1].map(|value| call.integers(&[value]));
    call.plain("Slice", &[x, &start, &end, &along, &step])
}

/// A tensor of rank `rank` with at least `wanted` axes, as `atleast_1d` to `atleast_3d` have them.
fn with_axes(call: &mut Call<'_, '_>, x: &str, rank: i64, wanted: i64) -> String {
    let axes: &[i64] = match (rank, wanted) {
        (0, 1) | (1, 2) => &[0],
        (0, 2) => &[0, 1],
        (0, 3) => &[0, 1, 2],
        (1, 3) => &[0, 2],
        (2, 3) => &[2],
        _ => return x.to_owned(),
    };
    let axes = call.integers(axes);
    call.plain("Unsqueeze", &[x, &axes])
}

fn at_least(call: &mut Call<'_, '_>, wanted: i64) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let value = with_axes(call, &x, rank, wanted);
    call.result(value)
}

/// Tensors side by side: `form` gives for a rank how many axes each has at least, and the axis along which they lie.
/// A vector is a column where `is_column`.
fn joined(call: &mut Call<'_, '_>, form: fn(i64) -> (i64, i64), is_column: bool) -> Result<()> {
    let (names, dtype) = (call.list_names("tensors")?, call.result_dtype()?);
    let (mut parts, mut axis) = (Vec::new(), 0);
    for (name, value) in names.iter().zip(call.list_of("tensors", dtype)?) {
        let rank = call.meta_of(name)?.sizes.len() as i64;
        let (wanted, along) = form(rank);
        axis = along;
        parts.push(match (is_column, rank) {
            (true, 0 | 1) => {
                let column = call.integers(&[-1, 1]);
                call.plain("Reshape", &[&value, &column])
            }
            _ => with_axes(call, &value, rank, wanted),
        });
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let value = call.op("Concat", &parts, &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

/// Turned by so many quarters from the first of two axes to the second.
fn rotated(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let axes = call.ints("dims")?.unwrap_or_else(|| vec![0, 1]);
    let [first, second] =
        <[i64; 2]>::try_from(axes).map_err(|_| call.wrong("it turns not from one axis to another"))?;
    let (first, second) = (call.axis_of(first, rank)?, call.axis_of(second, rank)?);
    if rank < 2 || first == second {
        return Err(
            call.wrong(format!("it turns a tensor of {rank} axes from axis {first} to axis {second}"))
        );
    }
    let mut order: Vec<i64> = (0..rank).collect();
    order.swap(first as usize, second as usize);
    let exchanged =
        |call: &mut Call<'_, '_>, x: &str| call.op("Transpose", &[x], &[("perm", Attribute::Ints(&order))]);
    let value = match call.int("k", 1)?.rem_euclid(4) {
        0 => x,
        1 => {
            let turned = reversed(call, &x, second);
            exchanged(call, &turned)
        }
        2 => {
            let turned = reversed(call, &x, first);
            reversed(call, &turned, second)
        }
        _ => {
            let turned = exchanged(call, &x);
            reversed(call, &turned, second)
        }
    };
    call.result(value)
}

/// Each element of one tensor times the whole other one.
fn kron(call: &mut Call<'_, '_>) -> Result<()> {
    let (rank, other) = (call.rank("self")?, call.rank("other")?);
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let (Some(left), Some(right)) = (call.meta("self")?.dims(), call.meta("other")?.dims()) else {
        return Err(call.unsupported("of open sizes"));
    };
    if rank != other {
        return Err(call.unsupported("of tensors of different rank"));
    }
    let [inner, outer] = [1, 0].map(|first| (0..rank).map(|axis| 2 * axis + first).collect::<Vec<i64>>());
    let (inner, outer) = (call.integers(&inner), call.integers(&outer));
    let (x, y) = (call.plain("Unsqueeze", &[&x, &inner]), call.plain("Unsqueeze", &[&y, &outer]));
    let product = call.plain("Mul", &[&x, &y]);
    let sizes: Option<Vec<i64>> = left.iter().zip(&right).map(|(x, y)| x.checked_mul(*y)).collect();
    let sizes = sizes.ok_or_else(|| call.wrong("its sizes overflow"))?;
    let sizes = call.integers(&sizes);
    let value = call.plain("Reshape", &[&product, &sizes]);
    call.result(value)
}

/// The vector product along an axis of three elements.
fn cross(call: &mut Call<'_, '_>) -> Result<()> {
    let (rank, dtype) = (call.rank("self")?, call.result_dtype()?);
    if rank == 0 {
        return Err(call.wrong("it has no axis of 3 elements"));
    }
    let axis = match call.argument("dim") {
        Some(_) => call.axis("dim", -1)?,
        // Without one the older function takes the first that fits.
        None if call.operation() == "cross" => {
            let fits = call.meta("self")?.sizes.iter().position(|size| schema::size(size) == Some(3));
            fits.map(|axis| axis as i64).ok_or_else(|| call.wrong("it has no axis of 3 elements"))?
        }
        None => call.axis_of(-1, rank)?,
    };
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let [next, last] = [[1, 2, 0], [2, 0, 1]].map(|places| call.integers(&places));
    let along = [("axis", Attribute::Int(axis))];
    let mut products = Vec::new();
    for (left, right) in [(&next, &last), (&last, &next)] {
        let (left, right) = (call.op("Gather", &[&x, left], &along), call.op("Gather", &[&y, right], &along));
        products.push(call.plain("Mul", &[&left, &right]));
    }
    let value = call.plain("Sub", &[&products[0], &products[1]]);
    call.result(value)
}

/// All combinations of the elements of some vectors, each a row.
fn cartesian_product(call: &mut Call<'_, '_>) -> Result<()> {
    let values = call.list("tensors")?;
    if let [one] = values.as_slice() {
        return call.result(one.clone());
    }
    let parts = super::layout::grid(call, &values, false);
    let behind = call.integers(&[-1]);
    let columns = call.integers(&[-1, 1]);
    let mut rows = Vec::new();
    for part in parts {
        let part = call.plain("Unsqueeze", &[&part, &behind]);
        rows.push(call.plain("Reshape", &[&part, &columns]));
    }
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let value = call.op("Concat", &rows, &[("axis", Attribute::Int(1))]);
    call.result(value)
}

/// Matrices along a diagonal, zeros elsewhere.
fn block_diagonal(call: &mut Call<'_, '_>) -> Result<()> {
    let (names, dtype) = (call.list_names("tensors")?, call.result_dtype()?);
    let (axes, column) = (call.integers(&[0]), [("start", Attribute::Int(1)), ("end", Attribute::Int(2))]);
    let zero = call.integers(&[0]);
    let (mut blocks, mut before) = (Vec::new(), zero.clone());
    for (name, value) in names.iter().zip(call.list_of("tensors", dtype)?) {
        let lacking = 2usize.checked_sub(call.meta_of(name)?.sizes.len());
        let lacking = lacking.ok_or_else(|| call.wrong("it has blocks that are no matrices"))?;
        let block = (0..lacking).fold(value, |block, _| call.plain("Unsqueeze", &[&block, &axes]));
        let columns = call.op("Shape", &[&block], &column);
        let end = call.plain("Add", &[&before, &columns]);
        blocks.push((block, std::mem::replace(&mut before, end.clone()), end));
    }
    let (width, fill) = (before, call.scalar(dtype, 0.0));
    let mut rows = Vec::new();
    for (block, before, end) in &blocks {
        let after = call.plain("Sub", &[&width, end]);
        let pads = call.op("Concat", &[&zero, before, &zero, &after], &[("axis", Attribute::Int(0))]);
        rows.push(call.plain("Pad", &[block, &pads, &fill]));
    }
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let value = call.op("Concat", &rows, &[("axis", Attribute::Int(0))]);
    call.result(value)
}

/// The last axis along the diagonal of a matrix.
fn on_diagonal(call: &mut Call<'_, '_>, x: &str, offset: i64) -> Result<()> {
    let rank = call.rank("self")?;
    let size = call.meta("self")?.sizes.last().and_then(schema::size);
    let size = size.ok_or_else(|| call.unsupported("of an open axis"))?;
    let value = spread(call, x, rank, size, offset)?;
    call.result(value)
}

fn spread(call: &mut Call<'_, '_>, x: &str, rank: i64, size: i64, offset: i64) -> Result<String> {
    let dtype = call.result_dtype()?;
    let whole =
        offset.checked_abs().and_then(|offset| size.checked_add(offset)).filter(|&size| size <= MOST_PLACES);
    let whole = whole.ok_or_else(|| call.unsupported("of so many elements"))?;
    // One where the column is that of the element.
    let bounds = [0, whole, 1].map(|bound| call.scalar(DType::I64, bound as f64));
    let columns = call.plain("Range", &[&bounds[0], &bounds[1], &bounds[2]]);
    let first = call.scalar(DType::I64, offset.max(0) as f64);
    let bounds = [0, size, 1].map(|bound| call.scalar(DType::I64, bound as f64));
    let rows = call.plain("Range", &[&bounds[0], &bounds[1], &bounds[2]]);
    let rows = call.plain("Add", &[&rows, &first]);
    let behind = call.integers(&[-1]);
    let rows = call.plain("Unsqueeze", &[&rows, &behind]);
    let own = call.plain("Equal", &[&rows, &columns]);
    let x = call.plain("Unsqueeze", &[x, &behind]);
    let zero = call.scalar(dtype, 0.0);
    let value = call.plain("Where", &[&own, &x, &zero]);
    // Rows before the first element, or behind the last one.
    let mut pads = vec![0; 2 * (rank as usize + 1)];
    pads[rank as usize - 1] = (-offset).max(0);
    pads[2 * rank as usize] = offset.max(0);
    let pads = call.integers(&pads);
    Ok(call.plain("Pad", &[&value, &pads, &zero]))
}

/// Rows and columns of the elements of a triangle.
fn triangle_places(call: &mut Call<'_, '_>) -> Result<()> {
    let (rows, columns, offset) = (call.int("row", 0)?, call.int("col", 0)?, call.int("offset", 0)?);
    let is_listed = |size: i64| (0..=MOST_PLACES).contains(&size);
    if !is_listed(rows) || !is_listed(columns) || !is_listed(rows * columns) {
        return Err(call.unsupported(format!("of {rows} by {columns} elements")));
    }
    call.list_places(2 * rows * columns)?;
    let upper = call.operation() == "triu_indices";
    let within = |row: i64, column: i64| match upper {
        true => column.saturating_sub(row) >= offset,
        false => column.saturating_sub(row) <= offset,
    };
    let places: Vec<(i64, i64)> = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .filter(|&(row, column)| within(row, column))
        .collect();
    let flat: Vec<i64> =
        places.iter().map(|place| place.0).chain(places.iter().map(|place| place.1)).collect();
    let dtype = call.result_dtype()?;
    let (flat, sizes) = (call.integers(&flat), call.integers(&[2, places.len() as i64]));
    let value = call.plain("Reshape", &[&flat, &sizes]);
    let value = if dtype == DType::I64 { value } else { call.cast(&value, dtype) };
    call.result(value)
}
