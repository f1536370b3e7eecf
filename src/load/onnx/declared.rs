//! What a file declares of types and shapes, beside what its operations make.

use std::collections::HashMap;

use super::lower::{Lowering, show};
use super::narrow::{Narrow, STRING};
use super::proto::{TensorTypeProto, ValueInfoProto};
use super::tensor;
use crate::error::{Error, Result};
use crate::ir::Type;

impl Lowering {
    /// Compares what the file declares of its outputs and of the values before them with what the operations make.
    /// Declared shapes decide nothing: exporters leave some that were true of another batch or of a graph before
    /// it was changed, and other runtimes run such files. They are noted.
    ///
    /// Error: a value has elements of another type.
    pub(super) fn compare_declared(
        &mut self,
        outputs: &[ValueInfoProto],
        between: &[ValueInfoProto],
    ) -> Result<()> {
        let mut stale: Vec<String> = Vec::new();
        for output in outputs {
            let Some(ty) = self.type_of(&output.name) else { continue };
            let place = |error: Error| error.within(&format!("output {}", output.name));
            if !self.are_texts(output) {
                has_type(output, ty, "what makes it").map_err(place)?;
            }
            if !self.is_ragged(&output.name) && shape_fault(output, ty).is_some() {
                let (stated, found) = (stated_shape(output), self.shown(ty));
                stale.push(format!(
                    "output {}: the file states {stated}, its operations make {found}",
                    output.name
                ));
            }
        }
        let mut sizes = NamedSizes::default();
        // What is declared of an output as such counts: converters leave another type among the others.
        let is_output = |name: &str| outputs.iter().any(|output| output.name == name);
        for value in between.iter().filter(|value| !is_output(&value.name)) {
            let Some(ty) = self.type_of(&value.name) else { continue };
            let place = |error: Error| error.within(&format!("value {}", value.name));
            if !self.are_texts(value) {
                has_type(value, ty, "what makes it").map_err(place)?;
            }
            if self.is_ragged(&value.name) {
                continue;
            }
            if shape_fault(value, ty).is_some() || !sizes.agree(value, ty) {
                let (stated, found) = (stated_shape(value), self.shown(ty));
                stale.push(format!(
                    "value {}: the file states {stated}, its operations make {found}",
                    value.name
                ));
            }
        }
        if let Some(first) = stale.first() {
            let more = match stale.len() - 1 {
                0 => String::new(),
                more => format!(" (and of {more} more values)"),
            };
            self.graph.note(format!("{first}{more}: what the operations make is taken"));
        }
        Ok(())
    }

    /// Whether a value is longer than what counts of it, so that its own size says nothing.
    fn is_ragged(&self, name: &str) -> bool {
        self.find(name).is_some_and(|binding| self.binding(binding).ragged.is_some())
    }

    /// Whether a value is declared to be of texts, and its elements are numbers of such.
    fn are_texts(&self, declared: &ValueInfoProto) -> bool {
        let found = self.find(&declared.name).and_then(|binding| self.binding(binding).narrow);
        let stated = tensor_type(declared).is_some_and(|tensor| tensor.elem_type == STRING);
        stated && matches!(found, Some(Narrow::Text(_)))
    }

    /// `[batch,3]`.
    fn shown(&self, ty: &Type) -> String {
        let sizes: Vec<String> = ty.shape.sizes().iter().map(|size| show(&self.graph, size)).collect();
        format!("[{}]", sizes.join(","))
    }
}

/// Error: the element type or a size that a file declares is not that of `maker`. Sizes that are named, or not yet known,
/// agree with any.
pub(super) fn agrees(declared: &ValueInfoProto, ty: &Type, maker: &str) -> Result<()> {
    has_type(declared, ty, maker)?;
    match shape_fault(declared, ty) {
        Some(Fault { stated, found }) => Err(contradicted(&stated, maker, &found)),
        None => Ok(()),
    }
}

/// What a file declares of a shape, and what is there.
struct Fault {
    stated: String,
    found: String,
}

fn contradicted(stated: &str, maker: &str, found: &str) -> Error {
    Error::model("", format!("the file declares {stated}, {maker} has {found}"))
        .with_help("the file contradicts itself: export it anew")
}

fn tensor_type(declared: &ValueInfoProto) -> Option<&TensorTypeProto> {
    declared.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref())
}

/// Error: the elements are declared to be of another type.
fn has_type(declared: &ValueInfoProto, ty: &Type, maker: &str) -> Result<()> {
    let Some(tensor) = tensor_type(declared) else { return Ok(()) };
    // Zero stands for a type that is not declared.
    if tensor.elem_type == 0 || tensor::held(tensor.elem_type)? == ty.dtype {
        return Ok(());
    }
    let stated = format!("elements of type {}", tensor::held(tensor.elem_type)?);
    Err(contradicted(&stated, maker, ty.dtype.name()))
}

/// Where a declared shape is another one; sizes that are named, or not yet known, agree with any.
fn shape_fault(declared: &ValueInfoProto, ty: &Type) -> Option<Fault> {
    let shape = tensor_type(declared)?.shape.as_ref()?;
    let sizes = ty.shape.sizes();
    if shape.dim.len() != sizes.len() {
        let (stated, found) = (format!("{} axes", shape.dim.len()), sizes.len().to_string());
        return Some(Fault { stated, found });
    }
    shape.dim.iter().zip(sizes).enumerate().find_map(|(axis, (dim, size))| {
        match (dim.dim_value, size.known()) {
            (Some(stated @ 0..), Some(found)) if stated != found => {
                Some(Fault { stated: format!("a size of {stated} on axis {axis}"), found: found.to_string() })
            }
            _ => None,
        }
    })
}

/// Sizes that a file names, as far as they are known: one name is one size.
#[derive(Default)]
struct NamedSizes(HashMap<String, i64>);

impl NamedSizes {
    /// Whether what a value's named sizes are is what they were of the values before.
    fn agree(&mut self, declared: &ValueInfoProto, ty: &Type) -> bool {
        let shape = tensor_type(declared).and_then(|tensor| tensor.shape.as_ref());
        let dims = shape.map_or(&[][..], |shape| &shape.dim);
        let named = dims.iter().zip(ty.shape.sizes()).filter_map(|(dim, size)| {
            let name = dim.dim_param.as_deref().filter(|name| !name.is_empty())?;
            Some((name, size.known()?))
        });
        let mut agree = true;
        for (name, size) in named {
            agree &= *self.0.entry(name.to_owned()).or_insert(size) == size;
        }
        agree
    }
}

/// `[batch,3]`, as a file states it.
fn stated_shape(declared: &ValueInfoProto) -> String {
    let shape = tensor_type(declared).and_then(|tensor| tensor.shape.as_ref());
    let dims = shape.map_or(&[][..], |shape| &shape.dim).iter();
    let stated = dims.map(|dim| match (dim.dim_value, dim.dim_param.as_deref()) {
        (Some(size), _) => size.to_string(),
        (None, name) => name.filter(|name| !name.is_empty()).unwrap_or("?").to_owned(),
    });
    format!("[{}]", stated.collect::<Vec<_>>().join(","))
}
