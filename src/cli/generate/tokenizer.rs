//! Text as tokens and back, by the `tokenizer.json` beside a model, or by the vocabulary in a GGUF file.
//!
//! Tokens are those that transformers gives by default: with what the file's template adds at the ends, whatever flags
//! `tokenizer_config.json` has; no truncation, no padding.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokenizers::{AddedToken, PreTokenizerWrapper};

use super::super::model::ModelFile;
use super::super::tokens::{beside, read};
use super::named_tokens::NamedTokens;
use crate::error::{Error, Report, Result};
use crate::load::{Format, gguf_tokenizer, recognise};
use crate::run::panic_message;

/// The tokenizer itself.
const FILE: &str = "tokenizer.json";
/// Most tokens whose text may depend on what follows: a character has four bytes at most, and bytes that make none
/// wait for one that does.
const MOST_WAITING: usize = 16;

/// A model's tokenizer.
pub(super) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// What files beside it say and is not done, a line each.
    pub(super) unheeded: Vec<String>,
}

impl Tokenizer {
    /// The tokenizer beside a model, or in it. Errors: there is none; it cannot be read.
    pub(super) fn beside(file: &ModelFile) -> Result<Self> {
        let Some(path) = beside(file, FILE) else {
            return Self::inside(file);
        };
        let (json, place) = (read(&path)?, path.display().to_string());
        let mut tokenizer = Self::read(&json, &place)?;
        let whole: Value = serde_json::from_slice(&json).map_err(|error| unreadable(&place, &error))?;
        tokenizer.add(NamedTokens::beside(file, &whole)?, &place)?;
        Ok(tokenizer)
    }

    /// The tokenizer of the vocabulary in a GGUF file.
    fn inside(file: &ModelFile) -> Result<Self> {
        let place = file.name();
        let message = format!("there is no {FILE} beside {place}");
        if recognise(&file.bytes).ok() != Some(Format::Gguf) {
            return Err(Error::usage("--prompt", message).with_help("--tokens 1,2,3 takes numbers of tokens"));
        }
        match gguf_tokenizer(&file.bytes).map_err(|error| error.within(&place))? {
            Some(json) => Self::read(&json, &place),
            None => {
                let message = format!("{message}, and it holds no vocabulary");
                Err(Error::usage("--prompt", message).with_help("--tokens 1,2,3 takes numbers of tokens"))
            }
        }
    }

    fn read(json: &[u8], place: &str) -> Result<Self> {
        if strips_both_ends(json) {
            return Err(unreadable(
                place,
                &"its decoder strips both ends of tokens, which may leave less than nothing",
            ));
        }
        let read =
            guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(|panic| unreadable(place, &panic))?;
        let mut inner = read.map_err(|error| unreadable(place, &*error))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| unreadable(place, &*error))?;
        Ok(Self { inner, unheeded: Vec::new() })
    }

    /// Adds the tokens that other files name, and makes special what they say is.
    fn add(&mut self, named: NamedTokens, place: &str) -> Result<()> {
        for (number, token) in named.numbered {
            let content = token.content.clone();
            if self.inner.token_to_id(&content).is_none() {
                self.inner.add_tokens([token]).map_err(|error| unreadable(place, &*error))?;
            }
            if let Some(own) = self.inner.token_to_id(&content).filter(|&own| own != number) {
                let message = format!("it numbers {content:?} {own}, the files beside it {number}");
                return Err(unreadable(place, &message));
            }
        }
        let special: Vec<AddedToken> = {
            let known = self.inner.get_added_vocabulary();
            let is_new = |token: &AddedToken| !known.is_special_token(&token.content);
            named.special.into_iter().filter(is_new).collect()
        };
        self.inner.add_special_tokens(special).map_err(|error| unreadable(place, &*error))?;
        self.inner.set_encode_special_tokens(named.split_special);
        if let Some(has_space) = named.prefix_space
            && let Some(mut step) = self.inner.get_pre_tokenizer().cloned()
        {
            prefix_bytes(&mut step, has_space);
            self.inner.with_pre_tokenizer(Some(step));
        }
        self.unheeded = named.unheeded;
        Ok(())
    }

    /// The tokens of a text. Error: it has characters that the tokenizer has no tokens for.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let wrong = |message: String| Error::usage("--prompt", message);
        let encoding = guarded(|| self.inner.encode(text, true)).map_err(wrong)?;
        let encoding = encoding.map_err(|error| wrong(error.to_string()))?;
        Ok(encoding.get_ids().iter().copied().map(i64::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        let wrong = |message: String| Error::run("", format!("tokens that are no text: {message}"));
        guarded(|| self.inner.decode(ids, true)).map_err(wrong)?.map_err(|error| wrong(error.to_string()))
    }
}

