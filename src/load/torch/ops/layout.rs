//! The same elements in another shape, order or type.

use super::super::call::{Call, Number};
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Operations whose result may lie in their operand's memory.
pub(super) const VIEWS: [&str; 59] = [
    "adjoint",
    "_conj",
    "_neg_view",
    "conj",
    "imag",
    "real",
    "resolve_conj",
    "resolve_neg",
    "view_as_complex",
    "view_as_real",
    "_unsafe_view",
    "alias",
    "alpha_dropout",
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_to",
    "chunk",
    "contiguous",
    "detach",
    "dropout",
    "dsplit",
    "expand",
    "expand_as",
    "feature_dropout",
    "flatten",
    "hsplit",
    "lift_fresh",
    "mT",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "positive",
    "ravel",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "t",
    "tensor_split",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unfold",
    "unsafe_chunk",
    "unsafe_split",
    "unsqueeze",
    "view",
    "view_as",
    "vsplit",
    "_to_copy",
    "diagonal",
];

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "detach" | "detach_copy" => |call| {
            let x = call.tensor("self")?;
            let value = call.plain("StopGradient", &[&x]);
            call.result(value)
        },
        "alias" | "positive" | "clone" | "contiguous" | "lift_fresh" | "lift_fresh_copy" | "conj"
        | "_conj" | "conj_physical" | "resolve_conj" | "resolve_neg" | "real" => same,
        "dropout" | "feature_dropout" | "native_dropout" | "alpha_dropout" => dropout,
        "to" | "_to_copy" | "type_as" => converted,
        "view" | "reshape" | "_unsafe_view" => reshape,
        "view_as" => |call| like(call, "Reshape"),
        "expand_as" => |call| like(call, "Expand"),
        "flatten" => flatten,
        "unflatten" => unflatten,
        "permute" | "transpose" | "swapaxes" | "t" | "numpy_T" | "mT" | "adjoint" | "movedim" => |call| {
            let (x, order) = (call.tensor("self")?, order(call)?);
            let value = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&order))]);
            call.result(value)
        },
        "unsqueeze" => |call| {
            let rank = call.rank("self")? + 1;
            let axis = call.axis_of(call.int("dim", 0)?, rank)?;
            let (x, axes) = (call.tensor("self")?, call.integers(&[axis]));
            let value = call.plain("Unsqueeze", &[&x, &axes]);
            call.result(value)
        },
        "squeeze" => squeeze,
        "expand" | "broadcast_to" => expand,
        "repeat" => |call| repeat(call, "repeats"),
        "tile" => |call| repeat(call, "dims"),
        "cat" | "concat" => cat,
        "stack" => stack,
        "slice" => slice,
        "narrow" => narrow,
        "select" => select,
        "split" | "split_with_sizes" | "chunk" | "tensor_split" | "unsafe_split" | "unsafe_chunk"
        | "hsplit" | "vsplit" | "dsplit" => split,
        "repeat_interleave" => repeat_interleave,
        "diagonal" => |call| {
            let value = diagonal(call)?;
            call.result(value)
        },
        "trace" => |call| {
            let value = diagonal(call)?;
            let value = call.op("ReduceSum", &[&value], &[("keepdims", Attribute::Int(0))]);
            call.result(value)
        },
        "meshgrid" => meshgrid,
        "broadcast_tensors" => broadcast_tensors,
        "pixel_unshuffle" => |call| {
            let (x, factor) = (call.tensor("self")?, call.int("downscale_factor", 1)?);
            let [channels, height, width] = image(call)?;
            if factor < 1 || height % factor != 0 || width % factor != 0 {
                return Err(call.wrong(format!("{height} by {width} cannot be divided by {factor}")));
            }
            let apart = [0, channels, height / factor, factor, width / factor, factor];
            regrouped(call, &x, &apart, &[0, 1, 3, 5, 2, 4], &[0, -1, height / factor, width / factor])
        },
        "channel_shuffle" => |call| {
            let (x, groups) = (call.tensor("self")?, call.int("groups", 1)?);
            let [channels, height, width] = image(call)?;
            if groups < 1 || channels % groups != 0 {
                return Err(call.wrong(format!("{channels} channels cannot be divided by {groups}")));
            }
            let apart = [0, groups, channels / groups, height, width];
            regrouped(call, &x, &apart, &[0, 2, 1, 3, 4], &[0, channels, height, width])
        },
        "copy" => |call| {
            let source = call.operand("src", call.result_dtype()?)?;
            let x = call.tensor("self")?;
            let shape = call.plain("Shape", &[&x]);
            let value = call.plain("Expand", &[&source, &shape]);
            call.result(value)
        },
        "unbind" => unbind,
        "flip" => flip,
        "roll" => roll,
        "constant_pad_nd" | "pad" => pad,
        "pixel_shuffle" => |call| {
            let x = call.tensor("self")?;
            let factor = call.int("upscale_factor", 1)?;
            let attributes = [("blocksize", Attribute::Int(factor)), ("mode", Attribute::Text("CRD"))];
            let value = call.op("DepthToSpace", &[&x], &attributes);
            call.result(value)
        },
        "tril" | "triu" => |call| {
            let x = call.tensor("self")?;
            let k = match call.argument("diagonal") {
                Some(_) => call.operand("diagonal", crate::ir::DType::I64)?,
                None => String::new(),
            };
            let upper = i64::from(call.operation() == "triu");
            let value = call.op("Trilu", &[&x, &k], &[("upper", Attribute::Int(upper))]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Channels, height and width of `[batch, channels, height, width]`.
fn image(call: &Call<'_, '_>) -> Result<[i64; 3]> {
    let sizes = &call.meta("self")?.sizes;
    let known: Option<Vec<i64>> = sizes.iter().skip(1).map(schema::size).collect();
    let known = known.and_then(|known| <[i64; 3]>::try_from(known).ok());
    known.ok_or_else(|| call.unsupported("but of a batch of images whose sizes are known"))
}

/// Axes taken apart, in another order, and put together again.
fn regrouped(call: &mut Call<'_, '_>, x: &str, apart: &[i64], order: &[i64], shape: &[i64]) -> Result<()> {
    let apart = call.integers(apart);
    let value = call.plain("Reshape", &[x, &apart]);
    let value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(order))]);
    let shape = call.integers(shape);
    let value = call.plain("Reshape", &[&value, &shape]);
    call.result(value)
}

