//! Tile programs: chains of elementwise operations, 1024 elements at a time.
//!
//! A [`Program`] walks the row-major positions of one space. For each tile it runs one loop for each
//! chain of operations on f32 and halves, in which each reads what the one before it made (`chain`), and one for each
//! other operation. What an operation reads is in a register of 1024 elements, or where the operand
//! lies, if that is apart from all results and need not be repeated or widened; the last operation
//! writes its result where it belongs. An operand may share its bytes with a result where both are
//! read and written at the same position: it is copied first. Halves are computed in f32 and rounded
//! after each operation, so fusing changes no bit.

mod chain;
mod compile;
mod compute;
mod memory;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::ir::{DType, Op};
use chain::{Chain, Link, OPERANDS};
use compile::{Compiler, Descent, access, action, descent, not_elementwise};
use compute::{Action, compute};
use memory::{Load, Registers, TileMut, TileRef, load, store};

use super::super::team::Team;
use super::super::vectors::{Stores, Vectorised};
use super::super::view::Plain;
use super::super::walk::Space;
pub(crate) use memory::{Source, Target};

/// Elements of a tile.
pub(crate) const TILE: usize = 1024;

/// Elements of what one thread takes at a time: whole tiles.
const PART: usize = 16 * TILE;

thread_local! {
    /// A thread's registers.
    static REGISTERS: RefCell<Registers> = RefCell::default();
}

/// Gives this thread as many registers, so that no program that needs no more allocates.
pub(crate) fn reserve(count: usize) {
    REGISTERS.with_borrow_mut(|registers| registers.reserve(count));
}

/// How an operand is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// At the same position.
    Linear,
    /// One element for all.
    Scalar,
    /// By strides over the space.
    Strided(Box<Space<1>>),
}

impl Access {
    /// True where every tile of a part reads the same: one element, or a run that is repeated and that a
    /// tile holds a whole number of times.
    fn is_same(&self) -> bool {
        match self {
            Self::Linear => false,
            Self::Scalar => true,
            Self::Strided(space) => {
                let period: usize = space.dims[..space.rank].iter().skip(1).product();
                space.strides[0][0] == 0 && TILE.is_multiple_of(period.max(1))
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Load {
        to: u32,
        source: usize,
        dtype: DType,
        access: Access,
        /// What follows in the source is fetched: by chains, their own loop does it.
        fetches: bool,
        /// One number is read of it, by chains alone.
        single: bool,
    },
    Compute {
        to: u32,
        work: Work,
    },
    /// The last operation: where the elements have as many bytes as are written.
    Finish {
        target: usize,
        dtype: DType,
        work: Work,
    },
    Store {
        from: u32,
        target: usize,
        dtype: DType,
    },
}

/// What is computed of registers.
#[derive(Clone, Debug)]
enum Work {
    /// One operation.
    One { action: Action, from: [u32; 3] },
    /// Some that follow one another.
    Chain(Box<Linked>),
}

/// A chain, and the registers of its operands.
#[derive(Clone, Debug, Default)]
struct Linked {
    operands: Vec<Read>,
    links: Vec<Link>,
}

/// A chain's operand.
#[derive(Clone, Copy, Debug)]
struct Read {
    register: u32,
    /// One number stands for all.
    single: bool,
    /// It is in memory and goes on.
    ahead: bool,
}

/// What an operation of a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A tensor outside the program, by position.
    Outside(usize),
    /// The result of an earlier operation of the program, by position.
    Inside(usize),
}

/// One operation of a program.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    /// An elementwise operation.
    pub(crate) op: &'a Op,
    /// What it reads.
    pub(crate) operands: Vec<Operand>,
    /// Type of its result.
    pub(crate) dtype: DType,
    /// Sizes of its result: as many elements as the program walks.
    pub(crate) dims: Vec<usize>,
}

/// A compiled chain. See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    elements: usize,
    /// One more than its steps name: for a result that is written around the caches.
    registers: usize,
    targets: usize,
    /// Loads of what is the same for all tiles, done once for a part.
    first: Vec<Step>,
    steps: Vec<Step>,
    descent: Option<Descent>,
}

