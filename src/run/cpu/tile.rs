//! Tile programs: chains of elementwise operations, 1024 elements at a time.
//!
//! A [`Program`] walks the row-major positions of one space. For each tile it loads operands
//! (repeating them where they broadcast), runs one loop for each operation over registers of
//! 1024 elements, and stores results last, so that an operand may share its bytes with a result
//! where both are read and written at the same position. Halves are computed in f32 and rounded
//! after each operation, so fusing changes no bit.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::ir::{Binary, Compare, DType, Op, Unary};

use super::element::{Element, map, zip};
use super::half;
use super::index::{self, Space};
use super::team::Team;
use super::vectors::{Lanes, Task, Vectorised};
use super::view::{Plain, with_element};

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

#[repr(C, align(64))]
struct Tile([u8; TILE * 8]);

impl Tile {
    fn slice<T: Plain>(&self, count: usize) -> &[T] {
        let count = count.min(TILE);
        // SAFETY: a tile is aligned to 64 bytes and holds TILE elements of up to 8 bytes, and every
        // pattern of bits is a T.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }

    fn slice_mut<T: Plain>(&mut self, count: usize) -> &mut [T] {
        let count = count.min(TILE);
        // SAFETY: as in `slice`, and the tile is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// The registers of one worker, allocated before it runs.
#[derive(Default)]
pub(crate) struct Registers(Vec<Option<Box<Tile>>>);

impl Registers {
    /// Makes sure that there are this many.
    pub(crate) fn reserve(&mut self, count: usize) {
        while self.0.len() < count {
            self.0.push(Some(Box::new(Tile([0; TILE * 8]))));
        }
    }

    /// Panics where there is no such register, as none that a compiled program names.
    fn get(&self, register: u32) -> &Tile {
        self.0[register as usize].as_deref().expect("the register is not taken")
    }

    /// As [`Registers::get`].
    fn take(&mut self, register: u32) -> Box<Tile> {
        self.0[register as usize].take().expect("the register is not taken")
    }

    fn put(&mut self, register: u32, tile: Box<Tile>) {
        self.0[register as usize] = Some(tile);
    }
}

/// Bytes that a program reads. They may be those of a [`Target`] of the same run.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pointer: *const u8,
    length: usize,
    /// Number of the first element.
    first: usize,
    life: PhantomData<&'a [u8]>,
}

/// Bytes that a program writes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pointer: *mut u8,
    length: usize,
    /// Number of the first element.
    first: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { pointer: bytes.as_ptr(), length: bytes.len(), first: 0, life: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { pointer: bytes.as_mut_ptr(), length: bytes.len(), first: 0, life: PhantomData }
    }
}

impl Source<'_> {
    /// # Safety
    ///
    /// For the lifetime, the bytes are initialised, and no other thread writes them.
    pub(crate) unsafe fn from_raw(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length, first: 0, life: PhantomData }
    }

    /// The first of `count` elements from `start`. Panics where they are not within the bytes.
    fn at<T: Plain>(&self, start: usize, count: usize) -> *const T {
        let start = start - self.first;
        assert!(start + count <= self.length / size_of::<T>());
        assert!(self.pointer.align_offset(align_of::<T>()) == 0);
        // SAFETY: in bounds, as was just checked.
        unsafe { self.pointer.cast::<T>().add(start) }
    }
}

// SAFETY: what is read is written by no other thread, as its makers see to.
unsafe impl Sync for Source<'_> {}
// SAFETY: parts of a program write disjoint elements.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// Elements from one on, and the same to read.
    fn piece(first: usize, bytes: &'a mut [u8]) -> (Self, Source<'a>) {
        let (pointer, length) = (bytes.as_mut_ptr(), bytes.len());
        (
            Self { pointer, length, first, life: PhantomData },
            Source { pointer, length, first, life: PhantomData },
        )
    }

    /// # Safety
    ///
    /// For the lifetime, no other thread reads or writes the bytes, and nothing borrows them.
    pub(crate) unsafe fn from_raw(pointer: *mut u8, length: usize) -> Self {
        Self { pointer, length, first: 0, life: PhantomData }
    }

    fn store<T: Plain>(&self, start: usize, values: &[T]) {
        let start = start - self.first;
        assert!(start + values.len() <= self.length / size_of::<T>());
        assert!(self.pointer.align_offset(align_of::<T>()) == 0);
        // SAFETY: in bounds, as was just checked, and a register is never part of a target.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.pointer.cast::<T>().add(start), values.len());
        }
    }
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

