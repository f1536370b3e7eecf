//! Elements by their places.

use super::super::call::Call;
use super::Lower;
use super::elementwise::common;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Rows of a table. That of the padding gets no gradient.
fn embedding(call: &mut Call<'_, '_>) -> Result<()> {
    let (table, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    let rows = call.op("Gather", &[&table, &indices], &[("axis", Attribute::Int(0))]);
    let padding = call.int("padding_idx", -1)?;
    if padding < 0 {
        return call.result(rows);
    }
    let indices = call.operand("indices", DType::I64)?;
    let (padding, last) = (call.integers(&[padding]), call.integers(&[-1]));
    let is_padding = call.plain("Equal", &[&indices, &padding]);
    let is_padding = call.plain("Unsqueeze", &[&is_padding, &last]);
    let detached = call.plain("StopGradient", &[&rows]);
    let value = call.plain("Where", &[&is_padding, &detached, &rows]);
    call.result(value)
}

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "embedding" => embedding,
        "index_select" => |call| {
            let (x, index, axis) = (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?);
            let value = call.op("Gather", &[&x, &index], &[("axis", Attribute::Int(axis))]);
            call.result(value)
        },
        "gather" => |call| {
            let (x, index, axis) = (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?);
            let value = call.op("GatherElements", &[&x, &index], &[("axis", Attribute::Int(axis))]);
            call.result(value)
        },
        "take_along_dim" => take_along,
        "index" | "_unsafe_index" => index,
        "scatter" => scatter,
        "nonzero" => nonzero,
        "masked_select" => masked_select,
        "topk" => topk,
        "sort" => sort,
        "argsort" => argsort,
        "take" => take,
        "bucketize" => bucketize,
        "one_hot" => one_hot,
        "searchsorted" => searchsorted,
        "isin" => isin,
        "masked_scatter" => masked_scatter,
        "msort" => |call| {
            let x = call.tensor("self")?;
            let (values, _) = sorted(call, &x, 0, 0);
            call.result(values)
        },
        _ => return None,
    })
}

/// Which elements an index of several tensors means.
pub(super) struct Places {
    /// The axes that are looked up, with the places of each and how many axes these have.
    pub(super) axes: Vec<(i64, String)>,
    /// Axes that the places have when they are broadcast against each other.
    pub(super) wide: usize,
    /// A condition in place of places, and how many axes it has: the first ones of the tensor.
    pub(super) mask: Option<(String, i64)>,
}

/// A tensor whose axes that are looked up come first.
pub(super) struct Front {
    pub(super) front: String,
    /// Its axes by those of the tensor.
    pub(super) order: Vec<i64>,
    /// Places in these, in rows along the last axis.
    pub(super) index: String,
}

impl Places {
    /// The argument `indices`. A condition beside other places, or of other axes than the first, is the places where it holds.
    pub(super) fn of(call: &mut Call<'_, '_>) -> Result<Self> {
        let names = call.list_names("indices")?;
        let is_alone = names.iter().filter(|name| !name.is_empty()).count() == 1;
        let mut places = Self { axes: Vec::new(), wide: 0, mask: None };
        let mut axis = 0;
        for name in &names {
            if name.is_empty() {
                axis += 1;
                continue;
            }
            let (meta, value) = (call.meta_of(name)?, call.emit_value(name)?);
            let rank = meta.sizes.len() as i64;
            if !matches!(meta.dtype()?, DType::Bool | DType::U8) {
                places.wide = places.wide.max(meta.sizes.len());
                places.axes.push((axis, value));
                axis += 1;
            } else if is_alone && axis == 0 {
                places.mask = Some((value, rank));
            } else {
                places.hold(call, &value, (axis, rank));
                axis += rank;
            }
        }
        if places.axes.is_empty() && places.mask.is_none() {
            return Err(call.wrong("it has no places"));
        }
        Ok(places)
    }

    /// Adds the places at which a condition of some axes holds, the first of which is `axis`.
    fn hold(&mut self, call: &mut Call<'_, '_>, condition: &str, (axis, rank): (i64, i64)) {
        let condition = call.cast(condition, DType::Bool);
        let places = call.plain("NonZero", &[&condition]);
        for own in 0..rank {
            let number = call.scalar(DType::I64, own as f64);
            let places = call.op("Gather", &[&places, &number], &[("axis", Attribute::Int(0))]);
            self.axes.push((axis + own, places));
        }
        self.wide = self.wide.max(1);
    }

