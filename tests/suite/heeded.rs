//! What stands on the command line is heeded, or refused by name: options of planning where a plan is given,
//! names of files that say no form, hosts that are not here, devices and nodes that do not exist.

use std::fs;

use crate::cli::{Folder, example};

/// The long options of a help text, each with the name of its value, where it has one.
pub(crate) fn options(help: &str) -> Vec<(String, Option<String>)> {
    let line = |line: &str| {
        // Options stand in one column, `  -d, --devices` and `      --batch`; what explains them in another.
        let at = line.find("--").filter(|&at| at == 6)?;
        let mut words = line[at..].split_whitespace();
        let name = words.next()?.trim_end_matches(',').to_owned();
        let value = words.next().filter(|word| word.starts_with('<'));
        Some((name, value.map(|value| value.trim_matches(['<', '>']).to_owned())))
    };
    help.lines().filter_map(line).collect()
}

/// A value that an option would take.
pub(crate) fn sample(option: &str, value: &str) -> String {
    let own = match option {
        "--objective" => "latency",
        "--effort" => "fast",
        "--schedule" => "gpipe",
        "--precision" => "bf16",
        "--weights-as" => "q8_0",
        "--use" => "1",
        "--pin" => "*=cpu0",
        "--dim" => "batch=1",
        "--devices" => "cpu",
        "--balance" => "0.5",
        _ => "",
    };
    match (own, value) {
        ("", "SIZE") => "1MB".to_owned(),
        ("", "TIME") => "10s".to_owned(),
        ("", "FILE" | "F.npz") => "absent.json".to_owned(),
        ("", _) => "2".to_owned(),
        (own, _) => own.to_owned(),
    }
}

