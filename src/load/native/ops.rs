//! The operations of the native format: those of the intermediate representation under the same
//! names, with defaults for most attributes and negative axes counted from the end; and a few
//! compositions.

use serde_json::Value;

use super::Builder;
use super::attributes::Attributes;
use crate::error::{Error, Result};
use crate::ir::text::parse_size;
use crate::ir::{
    ArgReduce, Binary, Cell, Compare, Conv, ConvTranspose, DType, Direction, Interpolation, Layout, Noise,
    NoiseKind, Op, OpName, Pad, PadMode, Pool, PoolKind, Real, Recurrent, ReduceKind, Resize,
    ResizeCoordinates, ScatterKind, Shape, Size, Slice, SourceId, TopK, Unary, ValueId, Window,
};

/// Epsilon of normalisations that give none.
const EPSILON: Real = Real(1e-5);

/// A normalisation with a scale; the former takes off the mean first, and has a shift.
#[derive(Clone, Copy)]
enum Norm {
    Layer,
    RootMeanSquare,
}

impl Builder {
    /// Adds the nodes of one operation and gives its results.
    pub(super) fn operation(
        &mut self,
        node: &Attributes<'_>,
        operands: &[ValueId],
        source: SourceId,
    ) -> Result<Vec<ValueId>> {
        match node.op {
            "dense" => self.dense(node, operands, source),
            "layer_norm" => self.norm(node, operands, source, Norm::Layer),
            "rms_norm" => self.norm(node, operands, source, Norm::RootMeanSquare),
            "dropout" | "gaussian_noise" | "gaussian_dropout" | "alpha_dropout" => {
                self.noise(node, operands, source)
            }
            "iota" => {
                none(operands, node.op)?;
                let text = node.text("type")?.ok_or_else(|| node.missing("type"))?;
                let ty = self.ty(text)?;
                let axis = axis_position(node.int("axis")?.unwrap_or(0), ty.shape.rank())?;
                Ok(vec![self.graph.add_iota(ty, axis, source)])
            }
            "sizes" => {
                none(operands, node.op)?;
                let sizes = self.sizes(node, "sizes")?.ok_or_else(|| node.missing("sizes"))?;
                let scalar = node.flag("scalar", false)?;
                if scalar && sizes.len() != 1 {
                    return Err(Error::model("sizes", "a scalar is one size"));
                }
                Ok(vec![self.graph.add_sizes(sizes, scalar, source)])
            }
            _ => {
                let op = self.op(node, operands)?;
                let added = self.graph.push(op, operands, source)?;
                Ok(self.graph.results(added).collect())
            }
        }
    }

    /// `activation(x * w + b)`; inputs x, w and optionally b.
    fn dense(
        &mut self,
        node: &Attributes<'_>,
        operands: &[ValueId],
        source: SourceId,
    ) -> Result<Vec<ValueId>> {
        let [x, w, bias @ ..] = operands else { return Err(wrong_count(node.op, "2 or 3", operands.len())) };
        if bias.len() > 1 {
            return Err(wrong_count(node.op, "2 or 3", operands.len()));
        }
        let matmul = Op::MatMul {
            transpose_left: false,
            transpose_right: node.flag("transpose_right", false)?,
            wide: false,
            rounds: false,
        };
        let mut value = self.graph.apply(matmul, &[*x, *w], source)?;
        if let [bias] = bias {
            value = self.graph.apply(Op::Binary(Binary::Add), &[value, *bias], source)?;
        }
        if node.get("activation").is_some() {
            let unary = node.named("activation", None, Unary::from_name)?;
            value = self.graph.apply(Op::Unary(unary), &[value], source)?;
        }
        Ok(vec![value])
    }

    /// What disturbs its input in training; input x.
    fn noise(
        &mut self,
        node: &Attributes<'_>,
        operands: &[ValueId],
        source: SourceId,
    ) -> Result<Vec<ValueId>> {
        let [x] = *operands else { return Err(wrong_count(node.op, "1", operands.len())) };
        let kind = NoiseKind::from_name(node.op).ok_or_else(|| self.unknown(node, operands))?;
        let key = if kind.is_probability() { "rate" } else { "deviation" };
        let rate = node.real(key)?.ok_or_else(|| node.missing(key))?;
        let noise = Noise::new(kind, rate.0)
            .ok_or_else(|| Error::model(key, format!("{} has no {key} {rate}", node.op)))?;
        let shared = self.axes(node, x, &[])?;
        Ok(vec![self.graph.disturbed(x, Noise { shared, ..noise }, source)?])
    }

