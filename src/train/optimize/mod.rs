//! Optimizers as nodes of the graph: each parameter's new value, and its slots'.
//!
//! What changes from step to step (the learning rate, the corrections of Adam) are parameters of one
//! element each, which the caller sets: [`Scalars`]. Everything else is a constant.

pub(crate) mod rate;

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::{
    Binary, Compare, DType, Graph, Init, ParamId, Real, Shape, Source, SourceId, Type, Unary, ValueId,
};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::train::spec::Spec;

/// What optimizers keep for a parameter: names of arrays, behind the parameter's own.
const MOMENTUM: &str = "momentum";
const ACCUMULATOR: &str = "accumulator";
const MEAN_SQUARE: &str = "mean_square";
const FIRST_MOMENT: &str = "first_moment";
const SECOND_MOMENT: &str = "second_moment";
pub(crate) const SLOTS: [&str; 5] = [MOMENTUM, ACCUMULATOR, MEAN_SQUARE, FIRST_MOMENT, SECOND_MOMENT];

/// How parameters follow their gradients. Names and constants are those of the papers; where
/// frameworks differ, PyTorch's form is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `v = momentum v + g; w -= rate v`; with Nesterov `w -= rate (g + momentum v)`
    /// (Sutskever et al. 2013).
    Sgd {
        /// 0 for none.
        momentum: f64,
        /// Looks ahead.
        nesterov: bool,
    },
    /// `a += g^2; w -= rate g / (sqrt a + epsilon)` (Duchi, Hazan, Singer 2011).
    Adagrad {
        /// Keeps the quotient finite.
        epsilon: Epsilon,
    },
    /// `a = rho a + (1 - rho) g^2; w -= rate g / (sqrt a + epsilon)` (Tieleman and Hinton 2012).
    RmsProp {
        /// How long squares are remembered.
        rho: f64,
        /// Keeps the quotient finite.
        epsilon: Epsilon,
    },
    /// Moments `m`, `v`, corrected for their start at zero (Kingma and Ba 2015). Weight decay is added
    /// to the gradient, or with `decoupled` taken off the parameter (Loshchilov and Hutter 2019).
    Adam {
        /// How long gradients are remembered.
        beta1: f64,
        /// How long squares are.
        beta2: f64,
        /// Keeps the quotient finite.
        epsilon: f64,
        /// AdamW.
        decoupled: bool,
    },
    /// The sign of a mean of gradients (Chen et al. 2023); weight decay is decoupled.
    Lion {
        /// How much the past counts in the step.
        beta1: f64,
        /// How much it counts in what is remembered.
        beta2: f64,
    },
}

/// What keeps a quotient over a root finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epsilon {
    /// `g / (sqrt a + epsilon)`, as in PyTorch.
    BesideRoot(f64),
    /// `g / sqrt(a + epsilon)`, as in Keras.
    InRoot(f64),
}

impl Epsilon {
    /// `epsilon` and `epsilon_in_root` of an optimizer. Error: the former is not above 0.
    fn read(spec: &mut Spec<'_>, default: f64) -> Result<Self> {
        let epsilon = spec.positive("epsilon", default)?;
        let is_in_root = spec.flag("epsilon_in_root")?;
        Ok(if is_in_root { Self::InRoot(epsilon) } else { Self::BesideRoot(epsilon) })
    }
}

impl fmt::Display for Epsilon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BesideRoot(epsilon) => write!(f, "epsilon={epsilon}"),
            Self::InRoot(epsilon) => write!(f, "epsilon={epsilon},epsilon_in_root"),
        }
    }
}

/// An optimizer with what is common to all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Updates {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Factor of the parameter that is added to its gradient, or taken off it where the optimizer
    /// decouples the two.
    pub weight_decay: f64,
    /// Every element of a gradient is brought within this distance of zero.
    pub clip_value: Option<f64>,
    /// All gradients together are brought to this length where they are longer (Pascanu, Mikolov,
    /// Bengio 2013).
    pub clip_norm: Option<f64>,
    /// Parts of the batch that run one after the other, whose gradients are added up for one update.
    pub microbatches: u32,
}

impl Default for Updates {
    fn default() -> Self {
        let optimizer = Optimizer::Sgd { momentum: 0.0, nesterov: false };
        Self { optimizer, weight_decay: 0.0, clip_value: None, clip_norm: None, microbatches: 1 }
    }
}

impl FromStr for Updates {
    type Err = Error;

