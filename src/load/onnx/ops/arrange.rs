//! Operators that are made of comparisons with positions, running products and moves of whole axes.

use super::super::node::At;
use super::super::tensor;
use super::layout::indices;
use crate::error::Result;
use crate::ir::{
    ArgReduce, Binary, Compare, DType, Op, Pad, PadMode, Real, ReduceKind, ScatterKind, Shape, Size, Unary,
    ValueId,
};

/// One where the largest element of an axis first stands, zero elsewhere. Before opset 13 the axes from `axis` on
/// are taken together.
pub(super) fn hardmax(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape.sizes().to_vec();
    let default = if at.opset < 13 { 1 } else { -1 };
    let axis = at.axis(at.int_or("axis", default)?, shape.len())?;
    let mut x = at.value(0)?;
    if at.opset < 13 {
        let flat = at.product(&shape[axis..])?;
        x = at.reshape(x, shape[..axis].iter().cloned().chain([flat]))?;
    }
    let largest = Op::ArgReduce { kind: ArgReduce::Max, axis: axis as u32, keep: true, last: false };
    let largest = at.apply(largest, &[x])?;
    let mut line = vec![Size::Known(1); at.sizes_of(x).len()];
    line[axis] = at.sizes_of(x)[axis].clone();
    let positions = at.iota(indices(line), axis);
    let hot = at.compare(Compare::Eq, positions, largest)?;
    let y = at.convert(hot, at.graph().ty(x).dtype)?;
    let y = at.reshape(y, shape)?;
    at.set(0, y);
    Ok(())
}

/// Ones on a diagonal of a matrix.
pub(super) fn eye_like(at: &mut At<'_>) -> Result<()> {
    let ty = at.ty(0)?;
    let k = at.int_or("k", 0)?;
    let dtype = match at.int("dtype")? {
        Some(dtype) => tensor::dtype(i32::try_from(dtype).unwrap_or(0))?,
        None => ty.dtype,
    };
    let [rows, columns] = ty.shape.sizes() else { return Err(at.wrong("its input is no matrix")) };
    let rows = at.iota(indices([rows.clone(), Size::Known(1)]), 0);
    let columns = at.iota(indices([Size::Known(1), columns.clone()]), 1);
    let k = at.integer_constant(&[], &[k])?;
    let diagonal = at.add(rows, k)?;
    let eye = at.compare(Compare::Eq, columns, diagonal)?;
    let eye = at.convert(eye, dtype)?;
    at.set(0, eye);
    Ok(())
}

/// Axes cut or filled up with zeros on both sides alike, the odd one after.
pub(super) fn center_crop_pad(at: &mut At<'_>) -> Result<()> {
    let mut x = at.value(0)?;
    let rank = at.sizes_of(x).len();
    let axes = match at.ints("axes")? {
        Some(axes) => axes.iter().map(|&axis| at.axis(axis, rank)).collect::<Result<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let wanted = at.integers(1, "sizes")?;
    if wanted.len() != axes.len() {
        return Err(at.wrong(format!("expected {} sizes, found {}", axes.len(), wanted.len())));
    }
    if let Some(negative) = wanted.iter().find(|&&size| size < 0) {
        return Err(at.wrong(format!("a size of {negative} is not possible")));
    }
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (&axis, &wanted) in axes.iter().zip(&wanted) {
        let own = at.numbers(x)?[axis];
        if wanted < own {
            x = at.part(x, axis, Size::Known((own - wanted) / 2), Size::Known(wanted))?;
        }
        before[axis] = (wanted - own).max(0) / 2;
        after[axis] = (wanted - own).max(0) - before[axis];
    }
    let y = match before.iter().chain(&after).all(|&amount| amount == 0) {
        true => x,
        false => {
            let pad = Pad { before, after, mode: PadMode::Constant, value: Real(0.0) };
            at.apply(Op::Pad(Box::new(pad)), &[x])?
        }
    };
    at.set(0, y);
    Ok(())
}

/// Running products: each step multiplies what is twice as far away (Hillis and Steele 1986).
pub(super) fn cum_prod(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.integer(1, "axis")?, at.rank(0)?)?;
    let (exclusive, reverse) = (at.flag("exclusive", false)?, at.flag("reverse", false)?);
    let mut x = at.value(0)?;
    let size = at.numbers(x)?[axis];
    if reverse {
        x = at.reversed(x, axis)?;
    }
    if exclusive && size > 0 {
        x = shifted(at, x, axis, 1)?;
    }
    let mut step = 1;
    while step < size {
        let before = shifted(at, x, axis, step)?;
        x = at.mul(x, before)?;
        step *= 2;
    }
    if reverse {
        x = at.reversed(x, axis)?;
    }
    at.set(0, x);
    Ok(())
}