impl Program {
    /// Compiles `parts`, each of which makes `elements`. `outside` gives type and sizes of the
    /// tensors that are read, which broadcast to the parts that read them; `stores` are
    /// (part, target) pairs. O(parts + operands).
    ///
    /// Errors: an operation that is not elementwise, an operand that does not broadcast, a part
    /// with another number of elements.
    pub(crate) fn new(
        elements: usize,
        outside: &[(DType, Vec<usize>)],
        parts: &[Part<'_>],
        stores: &[(usize, usize)],
    ) -> Result<Self> {
        let mut compiler = Compiler::new(parts, outside.len(), stores);
        for (position, part) in parts.iter().enumerate() {
            let mut from = [u32::MAX; 3];
            let mut types = [part.dtype; 3];
            if part.operands.len() > 3 || part.dims.iter().product::<usize>() != elements {
                return Err(not_elementwise(part.op));
            }
            if compiler.link(position, part, parts, outside)? {
                continue;
            }
            for (slot, operand) in part.operands.iter().enumerate() {
                let (register, dtype) = match *operand {
                    Operand::Outside(source) => {
                        let (dtype, sizes) = &outside[source];
                        let access = access(sizes, &part.dims)?;
                        (compiler.load(source, *dtype, access, true), *dtype)
                    }
                    Operand::Inside(other) => (compiler.inside(other)?, parts[other].dtype),
                };
                from[slot] = register;
                types[slot] = dtype;
            }
            let action = action(part, types)?;
            let to = compiler.allocate();
            compiler.steps.push(Step::Compute { to, work: Work::One { action, from } });
            compiler.results[position] = Some(to);
            compiler.release(position, &part.operands);
        }
        compiler.close(parts);
        for &(part, target) in stores {
            let from = compiler.inside(part)?;
            compiler.steps.push(Step::Store { from, target, dtype: parts[part].dtype });
        }
        let steps = finished(compiler.steps, parts.len(), stores);
        let targets = stores.iter().map(|&(_, target)| target + 1).max().unwrap_or(0);
        let registers = compiler.count as usize + 1;
        let descent = descent(elements, outside, parts, stores);
        Ok(Self { elements, registers, targets, first: compiler.first, steps, descent })
    }

    /// Registers that a run needs.
    pub(crate) fn registers(&self) -> usize {
        self.registers
    }

    /// Bytes of a result whose elements have `size`.
    pub(crate) fn bytes(&self, size: usize) -> u64 {
        (self.elements as u64).saturating_mul(size as u64)
    }

    /// True where `source` is read only at the position that is written, so that it may share its
    /// bytes with a result whose elements are as large.
    pub(crate) fn reads_in_place(&self, source: usize) -> bool {
        self.first.iter().chain(&self.steps).all(|step| match step {
            Step::Load { source: other, access, .. } if *other == source => {
                matches!(access, Access::Linear) || self.elements == 1
            }
            _ => true,
        })
    }

    /// Bytes of an element of its first result.
    pub(crate) fn target_size(&self) -> Option<usize> {
        self.steps.iter().find_map(|step| match step {
            Step::Store { dtype, .. } | Step::Finish { dtype, .. } => Some(dtype.size() as usize),
            _ => None,
        })
    }

    /// Elements that it walks.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// Runs it. The sources and targets are of its types.
    pub(crate) fn run(&self, team: &Team<'_>, sources: &[Source<'_>], targets: &[Target<'_>]) {
        team.each(self.elements.div_ceil(PART), &|part| {
            let start = part * PART;
            let count = PART.min(self.elements - start);
            self.run_part(start, count, |i| &sources[i], |i| &targets[i], Stores::Streaming);
            memory::written();
        });
    }

    /// With `stores` that stream, results that are large are written so, and [`memory::written`] is to follow;
    /// what is a piece of something that is read again at once is to stay in the caches.
    fn run_part<'s>(
        &self,
        start: usize,
        count: usize,
        source: impl Fn(usize) -> &'s Source<'s>,
        target: impl Fn(usize) -> &'s Target<'s>,
        stores: Stores,
    ) {
        let stores_of = |dtype: DType| match stores {
            Stores::Streaming => Stores::of_bytes(self.bytes(dtype.size() as usize)),
            Stores::Cached => Stores::Cached,
        };
        let disjoint = |from: usize| (0..self.targets).all(|number| !target(number).overlaps(source(from)));
        let spare = self.registers as u32 - 1;
        REGISTERS.with_borrow_mut(|registers| {
            registers.begin(self.registers);
            for step in &self.first {
                if let Step::Load { to, source: from, dtype, access, single, .. } = step {
                    let (source, dtype, disjoint) = (source(*from), *dtype, disjoint(*from));
                    let count = if *single { 1 } else { TILE.min(count) };
                    let elements = Load { source, dtype, access, start, count, disjoint, fetches: false };
                    load(registers, *to, &elements);
                }
            }
            for at in (0..count).step_by(TILE) {
                let (start, count) = (start + at, TILE.min(count - at));
                for step in &self.steps {
                    match step {
                        Step::Load { to, source: from, dtype, access, fetches, .. } => {
                            let (source, dtype, disjoint) = (source(*from), *dtype, disjoint(*from));
                            let fetches = *fetches;
                            let elements = Load { source, dtype, access, start, count, disjoint, fetches };
                            load(registers, *to, &elements);
                        }
                        Step::Compute { to, work } => {
                            let mut taken = registers.take(*to);
                            work.compute(registers, &mut taken.as_tile_mut(), count, Stores::Cached);
                            registers.put(taken);
                        }
                        Step::Finish { target: to, dtype, work: work @ Work::One { .. } }
                            if stores_of(*dtype) == Stores::Streaming =>
                        {
                            let mut taken = registers.take(spare);
                            work.compute(registers, &mut taken.as_tile_mut(), count, Stores::Cached);
                            registers.put(taken);
                            let made = registers.get(spare);
                            store(made, *dtype, target(*to), start, count, Stores::Streaming);
                        }
                        Step::Finish { target: to, dtype, work } => {
                            let size = dtype.size() as usize;
                            target(*to).with((start, count, size), work.read(registers), |out| {
                                work.compute(registers, out, count, stores_of(*dtype));
                            });
                        }
                        Step::Store { from, target: to, dtype } => {
                            let register = registers.get(*from);
                            store(register, *dtype, target(*to), start, count, stores_of(*dtype));
                        }
                    }
                }
            }
        });
    }
}

