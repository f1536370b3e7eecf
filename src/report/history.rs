//! What a training run measured, epoch by epoch, as CSV or JSON.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::escape::to_json;
use crate::files::write_atomically;

/// Writes rows of named numbers, each row in the order of its names: as CSV or JSON, as the end of
/// the file's name says. In CSV a column stands for every name that any row has; a number that is
/// missing, and in JSON one that is not finite, is left empty (`null`).
///
/// Errors: another ending; the file cannot be written.
pub fn write_history(path: &Path, rows: &[Vec<(String, f64)>]) -> Result<()> {
    let text = if is_csv(path)? { csv(rows) } else { json(rows)? };
    write_atomically(path, text.as_bytes())
}

/// Whether a history of this name is CSV; else it is JSON. Error: its name shows neither.
pub(crate) fn is_csv(path: &Path) -> Result<bool> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => Ok(true),
        Some("json") => Ok(false),
        _ => Err(Error::usage(path.display().to_string(), "its name does not say in which format")
            .with_help(".csv or .json")),
    }
}

fn csv(rows: &[Vec<(String, f64)>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let quoted = |name: &&str| match name.contains([',', '"', '\n']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => (*name).to_owned(),
    };
    let mut text = names.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        let cell = |name: &&str| {
            let found = row.iter().find(|(own, _)| own == name);
            found.map_or_else(String::new, |(_, value)| value.to_string())
        };
        text += &(names.iter().map(cell).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// One object on each line of an array.
fn json(rows: &[Vec<(String, f64)>]) -> Result<String> {
    let mut lines = Vec::new();
    for row in rows {
        let number = |value: f64| match value.fract() == 0.0 && value.abs() < 9e15 {
            true => Value::from(value as i64),
            false => Value::from(value),
        };
        let object: Map<String, Value> =
            row.iter().map(|(name, value)| (name.clone(), number(*value))).collect();
        let text = to_json(&object).map_err(|error| Error::Internal(error.to_string()))?;
        lines.push(format!("  {text}"));
    }
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<(String, f64)>> {
        let row =
            |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        vec![row(&[("epoch", 1.0), ("loss", 0.25)]), row(&[("epoch", 2.0), ("loss", f64::NAN), ("a,b", 3.5)])]
    }

    #[test]
    fn a_history_is_a_table() {
        assert_eq!(csv(&rows()), "epoch,loss,\"a,b\"\n1,0.25,\n2,NaN,3.5\n");
        let expected = "[\n  {\"epoch\":1,\"loss\":0.25},\n  {\"a,b\":3.5,\"epoch\":2,\"loss\":null}\n]\n";
        let sorted = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(sorted(&json(&rows()).unwrap()), sorted(expected));
        assert!(write_history(Path::new("history.txt"), &rows()).is_err());
    }
}
