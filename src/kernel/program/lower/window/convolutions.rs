//! Convolutions, and transposed ones, as products whose operand is unfolded where it is read; or, where little is
//! summed or shared, one element a thread.

use super::super::product::{Axes, RowsFirst};
use super::super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use super::{laid, spatial, weight_sizes};
use crate::ir::{Conv, ConvTranspose, Layout, NodeId, ValueId, Window};
use crate::kernel::fused;
use crate::kernel::program::{Arg, Body, Patches, Place, Program, Side, Var};
use crate::kernel::workspace::channels_last;

/// Multiplications in one output of a convolution, or outputs of one input element, below which each
/// output is folded by a thread of its own.
const DIRECT: i64 = 4;

/// Positions of an image below which several images share a tile.
const SMALL_IMAGE: i64 = 32;

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

/// Input and weights in the workspace, channels last: where each begins, in bytes.
#[derive(Clone, Copy)]
struct ChannelsLast {
    x: u64,
    weights: u64,
}

impl ProgramBuilder<'_> {
    /// One kernel; three where what is read is transposed first.
    pub(in super::super) fn convolution(self, id: NodeId, conv: &Conv) -> Lowered<Vec<Program>> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let room = fused::folded_parts(self.graph, self.fused).get();
        let kept = channels_last(conv, self.graph.ty(x), self.graph.ty(weights));
        let Some([of_x, _]) = kept.filter(|[x, weights]| x.saturating_add(*weights) <= room) else {
            return self.alone(|this| this.conv(id, conv));
        };
        let begin = self.layout.workspace.get();
        let at = ChannelsLast { x: begin, weights: begin.saturating_add(of_x) };
        let another = || ProgramBuilder::new(self.graph, self.fused, self.layout, self.nodes);
        let (inputs, windows, product) = (another(), another(), another());
        Ok(vec![
            inputs.transposed_input(x, at.x)?,
            windows.transposed_weights(weights, at.weights)?,
            product.convolved(id, conv, at)?,
        ])
    }

    fn kept(&mut self, value: ValueId, offset: u64, written: bool) -> u32 {
        let (dtype, elements) = (self.dtype(value), self.graph.ty(value).elements().unwrap_or(u64::MAX));
        self.args.push(Arg { place: Place::Workspace(offset), dtype, elements, written });
        self.args.len() as u32 - 1
    }

    /// `[image, position, channel]` of an input.
    fn transposed_input(mut self, x: ValueId, to: u64) -> Lowered<Program> {
        let dims = self.dims(x)?;
        let size = spatial(Layout::ChannelsFirst, &dims);
        let positions: i64 = size.iter().product();
        let [batch, row, column] = [dims[0], positions, dims[1]].map(|extent| self.exprs.var(extent));
        let [image, position, channel] = [batch, row, column].map(|var| self.exprs.at(var));
        let at = self.exprs.delinearize(&size, position);
        let value = self.at(x, &laid(Layout::ChannelsFirst, image, channel, &at), None)?;
        let index = self.exprs.linear(&[dims[0], positions, dims[1]], &[image, position, channel]);
        let arg = self.kept(x, to, true);
        let hero = self.exprs.hero(self.dtype(x));
        let stores = vec![self.replacing(arg, index, hero)];
        let program = self.finish(Body::Tile { batch, row, column, value, stores });
        Ok(Program { name: format!("{} channels last", program.name), ..program })
    }

    /// `[outer channel, window, inner channel]` of weights.
    fn transposed_weights(mut self, weights: ValueId, to: u64) -> Lowered<Program> {
        let dims = self.dims(weights)?;
        let mut last = dims[2..].to_vec();
        last.insert(0, dims[0]);
        last.push(dims[1]);
        let (point, index) = self.over(&last);
        let (image, channel, at) = super::parts(Layout::ChannelsLast, &index);
        let value = self.at(weights, &laid(Layout::ChannelsFirst, image, channel, &at), None)?;
        let arg = self.kept(weights, to, true);
        let position = self.exprs.at(point);
        let stores = vec![self.replacing(arg, position, value)];
        let program = self.finish(Body::Map { point, stores });
        Ok(Program { name: format!("{} weights channels last", program.name), ..program })
    }

    /// The convolution of what was transposed, whose result has its channels first.
    fn convolved(mut self, id: NodeId, conv: &Conv, from: ChannelsLast) -> Lowered<Program> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (kernel, inner, outer) = weight_sizes(conv.layout, &self.dims(weights)?);
        let sizes = [conv.groups, outer / conv.groups.max(1), inner];
        let over = self.unfolded(id, [conv.layout, Layout::ChannelsLast], sizes, &kernel)?;
        let over = over.ok_or(Halt::Unfused)?;
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let size = spatial(conv.layout, &dims);
        let (position, inside) = self.touched(&conv.window, &size, &over.at, &over.offset);
        let order = [&[dims[0]], &size[..], &[dims[1]]].concat();
        let index = laid(Layout::ChannelsLast, over.image, over.from, &position);
        let index = self.exprs.linear(&order, &index);
        let arg = self.kept(x, from.x, false);
        let x = self.exprs.load(arg, dtype, index, inside, 0.0);
        let within = self.exprs.modulo(over.from, inner.max(1));
        let order = [&[outer], &kernel[..], &[inner]].concat();
        let index = [&[over.channel], &over.offset[..], &[within]].concat();
        let index = self.exprs.linear(&order, &index);
        let arg = self.kept(weights, from.weights, false);
        let w = self.exprs.load(arg, dtype, index, None, 0.0);
        let body = self.unfolded_product(id, conv.layout, over, (x, w))?;
        Ok(self.finish(body))
    }

    pub(in super::super) fn conv(&mut self, id: NodeId, conv: &Conv) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (kernel, inner, outer) = weight_sizes(conv.layout, &self.dims(weights)?);
        let sizes = [conv.groups, outer / conv.groups.max(1), inner];
        if let Some(body) = self.pointwise(id, conv, &kernel)? {
            return Ok(body);
        }
        let Some(over) = self.unfolded(id, [conv.layout; 2], sizes, &kernel)? else { return self.map() };
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
        let body = self.unfolded_product(id, conv.layout, over, (x, w))?;
        self.with_patches(id, conv, &kernel, body)
    }

    /// The product with what its windows are windows of: of one group and of one or two axes.
    fn with_patches(&mut self, id: NodeId, conv: &Conv, kernel: &[i64], mut body: Body) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (x, rank) = (node.operands[0], kernel.len());
        if conv.groups != 1 || rank > 2 {
            return Ok(body);
        }
        let dims = self.dims(x)?;
        let size = spatial(conv.layout, &dims);
        let places = spatial(conv.layout, &self.dims(node.first_result)?);
        let channels = match conv.layout {
            Layout::ChannelsFirst => dims[1],
            Layout::ChannelsLast => dims[dims.len() - 1],
        };
        // One axis is the second of two.
        let two = |sizes: &[i64], other: i64| [if rank == 2 { sizes[0] } else { other }, sizes[rank - 1]];
        let [rows, columns] = two(&size, 1);
        let element = [dims[0], rows, columns, channels].map(|extent| self.exprs.var(extent));
        let [image, row, column, channel] = element.map(|var| self.exprs.at(var));
        let at = if rank == 2 { vec![row, column] } else { vec![column] };
        let value = self.at(x, &laid(conv.layout, image, channel, &at), None)?;
        let window = &conv.window;
        let patches = Patches {
            side: if conv.layout == Layout::ChannelsLast { Side::Left } else { Side::Right },
            element,
            value,
            places: two(&places, 1),
            kernel: two(kernel, 1),
            strides: two(&window.strides, 1),
            dilations: two(&window.dilations, 1),
            pads: two(&window.pads_before, 0),
            channels_inside: conv.layout == Layout::ChannelsLast,
        };
        if let Body::Product { patches: own, .. } = &mut body {
            *own = Some(Box::new(patches));
        }
        Ok(body)
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
        let Some(over) = self.unfolded(id, [conv.layout; 2], sizes, &kernel)? else { return self.map() };
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

    /// A convolution of single elements as a product: the input is read as it is, as libraries of products ask. Channels
    /// first it is one for each image, and a bias is one for each row, which libraries do not have; channels last it is
    /// one of all positions. None where it is no such, or images are so small that several share a tile.
    fn pointwise(&mut self, id: NodeId, conv: &Conv, kernel: &[i64]) -> Lowered<Option<Body>> {
        let Window { strides, pads_before, pads_after, .. } = &conv.window;
        let is_plain = kernel.iter().all(|&size| size == 1)
            && strides.iter().all(|&stride| stride == 1)
            && pads_before.iter().chain(pads_after).all(|&pad| pad == 0);
        if conv.groups != 1 || !is_plain {
            return Ok(None);
        }
        match conv.layout {
            Layout::ChannelsFirst => self.pointwise_by_image(id, conv, kernel.len()),
            Layout::ChannelsLast => self.pointwise_of_all(id, kernel.len()),
        }
    }

    fn pointwise_by_image(&mut self, id: NodeId, conv: &Conv, spatial_rank: usize) -> Lowered<Option<Body>> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (dims, made) = (self.dims(x)?, self.dims(node.first_result)?);
        let pixels: i64 = spatial(conv.layout, &dims).iter().product();
        if dims[1] < DIRECT || made[1] < DIRECT || pixels < SMALL_IMAGE {
            return Ok(None);
        }
        let [batch, row, column, inner] =
            [dims[0], made[1], pixels, dims[1]].map(|extent| self.exprs.var(extent));
        let [image, channel, pixel, from] = [batch, row, column, inner].map(|var| self.exprs.at(var));
        let at = self.delinearized(&spatial(conv.layout, &dims), pixel);
        let x = self.at(x, &laid(conv.layout, image, from, &at), None)?;
        let zeros = vec![self.exprs.index(0); spatial_rank];
        let w = self.at(weights, &[&[channel, from], &zeros[..]].concat(), None)?;
        let position = self.exprs.linear(&[dims[0], made[1], pixels], &[image, channel, pixel]);
        let hero = self.exprs.hero(self.dtype(node.first_result));
        let expr = self.with_bias(node.operands.get(2).copied(), hero, channel, None)?;
        let result = HeroResult { value: node.first_result, position, expr };
        let over = Axes { batch, row, column, inner };
        self.products(over, RowsFirst::default(), [w, x], result).map(Some)
    }

    fn pointwise_of_all(&mut self, id: NodeId, spatial_rank: usize) -> Lowered<Option<Body>> {
        let node = self.graph.node(id);
        let (x, weights) = (node.operands[0], node.operands[1]);
        let (dims, made) = (self.dims(x)?, self.dims(node.first_result)?);
        let (&[ref places @ .., channels], &[.., outer]) = (&dims[..], &made[..]) else { return Ok(None) };
        if channels < DIRECT || outer < DIRECT {
            return Ok(None);
        }
        let positions = places.iter().product();
        let [batch, row, column, inner] =
            [1, positions, outer, channels].map(|extent| self.exprs.var(extent));
        let [point, channel, from] = [row, column, inner].map(|var| self.exprs.at(var));
        let at = self.delinearized(places, point);
        let x = self.at(x, &[&at[..], &[from]].concat(), None)?;
        let zeros = vec![self.exprs.index(0); spatial_rank];
        let w = self.at(weights, &[&zeros[..], &[from, channel]].concat(), None)?;
        let position = self.exprs.linear(&[positions, outer], &[point, channel]);
        let hero = self.exprs.hero(self.dtype(node.first_result));
        let expr = self.with_bias(node.operands.get(2).copied(), hero, channel, None)?;
        let result = HeroResult { value: node.first_result, position, expr };
        let over = Axes { batch, row, column, inner };
        self.products(over, RowsFirst::default(), [x, w], result).map(Some)
    }

    /// Of groups, channels of the result and of the input in each, and the window; how results lie, and in which order
    /// channels and windows are summed. None where a product does not pay.
    fn unfolded(
        &mut self,
        id: NodeId,
        [layout, summed]: [Layout; 2],
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
        let (c, offset) = match summed {
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