/// Puts a space before texts that are taken as bytes, or none.
fn prefix_bytes(step: &mut PreTokenizerWrapper, has_space: bool) {
    let mut steps = vec![step];
    while let Some(step) = steps.pop() {
        match step {
            PreTokenizerWrapper::ByteLevel(bytes) => bytes.add_prefix_space = has_space,
            PreTokenizerWrapper::Sequence(parts) => steps.extend(parts.as_mut()),
            _ => {}
        }
    }
}

/// What the library does, or what it says where it panics, as some files of its users make it.
fn guarded<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    // The hook is the process's: two that change it at once would leave that of the other.
    static HOOK: Mutex<()> = Mutex::new(());
    let alone = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    drop(alone);
    done.map_err(|payload| format!("the tokenizer fails at it: {}", panic_message(&*payload)))
}

/// Whether a decoder takes characters from the start and the end of each token: the library panics where a token is nothing
/// but such a character.
fn strips_both_ends(json: &[u8]) -> bool {
    let Ok(whole) = serde_json::from_slice::<Value>(json) else { return false };
    let mut decoders = vec![&whole["decoder"]];
    while let Some(decoder) = decoders.pop() {
        let strips = |end: &str| decoder[end].as_u64().is_some_and(|count| count > 0);
        if decoder["type"] == "Strip" && strips("start") && strips("stop") {
            return true;
        }
        decoders.extend(decoder["decoders"].as_array().into_iter().flatten());
    }
    false
}

fn unreadable(place: &str, error: &dyn std::fmt::Display) -> Error {
    let report = Report::new(place, format!("is no tokenizer that is read: {error}"));
    Error::Unsupported(report.help("--tokens 1,2,3 takes numbers of tokens"))
}

/// Tokens that become text one after another: together, what decoding all of them at once gives behind the prompt's text.
///
/// Decoders treat the first token otherwise, and a character may be several tokens. So each token is decoded with
/// those of a window that begins before what was written last. Where a later byte makes a decoder take back characters
/// that were written, as those with single bytes as tokens do, the text goes on behind as many.
pub(super) struct Stream {
    tokenizer: Tokenizer,
    /// Tokens of the window.
    ids: Vec<u32>,
    /// How many of them were there when text was last written.
    written: usize,
    /// The window's text so far.
    text: String,
}

impl Stream {
    /// Goes on from a prompt.
    pub(super) fn new(tokenizer: Tokenizer, prompt: &[i64]) -> Result<Self> {
        let ids: Vec<u32> = prompt.iter().filter_map(|&token| u32::try_from(token).ok()).collect();
        let text = tokenizer.decode(&ids)?;
        Ok(Self { tokenizer, written: ids.len(), ids, text })
    }

