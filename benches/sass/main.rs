//! Reads the machine code of kernels without a GPU: what `scripts/sass_check` runs.
//!
//! Kernels of `kernels.txt` are printed, compiled by NVRTC for sm_80 and sm_90 (kept on disk), listed by `cuobjdump`, and
//! one warp of each is followed through its code (`warp.rs`): how many instructions it issues, how wide and how well
//! placed its accesses are, how long it takes alone. A model of the GPU (`machine.rs`) makes a predicted time of that,
//! beside the least that bytes and operations take. Kernels of models of the corpus are compiled too; none may spill.
//!
//! `cargo bench --bench sass -- --tools DIR [--corpus DIR] [--match WORD] [--all] [--out FILE] [--check]`
//!
//! `... -- --fill DIR --cache DIR` compiles the kernels of the models of a folder for sm_90, as a run on a GPU does, so that
//! it finds them: what `scripts/gpu_pack` carries along.

mod cases;
mod listing;
mod machine;
mod report;
mod value;
mod warp;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partition::unstable::compile::{Options, prepare};
use partition::unstable::emit::cache::{Cache, compile_all};
use partition::unstable::emit::nvrtc::{Nvrtc, nvrtc};
use partition::unstable::emit::{self, Gives, Kernel};
use partition::unstable::ir::{DType, Graph};
use partition::unstable::kernel::program::{self, Body, Expr, ExprId, Pass, Program};
use partition::unstable::kernel::{GroupId, Grouping};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::run::cuda::{CudaOptions, NvrtcToolchain, compile_ahead};

use cases::Case;
use listing::Code;
use machine::{GPUS, Launched, Predicted};
use warp::{Launch, Run};

/// Architectures that kernels are compiled for; the last one is that of the model.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

struct Arguments {
    /// `cuobjdump`.
    disassembler: PathBuf,
    corpus: Option<PathBuf>,
    cache: PathBuf,
    word: String,
    all: bool,
    out: Option<PathBuf>,
    check: bool,
    /// Models whose kernels are compiled.
    fill: Option<PathBuf>,
}

fn main() {
    let done = arguments().and_then(|arguments| match &arguments.fill {
        Some(folder) => filled(folder, &arguments.cache).map(|()| 0),
        None => checked(&arguments),
    });
    match done {
        Ok(0) => {}
        Ok(faults) => {
            eprintln!("{faults} over their budgets");
            std::process::exit(1);
        }
        Err(message) => {
            eprintln!("sass: {message}");
            std::process::exit(2);
        }
    }
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        disassembler: "cuobjdump".into(),
        corpus: None,
        cache: "target/sass".into(),
        word: String::new(),
        all: false,
        out: None,
        check: false,
        fill: None,
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} takes a value"));
        match word.as_str() {
            "--tools" => found.disassembler = Path::new(&value()?).join("cuobjdump"),
            "--corpus" => found.corpus = Some(value()?.into()),
            "--cache" => found.cache = value()?.into(),
            "--match" => found.word = value()?,
            "--out" => found.out = Some(value()?.into()),
            "--fill" => found.fill = Some(value()?.into()),
            "--all" => found.all = true,
            "--check" => found.check = true,
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(found)
}

/// Compiles the kernels of models for sm_90.
fn filled(folder: &Path, cache: &Path) -> Result<(), String> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let cache = Cache::open(cache).map_err(|error| error.to_string())?;
    let toolchain = NvrtcToolchain { cache: Some(cache), threads };
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let place = |error: partition::Error| format!("{}: {error}", path.display());
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let Model::Graph(graph) = load(&bytes, Some(&path), &LoadOptions::default()).map_err(place)? else {
            return Err(format!("{}: no network", path.display()));
        };
        let network = prepare(graph, &Options::default()).map_err(place)?;
        let groups = network.grouping.all_fused();
        let products = CudaOptions::default().products;
        let count = compile_ahead(&network.graph, &groups, products, &toolchain, "sm_90").map_err(place)?;
        println!("{}: {count} kernels", path.display());
    }
    Ok(())
}

