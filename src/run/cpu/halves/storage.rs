//! Operands of kernels that compute in f32 or f64: of that type, or of halves that are widened where they are used.

use super::super::attention::forward::multiply_block;
use super::super::product::blocks::{Part, Rhs};
use super::super::product::matmul::{Beta, Extent, Gemm, Matrix, Strides};
use super::super::stored::{Stored, narrow, widen};
use super::super::team::{MatrixMut, Team};
use super::super::view::{Bf16, F16, Plain};
use super::{Begin, Left, multiply, pack_right, widen_rows};

/// Rows of a matrix, each `stride` elements after the one before it.
pub(in super::super) struct RowsMut<'a, T> {
    pub(in super::super) elements: &'a mut [T],
    pub(in super::super) stride: usize,
}

/// A type in which operands of a kernel are stored that computes in `T`: `T` itself, or halves.
pub(in super::super) trait StorageOf<T>: Plain {
    /// Whether it is another type than `T`: rows are copied where they have to be as `T`.
    const WIDENS: bool;

    fn read(self) -> T;
    fn read_all(from: &[Self], to: &mut [T]);
    fn write_all(from: &[T], to: &mut [Self]);

    /// Some rows of a matrix with contiguous ones: where they lie, or in `scratch`, which has place for them.
    fn rows<'a>(from: &'a [Self], stride: usize, size: (usize, usize), scratch: &'a mut [T])
    -> Matrix<'a, T>;

