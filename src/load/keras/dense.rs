//! Dense and embedding layers.

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, DType, Init, Op, Real, ValueId};

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
        if config.get("lora_rank").is_some() {
            unsupported.add(config.place(), "lora_rank");
        }
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
}

impl Embedding {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        if config.get("lora_rank").is_some() {
            unsupported.add(config.place(), "lora_rank");
        }
        let uniform = Init::Uniform { low: Real(-0.05), high: Real(0.05) };
        Ok(Self {
            mask_zero: config.flag("mask_zero", false)?,
            rows: config.positive("input_dim")?,
            columns: config.positive("output_dim")?,
            init: initialiser(config, "embeddings_initializer", uniform, unsupported)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let table = site.weight("embeddings", &[self.rows, self.columns], &self.init)?;
        let rows = if site.dtype(x).is_integer() { x } else { site.convert(x, DType::I32)? };
        site.apply(Op::Gather { axis: 0 }, &[table, rows])
    }
}
