//! What routing knows of a physical device beside its rates.

use super::Contention;
use crate::units::{Nanos, Rate};

/// A physical device's link to its host.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) rate: Rate,
    pub(super) latency: Nanos,
}

/// Where a physical device stands.
pub(super) struct Site {
    /// Its group in the description.
    pub(super) group: usize,
    pub(super) is_cpu: bool,
    /// True where it is cut into several devices.
    pub(super) is_shared: bool,
    pub(super) contention: Contention,
    /// None where it is not joined to its host.
    pub(super) port: Option<Port>,
}