    /// Normalisation with scale and shift; inputs x and optionally a scale, then a shift.
    fn norm(
        &mut self,
        node: &Attributes<'_>,
        operands: &[ValueId],
        source: SourceId,
        norm: Norm,
    ) -> Result<Vec<ValueId>> {
        let (center, most) = match norm {
            Norm::Layer => (true, 3),
            Norm::RootMeanSquare => (false, 2),
        };
        let [x, rest @ ..] = operands else { return Err(wrong_count(node.op, "1 or more", 0)) };
        if operands.len() > most {
            return Err(wrong_count(node.op, &format!("at most {most}"), operands.len()));
        }
        let axes = self.axes(node, *x, &[-1])?;
        let epsilon = node.real("epsilon")?.unwrap_or(EPSILON);
        let mut value =
            self.graph.apply(Op::Normalize { axes, epsilon, center, moments: false }, &[*x], source)?;
        for (operand, binary) in rest.iter().zip([Binary::Mul, Binary::Add]) {
            value = self.graph.apply(Op::Binary(binary), &[value, *operand], source)?;
        }
        Ok(vec![value])
    }

    fn op(&self, node: &Attributes<'_>, operands: &[ValueId]) -> Result<Op> {
        if let Some(unary) = Unary::from_name(node.op) {
            return Ok(Op::Unary(unary));
        }
        if let Some(binary) = Binary::from_name(node.op) {
            return Ok(Op::Binary(binary));
        }
        if let Some(compare) = Compare::from_name(node.op) {
            return Ok(Op::Compare(compare));
        }
        if node.op == "select" {
            return Ok(Op::Select);
        }
        let Some(&first) = operands.first() else { return Err(self.unknown(node, operands)) };
        if let Some(kind) = ArgReduce::from_name(node.op) {
            let axis = self.axis(node, first, None)?;
            return Ok(Op::ArgReduce {
                kind,
                axis,
                keep: node.flag("keep", false)?,
                last: node.flag("last", false)?,
            });
        }
        match self.windowed(node, first)? {
            Some(op) => Ok(op),
            None => self.plain(node, first),
        }
    }

    fn unknown(&self, node: &Attributes<'_>, operands: &[ValueId]) -> Error {
        match operands {
            [] => Error::model("op", format!("there is no operation {} without inputs", node.op)),
            _ => Error::model("op", format!("there is no operation {}", node.op)),
        }
    }

    /// Convolutions and poolings.
    fn windowed(&self, node: &Attributes<'_>, x: ValueId) -> Result<Option<Op>> {
        if !matches!(node.op, "conv" | "conv_transpose" | "pool") {
            return Ok(None);
        }
        let axes = self.rank(x).saturating_sub(2);
        let layout = node.named("layout", Some(Layout::ChannelsFirst), Layout::from_name)?;
        let kernel = if node.op == "pool" { node.ints("kernel")? } else { None };
        let list = |key, default: &[i64]| node.ints(key).map(|list| list.unwrap_or_else(|| default.to_vec()));
        let (zeros, ones) = (vec![0; axes], vec![1; axes]);
        let window = Window {
            strides: list("strides", kernel.as_deref().unwrap_or(&ones))?,
            dilations: list("dilations", &ones)?,
            pads_before: list("pads_before", &zeros)?,
            pads_after: list("pads_after", &zeros)?,
        };
        Ok(Some(match node.op {
            "pool" => Op::Pool(Box::new(Pool {
                kind: node.named("kind", None, PoolKind::from_name)?,
                layout,
                kernel: kernel.ok_or_else(|| node.missing("kernel"))?,
                window,
                extra_after: list("extra_after", &zeros)?,
            })),
            "conv" => Op::Conv(Box::new(Conv { layout, window, groups: node.int("groups")?.unwrap_or(1) })),
            _ => Op::ConvTranspose(Box::new(ConvTranspose {
                layout,
                window,
                output_padding: list("output_padding", &zeros)?,
                groups: node.int("groups")?.unwrap_or(1),
            })),
        }))
    }

