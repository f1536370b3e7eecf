//! Where the elements of a value are in another one that it is a view of: by strides, through
//! reshapes, transpositions, slices and broadcasts.

use super::look::Look;
use crate::ir::{Binary, Op, ValueId};

/// Most views that are looked through.
const DEEPEST: usize = 16;

/// So many elements, so far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) count: i64,
    pub(super) stride: i64,
}

/// A value as a view of another one.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) base: ValueId,
    /// The first element.
    pub(super) offset: i64,
    /// By axis of the value: its runs, outermost first; none for an axis of size 1.
    pub(super) axes: Vec<Vec<Run>>,
    /// What the elements are multiplied by.
    pub(super) factor: f64,
}

/// Row-major strides. None where they overflow.
pub(super) fn strides(dims: &[i64]) -> Option<Vec<i64>> {
    let mut strides = vec![1i64; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis].checked_mul(dims[axis])?;
    }
    strides.first()?.checked_mul(*dims.first()?)?;
    Some(strides)
}

/// Neighbouring runs as one where they are one.
pub(super) fn merged(runs: &[Run]) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::new();
    for &run in runs.iter().filter(|run| run.count != 1) {
        match merged.last_mut() {
            Some(last) if run.stride.checked_mul(run.count) == Some(last.stride) => {
                *last = Run { count: last.count.saturating_mul(run.count), stride: run.stride };
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// Runs of which the first `count` elements of the outer ones are apart from the inner ones. None
/// where no boundary is there.
pub(super) fn split(runs: &[Run], count: i64) -> Option<(Vec<Run>, Vec<Run>)> {
    let (mut outer, mut left) = (Vec::new(), count);
    for (at, &run) in runs.iter().enumerate() {
        if left == 1 {
            return Some((outer, runs[at..].to_vec()));
        }
        if left % run.count == 0 {
            outer.push(run);
            left /= run.count;
        } else if run.count % left == 0 {
            let inner = run.count / left;
            outer.push(Run { count: left, stride: run.stride.checked_mul(inner)? });
            let rest = [&[Run { count: inner, stride: run.stride }], &runs[at + 1..]].concat();
            return Some((outer, rest));
        } else {
            return None;
        }
    }
    (left == 1).then_some((outer, Vec::new()))
}

/// What views are followed through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    /// What moves elements.
    Moves,
    /// That, and products with constants.
    MovesAndFactors,
}

impl View {
    /// A value as a view of itself. None where a size is not known or zero.
    fn of(look: &Look<'_>, value: ValueId) -> Option<Self> {
        let dims = look.dims(value)?;
        if dims.contains(&0) {
            return None;
        }
        let runs = dims.iter().zip(strides(&dims)?).map(|(&count, stride)| Run { count, stride });
        let axes = runs.map(|run| if run.count == 1 { vec![] } else { vec![run] }).collect();
        Some(Self { base: value, offset: 0, axes, factor: 1.0 })
    }

    /// As an operand of a product that has these axes before its last two: repeated along those that it has not.
    pub(super) fn repeated(mut self, lead: &[i64]) -> Self {
        let missing = (lead.len() + 2).saturating_sub(self.axes.len());
        self.axes.splice(0..0, vec![Vec::new(); missing]);
        for (runs, &count) in self.axes.iter_mut().zip(lead) {
            if runs.is_empty() && count > 1 {
                runs.push(Run { count, stride: 0 });
            }
        }
        self
    }

    /// As a view of the operand of what makes the base, of which axis `i` of the base lies `to[i]`
    /// apart, from `start` on.
    fn through(&self, look: &Look<'_>, base: ValueId, to: &[i64], start: i64) -> Option<Self> {
        let dims = look.dims(self.base)?;
        let mut space = Space { from: strides(&dims)?, dims, to, reach: Vec::new() };
        space.reach = vec![0; space.dims.len()];
        let mut axes = Vec::with_capacity(self.axes.len());
        for runs in &self.axes {
            let mut mapped = Vec::new();
            for &run in runs {
                space.map(run, &mut mapped)?;
            }
            axes.push(mapped);
        }
        let offset = space.place(self.offset)?.checked_add(start)?;
        Some(Self { base, offset, axes, factor: self.factor })
    }

    /// One view further.
    fn deeper(&self, look: &Look<'_>, through: Through) -> Option<Self> {
        let node = look.maker(self.base);
        // It is made anyhow where others read it, too.
        if !look.is_read_once(self.base) {
            return None;
        }
        let x = *node.operands.first()?;
        let under = look.dims(x);
        match &node.op {
            Op::Reshape { .. } => Some(Self { base: x, ..self.clone() }),
            Op::Transpose { perm } => {
                let own = strides(&under?)?;
                let to: Vec<i64> = perm.iter().map(|&axis| own[axis as usize]).collect();
                self.through(look, x, &to, 0)
            }
            Op::Broadcast { shape } => {
                let under = under?;
                let own = strides(&under)?;
                let added = shape.rank() - under.len();
                let stride = |axis: usize| if under[axis] == 1 { 0 } else { own[axis] };
                let to: Vec<i64> =
                    (0..shape.rank()).map(|axis| axis.checked_sub(added).map_or(0, stride)).collect();
                self.through(look, x, &to, 0)
            }
            Op::Slice(slice) => {
                let own = strides(&under?)?;
                let mut start = 0i64;
                for (first, &stride) in slice.starts.iter().zip(&own) {
                    start = start.checked_add(first.known()?.checked_mul(stride)?)?;
                }
                let to: Option<Vec<i64>> =
                    own.iter().zip(&slice.steps).map(|(&stride, &step)| stride.checked_mul(step)).collect();
                self.through(look, x, &to?, start)
            }
            Op::Binary(of @ (Binary::Mul | Binary::Div)) if through == Through::MovesAndFactors => {
                let [x, y] = node.operands[..] else { return None };
                let (x, number) = match (look.constant(y), look.constant(x)) {
                    (Some(number), _) => (x, if *of == Binary::Mul { number } else { 1.0 / number }),
                    (None, Some(number)) if *of == Binary::Mul => (y, number),
                    _ => return None,
                };
                let same = look.dims(x)? == look.dims(self.base)?;
                same.then(|| Self { base: x, factor: self.factor * number, ..self.clone() })
            }
            _ => None,
        }
    }

    /// A value as a view of itself, of what that is a view of, and so on.
    pub(super) fn chain(look: &Look<'_>, value: ValueId, through: Through) -> Vec<Self> {
        let mut chain: Vec<Self> = Self::of(look, value).into_iter().collect();
        while let Some(view) = chain.last().and_then(|view| view.deeper(look, through)) {
            chain.push(view);
            if chain.len() >= DEEPEST {
                break;
            }
        }
        chain
    }
}

/// The axes of a base, of which each is a run in its own elements and in those of another tensor.
struct Space<'a> {
    dims: Vec<i64>,
    from: Vec<i64>,
    to: &'a [i64],
    /// By axis: how far runs reach along it.
    reach: Vec<i64>,
}

impl Space<'_> {
    /// Maps a run, in parts where it spans several axes.
    fn map(&mut self, run: Run, mapped: &mut Vec<Run>) -> Option<()> {
        if run.stride == 0 {
            mapped.push(run);
            return Some(());
        }
        let mut left = run.count;
        let mut parts = Vec::new();
        let mut stride = run.stride;
        while left > 1 {
            let axis = self.axis(stride)?;
            let within = stride / self.from[axis];
            if stride % self.from[axis] != 0 || within < 1 {
                return None;
            }
            // As far as the axis goes, then on along the next one out.
            let fits = if self.dims[axis] % within == 0 { self.dims[axis] / within } else { self.dims[axis] };
            let count = if left <= fits { left } else { fits };
            // A run that leaves an axis half-way has no fixed stride in the other tensor.
            if left % count != 0 || count < 2 || (left > count && self.dims[axis] % within != 0) {
                return None;
            }
            parts.push(Run { count, stride: within.checked_mul(self.to[axis])? });
            self.reach[axis] = self.reach[axis].checked_add(within.checked_mul(count - 1)?)?;
            left /= count;
            stride = stride.checked_mul(count)?;
        }
        mapped.extend(parts.into_iter().rev());
        Some(())
    }

    /// The axis of which steps have this stride.
    fn axis(&self, stride: i64) -> Option<usize> {
        let holds = |&axis: &usize| self.dims[axis] > 1 && self.from[axis] <= stride;
        let axis = (0..self.dims.len()).find(holds)?;
        (stride < self.from[axis].checked_mul(self.dims[axis])?).then_some(axis)
    }

    /// Where the first element is. None where a run from there goes on into another axis.
    fn place(&self, mut offset: i64) -> Option<i64> {
        let mut place = 0i64;
        for axis in 0..self.dims.len() {
            let at = offset / self.from[axis];
            offset %= self.from[axis];
            // Together with the reach of all runs the start must stay on its axis, or some element would be another
            // one.
            if at.checked_add(self.reach[axis])? >= self.dims[axis] {
                return None;
            }
            place = place.checked_add(at.checked_mul(self.to[axis])?)?;
        }
        Some(place)
    }
}
