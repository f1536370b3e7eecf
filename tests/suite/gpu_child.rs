//! Checks on a GPU in processes of their own: an illegal address breaks the GPU for its process for good, so what comes
//! after it is checked by another one. Each case has a verdict, and none ends those behind it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use partition::unstable::ir::DType;
use partition::unstable::run::cuda::{Machine, Target};

use crate::emulator::{Build, CpuToolchain, Emulator, Faults};
use crate::gpu::{Outcome, model, operation, small_models, some_products, told};
use crate::kernels::{Case, cases};
use crate::run_ops::GENERATORS;

/// Of a child: the case from which on it checks.
const FROM: &str = "PARTITION_GPU_FROM";
/// Of a child: how many cases there are.
pub(crate) const MOST: &str = "PARTITION_GPU_MOST";
/// Of a child: an emulated GPU takes the real one's place, on which this kernel of each process fails.
pub(crate) const EMULATED: &str = "PARTITION_GPU_EMULATED";
/// Of a child: the case at which it ends without a word.
pub(crate) const DIES: &str = "PARTITION_GPU_DIES";

/// Verdicts, in the order of the cases.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) good: Vec<String>,
    pub(crate) wrong: Vec<String>,
}

/// Checks all cases of a test of this module, in as many processes as it takes.
pub(crate) fn all(test: &str, variables: &[(&str, &str)]) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let mut from = 0;
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(FROM, from.to_string())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut begun = None;
        let mut is_done = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, said)) = line.split_once("gpu case ") else {
                is_done |= line.contains("gpu cases are done");
                continue;
            };
            let (number, verdict) = said.split_once(' ').unwrap();
            from = number.parse::<usize>().unwrap() + 1;
            if let Some(what) = verdict.strip_prefix("good: ") {
                verdicts.good.push(what.to_owned());
                begun = None;
            } else if let Some(what) = verdict.strip_prefix("wrong: ") {
                verdicts.wrong.push(what.to_owned());
                begun = None;
            } else {
                begun = verdict.strip_prefix("begins, ").map(str::to_owned);
            }
        }
        let status = child.wait().unwrap();
        match begun {
            Some(what) => verdicts.wrong.push(format!("{what}, and its process ended: {status}")),
            None if is_done => return verdicts,
            // It was of no more use after a fault that it told.
            None if status.code() == Some(BROKEN) => {}
            None => {
                verdicts.wrong.push(format!("{test} from case {from} on: its process ended: {status}"));
                return verdicts;
            }
        }
    }
}

/// Exit code of a process whose GPU is of no use to it any more.
const BROKEN: i32 = 9;

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The machine of a child.
fn machine() -> Machine {
    let Some(fail) = number(EMULATED) else {
        return Machine::native().unwrap_or_else(|error| panic!("{error}"));
    };
    let toolchain = CpuToolchain::shared().expect("a C++ compiler");
    Emulator::new(Build { faults: Faults { fail: fail as u64, ..Faults::default() }, ..Build::default() })
        .machine(&toolchain)
}

/// Checks cases from the one on that this process was started for: what each is, and its verdict as soon as there is one.
fn check(names: &[String], mut verdict: impl FnMut(usize) -> Result<String, crate::gpu::Wrong>) {
    let Some(from) = number(FROM) else { return println!("skipped: started by tests of `gpu` alone") };
    for (at, name) in names.iter().enumerate().take(number(MOST).unwrap_or(usize::MAX)).skip(from) {
        println!("\ngpu case {at} begins, {name}");
        if number(DIES) == Some(at) {
            std::process::exit(1);
        }
        match verdict(at) {
            Ok(what) => println!("gpu case {at} good: {what}"),
            Err(wrong) => {
                println!("gpu case {at} wrong: {name}: {}", wrong.message.lines().next().unwrap_or_default());
                if wrong.is_fatal {
                    std::process::exit(BROKEN);
                }
            }
        }
    }
    println!("gpu cases are done");
}

#[test]
#[ignore = "started by tests of `gpu`"]
fn operations() {
    let all: Vec<Case> = match number(EMULATED) {
        Some(_) => some_products(),
        None => {
            let all = GENERATORS.iter().flat_map(|&generator| cases(generator));
            all.filter(|case| case.work() <= 100_000).collect()
        }
    };
    if number(FROM).is_none() {
        return println!("skipped: started by tests of `gpu` alone");
    }
    let machine = machine();
    let names: Vec<String> = all.iter().map(|case| format!("{:?}", case.op)).collect();
    check(&names, |at| operation(&machine, &all[at]).map(|()| names[at].clone()));
}

#[test]
#[ignore = "started by tests of `gpu`"]
fn models() {
    if number(FROM).is_none() {
        return println!("skipped: started by tests of `gpu` alone");
    }
    let machine = machine();
    let halves = [None, Some(DType::Bf16), Some(DType::F16)];
    let all: Vec<(String, Option<DType>)> =
        small_models().into_iter().flat_map(|file| halves.map(|half| (file.clone(), half))).collect();
    let names: Vec<String> =
        all.iter().map(|(file, half)| format!("{file} in {}", half.unwrap_or(DType::F32))).collect();
    check(&names, |at| {
        let (file, half) = &all[at];
        let outcome = |spec, targets: &[Target]| model(&machine, file, spec, targets, *half);
        let both =
            || [outcome("h200-141g", &[Target::Gpu(0)]), outcome("h200-141g[2x4GB]", &[Target::Gpu(0); 2])];
        let found: [Outcome; 2] =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(both)).map_err(|what| {
                let message =
                    what.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned());
                // Whether the GPU is still of use is not known.
                crate::gpu::Wrong { message, is_fatal: true }
            })?;
        Ok(format!("{}: {}", names[at], told(found)))
    });
}
