//! Losses.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "smooth_l1_loss" => |call| {
            let beta = call.float("beta", 1.0)?;
            near_square(call, beta, true)
        },
        "huber_loss" => |call| {
            let delta = call.float("delta", 1.0)?;
            near_square(call, delta, false)
        },
        "binary_cross_entropy" => of_probabilities,
        "binary_cross_entropy_with_logits" => of_logits,
        "kl_div" => divergence,
        "poisson_nll_loss" => of_counts,
        "cross_entropy_loss" => cross_entropy,
        "nll_loss" | "nll_loss_nd" | "nll_loss2d" | "nll_loss_forward" | "nll_loss2d_forward" => {
            |call| of_classes(call, "NegativeLogLikelihoodLoss")
        }
        _ => return None,
    })
}

/// What is left of the losses of all elements: each, their mean or their sum.
pub(super) fn left(call: &mut Call<'_, '_>, each: String) -> Result<()> {
    let all = [("keepdims", Attribute::Int(0))];
    let value = match call.int("reduction", 1)? {
        0 => each,
        1 => call.op("ReduceMean", &[&each], &all),
        _ => call.op("ReduceSum", &[&each], &all),
    };
    call.result(value)
}

/// Half the square of a difference up to a bound, a line beyond; divided by the bound, or not.
fn near_square(call: &mut Call<'_, '_>, bound: f64, divides: bool) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("target", dtype)?);
    let apart = call.plain("Sub", &[&x, &y]);
    let size = call.plain("Abs", &[&apart]);
    if bound == 0.0 && divides {
        return left(call, size);
    }
    let (half, limit) = (call.scalar(dtype, 0.5), call.scalar(dtype, bound));
    let square = call.plain("Mul", &[&apart, &apart]);
    let square = call.plain("Mul", &[&square, &half]);
    let less = call.scalar(dtype, bound / 2.0);
    let line = call.plain("Sub", &[&size, &less]);
    let (square, line) = match divides {
        true => (call.plain("Div", &[&square, &limit]), line),
        false => (square, call.plain("Mul", &[&line, &limit])),
    };
    let near = call.plain("Less", &[&size, &limit]);
    let each = call.plain("Where", &[&near, &square, &line]);
    left(call, each)
}

fn weighed(call: &mut Call<'_, '_>, each: String) -> Result<String> {
    Ok(match call.optional("weight")? {
        Some(weight) => call.plain("Mul", &[&each, &weight]),
        None => each,
    })
}

/// Logarithms of probabilities are at least -100, as PyTorch has them.
fn of_probabilities(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("target", dtype)?);
    let (one, least) = (call.scalar(dtype, 1.0), call.scalar(dtype, -100.0));
    let mut terms = Vec::new();
    for is_other in [false, true] {
        let of = |call: &mut Call<'_, '_>, value: &str| match is_other {
            true => call.plain("Sub", &[&one, value]),
            false => value.to_owned(),
        };
        let (share, probability) = (of(call, &y), of(call, &x));
        let logarithm = call.plain("Log", &[&probability]);
        let logarithm = call.plain("Max", &[&logarithm, &least]);
        terms.push(call.plain("Mul", &[&share, &logarithm]));
    }
    let sum = call.plain("Add", &[&terms[0], &terms[1]]);
    let each = call.plain("Neg", &[&sum]);
    let each = weighed(call, each)?;
    left(call, each)
}

/// `(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x))`, where p weighs what is true.
fn of_logits(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y, one) = (call.operand("self", dtype)?, call.operand("target", dtype)?, call.scalar(dtype, 1.0));
    let opposite = call.plain("Neg", &[&x]);
    let mut soft = call.plain("Softplus", &[&opposite]);
    if let Some(weight) = call.optional("pos_weight")? {
        let more = call.plain("Sub", &[&weight, &one]);
        let more = call.plain("Mul", &[&more, &y]);
        let factor = call.plain("Add", &[&more, &one]);
        soft = call.plain("Mul", &[&factor, &soft]);
    }
    let rest = call.plain("Sub", &[&one, &y]);
    let line = call.plain("Mul", &[&rest, &x]);
    let each = call.plain("Add", &[&line, &soft]);
    let each = weighed(call, each)?;
    left(call, each)
}