/// Each element of an axis so many times, one copy behind the other.
fn repeat_interleave(call: &mut Call<'_, '_>) -> Result<()> {
    let counts = call.meta("repeats").is_ok();
    if counts && call.argument("self").is_none() {
        let places = repeated_places(call)?;
        return call.result(places);
    }
    let (mut x, mut rank) = (call.tensor("self")?, call.rank("self")?);
    let times = if counts { 1 } else { call.int("repeats", 1)? };
    let axis = match call.argument("dim") {
        Some(_) => call.axis("dim", 0)?,
        None => {
            let all = call.integers(&[-1]);
            x = call.plain("Reshape", &[&x, &all]);
            rank = 1;
            0
        }
    };
    if counts {
        let places = repeated_places(call)?;
        let value = call.op("Gather", &[&x, &places], &[("axis", Attribute::Int(axis))]);
        return call.result(value);
    }
    let behind = call.integers(&[axis + 1]);
    let apart = call.plain("Unsqueeze", &[&x, &behind]);
    let mut sizes = vec![1; rank as usize + 1];
    if let Some(size) = sizes.get_mut(axis as usize + 1) {
        *size = times;
    }
    let sizes = call.integers(&sizes);
    let apart = call.plain("Expand", &[&apart, &sizes]);
    let mut parts = Vec::new();
    if axis > 0 {
        parts.push(call.op("Shape", &[&x], &[("end", Attribute::Int(axis))]));
    }
    parts.push(call.integers(&[-1]));
    if axis + 1 < rank {
        parts.push(call.op("Shape", &[&x], &[("start", Attribute::Int(axis + 1))]));
    }
    let value = reshaped(call, &apart, &parts);
    call.result(value)
}

