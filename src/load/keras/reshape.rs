//! Layers that only move elements or resize images: flatten, reshape, permute, pad, crop, repeat, enlarge.

use super::config::{Config, Unsupported};
use super::conv::{layout, spatial, spatial_rank};
use super::lower::Site;
use super::resample::{Method, filtered};
use crate::error::Result;
use crate::ir::{
    Interpolation, Layout, Op, Pad, PadMode, Real, Resize, ResizeCoordinates, Shape, Size, ValueId,
};

/// What becomes of the ratio of an image's sides where it is resized to another one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aspect {
    Changed,
    /// The largest part in the middle that has the new ratio.
    Cropped,
    /// With as much of a number around it as that takes.
    Padded(f64),
}

/// A layer that moves elements.
#[derive(Debug)]
pub(super) enum Rearrange {
    Flatten(Layout),
    /// Target without the batch axis; -1 for what is left.
    Reshape(Vec<i64>),
    /// Axes counted from 1, without the batch axis.
    Permute(Vec<i64>),
    Repeat(i64),
    /// (before, after) for each spatial axis; negative where cropped.
    Pad {
        amounts: Vec<(i64, i64)>,
        layout: Layout,
    },
    Enlarge {
        factors: Vec<i64>,
        method: Method,
        layout: Layout,
    },
    /// The middle of an image.
    CropCenter {
        sizes: Vec<i64>,
        layout: Layout,
    },
    Resize {
        sizes: Vec<i64>,
        method: Method,
        aspect: Aspect,
        layout: Layout,
    },
}

impl Rearrange {
    /// None where the class is not one of these.
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        unsupported: &mut Unsupported,
    ) -> Result<Option<Self>> {
        let rank = spatial_rank(class);
        Ok(Some(match class {
            "Flatten" => Self::Flatten(layout(config)?),
            "Reshape" => {
                Self::Reshape(config.ints("target_shape")?.ok_or_else(|| config.missing("target_shape"))?)
            }
            "Permute" => Self::Permute(config.ints("dims")?.ok_or_else(|| config.missing("dims"))?),
            "RepeatVector" => Self::Repeat(config.positive("n")?),
            "ZeroPadding1D" | "ZeroPadding2D" | "ZeroPadding3D" => {
                Self::Pad { amounts: config.pairs("padding", rank, 1)?, layout: layout(config)? }
            }
            "Cropping1D" | "Cropping2D" | "Cropping3D" => {
                let default = if rank == 1 { 1 } else { 0 };
                let amounts = config.pairs("cropping", rank, default)?;
                let amounts = amounts.into_iter().map(|(before, after)| (-before, -after)).collect();
                Self::Pad { amounts, layout: layout(config)? }
            }
            "CenterCrop" => Self::CropCenter { sizes: image(config)?, layout: layout(config)? },
            "Resizing" => Self::resizing(config, image(config)?, unsupported)?,
            "UpSampling1D" | "UpSampling2D" | "UpSampling3D" => Self::Enlarge {
                factors: config.per_axis("size", rank, Some(2))?,
                method: Method::read(config, "nearest", unsupported)?,
                layout: layout(config)?,
            },
            _ => return Ok(None),
        }))
    }

    /// The function `resize` of `keras.ops.image`.
    pub(super) fn function(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let sizes =
            config.ints("size")?.filter(|sizes| sizes.len() == 2 && sizes.iter().all(|&size| size > 0));
        let sizes = sizes.ok_or_else(|| config.fault("size", "expected a height and a width"))?;
        Self::resizing(config, sizes, unsupported)
    }

    /// `RandomCrop` of Keras 2 where nothing is trained: the largest part of the new ratio, resized.
    pub(super) fn cropped(config: Config<'_>) -> Result<Self> {
        let (method, aspect) = (Method::Linear, Aspect::Cropped);
        Ok(Self::Resize { sizes: image(config)?, method, aspect, layout: layout(config)? })
    }

    fn resizing(config: Config<'_>, sizes: Vec<i64>, unsupported: &mut Unsupported) -> Result<Self> {
        let aspect =
            match (config.flag("crop_to_aspect_ratio", false)?, config.flag("pad_to_aspect_ratio", false)?) {
                (true, _) => Aspect::Cropped,
                (false, true) => {
                    if config.text("fill_mode")?.is_some_and(|mode| mode != "constant") {
                        unsupported.add(config.place(), "a fill_mode other than constant");
                    }
                    Aspect::Padded(config.real_or("fill_value", 0.0)?)
                }
                (false, false) => Aspect::Changed,
            };
        let method = Method::read(config, "bilinear", unsupported)?;
        Ok(Self::Resize { sizes, method, aspect, layout: layout(config)? })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        match self {
            Self::Flatten(layout) => flatten(site, x, *layout),
            Self::Reshape(target) => reshape(site, x, target),
            Self::Permute(dims) => permute(site, x, dims),
            Self::Repeat(times) => {
                site.expect_rank(x, 2)?;
                let sizes = site.sizes(x);
                let (batch, features) = (sizes[0].clone(), sizes[1].clone());
                let value = site.reshape(x, vec![batch.clone(), Size::Known(1), features.clone()])?;
                let shape = Shape::new([batch, Size::Known(*times), features]);
                site.apply(Op::Broadcast { shape }, &[value])
            }
            Self::Pad { amounts, layout } => pad(site, x, amounts, *layout),
            Self::Enlarge { factors, method, layout } => enlarge(site, x, factors, *method, *layout),
            Self::CropCenter { sizes, layout } => crop_center(site, x, sizes, *layout),
            Self::Resize { sizes, method, aspect, layout } => {
                let x = with_ratio(site, x, sizes, *aspect, *layout)?;
                resize(site, x, sizes, *method, *layout)
            }
        }
    }
}

