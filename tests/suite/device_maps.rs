//! `export --format accelerate` gives a device to every array that transformers itself holds: for each class that we read, the
//! names are in `tests/transformers/names.txt`, stored by `scripts/transformers_families.py names`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use partition::unstable::plan::Plan;
use serde_json::{Value, json};

use crate::cli::Folder;
use crate::onnx::{float, floats, model, node};
use crate::random_costgraph::Rng;
use crate::sweep::Share;

sweep! {
    every_array_of_the_library_has_a_device: one of 6;
}

/// A class of transformers, and what its model holds.
struct Class {
    family: String,
    name: String,
    tied: bool,
    arrays: Vec<String>,
}

/// The names that `{a.{b,@},c}` stands for, with a dot before each; `@` is each of `bare`.
fn expanded(text: &str, bare: &[String]) -> Vec<String> {
    let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
        let (part, rest) = text.split_at(text.find(['.', '{']).unwrap_or(text.len()));
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        return match (part, rest) {
            ("@", _) => bare.to_vec(),
            (part, "") => vec![format!(".{part}")],
            (part, rest) => expanded(rest, bare).iter().map(|name| format!(".{part}{name}")).collect(),
        };
    };
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                found.extend(expanded(&inner[from..at], bare));
                from = at + 1;
            }
            _ => {}
        }
    }
    found.extend(expanded(&inner[from..], bare));
    found
}

fn tests() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers")
}

fn classes() -> Vec<Class> {
    let text = std::fs::read_to_string(tests().join("names.txt")).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let is_bare = |line: &&Vec<&str>| line[1].ends_with("Model") && !line[3].contains('@');
    // Of several such classes (`T5EncoderModel`, `T5Model`) the last one by name.
    let bare: BTreeMap<&str, Vec<String>> = lines
        .iter()
        .filter(is_bare)
        .filter(|line| !line[1].ends_with("LMHeadModel"))
        .map(|line| (line[0], expanded(line[3], &[])))
        .collect();
    let mut classes = Vec::new();
    for line in &lines {
        let own = bare.get(line[0]).map_or(&[][..], Vec::as_slice);
        let arrays: Vec<String> = expanded(line[3], own).iter().map(|name| name[1..].to_owned()).collect();
        for tied in [true, false]
            .into_iter()
            .filter(|&tied| line[2] == ["untied", "tied"][usize::from(tied)] || line[2] == "any")
        {
            let (family, name) = (line[0].to_owned(), line[1].to_owned());
            classes.push(Class { family, name, tied, arrays: arrays.clone() });
        }
    }
    classes
}

/// Writes the family's first stored configuration for this class.
fn write_config(class: &Class, folder: &Folder) {
    let stored = tests().join(format!("families/{}.0/config.json", class.family));
    let mut config: Value = serde_json::from_slice(&std::fs::read(stored).unwrap()).unwrap();
    config["architectures"] = json!([class.name]);
    config["tie_word_embeddings"] = json!(class.tied);
    let is_bert = matches!(&*class.family, "bert" | "roberta");
    if is_bert && (class.name.ends_with("LMHeadModel") || class.name.ends_with("ForCausalLM")) {
        config["is_decoder"] = json!(true);
    }
    std::fs::write(folder.path("config.json"), config.to_string()).unwrap();
}

/// The block of a node, `model.layers.1`, or all of its name where it is in none.
fn block(node: &str) -> &str {
    let mut end = 0;
    for part in node.split_inclusive('.') {
        end += part.len();
        if part.trim_end_matches('.').bytes().all(|byte| byte.is_ascii_digit()) {
            return node[..end].trim_end_matches('.');
        }
    }
    node
}

