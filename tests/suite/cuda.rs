//! Generated CUDA C without a GPU: a C++ compiler takes it behind `tests/cuda/shim.h`, and what it
//! computes on the CPU, in both orders of threads, is compared with the programs' evaluation in f64.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use partition::unstable::emit::{self, Kernel};
use partition::unstable::ir::{DType, Op, ScatterKind};
use partition::unstable::kernel::program::{self, Place, Program};
use partition::unstable::pass::{GroupOptions, group};

use crate::corpus::{SMALL, SMALL_HALVES};
use crate::cuda_forms::{
    attention_by_groups, attention_gradients, from_images, hero_cases, made_up, product, scatters, sized,
    sums_of_nothing,
};
use crate::kernels::{Case, Memory, cases, half_programs, lowered, model_programs, step_programs};
use crate::reference::Array;
use crate::run_ops::{GENERATORS, decode, encode, tolerance};
use crate::shared;
use crate::sweep::Share;

/// The line that brings the shim into a file of C++: the first of it, so that the compiled header is taken.
pub(crate) const SHIM: &str = "#include \"shim.h\"";

/// What makes the compiler check each access, as the shim's header says. The shim has what the checks call, so nothing is
/// linked for them.
pub(crate) const CHECKED: [&str; 3] =
    ["-fsanitize=alignment", "-fno-sanitize-recover=all", "-fsanitize=thread"];

/// A compiler with the options of every kernel, that finds the shim.
fn with_options(compiler: &str, header: &Path) -> Command {
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-std=c++17", "-w", "-fno-strict-aliasing", "-ffp-contract=off"])
        .args(["-U_FORTIFY_SOURCE", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"])
        .args(CHECKED)
        .arg("-I")
        .arg(header);
    command
}

/// The folder of the shim, compiled once for all files: half of the time of a small file is its header's. A compiler that
/// does not take what lies beside the header (another version, another make) reads the header.
fn header(compiler: &str) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let text = include_str!("../cuda/shim.h");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // A suite that was carried to another machine has no target folder.
        let all = if target.is_dir() { target.to_path_buf() } else { std::env::temp_dir() };
        let folder = all.join(format!("shim-{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes())));
        if !folder.exists() {
            let new = tempfile::tempdir_in(&all).unwrap();
            let shim = new.path().join("shim.h");
            std::fs::write(&shim, text).unwrap();
            let compiled = shim.with_extension("h.gch");
            let made = with_options(compiler, new.path())
                .args(["-x", "c++-header"])
                .arg(&shim)
                .arg("-o")
                .arg(&compiled)
                .status();
            assert!(made.unwrap().success(), "{compiler} refuses the shim");
            // Another process may have been quicker.
            if std::fs::rename(new.path(), &folder).is_err() {
                assert!(folder.exists(), "{} cannot be made", folder.display());
            }
        }
        folder
    })
}

/// Compiles a file of C++ that begins with the shim, and links it with these options.
pub(crate) fn build(compiler: &str, file: &Path, to: &Path, options: &[&str]) {
    let object = file.with_extension("o");
    let made =
        with_options(compiler, header(compiler)).arg("-c").arg(file).arg("-o").arg(&object).output().unwrap();
    let linked = match made.status.success() {
        true => Command::new(compiler).args(options).arg(&object).arg("-o").arg(to).output().unwrap(),
        false => made,
    };
    if !linked.status.success() {
        let kept = std::env::temp_dir().join("partition_failed.cpp");
        std::fs::copy(file, &kept).unwrap();
        let errors = String::from_utf8_lossy(&linked.stderr);
        panic!("{compiler} refuses {}:\n{}", kept.display(), &errors[..errors.len().min(4000)]);
    }
    std::fs::remove_file(object).unwrap();
}

/// The C++ compiler; none, with a line on standard output, where there is none.
pub(crate) fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let compiler = *FOUND.get_or_init(|| {
        let found =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        ["g++", "clang++", "c++"].into_iter().find(found)
    });
    let required = std::env::var_os("PARTITION_REQUIRE_SHARED").is_some_and(|value| value == "1");
    assert!(compiler.is_some() || !required, "there is no C++ compiler");
    if compiler.is_none() {
        println!("skipped: no C++ compiler");
    }
    compiler
}

