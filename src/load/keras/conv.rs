//! Convolutions: plain, depthwise, separable, transposed; over one, two or three axes.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, Conv as ConvOp, ConvTranspose, Init, Layout, Op, Size, ValueId, Window};

/// How the input is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Not at all.
    Valid,
    /// So that there are `ceil(size / stride)` windows; one more after than before where odd.
    Same,
    /// Only before, so that no window sees what comes later.
    Causal,
}

impl Padding {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        Ok(match config.text("padding")?.unwrap_or("valid").to_ascii_lowercase().as_str() {
            "valid" => Self::Valid,
            "same" => Self::Same,
            "causal" => Self::Causal,
            other => {
                unsupported.add(config.place(), format!("padding {other}"));
                Self::Valid
            }
        })
    }

    /// Padding (before, after) for one axis.
    fn amounts(
        self,
        site: &Site<'_>,
        size: &Size,
        extent: i64,
        stride: i64,
        axis: usize,
    ) -> Result<(i64, i64)> {
        match self {
            Self::Valid => Ok((0, 0)),
            Self::Causal => Ok((extent - 1, 0)),
            Self::Same => {
                let total = match size.known() {
                    Some(size) => {
                        // A size is at most 2^32 - 1 where it comes from a layer; the product of a
                        // shape's sizes is bounded, so one size is far from overflow.
                        let windows = size.max(1).saturating_sub(1) / stride;
                        (windows.saturating_mul(stride).saturating_add(extent)).saturating_sub(size).max(0)
                    }
                    None if stride == 1 => extent - 1,
                    None => return Err(site.open(axis)),
                };
                Ok((total / 2, total - total / 2))
            }
        }
    }

    /// Padding for all spatial axes of `x`.
    pub(super) fn window(
        self,
        site: &Site<'_>,
        x: ValueId,
        layout: Layout,
        kernel: &[i64],
        strides: &[i64],
        dilations: &[i64],
    ) -> Result<Window> {
        site.expect_rank(x, kernel.len() + 2)?;
        let sizes = site.sizes(x);
        let first = spatial(layout);
        let (mut pads_before, mut pads_after) = (Vec::new(), Vec::new());
        for axis in 0..kernel.len() {
            let extent = extent(site, kernel[axis], dilations[axis])?;
            let (before, after) =
                self.amounts(site, &sizes[first + axis], extent, strides[axis], first + axis)?;
            pads_before.push(before);
            pads_after.push(after);
        }
        Ok(Window { strides: strides.to_vec(), dilations: dilations.to_vec(), pads_before, pads_after })
    }
}

/// First spatial axis.
pub(super) fn spatial(layout: Layout) -> usize {
    match layout {
        Layout::ChannelsFirst => 2,
        Layout::ChannelsLast => 1,
    }
}

/// The axis of the channels of a tensor of this rank.
pub(super) fn channels(layout: Layout, rank: usize) -> usize {
    match layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => rank - 1,
    }
}

/// The layout in field `data_format`.
pub(super) fn layout(config: Config<'_>) -> Result<Layout> {
    match config.text("data_format")? {
        None | Some("channels_last") => Ok(Layout::ChannelsLast),
        Some("channels_first") => Ok(Layout::ChannelsFirst),
        Some(other) => {
            Err(config.fault("data_format", format!("{other} is neither channels_last nor channels_first")))
        }
    }
}

/// A kernel `[..., in, out]` in the order that the operation wants: Keras' own, or its last two axes first.
pub(super) fn ordered(site: &mut Site<'_>, kernel: ValueId, layout: Layout) -> Result<ValueId> {
    match layout {
        Layout::ChannelsLast => Ok(kernel),
        Layout::ChannelsFirst => {
            let axes = site.rank(kernel) - 2;
            let perm: Vec<usize> = [axes + 1, axes].into_iter().chain(0..axes).collect();
            site.transpose(kernel, &perm)
        }
    }
}

/// What a dilated window spans.
fn extent(site: &Site<'_>, kernel: i64, dilation: i64) -> Result<i64> {
    let extent = dilation.checked_mul(kernel - 1).and_then(|span| span.checked_add(1));
    extent.filter(|&extent| extent <= 1 << 40).ok_or_else(|| site.error("the dilated kernel is too large"))
}

