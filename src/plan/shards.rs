//! How each parameter is stored over devices: whole, or in shards along one axis.

use std::collections::{BTreeMap, BTreeSet};

use super::{Buffer, BufferKind, Plan};
use crate::error::{Error, Result};

/// What of a parameter lies on one device: all of it, or a part by axis.
type Lies<'a> = Option<&'a [(u64, u64)]>;

/// How a parameter is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    /// All of it on each of these devices.
    Whole(Vec<&'a str>),
    /// Chunks of one size along an axis, of which the last may be shorter, one on each of these devices.
    Shards {
        axis: usize,
        /// Axes that it has.
        rank: usize,
        devices: Vec<&'a str>,
    },
}

/// How each parameter and state is stored, by name. O(buffers log buffers).
///
/// Errors: [`Error::Usage`] where slices are no such shards, with `format` as the place.
pub(super) fn stored<'a>(plan: &'a Plan, format: &str) -> Result<BTreeMap<&'a str, Stored<'a>>> {
    let is_kept = |buffer: &&Buffer| matches!(buffer.kind, BufferKind::Param | BufferKind::State);
    let mut params: BTreeMap<&str, Vec<(&str, Lies<'_>)>> = BTreeMap::new();
    for buffer in plan.buffers.iter().filter(is_kept) {
        let (name, lies) = named(buffer);
        let places = params.entry(name).or_default();
        // A device may hold one slice once for each of its readers.
        if !places.contains(&(buffer.device.as_str(), lies)) {
            places.push((&buffer.device, lies));
        }
    }
    let of_one = |(name, places): (&'a str, Vec<(&'a str, Lies<'a>)>)| {
        let refused = |why: &str| {
            Error::usage(format.to_owned(), format!("parameter {name} {why}")).with_help(
                "split evenly, as --split PATTERN=AXIS:PARTS@DEVICE,... does, or use --format json",
            )
        };
        shards(&places).map(|stored| (name, stored)).map_err(refused)
    };
    params.into_iter().map(of_one).collect()
}

/// Of which parameter a buffer holds something, and what.
fn named(buffer: &Buffer) -> (&str, Lies<'_>) {
    match &buffer.of {
        Some(of) => (of, Some(&buffer.bounds)),
        // `%7 fc1/kernel`.
        None => (buffer.value.split_once(' ').map_or(&*buffer.value, |(_, name)| name), None),
    }
}

/// Error: why what lies in these places is no parameter in shards.
fn shards<'a>(places: &[(&'a str, Lies<'a>)]) -> std::result::Result<Stored<'a>, &'static str> {
    let slices: Vec<&[(u64, u64)]> = places.iter().filter_map(|&(_, lies)| lies).collect();
    let devices = |places: &[(&'a str, Lies<'a>)]| places.iter().map(|&(device, _)| device).collect();
    if slices.is_empty() {
        return Ok(Stored::Whole(devices(places)));
    }
    if slices.len() < places.len() {
        return Err("is whole on some devices and in slices on others");
    }
    let rank = slices[0].len();
    let mut differ = (0..rank).filter(|&axis| slices.iter().any(|slice| slice[axis] != slices[0][axis]));
    let (Some(axis), None) = (differ.next(), differ.next()) else {
        return Err("is cut along several axes, or has one slice on several devices");
    };
    let mut places = places.to_vec();
    places.sort_by_key(|(_, lies)| lies.map(|bounds| bounds[axis]));
    let own: Vec<(u64, u64)> =
        places.iter().filter_map(|(_, lies)| lies.map(|bounds| bounds[axis])).collect();
    let (extent, parts) = (own.last().map_or(0, |last| last.1), own.len() as u64);
    // As such tensors are cut: each is as long as the extent by the number of parts, rounded up.
    let size = extent.div_ceil(parts.max(1));
    let is_chunk = |(at, &(from, to)): (u64, &(u64, u64))| {
        from == at * size && to == extent.min(from + size) && from < to
    };
    if !(0..).zip(&own).all(is_chunk) {
        return Err("is in slices of unequal sizes");
    }
    let devices: Vec<&str> = devices(&places);
    if devices.iter().collect::<BTreeSet<_>>().len() < devices.len() {
        return Err("has several slices on one device");
    }
    Ok(Stored::Shards { axis, rank, devices })
}
