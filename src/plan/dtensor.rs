//! Parameters as PyTorch's distributed tensors: a mesh of devices, and how each is stored on it.

use super::Plan;
use super::shards::{Stored, stored};
use crate::error::Result;
use crate::escape::quoted;

/// An object from each parameter to its mesh, the names of devices, and its placements there, as `Shard(0)` or
/// `Replicate()`. One line for each parameter, by name. O(buffers log buffers).
///
/// Errors: [`Error::Usage`](crate::error::Error::Usage) where slices are no shards of such a tensor: of unequal sizes, or of
/// more than one axis.
pub(super) fn dtensor(plan: &Plan) -> Result<String> {
    let line = |(name, stored): (&str, Stored<'_>)| {
        let (devices, placement) = match stored {
            Stored::Whole(devices) => (devices, "Replicate()".to_owned()),
            Stored::Shards { axis, devices, .. } => (devices, format!("Shard({axis})")),
        };
        let mesh: Vec<String> = devices.iter().map(|device| quoted(device).to_string()).collect();
        let mesh = mesh.join(", ");
        format!("  {}: {{\"mesh\": [{mesh}], \"placements\": [\"{placement}\"]}}", quoted(name))
    };
    let lines: Vec<String> = stored(plan, "--format dtensor")?.into_iter().map(line).collect();
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}