/// Counts that are Poisson's: what is given is the logarithm of their mean, or the mean.
fn of_counts(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("input", dtype)?, call.operand("target", dtype)?);
    let (mean, logarithm) = match call.flag("log_input", true)? {
        true => (call.plain("Exp", &[&x]), x),
        false => {
            let little = call.operand_or("eps", dtype, 1e-8)?;
            let more = call.plain("Add", &[&x, &little]);
            (x, call.plain("Log", &[&more]))
        }
    };
    let product = call.plain("Mul", &[&y, &logarithm]);
    let mut each = call.plain("Sub", &[&mean, &product]);
    if call.flag("full", false)? {
        let rest = logarithm_of_factorial(call, &y, dtype);
        each = call.plain("Add", &[&each, &rest]);
    }
    left(call, each)
}

/// Stirling's `y log(y) - y + log(2 pi y) / 2` above 1, 0 up to there.
fn logarithm_of_factorial(call: &mut Call<'_, '_>, y: &str, dtype: DType) -> String {
    let [zero, half, one, turn] =
        [0.0, 0.5, 1.0, std::f64::consts::TAU].map(|number| call.scalar(dtype, number));
    let is_more = call.plain("Greater", &[y, &one]);
    // What is not taken is no logarithm of 0, whose gradient is no number.
    let safe = call.plain("Where", &[&is_more, y, &one]);
    let logarithm = call.plain("Log", &[&safe]);
    let product = call.plain("Mul", &[&safe, &logarithm]);
    let around = call.plain("Mul", &[&safe, &turn]);
    let around = call.plain("Log", &[&around]);
    let around = call.plain("Mul", &[&around, &half]);
    let value = call.plain("Sub", &[&product, &safe]);
    let value = call.plain("Add", &[&value, &around]);
    call.plain("Where", &[&is_more, &value, &zero])
}

fn divergence(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("target", dtype)?);
    let each = if call.flag("log_target", false)? {
        let apart = call.plain("Sub", &[&y, &x]);
        let share = call.plain("Exp", &[&y]);
        call.plain("Mul", &[&share, &apart])
    } else {
        let zero = call.scalar(dtype, 0.0);
        let logarithm = call.plain("Log", &[&y]);
        let apart = call.plain("Sub", &[&logarithm, &x]);
        let product = call.plain("Mul", &[&y, &apart]);
        // Where the target is 0 nothing is lost.
        let is_zero = call.plain("Equal", &[&y, &zero]);
        call.plain("Where", &[&is_zero, &zero, &product])
    };
    left(call, each)
}

fn cross_entropy(call: &mut Call<'_, '_>) -> Result<()> {
    let is_of_shares = call.dtype("target")?.is_float();
    let is_smoothed = call.float("label_smoothing", 0.0)? != 0.0;
    if !is_of_shares && !is_smoothed && call.rank("self")? >= 2 {
        return of_classes(call, "SoftmaxCrossEntropyLoss");
    }
    let classes = Classes::of(call)?;
    if is_of_shares { classes.of_shares(call) } else { classes.of_numbers(call) }
}

/// Logarithms of the probabilities of classes, by the axis of these.
struct Classes {
    logarithms: String,
    axis: i64,
    /// The share of a target that is divided among all classes, and what each of them gets of it.
    smoothing: f64,
    rest: f64,
    /// What each class weighs, in a shape that broadcasts.
    weight: Option<String>,
}

impl Classes {
    fn of(call: &mut Call<'_, '_>) -> Result<Self> {
        let (dtype, rank) = (call.dtype("self")?, call.rank("self")?);
        let axis = i64::from(rank > 1);
        let smoothing = call.float("label_smoothing", 0.0)?;
        let count = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
        let rest = match count {
            Some(count) => smoothing / count.max(1) as f64,
            None if smoothing == 0.0 => 0.0,
            None => return Err(call.unsupported("label_smoothing over an open number of classes")),
        };
        let x = call.operand("self", dtype)?;
        let logarithms = call.op("LogSoftmax", &[&x], &[("axis", Attribute::Int(axis))]);
        let behind: Vec<i64> = (1..rank - axis).collect();
        let weight = call.optional("weight")?.map(|weight| {
            let behind = call.integers(&behind);
            call.plain("Unsqueeze", &[&weight, &behind])
        });
        Ok(Self { logarithms, axis, smoothing, rest, weight })
    }

