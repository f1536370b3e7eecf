//! Names and patterns of files as the files that there are.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

use super::spec::Format;
use crate::error::{Error, Result};
use crate::files;

/// The files that the names and patterns mean, each pattern's in the order of their names.
///
/// Errors: a file that is not there, a pattern that matches nothing.
pub(super) fn expand(patterns: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for pattern in patterns {
        if pattern.is_empty() {
            return Err(Error::usage("--data", "the name of a file is empty"));
        }
        let path = Path::new(pattern);
        if path.is_file() || !pattern.contains(['*', '?']) {
            fs::metadata(path).map_err(|error| Error::io(pattern.as_str(), error))?;
            files.push(path.to_owned());
            continue;
        }
        let found = matching(pattern)?;
        if found.is_empty() {
            return Err(Error::usage(format!("--data: {pattern}"), "no file matches"));
        }
        files.extend(found);
    }
    Ok(files)
}

/// Files that match a pattern, sorted. `*` and `?` stay within a part of the path, `**` stands for any folders;
/// brackets mean themselves. Folders that cannot be listed are passed over.
fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let mut escaped = String::with_capacity(pattern.len());
    for character in pattern.chars() {
        match character {
            '[' | ']' => escaped.extend(['[', character, ']']),
            other => escaped.push(other),
        }
    }
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let paths = glob_with(&escaped, options)
        .map_err(|error| Error::usage(format!("--data: {pattern}"), error.msg))?;
    let mut found: Vec<PathBuf> = paths.flatten().filter(|path| path.is_file()).collect();
    found.sort();
    Ok(found)
}

/// The format of a file: by content where that tells it, else by the end of its name.
///
/// Error: neither does.
pub(super) fn format_of(path: &Path) -> Result<Format> {
    let place = path.display().to_string();
    let mut start = Vec::new();
    let file = files::open(path)?;
    file.take(16).read_to_end(&mut start).map_err(|error| Error::io(place.as_str(), error))?;
    // A compressed file is named after what is in it.
    let path = match path.extension() {
        Some(ending) if ending == "gz" => Path::new(path.file_stem().unwrap_or(path.as_os_str())),
        _ => path,
    };
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    match (&start[..], ending.as_deref()) {
        ([b'P', b'K', 3, 4, ..], _) => Ok(Format::Npz),
        ([_, _, _, _, _, _, _, _, b'{', ..], Some("safetensors")) => Ok(Format::Safetensors),
        (_, Some("csv" | "tsv" | "txt")) => Ok(Format::Csv),
        (_, Some("npz")) => Ok(Format::Npz),
        (_, Some("safetensors")) => Ok(Format::Safetensors),
        (_, Some("tfrecord" | "tfrecords")) => Ok(Format::TfRecord),
        (_, Some("bin" | "raw")) => Ok(Format::Raw),
        _ if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".tfrecord")) => {
            Ok(Format::TfRecord)
        }
        _ => Err(Error::usage(place, "its name does not show the format")
            .with_help("format=csv, tsv, npz, safetensors, tfrecord or raw")),
    }
}

/// A file to be read from its front; what is compressed with gzip is decompressed on the way, and
/// offsets count decompressed bytes.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let io = |error| Error::io(path.display().to_string(), error);
    let mut file = BufReader::with_capacity(1 << 17, files::open(path)?);
    let start = file.fill_buf().map_err(io)?;
    if start.starts_with(&[0x1f, 0x8b]) {
        let data = flate2::bufread::MultiGzDecoder::new(file);
        return Ok(Box::new(BufReader::with_capacity(1 << 17, data)));
    }
    Ok(Box::new(file))
}

/// Whether a file's name ends so, compressed or not.
pub(super) fn is_named(path: &Path, ending: &str) -> bool {
    let name = path.to_string_lossy().to_ascii_lowercase();
    name.trim_end_matches(".gz").ends_with(&format!(".{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_in_order_and_in_folders() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/2.csv", "b/1.csv", "a/1.csv", "a/1.txt"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let pattern = dir.path().join("?/*.csv").display().to_string();
        let found = expand(&[pattern]).unwrap();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(dir.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a/1.csv", "b/1.csv", "b/2.csv"]);
        let names = |pattern: &str| -> Vec<String> {
            let found = expand(&[dir.path().join(pattern).display().to_string()]).unwrap();
            found.iter().map(|path| path.strip_prefix(dir.path()).unwrap().display().to_string()).collect()
        };
        for name in ["b/deep/er/3.csv", "b/[1]/4.csv", "b/.hidden/5.csv", "0.csv"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let all =
            ["0.csv", "a/1.csv", "b/.hidden/5.csv", "b/1.csv", "b/2.csv", "b/[1]/4.csv", "b/deep/er/3.csv"];
        assert_eq!(names("**/*.csv"), all);
        assert_eq!(names("b/**/?.csv"), all[2..]);
        assert_eq!(names("b/[1]/*.csv"), ["b/[1]/4.csv"]);
        let error = expand(&[dir.path().join("b**/1.csv").display().to_string()]).unwrap_err().to_string();
        assert!(error.contains("recursive wildcards must form a single path component"), "{error}");
        assert!(expand(&[dir.path().join("*.npz").display().to_string()]).is_err());
        assert!(expand(&[dir.path().join("c.npz").display().to_string()]).is_err());
    }
}
