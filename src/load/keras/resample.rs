//! Resizes whose results are sums of elements with the weights of a filter, as TensorFlow and JAX have them: along an axis
//! a product with a table. Weights of elements outside of an image are given to those inside.

use super::config::{Config, Unsupported};
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Size, ValueId};

/// How a result is made of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Nearest,
    /// Two elements of each axis.
    Linear,
    Filtered {
        filter: Filter,
        /// Whether the filter is as wide as the elements that a result stands for.
        antialias: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Triangle,
    /// Keys' cubic convolution with a slope of -1/2.
    Cubic,
    /// A windowed sinc of so many lobes on each side.
    Lanczos(u8),
    Gaussian,
    Mitchell,
    /// The mean of what a result covers.
    Area,
}

impl Method {
    pub(super) fn read(config: Config<'_>, usual: &str, unsupported: &mut Unsupported) -> Result<Self> {
        let antialias = config.flag("antialias", false)?;
        let filter = match config.text("interpolation")?.unwrap_or(usual) {
            "nearest" => return Ok(Self::Nearest),
            "bilinear" if !antialias => return Ok(Self::Linear),
            "bilinear" => Filter::Triangle,
            "bicubic" => Filter::Cubic,
            "lanczos3" => Filter::Lanczos(3),
            "lanczos5" => Filter::Lanczos(5),
            "gaussian" => Filter::Gaussian,
            "mitchellcubic" => Filter::Mitchell,
            "area" => Filter::Area,
            other => {
                unsupported.add(config.place(), format!("interpolation {other}"));
                return Ok(Self::Nearest);
            }
        };
        Ok(Self::Filtered { filter, antialias })
    }
}

impl Filter {
    fn weight(self, distance: f64) -> f64 {
        let d = distance.abs();
        match self {
            Self::Triangle => (1.0 - d).max(0.0),
            Self::Cubic if d <= 1.0 => (1.5 * d - 2.5) * d * d + 1.0,
            Self::Cubic if d < 2.0 => ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0,
            Self::Mitchell if d <= 1.0 => (7.0 / 6.0 * d - 2.0) * d * d + 8.0 / 9.0,
            Self::Mitchell if d < 2.0 => ((-7.0 / 18.0 * d + 2.0) * d - 10.0 / 3.0) * d + 16.0 / 9.0,
            Self::Cubic | Self::Mitchell => 0.0,
            Self::Lanczos(lobes) if d < f64::from(lobes) => sinc(d) * sinc(d / f64::from(lobes)),
            Self::Lanczos(_) => 0.0,
            // A deviation of one half, up to three of them.
            Self::Gaussian if d < 1.5 => libm::exp(-2.0 * d * d),
            Self::Gaussian | Self::Area => 0.0,
        }
    }

    /// The weights `[to, from]` of each result's elements.
    fn table(self, from: i64, to: i64, antialias: bool) -> impl Iterator<Item = f64> {
        let step = from as f64 / to as f64;
        let width = if antialias { step.max(1.0) } else { 1.0 };
        (0..to).flat_map(move |i| {
            let (start, end) = (i as f64 * step, (i + 1) as f64 * step);
            let centre = (i as f64 + 0.5) * step - 0.5;
            let weight = move |j: i64| match self {
                Self::Area => ((j + 1) as f64).min(end) - (j as f64).max(start),
                _ => self.weight((j as f64 - centre) / width),
            };
            let weight = move |j: i64| if self == Self::Area { weight(j).max(0.0) } else { weight(j) };
            let sum: f64 = (0..from).map(weight).sum();
            (0..from).map(move |j| if sum == 0.0 { 0.0 } else { weight(j) / sum })
        })
    }
}

fn sinc(x: f64) -> f64 {
    let turn = std::f64::consts::PI * x;
    if turn == 0.0 { 1.0 } else { libm::sin(turn) / turn }
}

/// Resizes axis `axis` from `from` elements to `to`.
pub(super) fn filtered(
    site: &mut Site<'_>,
    x: ValueId,
    axis: usize,
    [from, to]: [i64; 2],
    (filter, antialias): (Filter, bool),
) -> Result<ValueId> {
    let elements = from.checked_mul(to).ok_or_else(|| site.error("a size overflows"))?;
    site.list(elements)?;
    let table = site.vector_of(elements as usize, filter.table(from, to, antialias))?;
    let table = site.reshape(table, vec![Size::Known(to), Size::Known(from)])?;
    let mut sizes = site.sizes(x);
    let folded = vec![site.product(&sizes[..axis])?, Size::Known(from), site.product(&sizes[axis + 1..])?];
    let x = site.computed(x)?;
    let x = site.reshape(x, folded)?;
    let y = site.matmul(table, x, false)?;
    sizes[axis] = Size::Known(to);
    site.reshape(y, sizes)
}