/// Elements moved towards the end of an axis, ones before them.
fn shifted(at: &mut At<'_>, x: ValueId, axis: usize, step: i64) -> Result<ValueId> {
    let mut sizes = at.sizes_of(x);
    let rest = sizes[axis].sub(&Size::Known(step));
    let Some(rest) = rest else { return Err(at.wrong("its size overflows")) };
    let kept = at.part(x, axis, Size::Known(0), rest)?;
    sizes[axis] = Size::Known(step);
    let one = at.scalar(at.graph().ty(x).dtype, 1.0)?;
    let ones = at.broadcast(one, Shape::new(sizes))?;
    at.concat(&[ones, kept], axis)
}

/// The largest matrix whose determinant is unrolled.
const MOST_ROWS: i64 = 64;

/// By elimination, with the largest element of a column as pivot.
pub(super) fn det(at: &mut At<'_>) -> Result<()> {
    let mut x = at.value(0)?;
    let sizes = at.sizes_of(x);
    let rank = sizes.len();
    let rows = sizes.last().and_then(Size::known).unwrap_or(0);
    if rank < 2 || sizes[rank - 2] != sizes[rank - 1] || !(1..=MOST_ROWS).contains(&rows) {
        return Err(at.unsupported(format!("of other than square matrices of up to {MOST_ROWS} rows")));
    }
    let (row, column) = (rank - 2, rank - 1);
    let mut product = None;
    for left in (1..=rows).rev() {
        let first = at.part(x, column, Size::Known(0), Size::Known(1))?;
        let height = at.unary(Unary::Abs, first)?;
        let largest = Op::ArgReduce { kind: ArgReduce::Max, axis: row as u32, keep: true, last: false };
        let place = at.apply(largest, &[height])?;
        let mut line = vec![Size::Known(1); rank];
        line[row] = Size::Known(left);
        let positions = at.iota(indices(line), row);
        let is_pivot = at.compare(Compare::Eq, positions, place)?;
        // A gather would need the pivot's place as an index for each matrix; a masked sum is that row exactly.
        let alone = at.select_or(is_pivot, x, 0.0)?;
        let pivot_row = at.sum(alone, [row], true)?;
        let pivot = at.part(pivot_row, column, Size::Known(0), Size::Known(1))?;
        // An exchange of rows changes the sign.
        let moved = at.compare_scalar(Compare::Ne, place, 0.0)?;
        let opposite = at.unary(Unary::Neg, pivot)?;
        let factor = at.select(moved, opposite, pivot)?;
        product = Some(match product {
            Some(product) => at.mul(product, factor)?,
            None => factor,
        });
        if left == 1 {
            break;
        }
        // The first row takes the pivot's place.
        let head = at.part(x, row, Size::Known(0), Size::Known(1))?;
        let swapped = at.select(is_pivot, head, x)?;
        let rest = at.part(swapped, row, Size::Known(1), Size::Known(left - 1))?;
        // Without a pivot the determinant is 0 already; the rest must only stay finite.
        let none = at.compare_scalar(Compare::Eq, pivot, 0.0)?;
        let one = at.scalar(at.graph().ty(x).dtype, 1.0)?;
        let divisor = at.select(none, one, pivot)?;
        let scaled = at.div(pivot_row, divisor)?;
        let lead = at.part(rest, column, Size::Known(0), Size::Known(1))?;
        let lead = at.mul(lead, scaled)?;
        let rest = at.sub(rest, lead)?;
        x = at.part(rest, column, Size::Known(1), Size::Known(left - 1))?;
    }
    let Some(product) = product else { return Err(at.wrong("its matrices are empty")) };
    let y = at.reshape(product, sizes[..rank - 2].to_vec())?;
    at.set(0, y);
    Ok(())
}

