//! Windows over spatial axes: which elements of the large grid (the input of a convolution or
//! pooling, the result of a transposed convolution) each position of the small one touches.
//!
//! `large = small * stride + kernel * dilation - pad`. Up to three spatial axes; fewer are padded
//! with axes of one element in front.

use std::ops::Range;

use crate::error::{Error, Report, Result};
use crate::ir::{Layout, Window};

/// Most spatial axes.
const AXES: usize = 3;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) small: [usize; AXES],
    pub(crate) large: [usize; AXES],
    pub(crate) kernel: [usize; AXES],
    pub(crate) stride: [usize; AXES],
    pub(crate) dilation: [usize; AXES],
    pub(crate) pad: [usize; AXES],
}

/// Neighbouring positions of the small grid, along its last axis.
pub(crate) struct Run {
    /// The positions, counted from the first of the part that is walked.
    pub(crate) at: Range<usize>,
    /// Position of the first one's element in the large grid; none where they touch padding.
    /// The others' follow at the stride of the last axis.
    pub(crate) large: Option<usize>,
}

impl Grid {
    /// Error: more than three spatial axes.
    pub(crate) fn new(window: &Window, small: &[usize], large: &[usize], kernel: &[usize]) -> Result<Self> {
        if small.len() > AXES {
            return Err(Error::Unsupported(Report::new("", "windows over more than three axes")));
        }
        let spread = |list: &[usize], fill: usize| -> [usize; AXES] {
            let mut result = [fill; AXES];
            result[AXES - list.len()..].copy_from_slice(list);
            result
        };
        let positive = |list: &[i64], fill: usize| -> [usize; AXES] {
            let mut result = [fill; AXES];
            let own = &mut result[AXES - small.len()..];
            own.iter_mut().zip(list).for_each(|(own, &value)| *own = usize::try_from(value).unwrap_or(0));
            result
        };
        Ok(Self {
            small: spread(small, 1),
            large: spread(large, 1),
            kernel: spread(kernel, 1),
            stride: positive(&window.strides, 1),
            dilation: positive(&window.dilations, 1),
            pad: positive(&window.pads_before, 0),
        })
    }

    /// The last two axes alone.
    pub(crate) fn flat(&self) -> Self {
        let flat = |of: &[usize; AXES], depth: usize| [depth, of[1], of[2]];
        Self {
            small: flat(&self.small, 1),
            large: flat(&self.large, 1),
            kernel: flat(&self.kernel, 1),
            stride: flat(&self.stride, 1),
            dilation: flat(&self.dilation, 1),
            pad: flat(&self.pad, 0),
        }
    }

    /// Number of positions of the small grid.
    pub(crate) fn positions(&self) -> usize {
        self.small.iter().product()
    }

    /// Number of elements of the large grid.
    pub(crate) fn area(&self) -> usize {
        self.large.iter().product()
    }

    /// True where windows are one element each, and touch each position once.
    pub(crate) fn is_plain(&self) -> bool {
        self.kernel == [1; AXES] && self.stride == [1; AXES] && self.small == self.large
    }

    /// Every element of the window, in row-major order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = [usize; AXES]> + use<> {
        let [depth, height, width] = self.kernel;
        (0..depth).flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| [z, y, x])))
    }

    /// The element of the large grid along an axis; none where it is padding.
    pub(crate) fn touch(&self, axis: usize, small: usize, offset: usize) -> Option<usize> {
        let position = small * self.stride[axis] + offset * self.dilation[axis];
        position.checked_sub(self.pad[axis]).filter(|&position| position < self.large[axis])
    }

    /// The positions along the last axis whose element at `offset` is not padding.
    fn inside(&self, offset: usize) -> Range<usize> {
        let axis = AXES - 1;
        let shift = offset * self.dilation[axis];
        let (pad, stride) = (self.pad[axis], self.stride[axis]);
        let first = pad.saturating_sub(shift).div_ceil(stride);
        let end = (self.large[axis] + pad).saturating_sub(shift).div_ceil(stride);
        first.min(self.small[axis])..end.min(self.small[axis]).max(first.min(self.small[axis]))
    }

    /// Walks the positions of `part`, for one element of the window, in order and run by run.
    #[inline(always)]
    pub(crate) fn runs(&self, offset: [usize; AXES], part: Range<usize>, mut f: impl FnMut(Run)) {
        let width = self.small[2];
        let inside = self.inside(offset[2]);
        let mut position = part.start;
        while position < part.end {
            let (row, x) = (position / width, position % width);
            let end = (x + part.end - position).min(width);
            let at = |x2: usize| position - part.start + (x2 - x);
            let rows = self.touch(0, row / self.small[1], offset[0]).zip(self.touch(
                1,
                row % self.small[1],
                offset[1],
            ));
            let (low, high) = (inside.start.clamp(x, end), inside.end.clamp(x, end));
            match rows {
                Some((z, y)) if low < high => {
                    let start = (z * self.large[1] + y) * self.large[2];
                    // `inside` is where this does not become negative.
                    let first = low * self.stride[2] + offset[2] * self.dilation[2] - self.pad[2];
                    for (range, large) in
                        [(x..low, None), (low..high, Some(start + first)), (high..end, None)]
                    {
                        if !range.is_empty() {
                            f(Run { at: at(range.start)..at(range.end), large });
                        }
                    }
                }
                _ => f(Run { at: at(x)..at(end), large: None }),
            }
            position += end - x;
        }
    }
}

/// The spatial sizes of a tensor of this layout.
pub(crate) fn spatial(layout: Layout, dims: &[usize]) -> &[usize] {
    match layout {
        Layout::ChannelsFirst => &dims[2..],
        Layout::ChannelsLast => &dims[1..dims.len() - 1],
    }
}

/// The number of channels of a tensor of this layout.
pub(crate) fn channels(layout: Layout, dims: &[usize]) -> usize {
    match layout {
        Layout::ChannelsFirst => dims[1],
        Layout::ChannelsLast => dims[dims.len() - 1],
    }
}
