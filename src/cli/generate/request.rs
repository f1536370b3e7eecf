//! What is generated with: a decoder, and its plans of single tokens and of blocks of them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::args::{Backend, PlacementArgs};
use super::super::generate_args::GenerateArgs;
use super::super::machine::{Real, check_hosts, targets, topology};
use super::super::model::ModelFile;
use super::super::notes::note_network;
use super::super::options::{compile_options, with_profile};
use super::super::planning::planning;
use super::super::terminal::Console;
use super::super::weights::{Missing, take_weights};
use crate::compile::{self, Network};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Op, SourceRole};
use crate::load::Model;
use crate::pass::{self, CONTEXT};
use crate::plan::Plan;
use crate::run::{ExecPlan, MASK, POSITIONS, Phase, exec_plan};
use crate::topology::Topology;

/// What is generated with.
pub(super) struct Request {
    pub(super) file: ModelFile,
    pub(super) graph: Graph,
    topology: Topology,
    options: compile::Options,
    pub(super) context: usize,
    /// The name of the dimension along which tokens stand, and that of their input.
    sequence: Option<String>,
    tokens: String,
    placement: PlacementArgs,
}

/// A plan of the decoder.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) network: Network,
    exec: ExecPlan,
    tokens: String,
    block: usize,
}

impl Planned {
    pub(super) fn phase(&self) -> Phase<'_> {
        Phase {
            graph: &self.network.graph,
            grouping: &self.network.grouping,
            plan: &self.exec,
            tokens: &self.tokens,
            block: self.block,
        }
    }
}

/// The network of a model. Error: it is a graph of costs.
pub(super) fn network(model: Model, file: &ModelFile) -> Result<Graph> {
    match model {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => Err(Error::usage(file.name(), "a cost graph has no operations to run")),
    }
}

/// Error: a size is given of the dimension along which tokens stand.
fn expect_open(file: &ModelFile, dims: &BTreeMap<String, i64>) -> Result<()> {
    if dims.is_empty() {
        return Ok(());
    }
    let model = file.load_sized(&mut BTreeMap::new(), Some(1), &mut |_| Ok(BTreeMap::new()))?;
    let graph = network(model, file)?;
    let sequence = pass::sequence(&graph).ok().map(|dim| graph.dim_name(dim));
    match sequence.filter(|name| dims.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let message = "prompt and text have the length that they have";
            Err(Error::usage(format!("--dim {name}"), message)
                .with_help("leave it out; --context N is the most"))
        }
    }
}

/// The name of the input of tokens. Error: there are others beside it, or none.
pub(super) fn tokens_of(graph: &Graph, file: &ModelFile) -> Result<String> {
    let is_tokens = |name: &&String| ![pass::PAST, MASK, POSITIONS].contains(&name.as_str());
    let names: Vec<&String> = graph.inputs().iter().map(|(name, _)| name).filter(is_tokens).collect();
    if let [tokens] = names[..] {
        return Ok(tokens.clone());
    }
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    let message = format!("expected tokens as the only input, found {}", names.join(", "));
    Err(Error::usage(file.name(), message))
}

impl Request {
    /// With caches of so many tokens. Errors: those of reading the model; a batch.
    pub(super) fn new(args: &GenerateArgs, file: ModelFile, context: i64, console: &Console) -> Result<Self> {
        let divided =
            [("--batch", args.shape.batch.is_some()), ("--microbatches", args.shape.microbatches.is_some())];
        if let Some((option, _)) = divided.into_iter().find(|&(_, is_given)| is_given) {
            return Err(Error::usage(option, "one sequence is generated").with_help("leave it out"));
        }
        let mut options = compile_options(&args.shape, &args.placement)?;
        expect_open(&file, &options.dims)?;
        options.dims.insert(CONTEXT.to_owned(), context);
        let topology = topology(args.exec.devices.as_deref(), Backend::Auto)?;
        check_hosts(&topology, args.exec.simulate_hosts)?;
        // A network that has to know its batch to be read is read for one sequence.
        let model = file.load_sized(&mut options.dims, Some(1), &mut |_| Ok(BTreeMap::new()))?;
        let mut graph = network(model, &file)?;
        note_network(&graph, &options.dims, console);
        let sequence = pass::sequence(&graph).ok().map(|dim| graph.dim_name(dim).to_owned());
        let tokens = tokens_of(&graph, &file)?;
        let missing = if args.exec.init.is_some() { Missing::MadeUp } else { Missing::Refused };
        let weights = file.weights(&args.shape)?;
        take_weights(&mut graph, &weights, missing, console)?;
        options.model_hash = file.hash();
        let topology = with_profile(topology, &options, console)?;
        let (context, placement) = (context as usize, args.placement.clone());
        Ok(Self { file, graph, topology, options, context, sequence, tokens, placement })
    }

