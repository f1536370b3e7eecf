//! Messages name the option that is the cause, and the way out.

use crate::cli::{Folder, example};

#[test]
fn pins_that_leave_too_few_nodes_for_the_devices_asked_for_are_named() {
    let (folder, model) = (Folder::new(), example("mlp.json"));
    let plan = [&model, "-d", "4xl4-24g", "--use", "2", "--pin", "*=cuda0"];
    let error = folder.fails(2, &plan.map(|arg: &str| arg));
    assert!(error.contains("2 devices asked for, but pins and kinds hold "), "{error}");
    assert!(error.contains(" on one device, which leaves 0 for others (pin fewer, or --use 1)"), "{error}");
}

#[test]
fn a_reserve_that_is_too_large_is_named() {
    let (folder, model) = (Folder::new(), example("mlp.json"));
    let plan = [&model, "-d", "2xcpu[2x4MB]", "--reserve", "5MB", "--effort", "fast", "--split", "none"];
    let error = folder.fails(3, &plan.map(|arg: &str| arg));
    assert!(error.contains("has more than 0 B (--reserve keeps 5 MB of each device free)"), "{error}");
    assert!(error.contains("would do: --reserve "), "{error}");
    let spec = [&model, "-d", "cpu[2x8MB]", "--effort", "fast"].map(|arg: &str| arg);
    folder.ok(&[&spec[..], &["-o", "plan.json", "--quiet"]].concat());
    let scored = folder.run(&[&spec[..], &["--score", "plan.json", "--reserve", "7MB"]].concat());
    let told = scored.stderr;
    assert!(told.contains(" and has 8 MB, of which --reserve keeps 7 MB free: 5.39 MB over"), "{told}");
}

#[test]
fn replicas_of_more_devices_than_there_are_and_devices_that_are_left_over_are_told() {
    let (folder, model) = (Folder::new(), example("mlp.json"));
    let train = |spec: &str, way: &str| {
        let all = format!(
            "train {model} -d {spec} --batch 12 --loss mse --dry-run --effort fast --data ones:records=24 --parallel {way}"
        );
        folder.run(&all.split_whitespace().collect::<Vec<_>>())
    };
    let error = train("4xcpu", "hybrid:5").stderr;
    assert!(error.contains("--parallel hybrid:5: a replica takes 5 devices, and there are 4"), "{error}");
    assert!(!error.contains("--replicas"), "{error}");
    let odd = train("4xcpu", "hybrid:3");
    assert!(odd.stderr.contains("--parallel hybrid:3: 1 of 4 devices is idle"), "{}", odd.stderr);
    let even = train("4xcpu", "hybrid:2");
    assert!(even.code == 0 && !even.stderr.contains("idle"), "{}", even.stderr);
}

#[test]
fn a_device_that_has_nearly_all_of_the_work_is_told() {
    let (folder, model) = (Folder::new(), example("mlp.json"));
    let told = |rest: &[&str]| {
        let plan = [&model, "-d", "2xl4-24g", "--use", "all", "--batch", "512", "--effort", "fast"]
            .map(|arg: &str| arg);
        folder.run(&[&plan[..], rest].concat()).stderr
    };
    let bytes = told(&[]);
    assert!(bytes.contains("next to nothing (--balance 0.1 shares the work evenly"), "{bytes}");
    for rest in [&["--objective", "throughput"][..], &["--balance", "0.5"]] {
        assert!(!told(rest).contains("next to nothing"), "{rest:?}");
    }
}
