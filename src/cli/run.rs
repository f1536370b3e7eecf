//! `partition run`: a model or a plan on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::{Batch, RunArgs};
use super::machine::{Product, Ready, targets};
use super::model::{ModelFile, model_path};
use super::options::{compile_options, half, with_profile};
use super::terminal::{Console, write_stdout};
use crate::compile::{self, Network};
use crate::error::{Error, Report, Result, escaped};
use crate::ir::{Data, Graph, ParamId, Tensor, Type};
use crate::load::weights::{Arrays, ParamReader, match_params, write_npz};
use crate::load::{Model, fill};
use crate::plan::{self, Plan};
use crate::report::{Clock, Trace, lives_of_plan};
use crate::run::feed::{self, Comparison, Role};
use crate::run::{RunReport, input_type, probe};
use crate::topology::Topology;
use crate::units::Nanos;

pub(super) fn run(args: &RunArgs, console: &Console) -> Result<()> {
    if args.steps == 0 {
        return Err(Error::usage("--steps 0", "at least one step is run"));
    }
    let seed = args.exec.init.as_deref().map(init_seed).transpose()?;
    let given = Given::open(args)?;
    let Some(path) = &args.model else {
        return Err(Error::usage("MODEL", "no model is given").with_help("partition run --help"));
    };
    let file = ModelFile::read(path)?;
    let (plan, mut network) = {
        let _working = console.working("planning");
        if Plan::is_json(&file.bytes) {
            from_plan(&file, args, &given, seed.is_some())?
        } else {
            from_model(&file, args, &given, seed.is_some(), console)?
        }
    };
    drop(file);
    let targets = targets(&plan, &args.map, args.backend)?;
    let mut program = {
        let _working = console.working("loading weights");
        Ready::new(&plan, &network, &targets, args, seed, console)?
    };
    // The arenas have what the model's file holds of weights.
    network.graph.forget_data();
    let types = (0..network.graph.inputs().len()).map(|number| input_type(&plan, &network.graph, number));
    let inputs = given.inputs(&network.graph, &types.collect::<Vec<_>>(), seed)?;
    let (outputs, reports) = {
        let _working = console.working("running");
        steps(&mut program, &inputs, args.steps)?
    };
    if let Some(path) = &args.outputs {
        write_npz(path, &outputs)?;
    }
    if let Some(path) = &args.trace {
        write_trace(path, &plan, median(&reports))?;
    }
    let comparisons = given.compare(&network.graph, &outputs, (args.rtol, args.atol))?;
    let products = program.products();
    report(&plan, &reports, &comparisons, products.as_ref(), args, console)?;
    if args.stats {
        console.print(&super::stats::stats(&plan, &network, &reports)?)?;
        console.print(&super::stats::products(products.as_ref()))?;
    }
    verdict(&comparisons, args)
}

/// `seed=N`.
pub(super) fn init_seed(text: &str) -> Result<u64> {
    let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
    seed.ok_or_else(|| Error::usage(format!("--init {text}"), "expected seed=N"))
}

/// The arrays of `--inputs` and `--expect`.
pub(super) struct Given {
    inputs: Option<Arrays>,
    expect: Option<Arrays>,
}

