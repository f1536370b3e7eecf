//! Convolutions, and transposed ones, as products whose operand is unfolded where it is read; or, where little is
//! summed or shared, one element a thread.

use super::super::product::{Axes, RowsFirst};
use super::super::{ExprId, HeroResult, Lowered, ProgramBuilder};
use super::{laid, spatial, weight_sizes};
use crate::ir::{Conv, ConvTranspose, Layout, NodeId};
use crate::kernel::program::{Body, Var};

/// Multiplications in one output of a convolution, or outputs of one input element, below which each
/// output is folded by a thread of its own.
const DIRECT: i64 = 4;

/// What the product of a convolution runs over.
struct Unfolded {
    /// Groups, channels of one, images and positions, what is summed over.
    vars: [Var; 4],
    image: ExprId,
    /// The position of the result, of all of them and along each axis.
    pixel: ExprId,
    at: Vec<ExprId>,
    /// The channel of the input, among all, and of the result, within its group and among all.
    from: ExprId,
    own: ExprId,
    channel: ExprId,
    /// The element of the window.
    offset: Vec<ExprId>,
}

impl ProgramBuilder<'_> {
    pub(in super::super) fn conv(&mut self, id: NodeId, conv: &Conv) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (kernel, inner, outer) = weight_sizes(conv.layout, &self.dims(weights)?);
        let sizes = [conv.groups, outer / conv.groups.max(1), inner];
        let Some(over) = self.unfolded(id, conv.layout, sizes, &kernel)? else { return self.map() };
        let size = spatial(conv.layout, &self.dims(x)?);
        let (position, inside) = self.touched(&conv.window, &size, &over.at, &over.offset);
        let x = self.guarded(x, &laid(conv.layout, over.image, over.from, &position), inside, 0.0)?;
        // Weights are by the input's channel within its group.
        let within = self.exprs.modulo(over.from, inner.max(1));
        let weight = match conv.layout {
            Layout::ChannelsFirst => [&[over.channel, within], &over.offset[..]].concat(),
            Layout::ChannelsLast => [&over.offset[..], &[within, over.channel]].concat(),
        };
        let w = self.at(weights, &weight, None)?;
        self.unfolded_product(id, conv.layout, over, (x, w))
    }

    /// A transposed convolution: every element of the result looks for the windows that it is in.
    pub(in super::super) fn conv_transpose(&mut self, id: NodeId, conv: &ConvTranspose) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (x_dims, weight_dims) = (self.dims(x)?, self.dims(weights)?);
        let rank = weight_dims.len();
        let (kernel, outer, channels) = match conv.layout {
            Layout::ChannelsFirst => (weight_dims[2..].to_vec(), weight_dims[1], x_dims[1]),
            Layout::ChannelsLast => {
                (weight_dims[..rank - 2].to_vec(), weight_dims[rank - 2], x_dims[rank - 1])
            }
        };
        let sizes = [conv.groups, outer, channels / conv.groups.max(1)];
        let Some(over) = self.unfolded(id, conv.layout, sizes, &kernel)? else { return self.map() };
        let size = spatial(conv.layout, &x_dims);
        let (mut position, mut inside) = (Vec::new(), None);
        for axis in 0..size.len() {
            let (place, within) = self.spread_from(
                &conv.window,
                axis,
                kernel[axis],
                size[axis],
                over.at[axis],
                over.offset[axis],
            );
            inside = self.exprs.both(inside, within);
            position.push(place);
        }
        let x = self.guarded(x, &laid(conv.layout, over.image, over.from, &position), inside, 0.0)?;
        let weight = match conv.layout {
            Layout::ChannelsFirst => [&[over.from, over.own], &over.offset[..]].concat(),
            Layout::ChannelsLast => [&over.offset[..], &[over.own, over.from]].concat(),
        };
        let w = self.at(weights, &weight, None)?;
        self.unfolded_product(id, conv.layout, over, (x, w))
    }

    /// Of groups, channels of the result and of the input in each, and the window. None where a product does not
    /// pay.
    fn unfolded(
        &mut self,
        id: NodeId,
        layout: Layout,
        [groups, outer, inner]: [i64; 3],
        kernel: &[i64],
    ) -> Lowered<Option<Unfolded>> {
        let window: i64 = kernel.iter().product();
        let depth = window.saturating_mul(inner);
        if outer < DIRECT || depth < DIRECT {
            return Ok(None);
        }
        let dims = self.dims(self.graph.node(id).first_result)?;
        let places = spatial(layout, &dims);
        let pixels: i64 = places.iter().product();
        let vars =
            [groups, outer, dims[0].saturating_mul(pixels), depth].map(|extent| self.exprs.var(extent));
        let [g, own, p, k] = vars.map(|var| self.exprs.at(var));
        let (image, pixel) = (self.exprs.div(p, pixels.max(1)), self.exprs.modulo(p, pixels.max(1)));
        let at = self.exprs.delinearize(&places, pixel);
        // Neighbours in memory are neighbours along what is summed over.
        let (c, offset) = match layout {
            Layout::ChannelsFirst => (self.exprs.div(k, window), self.exprs.modulo(k, window)),
            Layout::ChannelsLast => (self.exprs.modulo(k, inner), self.exprs.div(k, inner)),
        };
        let offset = self.exprs.delinearize(kernel, offset);
        let from = self.exprs.sum(0, &[(g, inner), (c, 1)]);
        let channel = self.exprs.sum(0, &[(g, outer), (own, 1)]);
        Ok(Some(Unfolded { vars, image, pixel, at, from, own, channel, offset }))
    }

    /// The product of input and weights, with the bias.
    fn unfolded_product(
        &mut self,
        id: NodeId,
        layout: Layout,
        over: Unfolded,
        (x, w): (ExprId, ExprId),
    ) -> Lowered<Body> {
        let node = self.graph.node(id);
        let dims = self.dims(node.first_result)?;
        let pixels: i64 = spatial(layout, &dims).iter().product();
        let Unfolded { vars: [group, channels, points, sum_over], image, pixel, channel, .. } = over;
        let p = self.exprs.at(points);
        let position = match layout {
            Layout::ChannelsFirst => {
                self.exprs.sum(0, &[(image, dims[1].saturating_mul(pixels)), (channel, pixels), (pixel, 1)])
            }
            Layout::ChannelsLast => self.exprs.sum(0, &[(p, dims[dims.len() - 1]), (channel, 1)]),
        };
        let hero = self.exprs.hero(self.dtype(node.first_result));
        let expr = self.with_bias(node.operands.get(2).copied(), hero, channel, None)?;
        let result = HeroResult { value: node.first_result, position, expr };
        match layout {
            Layout::ChannelsFirst => {
                let over = Axes { batch: group, row: channels, column: points, inner: sum_over };
                self.products(over, RowsFirst::default(), [w, x], result)
            }
            Layout::ChannelsLast => {
                let over = Axes { batch: group, row: points, column: channels, inner: sum_over };
                self.products(over, RowsFirst::default(), [x, w], result)
            }
        }
    }
}
