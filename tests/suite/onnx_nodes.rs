//! ONNX's own conformance suite of single operators: what loads gives the stored results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use partition::Error;
use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::ir::{DType, Graph, ParamId, Tensor};
use partition::unstable::load::onnx::{Operator, operators};
use partition::unstable::load::{LoadOptions, Model};
use partition::unstable::run::{ExecOptions, Program, exec_plan};
use partition::unstable::topology::Topology;
use prost::Message;

use crate::shared;
use crate::sweep::Share;

/// A tensor of the suite, decoded apart from the library's own reader.
#[derive(Clone, PartialEq, Message)]
struct Stored {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
}

/// A tensor that is stored as a message of its own, and its name.
pub(crate) fn stored(bytes: &[u8]) -> Option<(String, Tensor)> {
    let stored = Stored::decode(bytes).ok()?;
    // Elements of few bits are compared as the bytes that hold them.
    let few = match stored.data_type {
        17..=20 | 24 => Some((8, false)),
        21 | 23 => Some((4, false)),
        22 => Some((4, true)),
        25 => Some((2, false)),
        26 => Some((2, true)),
        _ => None,
    };
    if let Some((bits, signed)) = few {
        let dims: Vec<u64> = stored.dims.iter().map(|&dim| dim as u64).collect();
        let (count, raw) = (dims.iter().product::<u64>() as usize, stored.raw_data.unwrap_or_default());
        if raw.len() < (count * bits).div_ceil(8) {
            return None;
        }
        let one = |i: usize| {
            let value = raw[i * bits / 8] >> (i * bits % 8) & (0xffu8 >> (8 - bits));
            let negative = signed && value >> (bits - 1) == 1;
            if negative { value | 0xffu8.checked_shl(bits as u32).unwrap_or(0) } else { value }
        };
        let dtype = if signed { DType::I8 } else { DType::U8 };
        return Some((stored.name, Tensor::new(dtype, dims, (0..count).map(one).collect::<Vec<u8>>()).ok()?));
    }
    let dtype = match stored.data_type {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::Bf16,
        _ => return None,
    };
    let dims = stored.dims.iter().map(|&dim| dim as u64).collect();
    Some((stored.name, Tensor::new(dtype, dims, stored.raw_data.unwrap_or_default()).ok()?))
}

fn all_stored(folder: &Path, prefix: &str) -> Option<Vec<(String, Tensor)>> {
    (0..)
        .map(|i| folder.join(format!("{prefix}_{i}.pb")))
        .take_while(|path| path.exists())
        .map(|path| stored(&std::fs::read(path).ok()?))
        .collect()
}

/// Elements as f64. Halves are widened.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let half = |c: &[u8]| f64::from(half_to_f32(u16::from_le_bytes([c[0], c[1]])));
    let brain = |c: &[u8]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([c[0], c[1]])) << 16));
    let double = |c: &[u8]| f64::from_le_bytes(c.try_into().expect("8 bytes"));
    match tensor.dtype() {
        DType::F32 => tensor.to_f32().expect("f32").into_iter().map(f64::from).collect(),
        DType::F64 => tensor.bytes().chunks_exact(8).map(double).collect(),
        DType::F16 => tensor.bytes().chunks_exact(2).map(half).collect(),
        DType::Bf16 => tensor.bytes().chunks_exact(2).map(brain).collect(),
        DType::U64 => tensor.to_f64(),
        _ => tensor.to_i64().expect("integers").into_iter().map(|value| value as f64).collect(),
    }
}

fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.dtype() != expected.dtype() || found.dims() != expected.dims() {
        let types = |t: &Tensor| format!("{}{:?}", t.dtype(), t.dims());
        return Some(format!("expected {}, found {}", types(expected), types(found)));
    }
    // The suite's own tolerances; one unit in the last place of halves.
    let (relative, absolute) = match expected.dtype() {
        DType::F16 => (2e-3, 1e-3),
        DType::Bf16 => (1.6e-2, 1e-2),
        _ => (1e-3, 1e-6),
    };
    let close = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= absolute + relative * b.abs()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    let at = (0..found.len()).find(|&i| !close(found[i], expected[i]))?;
    Some(format!("element {at}: expected {}, found {}", expected[at], found[at]))
}

