//! ONNX models: the corpus loads, damaged files are refused, shapes are computed.

use std::collections::BTreeMap;
use std::path::Path;

use partition::ir::Graph;
use partition::load::{LoadOptions, Model};
use partition::{Error, Result};

use crate::shared;

fn read(path: &Path, dims: &[(&str, i64)]) -> Result<Graph> {
    let bytes = std::fs::read(path).expect("the file can be read");
    let dims: BTreeMap<String, i64> = dims.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    match partition::load::load(&bytes, Some(path), &LoadOptions { dims })? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => panic!("{} is a network", path.display()),
    }
}

/// ONNX files of the corpus, but those of other runtimes' own test suites.
fn corpus() -> Vec<std::path::PathBuf> {
    let Some(dir) = shared::dir() else { return Vec::new() };
    let mut files: Vec<_> = ["onnx", "wheels"]
        .iter()
        .flat_map(|folder| {
            std::fs::read_dir(dir.join("corpus").join(folder)).expect("the corpus has folders")
        })
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tract_")))
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_loads() {
    let mut failures = Vec::new();
    for path in corpus() {
        match read(&path, &[]) {
            Ok(graph) => {
                println!("{}: {} nodes {:?}", path.display(), graph.node_count(), graph.unbound_dims())
            }
            Err(Error::Unsupported(report)) if path.ends_with("ort_logreg_iris.onnx") => {
                assert_eq!(report.details.len(), 3, "every operation that is not supported is named");
            }
            Err(error) => failures.push(format!("{error}\n  {}", error.details().join("\n  "))),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
