//! `partition generate`: goes on from a prompt, token by token.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::args::Backend;
use super::generate_args::GenerateArgs;
use super::machine::{Real, check_hosts, targets, topology};
use super::model::ModelFile;
use super::notes::note_network;
use super::options::{compile_options, duration, with_profile};
use super::planning::planning;
use super::run::init_seed;
use super::sampling::Sampling;
use super::shared_cores::{shared_cores, used};
use super::signals;
use super::terminal::{Console, write_stdout};
use super::tokens;
use super::weights::{Missing, take_weights, weight};
use crate::compile::{self, Network};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Op, ParamId, SourceRole};
use crate::load::Model;
use crate::load::weights::ParamReader;
use crate::pass::{self, CONTEXT};
use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Decoder, ExecOptions, ExecPlan, MASK, POSITIONS, Phase, exec_plan};
use crate::topology::Topology;

pub(super) fn generate(args: &GenerateArgs, console: &Console) -> Result<()> {
    let file = ModelFile::read(&args.model, args.shape.trust.links())?;
    let prompt = &args.tokens;
    let request = Request::new(args, file, prompt, console)?;
    let ends = tokens::ends(&request.file)?;
    let decode = request.planned(1, None, console)?;
    if let Some(line) = shared_cores(&decode.plan.topology, used(&decode.plan)) {
        console.note(&line);
    }
    on_cpus(&decode.plan, args)?;
    let prefill = request.prefill(args.block.min(prompt.len()), &decode, console)?;
    let seed = args.exec.init.as_deref().map(init_seed).transpose()?;
    let reader = RefCell::new(ParamReader::new());
    let network = &decode.network;
    let weights = |param: ParamId| weight(&network.graph, param, &mut reader.borrow_mut(), seed);
    let timeout = args.exec.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
    let options = || ExecOptions { timeout, ..ExecOptions::default() };
    let mut decoder = {
        let _working = console.working("loading weights");
        let prefill = prefill.as_ref().map(Planned::phase);
        Decoder::new(decode.phase(), prefill, request.context, &weights, options)?
    };
    let mut told = Told { prompt: (prompt.len(), decoder.take(prompt)?), ..Told::default() };
    let mut sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        random: Rng::new(args.placement.seed),
    };
    let start = Instant::now();
    let mut out = Out::default();
    write_on(args.max_tokens, &ends, (&mut decoder, &mut sampling), &mut out, &mut told)?;
    told.wall = start.elapsed();
    out.end()?;
    if told.is_full {
        console
            .note(&format!("the context of {} tokens is full: --context N makes it larger", request.context));
    }
    told.tell(&decode.plan, console);
    signals::check()
}

/// Generates until the text ends, there are enough tokens, or the caches are full.
fn write_on(
    most: usize,
    ends: &BTreeSet<i64>,
    (decoder, sampling): (&mut Decoder<'_>, &mut Sampling),
    out: &mut Out,
    told: &mut Told,
) -> Result<()> {
    for number in 1..=most {
        let token = sampling.next(decoder.scores()) as i64;
        let is_end = ends.contains(&token);
        out.token(token)?;
        told.tokens = number;
        signals::check()?;
        if is_end || number == most {
            break;
        }
        told.is_full = !decoder.has_room();
        if told.is_full {
            break;
        }
        told.steps.push(decoder.take(&[token])?);
    }
    Ok(())
}

/// Tokens on stdout, as they come.
#[derive(Default)]
struct Out {
    count: usize,
}

impl Out {
    fn token(&mut self, token: i64) -> Result<()> {
        let comma = if self.count == 0 { "" } else { "," };
        self.count += 1;
        write_stdout(format!("{comma}{token}").as_bytes())
    }

    fn end(&self) -> Result<()> {
        write_stdout(b"\n")
    }
}

/// What is told at the end.
#[derive(Default)]
struct Told {
    prompt: (usize, Duration),
    tokens: usize,
    steps: Vec<Duration>,
    wall: Duration,
    is_full: bool,
}

impl Told {
    fn tell(mut self, plan: &Plan, console: &Console) {
        let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
        let (count, time) = self.prompt;
        let mut line = format!("prompt: {count} tokens, {:.1} tokens/s", rate(count, time));
        if !self.steps.is_empty() {
            let steps = self.steps.len();
            self.steps.sort_unstable();
            let median = self.steps[steps / 2];
            let predicted = 1e9 / plan.cost.latency_ns.get().max(1) as f64;
            line += &format!(
                "; generated: {} tokens, {:.1} tokens/s (median step {:.1}/s, predicted {predicted:.1}/s), {} moved per token",
                self.tokens,
                rate(steps, self.wall),
                rate(1, median),
                plan.cost.step_bytes
            );
        }
        console.note(&line);
    }
}

/// What is generated with.
struct Request {
    file: ModelFile,
    graph: Graph,
    topology: Topology,
    options: compile::Options,
    context: usize,
    /// The name of the dimension along which tokens stand, and that of their input.
    sequence: Option<String>,
    tokens: String,
    placement: super::args::PlacementArgs,
}

/// A plan of the decoder.
struct Planned {
    plan: Plan,
    network: Network,
    exec: ExecPlan,
    tokens: String,
    block: usize,
}

impl Planned {
    fn phase(&self) -> Phase<'_> {
        Phase {
            graph: &self.network.graph,
            grouping: &self.network.grouping,
            plan: &self.exec,
            tokens: &self.tokens,
            block: self.block,
        }
    }
}

