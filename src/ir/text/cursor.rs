//! Reading the parts of one line.

use std::collections::HashMap;
use std::str::FromStr;

use super::super::{DimId, Real, Size};
use crate::error::{Error, Result};

/// Dimensions by name.
pub(super) type Dims = HashMap<String, DimId>;

/// A place in a line of the text form.
pub(super) struct Cursor<'t> {
    line: &'t str,
    /// Offset in bytes, always between characters.
    at: usize,
    number: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(line: &'t str, number: usize) -> Self {
        Self { line, at: 0, number }
    }

    /// An error at this place, as `line:column`.
    pub(super) fn fail(&self, message: impl Into<String>) -> Error {
        let column = self.line[..self.at].chars().count() + 1;
        Error::format(format!("{}:{column}", self.number), message)
    }

    /// An error that says what is here instead.
    fn expected(&self, what: &str) -> Error {
        let found: String = self.rest().chars().take(20).collect();
        let found = if found.is_empty() { "the end of the line".to_owned() } else { format!("`{found}`") };
        self.fail(format!("expected {what}, found {found}"))
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.line[self.at..]
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Takes the characters that fit.
    fn take(&mut self, fits: impl Fn(u8) -> bool) -> &'t str {
        let rest = self.rest();
        let length = rest.bytes().position(|byte| !fits(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Takes `text` where it is next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<()> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(&format!("`{text}`"))) }
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.space();
        if self.rest().is_empty() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    pub(super) fn word(&mut self) -> Result<&'t str> {
        self.space();
        if !self.rest().starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return Err(self.expected("a name"));
        }
        Ok(self.take(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
    }

    /// A word that `read` knows.
    pub(super) fn one_of<T>(&mut self, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        self.space();
        let start = self.at;
        let word = self.word()?;
        read(word).ok_or_else(|| {
            self.at = start;
            self.expected(what)
        })
    }

    pub(super) fn integer<T: FromStr>(&mut self) -> Result<T> {
        self.space();
        let start = self.at;
        self.eat("-");
        self.take(|byte| byte.is_ascii_digit());
        let value = self.line[start..self.at].parse();
        value.map_err(|_| {
            self.at = start;
            self.expected("an integer in range")
        })
    }

    /// A number of any kind that parses from a decimal.
    pub(super) fn number<T: FromStr>(&mut self) -> Result<T> {
        self.space();
        let start = self.at;
        let text = self.take(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
        text.parse().map_err(|_| {
            self.at = start;
            self.expected("a number in range")
        })
    }

    pub(super) fn real(&mut self) -> Result<Real> {
        if !self.eat("nan:") {
            return self.number().map(Real);
        }
        let start = self.at;
        let bits = u64::from_str_radix(self.take(|byte| byte.is_ascii_hexdigit()), 16);
        match bits.map(f64::from_bits) {
            Ok(value) if value.is_nan() => Ok(Real(value)),
            _ => {
                self.at = start;
                Err(self.expected("the bits of a value that is not a number"))
            }
        }
    }

    /// The hexadecimal digits that are next.
    pub(super) fn hexadecimal(&mut self) -> &'t str {
        self.take(|byte| byte.is_ascii_hexdigit())
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        self.one_of("true or false", |word| word.parse().ok())
    }

    /// The number of an id: `%7`, `s3`.
    pub(super) fn id(&mut self, sigil: &str) -> Result<u32> {
        self.expect(sigil)?;
        if !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.expected(&format!("a number after `{sigil}`")));
        }
        self.integer()
    }

    pub(super) fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut text = String::new();
        loop {
            let Some(c) = self.rest().chars().next() else { return Err(self.expected("a closing quote")) };
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(text);
                }
                '\\' => text.push(self.escape()?),
                c => {
                    self.at += c.len_utf8();
                    text.push(c);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        const ESCAPES: [(&str, char); 5] =
            [("\\\"", '"'), ("\\\\", '\\'), ("\\n", '\n'), ("\\r", '\r'), ("\\t", '\t')];
        for (text, c) in ESCAPES {
            if self.rest().starts_with(text) {
                self.at += text.len();
                return Ok(c);
            }
        }
        let start = self.at;
        if self.rest().starts_with("\\u{") {
            self.at += 3;
            let code = u32::from_str_radix(self.take(|byte| byte.is_ascii_hexdigit()), 16);
            if let Some(c) = code.ok().and_then(char::from_u32)
                && self.rest().starts_with('}')
            {
                self.at += 1;
                return Ok(c);
            }
        }
        self.at = start;
        Err(self.expected("an escape: \\\" \\\\ \\n \\r \\t \\u{hex}"))
    }

    /// `[a, b, c]`
    pub(super) fn list<T>(&mut self, entry: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.entries("[", "]", entry)
    }

    /// Entries separated by commas, between `open` and `close`.
    pub(super) fn entries<T>(
        &mut self,
        open: &str,
        close: &str,
        mut entry: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut entries = Vec::new();
        if self.eat(close) {
            return Ok(entries);
        }
        loop {
            entries.push(entry(self)?);
            if self.eat(close) {
                return Ok(entries);
            }
            self.expect(",")?;
        }
    }

    /// Takes `name=` where it is next.
    pub(super) fn eat_attribute(&mut self, name: &str) -> bool {
        let start = self.at;
        let found = self.eat(name) && self.eat("=");
        if !found {
            self.at = start;
        }
        found
    }

    /// `name=`
    pub(super) fn attribute(&mut self, name: &str) -> Result<()> {
        self.expect(name)?;
        self.expect("=")
    }

    /// A name as it appears in sizes: bare or quoted.
    pub(super) fn dim_name(&mut self) -> Result<String> {
        self.space();
        if self.rest().starts_with('"') { self.string() } else { self.word().map(str::to_owned) }
    }

    /// `2*batch-n+1`
    pub(super) fn size(&mut self, dims: &Dims) -> Result<Size> {
        let mut constant = 0i64;
        let mut terms = Vec::new();
        let mut first = true;
        loop {
            let negative = self.eat("-");
            if !negative && !first && !self.eat("+") {
                break;
            }
            first = false;
            self.space();
            let digit = self.rest().starts_with(|c: char| c.is_ascii_digit());
            let factor = if digit {
                self.magnitude(negative)?
            } else if negative {
                -1
            } else {
                1
            };
            if digit && !self.eat("*") {
                constant = constant.checked_add(factor).ok_or_else(|| self.fail("a size overflows"))?;
            } else {
                terms.push((self.known_dim(dims)?, factor));
            }
        }
        Size::new(constant, terms).ok_or_else(|| self.fail("a size overflows"))
    }

    /// Digits with a sign before them, so that the smallest integer is read too.
    fn magnitude(&mut self, negative: bool) -> Result<i64> {
        let start = self.at;
        let digits = self.take(|byte| byte.is_ascii_digit());
        let value = if negative { format!("-{digits}").parse() } else { digits.parse() };
        value.map_err(|_| {
            self.at = start;
            self.expected("an integer in range")
        })
    }

    fn known_dim(&mut self, dims: &Dims) -> Result<DimId> {
        self.space();
        let start = self.at;
        let name = self.dim_name()?;
        dims.get(&name).copied().ok_or_else(|| {
            self.at = start;
            self.expected("a number or a dimension")
        })
    }
}
