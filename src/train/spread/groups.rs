//! The devices of replicas, and which of them does what.

use crate::ir::{Graph, Op};

/// The devices of replicas, and which of its own each replica computes what on.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaGroups {
    /// By replica.
    pub(crate) devices: Vec<Vec<String>>,
    /// By source of the network: which of a replica's devices it is on; empty where there is one.
    pub(crate) stages: Vec<usize>,
    /// That of the network's first output.
    pub(crate) last: usize,
    /// Whether a replica's shards go through its devices as the microbatches of a pipeline.
    pub(crate) pipelines: bool,
}

impl ReplicaGroups {
    /// One device for each replica.
    pub(crate) fn single(devices: Vec<String>) -> Self {
        Self {
            devices: devices.into_iter().map(|device| vec![device]).collect(),
            stages: Vec::new(),
            last: 0,
            pipelines: false,
        }
    }

    /// Several for each: `place` tells by a source's name which of a replica's devices it is on.
    pub(crate) fn several(
        devices: Vec<Vec<String>>,
        network: &Graph,
        place: impl Fn(&str) -> Option<usize>,
    ) -> Self {
        let stages: Vec<usize> =
            network.sources().iter().map(|source| place(&source.name).unwrap_or(0)).collect();
        let output = network.outputs().first().map(|(_, value)| network.maker(*value).source);
        let last = output.and_then(|source| stages.get(source.index()).copied()).unwrap_or(0);
        Self { devices, stages, last, pipelines: false }
    }

    /// The same, where shards are microbatches.
    pub(crate) fn of_pipelines(self) -> Self {
        Self { pipelines: true, ..self }
    }

    /// By parameter: the stage of the first source that reads it.
    pub(crate) fn stages_of_params(&self, network: &Graph) -> Vec<usize> {
        let mut stages: Vec<Option<usize>> = vec![None; network.params().len()];
        for node in network.node_ids().map(|id| network.node(id)) {
            for &operand in &node.operands {
                if let Op::Param(id) = network.maker(operand).op {
                    let stage = self.stages.get(node.source.index()).copied();
                    stages[id.index()].get_or_insert(stage.unwrap_or(0));
                }
            }
        }
        stages.into_iter().map(Option::unwrap_or_default).collect()
    }
}
