//! Printing an operation's attributes. `parse_op` reads them in the same order.

use std::fmt::{self, Formatter};

use super::super::{
    AttentionOp, BlockFormat, CumSum, ElementwiseOp, Family, GeneratorOp, IndexOp, LayoutOp, MatMul,
    Normalization, NormalizeOp, Op, Packed, PackedOp, Real, ReduceOp, Softmax, Window, WindowOp,
};
use super::print::{Printer, list};

/// ` name=value` for each attribute. Leaves are printed by the graph's printer.
pub(super) fn attributes(printer: &Printer<'_>, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
    match op.family() {
        Family::Leaf => Ok(()),
        Family::Generator(GeneratorOp::Sizes(sizes)) => {
            f.write_str(" ")?;
            printer.sizes(f, sizes)
        }
        Family::Generator(GeneratorOp::Iota { axis }) => write!(f, " axis={axis}"),
        Family::Elementwise(op) => elementwise(f, op),
        Family::Layout(op) => layout(printer, f, op),
        Family::Index(op) => index(f, op),
        Family::Window(op) => windows(printer, f, op),
        Family::Reduce(op) => reduce(f, op),
        Family::Normalize(op) => normalize(f, op),
        Family::Product(MatMul { transpose_left, transpose_right }) => {
            write!(f, " transpose_left={transpose_left} transpose_right={transpose_right}")
        }
        Family::Packed(PackedOp::Unpack(of) | PackedOp::MatMul(of)) => packed(f, of),
        Family::Attention(op) => attention(f, op),
        Family::Recurrent(layer) => {
            write!(f, " cell={} direction={} hidden={}", layer.cell, layer.direction, layer.hidden)
        }
    }
}

fn packed(f: &mut Formatter<'_>, packed: Packed) -> fmt::Result {
    write!(f, " format={}", packed.format.name())?;
    if let BlockFormat::Groups { bits, size } = packed.format {
        write!(f, " bits={bits} size={size}")?;
    }
    write!(f, " columns={}", packed.columns)
}

fn elementwise(f: &mut Formatter<'_>, op: ElementwiseOp) -> fmt::Result {
    match op {
        // The name says all.
        ElementwiseOp::Unary(_)
        | ElementwiseOp::Binary(_)
        | ElementwiseOp::Compare(_)
        | ElementwiseOp::Select => Ok(()),
        ElementwiseOp::Convert { to } => write!(f, " to={to}"),
    }
}

fn layout(printer: &Printer<'_>, f: &mut Formatter<'_>, op: LayoutOp<'_>) -> fmt::Result {
    match op {
        LayoutOp::Reshape { shape } | LayoutOp::Broadcast { shape } => {
            f.write_str(" shape=")?;
            printer.sizes(f, shape.sizes())
        }
        LayoutOp::Transpose { perm } => integers(f, "perm", perm),
        LayoutOp::Slice(slice) => {
            f.write_str(" starts=")?;
            printer.sizes(f, &slice.starts)?;
            f.write_str(" sizes=")?;
            printer.sizes(f, &slice.sizes)?;
            integers(f, "steps", &slice.steps)
        }
        LayoutOp::Pad(pad) => {
            integers(f, "before", &pad.before)?;
            integers(f, "after", &pad.after)?;
            write!(f, " mode={}", pad.mode)?;
            real_attribute(f, "value", pad.value)
        }
        LayoutOp::Concat { axis } => write!(f, " axis={axis}"),
    }
}

fn index(f: &mut Formatter<'_>, op: IndexOp<'_>) -> fmt::Result {
    match op {
        IndexOp::Gather { axis } | IndexOp::GatherElements { axis } => write!(f, " axis={axis}"),
        IndexOp::GatherNd { batch_dims } => write!(f, " batch_dims={batch_dims}"),
        IndexOp::ScatterElements { axis, kind } => write!(f, " axis={axis} kind={kind}"),
        IndexOp::ScatterNd { kind } => write!(f, " kind={kind}"),
        IndexOp::UpdateSlice { axis } => write!(f, " axis={axis}"),
        IndexOp::TopK(topk) => write!(f, " axis={} k={} largest={}", topk.axis, topk.k, topk.largest),
    }
}