    /// An operation with attributes of its own. Gradients, and attention with its embeddings, are no operations of
    /// the format: the former follow from training, the latter from what it is made of.
    fn plain(&self, node: &Attributes<'_>, x: ValueId) -> Result<Op> {
        let Some(name) = OpName::from_name(node.op) else { return Err(self.unknown(node, &[x])) };
        let number = |key: &'static str| node.int(key)?.ok_or_else(|| node.missing(key));
        let scatter = || node.named("kind", Some(ScatterKind::Replace), ScatterKind::from_name);
        Ok(match name {
            OpName::Convert => Op::Convert { to: node.named("to", None, |name| name.parse::<DType>().ok())? },
            OpName::Reduce => self.reduce(node, x)?,
            OpName::CumSum => Op::CumSum {
                axis: self.axis(node, x, None)?,
                exclusive: node.flag("exclusive", false)?,
                reverse: node.flag("reverse", false)?,
            },
            OpName::Softmax => {
                Op::Softmax { axis: self.axis(node, x, Some(-1))?, log: node.flag("log", false)? }
            }
            OpName::CrossEntropy => Op::CrossEntropy,
            OpName::Normalize => self.normalize(node, x)?,
            OpName::LocalResponseNorm => local_response_norm(node)?,
            OpName::MatMul => Op::MatMul {
                transpose_left: node.flag("transpose_left", false)?,
                transpose_right: node.flag("transpose_right", false)?,
                wide: false,
                rounds: false,
            },
            OpName::Resize => Op::Resize(Box::new(self.resize(node)?)),
            OpName::Recurrent => recurrent(node)?,
            OpName::Reshape => Op::Reshape { shape: self.rest(node, x)? },
            OpName::Transpose => self.transpose(node, x)?,
            OpName::Broadcast => Op::Broadcast { shape: Shape::new(self.required_sizes(node, "shape")?) },
            OpName::Slice => self.slice(node, x)?,
            OpName::Pad => pad(node)?,
            OpName::Concat => Op::Concat { axis: self.axis(node, x, None)? },
            OpName::Gather => Op::Gather { axis: self.axis(node, x, Some(0))? },
            OpName::GatherElements => Op::GatherElements { axis: self.axis(node, x, None)? },
            OpName::GatherNd => {
                let batch = node.int("batch_dims")?.unwrap_or(0);
                let batch_dims =
                    u32::try_from(batch).map_err(|_| node.wrong("batch_dims", "a number of axes"))?;
                Op::GatherNd { batch_dims }
            }
            OpName::ScatterElements => {
                Op::ScatterElements { axis: self.axis(node, x, None)?, kind: scatter()? }
            }
            OpName::ScatterNd => Op::ScatterNd { kind: scatter()? },
            OpName::UpdateSlice => Op::UpdateSlice { axis: self.axis(node, x, None)? },
            OpName::TopK => Op::TopK(TopK {
                axis: self.axis(node, x, Some(-1))?,
                k: number("k")?,
                largest: node.flag("largest", true)?,
            }),
            // Read before, or not of the format.
            OpName::Input
            | OpName::Param
            | OpName::Constant
            | OpName::Sizes
            | OpName::Iota
            | OpName::Select
            | OpName::Conv
            | OpName::ConvTranspose
            | OpName::Pool
            | OpName::SoftmaxGradient
            | OpName::CrossEntropyGradient
            | OpName::NormalizeGradient
            | OpName::MaxPoolGradient
            | OpName::Unpack
            | OpName::PackedMatMul
            | OpName::Attention
            | OpName::AttentionGradient
            | OpName::Rotary
            | OpName::TreeLeaves => return Err(self.unknown(node, &[x])),
        })
    }

    fn reduce(&self, node: &Attributes<'_>, x: ValueId) -> Result<Op> {
        let all: Vec<i64> = (0..self.rank(x) as i64).collect();
        Ok(Op::Reduce {
            kind: node.named("kind", None, ReduceKind::from_name)?,
            axes: self.axes(node, x, &all)?,
            keep: node.flag("keep", false)?,
        })
    }

    fn normalize(&self, node: &Attributes<'_>, x: ValueId) -> Result<Op> {
        Ok(Op::Normalize {
            axes: self.axes(node, x, &[-1])?,
            epsilon: node.real("epsilon")?.unwrap_or(EPSILON),
            center: node.flag("center", true)?,
            moments: false,
        })
    }

    fn transpose(&self, node: &Attributes<'_>, x: ValueId) -> Result<Op> {
        let perm = node.ints("perm")?.ok_or_else(|| node.missing("perm"))?;
        let perm = perm.into_iter().map(|from| axis_position(from, self.rank(x)));
        Ok(Op::Transpose { perm: perm.collect::<Result<_>>()? })
    }

    fn slice(&self, node: &Attributes<'_>, x: ValueId) -> Result<Op> {
        Ok(Op::Slice(Box::new(Slice {
            starts: self.required_sizes(node, "starts")?,
            sizes: self.required_sizes(node, "sizes")?,
            steps: node.ints("steps")?.unwrap_or_else(|| vec![1; self.rank(x)]),
        })))
    }

    fn resize(&self, node: &Attributes<'_>) -> Result<Resize> {
        let scales = match node.get("scales") {
            None => None,
            Some(Value::Array(items)) => {
                let real =
                    |item: &Value| item.as_f64().map(Real).ok_or_else(|| node.wrong("scales", "numbers"));
                Some(items.iter().map(real).collect::<Result<_>>()?)
            }
            Some(_) => return Err(node.wrong("scales", "a list of numbers")),
        };
        Ok(Resize {
            shape: Shape::new(self.required_sizes(node, "shape")?),
            interpolation: node.named(
                "interpolation",
                Some(Interpolation::Nearest),
                Interpolation::from_name,
            )?,
            coordinates: node.named(
                "coordinates",
                Some(ResizeCoordinates::HalfPixel),
                ResizeCoordinates::from_name,
            )?,
            scales,
        })
    }

