//! A parameter of a program: where it lies, and how it is written and read in the order of axes in which it is supplied.

use std::borrow::Cow;
use std::collections::HashMap;

use super::interpret::check_type;
use crate::error::{Error, Result};
use crate::ir::{Graph, Op, Tensor, Type, ValueId};

/// A parameter that a program holds.
pub(super) struct Held<P> {
    /// Its name.
    pub(super) name: String,
    /// Its type as it lies.
    pub(super) ty: Type,
    /// Where it lies.
    pub(super) places: P,
    /// The same type in the order of axes in which it is supplied.
    supplied: Type,
    /// The order in which it lies, where that is another one.
    order: Option<Vec<u32>>,
}

impl<P> Held<P> {
    /// None where a value is no parameter.
    pub(super) fn new(graph: &Graph, value: ValueId, places: P) -> Option<Self> {
        let Op::Param(id) = graph.maker(value).op else { return None };
        let (param, ty) = (graph.param(id), graph.ty(value).clone());
        let supplied = Type { dtype: ty.dtype, shape: param.supplied_shape(&ty.shape) };
        Some(Self { name: param.name.clone(), ty, places, supplied, order: param.permuted.clone() })
    }

    /// A value as it is to lie. Error: it is of another type.
    pub(super) fn laid<'t>(&self, value: &'t Tensor) -> Result<Cow<'t, Tensor>> {
        check_type(value, &self.supplied)
            .map_err(|error| error.within(&format!("parameter {}", self.name)))?;
        match &self.order {
            Some(order) => value.permuted(order).map(Cow::Owned),
            None => Ok(Cow::Borrowed(value)),
        }
    }

    /// What lies so, as it is supplied. Errors: none but internal ones.
    pub(super) fn supplied(&self, held: Tensor) -> Result<Tensor> {
        let Some(order) = &self.order else { return Ok(held) };
        let mut back = vec![0; order.len()];
        for (at, &axis) in (0..).zip(order) {
            let place = back.get_mut(axis as usize);
            *place.ok_or_else(|| Error::Internal(format!("axes {order:?} of {}", self.name)))? = at;
        }
        held.permuted(&back)
    }
}

/// By name: the place of each of some parameters among them.
pub(super) fn numbers<'n>(names: impl Iterator<Item = &'n str>) -> HashMap<String, usize> {
    names.map(str::to_owned).zip(0..).collect()
}

/// The error of a parameter that a plan does not hold.
pub(super) fn missing(name: &str) -> Error {
    Error::usage(format!("parameter {name}"), "the plan holds no such parameter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;
    use crate::ir::text::parse;

    #[test]
    fn a_parameter_is_given_and_taken_in_the_order_of_its_data() {
        let text = "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n\
            %0: i32[2, 3, 1, 4] = param \"w\" init=constant(0) permuted=[2, 3, 1, 0] @s0\noutput \"y\" %0\n";
        let graph = parse(text).unwrap();
        let held = Held::new(&graph, graph.outputs()[0].1, ()).unwrap();
        let bytes: Vec<u8> = (0..24i32).flat_map(i32::to_le_bytes).collect();
        let given = Tensor::new(DType::I32, vec![4, 1, 2, 3], bytes.clone()).unwrap();
        let laid = held.laid(&given).unwrap().into_owned();
        assert_eq!(laid.dims(), [2, 3, 1, 4]);
        // The element of each place: the last axis is the first of what is supplied.
        assert_eq!(laid.to_i64().unwrap()[..5], [0, 6, 12, 18, 1]);
        assert_eq!(held.supplied(laid.clone()).unwrap(), given);
        // As it lies it is of another type.
        assert!(held.laid(&laid).unwrap_err().to_string().contains("parameter w"));
    }
}
