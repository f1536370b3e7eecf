//! `partition run`: runs a model or a plan on this machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::args::{Batch, RunArgs};
use super::arrays::UserArrays;
use super::destinations::{Destinations, devices_file, files_of};
use super::kernels;
use super::machine::{Product, Products, Ready, check_hosts, targets, topology};
use super::model::{ModelFile, model_path};
use super::modes::{Explicit, check_run};
use super::notes::{note_assumptions, note_network};
use super::options::{check_pipeline, compile_options, half, split_options, weights_as, with_profile};
use super::predicted::Predicted;
use super::sample::Sample;
use super::shared_cores::{shared_cores, used};
use super::signals;
use super::terminal::{Console, write_stdout};
use super::weights::{Missing, note_rounded, take_weights};
use crate::compile::{self, Network};
use crate::error::{Error, Report, Result};
use crate::escape::{escaped, to_json_pretty};
use crate::ir::{DType, Graph, Tensor, Type};
use crate::load::Model;
use crate::pass::PAST;
use crate::plan::{self, Plan};
use crate::report::{Clock, Trace, counted, lives_of_plan};
use crate::run::feed::Comparison;
use crate::run::{RunReport, input_type, probe};
use crate::state::{WeightsForm, write_arrays};
use crate::topology::Topology;
use crate::units::Nanos;

pub(super) fn run(args: &RunArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    if args.steps == 0 {
        return Err(Error::usage("--steps 0", "at least one step is run"));
    }
    let seed = args.exec.init.as_deref().map(init_seed).transpose()?;
    let source = Source::open(args, explicit)?;
    let (arrays, (plan, mut network)) = {
        let _working = console.working("planning");
        let missing = if seed.is_some() { Missing::MadeUp } else { Missing::Refused };
        source.planned(args, missing, console)?
    };
    check_hosts(&plan.topology, args.exec.simulate_hosts)?;
    if let Some(line) = shared_cores(&plan.topology, used(&plan)) {
        console.note(&line);
    }
    let whole = network.graph.callers_ports();
    let callers = whole.as_ref().unwrap_or(&network.graph);
    let types = (0..callers.inputs().len()).map(|number| input_type(&plan, callers, number));
    let types: Vec<Type> = types.collect();
    arrays.check_sizes(callers, &types, &plan.options.dims)?;
    let targets = targets(&plan, &args.map, args.backend)?;
    let mut program = {
        let _working = console.working("loading weights");
        Ready::new(&plan, &network, &targets, args, seed, console)?
    };
    // The arenas have what the model's file holds of weights.
    network.graph.forget_data();
    let callers = whole.as_ref().unwrap_or(&network.graph);
    let inputs = arrays.inputs(callers, &types, seed)?;
    // What was cut short is not run.
    signals::check()?;
    let (outputs, reports) = {
        let _working = console.working("running");
        let rows = rows_of_a_step(&network.graph);
        signals::orderly(|stop| steps(&mut program, (inputs, rows), args.steps, kept(&plan), stop))?
    };
    if reports.seen() < u64::from(args.steps) {
        console.note(&format!("ended after {} of {} steps", reports.seen(), args.steps));
    }
    if let Some(path) = &args.outputs {
        write_outputs(path, &outputs, console)?;
    }
    if let Some(path) = &args.trace {
        write_trace(path, &plan, median(reports.kept()))?;
    }
    let comparisons = arrays.compare(callers, &outputs)?;
    let products = program.products();
    if let Some(note) = products.as_ref().and_then(Products::note) {
        console.note(&note);
    }
    // One step alone is not timed: the program's first is what names a fault.
    let clocked = match reports.seen() {
        0 | 1 => None,
        _ => program.clocked(args.steps.clamp(1, MOST_CLOCKED))?,
    };
    let products = products.as_ref();
    let finished = Finished { plan: &plan, reports: &reports, clocked, comparisons: &comparisons, products };
    finished.report(args, console)?;
    if args.stats {
        console.print(&super::stats::stats(&plan, &network, reports.kept(), console.width())?)?;
        console.print(&super::stats::products(products, console.width()))?;
    }
    verdict(&comparisons, args)?;
    signals::check()
}

/// `partition run --emit kernels`: of a model planned for the devices given, or of a plan.
///
/// Errors: those of planning, or of reading a plan; of [`kernels::kernels`].
pub(super) fn emit_kernels(args: &RunArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    let source = Source::open(args, explicit)?;
    let (_, (plan, network)) = source.planned(args, Missing::MadeUp, console)?;
    write_stdout(kernels::kernels(&network, &plan)?.as_bytes())
}

