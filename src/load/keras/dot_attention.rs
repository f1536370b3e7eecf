//! Attention without projections: queries, values and keys as they come.

use super::config::{Config, Unsupported};
use super::lower::Site;
use super::mask::{self, Masked};
use super::network::CallOptions;
use super::noise::dropout;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Init, Op, ReduceKind, Size, Unary, ValueId};

/// Keras' `Attention` and `AdditiveAttention` over `[batch, time, features]`: softmax of scores of queries and keys.
#[derive(Debug)]
pub(super) struct DotAttention {
    scores: Scores,
    /// A factor is a weight.
    use_scale: bool,
    /// Of the weights, while the network trains.
    dropout: f64,
}

#[derive(Debug, PartialEq, Eq)]
enum Scores {
    /// Products, times one factor.
    Products,
    /// `factor * sum(tanh(scale * (query + key)))`
    Concatenated,
    /// `sum(scale * tanh(query + key))`, with a factor for each feature.
    Additive,
}

impl DotAttention {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let scores = match config.text("score_mode")?.unwrap_or("dot") {
            "concat" => Scores::Concatenated,
            mode => {
                if mode != "dot" {
                    unsupported.add(config.place(), format!("score_mode {mode}"));
                }
                Scores::Products
            }
        };
        Ok(Self { scores, use_scale: config.flag("use_scale", false)?, dropout: dropout(config)? })
    }

    pub(super) fn additive(config: Config<'_>) -> Result<Self> {
        Ok(Self {
            scores: Scores::Additive,
            use_scale: config.flag("use_scale", true)?,
            dropout: dropout(config)?,
        })
    }

    /// `[batch, queries, keys]`
    fn scores(&self, site: &mut Site<'_>, query: ValueId, key: ValueId) -> Result<ValueId> {
        if self.scores == Scores::Products {
            let scores = site.matmul(query, key, true)?;
            return if self.use_scale { self.scaled(site, scores, &[]) } else { Ok(scores) };
        }
        let mut sum = sum_of_pairs(site, query, key)?;
        if self.scores == Scores::Concatenated {
            if self.use_scale {
                sum = self.scaled(site, sum, &[])?;
            }
            let sum = site.unary(Unary::Tanh, sum)?;
            let scores =
                site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![3], keep: false }, &[sum])?;
            let factor = site.weight("concat_score_weight", &[], &Init::ones())?;
            return site.binary(Binary::Mul, scores, factor);
        }
        sum = site.unary(Unary::Tanh, sum)?;
        if self.use_scale {
            let features = site.sizes(query)[2].known();
            let features = features.ok_or_else(|| site.error("the number of its features is open"))?;
            sum = self.scaled(site, sum, &[features])?;
        }
        site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![3], keep: false }, &[sum])
    }

    fn scaled(&self, site: &mut Site<'_>, x: ValueId, dims: &[i64]) -> Result<ValueId> {
        let init = if dims.is_empty() { Init::ones() } else { Init::glorot_uniform() };
        let scale = site.weight("scale", dims, &init)?;
        site.binary(Binary::Mul, x, scale)
    }

    /// `inputs`: query, value and perhaps key.
    pub(super) fn lower(
        &self,
        site: &mut Site<'_>,
        inputs: &[Masked],
        options: CallOptions,
    ) -> Result<Vec<ValueId>> {
        let (queries, values, keys) = match inputs {
            [query, value] => (*query, *value, *value),
            [query, value, key] => (*query, *value, *key),
            _ => return Err(site.error(&format!("expected 2 or 3 inputs, found {}", inputs.len()))),
        };
        let (query, value, key) = (queries.value, values.value, keys.value);
        for input in [query, value, key] {
            site.expect_rank(input, 3)?;
        }
        let mut scores = self.scores(site, query, key)?;
        if options.causal {
            scores = causal(site, scores)?;
        }
        if let Some(counts) = mask::of_scores(site, None, &[values.mask])? {
            let low = site.binary_scalar(Binary::Add, scores, low(site.dtype(scores)))?;
            scores = site.apply(Op::Select, &[counts, scores, low])?;
        }
        let weights = site.apply(Op::Softmax { axis: 2, log: false }, &[scores])?;
        let weights = site.dropped(weights, self.dropout, &[])?;
        let mut result = site.matmul(weights, value, false)?;
        if let Some(counts) = mask::of_scores(site, queries.mask, &[])? {
            let zero = site.scalar_like(0.0, result)?;
            result = site.apply(Op::Select, &[counts, result, zero])?;
        }
        Ok(if options.scores { vec![result, weights] } else { vec![result] })
    }
}

/// A score of what is not seen.
fn low(dtype: DType) -> f64 {
    if dtype == DType::F16 { -3e4 } else { -1e9 }
}

/// Each query and each key, `[batch, queries, keys, features]`.
fn sum_of_pairs(site: &mut Site<'_>, query: ValueId, key: ValueId) -> Result<ValueId> {
    let (mut queries, mut keys) = (site.sizes(query), site.sizes(key));
    queries.insert(2, Size::Known(1));
    keys.insert(1, Size::Known(1));
    let (query, key) = (site.reshape(query, queries)?, site.reshape(key, keys)?);
    site.binary(Binary::Add, query, key)
}

/// Scores `[batch, queries, keys]`, very low for keys that come after their query.
fn causal(site: &mut Site<'_>, scores: ValueId) -> Result<ValueId> {
    let sizes = site.sizes(scores);
    let rows = site.iota(&sizes[1..], 0);
    let columns = site.iota(&sizes[1..], 1);
    let sees = site.apply(Op::Compare(Compare::Ge), &[rows, columns])?;
    let low = site.scalar_like(low(site.dtype(scores)), scores)?;
    site.apply(Op::Select, &[sees, scores, low])
}
