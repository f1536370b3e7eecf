//! The placement in the form of other tools.

use super::Plan;
use super::device_map::device_map;
use super::dtensor::dtensor;
use super::gspmd::gspmd;
use crate::error::{Error, Result};
use crate::escape::quoted;

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
        "accelerate" => device_map(plan, &[]),
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