#[test]
fn every_option_of_a_run_is_heeded_or_refused_with_a_plan() {
    // What a run of a plan heeds; a new option is to be here, or to be refused.
    let heeded = [
        "--model",
        "--init",
        "--timeout",
        "--simulate-hosts",
        "--weights",
        "--adapter",
        "--precision",
        "--weights-as",
        "--inputs",
        "--outputs",
        "--expect",
        "--rtol",
        "--atol",
        "--backend",
        "--steps",
        "--stats",
        "--emit",
        "--map",
        "--trace",
        "--calibrate",
        "--output",
        "--json",
        "--quiet",
        "--allow-outside",
        "--progress",
        "--color",
        "--help",
    ];
    let folder = Folder::new();
    folder.ok(&[&example("mlp.json"), "-d", "cpu", "-o", "plan.json"]);
    let options = options(&folder.ok(&["run", "--help"]));
    assert!(options.len() > 35, "{options:?}");
    let mut refused = 0;
    for (option, value) in options.iter().filter(|(option, _)| !heeded.contains(&option.as_str())) {
        let mut args = vec!["run".to_owned(), "plan.json".into(), option.clone()];
        args.extend(value.as_ref().map(|value| sample(option, value)));
        if option == "--schedule" {
            args.extend(["--microbatches".into(), "2".into()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let error = folder.fails(2, &args);
        assert!(
            error.contains("a plan is taken as it was made") && error.contains("plan the model again"),
            "{error}"
        );
        assert!(error.contains(option.as_str()) || option == "--schedule", "{option}: {error}");
        refused += 1;
    }
    assert!(refused >= 18, "{refused}");
    let run = ["run", "plan.json", "--init", "seed=1"];
    folder.ok(&run);
    for (other, part) in [
        (&["--emit", "kernels", "--steps", "2"][..], "--steps: nothing is run here"),
        (&["--calibrate", "--steps", "2"], "--steps: kernels are measured"),
        (&["--calibrate", "--devices", "cpu"], "--devices: a plan is taken as it was made"),
    ] {
        let error = folder.fails(2, &[&["run", "plan.json"], other].concat());
        assert!(error.contains(part), "{error}");
    }
    let error = folder.fails(2, &["run", &example("mlp.json"), "--model", "plan.json", "--init", "seed=1"]);
    assert!(error.contains("--model: this is a model, not a plan"), "{error}");
    let error = folder.fails(2, &["run", "--calibrate", "--devices", "cpu"]);
    assert!(error.contains("--devices: the machine is measured"), "{error}");
    let error = folder.fails(2, &["check", "plan.json", "--dim", "batch=3"]);
    assert!(error.contains("--dim: a plan says which dimensions"), "{error}");
    let error = folder.fails(2, &["check", &example("mlp.json"), "--model", "plan.json"]);
    assert!(error.contains("--model: this is a model"), "{error}");
}

#[test]
fn the_name_of_a_file_says_what_it_holds_or_is_refused() {
    let folder = Folder::new();
    let model = example("mlp.json");
    for (name, part) in [
        ("plan.json", "{\"version\":1"),
        ("plan.html", "<!"),
        ("plan.dot", "digraph"),
        ("plan.txt", "objective"),
    ] {
        folder.ok(&[&model, "-d", "cpu", "-o", name]);
        let text = fs::read_to_string(folder.path(name)).expect("written");
        assert!(text.contains(part), "{name}: {}", &text[..text.len().min(200)]);
    }
    for name in ["plan.yaml", "plan", "plan.html.gz", "json"] {
        let error = folder.fails(2, &[&model, "-d", "cpu", "-o", name]);
        assert!(error.contains(name) && error.contains(".json") && error.contains("--emit"), "{error}");
        assert!(!folder.path(name).exists());
    }
    folder.ok(&[&model, "-d", "cpu", "-o", "plan.yaml", "--emit", "text"]);
}

#[test]
fn files_to_write_are_looked_at_before_anything_is_planned() {
    let folder = Folder::new();
    let error = folder.fails(1, &[&example("mlp.json"), "-d", "cpu", "-o", "nowhere/plan.json"]);
    assert!(error.contains("nowhere/plan.json: there is no folder") && !error.contains(".part"), "{error}");
    let bytes = fs::read(example("mlp.json")).expect("the example is there");
    fs::write(folder.path("m.json"), &bytes).expect("writable");
    // These devices hold nothing: planning would end with 3.
    let small = ["m.json", "-d", "cpu:memory=100B"];
    let error = folder.fails(1, &[&small[..], &["-o", "absent/plan.json"]].concat());
    assert!(error.contains("absent/plan.json"), "{error}");
    let error = folder.fails(2, &[&small[..], &["-o", "m.json"]].concat());
    assert!(error.contains("--output m.json: this file is read"), "{error}");
    let run = ["run", "m.json", "-d", "cpu:memory=100B", "--init", "seed=1"];
    let error = folder.fails(1, &[&run[..], &["--outputs", "absent/y.npz"]].concat());
    assert!(error.contains("absent/y.npz"), "{error}");
    let error = folder.fails(2, &[&run[..], &["--trace", "./m.json"]].concat());
    assert!(error.contains("--trace ./m.json"), "{error}");
    let error = folder.fails(2, &[&run[..], &["--outputs", "y.npz", "--trace", "y.npz"]].concat());
    assert!(error.contains("--trace y.npz"), "{error}");
    assert_eq!(fs::read(folder.path("m.json")).expect("still there"), bytes);
}

#[test]
fn hosts_that_are_not_here_are_refused_or_simulated() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let spec = ["-d", "cpu+cpu:host=h1", "--use", "all"];
    let run = [&["run", model.as_str(), "--init", "seed=1"], &spec[..]].concat();
    let error = folder.fails(2, &run);
    assert!(error.contains("2 hosts (h0, h1)") && error.contains("--simulate-hosts"), "{error}");
    let ran = folder.ok(&[&run[..], &["--simulate-hosts"]].concat());
    assert!(ran.contains("on 2 devices of 2 hosts, simulated here"), "{ran}");
    folder.ok(&[&[model.as_str()], &spec[..], &["-o", "plan.json"]].concat());
    let error = folder.fails(2, &["run", "plan.json", "--init", "seed=1"]);
    assert!(error.contains("--simulate-hosts"), "{error}");
    let data = ["--data", "ones:records=8", "--loss", "mse", "--batch", "4"];
    let train = [&["train", model.as_str()], &spec[..], &data[..]].concat();
    let error = folder.fails(2, &train);
    assert!(error.contains("2 hosts (h0, h1)") && error.contains("--simulate-hosts"), "{error}");
    folder.ok(&[&train[..], &["--simulate-hosts", "--effort", "fast"]].concat());
}

#[test]
fn what_is_measured_stands_beside_what_was_predicted() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let run = ["run", model.as_str(), "--init", "seed=1"];
    let ran = folder.run(&[&run[..], &["-d", "cpu:flops=1MFLOP/s"]].concat());
    assert!(ran.stdout.starts_with("ran 1 step on 1 device, "), "{}", ran.stdout);
    assert!(ran.stdout.contains(" ms each (predicted "), "{}", ran.stdout);
    assert!(ran.stderr.contains("times what a step takes"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--calibrate"), "{}", ran.stderr);
    // Whole CPUs are one machine where they run.
    let shared = "cpu0 to cpu2 are predicted as a machine each; on one machine they share its cores";
    for args in [&run[..], &[model.as_str()][..]] {
        let ran = folder.run(&[args, &["-d", "3xcpu", "--use", "all"]].concat());
        assert!(ran.stderr.contains(shared), "{}", ran.stderr);
        let ran = folder.run(&[args, &["-d", "cpu[3x1GB]", "--use", "all"]].concat());
        assert!(!ran.stderr.contains("share its cores"), "{}", ran.stderr);
    }
}

#[test]
fn names_that_are_nearly_right_are_told() {
    let folder = Folder::new();
    let model = example("mlp.json");
    for (code, args, parts) in [
        (
            2,
            &["-d", "2xcpu", "--pin", "*=cuda7"][..],
            &["--pin *=cuda7: there is no device `cuda7`", "cpu0, cpu1"][..],
        ),
        (2, &["-d", "cpu", "--pin", "blok0/*=cpu0"], &["--pin blok0/*=cpu0", "did you mean `block0/*`"]),
        (
            2,
            &["-d", "cpu", "--colocate", "block1/upp_proj"],
            &["--colocate block1/upp_proj", "`block1/up_proj`"],
        ),
        (
            2,
            &["-d", "cuda:0"],
            &["`cuda:0` is a real device", "`cuda` is one", "--pin", "--map cuda0=cuda:1"],
        ),
        (2, &["-d", "cuda0"], &["`cuda0` is a device's name"]),
        (2, &["-d", "4090"], &["did you mean `rtx4090-24g`?"]),
        (2, &["-d", "l4-24g,cpu"], &["write `l4-24g+cpu`"]),
        (2, &["-d", "l4-24g:memory=1GB,cpu"], &["write `+cpu`"]),
        (2, &["-d", "zebra"], &["`cpu`, `cuda` and 23 presets, which `partition devices --presets` lists"]),
    ] {
        let error = folder.fails(code, &[&[model.as_str()], args].concat());
        for part in parts {
            assert!(error.contains(part), "{args:?}: {part} is missing in {error}");
        }
    }
}

#[test]
fn a_foreign_placement_stands_beside_the_planner_s_own() {
    let folder = Folder::new();
    let model = example("mlp.json");
    folder.ok(&[&model, "-d", "2xa100-80g", "--use", "all", "-o", "plan.json"]);
    let text = folder.ok(&[&model, "-d", "2xa100-80g", "--score", "plan.json"]);
    assert!(text.contains("planner    its own placement for transfer: latency "), "{text}");
    assert!(text.contains("0 B moved, on 1 device\n"), "{text}");
    let json = folder.ok(&[&model, "-d", "2xa100-80g", "--score", "plan.json", "--emit", "summary-json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["planned"]["transfer_bytes"], 0);
    assert!(json["transfer_bytes"].as_u64() > Some(0));
}

#[test]
fn a_placement_is_held_against_use_and_balance() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let base = [model.as_str(), "-d", "2xa100-80g"];
    folder.ok(&[&base[..], &["--use", "all", "-o", "plan.json"]].concat());
    let score = [&base[..], &["--score", "plan.json"]].concat();
    folder.ok(&[&score[..], &["--use", "2", "--balance", "9"]].concat());
    for (more, part) in [
        (["--use", "1"], "devices that compute are 2, and --use asks for 1"),
        (["--balance", "0"], ", and --balance allows "),
    ] {
        let ran = folder.run(&[&score[..], &more].concat());
        assert!(ran.code != 0 && ran.stderr.contains(part), "{more:?}: {}", ran.stderr);
    }
}

#[test]
fn what_shapes_networks_is_refused_for_cost_graphs() {
    let folder = Folder::new();
    let model = example("mlp.json");
    folder.ok(&[&model, "-d", "cpu", "--batch", "4", "--emit", "costgraph", "-o", "graph.json"]);
    let plan = ["graph.json", "-d", "2xcpu"];
    folder.ok(&[&plan[..], &["--split", "none", "--balance", "3"]].concat());
    for more in [
        &["--context", "8"][..],
        &["--precision", "bf16"],
        &["--weights-as", "q8_0"],
        &["--exact"],
        &["--keep-whole", "*"],
        &["--split", "*=0:2"],
    ] {
        let error = folder.fails(2, &[&plan[..], more].concat());
        assert!(error.contains(more[0]) && error.contains("a cost graph has "), "{more:?}: {error}");
    }
}

/// An engine's step of two nodes on two devices.
const ENGINE: &str = r#"{"costgraph":1,"kinds":["cpu"],"nodes":[
 {"id":"a","time_ns":[100000],"param_bytes":6000000,"outputs":[100000]},
 {"id":"b","time_ns":[100000],"param_bytes":6000000,"outputs":[4]}],"edges":[["a",0,"b"]]}"#;

#[test]
fn what_contradicts_itself_is_refused_before_planning() {
    let folder = Folder::new();
    fs::write(folder.path("engine.json"), ENGINE).unwrap();
    let devices = ["engine.json", "-d", "2xcpu:memory=7MB"];
    for (asked, message) in [
        (&["--microbatches", "2", "--objective", "transfer"][..], "laid out for time"),
        (&["--microbatches", "4294967295"], "fewer microbatches"),
        (&["--emit", "plan", "-o", "-"], "/dev/stdout"),
    ] {
        let ran = folder.run(&[&devices[..], asked].concat());
        assert!(ran.code != 0 && ran.stderr.contains(message), "{asked:?}: {}", ran.stderr);
    }
    assert!(!folder.path("-").exists());
    let twice = ENGINE.replace("\"edges\"", "\"nodes\":[],\"edges\"");
    fs::write(folder.path("twice.json"), twice).unwrap();
    let ran = folder.run(&["twice.json", "-d", "cpu"]);
    assert!(ran.stderr.contains("duplicate field `nodes`"), "{}", ran.stderr);
}

/// What takes longer than balance allows takes no less when it is computed again.
#[test]
fn no_step_is_rewritten_for_balance() {
    let folder = Folder::new();
    fs::write(folder.path("engine.json"), ENGINE.replacen("100000", "900000", 1)).unwrap();
    let balanced = ["engine.json", "-d", "2xcpu", "--use", "all", "--balance", "0.1"];
    let error = folder.fails(3, &balanced);
    assert!(error.contains("node a takes 900 us on cpu0, and --balance allows 550 us"), "{error}");
    assert!(!error.contains("computing again"), "{error}");
}

/// A plan that says another time than its steps take is no plan of its model.
#[test]
fn times_of_a_plan_are_those_of_its_steps() {
    let folder = Folder::new();
    fs::write(folder.path("engine.json"), ENGINE).unwrap();
    for objective in ["latency", "throughput", "transfer"] {
        folder.ok(&["engine.json", "-d", "2xcpu:memory=7MB", "--objective", objective, "-o", "plan.json"]);
        folder.ok(&["check", "plan.json", "--model", "engine.json"]);
        let text = fs::read_to_string(folder.path("plan.json")).unwrap();
        for field in ["latency_ns", "max_load_ns"] {
            let mut plan: serde_json::Value = serde_json::from_str(&text).unwrap();
            let said = plan["cost"][field].as_u64().unwrap();
            plan["cost"][field] = serde_json::json!(said - 1);
            fs::write(folder.path("forged.json"), plan.to_string()).unwrap();
            let ran = folder.run(&["check", "forged.json", "--model", "engine.json"]);
            assert!(ran.code != 0, "{objective} {field}: {}", ran.stdout);
        }
    }
}

/// Errors name the option that was given, not one that it stands for or that it excludes.
#[test]
fn errors_name_what_was_given() {
    let folder = Folder::new();
    let mlp = example("mlp.json");
    folder.ok(&[&mlp, "-d", "2xcpu", "-o", "plan.json"]);
    for (arguments, part) in [
        (&[&*mlp, "-d", "2xcpu", "--replicas", "2", "--batch", "1"][..], "--replicas 2: no batch"),
        (&[&mlp, "-d", "2xcpu", "--batch", "-1"], "--batch: a batch is at least 1"),
        (&[&mlp, "-d", "2xcpu:link=8gb/s"], "may be bytes or bits"),
        (&[&mlp, "-d", "2xcpu", "--score", "plan.json", "--stability", "1"], "--stability"),
        (&["generate", "m", "-d", "cpu"], "--tokens"),
        (&["train", &mlp, "--data", "ones:records=4", "--loss", "mse:x=1"], "mse has no option x=1"),
        (
            &["train", &mlp, "--data", "ones:records=4,records=5", "--loss", "mse"],
            "records=5: records is given twice",
        ),
    ] {
        let ran = folder.run(arguments);
        assert!(ran.code == 2 && ran.stdout.is_empty() && ran.stderr.contains(part), "{}", ran.stderr);
        assert!(!ran.stderr.contains("--split"), "{}", ran.stderr);
    }
}

/// The system's limit of a file is an error of the write, and what was written aside is removed.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_so_large_is_an_error() {
    let folder = Folder::new();
    let command = format!(
        "ulimit -f 8; exec {} {} -d cpu -o plan.json",
        env!("CARGO_BIN_EXE_partition"),
        example("mlp.json")
    );
    let out = std::process::Command::new("sh")
        .args(["-c", &command])
        .current_dir(folder.path("."))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && told.contains("plan.json"), "{:?}: {told}", out.status);
    let left: Vec<_> =
        fs::read_dir(folder.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}