/// The files that a run writes: they can be written, and are none that the options name to be read.
pub(super) fn destinations(args: &RunArgs) -> Result<Destinations> {
    if let Some(path) = &args.outputs {
        outputs_form(path)?;
    }
    let written = [("--outputs", &args.outputs), ("--trace", &args.trace), ("--output", &args.output)];
    let destinations = Destinations::new(written.map(|(option, path)| (option, path.as_ref())))?;
    let read = [&args.model, &args.plan_model, &args.inputs, &args.expect, &args.shape.weights];
    let read = read.into_iter().chain([&args.placement.profile]).filter_map(|path| path.as_deref());
    destinations.are_not_read(read.chain(devices_file(args.exec.devices.as_deref())))?;
    Ok(destinations)
}

/// What the file of outputs holds, as the end of its name says; what is no file (a pipe, a terminal) takes npz.
fn outputs_form(path: &Path) -> Result<WeightsForm> {
    match path.exists() && !path.is_file() {
        true => Ok(WeightsForm::Npz),
        false => WeightsForm::of(path).map_err(|error| error.within("--outputs")),
    }
}

/// Writes outputs in the form that the end of the name says. NumPy has no bf16, so in npz these are f32, which has the same
/// numbers.
fn write_outputs(path: &Path, outputs: &Outputs, console: &Console) -> Result<()> {
    let form = outputs_form(path)?;
    let is_widened = |tensor: &Tensor| form == WeightsForm::Npz && tensor.dtype() == DType::Bf16;
    let mut written = Vec::with_capacity(outputs.len());
    let mut widened: Vec<String> = Vec::new();
    for (name, tensor) in outputs {
        let wide = is_widened(tensor);
        widened.extend(wide.then(|| escaped(name)));
        written.push((name.clone(), if wide { tensor.widened()? } else { tensor.clone() }));
    }
    if !widened.is_empty() {
        let names = widened.join(", ");
        console.note(&format!(
            "output {names}: bf16 is written as f32, as NumPy has no bf16 (.safetensors keeps it)"
        ));
    }
    write_arrays(path, form, &written)
}

/// What is run: a file that is a model or a plan, and the arrays for it.
pub(super) struct Source {
    pub(super) file: ModelFile,
    pub(super) arrays: UserArrays,
    pub(super) is_plan: bool,
    pub(super) destinations: Destinations,
}

impl Source {
    /// Errors: no model; files that cannot be read; options that a model, or a plan, does not heed.
    pub(super) fn open(args: &RunArgs, explicit: &Explicit) -> Result<Self> {
        let Some(path) = &args.model else {
            return Err(Error::usage("MODEL", "no model is given").with_help("partition run --help"));
        };
        let file = ModelFile::read(path, args.shape.trust.links())?;
        let is_plan = Plan::is_json(&file.bytes);
        check_run(args, explicit, is_plan)?;
        let destinations = destinations(args)?;
        // A folder's model, too.
        destinations.are_not_read(file.path.as_deref())?;
        Ok(Self { arrays: UserArrays::open(args)?, file, is_plan, destinations })
    }

    /// The arrays; the plan, made now or before, and its network.
    pub(super) fn planned(
        self,
        args: &RunArgs,
        missing: Missing,
        console: &Console,
    ) -> Result<(UserArrays, (Plan, Network))> {
        let Self { file, arrays, is_plan, destinations } = self;
        let files = RunFiles { arrays: &arrays, written: &destinations };
        let planned = match is_plan {
            true => from_plan(&file, args, files, missing, console)?,
            false => from_model(file, args, files, missing, console)?,
        };
        Ok((arrays, planned))
    }
}

/// `seed=N`.
pub(super) fn init_seed(text: &str) -> Result<u64> {
    let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
    seed.ok_or_else(|| Error::usage(format!("--init {text}"), "expected seed=N"))
}

/// Files of a run: the arrays that it reads, and what it writes.
#[derive(Clone, Copy)]
pub(super) struct RunFiles<'a> {
    pub(super) arrays: &'a UserArrays,
    pub(super) written: &'a Destinations,
}

/// What is to be planned.
pub(super) struct Request {
    pub(super) graph: Graph,
    pub(super) topology: Topology,
    pub(super) options: compile::Options,
}