    /// `sgd`, `sgd:momentum=0.9,nesterov`, `adamw:weight_decay=0.01,clip_norm=1`, ...
    fn from_str(text: &str) -> Result<Self> {
        let mut spec = Spec::parse("--optimizer", text)?;
        let optimizer = match spec.name() {
            "sgd" => {
                Optimizer::Sgd { momentum: spec.share("momentum", 0.0)?, nesterov: spec.flag("nesterov")? }
            }
            "adagrad" => Optimizer::Adagrad { epsilon: Epsilon::read(&mut spec, 1e-10)? },
            "rmsprop" => {
                Optimizer::RmsProp { rho: spec.share("rho", 0.99)?, epsilon: Epsilon::read(&mut spec, 1e-8)? }
            }
            "adam" | "adamw" => Optimizer::Adam {
                beta1: spec.share("beta1", 0.9)?,
                beta2: spec.share("beta2", 0.999)?,
                epsilon: spec.positive("epsilon", 1e-8)?,
                decoupled: spec.name() == "adamw",
            },
            "lion" => Optimizer::Lion { beta1: spec.share("beta1", 0.9)?, beta2: spec.share("beta2", 0.99)? },
            _ => return Err(spec.unknown("optimizer", "sgd, adagrad, rmsprop, adam, adamw, lion")),
        };
        let decay = if spec.name() == "adamw" { 0.01 } else { 0.0 };
        let updates = Self {
            optimizer,
            weight_decay: spec.real("weight_decay", decay)?,
            clip_value: spec.optional("clip_value")?,
            clip_norm: spec.optional("clip_norm")?,
            microbatches: 1,
        };
        spec.finish()?;
        Ok(updates)
    }
}

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => write!(f, "sgd")?,
            Optimizer::Sgd { momentum, nesterov } => {
                write!(f, "sgd:momentum={momentum}{}", if nesterov { ",nesterov" } else { "" })?;
            }
            Optimizer::Adagrad { epsilon } => write!(f, "adagrad:{epsilon}")?,
            Optimizer::RmsProp { rho, epsilon } => write!(f, "rmsprop:rho={rho},{epsilon}")?,
            Optimizer::Adam { beta1, beta2, epsilon, decoupled } => {
                let name = if decoupled { "adamw" } else { "adam" };
                write!(f, "{name}:beta1={beta1},beta2={beta2},epsilon={epsilon}")?;
            }
            Optimizer::Lion { beta1, beta2 } => write!(f, "lion:beta1={beta1},beta2={beta2}")?,
        }
        let mut separator =
            if matches!(self.optimizer, Optimizer::Sgd { momentum: 0.0, .. }) { ':' } else { ',' };
        let decay = (self.weight_decay != 0.0).then_some(self.weight_decay);
        for (name, value) in
            [("weight_decay", decay), ("clip_value", self.clip_value), ("clip_norm", self.clip_norm)]
        {
            if let Some(value) = value {
                write!(f, "{separator}{name}={value}")?;
                separator = ',';
            }
        }
        Ok(())
    }
}

/// Numbers that change from step to step, as parameters of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// The learning rate.
    Rate,
    /// `1 / (1 - beta1^t)` of Adam.
    First,
    /// `1 / sqrt(1 - beta2^t)` of Adam.
    Second,
    /// 1 in the first microbatch of a step, else 0.
    Begins,
    /// 1 in the last microbatch of a step, else 0.
    Ends,
}

/// How far a run is: what scalars follow from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The learning rate.
    pub(crate) rate: f64,
    /// The step, counted from 1.
    pub(crate) step: u64,
    /// The microbatch, counted from 0, and how many there are.
    pub(crate) microbatch: (u32, u32),
}

impl Scalar {
    pub(crate) const ALL: [Self; 5] = [Self::Rate, Self::First, Self::Second, Self::Begins, Self::Ends];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "optimizer/rate",
            Self::First => "optimizer/first_correction",
            Self::Second => "optimizer/second_correction",
            Self::Begins => "optimizer/begins",
            Self::Ends => "optimizer/ends",
        }
    }
}

impl Optimizer {
    /// The value of a scalar.
    pub(crate) fn scalar(&self, scalar: Scalar, at: Moment) -> f64 {
        let (beta1, beta2) = match *self {
            Self::Adam { beta1, beta2, .. } => (beta1, beta2),
            Self::Sgd { .. } | Self::Adagrad { .. } | Self::RmsProp { .. } | Self::Lion { .. } => (0.0, 0.0),
        };
        match scalar {
            Scalar::Rate => at.rate,
            Scalar::First => 1.0 / (1.0 - power(beta1, at.step)),
            Scalar::Second => 1.0 / (1.0 - power(beta2, at.step)).sqrt(),
            Scalar::Begins => f64::from(u8::from(at.microbatch.0 == 0)),
            Scalar::Ends => f64::from(u8::from(at.microbatch.0 + 1 == at.microbatch.1)),
        }
    }
}

