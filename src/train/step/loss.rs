//! Losses as nodes of the graph.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::{Binary, Compare, CountedSteps, DType, Graph, Op, ReduceKind, Unary, ValueId};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::topology::suggestion;
use crate::train::step::ignored::TargetValue;

/// Probabilities are kept this far from 0 and 1 before their logarithm is taken.
const CLIP: f64 = 1e-7;

/// What a network's output is compared with its target by. Each gives one number for each sample, the
/// mean over what a sample's output holds; the loss of a batch is the mean over its samples.
///
/// A cross-entropy of a softmax (a sigmoid, for the binary one) is computed from what the softmax
/// reads, which is exact where a probability is near 0. Where a network ends with the logarithm of a softmax, its
/// cross-entropy and divergence are of the probabilities that these are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// `(y - t)^2`
    MeanSquared,
    /// `|y - t|`
    MeanAbsolute,
    /// Quadratic up to `delta`, linear beyond (Huber 1964).
    Huber {
        /// Where it becomes linear.
        delta: f64,
    },
    /// `max(0, 1 - t y)` with targets -1 and 1; of Keras networks also with 0 and 1.
    Hinge,
    /// `1 - cos(y, t)` along the last axis.
    Cosine,
    /// `sum t ln(t / y)` along the last axis, of probabilities.
    KullbackLeibler,
    /// `-ln y` of the class that the target names; targets are integers.
    SparseCrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
        /// The class whose targets are left out: the mean is over the other targets of the whole batch.
        ignored: Option<i64>,
    },
    /// `-sum t ln y` along the last axis; targets are probabilities.
    CrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
    },
    /// `-t ln y - (1 - t) ln(1 - y)`; targets are probabilities.
    BinaryCrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
    },
}

/// Short name, the framework's name, and the loss.
const NAMES: &[(&str, &str, Loss)] = &[
    ("mse", "mean_squared_error", Loss::MeanSquared),
    ("mae", "mean_absolute_error", Loss::MeanAbsolute),
    ("huber", "huber_loss", Loss::Huber { delta: 1.0 }),
    ("hinge", "hinge_loss", Loss::Hinge),
    ("cosine", "cosine_similarity", Loss::Cosine),
    ("kl", "kl_divergence", Loss::KullbackLeibler),
    ("sparse", "sparse_categorical_crossentropy", Loss::SparseCrossEntropy { logits: false, ignored: None }),
    (
        "sparse:logits",
        "sparse_categorical_crossentropy:logits",
        Loss::SparseCrossEntropy { logits: true, ignored: None },
    ),
    ("categorical", "categorical_crossentropy", Loss::CrossEntropy { logits: false }),
    ("categorical:logits", "categorical_crossentropy:logits", Loss::CrossEntropy { logits: true }),
    ("binary", "binary_crossentropy", Loss::BinaryCrossEntropy { logits: false }),
    ("binary:logits", "binary_crossentropy:logits", Loss::BinaryCrossEntropy { logits: true }),
];

/// What else people call a loss, in small letters and with one separator.
const ALIASES: &[(&str, &str)] = &[
    ("mseloss", "mse"),
    ("l2", "mse"),
    ("l1", "mae"),
    ("l1loss", "mae"),
    ("smooth_l1", "huber"),
    ("huberloss", "huber"),
    ("cosine_embedding", "cosine"),
    ("kld", "kl"),
    ("kldivloss", "kl"),
    ("kullback_leibler_divergence", "kl"),
    ("bce", "binary"),
    ("bceloss", "binary"),
    ("binary_cross_entropy", "binary"),
    ("bcewithlogitsloss", "binary:logits"),
    ("sparse_cross_entropy", "sparse"),
    ("sparse_categorical_cross_entropy", "sparse"),
    ("categorical_cross_entropy", "categorical"),
];

/// What the class that is left out is called, here and in Keras, and in torch.
const IGNORED: [&str; 2] = ["ignore_class", "ignore_index"];

/// What a cross-entropy of no kind may be.
const CROSS_ENTROPIES: &[&str] =
    &["cross_entropy", "crossentropy", "crossentropyloss", "ce", "xent", "nll", "nllloss"];

impl FromStr for Loss {
    type Err = Error;

