//! Small random models beside what onnxruntime made of them: through the whole pipeline, on one device
//! and on several. `scripts/differential` makes the models (see `tests/differential`) and runs this.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use partition::Error;
use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::ir::Tensor;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::topology::Topology;

use crate::onnx_nodes::{numbers, run_planned, stored};

/// The parts of a file of models.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(part)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.next()?).ok()
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.next()?.try_into().ok()?))
    }
}

/// What an output is expected to be, and how far each of its elements may be off.
struct Expected<'a> {
    stored: &'a [u8],
    allowed: Vec<f64>,
}

/// A model with its inputs and what comes out.
struct Case<'a> {
    name: &'a str,
    operators: &'a str,
    model: &'a [u8],
    dims: BTreeMap<String, i64>,
    inputs: Vec<&'a [u8]>,
    outputs: Vec<Expected<'a>>,
}

impl<'a> Case<'a> {
    fn read(parts: &mut Parts<'a>) -> Option<Self> {
        let (name, operators, model) = (parts.text()?, parts.text()?, parts.next()?);
        let dim = |line: &str| {
            let (name, size) = line.split_once('=')?;
            Some((name.to_owned(), size.parse().ok()?))
        };
        let dims = parts.text()?.lines().map(dim).collect::<Option<_>>()?;
        let inputs = (0..parts.number()?).map(|_| parts.next()).collect::<Option<_>>()?;
        let output = |parts: &mut Parts<'a>| {
            let stored = parts.next()?;
            let allowed = parts.next()?.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap()));
            Some(Expected { stored, allowed: allowed.collect() })
        };
        let outputs = (0..parts.number()?).map(|_| output(parts)).collect::<Option<_>>()?;
        Some(Self { name, operators, model, dims, inputs, outputs })
    }

    /// The model, planned. Its dimensions are bound after it is read where that can be: a size that may be one, to be
    /// stretched, or another's has to be known before.
    fn planned(&self) -> Result<Compiled, Error> {
        match self.planned_open() {
            Err(Error::Usage(_) | Error::Model(_)) if !self.dims.is_empty() => {
                let bound = LoadOptions { dims: self.dims.clone(), ..LoadOptions::default() };
                compile(load(self.model, None, &bound)?, &Topology::parse("cpu")?, &Options::default())
            }
            done => done,
        }
    }

    fn planned_open(&self) -> Result<Compiled, Error> {
        let bound = LoadOptions { dims: self.dims.clone(), ..LoadOptions::default() };
        let open = load(self.model, None, &LoadOptions::default());
        let (model, bind) = match open {
            Err(error) if !self.dims.is_empty() && !matches!(error, Error::Unsupported(_)) => {
                (load(self.model, None, &bound)?, BTreeMap::new())
            }
            open => (open?, self.dims.clone()),
        };
        let Model::Graph(graph) = model else { panic!("a network") };
        if self.operators.contains(' ') && self.model.len().is_multiple_of(3) {
            let place = place::Options { devices: DeviceUse::All, ..place::Options::default() };
            let options = Options { place, bind: bind.clone(), ..Options::default() };
            match compile(Model::Graph(graph.clone()), &Topology::parse("2xcpu")?, &options) {
                // There are fewer nodes than devices.
                Err(Error::Infeasible(_) | Error::Usage(_)) => {}
                done => return done,
            }
        }
        compile(Model::Graph(graph), &Topology::parse("cpu")?, &Options { bind, ..Options::default() })
    }

    fn found(&self) -> Result<Vec<(String, Tensor)>, Error> {
        let inputs: Vec<_> = self.inputs.iter().map(|bytes| stored(bytes).expect("an input")).collect();
        run_planned(&self.planned()?, &inputs)
    }

    fn outcome(&self) -> Outcome {
        let found = match catch_unwind(AssertUnwindSafe(|| self.found())) {
            Ok(Ok(found)) => found,
            Ok(Err(Error::Unsupported(report))) => return Outcome::Unsupported(report.to_string()),
            Ok(Err(error)) => return Outcome::Wrong(error.to_string()),
            Err(_) => return Outcome::Wrong("a panic".to_owned()),
        };
        if found.len() != self.outputs.len() {
            return Outcome::Wrong(format!("{} outputs", found.len()));
        }
        let differs = found.iter().zip(&self.outputs).find_map(|((name, found), expected)| {
            difference(found, expected).map(|difference| format!("{name}: {difference}"))
        });
        differs.map_or(Outcome::Same, Outcome::Wrong)
    }

    /// Writes it as the test of a node, of ONNX's own suite, and why it failed.
    fn write(&self, folder: &Path, reason: &str) -> std::io::Result<()> {
        let folder = folder.join(self.name);
        let data = folder.join("test_data_set_0");
        fs::create_dir_all(&data)?;
        fs::write(folder.join("model.onnx"), self.model)?;
        fs::write(folder.join("reason.txt"), reason)?;
        for (i, input) in self.inputs.iter().enumerate() {
            fs::write(data.join(format!("input_{i}.pb")), input)?;
        }
        for (i, output) in self.outputs.iter().enumerate() {
            fs::write(data.join(format!("output_{i}.pb")), output.stored)?;
        }
        Ok(())
    }
}