#[derive(Clone, Copy, Debug)]
enum Action {
    Unary(Unary, DType),
    Binary(Binary, DType),
    Compare(Compare, DType),
    Select(DType),
    Convert(DType, DType),
}

#[derive(Clone, Debug)]
enum Step {
    Load { to: u32, source: usize, dtype: DType, access: Access },
    Compute { to: u32, from: [u32; 3], action: Action },
    Store { from: u32, target: usize, dtype: DType },
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
    registers: usize,
    /// Loads of what is the same for all elements, done once for a part.
    first: Vec<Step>,
    steps: Vec<Step>,
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
            for (slot, operand) in part.operands.iter().enumerate() {
                let (register, dtype) = match *operand {
                    Operand::Outside(source) => {
                        let (dtype, sizes) = &outside[source];
                        let access = access(sizes, &part.dims)?;
                        (compiler.load(source, *dtype, access), *dtype)
                    }
                    Operand::Inside(other) => (compiler.inside(other)?, parts[other].dtype),
                };
                from[slot] = register;
                types[slot] = dtype;
            }
            let action = action(part, types)?;
            let to = compiler.allocate();
            compiler.steps.push(Step::Compute { to, from, action });
            compiler.results[position] = Some(to);
            compiler.release(position, &part.operands);
        }
        for &(part, target) in stores {
            let from = compiler.inside(part)?;
            compiler.steps.push(Step::Store { from, target, dtype: parts[part].dtype });
        }
        Ok(Self {
            elements,
            registers: compiler.count as usize,
            first: compiler.first,
            steps: compiler.steps,
        })
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
            Step::Store { dtype, .. } => Some(dtype.size() as usize),
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
            self.run_part(start, PART.min(self.elements - start), |i| &sources[i], |i| &targets[i]);
        });
    }

    fn run_part<'s>(
        &self,
        start: usize,
        count: usize,
        source: impl Fn(usize) -> &'s Source<'s>,
        target: impl Fn(usize) -> &'s Target<'s>,
    ) {
        REGISTERS.with_borrow_mut(|registers| {
            registers.reserve(self.registers);
            for step in &self.first {
                if let Step::Load { to, source: from, dtype, access } = step {
                    let mut tile = registers.take(*to);
                    load(source(*from), *dtype, access, start, &mut tile, TILE.min(count));
                    registers.put(*to, tile);
                }
            }
            for at in (0..count).step_by(TILE) {
                let (start, count) = (start + at, TILE.min(count - at));
                for step in &self.steps {
                    match step {
                        Step::Load { to, source: from, dtype, access } => {
                            let mut tile = registers.take(*to);
                            load(source(*from), *dtype, access, start, &mut tile, count);
                            registers.put(*to, tile);
                        }
                        Step::Compute { to, from, action } => {
                            let mut tile = registers.take(*to);
                            compute(*action, *from, registers, &mut tile, count);
                            registers.put(*to, tile);
                        }
                        Step::Store { from, target: to, dtype } => {
                            store(registers.get(*from), *dtype, target(*to), start, count);
                        }
                    }
                }
            }
        });
    }
}

/// A program with one result that runs on what a kernel made, piece by piece, where it lies.
pub(crate) struct Epilogue<'a> {
    program: &'a Program,
    /// The source that stands for what the kernel made.
    source: usize,
    sources: &'a [Source<'a>],
    /// Bytes of an element.
    size: usize,
    taken: AtomicBool,
}

