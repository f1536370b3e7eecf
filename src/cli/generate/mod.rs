//! `partition generate`: goes on from a prompt, token by token.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::Value;

use super::generate_args::GenerateArgs;
use super::model::ModelFile;
use super::options::duration;
use super::run::init_seed;
use super::sampling::Sampling;
use super::shared_cores::{shared_cores, used};
use super::signals;
use super::terminal::Console;
use super::tokens;
use super::weights::{note_rounded, weight};
use crate::error::{Error, Report, Result};
use crate::ir::ParamId;
use crate::load::weights::ParamReader;
use crate::load::{Format, Model, recognise};
use crate::pass;
use crate::random::Rng;
use crate::run::{Decoder, ExecOptions};

use request::{Planned, Request, network, on_cpus, tokens_of};
use rules::{Rules, SoFar};
use told::Told;
use writing::Writing;

#[cfg(feature = "tokenizer")]
mod named_tokens;
mod request;
mod rules;
#[cfg_attr(not(feature = "tokenizer"), path = "no_tokenizer.rs")]
mod tokenizer;
mod told;
mod writing;

pub(super) fn generate(args: &GenerateArgs, console: &Console) -> Result<()> {
    check_sampling(args)?;
    let file = ModelFile::read(&args.model, args.shape.trust.links())?;
    let (mut writing, prompt) = Writing::of(args, &file, console)?;
    let longest = longest(args, &file, console)?;
    if prompt.len() as i64 > longest {
        let message = format!("the prompt has {} tokens, and the context holds {longest}", prompt.len());
        return Err(Error::usage("--context", message).with_help("a larger --context, or a shorter prompt"));
    }
    let mut text = Text::new(args, &file, prompt, console)?;
    let request = Request::new(args, file, longest, console)?;
    let flag = if args.prompt.is_some() { "--prompt" } else { "--tokens" };
    request.expect_known(&text.tokens, flag)?;
    let request = match request.graph.rules().short_context {
        // As long as the text is short it has the network of short texts.
        Some(short) if text.tokens.len() as i64 <= short => {
            let request = Request::new(args, request.file, short, console)?;
            if text.goes_on(args, &request, &mut writing, console)? {
                return text.end(&writing, console);
            }
            Request::new(args, request.file, longest, console)?
        }
        _ => request,
    };
    let has_ended = text.goes_on(args, &request, &mut writing, console)?;
    text.end(&writing, console)?;
    if !has_ended {
        console.note(&format!("the context of {longest} tokens is full: --context N makes it larger"));
    }
    Ok(())
}

/// Error: a share that is none, or one that is asked for where nothing is drawn.
fn check_sampling(args: &GenerateArgs) -> Result<()> {
    let asked = [("--top-k", args.top_k.is_some_and(|count| count > 0)), ("--top-p", args.top_p.is_some())];
    if args.top_p.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        return Err(Error::usage("--top-p", "expected a probability above 0, at most 1"));
    }
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        return Err(Error::usage("--temperature", "expected a number of at least 0"));
    }
    match asked.into_iter().find(|&(_, is_asked)| is_asked && args.temperature == 0.0) {
        Some((flag, _)) => {
            Err(Error::usage(flag, "without --temperature the likeliest token is taken, none is drawn")
                .with_help("--temperature 1"))
        }
        None => Ok(()),
    }
}

/// How many tokens the caches hold: as asked for, or as many as the model's positions.
fn longest(args: &GenerateArgs, file: &ModelFile, console: &Console) -> Result<i64> {
    if let Some(context) = args.shape.context {
        return Ok(context);
    }
    let Some((count, field)) = tokens::longest(file) else {
        // What is wrong with the model itself is told first.
        let model = file.load_sized(&mut BTreeMap::new(), Some(1), &mut |_| Ok(BTreeMap::new()))?;
        let graph = network(model, file)?;
        pass::sequence(&graph).map_err(|error| error.within(&file.name()))?;
        tokens_of(&graph, file)?;
        return Err(Error::usage("--context", "the model does not say how many tokens it takes")
            .with_help("--context N: how many tokens prompt and text have together"));
    };
    let count = limit_of_network(file)?.map_or(count, |limit| count.min(limit));
    console.note(&format!("a context of {count} tokens, the model's {field}; --context N takes another"));
    Ok(count)
}

/// The most tokens that a network made of a configuration takes: some number their positions from beyond the padding token.
fn limit_of_network(file: &ModelFile) -> Result<Option<i64>> {
    if recognise(&file.bytes).ok() != Some(Format::Transformers) {
        return Ok(None);
    }
    let Model::Graph(graph) = file.load(&BTreeMap::new())? else { return Ok(None) };
    let limit = |dim| graph.rules().dims.get(graph.dim_name(dim)).map(|limit| limit.count);
    Ok(pass::sequence(&graph).ok().and_then(limit))
}

