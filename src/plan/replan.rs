//! What a plan says of the plan that it replaces.

use serde::{Deserialize, Serialize};

use super::{Plan, PlanOptions};
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

/// A digest of what is planned for: the model's own digest, what is asked for, what is kept free,
/// the devices. XXH3, 128 bits, in hexadecimal.
pub fn circumstances(model_hash: &str, options: &PlanOptions, reserve: Bytes, topology: &Topology) -> String {
    // What cannot be written is like nothing else.
    let text = serde_json::to_string(&(model_hash, options, reserve, topology)).unwrap_or_default();
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

impl Plan {
    /// What the plan was made for, as [`circumstances`] has it.
    pub fn circumstances(&self) -> String {
        let reserve = self.devices.iter().map(|device| device.reserve).max().unwrap_or_default();
        circumstances(&self.model.hash, &self.options, reserve, &self.topology)
    }
}

/// The state that must be loaded because a plan replaces another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replan {
    /// The limit or weight of what may be moved, as given.
    pub stability: String,
    /// Bytes loaded on other devices than before, although some device still has them.
    pub moved_bytes: Bytes,
    /// Bytes loaded anew because no device has them any more.
    pub lost_bytes: Bytes,
    /// Bytes of what the plan before did not have.
    pub new_bytes: Bytes,
    /// Time that the moved bytes take, each device loading beside the others.
    pub load_ns: Nanos,
    /// All of it, item by item and device by device.
    #[serde(default)]
    pub state: Vec<MovedState>,
}

/// One item of state on a device that did not hold it before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedState {
    /// The parameter, or the node that owns it.
    pub name: String,
    /// How much it is.
    pub bytes: Bytes,
    /// The devices that hold it already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// The device that must load it.
    pub to: String,
    /// `moved`, `lost` or `new`.
    pub fate: String,
}
