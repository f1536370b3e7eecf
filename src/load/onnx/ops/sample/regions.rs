//! Regions of images along an axis.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Size, ValueId};

/// The points of a region along one axis.
pub(super) struct Line {
    /// Results and samples in each; 0 samples are about one a pixel.
    pub(super) results: i64,
    pub(super) samples: i64,
    pub(super) size: i64,
    /// Columns of the regions that hold start and end.
    pub(super) columns: [i64; 2],
}

/// Where a region starts along an axis, and how long each of its results is.
pub(super) struct Extent {
    pub(super) start: ValueId,
    pub(super) bin: ValueId,
}

/// Those of all regions, as the first of so many axes.
pub(super) fn extent(at: &mut At<'_>, rois: ValueId, line: &Line, rank: usize, half: bool) -> Result<Extent> {
    let column = |at: &mut At<'_>, column: i64| -> Result<ValueId> {
        let value = at.element(rois, 1, column)?;
        let count = at.sizes_of(value)[0].clone();
        at.reshape(value, std::iter::once(count).chain(vec![Size::Known(1); rank - 1]))
    };
    let (start, end) = (column(at, line.columns[0])?, column(at, line.columns[1])?);
    // Regions that are not moved by half a pixel had at least a pixel (before opset 16).
    let mut span = at.sub(end, start)?;
    if !half {
        span = at.binary_scalar(Binary::Max, span, 1.0)?;
    }
    let bin = at.binary_scalar(Binary::Div, span, line.results as f64)?;
    Ok(Extent { start, bin })
}
