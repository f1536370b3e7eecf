//! What the reader of a format does.

use std::path::Path;

use super::chunk::{Chunk, Raw};
use super::fields::Bound;
use crate::error::Result;

/// What reads one format.
pub(super) trait Reader: std::fmt::Debug + Send + Sync {
    /// Hands on the records of a file, in order, until `hand` returns false.
    ///
    /// Errors: the file cannot be read, or is damaged so that what follows cannot be found.
    fn split(&self, path: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()>;

    /// Appends a record's elements to the chunk's columns. Error, in words: the record is malformed.
    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String>;

    /// Where in its file a record stands, in words.
    fn place(&self, raw: &Raw, row: usize) -> String;

    /// Number of a file's records, where it is known without reading them all.
    fn count(&self, path: &Path) -> Result<Option<u64>>;
}
