//! Numbers of files, changed at random: attributes, constants, sizes, ranks. Each file then ends in a clear
//! error or a plan, whatever the numbers: nothing panics, and no allocation is out of proportion.
//!
//! Case `n` is the same on every machine: a file and a few changes to it. `PARTITION_INTEGERS=SEED` draws others and names each
//! before it begins; `SEED:CASE` goes on from a case that ended the process.

use std::any::Any;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use partition::Error;
use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::ir::{Data, Tensor};
use partition::unstable::load::{LoadOptions, Model, fill_param, load};
use partition::unstable::place::DeviceUse;
use partition::unstable::plan::{Plan, check};
use partition::unstable::run::{ExecOptions, Program, exec_plan};
use partition::unstable::topology::Topology;
use serde_json::{Number, Value};

use crate::allocations;
use crate::onnx_nodes;
use crate::random_costgraph::Rng;
use crate::shared;
use crate::sweep::Share;
use crate::wire::{Content, Field, Kind, Message};

/// What is changed to what: the ends of the types, and what is nearly right.
const ENDS: [i64; 22] = [
    0,
    -1,
    1,
    2,
    3,
    -2,
    -3,
    4,
    5,
    7,
    16,
    17,
    255,
    65_536,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
];
const REALS: [f64; 10] = [0.0, -1.0, 0.5, 1e-30, 1e30, 1e300, -1e300, f64::NAN, f64::INFINITY, 2.0];

/// The largest single allocation of a case, beside what its file takes.
const LARGEST: u64 = 256 << 20;
/// The longest that a case takes.
const LONGEST: Duration = Duration::from_secs(60);
/// How a fault begins that is one of time.
const TAKES: &str = "takes";
/// What is run: plans of no more memory and no more time than this.
const RUN_BYTES: u64 = 1 << 20;
const RUN_NANOS: u64 = 2_000_000;
/// Files of more bytes are not changed: they take long to plan.
const LARGEST_FILE: u64 = 300_000;

/// How often a plan is drawn, in files.
const PLANS: usize = 20;

/// A file to change.
struct Original {
    path: PathBuf,
    form: Form,
}

enum Form {
    Onnx(Message),
    Json(Value),
    /// A plan as JSON, with the model that it is of.
    Plan(Value),
    /// An archive of `torch.export`: entries before the program and after it, and the program.
    Archive {
        entries: Vec<(String, Vec<u8>)>,
        program: usize,
        json: Value,
    },
}

impl Form {
    /// The file with a few changes, and what they are.
    fn changed(&self, rng: &mut Rng) -> (Vec<u8>, Vec<String>) {
        let (mut told, changes) = (Vec::new(), 1 + rng.below(3));
        let mut change = |mutate: &mut dyn FnMut(&mut Rng) -> String| {
            (0..changes).for_each(|_| told.push(mutate(rng)));
        };
        match self {
            Self::Onnx(message) => {
                let mut message = message.clone();
                change(&mut |rng| change_message(&mut message, rng));
                (message.write(), told)
            }
            Self::Json(value) | Self::Plan(value) => {
                let mut value = value.clone();
                change(&mut |rng| change_json(&mut value, rng));
                (value.to_string().into_bytes(), told)
            }
            Self::Archive { entries, program, json } => {
                let mut value = json.clone();
                change(&mut |rng| change_json(&mut value, rng));
                (archive(entries, *program, &value), told)
            }
        }
    }
}

/// An archive whose entry `program` holds this.
fn archive(entries: &[(String, Vec<u8>)], program: usize, json: &Value) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::DEFAULT.compression_method(zip::CompressionMethod::Stored);
    for (at, (name, bytes)) in entries.iter().enumerate() {
        out.start_file(name, stored).unwrap();
        let text = json.to_string();
        out.write_all(if at == program { text.as_bytes() } else { bytes }).unwrap();
    }
    out.finish().unwrap().into_inner()
}

/// A number of the ends, or near what stands there.
fn integer(old: i64, rng: &mut Rng) -> i64 {
    match rng.below(5) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_neg(),
        _ => ENDS[rng.below(ENDS.len() as u64) as usize],
    }
}

fn real(rng: &mut Rng) -> f64 {
    REALS[rng.below(REALS.len() as u64) as usize]
}

// Protobuf.

/// A place in a file: the positions of fields, from the outermost.
type Steps = Vec<usize>;