    /// Error: a token that no row of the model's table of embeddings is for.
    pub(super) fn expect_known(&self, tokens: &[i64], flag: &str) -> Result<()> {
        let Some(size) = self.vocabulary() else { return Ok(()) };
        match tokens.iter().find(|token| !(0..size).contains(*token)) {
            None => Ok(()),
            Some(token) => {
                let message = format!("token {token} is outside the model's vocabulary of {size}");
                let help = "tokens of the tokenizer that belongs to the model";
                Err(Error::usage(flag, message).with_help(help))
            }
        }
    }

    /// Rows of the table that tokens choose from; none where they are not used so.
    fn vocabulary(&self) -> Option<i64> {
        let graph = &self.graph;
        let (_, input) = graph.inputs().iter().find(|(name, _)| *name == self.tokens)?;
        let mut tokens = BTreeSet::from([*input]);
        // Nodes stand in an order in which operands come first.
        for id in graph.node_ids() {
            let node = graph.node(id);
            let reads_tokens = |operand: usize| tokens.contains(&node.operands[operand]);
            if matches!(node.op, Op::Convert { .. }) && reads_tokens(0) {
                tokens.insert(node.first_result);
            } else if let Op::Gather { axis } = node.op
                && reads_tokens(1)
            {
                return graph.ty(node.operands[0]).shape[axis as usize].known();
            }
        }
        None
    }

    /// Plans steps of single tokens: of whole operations where those fit, as blocks then have a plan beside it.
    pub(super) fn decoding(&self, console: &Console) -> Result<Planned> {
        let mut options = self.of_block(1);
        let may_split = std::mem::replace(&mut options.split.auto, false);
        match self.planned(1, self.graph.clone(), &options, console) {
            Err(Error::Infeasible(_)) if may_split => {
                // In parts it is not seen any more what attention reads.
                follows_order(&compile::prepare(self.graph.clone(), &options)?.graph, &self.file.name())?;
                options.split.auto = true;
                self.planned(1, self.graph.clone(), &options, console)
            }
            planned => planned,
        }
    }

    /// Plans steps of so many tokens, every node where that of single ones has it.
    fn beside(&self, block: usize, decode: &Plan, console: &Console) -> Result<Planned> {
        let (mut graph, mut options) = (self.graph.clone(), self.of_block(block));
        pin(&mut graph, decode);
        options.place.pins.clear();
        options.place.devices = crate::place::DeviceUse::Auto;
        options.split.auto = false;
        self.planned(block, graph, &options, console)
    }

    fn of_block(&self, block: usize) -> compile::Options {
        let mut options = self.options.clone();
        if let Some(sequence) = &self.sequence {
            options.bind.insert(sequence.clone(), block as i64);
        }
        options
    }

    fn planned(
        &self,
        block: usize,
        graph: Graph,
        options: &compile::Options,
        console: &Console,
    ) -> Result<Planned> {
        let compiled = planning(&self.placement, console, |control| {
            compile::compile_with(Model::Graph(graph), &self.topology, options, control)
        });
        let compiled = compiled.map_err(|error| error.within(&self.file.name()))?;
        let network =
            compiled.network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
        follows_order(&network.graph, &self.file.name())?;
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping)?;
        Ok(Planned { plan: compiled.plan, network, exec, tokens: self.tokens.clone(), block })
    }

    /// The plan that takes the prompt: of as many tokens as fit, at most a block; none for a single token.
    pub(super) fn prefill(
        &self,
        block: usize,
        decode: &Planned,
        console: &Console,
    ) -> Result<Option<Planned>> {
        // Where operations are split, caches lie in slices that the other plan does not know.
        if self.sequence.is_none() || !decode.plan.options.splits.is_empty() {
            return Ok(None);
        }
        let mut block = block.min(self.context);
        while block > 1 {
            match self.beside(block, &decode.plan, console) {
                Ok(planned) => return Ok(Some(planned)),
                Err(Error::Infeasible(_)) => block /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
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
        .filter(|param| param.state.is_some_and(|state| state.grows.is_some()))
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
pub(super) fn on_cpus(plan: &Plan, args: &GenerateArgs) -> Result<()> {
    let real = targets(plan, &args.map, Backend::Auto)?;
    if real.iter().all(|real| *real == Real::Cpu) {
        return Ok(());
    }
    let report = Report::new("--devices", "text is generated on CPUs alone so far");
    Err(Error::Unsupported(report.help("--map cuda0=cpu:0 runs the plan on the CPU")))
}