/// The place of each element as often as it is repeated: as many as elements before it end at or before a result's place.
fn repeated_places(call: &mut Call<'_, '_>) -> Result<String> {
    let refusal = "with a number for each element and no output_size";
    let count = call.int("output_size", -1).map_err(|_| call.unsupported(refusal))?;
    if count < 0 {
        return Err(call.unsupported(refusal));
    }
    let repeats = call.operand("repeats", DType::I64)?;
    let axis = call.scalar(DType::I64, 0.0);
    let ends = call.plain("CumSum", &[&repeats, &axis]);
    let [first, last, step] = [0, count, 1].map(|bound| call.scalar(DType::I64, bound as f64));
    let places = call.plain("Range", &[&first, &last, &step]);
    let along = call.integers(&[1]);
    let places = call.plain("Unsqueeze", &[&places, &along]);
    let before = call.plain("LessOrEqual", &[&ends, &places]);
    let before = call.cast(&before, DType::I64);
    Ok(call.op("ReduceSum", &[&before, &along], &[("keepdims", Attribute::Int(0))]))
}

/// The elements of a matrix whose places along two axes are alike.
pub(super) struct Diagonal {
    /// The axes of the tensor, with the matrix's last.
    pub(super) order: Vec<i64>,
    /// Places in the matrix, row by row.
    pub(super) places: Vec<i64>,
}

impl Diagonal {
    pub(super) fn of(call: &mut Call<'_, '_>) -> Result<Self> {
        Self::beside(call, "offset")
    }

    /// As far beside the main one as an argument says.
    fn beside(call: &mut Call<'_, '_>, offset: &str) -> Result<Self> {
        let (rank, offset) = (call.rank("self")?, call.int(offset, 0)?);
        let (first, second) = (call.axis("dim1", 0)?, call.axis("dim2", 1)?);
        let size = |axis: i64| call.meta("self").ok()?.sizes.get(axis as usize).and_then(schema::size);
        let (Some(rows), Some(columns)) = (size(first), size(second)) else {
            return Err(call.unsupported("of open axes"));
        };
        call.list_places(rows)?;
        let order: Vec<i64> =
            (0..rank).filter(|axis| ![first, second].contains(axis)).chain([first, second]).collect();
        let place = |row: i64| {
            let column = row.checked_add(offset).filter(|column| (0..columns).contains(column))?;
            row.checked_mul(columns)?.checked_add(column)
        };
        let places = (0..rows).filter_map(place).collect();
        Ok(Self { order, places })
    }

    /// The matrices of a tensor with its axes in this order, each as one row.
    pub(super) fn rows(&self, call: &mut Call<'_, '_>, apart: &str) -> String {
        let mut parts = Vec::new();
        if self.order.len() > 2 {
            parts.push(call.op("Shape", &[apart], &[("end", Attribute::Int(-2))]));
        }
        parts.push(call.integers(&[-1]));
        reshaped(call, apart, &parts)
    }
}

/// Elements whose places along two axes are alike, as a last axis.
fn diagonal(call: &mut Call<'_, '_>) -> Result<String> {
    diagonal_from(call, "offset")
}

/// Those of the diagonal that is as far beside the main one as an argument says.
pub(super) fn diagonal_from(call: &mut Call<'_, '_>, offset: &str) -> Result<String> {
    let (x, diagonal) = (call.tensor("self")?, Diagonal::beside(call, offset)?);
    let value = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&diagonal.order))]);
    let value = diagonal.rows(call, &value);
    let places = call.integers(&diagonal.places);
    let axis = diagonal.order.len() as i64 - 2;
    Ok(call.op("Gather", &[&value, &places], &[("axis", Attribute::Int(axis))]))
}

/// Each of some vectors along an axis of its own, in the shape of all; `xy` exchanges the first two.
fn meshgrid(call: &mut Call<'_, '_>) -> Result<()> {
    let values = call.list("tensors")?;
    let exchanged = call.text("indexing", "ij")? == "xy" && values.len() > 1;
    let results = grid(call, &values, exchanged);
    call.results(results.into_iter().map(Some).collect())
}

/// Vectors along an axis of their own each, in the shape of all.
pub(super) fn grid(call: &mut Call<'_, '_>, values: &[String], exchanged: bool) -> Vec<String> {
    let axis_of = |at: usize| if exchanged && at < 2 { 1 - at } else { at };
    let mut apart = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let mut dims = vec![1; values.len()];
        if let Some(size) = dims.get_mut(axis_of(at)) {
            *size = -1;
        }
        let dims = call.integers(&dims);
        apart.push(call.plain("Reshape", &[value, &dims]));
    }
    broadcast(call, &apart)
}

fn broadcast_tensors(call: &mut Call<'_, '_>) -> Result<()> {
    let values = call.list("tensors")?;
    let results = broadcast(call, &values);
    call.results(results.into_iter().map(Some).collect())
}

