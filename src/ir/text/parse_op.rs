//! Reading an operation's attributes, in the order in which `print_op` prints them.

use super::super::{
    ArgReduce, Attention, Binary, BlockFormat, Cell, Compare, Conv, ConvTranspose, DType, Direction,
    HeadOrder, Interpolation, Layout, Op, OpName, Packed, Pad, PadMode, Pool, PoolKind, Recurrent,
    ReduceKind, Resize, ResizeCoordinates, ScatterKind, Shape, Size, Slice, TopK, Unary, Window,
};
use super::cursor::{Cursor, Dims};
use crate::error::Result;

/// The operation of this name with the attributes that stand at the cursor.
pub(super) fn op(cursor: &mut Cursor<'_>, name: &str, dims: &Dims) -> Result<Op> {
    if let Some(unary) = Unary::from_name(name) {
        return Ok(Op::Unary(unary));
    }
    if let Some(binary) = Binary::from_name(name) {
        return Ok(Op::Binary(binary));
    }
    if let Some(compare) = Compare::from_name(name) {
        return Ok(Op::Compare(compare));
    }
    if let Some(kind) = ArgReduce::from_name(name) {
        let (axis, keep, last) = (axis(cursor)?, flag(cursor, "keep")?, flag(cursor, "last")?);
        return Ok(Op::ArgReduce { kind, axis, keep, last });
    }
    let Some(name) = OpName::from_name(name) else {
        return Err(cursor.fail(format!("there is no operation {name}")));
    };
    named_op(cursor, name, dims)
}

/// One arm for each operation: its attributes in their order.
fn named_op(cursor: &mut Cursor<'_>, name: OpName, dims: &Dims) -> Result<Op> {
    Ok(match name {
        // The graph's reader knows them by what stands beside them.
        OpName::Input | OpName::Param | OpName::Constant => {
            return Err(cursor.fail(format!("there is no operation {name}")));
        }
        OpName::Conv => Op::Conv(Box::new(Conv {
            layout: layout(cursor)?,
            window: window(cursor)?,
            groups: integer(cursor, "groups")?,
        })),
        OpName::ConvTranspose => Op::ConvTranspose(Box::new(ConvTranspose {
            layout: layout(cursor)?,
            window: window(cursor)?,
            output_padding: integers(cursor, "output_padding")?,
            groups: integer(cursor, "groups")?,
        })),
        OpName::Pool => Op::Pool(Box::new(pool(cursor)?)),
        OpName::MaxPoolGradient => Op::MaxPoolGradient(Box::new(pool(cursor)?)),
        OpName::Sizes => Op::Sizes(cursor.list(|cursor| cursor.size(dims))?.into()),
        OpName::Iota => Op::Iota { axis: axis(cursor)? },
        OpName::Select => Op::Select,
        OpName::Convert => Op::Convert { to: named(cursor, "to", |word| word.parse::<DType>().ok())? },
        OpName::Reduce => Op::Reduce {
            kind: named(cursor, "kind", ReduceKind::from_name)?,
            axes: integers(cursor, "axes")?,
            keep: flag(cursor, "keep")?,
        },
        OpName::CumSum => Op::CumSum {
            axis: axis(cursor)?,
            exclusive: flag(cursor, "exclusive")?,
            reverse: flag(cursor, "reverse")?,
        },
        OpName::Softmax => Op::Softmax { axis: axis(cursor)?, log: flag(cursor, "log")? },
        OpName::SoftmaxGradient => Op::SoftmaxGradient { axis: axis(cursor)?, log: flag(cursor, "log")? },
        OpName::CrossEntropy => Op::CrossEntropy,
        OpName::CrossEntropyGradient => Op::CrossEntropyGradient,
        OpName::NormalizeGradient => Op::NormalizeGradient {
            axes: integers(cursor, "axes")?,
            epsilon: real(cursor, "epsilon")?,
            center: flag(cursor, "center")?,
            scaled: flag(cursor, "scaled")?,
            moments: cursor.eat("moments"),
        },
        OpName::Normalize => Op::Normalize {
            axes: integers(cursor, "axes")?,
            epsilon: real(cursor, "epsilon")?,
            center: flag(cursor, "center")?,
            moments: cursor.eat("moments"),
        },
        OpName::LocalResponseNorm => Op::LocalResponseNorm {
            size: integer(cursor, "size")?,
            alpha: real(cursor, "alpha")?,
            beta: real(cursor, "beta")?,
            bias: real(cursor, "bias")?,
        },
        OpName::MatMul => Op::MatMul {
            transpose_left: flag(cursor, "transpose_left")?,
            transpose_right: flag(cursor, "transpose_right")?,
        },
        OpName::Unpack => Op::Unpack(packed(cursor)?),
        OpName::PackedMatMul => Op::PackedMatMul(packed(cursor)?),
        OpName::Attention => Op::Attention(Box::new(attention(cursor)?)),
        OpName::AttentionGradient => Op::AttentionGradient(Box::new(attention(cursor)?)),
        OpName::Rotary => Op::Rotary { transposed: flag(cursor, "transposed")? },
        OpName::Resize => Op::Resize(Box::new(resize(cursor, dims)?)),
        OpName::Recurrent => Op::Recurrent(Box::new(Recurrent {
            cell: named(cursor, "cell", Cell::from_name)?,
            direction: named(cursor, "direction", Direction::from_name)?,
            hidden: integer(cursor, "hidden")?,
        })),
        OpName::Reshape => Op::Reshape { shape: shape(cursor, dims)? },
        OpName::Transpose => Op::Transpose { perm: integers(cursor, "perm")? },
        OpName::Broadcast => Op::Broadcast { shape: shape(cursor, dims)? },
        OpName::Slice => Op::Slice(Box::new(Slice {
            starts: sizes(cursor, "starts", dims)?,
            sizes: sizes(cursor, "sizes", dims)?,
            steps: integers(cursor, "steps")?,
        })),
        OpName::Pad => Op::Pad(Box::new(Pad {
            before: integers(cursor, "before")?,
            after: integers(cursor, "after")?,
            mode: named(cursor, "mode", PadMode::from_name)?,
            value: real(cursor, "value")?,
        })),
        OpName::Concat => Op::Concat { axis: axis(cursor)? },
        OpName::Gather => Op::Gather { axis: axis(cursor)? },
        OpName::GatherElements => Op::GatherElements { axis: axis(cursor)? },
        OpName::GatherNd => Op::GatherNd { batch_dims: integer(cursor, "batch_dims")? },
        OpName::ScatterElements => {
            Op::ScatterElements { axis: axis(cursor)?, kind: named(cursor, "kind", ScatterKind::from_name)? }
        }
        OpName::ScatterNd => Op::ScatterNd { kind: named(cursor, "kind", ScatterKind::from_name)? },
        OpName::UpdateSlice => Op::UpdateSlice { axis: axis(cursor)? },
        OpName::TopK => Op::TopK(TopK {
            axis: axis(cursor)?,
            k: integer(cursor, "k")?,
            largest: flag(cursor, "largest")?,
        }),
    })
}