    /// `mae`, `sparse:logits`, `sparse:ignore_class=-100`, `huber:delta=0.5`, or the name that Keras or torch gives
    /// it, in letters of any case.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((loss, class)) = ignoring(text)? {
            return loss.parse::<Self>()?.ignoring(class, text);
        }
        let name = text.trim().to_lowercase().replace(['-', ' '], "_");
        if let Some(delta) = name.strip_prefix("huber:delta=") {
            let delta = delta.parse().ok().filter(|delta: &f64| delta.is_finite() && *delta > 0.0);
            return delta
                .map(|delta| Self::Huber { delta })
                .ok_or_else(|| Error::usage(format!("--loss {text}"), "delta is not a positive number"));
        }
        let (base, end) = match name.strip_suffix(":logits") {
            Some(base) => (base, ":logits"),
            None => (name.as_str(), ""),
        };
        let alias = ALIASES.iter().find(|(alias, _)| *alias == base);
        let name = alias.map_or_else(|| name.clone(), |(_, short)| format!("{short}{end}"));
        let found = NAMES.iter().find(|(short, long, _)| name == *short || name == *long);
        found.map(|&(.., loss)| loss).ok_or_else(|| unknown(text, base))
    }
}

/// What stands before `ignore_class=C` at the end of a loss's text, and the class. Error: it is no class.
fn ignoring(text: &str) -> Result<Option<(&str, i64)>> {
    let Some((loss, option)) = text.rsplit_once([':', ',']) else { return Ok(None) };
    let Some((key, class)) = option.split_once('=') else { return Ok(None) };
    let key = key.trim().to_lowercase().replace('-', "_");
    if !IGNORED.contains(&key.as_str()) {
        return Ok(None);
    }
    let class = class.trim().parse();
    let class =
        class.map_err(|_| Error::usage(format!("--loss {text}"), format!("{key} is no whole number")))?;
    Ok(Some((loss, class)))
}

/// There is no loss of this name.
fn unknown(text: &str, base: &str) -> Error {
    let error = |message: &str| Error::usage(format!("--loss {text}"), message);
    if CROSS_ENTROPIES.contains(&base) {
        return error("which cross-entropy is not said").with_help(
            "sparse where targets are class numbers, categorical where they are probabilities, binary for yes \
             and no; with :logits where the network ends without a softmax or sigmoid",
        );
    }
    let names: Vec<&str> = NAMES.iter().map(|&(short, ..)| short).collect();
    let near = suggestion(base, names.iter().copied());
    let help = if near.is_empty() { names.join(", ") } else { format!("{near} known: {}", names.join(", ")) };
    error("no such loss").with_help(help)
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Huber { delta } = self {
            return write!(f, "huber:delta={delta}");
        }
        if let Self::SparseCrossEntropy { logits, ignored: Some(class) } = self {
            let all = Self::SparseCrossEntropy { logits: *logits, ignored: None };
            return write!(f, "{all}{}ignore_class={class}", if *logits { ',' } else { ':' });
        }
        f.write_str(NAMES.iter().find(|(.., loss)| loss == self).map_or("?", |&(short, ..)| short))
    }
}

impl Loss {
    /// Element type and sizes of the target of an output of these sizes.
    pub fn target(&self, dtype: DType, dims: &[i64]) -> (DType, Vec<i64>) {
        match self {
            Self::SparseCrossEntropy { .. } => (DType::I64, dims[..dims.len().saturating_sub(1)].to_vec()),
            Self::MeanSquared
            | Self::MeanAbsolute
            | Self::Huber { .. }
            | Self::Hinge
            | Self::Cosine
            | Self::KullbackLeibler
            | Self::CrossEntropy { .. }
            | Self::BinaryCrossEntropy { .. } => (dtype, dims.to_vec()),
        }
    }

    /// Whether targets are numbers of classes, from 0 on.
    pub fn has_class_numbers(&self) -> bool {
        matches!(self, Self::SparseCrossEntropy { .. })
    }

    /// The class whose targets are left out.
    pub fn ignored(&self) -> Option<i64> {
        match self {
            Self::SparseCrossEntropy { ignored, .. } => *ignored,
            Self::MeanSquared
            | Self::MeanAbsolute
            | Self::Huber { .. }
            | Self::Hinge
            | Self::Cosine
            | Self::KullbackLeibler
            | Self::CrossEntropy { .. }
            | Self::BinaryCrossEntropy { .. } => None,
        }
    }