impl Given {
    pub(super) fn open(args: &RunArgs) -> Result<Self> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(Arrays::open).transpose();
        Ok(Self { inputs: open(&args.inputs)?, expect: open(&args.expect)? })
    }

    /// Input numbers and their arrays.
    fn input_arrays(&self, graph: &Graph) -> Result<Vec<(usize, Tensor)>> {
        let Some(arrays) = &self.inputs else { return Ok(Vec::new()) };
        let roles = feed::roles(graph, arrays.names());
        feed::check_unknown(graph, arrays.names(), &roles).map_err(|error| error.within("--inputs"))?;
        let mut found = Vec::new();
        for (name, role) in arrays.names().iter().zip(roles) {
            if let (Role::Input(input), Some(tensor)) = (role, read(arrays, name, role)?) {
                found.push((input, tensor));
            }
        }
        Ok(found)
    }

    /// Values of the graph's dimensions, as the inputs have them.
    fn dims(&self, graph: &Graph) -> Result<BTreeMap<String, i64>> {
        let arrays = self.input_arrays(graph)?;
        let borrowed: Vec<(usize, &Tensor)> = arrays.iter().map(|(input, tensor)| (*input, tensor)).collect();
        feed::infer_dims(graph, &borrowed)
    }

    /// Every input of the graph, by name; `types` are theirs. Error: one is missing and there is no seed to make it up.
    pub(super) fn inputs(
        &self,
        graph: &Graph,
        types: &[Type],
        seed: Option<u64>,
    ) -> Result<Vec<(String, Tensor)>> {
        let mut arrays: BTreeMap<usize, Tensor> = self.input_arrays(graph)?.into_iter().collect();
        let mut inputs = Vec::new();
        let mut missing = Vec::new();
        for (number, ((name, _), ty)) in graph.inputs().iter().zip(types).enumerate() {
            match (arrays.remove(&number), seed) {
                (Some(tensor), _) => inputs.push((name.clone(), tensor)),
                (None, Some(seed)) => inputs.push((name.clone(), feed::made_up(ty, seed, name)?)),
                (None, None) => missing.push(name.clone()),
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

    /// Compares what is expected. Errors: an array that is no output; expectations of other sizes;
    /// a file that expects nothing.
    fn compare(
        &self,
        graph: &Graph,
        outputs: &[(String, Tensor)],
        tolerance: (f64, f64),
    ) -> Result<Vec<Comparison>> {
        let Some(arrays) = &self.expect else { return Ok(Vec::new()) };
        let roles = feed::roles(graph, arrays.names());
        feed::check_unknown(graph, arrays.names(), &roles).map_err(|error| error.within("--expect"))?;
        let mut comparisons = Vec::new();
        for (name, role) in arrays.names().iter().zip(roles) {
            let (Role::Output { output, stride }, Some(expected)) = (role, read(arrays, name, role)?) else {
                continue;
            };
            let (name, found) = &outputs[output];
            comparisons.push(feed::compare(name, found, &expected, stride, tolerance)?);
        }
        if comparisons.is_empty() {
            let message = "the file has no array for any output of the model";
            return Err(Error::usage(format!("--expect {}", arrays.path().display()), message));
        }
        Ok(comparisons)
    }
}

/// The array, where it has a role at all.
fn read(arrays: &Arrays, name: &str, role: Role) -> Result<Option<Tensor>> {
    if role == Role::Unknown { Ok(None) } else { arrays.get(name) }
}

/// What is to be planned.
pub(super) struct Request {
    pub(super) graph: Graph,
    pub(super) topology: Topology,
    pub(super) options: compile::Options,
}

impl Request {
    /// The model for the devices given, the CPU where none are; dimensions as the inputs have them.
    pub(super) fn new(file: &ModelFile, args: &RunArgs, given: &Given, made_up: bool) -> Result<Self> {
        if args.shape.batch == Some(Batch::Max) {
            return Err(Error::usage("--batch max", "a run takes inputs of one size")
                .with_help("partition MODEL --batch max -o plan.json, then partition run plan.json"));
        }
        let mut options = compile_options(&args.shape, &args.placement)?;
        let mut graph = network_of(file, &options.dims)?;
        take_weights(&mut graph, args.shape.weights.as_deref(), made_up)?;
        options.bind = given.dims(&graph)?;
        if options.batch.is_some() {
            // The caller's own word counts; inputs of another size are told as such.
            options.bind.clear();
        }
        options.model_hash = file.hash();
        options.model_path = file.path.as_ref().map(|path| path.display().to_string());
        let topology = Topology::load(args.exec.devices.as_deref().unwrap_or("cpu"))?;
        Ok(Self { graph, topology: with_profile(topology, &options)?, options })
    }
}

/// Plans a model for the devices given, the CPU where none are.
fn from_model(
    file: &ModelFile,
    args: &RunArgs,
    given: &Given,
    made_up: bool,
    console: &Console,
) -> Result<(Plan, Network)> {
    let Request { graph, topology, options } = Request::new(file, args, given, made_up)?;
    let compiled = super::planning::planning(&args.placement, console, |control| {
        compile::compile_with(Model::Graph(graph), &topology, &options, control)
            .map_err(|error| error.within(&file.name()))
    })?;
    super::plan::tell_assumptions(&compiled, console);
    let network = compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
    Ok((compiled.plan, network))
}

/// Reads a plan, checks it, and lowers its model again.
pub(super) fn from_plan(
    file: &ModelFile,
    args: &RunArgs,
    given: &Given,
    made_up: bool,
) -> Result<(Plan, Network)> {
    let name = file.name();
    let plan = Plan::from_json(&file.bytes, &name)?;
    plan::check(&plan).map_err(|error| error.within(&name))?;
    let model = ModelFile::read(&model_path(&plan, file, args.plan_model.as_deref())?)?;
    compile::check_hash(&plan, &model.hash(), &model.name()).map_err(|error| error.within(&name))?;
    let options = compile::Options::of_plan(&plan)?;
    if let Some(half) = half(args.shape.precision)
        && plan.options.precision.as_deref() != Some(half.name())
    {
        let own = plan.options.precision.as_deref().unwrap_or("f32");
        return Err(Error::usage(format!("--precision {half}"), format!("the plan is of {own}"))
            .with_help("plan the model anew"));
    }
    let mut graph = network_of(&model, &options.dims)?;
    take_weights(&mut graph, args.shape.weights.as_deref(), made_up)?;
    compile::check_model(&plan, Model::Graph(graph.clone()), &options)
        .map_err(|error| error.within(&name))?;
    let dims = given.dims(&graph)?;
    if let Some((dim, size)) = dims.iter().find(|(dim, size)| options.dims.get(*dim) != Some(size)) {
        let message = format!("the plan is not for {dim} = {size}, which the inputs have");
        return Err(Error::Run(Report::new(name, message).help("plan the model anew with --dim")));
    }
    let network = compile::prepare(graph, &options)?;
    Ok((plan, network))
}

fn network_of(file: &ModelFile, dims: &BTreeMap<String, i64>) -> Result<Graph> {
    match file.load(dims)? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => {
            let message = "a cost graph can be planned, but has no operations to run";
            Err(Error::usage(file.name(), message))
        }
    }
}

/// Gives the parameters their arrays. Error: they do not fit, or some have none and are not to
/// be made up.
fn take_weights(graph: &mut Graph, path: Option<&Path>, made_up: bool) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let loaded = match_params(graph, &Arrays::open(path)?)?;
    let message = match (&loaded.missing[..], loaded.params) {
        (_, 0) if !graph.params().is_empty() => "no array carries the name of a parameter".to_owned(),
        ([first, ..], _) if !made_up => {
            format!("{} parameters have no array, the first is {first}", loaded.missing.len())
        }
        _ => return Ok(()),
    };
    let report =
        Report::new(path.display().to_string(), message).help("--init seed=N makes up what is missing");
    Err(Error::Model(report.details(loaded.missing)))
}