impl Request {
    /// Errors: those of reading the model; a batch; a context that is unknown or too short.
    fn new(args: &GenerateArgs, file: ModelFile, prompt: &[i64], console: &Console) -> Result<Self> {
        if args.shape.batch.is_some() || args.shape.microbatches.is_some() {
            return Err(Error::usage("--batch", "one sequence is generated"));
        }
        let mut options = compile_options(&args.shape, &args.placement)?;
        let context = context(args, &file, console)?;
        if prompt.len() as i64 > context {
            let message = format!("the prompt has {} tokens, and the context holds {context}", prompt.len());
            return Err(
                Error::usage("--context", message).with_help("a larger --context, or a shorter prompt")
            );
        }
        options.dims.insert(CONTEXT.to_owned(), context);
        let topology = topology(args.exec.devices.as_deref(), Backend::Auto)?;
        check_hosts(&topology, args.exec.simulate_hosts)?;
        let Model::Graph(mut graph) = file.load(&options.dims)? else {
            return Err(Error::usage(file.name(), "a cost graph has no operations to run"));
        };
        note_network(&graph, &options.dims, console);
        let sequence = pass::sequence(&graph).ok().map(|dim| graph.dim_name(dim).to_owned());
        let is_tokens = |name: &&String| ![pass::PAST, MASK, POSITIONS].contains(&name.as_str());
        let names: Vec<&String> = graph.inputs().iter().map(|(name, _)| name).filter(is_tokens).collect();
        let [tokens] = names[..] else {
            let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
            let message = format!("expected tokens as the only input, found {}", names.join(", "));
            return Err(Error::usage(file.name(), message));
        };
        let tokens = tokens.clone();
        let missing = if args.exec.init.is_some() { Missing::MadeUp } else { Missing::Refused };
        let weights = file.weights(args.shape.weights.as_deref())?;
        take_weights(&mut graph, weights.as_deref(), missing, console)?;
        options.model_hash = file.hash();
        let topology = with_profile(topology, &options)?;
        let (context, placement) = (context as usize, args.placement.clone());
        Ok(Self { file, graph, topology, options, context, sequence, tokens, placement })
    }

    /// Plans steps of so many tokens; with `like`, every node where that plan has it.
    fn planned(&self, block: usize, like: Option<&Plan>, console: &Console) -> Result<Planned> {
        let mut graph = self.graph.clone();
        if let Some(like) = like {
            pin(&mut graph, like);
        }
        let mut options = self.options.clone();
        if let Some(sequence) = &self.sequence {
            options.bind.insert(sequence.clone(), block as i64);
        }
        if like.is_some() {
            options.place.pins.clear();
            options.place.devices = crate::place::DeviceUse::Auto;
        }
        let compiled = planning(&self.placement, console, |control| {
            compile::compile_with(Model::Graph(graph), &self.topology, &options, control)
        });
        let compiled = compiled.map_err(|error| error.within(&self.file.name()))?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        follows_order(&network.graph, &self.file.name())?;
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping)?;
        Ok(Planned { plan: compiled.plan, network, exec, tokens: self.tokens.clone(), block })
    }

    /// The plan that takes the prompt: of as many tokens as fit, at most a block; none for a single token.
    fn prefill(&self, block: usize, decode: &Planned, console: &Console) -> Result<Option<Planned>> {
        if self.sequence.is_none() {
            return Ok(None);
        }
        let mut block = block.min(self.context);
        while block > 1 {
            match self.planned(block, Some(&decode.plan), console) {
                Ok(planned) => return Ok(Some(planned)),
                Err(Error::Infeasible(_)) => block /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// How many tokens the caches hold: as asked for, or as many as the model's positions.
fn context(args: &GenerateArgs, file: &ModelFile, console: &Console) -> Result<i64> {
    if let Some(context) = args.shape.context {
        return Ok(context);
    }
    let Some((count, field)) = tokens::longest(file) else {
        return Err(Error::usage("--context", "the model does not say how many tokens it takes")
            .with_help("--context N: how many tokens prompt and text have together"));
    };
    console.note(&format!("a context of {count} tokens, the model's {field}; --context N takes another"));
    Ok(count)
}

/// Sets every node where a plan has it.
fn pin(graph: &mut Graph, like: &Plan) {
    let devices: std::collections::BTreeMap<&str, &str> =
        like.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect();
    for number in 0..graph.sources().len() as u32 {
        let source = graph.source_mut(crate::ir::SourceId(number));
        if source.role == SourceRole::Node
            && let Some(device) = devices.get(source.name.as_str())
        {
            source.pin = Some((*device).to_owned());
        }
    }
}

/// Error: an attention reads a cache and does not tell which keys come later.
fn follows_order(graph: &Graph, name: &str) -> Result<()> {
    let states: BTreeSet<u32> = graph
        .params()
        .iter()
        .filter(|param| param.state.is_some())
        .filter_map(|param| {
            let (_, value) = graph.outputs().get(param.update? as usize)?;
            Some(value.0)
        })
        .collect();
    let reads = |op: &Op, operands: &[crate::ir::ValueId]| match op {
        Op::Attention(of) => !of.positioned && operands[1..3].iter().any(|value| states.contains(&value.0)),
        _ => false,
    };
    let found = graph.node_ids().map(|id| graph.node(id)).find(|node| reads(&node.op, &node.operands));
    let Some(node) = found else { return Ok(()) };
    let place = format!("{name}: node {}", graph.source(node.source).name);
    let message = "its attention is not seen to keep to earlier tokens";
    Err(Error::Unsupported(Report::new(place, message)))
}

/// Error: a device of the plan is none of the CPU.
fn on_cpus(plan: &Plan, args: &GenerateArgs) -> Result<()> {
    let real = targets(plan, &args.map, Backend::Auto)?;
    if real.iter().all(|real| *real == Real::Cpu) {
        return Ok(());
    }
    let report = Report::new("--devices", "text is generated on CPUs alone so far");
    Err(Error::Unsupported(report.help("--map cuda0=cpu:0 runs the plan on the CPU")))
}