    /// The shape of a reshape, where one size may be -1: what is left.
    fn rest(&self, node: &Attributes<'_>, x: ValueId) -> Result<Shape> {
        let mut sizes = self.required_sizes(node, "shape")?;
        let open: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] == Size::Known(-1)).collect();
        let [open] = open.as_slice() else { return Ok(Shape::new(sizes)) };
        sizes[*open] = Size::Known(1);
        let others = sizes.iter().try_fold(Size::Known(1), |product, size| product.mul(size));
        let total = self.graph.ty(x).shape.elements();
        let rest = match (total, others) {
            (Some(total), Some(others)) => match others.known() {
                Some(others) => total.div_exact(others),
                None => total.ratio(&others).map(Size::Known),
            },
            _ => None,
        };
        sizes[*open] =
            rest.ok_or_else(|| Error::model("shape", "-1 does not follow from the other sizes"))?;
        Ok(Shape::new(sizes))
    }

    fn required_sizes(&self, node: &Attributes<'_>, key: &'static str) -> Result<Vec<Size>> {
        self.sizes(node, key)?.ok_or_else(|| node.missing(key))
    }

    /// A list of sizes: numbers, or texts like `2*batch+1`.
    fn sizes(&self, node: &Attributes<'_>, key: &'static str) -> Result<Option<Vec<Size>>> {
        let Some(value) = node.get(key) else { return Ok(None) };
        let wrong = || node.wrong(key, "a list of sizes");
        let items = value.as_array().ok_or_else(wrong)?;
        let size = |item: &Value| match item {
            Value::Number(number) => number.as_i64().map(Size::Known).ok_or_else(wrong),
            Value::String(text) => {
                let size = parse_size(text, &self.dims).map_err(|error| error.within(key))?;
                self.fix(&size)
            }
            _ => Err(wrong()),
        };
        items.iter().map(size).collect::<Result<_>>().map(Some)
    }

    fn rank(&self, value: ValueId) -> usize {
        self.graph.ty(value).shape.rank()
    }

    fn axis(&self, node: &Attributes<'_>, x: ValueId, default: Option<i64>) -> Result<u32> {
        let axis = node.int("axis")?.or(default).ok_or_else(|| node.missing("axis"))?;
        axis_position(axis, self.rank(x))
    }

    /// Axes in ascending order.
    fn axes(&self, node: &Attributes<'_>, x: ValueId, default: &[i64]) -> Result<Vec<u32>> {
        let axes = node.ints("axes")?.unwrap_or_else(|| default.to_vec());
        let mut axes =
            axes.into_iter().map(|axis| axis_position(axis, self.rank(x))).collect::<Result<Vec<u32>>>()?;
        axes.sort_unstable();
        Ok(axes)
    }
}

fn local_response_norm(node: &Attributes<'_>) -> Result<Op> {
    Ok(Op::LocalResponseNorm {
        size: node.int("size")?.ok_or_else(|| node.missing("size"))?,
        alpha: node.real("alpha")?.unwrap_or(Real(1e-4)),
        beta: node.real("beta")?.unwrap_or(Real(0.75)),
        bias: node.real("bias")?.unwrap_or(Real(1.0)),
    })
}

fn recurrent(node: &Attributes<'_>) -> Result<Op> {
    Ok(Op::Recurrent(Box::new(Recurrent {
        cell: node.named("cell", None, Cell::from_name)?,
        direction: node.named("direction", Some(Direction::Forward), Direction::from_name)?,
        hidden: node.int("hidden")?.ok_or_else(|| node.missing("hidden"))?,
    })))
}

fn pad(node: &Attributes<'_>) -> Result<Op> {
    Ok(Op::Pad(Box::new(Pad {
        before: node.ints("before")?.ok_or_else(|| node.missing("before"))?,
        after: node.ints("after")?.ok_or_else(|| node.missing("after"))?,
        mode: node.named("mode", Some(PadMode::Constant), PadMode::from_name)?,
        value: node.real("value")?.unwrap_or(Real(0.0)),
    })))
}

/// The axis as a position, from the end where it is negative.
fn axis_position(axis: i64, rank: usize) -> Result<u32> {
    let position = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match u32::try_from(position) {
        Ok(position) if (position as usize) < rank => Ok(position),
        _ => Err(Error::model("axis", format!("axis {axis} does not exist at rank {rank}"))),
    }
}

fn none(operands: &[ValueId], op: &str) -> Result<()> {
    if operands.is_empty() { Ok(()) } else { Err(wrong_count(op, "no", operands.len())) }
}

fn wrong_count(op: &str, expected: &str, found: usize) -> Error {
    Error::model("inputs", format!("{op} has {expected} inputs, found {found}"))
}