fn windows(printer: &Printer<'_>, f: &mut Formatter<'_>, op: WindowOp<'_>) -> fmt::Result {
    match op {
        WindowOp::Conv(conv) => {
            write!(f, " layout={}", conv.layout)?;
            window(f, &conv.window)?;
            write!(f, " groups={}", conv.groups)
        }
        WindowOp::ConvTranspose(conv) => {
            write!(f, " layout={}", conv.layout)?;
            window(f, &conv.window)?;
            integers(f, "output_padding", &conv.output_padding)?;
            write!(f, " groups={}", conv.groups)
        }
        WindowOp::Pool(pool) | WindowOp::MaxPoolGradient(pool) => {
            write!(f, " kind={} layout={}", pool.kind, pool.layout)?;
            integers(f, "kernel", &pool.kernel)?;
            window(f, &pool.window)?;
            integers(f, "extra_after", &pool.extra_after)
        }
        WindowOp::Resize(resize) => {
            f.write_str(" shape=")?;
            printer.sizes(f, resize.shape.sizes())?;
            write!(f, " interpolation={} coordinates={}", resize.interpolation, resize.coordinates)?;
            let Some(scales) = &resize.scales else { return Ok(()) };
            f.write_str(" scales=")?;
            list(f, scales, real)
        }
    }
}

fn reduce(f: &mut Formatter<'_>, op: ReduceOp<'_>) -> fmt::Result {
    match op {
        ReduceOp::Reduce { kind, axes, keep } => {
            write!(f, " kind={kind}")?;
            integers(f, "axes", axes)?;
            write!(f, " keep={keep}")
        }
        ReduceOp::ArgReduce { kind: _, axis, keep, last } => {
            write!(f, " axis={axis} keep={keep} last={last}")
        }
        ReduceOp::CumSum(CumSum { axis, exclusive, reverse }) => {
            write!(f, " axis={axis} exclusive={exclusive} reverse={reverse}")
        }
    }
}

fn normalize(f: &mut Formatter<'_>, op: NormalizeOp<'_>) -> fmt::Result {
    match op {
        NormalizeOp::CrossEntropy | NormalizeOp::CrossEntropyGradient => Ok(()),
        NormalizeOp::Softmax(Softmax { axis, log }) | NormalizeOp::SoftmaxGradient(Softmax { axis, log }) => {
            write!(f, " axis={axis} log={log}")
        }
        NormalizeOp::Normalize(of) => normalization(f, of, None),
        NormalizeOp::NormalizeGradient { of, scaled } => normalization(f, of, Some(scaled)),
        NormalizeOp::LocalResponseNorm(response) => {
            write!(f, " size={}", response.size)?;
            real_attribute(f, "alpha", Real(response.alpha))?;
            real_attribute(f, "beta", Real(response.beta))?;
            real_attribute(f, "bias", Real(response.bias))
        }
    }
}

/// A normalisation's attributes; `scaled` of its gradient alone.
fn normalization(f: &mut Formatter<'_>, of: Normalization<'_>, scaled: Option<bool>) -> fmt::Result {
    integers(f, "axes", of.axes)?;
    real_attribute(f, "epsilon", Real(of.epsilon))?;
    write!(f, " center={}", of.center)?;
    if let Some(scaled) = scaled {
        write!(f, " scaled={scaled}")?;
    }
    if of.moments { f.write_str(" moments") } else { Ok(()) }
}

fn attention(f: &mut Formatter<'_>, op: AttentionOp<'_>) -> fmt::Result {
    let heads = match op {
        AttentionOp::Attention(heads) | AttentionOp::AttentionGradient(heads) => heads,
        AttentionOp::Rotary { transposed } => return write!(f, " transposed={transposed}"),
    };
    write!(f, " heads={} key_heads={}", heads.heads, heads.key_heads)?;
    integers(f, "first", &heads.first)?;
    integers(f, "orders", &heads.orders)?;
    real_attribute(f, "scale", heads.scale)?;
    if let Some(offset) = heads.causal {
        write!(f, " causal={offset}")?;
    }
    if heads.positioned {
        f.write_str(" positioned")?;
    }
    real_attribute(f, "fill", heads.fill)?;
    write!(f, " zeros={}", heads.zeros)
}

fn real_attribute(f: &mut Formatter<'_>, name: &str, value: Real) -> fmt::Result {
    write!(f, " {name}=")?;
    real(f, &value)
}

fn integers<T: fmt::Display>(f: &mut Formatter<'_>, name: &str, values: &[T]) -> fmt::Result {
    write!(f, " {name}=")?;
    list(f, values, |f, value| write!(f, "{value}"))
}

fn window(f: &mut Formatter<'_>, window: &Window) -> fmt::Result {
    integers(f, "strides", &window.strides)?;
    integers(f, "dilations", &window.dilations)?;
    integers(f, "pads_before", &window.pads_before)?;
    integers(f, "pads_after", &window.pads_after)
}

/// The shortest decimal; the bits where the value is not a number.
pub(super) fn real(f: &mut Formatter<'_>, value: &Real) -> fmt::Result {
    if value.0.is_nan() { write!(f, "nan:{:016x}", value.0.to_bits()) } else { write!(f, "{value}") }
}
