//! Generated kernels compiled by NVRTC to machine code, without a GPU. Skipped where its library is not
//! found, unless `PARTITION_REQUIRE_NVRTC=1`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use partition::unstable::emit::cache::{Cache, compile_all};
use partition::unstable::emit::nvrtc::{Nvrtc, nvrtc};
use partition::unstable::emit::{self, Kernel, module};
use partition::unstable::ir::DType;
use partition::unstable::kernel::program::Program;

use crate::corpus::{REAL, REAL_HALVES, SMALL, SMALL_HALVES};
use crate::cuda::{hero_kernels, kernels_within, operation_kernels};
use crate::cuda_forms::{attention_by_groups, products_by_groups};
use crate::cuda_products::skinny_kernels;
use crate::kernels::{half_programs, model_programs, step_programs};
use crate::shared;
use crate::sweep::Share;

fn compiler() -> Option<&'static Nvrtc> {
    match nvrtc() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            let required = std::env::var_os("PARTITION_REQUIRE_NVRTC").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

fn is_code(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Kernels in one source: the prelude is read once for all.
const TOGETHER: usize = 12;

/// Compiles kernels for each of the architectures, several in one source, on all cores.
pub(crate) fn compile_for(kernels: &BTreeMap<String, Kernel>, architectures: &[&str], share: Share) {
    let sources = sources(kernels);
    let jobs = sources.iter().flat_map(|source| architectures.iter().map(move |&one| (source, one)));
    compile(share.among(jobs).collect());
}

/// Compiles kernels, each source for one of two architectures: half of the work, where others of the same forms
/// are compiled for both.
fn compile_in_turns(kernels: &BTreeMap<String, Kernel>, share: Share) {
    let sources = sources(kernels);
    compile(share.among(sources.iter().zip(["sm_80", "sm_90"].into_iter().cycle())).collect());
}

fn sources(kernels: &BTreeMap<String, Kernel>) -> Vec<String> {
    kernels.values().collect::<Vec<&Kernel>>().chunks(TOGETHER).map(module).collect()
}

/// Sources with an architecture each.
fn compile(jobs: Vec<(&String, &str)>) {
    let Some(compiler) = compiler() else { return };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while let Some((source, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let code = compiler.cubin(source, "module", architecture);
                    assert!(is_code(&code.unwrap_or_else(|error| panic!("{error}"))));
                }
            });
        }
    });
    println!("{} sources compiled", jobs.len());
}

/// The kernels of programs, by name.
fn kernels_of(programs: Vec<Program>) -> BTreeMap<String, Kernel> {
    let kernels = programs.into_iter().filter_map(|program| emit::kernel(&program).unwrap());
    kernels.map(|kernel| (kernel.name.clone(), kernel)).collect()
}

sweep! {
    kernels_of_every_operation_compile: one of 30;
    kernels_of_the_small_models_compile: one of 30;
    kernels_of_the_real_models_compile: one of 60;
}

fn kernels_of_every_operation_compile(share: Share) {
    let kernels = operation_kernels(1);
    assert!(kernels.len() > 150, "{}", kernels.len());
    compile_in_turns(&kernels, share);
}

long! {
    kernels_of_every_form_compile;
    kernels_for_older_gpus_compile;
    compiled_kernels_are_kept;
}

fn kernels_of_every_form_compile() {
    let mut kernels = hero_kernels(emit::Gives::SM_80);
    kernels.extend(skinny_kernels().into_iter().map(|kernel| (kernel.name.clone(), kernel)));
    assert!(kernels.len() > 100, "{}", kernels.len());
    compile_for(&kernels, &["sm_80", "sm_90"], Share::ALL);
    // What Hopper alone has.
    let hopper = emit::Gives::of("sm_90");
    let products = kernels_within(products_by_groups(), hopper);
    assert!(products.values().any(|kernel| kernel.text.contains("product_groups<")));
    let mut own = kernels_within(attention_by_groups(), hopper);
    own.extend(products);
    own.retain(|_, kernel| kernel.architecture("sm_90") == "sm_90a");
    assert!(own.len() >= 8, "{}", own.len());
    compile_for(&own, &["sm_90a"], Share::ALL);
}

/// Of the small models, whose kernels other tests run, and of a training step.
fn kernels_of_the_small_models_compile(share: Share) {
    let compile = |kernels: &_| compile_in_turns(kernels, share);
    compile_corpus(SMALL, SMALL_HALVES, step_programs(), compile);
}

/// Of all others.
fn kernels_of_the_real_models_compile(share: Share) {
    let compile = |kernels: &_| compile_for(kernels, &["sm_80", "sm_90"], share);
    compile_corpus(REAL, REAL_HALVES, vec![], compile);
}

/// Every kernel of these models, each text once.
fn compile_corpus(
    models: &[&str],
    halves: &[(&str, DType)],
    others: Vec<Program>,
    compile: impl Fn(&BTreeMap<String, Kernel>),
) {
    if compiler().is_none() {
        return;
    }
    let began = Instant::now();
    let mut kernels = kernels_of(others);
    for name in models {
        kernels.extend(kernels_of(model_programs(&format!("corpus/{name}"))));
    }
    for (name, half) in halves {
        kernels.extend(kernels_of(half_programs(&format!("corpus/{name}"), *half)));
    }
    println!("{} models, printed after {:?}", models.len(), began.elapsed());
    compile(&kernels);
    println!("compiled after {:?}", began.elapsed());
    assert!(kernels.len() > 10 * models.len() || shared::dir().is_none(), "{} kernels", kernels.len());
}

/// Halves, rows and tiles for GPUs before sm_80, which have neither the instructions of later ones nor tensor cores that take
/// pieces of sixteen.
fn kernels_for_older_gpus_compile() {
    if compiler().is_none() {
        return;
    }
    let kernels = hero_kernels(emit::Gives::of("sm_75"));
    assert!(kernels.len() > 100, "{}", kernels.len());
    compile_for(&kernels, &["sm_75"], Share::OneOf(4));
}

#[test]
fn the_compiler_says_what_is_wrong() {
    let Some(compiler) = compiler() else { return };
    let error = compiler.cubin("__global__ void k() { x = 1; }", "k", "sm_80").unwrap_err().to_string();
    assert!(error.contains("identifier \"x\" is undefined"), "{error}");
}

fn compiled_kernels_are_kept() {
    let Some(compiler) = compiler() else { return };
    let kernels = operation_kernels(1);
    let few: Vec<&Kernel> = kernels.values().take(6).collect();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let told = AtomicUsize::new(0);
    let all = |architecture: &str| {
        let progress = |_: usize, total: usize| {
            assert_eq!(total, few.len());
            told.fetch_add(1, Ordering::Relaxed);
        };
        compile_all(compiler, Some(&cache), &few, architecture, 4, &progress).unwrap()
    };
    let first = all("sm_80");
    assert_eq!(told.load(Ordering::Relaxed), few.len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), few.len());
    let began = std::time::Instant::now();
    assert_eq!(all("sm_80"), first);
    println!("from the cache in {:?}", began.elapsed());
    assert!(all("sm_90") != first);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2 * few.len());
}
