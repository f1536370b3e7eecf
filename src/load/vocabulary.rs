//! The vocabulary in a GGUF file as the `tokenizer.json` that says the same.
//!
//! Two kinds of llama.cpp are read. `llama` is SentencePiece: pieces with scores, of which the best pair of neighbours is
//! joined first. Pairs in the order of their scores are the merges of byte pair encoding. `gpt2` is byte pair encoding over
//! bytes with merges as they are, after a split that `tokenizer.ggml.pre` names.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::gguf::{Head, Meta};
use super::splits::{Split, bytes};
use crate::error::{Error, Report, Result};

/// Kinds of tokens, as `tokenizer.ggml.token_type` numbers them.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Longer pieces are joined in one step by no tokenizer.
const LONGEST_PIECE: usize = 256;

/// What stands for a space in pieces of SentencePiece.
const SPACE: &str = "\u{2581}";

/// The tokenizer of the vocabulary; none where the head has none.
pub(super) fn tokenizer(head: &Head) -> Result<Option<Vec<u8>>> {
    let vocabulary = Vocabulary { head };
    let Some(model) = vocabulary.text("model") else { return Ok(None) };
    let tokens = vocabulary.texts("tokens");
    if tokens.is_empty() {
        return Ok(None);
    }
    let parts = match model {
        "llama" => vocabulary.sentence_piece(tokens)?,
        "gpt2" => vocabulary.byte_pairs(tokens)?,
        other => return Err(refused("model", other)),
    };
    Ok(Some(vocabulary.document(tokens, parts)?.to_string().into_bytes()))
}

fn refused(key: &str, found: &str) -> Error {
    let message = format!("a vocabulary whose tokenizer.ggml.{key} is {found} is not read");
    let report = Report::new("", message);
    Error::Unsupported(report.help("the tokenizer.json of the same model goes beside it, or --tokens 1,2,3"))
}

/// The parts of a `tokenizer.json` in which the kinds differ.
struct Parts {
    normalizer: Value,
    splits: Value,
    decoder: Value,
    model: Value,
    /// Whether a text begins with the first of the special tokens where the file does not say.
    begins: bool,
}

/// The keys `tokenizer.ggml...` of a head.
struct Vocabulary<'h> {
    head: &'h Head,
}