/// A kernel of a case, its machine code, and what a warp of it does.
pub(crate) struct Read {
    pub(crate) case: usize,
    pub(crate) kernel: Kernel,
    pub(crate) launched: Launched,
    /// By architecture.
    pub(crate) codes: Vec<Code>,
    pub(crate) run: Run,
    /// By GPU.
    pub(crate) predicted: Vec<Predicted>,
}

/// How many budgets are not kept.
fn checked(arguments: &Arguments) -> Result<usize, String> {
    let compiler = nvrtc().map_err(|error| error.to_string())?;
    let cache = Cache::open(&arguments.cache).map_err(|error| error.to_string())?;
    let tools = Tools { compiler, cache, disassembler: &arguments.disassembler };
    let mut cases = cases::read(include_str!("kernels.txt"))?;
    cases.retain(|case| case.name.contains(&arguments.word));
    let reads = tools.read(&cases)?;
    let mut corpus = Vec::new();
    if let Some(folder) = arguments.corpus.as_ref().filter(|_| arguments.word.is_empty()) {
        corpus = tools.models(folder, arguments.all)?;
    }
    let table = report::table(&cases, &reads, &corpus, &compiler.version());
    match &arguments.out {
        Some(path) => std::fs::write(path, &table).map_err(|error| format!("{}: {error}", path.display()))?,
        None => println!("{table}"),
    }
    let faults = report::faults(&cases, &reads, &corpus);
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    Ok(if arguments.check { faults.len() } else { 0 })
}

/// A model of the corpus: how many kernels, most registers of one, which spill, and which do not wait.
pub(crate) struct Swept {
    pub(crate) name: String,
    pub(crate) kernels: usize,
    pub(crate) registers: u32,
    pub(crate) spills: Vec<String>,
    pub(crate) early: Vec<String>,
}

struct Tools<'a> {
    compiler: &'a Nvrtc,
    cache: Cache,
    disassembler: &'a Path,
}

impl Tools<'_> {
    fn codes(&self, kernels: &[&Kernel], architecture: &str) -> Result<Vec<Code>, String> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let images =
            compile_all(self.compiler, Some(&self.cache), kernels, architecture, threads, &|_, _| {});
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut codes = Vec::with_capacity(kernels.len());
        for (kernel, image) in kernels.iter().zip(images.map_err(|error| error.to_string())?) {
            let file = folder.path().join("kernel.cubin");
            std::fs::write(&file, image).map_err(|error| error.to_string())?;
            codes.push(
                listing::listed(self.disassembler, &file)
                    .map_err(|error| format!("{}: {error}", kernel.name))?,
            );
        }
        Ok(codes)
    }

    fn read(&self, cases: &[Case]) -> Result<Vec<Read>, String> {
        let mut found: Vec<(usize, Program, Vec<Kernel>)> = Vec::new();
        for (number, case) in cases.iter().enumerate() {
            for program in programs(&case.graph, &case.grouping)? {
                // Caches and parameters are updated where they are.
                if case.is_step && program.is_copy() {
                    continue;
                }
                let of =
                    |architecture: &&str| emit::kernel_within(&program, Gives::of(architecture)).transpose();
                let kernels: Result<Vec<Kernel>, _> = ARCHITECTURES.iter().filter_map(of).collect();
                let kernels = kernels.map_err(|error| error.to_string())?;
                if !kernels.is_empty() {
                    found.push((number, program, kernels));
                }
            }
        }
        let mut codes: Vec<Vec<Code>> = found.iter().map(|_| Vec::new()).collect();
        for (number, architecture) in ARCHITECTURES.into_iter().enumerate() {
            let kernels: Vec<&Kernel> = found.iter().map(|(.., kernels)| &kernels[number]).collect();
            for (all, one) in codes.iter_mut().zip(self.codes(&kernels, architecture)?) {
                all.push(one);
            }
        }
        Ok(found
            .into_iter()
            .zip(codes)
            .filter_map(|((case, program, mut kernels), codes)| {
                Some(read(case, &program, kernels.pop()?, codes))
            })
            .collect())
    }

    fn models(&self, folder: &Path, all: bool) -> Result<Vec<Swept>, String> {
        let mut swept = Vec::new();
        let large = if all { report::LARGE } else { Default::default() };
        for name in report::MODELS.iter().chain(large) {
            for half in [None, Some(DType::Bf16)] {
                let path = folder.join(name);
                let mut one = Swept {
                    name: format!("{name}{}", if half.is_some() { " in bf16" } else { "" }),
                    kernels: 0,
                    registers: 0,
                    spills: vec![],
                    early: vec![],
                };
                let network = model(&path, half)?;
                for architecture in ARCHITECTURES {
                    let kernels = kernels_of(&network, architecture)
                        .map_err(|error| format!("{}: {error}", path.display()))?;
                    let list: Vec<&Kernel> = kernels.values().collect();
                    one.kernels = list.len();
                    for (kernel, code) in list.iter().zip(self.codes(&list, architecture)?) {
                        one.registers = one.registers.max(code.registers);
                        if spills(&code) {
                            one.spills.push(format!("{} on {architecture}", kernel.name));
                        }
                        if is_early(&code, architecture) {
                            one.early.push(kernel.name.clone());
                        }
                    }
                }
                swept.push(one);
            }
        }
        Ok(swept)
    }
}

