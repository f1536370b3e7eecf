//! Scaling of the loss: gradients are made of a multiple of it, so that small ones stay above the least
//! half, and divided by the same in f32 (Micikevicius et al. 2018, section 3.2). A step whose gradients
//! are not all finite changes nothing.
//!
//! The factor and its counts are parameters of the step, so they are kept with the optimizer's state,
//! and a run that goes on goes on with them. They are integers: what is made of an integer is computed
//! in f32 whatever the precision, and so is all that the optimizer makes of gradients.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::{
    Binary, Compare, DType, Graph, Init, ParamId, Real, Shape, Source, SourceId, SourceRole, Type, ValueId,
};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::train::optimize::{Scalar, Scalars, Updates, joint_source, wide_type};
use crate::train::spec::Spec;

/// The factor of the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Always the same; 1 is no scaling, and leaves no step out.
    Fixed(u64),
    /// Halved, down to 1, where a gradient is not finite; doubled after so many steps without.
    Dynamic {
        /// The first one.
        start: u64,
        /// Steps until it is doubled.
        every: u64,
    },
}

/// The first factor where nothing else is said, and the steps until it is doubled: PyTorch's.
const START: u64 = 1 << 16;
const EVERY: u64 = 2000;
/// The largest factor.
const MOST: f64 = (1u64 << 40) as f64;

/// The parameter that holds the factor.
pub(crate) const FACTOR: &str = "loss_scale/factor";
/// Steps since the factor was changed.
pub(crate) const GOOD: &str = "loss_scale/good_steps";
/// Steps that changed nothing.
pub(crate) const SKIPPED: &str = "loss_scale/skipped_steps";

impl Scaling {
    /// What a precision needs: f16 has a range of its own, bf16 that of f32.
    pub fn of(half: DType) -> Self {
        match half {
            DType::F16 => Self::Dynamic { start: START, every: EVERY },
            _ => Self::Fixed(1),
        }
    }

    /// Whether steps may be left out.
    pub(crate) fn skips(self) -> bool {
        self != Self::Fixed(1)
    }
}

impl FromStr for Scaling {
    type Err = Error;

    /// `1024`, `dynamic`, `dynamic:start=65536,every=2000`.
    fn from_str(text: &str) -> Result<Self> {
        if let Ok(factor) = text.parse::<u64>()
            && factor > 0
        {
            return Ok(Self::Fixed(factor));
        }
        let mut spec = Spec::parse("--loss-scale", text)?;
        if spec.name() != "dynamic" {
            return Err(spec.unknown("scaling", "a whole number of at least 1, dynamic"));
        }
        let (start, every) = (spec.count("start")?.unwrap_or(START), spec.count("every")?.unwrap_or(EVERY));
        spec.finish()?;
        Ok(Self::Dynamic { start, every })
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(factor) => write!(f, "{factor}"),
            Self::Dynamic { start, every } => write!(f, "dynamic:start={start},every={every}"),
        }
    }
}

/// The state of a scaling in a graph.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    scaling: Scaling,
    factor: (ParamId, ValueId),
    good: (ParamId, ValueId),
    skipped: (ParamId, ValueId),
}

impl Scale {
    /// Adds the state.
    pub(crate) fn add(graph: &mut Graph, scaling: Scaling) -> Self {
        let source = graph.add_source(Source::new("loss_scale", "loss_scale", SourceRole::Data));
        let start = match scaling {
            Scaling::Fixed(factor) => factor,
            Scaling::Dynamic { start, .. } => start,
        };
        let mut add = |name: &str, first: u64| {
            let id = ParamId(graph.params().len() as u32);
            let ty = Type::new(DType::I64, Shape::scalar());
            let init = Init::Constant(Real(first as f64));
            (id, graph.add_param(name, ty, init, None, source))
        };
        Self { scaling, factor: add(FACTOR, start), good: add(GOOD, 0), skipped: add(SKIPPED, 0) }
    }