/// Lets the last operation write its result where it is stored, if that is once and as it is
/// computed. Nothing is read after it.
fn finished(mut steps: Vec<Step>, parts: usize, stores: &[(usize, usize)]) -> Vec<Step> {
    let mut own = stores.iter().filter(|&&(part, _)| part + 1 == parts);
    let (Some(&(_, target)), None) = (own.next(), own.next()) else { return steps };
    let last = steps.iter().rposition(|step| matches!(step, Step::Compute { .. }));
    let stored =
        steps.iter().position(|step| matches!(step, Step::Store { target: to, .. } if *to == target));
    let (Some(last), Some(stored)) = (last, stored) else { return steps };
    let (Step::Compute { work, .. }, &Step::Store { dtype, .. }) = (&steps[last], &steps[stored]) else {
        return steps;
    };
    if !dtype.is_half() {
        steps[last] = Step::Finish { target, dtype, work: work.clone() };
        steps.remove(stored);
    }
    steps
}

impl Work {
    /// What it reads.
    fn read<'r>(&'r self, registers: &'r Registers) -> impl Iterator<Item = TileRef<'r>> {
        let (one, chain) = match self {
            Self::One { from, .. } => (Some(registers.operands(*from)), None),
            Self::Chain(chain) => {
                (None, Some(chain.operands.iter().map(|read| registers.get(read.register))))
            }
        };
        one.into_iter().flatten().chain(chain.into_iter().flatten())
    }

    /// Computes `count` elements; only what a chain makes can be written around the caches.
    fn compute(&self, registers: &Registers, out: &mut TileMut<'_>, count: usize, stores: Stores) {
        match self {
            Self::One { action, from } => compute(*action, registers.operands(*from), out, count),
            Self::Chain(chain) => {
                let mut operands: [&[f32]; OPERANDS] = [&[]; OPERANDS];
                let mut ahead = [false; OPERANDS];
                for (slot, read) in chain.operands.iter().enumerate() {
                    let register = registers.get(read.register);
                    operands[slot] = register.slice(if read.single { 1 } else { count });
                    ahead[slot] = read.ahead;
                }
                let out = out.slice_mut(count);
                f32::dispatch(Chain { operands, ahead, links: &chain.links, out, stores });
            }
        }
    }
}

/// A program with one result that runs on what a kernel made, piece by piece, where it lies.
pub(crate) struct Epilogue<'a> {
    program: &'a Program,
    /// The source that stands for what the kernel made.
    source: usize,
    /// The result takes the bytes of the sources that are empty here: what the kernel makes is apart.
    replaces: bool,
    sources: &'a [Source<'a>],
    /// Bytes of an element.
    size: usize,
    taken: AtomicBool,
}

