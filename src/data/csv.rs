//! Lines of cells (RFC 4180): quoted cells may hold separators, line breaks and doubled quotes.

use std::borrow::Cow;
use std::io::BufRead;
use std::path::Path;

use super::Role;
use super::chunk::{CHUNK_BYTES, Chunk, Raw};
use super::encode::{self, Number};
use super::fields::{Bound, Wish};
use super::files;
use super::reader::Reader;
use super::spec::Spec;
use crate::error::{Error, Result};
use crate::topology::near::instead;

/// A longer record is taken for a quote that was never closed.
const LONGEST_RECORD: usize = 1 << 24;

/// Reads lines of cells.
#[derive(Debug)]
pub(super) struct CsvReader {
    separator: u8,
    /// The first line of each file, where it holds names.
    header: Option<Vec<String>>,
    /// Cells of a record.
    columns: usize,
    /// What an empty cell stands for.
    missing: Option<f64>,
    /// The columns of each field.
    sources: Vec<Vec<usize>>,
}

impl CsvReader {
    /// Reads the first line of `path`, the first file, and finds the fields' columns.
    ///
    /// Errors: an empty file; a column that is not there.
    pub(super) fn open(path: &Path, spec: &Spec, wishes: Vec<Wish>) -> Result<(Self, Vec<Bound>)> {
        let tabs = files::is_named(path, "tsv");
        let separator = spec.separator.unwrap_or(if tabs { b'\t' } else { b',' });
        let mut lines = Lines::open(path, separator)?;
        let mut first = Vec::new();
        if lines.next(&mut first)?.is_none() {
            return Err(Error::format(path.display().to_string(), "the file has no records"));
        }
        let cells = cells(&first, separator)
            .map_err(|fault| Error::format(format!("{}: line 1", path.display()), fault))?;
        let names: Vec<String> =
            cells.iter().map(|cell| String::from_utf8_lossy(cell).trim().to_owned()).collect();
        let header = spec.header.unwrap_or_else(|| names.iter().all(|name| encode::number(name).is_err()));
        let header = header.then(|| names.clone());
        let mut reader =
            Self { separator, header, columns: names.len(), missing: spec.missing, sources: Vec::new() };
        let mut chosen = reader.choose(path, &wishes)?;
        let mut fields = Vec::new();
        for (wish, columns) in wishes.into_iter().zip(chosen.drain(..)) {
            if columns.is_empty() && wish.optional {
                continue;
            }
            let items = columns.iter().map(|&column| reader.name(column)).collect();
            let list = wish.options.list.is_some() || wish.options.pad.is_some();
            let width = wish.options.onehot.unwrap_or(1);
            let dims = match columns.len() as u64 * width {
                1 if wish.role == Role::Target => Vec::new(),
                cells => vec![cells],
            };
            let dtype = wish.dtype.unwrap_or(crate::ir::DType::F32);
            let onehot = wish.options.onehot;
            // The sizes given here count a one-hot column's elements already.
            let dims = if onehot.is_some() { vec![columns.len() as u64] } else { dims };
            fields.push(wish.bind(items, (!list).then_some((dtype, dims)))?);
            reader.sources.push(columns);
        }
        Ok((reader, fields))
    }

    fn name(&self, column: usize) -> String {
        let name = self.header.as_ref().and_then(|names| names.get(column)).cloned();
        name.unwrap_or_else(|| column.to_string())
    }