/// The nodes of a model.
#[derive(Clone, PartialEq, Message)]
struct StoredModel {
    #[prost(message, optional, tag = "7")]
    graph: Option<StoredGraph>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredGraph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<StoredNode>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredNode {
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(string, tag = "7")]
    domain: String,
}

/// The operator that a test is of: the only one of its model.
fn operator(folder: &Path) -> Option<String> {
    let model = StoredModel::decode(std::fs::read(folder.join("model.onnx")).ok()?.as_slice()).ok()?;
    match model.graph?.node.as_slice() {
        [StoredNode { op_type, domain }] if domain.is_empty() => Some(op_type.clone()),
        [StoredNode { op_type, domain }] => Some(format!("{domain}.{op_type}")),
        _ => None,
    }
}

/// How many of an operator's tests there are, and are right.
#[derive(Clone, Copy, Default)]
struct Tally {
    right: usize,
    all: usize,
}

/// `docs/operators.md`: what is read, and how many of the standard's tests of it are right.
fn operators_page(tallies: &BTreeMap<String, Tally>) -> String {
    let random =
        [include_str!("../differential/operators.py"), include_str!("../differential/breadth.py")].concat();
    let mut page = String::from(
        "# ONNX operators\n\nWritten by `BLESS=1 cargo test --test suite -- --ignored onnx_nodes::supported` and checked by it. \
         \"Node tests\" are those of ONNX 1.22 whose model is this operator alone; \"random models\" are compared with \
         onnxruntime (`scripts/differential`). What differs from the standard is in [onnx](onnx.md). Operators that no row \
         names are refused in one line, all of a model's at once.\n\n\
         | operator | opsets | node tests right | random models |\n|---|---|---|---|\n",
    );
    let read = operators();
    // They are found by bisection, in each domain.
    let of_one_domain = |pair: &[Operator]| pair[0].name.contains('.') == pair[1].name.contains('.');
    assert!(read.windows(2).all(|pair| !of_one_domain(pair) || pair[0].name < pair[1].name));
    let mut rows: BTreeMap<String, String> = BTreeMap::new();
    for operator in &read {
        let opsets = match operator.until {
            Some(until) => format!("{} to {until}", operator.since),
            None => format!("{} and later", operator.since),
        };
        rows.insert(operator.name.clone(), opsets);
    }
    for (name, tally) in tallies {
        if tally.right == 0 {
            rows.entry(name.clone()).or_insert_with(|| "refused".to_owned());
        }
    }
    for (name, opsets) in rows {
        let Tally { right, all } = tallies.get(&name).copied().unwrap_or_default();
        let tests = if all == 0 { "none".to_owned() } else { format!("{right} of {all}") };
        let bare = name.rsplit('.').next().unwrap_or(&name);
        let random = if random.contains(&format!("\"{bare}\"")) { "yes" } else { "" };
        page.push_str(&format!("| {name} | {opsets} | {tests} | {random} |\n"));
    }
    page
}

fn check_operators_page(tallies: &BTreeMap<String, Tally>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operators.md");
    let page = operators_page(tallies);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let Ok(stored) = std::fs::read_to_string(&path) else { return };
    assert!(stored == page, "docs/operators.md is not what the tests say: BLESS=1 writes it anew");
}

enum Outcome {
    Same,
    Unsupported(String),
    Different(String),
}

/// The model with some inputs as initialisers: fields of a message that is there twice are merged.
fn with_initializers(model: &[u8], data: &Path, first: usize) -> Vec<u8> {
    let field = |tag: u8, content: &[u8]| {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend(content);
        bytes
    };
    let tensors = (first..).map(|i| std::fs::read(data.join(format!("input_{i}.pb"))));
    let graph: Vec<u8> = tensors.map_while(Result::ok).flat_map(|tensor| field(5, &tensor)).collect();
    [model, &field(7, &graph)].concat()
}

fn load(bytes: &[u8], path: &Path) -> Result<Graph, Error> {
    match partition::unstable::load::load(bytes, Some(path), &LoadOptions::default())? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => panic!("{} is a network", path.display()),
    }
}

