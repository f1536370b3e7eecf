//! Values whose gradients are not those of how they are computed.

use super::super::call::Call;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// A value with the gradient of another of its sizes, which is finite.
pub(super) fn with_gradient_of(call: &mut Call<'_, '_>, value: &str, other: &str) -> String {
    let [value, fixed] = [value, other].map(|value| call.plain("StopGradient", &[value]));
    // Exactly 0: the value stays what it is.
    let nothing = call.plain("Sub", &[other, &fixed]);
    call.plain("Add", &[&value, &nothing])
}

/// Which extreme is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extreme {
    Most,
    Least,
}

/// A tensor, of so many axes and an element type, and the axis along which one element is chosen.
#[derive(Clone, Copy)]
pub(super) struct ChosenOf<'a> {
    pub(super) x: &'a str,
    pub(super) rank: i64,
    pub(super) axis: i64,
    pub(super) dtype: DType,
}

/// The extreme element of an axis, which has size 1 then, and its place: the first of equal ones, to which alone a gradient
/// goes. The others are detached, which costs nothing where nothing is trained.
pub(super) fn chosen(call: &mut Call<'_, '_>, of: ChosenOf<'_>, extreme: Extreme) -> (String, String) {
    let (reduce, find) = match extreme {
        Extreme::Most => ("ReduceMax", "ArgMax"),
        Extreme::Least => ("ReduceMin", "ArgMin"),
    };
    let axis = ("axis", Attribute::Int(of.axis));
    let at = call.op(find, &[of.x], &[axis, ("keepdims", Attribute::Int(1))]);
    let passing = if of.dtype.is_float() { passing_at(call, of, &at) } else { of.x.to_owned() };
    let along = call.integers(&[of.axis]);
    let value = call.op(reduce, &[&passing, &along], &[("keepdims", Attribute::Int(1))]);
    (value, at)
}

/// A tensor through which a gradient passes at one place of an axis alone.
fn passing_at(call: &mut Call<'_, '_>, of: ChosenOf<'_>, at: &str) -> String {
    let own = [("start", Attribute::Int(of.axis)), ("end", Attribute::Int(of.axis + 1))];
    let (size, first) = (call.op("Shape", &[of.x], &own), call.integers(&[0]));
    let size = call.plain("Squeeze", &[&size, &first]);
    let [zero, one] = [0.0, 1.0].map(|bound| call.scalar(DType::I64, bound));
    let places = call.plain("Range", &[&zero, &size, &one]);
    let mut dims = vec![1; (of.rank - of.axis) as usize];
    dims[0] = -1;
    let dims = call.integers(&dims);
    let places = call.plain("Reshape", &[&places, &dims]);
    let is_chosen = call.plain("Equal", &[&places, at]);
    let fixed = call.plain("StopGradient", &[of.x]);
    call.plain("Where", &[&is_chosen, of.x, &fixed])
}