    /// The columns of each field: as declared, of its name, or the last one for a target and all that
    /// are left for an input.
    fn choose(&self, path: &Path, wishes: &[Wish]) -> Result<Vec<Vec<usize>>> {
        let mut chosen: Vec<Option<Vec<usize>>> = Vec::new();
        for wish in wishes {
            chosen.push(match &wish.items[..] {
                [] => self.column(&wish.name).filter(|_| self.header.is_some()).map(|column| vec![column]),
                items => Some(self.columns_of(path, items)?),
            });
        }
        for role in [Role::Target, Role::Input] {
            for (number, wish) in wishes.iter().enumerate() {
                if wish.role != role || chosen[number].is_some() {
                    continue;
                }
                if wish.count > 1 {
                    let key = if role == Role::Input { "input" } else { "target" };
                    let message = format!("no column is called {}", wish.name);
                    let names: Vec<String> = (0..self.columns).map(|column| self.name(column)).collect();
                    let words = format!("{key}.{}=COLUMNS with some of", wish.name);
                    return Err(Error::usage(path.display().to_string(), message)
                        .with_help(instead(&wish.name, &words, &names)));
                }
                let taken: Vec<usize> = chosen.iter().flatten().flatten().copied().collect();
                let mut free: Vec<usize> =
                    (0..self.columns).filter(|column| !taken.contains(column)).collect();
                if role == Role::Target {
                    // One column is left for the inputs.
                    let keep = free.len().saturating_sub(usize::from(self.columns > 1));
                    free.drain(..keep.min(free.len().saturating_sub(1)));
                    if self.columns == 1 {
                        free.clear();
                    }
                }
                if free.is_empty() && !wish.optional {
                    let message = format!("no column is left for {}", wish.name);
                    let error = Error::usage(path.display().to_string(), message);
                    return Err(match self.other_separator() {
                        Some(word) => error.with_help(format!("separator={word} divides its line of names")),
                        None => error,
                    });
                }
                chosen[number] = Some(free);
            }
        }
        Ok(chosen.into_iter().flatten().collect())
    }

    /// What divides the only name of a header, where it is not what columns were divided by.
    fn other_separator(&self) -> Option<&'static str> {
        let [only] = self.header.as_deref()? else { return None };
        let known = [(';', "semicolon"), ('\t', "tab"), ('|', "bar"), (',', "comma")];
        known.into_iter().find(|(separator, _)| only.contains(*separator)).map(|(_, word)| word)
    }

    /// The column of a name, or of a number from 0.
    fn column(&self, item: &str) -> Option<usize> {
        let named = self.header.as_ref().and_then(|names| names.iter().position(|name| name == item));
        named.or_else(|| item.parse().ok().filter(|&column: &usize| column < self.columns))
    }

    /// The columns of items, of which `FIRST..LAST` are several.
    fn columns_of(&self, path: &Path, items: &[String]) -> Result<Vec<usize>> {
        let mut columns = Vec::new();
        for item in items {
            let missing = |name: &str| {
                let names: Vec<String> = (0..self.columns).map(|column| self.name(column)).collect();
                Error::usage(path.display().to_string(), format!("there is no column {name}"))
                    .with_help(instead(name, "there are", &names))
            };
            let range = match (self.column(item), item.split_once("..")) {
                (Some(column), _) => column..=column,
                (None, Some((first, last))) => {
                    let first = self.column(first).ok_or_else(|| missing(first))?;
                    first..=self.column(last).ok_or_else(|| missing(last))?
                }
                (None, None) => return Err(missing(item)),
            };
            columns.extend(range);
        }
        Ok(columns)
    }

    fn cell(&self, bound: &Bound, cell: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let text = std::str::from_utf8(cell).map_err(|_| "a cell is not UTF-8".to_owned())?;
        match bound.options.list {
            Some(separator) => text
                .split(char::from(separator))
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .try_for_each(|part| bound.encoding.push_text(part, out)),
            None if text.trim().is_empty() => match self.missing {
                Some(value) => bound.encoding.push(Number::Real(value), out),
                None => Err("an empty cell (missing=V gives it a value)".to_owned()),
            },
            None => bound.encoding.push_text(text, out).map_err(|fault| words(bound, text, fault)),
        }
    }
}

/// What is wrong with a cell, and what to do where words stand for classes.
fn words(bound: &Bound, text: &str, fault: String) -> String {
    let name = &bound.field.name;
    match bound.field.role {
        Role::Target if bound.encoding.classes.is_empty() && encode::number(text.trim()).is_err() => {
            format!("{fault} (where words are classes: classes.{name}=FIRST+SECOND+... lists them)")
        }
        Role::Target | Role::Input => fault,
    }
}

