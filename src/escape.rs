//! Text from files made harmless before it is printed: names come from strangers, and what is shown of them must neither
//! break lines, nor steer a terminal, nor turn the direction of what is beside it, nor end a string or a comment.
//!
//! Every writer of names goes through one of these functions; `tests/suite/hostile_names.rs` walks all outputs.

use std::fmt::Write;

use serde::Serialize;

/// Whether a character may be printed as it is: no control character (C0, C1, DEL), no line or paragraph separator, none
/// that is invisible or changes the direction of writing (Unicode's bidirectional controls, joiners, tags).
pub(crate) fn is_harmless(c: char) -> bool {
    let is_invisible = matches!(
        c,
        '\u{061c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !is_invisible
}

/// `text` on one line, what is not harmless as `\n` or `\u{202e}`.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// As [`escaped`], line breaks kept: for text of several lines, whose names are escaped already.
#[cfg(feature = "cli")]
pub(crate) fn escaped_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) || c == '\n' { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// `text` for a comment of one line or between `/*` and `*/` in C: it ends neither.
pub(crate) fn in_comment(text: &str) -> String {
    // A backslash at the end of a line would take the next line into the comment.
    escaped(text).replace('\\', "/").replace("*/", "* /")
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    harmless_json(serde_json::Value::from(text).to_string())
}

/// A value as JSON on one line.
pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string(value).map(harmless_json)
}

/// A value as JSON with line breaks and indentation.
#[cfg(feature = "cli")]
pub(crate) fn to_json_pretty<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(harmless_json)
}

/// JSON text with what is not harmless in its strings as `\u202e`. Outside of strings there is nothing such but the line
/// breaks of the form itself, and those within strings are escaped already.
fn harmless_json(text: String) -> String {
    // Most text has printable ASCII alone: it is looked at once, by bytes.
    if text.bytes().all(|byte| byte < 0x7f) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) || c == '\n' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use super::*;

    const NASTY: &str = "a\n\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{2028}\u{e0041}é漢";

    #[test]
    fn what_steers_a_terminal_is_escaped_and_letters_stay() {
        assert_eq!(escaped(NASTY), "a\\n\\u{1b}[31m\\u{7f}\\u{9b}\\u{202e}\\u{2028}\\u{e0041}é漢");
        assert_eq!(escaped_lines("a\nb\r"), "a\nb\\r");
    }

    #[test]
    fn json_reads_back_to_the_same_text() {
        for json in [quoted(NASTY), to_json(NASTY).unwrap(), to_json_pretty(&[NASTY]).unwrap()] {
            assert!(json.chars().all(|c| is_harmless(c) || c == '\n'), "{json}");
            assert!(json.contains("\\udb40\\udc41") && json.contains("é漢"), "{json}");
        }
        assert_eq!(serde_json::from_str::<String>(&quoted(NASTY)).unwrap(), NASTY);
        assert_eq!(serde_json::from_str::<[String; 1]>(&to_json_pretty(&[NASTY]).unwrap()).unwrap(), [NASTY]);
    }

    #[test]
    fn a_comment_does_not_end_early() {
        for text in ["*/ int main() {", "a\nb", "end\\", "*\u{0}/"] {
            let shown = in_comment(text);
            assert!(!shown.contains("*/") && !shown.contains('\\') && !shown.contains('\n'), "{shown}");
        }
    }
}
