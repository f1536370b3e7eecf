//! Inputs and outputs that callers see in another type than the graph holds them in, and outputs of which callers
//! see only a part: those whose size depends on data are computed for the largest size that it can have.

use std::collections::BTreeMap;

use super::{BoxOf, DType, Graph, Type, ValueId};

/// By name, what callers supply or take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortTypes {
    pub(super) inputs: BTreeMap<String, DType>,
    pub(super) outputs: BTreeMap<String, DType>,
    pub(super) counts: BTreeMap<String, Counted>,
    /// By name of an input: the box of a caller's input that it is.
    pub(super) boxes: BTreeMap<String, BoxOf>,
}

/// How much of an output callers see: the first elements of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The axis.
    pub axis: u32,
    /// The output, one i64, that says how many. It is not handed over.
    pub by: String,
}

impl Graph {
    /// The type in which callers supply input `number`: its own, but for an input that is rounded when it is handed over.
    pub fn input_type(&self, number: usize) -> Type {
        let (name, value) = &self.inputs[number];
        self.port_type(&self.ports.inputs, name, *value)
    }

    /// The type in which callers take output `number`: its own, but for an output that is widened when it is taken.
    pub fn output_type(&self, number: usize) -> Type {
        let (name, value) = &self.outputs[number];
        self.port_type(&self.ports.outputs, name, *value)
    }

    fn port_type(&self, types: &BTreeMap<String, DType>, name: &str, value: ValueId) -> Type {
        let ty = self.ty(value);
        Type { dtype: types.get(name).copied().unwrap_or(ty.dtype), shape: ty.shape.clone() }
    }

    /// Lets what reads a part of an input be handed that part alone. Error: none but internal ones.
    pub fn slice_input(&mut self, name: &str) {
        if let Some((_, value)) = self.inputs.iter().find(|(own, _)| own == name) {
            let all = BoxOf::all(name, self.ty(*value));
            self.ports.boxes.insert(name.to_owned(), all);
        }
    }

    /// Says that an input is this box of a caller's.
    pub(crate) fn box_input(&mut self, name: &str, of: BoxOf) {
        self.ports.boxes.insert(name.to_owned(), of);
    }

    /// The box of a caller's input that an input is; none where it is one as it is.
    pub fn input_box(&self, name: &str) -> Option<&BoxOf> {
        self.ports.boxes.get(name)
    }

    /// The inputs and outputs as callers see them: inputs whole, in the order of the first box of each, and of outputs
    /// the names. None where the graph's own are those.
    pub fn callers_ports(&self) -> Option<Self> {
        if self.ports.boxes.is_empty() {
            return None;
        }
        let mut seen = self.emptied();
        seen.ports.boxes.clear();
        for (name, value) in &self.inputs {
            let (ty, source) = (self.ty(*value), self.maker(*value).source);
            let (name, ty) =
                self.input_box(name).map_or_else(|| (name, ty.clone()), |part| (&part.name, part.whole(ty)));
            if seen.inputs.iter().all(|(other, _)| other != name) {
                seen.add_input(name.clone(), ty, source);
            }
        }
        let outputs = self.outputs.iter().map(|(name, _)| (name.clone(), ValueId(0)));
        seen.outputs = outputs.collect();
        Some(seen)
    }

    /// Outputs of which callers see only a part, by name.
    pub fn counted(&self) -> &BTreeMap<String, Counted> {
        &self.ports.counts
    }

    /// Says that callers see only a part of an output.
    pub(crate) fn count_output(&mut self, name: &str, counted: Counted) {
        self.ports.counts.insert(name.to_owned(), counted);
    }

    /// Says that callers supply an input in this type.
    pub(crate) fn supply_input(&mut self, name: &str, dtype: DType) {
        self.ports.inputs.insert(name.to_owned(), dtype);
    }

    /// Says that callers take an output in this type.
    pub(crate) fn take_output(&mut self, name: &str, dtype: DType) {
        self.ports.outputs.insert(name.to_owned(), dtype);
    }
}