/// The weights of a file fit a network's parameters.
pub(super) fn weights_fit(graph: &mut Graph, path: &Path) -> Result<()> {
    take_weights(graph, Some(path), false)
}

/// A parameter's data, made up where it has none and there is a seed.
pub(super) fn weight(
    graph: &Graph,
    id: ParamId,
    reader: &mut ParamReader,
    seed: Option<u64>,
) -> Result<Tensor> {
    if let Some(tensor) = reader.read(graph, id)? {
        return Ok(tensor);
    }
    let param = graph.param(id);
    match seed {
        Some(seed) => {
            let ty = param.given_type(graph);
            let dims: Vec<u64> = ty.shape.sizes().iter().map(|size| size.constant().unsigned_abs()).collect();
            fill(&param.init, &dims, ty.dtype, seed, &param.name)
        }
        None => Err(Error::run("", absent(param.data.as_ref()))),
    }
}

/// Why a parameter has no data, in words.
fn absent(data: Option<&Data>) -> String {
    match data {
        Some(Data::File { path, .. } | Data::Array { path, .. }) => {
            format!("{} is not there", path.display())
        }
        Some(Data::Inline(_)) | None => "the model has no data for it".to_owned(),
    }
}

/// Outputs by name.
type Outputs = Vec<(String, Tensor)>;

fn steps(program: &mut Ready, inputs: &[(String, Tensor)], count: u32) -> Result<(Outputs, Vec<RunReport>)> {
    let reports = (0..count).map(|step| program.step(inputs, step > 0)).collect::<Result<Vec<_>>>()?;
    Ok((program.outputs()?, reports))
}

/// The report of median time; there is one.
fn median(reports: &[RunReport]) -> &RunReport {
    let mut sorted: Vec<&RunReport> = reports.iter().collect();
    sorted.sort_by_key(|report| report.wall);
    sorted[sorted.len() / 2]
}

/// Writes what ran when.
fn write_trace(path: &Path, plan: &Plan, report: &RunReport) -> Result<()> {
    let nanos = |time: &std::time::Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let times: Vec<(Nanos, Nanos)> =
        report.steps.iter().map(|(start, end)| (nanos(start), nanos(end))).collect();
    let lives = lives_of_plan(plan, &times);
    let trace = Trace { plan, clock: Clock::Measured, times: &times, lives: &lives, crossings: &[] };
    plan::write_atomically_with(path, |out| trace.write(out))
}

/// What a run is said to have done.
#[derive(Serialize)]
struct Ran<'a> {
    steps: usize,
    /// Median over the steps.
    step_ns: u128,
    /// Likewise by the GPUs' clocks; none without one.
    device_ns: Option<u128>,
    predicted_ns: u64,
    step_bytes: u64,
    /// Of all devices.
    arena_bytes: u64,
    /// Of this process after the last step, and what of that is code; none where the system does
    /// not tell.
    resident_bytes: Option<u64>,
    code_bytes: Option<u64>,
    devices: Vec<RanDevice>,
    outputs: Vec<RanOutput>,
    /// The library of products and its version, and what it computes; none where it is not asked.
    library: Option<&'a str>,
    products: &'a [Product],
}

