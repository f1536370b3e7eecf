//! A decoder that is run token by token: two plans over one state.
//!
//! The prompt goes through one plan block by block, what is generated through the other, a token a step. Both
//! have the same parameters and caches at the same places of the same arenas; which of the two runs is decided
//! here, so that they never run at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::packing::{Form, Packing};
use super::{ExecBuffer, ExecOptions, ExecPlan, Program, Weights};
use crate::error::{Error, Result};
use crate::ir::{DType, Graph, Op, Param, Tensor};
use crate::kernel::Grouping;
use crate::pass::PAST;

/// The input that says which tokens count: those so far.
pub const MASK: &str = "attention_mask";
/// The input that says which place of the sequence each token has.
pub const POSITIONS: &str = "position_ids";

/// A plan of the decoder and its network.
#[derive(Clone, Copy)]
pub struct Phase<'a> {
    /// The network.
    pub graph: &'a Graph,
    /// Its groups.
    pub grouping: &'a Grouping,
    /// The plan.
    pub plan: &'a ExecPlan,
    /// The name of the tokens' input.
    pub tokens: &'a str,
    /// Tokens of a step.
    pub block: usize,
}

/// A program with the tokens of a step.
struct Part<'a> {
    program: Program,
    graph: &'a Graph,
    tokens: String,
    block: usize,
    /// Whether it has positions and the number of earlier tokens as inputs.
    takes: [bool; 2],
    /// The width of its mask, where it has one.
    mask: Option<usize>,
}

impl<'a> Part<'a> {
    fn new(program: Program, phase: &Phase<'a>) -> Self {
        let has = |wanted: &str| phase.graph.inputs().iter().any(|(name, _)| name == wanted);
        let (tokens, block) = (phase.tokens.to_owned(), phase.block);
        let takes = [has(POSITIONS), has(PAST)];
        let mask = phase.graph.inputs().iter().find(|(name, _)| name == MASK);
        let mask = mask.and_then(|(_, value)| phase.graph.ty(*value).shape.dims()?.last().copied());
        let mask = mask.map(|width| width.unsigned_abs() as usize);
        Self { program, graph: phase.graph, tokens, block, takes, mask }
    }
}

/// A decoder and how far its caches are filled.
pub struct Decoder<'a> {
    step: Part<'a>,
    prompt: Option<Part<'a>>,
    filled: usize,
    context: usize,
    /// Whether every token counts: a state of a fixed size follows those that only fill a block up, too.
    counts_all: bool,
    /// Scores of the vocabulary behind the last token.
    scores: Vec<f32>,
    /// Whether the prompt's plan ran last.
    is_in_prompt: bool,
}

impl<'a> Decoder<'a> {
    /// Allocates and loads. `prompt` is left out where its parameters and caches are not as those of `decode`.
    ///
    /// Errors: those of [`Program::new`].
    pub fn new(
        decode: Phase<'a>,
        prompt: Option<Phase<'a>>,
        context: usize,
        weights: Weights<'_>,
        options: impl Fn() -> ExecOptions,
    ) -> Result<Self> {
        let plain = prompt.as_ref().map(|prompt| alike(&decode, prompt));
        let prompt = prompt.filter(|_| matches!(plain, Some(Some(_))));
        let plain = plain.flatten().unwrap_or_default();
        let options = || ExecOptions { plain: plain.clone(), ..options() };
        let (own, other) = as_large(decode.plan, prompt.map(|prompt| prompt.plan));
        let program = Program::new(decode.graph, &decode.grouping.all_fused(), &own, weights, options())?;
        let prompt = match (prompt, other) {
            (Some(phase), Some(plan)) => {
                let groups = phase.grouping.all_fused();
                let program = program.beside(phase.graph, &groups, &plan, options())?;
                Some(Part::new(program, &phase))
            }
            _ => None,
        };
        let step = Part::new(program, &decode);
        // The program that was made last has put its constants there.
        let is_in_prompt = prompt.is_some();
        let is_fixed = |param: &Param| param.state.is_some_and(|state| state.grows.is_none());
        let counts_all = decode.graph.params().iter().any(is_fixed);
        Ok(Self { step, prompt, filled: 0, context, counts_all, scores: Vec::new(), is_in_prompt })
    }

    /// Whether the caches can hold a further token.
    pub fn has_room(&self) -> bool {
        self.filled < self.context
    }

    /// Scores of the vocabulary behind the last token.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// Takes tokens in, block by block where there are several; how long it took.
    ///
    /// Errors: the caches cannot hold so many; those of [`Program::step`].
    pub fn take(&mut self, tokens: &[i64]) -> Result<Duration> {
        if self.filled + tokens.len() > self.context {
            let message = format!(
                "{} tokens are more than the context of {} holds",
                self.filled + tokens.len(),
                self.context
            );
            return Err(Error::run("--context", message).with_help("a larger --context, or fewer tokens"));
        }
        let mut rest = tokens;
        let mut time = Duration::ZERO;
        while !rest.is_empty() {
            let block = self.block(rest.len());
            let now = block.min(rest.len());
            time += self.advance(&rest[..now], block)?;
            rest = &rest[now..];
        }
        Ok(time)
    }

    /// Tokens of the step that takes some of so many: a block beyond the context would not fit.
    fn block(&self, count: usize) -> usize {
        // A block is padded to its full length, which must not reach beyond the caches.
        match &self.prompt {
            Some(prompt) if self.counts_all && count < prompt.block => self.step.block,
            Some(prompt) if count > self.step.block && self.filled + prompt.block <= self.context => {
                prompt.block
            }
            _ => self.step.block,
        }
    }