/// Fields that are changed: numbers, lists, arrays of integers, names of operands.
fn places(message: &Message, steps: &mut Steps, found: &mut Vec<Steps>) {
    for (at, field) in message.fields.iter().enumerate() {
        steps.push(at);
        match &field.content {
            Content::Message(inner) => places(inner, steps, found),
            Content::Number(_) if message.kind != Kind::Model => found.push(steps.clone()),
            Content::Four(_) | Content::List(_) => found.push(steps.clone()),
            Content::Bytes(bytes) => {
                let is_array = message.kind == Kind::Tensor && field.tag == 9 && !bytes.is_empty();
                let is_operand = message.kind == Kind::Node && field.tag == 1;
                if is_operand || is_array && is_integers(message) {
                    found.push(steps.clone());
                }
            }
            _ => {}
        }
        steps.pop();
    }
}

/// Whether a tensor's elements are of i64 or i32.
fn is_integers(tensor: &Message) -> bool {
    tensor.fields.iter().any(|field| field.tag == 2 && matches!(field.content, Content::Number(6 | 7)))
}

fn change_message(root: &mut Message, rng: &mut Rng) -> String {
    let mut found = Vec::new();
    places(root, &mut Vec::new(), &mut found);
    if found.is_empty() {
        return String::new();
    }
    let steps = found.swap_remove(rng.below(found.len() as u64) as usize);
    let (last, outer) = steps.split_last().expect("a place has a step");
    let mut message = root;
    for &step in outer {
        let Content::Message(inner) = &mut message.fields[step].content else { unreachable!() };
        message = inner;
    }
    let (kind, tag) = (message.kind, message.fields[*last].tag);
    let before = shown(&message.fields[*last].content);
    // Ranks: an element more, or one less.
    let is_repeated = kind.is_list(tag) || kind == Kind::Node;
    if is_repeated && rng.chance(25) {
        return if rng.chance(50) {
            message.fields.remove(*last);
            format!("{kind:?}.{tag} {before} removed")
        } else {
            let field: Field = message.fields[*last].clone();
            message.fields.insert(*last, field);
            format!("{kind:?}.{tag} {before} twice")
        };
    }
    let is_i64 =
        message.fields.iter().any(|field| field.tag == 2 && matches!(field.content, Content::Number(7)));
    match &mut message.fields[*last].content {
        Content::Number(value) => *value = integer(*value as i64, rng) as u64,
        Content::Four(bytes) => *bytes = (real(rng) as f32).to_le_bytes(),
        Content::List(values) => change_list(values, rng),
        Content::Bytes(bytes) if kind == Kind::Tensor => change_elements(bytes, is_i64, rng),
        Content::Bytes(bytes) => bytes.clear(),
        Content::Eight(_) | Content::Message(_) => {}
    }
    format!("{kind:?}.{tag} {before} to {}", shown(&message.fields[*last].content))
}

fn change_list(values: &mut Vec<u64>, rng: &mut Rng) {
    match rng.below(5) {
        0 => values.push(integer(1, rng) as u64),
        1 => drop(values.pop()),
        _ if values.is_empty() => values.push(integer(1, rng) as u64),
        _ => {
            let at = rng.below(values.len() as u64) as usize;
            values[at] = integer(values[at] as i64, rng) as u64;
        }
    }
}

fn change_elements(bytes: &mut [u8], is_i64: bool, rng: &mut Rng) {
    let width = if is_i64 { 8 } else { 4 };
    let at = rng.below((bytes.len() / width) as u64) as usize * width;
    let Some(element) = bytes.get_mut(at..at + width) else { return };
    element.copy_from_slice(&integer(1, rng).to_le_bytes()[..width]);
}

fn shown(content: &Content) -> String {
    match content {
        Content::Number(value) => (*value as i64).to_string(),
        Content::Four(bytes) => f32::from_le_bytes(*bytes).to_string(),
        Content::List(values) => {
            format!("{:?}", values.iter().take(8).map(|&value| value as i64).collect::<Vec<i64>>())
        }
        Content::Bytes(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(24)])),
        Content::Eight(_) | Content::Message(_) => String::new(),
    }
}

// JSON.

fn json_places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    let inner = |key: &str| format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Array(items) => {
            found.push(pointer.to_owned());
            items.iter().enumerate().for_each(|(at, item)| json_places(item, &inner(&at.to_string()), found));
        }
        Value::Object(fields) => fields.iter().for_each(|(key, item)| json_places(item, &inner(key), found)),
        Value::Number(_) => (0..3).for_each(|_| found.push(pointer.to_owned())),
        Value::Null | Value::Bool(_) | Value::String(_) => found.push(pointer.to_owned()),
    }
}

