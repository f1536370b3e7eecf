//! ConvLSTM: an LSTM whose products are convolutions.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::conv::{Padding, channels, layout, ordered, spatial_rank};
use super::init::initialiser;
use super::lower::Site;
use super::mask::Masked;
use super::recurrent::lstm_bias;
use super::steps::{Gates, Sequence, Stepped, Stepwise, together};
use crate::error::Result;
use crate::ir::{Cell, Conv, Init, Layout, Op, Real, Size, ValueId, Window};

/// ConvLSTM1D, 2D and 3D.
#[derive(Debug)]
pub(super) struct ConvLstm {
    filters: i64,
    size: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    padding: Padding,
    layout: Layout,
    activation: Activation,
    recurrent_activation: Activation,
    kernel: Init,
    recurrent: Init,
    bias: Option<Init>,
    pub(super) sequences: bool,
    pub(super) state: bool,
    /// What a batch leaves is what the next one begins with.
    stateful: bool,
    trainable: bool,
    pub(super) is_backwards: bool,
    /// A step that does not count gives 0, not what the last one before it gave.
    pub(super) zero_masked: bool,
}

impl ConvLstm {
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        let rank = spatial_rank(class);
        let gates = if version == KerasVersion::Two { "hard_sigmoid" } else { "sigmoid" };
        let bias = lstm_bias(config, unsupported)?;
        let orthogonal = Init::Orthogonal { gain: Real(1.0) };
        Ok(Self {
            filters: config.positive("filters")?,
            size: config.per_axis("kernel_size", rank, None)?,
            strides: config.per_axis("strides", rank, Some(1))?,
            dilations: config.per_axis("dilation_rate", rank, Some(1))?,
            padding: Padding::read(config, unsupported)?,
            layout: layout(config)?,
            activation: Activation::read(config, "activation", "tanh", version, unsupported)?,
            recurrent_activation: Activation::read(
                config,
                "recurrent_activation",
                gates,
                version,
                unsupported,
            )?,
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            recurrent: initialiser(config, "recurrent_initializer", orthogonal, unsupported)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            sequences: config.flag("return_sequences", false)?,
            state: config.flag("return_state", false)?,
            stateful: config.flag("stateful", false)?,
            trainable: config.flag("trainable", true)?,
            is_backwards: config.flag("go_backwards", false)?,
            zero_masked: config.flag("zero_output_for_mask", false)?,
        })
    }

    /// The layer on `[batch, time, ...]` and, where `initial` has any, its initial states.
    pub(super) fn lower(&self, site: &mut Site<'_>, x: Masked, initial: &[ValueId]) -> Result<Vec<ValueId>> {
        let mut stepped = self.run(site, x, initial, "")?;
        if self.is_backwards {
            stepped.outputs.reverse();
        }
        let mut results = vec![self.output(site, &stepped)?];
        if self.state {
            results.extend(stepped.states);
        }
        Ok(results)
    }

    /// What the layer gives of its steps, but for its states.
    pub(super) fn output(&self, site: &mut Site<'_>, stepped: &Stepped) -> Result<ValueId> {
        match self.sequences {
            true => together(site, &stepped.outputs),
            false => Ok(stepped.last),
        }
    }

    /// The layer's steps, with its weights under a prefix.
    pub(super) fn run(
        &self,
        site: &mut Site<'_>,
        x: Masked,
        initial: &[ValueId],
        prefix: &str,
    ) -> Result<Stepped> {
        // A direction may be frozen where the layer around it is not.
        let trainable = site.trainable;
        site.trainable &= self.trainable;
        let stepped = self.stepped(site, x, initial, prefix);
        site.trainable = trainable;
        stepped
    }

    fn stepped(&self, site: &mut Site<'_>, x: Masked, initial: &[ValueId], prefix: &str) -> Result<Stepped> {
        let axes = self.size.len();
        site.expect_rank(x.value, axes + 3)?;
        let sizes = site.sizes(x.value);
        let inputs = site.known(x.value, channels(self.layout, axes + 2) + 1)?;
        let wide = self.filters.checked_mul(4).ok_or_else(|| site.error("filters is too large"))?;
        let dims = |inputs: i64| -> Vec<i64> { self.size.iter().copied().chain([inputs, wide]).collect() };
        let kernel = site.weight(&format!("{prefix}kernel"), &dims(inputs), &self.kernel)?;
        let recurrent =
            site.weight(&format!("{prefix}recurrent_kernel"), &dims(self.filters), &self.recurrent)?;
        let named = format!("{prefix}bias");
        let bias = self.bias.as_ref().map(|init| site.weight(&named, &[wide], init)).transpose()?;
        // The products of all steps' inputs are one convolution.
        let mut folded = vec![site.product(&sizes[..2])?];
        folded.extend_from_slice(&sizes[2..]);
        let x_folded = site.reshape(x.value, folded)?;
        let window =
            self.padding.window(site, x_folded, self.layout, &self.size, &self.strides, &self.dilations)?;
        let gates = self.convolve(site, x_folded, kernel, window, bias)?;
        let mut unfolded = sizes[..2].to_vec();
        unfolded.extend(site.sizes(gates).into_iter().skip(1));
        let gates = site.reshape(gates, unfolded.clone())?;
        let mut state_sizes = unfolded;
        state_sizes.remove(1);
        let axis = channels(self.layout, axes + 2);
        state_sizes[axis] = Size::Known(self.filters);
        let states = match initial {
            [] if self.stateful => {
                let name = |at: usize| format!("{prefix}states/{at}");
                vec![site.state(&name(0), state_sizes.clone())?, site.state(&name(1), state_sizes)?]
            }
            [] => {
                let zero = site.zeros(state_sizes)?;
                vec![zero, zero]
            }
            [h, c] => vec![*h, *c],
            _ => return Err(site.error(&format!("expected 2 initial states, found {}", initial.len()))),
        };
        let product = |site: &mut Site<'_>, h: ValueId, _: Gates| {
            let ones = vec![1; axes];
            let window = Padding::Same.window(site, h, self.layout, &self.size, &ones, &ones)?;
            self.convolve(site, h, recurrent, window, None)
        };
        let stepwise = Stepwise {
            cell: Cell::Lstm,
            units: self.filters,
            axis,
            activation: &self.activation,
            recurrent_activation: &self.recurrent_activation,
            product: &product,
        };
        let sequence =
            Sequence { gates, mask: x.mask, is_backwards: self.is_backwards, zero_masked: self.zero_masked };
        let stepped = stepwise.run(site, &sequence, states.clone())?;
        if self.stateful && initial.is_empty() {
            states.iter().zip(&stepped.states).for_each(|(&state, &next)| site.leave(state, next));
        }
        Ok(stepped)
    }

    fn convolve(
        &self,
        site: &mut Site<'_>,
        x: ValueId,
        kernel: ValueId,
        window: Window,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let kernel = ordered(site, kernel, self.layout)?;
        let conv = Conv { layout: self.layout, window, groups: 1 };
        let operands: Vec<ValueId> = [x, kernel].into_iter().chain(bias).collect();
        site.apply(Op::Conv(Box::new(conv)), &operands)
    }
}