    /// This loss as the file of a network has it, where that says what is left out and this one does not.
    #[must_use]
    pub fn of_model(self, graph: &Graph) -> Self {
        match (self, graph.rules().targets.ignored) {
            (Self::SparseCrossEntropy { logits, ignored: None }, Some(class)) => {
                Self::SparseCrossEntropy { logits, ignored: Some(class) }
            }
            _ => self,
        }
    }

    /// This loss without the targets of a class. Error: its targets are no classes.
    fn ignoring(self, class: i64, text: &str) -> Result<Self> {
        match self {
            Self::SparseCrossEntropy { logits, ignored: None } => {
                Ok(Self::SparseCrossEntropy { logits, ignored: Some(class) })
            }
            _ => {
                Err(Error::usage(format!("--loss {text}"), "one class can be left out, and of sparse alone"))
            }
        }
    }

    /// One number for each sample: `[batch]`. Steps of `y` that do not count are left out of the mean over the samples at
    /// hand: a shard or a microbatch counts its own. Targets of the ignored class are left out of the mean over
    /// the batch that the target's shares tell.
    pub(crate) fn per_sample(&self, b: &mut Build<'_>, y: ValueId, target: TargetValue) -> Result<ValueId> {
        if let Some(class) = self.ignored() {
            return self.of_other_classes(b, y, target, class);
        }
        let target = if target.takes_bits { signs(b, target.value)? } else { target.value };
        if let Some(counted) = b.graph.counted_steps(y) {
            return self.of_counted(b, counted, target);
        }
        let each = self.each(b, y, target)?;
        let axes: Vec<u32> = (1..b.rank(each) as u32).collect();
        b.mean(each, &axes, ReducedAxes::Dropped)
    }

    /// `[batch]`, whose mean is that of the targets that are of another class and whose steps count.
    fn of_other_classes(
        &self,
        b: &mut Build<'_>,
        y: ValueId,
        target: TargetValue,
        class: i64,
    ) -> Result<ValueId> {
        let steps = b.graph.counted_steps(y);
        let ignored = b.number(b.dtype(target.value), class as f64)?;
        let other = b.compare(Compare::Ne, target.value, ignored)?;
        // What is ignored is no class that scores could be looked up of.
        let known = b.masked(other, target.value)?;
        let each = self.each(b, steps.map_or(y, |steps| steps.value), known)?;
        let counts = match steps {
            Some(steps) => both(b, other, steps.mask)?,
            None => other,
        };
        let left = b.masked(counts, each)?;
        let axes: Vec<u32> = (1..b.rank(left) as u32).collect();
        let sums = b.sum(left, &axes, ReducedAxes::Dropped)?;
        let share = match target.share {
            Some(share) => b.convert(share, b.dtype(sums))?,
            None => own_share(b, counts, sums)?,
        };
        b.mul(sums, share)
    }

    /// `[batch]`, whose mean is that of the steps that count; 0 where none does.
    fn of_counted(&self, b: &mut Build<'_>, y: CountedSteps, target: ValueId) -> Result<ValueId> {
        let each = self.each(b, y.value, target)?;
        let within: Vec<u32> = (2..b.rank(each) as u32).collect();
        let each = if within.is_empty() { each } else { b.mean(each, &within, ReducedAxes::Dropped)? };
        let dims = b.dims(each)?;
        let mask = b.reshape(y.mask, &dims)?;
        let mask = b.convert(mask, b.dtype(each))?;
        let count = b.sum(mask, &[0, 1], ReducedAxes::Dropped)?;
        let count = b.with(Binary::Max, count, 1.0)?;
        let steps = b.number(b.dtype(each), dims.iter().product::<i64>() as f64)?;
        let share = b.div(steps, count)?;
        let left = b.mul(each, mask)?;
        let weighted = b.mul(left, share)?;
        b.mean(weighted, &[1], ReducedAxes::Dropped)
    }