/// Tensors in the shape that all of them broadcast to.
fn broadcast(call: &mut Call<'_, '_>, values: &[String]) -> Vec<String> {
    let Some((first, others)) = values.split_first() else { return Vec::new() };
    let mut whole = first.clone();
    for other in others {
        let shape = call.plain("Shape", &[other]);
        whole = call.plain("Expand", &[&whole, &shape]);
    }
    let shape = call.plain("Shape", &[&whole]);
    let mut results = vec![whole];
    for other in others {
        results.push(call.plain("Expand", &[other, &shape]));
    }
    results
}

fn first_of<'n>(call: &Call<'_, '_>, names: [&'n str; 2]) -> &'n str {
    if call.argument(names[0]).is_some() { names[0] } else { names[1] }
}

fn same(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    call.result(x)
}

/// Nothing is dropped where the program does not train; single elements are when it is trained here.
fn dropout(call: &mut Call<'_, '_>) -> Result<()> {
    if call.flag("train", false)? {
        return Err(call.unsupported("in training"));
    }
    let name = first_of(call, ["input", "self"]);
    let x = call.tensor(name)?;
    let rate = call.float("p", 0.0)?;
    let is_drawn = call.operation() == "dropout" && call.dtype(name)?.is_float() && rate > 0.0;
    if !is_drawn {
        return call.result(x);
    }
    let rate = call.scalar(DType::F32, rate);
    let value = call.plain("Dropout", &[&x, &rate]);
    call.result(value)
}

pub(super) fn converted(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let x = call.operand("self", dtype)?;
    call.result(x)
}

fn reshape(call: &mut Call<'_, '_>) -> Result<()> {
    let name = first_of(call, ["size", "shape"]);
    if call.argument(name).is_none() {
        return bits(call);
    }
    let (x, shape) = (call.tensor("self")?, call.sizes(name)?);
    let value = call.op("Reshape", &[&x, &shape], &[("allowzero", Attribute::Int(1))]);
    call.result(value)
}

/// The same bits as another type, where one of whole numbers has as many: else what they mean is not known here.
fn bits(call: &mut Call<'_, '_>) -> Result<()> {
    let (from, to) = (call.dtype("self")?, call.result_dtype()?);
    let is_whole = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
    // Of bytes only 0 and 1 are truth values.
    if from != to && !(is_whole(from) && to.is_integer() && from.size() == to.size()) {
        return Err(call.unsupported("bytes as another type"));
    }
    let x = call.operand("self", to)?;
    call.result(x)
}

fn like(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let (x, other) = (call.tensor("self")?, call.tensor("other")?);
    let shape = call.plain("Shape", &[&other]);
    let value = call.plain(operator, &[&x, &shape]);
    call.result(value)
}

/// Axes `start_dim` to `end_dim` become one.
fn flatten(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let (first, last) = (call.axis("start_dim", 0)?, call.axis("end_dim", -1)?);
    if rank > 0 && first == last {
        return call.result(x);
    }
    let mut parts = Vec::new();
    if first > 0 {
        parts.push(call.op("Shape", &[&x], &[("start", Attribute::Int(0)), ("end", Attribute::Int(first))]));
    }
    parts.push(call.integers(&[-1]));
    if last + 1 < rank {
        parts.push(call.op("Shape", &[&x], &[("start", Attribute::Int(last + 1))]));
    }
    let value = reshaped(call, &x, &parts);
    call.result(value)
}

/// With a shape that is made of parts.
fn reshaped(call: &mut Call<'_, '_>, x: &str, parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let shape = call.op("Concat", &parts, &[("axis", Attribute::Int(0))]);
    call.plain("Reshape", &[x, &shape])
}

fn unflatten(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank, axis) = (call.tensor("self")?, call.rank("self")?, call.axis("dim", 0)?);
    let mut parts = Vec::new();
    if axis > 0 {
        parts.push(call.op("Shape", &[&x], &[("start", Attribute::Int(0)), ("end", Attribute::Int(axis))]));
    }
    parts.push(call.sizes("sizes")?);
    if axis + 1 < rank {
        parts.push(call.op("Shape", &[&x], &[("start", Attribute::Int(axis + 1))]));
    }
    let value = reshaped(call, &x, &parts);
    call.result(value)
}

