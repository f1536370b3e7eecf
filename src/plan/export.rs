//! The placement in the form of other tools.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Plan;
use super::dtensor::dtensor;
use super::gspmd::gspmd;
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::topology::{Engine, Target};

/// Names of the forms that [`export`] knows, each with what it is.
pub const FORMATS: &[(&str, &str)] = &[
    ("json", "an object from each node and part of one to its device's name"),
    ("accelerate", "a device_map of Hugging Face Accelerate: from module prefixes to GPU numbers or \"cpu\""),
    (
        "dtensor",
        "from each parameter to the mesh and placements of a distributed tensor of PyTorch: `Shard(0)`",
    ),
    (
        "gspmd",
        "from each parameter to the sharding by which XLA's partitioner knows it: `{devices=[1,2]0,1}`",
    ),
];

/// The placement in the form with this name, ending in a line feed.
///
/// Errors: [`Error::Usage`] for an unknown form, and where the form cannot say what the plan says.
pub fn export(plan: &Plan, format: &str) -> Result<String> {
    match format {
        "json" => Ok(json(plan)),
        "accelerate" => accelerate(plan),
        "dtensor" => dtensor(plan),
        "gspmd" => gspmd(plan),
        other => {
            let known: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
            Err(Error::usage(format!("--format {other}"), "is not known")
                .with_help(format!("known are {}", known.join(", "))))
        }
    }
}

/// Name to device, one node on each line, in the plan's order.
fn json(plan: &Plan) -> String {
    let lines: Vec<String> = plan
        .placement
        .iter()
        .map(|(node, device)| format!("  {}: {}", quoted(node), quoted(device)))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// Blocks with a number (`model.layers.1`) of which a device map would lay modules on several devices. Accelerate moves
/// what a module is given to its device, but not what a block adds up from several modules.
pub fn cut_blocks(plan: &Plan) -> Vec<String> {
    let devices: BTreeMap<&str, Value> =
        plan.devices.iter().map(|device| (device.name.as_str(), number(device))).collect();
    let mut found: BTreeMap<Vec<&str>, (&Value, bool)> = BTreeMap::new();
    for (node, device) in &plan.placement {
        let (path, Some(device)) = (module_path(node), devices.get(device.as_str())) else { continue };
        // The innermost block that has modules of its own.
        let inner = path.iter().rposition(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(at) = inner.filter(|&at| at + 1 < path.len()) else { continue };
        let (first, is_cut) = found.entry(path[..=at].to_vec()).or_insert((device, false));
        *is_cut |= *first != device;
    }
    let cut = found.into_iter().filter(|(_, (_, is_cut))| *is_cut);
    cut.map(|(path, _)| path.join(".")).collect()
}

/// The parts of a name stand between `.` or `/`, as exporters write module paths (`/h.0/attn/MatMul` is
/// `h.0.attn.MatMul`).
fn module_path(node: &str) -> Vec<&str> {
    node.split(['.', '/']).filter(|part| !part.is_empty()).collect()
}

/// A device map: the shortest dotted prefixes that tell all nodes' devices.
fn accelerate(plan: &Plan) -> Result<String> {
    let split: usize = plan.options.splits.iter().map(|split| split.nodes.len()).sum();
    if split > 0 {
        return Err(Error::usage(
            "--format accelerate",
            format!("the plan splits {split} operations over devices, and a device_map puts whole modules somewhere"),
        )
        .with_help("use --format dtensor or gspmd, or plan with --split none"));
    }
    let numbers: BTreeMap<&str, Value> =
        plan.devices.iter().map(|device| (device.name.as_str(), number(device))).collect();
    let mut modules: BTreeMap<Vec<&str>, (&str, &Value)> = BTreeMap::new();
    for (node, device) in &plan.placement {
        let value = numbers.get(device.as_str()).ok_or_else(|| {
            Error::format(format!("node {node}"), format!("is placed on unknown device {device}"))
                .with_help("`partition check PLAN` lists all faults")
        })?;
        let path = module_path(node);
        if let Some((other, _)) = modules.insert(path, (node, value)).filter(|(_, other)| *other != value) {
            return Err(Error::usage(
                "--format accelerate",
                format!("nodes {other} and {node} have one module path and two devices"),
            )
            .with_help("use --format json"));
        }
    }
    let entries: Vec<(Vec<&str>, &Value)> =
        modules.into_iter().map(|(path, (_, value))| (path, value)).collect();
    let mut map = Map::new();
    let mut lines = Vec::new();
    for (prefix, value) in collapse(&entries) {
        let name = prefix.join(".");
        if map.insert(name.clone(), value.clone()).is_none() {
            lines.push(format!("  {}: {value}", quoted(&name)));
        }
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// What Accelerate calls a device: the GPU's number, or `"cpu"`.
fn number(device: &super::PlanDevice) -> Value {
    if let Ok(Target::Cuda(ordinal)) = device.target.parse() {
        return ordinal.into();
    }
    let name = device.name.rsplit('/').next().unwrap_or_default();
    let digits = name.strip_prefix(Engine::CUDA).and_then(|rest| rest.split('.').next());
    digits.and_then(|digits| digits.parse::<u32>().ok()).map_or_else(|| Engine::CPU.into(), Value::from)
}

/// The shortest prefixes under which all have one value. `entries` are sorted by path, so that
/// what shares a prefix stands together. O(parts x depth of the deepest path).
fn collapse<'a>(entries: &[(Vec<&'a str>, &'a Value)]) -> Vec<(Vec<&'a str>, &'a Value)> {
    let mut out = Vec::new();
    // Ranges that share their first `depth` parts, still to be looked at; the first on top.
    let mut ranges = vec![(0, entries.len(), 0)];
    while let Some((start, end, depth)) = ranges.pop() {
        let Some((path, value)) = entries[start..end].first() else { continue };
        if entries[start..end].iter().all(|(_, other)| other == value) {
            out.push((path[..depth].to_vec(), *value));
            continue;
        }
        let mut parts = Vec::new();
        let mut from = start;
        if path.len() == depth {
            // The path that is the prefix itself; it comes first among those it begins.
            out.push((path.clone(), *value));
            from += 1;
        }
        while from < end {
            let part = entries[from].0[depth];
            let to = from + entries[from..end].partition_point(|(path, _)| path[depth] == part);
            parts.push((from, to, depth + 1));
            from = to;
        }
        ranges.extend(parts.into_iter().rev());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_on_one_device_collapse() {
        let (zero, one) = (Value::from(0), Value::from(1));
        let entries = vec![
            (vec!["h", "0", "attn"], &zero),
            (vec!["h", "0", "mlp"], &zero),
            (vec!["h", "1", "attn"], &zero),
            (vec!["h", "1", "mlp"], &one),
            (vec!["h", "2"], &one),
            (vec!["h", "2", "x"], &one),
            (vec!["head"], &one),
        ];
        let found: Vec<String> =
            collapse(&entries).iter().map(|(path, value)| format!("{}={value}", path.join("."))).collect();
        assert_eq!(found, ["h.0=0", "h.1.attn=0", "h.1.mlp=1", "h.2=1", "head=1"]);
    }
}