    fn sum(&self, call: &mut Call<'_, '_>, value: &str) -> String {
        let axis = call.integers(&[self.axis]);
        call.op("ReduceSum", &[value, &axis], &[("keepdims", Attribute::Int(0))])
    }

    fn weighed(&self, call: &mut Call<'_, '_>, value: String) -> String {
        match &self.weight {
            Some(weight) => call.plain("Mul", &[&value, weight]),
            None => value,
        }
    }

    /// Targets are shares of all classes; the mean is that over what has some.
    fn of_shares(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let dtype = call.dtype("self")?;
        let mut share = call.operand("target", dtype)?;
        if self.smoothing != 0.0 {
            let own = 1.0 - self.smoothing;
            let (own, rest) = (call.scalar(dtype, own), call.scalar(dtype, self.rest));
            share = call.plain("Mul", &[&share, &own]);
            share = call.plain("Add", &[&share, &rest]);
        }
        let product = call.plain("Mul", &[&self.logarithms, &share]);
        let product = self.weighed(call, product);
        let sum = self.sum(call, &product);
        let each = call.plain("Neg", &[&sum]);
        left(call, each)
    }

    /// Targets are numbers of classes, one of which may be passed over; means are weighed.
    fn of_numbers(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let dtype = call.dtype("self")?;
        let target = call.operand("target", DType::I64)?;
        let (ignored, zero) = (call.int("ignore_index", -100)?, call.scalar(DType::I64, 0.0));
        let ignored = call.scalar(DType::I64, ignored as f64);
        let passed = call.plain("Equal", &[&target, &ignored]);
        let safe = call.plain("Where", &[&passed, &zero, &target]);
        let counts = call.plain("Not", &[&passed]);
        let counts = call.cast(&counts, dtype);
        let axis = call.integers(&[self.axis]);
        let column = call.plain("Unsqueeze", &[&safe, &axis]);
        let along = [("axis", Attribute::Int(self.axis))];
        let own = call.op("GatherElements", &[&self.logarithms, &column], &along);
        let own = call.plain("Squeeze", &[&own, &axis]);
        let weight = match call.optional("weight")? {
            Some(weight) => {
                let weight = call.op("Gather", &[&weight, &safe], &[("axis", Attribute::Int(0))]);
                call.plain("Mul", &[&weight, &counts])
            }
            None => counts.clone(),
        };
        let own = call.plain("Mul", &[&own, &weight]);
        let all = self.weighed(call, self.logarithms.clone());
        let all = self.sum(call, &all);
        let all = call.plain("Mul", &[&all, &counts]);
        let most = 1.0 - self.smoothing;
        let (most, rest) = (call.scalar(dtype, -most), call.scalar(dtype, -self.rest));
        let (own, all) = (call.plain("Mul", &[&own, &most]), call.plain("Mul", &[&all, &rest]));
        let each = call.plain("Add", &[&own, &all]);
        if call.int("reduction", 1)? != 1 {
            return left(call, each);
        }
        let total = [("keepdims", Attribute::Int(0))];
        let (sum, weight) =
            (call.op("ReduceSum", &[&each], &total), call.op("ReduceSum", &[&weight], &total));
        let mean = call.plain("Div", &[&sum, &weight]);
        call.result(mean)
    }
}

fn of_classes(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    if call.rank("self")? < 2 || call.is_read(1) {
        return Err(call.unsupported("without a batch, or with the weight of all"));
    }
    let (x, y) = (call.tensor("self")?, call.tensor("target")?);
    let weight = call.optional("weight")?.unwrap_or_default();
    let reduction = match call.int("reduction", 1)? {
        0 => "none",
        1 => "mean",
        _ => "sum",
    };
    let attributes = [
        ("reduction", Attribute::Text(reduction)),
        ("ignore_index", Attribute::Int(call.int("ignore_index", -100)?)),
    ];
    let value = call.op(operator, &[&x, &y, &weight], &attributes);
    call.result(value)
}