/// By squaring: the same bits on every machine.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

/// The type that is computed in with tensors of these types: f32, or f64 where one of them is of that.
pub(crate) fn wide_type(mut types: impl Iterator<Item = DType>) -> DType {
    if types.any(|one| one == DType::F64) { DType::F64 } else { DType::F32 }
}

/// The scalars as values of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Scalars {
    values: [Option<ValueId>; 5],
    /// Whether all gradients are finite, where a step with others changes nothing.
    pub(crate) finite: Option<ValueId>,
}

impl Scalars {
    /// Adds those that the updates read.
    pub(crate) fn add(b: &mut Build<'_>, updates: &Updates, dtype: DType) -> Self {
        let add = |b: &mut Build<'_>, scalar: Scalar| {
            let ty = Type::new(dtype, Shape::scalar());
            updates.reads(scalar).then(|| b.graph.add_param(scalar.name(), ty, Init::zeros(), None, b.source))
        };
        Self { values: Scalar::ALL.map(|scalar| add(b, scalar)), finite: None }
    }

    /// Adds [`Scalar::Begins`] alone.
    pub(crate) fn begins(b: &mut Build<'_>, dtype: DType) -> Self {
        let ty = || Type::new(dtype, Shape::scalar());
        let add = |b: &mut Build<'_>, scalar: Scalar| {
            (scalar == Scalar::Begins)
                .then(|| b.graph.add_param(scalar.name(), ty(), Init::zeros(), None, b.source))
        };
        Self { values: Scalar::ALL.map(|scalar| add(b, scalar)), finite: None }
    }

    fn get(&self, scalar: Scalar) -> Result<ValueId> {
        let position = Scalar::ALL.iter().position(|&one| one == scalar).unwrap_or(0);
        self.values[position].ok_or_else(|| Error::Internal(format!("{} is not there", scalar.name())))
    }

    /// A value times a scalar, which is rounded to the value's type.
    fn times(&self, b: &mut Build<'_>, value: ValueId, scalar: Scalar) -> Result<ValueId> {
        let factor = b.convert(self.get(scalar)?, b.dtype(value))?;
        b.mul(value, factor)
    }

    /// The new value, or the old one where the step is to change nothing.
    pub(crate) fn where_finite(&self, b: &mut Build<'_>, new: ValueId, old: ValueId) -> Result<ValueId> {
        match self.finite {
            Some(finite) => b.select(finite, new, old),
            None => Ok(new),
        }
    }

    /// Whether a scalar is not 0.
    pub(crate) fn holds(&self, b: &mut Build<'_>, scalar: Scalar) -> Result<ValueId> {
        let value = self.get(scalar)?;
        let zero = b.number(b.dtype(value), 0.0)?;
        b.compare(Compare::Ne, value, zero)
    }
}

impl Updates {
    fn reads(&self, scalar: Scalar) -> bool {
        match scalar {
            Scalar::Rate => true,
            Scalar::First | Scalar::Second => matches!(self.optimizer, Optimizer::Adam { .. }),
            Scalar::Begins | Scalar::Ends => self.microbatches > 1,
        }
    }

    /// Says what a parameter is to become: at once, or after the last microbatch; what it is, where a
    /// gradient is not finite and that matters.
    fn commit(&self, b: &mut Build<'_>, scalars: &Scalars, id: ParamId, new: ValueId) -> Result<()> {
        let old = b.graph.node(b.graph.param(id).node).first_result;
        let new = b.convert(new, b.dtype(old))?;
        let new = scalars.where_finite(b, new, old)?;
        let value = self.at_the_end(b, scalars, old, new)?;
        b.graph.update_param(id, value)
    }

    /// What was there before, but for the last microbatch.
    pub(crate) fn at_the_end(
        &self,
        b: &mut Build<'_>,
        scalars: &Scalars,
        old: ValueId,
        new: ValueId,
    ) -> Result<ValueId> {
        if self.microbatches < 2 {
            return Ok(new);
        }
        let ends = scalars.holds(b, Scalar::Ends)?;
        b.select(ends, new, old)
    }