    fn advance(&mut self, tokens: &[i64], block: usize) -> Result<Duration> {
        let by_block = block != self.step.block;
        let is_other = self.is_in_prompt != by_block;
        let part = match (&mut self.prompt, by_block) {
            (Some(prompt), true) => prompt,
            _ => &mut self.step,
        };
        // Both programs share their arenas: where one has constants the other may have worked.
        if is_other {
            part.program.load_constants(part.graph)?;
            self.is_in_prompt = by_block;
        }
        // Rows behind the last token are written over before anything meets them.
        let mut padded = tokens.to_vec();
        padded.resize(block, 0);
        let graph = part.graph;
        let mut inputs = vec![row(graph, &part.tokens, &padded)?];
        if part.takes[1] {
            inputs.push((PAST.to_owned(), Tensor::from_i64(Vec::new(), &[self.filled as i64])?));
        }
        if let Some(width) = part.mask {
            let end = self.filled + tokens.len();
            // It covers the whole context, whatever of that is filled, or the tokens of the step, which all count.
            let is_of_all = width == self.context;
            let seen: Vec<i64> = (0..width).map(|at| i64::from(!is_of_all || at < end)).collect();
            inputs.push(row(graph, MASK, &seen)?);
        }
        if part.takes[0] {
            let places: Vec<i64> = (0..block).map(|at| (self.filled + at) as i64).collect();
            inputs.push(row(graph, POSITIONS, &places)?);
        }
        part.program.feed(&inputs)?;
        let time = part.program.step()?;
        self.filled += tokens.len();
        let outputs = part.program.outputs()?;
        let (_, scores) = outputs.first().ok_or_else(|| Error::run("", "the model has no output"))?;
        last_row(scores, block, tokens.len() - 1, &mut self.scores)?;
        Ok(time)
    }
}

/// A row of whole numbers for an input, in its type.
fn row(graph: &Graph, name: &str, values: &[i64]) -> Result<(String, Tensor)> {
    let input = graph.inputs().iter().find(|(input, _)| input == name);
    let dims = vec![1, values.len() as u64];
    let tensor = match input.map_or(DType::I64, |(_, value)| graph.ty(*value).dtype) {
        DType::I64 => Tensor::from_i64(dims, values)?,
        DType::F32 => Tensor::from_f32(dims, &values.iter().map(|&value| value as f32).collect::<Vec<_>>())?,
        // Tokens and places are below the sizes of tables.
        DType::I32 => {
            let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as i32).to_le_bytes()).collect();
            Tensor::new(DType::I32, dims, bytes)?
        }
        other => {
            return Err(Error::run(format!("input {name}"), format!("tokens as {other} are not supported")));
        }
    };
    Ok((name.to_owned(), tensor))
}

/// The scores of one of the rows.
fn last_row(scores: &Tensor, rows: usize, row: usize, to: &mut Vec<f32>) -> Result<()> {
    let bytes = scores.bytes();
    let each = bytes.len() / rows.max(1);
    let own = bytes.get(row * each..(row + 1) * each).filter(|_| scores.dtype() == DType::F32);
    let own = own.ok_or_else(|| Error::run("", "the model's scores are no rows of f32"))?;
    to.clear();
    to.extend(own.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])));
    Ok(())
}

/// Both plans with arenas as long as the longer one's.
fn as_large(decode: &ExecPlan, prompt: Option<&ExecPlan>) -> (ExecPlan, Option<ExecPlan>) {
    let (mut own, mut other) = (decode.clone(), prompt.cloned());
    if let Some(other) = &mut other {
        for (one, two) in own.devices.iter_mut().zip(&mut other.devices) {
            let arena = one.arena.max(two.arena);
            (one.arena, two.arena) = (arena, arena);
        }
    }
    (own, other)
}

/// The parameters that the plans' programs would pack differently, where parameters and caches lie at the same places,
/// with their axes in the same order, and neither plan has any that the other one lacks; else none.
fn alike(one: &Phase<'_>, other: &Phase<'_>) -> Option<BTreeSet<String>> {
    let (own, others) = (stored_params(one), stored_params(other));
    let same = |(one, two): ((&String, &StoredParam), (&String, &StoredParam))| {
        one.0 == two.0 && one.1.places == two.1.places && one.1.permuted == two.1.permuted
    };
    if one.plan.devices.len() != other.plan.devices.len() || own.len() != others.len() {
        return None;
    }
    if !own.iter().zip(&others).all(same) {
        return None;
    }
    let differ = own.iter().zip(&others).filter(|((_, one), (_, other))| one.form != other.form);
    Some(differ.map(|((name, _), _)| name.clone()).collect())
}

/// Where a parameter or cache is, and in which order.
struct StoredParam {
    places: Vec<ExecBuffer>,
    permuted: Option<Vec<u32>>,
    form: Form,
}

fn stored_params(phase: &Phase<'_>) -> BTreeMap<String, StoredParam> {
    let packing = Packing::of(phase.graph);
    let found = phase.plan.data.iter().filter_map(|(value, buffers)| {
        let Op::Param(id) = phase.graph.maker(*value).op else { return None };
        let places = buffers.iter().map(|&buffer| phase.plan.buffers[buffer as usize]).collect();
        let param = phase.graph.param(id);
        let stored = StoredParam { places, permuted: param.permuted.clone(), form: packing.form(*value) };
        Some((param.name.clone(), stored))
    });
    found.collect()
}