/// The geometry of `Col2Im`: blocks that slide over a padded image.
struct Blocks {
    image: Vec<i64>,
    block: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Before each axis, then after each.
    pads: Vec<i64>,
    padded: Vec<i64>,
    /// How many positions a block has along each axis.
    counts: Vec<i64>,
}

impl Blocks {
    fn of(at: &At<'_>) -> Result<Self> {
        let (image, block) = (at.integers(1, "image shape")?, at.integers(2, "block shape")?);
        let axes = image.len();
        // Sums and products of two such numbers do not overflow.
        let small = |list: &[i64]| list.iter().all(|&number| (0..=i64::from(i32::MAX)).contains(&number));
        let list = |name: &str, default: i64, count: usize| -> Result<Vec<i64>> {
            let list = at.ints(name)?.unwrap_or_else(|| vec![default; count]);
            if list.len() == count && small(&list) {
                return Ok(list);
            }
            Err(at.wrong(format!("expected {count} {name}, none of them negative or above {}", i32::MAX)))
        };
        let (strides, dilations) = (list("strides", 1, axes)?, list("dilations", 1, axes)?);
        let pads = list("pads", 0, 2 * axes)?;
        if block.len() != axes || !small(&image) || !small(&block) {
            return Err(at.wrong("its blocks do not fit its image"));
        }
        let mut blocks =
            Self { image, block, strides, dilations, pads, padded: Vec::new(), counts: Vec::new() };
        for axis in 0..axes {
            let whole = blocks.image[axis] + blocks.pads[axis] + blocks.pads[axis + axes];
            let span = whole - blocks.dilations[axis] * (blocks.block[axis] - 1) - 1;
            if blocks.strides[axis] < 1 || blocks.block[axis] < 1 || span < 0 {
                return Err(at.wrong("its blocks do not fit its image"));
            }
            blocks.padded.push(whole);
            blocks.counts.push(span / blocks.strides[axis] + 1);
        }
        Ok(blocks)
    }

    /// Of each tap of each block, where in the padded image it lies: computed where it is read, so that however many there
    /// are, none is held here.
    fn places(&self, at: &mut At<'_>, listed: i64) -> Result<ValueId> {
        let axes = self.image.len();
        let grid: Vec<Size> = self.block.iter().chain(&self.counts).copied().map(Size::Known).collect();
        let (mut sum, mut behind) = (None, 1i64);
        for axis in (0..axes).rev() {
            for (own, step) in [(axis, self.dilations[axis]), (axes + axis, self.strides[axis])] {
                let place = at.iota(indices(grid.clone()), own);
                let step =
                    step.checked_mul(behind).ok_or_else(|| at.wrong("the sizes of its image overflow"))?;
                let place = at.binary_scalar(Binary::Mul, place, step as f64)?;
                sum = Some(match sum {
                    Some(sum) => at.add(sum, place)?,
                    None => place,
                });
            }
            behind = behind.saturating_mul(self.padded[axis]);
        }
        let sum = sum.ok_or_else(|| at.wrong("its image has no axes"))?;
        at.reshape(sum, [Size::Known(listed), Size::Known(1)])
    }
}

