//! Sources: what a graph remembers of the nodes of the model that it was read from.

use super::{Noise, SourceId};

/// What a source entry is in the source model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceRole {
    /// A node or layer: it stands in the plan's placement.
    Node,
    /// An input, parameter or constant that the source does not count among its nodes.
    Data,
}

/// Which pass of a training step a source's nodes belong to. The network and its gradients share no
/// kernel; an update may follow in that of its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The network itself.
    #[default]
    Forward,
    /// Its gradients.
    Backward,
    /// The optimizer.
    Update,
}

/// A node of the source model: what people know it by. One source node may become several
/// nodes of the graph, or none; all of them go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source's own name.
    pub name: String,
    /// The source's own operation or layer type.
    pub op: String,
    /// What it is there.
    pub role: SourceRole,
    /// Device that it must be on.
    pub pin: Option<String>,
    /// Sources with one mark go together.
    pub colocate: Option<String>,
    /// A source that reads a result of this one (the first); where this one leaves no node
    /// behind, it is reported as being where that one is.
    pub consumer: Option<SourceId>,
    /// The source whose backward pass or update this one is: it prefers that one's device.
    pub forward: Option<SourceId>,
    /// The pass that it belongs to.
    pub phase: Phase,
    /// How it disturbs its input while the network trains: its reshape stands for that.
    pub noise: Option<Noise>,
    /// The microbatch that it belongs to, where a step is written out with several.
    pub microbatch: Option<u32>,
}

impl Source {
    /// A source with neither pin nor mark.
    pub fn new(name: impl Into<String>, op: impl Into<String>, role: SourceRole) -> Self {
        Self {
            name: name.into(),
            op: op.into(),
            role,
            pin: None,
            colocate: None,
            consumer: None,
            forward: None,
            phase: Phase::Forward,
            noise: None,
            microbatch: None,
        }
    }
}

/// The name of one of several parts of a node, counted from 0.
pub fn part_name(node: &str, number: u32, parts: u32) -> String {
    format!("{node}[{number}/{parts}]")
}

/// What [`part_name`] was given, or the node of one of its operations (`dense#1`); none where a name is neither.
pub fn whole_name(part: &str) -> Option<&str> {
    if let Some((node, operation)) = part.rsplit_once('#')
        && operation.parse::<u32>().is_ok()
    {
        return Some(node);
    }
    let (whole, numbers) = part.strip_suffix(']')?.rsplit_once('[')?;
    let (number, parts) = numbers.split_once('/')?;
    let is_part = number.parse::<u32>().ok()? < parts.parse().ok()?;
    is_part.then_some(whole)
}