/// Whether a kernel for an architecture on which it may be begun early reads or writes before it has waited.
pub(crate) fn is_early(code: &Code, architecture: &str) -> bool {
    architecture == "sm_90" && code.too_early().is_some()
}

/// Whether registers are kept in memory. (A thread's stack that nothing is read from is none.)
pub(crate) fn spills(code: &Code) -> bool {
    code.instructions.iter().any(|one| matches!(one.stem(), "LDL" | "STL"))
}

fn programs(graph: &Graph, grouping: &Grouping) -> Result<Vec<Program>, String> {
    let mut all = Vec::new();
    // Nothing runs for slices that lie in what they are cut from.
    let run = (0..grouping.groups.len() as u32).map(GroupId).filter(|&group| grouping.slice(group).is_none());
    for group in run {
        all.extend(program::lower(graph, &grouping.fused(group)).map_err(|error| error.to_string())?);
    }
    Ok(all)
}

/// The programs of a file.
fn model(path: &Path, half: Option<DType>) -> Result<Vec<Program>, String> {
    let place = |error: partition::Error| format!("{}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let Model::Graph(graph) = load(&bytes, Some(path), &LoadOptions::default()).map_err(place)? else {
        return Err(format!("{}: no network", path.display()));
    };
    let precision = half.map(|half| Precision { half, params: Params::Rounded });
    let network = prepare(graph, &Options { precision, ..Options::default() }).map_err(place)?;
    programs(&network.graph, &network.grouping)
}

/// Their kernels for an architecture, by name.
fn kernels_of(programs: &[Program], architecture: &str) -> partition::Result<BTreeMap<String, Kernel>> {
    let mut kernels = BTreeMap::new();
    for program in programs {
        if let Some(kernel) = emit::kernel_within(program, Gives::of(architecture))? {
            kernels.insert(kernel.name.clone(), kernel);
        }
    }
    Ok(kernels)
}

/// Warps of a group of threads, of which the first copies where groups do different things.
const WARPS_OF_GROUP: u64 = 4;

/// Whether one group of a block's threads copies for the others: it leaves them registers.
fn does_two_things(code: &Code) -> bool {
    code.instructions.iter().any(|one| one.stem() == "USETMAXREG")
}

