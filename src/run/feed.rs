//! Arrays of a file matched to a network's inputs and outputs, dimensions read off the inputs'
//! sizes, and results compared with what was expected.

use std::collections::BTreeMap;

use crate::error::{Error, Report, Result};
use crate::ir::{DType, Graph, Init, Real, Tensor, Type};
use crate::load::fill;

/// What an array of a file is to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Input number `.0`.
    Input(usize),
    /// Every `stride`-th element of an output.
    Output {
        /// Its number.
        output: usize,
        /// 1 for all of it.
        stride: usize,
    },
    /// Nothing that the network knows.
    Unknown,
}

/// The role of each name. Inputs are called by their name, `in_NAME` or `in_NUMBER`; outputs by
/// theirs, `out_NAME`, `out_NUMBER`, or `outsampleK_NAME` for every K-th element.
pub fn roles(graph: &Graph, names: &[String]) -> Vec<Role> {
    let find = |list: &[(String, crate::ir::ValueId)], name: &str| {
        let by_name = list.iter().position(|(one, _)| one == name);
        by_name.or_else(|| name.parse().ok().filter(|&number: &usize| number < list.len()))
    };
    let exact =
        |list: &[(String, crate::ir::ValueId)], name: &str| list.iter().position(|(one, _)| one == name);
    names
        .iter()
        .map(|name| {
            if let Some(input) = exact(graph.inputs(), name) {
                return Role::Input(input);
            }
            if let Some(output) = exact(graph.outputs(), name) {
                return Role::Output { output, stride: 1 };
            }
            if let Some(rest) = name.strip_prefix("in_") {
                return find(graph.inputs(), rest).map_or(Role::Unknown, Role::Input);
            }
            if let Some(rest) = name.strip_prefix("out_") {
                let output = find(graph.outputs(), rest);
                return output.map_or(Role::Unknown, |output| Role::Output { output, stride: 1 });
            }
            sampled(name)
                .and_then(|(stride, rest)| {
                    Some(Role::Output { output: find(graph.outputs(), rest)?, stride })
                })
                .unwrap_or(Role::Unknown)
        })
        .collect()
}

/// `outsampleK_NAME` as (K, NAME).
fn sampled(name: &str) -> Option<(usize, &str)> {
    let (stride, rest) = name.strip_prefix("outsample")?.split_once('_')?;
    stride.parse().ok().filter(|&stride| stride > 0).map(|stride| (stride, rest))
}

/// Error: an array that is neither input nor output, in a file that does not hold both kinds.
pub fn check_unknown(graph: &Graph, names: &[String], roles: &[Role]) -> Result<()> {
    let inputs = roles.iter().any(|role| matches!(role, Role::Input(_)));
    let outputs = roles.iter().any(|role| matches!(role, Role::Output { .. }));
    let unknown = roles.iter().position(|role| *role == Role::Unknown);
    match unknown {
        Some(position) if !(inputs && outputs) => {
            let list = |list: &[(String, crate::ir::ValueId)]| {
                list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
            };
            let message = "this array is neither an input nor an output of the model";
            Err(Error::usage(format!("array {}", names[position]), message).with_help(format!(
                "inputs: {}; outputs: {}",
                list(graph.inputs()),
                list(graph.outputs())
            )))
        }
        _ => Ok(()),
    }
}

/// Values of the dimensions that the inputs' sizes mention, from the sizes given.
///
/// Errors: an input of another rank, two values for one dimension, a size that no value gives.
pub fn infer_dims(graph: &Graph, given: &[(usize, &Tensor)]) -> Result<BTreeMap<String, i64>> {
    let mut values: BTreeMap<String, i64> = BTreeMap::new();
    for &(input, tensor) in given {
        let (name, value) = &graph.inputs()[input];
        let sizes = graph.ty(*value).shape.sizes();
        let fault = |message: String| Error::usage(format!("input {name}"), message);
        if sizes.len() != tensor.dims().len() {
            return Err(fault(format!("expected rank {}, found sizes {:?}", sizes.len(), tensor.dims())));
        }
        for (axis, (size, &found)) in sizes.iter().zip(tensor.dims()).enumerate() {
            let [(dim, coefficient)] = size.terms() else { continue };
            let rest = i64::try_from(found).ok().and_then(|found| found.checked_sub(size.constant()));
            let solved = rest.filter(|rest| rest % coefficient == 0).map(|rest| rest / coefficient);
            let solved = solved.filter(|&solved| solved > 0).ok_or_else(|| {
                fault(format!("axis {axis}: no value of {} gives size {found}", graph.dim_name(*dim)))
            })?;
            let known = *values.entry(graph.dim_name(*dim).to_owned()).or_insert(solved);
            if known != solved {
                let dim = graph.dim_name(*dim);
                return Err(fault(format!("axis {axis}: {dim} would be {solved} here, {known} before")));
            }
        }
    }
    Ok(values)
}

