//! The arrays of `--inputs` and `--expect`: matched by name, their sizes taken for dimensions before anything is
//! planned, their data read when a run needs it.

use std::collections::BTreeMap;
use std::path::Path;

use super::args::RunArgs;
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Tensor, Type};
use crate::load::weights::Arrays;
use crate::run::feed::{self, Comparison, Header, Purpose, Role};

/// The arrays of `--inputs` and `--expect`.
pub(super) struct UserArrays {
    inputs: Option<Listed>,
    expect: Option<Listed>,
    tolerance: (f64, f64),
}

/// An open file, and what it is for.
struct Listed {
    arrays: Arrays,
    purpose: Purpose,
}

impl Listed {
    /// Error: the file cannot be read.
    fn open(args: &RunArgs, path: &Path, alone: Purpose) -> Result<Self> {
        let same = |other: &Option<std::path::PathBuf>| other.as_deref() == Some(path);
        let purpose = match (same(&args.shape.weights), same(&args.inputs) && same(&args.expect)) {
            (true, _) => Purpose::Weights,
            (false, true) => Purpose::Both,
            (false, false) => alone,
        };
        Ok(Self { arrays: Arrays::open(path)?, purpose })
    }

    /// The roles of the arrays. Error: one has none.
    fn roles(&self, graph: &Graph) -> Result<Vec<Role>> {
        feed::matched(graph, self.arrays.names(), self.purpose)
            .map_err(|error| error.within(&self.arrays.path().display().to_string()))
    }

    /// The names of the arrays with what they are to a network.
    fn named(&self, graph: &Graph) -> impl Iterator<Item = (&str, Role)> {
        let names = self.arrays.names();
        names.iter().map(String::as_str).zip(feed::roles(graph, names))
    }

    /// The headers of the arrays that are inputs; others are not looked at.
    fn headers(&self, graph: &Graph) -> Result<Vec<Header>> {
        let mut headers = Vec::new();
        for (name, role) in self.named(graph) {
            let Role::Input(input) = role else { continue };
            headers.extend(self.arrays.header(name)?.map(|(dtype, dims)| Header { input, dtype, dims }));
        }
        Ok(headers)
    }
}

impl UserArrays {
    /// Errors: a file cannot be read; a tolerance that nothing exceeds.
    pub(super) fn open(args: &RunArgs) -> Result<Self> {
        for (option, value) in [("--rtol", args.rtol), ("--atol", args.atol)] {
            if !value.is_finite() || value < 0.0 {
                let message = "expected a number of 0 or more, which is not infinite";
                return Err(Error::usage(format!("{option} {value}"), message));
            }
        }
        let open = |path: &Option<_>, purpose| {
            path.as_ref().map(|path: &std::path::PathBuf| Listed::open(args, path, purpose)).transpose()
        };
        Ok(Self {
            inputs: open(&args.inputs, Purpose::Inputs)?,
            expect: open(&args.expect, Purpose::Outputs)?,
            tolerance: (args.rtol, args.atol),
        })
    }

    /// What arrays for inputs are called, without the prefix of files that hold outputs too.
    pub(super) fn input_names(&self) -> impl Iterator<Item = String> {
        let names = self.inputs.iter().flat_map(|listed| listed.arrays.names());
        names.map(|name| name.strip_prefix("in_").unwrap_or(name).to_owned())
    }

    /// Values of the graph's dimensions, as the inputs' sizes have them; `known` have values already.
    ///
    /// Error: an array of other sizes, or of another type, than its input.
    pub(super) fn dims(&self, graph: &Graph, known: &BTreeMap<String, i64>) -> Result<BTreeMap<String, i64>> {
        let Some(inputs) = &self.inputs else { return Ok(BTreeMap::new()) };
        let found = inputs.headers(graph).and_then(|headers| feed::infer_dims(graph, &headers, known));
        found.map_err(|error| error.within("--inputs"))
    }

