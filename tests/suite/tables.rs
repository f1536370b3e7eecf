//! What the program prints finds a place on a terminal: every table and line of every command, of a model whose names
//! are long and not all of Latin letters, and the common options on one screen.

use std::fs;

use unicode_width::UnicodeWidthStr;

use crate::cli::{Folder, partition_at};
use crate::sweep::Share;

/// A chain of dense layers with names as exporters write them.
fn long_names(layers: usize) -> String {
    let name = |layer: usize| {
        format!(
            "transformer.encoder.layers.{layer}.self_attention.output_projection_层归一化_with_a_long_tail/{layer}"
        )
    };
    let params =
        (0..layers).map(|layer| format!(r#"{{"name": "{}/kernel", "type": "f32[256, 256]"}}"#, name(layer)));
    let nodes = (0..layers).map(|layer| {
        let before = if layer == 0 { "x".to_owned() } else { format!("{}/act", name(layer - 1)) };
        let own = name(layer);
        format!(
            r#"{{"name": "{own}", "op": "matmul", "inputs": ["{before}", "{own}/kernel"]}},
               {{"name": "{own}/act", "op": "relu", "inputs": ["{own}"]}}"#
        )
    });
    format!(
        r#"{{"partition_model": 1, "name": "{}", "dims": ["batch"], "inputs": [{{"name": "x", "type": "f32[batch, 256]"}}],
            "params": [{}], "nodes": [{}], "outputs": ["{}/act"]}}"#,
        "a_model_with_a_name_that_goes_on".repeat(4),
        params.collect::<Vec<_>>().join(","),
        nodes.collect::<Vec<_>>().join(","),
        name(layers - 1)
    )
}

/// Runs the program on a terminal of this width; no line that it prints is wider.
fn narrow(folder: &Folder, columns: usize, args: &[&str]) -> String {
    let ran = partition_at(Some(columns), &folder.path(""), args, None);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    for line in ran.stdout.lines() {
        assert!(line.width() <= columns, "{args:?} at {columns} columns prints {}: {line}", line.width());
    }
    ran.stdout
}

const DEVICES: &str = "2xa100-80g:memory=90GB+cpu:use=compute";

sweep! {
    no_table_of_any_command_is_wider_than_the_terminal: one of 2;
}

fn no_table_of_any_command_is_wider_than_the_terminal(share: Share) {
    let folder = Folder::new();
    fs::write(folder.path("net.json"), long_names(6)).unwrap();
    let plan = ["net.json", "--batch", "8"];
    let spread = [&plan[..], &["--use", "all"]].concat();
    folder.ok(&[&plan[..], &["-d", "cpu[3x400MB]", "-o", "one.json"]].concat());
    folder.ok(&[&spread[..], &["-d", "cpu[3x700MB]", "-o", "two.json"]].concat());
    folder
        .ok(&[&plan[..], &["-d", "cpu[3x400MB]", "--objective", "latency", "-o", "elsewhere.json"]].concat());
    let train =
        ["train", "net.json", "--loss", "mse", "--data", "ones:records=64", "--batch", "8", "--steps", "2"];
    let mut seen = String::new();
    for columns in share.among([80, 60]) {
        let mut show = |args: &[&str]| seen += &narrow(&folder, columns, args);
        show(&[&spread[..], &["-d", DEVICES]].concat());
        show(
            &[&spread[..], &["-d", "cpu[3x100MB]", "--objective", "throughput", "--microbatches", "4"]]
                .concat(),
        );
        show(&[&plan[..2], &["max", "-d", "cpu[2x40MB]", "--use", "all"]].concat());
        show(&["net.json", "-d", "cpu[3x400MB]", "--batch", "8", "--score", "elsewhere.json"]);
        show(&["net.json", "-d", "cpu[3x700MB]", "--batch", "8", "--from", "one.json"]);
        show(&["explain", "two.json"]);
        show(&["diff", "one.json", "two.json"]);
        show(&["check", "two.json"]);
        show(&["check", "net.json"]);
        show(&["devices", "--presets"]);
        show(&["devices", "--spec", "4xa100-80g:memory=60MB+cpu[4x1GB]:cores=1"]);
        show(&["run", "two.json", "--init", "seed=1", "--stats"]);
        show(&train);
        show(&[&train[..], &["-d", "cpu[4x100MB]", "--parallel", "auto"]].concat());
        show(&[&train[..], &["-d", "cpu[2x100MB]", "--ensemble", "2"]].concat());
        show(&[
            "train",
            "net.json",
            "--loss",
            "mse",
            "--batch",
            "8",
            "-d",
            DEVICES,
            "--use",
            "all",
            "--dry-run",
        ]);
    }
    for column in ["resident", "receives", "GFLOP/s", "parameters", "busiest", "optimizer", "bandwidth"] {
        assert!(seen.contains(column), "{column}");
    }
    // A node is asked for by its whole name.
    let plan: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path("two.json")).unwrap()).unwrap();
    let step = plan["steps"].as_array().unwrap().iter().find_map(|step| step["launch"]["nodes"][0].as_str());
    narrow(&folder, 80, &["explain", "two.json", step.expect("a launch")]);
}

