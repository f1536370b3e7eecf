//! The program from outside: what it prints where, and how it exits.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What one run of the program left behind.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program in a folder of its own.
pub fn partition_in(folder: &Path, args: &[&str], stdin: Option<&[u8]>) -> Ran {
    partition_at(None, folder, args, stdin)
}

/// As [`partition_in`], on a terminal with so many columns.
pub fn partition_at(columns: Option<usize>, folder: &Path, args: &[&str], stdin: Option<&[u8]>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
    match columns {
        Some(columns) => command.env("COLUMNS", columns.to_string()),
        None => command.env_remove("COLUMNS"),
    };
    let mut child = command
        .args(args)
        .current_dir(folder)
        .env_remove("RUST_BACKTRACE")
        .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    if let (Some(bytes), Some(mut pipe)) = (stdin, child.stdin.take()) {
        // The program may end before it has read everything.
        let _ = pipe.write_all(bytes);
    }
    let output = child.wait_with_output().expect("the program ends");
    Ran {
        code: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

pub(crate) fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).display().to_string()
}

pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        partition_in(self.0.path(), args, None)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run that must succeed and say nothing on stderr but notes.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!((ran.code, without_notes(&ran.stderr).as_str()), (0, ""), "{args:?}");
        ran.stdout
    }

    /// A run that must fail with this code, one line that begins with `error:`, and nothing on
    /// stdout. The line is returned with its details.
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {}", ran.stderr);
        let error = without_notes(&ran.stderr);
        assert!(error.starts_with("error: "), "{args:?}: {error}");
        assert!(error.lines().skip(1).all(|line| line.starts_with("  ")), "{args:?}: {error}");
        error
    }
}

fn without_notes(stderr: &str) -> String {
    stderr.lines().filter(|line| !line.starts_with("note: ")).map(|line| format!("{line}\n")).collect()
}

const SEED: &[&str] = &["--devices", "2xcpu[6x1000MB]", "--use", "all", "--batch", "10"];

fn with<'a>(first: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    std::iter::once(first).chain(rest.iter().copied()).collect()
}

#[test]
fn without_arguments_the_help_is_a_usage_error() {
    let ran = Folder::new().run(&[]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("Usage:"), "{}", ran.stderr);
}

