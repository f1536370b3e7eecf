//! Arrays of a file matched to a network's inputs and outputs, dimensions read off the inputs'
//! sizes, and results compared with what was expected.

use std::collections::{BTreeMap, HashMap};

use crate::data::{Number, push_element};
use crate::error::{Error, Report, Result};
use crate::ir::{Absent, DType, DimId, Equations, Graph, Init, InputRule, Real, Refused, Size, Tensor, Type};
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
/// theirs, `out_NAME`, `out_NUMBER`, or `outsampleK_NAME` for every K-th element. O(names + inputs + outputs).
pub fn roles(graph: &Graph, names: &[String]) -> Vec<Role> {
    let (inputs, outputs) = (numbers(graph.inputs()), numbers(graph.outputs()));
    let find = |list: &HashMap<&str, usize>, count: usize, name: &str| {
        let by_name = list.get(name).copied();
        by_name.or_else(|| name.parse().ok().filter(|&number| number < count))
    };
    let find_output = |name: &str| find(&outputs, graph.outputs().len(), name);
    names
        .iter()
        .map(|name| {
            // Names first: an input may be called `in_0` itself.
            if let Some(&input) = inputs.get(name.as_str()) {
                return Role::Input(input);
            }
            if let Some(&output) = outputs.get(name.as_str()) {
                return Role::Output { output, stride: 1 };
            }
            if let Some(rest) = name.strip_prefix("in_") {
                return find(&inputs, graph.inputs().len(), rest).map_or(Role::Unknown, Role::Input);
            }
            if let Some(rest) = name.strip_prefix("out_") {
                let output = find_output(rest);
                return output.map_or(Role::Unknown, |output| Role::Output { output, stride: 1 });
            }
            sampled(name)
                .and_then(|(stride, rest)| Some(Role::Output { output: find_output(rest)?, stride }))
                .unwrap_or(Role::Unknown)
        })
        .collect()
}

/// The number of each name in a list, the first where there are several. Looked up, never iterated.
fn numbers(list: &[(String, crate::ir::ValueId)]) -> HashMap<&str, usize> {
    list.iter().enumerate().rev().map(|(number, (name, _))| (name.as_str(), number)).collect()
}

/// `outsampleK_NAME` as (K, NAME).
fn sampled(name: &str) -> Option<(usize, &str)> {
    let (stride, rest) = name.strip_prefix("outsample")?.split_once('_')?;
    stride.parse().ok().filter(|&stride| stride > 0).map(|stride| (stride, rest))
}

/// What a file of arrays is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Inputs: an array whose name alone is that of an output is an error.
    Inputs,
    /// Outputs, likewise.
    Outputs,
    /// Both.
    Both,
    /// Both, and parameters, whose names are looked up elsewhere.
    Weights,
}

/// One of a network's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Input,
    Output,
}

impl Kind {
    fn list(self, graph: &Graph) -> &[(String, crate::ir::ValueId)] {
        match self {
            Self::Input => graph.inputs(),
            Self::Output => graph.outputs(),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }

    /// What begins the name of such an array in a file of both kinds.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Input => "in_",
            Self::Output => "out_",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Input => Self::Output,
            Self::Output => Self::Input,
        }
    }
}

/// The role of each array of a file; none is passed over.
///
/// Errors: an array that is neither an input nor an output, or by its bare name not what the file is for; one
/// input or output that is there twice.
pub fn matched(graph: &Graph, names: &[String], purpose: Purpose) -> Result<Vec<Role>> {
    let roles = roles(graph, names);
    let mut first: BTreeMap<(Kind, usize, usize), &str> = BTreeMap::new();
    for (name, role) in names.iter().zip(&roles) {
        let place = format!("array {name}");
        let (kind, number, stride) = match *role {
            Role::Input(input) => (Kind::Input, input, 1),
            Role::Output { output, stride } => (Kind::Output, output, stride),
            Role::Unknown if purpose == Purpose::Weights || is_parameter(name) => continue,
            Role::Unknown => return Err(unknown(graph, name)),
        };
        let own = &kind.list(graph)[number].0;
        let foreign = match purpose {
            Purpose::Inputs => kind == Kind::Output,
            Purpose::Outputs => kind == Kind::Input,
            Purpose::Both | Purpose::Weights => false,
        };
        if foreign && own == name {
            let (is, read) = (kind.name(), kind.other().name());
            let message = format!("this is an {is} of the model, and the file is read for {read}s");
            let help = format!("call it {}{name}, so that the file can hold both", kind.prefix());
            return Err(Error::usage(place, message).with_help(help));
        }
        if let Some(other) = first.insert((kind, number, stride), name) {
            let message = format!("{} {own} is there twice, also as {other}", kind.name());
            return Err(Error::usage(place, message).with_help("leave one of them out"));
        }
    }
    Ok(roles)
}

