//! Where the elements of a tile program are: its registers, and the bytes that it reads and writes.
//!
//! Holds `unsafe`: an operand may share its bytes with a result, so both are reached by pointers.

use std::marker::PhantomData;

use crate::ir::DType;

use super::super::super::stored::{Stored, narrow, widen};
use super::super::super::vectors::{Stores, fetch, stream, streamed};
use super::super::super::view::{Bf16, F16, Plain, with_element};
use super::super::super::walk::Space;
use super::{Access, TILE};

#[repr(C, align(64))]
struct Tile([u8; TILE * 8]);

/// Elements that an operation reads.
#[derive(Clone, Copy)]
pub(crate) struct TileRef<'a> {
    pointer: *const u8,
    bytes: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> TileRef<'a> {
    /// The first elements. Panics where there are fewer.
    pub(in crate::run::cpu) fn slice<T: Plain>(self, count: usize) -> &'a [T] {
        assert!(count <= self.bytes / size_of::<T>() && self.pointer.align_offset(align_of::<T>()) == 0);
        // SAFETY: for the lifetime so many bytes lie there, initialised and written by nobody, as
        // the makers of a `TileRef` see to, and every pattern of bits is a T.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), count) }
    }
}

/// Elements that an operation writes.
pub(crate) struct TileMut<'a> {
    pointer: *mut u8,
    bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl TileMut<'_> {
    /// The first elements. Panics where there are fewer.
    pub(in crate::run::cpu) fn slice_mut<T: Plain>(&mut self, count: usize) -> &mut [T] {
        assert!(count <= self.bytes / size_of::<T>() && self.pointer.align_offset(align_of::<T>()) == 0);
        // SAFETY: for the lifetime so many bytes lie there, initialised and this operation's alone,
        // as the makers of a `TileMut` see to.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), count) }
    }
}

/// The registers of one worker, allocated before it runs.
#[derive(Default)]
pub(crate) struct Registers(Vec<Register>);

struct Register {
    tile: Option<Box<Tile>>,
    /// What it holds is in a source: where, and its bytes.
    borrowed: Option<(*const u8, usize)>,
}

/// A register that is written.
pub(crate) struct Taken(u32, Box<Tile>);

impl Registers {
    /// Makes sure that there are this many.
    pub(crate) fn reserve(&mut self, count: usize) {
        while self.0.len() < count {
            self.0.push(Register { tile: Some(Box::new(Tile([0; TILE * 8]))), borrowed: None });
        }
    }

    /// Forgets what earlier programs read. To be called before each part of a program.
    pub(crate) fn begin(&mut self, count: usize) {
        self.reserve(count);
        self.0.iter_mut().for_each(|register| register.borrowed = None);
    }

    /// What a register holds. Panics where there is no such register, or it is taken, as none that a
    /// compiled program names.
    pub(crate) fn get(&self, register: u32) -> TileRef<'_> {
        let Register { tile, borrowed } = &self.0[register as usize];
        let (pointer, bytes) = borrowed.unwrap_or_else(|| {
            let tile = tile.as_deref().expect("the register is not taken");
            (tile.0.as_ptr(), tile.0.len())
        });
        TileRef { pointer, bytes, life: PhantomData }
    }

    /// What up to three registers hold: the first, and those of the others that there are.
    pub(crate) fn operands(&self, registers: [u32; 3]) -> [TileRef<'_>; 3] {
        let first = self.get(registers[0]);
        let other = |register: u32| if register == u32::MAX { first } else { self.get(register) };
        [first, other(registers[1]), other(registers[2])]
    }

    /// A register to write, which is put back after. Panics as [`Registers::get`].
    pub(crate) fn take(&mut self, register: u32) -> Taken {
        let Register { tile, borrowed } = &mut self.0[register as usize];
        *borrowed = None;
        Taken(register, tile.take().expect("the register is not taken"))
    }

    pub(crate) fn put(&mut self, Taken(register, tile): Taken) {
        self.0[register as usize].tile = Some(tile);
    }
}