/// Data for an input that is not given: floats in [-1, 1), integers in 0..8, which are positions
/// in any table worth the name, and alternating bools; the same for one seed and name.
///
/// Error: a dimension is not bound, or the size overflows.
pub fn made_up(ty: &Type, seed: u64, name: &str) -> Result<Tensor> {
    let dims: Option<Vec<u64>> =
        ty.shape.dims().and_then(|dims| dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect());
    let unbound = || Error::run(format!("input {name}"), "its sizes are not bound").with_help("--dim NAME=N");
    let dims = dims.ok_or_else(unbound)?;
    if ty.dtype.is_float() {
        let init = Init::Uniform { low: Real(-1.0), high: Real(1.0) };
        return fill(&init, &dims, ty.dtype, seed, name);
    }
    let too_large = || Error::run(format!("input {name}"), "its data does not fit into memory");
    let elements = ty.elements().ok_or_else(unbound)?;
    let size = ty.dtype.size() as usize;
    let most = if ty.dtype == DType::Bool { 2 } else { 8 };
    let length = ty.bytes().and_then(|bytes| usize::try_from(bytes.get()).ok()).ok_or_else(too_large)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| too_large())?;
    for element in 0..elements {
        let value = (element.wrapping_mul(7) ^ seed) % most;
        bytes.extend_from_slice(&value.to_le_bytes()[..size]);
    }
    Tensor::new(ty.dtype, dims, bytes)
}

/// How far an output is from what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The output's name.
    pub name: String,
    /// Elements compared.
    pub elements: usize,
    /// Elements beyond the tolerance.
    pub wrong: usize,
    /// Largest absolute difference.
    pub max_error: f64,
    /// Position, found and expected value of the worst element beyond the tolerance.
    pub worst: Option<(usize, f64, f64)>,
}

/// Compares every `stride`-th element of `found` with `expected`: an element is right where
/// `|found - expected| <= atol + rtol * |expected|`, or both are the same infinity or no number.
///
/// Errors: another number of elements, or with stride 1 other sizes.
pub fn compare(
    name: &str,
    found: &Tensor,
    expected: &Tensor,
    stride: usize,
    (rtol, atol): (f64, f64),
) -> Result<Comparison> {
    let fault = |message: String| Error::Run(Report::new(format!("output {name}"), message));
    let count = found.elements().div_ceil(stride);
    if (stride == 1 && found.dims() != expected.dims()) || count != expected.elements() {
        let message = format!("expected sizes {:?}, found {:?}", expected.dims(), found.dims());
        return Err(fault(message));
    }
    let (left, right) = (found.to_f64(), expected.to_f64());
    let mut comparison =
        Comparison { name: name.to_owned(), elements: count, wrong: 0, max_error: 0.0, worst: None };
    let mut excess = 0.0;
    for (position, (&one, &other)) in left.iter().step_by(stride).zip(&right).enumerate() {
        if one == other || (one.is_nan() && other.is_nan()) {
            continue;
        }
        let error = (one - other).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        comparison.max_error = comparison.max_error.max(error);
        let beyond = error - (atol + rtol * other.abs());
        if beyond > 0.0 || beyond.is_nan() {
            comparison.wrong += 1;
            if comparison.worst.is_none() || beyond > excess {
                excess = beyond;
                comparison.worst = Some((position * stride, one, other));
            }
        }
    }
    Ok(comparison)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Shape, Size, Source, SourceRole};

    fn graph() -> Graph {
        let mut graph = Graph::new("g");
        let source = graph.add_source(Source::new("x", "Input", SourceRole::Data));
        let batch = Size::dim(graph.dim("batch"));
        let x = graph.add_input("x", Type::new(DType::F32, Shape::new([batch, Size::Known(2)])), source);
        graph.add_output("y", x);
        graph
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn arrays_are_matched_by_name_prefix_and_number() {
        let names = names(&["x", "in_x", "in_0", "out_y", "outsample7_y", "y", "w000:x", "in_1"]);
        let output = |stride| Role::Output { output: 0, stride };
        let expected = [
            Role::Input(0),
            Role::Input(0),
            Role::Input(0),
            output(1),
            output(7),
            output(1),
            Role::Unknown,
            Role::Unknown,
        ];
        assert_eq!(roles(&graph(), &names), expected);
    }

    #[test]
    fn an_unknown_array_is_an_error_unless_both_kinds_are_there() {
        let graph = graph();
        let check = |list: &[&str]| {
            let list = names(list);
            check_unknown(&graph, &list, &roles(&graph, &list))
        };
        assert!(check(&["x", "z"]).unwrap_err().to_string().contains("array z"));
        assert!(check(&["x", "z", "out_y"]).is_ok());
    }

    #[test]
    fn dimensions_follow_from_sizes() {
        let tensor = Tensor::from_f32(vec![3, 2], &[0.0; 6]).unwrap();
        let dims = infer_dims(&graph(), &[(0, &tensor)]).unwrap();
        assert_eq!(dims, BTreeMap::from([("batch".to_owned(), 3)]));
        let flat = Tensor::from_f32(vec![6], &[0.0; 6]).unwrap();
        assert!(infer_dims(&graph(), &[(0, &flat)]).is_err());
    }

    #[test]
    fn a_difference_beyond_the_tolerance_is_found() {
        let found = Tensor::from_f32(vec![3], &[1.0, 2.0, f32::NAN]).unwrap();
        let expected = Tensor::from_f32(vec![3], &[1.0, 2.1, 0.0]).unwrap();
        let comparison = compare("y", &found, &expected, 1, (1e-4, 1e-5)).unwrap();
        assert_eq!(comparison.wrong, 2);
        assert_eq!(comparison.max_error, f64::INFINITY);
        let same = compare("y", &found, &found, 1, (0.0, 0.0)).unwrap();
        assert_eq!((same.wrong, same.max_error), (0, 0.0));
    }
}