#[derive(Debug)]
enum Kind {
    Plain { filters: i64, groups: i64, kernel: Init },
    Depthwise { multiplier: i64, kernel: Init, name: &'static str },
    Separable { filters: i64, multiplier: i64, depthwise: Init, pointwise: Init },
    Transposed { filters: i64, kernel: Init, output_padding: Option<Vec<i64>> },
}

/// A convolutional layer.
#[derive(Debug)]
pub(super) struct Conv {
    kind: Kind,
    size: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    padding: Padding,
    layout: Layout,
    bias: Option<Init>,
    activation: Activation,
}

/// Number of spatial axes in a class name.
pub(super) fn spatial_rank(class: &str) -> usize {
    [(1, "1D"), (3, "3D")].into_iter().find(|(_, text)| class.contains(text)).map_or(2, |(rank, _)| rank)
}

impl Conv {
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        let rank = spatial_rank(class);
        if class.starts_with("Depthwise") || class.starts_with("Separable") {
            // Each channel has a kernel of its own, however many groups are said to be.
            config.ignore(&["groups"]);
        }
        let multiplier = || {
            config.int("depth_multiplier").map(|m| m.unwrap_or(1)).and_then(|m| match m {
                1.. => Ok(m),
                _ => Err(config.fault("depth_multiplier", format!("{m} is less than 1"))),
            })
        };
        let mut init = |key| initialiser(config, key, Init::glorot_uniform(), unsupported);
        let kind = if class.contains("Transpose") {
            let output_padding =
                config.get("output_padding").map(|_| config.pairs("output_padding", rank, 0));
            Kind::Transposed {
                filters: config.positive("filters")?,
                kernel: init("kernel_initializer")?,
                output_padding: output_padding
                    .transpose()?
                    .map(|pairs| pairs.into_iter().map(|(amount, _)| amount).collect()),
            }
        } else if class.starts_with("Depthwise") {
            Kind::Depthwise {
                multiplier: multiplier()?,
                kernel: init("depthwise_initializer")?,
                name: if version == KerasVersion::Two { "depthwise_kernel" } else { "kernel" },
            }
        } else if class.starts_with("Separable") {
            Kind::Separable {
                filters: config.positive("filters")?,
                multiplier: multiplier()?,
                depthwise: init("depthwise_initializer")?,
                pointwise: init("pointwise_initializer")?,
            }
        } else {
            let groups = match config.get("groups") {
                Some(_) => config.positive("groups")?,
                None => 1,
            };
            let filters = config.positive("filters")?;
            if filters % groups != 0 {
                return Err(config.fault("groups", format!("{groups} does not divide {filters} filters")));
            }
            Kind::Plain { filters, groups, kernel: init("kernel_initializer")? }
        };
        let bias = initialiser(config, "bias_initializer", Init::zeros(), unsupported)?;
        Ok(Self {
            kind,
            size: config.per_axis("kernel_size", rank, None)?,
            strides: config.per_axis("strides", rank, Some(1))?,
            dilations: config.per_axis("dilation_rate", rank, Some(1))?,
            padding: Padding::read(config, unsupported)?,
            layout: layout(config)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            activation: Activation::read(config, "activation", "linear", version, unsupported)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let rank = self.size.len() + 2;
        site.expect_rank(x, rank)?;
        let inputs = site.known(x, channels(self.layout, rank))?;
        let dims = |last: [i64; 2]| -> Vec<i64> { self.size.iter().copied().chain(last).collect() };
        let too_many = |site: &Site<'_>| site.error("too many channels");
        let value = match &self.kind {
            Kind::Plain { filters, groups, kernel } => {
                if inputs % groups != 0 {
                    return Err(site.error(&format!("{inputs} channels do not divide into {groups} groups")));
                }
                let kernel = site.weight("kernel", &dims([inputs / groups, *filters]), kernel)?;
                return self.finish(site, x, kernel, *groups, *filters);
            }
            Kind::Depthwise { multiplier, kernel, name } => {
                let outputs = inputs.checked_mul(*multiplier).ok_or_else(|| too_many(site))?;
                let kernel = site.weight(name, &dims([inputs, *multiplier]), kernel)?;
                let kernel = self.by_group(site, kernel, outputs)?;
                return self.finish(site, x, kernel, inputs, outputs);
            }
            Kind::Separable { filters, multiplier, depthwise, pointwise } => {
                let between = inputs.checked_mul(*multiplier).ok_or_else(|| too_many(site))?;
                let depth = site.weight("depthwise_kernel", &dims([inputs, *multiplier]), depthwise)?;
                let ones: Vec<i64> = self.size.iter().map(|_| 1).chain([between, *filters]).collect();
                let point = site.weight("pointwise_kernel", &ones, pointwise)?;
                let bias = self.bias(site, *filters)?;
                let depth = self.by_group(site, depth, between)?;
                let value = self.convolve(site, x, depth, inputs, None)?;
                let axes = self.size.len();
                let window = Window {
                    strides: vec![1; axes],
                    dilations: vec![1; axes],
                    pads_before: vec![0; axes],
                    pads_after: vec![0; axes],
                };
                self.push(site, window, value, point, 1, bias)?
            }
            Kind::Transposed { filters, kernel, output_padding } => {
                let kernel = site.weight("kernel", &dims([*filters, inputs]), kernel)?;
                let bias = self.bias(site, *filters)?;
                self.transposed(site, x, kernel, bias, output_padding.as_deref())?
            }
        };
        self.activation.lower(site, value)
    }

    fn finish(
        &self,
        site: &mut Site<'_>,
        x: ValueId,
        kernel: ValueId,
        groups: i64,
        filters: i64,
    ) -> Result<ValueId> {
        let bias = self.bias(site, filters)?;
        let value = self.convolve(site, x, kernel, groups, bias)?;
        self.activation.lower(site, value)
    }

    fn bias(&self, site: &mut Site<'_>, filters: i64) -> Result<Option<ValueId>> {
        self.bias.as_ref().map(|init| site.weight("bias", &[filters], init)).transpose()
    }

    /// A depthwise kernel `[..., in, multiplier]` as one of `in` groups: `[..., 1, in * multiplier]`.
    fn by_group(&self, site: &mut Site<'_>, kernel: ValueId, outputs: i64) -> Result<ValueId> {
        let sizes = self.size.iter().copied().chain([1, outputs]).map(Size::Known);
        site.reshape(kernel, sizes.collect())
    }

    fn convolve(
        &self,
        site: &mut Site<'_>,
        x: ValueId,
        kernel: ValueId,
        groups: i64,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let window = self.padding.window(site, x, self.layout, &self.size, &self.strides, &self.dilations)?;
        self.push(site, window, x, kernel, groups, bias)
    }

    fn push(
        &self,
        site: &mut Site<'_>,
        window: Window,
        x: ValueId,
        kernel: ValueId,
        groups: i64,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let kernel = ordered(site, kernel, self.layout)?;
        let conv = ConvOp { layout: self.layout, window, groups };
        let operands: Vec<ValueId> = [x, kernel].into_iter().chain(bias).collect();
        site.apply(Op::Conv(Box::new(conv)), &operands)
    }

    /// The gradient of a convolution, sized as TensorFlow does.
    fn transposed(
        &self,
        site: &mut Site<'_>,
        x: ValueId,
        kernel: ValueId,
        bias: Option<ValueId>,
        output_padding: Option<&[i64]>,
    ) -> Result<ValueId> {
        let axes = self.size.len();
        let mut window = Window {
            strides: self.strides.clone(),
            dilations: self.dilations.clone(),
            pads_before: vec![0; axes],
            pads_after: vec![0; axes],
        };
        let mut added = vec![0; axes];
        for axis in 0..axes {
            let (stride, extent) = (self.strides[axis], extent(site, self.size[axis], self.dilations[axis])?);
            // How much larger than (size - 1) * stride the result is.
            let wanted = match (output_padding, self.padding) {
                (None, Padding::Same) => stride,
                (None, _) => extent.max(stride),
                (Some(amounts), Padding::Same) => extent - 2 * (extent / 2) + amounts[axis],
                (Some(amounts), _) => extent + amounts[axis],
            };
            let cut = extent - wanted;
            if cut >= 0 {
                window.pads_before[axis] = cut / 2;
                window.pads_after[axis] = cut - cut / 2;
            } else {
                added[axis] = -cut;
            }
        }
        let kernel = ordered(site, kernel, self.layout)?;
        let op = ConvTranspose { layout: self.layout, window, output_padding: added, groups: 1 };
        // The operation's own bias would be enough; the sum keeps one rule for all layouts.
        let value = site.apply(Op::ConvTranspose(Box::new(op)), &[x, kernel])?;
        let Some(bias) = bias else { return Ok(value) };
        let bias = match self.layout {
            Layout::ChannelsLast => bias,
            Layout::ChannelsFirst => {
                let filters = site.sizes(bias);
                let sizes = filters.into_iter().chain(vec![Size::Known(1); axes]).collect();
                site.reshape(bias, sizes)?
            }
        };
        site.binary(Binary::Add, value, bias)
    }
}