/// Kernels compiled for the CPU.
pub(crate) struct Library {
    folder: tempfile::TempDir,
    programs: Vec<PathBuf>,
    /// By name: which program, and where in it.
    known: BTreeMap<String, (usize, u32)>,
}

/// One launch: kernel, arguments' bytes.
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) args: Vec<Vec<u8>>,
}

/// Kernels in one file of C++.
const TOGETHER: usize = 60;

impl Library {
    pub(crate) fn compile(kernels: &BTreeMap<String, Kernel>) -> Option<Self> {
        let compiler = compiler()?;
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<&Kernel> = kernels.values().collect();
        let mut library = Self { folder, programs: Vec::new(), known: BTreeMap::new() };
        let files: Vec<PathBuf> = all
            .chunks(TOGETHER)
            .enumerate()
            .map(|(part, kernels)| {
                let path = library.folder.path().join(format!("part{part}.cpp"));
                std::fs::write(&path, text(kernels)).unwrap();
                for (position, kernel) in kernels.iter().enumerate() {
                    library.known.insert(kernel.name.clone(), (part, position as u32));
                }
                path
            })
            .collect();
        std::thread::scope(|scope| {
            for files in files.chunks(files.len().div_ceil(2).max(1)) {
                scope.spawn(move || {
                    files.iter().for_each(|file| build(compiler, file, &file.with_extension(""), &[]))
                });
            }
        });
        library.programs = files.iter().map(|file| file.with_extension("")).collect();
        Some(library)
    }

