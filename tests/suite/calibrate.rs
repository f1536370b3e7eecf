//! Profiles from the command line: measured, planned with, carried by plans, refused where bad.

use std::process::{Command, Output};

use partition::unstable::cost::Profile;
use partition::unstable::plan::Plan;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mlp.json");
const DEVICES: [&str; 6] = ["--devices", "2xcpu:cores=1", "--use", "all", "--dim", "batch=8"];

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn succeeds(arguments: &[&str]) -> String {
    let out = partition(arguments);
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_model_is_calibrated_and_planned_with_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, plan, other) = (file("profile.json"), file("plan.json"), file("plan.json.gz"));
    succeeds(&[&["run", MODEL, "--calibrate", "-o", &profile][..], &DEVICES].concat());
    let measured = Profile::load(&profile).unwrap();
    let kind = measured.kind("cpu").unwrap();
    assert!(!kind.kernels.is_empty() && kind.copies.len() >= 4, "{kind:?}");

    succeeds(&[&[MODEL, "--profile", &profile, "-q", "-o", &plan][..], &DEVICES].concat());
    succeeds(&[&[MODEL, "--profile", &profile, "-q", "-o", &other][..], &DEVICES].concat());
    // The same profile gives the same plan, compressed or not, and every kernel of it is measured.
    let loaded = Plan::load(&plan).unwrap();
    assert_eq!(loaded, Plan::load(&other).unwrap());
    assert_eq!(Plan::from_text(&loaded.to_text(), "plan").unwrap(), loaded);
    let carried = loaded.profile.as_ref().unwrap().kind("cpu").unwrap();
    for kernel in &loaded.kernels {
        assert!(carried.kernels.iter().any(|known| format!("{:016x}", known.hash) == kernel.hash));
    }
    // A step takes at least its launches on the busier device, as measured.
    let time = |hash: &str| {
        let known = carried.kernels.iter().find(|known| format!("{:016x}", known.hash) == hash);
        known.map_or(0, |known| known.time_ns.get() + carried.launch_ns.get())
    };
    let kernel = |id: &str| loaded.kernels.iter().find(|kernel| kernel.id == id).unwrap();
    let busy = |device: &str| -> u64 {
        let steps = loaded.steps.iter().filter(|step| *step.device == *device);
        let launches = steps.filter_map(|step| match &step.action {
            partition::unstable::plan::Action::Launch(launch) => launch.kernel.as_deref(),
            partition::unstable::plan::Action::Copy(_) => None,
        });
        launches.map(|id| time(&kernel(id).hash)).sum()
    };
    let least = loaded.devices.iter().map(|device| busy(&device.name)).max().unwrap();
    let most: u64 = loaded.devices.iter().map(|device| busy(&device.name)).sum();
    let latency = loaded.cost.latency_ns.get();
    assert!(least <= latency && latency < most + 1_000_000, "{least} {latency} {most}");

    // The plan is checked and run without the profile: it carries what it was made with.
    succeeds(&["check", &plan, "--model", MODEL]);
    succeeds(&["check", &other]);
    succeeds(&["explain", &plan]);
    succeeds(&["run", &other, "--init", "seed=1"]);
    succeeds(&[&["run", &plan, "--calibrate", "-o", &profile][..], &["--init", "seed=2"]].concat());
}

#[test]
fn a_bad_profile_is_one_line_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, plan) = (folder.path().join("bad.json"), folder.path().join("plan.json"));
    std::fs::write(&bad, "{\"profile\":1,\"kinds\":[{\"kind\":\"cpu\"}]}").unwrap();
    let (bad, path) = (bad.to_str().unwrap(), plan.to_str().unwrap());
    for arguments in
        [&[MODEL, "--profile", bad, "-o", path][..], &["run", MODEL, "--profile", bad, "--init", "seed=1"]]
    {
        let out = partition(&[arguments, &DEVICES].concat());
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("bad.json: no valid profile: missing field"), "{text}");
    }
    assert!(!plan.exists());
    let out = partition(&[MODEL, "--profile", "/nowhere/profile.json", "--devices", "cpu"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere/profile.json: "));
    assert_eq!(partition(&["run"]).status.code(), Some(2));
}
