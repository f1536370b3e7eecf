//! Parameters as PyTorch's distributed tensors: a mesh of devices, and how each is stored on it.

use std::collections::BTreeMap;

use super::{Buffer, BufferKind, Plan};
use crate::error::{Error, Result};
use crate::escape::quoted;

/// What of a parameter lies on one device: all of it, or a part by axis.
type Lies<'a> = Option<&'a [(u64, u64)]>;

/// An object from each parameter to its mesh, the names of devices, and its placements there, as `Shard(0)` or
/// `Replicate()`. One line for each parameter, by name. O(buffers).
///
/// Errors: [`Error::Usage`] where slices are no shards of such a tensor: of unequal sizes, or of more than one axis.
pub(super) fn dtensor(plan: &Plan) -> Result<String> {
    let stored = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param);
    let mut params: BTreeMap<&str, Vec<(&str, Lies<'_>)>> = BTreeMap::new();
    for buffer in stored {
        let (name, lies) = named(buffer);
        let places = params.entry(name).or_default();
        // A device may hold one slice once for each of its readers.
        if !places.contains(&(buffer.device.as_str(), lies)) {
            places.push((&buffer.device, lies));
        }
    }
    let lines: Vec<String> = params.iter().map(|(name, places)| line(name, places)).collect::<Result<_>>()?;
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// Of which parameter a buffer holds something, and what.
fn named(buffer: &Buffer) -> (&str, Lies<'_>) {
    match &buffer.of {
        Some(of) => (of, Some(&buffer.bounds)),
        // `%7 fc1/kernel`.
        None => (buffer.value.split_once(' ').map_or(&*buffer.value, |(_, name)| name), None),
    }
}

fn line(name: &str, places: &[(&str, Lies<'_>)]) -> Result<String> {
    let refused = |why: &str| {
        Error::usage("--format dtensor", format!("parameter {name} {why}"))
            .with_help("split evenly, as --split PATTERN=AXIS:PARTS@DEVICE,... does, or use --format json")
    };
    let slices: Vec<&[(u64, u64)]> = places.iter().filter_map(|&(_, lies)| lies).collect();
    if slices.is_empty() {
        return Ok(entry(name, places, "Replicate()"));
    }
    if slices.len() < places.len() {
        return Err(refused("is whole on some devices and in slices on others"));
    }
    let rank = slices[0].len();
    let mut differ = (0..rank).filter(|&axis| slices.iter().any(|slice| slice[axis] != slices[0][axis]));
    let (Some(axis), None) = (differ.next(), differ.next()) else {
        return Err(refused("is cut along several axes, or has one slice on several devices"));
    };
    let mut places = places.to_vec();
    places.sort_by_key(|(_, lies)| lies.map(|bounds| bounds[axis]));
    let own: Vec<(u64, u64)> =
        places.iter().filter_map(|(_, lies)| lies.map(|bounds| bounds[axis])).collect();
    // Chunks of one size, of which the last may be shorter.
    let size = own[0].1 - own[0].0;
    let last = own.len() - 1;
    let is_chunk = |(at, &(from, to)): (usize, &(u64, u64))| {
        from == at as u64 * size && (to == from + size || at == last && from < to && to < from + size)
    };
    if !own.iter().enumerate().all(is_chunk) {
        return Err(refused("is in slices of unequal sizes"));
    }
    let devices: std::collections::BTreeSet<&str> = places.iter().map(|&(device, _)| device).collect();
    if devices.len() < places.len() {
        return Err(refused("has several slices on one device"));
    }
    Ok(entry(name, &places, &format!("Shard({axis})")))
}

fn entry(name: &str, places: &[(&str, Lies<'_>)], placement: &str) -> String {
    let mesh: Vec<String> = places.iter().map(|(device, _)| quoted(device).to_string()).collect();
    let mesh = mesh.join(", ");
    format!("  {}: {{\"mesh\": [{mesh}], \"placements\": [\"{placement}\"]}}", quoted(name))
}