#[derive(Serialize)]
struct RanDevice {
    device: String,
    steps: usize,
    computing_ns: u128,
    copying_ns: u128,
    utilisation: f64,
}

#[derive(Serialize)]
struct RanOutput {
    name: String,
    elements: usize,
    wrong: usize,
    max_error: f64,
}

fn report(
    plan: &Plan,
    reports: &[RunReport],
    comparisons: &[Comparison],
    products: Option<&(String, Vec<Product>)>,
    args: &RunArgs,
    console: &Console,
) -> Result<()> {
    let mut device_times: Vec<_> = reports.iter().filter_map(|report| report.device).collect();
    device_times.sort_unstable();
    let median = median(reports);
    let memory = probe::resident();
    let device = |(index, device): (usize, &crate::run::DeviceReport)| RanDevice {
        device: device.name.clone(),
        steps: device.steps,
        computing_ns: device.computing.as_nanos(),
        copying_ns: device.copying.as_nanos(),
        utilisation: median.utilisation(index),
    };
    let ran = Ran {
        steps: reports.len(),
        step_ns: median.wall.as_nanos(),
        device_ns: device_times.get(device_times.len() / 2).map(std::time::Duration::as_nanos),
        predicted_ns: plan.cost.latency_ns.get(),
        step_bytes: plan.cost.step_bytes.get(),
        arena_bytes: plan.devices.iter().map(|device| device.arena.get()).sum(),
        resident_bytes: memory.map(|memory| memory.resident.get()),
        code_bytes: memory.map(|memory| memory.code.get()),
        devices: median.devices.iter().enumerate().map(device).collect(),
        outputs: comparisons
            .iter()
            .map(|c| RanOutput {
                name: c.name.clone(),
                elements: c.elements,
                wrong: c.wrong,
                max_error: c.max_error,
            })
            .collect(),
        library: products.map(|(library, _)| library.as_str()),
        products: products.map_or(&[], |(_, products)| products),
    };
    if args.json {
        let text = serde_json::to_string_pretty(&ran).map_err(|error| Error::Internal(error.to_string()))?;
        return write_stdout(format!("{text}\n").as_bytes());
    }
    let used = ran.devices.iter().filter(|device| device.steps > 0);
    let mut text = format!(
        "ran {} {} on {} devices, {:.3} ms each{}, {} moved\n",
        ran.steps,
        if ran.steps == 1 { "step" } else { "steps" },
        used.clone().count(),
        ran.step_ns as f64 / 1e6,
        ran.device_ns
            .map_or(String::new(), |time| format!(" ({:.3} ms by the GPU's clock)", time as f64 / 1e6)),
        plan.cost.step_bytes
    );
    for device in used {
        text += &format!(
            "  {:<10} {:>4} {:<6} busy {:>3.0} %\n",
            escaped(&device.device),
            device.steps,
            if device.steps == 1 { "step," } else { "steps," },
            device.utilisation * 100.0
        );
    }
    for output in &ran.outputs {
        text += &format!(
            "output {}: {} elements, {} beyond tolerance, max error {:.3e}\n",
            escaped(&output.name),
            output.elements,
            output.wrong,
            output.max_error
        );
    }
    if comparisons.iter().any(|comparison| comparison.wrong > 0) {
        // The error that follows tells the same.
        return Ok(());
    }
    console.print(&text)
}

/// Error: an element is beyond the tolerance.
fn verdict(comparisons: &[Comparison], args: &RunArgs) -> Result<()> {
    let wrong: Vec<&Comparison> = comparisons.iter().filter(|comparison| comparison.wrong > 0).collect();
    let Some(first) = wrong.first() else { return Ok(()) };
    let message = format!(
        "{} of {} elements differ from what was expected, max error {:.3e}",
        first.wrong, first.elements, first.max_error
    );
    let details = wrong.iter().map(|comparison| {
        let worst = comparison.worst.map_or(String::new(), |(position, found, expected)| {
            format!("; worst at {position}: found {found:e}, expected {expected:e}")
        });
        format!(
            "{}: {} of {} elements beyond the tolerance{worst}",
            comparison.name, comparison.wrong, comparison.elements
        )
    });
    let help = format!("tolerances are --rtol {} --atol {}", args.rtol, args.atol);
    Err(Error::Run(
        Report::new(format!("output {}", first.name), message).help(help).details(details.collect()),
    ))
}