enum Outcome {
    Same,
    Unsupported(String),
    Wrong(String),
}

fn difference(found: &Tensor, expected: &Expected<'_>) -> Option<String> {
    let (_, wanted) = stored(expected.stored).expect("an output");
    if found.dtype() != wanted.dtype() || found.dims() != wanted.dims() {
        let types = |t: &Tensor| format!("{}{:?}", t.dtype(), t.dims());
        return Some(format!("expected {}, found {}", types(&wanted), types(found)));
    }
    if found.bytes() == wanted.bytes() {
        return None;
    }
    let close = |a: f64, b: f64, allowed: f64| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= allowed || allowed == f64::INFINITY
    };
    // Integers of 64 bits are no f64: those that differ in their last bits only are compared as they are.
    let exact = !wanted.dtype().is_float();
    let (ints, other) = (found.to_i64().filter(|_| exact), wanted.to_i64().filter(|_| exact));
    let (found, wanted) = (numbers(found), numbers(&wanted));
    let at = (0..found.len()).find(|&i| {
        let same = match (&ints, &other) {
            (Some(a), Some(b)) => a[i] == b[i] || expected.allowed[i] == f64::INFINITY,
            _ => close(found[i], wanted[i], expected.allowed[i]),
        };
        !same
    })?;
    let (a, b, allowed) = (found[at], wanted[at], expected.allowed[at]);
    Some(format!("element {at}: expected {b}, found {a}, which may be off by {allowed:e}"))
}

/// Runs each model, by as many threads as there are cores, in the order of the file.
fn outcomes(cases: &[Case<'_>]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((number, case)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|number| Some((number, cases.get(number)?)))
                {
                    let outcome = case.outcome();
                    done.lock().unwrap().push((number, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

#[test]
fn random_models_give_what_onnxruntime_gives() {
    let Some(path) = std::env::var_os("PARTITION_DIFFERENTIAL").map(PathBuf::from) else {
        println!("skipped: scripts/differential makes the models and sets PARTITION_DIFFERENTIAL");
        return;
    };
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut parts = Parts(&bytes);
    let cases: Vec<Case<'_>> = std::iter::from_fn(|| Case::read(&mut parts)).collect();
    assert!(parts.0.is_empty() && !cases.is_empty(), "{} is cut off", path.display());
    let failed = path.with_extension("failed");
    let (mut same, mut wrong) = (0, Vec::new());
    let mut unsupported: BTreeMap<String, usize> = BTreeMap::new();
    for (case, outcome) in cases.iter().zip(outcomes(&cases)) {
        match outcome {
            Outcome::Same => same += 1,
            Outcome::Unsupported(message) => {
                let message = message.split_once(": ").map_or(&*message, |(_, message)| message);
                *unsupported.entry(message.to_owned()).or_default() += 1;
            }
            Outcome::Wrong(reason) => {
                case.write(&failed, &reason).unwrap();
                wrong.push(format!("{} ({}): {reason}", case.name, case.operators));
            }
        }
    }
    for (message, count) in &unsupported {
        println!("{count} unsupported: {message}");
    }
    let refused: usize = unsupported.values().sum();
    println!("{same} same, {refused} unsupported, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "see {}\n{}", failed.display(), wrong.join("\n"));
    assert!(refused * 10 < cases.len(), "{refused} of {} are unsupported", cases.len());
}
