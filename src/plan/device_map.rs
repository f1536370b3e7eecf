//! A device map of Hugging Face Accelerate: from module prefixes to devices, such that every array of the model's checkpoint
//! is under one of them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{BufferKind, Plan};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::topology::{Engine, Target};

/// Where errors are.
const FORMAT: &str = "--format accelerate";

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

/// Lists of experts (`model.layers.1.mlp.experts`) of which some are on other devices than others: later versions of
/// transformers hold those of a layer in one array, which has no device then.
pub fn cut_experts(plan: &Plan) -> Vec<String> {
    let mut found: BTreeMap<Vec<&str>, (&str, bool)> = BTreeMap::new();
    for (node, device) in &plan.placement {
        let path = module_path(node);
        let Some(at) = path.iter().position(|part| *part == "experts") else { continue };
        let (first, is_cut) = found.entry(path[..=at].to_vec()).or_insert((device, false));
        *is_cut |= *first != device.as_str();
    }
    let cut = found.into_iter().filter(|(_, (_, is_cut))| *is_cut);
    cut.map(|(path, _)| path.join(".")).collect()
}

/// The parts of a name stand between `.` or `/`, as exporters write module paths (`/h.0/attn/MatMul` is
/// `h.0.attn.MatMul`).
fn module_path(node: &str) -> Vec<&str> {
    node.split(['.', '/']).filter(|part| !part.is_empty()).collect()
}

/// A device map: the shortest dotted prefixes that tell all nodes' devices, those of the plan's parameters, and
/// those of `held`: further arrays of the checkpoint, each with the parameter that it holds again or is another name of. Ends
/// in a line feed. O(names log names).
///
/// Errors: [`Error::Usage`] where the plan splits operations, and where two nodes of one module, or two parts of one array,
/// have two devices.
pub fn device_map(plan: &Plan, held: &[(String, Option<String>)]) -> Result<String> {
    let split: usize = plan.options.splits.iter().map(|split| split.nodes.len()).sum();
    if split > 0 {
        return Err(Error::usage(
            FORMAT,
            format!("the plan splits {split} operations over devices, and a device_map puts whole modules somewhere"),
        )
        .with_help("use --format dtensor or gspmd, or plan with --split none"));
    }
    let numbers: Numbers<'_> =
        plan.devices.iter().map(|device| (device.name.as_str(), number(device))).collect();
    let mut modules = Modules::new(plan, &numbers)?;
    let own: Vec<&str> = modules.holders.keys().copied().collect();
    own.into_iter().for_each(|name| modules.add(name, name));
    held.iter().for_each(|(array, param)| modules.add(array, param.as_deref().unwrap_or(array)));
    let entries: Vec<(Vec<&str>, &Value)> = modules.devices.into_iter().collect();
    let lines: Vec<String> = collapse(&entries)
        .into_iter()
        .map(|(prefix, value)| format!("  {}: {value}", quoted(&prefix.join("."))))
        .collect();
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// By name, what Accelerate calls the devices.
type Numbers<'a> = BTreeMap<&'a str, Value>;

/// What is known of modules, and of arrays within them, by path.
struct Modules<'a> {
    devices: BTreeMap<Vec<&'a str>, &'a Value>,
    /// The devices that hold a parameter, by its name.
    holders: BTreeMap<&'a str, Vec<&'a Value>>,
}

impl<'a> Modules<'a> {
    /// Those that nodes are called for. Errors: two nodes of one path on two devices; a device that is not there.
    fn new(plan: &'a Plan, numbers: &'a Numbers<'_>) -> Result<Self> {
        let mut nodes: BTreeMap<Vec<&str>, (&str, &Value)> = BTreeMap::new();
        for (node, device) in &plan.placement {
            let value = numbers.get(device.as_str()).ok_or_else(|| {
                Error::format(format!("node {node}"), format!("is placed on unknown device {device}"))
                    .with_help("`partition check PLAN` lists all faults")
            })?;
            let path = module_path(node);
            if let Some((other, _)) = nodes.insert(path, (node, value)).filter(|(_, other)| *other != value) {
                let message = format!("nodes {other} and {node} have one module path and two devices");
                return Err(Error::usage(FORMAT, message).with_help("use --format json"));
            }
        }
        let mut holders: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for buffer in plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param) {
            // `%7 fc1.weight`.
            let name = buffer.value.split_once(' ').map_or(&*buffer.value, |(_, name)| name);
            holders.entry(name).or_default().extend(numbers.get(buffer.device.as_str()));
        }
        let devices = nodes.into_iter().map(|(path, (_, value))| (path, value)).collect();
        Ok(Self { devices, holders })
    }

    /// Adds an array of this parameter: where the node of its own module is, else that of the parameter's, else where the
    /// parameter lies, else where the nearest module is.
    fn add(&mut self, array: &'a str, param: &str) {
        let path = module_path(array);
        self.forget_namesakes(&path, param);
        if path.is_empty() || self.devices.contains_key(&path) {
            return;
        }
        let module = |name: &'_ str| {
            let path = module_path(name);
            let above = path.split_last().map_or(&[][..], |(_, above)| above);
            self.devices.get(above).or_else(|| self.devices.get(&path)).copied()
        };
        let lies = self.holders.get(param).and_then(|holders| holders.first()).copied();
        let found = module(array).or_else(|| module(param)).or(lies).or_else(|| self.nearest(&path));
        if let Some(device) = found {
            self.devices.insert(path, device);
        }
    }

    /// Forgets nodes that are called like an array or its module and are something else: operations of `torch.export` are
    /// called by what they do (`linear`), as modules often are. What a node reads lies on its device.
    fn forget_namesakes(&mut self, path: &[&'a str], param: &str) {
        let Some(holders) = self.holders.get(param) else { return };
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        for namesake in [above, path] {
            if self.devices.get(namesake).is_some_and(|device| !holders.contains(device)) {
                self.devices.remove(namesake);
            }
        }
    }

    /// The device of the first module that shares the longest prefix with a path. O(parts x log modules).
    fn nearest(&self, path: &[&str]) -> Option<&'a Value> {
        (0..path.len()).rev().find_map(|depth| {
            let prefix = &path[..depth];
            let (first, device) = self.devices.range(prefix.to_vec()..).next()?;
            first.starts_with(prefix).then_some(*device)
        })
    }
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