/// Loads the model; where it needs the values of its inputs to know sizes or axes, with all but
/// the first of them, or all, as initialisers.
fn load_with_values(path: &Path, data: &Path) -> Result<Graph, Error> {
    let bytes = std::fs::read(path).expect("the suite has models");
    let mut result = load(&bytes, path);
    for first in [1, 0] {
        match &result {
            Err(error) if error.to_string().contains("depends on data") => {
                result = load(&with_initializers(&bytes, data, first), path);
            }
            _ => break,
        }
    }
    result
}

/// Binds what the inputs' sizes bind.
fn bind(graph: &mut Graph, inputs: &[(String, Tensor)]) -> Result<(), Error> {
    let mut dims = BTreeMap::new();
    for (name, value) in graph.inputs() {
        let given = inputs.iter().find(|(other, _)| other == name);
        let sizes = graph.ty(*value).shape.sizes();
        for (size, &dim) in sizes.iter().zip(given.map_or(&[][..], |(_, tensor)| tensor.dims())) {
            if let [(id, 1)] = size.terms() {
                dims.insert(graph.dim_name(*id).to_owned(), dim as i64);
            }
        }
    }
    graph.bind(&dims)
}

/// What runs a graph: the interpreter, or a plan for one device.
type Runs = fn(&Graph, &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, Error>;

fn interpreted(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
    partition::unstable::run::interpret(graph, inputs, &|id| inline(graph, id))
}

fn planned(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
    let topology = Topology::parse("cpu")?;
    run_planned(&compile(Model::Graph(graph.clone()), &topology, &Options::default())?, inputs)
}

/// A parameter's data, as it is stored in the model.
fn inline(graph: &Graph, id: ParamId) -> Result<Tensor, Error> {
    match &graph.param(id).data {
        Some(partition::unstable::ir::Data::Inline(tensor)) => Ok(tensor.clone()),
        other => panic!("weights are in the model: {other:?}"),
    }
}

/// What a plan computes, of a model that holds its weights.
pub(crate) fn run_planned(
    compiled: &Compiled,
    inputs: &[(String, Tensor)],
) -> Result<Vec<(String, Tensor)>, Error> {
    partition::unstable::plan::check(&compiled.plan)?;
    let network = compiled.network.as_ref().expect("a network");
    let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping)?;
    let weights = |id| inline(&network.graph, id);
    let groups = network.grouping.all_fused();
    let mut program = Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default())?;
    Ok(program.run(inputs)?.0)
}

fn run(folder: &Path) -> Option<Outcome> {
    let data = folder.join("test_data_set_0");
    outcome(folder, load_with_values(&folder.join("model.onnx"), &data), interpreted)
}

/// With the inputs from one on as initialisers, as a plan. None where there are not as many.
fn run_with_initializers(folder: &Path, first: usize) -> Option<Outcome> {
    let (path, data) = (folder.join("model.onnx"), folder.join("test_data_set_0"));
    if !data.join(format!("input_{first}.pb")).exists() {
        return None;
    }
    // Among what is not supported as it is are inputs that are no tensors.
    load_with_values(&path, &data).ok()?;
    let model = with_initializers(&std::fs::read(&path).expect("the suite has models"), &data, first);
    outcome(folder, load(&model, &path), planned)
}

fn outcome(folder: &Path, loaded: Result<Graph, Error>, runs: Runs) -> Option<Outcome> {
    let data = folder.join("test_data_set_0");
    let mut model = match loaded {
        Ok(graph) => graph,
        Err(Error::Unsupported(report)) => return Some(Outcome::Unsupported(report.to_string())),
        Err(error) => return Some(Outcome::Different(error.to_string())),
    };
    // What is run otherwise than the file says is not what the suite stores.
    if let Some(note) = model.notes().iter().find(|note| note.contains("in training alone")) {
        return Some(Outcome::Unsupported(note.clone()));
    }
    partition::unstable::ir::verify(&model).expect("a loaded graph is sound");
    let (given, outputs) = (all_stored(&data, "input")?, all_stored(&data, "output")?);
    let inputs: Vec<(String, Tensor)> =
        given.into_iter().filter(|(name, _)| model.inputs().iter().any(|(other, _)| other == name)).collect();
    if let Err(error) = bind(&mut model, &inputs) {
        return Some(Outcome::Different(error.to_string()));
    }
    let results = match runs(&model, &inputs) {
        Ok(results) => results,
        Err(error) => return Some(Outcome::Different(error.to_string())),
    };
    for ((name, found), (_, expected)) in results.iter().zip(&outputs) {
        if let Some(difference) = difference(found, expected) {
            return Some(Outcome::Different(format!("{name}: {difference}")));
        }
    }
    Some(Outcome::Same)
}