impl<'a> Epilogue<'a> {
    pub(crate) fn new(program: &'a Program, source: usize, sources: &'a [Source<'a>], size: usize) -> Self {
        Self { program, source, sources, size, taken: AtomicBool::new(false) }
    }

    /// A kernel that takes it applies it to all that it makes.
    pub(super) fn take(&self) -> &Self {
        self.taken.store(true, Ordering::Relaxed);
        self
    }

    /// Runs on the elements from `start`, which are `piece`.
    pub(super) fn apply(&self, start: usize, piece: &mut [u8]) {
        let count = piece.len() / self.size;
        let (target, own) = Target::piece(start, piece);
        let source = |i| if i == self.source { &own } else { &self.sources[i] };
        self.program.run_part(start, count, source, |_| &target);
    }

    /// Runs on all elements, where no kernel took it.
    pub(crate) fn finish(&self, team: &Team<'_>, whole: &mut [u8]) {
        if !self.taken.load(Ordering::Relaxed) {
            team.each_chunk(whole, PART * self.size, |part, piece| self.apply(part * PART, piece));
        }
    }
}

fn not_elementwise(op: &Op) -> Error {
    Error::Internal(format!("{} in a chain of elementwise operations", op.name()))
}

fn action(part: &Part<'_>, types: [DType; 3]) -> Result<Action> {
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

fn access(sizes: &[usize], dims: &[usize]) -> Result<Access> {
    let elements: usize = dims.iter().product();
    let own: usize = sizes.iter().product();
    if own == elements {
        return Ok(Access::Linear);
    }
    if own == 1 {
        return Ok(Access::Scalar);
    }
    let strides = index::broadcast_strides(sizes, dims)?;
    Ok(Access::Strided(Box::new(Space::new(dims, [&strides])?)))
}

/// Gives out registers; each is used again after the last reader of what it holds.
struct Compiler {
    first: Vec<Step>,
    steps: Vec<Step>,
    free: Vec<u32>,
    count: u32,
    loaded: Vec<Option<(u32, Access)>>,
    results: Vec<Option<u32>>,
    last_of_outside: Vec<usize>,
    last_of_inside: Vec<usize>,
}

impl Compiler {
    fn new(parts: &[Part<'_>], outside: usize, stores: &[(usize, usize)]) -> Self {
        let mut last_of_outside = vec![0; outside];
        let mut last_of_inside: Vec<usize> = (0..parts.len()).collect();
        for (position, part) in parts.iter().enumerate() {
            for operand in &part.operands {
                match *operand {
                    Operand::Outside(source) => last_of_outside[source] = position,
                    Operand::Inside(other) => last_of_inside[other] = position,
                }
            }
        }
        stores.iter().for_each(|&(part, _)| last_of_inside[part] = usize::MAX);
        Self {
            first: Vec::new(),
            steps: Vec::new(),
            free: Vec::new(),
            count: 0,
            loaded: vec![None; outside],
            results: vec![None; parts.len()],
            last_of_outside,
            last_of_inside,
        }
    }

    fn allocate(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn load(&mut self, source: usize, dtype: DType, access: Access) -> u32 {
        if access == Access::Scalar && self.loaded[source].is_none() {
            // A register of its own: it is never released.
            let to = self.count;
            self.count += 1;
            self.first.push(Step::Load { to, source, dtype, access: access.clone() });
            self.loaded[source] = Some((to, access));
            self.last_of_outside[source] = usize::MAX;
            return to;
        }
        let to = match &self.loaded[source] {
            Some((register, other)) if *other == access => return *register,
            // The same tensor seen with other sizes.
            Some((register, Access::Linear | Access::Strided(_))) => *register,
            Some((_, Access::Scalar)) => self.allocate(),
            None => self.allocate(),
        };
        self.steps.push(Step::Load { to, source, dtype, access: access.clone() });
        self.loaded[source] = Some((to, access));
        to
    }

    fn inside(&self, part: usize) -> Result<u32> {
        let register = self.results.get(part).copied().flatten();
        register.ok_or_else(|| Error::Internal("a chain reads what it has not made".to_owned()))
    }

    fn release(&mut self, position: usize, operands: &[Operand]) {
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

fn load(source: &Source<'_>, dtype: DType, access: &Access, start: usize, tile: &mut Tile, count: usize) {
    match dtype {
        DType::F16 => load_as::<u16, f32>(source, access, start, tile.slice_mut(count), half::f16_to_f32),
        DType::Bf16 => load_as::<u16, f32>(source, access, start, tile.slice_mut(count), half::bf16_to_f32),
        _ => with_element!(dtype, T => load_as::<T, T>(source, access, start, tile.slice_mut(count), |x| x),
            half => {}),
    }
}

#[inline(always)]
fn load_as<S: Plain, T: Plain>(
    source: &Source<'_>,
    access: &Access,
    start: usize,
    out: &mut [T],
    convert: impl Fn(S) -> T,
) {
    match access {
        Access::Linear => {
            let from = source.at::<S>(start, out.len());
            for (i, out) in out.iter_mut().enumerate() {
                // SAFETY: `at` checked that this many elements follow.
                *out = convert(unsafe { from.add(i).read() });
            }
        }
        Access::Scalar => {
            // SAFETY: `at` checked that there is an element.
            out.fill(convert(unsafe { source.at::<S>(0, 1).read() }));
        }
        Access::Strided(space) => load_strided(source, space, start, out, convert),
    }
}

/// Fills `out` run by run along the last axis.
#[inline(always)]
fn load_strided<S: Plain, T: Plain>(
    source: &Source<'_>,
    space: &Space<1>,
    start: usize,
    out: &mut [T],
    convert: impl Fn(S) -> T,
) {
    let last = space.rank.saturating_sub(1);
    let (inner, step) = (space.dims[last], space.strides[0][last]);
    let mut done = 0;
    while done < out.len() {
        let mut position = start + done;
        let column = position % inner;
        position /= inner;
        let mut offset = column as isize * step;
        for axis in (0..last).rev() {
            offset += (position % space.dims[axis]) as isize * space.strides[0][axis];
            position /= space.dims[axis];
        }
        let count = (inner - column).min(out.len() - done);
        let run = &mut out[done..done + count];
        // Strides of a broadcast are never negative.
        let reach = (count - 1) * step as usize + 1;
        let from = source.at::<S>(offset as usize, reach);
        if step == 0 {
            // SAFETY: `at` checked `reach` elements.
            run.fill(convert(unsafe { from.read() }));
        } else {
            for (i, out) in run.iter_mut().enumerate() {
                // SAFETY: `at` checked `reach` elements; this one's distance is below that.
                *out = convert(unsafe { from.add(i * step as usize).read() });
            }
        }
        done += count;
    }
}

fn store(tile: &Tile, dtype: DType, target: &Target<'_>, start: usize, count: usize) {
    let mut halves = [0u16; TILE];
    match dtype {
        DType::F16 => {
            map(tile.slice(count), &mut halves[..count], half::f32_to_f16);
            target.store(start, &halves[..count]);
        }
        DType::Bf16 => {
            map(tile.slice(count), &mut halves[..count], half::f32_to_bf16);
            target.store(start, &halves[..count]);
        }
        _ => with_element!(dtype, T => target.store::<T>(start, tile.slice(count)), half => {}),
    }
}

/// The type that a type's elements are held in.
fn held(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        DType::Bool => DType::U8,
        other => other,
    }
}

fn round(dtype: DType, tile: &mut Tile, count: usize) {
    let values = tile.slice_mut::<f32>(count);
    match dtype {
        DType::F16 => values.iter_mut().for_each(|x| *x = half::f16_to_f32(half::f32_to_f16(*x))),
        DType::Bf16 => values.iter_mut().for_each(|x| *x = half::bf16_to_f32(half::f32_to_bf16(*x))),
        _ => {}
    }
}

fn compute(action: Action, from: [u32; 3], registers: &Registers, out: &mut Tile, count: usize) {
    let x = registers.get(from[0]);
    let others = from.map(|register| registers.0.get(register as usize).and_then(Option::as_deref));
    let [y, z] = [others[1].unwrap_or(x), others[2].unwrap_or(x)];
    let task = Compute { action, x, y, z, out, count };
    match action {
        Action::Unary(_, DType::F32)
        | Action::Binary(_, DType::F32)
        | Action::Compare(_, DType::F32)
        | Action::Select(DType::F32) => f32::dispatch(task),
        _ => task.any(),
    }
}

/// One operation on a tile.
struct Compute<'a> {
    action: Action,
    x: &'a Tile,
    y: &'a Tile,
    z: &'a Tile,
    out: &'a mut Tile,
    count: usize,
}

/// Operations on f32, compiled for each instruction set: loops that the compiler vectorises.
impl Task<f32> for Compute<'_> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, _: L) {
        let Self { action, x, y, z, out, count } = self;
        match action {
            Action::Unary(test @ (Unary::IsNan | Unary::IsInf), dtype) => {
                unary_any(test, dtype, x, out, count)
            }
            Action::Unary(unary, _) => f32::unary(unary, x.slice(count), out.slice_mut(count)),
            Action::Binary(binary, _) => {
                f32::binary(binary, x.slice(count), y.slice(count), out.slice_mut(count));
            }
            Action::Compare(kind, _) => {
                compare::<f32>(kind, x.slice(count), y.slice(count), out.slice_mut(count));
            }
            Action::Select(_) => {
                select::<f32>(x.slice(count), y.slice(count), z.slice(count), out.slice_mut(count));
            }
            Action::Convert(..) => {}
        }
    }
}

impl Compute<'_> {
    /// Any operation on any type.
    fn any(self) {
        let Self { action, x, y, z, out, count } = self;
        match action {
            Action::Unary(unary, dtype) => {
                unary_any(unary, dtype, x, out, count);
                if out_is_float(unary) {
                    round(dtype, out, count);
                }
            }
            Action::Binary(binary, dtype) => {
                with_element!(held(dtype), T => {
                    T::binary(binary, x.slice(count), y.slice(count), out.slice_mut(count));
                }, half => {});
                round(dtype, out, count);
            }
            Action::Compare(kind, dtype) => {
                with_element!(held(dtype), T => {
                    compare::<T>(kind, x.slice(count), y.slice(count), out.slice_mut(count));
                }, half => {});
            }
            Action::Select(dtype) => {
                with_element!(held(dtype), T => {
                    select::<T>(x.slice(count), y.slice(count), z.slice(count), out.slice_mut(count));
                }, half => {});
            }
            Action::Convert(dtype, to) => {
                convert(dtype, to, x, out, count);
                round(to, out, count);
            }
        }
    }
}

fn out_is_float(unary: Unary) -> bool {
    !matches!(unary, Unary::Not | Unary::IsNan | Unary::IsInf)
}

fn unary_any(unary: Unary, dtype: DType, x: &Tile, out: &mut Tile, count: usize) {
    match (unary, held(dtype)) {
        (Unary::IsNan, DType::F32) => {
            map(x.slice(count), out.slice_mut(count), |x: f32| u8::from(x.is_nan()))
        }
        (Unary::IsNan, DType::F64) => {
            map(x.slice(count), out.slice_mut(count), |x: f64| u8::from(x.is_nan()))
        }
        (Unary::IsInf, DType::F32) => {
            map(x.slice(count), out.slice_mut(count), |x: f32| u8::from(x.is_infinite()));
        }
        (Unary::IsInf, DType::F64) => {
            map(x.slice(count), out.slice_mut(count), |x: f64| u8::from(x.is_infinite()));
        }
        (_, dtype) => with_element!(dtype, T => {
            T::unary(unary, x.slice(count), out.slice_mut(count));
        }, half => {}),
    }
}

#[inline(always)]
fn compare<T: Element>(compare: Compare, x: &[T], y: &[T], out: &mut [u8]) {
    match compare {
        Compare::Eq => zip(x, y, out, |x, y| u8::from(x == y)),
        Compare::Ne => zip(x, y, out, |x, y| u8::from(x != y)),
        Compare::Lt => zip(x, y, out, |x, y| u8::from(x < y)),
        Compare::Le => zip(x, y, out, |x, y| u8::from(x <= y)),
        Compare::Gt => zip(x, y, out, |x, y| u8::from(x > y)),
        Compare::Ge => zip(x, y, out, |x, y| u8::from(x >= y)),
    }
}

#[inline(always)]
fn select<T: Copy>(condition: &[u8], yes: &[T], no: &[T], out: &mut [T]) {
    for (((out, &condition), &yes), &no) in out.iter_mut().zip(condition).zip(yes).zip(no) {
        *out = if condition != 0 { yes } else { no };
    }
}

fn convert(from: DType, to: DType, x: &Tile, out: &mut Tile, count: usize) {
    macro_rules! to {
        ($A:ty) => {
            match to {
                DType::F32 | DType::F16 | DType::Bf16 => {
                    map(x.slice::<$A>(count), out.slice_mut(count), |x| x as f32)
                }
                DType::F64 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as f64),
                DType::I8 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i8),
                DType::I16 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i16),
                DType::I32 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i32),
                DType::I64 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i64),
                DType::U8 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as u8),
                DType::Bool => {
                    map(x.slice::<$A>(count), out.slice_mut(count), |x| u8::from(x != <$A>::default()))
                }
            }
        };
    }
    match held(from) {
        DType::F32 | DType::F16 | DType::Bf16 => to!(f32),
        DType::F64 => to!(f64),
        DType::I8 => to!(i8),
        DType::I16 => to!(i16),
        DType::I32 => to!(i32),
        DType::I64 => to!(i64),
        DType::U8 | DType::Bool => to!(u8),
    }
}