    /// Every array has a role, and there is one to compare with where that is asked for.
    ///
    /// Errors: what [`feed::matched`] refuses; a file that expects nothing.
    pub(super) fn check_names(&self, graph: &Graph) -> Result<()> {
        if let Some(inputs) = &self.inputs {
            let roles = inputs.roles(graph).map_err(|error| error.within("--inputs"))?;
            let serves = roles.iter().any(|role| matches!(role, Role::Input(_)));
            if !serves && !graph.inputs().is_empty() {
                let message = "the file has no array for any input of the model";
                return Err(Error::usage(format!("--inputs {}", inputs.arrays.path().display()), message));
            }
        }
        let Some(expect) = &self.expect else { return Ok(()) };
        let roles = expect.roles(graph).map_err(|error| error.within("--expect"))?;
        if roles.iter().any(|role| matches!(role, Role::Output { .. })) {
            return Ok(());
        }
        let message = "the file has no array for any output of the model";
        Err(Error::usage(format!("--expect {}", expect.arrays.path().display()), message))
    }

    /// Error: an array has other sizes than the input of a plan, whose types these are; `sizes` are what the
    /// plan says of its dimensions.
    pub(super) fn check_sizes(&self, graph: &Graph, types: &[Type], sizes: &[(String, i64)]) -> Result<()> {
        let Some(inputs) = &self.inputs else { return Ok(()) };
        for Header { input, dims, .. } in inputs.headers(graph)? {
            let planned = types[input].shape.dims().unwrap_or_default();
            if planned.iter().map(|&size| u64::try_from(size)).eq(dims.iter().map(|&size| Ok(size))) {
                continue;
            }
            let (name, _) = &graph.inputs()[input];
            let message = format!("the plan is for sizes {planned:?}, the array has {dims:?}");
            let own: Vec<String> = sizes.iter().map(|(name, size)| format!("{name} = {size}")).collect();
            let help = match own.is_empty() {
                true => "plan the model anew for these sizes, or run the model itself".to_owned(),
                false => format!(
                    "the plan has {}; plan anew with --batch or --dim, or run the model itself",
                    own.join(", ")
                ),
            };
            return Err(Error::Run(Report::new(format!("--inputs: input {name}"), message).help(help)));
        }
        Ok(())
    }

    /// Every input of the graph, by name; `types` are theirs. An optional one that is missing is what it means
    /// then. Errors: one is missing and there is no seed to make it up; values that the model does not know.
    pub(super) fn inputs(
        &self,
        graph: &Graph,
        types: &[Type],
        seed: Option<u64>,
    ) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = self.input_arrays(graph)?;
        let mut inputs = Vec::new();
        let mut missing = Vec::new();
        for (number, ((name, _), ty)) in graph.inputs().iter().zip(types).enumerate() {
            let rule = graph.rules().inputs.get(name);
            match (arrays.remove(&number), seed) {
                (Some(tensor), _) => {
                    graph.rules().check_values(name, &tensor)?;
                    inputs.push((name.clone(), tensor));
                }
                (None, seed) => match feed::supplied(ty, rule, seed, name)? {
                    Some(tensor) => inputs.push((name.clone(), tensor)),
                    None => missing.push(name.clone()),
                },
            }
        }
        if missing.is_empty() {
            return Ok(inputs);
        }
        let message = format!("no data is given for {}", missing.join(", "));
        Err(Error::Run(
            Report::new("inputs", message).help("--inputs F.npz, or --init seed=N to make them up"),
        ))
    }

    /// The arrays by input.
    fn input_arrays(&self, graph: &Graph) -> Result<BTreeMap<usize, Tensor>> {
        let Some(listed) = &self.inputs else { return Ok(BTreeMap::new()) };
        let mut found = BTreeMap::new();
        for (name, role) in listed.named(graph) {
            let Role::Input(input) = role else { continue };
            if let Some(tensor) = listed.arrays.get(name)? {
                found.insert(input, feed::as_input(graph, input, tensor)?);
            }
        }
        Ok(found)
    }

    /// Compares what is expected. Error: expectations of other sizes.
    pub(super) fn compare(&self, graph: &Graph, outputs: &[(String, Tensor)]) -> Result<Vec<Comparison>> {
        let Some(listed) = &self.expect else { return Ok(Vec::new()) };
        let mut comparisons = Vec::new();
        for (name, role) in listed.named(graph) {
            let Role::Output { output, stride } = role else { continue };
            let Some(expected) = listed.arrays.get(name)? else { continue };
            let (name, found) = &outputs[output];
            comparisons.push(feed::compare(name, found, &expected, stride, self.tolerance)?);
        }
        Ok(comparisons)
    }
}