    fn each(&self, b: &mut Build<'_>, y: ValueId, t: ValueId) -> Result<ValueId> {
        let last = b.rank(y).saturating_sub(1) as u32;
        match *self {
            Self::MeanSquared => {
                let error = b.sub(y, t)?;
                b.mul(error, error)
            }
            Self::MeanAbsolute => {
                let error = b.sub(y, t)?;
                b.unary(Unary::Abs, error)
            }
            Self::Huber { delta } => huber(b, y, t, delta),
            Self::Hinge => {
                let product = b.mul(y, t)?;
                let minus = b.unary(Unary::Neg, product)?;
                let margin = b.with(Binary::Add, minus, 1.0)?;
                b.unary(Unary::Relu, margin)
            }
            Self::Cosine => cosine(b, y, t, last),
            Self::KullbackLeibler => {
                let safe_t = clipped(b, t)?;
                let log_t = b.unary(Unary::Log, safe_t)?;
                let log_y = log_of(b, y)?;
                let ratio = b.sub(log_t, log_y)?;
                let weighted = b.mul(safe_t, ratio)?;
                b.sum(weighted, &[last], ReducedAxes::Dropped)
            }
            // Of logits, the logarithm of a softmax is taken as `x - log sum exp x`: a probability that underflows to
            // 0 would have none.
            Self::SparseCrossEntropy { logits, .. } | Self::CrossEntropy { logits }
                if let Some(from) = logits_of(b, y, logits, last) =>
            {
                b.apply(Op::CrossEntropy, &[from, t])
            }
            Self::SparseCrossEntropy { .. } => {
                let log = log_probabilities(b, y, last)?;
                let mut column = b.dims(t)?;
                column.push(1);
                let indices = b.reshape(t, &column)?;
                let chosen = b.apply(Op::GatherElements { axis: last }, &[log, indices])?;
                let chosen = b.reshape(chosen, &column[..column.len() - 1])?;
                b.unary(Unary::Neg, chosen)
            }
            Self::CrossEntropy { .. } => {
                let log = log_probabilities(b, y, last)?;
                let weighted = b.mul(t, log)?;
                let sum = b.sum(weighted, &[last], ReducedAxes::Dropped)?;
                b.unary(Unary::Neg, sum)
            }
            Self::BinaryCrossEntropy { logits } => binary(b, y, t, logits),
        }
    }
}

/// Where a target counts and its step does; the mask has ones behind its axes.
fn both(b: &mut Build<'_>, counts: ValueId, mask: ValueId) -> Result<ValueId> {
    let mut dims = b.dims(mask)?;
    dims.resize(b.rank(counts), 1);
    let mask = b.reshape(mask, &dims)?;
    b.binary(Binary::And, counts, mask)
}

/// What each counted element's loss is multiplied by, where the samples at hand count for themselves.
fn own_share(b: &mut Build<'_>, counts: ValueId, sums: ValueId) -> Result<ValueId> {
    let (dtype, samples) = (b.dtype(sums), b.dims(sums)?.iter().product::<i64>());
    let counts = b.convert(counts, dtype)?;
    let axes: Vec<u32> = (0..b.rank(counts) as u32).collect();
    let count = b.sum(counts, &axes, ReducedAxes::Dropped)?;
    let count = b.with(Binary::Max, count, 1.0)?;
    let samples = b.number(dtype, samples as f64)?;
    b.div(samples, count)
}

/// Bits as signs, where all targets at hand are 0 or 1, as Keras takes them.
fn signs(b: &mut Build<'_>, t: ValueId) -> Result<ValueId> {
    let [zero, one] = [b.number(b.dtype(t), 0.0)?, b.number(b.dtype(t), 1.0)?];
    let (is_zero, is_one) = (b.compare(Compare::Eq, t, zero)?, b.compare(Compare::Eq, t, one)?);
    let is_bit = b.binary(Binary::Or, is_zero, is_one)?;
    let is_bit = b.convert(is_bit, b.dtype(t))?;
    let axes: Vec<u32> = (0..b.rank(t) as u32).collect();
    let least = b.reduce(ReduceKind::Min, is_bit, &axes, ReducedAxes::Dropped)?;
    let are_bits = b.compare(Compare::Eq, least, one)?;
    let twice = b.scale(t, 2.0)?;
    let signs = b.with(Binary::Sub, twice, 1.0)?;
    b.select(are_bits, signs, t)
}

