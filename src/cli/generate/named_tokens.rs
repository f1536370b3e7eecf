//! What the files beside `tokenizer.json` say of tokens: which there are more of, which are special, how text is taken
//! apart, and what of it is not done here.

use std::collections::BTreeMap;

use serde_json::Value;
use tokenizers::AddedToken;

use super::super::model::ModelFile;
use super::super::tokens::{beside, read};
use crate::error::{Error, Result};

pub(super) const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";

/// Fields of a configuration that name a special token.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Tokens that files name.
#[derive(Default)]
pub(super) struct NamedTokens {
    /// By number.
    pub(super) numbered: BTreeMap<u32, AddedToken>,
    /// Those that are left out of texts.
    pub(super) special: Vec<AddedToken>,
    /// Whether a text that is taken as bytes gets a space before it, where these files decide that.
    pub(super) prefix_space: Option<bool>,
    /// Whether special tokens within a text are taken as any other text.
    pub(super) split_special: bool,
    /// What is said and not done, a line each.
    pub(super) unheeded: Vec<String>,
}

/// Classes whose text is bytes with or without a space before it as the configuration says, whatever `tokenizer.json`
/// has: these build that step anew. A `Fast` behind the name changes nothing.
const OWN_PREFIX: [&str; 17] = [
    "BartTokenizer",
    "BlenderbotTokenizer",
    "BloomTokenizer",
    "CodeGenTokenizer",
    "CohereTokenizer",
    "DebertaTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "LayoutLMv3Tokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "LukeTokenizer",
    "MarkupLMTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
    "RobertaTokenizer",
    "WhisperTokenizer",
];

impl NamedTokens {
    /// Those of the files beside a model. `tokenizer` is its `tokenizer.json`.
    ///
    /// Error: a file that is no JSON, or has a number of a token that is none.
    pub(super) fn beside(file: &ModelFile, tokenizer: &Value) -> Result<Self> {
        let mut named = Self::default();
        if let Some(added) = json(file, ADDED)? {
            for (content, number) in added.as_object().into_iter().flatten() {
                let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
                let number = number.ok_or_else(|| no_number(ADDED, content))?;
                named.numbered.insert(number, AddedToken::from(content.clone(), false));
            }
        }
        if let Some(map) = json(file, SPECIAL_MAP)? {
            named.add_special(&map);
        }
        if let Some(config) = json(file, CONFIG)? {
            for (number, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
                let token = with_flags(token).ok_or_else(|| no_number(CONFIG, number))?;
                let number = number.parse().map_err(|_| no_number(CONFIG, number))?;
                if token.special {
                    named.special.push(token.clone());
                }
                named.numbered.insert(number, token);
            }
            named.add_special(&config);
            named.prefix_space = builds_prefix(&config).then(|| asks(&config, "add_prefix_space"));
            named.split_special = asks(&config, "split_special_tokens");
            named.unheeded = unheeded(&config, tokenizer);
        }
        Ok(named)
    }

    fn add_special(&mut self, config: &Value) {
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let of_list = |field: &&str| match &config[*field] {
            Value::Array(list) => list.iter().collect::<Vec<_>>(),
            Value::Object(map) => map.values().collect(),
            _ => Vec::new(),
        };
        let named = SPECIAL.iter().map(|field| &config[*field]).chain(lists.iter().flat_map(of_list));
        self.special.extend(named.filter_map(content).map(|token| AddedToken::from(token, true)));
    }
}

fn content(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

/// A token with its flags.
fn with_flags(token: &Value) -> Option<AddedToken> {
    let flag = |name: &str| token[name].as_bool().unwrap_or(false);
    let special = flag("special");
    let made = AddedToken::from(content(token)?, special)
        .lstrip(flag("lstrip"))
        .rstrip(flag("rstrip"))
        .single_word(flag("single_word"))
        .normalized(token["normalized"].as_bool().unwrap_or(!special));
    Some(made)
}

fn asks(config: &Value, field: &str) -> bool {
    config[field] == Value::Bool(true)
}

fn builds_prefix(config: &Value) -> bool {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    OWN_PREFIX.contains(&class.strip_suffix("Fast").unwrap_or(class))
}

/// What a configuration asks for beyond what `tokenizer.json` does.
fn unheeded(config: &Value, tokenizer: &Value) -> Vec<String> {
    let prefix = config["add_prefix_space"].as_bool().zip(prefix_of_bytes(tokenizer));
    let cleans = tokenizer["decoder"]["cleanup"] == Value::Bool(true);
    let asked = [
        ("clean_up_tokenization_spaces", asks(config, "clean_up_tokenization_spaces") && !cleans),
        ("add_prefix_space", !builds_prefix(config) && prefix.is_some_and(|(asked, own)| asked != own)),
    ];
    let line = |(field, _): (&str, bool)| format!("{CONFIG}: {field} {} is not heeded", config[field]);
    asked.into_iter().filter(|&(_, is_asked)| is_asked).map(line).collect()
}

/// Whether the tokenizer puts a space before a text that it takes as bytes; none where it takes none so.
fn prefix_of_bytes(tokenizer: &Value) -> Option<bool> {
    let mut steps = vec![&tokenizer["pre_tokenizer"]];
    while let Some(step) = steps.pop() {
        if step["type"] == "ByteLevel" {
            return step["add_prefix_space"].as_bool();
        }
        steps.extend(step["pretokenizers"].as_array().into_iter().flatten());
    }
    None
}

fn json(file: &ModelFile, name: &str) -> Result<Option<Value>> {
    let Some(path) = beside(file, name) else { return Ok(None) };
    let value = serde_json::from_slice(&read(&path)?);
    value.map(Some).map_err(|error| {
        let error = Error::format(path.display().to_string(), error.to_string());
        error.with_help("mend the file; --tokens 1,2,3 takes numbers of tokens")
    })
}

fn no_number(file: &str, token: &str) -> Error {
    Error::format(file, format!("{token}: expected a token and its number"))
        .with_help("mend the file; --tokens 1,2,3 takes numbers of tokens")
}