pub(crate) fn unpacked() -> Option<(tempfile::TempDir, Vec<PathBuf>)> {
    let archive = shared::file("corpus/onnx/onnx-1.22.0-backend-node.tar.xz")?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(folder.path()).status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: no tar that reads xz");
        return None;
    }
    let mut tests: Vec<PathBuf> = std::fs::read_dir(folder.path())
        .expect("unpacked")
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.join("model.onnx").exists())
        .collect();
    tests.sort();
    Some((folder, tests))
}

/// The tests of a share, by operator: how many there are and are right.
fn give_the_stored_results(share: Share) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let Some((_folder, tests)) = unpacked() else { return tallies };
    let (mut same, mut unsupported, mut different) = (0, Vec::new(), Vec::new());
    for test in share.among(&tests) {
        let name = test.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let outcome = run(test);
        if let Some(operator) = operator(test) {
            let tally = tallies.entry(operator).or_default();
            tally.all += 1;
            tally.right += usize::from(matches!(outcome, Some(Outcome::Same)));
        }
        match outcome {
            None => println!("unread {name}"),
            Some(Outcome::Same) => same += 1,
            Some(Outcome::Unsupported(message)) => unsupported.push(format!("{name}: {message}")),
            Some(Outcome::Different(message)) => different.push(format!("{name}: {message}")),
        }
    }
    println!("{same} same, {} unsupported, {} different", unsupported.len(), different.len());
    for line in &unsupported {
        println!("unsupported {line}");
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(same >= share.least(2_000), "only {same} ran");
    tallies
}

#[test]
fn some_operators_give_the_stored_results() {
    give_the_stored_results(Share::OneOf(9));
}

long! {
    supported_operators_give_the_stored_results;
    initialisers_for_inputs_give_the_stored_results;
}

fn supported_operators_give_the_stored_results() {
    let tallies = give_the_stored_results(Share::ALL);
    if !tallies.is_empty() {
        check_operators_page(&tallies);
    }
}

/// The same, planned, with all inputs but the first as initialisers of the model, or all.
fn initialisers_for_inputs_give_the_stored_results() {
    let Some((_folder, tests)) = unpacked() else { return };
    let (mut same, mut different) = (0, Vec::new());
    for (number, test) in tests.iter().enumerate() {
        let name = test.file_name().expect("a folder has a name").to_string_lossy();
        match run_with_initializers(test, (number + 1) % 2) {
            None | Some(Outcome::Unsupported(_)) => {}
            Some(Outcome::Same) => same += 1,
            Some(Outcome::Different(message)) => different.push(format!("{name}: {message}")),
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(same >= 700, "only {same} ran");
}

/// What was wrong once, each as a test of the suite: a model and what onnxruntime gives
/// (`tests/differential/cases`).
#[test]
fn cases_of_our_own_give_the_stored_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/cases");
    let cases = std::fs::read_dir(&folder).expect("the folder of cases");
    let mut cases: Vec<PathBuf> = cases.map(|entry| entry.expect("can be listed").path()).collect();
    cases.sort();
    for case in &cases {
        for runs in [interpreted, planned] {
            let model = std::fs::read(case.join("model.onnx")).expect("a case has a model");
            match outcome(case, load(&model, case), runs) {
                Some(Outcome::Same) => {}
                Some(Outcome::Unsupported(message) | Outcome::Different(message)) => {
                    panic!("{}: {message}", case.display())
                }
                None => panic!("{} is not as the suite's tests are", case.display()),
            }
        }
    }
    assert!(cases.len() >= 13);
}
