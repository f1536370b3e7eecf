//! Tile programs for people: what is loaded into registers, computed, stored.

use std::fmt::{Display, Formatter, Result};

use super::super::chain::Link;
use super::super::{Access, PART, Program, Step, TILE, Work};
use super::Action;

impl Program {
    /// How it walks its elements.
    pub(crate) fn walk(&self) -> String {
        let (elements, registers) = (self.elements, self.registers);
        format!("{elements} elements in tiles of {TILE}, parts of {PART}, {registers} registers")
    }
}

impl Display for Program {
    /// A line for each step; `s0` is a source, `t0` a target, `%0` a register. Those in front of `each tile`
    /// are done once for a part.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.first.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        if !self.first.is_empty() {
            writeln!(f, "  each tile:")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Load { to, source, dtype, access, .. } => {
                let access = match access {
                    Access::Linear => "",
                    Access::Scalar => ", one for all",
                    Access::Strided(_) => ", by strides",
                };
                write!(f, "%{to} = s{source} {dtype}{access}")
            }
            Self::Compute { to, work } => write!(f, "%{to} = {work}"),
            Self::Finish { target, dtype, work } => write!(f, "t{target} {dtype} = {work}"),
            Self::Store { from, target, dtype } => write!(f, "t{target} {dtype} = %{from}"),
        }
    }
}

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::One { action, from } => {
                write!(f, "{action}")?;
                let operands = from.iter().take_while(|&&register| register != u32::MAX);
                operands.into_iter().try_for_each(|register| write!(f, " %{register}"))
            }
            Self::Chain(linked) => {
                let register = |operand: usize| linked.operands.get(operand).map_or(0, |read| read.register);
                write!(f, "%{}", register(0))?;
                linked.links.iter().try_for_each(|link| match *link {
                    Link::Unary(unary) => write!(f, " | {}", unary.name()),
                    Link::Twice(binary) => write!(f, " | {} with itself", binary.name()),
                    Link::With(binary, operand) => write!(f, " | {} %{}", binary.name(), register(operand)),
                    Link::Of(binary, operand) => {
                        write!(f, " | {} of %{} and it", binary.name(), register(operand))
                    }
                    Link::Round(half) => write!(f, " | to {}", half.dtype()),
                })
            }
        }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Unary(unary, dtype) => write!(f, "{} {dtype}", unary.name()),
            Self::Binary(binary, dtype) => write!(f, "{} {dtype}", binary.name()),
            Self::Compare(compare, dtype) => write!(f, "{} {dtype}", compare.name()),
            Self::Select(dtype) => write!(f, "select {dtype}"),
            Self::Convert(from, to) => write!(f, "convert {from} to {to}"),
        }
    }
}
