//! What a plan says of the plan that it replaces.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Nanos};

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