/// The axes of the operand in the order of the result.
pub(super) fn order(call: &Call<'_, '_>) -> Result<Vec<i64>> {
    let rank = call.rank("self")?;
    match call.operation() {
        "permute" => {
            let axes = call.ints("dims")?.unwrap_or_default();
            axes.into_iter().map(|axis| call.axis_of(axis, rank)).collect()
        }
        "movedim" => moved(call, rank),
        "t" | "numpy_T" => Ok((0..rank).rev().collect()),
        operation => {
            let mut axes: Vec<i64> = (0..rank).collect();
            if rank == 0 {
                return Ok(axes);
            }
            let (one, other) = match operation {
                "transpose" | "swapaxes" => (
                    call.axis(first_of(call, ["dim0", "axis0"]), 0)?,
                    call.axis(first_of(call, ["dim1", "axis1"]), 1)?,
                ),
                _ => (call.axis_of(-2, rank)?, call.axis_of(-1, rank)?),
            };
            axes.swap(one as usize, other as usize);
            Ok(axes)
        }
    }
}

fn moved(call: &Call<'_, '_>, rank: i64) -> Result<Vec<i64>> {
    let (Some(from), Some(to)) = (call.ints("source")?, call.ints("destination")?) else {
        return Err(call.wrong("it has no axes"));
    };
    let counted =
        |axes: Vec<i64>| axes.into_iter().map(|axis| call.axis_of(axis, rank)).collect::<Result<Vec<i64>>>();
    let (from, to) = (counted(from)?, counted(to)?);
    let mut rest = (0..rank).filter(|axis| !from.contains(axis));
    let place = |axis: i64| match to.iter().position(|&at| at == axis) {
        Some(index) => from.get(index).copied(),
        None => rest.next(),
    };
    let axes = (0..rank).map(place).collect::<Option<Vec<i64>>>();
    axes.ok_or_else(|| call.wrong("axes that do not fit one another"))
}

/// Without axes of size 1: of those named the ones that are, or all.
fn squeeze(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let named = call.ints("dim")?.unwrap_or_else(|| (0..rank).collect());
    let sizes = &call.meta("self")?.sizes;
    let mut axes = Vec::new();
    for axis in named {
        let axis = call.axis_of(axis, rank)?;
        if sizes.get(axis as usize).and_then(schema::size) == Some(1) {
            axes.push(axis);
        }
    }
    if axes.is_empty() {
        return call.result(x);
    }
    let axes = call.integers(&axes);
    let value = call.plain("Squeeze", &[&x, &axes]);
    call.result(value)
}

/// A size of -1 stays; ONNX calls it 1, which broadcasts to what is there.
fn expand(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let shape = match call.ints("size") {
        Ok(Some(sizes)) => {
            let sizes: Vec<i64> = sizes.into_iter().map(|size| if size == -1 { 1 } else { size }).collect();
            call.integers(&sizes)
        }
        _ => {
            let sizes = call.sizes("size")?;
            let one = call.integers(&[1]);
            let stays = call.scalar(crate::ir::DType::I64, -1.0);
            let stays = call.plain("Equal", &[&sizes, &stays]);
            call.plain("Where", &[&stays, &one, &sizes])
        }
    };
    let value = call.plain("Expand", &[&x, &shape]);
    call.result(value)
}

/// Fewer numbers than axes are those of the last ones.
fn repeat(call: &mut Call<'_, '_>, name: &str) -> Result<()> {
    let (mut x, rank) = (call.tensor("self")?, call.rank("self")?);
    let mut times = call.sizes(name)?;
    let count =
        call.argument(name).map_or(0, |argument| argument.parts().1.as_array().map_or(0, Vec::len) as i64);
    if count > rank {
        let axes: Vec<i64> = (0..count - rank).collect();
        let axes = call.integers(&axes);
        x = call.plain("Unsqueeze", &[&x, &axes]);
    }
    if count < rank {
        let ones = call.integers(&vec![1; (rank - count) as usize]);
        times = call.op("Concat", &[&ones, &times], &[("axis", Attribute::Int(0))]);
    }
    let value = call.plain("Tile", &[&x, &times]);
    call.result(value)
}

