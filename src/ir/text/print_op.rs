//! Printing an operation's attributes. `parse_op` reads them in the same order.

use std::fmt::{self, Formatter};

use super::super::{Op, Real, Window};
use super::print::{Printer, list};

/// ` name=value` for each attribute. Leaves are printed by the graph's printer.
pub(super) fn attributes(printer: &Printer<'_>, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Input
        | Op::CrossEntropy
        | Op::CrossEntropyGradient
        | Op::Param(_)
        | Op::Constant(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select => Ok(()),
        Op::Sizes(sizes) => {
            f.write_str(" ")?;
            printer.sizes(f, sizes)
        }
        Op::Iota { axis } | Op::Concat { axis } | Op::Gather { axis } | Op::GatherElements { axis } => {
            write!(f, " axis={axis}")
        }
        Op::Convert { to } => write!(f, " to={to}"),
        Op::Reduce { kind, axes, keep } => {
            write!(f, " kind={kind}")?;
            integers(f, "axes", axes)?;
            write!(f, " keep={keep}")
        }
        Op::ArgReduce { kind: _, axis, keep, last } => write!(f, " axis={axis} keep={keep} last={last}"),
        Op::CumSum { axis, exclusive, reverse } => {
            write!(f, " axis={axis} exclusive={exclusive} reverse={reverse}")
        }
        Op::Softmax { axis, log } | Op::SoftmaxGradient { axis, log } => {
            write!(f, " axis={axis} log={log}")
        }
        Op::Rotary { transposed } => write!(f, " transposed={transposed}"),
        Op::Normalize { axes, epsilon, center, moments } => {
            integers(f, "axes", axes)?;
            f.write_str(" epsilon=")?;
            real(f, epsilon)?;
            write!(f, " center={center}")?;
            with_moments(f, *moments)
        }
        Op::NormalizeGradient { axes, epsilon, center, scaled, moments } => {
            integers(f, "axes", axes)?;
            f.write_str(" epsilon=")?;
            real(f, epsilon)?;
            write!(f, " center={center} scaled={scaled}")?;
            with_moments(f, *moments)
        }
        Op::LocalResponseNorm { size, alpha, beta, bias } => {
            write!(f, " size={size}")?;
            for (name, value) in [("alpha", alpha), ("beta", beta), ("bias", bias)] {
                write!(f, " {name}=")?;
                real(f, value)?;
            }
            Ok(())
        }
        Op::MatMul { transpose_left, transpose_right } => {
            write!(f, " transpose_left={transpose_left} transpose_right={transpose_right}")
        }
        Op::Attention(op) | Op::AttentionGradient(op) => {
            write!(f, " heads={} key_heads={}", op.heads, op.key_heads)?;
            integers(f, "first", &op.first)?;
            integers(f, "orders", &op.orders)?;
            f.write_str(" scale=")?;
            real(f, &op.scale)?;
            if let Some(offset) = op.causal {
                write!(f, " causal={offset}")?;
            }
            f.write_str(" fill=")?;
            real(f, &op.fill)?;
            write!(f, " zeros={}", op.zeros)
        }
        Op::Conv(conv) => {
            write!(f, " layout={}", conv.layout)?;
            window(f, &conv.window)?;
            write!(f, " groups={}", conv.groups)
        }
        Op::ConvTranspose(conv) => {
            write!(f, " layout={}", conv.layout)?;
            window(f, &conv.window)?;
            integers(f, "output_padding", &conv.output_padding)?;
            write!(f, " groups={}", conv.groups)
        }
        Op::Pool(pool) | Op::MaxPoolGradient(pool) => {
            write!(f, " kind={} layout={}", pool.kind, pool.layout)?;
            integers(f, "kernel", &pool.kernel)?;
            window(f, &pool.window)?;
            integers(f, "extra_after", &pool.extra_after)
        }
        Op::Resize(resize) => {
            f.write_str(" shape=")?;
            printer.sizes(f, resize.shape.sizes())?;
            write!(f, " interpolation={} coordinates={}", resize.interpolation, resize.coordinates)?;
            let Some(scales) = &resize.scales else { return Ok(()) };
            f.write_str(" scales=")?;
            list(f, scales, real)
        }
        Op::Recurrent(layer) => {
            write!(f, " cell={} direction={} hidden={}", layer.cell, layer.direction, layer.hidden)
        }
        Op::Reshape { shape } | Op::Broadcast { shape } => {
            f.write_str(" shape=")?;
            printer.sizes(f, shape.sizes())
        }
        Op::Transpose { perm } => integers(f, "perm", perm),
        Op::Slice(slice) => {
            f.write_str(" starts=")?;
            printer.sizes(f, &slice.starts)?;
            f.write_str(" sizes=")?;
            printer.sizes(f, &slice.sizes)?;
            integers(f, "steps", &slice.steps)
        }
        Op::Pad(pad) => {
            integers(f, "before", &pad.before)?;
            integers(f, "after", &pad.after)?;
            write!(f, " mode={} value=", pad.mode)?;
            real(f, &pad.value)
        }
        Op::GatherNd { batch_dims } => write!(f, " batch_dims={batch_dims}"),
        Op::ScatterElements { axis, kind } => write!(f, " axis={axis} kind={kind}"),
        Op::ScatterNd { kind } => write!(f, " kind={kind}"),
        Op::TopK(topk) => write!(f, " axis={} k={} largest={}", topk.axis, topk.k, topk.largest),
    }
}

fn integers<T: fmt::Display>(f: &mut Formatter<'_>, name: &str, values: &[T]) -> fmt::Result {
    write!(f, " {name}=")?;
    list(f, values, |f, value| write!(f, "{value}"))
}

fn with_moments(f: &mut Formatter<'_>, moments: bool) -> fmt::Result {
    if moments { f.write_str(" moments") } else { Ok(()) }
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