/// Sliding blocks added up into an image.
pub(super) fn col2im(at: &mut At<'_>) -> Result<()> {
    let blocks = Blocks::of(at)?;
    let x = at.value(0)?;
    let sizes = at.sizes_of(x);
    let Some([elements, taps, columns]) = products([&blocks.padded, &blocks.block, &blocks.counts]) else {
        return Err(at.wrong("the sizes of its image overflow"));
    };
    let [batch, channels, across] = &sizes[..] else {
        return Err(at.wrong("its blocks do not fit its channels"));
    };
    let channels = channels.div_exact(taps).ok_or_else(|| at.wrong("its blocks do not fit its channels"))?;
    if *across != Size::Known(columns) {
        return Err(at.wrong(format!("its image has {columns} blocks")));
    }
    let listed = taps.checked_mul(columns).ok_or_else(|| at.wrong("the sizes of its image overflow"))?;
    let places = blocks.places(at, listed)?;

    let images = at.product(&[batch.clone(), channels.clone()])?;
    let updates = at.reshape(x, vec![images.clone(), Size::Known(listed)])?;
    let updates = at.transpose(updates, vec![1, 0])?;
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let empty = at.broadcast(zero, Shape::new([Size::Known(elements), images]))?;
    let sum = at.apply(Op::ScatterNd { kind: ScatterKind::Add }, &[empty, places, updates])?;
    let sum = at.transpose(sum, vec![1, 0])?;
    let padded = blocks.padded.iter().copied().map(Size::Known);
    let mut y = at.reshape(sum, [batch.clone(), channels].into_iter().chain(padded))?;
    for (axis, &size) in blocks.image.iter().enumerate() {
        y = at.part(y, axis + 2, Size::Known(blocks.pads[axis]), Size::Known(size))?;
    }
    at.set(0, y);
    Ok(())
}

/// The products of lists of sizes; none where one overflows.
fn products<const N: usize>(lists: [&[i64]; N]) -> Option<[i64; N]> {
    let mut all = [1i64; N];
    for (product, list) in all.iter_mut().zip(lists) {
        *product = list.iter().try_fold(1i64, |product, &size| product.checked_mul(size))?;
    }
    Some(all)
}

/// The coordinates of element `number` of a tensor of these sizes.
pub(super) fn coordinates(mut number: i64, sizes: &[i64]) -> Vec<i64> {
    let mut all = vec![0; sizes.len()];
    for axis in (0..sizes.len()).rev() {
        all[axis] = number % sizes[axis];
        number /= sizes[axis];
    }
    all
}

/// Elements at numbered places of a larger tensor, zeros elsewhere.
pub(super) fn max_unpool(at: &mut At<'_>) -> Result<()> {
    let (x, places) = (at.value(0)?, at.value(1)?);
    let sizes = at.numbers(x)?;
    let Some(kernel) = at.ints("kernel_shape")? else {
        return Err(at.wrong("attribute kernel_shape is missing"));
    };
    let axes = kernel.len();
    let strides = at.ints("strides")?.unwrap_or_else(|| vec![1; axes]);
    let pads = at.ints("pads")?.unwrap_or_else(|| vec![0; 2 * axes]);
    if sizes.len() != axes + 2 || strides.len() != axes || pads.len() != 2 * axes {
        return Err(at.wrong("its window does not fit its input"));
    }
    let inferred: Option<Vec<i64>> = (0..axes)
        .map(|axis| {
            let last = (sizes[axis + 2] - 1).checked_mul(strides[axis])?.checked_add(kernel[axis])?;
            last.checked_sub(pads[axis])?.checked_sub(pads[axis + axes])
        })
        .collect();
    // Places count the elements of this result, whatever larger one is asked for.
    let inferred = inferred.map(|inferred| [&sizes[..2], &inferred].concat());
    let counted = inferred.and_then(|inferred| Some((products([&sizes, &inferred])?, inferred)));
    let Some(([listed, elements], inferred)) = counted else {
        return Err(at.wrong("the sizes of its result overflow"));
    };
    let known = |sizes: &[i64]| sizes.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>();
    let (x, places) = (at.reshape(x, known(&[listed]))?, at.reshape(places, known(&[listed]))?);
    let wanted = if at.has(2) { at.integers(2, "output shape")? } else { inferred.clone() };
    if wanted.len() != axes + 2 || wanted.iter().zip(&inferred).any(|(wanted, own)| wanted < own) {
        return Err(at.wrong("its output shape is smaller than its windows"));
    }
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let empty = at.broadcast(zero, Shape::new(known(&[elements])))?;
    let kind = ScatterKind::Replace;
    let y = at.apply(Op::ScatterElements { axis: 0, kind }, &[empty, places, x])?;
    let y = at.reshape(y, known(&inferred))?;
    let after: Vec<i64> = wanted.iter().zip(&inferred).map(|(wanted, own)| wanted - own).collect();
    let y = match after.iter().all(|&amount| amount == 0) {
        true => y,
        false => {
            let pad = Pad { before: vec![0; axes + 2], after, mode: PadMode::Constant, value: Real(0.0) };
            at.apply(Op::Pad(Box::new(pad)), &[y])?
        }
    };
    at.set(0, y);
    Ok(())
}

