//! What a model's files demand of the next token beside its score: the rules of `generation_config.json`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::tokens::{self, malformed_rule as malformed};
use crate::error::{Error, Result};

/// Rules over the scores of the next token, as the library that publishes the file applies them before anything is drawn.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rules {
    /// What is added to the score of the last token of each where the others are before it.
    biases: Vec<(Vec<i64>, f32)>,
    /// Scores of tokens that the text has are divided by it, those below 0 multiplied (Keskar et al. 2019).
    repetition_penalty: Option<f32>,
    /// So many tokens in a row are in the text once.
    no_repeat: usize,
    /// What the text has nowhere: the last token of each is left out where the others are before it.
    bad_words: Vec<Vec<i64>>,
    /// The least length of prompt and text, and of what is generated.
    least: (usize, usize),
    suppressed: Vec<i64>,
    /// Of the first token alone.
    suppressed_at_first: Vec<i64>,
    /// From how many generated tokens on the tokens that end a text gain, and by which power.
    decay: Option<(usize, f32)>,
    /// After a prompt of one token, and at the end.
    forced: (Vec<i64>, Vec<i64>),
}

/// A text as far as it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoFar<'t> {
    /// The prompt, and what was generated.
    pub(super) tokens: &'t [i64],
    /// How many of them are the prompt.
    pub(super) prompt: usize,
    /// Tokens that end it.
    pub(super) ends: &'t BTreeSet<i64>,
    /// Whether the next token is the last that is asked for.
    pub(super) is_last: bool,
}

