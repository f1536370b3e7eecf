//! Reading an operation's attributes, in the order in which `print_op` prints them.

use std::str::FromStr;

use super::super::{
    ArgReduce, Attention, Binary, BlockFormat, Cell, Compare, Conv, ConvTranspose, DType, Direction,
    HeadOrder, Interpolation, Layout, Op, OpName, Packed, Pad, PadMode, Pool, PoolKind, Real, Recurrent,
    ReduceKind, Resize, ResizeCoordinates, ScatterKind, Shape, Size, Slice, TopK, Type, Unary, Window,
};
use super::cursor::{Cursor, Dims};
use super::defaults::{self, Attribute};
use crate::error::Result;

/// The operation of this name and (first) result, with the attributes at the cursor.
pub(super) fn op(cursor: &mut Cursor<'_>, name: &str, dims: &Dims, result: &Type) -> Result<Op> {
    AttributeReader { cursor, dims, result }.op(name)
}

struct AttributeReader<'r, 't> {
    cursor: &'r mut Cursor<'t>,
    dims: &'r Dims,
    result: &'r Type,
}

impl<'t> AttributeReader<'_, 't> {
    fn op(&mut self, name: &str) -> Result<Op> {
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
            return self.arg_reduce(kind);
        }
        match OpName::from_name(name) {
            Some(name) => self.named_op(name),
            None => Err(self.cursor.fail(format!("there is no operation {name}"))),
        }
    }

    /// One arm for each operation: its attributes in their order.
    fn named_op(&mut self, name: OpName) -> Result<Op> {
        Ok(match name {
            // The graph's reader knows them by their entries.
            OpName::Input | OpName::Param | OpName::Constant => {
                return Err(self.cursor.fail(format!("there is no operation {name}")));
            }
            OpName::Sizes => Op::Sizes(self.cursor.list(|cursor| cursor.size(self.dims))?.into()),
            OpName::Iota => Op::Iota { axis: self.axis()? },
            OpName::Select => Op::Select,
            OpName::Convert => Op::Convert { to: self.to()? },
            OpName::Reduce => self.reduce()?,
            OpName::CumSum => self.cumsum()?,
            OpName::Softmax => Op::Softmax { axis: self.axis()?, log: self.flag(&defaults::LOG)? },
            OpName::SoftmaxGradient => {
                Op::SoftmaxGradient { axis: self.axis()?, log: self.flag(&defaults::LOG)? }
            }
            OpName::CrossEntropy => Op::CrossEntropy,
            OpName::CrossEntropyGradient => Op::CrossEntropyGradient,
            OpName::Normalize => self.normalize()?,
            OpName::NormalizeGradient => self.normalize_gradient()?,
            OpName::LocalResponseNorm => self.local_response_norm()?,
            OpName::MatMul => self.matmul()?,
            OpName::Unpack => Op::Unpack(self.packed()?),
            OpName::PackedMatMul => Op::PackedMatMul(self.packed()?),
            OpName::Attention => Op::Attention(Box::new(self.attention()?)),
            OpName::AttentionGradient => Op::AttentionGradient(Box::new(self.attention()?)),
            OpName::Rotary => Op::Rotary { transposed: self.flag(&defaults::TRANSPOSED)? },
            OpName::Conv => Op::Conv(Box::new(self.conv()?)),
            OpName::ConvTranspose => Op::ConvTranspose(Box::new(self.conv_transpose()?)),
            OpName::Pool => Op::Pool(Box::new(self.pool()?)),
            OpName::MaxPoolGradient => Op::MaxPoolGradient(Box::new(self.pool()?)),
            OpName::Resize => Op::Resize(Box::new(self.resize()?)),
            OpName::Recurrent => Op::Recurrent(Box::new(self.recurrent()?)),
            OpName::Reshape => Op::Reshape { shape: self.shape()? },
            OpName::Transpose => Op::Transpose { perm: self.integers("perm")? },
            OpName::Broadcast => Op::Broadcast { shape: self.shape()? },
            OpName::Slice => Op::Slice(Box::new(self.slice()?)),
            OpName::Pad => Op::Pad(Box::new(self.pad()?)),
            OpName::Concat => Op::Concat { axis: self.axis()? },
            OpName::Gather => Op::Gather { axis: self.axis()? },
            OpName::GatherElements => Op::GatherElements { axis: self.axis()? },
            OpName::GatherNd => Op::GatherNd { batch_dims: self.optional_integer(&defaults::BATCH_DIMS)? },
            OpName::ScatterElements => Op::ScatterElements { axis: self.axis()?, kind: self.scatter()? },
            OpName::ScatterNd => Op::ScatterNd { kind: self.scatter()? },
            OpName::UpdateSlice => Op::UpdateSlice { axis: self.axis()? },
            OpName::TopK => Op::TopK(self.topk()?),
            OpName::TreeLeaves => Op::TreeLeaves { depth: self.integer("depth")? },
        })
    }

    fn to(&mut self) -> Result<DType> {
        let attribute = Attribute { name: "to", default: self.result.dtype };
        self.optional_named(&attribute, |word| word.parse().ok())
    }

    fn arg_reduce(&mut self, kind: ArgReduce) -> Result<Op> {
        let axis = self.axis()?;
        Ok(Op::ArgReduce { kind, axis, keep: self.flag(&defaults::KEEP)?, last: self.flag(&defaults::LAST)? })
    }

    fn reduce(&mut self) -> Result<Op> {
        let kind = self.named("kind", ReduceKind::from_name)?;
        Ok(Op::Reduce { kind, axes: self.integers("axes")?, keep: self.flag(&defaults::KEEP)? })
    }

    fn cumsum(&mut self) -> Result<Op> {
        let axis = self.axis()?;
        let exclusive = self.flag(&defaults::EXCLUSIVE)?;
        Ok(Op::CumSum { axis, exclusive, reverse: self.flag(&defaults::REVERSE)? })
    }

    fn topk(&mut self) -> Result<TopK> {
        Ok(TopK { axis: self.axis()?, k: self.integer("k")?, largest: self.flag(&defaults::LARGEST)? })
    }

    fn normalize(&mut self) -> Result<Op> {
        Ok(Op::Normalize {
            axes: self.integers("axes")?,
            epsilon: self.real("epsilon")?,
            center: self.flag(&defaults::CENTER)?,
            moments: self.cursor.eat("moments"),
        })
    }

    fn normalize_gradient(&mut self) -> Result<Op> {
        Ok(Op::NormalizeGradient {
            axes: self.integers("axes")?,
            epsilon: self.real("epsilon")?,
            center: self.flag(&defaults::CENTER)?,
            scaled: self.flag(&defaults::SCALED)?,
            moments: self.cursor.eat("moments"),
        })
    }

    fn local_response_norm(&mut self) -> Result<Op> {
        Ok(Op::LocalResponseNorm {
            size: self.integer("size")?,
            alpha: self.optional_real(&defaults::ALPHA)?,
            beta: self.optional_real(&defaults::BETA)?,
            bias: self.optional_real(&defaults::BIAS)?,
        })
    }

    fn matmul(&mut self) -> Result<Op> {
        let transpose_left = self.flag(&defaults::TRANSPOSE_LEFT)?;
        let transpose_right = self.flag(&defaults::TRANSPOSE_RIGHT)?;
        let wide = self.flag(&defaults::WIDE)?;
        Ok(Op::MatMul { transpose_left, transpose_right, wide, rounds: self.flag(&defaults::ROUNDS)? })
    }

    fn packed(&mut self) -> Result<Packed> {
        let whole = |name: &str| BlockFormat::from_name(name).map(Some);
        let named = self.named("format", |name| if name == "groups" { Some(None) } else { whole(name) })?;
        let format = match named {
            Some(format) => format,
            None => BlockFormat::Groups { bits: self.integer("bits")?, size: self.integer("size")? },
        };
        Ok(Packed { format, columns: self.integer("columns")? })
    }

    fn attention(&mut self) -> Result<Attention> {
        let heads = self.integer("heads")?;
        Ok(Attention {
            heads,
            key_heads: self.optional_integer(&Attribute { name: "key_heads", default: heads })?,
            first: self.array(&defaults::FIRST, Cursor::integer)?,
            orders: self
                .array(&defaults::ORDERS, |cursor| cursor.one_of("an order", HeadOrder::from_name))?,
            scale: self.real("scale")?,
            causal: if self.cursor.eat("causal=") { Some(self.cursor.integer()?) } else { None },
            positioned: self.cursor.eat("positioned"),
            fill: self.optional_real(&defaults::FILL)?,
            zeros: self.flag(&defaults::ZEROS)?,
        })
    }

    fn recurrent(&mut self) -> Result<Recurrent> {
        Ok(Recurrent {
            cell: self.named("cell", Cell::from_name)?,
            direction: self.optional_named(&defaults::DIRECTION, Direction::from_name)?,
            hidden: self.integer("hidden")?,
        })
    }

    fn conv(&mut self) -> Result<Conv> {
        Ok(Conv {
            layout: self.layout()?,
            window: self.window()?,
            groups: self.optional_integer(&defaults::GROUPS)?,
        })
    }

    fn conv_transpose(&mut self) -> Result<ConvTranspose> {
        Ok(ConvTranspose {
            layout: self.layout()?,
            window: self.window()?,
            output_padding: self.each_spatial_axis(&defaults::OUTPUT_PADDING)?,
            groups: self.optional_integer(&defaults::GROUPS)?,
        })
    }

    fn pool(&mut self) -> Result<Pool> {
        Ok(Pool {
            kind: self.named("kind", PoolKind::from_name)?,
            layout: self.layout()?,
            kernel: self.integers("kernel")?,
            window: self.window()?,
            extra_after: self.each_spatial_axis(&defaults::EXTRA_AFTER)?,
        })
    }

    fn layout(&mut self) -> Result<Layout> {
        self.optional_named(&defaults::LAYOUT, Layout::from_name)
    }

    fn window(&mut self) -> Result<Window> {
        Ok(Window {
            strides: self.each_spatial_axis(&defaults::STRIDES)?,
            dilations: self.each_spatial_axis(&defaults::DILATIONS)?,
            pads_before: self.each_spatial_axis(&defaults::PADS_BEFORE)?,
            pads_after: self.each_spatial_axis(&defaults::PADS_AFTER)?,
        })
    }

    fn resize(&mut self) -> Result<Resize> {
        let shape = self.shape()?;
        let interpolation = self.optional_named(&defaults::INTERPOLATION, Interpolation::from_name)?;
        let coordinates = self.optional_named(&defaults::COORDINATES, ResizeCoordinates::from_name)?;
        let scales = if self.cursor.eat("scales=") { Some(self.cursor.list(Cursor::real)?) } else { None };
        Ok(Resize { shape, interpolation, coordinates, scales })
    }

    fn slice(&mut self) -> Result<Slice> {
        let start = Size::Known(defaults::STARTS.default);
        let starts = self.optional_sizes(defaults::STARTS.name)?;
        Ok(Slice {
            starts: starts.unwrap_or_else(|| vec![start; self.rank()]),
            sizes: self.sizes_of_result("sizes")?,
            steps: self.each_axis(&defaults::STEPS)?,
        })
    }

    fn pad(&mut self) -> Result<Pad> {
        Ok(Pad {
            before: self.each_axis(&defaults::BEFORE)?,
            after: self.each_axis(&defaults::AFTER)?,
            mode: self.optional_named(&defaults::MODE, PadMode::from_name)?,
            value: self.optional_real(&defaults::VALUE)?,
        })
    }

    fn scatter(&mut self) -> Result<ScatterKind> {
        self.optional_named(&defaults::SCATTER, ScatterKind::from_name)
    }

    fn shape(&mut self) -> Result<Shape> {
        self.sizes_of_result("shape").map(Shape::new)
    }

    fn axis(&mut self) -> Result<u32> {
        self.integer("axis")
    }

    fn rank(&self) -> usize {
        self.result.shape.rank()
    }

    fn integer<T: FromStr>(&mut self, name: &str) -> Result<T> {
        self.cursor.attribute(name)?;
        self.cursor.integer()
    }

    fn integers<T: FromStr>(&mut self, name: &str) -> Result<Vec<T>> {
        self.cursor.attribute(name)?;
        self.cursor.list(Cursor::integer)
    }

    fn real(&mut self, name: &str) -> Result<Real> {
        self.cursor.attribute(name)?;
        self.cursor.real()
    }

    fn named<T>(&mut self, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        self.cursor.attribute(name)?;
        self.cursor.one_of(&format!("a value of {name}"), read)
    }

    /// The attribute's value where it is at the cursor, else the default.
    fn optional<T: Copy>(
        &mut self,
        attribute: &Attribute<T>,
        read: impl FnOnce(&mut Cursor<'t>) -> Result<T>,
    ) -> Result<T> {
        if self.cursor.eat_attribute(attribute.name) { read(self.cursor) } else { Ok(attribute.default) }
    }

    fn flag(&mut self, attribute: &Attribute<bool>) -> Result<bool> {
        self.optional(attribute, Cursor::bool)
    }

    fn optional_integer<T: FromStr + Copy>(&mut self, attribute: &Attribute<T>) -> Result<T> {
        self.optional(attribute, Cursor::integer)
    }

    fn optional_real(&mut self, attribute: &Attribute<Real>) -> Result<Real> {
        self.optional(attribute, Cursor::real)
    }

    fn optional_named<T: Copy>(
        &mut self,
        attribute: &Attribute<T>,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let what = format!("a value of {}", attribute.name);
        self.optional(attribute, |cursor| cursor.one_of(&what, read))
    }

    fn optional_sizes(&mut self, name: &str) -> Result<Option<Vec<Size>>> {
        if !self.cursor.eat_attribute(name) {
            return Ok(None);
        }
        self.cursor.list(|cursor| cursor.size(self.dims)).map(Some)
    }

    fn sizes_of_result(&mut self, name: &str) -> Result<Vec<Size>> {
        let sizes = self.optional_sizes(name)?;
        Ok(sizes.unwrap_or_else(|| self.result.shape.sizes().to_vec()))
    }

    /// A list, by default `count` times the attribute's default.
    fn each(&mut self, attribute: &Attribute<i64>, count: usize) -> Result<Vec<i64>> {
        if !self.cursor.eat_attribute(attribute.name) {
            return Ok(vec![attribute.default; count]);
        }
        self.cursor.list(Cursor::integer)
    }

    fn each_axis(&mut self, attribute: &Attribute<i64>) -> Result<Vec<i64>> {
        self.each(attribute, self.rank())
    }

    fn each_spatial_axis(&mut self, attribute: &Attribute<i64>) -> Result<Vec<i64>> {
        self.each(attribute, defaults::spatial_rank(self.result))
    }

    /// A list of exactly `N` entries, by default each the attribute's default.
    fn array<T: Copy, const N: usize>(
        &mut self,
        attribute: &Attribute<T>,
        entry: impl Fn(&mut Cursor<'t>) -> Result<T>,
    ) -> Result<[T; N]> {
        if !self.cursor.eat_attribute(attribute.name) {
            return Ok([attribute.default; N]);
        }
        let wrong = |cursor: &Cursor<'_>| cursor.fail(format!("expected {N} values of {}", attribute.name));
        self.cursor.list(entry)?.try_into().map_err(|_| wrong(self.cursor))
    }
}
