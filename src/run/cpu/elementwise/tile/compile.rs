//! Gives the operations of a tile program registers, and their operands a way to be read.

use crate::error::{Error, Result};
use crate::ir::{Binary, DType, Op};

use super::super::super::walk::{self, Space};
use super::chain::{Half, Link, OPERANDS, is_binary_link, is_unary_link};
use super::compute::{Action, register_type};
use super::{Access, Linked, Operand, Part, Read, Step, Work};

pub(crate) fn not_elementwise(op: &Op) -> Error {
    Error::Internal(format!("{} in a chain of elementwise operations", op.name()))
}

pub(crate) fn action(part: &Part<'_>, types: [DType; 3]) -> Result<Action> {
    let count = part.operands.len();
    Ok(match part.op {
        Op::Unary(unary) if count == 1 => Action::Unary(*unary, types[0]),
        Op::Binary(binary) if count == 2 => Action::Binary(*binary, types[0]),
        Op::Compare(compare) if count == 2 => Action::Compare(*compare, types[0]),
        Op::Select if count == 3 => Action::Select(part.dtype),
        Op::Convert { to } if count == 1 => Action::Convert(types[0], *to),
        other => return Err(not_elementwise(other)),
    })
}

pub(crate) fn access(sizes: &[usize], dims: &[usize]) -> Result<Access> {
    let elements: usize = dims.iter().product();
    let own: usize = sizes.iter().product();
    if own == elements {
        return Ok(Access::Linear);
    }
    if own == 1 {
        return Ok(Access::Scalar);
    }
    let strides = walk::broadcast_strides(sizes, dims)?;
    Ok(Access::Strided(Box::new(Space::new(dims, [&strides])?)))
}

/// A program that is `from - factor * made`, by sources: the factor is one number, and the others are
/// tensors. A step of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descent {
    pub(crate) from: usize,
    pub(crate) factor: usize,
    pub(crate) made: usize,
}