impl Rules {
    /// Those that a configuration states.
    ///
    /// Error: a field that is not of its kind.
    pub(super) fn of(stated: &Value) -> Result<Self> {
        let penalty = number(stated, "repetition_penalty", Value::as_f64)?;
        if penalty.is_some_and(|penalty| !(penalty > 0.0 && penalty.is_finite())) {
            return Err(malformed("repetition_penalty"));
        }
        let count = |field| {
            let count = number(stated, field, Value::as_u64)?;
            Ok::<_, Error>(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
        };
        let words = match &stated["bad_words_ids"] {
            Value::Null => Vec::new(),
            Value::Array(words) if words.iter().all(Value::is_array) => {
                words.iter().map(|word| ids(word, "bad_words_ids")).collect::<Result<_>>()?
            }
            _ => return Err(malformed("bad_words_ids")),
        };
        Ok(Self {
            biases: biases(&stated["sequence_bias"])?,
            repetition_penalty: penalty.map(|penalty| penalty as f32).filter(|&penalty| penalty != 1.0),
            no_repeat: count("no_repeat_ngram_size")?,
            bad_words: words.into_iter().filter(|word| !word.is_empty()).collect(),
            least: (count("min_length")?, count("min_new_tokens")?),
            suppressed: ids(&stated["suppress_tokens"], "suppress_tokens")?,
            suppressed_at_first: ids(&stated["begin_suppress_tokens"], "begin_suppress_tokens")?,
            decay: decay(&stated["exponential_decay_length_penalty"])?,
            forced: (
                ids(&stated["forced_bos_token_id"], "forced_bos_token_id")?,
                ids(&stated["forced_eos_token_id"], "forced_eos_token_id")?,
            ),
        })
    }

    /// Changes the scores of the token that comes after a text, in the library's order. O(tokens + bad words + biases).
    pub(super) fn apply(&self, text: SoFar<'_>, scores: &mut [f32]) {
        for (sequence, bias) in &self.biases {
            if let Some((&token, before)) = sequence.split_last()
                && text.tokens.ends_with(before)
                && let Some(score) = score_of(scores, token)
            {
                *score += bias;
            }
        }
        self.penalise(text, scores);
        self.leave_out(text, scores);
        if text.tokens.len() == 1 {
            force(&self.forced.0, scores);
        }
        if text.is_last {
            force(&self.forced.1, scores);
        }
        let generated = text.generated();
        if let Some((start, power)) = self.decay
            && generated > start
        {
            let gain = power.powf((generated - start) as f32) - 1.0;
            for &token in text.ends {
                if let Some(score) = score_of(scores, token) {
                    *score += score.abs() * gain;
                }
            }
        }
        leave_out(&self.suppressed, scores);
        if generated == 0 {
            leave_out(&self.suppressed_at_first, scores);
        }
    }

    fn penalise(&self, text: SoFar<'_>, scores: &mut [f32]) {
        let Some(penalty) = self.repetition_penalty else { return };
        for token in text.tokens.iter().collect::<BTreeSet<_>>() {
            if let Some(score) = score_of(scores, *token) {
                *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
            }
        }
    }

    /// What would repeat, what may stand nowhere, and ends that come too soon.
    fn leave_out(&self, text: SoFar<'_>, scores: &mut [f32]) {
        if let Some(last) = self.no_repeat.checked_sub(1).and_then(|before| text.last(before)) {
            let runs = text.tokens.windows(self.no_repeat);
            let again = runs.filter(|run| run[..run.len() - 1] == *last);
            again.filter_map(|run| run.last()).for_each(|token| leave_out([token], scores));
        }
        for word in &self.bad_words {
            let Some((token, before)) = word.split_last() else { continue };
            let is_end = before.is_empty() && text.ends.contains(token);
            if text.tokens.ends_with(before) && !is_end {
                leave_out([token], scores);
            }
        }
        if text.tokens.len() < self.least.0 || text.generated() < self.least.1 {
            leave_out(text.ends, scores);
        }
    }
}

fn leave_out<'t>(tokens: impl IntoIterator<Item = &'t i64>, scores: &mut [f32]) {
    for &token in tokens {
        if let Some(score) = score_of(scores, token) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// Leaves nothing but these tokens, all alike; everything, where the vocabulary has none of them.
fn force(tokens: &[i64], scores: &mut [f32]) {
    let known = || tokens.iter().filter_map(|&token| usize::try_from(token).ok());
    if known().any(|token| token < scores.len()) {
        scores.fill(f32::NEG_INFINITY);
    }
    for token in known() {
        if let Some(score) = scores.get_mut(token) {
            *score = 0.0;
        }
    }
}

impl<'t> SoFar<'t> {
    /// How many tokens were generated.
    fn generated(self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// The last so many tokens; none where there are fewer.
    fn last(self, count: usize) -> Option<&'t [i64]> {
        let first = self.tokens.len().checked_sub(count)?;
        self.tokens.get(first..)
    }
}

fn score_of(scores: &mut [f32], token: i64) -> Option<&mut f32> {
    scores.get_mut(usize::try_from(token).ok()?)
}

/// A number; none where there is none, or null.
fn number<T>(stated: &Value, field: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
    match &stated[field] {
        Value::Null => Ok(None),
        value => read(value).map(Some).ok_or_else(|| malformed(field)),
    }
}

/// Numbers of tokens.
fn ids(value: &Value, field: &str) -> Result<Vec<i64>> {
    tokens::ids(value).ok_or_else(|| malformed(field))
}

/// Sequences of tokens, and what is added to the score of the last: `[[[3, 4], -1.5], ...]`.
fn biases(value: &Value) -> Result<Vec<(Vec<i64>, f32)>> {
    const FIELD: &str = "sequence_bias";
    let pairs = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(pairs) => pairs,
        _ => return Err(malformed(FIELD)),
    };
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([tokens @ Value::Array(_), bias]) => {
            let bias = bias.as_f64().ok_or_else(|| malformed(FIELD))?;
            Ok((ids(tokens, FIELD)?, bias as f32))
        }
        _ => Err(malformed(FIELD)),
    };
    pairs.iter().map(pair).collect()
}

