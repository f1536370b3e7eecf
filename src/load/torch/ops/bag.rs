//! Bags of rows of a table, each reduced to one.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    matches!(name, "embedding_bag" | "_embedding_bag" | "_embedding_bag_forward_only")
        .then_some(embedding_bag)
}

/// How a bag is reduced, by PyTorch's numbers.
enum Mode {
    Sum,
    Mean,
    Max,
}

/// The rows of all bags, one bag behind the other, are added up where their bags are: memory is that of the rows.
fn embedding_bag(call: &mut Call<'_, '_>) -> Result<()> {
    let (table, indices) = (call.tensor("weight")?, call.operand("indices", DType::I64)?);
    let dtype = call.result_dtype()?;
    let mode = match call.int("mode", 0)? {
        0 => Mode::Sum,
        1 => Mode::Mean,
        _ => Mode::Max,
    };
    let rows = call.op("Gather", &[&table, &indices], &[("axis", Attribute::Int(0))]);
    let bags = Bags::of(call, &indices)?;
    let column = call.integers(&[-1]);
    let counts = counted(call, &indices, dtype)?;
    let counts = call.plain("Unsqueeze", &[&counts, &column]);
    let value = match mode {
        Mode::Sum => {
            let mut shares = counts;
            if let Some(weights) = call.optional("per_sample_weights")? {
                let weights = call.plain("Unsqueeze", &[&weights, &column]);
                shares = call.plain("Mul", &[&shares, &weights]);
            }
            let rows = call.plain("Mul", &[&rows, &shares]);
            bags.reduced(call, &rows, 0.0, "add", dtype)
        }
        Mode::Mean => {
            let rows = call.plain("Mul", &[&rows, &counts]);
            let sum = bags.reduced(call, &rows, 0.0, "add", dtype);
            let (count, one) = (bags.reduced(call, &counts, 0.0, "add", dtype), call.scalar(dtype, 1.0));
            let count = call.plain("Max", &[&count, &one]);
            call.plain("Div", &[&sum, &count])
        }
        Mode::Max => {
            let (least, zero) = (call.scalar(dtype, f64::NEG_INFINITY), call.scalar(dtype, 0.0));
            let is_counted = call.plain("Greater", &[&counts, &zero]);
            let rows = call.plain("Where", &[&is_counted, &rows, &least]);
            let most = bags.reduced(call, &rows, f64::NEG_INFINITY, "max", dtype);
            // A bag without rows is 0.
            let count = bags.reduced(call, &counts, 0.0, "add", dtype);
            let is_empty = call.plain("Equal", &[&count, &zero]);
            call.plain("Where", &[&is_empty, &zero, &most])
        }
    };
    call.result(value)
}

/// 1 for each index, 0 for padding.
fn counted(call: &mut Call<'_, '_>, indices: &str, dtype: DType) -> Result<String> {
    // Written as `embedding_bag`, one below 0 counts from the end; inside, -1 is that there is none.
    let mut padding = call.int("padding_idx", -1)?;
    if call.operation() == "embedding_bag" && call.argument("padding_idx").is_some() && padding < 0 {
        let rows = call.meta("weight")?.sizes.first().and_then(schema::size);
        padding += rows.ok_or_else(|| call.unsupported("of a table of an open size"))?;
    }
    let padding = call.scalar(DType::I64, padding as f64);
    let is_padding = call.plain("Equal", &[indices, &padding]);
    let counts = call.plain("Not", &[&is_padding]);
    Ok(call.cast(&counts, dtype))
}

/// Which index is in which bag.
struct Bags {
    /// The bag of each index, as a column.
    of_index: String,
    /// How many there are, one more where the last offset is the end of the last bag.
    count: String,
    ends: bool,
}

impl Bags {
    /// The bag of index `i` is the last one whose offset is at or before `i`: a running sum of how many begin there.
    fn of(call: &mut Call<'_, '_>, indices: &str) -> Result<Self> {
        let offsets = call.operand("offsets", DType::I64)?;
        let ends = call.flag("include_last_offset", false)?;
        let (zero, one, axis) =
            (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0), call.scalar(DType::I64, 0.0));
        let [first, end, more] = [0, -1, 1].map(|bound| call.integers(&[bound]));
        let (count, length) = (call.plain("Shape", &[&offsets]), call.plain("Shape", &[indices]));
        // An empty last bag begins behind the last index.
        let places = call.plain("Add", &[&length, &more]);
        let none = call.plain("Expand", &[&zero, &places]);
        let ones = call.plain("Expand", &[&one, &count]);
        let attributes = [("axis", Attribute::Int(0)), ("reduction", Attribute::Text("add"))];
        let begins = call.op("ScatterElements", &[&none, &offsets, &ones], &attributes);
        let begins = call.plain("Slice", &[&begins, &first, &end]);
        let so_many = call.plain("CumSum", &[&begins, &axis]);
        let bag = call.plain("Sub", &[&so_many, &one]);
        let bag = call.plain("Max", &[&bag, &zero]);
        Ok(Self { of_index: call.plain("Unsqueeze", &[&bag, &end]), count, ends })
    }

    /// One row for each bag from one for each index, starting from a number.
    fn reduced(
        &self,
        call: &mut Call<'_, '_>,
        rows: &str,
        neutral: f64,
        reduction: &str,
        dtype: DType,
    ) -> String {
        let neutral = call.scalar(dtype, neutral);
        let width = call.op("Shape", &[rows], &[("start", Attribute::Int(1))]);
        let shape = call.op("Concat", &[&self.count, &width], &[("axis", Attribute::Int(0))]);
        let empty = call.plain("Expand", &[&neutral, &shape]);
        let reduction = [("reduction", Attribute::Text(reduction))];
        let all = call.op("ScatterND", &[&empty, &self.of_index, rows], &reduction);
        if !self.ends {
            return all;
        }
        let [first, last] = [0, -1].map(|bound| call.integers(&[bound]));
        call.plain("Slice", &[&all, &first, &last])
    }
}