/// Height and width.
fn image(config: Config<'_>) -> Result<Vec<i64>> {
    Ok(vec![config.positive("height")?, config.positive("width")?])
}

/// The first axis of the image in an input with a batch, or of one image, and the sizes of its axes.
fn image_axes(site: &Site<'_>, x: ValueId, layout: Layout) -> Result<(usize, [i64; 2])> {
    let sizes = site.sizes(x);
    let first = match sizes.len() {
        4 => spatial(layout),
        3 => spatial(layout) - 1,
        _ => return Err(site.error("expected images")),
    };
    match [sizes[first].known(), sizes[first + 1].known()] {
        [Some(height), Some(width)] => Ok((first, [height, width])),
        _ => Err(site.error("the size of its images is open")),
    }
}

fn crop_center(site: &mut Site<'_>, x: ValueId, sizes: &[i64], layout: Layout) -> Result<ValueId> {
    let (first, own) = image_axes(site, x, layout)?;
    let mut x = x;
    for (at, (&size, own)) in sizes.iter().zip(own).enumerate() {
        if own < size {
            return Err(
                site.error(&format!("images of {own} are smaller than {size}: they would be resized"))
            );
        }
        x = site.slice(x, first + at, (own - size) / 2, size)?;
    }
    Ok(x)
}

/// An image that has the ratio of other sizes, or nearly.
fn with_ratio(
    site: &mut Site<'_>,
    x: ValueId,
    sizes: &[i64],
    aspect: Aspect,
    layout: Layout,
) -> Result<ValueId> {
    let (first, own) = image_axes(site, x, layout)?;
    // Of each side, how long it is beside the other one where the ratio is the new one.
    let beside = [0, 1].map(|at| {
        let wanted = i128::from(own[1 - at]) * i128::from(sizes[at]) / i128::from(sizes[1 - at]);
        i64::try_from(wanted).unwrap_or(i64::MAX)
    });
    match aspect {
        Aspect::Changed => Ok(x),
        Aspect::Cropped => {
            let mut x = x;
            for at in 0..2 {
                let size = own[at].min(beside[at]).max(1);
                x = site.slice(x, first + at, (own[at] - size) / 2, size)?;
            }
            Ok(x)
        }
        Aspect::Padded(number) => {
            let mut amounts = vec![0; site.rank(x)];
            for at in 0..2 {
                // As much on both sides.
                amounts[first + at] = (own[at].max(beside[at]) - own[at]) / 2;
            }
            let pad =
                Pad { before: amounts.clone(), after: amounts, mode: PadMode::Constant, value: Real(number) };
            site.apply(Op::Pad(Box::new(pad)), &[x])
        }
    }
}

/// With centres of pixels at half of their widths.
fn resize(site: &mut Site<'_>, x: ValueId, sizes: &[i64], method: Method, layout: Layout) -> Result<ValueId> {
    let (first, own) = image_axes(site, x, layout)?;
    if let Method::Filtered { filter, antialias } = method {
        let mut x = x;
        for (at, (&size, own)) in sizes.iter().zip(own).enumerate() {
            x = filtered(site, x, first + at, [own, size], (filter, antialias))?;
        }
        return Ok(x);
    }
    if method == Method::Linear {
        let mut shape = site.sizes(x);
        shape[first] = Size::Known(sizes[0]);
        shape[first + 1] = Size::Known(sizes[1]);
        let (interpolation, coordinates) = (Interpolation::Linear, ResizeCoordinates::HalfPixel);
        let resize = Resize { shape: Shape::new(shape), interpolation, coordinates, scales: None };
        return site.apply(Op::Resize(Box::new(resize)), &[x]);
    }
    let mut x = x;
    for (at, (&size, own)) in sizes.iter().zip(own).enumerate() {
        // The pixel in which the centre of the new one is.
        let pixel = |to: i64| i64::try_from((2 * to as i128 + 1) * own as i128 / (2 * size as i128));
        site.list(size)?;
        let pixels: Vec<i64> = (0..size).map(|to| pixel(to).unwrap_or(own - 1).min(own - 1)).collect();
        let pixels = site.positions(&pixels)?;
        x = site.apply(Op::Gather { axis: (first + at) as u32 }, &[x, pixels])?;
    }
    Ok(x)
}

