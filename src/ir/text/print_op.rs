//! Printing an operation's attributes. `parse_op` reads them in the same order.

use std::fmt::{self, Display, Formatter};

use super::super::{
    Attention, AttentionOp, BlockFormat, Conv, CumSum, ElementwiseOp, Family, GeneratorOp, IndexOp, LayoutOp,
    MatMul, Normalization, NormalizeOp, Op, Packed, PackedOp, Pool, Real, ReduceOp, Resize, Size, Slice,
    Softmax, Type, Window, WindowOp,
};
use super::defaults::{self, Attribute};
use super::print::{Printer, list};

/// ` name=value` for each attribute of an operation with this (first) result that is not the default. Leaves are
/// printed by the graph's printer.
pub(super) fn attributes(
    printer: &Printer<'_>,
    f: &mut Formatter<'_>,
    op: &Op,
    result: &Type,
) -> fmt::Result {
    AttributePrinter { printer, f, result }.op(op)
}

struct AttributePrinter<'p, 'g, 'f, 'b> {
    printer: &'p Printer<'g>,
    f: &'f mut Formatter<'b>,
    result: &'p Type,
}

impl AttributePrinter<'_, '_, '_, '_> {
    fn op(&mut self, op: &Op) -> fmt::Result {
        match op.family() {
            Family::Leaf => Ok(()),
            Family::Generator(GeneratorOp::Sizes(sizes)) => {
                self.f.write_str(" ")?;
                self.printer.sizes(self.f, sizes)
            }
            Family::Generator(GeneratorOp::Iota { axis }) => self.value("axis", axis),
            Family::Elementwise(op) => self.elementwise(op),
            Family::Layout(op) => self.layout(op),
            Family::Index(op) => self.index(op),
            Family::Window(op) => self.windowed(op),
            Family::Reduce(op) => self.reduce(op),
            Family::Normalize(op) => self.normalize(op),
            Family::Product(MatMul { transpose_left, transpose_right, wide, rounds }) => {
                self.optional(&defaults::TRANSPOSE_LEFT, &transpose_left)?;
                self.optional(&defaults::TRANSPOSE_RIGHT, &transpose_right)?;
                self.optional(&defaults::WIDE, &wide)?;
                self.optional(&defaults::ROUNDS, &rounds)
            }
            Family::Packed(PackedOp::Unpack(of) | PackedOp::MatMul(of)) => self.packed(of),
            Family::Attention(op) => self.attention(op),
            Family::Recurrent(layer) => {
                self.value("cell", layer.cell)?;
                self.optional(&defaults::DIRECTION, &layer.direction)?;
                self.value("hidden", layer.hidden)
            }
        }
    }

    fn elementwise(&mut self, op: ElementwiseOp) -> fmt::Result {
        match op {
            // The name says all.
            ElementwiseOp::Unary(_)
            | ElementwiseOp::Binary(_)
            | ElementwiseOp::Compare(_)
            | ElementwiseOp::Select => Ok(()),
            ElementwiseOp::Convert { to } if to == self.result.dtype => Ok(()),
            ElementwiseOp::Convert { to } => self.value("to", to),
        }
    }

    fn layout(&mut self, op: LayoutOp<'_>) -> fmt::Result {
        match op {
            LayoutOp::Reshape { shape } | LayoutOp::Broadcast { shape } => {
                self.sizes_of_result("shape", shape.sizes())
            }
            LayoutOp::Transpose { perm } => self.list("perm", perm),
            LayoutOp::Slice(slice) => self.slice(slice),
            LayoutOp::Pad(pad) => {
                self.each_axis(&defaults::BEFORE, &pad.before)?;
                self.each_axis(&defaults::AFTER, &pad.after)?;
                self.optional(&defaults::MODE, &pad.mode)?;
                self.optional_real(&defaults::VALUE, pad.value)
            }
            LayoutOp::Concat { axis } => self.value("axis", axis),
        }
    }

    fn slice(&mut self, slice: &Slice) -> fmt::Result {
        let start = Size::Known(defaults::STARTS.default);
        if !is_repeated(&slice.starts, &start, self.rank()) {
            self.sizes(defaults::STARTS.name, &slice.starts)?;
        }
        self.sizes_of_result("sizes", &slice.sizes)?;
        self.each_axis(&defaults::STEPS, &slice.steps)
    }

