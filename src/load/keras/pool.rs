//! Poolings, over windows and over everything.

use super::config::{Config, Unsupported};
use super::conv::{Padding, layout, spatial, spatial_rank};
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Layout, Op, Pool as PoolOp, PoolKind, ReduceKind, Size, ValueId};

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

/// A pooling to so many windows of each axis: each begins and ends where its share of the axis does.
#[derive(Debug)]
pub(super) struct AdaptivePool {
    kind: ReduceKind,
    wanted: Vec<i64>,
    layout: Layout,
}

/// More windows of several sizes are not written one by one.
const MOST_WINDOWS: i64 = 4096;

impl AdaptivePool {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Self> {
        Ok(Self {
            kind: if class.contains("Max") { ReduceKind::Max } else { ReduceKind::Mean },
            wanted: config.per_axis("output_size", spatial_rank(class), None)?,
            layout: layout(config)?,
        })
    }

    /// So many windows of each axis.
    pub(super) fn of(kind: ReduceKind, wanted: Vec<i64>, layout: Layout) -> Self {
        Self { kind, wanted, layout }
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        site.expect_rank(x, self.wanted.len() + 2)?;
        let mut value = x;
        for (axis, &wanted) in (spatial(self.layout)..).zip(&self.wanted) {
            value = self.along(site, value, axis, wanted)?;
        }
        Ok(value)
    }

    /// Windows along one axis; the mean of means of windows is that of the window over several axes.
    fn along(&self, site: &mut Site<'_>, x: ValueId, axis: usize, wanted: i64) -> Result<ValueId> {
        let size = site.known(x, axis)?;
        if size == wanted {
            return Ok(x);
        }
        if wanted < 1 {
            return Err(site.error(&format!("{wanted} windows")));
        }
        let reduce = |axis: usize, keep| Op::Reduce { kind: self.kind, axes: vec![axis as u32], keep };
        if size % wanted == 0 {
            let mut sizes = site.sizes(x);
            sizes[axis] = Size::Known(size / wanted);
            sizes.insert(axis, Size::Known(wanted));
            let apart = site.reshape(x, sizes)?;
            return site.apply(reduce(axis + 1, false), &[apart]);
        }
        if wanted > MOST_WINDOWS {
            return Err(site.unsupported(&format!("{wanted} windows of several sizes")));
        }
        let mut windows = Vec::new();
        for at in 0..wanted {
            let [all, count, at] = [size, wanted, at].map(i128::from);
            let (start, end) = (at * all / count, ((at + 1) * all + count - 1) / count);
            let (start, end) = (start as i64, end as i64);
            let window = site.slice(x, axis, start, end - start)?;
            windows.push(site.apply(reduce(axis, true), &[window])?);
        }
        site.concat(axis, &windows)
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