    /// The text that this token completes; empty where it waits for others.
    pub(super) fn push(&mut self, token: i64) -> Result<String> {
        self.ids.extend(u32::try_from(token).ok());
        let whole = self.tokenizer.decode(&self.ids)?;
        // What stands for bytes that are no character yet is at the end.
        let sure = whole.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let is_sure = sure.len() == whole.len();
        let sure = if self.ids.len() - self.written > MOST_WAITING {
            whole.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&whole)
        } else {
            sure
        };
        let new: String = sure.chars().skip(self.text.chars().count()).collect();
        if new.is_empty() {
            return Ok(new);
        }
        self.text = sure.to_owned();
        if is_sure {
            self.advance()?;
        }
        Ok(new)
    }

    /// The text of tokens that waited for others.
    pub(super) fn rest(&mut self) -> Result<String> {
        let whole = self.tokenizer.decode(&self.ids)?;
        let new = whole.chars().skip(self.text.chars().count()).collect();
        self.text = whole;
        Ok(new)
    }

    /// Moves the window to what was written last, unless that alone has no text: then the next would be treated as the first.
    fn advance(&mut self) -> Result<()> {
        let last = self.tokenizer.decode(&self.ids[self.written..])?;
        if !last.is_empty() {
            self.ids.drain(..self.written);
            self.text = last;
        }
        self.written = self.ids.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::named_tokens::CONFIG;
    use super::*;
    use crate::files::Links;

    fn folders() -> Vec<PathBuf> {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers");
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        assert_eq!(found.len(), 5);
        found
    }

    fn tokenizer(folder: &Path) -> Tokenizer {
        let model = tempfile::tempdir().unwrap();
        for name in [FILE, CONFIG] {
            std::fs::copy(folder.join(name), model.path().join(name)).unwrap();
        }
        std::fs::write(model.path().join("config.json"), "{}").unwrap();
        let file = ModelFile::read(&model.path().join("config.json"), Links::Inside).unwrap();
        Tokenizer::beside(&file).unwrap()
    }

    fn cases(folder: &Path, which: &str) -> Vec<Value> {
        let text = std::fs::read(folder.join("cases.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()[which].as_array().unwrap().clone()
    }

    fn ids(list: &Value) -> Vec<i64> {
        list.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
    }

    #[test]
    fn texts_have_the_tokens_that_transformers_gives_them() {
        for folder in folders() {
            let tokenizer = tokenizer(&folder);
            for case in cases(&folder, "encoded") {
                let found = tokenizer.encode(case[0].as_str().unwrap()).unwrap();
                assert_eq!(found, ids(&case[1]), "{} {}", folder.display(), case[0]);
            }
        }
    }

    #[test]
    fn what_is_streamed_is_the_text_of_all_tokens() {
        for folder in folders() {
            for case in cases(&folder, "decoded") {
                let (ids, text) = (ids(&case[0]), case[1].as_str().unwrap());
                for prompt in [0, 1, ids.len() / 2] {
                    let mut stream = Stream::new(tokenizer(&folder), &ids[..prompt]).unwrap();
                    let start = stream.text.clone();
                    let mut written = start.clone();
                    for &id in &ids[prompt..] {
                        written += &stream.push(id).unwrap();
                    }
                    written += &stream.rest().unwrap();
                    // A prompt that ends within a character stays as it was shown.
                    if !text.starts_with(&start) {
                        continue;
                    }
                    let place = format!("{} {ids:?} from {prompt}", folder.display());
                    // One byte that is none of a character takes those before it along, also if they were written.
                    if folder.ends_with("fallback") && text.contains(char::REPLACEMENT_CHARACTER) {
                        assert_eq!(written.chars().count(), text.chars().count(), "{place}");
                    } else {
                        assert_eq!(written, text, "{place}");
                    }
                }
            }
        }
    }

    /// Files of `scripts/gguf_vocabularies.py`, with what `sentencepiece` and `tokenizers` say.
    #[test]
    fn vocabularies_of_gguf_files_give_the_tokens_of_their_tokenizers() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vocabularies");
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.retain(|path| path.extension().is_some_and(|end| end == "gguf"));
        names.sort();
        assert_eq!(names.len(), 18);
        for path in names {
            let file = ModelFile::read(&path, Links::Inside).unwrap();
            let tokenizer = Tokenizer::beside(&file).unwrap();
            let cases = std::fs::read(path.with_extension("json")).unwrap();
            for case in serde_json::from_slice::<Vec<Value>>(&cases).unwrap() {
                let text = case[0].as_str().unwrap();
                let found = tokenizer.encode(text).unwrap();
                assert_eq!(found, ids(&case[1]), "{} {text:?}", path.display());
                let back =
                    tokenizer.decode(&found.iter().map(|&id| id as u32).collect::<Vec<u32>>()).unwrap();
                assert_eq!(back, text.replace("<|begin|>", "").replace("<|end|>", ""), "{}", path.display());
            }
        }
    }

    /// Tokens that files beside it name: their numbers, whether they are text, and what is refused.
    #[test]
    fn files_beside_a_tokenizer_name_more_tokens() {
        let folder = folders().remove(0);
        let with = |name: &str, text: &str| {
            let model = tempfile::tempdir().unwrap();
            std::fs::copy(folder.join(FILE), model.path().join(FILE)).unwrap();
            std::fs::write(model.path().join("config.json"), "{}").unwrap();
            std::fs::write(model.path().join(name), text).unwrap();
            let file = ModelFile::read(&model.path().join("config.json"), Links::Inside).unwrap();
            Tokenizer::beside(&file)
        };
        let next = with("config.json", "{}").unwrap().inner.get_vocab_size(true);
        let added = |number: usize, special: bool| {
            format!(
                r#"{{"added_tokens_decoder": {{"{number}": {{"content": "<tool>", "special": {special}}}}}}}"#
            )
        };
        let text_of = |tokenizer: &Tokenizer| {
            tokenizer
                .decode(
                    &tokenizer.encode("a<tool>b").unwrap().iter().map(|&id| id as u32).collect::<Vec<_>>(),
                )
                .unwrap()
        };
        for (name, text, is_text) in [
            (CONFIG, added(next, false), true),
            (CONFIG, added(next, true), false),
            ("added_tokens.json", format!(r#"{{"<tool>": {next}}}"#), true),
        ] {
            let tokenizer = with(name, &text).unwrap();
            assert!(tokenizer.encode("a<tool>b").unwrap().contains(&(next as i64)), "{text}");
            assert_eq!(text_of(&tokenizer).contains("<tool>"), is_text, "{text}");
        }
        let map = with("special_tokens_map.json", r#"{"pad_token": "<tool>"}"#).unwrap();
        assert!(!text_of(&map).contains("<tool>"));
        for (name, text) in [
            (CONFIG, added(next + 7, false)),
            (CONFIG, r#"{"added_tokens_decoder": {"x": {"content": "<tool>"}}}"#.to_owned()),
            ("special_tokens_map.json", "{".to_owned()),
        ] {
            assert!(with(name, &text).is_err(), "{text}");
        }
        let told = with(CONFIG, r#"{"add_prefix_space": true, "model_max_length": 9}"#).unwrap().unheeded;
        assert_eq!(told, ["tokenizer_config.json: add_prefix_space true is not heeded"]);
    }

    /// What transformers 5.24 gives.
    #[test]
    fn a_configuration_says_how_text_is_taken_apart() {
        let folders = folders();
        let start = |folder: usize, config: &str, count: usize| {
            let model = tempfile::tempdir().unwrap();
            std::fs::copy(folders[folder].join(FILE), model.path().join(FILE)).unwrap();
            std::fs::write(model.path().join("config.json"), "{}").unwrap();
            std::fs::write(model.path().join(CONFIG), config).unwrap();
            let file = ModelFile::read(&model.path().join("config.json"), Links::Inside).unwrap();
            let tokenizer = Tokenizer::beside(&file).unwrap();
            assert!(tokenizer.unheeded.is_empty(), "{config}");
            let tokens = tokenizer.encode("the first time<|end|>x").unwrap();
            [&tokens[..count], &tokens[10..]].concat()
        };
        let (bpe, split_bpe) = (0, 2);
        assert_eq!(start(bpe, "{}", 1), [296, 0, 88]);
        assert_eq!(start(bpe, r#"{"split_special_tokens": true}"#, 1), [296, 28, 92, 69, 78, 68, 92, 30, 88]);
        let prefixed = |class: &str| format!(r#"{{"tokenizer_class": "{class}", "add_prefix_space": true}}"#);
        assert_eq!(start(bpe, &prefixed("GPT2Tokenizer"), 1), [273, 0, 221, 88]);
        assert_eq!(start(bpe, &prefixed("Qwen2TokenizerFast"), 1), [273, 0, 221, 88]);
        assert_eq!(start(split_bpe, &prefixed("GPT2TokenizerFast"), 2), [0, 273, 69, 0, 221, 88]);
    }

    /// The library panics at a token that is nothing but what both ends lose.
    #[test]
    fn a_decoder_that_strips_both_ends_is_refused() {
        let strip = |start: u32, stop: u32| {
            format!(
                r#"{{"model": {{"type": "WordLevel", "vocab": {{"a": 0, " ": 1}}, "unk_token": "a"}}, "added_tokens": [],
                "decoder": {{"type": "Sequence", "decoders": [{{"type": "Fuse"}},
                {{"type": "Strip", "content": " ", "start": {start}, "stop": {stop}}}]}}}}"#
            )
        };
        for (start, stop, is_read) in [(1, 0, true), (0, 1, true), (1, 1, false)] {
            let read = Tokenizer::read(strip(start, stop).as_bytes(), FILE);
            assert_eq!(read.is_ok(), is_read, "{start} {stop}");
            read.into_iter().for_each(|tokenizer| assert_eq!(tokenizer.decode(&[1]).unwrap(), ""));
        }
    }

    #[test]
    fn a_file_at_which_the_library_panics_is_an_error() {
        let json = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
            "continuing_subword_prefix": "longer"}, "added_tokens": []}"#;
        let error = Tokenizer::read(json.as_bytes(), FILE).err().unwrap().to_string();
        assert!(error.contains("fails at it"), "{error}");
    }

    #[test]
    fn characters_come_whole() {
        let folder = folders().remove(0);
        let whole = tokenizer(&folder);
        let ids = whole.encode("x👩\u{200d}🚀語").unwrap();
        let mut stream = Stream::new(whole, &ids[..1]).unwrap();
        for &id in &ids[1..] {
            let text = stream.push(id).unwrap();
            assert!(!text.contains(char::REPLACEMENT_CHARACTER), "{text}");
        }
        assert_eq!(stream.rest().unwrap(), "");
    }
}