impl Request {
    /// The model for the devices given, the CPU where none are; dimensions and optional inputs as the
    /// arrays are.
    pub(super) fn new(
        file: ModelFile,
        args: &RunArgs,
        files: RunFiles<'_>,
        missing: Missing,
        console: &Console,
    ) -> Result<Self> {
        let RunFiles { arrays, written } = files;
        if args.shape.batch == Some(Batch::Max) {
            return Err(Error::usage("--batch max", "a run takes inputs of one size")
                .with_help("partition MODEL --batch max -o plan.json, then partition run plan.json"));
        }
        let topology = topology(args.exec.devices.as_deref(), args.backend)?;
        check_hosts(&topology, args.exec.simulate_hosts)?;
        let mut options = compile_options(&args.shape, &args.placement)?;
        check_pipeline(options.pipeline.as_ref(), &args.placement)?;
        options.split = split_options(&args.split)?;
        let file = file.taking_all(&args.shape.with_inputs, &options.dims)?.taking(arrays.input_names());
        let mut graph = sized_network(&file, arrays, &mut options, console)?;
        arrays.check_names(&graph)?;
        can_be_written(args, &graph)?;
        let weights = file.weights(&args.shape)?;
        take_weights(&mut graph, &weights, missing, console)?;
        written.are_not_read(weights.paths().chain(files_of(&graph)))?;
        options.model_hash = file.hash();
        options.model_path = file.path.as_ref().map(|path| path.display().to_string());
        Ok(Self { graph, topology: with_profile(topology, &options, console)?, options })
    }
}

/// The network with its dimensions as the options and the inputs' sizes have them. The batch of a step in
/// microbatches stays open: it is the planner that divides it.
fn sized_network(
    file: &ModelFile,
    arrays: &UserArrays,
    options: &mut compile::Options,
    console: &Console,
) -> Result<Graph> {
    let (mut found, mut open) = (BTreeMap::new(), BTreeMap::new());
    let mut is_misfit = false;
    let mut find = |graph: &Graph| -> Result<BTreeMap<String, i64>> {
        let batch = compile::batch_dim(graph);
        let stated = batch.clone().zip(options.batch).into_iter().collect();
        let sizes = arrays.dims(graph, &stated);
        is_misfit = sizes.is_err();
        found = sizes?;
        let mut bound = found.clone();
        if let Some(name) = batch.filter(|_| options.pipeline.is_some()) {
            open.extend(bound.remove_entry(&name));
        }
        Ok(bound)
    };
    let (loaded, all) = match file.load_with(&options.dims, &mut find) {
        Ok(model) => (model, BTreeMap::new()),
        Err(error) if is_misfit => return Err(error),
        Err(error) => read_closed(file, options, &found, error)?,
    };
    let graph = graph_of(file, loaded)?;
    options.dims.extend(all);
    if !found.is_empty() {
        let sizes: Vec<String> = found.iter().map(|(name, size)| format!("{name} = {size}")).collect();
        console.note(&format!("by the sizes of the inputs, {}", sizes.join(", ")));
    }
    note_network(&graph, &found, console);
    found.retain(|name, _| !open.contains_key(name));
    options.dims.extend(found);
    options.bind = open;
    Ok(graph)
}

/// A model that can be read only with all sizes known, those `found` and the batch; and these. Error: `error`, or that
/// such a batch is not divided.
fn read_closed(
    file: &ModelFile,
    options: &compile::Options,
    found: &BTreeMap<String, i64>,
    error: Error,
) -> Result<(Model, BTreeMap<String, i64>)> {
    let mut all = BTreeMap::new();
    let mut bind_all = |graph: &Graph| {
        all = found.clone();
        all.extend(compile::batch_dim(graph).zip(options.batch));
        Ok(all.clone())
    };
    if let Some(parts) = options.pipeline {
        return Err(file.closed_batch(error, parts.microbatches, &options.dims, &mut bind_all));
    }
    // Where sizes are not what is missing, the first error says more.
    let model = file.load_with(&options.dims, &mut bind_all).map_err(|_| error)?;
    Ok((model, all))
}

/// Plans a model for the devices given, the CPU where none are.
fn from_model(
    file: ModelFile,
    args: &RunArgs,
    files: RunFiles<'_>,
    missing: Missing,
    console: &Console,
) -> Result<(Plan, Network)> {
    let name = file.name();
    let Request { graph, topology, options } = Request::new(file, args, files, missing, console)?;
    let compiled = super::planning::planning(&args.placement, console, |control| {
        compile::compile_with(Model::Graph(graph), &topology, &options, control)
            .map_err(|error| error.within(&name))
    })?;
    note_assumptions(&compiled, console);
    let network = compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
    note_rounded(&network.graph, compiled.plan.options.weights_as.as_deref(), console)?;
    Ok((compiled.plan, network))
}

