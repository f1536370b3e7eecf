//! The tables of `docs/models.md` that follow from the code and the stored tests: `BLESS=1` writes them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use partition::unstable::load::Format;
use partition::unstable::load::listing::{families, gguf_types};
use partition::unstable::load::onnx::operators;
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names in a folder of stored tests, in order.
fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The families of stored checkpoints, one for each.
fn model_types(folder: &str) -> Vec<String> {
    let of = |name: &String| {
        let config = std::fs::read(root().join(folder).join(name).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        config["model_type"].as_str().unwrap().to_owned()
    };
    names(folder).iter().map(of).collect()
}

/// Each family with its classes, and how many checkpoints the library's outputs are stored for.
fn of_families() -> String {
    let (checkpoints, files) = (model_types("tests/transformers/families"), names("tests/gguf"));
    let mut table = "| family | classes | checkpoints compared | GGUF |\n|---|---|---|---|\n".to_owned();
    for family in families() {
        let stored = checkpoints.iter().filter(|name| *name == family.name).count();
        assert!(stored > 0, "no checkpoint of {} is stored in tests/transformers/families", family.name);
        for dialect in &family.gguf {
            let is_stored = files.contains(&format!("{dialect}.gguf"));
            assert!(is_stored, "no file of {dialect} is stored in tests/gguf");
        }
        let (classes, gguf) = (family.classes.join(", "), family.gguf.join(", "));
        writeln!(table, "| {} | {classes} | {stored} | {gguf} |", family.name).unwrap();
    }
    table
}

/// How a format is called on the page, what of it is read, and the modules of this suite that show it.
struct Row {
    format: &'static str,
    read: String,
    tests: &'static [&'static str],
}

const FORMATS: [Format; 9] = [
    Format::Onnx,
    Format::Keras,
    Format::Transformers,
    Format::Gguf,
    Format::Torch,
    Format::Native,
    Format::CostGraph,
    Format::Workload,
    Format::Fx,
];

/// A format's row. A new format does not compile until it has one.
fn row(format: Format) -> Row {
    let own = |format, read: &str, tests| Row { format, read: read.to_owned(), tests };
    match format {
        Format::Onnx => {
            let count = operators().len();
            let read = format!(
                "opsets 7 to 27, {count} operators, external data; [operators](operators.md), [differences](onnx.md)"
            );
            Row { format: "ONNX", read, tests: &["onnx_nodes", "corpus", "differential", "integers"] }
        }
        Format::Keras => own(
            "Keras 2 and 3",
            "JSON of `to_json`; `.keras`, and `.h5` of `model.save`, with the weights inside; masks; functions of [`keras.ops`](keras.md) and of TensorFlow; networks of 16 bits",
            &["keras", "keras_weights"],
        ),
        Format::Transformers => {
            let read = format!(
                "a folder or its `config.json`; [{} families, heads, fields](transformers.md)",
                families().len()
            );
            Row { format: "transformers", read, tests: &["families", "checkpoints", "transformers"] }
        }
        Format::Gguf => {
            let dialects: usize = families().iter().map(|family| family.gguf.len()).sum();
            let read = format!(
                "[{dialects} architectures](transformers.md#gguf), metadata as configuration, vocabulary for `generate --prompt`"
            );
            Row { format: "GGUF", read, tests: &["gguf"] }
        }
        Format::Torch => own(
            "[`torch.export`](torch.md)",
            "`.pt2` archives, as exported and decomposed, with their arrays, open sizes and complex numbers",
            &["torch"],
        ),
        Format::Native => own("native `model.json`", "[all of it](model-json.md)", &["native", "schemas"]),
        Format::CostGraph => own("[cost graph](cost-graph.md)", "all of it", &["costgraph"]),
        Format::Workload => own("placement workload", "all of it", &["workload"]),
        Format::Fx => own(
            "[`torch.fx` graph](torch.md#graphs-of-torchfx)",
            "ATen operations with shapes in JSON (`torch-fx-aten-json-1`), to plan",
            &["fx"],
        ),
    }
}

/// What is read as a model. Each row names modules with tests.
fn of_formats() -> String {
    let mut table = "| model | read | test |\n|---|---|---|\n".to_owned();
    for Row { format, read, tests } in FORMATS.map(row) {
        for module in tests {
            let source = std::fs::read_to_string(root().join(format!("tests/suite/{module}.rs"))).unwrap();
            let has_tests = source.contains("#[test]") || source.contains("sweep!");
            assert!(has_tests, "{module} has no test of {format}");
        }
        let tests: Vec<String> = tests.iter().map(|name| format!("`{name}`")).collect();
        writeln!(table, "| {format} | {read} | {} |", tests.join(", ")).unwrap();
    }
    table
}

fn of_types() -> String {
    let mut table = "| tensors of GGUF | bits a number |\n|---|---|\n".to_owned();
    for (name, bits) in gguf_types() {
        writeln!(table, "| {name} | {bits} |").unwrap();
    }
    table
}

/// The `type` of a part of a tokenizer, and of what it is a sequence of.
fn kind(part: &Value) -> String {
    let own = part["type"].as_str().unwrap_or("none");
    let inner = ["normalizers", "pretokenizers", "decoders"].iter().find_map(|list| part[*list].as_array());
    match inner {
        Some(list) => list.iter().map(kind).collect::<Vec<String>>().join(" + "),
        None => own.to_owned(),
    }
}

fn of_tokenizers() -> String {
    let mut table =
        "| tokenizer | normaliser | splits by | decoder | texts, lists of tokens |\n|---|---|---|---|---|\n"
            .to_owned();
    for name in names("tests/tokenizers") {
        let read = |file: &str| -> Value {
            let path = root().join("tests/tokenizers").join(&name).join(file);
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        let (tokenizer, cases) = (read("tokenizer.json"), read("cases.json"));
        let [normalizer, splits, decoder] =
            ["normalizer", "pre_tokenizer", "decoder"].map(|part| kind(&tokenizer[part]));
        let [texts, lists] = ["encoded", "decoded"].map(|list| cases[list].as_array().map_or(0, Vec::len));
        let model = tokenizer["model"]["type"].as_str().unwrap();
        let bytes =
            if tokenizer["model"]["byte_fallback"] == true { ", bytes for what is unknown" } else { "" };
        writeln!(table, "| {model}{bytes} | {normalizer} | {splits} | {decoder} | {texts}, {lists} |")
            .unwrap();
    }
    table
}

/// The page with a table between its marks.
fn with(page: &str, mark: &str, table: &str) -> String {
    let start = format!("<!-- {mark} -->\n");
    let (before, rest) =
        page.split_once(&start).unwrap_or_else(|| panic!("docs/models.md has no mark {mark}"));
    let (_, after) = rest.split_once("<!-- end -->\n").expect("each table has an end");
    format!("{before}{start}{table}<!-- end -->\n{after}")
}

#[test]
fn the_page_of_models_is_what_the_code_reads() {
    let path = Path::new(&root()).join("docs/models.md");
    let stored = std::fs::read_to_string(&path).unwrap();
    let tables = [
        ("formats", of_formats()),
        ("families", of_families()),
        ("types", of_types()),
        ("tokenizers", of_tokenizers()),
    ];
    let page = tables.iter().fold(stored.clone(), |page, (mark, table)| with(&page, mark, table));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
        return;
    }
    assert!(stored == page, "docs/models.md is not what the code reads: BLESS=1 writes it anew");
}