    /// Clips gradients in place.
    pub(crate) fn clip(
        &self,
        b: &mut Build<'_>,
        gradients: &mut [(ParamId, SourceId, ValueId)],
    ) -> Result<()> {
        if let Some(most) = self.clip_value {
            for (_, source, gradient) in &mut *gradients {
                b.source = *source;
                let below = b.with(Binary::Min, *gradient, most)?;
                *gradient = b.with(Binary::Max, below, -most)?;
            }
        }
        let (Some(most), Some(&(_, first, _))) = (self.clip_norm, gradients.first()) else { return Ok(()) };
        let met = joint_source(b.graph, first, "norm");
        let types = gradients.iter().map(|&(.., gradient)| b.dtype(gradient));
        // Squares of halves are soon beyond the largest of them.
        let joint = wide_type(types);
        let mut total: Option<ValueId> = None;
        for (_, source, gradient) in &*gradients {
            b.source = *source;
            let wide = b.convert(*gradient, joint)?;
            let square = b.mul(wide, wide)?;
            let axes: Vec<u32> = (0..b.rank(square) as u32).collect();
            let sum = b.sum(square, &axes, ReducedAxes::Dropped)?;
            b.source = met;
            total = Some(match total {
                Some(total) => b.add(total, sum)?,
                None => sum,
            });
        }
        let Some(total) = total else { return Ok(()) };
        b.source = met;
        let norm = b.unary(Unary::Sqrt, total)?;
        let safe = b.with(Binary::Add, norm, 1e-6)?;
        let most = b.number(b.dtype(safe), most)?;
        let factor = b.div(most, safe)?;
        let factor = b.with(Binary::Min, factor, 1.0)?;
        for (_, source, gradient) in gradients {
            b.source = *source;
            let factor = b.convert(factor, b.dtype(*gradient))?;
            *gradient = b.mul(*gradient, factor)?;
        }
        Ok(())
    }

    /// Adds the update of one parameter, with the slots that it needs.
    pub(crate) fn apply(
        &self,
        b: &mut Build<'_>,
        scalars: &Scalars,
        id: ParamId,
        gradient: ValueId,
    ) -> Result<()> {
        let w = b.graph.node(b.graph.param(id).node).first_result;
        let name = b.graph.param(id).name.clone();
        let new = self.stepped(b, scalars, &name, w, gradient)?;
        self.commit(b, scalars, id, new)
    }

    /// What a parameter, or a part of one, becomes; slots take their names from `name`. Halves are computed with in f32 and
    /// rounded in the end: in their own type an epsilon would be 0.
    pub(crate) fn stepped(
        &self,
        b: &mut Build<'_>,
        scalars: &Scalars,
        name: &str,
        w: ValueId,
        gradient: ValueId,
    ) -> Result<ValueId> {
        let (kept, wide) = (w, wide_type([b.dtype(w)].into_iter()));
        let (w, mut g) = (b.convert(w, wide)?, b.convert(gradient, wide)?);
        let decoupled = match self.optimizer {
            Optimizer::Adam { decoupled, .. } => decoupled,
            Optimizer::Lion { .. } => true,
            Optimizer::Sgd { .. } | Optimizer::Adagrad { .. } | Optimizer::RmsProp { .. } => false,
        };
        // Decay that goes with the gradient passes through the moments; decoupled, it is a part of the weight alone
        // (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019).
        if self.weight_decay != 0.0 && !decoupled {
            let decay = b.scale(w, self.weight_decay)?;
            g = b.add(g, decay)?;
        }
        let direction = self.direction(b, scalars, Owner { name, value: kept }, g)?;
        let mut step = scalars.times(b, direction, Scalar::Rate)?;
        if self.weight_decay != 0.0 && decoupled {
            let decay = b.scale(w, self.weight_decay)?;
            let decay = scalars.times(b, decay, Scalar::Rate)?;
            step = b.add(step, decay)?;
        }
        let new = b.sub(w, step)?;
        b.convert(new, b.dtype(kept))
    }