/// How many tokens are generated, where nothing else is asked for.
const MOST_TOKENS: usize = 128;

/// The most tokens to generate, where the command line does not say.
fn most_tokens(stated: &Value, prompt: usize, console: &Console) -> Result<usize> {
    let Some((count, field)) = tokens::most(stated, prompt)? else { return Ok(MOST_TOKENS) };
    console.note(&format!(
        "{count} tokens at most, by the model's {field}; --max-tokens N takes another number"
    ));
    Ok(count)
}

/// A text that is being written.
struct Text {
    /// The prompt, and what was generated.
    tokens: Vec<i64>,
    /// How many of them are the prompt.
    prompt: usize,
    /// What the model's files demand of the next one.
    rules: Rules,
    /// How many more there may be.
    left: usize,
    /// Those at which it ends.
    ends: BTreeSet<i64>,
    sampling: Sampling,
    /// What is told of each plan that it was written with, once it ends.
    told: Vec<String>,
}

impl Text {
    /// Begins with a prompt, by the rules of the model's files; what these say and is not done is told.
    ///
    /// Error: files that are damaged, or fields of values that they cannot have.
    fn new(args: &GenerateArgs, file: &ModelFile, prompt: Vec<i64>, console: &Console) -> Result<Self> {
        let stated = tokens::generation(file)?;
        tokens::unheeded(&stated).iter().for_each(|line| console.note(line));
        if let Some(options) = tokens::drawn(&stated).filter(|_| args.temperature == 0.0) {
            console.note(&format!("the likeliest tokens are taken; the model's files draw them: {options}"));
        }
        let left = match args.max_tokens {
            Some(count) => count,
            None => most_tokens(&stated, prompt.len(), console)?,
        };
        Ok(Self {
            prompt: prompt.len(),
            tokens: prompt,
            rules: Rules::of(&stated)?,
            left,
            ends: tokens::ends(file)?,
            sampling: Sampling {
                temperature: args.temperature,
                top_k: args.top_k.filter(|&count| count > 0),
                top_p: args.top_p,
                random: Rng::new(args.placement.seed),
            },
            told: Vec::new(),
        })
    }

    /// Plans, loads and generates; false where the caches are full before the text ends.
    fn goes_on(
        &mut self,
        args: &GenerateArgs,
        request: &Request,
        writing: &mut Writing,
        console: &Console,
    ) -> Result<bool> {
        let decode = request.decoding(console)?;
        if let Some(line) = shared_cores(&decode.plan.topology, used(&decode.plan)) {
            console.note(&line);
        }
        on_cpus(&decode.plan, args)?;
        note_rounded(&decode.network.graph, decode.plan.options.weights_as.as_deref(), console)?;
        let prefill = request.prefill(args.block.min(self.tokens.len()), &decode, console)?;
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
        let prompt = (self.tokens.len(), decoder.take(&self.tokens)?);
        let mut told = Told { prompt, ..Told::default() };
        let start = Instant::now();
        let is_over = self.write(&mut decoder, writing, &mut told)?;
        told.wall = start.elapsed();
        writing.pause()?;
        self.told.push(told.line(&decode.plan));
        signals::check()?;
        Ok(is_over)
    }

    /// Ends its line, and tells how fast it was written.
    fn end(&self, writing: &Writing, console: &Console) -> Result<()> {
        writing.end()?;
        self.told.iter().for_each(|line| console.note(line));
        Ok(())
    }

    /// Generates until the text ends, there are enough tokens, or the caches are full: then false.
    fn write(&mut self, decoder: &mut Decoder<'_>, writing: &mut Writing, told: &mut Told) -> Result<bool> {
        while self.left > 0 {
            let mut scores = decoder.scores().to_vec();
            let (tokens, is_last) = (&self.tokens, self.left == 1);
            let so_far = SoFar { tokens, prompt: self.prompt, ends: &self.ends, is_last };
            self.rules.apply(so_far, &mut scores);
            let Some(token) = self.sampling.next(&scores) else {
                return Err(not_numbers(told.tokens + 1));
            };
            let token = token as i64;
            let is_end = self.ends.contains(&token);
            writing.token(token, is_end)?;
            self.tokens.push(token);
            self.left -= 1;
            told.tokens += 1;
            signals::check()?;
            if is_end || self.left == 0 {
                break;
            }
            if !decoder.has_room() {
                return Ok(false);
            }
            told.steps.push(decoder.take(&[token])?);
        }
        Ok(true)
    }
}

/// The scores by which the `number`th token would be chosen are not numbers.
fn not_numbers(number: usize) -> Error {
    let help = "weights that are not finite make such scores, and f16 does where numbers are large: --precision bf16";
    let message = format!("the scores of token {number} are not numbers (NaN)");
    Error::Run(Report::new("generate", message).help(help))
}
