//! Dense and embedding layers.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use super::network::CallOptions;
use crate::error::Result;
use crate::ir::{Binary, DType, Init, Op, Real, Unary, ValueId};

/// `activation(x * kernel + bias)` along the last axis.
#[derive(Debug)]
pub(super) struct Dense {
    units: i64,
    kernel: Init,
    bias: Option<Init>,
    activation: Activation,
}

impl Dense {
    pub(super) fn read(
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        let bias = initialiser(config, "bias_initializer", Init::zeros(), unsupported)?;
        Ok(Self {
            units: match config.get("units") {
                // The name in the first version of Keras.
                None => config.positive("output_dim")?,
                Some(_) => config.positive("units")?,
            },
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            activation: Activation::read(config, "activation", "linear", version, unsupported)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let rank = site.rank(x);
        if rank < 2 {
            return Err(site.error(&format!("expected an input of rank 2 or more, found rank {rank}")));
        }
        let inputs = site.known(x, rank - 1)?;
        let kernel = site.weight("kernel", &[inputs, self.units], &self.kernel)?;
        let mut value = site.matmul(x, kernel, false)?;
        if let Some(init) = &self.bias {
            let bias = site.weight("bias", &[self.units], init)?;
            value = site.binary(Binary::Add, value, bias)?;
        }
        self.activation.lower(site, value)
    }
}

/// Rows of a table by their numbers.
#[derive(Debug)]
pub(super) struct Embedding {
    /// Steps of 0 do not count.
    pub(super) mask_zero: bool,
    rows: i64,
    columns: i64,
    init: Init,
    /// How a call in reverse goes; none where the layer has no such calls.
    reversal: Option<Reversal>,
}

/// From vectors to scores of all rows: by the table itself or one of its own, and within a bound.
#[derive(Debug)]
struct Reversal {
    tied: bool,
    soft_cap: Option<f64>,
}

impl Embedding {
    pub(super) fn reversible(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        if config.get("reverse_dtype").is_some() {
            unsupported.add(config.place(), "reverse_dtype");
        }
        let reversal =
            Reversal { tied: config.flag("tie_weights", true)?, soft_cap: config.real("logit_soft_cap")? };
        Ok(Self { reversal: Some(reversal), ..Self::read(config, unsupported)? })
    }

    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let uniform = Init::Uniform { low: Real(-0.05), high: Real(0.05) };
        Ok(Self {
            mask_zero: config.flag("mask_zero", false)?,
            rows: config.positive("input_dim")?,
            columns: config.positive("output_dim")?,
            init: initialiser(config, "embeddings_initializer", uniform, unsupported)?,
            reversal: None,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId, options: CallOptions) -> Result<ValueId> {
        let table = site.weight("embeddings", &[self.rows, self.columns], &self.init)?;
        let own = match &self.reversal {
            Some(reversal) if !reversal.tied => {
                Some(site.weight("reverse_embeddings", &[self.columns, self.rows], &self.init)?)
            }
            _ => None,
        };
        if options.reverse {
            let Some(reversal) = &self.reversal else { return Err(site.unsupported("a call in reverse")) };
            let x = site.computed(x)?;
            let mut scores = match own {
                Some(own) => site.matmul(x, own, false)?,
                None => site.matmul(x, table, true)?,
            };
            if let Some(bound) = reversal.soft_cap {
                let share = site.binary_scalar(Binary::Div, scores, bound)?;
                let share = site.unary(Unary::Tanh, share)?;
                scores = site.binary_scalar(Binary::Mul, share, bound)?;
            }
            return Ok(scores);
        }
        let rows = if site.dtype(x).is_integer() { x } else { site.convert(x, DType::I32)? };
        site.apply(Op::Gather { axis: 0 }, &[table, rows])
    }
}