    /// Where the axes of the places stand in what is looked up: in place of the first one that is, in front if there are
    /// others between them.
    pub(super) fn first(&self) -> usize {
        let follow = self.axes.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
        match self.axes.first() {
            Some((first, _)) if follow => *first as usize,
            _ => 0,
        }
    }

    pub(super) fn front(&self, call: &mut Call<'_, '_>, x: &str, rank: i64) -> Front {
        let looked_up = |axis: &i64| self.axes.iter().any(|(other, _)| other == axis);
        let order: Vec<i64> = self
            .axes
            .iter()
            .map(|(axis, _)| *axis)
            .chain((0..rank).filter(|axis| !looked_up(axis)))
            .collect();
        let front = call.op("Transpose", &[x], &[("perm", Attribute::Ints(&order))]);
        let mut shape = self.axes[0].1.clone();
        for (_, other) in &self.axes[1..] {
            shape = call.plain("Add", &[&shape, other]);
        }
        let shape = call.plain("Shape", &[&shape]);
        let behind = call.integers(&[-1]);
        let mut columns = Vec::new();
        for (_, value) in &self.axes {
            let full = call.plain("Expand", &[value, &shape]);
            columns.push(call.plain("Unsqueeze", &[&full, &behind]));
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let index = call.op("Concat", &columns, &[("axis", Attribute::Int(-1))]);
        Front { front, order, index }
    }
}

/// Elements by tensors of places for some axes, broadcast against each other, or those where a condition holds.
fn index(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let places = Places::of(call)?;
    if let Some((mask, _)) = &places.mask {
        let value = where_true(call, &x, mask);
        return call.result(value);
    }
    if let [(axis, one)] = places.axes.as_slice() {
        let value = call.op("Gather", &[&x, one], &[("axis", Attribute::Int(*axis))]);
        return call.result(value);
    }
    // The axes that are looked up come to the front, and their results to where they stood.
    let Front { front, index, .. } = places.front(call, &x, rank);
    let mut value = call.plain("GatherND", &[&front, &index]);
    let (first, wide) = (places.first(), places.wide);
    if first > 0 {
        let rest = wide..wide + rank as usize - places.axes.len();
        let back: Vec<i64> =
            rest.clone().take(first).chain(0..wide).chain(rest.skip(first)).map(|axis| axis as i64).collect();
        value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&back))]);
    }
    call.result(value)
}

/// The elements of `x` where a condition over its first axes holds.
pub(super) fn where_true(call: &mut Call<'_, '_>, x: &str, condition: &str) -> String {
    let condition = call.cast(condition, DType::Bool);
    let places = call.plain("NonZero", &[&condition]);
    let places = call.op("Transpose", &[&places], &[("perm", Attribute::Ints(&[1, 0]))]);
    call.plain("GatherND", &[x, &places])
}

fn nonzero(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let places = call.plain("NonZero", &[&x]);
    let value = call.op("Transpose", &[&places], &[("perm", Attribute::Ints(&[1, 0]))]);
    call.result(value)
}

/// The places of what is not 0, a vector for each axis.
pub(super) fn nonzero_by_axis(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("condition")?;
    let places = call.plain("NonZero", &[&x]);
    let mut values = Vec::new();
    for axis in 0..call.rank("condition")? {
        let axis = call.scalar(DType::I64, axis as f64);
        values.push(Some(call.op("Gather", &[&places, &axis], &[("axis", Attribute::Int(0))])));
    }
    call.results(values)
}

fn masked_select(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, mask) = (call.tensor("self")?, call.tensor("mask")?);
    let (own, other) = (call.plain("Shape", &[&x]), call.plain("Shape", &[&mask]));
    let (x, mask) = (call.plain("Expand", &[&x, &other]), call.plain("Expand", &[&mask, &own]));
    let value = where_true(call, &x, &mask);
    call.result(value)
}

fn argsort(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", -1)?);
    let descending = i64::from(call.flag("descending", false)?);
    let (_, places) = sorted(call, &x, axis, descending);
    call.result(places)
}

