//! Metrics of predictions, updated batch by batch.
//!
//! Sums are f64, in the order of the samples: the same batches give the same bits.
//!
//! ```
//! use partition::unstable::ir::Tensor;
//! use partition::unstable::metrics::{Meter, Metric};
//! let scores = Tensor::from_f32(vec![2, 3], &[0.1, 0.7, 0.2, 0.5, 0.2, 0.3]).unwrap();
//! let classes = Tensor::from_i64(vec![2], &[1, 2]).unwrap();
//! let mut meter = Meter::new("accuracy".parse().unwrap());
//! meter.update(&scores, &classes, 2).unwrap();
//! assert_eq!(meter.value(), Some(0.5));
//! ```

mod auc;

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::Tensor;

/// A measure of predictions against targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The share of samples whose class is predicted: the first of the highest scores. A single score
    /// for each sample says yes where it is above the threshold.
    Accuracy,
    /// The share of samples whose class has one of the k highest scores: fewer than k others have a
    /// higher one.
    TopK(usize),
    /// The mean of absolute differences.
    MeanAbsoluteError,
    /// The mean of squared differences.
    MeanSquaredError,
    /// The area under the ROC curve of a single score for each sample: the chance that a positive
    /// sample scores higher than a negative one, equal scores counted half. Exact; every score is
    /// kept, 16 bytes for each sample.
    Auc,
}

impl FromStr for Metric {
    type Err = Error;

    /// Error: [`Error::Usage`] with the names that are known.
    fn from_str(text: &str) -> Result<Self> {
        let top = text.strip_prefix("top").map(|rest| rest.trim_start_matches(['-', '_', 'k']));
        Ok(match (text, top) {
            ("accuracy" | "acc", _) => Self::Accuracy,
            ("mae" | "mean_absolute_error", _) => Self::MeanAbsoluteError,
            ("mse" | "mean_squared_error", _) => Self::MeanSquaredError,
            ("auc", _) => Self::Auc,
            (_, Some(k)) if k.parse().is_ok_and(|k: usize| k > 0) => Self::TopK(k.parse().unwrap_or(1)),
            _ => {
                return Err(Error::usage(format!("--metric {text}"), "is not known")
                    .with_help("known are accuracy, top5 (or any other number), mae, mse, auc"));
            }
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accuracy => f.write_str("accuracy"),
            Self::TopK(k) => write!(f, "top{k}"),
            Self::MeanAbsoluteError => f.write_str("mae"),
            Self::MeanSquaredError => f.write_str("mse"),
            Self::Auc => f.write_str("auc"),
        }
    }
}

impl Metric {
    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        match self {
            Self::Accuracy | Self::TopK(_) | Self::Auc => true,
            Self::MeanAbsoluteError | Self::MeanSquaredError => false,
        }
    }
}

/// A metric being measured.
#[derive(Clone, Debug)]
pub struct Meter {
    metric: Metric,
    threshold: f64,
    /// Each score is an answer of its own, not one of several classes'.
    apart: bool,
    /// The class whose targets are left out.
    ignored: Option<i64>,
    /// The axis of the classes; below 0, counted from the end.
    axis: i32,
    sum: f64,
    count: u64,
    /// Score, and whether the sample is positive.
    scores: Vec<(f64, bool)>,
}

impl Meter {
    /// Nothing measured yet. Single scores are probabilities: above 0.5 means yes.
    pub fn new(metric: Metric) -> Self {
        Self {
            metric,
            threshold: 0.5,
            apart: false,
            ignored: None,
            axis: -1,
            sum: 0.0,
            count: 0,
            scores: Vec::new(),
        }
    }