/// Tensors of one axis without elements are passed over, as PyTorch does.
fn cat(call: &mut Call<'_, '_>) -> Result<()> {
    let (names, dtype) = (call.list_names("tensors")?, call.result_dtype()?);
    let (mut operands, mut rank) = (Vec::new(), 1);
    for name in names {
        let meta = call.meta_of(name)?;
        if meta.dims().is_some_and(|dims| dims == [0]) {
            continue;
        }
        rank = meta.sizes.len() as i64;
        operands.push(call.operand_of(name, dtype)?);
    }
    let axis = call.axis_of(call.int("dim", 0)?, rank)?;
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    let value = call.op("Concat", &operands, &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

fn stack(call: &mut Call<'_, '_>) -> Result<()> {
    let names = call.list_names("tensors")?;
    let Some(first) = names.first() else { return Err(call.wrong("it stacks nothing")) };
    let rank = call.meta_of(first)?.sizes.len() as i64 + 1;
    let axis = call.axis_of(call.int("dim", 0)?, rank)?;
    let axes = call.integers(&[axis]);
    let values = call.list_of("tensors", call.result_dtype()?)?;
    let parts: Vec<String> = values.iter().map(|value| call.plain("Unsqueeze", &[value, &axes])).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let value = call.op("Concat", &parts, &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

fn slice(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", 0)?);
    if let (None | Some(Number::Int(0)), None | Some(Number::Int(i64::MAX)), 1) =
        (call.number("start")?, call.number("end")?, call.int("step", 1)?)
    {
        return call.result(x);
    }
    let (start, end) = (call.size("start", 0)?, call.size("end", i64::MAX)?);
    let (axes, step) = (call.integers(&[axis]), call.size("step", 1)?);
    let value = call.plain("Slice", &[&x, &start, &end, &axes, &step]);
    call.result(value)
}

fn narrow(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", 0)?);
    let (start, length) = (call.size("start", 0)?, call.size("length", 0)?);
    let end = call.plain("Add", &[&start, &length]);
    let axes = call.integers(&[axis]);
    let value = call.plain("Slice", &[&x, &start, &end, &axes]);
    call.result(value)
}

fn select(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", 0)?);
    let index = call.operand("index", crate::ir::DType::I64)?;
    let value = call.op("Gather", &[&x, &index], &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

/// The axis of which an operation makes parts.
pub(super) fn split_axis(call: &Call<'_, '_>) -> Result<i64> {
    match call.operation() {
        "hsplit" => Ok(i64::from(call.rank("self")? > 1)),
        "vsplit" => Ok(0),
        "dsplit" => Ok(2),
        _ => call.axis("dim", 0),
    }
}

/// Parts of an axis: of one size, of several, or a number of them.
fn split(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, split_axis(call)?);
    let parts = call.node.outputs.iter().find_map(|output| output.names()).unwrap_or_default();
    let of_axis =
        |name: &&str| call.meta_of(name).ok().and_then(|meta| schema::size(meta.sizes.get(axis as usize)?));
    let sizes: Option<Vec<i64>> = parts.iter().map(of_axis).collect();
    let sizes = sizes.ok_or_else(|| call.unsupported("of an open axis"))?;
    if let Some(part) = call.only() {
        let start = sizes.iter().take(part).try_fold(0i64, |start, &size| start.checked_add(size));
        let end = start.and_then(|start| start.checked_add(*sizes.get(part)?));
        let (Some(start), Some(end)) = (start, end) else { return Err(call.wrong("its sizes overflow")) };
        let [start, end, along] = [start, end, axis].map(|bound| call.integers(&[bound]));
        let mut values = vec![None; part];
        values.push(Some(call.plain("Slice", &[&x, &start, &end, &along])));
        return call.results(values);
    }
    let names: Vec<String> = parts.iter().map(|_| call.emit.fresh()).collect();
    let sizes = call.integers(&sizes);
    let results: Vec<&str> = names.iter().map(String::as_str).collect();
    call.emit.operation("Split", &[&x, &sizes], &results, &[("axis", Attribute::Int(axis))]);
    call.results(names.into_iter().map(Some).collect())
}

fn unbind(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", 0)?);
    let parts = call.node.outputs.iter().find_map(|output| output.names()).unwrap_or_default();
    let mut values = Vec::new();
    for index in 0..parts.len() {
        if call.only().is_some_and(|part| part != index) {
            values.push(None);
            continue;
        }
        let index = call.scalar(crate::ir::DType::I64, index as f64);
        values.push(Some(call.op("Gather", &[&x, &index], &[("axis", Attribute::Int(axis))])));
    }
    call.results(values)
}

fn flip(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let axes = call.ints("dims")?.unwrap_or_default();
    let axes = axes.into_iter().map(|axis| call.axis_of(axis, rank)).collect::<Result<Vec<i64>>>()?;
    let count = axes.len();
    let [start, end, axes, step] =
        [vec![-1; count], vec![i64::MIN; count], axes, vec![-1; count]].map(|values| call.integers(&values));
    let value = call.plain("Slice", &[&x, &start, &end, &axes, &step]);
    call.result(value)
}

/// The last `shifts` elements of an axis come first.
fn roll(call: &mut Call<'_, '_>) -> Result<()> {
    let (mut x, rank) = (call.tensor("self")?, call.rank("self")?);
    let (shifts, axes) = (call.ints("shifts")?.unwrap_or_default(), call.ints("dims")?.unwrap_or_default());
    if axes.is_empty() {
        return roll_all(call, &x, &shifts);
    }
    if shifts.len() != axes.len() {
        return Err(call.wrong("it has other shifts than axes"));
    }
    for (shift, axis) in shifts.into_iter().zip(axes) {
        let axis = call.axis_of(axis, rank)?;
        let size = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
        let first = match size {
            Some(size) => size - shift.rem_euclid(size.max(1)),
            // From the end; an axis with fewer elements turns round more than once.
            None if shift == 1 => -1,
            None => return Err(call.unsupported("of an open axis")),
        };
        x = shifted(call, &x, first, axis);
    }
    call.result(x)
}

/// All elements as one row are shifted.
fn roll_all(call: &mut Call<'_, '_>, x: &str, shifts: &[i64]) -> Result<()> {
    let dims = call.meta("self")?.dims();
    let count = dims.and_then(|dims| dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim)));
    let (Some(count), [shift]) = (count, shifts) else { return Err(call.unsupported("of open sizes")) };
    let (all, shape) = (call.integers(&[-1]), call.plain("Shape", &[x]));
    let row = call.plain("Reshape", &[x, &all]);
    let row = shifted(call, &row, count - shift.rem_euclid(count.max(1)), 0);
    let value = call.plain("Reshape", &[&row, &shape]);
    call.result(value)
}

/// With the elements from `first` on before the others.
pub(super) fn shifted(call: &mut Call<'_, '_>, x: &str, first: i64, axis: i64) -> String {
    let [zero, from, end, along] = [0, first, i64::MAX, axis].map(|value| call.integers(&[value]));
    let back = call.plain("Slice", &[x, &from, &end, &along]);
    let front = call.plain("Slice", &[x, &zero, &from, &along]);
    call.op("Concat", &[&back, &front], &[("axis", Attribute::Int(axis))])
}

/// Padding is written from the last axis to the first, each with its front and back.
fn pad(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank, dtype) = (call.tensor("self")?, call.rank("self")?, call.result_dtype()?);
    let sides = call.ints("pad")?.unwrap_or_default();
    let mode = match call.text("mode", "constant")? {
        "replicate" => "edge",
        "circular" => "wrap",
        other => other,
    };
    let mut pads = vec![0; 2 * rank as usize];
    for (index, side) in sides.chunks(2).enumerate() {
        let axis = (rank as usize)
            .checked_sub(index + 1)
            .ok_or_else(|| call.wrong("it pads more axes than there are"))?;
        if let [front, back] = side {
            pads[axis] = *front;
            pads[rank as usize + axis] = *back;
        }
    }
    let number = if call.is_imaginary() { 0.0 } else { call.float("value", 0.0)? };
    // What wraps around is taken of what is left after cutting.
    let cut: Vec<i64> = pads.iter().map(|&pad| if mode == "wrap" { pad.min(0) } else { 0 }).collect();
    let added: Vec<i64> = pads.iter().zip(&cut).map(|(pad, cut)| pad - cut).collect();
    let number = call.scalar(dtype, number);
    let mut x = x;
    if cut.iter().any(|&cut| cut < 0) {
        let cut = call.integers(&cut);
        x = call.plain("Pad", &[&x, &cut, &number]);
    }
    let added = call.integers(&added);
    let value = call.op("Pad", &[&x, &added, &number], &[("mode", Attribute::Text(mode))]);
    call.result(value)
}
