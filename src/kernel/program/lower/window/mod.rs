//! Windows over axes as folds: pooling, and convolutions one element at a time.

mod convolutions;
mod resize;

use super::{ExprId, Lowered, ProgramBuilder};
use crate::ir::{
    Binary, Compare, Conv, ConvTranspose, DType, Layout, NodeId, Pool, PoolKind, ValueId, Window, WindowOp,
};
use crate::kernel::program::{Fold, Program, Var};

/// Image, channel and position of an index.
pub(super) fn parts(layout: Layout, index: &[ExprId]) -> (ExprId, ExprId, Vec<ExprId>) {
    match layout {
        Layout::ChannelsFirst => (index[0], index[1], index[2..].to_vec()),
        Layout::ChannelsLast => (index[0], index[index.len() - 1], index[1..index.len() - 1].to_vec()),
    }
}

/// An index of image, channel and position.
pub(super) fn laid(layout: Layout, image: ExprId, channel: ExprId, position: &[ExprId]) -> Vec<ExprId> {
    match layout {
        Layout::ChannelsFirst => [&[image, channel], position].concat(),
        Layout::ChannelsLast => [&[image], position, &[channel]].concat(),
    }
}

/// The sizes of the axes that are neither images nor channels.
pub(super) fn spatial(layout: Layout, dims: &[i64]) -> Vec<i64> {
    match layout {
        Layout::ChannelsFirst => dims[2..].to_vec(),
        Layout::ChannelsLast => dims[1..dims.len() - 1].to_vec(),
    }
}

/// Sizes of a convolution's weights: window, channels on the inner axis, channels on the outer axis.
pub(super) fn weight_sizes(layout: Layout, dims: &[i64]) -> (Vec<i64>, i64, i64) {
    let rank = dims.len() - 2;
    match layout {
        Layout::ChannelsFirst => (dims[2..].to_vec(), dims[1], dims[0]),
        Layout::ChannelsLast => (dims[..rank].to_vec(), dims[rank], dims[rank + 1]),
    }
}

