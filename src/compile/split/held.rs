//! Where a value is while a way to split is searched for, and what it takes to read it otherwise.

use super::layout::{Layout, own_bytes, region_bytes, share};
use super::team::Traffic;
use crate::error::Result;
use crate::ir::Type;
use crate::kernel::split::Region;

/// Where a value is: as it was made, and as it was put together for readers. A parameter that steps update is nowhere
/// until it is read: it is held as its first reader wants it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    /// Slices, one on each device, or all of it on the first.
    made: Option<Layout>,
    /// Whether all of it is on the first device.
    first_has_all: bool,
    /// Whether all of it is on every device.
    all_have_all: bool,
    /// By device, what was cut for it.
    cut: Vec<Region>,
}

/// Who reads a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading<'a> {
    /// A node that is not split: all of it on the first device.
    Whole,
    /// Parts, each all of it.
    All,
    /// Parts, each its region.
    Regions(&'a [Region]),
}

/// Kernels beside those of operations, on the device with most of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kernels {
    /// Slices that are cut, each by a kernel.
    pub(super) cuts: u64,
    /// Bytes of them.
    pub(super) cut: u64,
    /// Bytes that are put together.
    pub(super) joined: u64,
}

impl std::ops::AddAssign for Kernels {
    fn add_assign(&mut self, other: Self) {
        self.cuts = self.cuts.saturating_add(other.cuts);
        self.cut = self.cut.saturating_add(other.cut);
        self.joined = self.joined.saturating_add(other.joined);
    }
}

/// What it takes to come to what is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) traffic: Traffic,
    pub(super) kernels: Kernels,
    /// Where the value is afterwards.
    pub(super) held: Held,
}

impl Held {
    /// All of it is on the first device.
    pub(super) const fn whole() -> Self {
        Self { made: None, first_has_all: true, all_have_all: false, cut: Vec::new() }
    }

    /// A parameter that steps update, before anything reads it.
    pub(super) const fn open() -> Self {
        Self { made: None, first_has_all: false, all_have_all: false, cut: Vec::new() }
    }

    pub(super) const fn slices(axis: u32, bounds: Vec<u64>) -> Self {
        let made = Some(Layout { axis, bounds });
        Self { made, first_has_all: false, all_have_all: false, cut: Vec::new() }
    }

    /// The axis and bounds of its slices.
    pub(super) fn bounds(&self) -> Option<(u32, &[u64])> {
        self.made.as_ref().map(|made| (made.axis, made.bounds.as_slice()))
    }

    /// What a reading of a value of this type by `parts` devices takes. O(parts).
    pub(super) fn fetch(&self, ty: &Type, reading: Reading<'_>, parts: usize) -> Result<Fetch> {
        if *self == Self::open() {
            return Self::settled(ty, reading, parts);
        }
        let mut held = self.clone();
        let mut traffic = Traffic::default();
        let (mut joined, mut kernels) = (0, Kernels::default());
        let mut take = |asked: u64, own: u64| {
            let received = asked.saturating_sub(own);
            traffic.most = traffic.most.max(received);
            traffic.all = traffic.all.saturating_add(received);
            if received > 0 && self.made.is_some() {
                joined = joined.max(asked);
            }
        };
        match reading {
            Reading::Whole if self.first_has_all || self.all_have_all => {}
            Reading::Whole => {
                take(region_bytes(ty, None)?, self.own(ty, None, 0)?);
                held.first_has_all = true;
            }
            Reading::All if self.all_have_all => {}
            Reading::All => {
                for part in 0..parts {
                    take(region_bytes(ty, None)?, self.own(ty, None, part)?);
                }
                held.all_have_all = true;
            }
            Reading::Regions(regions) if self.all_have_all || self.cut == regions => {}
            Reading::Regions(regions) => {
                for (part, &region) in regions.iter().enumerate() {
                    take(region_bytes(ty, Some(region))?, self.own(ty, Some(region), part)?);
                }
                (kernels.cuts, kernels.cut) = self.cuts(ty, regions)?;
                held.cut = regions.to_vec();
            }
        }
        if self.made.is_none() {
            // The first device sends all of it.
            traffic.most = traffic.all;
        }
        kernels.joined = joined;
        Ok(Fetch { traffic, kernels, held })
    }