/// The arrays that the exported map leaves without a device, and what is told, for the plan with devices drawn for `unit`s.
fn uncovered(class: &Class, folder: &Folder, plan: &Plan, unit: fn(&str) -> &str) -> (Vec<String>, String) {
    let (mut plan, mut rng, mut drawn) = (plan.clone(), Rng::new(5), HashMap::new());
    for (node, device) in &mut plan.placement {
        let number = drawn.entry(unit(node).to_owned()).or_insert_with(|| rng.below(2));
        *device = format!("cuda{number}");
    }
    std::fs::write(folder.path("drawn.json"), plan.to_json()).unwrap();
    let ran = folder.run(&["export", "drawn.json", "--format", "accelerate"]);
    assert_eq!(ran.code, 0, "{}: {}", class.name, ran.stderr);
    let map: BTreeMap<String, Value> = serde_json::from_str(&ran.stdout).unwrap();
    let is_covered = |array: &&String| {
        let dots = array.match_indices('.').map(|(at, _)| at).chain([array.len()]);
        dots.into_iter().any(|end| map.contains_key(&array[..end]))
    };
    (class.arrays.iter().filter(|array| !is_covered(array)).cloned().collect(), ran.stderr)
}

fn every_array_of_the_library_has_a_device(share: Share) {
    let classes = classes();
    assert!(classes.len() > 300, "{} classes", classes.len());
    let mut left = Vec::new();
    for class in share.among(&classes) {
        let folder = Folder::new();
        write_config(class, &folder);
        folder.ok(&["config.json", "-d", "2xt4-16g", "--use", "all", "--effort", "fast", "-o", "plan.json"]);
        let plan = Plan::load(folder.path("plan.json")).unwrap();
        let (arrays, _) = uncovered(class, &folder, &plan, block);
        left.extend(arrays.iter().map(|array| format!("{}, whole blocks: {array}", class.name)));
        // Where experts of one layer are apart, no device is that of the one array that holds them: it is told.
        let (arrays, told) = uncovered(class, &folder, &plan, |node| node);
        let others = arrays.iter().filter(|array| !array.contains(".experts.") || !told.contains("experts"));
        left.extend(others.map(|array| format!("{}, cut blocks: {array}", class.name)));
    }
    assert!(left.is_empty(), "without a device:\n{}", left.join("\n"));
}

#[test]
fn names_in_braces_are_expanded() {
    assert_eq!(expanded("{a.{b,c.@},d}", &[".x".into(), ".y".into()]), [".a.b", ".a.c.x", ".a.c.y", ".d"]);
}

#[test]
fn a_device_map_without_the_model_says_what_it_lacks() {
    let folder = Folder::new();
    let class = classes().into_iter().find(|class| class.name == "T5ForConditionalGeneration").unwrap();
    write_config(&class, &folder);
    folder.ok(&["config.json", "-d", "2xt4-16g", "--use", "all", "-o", "plan.json"]);
    std::fs::rename(folder.path("config.json"), folder.path("moved.json")).unwrap();
    let ran = folder.run(&["export", "plan.json", "--format", "accelerate"]);
    assert!(ran.code == 0 && ran.stderr.contains("--model MODEL"), "{}", ran.stderr);
    let named = folder.run(&["export", "plan.json", "--format", "accelerate", "--model", "moved.json"]);
    assert!(named.code == 0 && !named.stderr.contains("--model MODEL"), "{}", named.stderr);
    assert!(named.stdout.contains("\"decoder"), "{}", named.stdout);
}

/// `torch.export` calls operations by what they do, as modules often are called.
#[test]
fn an_operation_called_as_a_module_is_none() {
    let product = |name: &str, x: &str, weight: &str, y: &str| node(name, "MatMul", &[x, weight], &[y]);
    let nodes =
        vec![product("linear", "x", "fc.weight", "h"), product("linear_1", "h", "linear.weight", "y")];
    let weights = ["fc.weight", "linear.weight"].map(|name| {
        let mut weight = floats(name, &[0.5; 4]);
        weight.dims = vec![2, 2];
        weight
    });
    let folder = Folder::new();
    let model = model(nodes, vec![float("x", &["1", "2"])], weights.to_vec(), &["y"]);
    std::fs::write(folder.path("model.onnx"), model).unwrap();
    let pins = ["--pin", "linear=cuda0", "--pin", "linear_1=cuda1"];
    folder.ok(&[&["model.onnx", "-d", "2xt4-16g", "-o", "plan.json"], &pins[..]].concat());
    let map: Value =
        serde_json::from_str(&folder.ok(&["export", "plan.json", "--format", "accelerate"])).unwrap();
    assert_eq!(map, json!({"fc": 0, "linear": 1, "linear_1": 1}));
}
