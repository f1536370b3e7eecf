//! What lies on each device before a step begins: parameters, state, inputs. It stands at the
//! bottom of the arenas and is never written over, for a step may be run many times.

use crate::costgraph::{Role, TensorIx};
use crate::error::{Error, Result};
use crate::schedule::copies::param_holders;
use crate::schedule::problem::Problem;
use crate::schedule::{Buffer, BufferKind, Content};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// The resident buffers, laid out.
pub(crate) struct Residents {
    /// States, parameters, inputs, what nodes own.
    pub(crate) buffers: Vec<Buffer>,
    /// By device: the first aligned offset above them.
    pub(crate) base: Vec<u64>,
    /// By device: end of the last one.
    pub(crate) end: Vec<u64>,
    /// By device: their bytes.
    pub(crate) bytes: Vec<Bytes>,
    /// Bytes of parameters on devices beyond the first that holds each.
    pub(crate) load_bytes: Bytes,
}

impl Residents {
    /// Lays them out. Errors where a device would hold more than 2^64 bytes.
    pub(crate) fn new(problem: &Problem<'_>) -> Result<Self> {
        let graph = problem.graph;
        let devices = problem.topology.len();
        let mut residents = Self {
            buffers: Vec::new(),
            base: vec![0; devices],
            end: vec![0; devices],
            bytes: vec![Bytes::ZERO; devices],
            load_bytes: Bytes::ZERO,
        };
        // States and parameters come first: they lie alike in all plans of one model and one placement.
        for &(_, state) in graph.updates() {
            residents.input(problem, state)?;
        }
        let mut last = None;
        for (param, device) in param_holders(graph, problem.placement()) {
            let bytes = graph.param_bytes(param);
            residents.add(problem, device, Content::Param(param), BufferKind::Param, bytes)?;
            if last.replace(param) == Some(param) {
                residents.load_bytes += bytes;
            }
        }
        let mut is_state = vec![false; graph.tensor_count()];
        graph.updates().iter().for_each(|&(_, state)| is_state[state.index()] = true);
        for tensor in graph.tensors() {
            if graph.role(graph.producer(tensor)) == Role::Input && !is_state[tensor.index()] {
                residents.input(problem, tensor)?;
            }
        }
        for node in graph.nodes() {
            let bytes = graph.owned_bytes(node);
            if bytes > Bytes::ZERO {
                residents.add(
                    problem,
                    problem.device(node),
                    Content::Owned(node),
                    BufferKind::Param,
                    bytes,
                )?;
            }
        }
        Ok(residents)
    }

    fn input(&mut self, problem: &Problem<'_>, tensor: TensorIx) -> Result<()> {
        let (graph, producer) = (problem.graph, problem.graph.producer(tensor));
        let (device, bytes) = (problem.device(producer), graph.tensor_bytes(tensor));
        self.add(problem, device, Content::Tensor(tensor), BufferKind::Input, bytes)
    }

    fn add(
        &mut self,
        problem: &Problem<'_>,
        device: DeviceId,
        content: Content,
        kind: BufferKind,
        bytes: Bytes,
    ) -> Result<()> {
        let base = &mut self.base[device.index()];
        let offset = *base;
        let end = offset.checked_add(bytes.0);
        let (Some(end), Some(next)) = (end, end.and_then(crate::schedule::memory::arena::aligned)) else {
            return Err(too_large(problem, device));
        };
        *base = next;
        self.end[device.index()] = self.end[device.index()].max(end);
        self.bytes[device.index()] += bytes;
        self.buffers.push(Buffer { device, content, kind, offset: Bytes(offset), bytes, within: None });
        Ok(())
    }
}

/// A device would hold more than 2^64 bytes.
pub(crate) fn too_large(problem: &Problem<'_>, device: DeviceId) -> Error {
    let name = &problem.topology.device(device).name;
    Error::model("graph", format!("what is placed on {name} takes more than 2^64 bytes"))
}
