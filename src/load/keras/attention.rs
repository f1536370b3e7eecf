//! Multi-head attention.

use super::config::{Config, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use super::mask::{self, Masked};
use super::network::{Argument, CallOptions};
use super::noise::dropout;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Init, Op, Shape, Size, ValueId};

/// Attention of several heads over sequences `[batch, time, features]`.
#[derive(Debug)]
pub(super) struct Attention {
    heads: i64,
    /// Heads of keys and values, each read by as many heads of queries.
    key_heads: i64,
    key_size: i64,
    value_size: i64,
    output: Option<i64>,
    /// The axes that attention goes over; none where all between batch and features are.
    axes: Option<Vec<i64>>,
    kernel: Init,
    bias: Option<Init>,
    /// Of the weights, while the network trains.
    dropout: f64,
}

/// How many heads, and how long the vectors of each are.
#[derive(Clone, Copy)]
struct Heads {
    count: i64,
    size: i64,
}

/// What the layer is called with.
#[derive(Default)]
struct Operands {
    query: Option<Masked>,
    value: Option<Masked>,
    key: Option<Masked>,
    mask: Option<Masked>,
}

impl Attention {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        if config.flag("use_gate", false)? {
            unsupported.add(config.place(), "use_gate");
        }
        if config.get("sliding_window").is_some() {
            unsupported.add(config.place(), "sliding_window");
        }
        let output = match config.int_or_ints("output_shape")?.as_deref() {
            None => None,
            Some([size]) if *size >= 1 => Some(*size),
            Some(_) => {
                unsupported.add(config.place(), "an output_shape of several sizes");
                None
            }
        };
        let key_size = config.positive("key_dim")?;
        let bias = initialiser(config, "bias_initializer", Init::zeros(), unsupported)?;
        let heads = config.positive("num_heads")?;
        Ok(Self {
            heads,
            key_heads: heads,
            key_size,
            value_size: if config.get("value_dim").is_some() {
                config.positive("value_dim")?
            } else {
                key_size
            },
            output,
            axes: config.int_or_ints("attention_axes")?,
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            dropout: dropout(config)?,
        })
    }

    /// GroupQueryAttention: several heads of queries read one head of keys and values.
    pub(super) fn grouped(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        for option in ["use_gate", "sliding_window"] {
            if config.get(option).is_some_and(|value| value != false) {
                unsupported.add(config.place(), option);
            }
        }
        let heads = config.positive("num_query_heads")?;
        let key_heads = config.positive("num_key_value_heads")?;
        if heads % key_heads != 0 {
            let message = format!("{heads} heads cannot be divided by {key_heads}");
            return Err(config.fault("num_key_value_heads", message));
        }
        let key_size = config.positive("head_dim")?;
        let bias = initialiser(config, "bias_initializer", Init::zeros(), unsupported)?;
        Ok(Self {
            heads,
            key_heads,
            key_size,
            value_size: key_size,
            output: None,
            axes: None,
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            dropout: dropout(config)?,
        })
    }

    pub(super) fn lower(
        &self,
        site: &mut Site<'_>,
        arguments: &[Argument<Masked>],
        options: CallOptions,
    ) -> Result<Vec<ValueId>> {
        let operands = operands(site, arguments)?;
        let Some(query) = operands.query else { return Err(site.error("is called without a query")) };
        let Some(value) = operands.value else { return Err(site.error("is called without a value")) };
        let counts = mask::of_scores(site, query.mask, &[value.mask, operands.key.and_then(|key| key.mask)])?;
        let key = operands.key.unwrap_or(value).value;
        let (query, value) = (query.value, value.value);
        let (query, value, key) = (site.computed(query)?, site.computed(value)?, site.computed(key)?);
        let own = site.sizes(query);
        if own.len() > 3 && (options.scores || options.causal || counts.is_some() || operands.mask.is_some())
        {
            return Err(site.unsupported("scores or masks of attention over several axes"));
        }
        let split = self.first_axis(site, query)?;
        let (query, value, key) =
            (sequences(site, query, split)?, sequences(site, value, split)?, sequences(site, key, split)?);
        let features = site.known(query, 2)?;
        let q = self.project(site, "query", query, Heads { count: self.heads, size: self.key_size })?;
        let k = self.project(site, "key", key, Heads { count: self.key_heads, size: self.key_size })?;
        let v = self.project(site, "value", value, Heads { count: self.key_heads, size: self.value_size })?;
        let (k, v) = (self.repeated(site, k)?, self.repeated(site, v)?);
        let q = site.binary_scalar(Binary::Mul, q, 1.0 / (self.key_size as f64).sqrt())?;
        let scores = site.matmul(q, k, true)?;
        let scores =
            self.masked(site, scores, [operands.mask.map(|mask| mask.value), counts], options.causal)?;
        let weights = site.apply(Op::Softmax { axis: 3, log: false }, &[scores])?;
        let kept = site.dropped(weights, self.dropout, &[])?;
        let mixed = site.matmul(kept, v, false)?;
        let mixed = site.transpose(mixed, &[0, 2, 1, 3])?;
        let wide = wide(site, self.heads, self.value_size)?;
        let mut sizes = site.sizes(mixed);
        sizes.truncate(2);
        sizes.push(Size::Known(wide));
        let mixed = site.reshape(mixed, sizes)?;
        let outputs = self.output.unwrap_or(features);
        let kernel =
            site.weight("attention_output/kernel", &[self.heads, self.value_size, outputs], &self.kernel)?;
        let bias = self.bias.as_ref();
        let bias = bias.map(|init| site.weight("attention_output/bias", &[outputs], init)).transpose()?;
        let kernel = site.reshape(kernel, vec![Size::Known(wide), Size::Known(outputs)])?;
        let mut result = site.matmul(mixed, kernel, false)?;
        if let Some(bias) = bias {
            result = site.binary(Binary::Add, result, bias)?;
        }
        if own.len() > 3 {
            let sizes = own.into_iter().rev().skip(1).rev().chain([Size::Known(outputs)]).collect();
            result = site.reshape(result, sizes)?;
        }
        Ok(if options.scores { vec![result, weights] } else { vec![result] })
    }

    /// The first axis that attention goes over: those before it are a batch. Error: they do not follow one another up
    /// to the features.
    fn first_axis(&self, site: &Site<'_>, x: ValueId) -> Result<usize> {
        let rank = site.rank(x);
        if rank < 3 {
            return Err(site.unsupported(&format!("attention over inputs of rank {rank}")));
        }
        let Some(axes) = &self.axes else { return Ok(1) };
        let mut axes = axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<usize>>>()?;
        axes.sort_unstable();
        match axes.first() {
            Some(&first) if first > 0 && axes.iter().copied().eq(first..rank - 1) => Ok(first),
            _ => Err(site.unsupported("attention over axes that are not the last before the features")),
        }
    }

    /// Keys or values `[batch, key heads, time, size]`, each once for every head of queries that reads it.
    fn repeated(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let times = self.heads / self.key_heads;
        if times == 1 {
            return Ok(x);
        }
        let sizes = site.sizes(x);
        let mut sides = sizes.clone();
        sides.insert(2, Size::Known(1));
        let value = site.reshape(x, sides.clone())?;
        sides[2] = Size::Known(times);
        let value = site.apply(Op::Broadcast { shape: Shape::new(sides) }, &[value])?;
        let mut merged = sizes;
        merged[1] = Size::Known(self.heads);
        site.reshape(value, merged)
    }

    /// `[batch, time, features]` to `[batch, heads, time, size]`.
    fn project(&self, site: &mut Site<'_>, name: &str, x: ValueId, heads: Heads) -> Result<ValueId> {
        let Heads { count, size } = heads;
        let features = site.known(x, 2)?;
        let wide = wide(site, count, size)?;
        let kernel = site.weight(&format!("{name}/kernel"), &[features, count, size], &self.kernel)?;
        let bias = self.bias.as_ref();
        let bias = bias.map(|init| site.weight(&format!("{name}/bias"), &[count, size], init)).transpose()?;
        let kernel = site.reshape(kernel, vec![Size::Known(features), Size::Known(wide)])?;
        let mut value = site.matmul(x, kernel, false)?;
        if let Some(bias) = bias {
            let bias = site.reshape(bias, vec![Size::Known(wide)])?;
            value = site.binary(Binary::Add, value, bias)?;
        }
        let mut sizes = site.sizes(value);
        sizes.truncate(2);
        sizes.extend([Size::Known(count), Size::Known(size)]);
        let value = site.reshape(value, sizes)?;
        site.transpose(value, &[0, 2, 1, 3])
    }

    /// Scores `[batch, heads, time, keys]` with those masked out made very negative.
    fn masked(
        &self,
        site: &mut Site<'_>,
        scores: ValueId,
        masks: [Option<ValueId>; 2],
        causal: bool,
    ) -> Result<ValueId> {
        let sizes = site.sizes(scores);
        let mut mask = None;
        for own in masks.into_iter().flatten() {
            let own = of_heads(site, own)?;
            mask = Some(match mask {
                None => own,
                Some(mask) => site.binary(Binary::And, mask, own)?,
            });
        }
        let causal = match causal {
            false => None,
            true => {
                let rows = site.iota(&sizes[2..], 0);
                let columns = site.iota(&sizes[2..], 1);
                Some(site.apply(Op::Compare(Compare::Ge), &[rows, columns])?)
            }
        };
        let mask = match (mask, causal) {
            (None, None) => return Ok(scores),
            (Some(mask), None) | (None, Some(mask)) => mask,
            (Some(mask), Some(causal)) => site.binary(Binary::And, mask, causal)?,
        };
        let low = if site.dtype(scores) == DType::F16 { -3e4 } else { -1e9 };
        let low = site.scalar_like(low, scores)?;
        site.apply(Op::Select, &[mask, scores, low])
    }
}