    /// Single scores above this mean yes: 0 for logits.
    #[must_use]
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }

    /// Each score says yes or no for itself, also where there are several in a row.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Targets that name this class are left out.
    #[must_use]
    pub fn ignoring(mut self, class: i64) -> Self {
        self.ignored = Some(class);
        self
    }

    /// Classes are the numbers of this axis, in place of the last; below 0, it is counted from the end.
    #[must_use]
    pub fn along(mut self, axis: i32) -> Self {
        self.axis = axis;
        self
    }

    /// What was measured so far, to go on from: a sum and a count. None of what needs every score, as areas do.
    pub fn measured(&self) -> Option<(f64, u64)> {
        self.scores.is_empty().then_some((self.sum, self.count))
    }

    /// Goes on from what was measured before.
    pub fn resume(&mut self, (sum, count): (f64, u64)) {
        (self.sum, self.count) = (sum, count);
    }

    /// What is measured.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Takes the first `samples` rows of a batch in. Classes are the numbers of the last axis of the
    /// predictions, or of that of [`Meter::along`]; targets are class numbers, or arrays of the predictions' sizes (one-hot classes,
    /// values). O(elements).
    ///
    /// Errors: sizes that do not fit one another, a target that is no class.
    pub fn update(&mut self, predictions: &Tensor, targets: &Tensor, samples: usize) -> Result<()> {
        let rows = predictions.dims().first().copied().unwrap_or(1) as usize;
        if samples > rows || targets.dims().first().copied().unwrap_or(1) as usize != rows {
            return Err(self.unfit(predictions, targets));
        }
        let taken = |tensor: &Tensor| {
            let mut values = tensor.to_f64();
            values.truncate(values.len() / rows.max(1) * samples);
            values
        };
        let place = ClassAxis::of(predictions.dims(), self.axis);
        let (found, mut wanted) = (place.moved_last(taken(predictions)), taken(targets));
        if found.len() == wanted.len() {
            wanted = place.moved_last(wanted);
        }
        let classes = place.classes;
        let is_classes = found.len() == wanted.len().saturating_mul(classes) && classes > 1;
        match self.metric {
            Metric::MeanAbsoluteError | Metric::MeanSquaredError if found.len() == wanted.len() => {
                self.differences(&found, &wanted);
            }
            Metric::Auc if found.len() == wanted.len() => {
                self.scores.extend(found.iter().zip(&wanted).map(|(&score, &target)| (score, target > 0.5)));
            }
            Metric::Accuracy if (classes == 1 || self.apart) && found.len() == wanted.len() => {
                for (score, target) in found.iter().zip(&wanted) {
                    self.sum += f64::from(u8::from((*score > self.threshold) == (*target > 0.5)));
                }
                self.count += found.len() as u64;
            }
            Metric::Accuracy | Metric::TopK(_) if is_classes => {
                let ignored = self.ignored.map(|class| class as f64);
                let counted = found.chunks_exact(classes).zip(&wanted);
                for (scores, &class) in counted.filter(|(_, class)| Some(**class) != ignored) {
                    let whole = class >= 0.0 && class.fract() == 0.0 && class < classes as f64;
                    if !whole {
                        let message = format!("target {class} is no class below {classes}");
                        return Err(Error::run(format!("metric {}", self.metric), message));
                    }
                    self.ranked(scores, class as usize);
                }
            }
            Metric::Accuracy | Metric::TopK(_) if found.len() == wanted.len() && classes > 1 => {
                for (scores, target) in found.chunks_exact(classes).zip(wanted.chunks_exact(classes)) {
                    self.ranked(scores, highest(target));
                }
            }
            _ => return Err(self.unfit(predictions, targets)),
        }
        Ok(())
    }

    fn unfit(&self, predictions: &Tensor, targets: &Tensor) -> Error {
        let message =
            format!("predictions of sizes {:?} and targets of {:?}", predictions.dims(), targets.dims());
        Error::run(format!("metric {}", self.metric), message + " do not fit")
    }

    fn differences(&mut self, found: &[f64], wanted: &[f64]) {
        for (one, other) in found.iter().zip(wanted) {
            let difference = one - other;
            self.sum += match self.metric {
                Metric::MeanSquaredError => difference * difference,
                _ => difference.abs(),
            };
        }
        self.count += found.len() as u64;
    }

    /// Counts whether a class is among the highest scores. A score that is no number is wrong.
    fn ranked(&mut self, scores: &[f64], class: usize) {
        let right = match self.metric {
            Metric::TopK(k) => {
                let own = scores[class];
                let above = scores.iter().filter(|&&score| score > own || score.is_nan()).count();
                !own.is_nan() && above < k
            }
            _ => !scores[class].is_nan() && highest(scores) == class,
        };
        self.sum += f64::from(u8::from(right));
        self.count += 1;
    }

    /// Adds what another meter of the same metric measured, after what this one did.
    pub fn merge(&mut self, other: &Self) {
        self.sum += other.sum;
        self.count += other.count;
        self.scores.extend_from_slice(&other.scores);
    }

    /// The value over all that was taken in; none where that was nothing, or for [`Metric::Auc`] no
    /// positive or no negative sample. O(samples x log) for that one, else O(1).
    pub fn value(&self) -> Option<f64> {
        match self.metric {
            Metric::Auc => auc::area(&self.scores),
            _ => (self.count > 0).then(|| self.sum / self.count as f64),
        }
    }

    /// Forgets what was measured.
    pub fn reset(&mut self) {
        (self.sum, self.count) = (0.0, 0);
        self.scores.clear();
    }
}

