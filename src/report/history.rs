//! What a training run measured, epoch by epoch, as CSV or JSON.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

#[cfg(feature = "run")]
use crate::data::cells;
use crate::error::{Error, Result};
use crate::escape::to_json;
#[cfg(feature = "run")]
use crate::files::read;
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

/// The rows of a history that was written before; what is empty there, or `null`, is left out.
///
/// Errors: another ending; the file cannot be read, or is no history.
#[cfg(feature = "run")]
pub fn read_history(path: &Path) -> Result<Vec<Vec<(String, f64)>>> {
    let is_csv = is_csv(path)?;
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let rows = if is_csv { of_csv(&text) } else { of_json(&text) };
    rows.ok_or_else(|| {
        Error::format(path.display().to_string(), "it is no history of a training run")
            .with_help("another --history, or move the file away")
    })
}

#[cfg(feature = "run")]
fn of_csv(text: &str) -> Option<Vec<Vec<(String, f64)>>> {
    let cells = |line: &str| {
        let cells = cells(line.as_bytes(), b',').ok()?;
        Some(cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect::<Vec<String>>())
    };
    let mut lines = text.lines();
    let names = cells(lines.next()?)?;
    names.iter().find(|name| *name == "epoch")?;
    let row = |line: &str| {
        let cells = cells(line)?;
        let filled = names.iter().zip(&cells).filter(|(_, cell)| !cell.is_empty());
        let row: Option<Vec<_>> =
            filled.map(|(name, cell)| Some((name.clone(), cell.parse().ok()?))).collect();
        row.filter(|_| cells.len() == names.len())
    };
    lines.map(row).collect()
}

#[cfg(feature = "run")]
fn of_json(text: &str) -> Option<Vec<Vec<(String, f64)>>> {
    let rows: Vec<Map<String, Value>> = serde_json::from_str(text).ok()?;
    let row = |row: Map<String, Value>| {
        let filled = row.into_iter().filter(|(_, value)| !value.is_null());
        filled.map(|(name, value)| Some((name, value.as_f64()?))).collect()
    };
    rows.into_iter().map(row).collect()
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
    // By name. Looked up, never iterated.
    let mut columns: HashMap<&str, usize> = HashMap::new();
    for (name, _) in rows.iter().flatten() {
        columns.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() - 1
        });
    }
    let quoted = |name: &&str| match name.contains([',', '"', '\n']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => (*name).to_owned(),
    };
    let mut text = names.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        let mut cells = vec![String::new(); names.len()];
        // Of two values of a name the first.
        for (name, value) in row.iter().rev() {
            cells[columns[name.as_str()]] = value.to_string();
        }
        text += &(cells.join(",") + "\n");
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

    #[cfg(feature = "run")]
    #[test]
    fn a_history_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["h.csv", "h.json"] {
            let path = folder.path().join(name);
            write_history(&path, &rows()).unwrap();
            let read = read_history(&path).unwrap();
            assert_eq!(read[0], rows()[0], "{name}");
            assert!(read[1].contains(&("a,b".to_owned(), 3.5)) && read[1].len() >= 2, "{name}");
            std::fs::write(&path, "epoch,loss\n1\n").unwrap();
            assert!(read_history(&path).unwrap_err().to_string().contains("no history"), "{name}");
        }
    }
}