/// A tensor as `[batch, time, features]`: axes before `first` are the batch's, all others but the last those of time.
fn sequences(site: &mut Site<'_>, x: ValueId, first: usize) -> Result<ValueId> {
    let sizes = site.sizes(x);
    if sizes.len() == 3 {
        return Ok(x);
    }
    if sizes.len() < first + 2 {
        return Err(site.unsupported(&format!("attention over inputs of rank {}", sizes.len())));
    }
    let last = sizes.len() - 1;
    let (batch, time) = (site.product(&sizes[..first])?, site.product(&sizes[first..last])?);
    site.reshape(x, vec![batch, time, sizes[last].clone()])
}

/// A mask of scores as one of the scores of all heads.
fn of_heads(site: &mut Site<'_>, mask: ValueId) -> Result<ValueId> {
    let mask = site.convert(mask, DType::Bool)?;
    let mut sizes = site.sizes(mask);
    match sizes.len() {
        3 => sizes.insert(1, Size::Known(1)),
        2 | 4 => {}
        rank => return Err(site.unsupported(&format!("an attention mask of rank {rank}"))),
    }
    site.reshape(mask, sizes)
}

fn wide(site: &Site<'_>, heads: i64, size: i64) -> Result<i64> {
    heads.checked_mul(size).ok_or_else(|| site.error("num_heads * key_dim overflows"))
}

fn operands(site: &Site<'_>, arguments: &[Argument<Masked>]) -> Result<Operands> {
    let mut operands = Operands::default();
    let mut position = 0;
    for argument in arguments {
        let name = match &argument.keyword {
            Some(keyword) => keyword.as_str(),
            None => {
                position += 1;
                ["query", "value", "key"].get(position - 1).copied().unwrap_or("a fourth argument")
            }
        };
        let slot = match name {
            "query" => &mut operands.query,
            "value" => &mut operands.value,
            "key" => &mut operands.key,
            "attention_mask" => &mut operands.mask,
            other => return Err(site.unsupported(&format!("a call with {other}"))),
        };
        *slot = Some(argument.tensor);
    }
    Ok(operands)
}