#[test]
fn a_table_says_what_its_columns_are() {
    let folder = Folder::new();
    fs::write(folder.path("net.json"), long_names(2)).unwrap();
    let out = folder.ok(&["net.json", "--batch", "8", "-d", "cpu[2x40MB]"]);
    for word in ["peak: ", "bound: ", "arena: ", "resident: "] {
        assert!(out.contains(word), "{word}: {out}");
    }
    // Without a terminal a row is a line.
    let head = out.lines().find(|line| line.starts_with("device ")).expect("a table");
    assert!(head.contains("target") && head.contains("receives"), "{head}");
    let out = folder.ok(&["run", "net.json", "--init", "seed=1", "--stats"]);
    assert!(out.contains("\npeak: "), "{out}");
    let spread = ["-d", "cpu[2x100MB]", "--parallel", "auto", "--steps", "1"];
    let train = ["train", "net.json", "--loss", "mse", "--data", "ones:records=64", "--batch", "8"];
    let out = folder.ok(&[&train[..], &spread[..]].concat());
    assert!(out.contains("busiest: ") && out.contains("allocated"), "{out}");
}

#[test]
fn common_options_fit_on_a_screen_and_all_have_a_heading() {
    let folder = Folder::new();
    let options = |help: &str| {
        let names = help.lines().filter_map(|line| line.get(6..).filter(|rest| rest.starts_with("--")));
        names.filter_map(|rest| rest.split([' ', '[']).next()).map(str::to_owned).collect::<Vec<_>>()
    };
    for (command, headings) in [
        (&["train"][..], &["Model:", "Placement:", "Data:", "Training:", "Output:"][..]),
        (&["run"], &["Model:", "Placement:", "Arrays:", "Output:"]),
        (&[], &["Model:", "Placement:", "Output:"]),
    ] {
        let short = narrow(&folder, 80, &[command, &["-h"]].concat());
        let long = narrow(&folder, 80, &[command, &["--help"]].concat());
        assert!(short.lines().count() <= 58, "{command:?} -h has {} lines:\n{short}", short.lines().count());
        for heading in headings {
            assert!(short.contains(heading) && long.contains(heading), "{command:?}: {heading}\n{short}");
        }
        let (common, all) = (options(&short), options(&long));
        assert!(common.len() < all.len() && common.iter().all(|option| all.contains(option)), "{common:?}");
        assert!(short.contains("--help") && long.contains("Examples:"), "{short}");
    }
}

#[test]
fn training_names_layers_and_no_views_of_them() {
    let folder = Folder::new();
    let model = r#"{"partition_model": 1, "dims": ["batch"], "inputs": [{"name": "x", "type": "f32[batch, 4, 8]"}],
        "params": [{"name": "w", "type": "f32[32, 16]"}, {"name": "v", "type": "f32[4, 2]"}],
        "nodes": [{"name": "flat", "op": "reshape", "inputs": ["x"], "shape": ["batch", 32]},
                  {"name": "dense", "op": "matmul", "inputs": ["flat", "w"]},
                  {"name": "split", "op": "reshape", "inputs": ["dense"], "shape": ["batch", 4, 4]},
                  {"name": "head", "op": "matmul", "inputs": ["split", "v"]}],
        "outputs": ["head"]}"#;
    fs::write(folder.path("net.json"), model).unwrap();
    let train = ["train", "net.json", "--loss", "mse", "--batch", "2", "--dry-run"];
    let out = folder.ok(&train);
    assert!(out.contains("dense (") && out.contains("head ("), "{out}");
    assert!(!out.contains("flat") && !out.contains("split"), "{out}");
}