fn read(case: usize, program: &Program, kernel: Kernel, codes: Vec<Code>) -> Read {
    let code = &codes[codes.len() - 1];
    let [x, y] = kernel.launch.block;
    let (operations, (read, written)) = (operations(program), bytes(program));
    let grid = kernel.launch.grid;
    let launch = Launch { grid, block: [x, y], number: grid / 2, warp: 0, arguments: 0x210 };
    let of = |warp: u32| warp::run(code, Launch { warp, ..launch }, GPUS[0].latencies);
    let run = if does_two_things(code) {
        let all = u64::from((x * y).div_ceil(32));
        Run::average(&[
            (of(0), WARPS_OF_GROUP),
            (of(WARPS_OF_GROUP as u32), all.saturating_sub(WARPS_OF_GROUP)),
        ])
    } else {
        of(0)
    };
    let launched = Launched {
        blocks: kernel.launch.grid,
        threads: x * y,
        registers: code.registers,
        shared: code.shared + kernel.launch.shared,
        bytes: read + written,
        own: matches!(program.body, Body::Rows { .. }).then_some(read),
        operations,
        is_tensor: run.tensor + run.groups > 0,
    };
    let predicted = GPUS.iter().map(|gpu| gpu.predicted(&launched, &run)).collect();
    Read { case, kernel, launched, codes, run, predicted }
}

/// Of the arguments that it uses, what is read and what is written, each once. A gather reads no more of its table than
/// it writes.
fn bytes(program: &Program) -> (u64, u64) {
    let size = |arg: &program::Arg| arg.elements.saturating_mul(arg.dtype.size());
    let used = used(program);
    let args = || program.args.iter().zip(&used).filter(|(_, used)| **used).map(|(arg, _)| arg);
    let written: u64 = args().filter(|arg| arg.written).map(size).sum();
    let read = args().filter(|arg| !arg.written);
    let gathers = program.name.starts_with("gather");
    (read.map(|arg| if gathers { size(arg).min(written) } else { size(arg) }).sum(), written)
}

/// By argument: whether rows, or a scatter's stage, read or write it; of other kernels, all.
fn used(program: &Program) -> Vec<bool> {
    let mut used = vec![false; program.args.len()];
    match &program.body {
        Body::Rows { .. } => {}
        Body::Order(order) => {
            let lists = order.from.iter().chain(&order.to).chain([&order.counts]);
            lists.for_each(|&arg| used[arg as usize] = true);
        }
        Body::Scatter(scatter) => {
            let ordered = scatter.ordered.iter();
            ordered.for_each(|of| {
                [of.places, of.steps, of.parts].iter().for_each(|&arg| used[arg as usize] = true)
            });
            used[scatter.out as usize] = program.args[scatter.out as usize].written;
        }
        _ => return vec![true; program.args.len()],
    }
    program.stores().for_each(|store| used[store.arg as usize] = true);
    for (id, _) in program.used().iter().enumerate().filter(|(_, used)| **used) {
        if let Expr::Load { arg, .. } = program.exprs.get(ExprId(id as u32)) {
            used[*arg as usize] = true;
        }
    }
    used
}

/// Multiplications and additions of a product, a convolution or an attention.
fn operations(program: &Program) -> f64 {
    let extent = |var| program.exprs.extent(var) as f64;
    match &program.body {
        Body::Product { batch, row, column, inner, .. } => {
            2.0 * extent(*batch) * extent(*row) * extent(*column) * extent(*inner)
        }
        Body::Attention(heads) => {
            let of = &heads.geometry;
            let scores =
                [of.batch, of.heads, of.rows, of.keys].iter().map(|&size| size as f64).product::<f64>();
            // Of gradients each product once: scores, the weights' gradients, those of queries, keys and values.
            let products = match heads.pass {
                Pass::Forward | Pass::Parts | Pass::Keys => of.size + of.value_size,
                Pass::Queries => 2 * of.size + of.value_size,
            };
            2.0 * scores * products as f64
        }
        _ => 0.0,
    }
}