#[test]
fn help_teaches_by_example() {
    let folder = Folder::new();
    let help = folder.ok(&["--help"]);
    for part in ["Examples:", "--devices", "partition check", "Exit codes", "2xcuda[6x1000MB]"] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
    assert!(folder.ok(&["run", "--help"]).contains("Examples:"));
    assert_eq!(folder.ok(&["--version"]), format!("partition {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_plan_is_written_checked_and_compared_with_another() {
    let folder = Folder::new();
    let model = example("seed_stack.json");
    let summary = folder.ok(&with(&model, &[SEED, &["-o", "twelve.json"]].concat()));
    assert!(summary.contains("12 of 12 devices"), "{summary}");
    assert!(folder.ok(&["check", "twelve.json"]).starts_with("sound: "));
    assert!(folder.ok(&["check", "twelve.json", "--model", &model]).contains("of this model"));
    folder.ok(&with(&model, &["--devices", "cpu", "--batch", "10", "-o", "one.json"]));
    let diff = folder.ok(&["diff", "one.json", "twelve.json"]);
    assert!(diff.contains("cpu1.5"), "{diff}");
    let same = folder.ok(&["diff", "one.json", "one.json"]);
    assert!(!same.contains("cpu1.5"), "{same}");
    let exported = folder.ok(&["export", "twelve.json", "--format", "json"]);
    let exported: serde_json::Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(exported.as_object().map(serde_json::Map::len), Some(13));
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let folder = Folder::new();
    let model = example("seed_stack.json");
    let plans: Vec<String> = ["1", "2", "4"]
        .iter()
        .map(|threads| folder.ok(&with(&model, &[SEED, &["--threads", threads, "--emit", "plan"]].concat())))
        .collect();
    assert!(plans.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(plans[0].starts_with("{\"version\":1"));
}

#[test]
fn every_stage_can_be_looked_at() {
    let folder = Folder::new();
    let model = example("mlp.json");
    for (emit, part) in [
        ("ir", "matmul"),
        ("groups", "matmul"),
        ("costgraph", "\"costgraph\":1"),
        ("text", "launch"),
        ("dot", "digraph"),
        ("summary-json", "\"transfer_bytes\""),
    ] {
        let text = folder.ok(&[&model, "--devices", "2xa100-80g", "--emit", emit]);
        assert!(text.contains(part), "--emit {emit}: {part} is missing in\n{text}");
    }
}

#[test]
fn a_model_comes_from_standard_input_too() {
    let folder = Folder::new();
    let bytes = fs::read(example("mlp.json")).expect("the example is there");
    let piped = partition_in(folder.0.path(), &["-", "--devices", "cpu"], Some(&bytes));
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    assert_eq!(
        piped.stdout,
        partition_in(folder.0.path(), &[&example("mlp.json"), "--devices", "cpu"], None).stdout
    );
}

#[test]
fn quiet_prints_nothing() {
    let folder = Folder::new();
    assert_eq!(folder.ok(&[&example("mlp.json"), "--devices", "cpu", "--quiet"]), "");
}

#[test]
fn failures_have_one_line_and_a_code() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let cases: &[(i32, &[&str], &str)] = &[
        (1, &["absent.onnx", "--devices", "cpu"], "absent.onnx"),
        (2, &[&model], "--devices"),
        (2, &[&model, "--devices", "2xwombat"], "wombat"),
        (2, &[&model, "--devices", "cpu", "--pin", "nothing*=cpu0"], "nothing*"),
        (2, &[&model, "--devices", "cpu", "--pin", "*=cuda7"], "cuda7"),
        (2, &[&model, "--devices", "cpu", "--pin", "cuda7"], "PATTERN=DEVICE"),
        (2, &[&model, "--devices", "cpu", "--dim", "batch"], "NAME=N"),
        (2, &[&model, "--devices", "cpu", "--dim", "wombat=3"], "wombat"),
        (2, &[&model, "--devices", "cpu", "--batch", "0"], "--batch"),
        (2, &[&model, "--devices", "cpu", "--use", "none"], "--use"),
        (2, &[&model, "--devices", "cpu", "--balance", "nan"], "--balance"),
        (2, &[&model, "--devices", "cpu", "--reserve", "3 pints"], "--reserve"),
        (2, &[&model, "--devices", "cpu", "--use", "2"], "2"),
        (3, &[&model, "--devices", "cpu:memory=100B"], "cap"),
        (1, &["check", "absent.json"], "absent.json"),
        (1, &["diff", &model, &model], "mlp.json"),
        (2, &["export", &model], "--format"),
    ];
    for (code, args, part) in cases {
        let ran = folder.run(args);
        assert_eq!(ran.code, *code, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{args:?}: {part} is missing in {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(fs::read_dir(folder.0.path()).expect("readable").count(), 0, "something was left behind");
}

#[test]
fn a_bad_specification_is_shown_with_a_mark() {
    let folder = Folder::new();
    let error = folder.fails(2, &[&example("mlp.json"), "--devices", "2xcuda[6x10MB]:memory=1MB"]);
    assert!(error.lines().any(|line| line.trim_start().starts_with('^')), "{error}");
}

#[test]
fn nothing_is_written_where_planning_fails() {
    let folder = Folder::new();
    fs::write(folder.path("plan.json"), "old").expect("writable");
    folder.fails(3, &[&example("mlp.json"), "--devices", "cpu:memory=100B", "-o", "plan.json"]);
    assert_eq!(fs::read_to_string(folder.path("plan.json")).expect("readable"), "old");
    assert_eq!(fs::read_dir(folder.0.path()).expect("readable").count(), 1);
}

#[test]
fn a_damaged_plan_is_found() {
    let folder = Folder::new();
    folder.ok(&with(&example("seed_stack.json"), &[SEED, &["-o", "plan.json"]].concat()));
    let text = fs::read_to_string(folder.path("plan.json")).expect("readable");
    let start = text.find("\"arena\":").expect("an arena") + "\"arena\":".len();
    let end = start + text[start..].find(',').expect("a field after it");
    fs::write(folder.path("plan.json"), format!("{}64{}", &text[..start], &text[end..])).expect("writable");
    let error = folder.fails(1, &["check", "plan.json"]);
    assert!(error.contains("arena"), "{error}");
}

#[test]
fn unsupported_operations_are_listed_all_at_once() {
    let folder = Folder::new();
    let layers: Vec<String> = ["Wombat", "Dense", "Quokka"]
        .iter()
        .map(|class| {
            format!("{{\"class_name\":\"{class}\",\"config\":{{\"name\":\"the_{class}\",\"units\":2,\"batch_input_shape\":[null,4]}}}}")
        })
        .collect();
    let model = format!(
        "{{\"class_name\":\"Sequential\",\"config\":{{\"name\":\"s\",\"layers\":[{}]}},\"keras_version\":\"2.15.0\",\"backend\":\"tensorflow\"}}",
        layers.join(",")
    );
    fs::write(folder.path("model.json"), model).expect("writable");
    let error = folder.fails(1, &["check", "model.json"]);
    assert!(error.contains("the_Wombat") && error.contains("the_Quokka"), "{error}");
    assert!(!error.contains("the_Dense"), "{error}");
}

#[test]
fn a_model_runs_and_its_outputs_can_be_compared() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let base = ["run", model.as_str(), "--init", "seed=1"];
    folder.ok(&[&base[..], &["--outputs", "one.npz"]].concat());
    folder.ok(&[
        &base[..],
        &["--devices", "3xcpu", "--use", "3", "--expect", "one.npz", "--rtol", "0", "--atol", "0"],
    ]
    .concat());
    let other = folder.fails(1, &["run", &model, "--init", "seed=2", "--expect", "one.npz"]);
    assert!(other.contains("max error"), "{other}");
}

#[test]
fn running_without_weights_names_them() {
    let folder = Folder::new();
    let error = folder.fails(1, &["run", &example("seed_stack.json")]);
    assert!(error.contains("--init seed=N") && error.contains("--weights"), "{error}");
}

#[test]
fn a_plan_runs_only_with_its_model() {
    let folder = Folder::new();
    folder.ok(&[&example("mlp.json"), "--devices", "2xcpu", "--use", "2", "-o", "plan.json"]);
    folder.ok(&["run", "plan.json", "--init", "seed=1"]);
    let error =
        folder.fails(1, &["run", "plan.json", "--model", &example("seed_stack.json"), "--init", "seed=1"]);
    assert!(error.contains("another model"), "{error}");
}

#[test]
fn a_plan_for_devices_that_are_not_here_says_how_to_map_them() {
    let folder = Folder::new();
    folder.ok(&[&example("mlp.json"), "--devices", "2xa100-80g", "-o", "plan.json"]);
    let error = folder.fails(1, &["run", "plan.json", "--init", "seed=1"]);
    assert!(error.contains("--map cuda0="), "{error}");
    if !gpu_is_there() {
        let maps = ["--map", "cuda0=cuda:0", "--map", "cuda1=cpu:0"];
        let error = folder.fails(1, &[&["run", "plan.json", "--init", "seed=1"], &maps[..]].concat());
        assert!(
            error.contains("there is no NVIDIA driver") && error.contains("--map cuda0=cpu:0"),
            "{error}"
        );
    }
    let run = ["run", &example("mlp.json"), "--backend", "cuda", "--init", "seed=1"];
    let error = folder.fails(2, &[&run[..], &["-d", "cpu"]].concat());
    assert!(error.contains("no device of the plan is a GPU"), "{error}");
    if !gpu_is_there() {
        for args in [&run[..], &["run", &example("mlp.json"), "-d", "cuda", "--init", "seed=1"]] {
            let error = folder.fails(1, args);
            assert!(error.contains("no GPU is found here") && error.contains("--devices cpu"), "{error}");
        }
    }
    folder.ok(&["run", "plan.json", "--init", "seed=1", "--map", "cuda0=cpu:0", "--map", "cuda1=cpu:0"]);
}

#[test]
fn devices_are_written_as_a_file_that_reads_back() {
    let folder = Folder::new();
    assert!(folder.ok(&["devices", "--presets"]).contains("a100-80g"));
    let ran = folder.run(&["devices", "-o", "machine.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let ran = folder.run(&["devices"]);
    let file = fs::read_to_string(folder.path("machine.toml")).expect("written");
    assert_eq!((ran.code, &ran.stdout), (0, &file), "{}", ran.stderr);
    assert!(ran.stderr.contains("note: cpu0: cpu, "), "{}", ran.stderr);
    let table = folder.ok(&["devices", "--table"]);
    assert!(table.starts_with("cpu0: cpu, "), "{table}");
    fs::write(folder.path("printed"), &ran.stdout).expect("writable");
    for name in ["printed", "machine.toml"] {
        assert!(folder.ok(&["devices", "--spec", name]).starts_with(&table), "{name} reads back");
    }
    assert!(folder.ok(&[&example("mlp.json"), "--devices", "machine.toml"]).contains("cpu0"));
}

#[test]
fn shells_get_completions() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(folder.ok(&["completions", shell]).contains("partition"), "{shell}");
    }
}

/// A line of `--stats`: predicted and measured in us, GB/s, GFLOP/s, the peak in percent, what it is.
struct Line {
    device: String,
    figures: [f64; 5],
    what: String,
}

fn stats_line(line: &str) -> Line {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, device, predicted, "us", measured, "us", bytes, flops, peak, what @ ..] = &words[..] else {
        panic!("{line}")
    };
    let number = |word: &str| word.trim_end_matches('%').parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
    let figures = [predicted, measured, bytes, flops, peak].map(|word| number(word));
    Line { device: (*device).to_owned(), figures, what: what.join(" ") }
}

/// Two products of 256 x 384 x 320 and 256 x 320 x 192, on two devices, the result of the first moved.
#[test]
fn a_run_tells_what_each_step_took() {
    let folder = Folder::new();
    let model = r#"{"partition_model": 1, "inputs": [{"name": "x", "type": "f32[256, 384]"}],
        "params": [{"name": "a", "type": "f32[384, 320]", "init": {"kind": "constant", "value": 1}},
                   {"name": "b", "type": "f32[320, 192]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "h", "op": "matmul", "inputs": ["x", "a"]}, {"name": "y", "op": "matmul", "inputs": ["h", "b"]}],
        "outputs": ["y"]}"#;
    std::fs::write(folder.path("two.json"), model).unwrap();
    let spread = ["-d", "2xcpu:cores=1", "--pin", "h=cpu0", "--pin", "y=cpu1"];
    let out = folder.ok(&[&["run", "two.json", "--init", "seed=1", "--stats"], &spread[..]].concat());
    let (wall, _) = out.split_once(" ms each").expect("the time of a step");
    let wall: f64 = wall.rsplit(' ').next().unwrap().parse().unwrap();
    let mut lines = out.lines().skip_while(|line| !line.trim_start().starts_with("step "));
    let head = lines.next().expect("a table");
    for column in ["device", "predicted", "measured", "GB/s", "GFLOP/s", "peak", "what"] {
        assert!(head.contains(column), "{head}");
    }
    let lines: Vec<Line> = lines.take_while(|line| !line.starts_with("peak: ")).map(stats_line).collect();
    let plan = folder.ok(&[&["two.json", "--emit", "plan"], &spread[..]].concat());
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let steps = plan["steps"].as_array().unwrap();
    assert_eq!(lines.len(), steps.len(), "{out}");
    // What the columns have to say of each step, but for how fast this machine is.
    let moved = (256 * 320 * 4) as f64;
    let (mut copies, mut spent) = (0, [0.0; 2]);
    for (line, step) in lines.iter().zip(steps) {
        let [predicted, measured, bytes, flops, peak] = line.figures;
        assert_eq!(line.device, step["device"].as_str().unwrap(), "{out}");
        assert!(predicted > 0.0 && measured > 0.0, "{out}");
        let (expected_bytes, expected_flops) = match (line.what.as_str(), line.device.as_str()) {
            (what, _) if what.starts_with("copy of ") => {
                copies += 1;
                // The host's memory, as the specification has it where it says nothing: 51.2 GB/s after 500 ns
                // at either end.
                let expected = 1.0 + moved / 51.2e3;
                assert!((predicted - expected).abs() <= 0.051, "{predicted} us, expected {expected}");
                assert!((peak - bytes / 51.2 * 100.0).abs() <= 0.52, "{peak}%, {bytes} GB/s");
                (moved, 0.0)
            }
            (_, "cpu0") => (moved + ((256 * 384 + 384 * 320) * 4) as f64, 2.0 * (256 * 384 * 320) as f64),
            (_, _) => (moved + ((320 * 192 + 256 * 192) * 4) as f64, 2.0 * (256 * 320 * 192) as f64),
        };
        // Within what printing rounds.
        let nanos = measured * 1e3;
        let near = |rate: f64, amount: f64| (rate * nanos - amount).abs() <= 0.00051 * nanos + 0.01 * amount;
        assert!(near(bytes, expected_bytes), "{bytes} GB/s in {measured} us are not {expected_bytes}");
        assert!(near(flops, expected_flops), "{flops} GFLOP/s in {measured} us are not {expected_flops}");
        spent[usize::from(line.device == "cpu1")] += measured;
    }
    assert_eq!(copies, 1, "{out}");
    // One step after the other: together no longer than the whole.
    assert!(spent.iter().sum::<f64>() / 1e3 <= wall * 1.01 + 0.001, "{spent:?} us in {wall} ms");
}

/// Sources for a GPU hold each kernel of the plan, with how it is launched.
#[test]
fn kernels_can_be_looked_at_without_a_gpu() {
    let folder = Folder::new();
    let mlp = example("mlp.json");
    let out = folder.ok(&[&mlp, "-d", "a100-80g", "--emit", "kernels"]);
    assert!(out.matches("__global__").count() >= 2, "{out}");
    assert_eq!(out.matches("// launch ").count(), out.matches("__global__").count(), "{out}");
    assert_eq!(out, folder.ok(&[&mlp, "-d", "a100-80g", "--emit", "kernels", "--threads", "1"]));
    let on_cpu = folder.ok(&[&mlp, "-d", "cpu", "--emit", "kernels"]);
    assert!(!on_cpu.contains("__global__") && !on_cpu.is_empty(), "{on_cpu}");
}

/// Products by groups of threads are of some GPUs alone.
#[test]
fn kernels_are_those_of_the_gpu_that_is_planned_for() {
    let folder = Folder::new();
    let conv = r#"{"partition_model": 1, "inputs": [{"name": "x", "type": "bf16[32, 256, 28, 28]"}],
        "params": [{"name": "w", "type": "bf16[256, 256, 3, 3]"}],
        "nodes": [{"name": "y", "op": "conv", "inputs": ["x", "w"],
                   "strides": [1, 1], "pads_before": [1, 1], "pads_after": [1, 1]}],
        "outputs": ["y"]}"#;
    std::fs::write(folder.path("conv.json"), conv).unwrap();
    for (device, by_groups) in
        [("h100-80g", true), ("h200-141g", true), ("a100-80g", false), ("cuda:memory=8GB", false)]
    {
        let out = folder.ok(&["conv.json", "-d", device, "--emit", "kernels"]);
        assert!(out.contains("product_mma<conv") != by_groups, "{device}");
        assert_eq!(out.contains("product_groups<conv"), by_groups, "{device}");
    }
}

/// 100 000 elements are 7 parts of 16 tiles of 1024, a product's of 64 rows whatever it likes; no weights are there.
#[test]
fn a_run_can_print_its_kernels_instead() {
    let folder = Folder::new();
    let model = r#"{"partition_model": 1, "inputs": [{"name": "x", "type": "f32[100, 1000]"}],
        "params": [{"name": "w", "type": "f32[1000, 64]"}],
        "nodes": [{"name": "a", "op": "mul", "inputs": ["x", "x"]}, {"name": "b", "op": "tanh", "inputs": ["a"]},
                  {"name": "y", "op": "matmul", "inputs": ["b", "w"]}],
        "outputs": ["y", "b"]}"#;
    std::fs::write(folder.path("net.json"), model).unwrap();
    for devices in ["cpu:cores=3", "a100-80g", "cpu:cores=3+a100-80g"] {
        let planned = folder.ok(&["net.json", "-d", devices, "--emit", "kernels"]);
        assert_eq!(folder.ok(&["run", "net.json", "-d", devices, "--emit", "kernels"]), planned);
        folder.ok(&["net.json", "-d", devices, "-o", "plan.json"]);
        assert_eq!(folder.ok(&["run", "plan.json", "--emit", "kernels"]), planned);
        assert_eq!(planned.contains("// launch "), devices.ends_with("g"), "{devices}: {planned}");
    }
    let on_cpu = folder.ok(&["run", "net.json", "-d", "cpu:cores=1", "--emit", "kernels"]);
    for part in [
        " on cpu0: node y, 0 B of workspace, one thread\n",
        "chain, 7 parts: 100000 elements in tiles of 1024, parts of 16384, ",
        "; s0 = r0, t0 = w0\n",
        " | tanh",
        "kernel matmul r0: f32[100,1000], r1: f32[1000,64] packed -> w0: f32[100,64]: ",
    ] {
        assert!(on_cpu.contains(part), "{part}: {on_cpu}");
    }
    let refused = folder.run(&["run", "net.json", "--emit", "kernels", "--stats"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

#[test]
fn what_training_cannot_do_is_refused() {
    let folder = Folder::new();
    let mlp = example("mlp.json");
    let ran = folder.run(&[
        "train",
        &mlp,
        "--data",
        "ones:records=4",
        "--loss",
        "mse",
        "--batch",
        "4",
        "--microbatches",
        "3",
    ]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("a batch of 4 does not divide into 3 parts"), "{}", ran.stderr);
}

/// Whether `partition run` could run on a GPU of this machine.
fn gpu_is_there() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

#[test]
fn a_device_map_that_cuts_a_block_is_told() {
    let folder = Folder::new();
    let nodes = ["layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b"];
    let reads = ["x", "layers.0.a", "layers.0.b", "layers.1.a"];
    let of = |(name, read)| format!(r#"{{"name":"{name}","op":"relu","inputs":["{read}"]}}"#);
    let nodes: Vec<String> = nodes.iter().zip(reads).map(of).collect();
    let model = format!(
        r#"{{"partition_model":1,"name":"blocks","inputs":[{{"name":"x","type":"f32[8]"}}],"nodes":[{}],"outputs":["layers.1.b"]}}"#,
        nodes.join(",")
    );
    std::fs::write(folder.path("blocks.json"), model).unwrap();
    let exported = |pins: &[&str]| {
        folder.ok(&[&["blocks.json", "-d", "2xcuda:memory=1MB", "-o", "plan.json"], pins].concat());
        folder.run(&["export", "plan.json", "--format", "accelerate"]).stderr
    };
    let cut =
        exported(&["--pin", "layers.0.*=cuda0", "--pin", "layers.1.a=cuda0", "--pin", "layers.1.b=cuda1"]);
    assert!(
        cut.contains("layers.1 would lie on several devices") && cut.contains("--keep-whole 'layers.*'"),
        "{cut}"
    );
    assert_eq!(exported(&["--pin", "layers.0.*=cuda0", "--pin", "layers.1.*=cuda1"]), "");
}