/// True for `w012:NAME`, which is how a file of inputs and outputs says that it holds a parameter too.
fn is_parameter(name: &str) -> bool {
    let number = name.strip_prefix('w').and_then(|rest| rest.split_once(':')).map(|(number, _)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Names that are listed in a message.
const LISTED: usize = 8;

/// An array that is neither input nor output.
fn unknown(graph: &Graph, name: &str) -> Error {
    let prefixed = |kind: Kind| Some((kind, name.strip_prefix(kind.prefix())?));
    let (message, bare, kinds) = match prefixed(Kind::Input).or_else(|| prefixed(Kind::Output)) {
        Some((kind, bare)) => (format!("the model has no such {}", kind.name()), bare, vec![kind]),
        None => {
            let message = "this array is neither an input nor an output of the model".to_owned();
            (message, name, vec![Kind::Input, Kind::Output])
        }
    };
    let names = kinds.iter().flat_map(|kind| kind.list(graph)).map(|(name, _)| name.as_str());
    let near = crate::topology::near::suggestion(bare, names);
    let listed = kinds.iter().map(|kind| {
        let all = kind.list(graph);
        let some: Vec<&str> = all.iter().take(LISTED).map(|(name, _)| name.as_str()).collect();
        let more = if all.len() > LISTED { ", ..." } else { "" };
        format!("{}s: {}{more}", kind.name(), some.join(", "))
    });
    let listed = listed.collect::<Vec<_>>().join("; ");
    let help = if near.is_empty() { listed } else { format!("{near} {listed}") };
    Error::usage(format!("array {name}"), message).with_help(help)
}

/// The array that an input is to take, by its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The input's number.
    pub input: usize,
    /// Type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub dims: Vec<u64>,
}

/// Values of the dimensions that the inputs' sizes mention, from the sizes of arrays; `known` are values that
/// are so already. Sizes that are affine in several dimensions are solved together.
///
/// Errors: an array of another element type, rank or size than its input.
pub fn infer_dims(
    graph: &Graph,
    arrays: &[Header],
    known: &BTreeMap<String, i64>,
) -> Result<BTreeMap<String, i64>> {
    let ids = || (0..graph.dims().len() as u32).map(DimId);
    let mut equations = Equations::default();
    for id in ids() {
        // Known values are equations like any other, so arrays that contradict them are found.
        if let Some(&value) = known.get(graph.dim_name(id)) {
            let refused = |_| Error::usage(format!("dimension {}", graph.dim_name(id)), "it is below 1");
            equations.add(&Size::dim(id), value).map_err(refused)?;
        }
    }
    for array in arrays {
        let (name, _) = &graph.inputs()[array.input];
        let ty = graph.input_type(array.input);
        // An axis at a time, so that an error names the first one that does not fit.
        let axes = fits(&ty, array, graph).and_then(|()| {
            ty.shape.sizes().iter().zip(&array.dims).enumerate().try_for_each(|(axis, (size, &found))| {
                let equal = i64::try_from(found).map_err(|_| Refused::Contradicts);
                let equal = equal.and_then(|found| equations.add(size, found));
                equal.map_err(|refused| misfit(graph, &equations, Axis { axis, size, found }, refused))
            })
        });
        axes.map_err(|error| error.within(&format!("input {name}")))?;
    }
    let mentioned = |id: &DimId| !known.contains_key(graph.dim_name(*id));
    let found = ids().filter(mentioned).filter_map(|id| Some((id, equations.value(id)?)));
    Ok(found.map(|(id, value)| (graph.dim_name(id).to_owned(), value)).collect())
}

/// Error: another element type or rank.
fn fits(ty: &Type, array: &Header, graph: &Graph) -> Result<()> {
    let names = |dim: DimId| graph.dim_name(dim);
    let sizes = || {
        let sizes: Vec<String> =
            ty.shape.sizes().iter().map(|size| size.display(&names).to_string()).collect();
        sizes.join(", ")
    };
    // Numbers are taken in any width of their kind that their values fit: see `as_input`.
    let integers = ty.dtype.is_integer() && array.dtype.is_integer();
    let floats = ty.dtype.is_float() && array.dtype.is_float();
    if ty.dtype != array.dtype && !integers && !floats {
        let error = Error::run("", format!("expected {}, found {}", ty.dtype, array.dtype));
        return Err(error.with_help(format!("numbers as {}: in numpy, array.astype(...)", ty.dtype)));
    }
    if ty.shape.rank() != array.dims.len() {
        let message =
            format!("expected {} axes ([{}]), found sizes {:?}", ty.shape.rank(), sizes(), array.dims);
        return Err(Error::run("", message));
    }
    Ok(())
}

/// An axis of an array, and the size that its input has there.
#[derive(Clone, Copy)]
struct Axis<'a> {
    axis: usize,
    size: &'a Size,
    found: u64,
}