fn flatten(site: &mut Site<'_>, x: ValueId, layout: Layout) -> Result<ValueId> {
    let rank = site.rank(x);
    if rank == 0 {
        return Err(site.error("expected an input with a batch axis"));
    }
    let mut x = x;
    if layout == Layout::ChannelsFirst && rank > 2 {
        let perm: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        x = site.transpose(x, &perm)?;
    }
    let sizes = site.sizes(x);
    let rest = site.product(&sizes[1..])?;
    site.reshape(x, vec![sizes[0].clone(), rest])
}

fn reshape(site: &mut Site<'_>, x: ValueId, target: &[i64]) -> Result<ValueId> {
    let sizes = site.sizes(x);
    if sizes.is_empty() {
        return Err(site.error("expected an input with a batch axis"));
    }
    let total = site.product(&sizes[1..])?;
    let wrong = |site: &Site<'_>| site.error(&format!("the input does not fit the target shape {target:?}"));
    let open = target.iter().filter(|&&size| size == -1).count();
    if open > 1 || target.iter().any(|&size| size < -1 || size == 0) {
        return Err(wrong(site));
    }
    let known = target.iter().filter(|&&size| size != -1).try_fold(1i64, |p, &size| p.checked_mul(size));
    let known = known.ok_or_else(|| wrong(site))?;
    let rest = if open == 1 { total.div_exact(known) } else { Some(Size::Known(1)) };
    let rest = rest.ok_or_else(|| wrong(site))?;
    if open == 0 && total.known().is_some_and(|total| total != known) {
        return Err(wrong(site));
    }
    let mut shape = vec![sizes[0].clone()];
    shape.extend(target.iter().map(|&size| if size == -1 { rest.clone() } else { Size::Known(size) }));
    site.reshape(x, shape)
}

fn permute(site: &mut Site<'_>, x: ValueId, dims: &[i64]) -> Result<ValueId> {
    let rank = site.rank(x);
    let mut sorted = dims.to_vec();
    sorted.sort_unstable();
    if dims.len() + 1 != rank || sorted.iter().zip(1..).any(|(&dim, axis)| dim != axis) {
        return Err(site.error(&format!("{dims:?} is no permutation of the axes of an input of rank {rank}")));
    }
    let perm: Vec<usize> = [0].into_iter().chain(dims.iter().map(|&dim| dim as usize)).collect();
    site.transpose(x, &perm)
}

fn pad(site: &mut Site<'_>, x: ValueId, amounts: &[(i64, i64)], layout: Layout) -> Result<ValueId> {
    let rank = amounts.len() + 2;
    site.expect_rank(x, rank)?;
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (axis, &(first, last)) in amounts.iter().enumerate() {
        before[spatial(layout) + axis] = first;
        after[spatial(layout) + axis] = last;
    }
    let pad = Pad { before, after, mode: PadMode::Constant, value: Real(0.0) };
    site.apply(Op::Pad(Box::new(pad)), &[x])
}

fn enlarge(
    site: &mut Site<'_>,
    x: ValueId,
    factors: &[i64],
    method: Method,
    layout: Layout,
) -> Result<ValueId> {
    site.expect_rank(x, factors.len() + 2)?;
    if matches!(method, Method::Filtered { .. }) {
        let (_, own) = image_axes(site, x, layout)?;
        let sizes = factors.iter().zip(own).map(|(&factor, own)| own.checked_mul(factor));
        let sizes: Option<Vec<i64>> = sizes.collect();
        let sizes = sizes.ok_or_else(|| site.error("a size overflows"))?;
        return resize(site, x, &sizes, method, layout);
    }
    let mut sizes = site.sizes(x);
    for (axis, &factor) in factors.iter().enumerate() {
        let size = &mut sizes[spatial(layout) + axis];
        *size = size.scale(factor).ok_or_else(|| site.error("a size overflows"))?;
    }
    let (interpolation, coordinates) = match method {
        Method::Nearest => (Interpolation::NearestFloor, ResizeCoordinates::Asymmetric),
        Method::Linear | Method::Filtered { .. } => (Interpolation::Linear, ResizeCoordinates::HalfPixel),
    };
    let resize = Resize { shape: Shape::new(sizes), interpolation, coordinates, scales: None };
    site.apply(Op::Resize(Box::new(resize)), &[x])
}