    /// What the first reading takes of a parameter that steps update: nothing where it can be held so; where each device
    /// reads all of it, what they lack of it, as each updates its slice (of ZeRO, stage 3).
    fn settled(ty: &Type, reading: Reading<'_>, parts: usize) -> Result<Fetch> {
        let (mut traffic, mut joined) = (Traffic::default(), 0);
        let held = match reading {
            Reading::Whole => Self::whole(),
            Reading::All => {
                let all = region_bytes(ty, None)?;
                let lacking = all - all / (parts as u64).max(1);
                traffic = Traffic { most: lacking, all: lacking.saturating_mul(parts as u64) };
                joined = all;
                Self { all_have_all: true, ..Self::open() }
            }
            Reading::Regions(regions) => match Layout::of_regions(ty, regions.iter().copied().map(Some)) {
                Some(layout) => Self::slices(layout.axis, layout.bounds),
                None => Self { cut: regions.to_vec(), ..Self::whole() },
            },
        };
        Ok(Fetch { traffic, kernels: Kernels { joined, ..Kernels::default() }, held })
    }

    /// How many kernels cut slices on the device that cuts most has to cut so that these regions are put together, and their bytes.
    fn cuts(&self, ty: &Type, regions: &[Region]) -> Result<(u64, u64)> {
        let all = region_bytes(ty, None)?;
        let parts = regions.len() as u64;
        // What is cut so lies in the bytes of what it is cut from.
        if regions.iter().all(|region| is_contiguous(ty, region.axis, self.bounds())) {
            return Ok((0, 0));
        }
        let Some((axis, bounds)) = self.bounds().filter(|_| !self.first_has_all) else {
            return Ok((parts, all));
        };
        if regions.iter().any(|region| region.axis != axis) {
            return Ok((parts, all / parts.max(1)));
        }
        let of_piece = |piece: &[u64]| {
            let overlaps = regions.iter().map(|region| {
                let (start, end) = (region.start.max(piece[0]), (region.start + region.size).min(piece[1]));
                end.saturating_sub(start)
            });
            let cut = overlaps.filter(|&overlap| overlap > 0 && overlap < piece[1] - piece[0]);
            cut.fold((0, 0), |(cuts, size): (u64, u64), overlap| (cuts + 1, size + overlap))
        };
        let (cuts, size) = bounds.windows(2).map(of_piece).max().unwrap_or_default();
        Ok((cuts, share(all, size, bounds.last().copied().unwrap_or(1))))
    }

    /// Bytes of a region that the device of this number has.
    fn own(&self, ty: &Type, region: Option<Region>, part: usize) -> Result<u64> {
        let asked = region_bytes(ty, region)?;
        Ok(match (self.bounds(), part) {
            (None, 0) => asked,
            (None, _) => 0,
            (Some(_), 0) if self.first_has_all => asked,
            (Some((axis, bounds)), part) => own_bytes(asked, region, axis, bounds, part),
        })
    }
}

/// Whether the elements of a region along an axis lie one behind the other, where the value is held so.
fn is_contiguous(ty: &Type, axis: u32, held: Option<(u32, &[u64])>) -> bool {
    let longest = |size: u64, own: u32| match held {
        Some((axis, bounds)) if axis == own => {
            bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(size)
        }
        _ => size,
    };
    let sizes = ty.shape.sizes().iter().zip(0..);
    let mut before = sizes.take(axis as usize);
    before.all(|(size, own)| size.known().is_some_and(|size| longest(size.unsigned_abs(), own) == 1))
}