    /// What is multiplied with the rate and taken off the parameter.
    fn direction(&self, b: &mut Build<'_>, scalars: &Scalars, of: Owner<'_>, g: ValueId) -> Result<ValueId> {
        let slot = |b: &mut Build<'_>, name: &str| {
            let Slot { id, value } = Slot::add(b, of, name);
            b.convert(value, b.dtype(g)).map(|value| Slot { id, value })
        };
        match self.optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => Ok(g),
            Optimizer::Sgd { momentum, nesterov } => {
                let slot = slot(b, MOMENTUM)?;
                let kept = b.scale(slot.value, momentum)?;
                let new = b.add(kept, g)?;
                self.commit(b, scalars, slot.id, new)?;
                if !nesterov {
                    return Ok(new);
                }
                // The gradient as if the momentum's step had been taken (Sutskever et al., 2013).
                let ahead = b.scale(new, momentum)?;
                b.add(g, ahead)
            }
            Optimizer::Adagrad { epsilon } => {
                let slot = slot(b, ACCUMULATOR)?;
                let square = b.mul(g, g)?;
                let new = b.add(slot.value, square)?;
                self.commit(b, scalars, slot.id, new)?;
                over_root(b, g, new, epsilon)
            }
            Optimizer::RmsProp { rho, epsilon } => {
                let slot = slot(b, MEAN_SQUARE)?;
                let square = b.mul(g, g)?;
                let new = blend(b, slot.value, square, rho)?;
                self.commit(b, scalars, slot.id, new)?;
                over_root(b, g, new, epsilon)
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. } => {
                let (first, second) = (slot(b, FIRST_MOMENT)?, slot(b, SECOND_MOMENT)?);
                let mean = blend(b, first.value, g, beta1)?;
                self.commit(b, scalars, first.id, mean)?;
                let square = b.mul(g, g)?;
                let variance = blend(b, second.value, square, beta2)?;
                self.commit(b, scalars, second.id, variance)?;
                // Moments begin at 0 and are too small at first (Kingma and Ba, 2015, section 3). How much so follows
                // from the step's number alone, so each correction is one number that is fed.
                let mean = scalars.times(b, mean, Scalar::First)?;
                let root = b.unary(Unary::Sqrt, variance)?;
                let root = scalars.times(b, root, Scalar::Second)?;
                let safe = b.with(Binary::Add, root, epsilon)?;
                b.div(mean, safe)
            }
            Optimizer::Lion { beta1, beta2 } => {
                // What is stepped along and what is kept mix the gradient in differently (Chen et al., 2023).
                let slot = slot(b, MOMENTUM)?;
                let mixed = blend(b, slot.value, g, beta1)?;
                let new = blend(b, slot.value, g, beta2)?;
                self.commit(b, scalars, slot.id, new)?;
                b.unary(Unary::Sign, mixed)
            }
        }
    }
}

/// A source for what all gradients come to, such as their length: beside an update, but no part of it, so that no
/// parameter has to be where it is. Of several beside one update, each has a name of its own. O(sources).
pub(crate) fn joint_source(graph: &mut Graph, update: SourceId, what: &str) -> SourceId {
    let beside = graph.source(update).clone();
    let name = format!("{}/{what}", beside.name);
    let before = graph.sources().iter().filter(|source| source.op == what && source.name.starts_with(&name));
    let name = match before.count() {
        0 => name,
        number => format!("{name}@{number}"),
    };
    graph.add_source(Source { name, op: what.to_owned(), ..beside })
}

/// `beta old + (1 - beta) new`.
fn blend(b: &mut Build<'_>, old: ValueId, new: ValueId, beta: f64) -> Result<ValueId> {
    let old = b.scale(old, beta)?;
    let new = b.scale(new, 1.0 - beta)?;
    b.add(old, new)
}

/// `g` over the root of `a`.
fn over_root(b: &mut Build<'_>, g: ValueId, a: ValueId, epsilon: Epsilon) -> Result<ValueId> {
    let safe = match epsilon {
        Epsilon::BesideRoot(epsilon) => {
            let root = b.unary(Unary::Sqrt, a)?;
            b.with(Binary::Add, root, epsilon)?
        }
        Epsilon::InRoot(epsilon) => {
            let safe = b.with(Binary::Add, a, epsilon)?;
            b.unary(Unary::Sqrt, safe)?
        }
    };
    b.div(g, safe)
}

/// What a slot takes its name from, and what it is as large as.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: ValueId,
}

/// An array that the optimizer keeps for a parameter; it begins as zeros.
pub(crate) struct Slot {
    pub(crate) id: ParamId,
    pub(crate) value: ValueId,
}

impl Slot {
    pub(crate) fn add(b: &mut Build<'_>, of: Owner<'_>, name: &str) -> Self {
        let ty = b.graph.ty(of.value).clone();
        let id = ParamId(b.graph.params().len() as u32);
        let name = format!("{}/{name}", of.name);
        let value = b.graph.add_param(name, ty, Init::Constant(Real(0.0)), None, b.source);
        Self { id, value }
    }
}
