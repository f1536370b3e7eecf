//! In place of a tokenizer, where the program was built without one.

use super::super::model::ModelFile;
use crate::error::{Error, Result};

/// There is none.
pub(super) struct Tokenizer {
    pub(super) unheeded: Vec<String>,
    never: std::convert::Infallible,
}

impl Tokenizer {
    /// Error: always.
    pub(super) fn beside(_: &ModelFile) -> Result<Self> {
        let message = "this program was built without tokenizers";
        let help = "--tokens 1,2,3 takes numbers; cargo build --features tokenizer takes text";
        Err(Error::usage("--prompt", message).with_help(help))
    }

    pub(super) fn encode(&self, _: &str) -> Result<Vec<i64>> {
        match self.never {}
    }
}

pub(super) enum Stream {}

impl Stream {
    pub(super) fn new(tokenizer: Tokenizer, _: &[i64]) -> Result<Self> {
        match tokenizer.never {}
    }

    pub(super) fn push(&mut self, _: i64) -> Result<String> {
        match *self {}
    }

    pub(super) fn rest(&mut self) -> Result<String> {
        match *self {}
    }
}
