//! Attention without projections: queries, values and keys as they come.

use super::config::{Config, Unsupported};
use super::lower::Site;
use super::network::CallOptions;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Init, Op, ValueId};

/// Keras' `Attention` over `[batch, time, features]`: softmax of the products of queries and keys.
#[derive(Debug)]
pub(super) struct DotAttention {
    /// One factor for all scores is a weight.
    use_scale: bool,
}

impl DotAttention {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let mode = config.text("score_mode")?.unwrap_or("dot");
        if mode != "dot" {
            unsupported.add(config.place(), format!("score_mode {mode}"));
        }
        Ok(Self { use_scale: config.flag("use_scale", false)? })
    }

    /// `inputs`: query, value and perhaps key.
    pub(super) fn lower(
        &self,
        site: &mut Site<'_>,
        inputs: &[ValueId],
        options: CallOptions,
    ) -> Result<Vec<ValueId>> {
        let (query, value, key) = match inputs {
            [query, value] => (*query, *value, *value),
            [query, value, key] => (*query, *value, *key),
            _ => return Err(site.error(&format!("expected 2 or 3 inputs, found {}", inputs.len()))),
        };
        for input in [query, value, key] {
            site.expect_rank(input, 3)?;
        }
        let mut scores = site.matmul(query, key, true)?;
        if self.use_scale {
            let scale = site.weight("scale", &[], &Init::ones())?;
            scores = site.binary(Binary::Mul, scores, scale)?;
        }
        if options.causal {
            scores = causal(site, scores)?;
        }
        let weights = site.apply(Op::Softmax { axis: 2, log: false }, &[scores])?;
        let result = site.matmul(weights, value, false)?;
        Ok(if options.scores { vec![result, weights] } else { vec![result] })
    }
}

/// Scores `[batch, queries, keys]`, very low for keys that come after their query.
fn causal(site: &mut Site<'_>, scores: ValueId) -> Result<ValueId> {
    let sizes = site.sizes(scores);
    let rows = site.iota(&sizes[1..], 0);
    let columns = site.iota(&sizes[1..], 1);
    let sees = site.apply(Op::Compare(Compare::Ge), &[rows, columns])?;
    let low = if site.dtype(scores) == DType::F16 { -3e4 } else { -1e9 };
    let low = site.scalar_like(low, scores)?;
    site.apply(Op::Select, &[sees, scores, low])
}
