//! The placement that a new one replaces, and what it is worth to keep to it.

use std::collections::BTreeMap;

use super::super::Objective;
use crate::error::{Error, Result};
use crate::units::{Bytes, Nanos};

/// How much moving state is held against a new placement. State is what lies on a device between
/// steps: parameters, and what nodes own.
///
/// Only what could have stayed counts: state whose every holder is gone must be loaded anew
/// wherever it goes, and so must that of nodes that the earlier placement did not have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stability {
    /// At most this much is moved, as long as there is a placement that fits with so little; else
    /// as little as was found.
    Limit(Bytes),
    /// This many times what is moved is added to the objective: to `transfer` its bytes, to
    /// `latency` and `throughput` the time to load it, all devices at once.
    Weight(f64),
}

/// Moving a byte once is worth moving a hundredth of a byte less in every step.
impl Default for Stability {
    fn default() -> Self {
        Self::Weight(0.01)
    }
}

/// As it is read: a bare number is a weight.
impl std::fmt::Display for Stability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit(limit) => write!(f, "{}B", limit.0),
            Self::Weight(weight) => write!(f, "{weight}"),
        }
    }
}

impl std::str::FromStr for Stability {
    type Err = Error;

    /// `0.5` is a weight, `500MB` a limit.
    fn from_str(text: &str) -> Result<Self> {
        let fault = |why: String| Error::usage(format!("--stability {text}"), why);
        if let Ok(weight) = text.parse::<f64>() {
            return if weight.is_finite() && weight >= 0.0 {
                Ok(Self::Weight(weight))
            } else {
                Err(fault("expected a weight from 0, or an amount such as 500MB".into()))
            };
        }
        text.parse().map(Self::Limit).map_err(|why: String| fault(format!("{why}; or a weight such as 0.5")))
    }
}

/// The placement that a new one replaces.
///
/// ```
/// use std::sync::Arc;
/// use partition::{Bytes, Options, Previous, Stability, Topology};
///
/// # fn main() -> partition::Result<()> {
/// let graph = partition::read_costgraph(
///     br#"{"costgraph":1,"name":"two","kinds":["l4-24g"],"nodes":[
///          {"id":"a","op":"f","time_ns":[9],"param_bytes":600,"outputs":[8]},
///          {"id":"b","op":"f","time_ns":[9],"param_bytes":600,"outputs":[8]}],"edges":[["a",0,"b"]]}"#,
/// )?;
/// let old = partition::plan(&graph, &Topology::parse("2xl4-24g:memory=1kB")?, &Options::default())?;
/// // The second device is lost, the first one is larger now.
/// let previous = Previous { stability: Stability::Limit(Bytes(0)), ..Previous::from(&old) };
/// let options = Options { from: Some(Arc::new(previous)), ..Options::default() };
/// let new = partition::plan(&graph, &Topology::parse("l4-24g:memory=2kB")?, &options)?;
/// let replan = new.replan.expect("it replaces a plan");
/// assert_eq!((replan.moved_bytes, replan.lost_bytes), (Bytes(0), Bytes(600)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Previous {
    /// By node name, the name of its device. Nodes and devices may be others now.
    pub devices: BTreeMap<String, String>,
    /// The names of its launches in their order, where that is known; used where the nodes are
    /// the same still.
    pub launches: Vec<String>,
    /// What it is worth to keep to it.
    pub stability: Stability,
    /// A digest of what it was planned for, where that is known. Where that is the same still, the
    /// whole plan stays as it is.
    pub circumstances: String,
}

/// What a new placement takes of state beyond what lies there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateMoved {
    /// Bytes loaded on other devices than before, although some device still has them.
    pub moved: Bytes,
    /// Bytes loaded anew because no device has them any more.
    pub lost: Bytes,
    /// Bytes of what the earlier placement did not have.
    pub new: Bytes,
    /// Time that the moved bytes take, each device loading beside the others.
    pub load: Nanos,
}

/// What placements are compared by: what is over the limit, the objective with what is moved,
/// what is moved, the rest of the objective's key.
pub(crate) type Rank<const N: usize> = (u64, u64, u64, [u64; N]);

impl Previous {
    /// Where a placement stands among others, the least first, by the objective's own `key`.
    pub(crate) fn rank<const N: usize>(
        &self,
        objective: Objective,
        moved: &StateMoved,
        key: [u64; N],
    ) -> Rank<N> {
        let first = key.first().copied().unwrap_or(0);
        match self.stability {
            Stability::Limit(limit) => (moved.moved.saturating_sub(limit).0, first, moved.moved.0, key),
            Stability::Weight(weight) => {
                let cost = match objective {
                    Objective::Transfer => moved.moved.0,
                    Objective::Latency | Objective::Throughput => moved.load.0,
                };
                // A cast from a float saturates.
                let weighted = (cost as f64 * weight) as u64;
                (0, first.saturating_add(weighted), moved.moved.0, key)
            }
        }
    }
}