/// What the program is as a [`Descent`], of floats that are computed as they are.
pub(crate) fn descent(
    elements: usize,
    outside: &[(DType, Vec<usize>)],
    parts: &[Part<'_>],
    stores: &[(usize, usize)],
) -> Option<Descent> {
    let ([step, new], [(1, _)]) = (parts, stores) else { return None };
    let (Op::Binary(Binary::Mul), Op::Binary(Binary::Sub)) = (step.op, new.op) else { return None };
    let ([Operand::Outside(one), Operand::Outside(other)], [Operand::Outside(from), Operand::Inside(0)]) =
        (&step.operands[..], &new.operands[..])
    else {
        return None;
    };
    let count = |source: usize| outside[source].1.iter().product::<usize>();
    let (made, factor) = if count(*other) == 1 { (*one, *other) } else { (*other, *one) };
    let fits = matches!(new.dtype, DType::F32 | DType::F64)
        && [*from, made, factor].iter().all(|&source| outside[source].0 == new.dtype)
        && (count(factor), count(made), count(*from)) == (1, elements, elements)
        && *from != made;
    fits.then_some(Descent { from: *from, factor, made })
}

/// Gives out registers; each is used again after the last reader of what it holds.
pub(crate) struct Compiler {
    pub(crate) first: Vec<Step>,
    pub(crate) steps: Vec<Step>,
    free: Vec<u32>,
    pub(crate) count: u32,
    loaded: Vec<Option<(u32, Access)>>,
    pub(crate) results: Vec<Option<u32>>,
    last_of_outside: Vec<usize>,
    last_of_inside: Vec<usize>,
    /// Parts whose result is read by the next one alone, and stored nowhere.
    passed_on: Vec<bool>,
    /// The chain that the next part may go on with, and its first and last part.
    open: Option<(Linked, usize, usize)>,
}

impl Compiler {
    pub(crate) fn new(parts: &[Part<'_>], outside: usize, stores: &[(usize, usize)]) -> Self {
        let mut last_of_outside = vec![0; outside];
        // What nobody reads is free after the part itself.
        let mut last_of_inside: Vec<usize> = (0..parts.len()).collect();
        for (position, part) in parts.iter().enumerate() {
            for operand in &part.operands {
                match *operand {
                    Operand::Outside(source) => last_of_outside[source] = position,
                    Operand::Inside(other) => last_of_inside[other] = position,
                }
            }
        }
        // What is stored is written after the last part: its register stays.
        stores.iter().for_each(|&(part, _)| last_of_inside[part] = usize::MAX);
        // Read by the next, and by none after it.
        let passed_on = (0..parts.len()).map(|part| last_of_inside[part] == part + 1).collect();
        Self {
            first: Vec::new(),
            steps: Vec::new(),
            free: Vec::new(),
            count: 0,
            loaded: vec![None; outside],
            results: vec![None; parts.len()],
            last_of_outside,
            last_of_inside,
            passed_on,
            open: None,
        }
    }

    /// Makes a part a link of the open chain, or of a new one, which ends the open one; false where it can be
    /// none, which ends the open one too.
    pub(crate) fn link(
        &mut self,
        position: usize,
        part: &Part<'_>,
        parts: &[Part<'_>],
        outside: &[(DType, Vec<usize>)],
    ) -> Result<bool> {
        let is_f32 = |dtype: DType| register_type(dtype) == DType::F32;
        let read_as_f32 = |operand: &Operand| match *operand {
            Operand::Outside(source) => is_f32(outside[source].0),
            Operand::Inside(other) => is_f32(parts[other].dtype),
        };
        let can = match part.op {
            Op::Unary(unary) => part.operands.len() == 1 && is_unary_link(*unary),
            Op::Binary(binary) => part.operands.len() == 2 && is_binary_link(*binary),
            Op::Convert { .. } => part.operands.len() == 1,
            _ => false,
        };
        let can = can && is_f32(part.dtype) && part.operands.iter().all(read_as_f32);
        let made = Operand::Inside(position.wrapping_sub(1));
        let goes_on = can
            && part.operands.contains(&made)
            && self.passed_on[position - 1]
            && self
                .open
                .as_ref()
                .is_some_and(|(chain, _, last)| last + 1 == position && chain.operands.len() < OPERANDS)
            && self.are_loaded_alike(part, outside)?;
        // The chain's result goes to a register, where this part may read it.
        if !goes_on {
            self.close(parts);
        }
        if !can {
            return Ok(false);
        }
        let (mut chain, first, _) = self.open.take().unwrap_or((Linked::default(), position, position));
        let mut read = |operand: &Operand| -> Result<usize> {
            let found = match *operand {
                Operand::Outside(source) => {
                    let (dtype, sizes) = &outside[source];
                    let access = access(sizes, &part.dims)?;
                    // Halves are widened into a register, which does not go on.
                    let is_memory = access == Access::Linear && *dtype == DType::F32;
                    let single = access == Access::Scalar;
                    let before = self.steps.len();
                    let register = self.load(source, *dtype, access, false);
                    Read { register, single, ahead: is_memory && self.steps.len() > before }
                }
                Operand::Inside(other) => Read { register: self.inside(other)?, single: false, ahead: false },
            };
            // One operand read twice is one entry.
            let same = |other: &Read| (other.register, other.single) == (found.register, found.single);
            Ok(chain.operands.iter().position(same).unwrap_or_else(|| {
                chain.operands.push(found);
                chain.operands.len() - 1
            }))
        };
        let link = match (part.op, &part.operands[..]) {
            (op @ (Op::Unary(_) | Op::Convert { .. }), [x]) => {
                if !goes_on {
                    read(x)?;
                }
                if let Op::Unary(unary) = op { Some(Link::Unary(*unary)) } else { None }
            }
            (Op::Binary(binary), [x, y]) => Some(match (goes_on && *x == made, goes_on && *y == made) {
                (true, true) => Link::Twice(*binary),
                (true, false) => Link::With(*binary, read(y)?),
                (false, true) => Link::Of(*binary, read(x)?),
                (false, false) => {
                    read(x)?;
                    Link::With(*binary, read(y)?)
                }
            }),
            _ => return Err(not_elementwise(part.op)),
        };
        chain.links.extend(link);
        chain.links.extend(Half::of(part.dtype).map(Link::Round));
        self.open = Some((chain, first, position));
        Ok(true)
    }

    /// True where no operand is in a register that would be loaded with other elements of it, which the open
    /// chain may still read.
    fn are_loaded_alike(&self, part: &Part<'_>, outside: &[(DType, Vec<usize>)]) -> Result<bool> {
        for operand in &part.operands {
            let Operand::Outside(source) = *operand else { continue };
            let wanted = access(&outside[source].1, &part.dims)?;
            if self.loaded[source].as_ref().is_some_and(|(_, loaded)| *loaded != wanted) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends the open chain.
    pub(crate) fn close(&mut self, parts: &[Part<'_>]) {
        let Some((chain, first, last)) = self.open.take() else { return };
        let to = self.allocate();
        self.steps.push(Step::Compute { to, work: Work::Chain(Box::new(chain)) });
        self.results[last] = Some(to);
        // Only now are operands free: the whole chain reads them at once.
        (first..=last).for_each(|position| self.release(position, &parts[position].operands));
    }

    pub(crate) fn allocate(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    pub(crate) fn load(&mut self, source: usize, dtype: DType, access: Access, fetches: bool) -> u32 {
        if access.is_same() && self.loaded[source].is_none() {
            // A register of its own: it is never released.
            let to = self.count;
            self.count += 1;
            let single = access == Access::Scalar && !fetches;
            self.first.push(Step::Load { to, source, dtype, access: access.clone(), fetches, single });
            self.loaded[source] = Some((to, access));
            self.last_of_outside[source] = usize::MAX;
            return to;
        }
        let to = match &self.loaded[source] {
            Some((register, other)) if *other == access => {
                let register = *register;
                if fetches {
                    self.read_whole(source);
                }
                return register;
            }
            Some((_, other)) if other.is_same() => self.allocate(),
            // The same tensor seen with other sizes.
            Some((register, _)) => *register,
            None => self.allocate(),
        };
        self.steps.push(Step::Load { to, source, dtype, access: access.clone(), fetches, single: false });
        self.loaded[source] = Some((to, access));
        to
    }

    /// Not only chains read a source, which take one number for many.
    fn read_whole(&mut self, of: usize) {
        for step in &mut self.first {
            if let Step::Load { source, single, .. } = step {
                *single &= *source != of;
            }
        }
    }

    pub(crate) fn inside(&self, part: usize) -> Result<u32> {
        let register = self.results.get(part).copied().flatten();
        register.ok_or_else(|| Error::Internal("a chain reads what it has not made".to_owned()))
    }

    pub(crate) fn release(&mut self, position: usize, operands: &[Operand]) {
        for operand in operands {
            let freed = match *operand {
                Operand::Outside(source) if self.last_of_outside[source] == position => {
                    self.loaded[source].take().map(|(register, _)| register)
                }
                Operand::Inside(other) if self.last_of_inside[other] == position => {
                    self.results[other].take()
                }
                _ => None,
            };
            self.free.extend(freed);
        }
        if self.last_of_inside[position] == position {
            self.free.extend(self.results[position].take());
        }
    }
}
