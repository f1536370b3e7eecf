//! The models of the shared corpus.

use std::path::PathBuf;

/// The corpus: `PARTITION_SHARED/corpus`, else `../shared/corpus`.
pub(crate) fn folder() -> PathBuf {
    let shared = std::env::var_os("PARTITION_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    shared.join("corpus")
}

/// ONNX and Keras models whose names hold one of the words, or all; sorted. Fixtures of another
/// engine are left out.
pub(crate) fn models(words: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in ["keras", "onnx"] {
        let Ok(entries) = std::fs::read_dir(folder().join(part)) else { continue };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        found.extend(paths.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let kind = name.ends_with(".onnx") || (part == "keras" && name.ends_with(".json"));
            let wanted = words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
            kind && wanted && !name.starts_with("tract_")
        }));
    }
    found.sort();
    found
}
