//! The table of kernels and what each must reach: `kernels.txt`, which people read too.

use std::collections::BTreeMap;

use partition::unstable::compile::{Options, prepare};
use partition::unstable::ir::{self, DType, Graph};
use partition::unstable::kernel::Grouping;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{self, CONTEXT, GroupOptions, Params, Precision, group};
use partition::unstable::train::{Recipe, Updates, training_step};

/// Networks of which a token's kernels, or those of a training step, are a case.
const NETWORKS: [(&str, &str); 4] = [
    ("gpt2", include_str!("gpt2.json")),
    // As `trainings` of scripts/gpu_cases.py makes them.
    ("conv_stack", include_str!("conv_stack.json")),
    ("norm_stack", include_str!("norm_stack.json")),
    ("pyramid_8000", include_str!("pyramid_8000.json")),
];

/// What the machine code of a case must hold to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Must {
    /// Fewest blocks of its first kernel.
    pub(crate) blocks: Option<u32>,
    /// Least bytes of the accesses that load, and store, most of what is loaded and stored.
    pub(crate) load: Option<u32>,
    pub(crate) store: Option<u32>,
    /// Most instructions of a thread for each element of the largest operand, all kernels together.
    pub(crate) instructions: Option<f64>,
    /// Most instructions for each multiplication of the tensor cores.
    pub(crate) per_tensor: Option<f64>,
    /// Most passes over the banks of shared memory for each that must be.
    pub(crate) conflicts: Option<f64>,
    /// Most bytes of registers that a thread keeps in memory.
    pub(crate) spilled: u32,
    /// How often inputs must come from memory, where that is more than once.
    pub(crate) reads: Option<u32>,
    /// Least share of the time that a copy of as many bytes takes, on either.
    pub(crate) copy: Option<f64>,
    /// Least share of the roofline that is predicted on an H100 and on an H200.
    pub(crate) h100: Option<f64>,
    pub(crate) h200: Option<f64>,
    /// Most microseconds that are predicted on an H100.
    pub(crate) micros: Option<f64>,
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    pub(crate) grouping: Grouping,
    pub(crate) must: Must,
    /// Whether it is a step of a whole network, whose kernels are one line of the table.
    pub(crate) is_step: bool,
}

/// Reads a table: `case NAME`, `must KEY=NUMBER ...`, and lines of the IR's text form, of one source; or in their place
/// `decode NAME context=N`, a token of a decoder in bf16 whose caches hold so many tokens, or `train NAME batch=N`, a
/// training step by the mean squared error and plain descent.
///
/// Error: a line that is not understood, with its number.
pub(crate) fn read(text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    let mut open: Option<(String, Must, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("case ") {
            cases.extend(open.take().map(closed).transpose()?);
            open = Some((name.to_owned(), Must::default(), String::new()));
            continue;
        }
        let Some((_, must, body)) = &mut open else {
            return Err(format!("line {}: no case is open", number + 1));
        };
        match line.strip_prefix("must ") {
            Some(list) => *must = budget(list).map_err(|word| format!("line {}: {word}", number + 1))?,
            None => {
                body.push_str(line);
                if line.starts_with('%') {
                    body.push_str(" @s0");
                }
                body.push('\n');
            }
        }
    }
    cases.extend(open.map(closed).transpose()?);
    Ok(cases)
}

fn closed((name, must, body): (String, Must, String)) -> Result<Case, String> {
    if let Some((kind, network)) = body.trim().split_once(' ').filter(|(kind, _)| STEPS.contains(kind)) {
        let (graph, grouping) = step(kind, network).map_err(|error| format!("{name}: {error}"))?;
        return Ok(Case { name, graph, grouping, must, is_step: true });
    }
    let text = format!("graph \"{name}\"\n\nsource s0 node \"n\" \"N\"\n\n{body}");
    let mut graph = ir::text::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    pass::fuse(&mut graph, &[]).map_err(|error| format!("{name}: {error}"))?;
    let grouping = group(&graph, &GroupOptions::default());
    Ok(Case { name, graph, grouping, must, is_step: false })
}

/// What a line of a whole network's step begins with.
const STEPS: [&str; 2] = ["decode", "train"];

/// A step of a network, `NAME KEY=N`, and its groups.
fn step(kind: &str, network: &str) -> Result<(Graph, Grouping), String> {
    let (name, size) = network.split_once(' ').ok_or("no size")?;
    let number = |key: &str| size.strip_prefix(key).and_then(|number| number.parse::<i64>().ok());
    let (_, text) = NETWORKS.iter().find(|(known, _)| *known == name).ok_or("the network is not known")?;
    let place = |error: partition::Error| error.to_string();
    let Model::Graph(graph) = load(text.as_bytes(), None, &LoadOptions::default()).map_err(place)? else {
        return Err("no network".to_owned());
    };
    match kind {
        "decode" => token(&graph, number("context=").ok_or("no context=")?).map_err(place),
        _ => trained(graph, number("batch=").ok_or("no batch=")?).map_err(place),
    }
}

/// The network of one token.
fn token(graph: &Graph, context: i64) -> partition::Result<(Graph, Grouping)> {
    let mut cached = pass::cached(graph)?;
    let one = cached.dims().iter().filter(|dim| dim.name != CONTEXT).map(|dim| (dim.name.clone(), 1));
    let bound: BTreeMap<String, i64> = one.chain([(CONTEXT.to_owned(), context)]).collect();
    cached.bind(&bound)?;
    let precision = Some(Precision { half: DType::Bf16, params: Params::Rounded });
    let network = prepare(cached, &Options { precision, ..Options::default() })?;
    Ok((network.graph, network.grouping))
}

/// A training step in f32.
fn trained(mut graph: Graph, batch: i64) -> partition::Result<(Graph, Grouping)> {
    let bound = graph.dims().iter().map(|dim| (dim.name.clone(), batch)).collect();
    graph.bind(&bound)?;
    let recipe = Recipe {
        loss: "mse".parse()?,
        updates: Updates::default(),
        freeze: vec![],
        scaling: None,
        outputs: false,
    };
    let network = prepare(training_step(graph, &recipe)?.graph, &Options::default())?;
    Ok((network.graph, network.grouping))
}

fn budget(list: &str) -> Result<Must, String> {
    let mut must = Must::default();
    for word in list.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(word)?;
        let number: f64 = value.parse().map_err(|_| word.to_owned())?;
        match key {
            "blocks" => must.blocks = Some(number as u32),
            "load" => must.load = Some(number as u32),
            "store" => must.store = Some(number as u32),
            "instructions" => must.instructions = Some(number),
            "per_tensor" => must.per_tensor = Some(number),
            "conflicts" => must.conflicts = Some(number),
            "spilled" => must.spilled = number as u32,
            "micros" => must.micros = Some(number),
            "reads" => must.reads = Some(number as u32),
            "copy" => must.copy = Some(number),
            "h100" => must.h100 = Some(number),
            "h200" => must.h200 = Some(number),
            _ => return Err(word.to_owned()),
        }
    }
    Ok(must)
}