fn change_json(root: &mut Value, rng: &mut Rng) -> String {
    let mut found = Vec::new();
    json_places(root, "", &mut found);
    if found.is_empty() {
        return String::new();
    }
    let pointer = found.swap_remove(rng.below(found.len() as u64) as usize);
    let place = root.pointer_mut(&pointer).expect("a place that was found");
    let before: String = place.to_string().chars().take(60).collect();
    match place {
        Value::Array(items) if rng.chance(70) => match (rng.below(3), items.len() as u64) {
            (_, 0) | (0, _) => items.push(Value::from(integer(1, rng))),
            (1, length) => drop(items.remove(rng.below(length) as usize)),
            (_, length) => {
                let item = items[rng.below(length) as usize].clone();
                items.push(item);
            }
        },
        Value::Bool(flag) if rng.chance(70) => *flag = !*flag,
        _ => {
            let old = place.as_i64().unwrap_or(1);
            *place = match rng.below(12) {
                0 => Value::Null,
                1 => Number::from_f64(real(rng)).map_or(Value::Null, Value::Number),
                2 => Value::from(u64::MAX),
                3 => Value::Array(vec![Value::from(integer(old, rng))]),
                _ => Value::from(integer(old, rng)),
            };
        }
    }
    let after: String = place.to_string().chars().take(60).collect();
    format!("{pointer} {before} to {after}")
}

// What becomes of a file.

/// Planned, and run where that takes little.
fn planned(original: &Original, bytes: &[u8], devices: &str) -> Result<(), Error> {
    if let Form::Plan(_) = original.form {
        return check(&Plan::from_json(bytes, "plan.json")?).map(drop);
    }
    let model = load(bytes, Some(&original.path), &LoadOptions::default())?;
    let topology = match &model {
        Model::Graph(graph) => {
            partition::unstable::ir::verify(graph).expect("a loaded graph is sound");
            Topology::parse(devices)?
        }
        Model::CostGraph { topology: Some(own), .. } => own.clone(),
        Model::CostGraph { graph, .. } => {
            let kind = graph.kinds.first().cloned().unwrap_or_default();
            Topology::parse(&format!("2x{kind}"))?
        }
    };
    let compiled = compile(model, &topology, &Options::default())?;
    check(&compiled.plan)?;
    let memory: u64 = compiled.plan.devices.iter().map(|device| device.arena.get()).sum();
    let is_small = memory <= RUN_BYTES && compiled.plan.cost.latency_ns.get() <= RUN_NANOS;
    if is_small && compiled.network.is_some() { run(&compiled) } else { Ok(()) }
}

/// With zeros as inputs, so that what reads them as positions finds something.
fn run(compiled: &Compiled) -> Result<(), Error> {
    let Some(network) = &compiled.network else { return Ok(()) };
    let graph = &network.graph;
    let exec = exec_plan(&compiled.plan, graph, &network.grouping)?;
    let weights = |id| match &graph.param(id).data {
        Some(Data::Inline(tensor)) => Ok(tensor.clone()),
        _ => fill_param(graph, id, 1, &graph.param(id).name),
    };
    let zeros = |(number, (name, _)): (usize, &(String, _))| {
        let ty = graph.input_type(number);
        let dims: Vec<u64> = ty.shape.sizes().iter().map(|size| size.constant().unsigned_abs()).collect();
        let bytes = ty.bytes().map_or(0, |bytes| bytes.get() as usize);
        Ok((name.clone(), Tensor::new(ty.dtype, dims, vec![0; bytes])?))
    };
    let inputs = graph.inputs().iter().enumerate().map(zeros).collect::<Result<Vec<_>, Error>>()?;
    let groups = network.grouping.all_fused();
    let options = ExecOptions { timeout: Some(LONGEST), ..ExecOptions::default() };
    Program::new(graph, &groups, &exec, &weights, options)?.run(&inputs).map(drop)
}

/// What is wrong with how a case ended; none where it is well.
fn fault(original: &Original, bytes: &[u8], devices: &str) -> Option<String> {
    let start = Instant::now();
    let work = || catch_unwind(AssertUnwindSafe(|| planned(original, bytes, devices)));
    let (ended, largest) = allocations::with_largest(work);
    let taken = start.elapsed();
    match ended {
        Err(panic) => return Some(format!("panics: {}", message(&*panic))),
        Ok(Err(error @ Error::Internal(_))) => return Some(error.to_string()),
        Ok(Err(error)) if error.to_string().trim().len() < 8 => return Some(format!("says only: {error}")),
        Ok(_) => {}
    }
    if largest > LARGEST + 16 * bytes.len() as u64 {
        return Some(format!("allocates {largest} bytes at once"));
    }
    (taken > LONGEST).then(|| format!("{TAKES} {taken:?}"))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("")
}

// The files.

fn in_folder(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() { in_folder(&path, found) } else { found.push(path) }
    }
}

/// Whether it may be a file to change, as far as can be seen without reading it.
fn is_changed(path: &Path) -> bool {
    let is_small = || std::fs::metadata(path).is_ok_and(|data| data.len() <= LARGEST_FILE);
    path.extension().is_some_and(|form| ["onnx", "json", "pt2"].iter().any(|known| form == *known))
        && is_small()
}

