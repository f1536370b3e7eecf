//! Products of numbers that bytes stand for, as products of the bytes.
//!
//! A file of few bits may spell out `((x - a) * s) ((y - b) * t)`: bytes, each less a zero point and times a scale, multiplied
//! as floats. Where scales and zero points do not differ along what is summed up, that is `s t` times a product of bytes,
//! whose sums are exact: the result is as near to what the file says as sums of floats are, or nearer.

use super::rewrite::Rewriter;
use super::same_marks;
use crate::error::Result;
use crate::ir::{Binary, DType, Graph, MatMul, NodeId, Op, Shape, SourceId, Tensor, ValueId, float_element};

/// Most terms of which all sums are within 32 bits: each is 255 times 255 at most.
const MOST_TERMS: i64 = 1 << 15;

/// Rewrites products of f32 of such numbers. `place` as in [`fuse`](super::fuse()). What nothing reads any more stays.
/// Returns how many there are. O(nodes + operands + elements of zero points).
///
/// Error: only of a graph that does not verify.
pub fn multiply_bytes(graph: &mut Graph, place: &[u32]) -> Result<usize> {
    let found: Vec<Option<Found>> = graph.node_ids().map(|id| Found::of(graph, place, id)).collect();
    let count = found.iter().flatten().count();
    if count == 0 {
        return Ok(0);
    }
    let mut rewriter = Rewriter::new(graph);
    for (id, found) in graph.node_ids().zip(found) {
        match found.filter(|_| !rewriter.is_ordered(id)) {
            Some(found) => found.write(&mut rewriter, id, graph.node(id).source)?,
            None => rewriter.keep(id)?,
        }
    }
    *graph = rewriter.finish()?;
    Ok(count)
}

/// A zero point.
enum Zero {
    /// A value of bytes.
    Of(ValueId),
    /// Bytes that are known.
    Known(Vec<u8>),
}

/// What an operand's numbers are made of.
struct Numbers {
    bytes: ValueId,
    dtype: DType,
    zero: Option<(Zero, Shape)>,
    scale: Option<(ValueId, Shape)>,
}

/// A product of such numbers.
struct Found {
    op: Op,
    sides: [Numbers; 2],
}

/// Looks at what makes the operands of a product.
struct Look<'g> {
    graph: &'g Graph,
    place: &'g [u32],
    source: SourceId,
}

impl Look<'_> {
    /// What makes a value, where nothing sets it apart from the product.
    fn maker(&self, value: ValueId) -> Option<(&Op, &[ValueId])> {
        let node = self.graph.maker(value);
        same_marks(self.graph, self.place, self.source, node.source).then_some((&node.op, &*node.operands))
    }

    /// Bytes that a value has as floats.
    fn bytes(&self, value: ValueId) -> Option<ValueId> {
        match self.maker(value)? {
            (Op::Convert { to: DType::F32 }, &[x]) => self.graph.ty(x).dtype.is_byte().then_some(x),
            _ => None,
        }
    }

    /// Bytes of a type that floats are.
    fn zero(&self, value: ValueId, dtype: DType) -> Option<Zero> {
        if let Some(tensor) = self.graph.as_constant(value) {
            return known_bytes(tensor, dtype).map(Zero::Known);
        }
        let value = match self.maker(value)? {
            (Op::Reshape { .. }, &[inner]) => inner,
            _ => value,
        };
        self.bytes(value).filter(|&bytes| self.graph.ty(bytes).dtype == dtype).map(Zero::Of)
    }

    /// Bytes less zero points.
    fn centred(&self, value: ValueId) -> Option<Numbers> {
        let plain =
            |bytes: ValueId| Numbers { bytes, dtype: self.graph.ty(bytes).dtype, zero: None, scale: None };
        if let Some(bytes) = self.bytes(value) {
            return Some(plain(bytes));
        }
        let (Op::Binary(Binary::Sub), &[x, zero]) = self.maker(value)? else { return None };
        let made = plain(self.bytes(x)?);
        let known = self.zero(zero, made.dtype)?;
        Some(Numbers { zero: Some((known, self.graph.ty(zero).shape.clone())), ..made })
    }

    fn numbers(&self, value: ValueId) -> Option<Numbers> {
        let made = match self.maker(value)? {
            (Op::Binary(Binary::Mul), &[x, y]) => {
                let with = |x: ValueId, scale: ValueId| {
                    let scale = (scale, self.graph.ty(scale).shape.clone());
                    self.centred(x).map(|centred| Numbers { scale: Some(scale), ..centred })
                };
                with(x, y).or_else(|| with(y, x))?
            }
            _ => self.centred(value)?,
        };
        // Neither repeats the bytes.
        (self.graph.ty(made.bytes).shape == self.graph.ty(value).shape).then_some(made)
    }
}

/// Floats as bytes of a type. None where some are none.
fn known_bytes(tensor: &Tensor, dtype: DType) -> Option<Vec<u8>> {
    let elements = tensor.bytes().chunks_exact(tensor.dtype().size() as usize);
    elements
        .map(|element| {
            let number = float_element(tensor.dtype(), element)?;
            let whole = number as i64;
            let byte = match dtype {
                DType::I8 => i8::try_from(whole).ok()?.cast_unsigned(),
                _ => u8::try_from(whole).ok()?,
            };
            (whole as f64 == number).then_some(byte)
        })
        .collect()
}

