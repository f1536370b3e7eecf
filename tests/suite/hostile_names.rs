//! Names from strangers in everything that is printed or written: no output has a character that steers a terminal,
//! breaks a line, turns the direction of writing, or ends a comment, a string or an element of a page.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::cli::{Folder, Ran};

/// What no output may show outside of a comment or a string: it stands behind what would end these.
const MARK: &str = "PWNED";

/// Names of nodes, each of which has broken some program.
const NAMES: [&str; 12] = [
    "\u{1b}[31mred\u{1b}[0m",
    "\u{1b}]0;PWNED\u{7}",
    "a\nPWNED",
    "b\r\nPWNED",
    "c\u{9b}31m",
    "\u{202e}gnp.exe",
    "\u{2066}isolate",
    "line\u{2028}PWNED",
    "*/ PWNED /*",
    "end\\",
    "<script>PWNED</script>",
    "\"];PWNED[\"",
];

/// A chain of one operation for each name, between a parameter and an output with names of the same sort.
fn model() -> String {
    let operations = ["exp", "sin", "tanh", "neg"];
    let param = "\u{1b}[31mP<b>\"\n";
    let mut nodes = vec![json!({"name": "first", "op": "matmul", "inputs": ["x\u{202e}", param]})];
    for (at, name) in NAMES.iter().enumerate() {
        let input = if at == 0 { "first" } else { NAMES[at - 1] };
        nodes.push(json!({"name": name, "op": operations[at % operations.len()], "inputs": [input]}));
    }
    json!({
        "partition_model": 1, "name": "</title><script>PWNED</script>\u{1b}[31m",
        "inputs": [{"name": "x\u{202e}", "type": "f32[batch, 4]"}],
        "params": [{"name": param, "type": "f32[4, 4]", "init": "glorot_uniform"}],
        "nodes": nodes,
        "outputs": [{"name": "out\u{1b}[31m", "value": NAMES[NAMES.len() - 1]}],
    })
    .to_string()
}

fn is_harmless(c: char) -> bool {
    let is_turning = ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c);
    let is_break = c.is_control() && c != '\n' || matches!(c, '\u{2028}' | '\u{2029}');
    !is_turning && !is_break
}

fn check(text: &str, what: &str) {
    for line in text.split('\n') {
        let harmful: Vec<char> = line.chars().filter(|&c| !is_harmless(c)).collect();
        assert!(harmful.is_empty(), "{what}: {harmful:?} in {line:?}");
        assert!(!line.trim_start().starts_with(MARK), "{what}: a name breaks a line: {line:?}");
    }
}

fn check_ran(ran: &Ran, what: &str) {
    check(&ran.stdout, what);
    check(&ran.stderr, what);
}

const DEVICES: &str = "2xcpu[2x1MB]+cuda:memory=1GB";

fn folder() -> Folder {
    let folder = Folder::new();
    fs::write(folder.path("m.json"), model()).unwrap();
    folder
}

#[test]
fn every_form_of_a_plan() {
    let folder = folder();
    let plan = ["m.json", "-d", DEVICES, "--use", "all", "--batch", "4", "--effort", "fast"];
    let forms = [
        "summary",
        "summary-json",
        "plan",
        "text",
        "ir",
        "groups",
        "kernels",
        "costgraph",
        "dot",
        "trace",
        "timeline",
        "html",
    ];
    for form in forms {
        let text = folder.ok(&[&plan[..], &["--emit", form]].concat());
        check(&text, form);
        if form == "html" {
            assert!(!text.contains("<script>PWNED") && !text.contains("<b>\""), "a name becomes markup");
        }
        if form == "kernels" {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            assert!(code.into_iter().all(|line| !line.contains(MARK)), "a name leaves its comment");
        }
        if matches!(form, "plan" | "trace" | "costgraph" | "summary-json") {
            serde_json::from_str::<serde_json::Value>(&text)
                .unwrap_or_else(|error| panic!("{form}: {error}"));
        }
    }
}

#[test]
fn what_is_done_with_a_plan() {
    let folder = folder();
    folder.ok(&["m.json", "-d", "2xcpu[2x1MB]", "--batch", "4", "-o", "p.json", "--quiet"]);
    folder.ok(&["m.json", "-d", "2xcpu[2x1MB]", "--batch", "4", "-o", "q.json", "--quiet"]);
    check(&fs::read_to_string(folder.path("p.json")).unwrap(), "plan");
    let runs: [&[&str]; 9] = [
        &["check", "p.json", "--model", "m.json"],
        &["check", "m.json"],
        &["explain", "p.json"],
        &["explain", "p.json", NAMES[0]],
        &["diff", "p.json", "q.json"],
        &["export", "p.json", "--format", "json"],
        &["run", "p.json", "--init", "seed=1", "--stats"],
        &["run", "p.json", "--init", "seed=1", "--json"],
        &["run", "p.json", "--emit", "kernels"],
    ];
    for args in runs {
        let ran = folder.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        check_ran(&ran, &format!("{args:?}"));
    }
    folder.ok(&["run", "p.json", "--init", "seed=1", "--trace", "t.json", "--quiet"]);
    check(&fs::read_to_string(folder.path("t.json")).unwrap(), "trace of a run");
}

#[test]
fn training() {
    let folder = folder();
    let ran = folder.run(&[
        "train",
        "m.json",
        "-d",
        "cpu",
        "--data",
        "random:records=8",
        "--loss",
        "mse",
        "--batch",
        "4",
        "--history",
        "h.json",
        "--report",
        "r.html",
        "--checkpoints",
        "ckpt",
        "-o",
        "w.safetensors",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    check_ran(&ran, "train");
    for file in ["h.json", "r.html"] {
        if let Ok(text) = fs::read_to_string(folder.path(file)) {
            check(&text, file);
            assert!(!text.contains("<script>PWNED"), "{file}: a name becomes markup");
        }
    }
}

#[test]
fn messages() {
    let folder = folder();
    let nasty = "\u{1b}[31mno\u{202e}\nPWNED.json";
    let long = "\u{1b}[31m".repeat(20_000);
    let unknown = json!({"partition_model": 1, "inputs": [{"name": "x", "type": "f32[2]"}], "params": [],
        "nodes": [{"name": nasty, "op": nasty, "inputs": ["x"]}], "outputs": [nasty]});
    fs::write(folder.path("unknown.json"), unknown.to_string()).unwrap();
    fs::write(folder.path("field.json"), json!({"partition_model": 1, long.as_str(): 1}).to_string())
        .unwrap();
    let runs: [&[&str]; 8] = [
        &[nasty],
        &["m.json", "-d", nasty],
        &["m.json", "-d", "cpu", "--pin", nasty],
        &["m.json", "-d", "cpu", "-o", "none/\u{1b}[31m/x.json"],
        &["unknown.json", "-d", "cpu"],
        &["field.json", "-d", "cpu"],
        &["run", "m.json", "--inputs", nasty],
        &["check", nasty],
    ];
    for args in runs {
        let ran = folder.run(args);
        assert!(matches!(ran.code, 1 | 2), "{args:?}: {}", ran.stderr);
        check_ran(&ran, &format!("{args:?}"));
        assert!(ran.stderr.len() < 4000, "{args:?}: {} bytes of message", ran.stderr.len());
    }
    assert!(!Path::new(nasty).exists());
}