/// Reads a plan, checks it, and lowers its model again.
fn from_plan(
    file: &ModelFile,
    args: &RunArgs,
    files: RunFiles<'_>,
    missing: Missing,
    console: &Console,
) -> Result<(Plan, Network)> {
    let RunFiles { arrays, written } = files;
    let name = file.name();
    let plan = Plan::from_json(&file.bytes, &name)?;
    plan::check(&plan).map_err(|error| error.within(&name))?;
    let path = model_path(&plan, file, args.plan_model.as_deref())?;
    let model =
        ModelFile::of_plan(&plan, &path, args.shape.trust.links()).map_err(|error| error.within(&name))?;
    written.are_not_read(model.path.as_deref())?;
    let options = compile::Options::of_plan(&plan)?;
    types_are_the_plans(args, &plan)?;
    let mut graph = graph_of(&model, model.load(&options.dims)?)?;
    note_network(&graph, &options.dims, console);
    can_be_written(args, &graph)?;
    let weights = model.weights(&args.shape)?;
    take_weights(&mut graph, &weights, missing, console)?;
    written.are_not_read(weights.paths().chain(files_of(&graph)))?;
    compile::check_model(&plan, Model::Graph(graph.clone()), &options)
        .map_err(|error| error.within(&name))?;
    let model = model.taking(arrays.input_names());
    if let Some(input) = model.input_beyond(&graph, &options.dims)? {
        let message = format!("the plan is for the model without its optional input {input}");
        let help = format!("plan the model anew with --with-input {input}");
        return Err(Error::Run(Report::new(name, message).help(help)));
    }
    arrays.check_names(&graph)?;
    let network = compile::prepare(graph, &options)?;
    note_rounded(&network.graph, plan.options.weights_as.as_deref(), console)?;
    Ok((plan, network))
}

/// Error: an option asks for other types than the plan was made for.
fn types_are_the_plans(args: &RunArgs, plan: &Plan) -> Result<()> {
    if let Some(asked) = args.shape.weights_as.map(weights_as)
        && plan.options.weights_as.as_deref() != Some(asked.name())
    {
        let own = plan.options.weights_as.as_deref().unwrap_or("as they are supplied");
        let message = format!("the plan holds weights {own}");
        return Err(
            Error::usage(format!("--weights-as {}", asked.name()), message).with_help("plan the model anew")
        );
    }
    if let Some(half) = half(args.shape.precision)
        && plan.options.precision.as_deref() != Some(half.name())
    {
        let own = plan.options.precision.as_deref().unwrap_or("f32");
        return Err(Error::usage(format!("--precision {half}"), format!("the plan is of {own}"))
            .with_help("plan the model anew"));
    }
    Ok(())
}

fn graph_of(file: &ModelFile, model: Model) -> Result<Graph> {
    match model {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => {
            let message = "a cost graph can be planned, but has no operations to run";
            Err(Error::usage(file.name(), message))
        }
    }
}

/// Error: outputs have names that the file that is asked for cannot hold.
fn can_be_written(args: &RunArgs, graph: &Graph) -> Result<()> {
    let names = graph.outputs().iter().map(|(name, _)| name.as_str());
    match &args.outputs {
        Some(path) => outputs_form(path)?.check_names(names),
        None => Ok(()),
    }
}

/// Outputs by name.
type Outputs = Vec<(String, Tensor)>;

/// Steps that the GPUs' clock times, at most.
const MOST_CLOCKED: u32 = 20;

/// Of so many steps most are warm.
const WARM: u64 = 5;

/// How many reports are kept, however often a plan runs: each tells when each of its steps ran.
fn kept(plan: &Plan) -> usize {
    const TIMES: usize = 1 << 20;
    (TIMES / plan.steps.len().max(1)).clamp(15, 256)
}

/// Runs so many steps, or fewer where it is to stop; what the last one gave.
fn steps(
    program: &mut Ready,
    (mut inputs, rows): (Vec<(String, Tensor)>, Option<i64>),
    count: u32,
    most: usize,
    stop: &AtomicBool,
) -> Result<(Outputs, Sample<RunReport>)> {
    let mut reports = Sample::new(most);
    for step in 0..count {
        if step > 0
            && let Some(rows) = rows
        {
            go_on(&mut inputs, rows)?;
        }
        reports.push(program.step(&inputs, step > 0 && rows.is_none())?);
        if stop.load(Ordering::SeqCst) {
            break;
        }
    }
    Ok((program.outputs()?, reports))
}

/// How many rows each step adds to the caches; none where there are none.
fn rows_of_a_step(graph: &Graph) -> Option<i64> {
    graph.params().iter().find_map(|param| {
        let axis = param.state?.grows? as usize;
        let (_, all) = graph.outputs().get(param.update? as usize)?;
        let rows = *graph.maker(*all).operands.get(2)?;
        graph.ty(rows).shape.sizes().get(axis)?.known()
    })
}