fn take(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let all = call.integers(&[-1]);
    let x = call.plain("Reshape", &[&x, &all]);
    let value = call.op("Gather", &[&x, &index], &[("axis", Attribute::Int(0))]);
    call.result(value)
}

/// How many bounds are below each element; at or below it, with `right`.
fn bucketize(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = common(call, "self", "boundaries")?;
    let (x, bounds) = (call.operand("self", dtype)?, call.operand("boundaries", dtype)?);
    let behind = call.integers(&[-1]);
    let x = call.plain("Unsqueeze", &[&x, &behind]);
    let operator = if call.flag("right", false)? { "LessOrEqual" } else { "Less" };
    let below = call.plain(operator, &[&bounds, &x]);
    let below = call.cast(&below, call.result_dtype()?);
    let value = call.op("ReduceSum", &[&below, &behind], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}

fn one_hot(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, classes) = (call.tensor("self")?, call.int("num_classes", -1)?);
    if classes < 1 {
        return Err(call.unsupported("of as many classes as there are"));
    }
    let (depth, ends) = (call.integers(&[classes]), call.integers(&[0, 1]));
    let value = call.op("OneHot", &[&x, &depth, &ends], &[("axis", Attribute::Int(-1))]);
    call.result(value)
}

fn scatter(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, index, axis, dtype) =
        (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?, call.result_dtype()?);
    let updates = match call.argument("src") {
        Some(_) => super::scatter::of_places(call, "src", "index")?,
        None => {
            let number = call.operand("value", dtype)?;
            let shape = call.plain("Shape", &[&index]);
            call.plain("Expand", &[&number, &shape])
        }
    };
    let reduction = match call.text("reduce", "")? {
        "" => "none",
        "add" => "add",
        "multiply" => "mul",
        other => return Err(call.unsupported(format!("reduce {other}"))),
    };
    let attributes = [("axis", Attribute::Int(axis)), ("reduction", Attribute::Text(reduction))];
    let value = call.op("ScatterElements", &[&x, &index, &updates], &attributes);
    call.result(value)
}

