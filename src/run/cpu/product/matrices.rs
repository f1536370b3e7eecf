//! Tensors as products read them: matrices one after the other, each of which may be packed.

use crate::error::{Error, Result};
use crate::ir::DType;

use super::super::view::{Plain, View, from_bytes_mut};
use super::super::walk;
use super::matmul::{Extent, Strides, oriented};
use super::{blocks, bytes};

/// A tensor as matrices, one after the other, as a product reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    count: usize,
    /// Rows and columns as they are stored.
    rows: usize,
    columns: usize,
    /// Whether the product reads each of them transposed.
    transposed: bool,
}

impl Matrices {
    /// An operand of `Op::MatMul`: a matrix along the last two axes, for each position of the others.
    /// None where there are no two axes, or sizes are not known.
    pub(crate) fn of_product(dims: &[i64], transposed: bool) -> Option<Self> {
        let dims = walk::sizes(dims).ok()?;
        let [batch @ .., rows, columns] = &dims[..] else { return None };
        let count = batch.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        Some(Self { count, rows: *rows, columns: *columns, transposed })
    }

    /// The weights of a convolution, channels first: one matrix of output channels and terms, read
    /// transposed. None where there are no two axes, or sizes are not known.
    pub(crate) fn of_channels(dims: &[i64]) -> Option<Self> {
        let dims = walk::sizes(dims).ok()?;
        let [rows, terms @ ..] = &dims[..] else { return None };
        let columns = terms.iter().try_fold(1usize, |terms, &size| terms.checked_mul(size))?;
        (!terms.is_empty()).then_some(Self { count: 1, rows: *rows, columns, transposed: true })
    }

    /// Rows and columns as the product reads them.
    fn extent(&self) -> (usize, usize) {
        if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }
}

/// Whether `Op::MatMul` adds up along its operands, instead of packing the right one: packed,
/// its sums would be in another order. True where sizes are not known.
pub(crate) fn adds_along(left: &Matrices, right: &Matrices, out: &[i64]) -> bool {
    let Some(all) = Matrices::of_product(out, false) else { return true };
    let Some(rows) = all.count.checked_mul(all.rows) else { return true };
    let (k, n) = (left.extent().1, all.columns);
    let strides = oriented(right.transposed, if right.transposed { k } else { n });
    // Batches of rows are one product, where all of them share the right operand.
    [all.rows, rows].into_iter().any(|m| blocks::adds_along(Extent { m, n, k }, strides))
}

/// Packs matrices as [`View::packed`] has them, each for itself.
///
/// Errors: they are neither of floats nor of bytes; the bytes are not those of their sizes.
pub(crate) fn pack(view: &View<'_>, matrices: Matrices, to: &mut [u8]) -> Result<()> {
    reorder(view, matrices, to, (blocks::pack::<f32>, blocks::pack::<f64>, bytes::pack))
}

/// Undoes [`pack`]. Errors: those of it.
pub(crate) fn unpack(view: &View<'_>, matrices: Matrices, to: &mut [u8]) -> Result<()> {
    reorder(view, matrices, to, (blocks::unpack::<f32>, blocks::unpack::<f64>, bytes::unpack))
}

/// Writes the elements of a matrix of that many rows and columns in another order.
type Reorder<T> = fn(&[T], Strides, (usize, usize), &mut [T]);
/// The same, with bits of each byte turned over.
type ReorderBytes = fn(&[u8], Strides, (usize, usize), &mut [u8], u8);

fn reorder(
    view: &View<'_>,
    matrices: Matrices,
    to: &mut [u8],
    (singles, doubles, of_bytes): (Reorder<f32>, Reorder<f64>, ReorderBytes),
) -> Result<()> {
    match view.dtype {
        DType::F32 => reorder_each(view.slice()?, matrices, from_bytes_mut(to)?, singles),
        DType::F64 => reorder_each(view.slice()?, matrices, from_bytes_mut(to)?, doubles),
        DType::I8 | DType::U8 => {
            let turn = bytes::turn_right(view.dtype);
            reorder_each(view.slice()?, matrices, to, |from, strides, size, to| {
                of_bytes(from, strides, size, to, turn);
            })
        }
        other => Err(Error::Internal(format!("packing of {other}"))),
    }
}

fn reorder_each<T: Plain>(
    from: &[T],
    matrices: Matrices,
    to: &mut [T],
    reorder: impl Fn(&[T], Strides, (usize, usize), &mut [T]),
) -> Result<()> {
    let size = matrices.rows * matrices.columns;
    if from.len() != to.len() || from.len() != matrices.count * size {
        return Err(Error::Internal("what is packed has another size".to_owned()));
    }
    if size > 0 {
        let strides = oriented(matrices.transposed, matrices.columns);
        let pairs = from.chunks_exact(size).zip(to.chunks_exact_mut(size));
        pairs.for_each(|(from, to)| reorder(from, strides, matrices.extent(), to));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::product::matmul::matmul;
    use crate::run::cpu::team::Team;
    use crate::run::cpu::view::{ViewMut, bytes_of_mut};

    /// Numbers whose sums round differently in another order.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        (0..count as u32)
            .map(|i| {
                let bits = (i + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9)) >> 8;
                bits as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn packed_operands_give_the_bits_of_those_that_lie_as_they_are() {
        let mut compared = 0;
        for (m, n) in
            [1i64, 2, 4, 5, 16, 17, 30].into_iter().flat_map(|m| [1i64, 3, 4, 5, 64, 70, 130].map(|n| (m, n)))
        {
            for (k, transposed) in
                [1i64, 7, 100, 255, 256, 300].into_iter().flat_map(|k| [(k, false), (k, true)])
            {
                let (xd, od) = ([m, k], [m, n]);
                let wd = if transposed { [n, k] } else { [k, n] };
                let matrices = Matrices::of_product(&wd, transposed).unwrap();
                if adds_along(&Matrices::of_product(&xd, false).unwrap(), &matrices, &od) {
                    continue;
                }
                let (x, w) = (numbers((m * k) as usize, 3), numbers((k * n) as usize, 5));
                let plain = View::new(DType::F32, &wd, crate::run::cpu::view::bytes_of(&w)).unwrap();
                let mut other = vec![0f32; w.len()];
                pack(&plain, matrices, bytes_of_mut(&mut other)).unwrap();
                let bytes = crate::run::cpu::view::bytes_of(&other);
                let packed = View { packed: true, ..View::new(DType::F32, &wd, bytes).unwrap() };
                let run = |w: View<'_>| {
                    let mut out = vec![0f32; (m * n) as usize];
                    let x = View::new(DType::F32, &xd, crate::run::cpu::view::bytes_of(&x)).unwrap();
                    let made = ViewMut::new(DType::F32, &od, bytes_of_mut(&mut out)).unwrap();
                    let op = crate::ir::MatMul {
                        transpose_left: false,
                        transpose_right: transposed,
                        wide: false,
                        rounds: false,
                    };
                    matmul(&Team::alone(), op, &[x, w], &mut [made]).unwrap();
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(plain), run(packed), "{m} x {n}, {k} terms, transposed: {transposed}");
                compared += 1;
            }
        }
        assert!(compared > 300, "{compared}");
    }
}