    /// What the arguments are after each launch. A launch sees nothing of those before it.
    pub(crate) fn run(&self, calls: &[Call<'_>], reversed: bool) -> Vec<Vec<Vec<u8>>> {
        let mut results: Vec<Vec<Vec<u8>>> = calls.iter().map(|_| Vec::new()).collect();
        for part in 0..self.programs.len() {
            let own: Vec<usize> =
                (0..calls.len()).filter(|&call| self.known[&calls[call].kernel.name].0 == part).collect();
            let out = self.answer(calls, part, &own, reversed);
            assert!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
            let bytes = std::fs::read(self.folder.path().join("response")).unwrap();
            let mut rest = &bytes[..];
            for &call in &own {
                for arg in &calls[call].args {
                    let (head, tail) = rest.split_at(arg.len());
                    results[call].push(head.to_vec());
                    rest = tail;
                }
            }
        }
        results
    }

    /// Runs one of the programs with its own calls; what it writes is the file `response`.
    fn answer(&self, calls: &[Call<'_>], part: usize, own: &[usize], reversed: bool) -> std::process::Output {
        let [request, response] = ["request", "response"].map(|name| self.folder.path().join(name));
        let mut file = std::io::BufWriter::new(std::fs::File::create(&request).unwrap());
        file.write_all(&(own.len() as u32).to_le_bytes()).unwrap();
        for &call in own {
            let Call { kernel, args } = &calls[call];
            let launch = kernel.launch;
            let flags = u32::from(reversed) | if waits(kernel) { 0 } else { 2 };
            let [x, y] = launch.block;
            let position = self.known[&kernel.name].1;
            for word in [position, launch.grid, x, y, launch.shared, flags, args.len() as u32] {
                file.write_all(&word.to_le_bytes()).unwrap();
            }
            for arg in args {
                file.write_all(&(arg.len() as u64).to_le_bytes()).unwrap();
                file.write_all(arg).unwrap();
            }
        }
        file.into_inner().unwrap();
        Command::new(&self.programs[part]).arg(&request).arg(&response).output().unwrap()
    }
}

/// Whether threads of a kernel wait for one another.
pub(crate) fn waits(kernel: &Kernel) -> bool {
    kernel.template.is_some()
        || ["_fold<", "__syncthreads", "SHARED("].iter().any(|word| kernel.text.contains(word))
}

fn text(kernels: &[&Kernel]) -> String {
    let mut text = format!("{SHIM}\n{}", emit::module(kernels));
    text.push_str("static const shim::Entry entries[] = {\n");
    for kernel in kernels {
        let name = &kernel.name;
        writeln!(text, "  {{\"{name}\", [](void** args) {{ shim::call(&{name}, args); }}}},").unwrap();
    }
    text.push_str("};\nint main(int, char** argv) { return shim::serve(entries, argv[1], argv[2]); }\n");
    text
}

fn bytes(dtype: DType, array: &program::Array) -> Vec<u8> {
    match array {
        program::Array::Real(list) => encode(&Array::new(dtype, &[list.len()], list.clone())),
        program::Array::Whole(list) if matches!(dtype, DType::I64 | DType::U64) => {
            list.iter().flat_map(|x| x.to_ne_bytes()).collect()
        }
        program::Array::Whole(list) => {
            encode(&Array::new(dtype, &[list.len()], list.iter().map(|&x| x as f64).collect()))
        }
    }
}

pub(crate) fn values(dtype: DType, bytes: &[u8]) -> program::Array {
    let data = decode(dtype, bytes);
    match dtype.is_float() {
        true => program::Array::Real(data),
        false if dtype == DType::U64 => {
            let words = bytes.as_chunks().0.iter();
            program::Array::Whole(words.map(|&word| i64::from_ne_bytes(word)).collect())
        }
        false => program::Array::Whole(data.iter().map(|&x| x as i64).collect()),
    }
}

/// A program with what it is to be run on.
struct Trial {
    what: String,
    program: Program,
    kernel: Kernel,
    before: Vec<program::Array>,
    after: Vec<program::Array>,
    /// Argument and element of what is compared; none where all is.
    some: Option<Vec<(u32, usize)>>,
}

/// Trials of the programs of a case, one after the other, each on what the evaluation of those before
/// it gives, rounded to the arguments' types.
fn trials(case: &Case) -> Vec<Trial> {
    trials_within(case, emit::Gives::SM_80)
}

/// As [`trials`], with what GPUs of another kind give.
fn trials_within(case: &Case, gives: emit::Gives) -> Vec<Trial> {
    let graph = case.graph();
    let grouping = group(&graph, &GroupOptions::default());
    let Some(one) = grouping.groups.first() else { return vec![] };
    let mut memory = Memory::default();
    for (position, &read) in one.reads.iter().enumerate() {
        let operand = graph.inputs().iter().position(|(_, value)| *value == read).unwrap();
        let operand = &case.operands[operand];
        memory.set(Place::Read(position as u32), values(operand.dtype, &encode(operand)));
    }
    let mut trials = Vec::new();
    for program in lowered(&graph, &grouping) {
        trials.extend(trial(&mut memory, program, &format!("{:?}", case.op), gives));
    }
    trials
}

fn trial(memory: &mut Memory, program: Program, what: &str, gives: emit::Gives) -> Option<Trial> {
    let fetch = |memory: &Memory| -> Vec<program::Array> {
        let args = program.args.iter();
        args.map(|arg| match memory.get(arg.place, arg.dtype) {
            Some(array) => values(arg.dtype, &bytes(arg.dtype, array)),
            None => program::Array::zeros(arg.dtype, arg.elements as usize),
        })
        .collect()
    };
    let before = fetch(memory);
    memory.run(&program);
    let after = fetch(memory);
    let kernel = emit::kernel_within(&program, gives).unwrap()?;
    Some(Trial { what: what.to_owned(), program, kernel, before, after, some: None })
}

/// Compiles the trials' kernels, runs them in both orders, and compares with what is expected.
fn compare(trials: &[Trial]) {
    let kernels: BTreeMap<String, Kernel> =
        trials.iter().map(|trial| (trial.kernel.name.clone(), trial.kernel.clone())).collect();
    let Some(library) = Library::compile(&kernels) else { return };
    let calls: Vec<Call<'_>> = trials
        .iter()
        .map(|trial| {
            let args = trial.program.args.iter().zip(&trial.before);
            Call { kernel: &trial.kernel, args: args.map(|(arg, array)| bytes(arg.dtype, array)).collect() }
        })
        .collect();
    let forward = library.run(&calls, false);
    let reversed = library.run(&calls, true);
    for (index, trial) in trials.iter().enumerate() {
        assert!(
            forward[index] == reversed[index],
            "{} depends on the order of threads:\n{}",
            trial.what,
            trial.kernel.text
        );
        for (position, arg) in trial.program.args.iter().enumerate() {
            let found = decode(arg.dtype, &forward[index][position]);
            let expected = match &trial.after[position] {
                program::Array::Real(list) => list.clone(),
                program::Array::Whole(list) if arg.dtype == DType::U64 => {
                    list.iter().map(|&x| x as u64 as f64).collect()
                }
                program::Array::Whole(list) => list.iter().map(|&x| x as f64).collect(),
            };
            let (relative, absolute) = tolerance(arg.dtype);
            let some = trial.some.iter().flatten();
            let some: Vec<usize> =
                some.filter(|(arg, _)| *arg as usize == position).map(|&(_, i)| i).collect();
            let compared =
                if trial.some.is_some() && arg.written { some } else { (0..found.len()).collect() };
            for i in compared {
                let (a, b) = (found[i], expected[i]);
                let same =
                    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
                assert!(
                    same,
                    "{}: argument {position}, element {i} is {a}, expected {b}\n{}\n{}",
                    trial.what, trial.program, trial.kernel.text
                );
            }
        }
    }
}

/// Trials of operations: the first few of each kind and type.
fn operation_trials(each: usize) -> Vec<Trial> {
    let mut all = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for &generator in GENERATORS {
        for case in cases(generator).iter().filter(|case| case.work() <= 1500) {
            let dtype = case.operands.first().map(|array| array.dtype);
            let count = seen.entry(format!("{} {dtype:?}", case.op.name())).or_default();
            *count += 1;
            if *count <= each {
                all.extend(trials(case));
            }
        }
    }
    all
}

/// The kernels of operations, by name.
pub(crate) fn operation_kernels(each: usize) -> BTreeMap<String, Kernel> {
    operation_trials(each).into_iter().map(|trial| (trial.kernel.name.clone(), trial.kernel)).collect()
}

sweep! {
    kernels_of_every_operation_run_on_the_cpu: one of 32;
    kernels_of_the_small_models_run_on_the_cpu: one of 20;
    kernels_of_small_models_in_halves_run_on_the_cpu: one of 20;
}

fn kernels_of_every_operation_run_on_the_cpu(share: Share) {
    let all = operation_trials(2);
    assert!(all.len() > 300, "{}", all.len());
    compare(&share.among(all).collect::<Vec<_>>());
}

/// Those of every form of a hero, by name.
pub(crate) fn hero_kernels(gives: emit::Gives) -> BTreeMap<String, Kernel> {
    kernels_within(hero_cases().into_iter().chain(attention_gradients()), gives)
}

/// Those of cases, by name.
pub(crate) fn kernels_within(
    cases: impl IntoIterator<Item = Case>,
    gives: emit::Gives,
) -> BTreeMap<String, Kernel> {
    let programs = cases.into_iter().flat_map(|case| {
        let graph = case.graph();
        lowered(&graph, &group(&graph, &GroupOptions::default()))
    });
    let kernels = programs.filter_map(|program| emit::kernel_within(&program, gives).unwrap());
    kernels.map(|kernel| (kernel.name.clone(), kernel)).collect()
}

fn convolutions_straight_from_images_run_on_the_cpu() {
    let all: Vec<Trial> = from_images().iter().flat_map(trials).collect();
    let of = |form: &str| all.iter().filter(|one| one.kernel.text.contains(form)).count();
    assert!(of("convolution_patches<") >= 12 && of("convolution_windows<") == 6, "{}", all.len());
    compare(&all);
}

long! {
    every_form_of_a_hero_runs_on_the_cpu;
    convolutions_straight_from_images_run_on_the_cpu;
    products_of_odd_rows_run_on_the_cpu;
    scatters_run_on_the_cpu;
    gradients_of_attention_in_tiles_run_on_the_cpu;
    attention_by_groups_runs_on_the_cpu;
    gradients_of_attention_by_groups_run_on_the_cpu;
}

fn every_form_of_a_hero_runs_on_the_cpu() {
    let cases = hero_cases();
    let trials: Vec<Trial> = cases.iter().flat_map(trials).collect();
    assert!(trials.len() >= cases.len());
    for form in [
        "scatter_rows<",
        "LANES = 8;",
        "attention_rows<",
        "attention_mma<KERNEL_heads, true, 1>",
        "attention_mma<KERNEL_heads, false, 1>",
        "attention_mma<KERNEL_heads, true, 2>",
        "attention_shared_rows<KERNEL_heads, 1, 8>",
        "attention_shared_rows<KERNEL_heads, 4, 4>",
        "attention_shared_rows<KERNEL_heads, 16, 8>",
        "online<",
        "rounded<bf16>",
        "a block a row, its inside",
        "tiles of 64 x 64 through",
        " in parts:",
        " of parts:",
        "attention_gradient_rows<",
        "attention_gradient_keys<",
        "attention_gradient_rows_tiles<KERNEL_heads, 8, true>",
        "attention_gradient_rows_tiles<KERNEL_heads, 8, false>",
        "attention_gradient_rows_tiles<KERNEL_heads, 4, true>",
        "attention_gradient_keys_tiles<KERNEL_heads, 4, true>",
        "attention_gradient_keys_tiles<KERNEL_heads, 4, false>",
        "attention_gradient_rows_mma<KERNEL_heads, true>",
        "attention_gradient_rows_mma<KERNEL_heads, false>",
        "attention_gradient_keys_mma<KERNEL_heads, true>",
        "attention_gradient_keys_mma<KERNEL_heads, false>",
        ", 64, 64, 128, |, true, true, LOOSE, LOOSE>",
        ", 64, 64, 128, |, false, false, LOOSE, LOOSE>",
        ", 64, 64, 128, |SINGLE",
        ", 64, 64, 128, |, false, false, WIDE, WIDE>",
        ", 128, 128, 128, |, true, true, WIDE, WIDE>",
        ", 128, 128, 128, |, false, false, WIDE, WIDE>",
        "product_mma<",
        "convolution_patches<KERNEL_operands, bf16, 16, 16, 64, 4>",
        "convolution_patches<KERNEL_operands, f16, |, 8>",
        "convolution_patches<KERNEL_operands, bf16, |, 16>",
        "convolution_windows<KERNEL_operands, |, 32, 8>",
        "convolution_windows<KERNEL_operands, |, 64, 3>",
        "const T (&sums)[4]",
        "const T (&sums)[8]",
        "product_dots<",
        "product_dots_wide<KERNEL_operands, 3, bf16, true>",
        "product_dots_wide<KERNEL_operands, 5, bf16, false>",
        "product_columns_wide<",
        ", bf16, 4, 256>",
        "product_columns_wide<KERNEL_operands, 1, f16, 2, 1024>",
        "product_columns_wide<KERNEL_operands, 3, float, 2, 512>",
        "product_columns_wide<KERNEL_operands, 8, double, 2, 256>",
        "PARTS = 16,",
        "attention_tiles<KERNEL_heads, 8, 8, 8, 1, true>",
        "attention_tiles<KERNEL_heads, 16, 4, 4, 1, false>",
        "attention_tiles<KERNEL_heads, 16, 4, 2, 2, true>",
        " weights channels last",
        "product_columns<",
        "product_tiled<",
        "product_tiled_large<KERNEL_operands, true, false>",
        "product_tiled_large<KERNEL_operands, false, true>",
        "block_fold<",
        "column_fold<",
    ] {
        // Where a bar stands, how many stages there are follows from how much is summed.
        let has = |trial: &Trial| {
            let form = form.replace("KERNEL", &trial.kernel.name);
            trial.kernel.text.lines().any(|line| form.split('|').all(|piece| line.contains(piece)))
        };
        assert!(trials.iter().any(has), "no {form}");
    }
    compare(&trials);
}

#[test]
fn sums_of_nothing_run_on_the_cpu() {
    let trials: Vec<Trial> = sums_of_nothing().iter().flat_map(trials).collect();
    assert_eq!(trials.len(), 4);
    compare(&trials);
}

/// Products of halves whose rows begin anywhere, with neighbours that end in the middle of 8 and infinities behind them.
fn products_of_odd_rows_run_on_the_cpu() {
    let mut all = Vec::new();
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        for ([m, n, k], dtype) in
            [([11, 77, 33], DType::Bf16), ([70, 9, 1], DType::F16), ([65, 67, 71], DType::Bf16)]
        {
            let x: &[usize] = if left { &[k, m] } else { &[m, k] };
            let y: &[usize] = if right { &[n, k] } else { &[k, n] };
            let mut case = sized(product(left, right), &[(dtype, x), (dtype, y)]);
            // What belongs to one row alone reaches no other one.
            let last = if left { m - 1 } else { (m - 1) * k };
            case.operands[0].data[last] = f64::INFINITY;
            all.extend(trials(&case));
        }
    }
    // Enough tiles for large ones.
    let operands: [(DType, &[usize]); 2] = [(DType::Bf16, &[5, 129, 3]), (DType::Bf16, &[5, 3, 641])];
    all.extend(trials(&sized(product(false, false), &operands)));
    let text = |trial: &Trial| trial.kernel.text.clone();
    assert!(all.iter().all(|trial| text(trial).contains("LOOSE")));
    assert!(all.iter().any(|trial| text(trial).contains(", 128, 64, 256, 2, true, false, LOOSE, LOOSE>")));
    compare(&all);
}

/// In stages where there are many steps: digits, parts of rows that have many, the rows.
fn scatters_run_on_the_cpu() {
    let all: Vec<Trial> = scatters().iter().flat_map(trials).collect();
    let count = |form: &str| all.iter().filter(|one| one.kernel.text.contains(form)).count();
    assert!(count("scatter_parts(") >= 6 && count("scatter_ordered<") >= 6 && count("scatter_rows<") >= 6);
    // Each digit is a kernel: of 70,000 rows three, of 300 two.
    assert!(count("SHIFT = 0,") >= 12 && count("SHIFT = 5,") >= 2 && count("SHIFT = 12,") == 2);
    assert_eq!(count("count_digits<"), count("order_steps<"));
    compare(&all);
}

fn gradients_of_attention_in_tiles_run_on_the_cpu() {
    let all = attention_gradients();
    let all = all.iter().flat_map(trials);
    let tiled: Vec<Trial> = all.filter(|one| one.kernel.text.contains("_tiles<")).collect();
    assert!(tiled.len() >= 6, "{}", tiled.len());
    compare(&tiled);
}

/// Of sm_90 alone: products by groups of threads, of so many cases each form.
fn attention_by_groups_runs(forms: &[&str], is_gradient: bool) {
    let gives = emit::Gives::of("sm_90");
    let cases = attention_by_groups().into_iter();
    let cases = cases.filter(|case| matches!(case.op, Op::AttentionGradient(_)) == is_gradient);
    let all: Vec<Trial> = cases.flat_map(|case| trials_within(&case, gives)).collect();
    for form in forms.iter().chain(&["PLAIN = true", "PLAIN = false"]) {
        assert!(all.iter().filter(|one| one.kernel.text.contains(form)).count() >= 3, "{form}");
    }
    assert!(all.iter().all(|one| one.kernel.text.contains("_groups<")));
    assert!(all.iter().all(|one| one.kernel.architecture("sm_90") == "sm_90a"));
    compare(&all);
}

fn attention_by_groups_runs_on_the_cpu() {
    attention_by_groups_runs(&["attention_groups<"], false);
}

fn gradients_of_attention_by_groups_run_on_the_cpu() {
    let forms = ["attention_gradient_rows_groups<", "attention_gradient_keys_groups<"];
    attention_by_groups_runs(&forms, true);
}

/// What sm_75, sm_70 and sm_86 give: tiles that need more give way to what needs none, halves on tensor cores where these do
/// not take them.
#[test]
fn blocks_take_no_more_than_a_gpu_gives() {
    let mut gave_way = [false; 2];
    for case in hero_cases().into_iter().chain(attention_gradients()) {
        let graph = case.graph();
        for program in lowered(&graph, &group(&graph, &GroupOptions::default())) {
            let Some(kernel) = emit::kernel(&program).unwrap() else { continue };
            assert!(kernel.launch.shared <= 99 << 10, "{}", kernel.text);
            for (given, gave_way) in ["sm_75", "sm_70"].map(emit::Gives::of).into_iter().zip(&mut gave_way) {
                let own = emit::kernel_within(&program, given).unwrap().unwrap();
                let is_tiled = kernel.text.contains("_tiles<") || kernel.text.contains("_mma<");
                assert!(!is_tiled || own.launch.shared <= given.shared, "{}", own.text);
                assert!(!own.text.contains("_mma<"), "{}", own.text);
                *gave_way |= own.text != kernel.text;
            }
        }
    }
    assert_eq!(gave_way, [true; 2]);
}

/// The rows of a table, and the gradient's sums of them.
#[test]
fn an_embedding_is_read_and_updated_sixteen_bytes_at_a_time() {
    let sizes: [(DType, &[usize]); 2] = [(DType::Bf16, &[50, 64]), (DType::I64, &[3, 20])];
    let gather = &trials(&sized(Op::Gather { axis: 0 }, &sizes))[0].kernel.text;
    assert_eq!(gather.matches("vec<8, bf16>").count(), 3, "{gather}");
    let sizes: [(DType, &[usize]); 3] =
        [(DType::Bf16, &[50, 64]), (DType::I64, &[60, 1]), (DType::Bf16, &[60, 64])];
    let scatter = &trials(&sized(Op::ScatterNd { kind: ScatterKind::Add }, &sizes))[0].kernel.text;
    assert!(scatter.contains("= *(const vec<8, bf16>*)(a"), "{scatter}");
}

/// Evaluations of an expression or a product that a trial takes, about.
const WORK: i64 = 30_000;

/// Points at which the evaluation of a program takes about so much; none where that is all of them.
pub(crate) fn some_points(program: &Program, work: i64) -> Option<Vec<i64>> {
    let (exprs, points) = (&program.exprs, program::points(program).max(1));
    let vars = (0..exprs.vars() as u32).map(|var| exprs.extent(program::Var(var)).max(1));
    let each = vars.fold(1, i64::saturating_mul) / points;
    let count = (work / each.max(1)).max(12);
    // The first, the last, and one in each part of what lies between.
    let part = |i: i64| (i128::from(points) * i128::from(i) / i128::from(count)) as i64;
    let inside = |i: i64| part(i) + (i.wrapping_mul(0x9e37_79b9) >> 7).rem_euclid(part(i + 1) - part(i));
    (points > count).then(|| [0, points - 1].into_iter().chain((0..count).map(inside)).collect())
}

fn kernels_of_the_small_models_run_on_the_cpu(share: Share) {
    let models = SMALL.iter().map(|name| (*name, model_programs(&format!("corpus/{name}"))));
    run_all(models.chain([("a training step", step_programs())]), 350, share);
}

fn kernels_of_small_models_in_halves_run_on_the_cpu(share: Share) {
    let models = SMALL_HALVES.iter();
    run_all(models.map(|(name, half)| (*name, half_programs(&format!("corpus/{name}"), *half))), 90, share);
}

/// Kernels that are compiled and run at once.
const AT_ONCE: usize = 2 * TOGETHER;

/// Compares kernels of programs, by their model's name, with the evaluation in f64: of large programs at some
/// points. All programs have at least as many as `least`.
fn run_all<'a>(models: impl IntoIterator<Item = (&'a str, Vec<Program>)>, least: usize, share: Share) {
    let mut all: BTreeMap<String, (&str, Program)> = BTreeMap::new();
    for (name, programs) in models {
        for program in programs {
            let Some(kernel) = emit::kernel(&program).unwrap() else { continue };
            all.entry(kernel.name).or_insert((name, program));
        }
    }
    let (count, mut large) = (all.len(), 0);
    let mut all = share.among(all.into_values());
    loop {
        let trials: Vec<Trial> =
            all.by_ref().take(AT_ONCE).filter_map(|(name, program)| made_up_trial(program, name)).collect();
        if trials.is_empty() {
            break;
        }
        large += trials.iter().filter(|trial| trial.some.is_some()).count();
        compare(&trials);
    }
    println!("{count} kernels of small models, {large} of them compared at some points");
    assert!(count >= least || shared::dir().is_none(), "{count} kernels");
}

