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
    /// `sum t ln(t / y)` over the classes, of probabilities.
    KullbackLeibler {
        /// The axis of the classes; below 0, counted from the end.
        axis: i32,
    },
    /// `-ln y` of the class that the target names; targets are integers, and lack the axis of the classes.
    SparseCrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
        /// The class whose targets are left out: the mean is over the other targets of the whole batch.
        ignored: Option<i64>,
        /// The axis of the classes; below 0, counted from the end.
        axis: i32,
    },
    /// `-sum t ln y` over the classes; targets are probabilities.
    CrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
        /// The axis of the classes; below 0, counted from the end.
        axis: i32,
    },
    /// `-t ln y - (1 - t) ln(1 - y)`; targets are probabilities.
    BinaryCrossEntropy {
        /// Whether outputs are logits.
        logits: bool,
    },
}

/// The axis of the classes where none is said: the last.
const LAST: i32 = -1;

/// Short name, the framework's name, and the loss.
const NAMES: &[(&str, &str, Loss)] = &[
    ("mse", "mean_squared_error", Loss::MeanSquared),
    ("mae", "mean_absolute_error", Loss::MeanAbsolute),
    ("huber", "huber_loss", Loss::Huber { delta: 1.0 }),
    ("hinge", "hinge_loss", Loss::Hinge),
    ("cosine", "cosine_similarity", Loss::Cosine),
    ("kl", "kl_divergence", Loss::KullbackLeibler { axis: LAST }),
    (
        "sparse",
        "sparse_categorical_crossentropy",
        Loss::SparseCrossEntropy { logits: false, ignored: None, axis: LAST },
    ),
    (
        "sparse:logits",
        "sparse_categorical_crossentropy:logits",
        Loss::SparseCrossEntropy { logits: true, ignored: None, axis: LAST },
    ),
    ("categorical", "categorical_crossentropy", Loss::CrossEntropy { logits: false, axis: LAST }),
    (
        "categorical:logits",
        "categorical_crossentropy:logits",
        Loss::CrossEntropy { logits: true, axis: LAST },
    ),
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

    /// `mae`, `sparse:logits`, `sparse:ignore_class=-100`, `sparse:logits,axis=1`, `huber:delta=0.5`, or the name that
    /// Keras or torch gives it, in letters of any case.
    fn from_str(text: &str) -> Result<Self> {
        if let Some((loss, choice)) = last_choice(text)? {
            return loss.parse::<Self>()?.with(choice, text);
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

/// What is said of classes behind the name of a loss.
#[derive(Clone, Copy)]
enum Choice {
    /// The class whose targets are left out.
    Ignored(i64),
    /// The axis along which they are.
    Axis(i32),
}

/// What stands before a [`Choice`] at the end of a loss's text, and the choice; none where the text ends with none.
/// Error: its value is no whole number.
fn last_choice(text: &str) -> Result<Option<(&str, Choice)>> {
    let Some((loss, option)) = text.rsplit_once([':', ',']) else { return Ok(None) };
    let Some((key, value)) = option.split_once('=') else { return Ok(None) };
    let (key, value) = (key.trim().to_lowercase().replace('-', "_"), value.trim());
    let choice = match key.as_str() {
        "axis" => value.parse().map(Choice::Axis),
        key if IGNORED.contains(&key) => value.parse().map(Choice::Ignored),
        _ => return Ok(None),
    };
    let choice =
        choice.map_err(|_| Error::usage(format!("--loss {text}"), format!("{key} is no whole number")))?;
    Ok(Some((loss, choice)))
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
    if let Some((name, option)) = base.split_once([':', ','])
        && names.contains(&name)
    {
        return error(&format!("{name} has no option {option}"));
    }
    let near = suggestion(base, names.iter().copied());
    let help = if near.is_empty() { names.join(", ") } else { format!("{near} known: {}", names.join(", ")) };
    error("no such loss").with_help(help)
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Huber { delta } = self {
            return write!(f, "huber:delta={delta}");
        }
        let plain = self.without_choices();
        let name = NAMES.iter().find(|(.., loss)| *loss == plain).map_or("?", |&(short, ..)| short);
        f.write_str(name)?;
        let ignored = self.ignored().map(|class| format!("ignore_class={class}"));
        let axis = self.axis().filter(|&axis| axis != LAST).map(|axis| format!("axis={axis}"));
        let first = if name.contains(':') { ',' } else { ':' };
        for (at, choice) in ignored.into_iter().chain(axis).enumerate() {
            write!(f, "{}{choice}", if at == 0 { first } else { ',' })?;
        }
        Ok(())
    }
}

impl Loss {
    /// Element type and sizes of the target of an output of these sizes.
    ///
    /// Errors: those of [`Loss::class_axis`].
    pub fn target(&self, dtype: DType, dims: &[i64]) -> Result<(DType, Vec<i64>)> {
        let axis = self.class_axis(dims.len())?;
        Ok(match axis.filter(|_| self.has_class_numbers()) {
            Some(axis) => {
                let others = dims.iter().enumerate().filter(|(at, _)| *at != axis);
                (DType::I64, others.map(|(_, &size)| size).collect())
            }
            None => (dtype, dims.to_vec()),
        })
    }

    /// The axis of an output of so many axes that holds its classes; none where the loss knows no classes.
    ///
    /// Error: it is not an axis behind the batch's.
    pub fn class_axis(&self, rank: usize) -> Result<Option<usize>> {
        let Some(axis) = self.axis() else { return Ok(None) };
        let last = rank.saturating_sub(1);
        let found = if axis < 0 { rank as i64 + i64::from(axis) } else { i64::from(axis) };
        match usize::try_from(found) {
            Ok(found) if (1..=last).contains(&found) => Ok(Some(found)),
            // Of single numbers, the batch is all there is.
            _ if axis == LAST => Ok(Some(last)),
            _ => {
                let message =
                    format!("there is no such axis of classes: behind the batch there are 1 to {last}");
                Err(Error::usage(format!("--loss {self}"), message))
            }
        }
    }

    /// The axis of the classes, as it is said; none where the loss knows none.
    pub fn axis(&self) -> Option<i32> {
        match self {
            Self::SparseCrossEntropy { axis, .. }
            | Self::CrossEntropy { axis, .. }
            | Self::KullbackLeibler { axis } => Some(*axis),
            Self::MeanSquared
            | Self::MeanAbsolute
            | Self::Huber { .. }
            | Self::Hinge
            | Self::Cosine
            | Self::BinaryCrossEntropy { .. } => None,
        }
    }

    /// This loss with its classes along another axis.
    #[must_use]
    pub fn along(self, axis: i32) -> Self {
        match self {
            Self::SparseCrossEntropy { logits, ignored, .. } => {
                Self::SparseCrossEntropy { logits, ignored, axis }
            }
            Self::CrossEntropy { logits, .. } => Self::CrossEntropy { logits, axis },
            Self::KullbackLeibler { .. } => Self::KullbackLeibler { axis },
            other => other,
        }
    }

    /// Whether outputs are logits; none where the loss knows no difference.
    pub(crate) fn takes_logits(&self) -> Option<bool> {
        match self {
            Self::SparseCrossEntropy { logits, .. }
            | Self::CrossEntropy { logits, .. }
            | Self::BinaryCrossEntropy { logits } => Some(*logits),
            Self::MeanSquared
            | Self::MeanAbsolute
            | Self::Huber { .. }
            | Self::Hinge
            | Self::Cosine
            | Self::KullbackLeibler { .. } => None,
        }
    }

    /// This loss of logits, or of probabilities.
    pub(crate) fn of_logits(self, logits: bool) -> Self {
        match self {
            Self::SparseCrossEntropy { ignored, axis, .. } => {
                Self::SparseCrossEntropy { logits, ignored, axis }
            }
            Self::CrossEntropy { axis, .. } => Self::CrossEntropy { logits, axis },
            Self::BinaryCrossEntropy { .. } => Self::BinaryCrossEntropy { logits },
            other => other,
        }
    }

    /// This loss of all classes along the last axis, as it is named.
    fn without_choices(self) -> Self {
        match self.along(LAST) {
            Self::SparseCrossEntropy { logits, axis, .. } => {
                Self::SparseCrossEntropy { logits, ignored: None, axis }
            }
            other => other,
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
            | Self::KullbackLeibler { .. }
            | Self::CrossEntropy { .. }
            | Self::BinaryCrossEntropy { .. } => None,
        }
    }

    /// This loss as the file of a network has it, where that says what is left out and this one does not.
    #[must_use]
    pub fn of_model(self, graph: &Graph) -> Self {
        match (self, graph.rules().targets.ignored) {
            (Self::SparseCrossEntropy { logits, ignored: None, axis }, Some(class)) => {
                Self::SparseCrossEntropy { logits, ignored: Some(class), axis }
            }
            _ => self,
        }
    }

    /// This loss with a choice more. Error: its targets are no classes, or it is said twice.
    fn with(self, choice: Choice, text: &str) -> Result<Self> {
        let error = |message: &str| Err(Error::usage(format!("--loss {text}"), message));
        match (self, choice) {
            (Self::SparseCrossEntropy { logits, ignored: None, axis }, Choice::Ignored(class)) => {
                Ok(Self::SparseCrossEntropy { logits, ignored: Some(class), axis })
            }
            (_, Choice::Ignored(_)) => error("one class can be left out, and of sparse alone"),
            (loss, Choice::Axis(axis)) if loss.axis() == Some(LAST) => Ok(loss.along(axis)),
            (_, Choice::Axis(_)) => error("one axis can be said, of sparse, categorical and kl"),
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
            self.check_steps(b.rank(y))?;
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
        if steps.is_some() {
            self.check_steps(b.rank(y))?;
        }
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

    /// Error: the classes are along the axis whose steps a mask leaves out.
    fn check_steps(&self, rank: usize) -> Result<()> {
        match self.class_axis(rank)? {
            Some(1) if rank > 2 => {
                let message = "the network masks steps along axis 1, which cannot hold the classes";
                Err(Error::usage(format!("--loss {self}"), message))
            }
            _ => Ok(()),
        }
    }

    /// One number for each target; with classes, for each place that has some.
    fn each(&self, b: &mut Build<'_>, y: ValueId, t: ValueId) -> Result<ValueId> {
        let (y, t) = match self.class_axis(b.rank(y))? {
            Some(axis) => {
                let t = if self.has_class_numbers() { t } else { moved_last(b, t, axis)? };
                (moved_last(b, y, axis)?, t)
            }
            None => (y, t),
        };
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
            Self::KullbackLeibler { .. } => {
                let safe_t = clipped(b, t)?;
                let log_t = b.unary(Unary::Log, safe_t)?;
                let log_y = log_of(b, y, last)?;
                let ratio = b.sub(log_t, log_y)?;
                let weighted = b.mul(safe_t, ratio)?;
                b.sum(weighted, &[last], ReducedAxes::Dropped)
            }
            // Of logits, the logarithm of a softmax is taken as `x - log sum exp x`: a probability that underflows to
            // 0 would have none.
            Self::SparseCrossEntropy { logits, .. } | Self::CrossEntropy { logits, .. }
                if let Some(from) = logits_of(b, y, logits, last)? =>
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

/// With an axis behind all others.
fn moved_last(b: &mut Build<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let perm: Vec<usize> = (0..b.rank(x)).filter(|&other| other != axis).chain([axis]).collect();
    b.transpose(x, &perm)
}

/// The logarithm of probabilities along an axis; of what is their logarithm, that itself.
fn log_of(b: &mut Build<'_>, y: ValueId, axis: u32) -> Result<ValueId> {
    if viewed_softmax(b.graph, y, axis).is_some_and(|softmax| softmax.log) {
        return Ok(y);
    }
    let safe = clipped(b, y)?;
    b.unary(Unary::Log, safe)
}

/// Of what the softmax along an axis is `y`, or its logarithm, where `y` is not that itself.
fn logits_of(b: &mut Build<'_>, y: ValueId, logits: bool, axis: u32) -> Result<Option<ValueId>> {
    if logits {
        return Ok(Some(y));
    }
    let Some(softmax) = viewed_softmax(b.graph, y, axis) else { return Ok(None) };
    let mut viewed = softmax.operand;
    for view in softmax.views {
        viewed = b.apply(view, &[viewed])?;
    }
    Ok(Some(viewed))
}

/// A softmax that a value shows.
struct ViewedSoftmax {
    operand: ValueId,
    log: bool,
    /// What moved its elements since, the first of them first.
    views: Vec<Op>,
}

/// The softmax along an axis that a value shows with its elements in another order. O(views).
fn viewed_softmax(graph: &Graph, y: ValueId, axis: u32) -> Option<ViewedSoftmax> {
    let (mut maker, mut axis, mut views) = (graph.maker(y), axis, Vec::new());
    loop {
        let operand = maker.operands.first().copied()?;
        match &maker.op {
            Op::Softmax { axis: own, log } if *own == axis => {
                views.reverse();
                return Some(ViewedSoftmax { operand, log: *log, views });
            }
            Op::Transpose { perm } => axis = *perm.get(axis as usize)?,
            Op::Reshape { shape } => {
                let dims = graph.ty(operand).shape.dims()?;
                axis = same_axis(&shape.dims()?, axis as usize, &dims)? as u32;
            }
            _ => return None,
        }
        views.push(maker.op.clone());
        maker = graph.maker(operand);
    }
}

/// The axis of `dims` that a reshape to `shaped` leaves as its axis `axis`: as long, with as many elements behind it.
fn same_axis(shaped: &[i64], axis: usize, dims: &[i64]) -> Option<usize> {
    let behind = |dims: &[i64], axis: usize| dims[axis + 1..].iter().product::<i64>();
    let (size, inner) = (*shaped.get(axis)?, behind(shaped, axis));
    (0..dims.len()).find(|&own| dims[own] == size && behind(dims, own) == inner)
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