    fn index(&mut self, op: IndexOp<'_>) -> fmt::Result {
        match op {
            IndexOp::Gather { axis } | IndexOp::GatherElements { axis } => self.value("axis", axis),
            IndexOp::GatherNd { batch_dims } => self.optional(&defaults::BATCH_DIMS, &batch_dims),
            IndexOp::ScatterElements { axis, kind } => {
                self.value("axis", axis)?;
                self.optional(&defaults::SCATTER, &kind)
            }
            IndexOp::ScatterNd { kind } => self.optional(&defaults::SCATTER, &kind),
            IndexOp::UpdateSlice { axis } => self.value("axis", axis),
            IndexOp::TreeLeaves { depth } => self.value("depth", depth),
            IndexOp::TopK(topk) => {
                self.value("axis", topk.axis)?;
                self.value("k", topk.k)?;
                self.optional(&defaults::LARGEST, &topk.largest)
            }
        }
    }

    fn windowed(&mut self, op: WindowOp<'_>) -> fmt::Result {
        match op {
            WindowOp::Conv(Conv { layout, window, groups }) => {
                self.optional(&defaults::LAYOUT, layout)?;
                self.window(window)?;
                self.optional(&defaults::GROUPS, groups)
            }
            WindowOp::ConvTranspose(conv) => {
                self.optional(&defaults::LAYOUT, &conv.layout)?;
                self.window(&conv.window)?;
                self.each_spatial_axis(&defaults::OUTPUT_PADDING, &conv.output_padding)?;
                self.optional(&defaults::GROUPS, &conv.groups)
            }
            WindowOp::Pool(pool) | WindowOp::MaxPoolGradient(pool) => self.pool(pool),
            WindowOp::Resize(resize) => self.resize(resize),
        }
    }

    fn window(&mut self, window: &Window) -> fmt::Result {
        self.each_spatial_axis(&defaults::STRIDES, &window.strides)?;
        self.each_spatial_axis(&defaults::DILATIONS, &window.dilations)?;
        self.each_spatial_axis(&defaults::PADS_BEFORE, &window.pads_before)?;
        self.each_spatial_axis(&defaults::PADS_AFTER, &window.pads_after)
    }

    fn pool(&mut self, pool: &Pool) -> fmt::Result {
        self.value("kind", pool.kind)?;
        self.optional(&defaults::LAYOUT, &pool.layout)?;
        self.list("kernel", &pool.kernel)?;
        self.window(&pool.window)?;
        self.each_spatial_axis(&defaults::EXTRA_AFTER, &pool.extra_after)
    }

    fn resize(&mut self, resize: &Resize) -> fmt::Result {
        self.sizes_of_result("shape", resize.shape.sizes())?;
        self.optional(&defaults::INTERPOLATION, &resize.interpolation)?;
        self.optional(&defaults::COORDINATES, &resize.coordinates)?;
        let Some(scales) = &resize.scales else { return Ok(()) };
        self.f.write_str(" scales=")?;
        list(self.f, scales, real)
    }

    fn reduce(&mut self, op: ReduceOp<'_>) -> fmt::Result {
        match op {
            ReduceOp::Reduce { kind, axes, keep } => {
                self.value("kind", kind)?;
                self.list("axes", axes)?;
                self.optional(&defaults::KEEP, &keep)
            }
            ReduceOp::ArgReduce { kind: _, axis, keep, last } => {
                self.value("axis", axis)?;
                self.optional(&defaults::KEEP, &keep)?;
                self.optional(&defaults::LAST, &last)
            }
            ReduceOp::CumSum(CumSum { axis, exclusive, reverse }) => {
                self.value("axis", axis)?;
                self.optional(&defaults::EXCLUSIVE, &exclusive)?;
                self.optional(&defaults::REVERSE, &reverse)
            }
        }
    }

    fn normalize(&mut self, op: NormalizeOp<'_>) -> fmt::Result {
        match op {
            NormalizeOp::CrossEntropy | NormalizeOp::CrossEntropyGradient => Ok(()),
            NormalizeOp::Softmax(Softmax { axis, log })
            | NormalizeOp::SoftmaxGradient(Softmax { axis, log }) => {
                self.value("axis", axis)?;
                self.optional(&defaults::LOG, &log)
            }
            NormalizeOp::Normalize(of) => self.normalization(of, defaults::SCALED.default),
            NormalizeOp::NormalizeGradient { of, scaled } => self.normalization(of, scaled),
            NormalizeOp::LocalResponseNorm(response) => {
                self.value("size", response.size)?;
                self.optional_real(&defaults::ALPHA, Real(response.alpha))?;
                self.optional_real(&defaults::BETA, Real(response.beta))?;
                self.optional_real(&defaults::BIAS, Real(response.bias))
            }
        }
    }