/// Where in an array of row-major order the numbers of classes are.
#[derive(Clone, Copy)]
struct ClassAxis {
    classes: usize,
    /// Elements from one class to the next.
    stride: usize,
}

impl ClassAxis {
    /// That of an axis behind the batch's; without such an axis, each number is a class of its own.
    fn of(dims: &[u64], axis: i32) -> Self {
        let last = dims.len().saturating_sub(1);
        let axis = if axis < 0 { dims.len() as i64 + i64::from(axis) } else { i64::from(axis) };
        match usize::try_from(axis) {
            Ok(axis) if (1..=last).contains(&axis) => {
                let stride = dims[axis + 1..].iter().product::<u64>() as usize;
                Self { classes: dims[axis] as usize, stride }
            }
            _ => Self { classes: 1, stride: 1 },
        }
    }

    /// The numbers with those of each place's classes side by side. O(numbers).
    fn moved_last(self, values: Vec<f64>) -> Vec<f64> {
        if self.stride == 1 {
            return values;
        }
        let mut moved = Vec::with_capacity(values.len());
        for block in values.chunks_exact((self.classes * self.stride).max(1)) {
            for place in 0..self.stride {
                moved.extend(block.iter().skip(place).step_by(self.stride));
            }
        }
        moved
    }
}