fn packed(cursor: &mut Cursor<'_>) -> Result<Packed> {
    let whole = |name: &str| BlockFormat::from_name(name).map(Some);
    let named = named(cursor, "format", |name| if name == "groups" { Some(None) } else { whole(name) })?;
    let format = match named {
        Some(format) => format,
        None => BlockFormat::Groups { bits: integer(cursor, "bits")?, size: integer(cursor, "size")? },
    };
    Ok(Packed { format, columns: integer(cursor, "columns")? })
}

fn pool(cursor: &mut Cursor<'_>) -> Result<Pool> {
    Ok(Pool {
        kind: named(cursor, "kind", PoolKind::from_name)?,
        layout: layout(cursor)?,
        kernel: integers(cursor, "kernel")?,
        window: window(cursor)?,
        extra_after: integers(cursor, "extra_after")?,
    })
}

fn attention(cursor: &mut Cursor<'_>) -> Result<Attention> {
    Ok(Attention {
        heads: integer(cursor, "heads")?,
        key_heads: integer(cursor, "key_heads")?,
        first: {
            let list = integers(cursor, "first")?;
            exactly(cursor, "first", list)?
        },
        orders: {
            cursor.attribute("orders")?;
            let list = cursor.list(|cursor| cursor.one_of("an order", HeadOrder::from_name))?;
            exactly(cursor, "orders", list)?
        },
        scale: real(cursor, "scale")?,
        causal: if cursor.eat("causal=") { Some(cursor.integer()?) } else { None },
        positioned: cursor.eat("positioned"),
        fill: real(cursor, "fill")?,
        zeros: flag(cursor, "zeros")?,
    })
}

/// So many, no more and no fewer.
fn exactly<T, const N: usize>(cursor: &Cursor<'_>, name: &str, list: Vec<T>) -> Result<[T; N]> {
    list.try_into().map_err(|_| cursor.fail(format!("expected {N} values of {name}")))
}

fn resize(cursor: &mut Cursor<'_>, dims: &Dims) -> Result<Resize> {
    let shape = shape(cursor, dims)?;
    let interpolation = named(cursor, "interpolation", Interpolation::from_name)?;
    let coordinates = named(cursor, "coordinates", ResizeCoordinates::from_name)?;
    let scales = if cursor.eat("scales=") { Some(cursor.list(Cursor::real)?) } else { None };
    Ok(Resize { shape, interpolation, coordinates, scales })
}

fn axis(cursor: &mut Cursor<'_>) -> Result<u32> {
    integer(cursor, "axis")
}

fn integer<T: std::str::FromStr>(cursor: &mut Cursor<'_>, name: &str) -> Result<T> {
    cursor.attribute(name)?;
    cursor.integer()
}

fn integers<T: std::str::FromStr>(cursor: &mut Cursor<'_>, name: &str) -> Result<Vec<T>> {
    cursor.attribute(name)?;
    cursor.list(Cursor::integer)
}

fn flag(cursor: &mut Cursor<'_>, name: &str) -> Result<bool> {
    cursor.attribute(name)?;
    cursor.bool()
}

fn real(cursor: &mut Cursor<'_>, name: &str) -> Result<super::super::Real> {
    cursor.attribute(name)?;
    cursor.real()
}

fn named<T>(cursor: &mut Cursor<'_>, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
    cursor.attribute(name)?;
    cursor.one_of(&format!("a value of {name}"), read)
}

fn layout(cursor: &mut Cursor<'_>) -> Result<Layout> {
    named(cursor, "layout", Layout::from_name)
}

fn window(cursor: &mut Cursor<'_>) -> Result<Window> {
    Ok(Window {
        strides: integers(cursor, "strides")?,
        dilations: integers(cursor, "dilations")?,
        pads_before: integers(cursor, "pads_before")?,
        pads_after: integers(cursor, "pads_after")?,
    })
}

fn shape(cursor: &mut Cursor<'_>, dims: &Dims) -> Result<Shape> {
    sizes(cursor, "shape", dims).map(Shape::new)
}

fn sizes(cursor: &mut Cursor<'_>, name: &str, dims: &Dims) -> Result<Vec<Size>> {
    cursor.attribute(name)?;
    cursor.list(|cursor| cursor.size(dims))
}