/// The complement, bit by bit: `-1 - x`, and `255 - x` of bytes.
pub(super) fn bitwise_not(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let dtype = at.graph().ty(x).dtype;
    let ones = super::elementwise::all_ones(at, dtype)?;
    let y = at.binary(Binary::Xor, x, ones)?;
    at.set(0, y);
    Ok(())
}

/// Products and quotients by powers of two, which are exact; of bits that leave nothing is left.
pub(super) fn bit_shift(at: &mut At<'_>) -> Result<()> {
    let left = match at.text("direction", "")?.as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => return Err(at.wrong(format!("{other:?} is no direction"))),
    };
    let (x, by) = (at.value(0)?, at.value(1)?);
    let dtype = at.graph().ty(x).dtype;
    let bits = dtype.size() as f64 * 8.0;
    let inside = at.compare_scalar(Compare::Lt, by, bits)?;
    let two = at.scalar(dtype, 2.0)?;
    let power = at.binary(Binary::Pow, two, by)?;
    let one = at.scalar(dtype, 1.0)?;
    // Two to the power of more than the bits is zero, or anything.
    let power = at.select(inside, power, one)?;
    let moved = at.binary(if left { Binary::Mul } else { Binary::Div }, x, power)?;
    let zero = at.scalar(dtype, 0.0)?;
    let y = at.select(inside, moved, zero)?;
    at.set(0, y);
    Ok(())
}

/// The `p`-norm of each window: a convolution of powers with ones.
pub(super) fn lp_norm_of(
    at: &mut At<'_>,
    x: ValueId,
    p: f64,
    sum: impl FnOnce(&mut At<'_>, ValueId) -> Result<ValueId>,
) -> Result<ValueId> {
    let size = at.unary(Unary::Abs, x)?;
    let power = at.binary_scalar(Binary::Pow, size, p)?;
    let sum = sum(at, power)?;
    at.binary_scalar(Binary::Pow, sum, 1.0 / p)
}

pub(super) fn global_lp_pool(at: &mut At<'_>) -> Result<()> {
    let p = at.int_or("p", 2)? as f64;
    let x = at.value(0)?;
    let axes = 2..at.sizes_of(x).len();
    let y = lp_norm_of(at, x, p, |at, power| at.reduce(ReduceKind::Sum, power, axes, true))?;
    at.set(0, y);
    Ok(())
}

/// The bits of one type as another of the same width; of the types whose bits are numbers alike.
pub(super) fn bit_cast(at: &mut At<'_>) -> Result<()> {
    let Some(to) = at.int("to")? else { return Err(at.wrong("attribute to is missing")) };
    let to = tensor::dtype(i32::try_from(to).unwrap_or(0))?;
    let x = at.value(0)?;
    let from = at.graph().ty(x).dtype;
    if from.size() != to.size() {
        return Err(at.wrong("its types differ in size"));
    }
    if from.is_float() != to.is_float() {
        return Err(at.unsupported(format!("from {from} to {to}")));
    }
    let wide = at.convert(x, DType::I64)?;
    let y = at.convert(wide, to)?;
    at.set(0, y);
    Ok(())
}
