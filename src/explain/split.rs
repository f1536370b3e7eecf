//! What is reported of a node that a plan splits.

use serde::Serialize;

/// How a plan splits a node, and what else there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SplitReport {
    /// The node.
    pub node: String,
    /// The objective.
    pub objective: String,
    /// What the plan has of it: bytes or nanoseconds.
    pub value: u64,
    /// Its operations that are split, in the network's order.
    pub operations: Vec<OwnSplit>,
    /// The other ways: whole, and along each other loop. Each was planned anew, with all else split as it is.
    pub otherwise: Vec<Otherwise>,
}

/// How one operation is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnSplit {
    /// `name#2`: the third operation that the node stands for.
    pub operation: String,
    /// `axis 1` of its first result, or `sum 1` of its first operand.
    pub over: String,
    /// How long that is.
    pub extent: u64,
    /// Number of parts.
    pub parts: usize,
    /// By device, in the plan's order: how many parts, and how much of the extent.
    pub devices: Vec<DeviceShare>,
}

/// What one device has of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceShare {
    /// The device.
    pub device: String,
    /// Parts on it.
    pub parts: usize,
    /// Their elements along the loop.
    pub elements: u64,
}

/// Another way to split the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Otherwise {
    /// `axis 1`, `sum 0`; none where the node stays whole.
    pub over: Option<String>,
    /// Most parts of an operation; 1 where the node stays whole.
    pub parts: u64,
    /// Whether results may have other bits than those of one device.
    pub other_bits: bool,
    /// What the plan would have of the objective; none where there is no such plan.
    pub value: Option<u64>,
    /// Why there is none.
    pub refused: Option<String>,
}