/// Why an axis of an array does not fit its input.
fn misfit(graph: &Graph, equations: &Equations, axis: Axis<'_>, refused: Refused) -> Error {
    let Axis { axis, size, found } = axis;
    let names = |dim: DimId| graph.dim_name(dim);
    let shown = size.display(&names);
    let error = |message: String| Error::run(format!("axis {axis}"), message);
    match (refused, size.eval(&|dim| equations.value(dim))) {
        (Refused::NoSize(dim), _) if size.terms().iter().any(|term| term.0 == dim) => {
            let dim = graph.dim_name(dim);
            error(format!("no {dim} of 0 or more makes {shown} = {found}"))
        }
        (_, Some(expected)) if size.terms().is_empty() => {
            error(format!("expected {expected}, found {found}"))
        }
        (_, Some(expected)) => {
            let values = size
                .terms()
                .iter()
                .filter_map(|&(dim, _)| Some(format!("{} = {}", graph.dim_name(dim), equations.value(dim)?)));
            let values = values.collect::<Vec<_>>().join(", ");
            error(format!("expected {expected}, found {found}"))
                .with_help(format!("{values}, as asked for or by another array"))
        }
        (_, None) => error(format!("{shown} = {found} contradicts the sizes of other arrays")),
    }
}

/// An array as the type of input number `input`: integers and floats of another width as those of the input, floats as the
/// nearest. Error: one does not fit.
pub fn as_input(graph: &Graph, input: usize, tensor: Tensor) -> Result<Tensor> {
    let (name, _) = &graph.inputs()[input];
    let to = graph.input_type(input).dtype;
    if tensor.dtype() != to && to.is_float() && tensor.dtype().is_float() {
        return as_floats(&tensor, to).map_err(|error| error.within(&format!("input {name}")));
    }
    if tensor.dtype() == to || !to.is_integer() || !tensor.dtype().is_integer() {
        return Ok(tensor);
    }
    let Some(values) = tensor.to_i64() else { return Ok(tensor) };
    let size = to.size() as usize;
    let mut bytes = Vec::with_capacity(values.len() * size);
    for value in values {
        let low = &value.to_le_bytes()[..size];
        let fits = match to {
            DType::U8 => u8::try_from(value).is_ok(),
            DType::U16 => u16::try_from(value).is_ok(),
            DType::U32 => u32::try_from(value).is_ok(),
            DType::U64 => u64::try_from(value).is_ok(),
            _ => sign_extended(low) == value,
        };
        if !fits {
            let message = format!("{value} does not fit {to}, the type of the input");
            return Err(Error::usage(format!("input {name}"), message));
        }
        bytes.extend_from_slice(low);
    }
    Tensor::new(to, tensor.dims().to_vec(), bytes)
}

/// Floats of another width. Error: what is finite has none that is.
fn as_floats(tensor: &Tensor, to: DType) -> Result<Tensor> {
    let mut bytes = Vec::new();
    for value in tensor.to_f64() {
        push_element(to, Number::Real(value), &mut bytes)
            .map_err(|_| Error::usage("", format!("{value:?} does not fit {to}, the type of the input")))?;
    }
    Tensor::new(to, tensor.dims().to_vec(), bytes)
}

