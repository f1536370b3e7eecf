//! Where a value is while a way to split is searched for, and what it takes to read it otherwise.

use super::layout::{Layout, own_bytes, region_bytes};
use super::team::Traffic;
use crate::error::Result;
use crate::ir::Type;
use crate::kernel::split::Region;

/// Where a value is: as it was made, and as it was put together for readers.
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

/// What it takes to come to what is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) traffic: Traffic,
    /// Bytes that the device with most of them has to put together.
    pub(super) joined: u64,
    /// Where the value is afterwards.
    pub(super) held: Held,
}

impl Held {
    /// All of it is on the first device.
    pub(super) const fn whole() -> Self {
        Self { made: None, first_has_all: true, all_have_all: false, cut: Vec::new() }
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
        let mut held = self.clone();
        let mut traffic = Traffic::default();
        let mut joined = 0;
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
                held.cut = regions.to_vec();
            }
        }
        if self.made.is_none() {
            // The first device sends all of it.
            traffic.most = traffic.all;
        }
        Ok(Fetch { traffic, joined, held })
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
