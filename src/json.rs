//! JSON read strictly: each key once in an object, an error with its line and column, the mark that some editors begin
//! a file with passed over. Every reader of a JSON file whose types do not refuse a key that stands twice goes
//! through [`read`] or [`check_keys`].

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Result};

/// A value from its text. O(text).
///
/// Errors, with line and column as place: the text is malformed, is of another form than `T`, or has an object with a
/// key twice.
pub(crate) fn read<'t, T: Deserialize<'t>>(text: &'t [u8]) -> Result<T> {
    let text = without_mark(text);
    check_keys(text)?;
    serde_json::from_slice(text).map_err(|error| json_error(&error))
}

/// A JSON error as one of ours, with line and column as place.
pub(crate) fn json_error(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let message = match text.rfind(" at line ") {
        Some(end) => &text[..end],
        None => &text,
    };
    Error::format(format!("line {}, column {}", error.line(), error.column()), message)
}

/// The text without the mark that some editors begin it with.
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The text with quotes around numbers that Python writes and JSON has not: `NaN`, `Infinity`, `-Infinity`. O(text).
pub(crate) fn with_special_numbers(text: &[u8]) -> Cow<'_, [u8]> {
    const SPECIAL: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let mut out = Vec::new();
    let (mut at, mut kept) = (0, 0);
    while at < text.len() {
        match text[at] {
            b'"' => at = after_string(text, at),
            b'N' | b'I' | b'-' => match SPECIAL.iter().find(|name| text[at..].starts_with(name)) {
                Some(name) => {
                    out.extend_from_slice(&text[kept..at]);
                    out.push(b'"');
                    out.extend_from_slice(name);
                    out.push(b'"');
                    at += name.len();
                    kept = at;
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[kept..]);
    Cow::Owned(out)
}

/// The position behind the string that begins at `start`.
fn after_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Error: an object of the text has a key twice, of which a reader would pass over one. O(text).
pub(crate) fn check_keys(text: &[u8]) -> Result<()> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.deserialize_any(Unique).map_err(|error| json_error(&error))
}

/// Any value whose objects have each key once. Recursion is bounded by the parser (128 levels).
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Unique)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Unique)?;
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format!("the key {key:?} occurs twice in one object")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn keys_stand_once() {
        let at = |text: &str| read::<Value>(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            read::<Value>(b"\xef\xbb\xbf{\"a\": [1, 2.5, null]}").unwrap(),
            json!({"a": [1, 2.5, null]})
        );
        assert!(at("{\"a\": 1,\n \"a\": 2}").starts_with("line 2, column "));
        // The same key, written another way.
        assert!(at(r#"[{"a": {"b": 1, "\u0062": 1}}]"#).contains("\"b\" occurs twice"));
        assert!(at("{").starts_with("line 1, column 1: "));
    }
}
