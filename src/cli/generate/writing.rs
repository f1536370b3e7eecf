//! How prompt and result are written: as text, or as numbers of tokens.

use std::io::IsTerminal;

use super::super::generate_args::GenerateArgs;
use super::super::model::ModelFile;
use super::super::terminal::{Console, write_stdout};
use super::tokenizer::{Stream, Tokenizer};
use crate::error::{Error, Result};

/// What stdout gets, as it comes.
pub(super) enum Writing {
    /// Numbers with commas between them; how many there were.
    Numbers(usize),
    /// The text that follows on the prompt's.
    Text { stream: Box<Stream>, is_terminal: bool },
}

impl Writing {
    /// The form that the prompt has, and its tokens. Errors: those of [`Tokenizer::beside`]; a prompt without tokens.
    pub(super) fn of(args: &GenerateArgs, file: &ModelFile, console: &Console) -> Result<(Self, Vec<i64>)> {
        let Some(text) = &args.prompt else { return Ok((Self::Numbers(0), args.tokens.clone())) };
        let tokenizer = Tokenizer::beside(file)?;
        tokenizer.unheeded.iter().for_each(|line| console.note(line));
        let prompt = tokenizer.encode(text)?;
        if prompt.is_empty() {
            return Err(Error::usage("--prompt", "the text has no tokens").with_help("a longer text"));
        }
        let stream = Box::new(Stream::new(tokenizer, &prompt)?);
        Ok((Self::Text { stream, is_terminal: std::io::stdout().is_terminal() }, prompt))
    }

    /// A token of the result; one at which a text ends is no part of its words.
    pub(super) fn token(&mut self, token: i64, is_end: bool) -> Result<()> {
        match self {
            Self::Numbers(count) => {
                let comma = if *count == 0 { "" } else { "," };
                *count += 1;
                write_stdout(format!("{comma}{token}").as_bytes())
            }
            Self::Text { .. } if is_end => Ok(()),
            Self::Text { stream, is_terminal } => write_text(&stream.push(token)?, *is_terminal),
        }
    }

    /// Writes what waited for further tokens.
    pub(super) fn pause(&mut self) -> Result<()> {
        match self {
            Self::Numbers(_) => Ok(()),
            Self::Text { stream, is_terminal } => write_text(&stream.rest()?, *is_terminal),
        }
    }

    /// Ends the line.
    pub(super) fn end(&self) -> Result<()> {
        write_stdout(b"\n")
    }
}

/// Text as it is; on a terminal, control characters as escapes.
fn write_text(text: &str, is_terminal: bool) -> Result<()> {
    if !is_terminal {
        return write_stdout(text.as_bytes());
    }
    let mut harmless = String::new();
    for c in text.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            harmless.extend(c.escape_default())
        } else {
            harmless.push(c)
        }
    }
    write_stdout(harmless.as_bytes())
}