    /// Makes a matrix of `T` and writes it as it is held; it is made in `scratch`, which has place for it,
    /// where that is another type.
    fn make(out: &mut MatrixMut<'_, Self>, scratch: &mut [T], make: impl FnOnce(&mut MatrixMut<'_, T>));

    /// `c = a b` or `c += a b`, of `k` terms, by this thread.
    fn multiply(a: Matrix<'_, T>, b: Matrix<'_, Self>, k: usize, c: &mut MatrixMut<'_, T>, beta: Beta<'_, T>);

    /// `c += a b`, by this thread, of matrices of any size; none of the right one's is more than once read.
    fn add_product(extent: Extent, a: Matrix<'_, T>, b: Matrix<'_, Self>, c: RowsMut<'_, T>);

    /// The same, of a left operand that is held.
    fn add_stored(extent: Extent, a: Matrix<'_, Self>, b: Matrix<'_, Self>, c: RowsMut<'_, T>);
}

macro_rules! own {
    ($type:ident) => {
        impl StorageOf<$type> for $type {
            const WIDENS: bool = false;

            #[inline(always)]
            fn read(self) -> $type {
                self
            }
            fn read_all(from: &[Self], to: &mut [$type]) {
                to.copy_from_slice(from);
            }
            fn write_all(from: &[$type], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn rows<'a>(
                from: &'a [Self],
                stride: usize,
                _: (usize, usize),
                _: &'a mut [$type],
            ) -> Matrix<'a, $type> {
                Matrix::new(from, Strides::rows(stride))
            }
            fn make(
                out: &mut MatrixMut<'_, Self>,
                _: &mut [$type],
                make: impl FnOnce(&mut MatrixMut<'_, $type>),
            ) {
                make(out);
            }
            fn multiply(
                a: Matrix<'_, $type>,
                b: Matrix<'_, Self>,
                k: usize,
                c: &mut MatrixMut<'_, $type>,
                beta: Beta<'_, $type>,
            ) {
                multiply_block(a, Rhs::Strided(b.elements, b.strides), k, c, beta);
            }
            fn add_product(extent: Extent, a: Matrix<'_, $type>, b: Matrix<'_, Self>, c: RowsMut<'_, $type>) {
                let gemm = Gemm {
                    extent,
                    a,
                    b: Rhs::Strided(b.elements, b.strides),
                    c: c.elements,
                    c_strides: Strides::rows(c.stride),
                    beta: Beta::Add,
                    epilogue: None,
                };
                gemm.run(&Team::alone());
            }
            fn add_stored(extent: Extent, a: Matrix<'_, Self>, b: Matrix<'_, Self>, c: RowsMut<'_, $type>) {
                Self::add_product(extent, a, b, c);
            }
        }
    };
}

own!(f32);
own!(f64);

macro_rules! half {
    ($type:ident) => {
        impl StorageOf<f32> for $type {
            const WIDENS: bool = true;

            #[inline(always)]
            fn read(self) -> f32 {
                self.widen()
            }
            fn read_all(from: &[Self], to: &mut [f32]) {
                widen(from, to);
            }
            fn write_all(from: &[f32], to: &mut [Self]) {
                narrow(from, to);
            }
            fn rows<'a>(
                from: &'a [Self],
                stride: usize,
                (rows, depth): (usize, usize),
                scratch: &'a mut [f32],
            ) -> Matrix<'a, f32> {
                widen_rows(from, Strides::rows(stride), Left { row: 0, rows, inner: 0, depth }, scratch);
                Matrix::new(scratch, Strides::rows(depth))
            }
            fn make(
                out: &mut MatrixMut<'_, Self>,
                scratch: &mut [f32],
                make: impl FnOnce(&mut MatrixMut<'_, f32>),
            ) {
                let (rows, columns) = (out.rows, out.columns);
                let mut made = MatrixMut::new(scratch, (rows, columns), columns);
                make(&mut made);
                (0..rows).for_each(|row| narrow(made.row(row), out.row(row)));
            }
            fn multiply(
                a: Matrix<'_, f32>,
                b: Matrix<'_, Self>,
                k: usize,
                c: &mut MatrixMut<'_, f32>,
                beta: Beta<'_, f32>,
            ) {
                let make =
                    |part: &Part, to: &mut [f32], _: &mut [f32]| pack_right(b.elements, b.strides, part, to);
                multiply_block(a, Rhs::Generated(&make), k, c, beta);
            }
            fn add_product(
                Extent { m, n, k }: Extent,
                a: Matrix<'_, f32>,
                b: Matrix<'_, Self>,
                c: RowsMut<'_, f32>,
            ) {
                if m == 0 || n == 0 {
                    return;
                }
                let left = |part: Left, to: &mut [f32]| {
                    for (row, to) in to.chunks_exact_mut(part.depth).take(part.rows).enumerate() {
                        for (inner, to) in to.iter_mut().enumerate() {
                            *to = a.elements
                                [(part.row + row) * a.strides.row + (part.inner + inner) * a.strides.column];
                        }
                    }
                };
                let right =
                    |part: &Part, to: &mut [f32], _: &mut [f32]| pack_right(b.elements, b.strides, part, to);
                let mut made = MatrixMut::new(c.elements, (m, n), c.stride);
                multiply(&Team::alone(), k, &left, &right, &mut made, Begin::<Self>::There, (None, n));
            }
            fn add_stored(
                Extent { m, n, k }: Extent,
                a: Matrix<'_, Self>,
                b: Matrix<'_, Self>,
                c: RowsMut<'_, f32>,
            ) {
                if m == 0 || n == 0 {
                    return;
                }
                let left = |part: Left, to: &mut [f32]| widen_rows(a.elements, a.strides, part, to);
                let right =
                    |part: &Part, to: &mut [f32], _: &mut [f32]| pack_right(b.elements, b.strides, part, to);
                let mut made = MatrixMut::new(c.elements, (m, n), c.stride);
                multiply(&Team::alone(), k, &left, &right, &mut made, Begin::<Self>::There, (None, n));
            }
        }
    };
}

half!(Bf16);
half!(F16);

/// Runs `$body` with `$T` as f32 or f64 and `$S` as the type that elements of `$dtype` are held in; other types are an
/// error of the operation `$op`.
macro_rules! with_storage {
    ($dtype:expr, $op:expr, ($T:ident, $S:ident) => $body:expr) => {
        match $dtype {
            $crate::ir::DType::F32 => {
                type $T = f32;
                type $S = f32;
                $body
            }
            $crate::ir::DType::F64 => {
                type $T = f64;
                type $S = f64;
                $body
            }
            $crate::ir::DType::Bf16 => {
                type $T = f32;
                type $S = $crate::run::cpu::view::Bf16;
                $body
            }
            $crate::ir::DType::F16 => {
                type $T = f32;
                type $S = $crate::run::cpu::view::F16;
                $body
            }
            other => Err($crate::error::Error::Internal(format!("{} of {other}", $op))),
        }
    };
}
pub(in super::super) use with_storage;