impl<'h> Vocabulary<'h> {
    fn get(&self, key: &str) -> Option<&'h Meta> {
        self.head.metadata.get(&format!("tokenizer.ggml.{key}"))
    }

    fn text(&self, key: &str) -> Option<&'h str> {
        match self.get(key) {
            Some(Meta::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn texts(&self, key: &str) -> &'h [String] {
        match self.get(key) {
            Some(Meta::Texts(texts)) => texts,
            _ => &[],
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(Meta::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// The text of the token that a key numbers. Error: the vocabulary has no such token.
    fn token(&self, key: &str, tokens: &'h [String]) -> Result<Option<&'h str>> {
        let Some(Meta::Whole(id)) = self.get(key) else { return Ok(None) };
        let token = usize::try_from(*id).ok().and_then(|id| tokens.get(id));
        let Some(token) = token else {
            let message = format!("there is no token {id} among {}", tokens.len());
            return Err(Error::format(format!("tokenizer.ggml.{key}"), message));
        };
        Ok(Some(token))
    }

    /// The kind of each token; ordinary ones where the file does not say.
    fn kinds(&self) -> &'h [i64] {
        match self.get("token_type") {
            Some(Meta::Wholes(kinds)) => kinds,
            _ => &[],
        }
    }

    /// Tokens of these kinds, with their numbers.
    fn of_kinds(&self, tokens: &'h [String], wanted: &[i64]) -> Vec<(usize, &'h str)> {
        let kinds = self.kinds();
        let is_wanted = |id: usize| kinds.get(id).is_some_and(|kind| wanted.contains(kind));
        let found = tokens.iter().enumerate().filter(|&(id, _)| is_wanted(id));
        found.map(|(id, token)| (id, token.as_str())).collect()
    }

    fn sentence_piece(&self, tokens: &'h [String]) -> Result<Parts> {
        let scores = match self.get("scores") {
            Some(Meta::Reals(scores)) if scores.len() == tokens.len() => scores,
            _ => {
                let message = format!("expected a score for each of {} tokens", tokens.len());
                return Err(Error::format("tokenizer.ggml.scores", message));
            }
        };
        let no_pieces = self.of_kinds(tokens, &[UNKNOWN, CONTROL, USER_DEFINED]);
        let merges = merges(tokens, scores, &no_pieces);
        let unknown = match self.token("unknown_token_id", tokens)? {
            Some(token) => Some(token),
            None => self.of_kinds(tokens, &[UNKNOWN]).first().map(|&(_, token)| token),
        };
        let prefix = self.flag("add_space_prefix").unwrap_or(true);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let begins = json!({"type": "Prepend", "prepend": SPACE});
        let back = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        decoders.extend(prefix.then_some(strip));
        let normalizers: Vec<Value> = prefix.then_some(begins).into_iter().chain([spaces]).collect();
        Ok(Parts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            splits: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: json!({"type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
                "vocab": numbered(tokens)?, "merges": merges}),
            begins: true,
        })
    }

    fn byte_pairs(&self, tokens: &'h [String]) -> Result<Parts> {
        let (mut merges, stored) = (Vec::new(), self.texts("merges"));
        for merge in stored {
            let Some(pair) = merge.split_once(' ') else {
                return Err(Error::format("tokenizer.ggml.merges", format!("{merge} is no pair")));
            };
            merges.push(pair);
        }
        let name = self.text("pre").unwrap_or("default");
        let split = Split::of(name).ok_or_else(|| refused("pre", name))?;
        let normalizer = if split.composes { json!({"type": "NFC"}) } else { Value::Null };
        Ok(Parts {
            normalizer,
            splits: split.steps(),
            decoder: bytes(true),
            model: json!({"type": "BPE", "ignore_merges": split.whole_words, "vocab": numbered(tokens)?, "merges": merges}),
            begins: split.begins,
        })
    }

    fn document(&self, tokens: &'h [String], parts: Parts) -> Result<Value> {
        let mut added = Vec::new();
        for (id, token) in self.of_kinds(tokens, &[UNKNOWN, CONTROL, USER_DEFINED]) {
            let special = self.kinds().get(id) != Some(&USER_DEFINED);
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special}));
        }
        Ok(json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": parts.normalizer, "pre_tokenizer": parts.splits, "decoder": parts.decoder,
            "post_processor": self.template(tokens, parts.begins)?, "model": parts.model}))
    }

    /// What stands before and after a text.
    fn template(&self, tokens: &'h [String], begins: bool) -> Result<Value> {
        let mut ends = [None, None];
        if self.flag("add_bos_token").unwrap_or(begins) {
            ends[0] = self.token("bos_token_id", tokens)?;
        }
        if self.flag("add_eos_token").unwrap_or(false) {
            ends[1] = self.token("eos_token_id", tokens)?;
        }
        let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let around = |names: &[&str]| -> Vec<Value> {
            let names = names.iter().map(|name| text(name));
            ends[0].map(special).into_iter().chain(names).chain(ends[1].map(special)).collect()
        };
        let number = |token: &&str| tokens.iter().position(|other| other == token);
        let known: Map<String, Value> = ends
            .iter()
            .flatten()
            .map(|token| {
                ((*token).to_owned(), json!({"id": token, "ids": [number(token)], "tokens": [token]}))
            })
            .collect();
        Ok(json!({"type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]),
            "special_tokens": known}))
    }
}

/// Tokens by their texts. Error: two have the same.
fn numbered(tokens: &[String]) -> Result<Map<String, Value>> {
    let mut numbers = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if numbers.insert(token.clone(), Value::from(id)).is_some() {
            return Err(Error::format("tokenizer.ggml.tokens", format!("{token} is there twice")));
        }
    }
    Ok(numbers)
}

/// Pairs of pieces that are a piece together, the best score first.
fn merges<'t>(tokens: &'t [String], scores: &[f64], no_pieces: &[(usize, &str)]) -> Vec<(&'t str, &'t str)> {
    let mut pieces: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    for (_, token) in no_pieces {
        pieces.remove(token);
    }
    let mut found = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        if token.len() > LONGEST_PIECE || pieces.get(token.as_str()) != Some(&id) {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&first), Some(&second)) = (pieces.get(left), pieces.get(right)) {
                found.push((id, first, second, left, right));
            }
        }
    }
    found.sort_by(|x, y| scores[y.0].total_cmp(&scores[x.0]).then((x.1, x.2).cmp(&(y.1, y.2))));
    found.into_iter().map(|(.., left, right)| (left, right)).collect()
}