impl<'a> Epilogue<'a> {
    pub(crate) fn new(program: &'a Program, source: usize, sources: &'a [Source<'a>], size: usize) -> Self {
        Self { program, source, replaces: false, sources, size, taken: AtomicBool::new(false) }
    }

    /// The same; `replaces`: its result takes the bytes of a source, which is empty here.
    pub(crate) fn replacing(self, replaces: bool) -> Self {
        Self { replaces, ..self }
    }

    /// True where what the kernel makes must be apart from its result: see [`Epilogue::apply_to`].
    pub(crate) fn replaces(&self) -> bool {
        self.replaces
    }

    /// The factor, where nothing follows but that so many times what the kernel makes is taken off what
    /// it replaces.
    pub(in crate::run::cpu) fn descends<T: Plain>(&self) -> Option<T> {
        let Descent { from, factor, made } = self.program.descent?;
        let replaced = self.replaces && made == self.source && self.sources[from].is_empty();
        if replaced { self.sources[factor].first() } else { None }
    }

    /// A kernel that takes it applies it to all that it makes.
    pub(crate) fn take(&self) -> &Self {
        self.taken.store(true, Ordering::Relaxed);
        self
    }

    /// Runs on the elements from `start`, which are `piece`.
    pub(crate) fn apply(&self, start: usize, piece: &mut [u8]) {
        let count = piece.len() / self.size;
        let (target, own) = Target::piece(start, piece);
        let source = |i| if i == self.source { &own } else { &self.sources[i] };
        self.program.run_part(start, count, source, |_| &target, Stores::Cached);
    }

    /// Runs on the elements from `start`, which are `made`; what follows from them goes to `piece`,
    /// which holds the source that it replaces, if any.
    pub(crate) fn apply_to(&self, start: usize, made: &mut [u8], piece: &mut [u8], stores: Stores) {
        let count = made.len() / self.size;
        let (_, own) = Target::piece(start, made);
        let (target, before) = Target::piece(start, piece);
        let source = |i: usize| match i {
            _ if i == self.source => &own,
            _ if self.sources[i].is_empty() => &before,
            _ => &self.sources[i],
        };
        self.program.run_part(start, count, source, |_| &target, stores);
    }

    /// Runs on all elements, where no kernel took it.
    pub(crate) fn finish(&self, team: &Team<'_>, whole: &mut [u8]) {
        if !self.taken.load(Ordering::Relaxed) {
            team.each_chunk(whole, PART * self.size, |part, piece| self.apply(part * PART, piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Binary;
    use crate::run::cpu::view::{bytes_of, bytes_of_mut};

    #[test]
    fn runs_that_are_repeated_are_those_of_the_definition_in_every_tile() {
        let sizes = [[70, 64, 1], [9, 1000, 1], [5, 3000, 1], [40, 16, 8], [3, 128, 300], [2, 1024, 40]];
        for [outer, size, inner] in sizes {
            let dims = vec![outer, size, inner];
            let elements = outer * size * inner;
            let x: Vec<f32> = (0..elements).map(|i| i as f32).collect();
            let v: Vec<f32> = (0..size).map(|i| (i * i % 1009) as f32).collect();
            let op = Op::Binary(Binary::Sub);
            let part = |operands| Part { op: &op, operands, dtype: DType::F32, dims: dims.clone() };
            let parts = [
                part(vec![Operand::Outside(0), Operand::Outside(1)]),
                part(vec![Operand::Inside(0), Operand::Outside(1)]),
            ];
            let outside = [(DType::F32, dims.clone()), (DType::F32, vec![size, 1])];
            let program = Program::new(elements, &outside, &parts, &[(1, 0)]).unwrap();
            let of = |i: usize| x[i] - 2.0 * v[i / inner % size];

            let mut out = vec![0.0f32; elements];
            let sources = [Source::from(bytes_of(&x)), Source::from(bytes_of(&v))];
            program.run(&Team::alone(), &sources, &[Target::from(bytes_of_mut(&mut out))]);
            assert!(out.iter().enumerate().all(|(i, &found)| found == of(i)), "{dims:?}");

            // A piece that begins anywhere.
            let begin = 37.min(elements - 1);
            let mut piece = x[begin..].to_vec();
            let own = [Source::from(&[][..]), sources[1]];
            Epilogue::new(&program, 0, &own, 4).apply(begin, bytes_of_mut(&mut piece));
            assert!(piece.iter().enumerate().all(|(i, &found)| found == of(begin + i)), "{dims:?}");
        }
    }
}
