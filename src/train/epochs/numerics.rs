//! Which operation of a step first makes an infinity or not-a-number.
//!
//! With `--check-numerics` a step's parameters are kept until it is seen that what it made is finite. Where
//! it is not, the step runs once more, node by node and unfused, on what it began with.

use std::collections::BTreeMap;

use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Op, ParamId, Tensor, ValueId};
use crate::run::watch;

/// The way out where data is not finite.
pub(crate) const OF_DATA: &str = "mend the data, or leave such records out";
/// The way out where it is, and what is made of it is not.
pub(crate) const OF_RATE: &str = "a smaller --lr, or clip_norm=1 in --optimizer";

/// Whether all elements are finite; integers are.
pub(crate) fn is_finite(tensor: &Tensor) -> bool {
    !tensor.dtype().is_float() || tensor.to_f64().iter().all(|value| value.is_finite())
}

/// Of the arrays that a step is given, which number of the first that is not finite is not; none where all are.
pub(crate) fn fault_of_data(arrays: &[(String, Tensor)]) -> Option<String> {
    let (name, tensor) = arrays.iter().find(|(_, tensor)| !is_finite(tensor))?;
    Some(format!("{name} {}", not_finite("holds", &tensor.dims(), &tensor.to_f64())))
}

/// `holds NaN: element 3 of [2, 2]`
fn not_finite(what: &str, dims: &dyn std::fmt::Debug, values: &[f64]) -> String {
    let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
    let found = values.get(at).copied().unwrap_or(f64::NAN);
    format!("{what} {found}: element {at} of {dims:?}")
}

/// The first result that is not finite though all that is read for it is; else the first one that is no
/// number though all that is read is one. None where the step is finite when it runs so.
///
/// Errors: those of running the step.
pub(crate) fn first_fault(
    graph: &Graph,
    inputs: &[(String, Tensor)],
    params: &BTreeMap<String, Tensor>,
) -> Result<Option<Report>> {
    let weights = |id: ParamId| {
        let param = graph.param(id);
        let found = params.get(param.whole_name()).cloned();
        let found = found.ok_or_else(|| Error::Internal("a parameter that was not kept".into()))?;
        // A program gives what is whole, with the axes in the order of the data, but blocks as they lie.
        param.part_as_held(graph, found)
    };
    // By value: whether it holds infinities, and whether it holds what is no number.
    let mut seen = vec![(false, false); graph.value_count()];
    let (mut first, mut second) = (None, None);
    watch(graph, inputs, &weights, &mut |value, tensor| {
        if is_finite(&tensor) {
            return true;
        }
        let values = tensor.to_f64();
        let no_number = values.iter().any(|value| value.is_nan());
        seen[value.index()] = (true, no_number);
        let node = graph.maker(value);
        let reads = |has: fn(&(bool, bool)) -> bool| node.operands.iter().any(|one| has(&seen[one.index()]));
        let masks = matches!(node.op, Op::Constant(_));
        if !masks && !reads(|one| one.0) {
            first = Some(report(graph, value, &values));
        } else if no_number && second.is_none() && !reads(|one| one.1) {
            second = Some(report(graph, value, &values));
        }
        first.is_none()
    })?;
    Ok(first.or(second))
}

fn report(graph: &Graph, value: ValueId, values: &[f64]) -> Report {
    let node = graph.maker(value);
    let source = &graph.source(node.source).name;
    let (place, what, help) = match &node.op {
        Op::Input => (format!("input {source}"), "holds".to_owned(), OF_DATA),
        Op::Param(id) => {
            (format!("parameter {}", graph.param(*id).name), "holds".to_owned(), "mend the weights")
        }
        op => (format!("node {source}"), format!("{} is the first operation that gives", op.name()), OF_RATE),
    };
    let dims = graph.ty(value).shape.dims().unwrap_or_default();
    Report::new(place, not_finite(&what, &dims, values)).help(help)
}