impl Taken {
    pub(crate) fn as_tile_mut(&mut self) -> TileMut<'_> {
        TileMut { pointer: self.1.0.as_mut_ptr(), bytes: self.1.0.len(), life: PhantomData }
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
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// # Safety
    ///
    /// For the lifetime, the bytes are initialised, and no other thread writes them.
    pub(crate) unsafe fn from_raw(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length, first: 0, life: PhantomData }
    }

    /// Its first element, if there is one.
    pub(in crate::run::cpu) fn first<T: Plain>(&self) -> Option<T> {
        // SAFETY: `at` checks that there is an element.
        (!self.is_empty()).then(|| unsafe { self.at::<T>(self.first, 1).read() })
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
// SAFETY: as above.
unsafe impl Send for Source<'_> {}
// SAFETY: nobody else has the bytes, as its makers see to.
unsafe impl Send for Target<'_> {}
// SAFETY: parts of a program write disjoint elements.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// Elements from one on, and the same to read.
    pub(crate) fn piece(first: usize, bytes: &'a mut [u8]) -> (Self, Source<'a>) {
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

    /// True where a source has bytes of it.
    pub(crate) fn overlaps(&self, source: &Source<'_>) -> bool {
        let (own, other) = (self.pointer.addr(), source.pointer.addr());
        own < other.saturating_add(source.length) && other < own.saturating_add(self.length)
    }

    /// Gives `count` elements of `size` bytes from `start` to be written by `write`, which reads
    /// `operands`. Panics where they are not within the bytes, or an operand has one of them.
    pub(crate) fn with<'r>(
        &self,
        (start, count, size): (usize, usize, usize),
        operands: impl Iterator<Item = TileRef<'r>>,
        write: impl FnOnce(&mut TileMut<'_>),
    ) {
        let start = start - self.first;
        assert!(start + count <= self.length / size);
        // SAFETY: in bounds, as was just checked.
        let (pointer, bytes) = (unsafe { self.pointer.add(start * size) }, count * size);
        let own = pointer.addr()..pointer.addr() + bytes;
        for TileRef { pointer, bytes, .. } in operands {
            assert!(own.end <= pointer.addr() || pointer.addr() + bytes <= own.start);
        }
        write(&mut TileMut { pointer, bytes, life: PhantomData });
    }

    fn store<T: Plain>(&self, start: usize, values: &[T], stores: Stores) {
        let start = start - self.first;
        assert!(start + values.len() <= self.length / size_of::<T>());
        assert!(self.pointer.align_offset(align_of::<T>()) == 0);
        // SAFETY: in bounds, as was just checked, and a register is never part of a target: what
        // is in a source is copied where that overlaps one.
        unsafe {
            let to = self.pointer.cast::<T>().add(start);
            match stores {
                Stores::Streaming => stream(values.as_ptr().cast(), to.cast(), size_of_val(values)),
                Stores::Cached => std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()),
            }
        }
    }
}

/// Ends a part of a program: other threads see what it wrote around the caches.
pub(crate) fn written() {
    streamed();
}

/// Where elements lie that are contiguous, though the source is repeated.
fn contiguous(space: &Space<1>, start: usize, count: usize) -> Option<usize> {
    let last = space.rank.checked_sub(1)?;
    let column = start % space.dims[last];
    let within = space.strides[0][last] == 1 && column + count <= space.dims[last];
    // Strides of a broadcast are never negative.
    within.then(|| space.at(start)[0] as usize)
}

/// Elements of a source that a register is given.
pub(crate) struct Load<'a, 's> {
    pub(crate) source: &'a Source<'s>,
    pub(crate) dtype: DType,
    pub(crate) access: &'a Access,
    pub(crate) start: usize,
    pub(crate) count: usize,
    /// No target has bytes of the source: where the elements need not be changed, the register is where they lie.
    pub(crate) disjoint: bool,
    /// What follows in the source is fetched.
    pub(crate) fetches: bool,
}