/// `[start, power]`.
fn decay(value: &Value) -> Result<Option<(usize, f32)>> {
    let read = |pair: &[Value]| match pair {
        [start, power] => Some((usize::try_from(start.as_u64()?).ok()?, power.as_f64()? as f32)),
        _ => None,
    };
    match value {
        Value::Null => Ok(None),
        Value::Array(pair) => {
            read(pair).map(Some).ok_or_else(|| malformed("exponential_decay_length_penalty"))
        }
        _ => Err(malformed("exponential_decay_length_penalty")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NONE: f32 = f32::NEG_INFINITY;

    /// The scores after a text of four tokens of prompt and three more, as transformers' processors leave them.
    #[test]
    fn scores_are_those_of_transformers() {
        let (tokens, ends) = ([3, 1, 4, 1, 5, 3, 1], BTreeSet::from([6]));
        let scores = [0.5, -1.0, 2.0, 1.5, -0.25, 3.0, 0.75, 2.5];
        let cases = [
            (json!({"repetition_penalty": 1.5}), [0.5, -1.5, 2.0, 1.0, -0.375, 2.0, 0.75, 2.5]),
            (json!({"no_repeat_ngram_size": 2}), [0.5, -1.0, 2.0, 1.5, NONE, NONE, 0.75, 2.5]),
            (json!({"no_repeat_ngram_size": 3}), [0.5, -1.0, 2.0, 1.5, NONE, 3.0, 0.75, 2.5]),
            (
                json!({"bad_words_ids": [[2], [3, 1, 5], [1, 7], [6]]}),
                [0.5, -1.0, NONE, 1.5, -0.25, NONE, 0.75, NONE],
            ),
            (json!({"min_length": 8}), [0.5, -1.0, 2.0, 1.5, -0.25, 3.0, NONE, 2.5]),
            (json!({"min_length": 7}), scores),
            (json!({"min_new_tokens": 4}), [0.5, -1.0, 2.0, 1.5, -0.25, 3.0, NONE, 2.5]),
            (json!({"min_new_tokens": 3}), scores),
            (json!({"suppress_tokens": [2, 5, 99, -1]}), [0.5, -1.0, NONE, 1.5, -0.25, NONE, 0.75, 2.5]),
            (json!({"begin_suppress_tokens": [7]}), scores),
            (
                json!({"sequence_bias": [[[2], -1.5], [[3, 1, 5], 2.0], [[1, 7], 0.25], [[9], 1.0]]}),
                [0.5, -1.0, 0.5, 1.5, -0.25, 5.0, 0.75, 2.75],
            ),
            (
                json!({"exponential_decay_length_penalty": [1, 1.5]}),
                [0.5, -1.0, 2.0, 1.5, -0.25, 3.0, 1.6875, 2.5],
            ),
            (json!({"exponential_decay_length_penalty": [3, 1.5]}), scores),
            (json!({"forced_bos_token_id": 2, "forced_eos_token_id": 3}), scores),
            (json!({"repetition_penalty": null, "bad_words_ids": null}), scores),
        ];
        for (stated, expected) in cases {
            let mut found = scores;
            let text = SoFar { tokens: &tokens, prompt: 4, ends: &ends, is_last: false };
            Rules::of(&stated).unwrap().apply(text, &mut found);
            assert_eq!(found, expected, "{stated}");
        }
        let mut first = scores;
        let text = SoFar { tokens: &tokens, prompt: 7, ends: &ends, is_last: false };
        Rules::of(&json!({"begin_suppress_tokens": [7]})).unwrap().apply(text, &mut first);
        assert_eq!(first, [0.5, -1.0, 2.0, 1.5, -0.25, 3.0, 0.75, NONE]);
        let forced =
            Rules::of(&json!({"forced_bos_token_id": 2, "forced_eos_token_id": [3, 6, -1]})).unwrap();
        let (mut first, mut last) = (scores, scores);
        forced.apply(SoFar { tokens: &tokens[..1], prompt: 1, ends: &ends, is_last: false }, &mut first);
        assert_eq!(first, [NONE, NONE, 0.0, NONE, NONE, NONE, NONE, NONE]);
        forced.apply(SoFar { tokens: &tokens, prompt: 4, ends: &ends, is_last: true }, &mut last);
        assert_eq!(last, [NONE, NONE, NONE, 0.0, NONE, NONE, 0.0, NONE]);
    }

    #[test]
    fn what_is_no_rule_is_an_error() {
        for stated in [
            json!({"repetition_penalty": 0}),
            json!({"repetition_penalty": "much"}),
            json!({"no_repeat_ngram_size": -2}),
            json!({"bad_words_ids": [5]}),
            json!({"suppress_tokens": [1.5]}),
            json!({"sequence_bias": [[3, 1.0]]}),
            json!({"exponential_decay_length_penalty": [1]}),
        ] {
            assert!(Rules::of(&stated).is_err(), "{stated}");
        }
    }
}
