//! Recurrent layers written out, one step behind the other: cells whose products are convolutions, and those with
//! activations that the recurrent operation does not have.

use super::activation::Activation;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, Cell, Op, Size, ValueId};

/// A sequence of more steps is not written out.
const MOST_STEPS: i64 = 4096;

/// The product of a state with recurrent weights: all of them, or for the gates from one on, so many.
pub(super) type Product<'p> = dyn Fn(&mut Site<'_>, ValueId, Gates) -> Result<ValueId> + 'p;

/// Gates of a cell: the first of them, and how many.
#[derive(Clone, Copy)]
pub(super) struct Gates {
    pub(super) first: i64,
    pub(super) count: i64,
}

/// A cell whose steps are written out.
pub(super) struct Stepwise<'p> {
    pub(super) cell: Cell,
    /// Units, or channels of each gate, and the axis that they lie along in a step.
    pub(super) units: i64,
    pub(super) axis: usize,
    pub(super) activation: &'p Activation,
    pub(super) recurrent_activation: &'p Activation,
    /// The state times its weights, with their own bias.
    pub(super) product: &'p Product<'p>,
}

/// A sequence that a cell runs over.
pub(super) struct Sequence {
    /// `[batch, time, ...]`: the inputs times their weights, with their bias.
    pub(super) gates: ValueId,
    /// `[batch, time]`: which steps count.
    pub(super) mask: Option<ValueId>,
    pub(super) is_backwards: bool,
    /// What a step that does not count gives: 0, or what the last one before it gave.
    pub(super) zero_masked: bool,
}

/// What the steps give.
pub(super) struct Stepped {
    /// By time, each `[batch, ...]`.
    pub(super) outputs: Vec<ValueId>,
    /// That of the step that was computed last.
    pub(super) last: ValueId,
    pub(super) states: Vec<ValueId>,
}

impl Stepwise<'_> {
    pub(super) fn run(
        &self,
        site: &mut Site<'_>,
        sequence: &Sequence,
        mut states: Vec<ValueId>,
    ) -> Result<Stepped> {
        let time = site.known(sequence.gates, 1)?;
        if !(1..=MOST_STEPS).contains(&time) {
            return Err(site.unsupported(&format!("a layer of this kind over {time} steps")));
        }
        let zero = site.zeros(site.sizes(states[0]))?;
        let mut output = zero;
        let mut outputs = Vec::new();
        for step in 0..time {
            let at = if sequence.is_backwards { time - 1 - step } else { step };
            let gates = at_step(site, sequence.gates, at)?;
            let next = self.step(site, gates, &states)?;
            let Some(mask) = sequence.mask else {
                (output, states) = (next[0], next);
                outputs.push(output);
                continue;
            };
            let counts = at_step(site, mask, at)?;
            let counts = along_rows(site, counts, output)?;
            let otherwise = if sequence.zero_masked { zero } else { output };
            output = site.apply(Op::Select, &[counts, next[0], otherwise])?;
            for (state, next) in states.iter_mut().zip(next) {
                *state = site.apply(Op::Select, &[counts, next, *state])?;
            }
            outputs.push(output);
        }
        if sequence.is_backwards {
            outputs.reverse();
        }
        Ok(Stepped { outputs, last: output, states })
    }

    /// The states behind a step: the first is its output.
    fn step(&self, site: &mut Site<'_>, x: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>> {
        let h = states[0];
        let all = |count| Gates { first: 0, count };
        match self.cell {
            Cell::Rnn => {
                let y = (self.product)(site, h, all(1))?;
                let y = site.binary(Binary::Add, x, y)?;
                Ok(vec![self.activation.lower(site, y)?])
            }
            Cell::Lstm => {
                let y = (self.product)(site, h, all(4))?;
                let y = site.binary(Binary::Add, x, y)?;
                let gate = |site: &mut Site<'_>, number: i64, activation: &Activation| {
                    let own = self.gate(site, y, number)?;
                    activation.lower(site, own)
                };
                let input = gate(site, 0, self.recurrent_activation)?;
                let forget = gate(site, 1, self.recurrent_activation)?;
                let cell = gate(site, 2, self.activation)?;
                let output = gate(site, 3, self.recurrent_activation)?;
                let kept = site.binary(Binary::Mul, forget, states[1])?;
                let new = site.binary(Binary::Mul, input, cell)?;
                let cell = site.binary(Binary::Add, kept, new)?;
                let shown = self.activation.lower(site, cell)?;
                Ok(vec![site.binary(Binary::Mul, output, shown)?, cell])
            }
            Cell::Gru | Cell::GruResetAfter => {
                let is_after = self.cell == Cell::GruResetAfter;
                let y = (self.product)(site, h, all(if is_after { 3 } else { 2 }))?;
                let gate = |site: &mut Site<'_>, number: i64| {
                    let (own, other) = (self.gate(site, x, number)?, self.gate(site, y, number)?);
                    let sum = site.binary(Binary::Add, own, other)?;
                    self.recurrent_activation.lower(site, sum)
                };
                let (update, reset) = (gate(site, 0)?, gate(site, 1)?);
                let before = if is_after {
                    let hidden = self.gate(site, y, 2)?;
                    site.binary(Binary::Mul, reset, hidden)?
                } else {
                    let h = site.binary(Binary::Mul, reset, h)?;
                    (self.product)(site, h, Gates { first: 2, count: 1 })?
                };
                let hidden = self.gate(site, x, 2)?;
                let hidden = site.binary(Binary::Add, hidden, before)?;
                let hidden = self.activation.lower(site, hidden)?;
                let kept = site.binary(Binary::Mul, update, h)?;
                let one = site.scalar_like(1.0, update)?;
                let rest = site.binary(Binary::Sub, one, update)?;
                let new = site.binary(Binary::Mul, rest, hidden)?;
                Ok(vec![site.binary(Binary::Add, kept, new)?])
            }
        }
    }

    fn gate(&self, site: &mut Site<'_>, gates: ValueId, number: i64) -> Result<ValueId> {
        site.slice(gates, self.axis, number * self.units, self.units)
    }
}

/// `[batch, ...]` of `[batch, time, ...]`.
fn at_step(site: &mut Site<'_>, x: ValueId, step: i64) -> Result<ValueId> {
    let mut sizes = site.sizes(x);
    let own = site.slice(x, 1, step, 1)?;
    sizes.remove(1);
    site.reshape(own, sizes)
}

/// `[batch]` as a column before all axes of `like`.
fn along_rows(site: &mut Site<'_>, x: ValueId, like: ValueId) -> Result<ValueId> {
    let mut sizes = site.sizes(x);
    sizes.resize(site.rank(like), Size::Known(1));
    site.reshape(x, sizes)
}

/// `[batch, time, ...]` of steps `[batch, ...]`.
pub(super) fn together(site: &mut Site<'_>, steps: &[ValueId]) -> Result<ValueId> {
    let mut apart = Vec::with_capacity(steps.len());
    for &step in steps {
        let mut sizes = site.sizes(step);
        sizes.insert(1, Size::Known(1));
        apart.push(site.reshape(step, sizes)?);
    }
    site.concat(1, &apart)
}