pub(crate) fn load(registers: &mut Registers, to: u32, load: &Load<'_, '_>) {
    let Load { source, dtype, access, start, count, disjoint, fetches } = *load;
    let first = match access {
        _ if !disjoint || dtype.is_half() => None,
        Access::Linear => Some(start),
        Access::Scalar => (count == 1).then_some(source.first),
        Access::Strided(space) => contiguous(space, start, count),
    };
    if let Some(first) = first {
        with_element!(dtype, T => {
            let bytes = count * size_of::<T>();
            let pointer = source.at::<T>(first, count).cast::<u8>();
            if fetches && *access == Access::Linear {
                let behind = (source.length - bytes).saturating_sub((first - source.first) * size_of::<T>());
                fetch(pointer.wrapping_add(bytes), behind.min(bytes));
            }
            registers.0[to as usize].borrowed = Some((pointer, bytes));
        }, half => {});
        return;
    }
    let mut tile = registers.take(to);
    load_copy(source, dtype, access, start, &mut tile.as_tile_mut(), count);
    registers.put(tile);
}

fn load_copy(
    source: &Source<'_>,
    dtype: DType,
    access: &Access,
    start: usize,
    tile: &mut TileMut<'_>,
    count: usize,
) {
    match dtype {
        DType::F16 => load_halves::<F16>(source, access, start, tile.slice_mut(count)),
        DType::Bf16 => load_halves::<Bf16>(source, access, start, tile.slice_mut(count)),
        _ => {
            with_element!(dtype, T => load_as::<T>(source, access, start, tile.slice_mut(count)), half => {})
        }
    }
}

/// Widens elements that lie somewhere.
fn load_halves<S: Stored>(source: &Source<'_>, access: &Access, start: usize, out: &mut [f32]) {
    if *access == Access::Linear {
        // SAFETY: `at` checks that there are as many; nothing is written but a register, which is no part of a source.
        let from = unsafe { std::slice::from_raw_parts(source.at::<S>(start, out.len()), out.len()) };
        return widen(from, out);
    }
    let mut halves = [S::zeroed(); TILE];
    let halves = &mut halves[..out.len()];
    load_as(source, access, start, halves);
    widen(halves, out);
}

#[inline(always)]
fn load_as<T: Plain>(source: &Source<'_>, access: &Access, start: usize, out: &mut [T]) {
    match access {
        Access::Linear => {
            let from = source.at::<T>(start, out.len());
            // SAFETY: `at` checked that there are as many; a register is no part of a source.
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
        }
        Access::Scalar => {
            // SAFETY: `at` checked that there is an element.
            out.fill(unsafe { source.at::<T>(0, 1).read() });
        }
        Access::Strided(space) => load_borrowed(source, space, start, out),
    }
}

/// Fills `out` run by run along the last axis.
#[inline(always)]
fn load_borrowed<T: Plain>(source: &Source<'_>, space: &Space<1>, start: usize, out: &mut [T]) {
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
        let from = source.at::<T>(offset as usize, reach);
        if step == 0 {
            // SAFETY: `at` checked `reach` elements.
            run.fill(unsafe { from.read() });
        } else if step == 1 {
            // SAFETY: `at` checked `reach` elements, which are as many as the run has.
            unsafe { std::ptr::copy_nonoverlapping(from, run.as_mut_ptr(), count) };
        } else {
            for (i, out) in run.iter_mut().enumerate() {
                // SAFETY: `at` checked `reach` elements; this one's distance is below that.
                *out = unsafe { from.add(i * step as usize).read() };
            }
        }
        done += count;
    }
}

/// Writes the first `count` elements of a register to a target, from `start` on.
pub(crate) fn store(
    tile: TileRef<'_>,
    dtype: DType,
    target: &Target<'_>,
    start: usize,
    count: usize,
    stores: Stores,
) {
    match dtype {
        DType::F16 => store_halves::<F16>(tile, target, start, count, stores),
        DType::Bf16 => store_halves::<Bf16>(tile, target, start, count, stores),
        _ => with_element!(dtype, T => target.store::<T>(start, tile.slice(count), stores), half => {}),
    }
}

fn store_halves<S: Stored>(
    tile: TileRef<'_>,
    target: &Target<'_>,
    start: usize,
    count: usize,
    stores: Stores,
) {
    if stores == Stores::Cached {
        let tiles = std::iter::once(tile);
        return target.with((start, count, size_of::<S>()), tiles, |out| {
            narrow::<S>(tile.slice(count), out.slice_mut(count));
        });
    }
    let mut halves = [S::zeroed(); TILE];
    narrow(tile.slice(count), &mut halves[..count]);
    target.store(start, &halves[..count], stores);
}