/// The signed integer of these little-endian bytes.
fn sign_extended(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut all = [if negative { 0xff } else { 0 }; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(all)
}

/// Data for an input that there is no array for: what an optional one means then, else made up where there
/// is a seed, within what the model knows. None without either. Error: a dimension is not bound, or the
/// size overflows.
pub fn supplied(
    ty: &Type,
    rule: Option<&InputRule>,
    seed: Option<u64>,
    name: &str,
) -> Result<Option<Tensor>> {
    let filled = match rule.and_then(|rule| rule.absent) {
        Some(Absent::Filled(value) | Absent::Usual(value)) => Some(value),
        Some(Absent::Computed) | None => None,
    };
    let made = match (filled, seed) {
        (None, None) => return Ok(None),
        (Some(_), _) => made_up(ty, 0, name)?,
        (None, Some(seed)) => made_up(ty, seed, name)?,
    };
    let below = rule.and_then(|rule| rule.below.as_ref()).map(|limit| limit.count);
    let value = |made: i64| filled.unwrap_or_else(|| below.map_or(made, |below| made.rem_euclid(below)));
    match made.to_i64().filter(|_| ty.dtype == DType::I64) {
        Some(values) => {
            let values: Vec<i64> = values.into_iter().map(value).collect();
            Tensor::from_i64(made.dims().to_vec(), &values).map(Some)
        }
        None => Ok(Some(made)),
    }
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
    fn no_array_is_passed_over() {
        let graph = graph();
        let check =
            |list: &[&str], purpose| matched(&graph, &names(list), purpose).map_err(|e| e.to_string());
        let refused = |list: &[&str], purpose, part: &str| {
            let error = check(list, purpose).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        refused(&["x", "z"], Purpose::Inputs, "array z: this array is neither");
        refused(&["x", "z", "out_y"], Purpose::Both, "array z: this array is neither");
        refused(&["in_z"], Purpose::Both, "array in_z: the model has no such input (inputs: x)");
        refused(&["out_x"], Purpose::Outputs, "the model has no such output");
        refused(&["x", "y"], Purpose::Inputs, "array y: this is an output of the model");
        refused(&["x", "y"], Purpose::Outputs, "array x: this is an input of the model");
        refused(&["x", "in_x"], Purpose::Inputs, "array in_x: input x is there twice, also as x");
        refused(&["out_y", "y"], Purpose::Both, "array y: output y is there twice, also as out_y");
        check(&["x", "out_y"], Purpose::Inputs).unwrap();
        check(&["in_x", "y"], Purpose::Outputs).unwrap();
        check(&["x", "y"], Purpose::Both).unwrap();
        check(&["x", "w000:dense/kernel"], Purpose::Inputs).unwrap();
        check(&["x", "dense/kernel"], Purpose::Weights).unwrap();
        refused(&["x", "wx:dense"], Purpose::Both, "array wx:dense: this array is neither");
    }

    fn header(input: usize, dims: &[u64]) -> Header {
        Header { input, dtype: DType::F32, dims: dims.to_vec() }
    }

    #[test]
    fn dimensions_follow_from_sizes() {
        let none = BTreeMap::new();
        let dims = infer_dims(&graph(), &[header(0, &[3, 2])], &none).unwrap();
        assert_eq!(dims, BTreeMap::from([("batch".to_owned(), 3)]));
        let empty = infer_dims(&graph(), &[header(0, &[0, 2])], &none).unwrap();
        assert_eq!(empty, BTreeMap::from([("batch".to_owned(), 0)]));
        let four = BTreeMap::from([("batch".to_owned(), 4)]);
        for (array, known, part) in [
            (header(0, &[6]), &none, "input x: expected 2 axes ([batch, 2]), found sizes [6]"),
            (header(0, &[3, 5]), &none, "input x: axis 1: expected 2, found 5"),
            (header(0, &[3, 2]), &four, "input x: axis 0: expected 4, found 3 (batch = 4"),
            (Header { dtype: DType::I64, ..header(0, &[3, 2]) }, &none, "input x: expected f32, found i64"),
        ] {
            let error = infer_dims(&graph(), &[array], known).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
    }

    #[test]
    fn sizes_of_several_dimensions_are_solved_together() {
        let mut graph = Graph::new("g");
        let source = graph.add_source(Source::new("x", "Input", SourceRole::Data));
        let [past, new] = ["past", "new"].map(|name| Size::dim(graph.dim(name)));
        for (name, size) in [("mask", past.add(&new).unwrap()), ("cache", past), ("ids", new)] {
            graph.add_input(name, Type::new(DType::F32, Shape::new([size])), source);
        }
        let none = BTreeMap::new();
        let found = BTreeMap::from([("past".to_owned(), 7), ("new".to_owned(), 2)]);
        for given in [[0, 1], [1, 0], [2, 0], [1, 2]] {
            let arrays = given.map(|input| header(input, &[[9, 7, 2][input]]));
            assert_eq!(infer_dims(&graph, &arrays, &none).unwrap(), found);
        }
        let all = [header(0, &[9]), header(1, &[7]), header(2, &[3])];
        let error = infer_dims(&graph, &all, &none).unwrap_err().to_string();
        assert!(error.contains("input ids: axis 0: expected 2, found 3"), "{error}");
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
