//! Parameters as XLA's partitioner annotates them (GSPMD: Xu et al. 2021): a sharding over all devices of the mesh.

use std::collections::{BTreeMap, BTreeSet};

use super::Plan;
use super::shards::{Stored, stored};
use crate::error::{Error, Result};
use crate::escape::quoted;

/// An object with the mesh, names of devices in the order of their numbers, and from each parameter to its sharding as XLA
/// writes it: `{replicated}`, `{maximal device=2}`, `{devices=[1,4]0,1,2,3}`. One line for each parameter, by name.
/// O(buffers log buffers).
///
/// Errors: [`Error::Usage`] where the form cannot say how a parameter is stored: on some devices of several, or in slices
/// of unequal sizes.
pub(super) fn gspmd(plan: &Plan) -> Result<String> {
    const FORMAT: &str = "--format gspmd";
    let params = stored(plan, FORMAT)?;
    let mut used: BTreeSet<&str> = plan.steps.iter().map(|step| &*step.device).collect();
    for kept in params.values() {
        match kept {
            Stored::Whole(devices) | Stored::Shards { devices, .. } => used.extend(devices),
        }
    }
    let mesh: Vec<&str> =
        plan.devices.iter().map(|device| device.name.as_str()).filter(|name| used.contains(name)).collect();
    let numbers: BTreeMap<&str, usize> = mesh.iter().copied().zip(0..).collect();
    let number = |device: &&str| numbers.get(device).copied().unwrap_or(0);
    let mut lines = Vec::with_capacity(params.len());
    for (name, stored) in params {
        let sharding = match &stored {
            Stored::Whole(devices) if devices.len() == mesh.len() => "{replicated}".to_owned(),
            Stored::Whole(devices) if devices.len() == 1 => {
                format!("{{maximal device={}}}", number(&devices[0]))
            }
            Stored::Shards { axis, rank, devices } if devices.len() == mesh.len() => {
                let tiles = (0..*rank).map(|at| if at == *axis { devices.len() } else { 1 }.to_string());
                let order = devices.iter().map(|device| number(device).to_string());
                let (tiles, order) = (tiles.collect::<Vec<_>>(), order.collect::<Vec<_>>());
                format!("{{devices=[{}]{}}}", tiles.join(","), order.join(","))
            }
            Stored::Whole(devices) | Stored::Shards { devices, .. } => {
                let message =
                    format!("parameter {name} lies on {} of the {} devices", devices.len(), mesh.len());
                return Err(Error::usage(FORMAT, message)
                    .with_help("a sharding is over one device or all: use --format dtensor"));
            }
        };
        lines.push(format!("  {}: {}", quoted(name), quoted(&sharding)));
    }
    let mesh: Vec<String> = mesh.iter().map(|device| quoted(device).to_string()).collect();
    let (mesh, lines) = (mesh.join(", "), lines.join(",\n"));
    Ok(format!("{{\n \"mesh\": [{mesh}],\n \"shardings\": {{\n{lines}\n }}\n}}\n"))
}