/// `e^2 / 2` up to `delta`, then `delta (|e| - delta / 2)`.
fn huber(b: &mut Build<'_>, y: ValueId, t: ValueId, delta: f64) -> Result<ValueId> {
    let error = b.sub(y, t)?;
    let size = b.unary(Unary::Abs, error)?;
    let limit = b.number(b.dtype(y), delta)?;
    let near = b.compare(Compare::Le, size, limit)?;
    let square = b.mul(error, error)?;
    let quadratic = b.scale(square, 0.5)?;
    let beyond = b.with(Binary::Sub, size, delta / 2.0)?;
    let linear = b.scale(beyond, delta)?;
    b.select(near, quadratic, linear)
}

fn cosine(b: &mut Build<'_>, y: ValueId, t: ValueId, last: u32) -> Result<ValueId> {
    let mut inner = |x: ValueId, z: ValueId| {
        let product = b.mul(x, z)?;
        b.sum(product, &[last], ReducedAxes::Dropped)
    };
    let (both, own, other) = (inner(y, t)?, inner(y, y)?, inner(t, t)?);
    let product = b.mul(own, other)?;
    let root = b.unary(Unary::Sqrt, product)?;
    // A vector of zeros has no direction; its cosine is taken for 0.
    let length = b.with(Binary::Max, root, CLIP)?;
    let cosine = b.div(both, length)?;
    let minus = b.unary(Unary::Neg, cosine)?;
    b.with(Binary::Add, minus, 1.0)
}

/// Between `CLIP` and `1 - CLIP`.
fn clipped(b: &mut Build<'_>, x: ValueId) -> Result<ValueId> {
    let above = b.with(Binary::Max, x, CLIP)?;
    b.with(Binary::Min, above, 1.0 - CLIP)
}

/// The logarithm of probabilities; of what is their logarithm, that itself.
fn log_of(b: &mut Build<'_>, y: ValueId) -> Result<ValueId> {
    if matches!(b.graph.maker(y).op, Op::Softmax { log: true, .. }) {
        return Ok(y);
    }
    let safe = clipped(b, y)?;
    b.unary(Unary::Log, safe)
}

/// Of what the softmax along the last axis is `y`, or its logarithm, where `y` is not that itself.
fn logits_of(b: &Build<'_>, y: ValueId, logits: bool, last: u32) -> Option<ValueId> {
    if logits {
        return Some(y);
    }
    let maker = b.graph.maker(y);
    match maker.op {
        Op::Softmax { axis, .. } if axis == last => maker.operands.first().copied(),
        _ => None,
    }
}

/// Logarithms of probabilities along the last axis.
fn log_probabilities(b: &mut Build<'_>, y: ValueId, last: u32) -> Result<ValueId> {
    // What a network gives need not sum to one; Keras divides in the same way.
    let sum = b.sum(y, &[last], ReducedAxes::Kept)?;
    let share = b.div(y, sum)?;
    let safe = clipped(b, share)?;
    b.unary(Unary::Log, safe)
}

/// Of logits `x`: `ln(1 + e^x) - t x`.
fn binary(b: &mut Build<'_>, y: ValueId, t: ValueId, logits: bool) -> Result<ValueId> {
    let maker = b.graph.maker(y);
    let read = maker.operands.first().copied();
    let from = match (&maker.op, read) {
        _ if logits => Some(y),
        (Op::Unary(Unary::Sigmoid), Some(read)) => Some(read),
        _ => None,
    };
    if let Some(x) = from {
        // `-t ln s(x) - (1 - t) ln (1 - s(x))` with `1 - s(x) = s(-x)`: no logarithm of a sigmoid that is 0 or 1.
        let soft = b.unary(Unary::Softplus, x)?;
        let product = b.mul(x, t)?;
        return b.sub(soft, product);
    }
    // `-(t (ln y - ln (1 - y)) + ln (1 - y))`: the target is read once.
    let safe = clipped(b, y)?;
    let log = b.unary(Unary::Log, safe)?;
    let minus = b.unary(Unary::Neg, safe)?;
    let rest = b.with(Binary::Add, minus, 1.0)?;
    let rest = b.unary(Unary::Log, rest)?;
    let difference = b.sub(log, rest)?;
    let weighted = b.mul(t, difference)?;
    let sum = b.add(weighted, rest)?;
    b.unary(Unary::Neg, sum)
}