    /// A normalisation's attributes; only its gradient may be `scaled`.
    fn normalization(&mut self, of: Normalization<'_>, scaled: bool) -> fmt::Result {
        self.list("axes", of.axes)?;
        self.real("epsilon", Real(of.epsilon))?;
        self.optional(&defaults::CENTER, &of.center)?;
        self.optional(&defaults::SCALED, &scaled)?;
        if of.moments { self.f.write_str(" moments") } else { Ok(()) }
    }

    fn packed(&mut self, packed: Packed) -> fmt::Result {
        self.value("format", packed.format.name())?;
        if let BlockFormat::Groups { bits, size } = packed.format {
            self.value("bits", bits)?;
            self.value("size", size)?;
        }
        self.value("columns", packed.columns)
    }

    fn attention(&mut self, op: AttentionOp<'_>) -> fmt::Result {
        match op {
            AttentionOp::Attention(attention) | AttentionOp::AttentionGradient(attention) => {
                self.heads(attention)
            }
            AttentionOp::Rotary { transposed } => self.optional(&defaults::TRANSPOSED, &transposed),
        }
    }

    fn heads(&mut self, attention: &Attention) -> fmt::Result {
        self.value("heads", attention.heads)?;
        if attention.key_heads != attention.heads {
            self.value("key_heads", attention.key_heads)?;
        }
        self.each(&defaults::FIRST, &attention.first, 3)?;
        self.each(&defaults::ORDERS, &attention.orders, 4)?;
        self.real("scale", attention.scale)?;
        if let Some(offset) = attention.causal {
            self.value("causal", offset)?;
        }
        if attention.positioned {
            self.f.write_str(" positioned")?;
        }
        self.optional_real(&defaults::FILL, attention.fill)?;
        self.optional(&defaults::ZEROS, &attention.zeros)
    }

    fn rank(&self) -> usize {
        self.result.shape.rank()
    }

    fn value(&mut self, name: &str, value: impl Display) -> fmt::Result {
        write!(self.f, " {name}={value}")
    }

    fn real(&mut self, name: &str, value: Real) -> fmt::Result {
        write!(self.f, " {name}=")?;
        real(self.f, &value)
    }

    fn list<T: Display>(&mut self, name: &str, values: &[T]) -> fmt::Result {
        write!(self.f, " {name}=")?;
        list(self.f, values, |f, value| write!(f, "{value}"))
    }

    fn sizes(&mut self, name: &str, sizes: &[Size]) -> fmt::Result {
        write!(self.f, " {name}=")?;
        self.printer.sizes(self.f, sizes)
    }

    /// Sizes that inference gives to the result. They are printed in a graph that is not valid.
    fn sizes_of_result(&mut self, name: &str, sizes: &[Size]) -> fmt::Result {
        if sizes == self.result.shape.sizes() { Ok(()) } else { self.sizes(name, sizes) }
    }

    fn optional<T: Display + PartialEq>(&mut self, attribute: &Attribute<T>, value: &T) -> fmt::Result {
        if *value == attribute.default { Ok(()) } else { self.value(attribute.name, value) }
    }

    fn optional_real(&mut self, attribute: &Attribute<Real>, value: Real) -> fmt::Result {
        if value == attribute.default { Ok(()) } else { self.real(attribute.name, value) }
    }

    /// A list of `count` entries, left out where each is the default.
    fn each<T: Display + PartialEq>(
        &mut self,
        attribute: &Attribute<T>,
        values: &[T],
        count: usize,
    ) -> fmt::Result {
        if is_repeated(values, &attribute.default, count) {
            return Ok(());
        }
        self.list(attribute.name, values)
    }

    fn each_axis(&mut self, attribute: &Attribute<i64>, values: &[i64]) -> fmt::Result {
        self.each(attribute, values, self.rank())
    }

    fn each_spatial_axis(&mut self, attribute: &Attribute<i64>, values: &[i64]) -> fmt::Result {
        self.each(attribute, values, defaults::spatial_rank(self.result))
    }
}

fn is_repeated<T: PartialEq>(values: &[T], default: &T, count: usize) -> bool {
    values.len() == count && values.iter().all(|value| value == default)
}

/// The shortest decimal; the bits where the value is not a number.
pub(super) fn real(f: &mut Formatter<'_>, value: &Real) -> fmt::Result {
    if value.0.is_nan() { write!(f, "nan:{:016x}", value.0.to_bits()) } else { write!(f, "{value}") }
}