impl Reader for CsvReader {
    fn split(&self, path: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()> {
        let mut lines = Lines::open(path, self.separator)?;
        let mut first = 0;
        if let Some(header) = &self.header {
            let mut line = Vec::new();
            lines.next(&mut line)?;
            let found = cells(&line, self.separator).unwrap_or_default();
            let same = found.len() == header.len()
                && found.iter().zip(header).all(|(cell, name)| String::from_utf8_lossy(cell).trim() == name);
            if !same {
                let place = format!("{}: line 1", path.display());
                return Err(Error::format(place, "its columns are not those of the first file"));
            }
        }
        loop {
            let mut raw = Raw { first, line: lines.line, parts: vec![Vec::new()], ..Raw::default() };
            let mut more = true;
            while more && raw.parts[0].len() < CHUNK_BYTES {
                let offset = lines.offset;
                match lines.next(&mut raw.parts[0]) {
                    Ok(Some(())) => {
                        raw.ends.push(raw.parts[0].len());
                        raw.offsets.push(offset);
                    }
                    Ok(None) => more = false,
                    Err(error) => {
                        // What was read before is handed on first.
                        raw.rows = raw.ends.len();
                        return if raw.rows == 0 || hand(raw) { Err(error) } else { Ok(()) };
                    }
                }
            }
            raw.rows = raw.ends.len();
            first += raw.rows as u64;
            if raw.rows > 0 && !hand(raw) || !more {
                return Ok(());
            }
        }
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        let cells = cells(raw.row(row), self.separator)?;
        if cells.len() != self.columns {
            return Err(format!("{} cells, not {}", cells.len(), self.columns));
        }
        for ((bound, columns), out) in fields.iter().zip(&self.sources).zip(&mut chunk.columns) {
            for &column in columns {
                self.cell(bound, &cells[column], &mut out.bytes)
                    .map_err(|fault| format!("column {}: {fault}", self.name(column)))?;
            }
        }
        Ok(())
    }

    fn place(&self, raw: &Raw, row: usize) -> String {
        let blank = raw.row(row).iter().take_while(|byte| matches!(byte, b'\n' | b'\r'));
        let (mut bytes, mut lines) = (0, 0);
        for byte in blank {
            bytes += 1;
            lines += u64::from(*byte == b'\n');
        }
        format!("line {} (byte {})", raw.line_of(row) + lines, raw.offsets[row] + bytes)
    }

    fn count(&self, _: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Cuts a file into records.
struct Lines {
    reader: Box<dyn BufRead + Send>,
    path: String,
    separator: u8,
    /// Where the next record begins, and on which line.
    offset: u64,
    line: u64,
}

/// What the bytes up to here are inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    /// Nothing but line breaks yet.
    Blank,
    /// The start of a cell.
    Start,
    Plain,
    Quoted,
    /// A quote in a quoted cell: its end, or the first of two.
    Quote,
}

impl Lines {
    fn open(path: &Path, separator: u8) -> Result<Self> {
        let name = path.display().to_string();
        let mut reader = files::open(path)?;
        let start = reader.fill_buf().map_err(|error| Error::io(name.as_str(), error))?;
        // A byte order mark is no part of the first cell.
        let mark = if start.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        reader.consume(mark);
        Ok(Self { reader, path: name, separator, offset: mark as u64, line: 1 })
    }

    /// Appends the next record, with its line break and blank lines before it; none at the end.
    ///
    /// Errors: the file cannot be read; a record that is too long.
    fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<()>> {
        let start = out.len();
        let mut state = QuoteState::Blank;
        loop {
            let buffer = self.reader.fill_buf().map_err(|error| Error::io(self.path.as_str(), error))?;
            if buffer.is_empty() {
                break;
            }
            let end = advance(&mut state, buffer, self.separator);
            let used = end.unwrap_or(buffer.len());
            out.extend_from_slice(&buffer[..used]);
            self.reader.consume(used);
            if out.len() - start > LONGEST_RECORD {
                let place = format!("{}: line {} (byte {})", self.path, self.line, self.offset);
                let message = format!("a record of over {LONGEST_RECORD} bytes");
                return Err(Error::format(place, message).with_help("is a quote never closed?"));
            }
            if end.is_some() {
                break;
            }
        }
        let record = &out[start..];
        self.offset += record.len() as u64;
        self.line += record.iter().filter(|&&byte| byte == b'\n').count() as u64;
        if state == QuoteState::Blank {
            out.truncate(start);
            return Ok(None);
        }
        Ok(Some(()))
    }
}

/// Where the record ends in `bytes`, after its line break; none where it goes on.
fn advance(state: &mut QuoteState, bytes: &[u8], separator: u8) -> Option<usize> {
    for (at, &byte) in bytes.iter().enumerate() {
        *state = match (*state, byte) {
            (QuoteState::Blank, b'\n' | b'\r') => QuoteState::Blank,
            (QuoteState::Blank | QuoteState::Start, b'"') => QuoteState::Quoted,
            (QuoteState::Quoted, b'"') => QuoteState::Quote,
            (QuoteState::Quoted, _) => QuoteState::Quoted,
            (QuoteState::Quote, b'"') => QuoteState::Quoted,
            (_, b'\n') => return Some(at + 1),
            (_, byte) if byte == separator => QuoteState::Start,
            _ => QuoteState::Plain,
        };
    }
    None
}

/// The cells of a record. Error, in words: a quote that is not closed, or that ends inside a cell.
pub(crate) fn cells(record: &[u8], separator: u8) -> Result<Vec<Cow<'_, [u8]>>, String> {
    let blank = record.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    let record = &record[blank..];
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    let record = record.strip_suffix(b"\r").unwrap_or(record);
    let mut cells = Vec::new();
    let mut at = 0;
    loop {
        let rest = &record[at..];
        if rest.first() == Some(&b'"') {
            let (cell, length) = quoted(rest)?;
            cells.push(cell);
            at += length;
            match record.get(at) {
                None => return Ok(cells),
                Some(&byte) if byte == separator => at += 1,
                Some(_) => return Err("a quote ends inside a cell".to_owned()),
            }
        } else {
            let length = rest.iter().position(|&byte| byte == separator);
            cells.push(Cow::Borrowed(&rest[..length.unwrap_or(rest.len())]));
            match length {
                None => return Ok(cells),
                Some(length) => at += length + 1,
            }
        }
    }
}

/// The cell that begins with a quote, and its length with both quotes.
fn quoted(text: &[u8]) -> Result<(Cow<'_, [u8]>, usize), String> {
    let mut owned: Option<Vec<u8>> = None;
    let (mut from, mut at) = (1, 1);
    while let Some(found) = text[at..].iter().position(|&byte| byte == b'"') {
        let quote = at + found;
        if text.get(quote + 1) == Some(&b'"') {
            owned.get_or_insert_default().extend_from_slice(&text[from..=quote]);
            (from, at) = (quote + 2, quote + 2);
            continue;
        }
        let cell = match owned {
            None => Cow::Borrowed(&text[from..quote]),
            Some(mut owned) => {
                owned.extend_from_slice(&text[from..quote]);
                Cow::Owned(owned)
            }
        };
        return Ok((cell, quote + 1));
    }
    Err("a quote is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(record: &str) -> Result<Vec<String>, String> {
        let found = cells(record.as_bytes(), b',')?;
        Ok(found.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect())
    }

    #[test]
    fn cells_are_told_apart() {
        assert_eq!(texts("a,b,,c\r\n").unwrap(), ["a", "b", "", "c"]);
        assert_eq!(texts("\n\"a,\"\"b\"\"\nc\",d").unwrap(), ["a,\"b\"\nc", "d"]);
        assert_eq!(texts("\"\",").unwrap(), ["", ""]);
        assert!(texts("\"a").unwrap_err().contains("not closed"));
        assert!(texts("\"a\"b,c").unwrap_err().contains("inside"));
    }

    proptest! {
        #[test]
        fn any_cells_written_are_read(rows in prop::collection::vec(prop::collection::vec("[a,\"\r\n é]{0,6}", 2..5), 1..6)) {
            let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
            let text: String = rows
                .iter()
                .map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n")
                .collect();
            let (mut bytes, mut found) = (text.as_bytes(), Vec::new());
            while !bytes.is_empty() {
                let mut state = QuoteState::Blank;
                let end = advance(&mut state, bytes, b',').unwrap();
                found.push(texts(std::str::from_utf8(&bytes[..end]).unwrap()).unwrap());
                bytes = &bytes[end..];
            }
            prop_assert_eq!(found, rows);
        }

        #[test]
        fn any_bytes_are_cut_and_parsed_without_panic(bytes in prop::collection::vec(prop::sample::select(&b"a,\"\n\r;\xff0"[..]), 0..60)) {
            let mut state = QuoteState::Blank;
            let mut rest = &bytes[..];
            while let Some(end) = advance(&mut state, rest, b',') {
                let _ = cells(&rest[..end], b',');
                rest = &rest[end..];
                state = QuoteState::Blank;
            }
            let _ = cells(rest, b',');
        }
    }
}