/// The caches are filled by so many rows more.
fn go_on(inputs: &mut [(String, Tensor)], rows: i64) -> Result<()> {
    for (_, value) in inputs.iter_mut().filter(|(name, _)| name == PAST) {
        let filled = value.to_i64().and_then(|values| values.first().copied()).unwrap_or(0);
        *value = Tensor::from_i64(Vec::new(), &[filled + rows])?;
    }
    Ok(())
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
    crate::files::write_atomically_with(path, |out| trace.write(out))
}

/// What a run is said to have done.
#[derive(Serialize)]
struct Ran<'a> {
    steps: u64,
    /// Median over the steps.
    step_ns: u128,
    /// Mean of some steps in a row by the GPUs' clock; none without one.
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
    /// The library of products and its version; none where it is not there, or is not asked. What it computes, and how
    /// many products it was asked for and does not.
    library: Option<&'a str>,
    products: &'a [Product],
    declined: usize,
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

/// What a run came to.
struct Finished<'a> {
    plan: &'a Plan,
    reports: &'a Sample<RunReport>,
    /// By the GPUs' clock, one step.
    clocked: Option<std::time::Duration>,
    comparisons: &'a [Comparison],
    products: Option<&'a Products>,
}

impl Finished<'_> {
    fn ran(&self) -> Ran<'_> {
        let Self { plan, reports, clocked, comparisons, products } = *self;
        let median = median(reports.kept());
        let memory = probe::resident();
        let device = |(index, device): (usize, &crate::run::DeviceReport)| RanDevice {
            device: device.name.clone(),
            steps: device.steps,
            computing_ns: device.computing.as_nanos(),
            copying_ns: device.copying.as_nanos(),
            utilisation: median.utilisation(index),
        };
        let output = |c: &Comparison| RanOutput {
            name: c.name.clone(),
            elements: c.elements,
            wrong: c.wrong,
            max_error: c.max_error,
        };
        Ran {
            steps: reports.seen(),
            step_ns: median.wall.as_nanos(),
            device_ns: clocked.map(|time| time.as_nanos()),
            predicted_ns: plan.cost.latency_ns.get(),
            step_bytes: plan.cost.step_bytes.get(),
            arena_bytes: plan.devices.iter().map(|device| device.arena.get()).sum(),
            resident_bytes: memory.map(|memory| memory.resident.get()),
            code_bytes: memory.map(|memory| memory.code.get()),
            devices: median.devices.iter().enumerate().map(device).collect(),
            outputs: comparisons.iter().map(output).collect(),
            library: products.and_then(|found| found.library.as_deref()),
            products: products.map_or(&[], |found| &found.products),
            declined: products.map_or(0, |found| found.declined),
        }
    }

    fn report(&self, args: &RunArgs, console: &Console) -> Result<()> {
        let ran = self.ran();
        if args.json {
            let text = to_json_pretty(&ran).map_err(|error| Error::Internal(error.to_string()))?;
            return write_stdout(format!("{text}\n").as_bytes());
        }
        if self.comparisons.iter().any(|comparison| comparison.wrong > 0) {
            // The error that follows tells the same.
            return Ok(());
        }
        console.print(&text(&ran, self.plan))?;
        let predicted = Predicted::of(self.plan, median(self.reports.kept()).wall);
        if let Some(advice) = predicted.advice() {
            // The first steps also warm up.
            let is_cold = self.reports.seen() < WARM && predicted.is_slow();
            console.note(if is_cold {
                "the first steps take longer than the others: --steps 10"
            } else {
                &advice
            });
        }
        Ok(())
    }
}

/// A line for the step, then one for each device that took part, and for each output that was compared.
fn text(ran: &Ran<'_>, plan: &Plan) -> String {
    let used = ran.devices.iter().filter(|device| device.steps > 0);
    let hosts = plan.topology.hosts.len();
    let mut text = format!(
        "ran {} {} on {}{}, {:.3} ms each{} (predicted {}), {} moved\n",
        ran.steps,
        if ran.steps == 1 { "step" } else { "steps" },
        counted(used.clone().count(), "device"),
        if hosts > 1 { format!(" of {hosts} hosts, simulated here") } else { String::new() },
        ran.step_ns as f64 / 1e6,
        ran.device_ns
            .map_or(String::new(), |time| format!(" ({:.3} ms by the GPU's clock)", time as f64 / 1e6)),
        plan.cost.latency_ns,
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
    text
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