/// Elements by their places along an axis, the other axes broadcast against each other; without one, of all elements.
fn take_along(call: &mut Call<'_, '_>) -> Result<()> {
    let (mut x, mut index) = (call.tensor("self")?, call.tensor("indices")?);
    let axis = if call.argument("dim").is_some() {
        let axis = call.axis("dim", 0)?;
        let (Some(own), Some(places)) = (call.meta("self")?.dims(), call.meta("indices")?.dims()) else {
            return Err(call.unsupported("of open sizes"));
        };
        if own.len() != places.len() {
            return Err(call.wrong("its places have other axes"));
        }
        let (mut wide, mut wide_places) = (own.clone(), places.clone());
        for (at, (&one, &other)) in own.iter().zip(&places).enumerate().filter(|(at, _)| *at as i64 != axis) {
            let size = if one == 1 { other } else { one };
            if other != 1 && other != size {
                return Err(call.wrong(format!("{one} elements and {other} places along axis {at}")));
            }
            (wide[at], wide_places[at]) = (size, size);
        }
        for (value, dims, wide) in [(&mut x, own, wide), (&mut index, places, wide_places)] {
            if dims != wide {
                let shape = call.integers(&wide);
                *value = call.plain("Expand", &[value, &shape]);
            }
        }
        axis
    } else {
        let all = call.integers(&[-1]);
        (x, index) = (call.plain("Reshape", &[&x, &all]), call.plain("Reshape", &[&index, &all]));
        0
    };
    let value = call.op("GatherElements", &[&x, &index], &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

fn topk(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis, count) = (call.tensor("self")?, call.axis("dim", -1)?, call.size("k", 1)?);
    let largest = i64::from(call.flag("largest", true)?);
    let (values, places) = best(call, &x, &count, axis, largest);
    call.results(vec![Some(values), Some(places)])
}

/// All elements of an axis, in ascending or descending order.
fn sort(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", -1)?);
    let descending = i64::from(call.flag("descending", false)?);
    let (values, places) = sorted(call, &x, axis, descending);
    call.results(vec![Some(values), Some(places)])
}

pub(super) fn sorted(call: &mut Call<'_, '_>, x: &str, axis: i64, descending: i64) -> (String, String) {
    let (shape, place) = (call.plain("Shape", &[x]), call.integers(&[axis]));
    let count = call.plain("Gather", &[&shape, &place]);
    best(call, x, &count, axis, descending)
}

pub(super) fn best(
    call: &mut Call<'_, '_>,
    x: &str,
    count: &str,
    axis: i64,
    largest: i64,
) -> (String, String) {
    let (values, places) = (call.emit.fresh(), call.emit.fresh());
    let attributes = [("axis", Attribute::Int(axis)), ("largest", Attribute::Int(largest))];
    call.emit.operation("TopK", &[x, count], &[&values, &places], &attributes);
    (values, places)
}

/// How many elements of an ordered sequence are below each; at or below it, to the right.
fn searchsorted(call: &mut Call<'_, '_>) -> Result<()> {
    if call.argument("sorter").is_some() {
        return Err(call.unsupported("by an order of its own"));
    }
    let dtype = common(call, "self", "sorted_sequence")?;
    let (ordered, x) = (call.operand("sorted_sequence", dtype)?, call.operand("self", dtype)?);
    let is_right = call.flag("right", false)? || call.text("side", "left")? == "right";
    let (behind, before) = (call.integers(&[-1]), call.integers(&[-2]));
    // Several sequences have a row for each of those of what is looked for.
    let ordered = match call.rank("sorted_sequence")? {
        0 | 1 => ordered,
        _ => call.plain("Unsqueeze", &[&ordered, &before]),
    };
    let x = call.plain("Unsqueeze", &[&x, &behind]);
    let below = call.plain(if is_right { "LessOrEqual" } else { "Less" }, &[&ordered, &x]);
    let below = call.cast(&below, call.result_dtype()?);
    let value = call.op("ReduceSum", &[&below, &behind], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}

/// Whether each element is any of some others.
fn isin(call: &mut Call<'_, '_>) -> Result<()> {
    let of = |name: &str| call.argument(name).is_some();
    let (one, many) =
        if of("elements") { ("elements", "test_elements") } else { ("element", "test_elements") };
    let many = if of(many) { many } else { "test_element" };
    let dtype = common(call, one, many)?;
    let (x, others) = (call.operand(one, dtype)?, call.operand(many, dtype)?);
    let (all, behind) = (call.integers(&[-1]), call.integers(&[-1]));
    let others = call.plain("Reshape", &[&others, &all]);
    let x = call.plain("Unsqueeze", &[&x, &behind]);
    let equal = call.plain("Equal", &[&x, &others]);
    let number = call.cast(&equal, DType::I32);
    let any = call.op("ReduceMax", &[&number, &behind], &[("keepdims", Attribute::Int(0))]);
    let mut value = call.cast(&any, DType::Bool);
    if call.flag("invert", false)? {
        value = call.plain("Not", &[&value]);
    }
    call.result(value)
}

/// For each element of a condition, how many hold up to it, from 0 on.
pub(super) fn ranks(call: &mut Call<'_, '_>, condition: &str) -> String {
    let (all, shape) = (call.integers(&[-1]), call.plain("Shape", &[condition]));
    let row = call.plain("Reshape", &[condition, &all]);
    let row = call.cast(&row, DType::I64);
    let (axis, one, zero) =
        (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0), call.scalar(DType::I64, 0.0));
    let upto = call.plain("CumSum", &[&row, &axis]);
    let before = call.plain("Sub", &[&upto, &one]);
    let before = call.plain("Max", &[&before, &zero]);
    call.plain("Reshape", &[&before, &shape])
}

/// Where a condition holds, the elements of the source one after the other.
fn masked_scatter(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, dtype) = (call.tensor("self")?, call.result_dtype()?);
    let (mask, source) = (call.operand("mask", DType::Bool)?, call.operand("source", dtype)?);
    let shape = call.plain("Shape", &[&x]);
    let mask = call.plain("Expand", &[&mask, &shape]);
    let places = ranks(call, &mask);
    let all = call.integers(&[-1]);
    let source = call.plain("Reshape", &[&source, &all]);
    let taken = call.op("Gather", &[&source, &places], &[("axis", Attribute::Int(0))]);
    let value = call.plain("Where", &[&mask, &taken, &x]);
    call.result(value)
}
