//! Poolings, over windows and over everything.

use super::config::{Config, Unsupported};
use super::conv::{Padding, layout, spatial, spatial_rank};
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Layout, Op, Pool as PoolOp, PoolKind, ReduceKind, ValueId};

/// A pooling over windows.
#[derive(Debug)]
pub(super) struct Pool {
    kind: PoolKind,
    size: Vec<i64>,
    strides: Vec<i64>,
    padding: Padding,
    layout: Layout,
}

impl Pool {
    pub(super) fn read(class: &str, config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let rank = spatial_rank(class);
        let size = config.per_axis("pool_size", rank, Some(2))?;
        Ok(Self {
            kind: if class.starts_with("Max") { PoolKind::Max } else { PoolKind::Average },
            strides: match config.get("strides") {
                Some(_) => config.per_axis("strides", rank, None)?,
                None => size.clone(),
            },
            size,
            padding: Padding::read(config, unsupported)?,
            layout: layout(config)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let ones = vec![1; self.size.len()];
        let window = self.padding.window(site, x, self.layout, &self.size, &self.strides, &ones)?;
        let pool = PoolOp {
            kind: self.kind,
            layout: self.layout,
            kernel: self.size.clone(),
            window,
            extra_after: vec![0; self.size.len()],
        };
        site.apply(Op::Pool(Box::new(pool)), &[x])
    }
}

/// A pooling over all positions.
#[derive(Debug)]
pub(super) struct GlobalPool {
    kind: ReduceKind,
    axes: usize,
    layout: Layout,
    keep: bool,
}

impl GlobalPool {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Self> {
        Ok(Self {
            kind: if class.contains("Max") { ReduceKind::Max } else { ReduceKind::Mean },
            axes: spatial_rank(class),
            layout: layout(config)?,
            keep: config.flag("keepdims", false)?,
        })
    }

    /// `mask`: which steps of a sequence count, for a mean over them.
    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId, mask: Option<ValueId>) -> Result<ValueId> {
        site.expect_rank(x, self.axes + 2)?;
        let first = spatial(self.layout) as u32;
        if let (Some(mask), ReduceKind::Mean, 1) = (mask, self.kind, self.axes) {
            return super::mask::mean(site, x, mask, first, self.keep);
        }
        let axes = (first..first + self.axes as u32).collect();
        site.apply(Op::Reduce { kind: self.kind, axes, keep: self.keep }, &[x])
    }
}