    /// The loss that gradients are made of.
    pub(crate) fn scaled(&self, b: &mut Build<'_>, loss: ValueId) -> Result<ValueId> {
        let factor = b.convert(self.factor.1, b.dtype(loss))?;
        b.mul(loss, factor)
    }

    /// A gradient of the loss, from one of the scaled loss.
    pub(crate) fn unscaled(&self, b: &mut Build<'_>, gradient: ValueId) -> Result<ValueId> {
        let factor = b.convert(self.factor.1, b.dtype(gradient))?;
        b.div(gradient, factor)
    }

    /// Whether all gradients are finite; none where steps are not left out.
    pub(crate) fn finite(
        &self,
        b: &mut Build<'_>,
        gradients: &[(ParamId, SourceId, ValueId)],
    ) -> Result<Option<ValueId>> {
        let Some(&(_, first, _)) = gradients.first().filter(|_| self.scaling.skips()) else {
            return Ok(None);
        };
        let decided = joint_source(b.graph, first, "finite");
        let joint = wide_type(gradients.iter().map(|&(.., gradient)| b.dtype(gradient)));
        let mut total: Option<ValueId> = None;
        for &(_, source, gradient) in gradients {
            b.source = source;
            // Zero for what is finite, no number for all else.
            let zeros = b.with(Binary::Mul, gradient, 0.0)?;
            let axes: Vec<u32> = (0..b.rank(zeros) as u32).collect();
            let sum = b.sum(zeros, &axes, ReducedAxes::Dropped)?;
            let sum = b.convert(sum, joint)?;
            b.source = decided;
            // One number from each gradient: only these travel to where the step is decided.
            total = Some(match total {
                Some(total) => b.add(total, sum)?,
                None => sum,
            });
        }
        let Some(total) = total else { return Ok(None) };
        b.source = decided;
        let zero = b.number(b.dtype(total), 0.0)?;
        b.compare(Compare::Eq, total, zero).map(Some)
    }

    /// What the state becomes, once in a step, where it is decided whether the step counts.
    pub(crate) fn follow(&self, b: &mut Build<'_>, updates: &Updates, scalars: &Scalars) -> Result<()> {
        let Some(finite) = scalars.finite else { return Ok(()) };
        b.source = b.graph.maker(finite).source;
        let ends = if updates.microbatches > 1 { Some(scalars.holds(b, Scalar::Ends)?) } else { None };
        let set = |b: &mut Build<'_>, (id, old): (ParamId, ValueId), new: ValueId| {
            let new = match ends {
                Some(ends) => b.select(ends, new, old)?,
                None => new,
            };
            b.graph.update_param(id, new)
        };
        // Schedules and bias corrections count the steps that changed something.
        let more = b.with(Binary::Add, self.skipped.1, 1.0)?;
        let skipped = b.select(finite, self.skipped.1, more)?;
        set(b, self.skipped, skipped)?;
        let Scaling::Dynamic { every, .. } = self.scaling else { return Ok(()) };
        // Twice the factor after so many good steps, half of it after a bad one (Micikevicius et al., Mixed Precision
        // Training, 2018, section 3.2): doubling and halving change exponents alone.
        let zero = b.number(DType::I64, 0.0)?;
        let good = b.with(Binary::Add, self.good.1, 1.0)?;
        let limit = b.number(DType::I64, every as f64)?;
        let full = b.compare(Compare::Ge, good, limit)?;
        let doubled = b.with(Binary::Mul, self.factor.1, 2.0)?;
        let doubled = b.with(Binary::Min, doubled, MOST)?;
        let grown = b.select(full, doubled, self.factor.1)?;
        let halved = b.with(Binary::Div, self.factor.1, 2.0)?;
        let halved = b.with(Binary::Max, halved, 1.0)?;
        let factor = b.select(finite, grown, halved)?;
        set(b, self.factor, factor)?;
        let begun = b.select(full, zero, good)?;
        let good = b.select(finite, begun, zero)?;
        set(b, self.good, good)
    }
}
