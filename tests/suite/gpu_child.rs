//! Checks on a GPU in processes of their own: an illegal address breaks the GPU for its process for good, so what comes
//! after it is checked by another one. Each case has a verdict, and none ends those behind it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use partition::unstable::compile::{Options, compile};
use partition::unstable::control::Control;
use partition::unstable::emit::cache::Cache;
use partition::unstable::error::Result;
use partition::unstable::ir::DType;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::cuda::{CudaOptions, Machine, NvrtcToolchain, Target, compile_ahead};
use partition::unstable::topology::Topology;

use crate::emulator::{Build, CpuToolchain, Emulator, Faults};
use crate::executor::Groups;
use crate::gpu::{Outcome, compiled, model, operation, small_models, some_products, staged_cases, told};
use crate::kernels::{Case, cases};
use crate::networks::Network;
use crate::run_ops::GENERATORS;
use crate::shared;

/// Of a child: the case from which on it checks.
const FROM: &str = "PARTITION_GPU_FROM";
/// Of a child: how many cases there are.
pub(crate) const MOST: &str = "PARTITION_GPU_MOST";
/// Of a child: `i/n`, every n-th case from the i-th on.
const PART: &str = "PARTITION_GPU_PART";
/// The folder of the table's models, as `gpu_check --models` writes it.
const MODELS: &str = "PARTITION_GPU_MODELS";
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
    let (part, parts) = part();
    let own = names.iter().enumerate().filter(|(at, _)| at % parts == part);
    for (at, name) in own.take_while(|(at, _)| *at < number(MOST).unwrap_or(usize::MAX)) {
        if at < from {
            continue;
        }
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

/// Which part of the cases is checked, of how many.
pub(crate) fn part() -> (usize, usize) {
    let named = std::env::var(PART).ok();
    let parsed = named.as_deref().and_then(|part| part.split_once('/'));
    parsed.and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?))).unwrap_or((0, 1))
}

fn all_operations() -> Vec<Case> {
    let all = GENERATORS.iter().flat_map(|&generator| cases(generator));
    all.filter(|case| case.work() <= 100_000).chain(staged_cases()).collect()
}

#[test]
#[ignore = "started by tests of `gpu`"]
fn operations() {
    let all: Vec<Case> = match number(EMULATED) {
        Some(_) => some_products(),
        None => all_operations(),
    };
    if number(FROM).is_none() {
        return println!("skipped: started by tests of `gpu` alone");
    }
    let machine = machine();
    let names: Vec<String> = all.iter().map(|case| format!("{:?}", case.op)).collect();
    check(&names, |at| operation(&machine, &all[at]).map(|()| names[at].clone()));
}

/// On what a model of the corpus runs: a GPU, and two slices of it.
const SPECS: [(&str, usize); 2] = [("h200-141g", 1), ("h200-141g[2x4GB]", 2)];

/// Files of the corpus, each in f32 and in halves.
fn all_models() -> Vec<(String, Option<DType>)> {
    let halves = [None, Some(DType::Bf16), Some(DType::F16)];
    small_models().into_iter().flat_map(|file| halves.map(|half| (file.clone(), half))).collect()
}

#[test]
#[ignore = "started by tests of `gpu`"]
fn models() {
    if number(FROM).is_none() {
        return println!("skipped: started by tests of `gpu` alone");
    }
    let machine = machine();
    let all = all_models();
    let names: Vec<String> =
        all.iter().map(|(file, half)| format!("{file} in {}", half.unwrap_or(DType::F32))).collect();
    check(&names, |at| {
        let (file, half) = &all[at];
        let outcome =
            |spec, devices: usize| model(&machine, file, spec, &vec![Target::Gpu(0); devices], *half);
        let both = || SPECS.map(|(spec, devices)| outcome(spec, devices));
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

/// What the kernels of the check are compiled for.
const ARCHITECTURE: &str = "sm_90";

/// All kernels that the check runs: compiled where there is NVRTC, and otherwise found among those that were. What
/// `scripts/gpu_pack` packs, and what is tried of it.
#[test]
#[ignore = "started by scripts/gpu_check and scripts/gpu_pack"]
fn kernels() {
    let cache = Cache::open_default().unwrap();
    let toolchain = NvrtcToolchain { cache, threads: 1 };
    let mut all: Vec<Making> = all_operations().into_iter().map(Making::Operation).collect();
    all.extend(all_models().into_iter().flat_map(|(file, half)| {
        SPECS.map(|(spec, devices)| Making::Corpus { file: file.clone(), half, spec, devices })
    }));
    all.extend(
        std::env::var_os(MODELS).iter().flat_map(|folder| table_models(Path::new(folder))).map(Making::Table),
    );
    let (part, parts) = part();
    let all: Vec<Making> = all.into_iter().skip(part).step_by(parts).collect();
    let missing = Mutex::new(Vec::new());
    let made = Control::new().map(all.len(), |at| {
        let made = all[at].compiled(&toolchain);
        made.unwrap_or_else(|error| {
            missing.lock().unwrap().push(format!("{}: {error}", all[at].name()));
            0
        })
    });
    let (count, missing) = (made.iter().sum::<usize>(), missing.into_inner().unwrap());
    match missing.first() {
        None => println!("gpu kernels: all {count} of {ARCHITECTURE} are there"),
        Some(first) => println!("gpu kernels: missing for {} of {}, first {first}", missing.len(), all.len()),
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// What has kernels.
enum Making {
    Operation(Case),
    Corpus { file: String, half: Option<DType>, spec: &'static str, devices: usize },
    Table(PathBuf),
}

impl Making {
    fn name(&self) -> String {
        match self {
            Self::Operation(case) => format!("{:?}", case.op),
            Self::Corpus { file, spec, .. } => format!("{file} on {spec}"),
            Self::Table(path) => path.display().to_string(),
        }
    }

    /// How many kernels it has.
    fn compiled(&self, toolchain: &NvrtcToolchain) -> Result<usize> {
        let products = CudaOptions::default().products;
        let ahead = |graph, groups: &[_]| compile_ahead(graph, groups, products, toolchain, ARCHITECTURE);
        match self {
            Self::Operation(case) => {
                let graph = case.graph();
                let groups = Groups::planned(&graph);
                ahead(&graph, &groups.fused())
            }
            Self::Corpus { file, half, spec, devices } => {
                let Some(path) = shared::present(&format!("corpus/{file}")) else {
                    panic!("{file} is not there");
                };
                let network = Network::open(&path).unwrap();
                let Some(made) = compiled(&network, spec, *devices, *half)? else { return Ok(0) };
                let network = made.network.as_ref().unwrap();
                ahead(&network.graph, &network.grouping.all_fused())
            }
            Self::Table(path) => {
                let bytes = std::fs::read(path).unwrap();
                let spec = std::fs::read_to_string(path.with_extension("devices")).unwrap();
                let devices = if spec.contains('[') { DeviceUse::All } else { DeviceUse::Auto };
                let options =
                    Options { place: place::Options { devices, ..<_>::default() }, ..Options::default() };
                let Model::Graph(graph) = load(&bytes, Some(path), &LoadOptions::default())? else {
                    panic!("{} is no network", path.display());
                };
                let made = compile(Model::Graph(graph), &Topology::parse(&spec)?, &options)?;
                let network = made.network.as_ref().unwrap();
                ahead(&network.graph, &network.grouping.all_fused())
            }
        }
    }
}

fn table_models(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    found.sort();
    found
}