/// The position of the first of the highest values.
fn highest(values: &[f64]) -> usize {
    let mut best = 0;
    for (position, value) in values.iter().enumerate() {
        if *value > values[best] || values[best].is_nan() {
            best = position;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(metric: &str, predictions: &Tensor, targets: &Tensor) -> Option<f64> {
        let mut meter = Meter::new(metric.parse().unwrap());
        let rows = predictions.dims()[0] as usize;
        meter.update(predictions, targets, rows).unwrap();
        meter.value()
    }

    #[test]
    fn single_scores_are_compared_with_the_threshold() {
        let scores = Tensor::from_f32(vec![4, 1], &[0.9, 0.2, 0.5, 0.6]).unwrap();
        let targets = Tensor::from_f32(vec![4], &[1.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!(value("accuracy", &scores, &targets), Some(0.75));
        let mut logits = Meter::new(Metric::Accuracy).threshold(0.0);
        logits.update(&scores, &targets, 4).unwrap();
        assert_eq!(logits.value(), Some(0.25));
        // Of several answers in a row each is right or wrong; as scores of classes the first row would be wrong.
        let scores = Tensor::from_f32(vec![2, 2], &[-0.1, -0.3, 2.0, 0.2]).unwrap();
        let targets = Tensor::from_f32(vec![2, 2], &[0.0, 1.0, 1.0, 1.0]).unwrap();
        let mut apart = Meter::new(Metric::Accuracy).apart().threshold(0.0);
        apart.update(&scores, &targets, 2).unwrap();
        assert_eq!(apart.value(), Some(0.75));
    }

    #[test]
    fn what_fills_a_batch_up_is_not_measured() {
        let scores = Tensor::from_f32(vec![2, 2], &[1.0, 0.0, 1.0, 0.0]).unwrap();
        let targets = Tensor::from_i64(vec![2], &[0, 1]).unwrap();
        let mut meter = Meter::new(Metric::Accuracy);
        meter.update(&scores, &targets, 1).unwrap();
        assert_eq!(meter.value(), Some(1.0));
        meter.reset();
        assert_eq!(meter.value(), None);
    }

    #[test]
    fn sizes_and_classes_are_checked() {
        let scores = Tensor::from_f32(vec![2, 2], &[1.0, 0.0, 1.0, f32::NAN]).unwrap();
        let mut meter = Meter::new(Metric::Accuracy);
        let three = Tensor::from_i64(vec![2], &[0, 2]).unwrap();
        assert!(meter.update(&scores, &three, 2).unwrap_err().to_string().contains("no class below 2"));
        let long = Tensor::from_i64(vec![3], &[0, 1, 1]).unwrap();
        assert!(meter.update(&scores, &long, 2).is_err());
        assert!(Meter::new(Metric::Auc).update(&scores, &three, 2).is_err());
        for text in ["", "top0", "top-", "f1", "topx"] {
            assert!(text.parse::<Metric>().is_err(), "{text}");
        }
        assert_eq!("top-5".parse::<Metric>().unwrap(), Metric::TopK(5));
    }

    /// Two rows of three places with two classes, class by class.
    #[test]
    fn classes_are_along_the_axis_that_is_said() {
        let scores = [0.9, 0.2, 0.6, 0.1, 0.8, 0.4, 0.3, 0.3, 0.7, 0.7, 0.7, 0.3];
        let scores = Tensor::from_f32(vec![2, 2, 3], &scores).unwrap();
        let classes = Tensor::from_i64(vec![2, 3], &[0, 1, 1, 1, 0, 0]).unwrap();
        let onehot = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        let onehot = Tensor::from_f32(vec![2, 2, 3], &onehot).unwrap();
        for (axis, targets) in [(1, &classes), (-2, &classes), (1, &onehot)] {
            let mut meter = Meter::new(Metric::Accuracy).along(axis);
            meter.update(&scores, targets, 2).unwrap();
            assert_eq!(meter.value(), Some(4.0 / 6.0));
        }
    }

    proptest! {
        #[test]
        fn measures_are_those_of_brute_force(
            rows in prop::collection::vec((prop::collection::vec(0u8..6, 4), 0usize..4), 1..30),
            split in 0usize..30,
        ) {
            let scores: Vec<f32> = rows.iter().flat_map(|(scores, _)| scores.iter().map(|&s| f32::from(s) / 4.0)).collect();
            let classes: Vec<i64> = rows.iter().map(|(_, class)| *class as i64).collect();
            let onehot: Vec<f32> = rows.iter().flat_map(|(_, class)| (0..4).map(|one| f32::from(u8::from(one == *class)))).collect();
            let count = rows.len() as u64;
            let predictions = Tensor::from_f32(vec![count, 4], &scores).unwrap();
            let sparse = Tensor::from_i64(vec![count, 1], &classes).unwrap();
            let dense = Tensor::from_f32(vec![count, 4], &onehot).unwrap();
            let n = rows.len() as f64;
            let share = |right: &dyn Fn(&[u8], usize) -> bool| rows.iter().filter(|(s, c)| right(s, *c)).count() as f64 / n;
            let accuracy = share(&|s, c| (0..4).find(|&at| s.iter().all(|other| *other <= s[at])) == Some(c));
            prop_assert_eq!(value("accuracy", &predictions, &sparse), Some(accuracy));
            prop_assert_eq!(value("accuracy", &predictions, &dense), Some(accuracy));
            for k in 1..=4usize {
                let top = share(&|s, c| {
                    let mut sorted = s.to_vec();
                    sorted.sort_unstable_by(|a, b| b.cmp(a));
                    s[c] >= sorted[k - 1]
                });
                prop_assert_eq!(value(&format!("top{k}"), &predictions, &sparse), Some(top));
            }
            let errors: Vec<f64> = scores.iter().zip(&onehot).map(|(a, b)| f64::from(a - b)).collect();
            let mae = errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len() as f64;
            let mse = errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64;
            prop_assert!((value("mae", &predictions, &dense).unwrap() - mae).abs() < 1e-12);
            prop_assert!((value("mse", &predictions, &dense).unwrap() - mse).abs() < 1e-12);
            // Any split into batches measures the same.
            let single: Vec<(f64, bool)> = scores.iter().zip(&onehot).map(|(s, t)| (f64::from(*s), *t > 0.5)).collect();
            let split = split.min(single.len());
            let tensor = |part: &[(f64, bool)], which: fn(&(f64, bool)) -> f32| {
                let values: Vec<f32> = part.iter().map(which).collect();
                Tensor::from_f32(vec![values.len() as u64], &values).unwrap()
            };
            let (mut first, mut second) = (Meter::new(Metric::Auc), Meter::new(Metric::Auc));
            for (meter, part) in [(&mut first, &single[..split]), (&mut second, &single[split..])] {
                meter.update(&tensor(part, |p| p.0 as f32), &tensor(part, |p| f32::from(u8::from(p.1))), part.len()).unwrap();
            }
            first.merge(&second);
            let (mut wins, mut pairs) = (0.0, 0.0);
            for one in single.iter().filter(|one| one.1) {
                for other in single.iter().filter(|other| !other.1) {
                    pairs += 1.0;
                    wins += if one.0 > other.0 { 1.0 } else if one.0 == other.0 { 0.5 } else { 0.0 };
                }
            }
            prop_assert!((first.value().unwrap() - wins / pairs).abs() < 1e-12);
        }
    }
}