fn original(path: &Path) -> Option<Original> {
    let bytes = std::fs::read(path).ok()?;
    let form = match path.extension()?.to_str()? {
        "onnx" => Form::Onnx(Message::read(Kind::Model, &bytes)?),
        "json" => Form::Json(serde_json::from_slice(&bytes).ok()?),
        "pt2" => read_archive(&bytes)?,
        _ => return None,
    };
    Some(Original { path: path.to_owned(), form })
}

fn read_archive(bytes: &[u8]) -> Option<Form> {
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).ok()?;
    let mut entries = Vec::new();
    for at in 0..zip.len() {
        let mut entry = zip.by_index(at).ok()?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).ok()?;
        entries.push((entry.name().ok()?.into_owned(), bytes));
    }
    let program = entries.iter().position(|(name, _)| name.ends_with("models/model.json"))?;
    let json = serde_json::from_slice(&entries[program].1).ok()?;
    Some(Form::Archive { entries, program, json })
}

/// A plan of a small network, as JSON.
fn a_plan() -> Original {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mlp.json");
    let model = load(&std::fs::read(&path).unwrap(), Some(&path), &LoadOptions::default()).unwrap();
    let topology = Topology::parse("3xcpu").unwrap();
    let mut options = Options::default();
    options.place.devices = DeviceUse::All;
    let plan = compile(model, &topology, &options).unwrap().plan;
    Original { path, form: Form::Plan(serde_json::from_str(&plan.to_json()).unwrap()) }
}

/// Files of the tree and, where they are there, of the corpus.
fn files(own: &[&str], corpus: &[&str]) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    own.iter().for_each(|folder| in_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut paths));
    corpus.iter().filter_map(|folder| shared::file(folder)).for_each(|folder| in_folder(&folder, &mut paths));
    paths.retain(|path| is_changed(path));
    paths
}

/// A case: which file, and which changes. A file that is not as its name says is drawn in vain.
fn faults(
    files: usize,
    original: impl Fn(usize) -> Option<Original>,
    cases: u64,
    share: Share,
) -> BTreeSet<String> {
    let mut tried = 0;
    let asked = std::env::var("PARTITION_INTEGERS").ok();
    let (seed, first) = asked.as_deref().map_or((0, 0), |asked| {
        let (seed, first) = asked.split_once(':').unwrap_or((asked, "0"));
        (seed.parse::<u64>().unwrap(), first.parse::<u64>().unwrap())
    });
    let mut found = BTreeSet::new();
    for case in share.among(0..cases).filter(|case| *case >= first) {
        let mut rng = Rng::new(seed << 32 | case);
        let Some(original) = original(rng.below(files as u64) as usize) else { continue };
        tried += 1;
        let (bytes, changes) = original.form.changed(&mut rng);
        let devices = if rng.chance(50) { "cpu" } else { "2xcpu:memory=1GB" };
        if asked.is_some() {
            println!("case {case}: {} {changes:?}", original.path.display());
        }
        // What takes long is seen again: the machine may have had other work.
        let first = fault(&original, &bytes, devices);
        let is_slow = first.as_ref().is_some_and(|fault| fault.starts_with(TAKES));
        let last = if is_slow { fault(&original, &bytes, devices) } else { first };
        if let Some(fault) = last {
            found.insert(format!("{}: case {case}: {changes:?}: {fault}", original.path.display()));
        }
    }
    assert!(asked.is_some() || tried >= share.least(cases as usize), "only {tried} cases");
    found
}

fn assert_none(found: &BTreeSet<String>) {
    let told: Vec<&str> = found.iter().map(String::as_str).collect();
    assert!(found.is_empty(), "{} cases:\n{}", found.len(), told.join("\n"));
}

sweep! {
    numbers_of_onnx_files: one of 90;
    numbers_of_json_files: one of 60;
}

fn numbers_of_onnx_files(share: Share) {
    let mut paths = files(&["tests/data", "tests/differential/cases"], &["corpus/exports", "corpus/onnx"]);
    let unpacked = onnx_nodes::unpacked();
    let nodes = unpacked.iter().flat_map(|(_, tests)| tests);
    paths.extend(nodes.map(|test| test.join("model.onnx")).filter(|path| is_changed(path)));
    assert_none(&faults(paths.len(), |at| original(&paths[at]), 6_000, share));
}

fn numbers_of_json_files(share: Share) {
    let own = ["examples", "tests/keras", "tests/transformers", "tests/torch", "tests/cases"];
    let paths = files(&own, &["corpus/keras", "corpus/hf"]);
    let drawn = |at: usize| paths.get(at).map_or_else(|| Some(a_plan()), |path| original(path));
    assert_none(&faults(paths.len() + PLANS, drawn, 6_000, share));
}