/// Whether there is one for all.
fn is_one(shape: &Shape) -> bool {
    shape.elements() == Some(crate::ir::Size::Known(1))
}

impl Found {
    fn of(graph: &Graph, place: &[u32], id: NodeId) -> Option<Self> {
        let node = graph.node(id);
        let (&Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false }, &[x, y]) =
            (&node.op, &node.operands[..])
        else {
            return None;
        };
        if graph.ty(node.first_result).dtype != DType::F32 {
            return None;
        }
        let look = Look { graph, place, source: node.source };
        let of = MatMul { transpose_left, transpose_right, wide: true, rounds: false };
        let terms = graph.ty(x).shape.dims()?;
        let terms = terms[terms.len() - if transpose_left { 2 } else { 1 }];
        let sides = [look.numbers(x)?, look.numbers(y)?];
        let fits = terms <= MOST_TERMS && left_fits(of, &sides[0]) && right_fits(graph, id, of, &sides[1]);
        let op = Op::MatMul { transpose_left, transpose_right, wide: true, rounds: false };
        fits.then_some(Self { op, sides })
    }

    fn write(self, rewriter: &mut Rewriter<'_>, id: NodeId, source: SourceId) -> Result<()> {
        let mut operands = Vec::with_capacity(4);
        for side in &self.sides {
            operands.push(rewriter.value(side.bytes)?);
        }
        if self.sides.iter().any(|side| side.zero.is_some()) {
            for side in &self.sides {
                operands.push(zero_point(rewriter, side, source)?);
            }
        }
        let sums = rewriter.add(self.op, &operands, source)?;
        let to = Op::Convert { to: DType::F32 };
        let mut scales = Vec::with_capacity(2);
        for (side, (scale, shape)) in
            self.sides.iter().enumerate().filter_map(|(at, side)| Some((at, side.scale.as_ref()?)))
        {
            let value = rewriter.value(*scale)?;
            // That of the left operand's rows lies as it is to lie.
            let flat = if is_one(shape) || side == 1 { Some(flat(shape)) } else { None };
            scales.push(match flat.filter(|flat| flat != shape) {
                Some(shape) => rewriter.add(Op::Reshape { shape }, &[value], source)?,
                None => value,
            });
        }
        let factor = match scales[..] {
            [] => return rewriter.keep_as(id, to, &[sums]),
            [scale] => scale,
            _ => rewriter.add(Op::Binary(Binary::Mul), &scales, source)?,
        };
        let sums = rewriter.add(to, &[sums], source)?;
        rewriter.keep_as(id, Op::Binary(Binary::Mul), &[sums, factor])
    }
}

/// A scale or zero point of the left operand is one for all, or a scale of each row.
fn left_fits(op: MatMul, side: &Numbers) -> bool {
    let zero = side.zero.as_ref().is_none_or(|(_, shape)| is_one(shape));
    let of_rows =
        |shape: &Shape| !op.transpose_left && shape.sizes().last() == Some(&crate::ir::Size::Known(1));
    zero && side.scale.as_ref().is_none_or(|(_, shape)| is_one(shape) || of_rows(shape))
}

/// Those of the right operand are one for all, or one for each column.
fn right_fits(graph: &Graph, product: NodeId, op: MatMul, side: &Numbers) -> bool {
    let made = &graph.ty(graph.node(product).first_result).shape;
    let of_columns = |shape: &Shape| {
        let at_end = shape.rank().checked_sub(if op.transpose_right { 2 } else { 1 });
        shape.elements().as_ref() == made.sizes().last()
            && at_end.is_some_and(|at| Some(&shape[at]) == made.sizes().last())
    };
    let fits = |shape: &Shape| is_one(shape) || of_columns(shape);
    side.zero.as_ref().is_none_or(|(_, shape)| fits(shape))
        && side.scale.as_ref().is_none_or(|(_, shape)| fits(shape))
}

/// No axes where there is one for all, else one axis.
fn flat(shape: &Shape) -> Shape {
    match is_one(shape) {
        true => Shape::new([]),
        false => shape.elements().map_or_else(|| shape.clone(), |size| Shape::new([size])),
    }
}

fn zero_point(rewriter: &mut Rewriter<'_>, side: &Numbers, source: SourceId) -> Result<ValueId> {
    let (bytes, shape) = match &side.zero {
        Some((Zero::Of(value), shape)) => {
            let (value, shape) = (rewriter.value(*value)?, flat(shape));
            if rewriter.graph().ty(value).shape == shape {
                return Ok(value);
            }
            return rewriter.add(Op::Reshape { shape }, &[value], source);
        }
        Some((Zero::Known(bytes), shape)) => (bytes.clone(), flat(shape)),
        None => (vec![0], Shape::new([])),
    };
    let dims = shape.dims().unwrap_or_default().into_iter().map(|dim| dim.unsigned_abs()).collect();
    let tensor = Tensor::new(side.dtype, dims, bytes)?;
    Ok(rewriter.graph_mut().add_constant(tensor, source))
}