impl ProgramBuilder<'_> {
    pub(super) fn window_programs(self, id: NodeId, op: WindowOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            WindowOp::Conv(conv) => self.convolution(id, conv),
            WindowOp::ConvTranspose(conv) => self.alone(|this| this.conv_transpose(id, conv)),
            WindowOp::Pool(_) | WindowOp::MaxPoolGradient(_) | WindowOp::Resize(_) => self.alone(Self::map),
        }
    }

    pub(super) fn window_at(
        &mut self,
        id: NodeId,
        op: WindowOp<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        match op {
            WindowOp::Conv(conv) => self.conv_at(id, conv, index, guard),
            WindowOp::ConvTranspose(conv) => self.conv_transpose_at(id, conv, index, guard),
            WindowOp::Pool(pool) => self.pool_at(self.graph.node(id).operands[0], pool, index, guard),
            WindowOp::MaxPoolGradient(pool) => self.max_pool_gradient_at(id, pool, index, guard),
            WindowOp::Resize(resize) => self.resize_at(id, resize, index, guard),
        }
    }

    /// Where an element of a window falls, and whether that is no padding.
    pub(super) fn touched(
        &mut self,
        window: &Window,
        size: &[i64],
        at: &[ExprId],
        offset: &[ExprId],
    ) -> (Vec<ExprId>, Option<ExprId>) {
        let mut inside = None;
        let mut position = Vec::with_capacity(at.len());
        for axis in 0..at.len() {
            let (stride, dilation) = (window.strides[axis], window.dilations[axis]);
            let place =
                self.exprs.sum(-window.pads_before[axis], &[(at[axis], stride), (offset[axis], dilation)]);
            let within = self.exprs.within(place, size[axis]);
            inside = self.exprs.both(inside, within);
            position.push(place);
        }
        (position, inside)
    }

    /// A variable for each axis of a window.
    fn window_vars(&mut self, kernel: &[i64]) -> (Vec<Var>, Vec<ExprId>) {
        let vars: Vec<Var> = kernel.iter().map(|&size| self.exprs.var(size)).collect();
        let offsets = vars.iter().map(|&var| self.exprs.at(var)).collect();
        (vars, offsets)
    }

    fn folded_over(&mut self, kind: Fold, vars: &[Var], body: ExprId) -> ExprId {
        vars.iter().rev().fold(body, |body, &var| self.exprs.fold(kind, var, body))
    }

    fn pool_at(
        &mut self,
        x: ValueId,
        pool: &Pool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let (image, channel, at) = parts(pool.layout, index);
        let size = spatial(pool.layout, &dims);
        let (vars, offset) = self.window_vars(&pool.kernel);
        let (position, inside) = self.touched(&pool.window, &size, &at, &offset);
        let from = laid(pool.layout, image, channel, &position);
        let read = self.exprs.both(guard, inside);
        let other = if pool.kind == PoolKind::Max { lowest(dtype) } else { 0.0 };
        let value = self.guarded(x, &from, read, other)?;
        if pool.kind == PoolKind::Max {
            return Ok(self.folded_over(Fold::Max, &vars, value));
        }
        let total = self.folded_over(Fold::Sum, &vars, value);
        let counts = match pool.kind {
            PoolKind::AverageWithPadding => self.counted(pool, &size, &at, &offset),
            PoolKind::Max | PoolKind::Average => inside,
        };
        let count = match counts {
            None => self.exprs.constant(pool.kernel.iter().product::<i64>() as f64, dtype),
            Some(counts) => {
                let (one, none) = (self.exprs.constant(1.0, dtype), self.exprs.constant(0.0, dtype));
                let counted = self.exprs.select(counts, one, none);
                let count = self.folded_over(Fold::Sum, &vars, counted);
                match pool.kind {
                    PoolKind::AverageWithPadding => count,
                    // A window that lies in the padding altogether has the mean 0.
                    PoolKind::Max | PoolKind::Average => self.exprs.binary(Binary::Max, count, one),
                }
            }
        };
        Ok(self.exprs.binary(Binary::Div, total, count))
    }

    /// The shares of the windows in which an element is the first that is as large as the result.
    fn max_pool_gradient_at(
        &mut self,
        id: NodeId,
        pool: &Pool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let operands = self.graph.node(id).operands.clone();
        let (x, y, dy) = (operands[0], operands[1], operands[2]);
        let (image, channel, at) = parts(pool.layout, index);
        let size = spatial(pool.layout, &self.dims(x)?);
        let windows = spatial(pool.layout, &self.dims(y)?);
        let (vars, offset) = self.window_vars(&pool.kernel);
        let (mut window, mut inside) = (Vec::new(), guard);
        for axis in 0..at.len() {
            let (kernel, windows) = (pool.kernel[axis], windows[axis]);
            let (place, within) =
                self.spread_from(&pool.window, axis, kernel, windows, at[axis], offset[axis]);
            inside = self.exprs.both(inside, within);
            window.push(place);
        }
        let of_window = laid(pool.layout, image, channel, &window);
        let largest = self.guarded(y, &of_window, inside, 0.0)?;
        let share = self.guarded(dy, &of_window, inside, 0.0)?;
        // The number of the first element of the window that is as large.
        let (others, other) = self.window_vars(&pool.kernel);
        let (from, there) = self.touched(&pool.window, &size, &window, &other);
        let read = self.exprs.both(inside, there);
        let value = self.guarded(x, &laid(pool.layout, image, channel, &from), read, 0.0)?;
        let equal = self.exprs.compare(Compare::Eq, value, largest);
        let (number, own) =
            (self.exprs.linear(&pool.kernel, &other), self.exprs.linear(&pool.kernel, &offset));
        let (number, own) = (self.exprs.position(number), self.exprs.position(own));
        let none = self.exprs.constant(pool.kernel.iter().product::<i64>() as f64, DType::I64);
        let found = self.exprs.select(equal, number, none);
        let found = read.map_or(found, |read| self.exprs.select(read, found, none));
        let first = self.folded_over(Fold::Min, &others, found);
        let wins = self.exprs.compare(Compare::Eq, first, own);
        let nothing = self.exprs.constant(0.0, self.dtype(dy));
        let taken = self.exprs.select(wins, share, nothing);
        Ok(self.folded_over(Fold::Sum, &vars, taken))
    }

    /// Whether a window's element counts where padding does: not beyond what was asked for.
    fn counted(&mut self, pool: &Pool, size: &[i64], at: &[ExprId], offset: &[ExprId]) -> Option<ExprId> {
        let mut counts = None;
        for axis in 0..at.len() {
            let (stride, dilation) = (pool.window.strides[axis], pool.window.dilations[axis]);
            let place = self.exprs.sum(0, &[(at[axis], stride), (offset[axis], dilation)]);
            let end = size[axis] + pool.window.pads_before[axis] + pool.window.pads_after[axis]
                - pool.extra_after[axis];
            let within = self.exprs.within(place, end);
            counts = self.exprs.both(counts, within);
        }
        counts
    }

    fn conv_at(
        &mut self,
        id: NodeId,
        conv: &Conv,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let operands = self.graph.node(id).operands.clone();
        let (image, channel, at) = parts(conv.layout, index);
        let (kernel, inner, outer) = weight_sizes(conv.layout, &self.dims(operands[1])?);
        let size = spatial(conv.layout, &self.dims(operands[0])?);
        let (mut vars, offset) = self.window_vars(&kernel);
        let depth = self.exprs.var(inner);
        vars.push(depth);
        let c = self.exprs.at(depth);
        let (position, inside) = self.touched(&conv.window, &size, &at, &offset);
        let group = self.exprs.div(channel, (outer / conv.groups).max(1));
        let from = self.exprs.sum(0, &[(group, inner), (c, 1)]);
        let read = self.exprs.both(guard, inside);
        let x = self.guarded(operands[0], &laid(conv.layout, image, from, &position), read, 0.0)?;
        let weight = match conv.layout {
            Layout::ChannelsFirst => [&[channel, c], &offset[..]].concat(),
            Layout::ChannelsLast => [&offset[..], &[c, channel]].concat(),
        };
        let w = self.at(operands[1], &weight, guard)?;
        let term = self.exprs.binary(Binary::Mul, x, w);
        let sum = self.folded_over(Fold::Sum, &vars, term);
        self.with_bias(operands.get(2).copied(), sum, channel, guard)
    }

    /// A sum with the bias of its channel added.
    pub(super) fn with_bias(
        &mut self,
        bias: Option<ValueId>,
        sum: ExprId,
        channel: ExprId,
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let Some(bias) = bias else { return Ok(sum) };
        let dims = self.dims(bias)?;
        let position = self.delinearized(&dims, channel);
        let bias = self.at(bias, &position, guard)?;
        Ok(self.exprs.binary(Binary::Add, sum, bias))
    }

    fn conv_transpose_at(
        &mut self,
        id: NodeId,
        conv: &ConvTranspose,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let operands = self.graph.node(id).operands.clone();
        let (image, channel, at) = parts(conv.layout, index);
        let dims = self.dims(operands[0])?;
        let (kernel, outer) = match conv.layout {
            Layout::ChannelsFirst => {
                let weights = self.dims(operands[1])?;
                (weights[2..].to_vec(), weights[1])
            }
            Layout::ChannelsLast => {
                let weights = self.dims(operands[1])?;
                (weights[..weights.len() - 2].to_vec(), weights[weights.len() - 2])
            }
        };
        let channels = match conv.layout {
            Layout::ChannelsFirst => dims[1],
            Layout::ChannelsLast => dims[dims.len() - 1],
        };
        let inner = channels / conv.groups.max(1);
        let size = spatial(conv.layout, &dims);
        let (mut vars, offset) = self.window_vars(&kernel);
        let depth = self.exprs.var(inner);
        vars.push(depth);
        let c = self.exprs.at(depth);
        let (mut position, mut inside) = (Vec::new(), guard);
        for axis in 0..at.len() {
            let (place, within) =
                self.spread_from(&conv.window, axis, kernel[axis], size[axis], at[axis], offset[axis]);
            inside = self.exprs.both(inside, within);
            position.push(place);
        }
        let group = self.exprs.div(channel, outer.max(1));
        let own = self.exprs.modulo(channel, outer.max(1));
        let from = self.exprs.sum(0, &[(group, inner), (c, 1)]);
        let x = self.guarded(operands[0], &laid(conv.layout, image, from, &position), inside, 0.0)?;
        let weight = match conv.layout {
            Layout::ChannelsFirst => [&[from, own], &offset[..]].concat(),
            Layout::ChannelsLast => [&offset[..], &[own, from]].concat(),
        };
        let w = self.at(operands[1], &weight, guard)?;
        let term = self.exprs.binary(Binary::Mul, x, w);
        let sum = self.folded_over(Fold::Sum, &vars, term);
        self.with_bias(operands.get(2).copied(), sum, channel, guard)
    }

    /// The input position that an output position gets something from through one element of the
    /// window, and whether there is one: `(at + pad - offset * dilation) / stride`, where that is whole.
    pub(super) fn spread_from(
        &mut self,
        window: &Window,
        axis: usize,
        kernel: i64,
        size: i64,
        at: ExprId,
        offset: ExprId,
    ) -> (ExprId, Option<ExprId>) {
        let (stride, dilation) = (window.strides[axis], window.dilations[axis]);
        // Moved up by whole strides, so that it is not negative.
        let up = (kernel.max(1) - 1).saturating_mul(dilation).div_euclid(stride) + 1;
        let moved = self.exprs.sum(
            window.pads_before[axis].saturating_add(up.saturating_mul(stride)),
            &[(at, 1), (offset, -dilation)],
        );
        let (whole, rest) = (self.exprs.div(moved, stride), self.exprs.modulo(moved, stride));
        let place = self.exprs.sum(-up, &[(whole, 1)]);
        let within = self.exprs.within(place, size);
        let zero = self.exprs.index(0);
        let exact = match self.exprs.known(rest) {
            Some(0) => None,
            _ => Some(self.exprs.compare(Compare::Eq, rest, zero)),
        };
        (place, self.exprs.both(within, exact))
    }
}

/// What no element is below.
pub(super) fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I8 => f64::from(i8::MIN),
        DType::I16 => f64::from(i16::MIN),
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => 0.0,
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => f64::NEG_INFINITY,
    }
}