/// A program on made-up operands.
fn made_up_trial(program: Program, what: &str) -> Option<Trial> {
    let args = program.args.iter().enumerate();
    let before: Vec<_> =
        args.map(|(position, arg)| made_up(arg.dtype, arg.elements, position as u64 * 77)).collect();
    let mut after = before.clone();
    let some = match some_points(&program, WORK) {
        Some(points) => program::evaluate_at(&program, &mut after, &points).map(Some),
        None => program::evaluate(&program, &mut after).map(|()| None),
    };
    let some = some.unwrap_or_else(|error| panic!("{what}: {error}\n{program}"));
    let kernel = emit::kernel(&program).unwrap()?;
    Some(Trial { what: what.to_owned(), program, kernel, before, after, some })
}

/// A product of halves, whose next tiles are copied while it multiplies.
#[test]
fn a_wait_for_copies_that_is_missing_shows() {
    let half = DType::Bf16;
    let trials = trials(&sized(product(false, true), &[(half, &[9, 64]), (half, &[16, 64])]));
    let kernel = &trials[0].kernel;
    assert!(kernel.text.contains(", WIDE, WIDE>"), "{}", kernel.text);
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.cpp");
    // Stages of a product wait for all copies but those of the next ones.
    let text = ["copies_wait<0>();", "copies_wait<STAGES - 2>();"]
        .iter()
        .fold(text(&[kernel]), |text, wait| text.replace(wait, ""));
    std::fs::write(&file, text).unwrap();
    build(compiler, &file, &file.with_extension(""), &[]);
    let programs = vec![file.with_extension("")];
    let library = Library { folder, programs, known: BTreeMap::from([(kernel.name.clone(), (0, 0))]) };
    let args = trials[0].program.args.iter().zip(&trials[0].before);
    let args: Vec<Vec<u8>> = args.map(|(arg, array)| bytes(arg.dtype, array)).collect();
    let told = library.answer(&[Call { kernel, args }], 0, &[0], false);
    assert!(String::from_utf8_lossy(&told.stderr).contains("copies that nobody waits for"), "{told:?}");
}

#[test]
fn a_barrier_that_is_missing_shows() {
    let data = (0..40 * 50).map(f64::from).collect();
    let case = Case {
        op: Op::Transpose { perm: vec![1, 0] },
        operands: vec![Array::new(DType::F32, &[40, 50], data)],
        results: vec![],
    };
    let mut trials = trials(&case);
    let kernel = &mut trials[0].kernel;
    assert!(kernel.text.contains("__syncthreads();"), "{}", kernel.text);
    kernel.text = kernel.text.replace("__syncthreads();", "");
    let kernels = BTreeMap::from([(kernel.name.clone(), kernel.clone())]);
    let Some(library) = Library::compile(&kernels) else { return };
    let args = trials[0].program.args.iter().zip(&trials[0].before);
    let args: Vec<Vec<u8>> = args.map(|(arg, array)| bytes(arg.dtype, array)).collect();
    let call = [Call { kernel: &trials[0].kernel, args }];
    for reversed in [false, true] {
        let out = library.answer(&call, 0, &[0], reversed);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("with no barrier between"), "{said}");
    }
}
