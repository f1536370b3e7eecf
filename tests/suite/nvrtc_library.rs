//! Which library is taken for NVRTC: none, the one that `PARTITION_NVRTC` names, another on the loader's path. Each
//! case is a process of its own, because a library is loaded once. Libraries stand in for NVRTC that know their
//! version and "compile" to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use partition::unstable::emit::cache::{Cache, compile_all};
use partition::unstable::emit::nvrtc::{VARIABLE, nvrtc};
use partition::unstable::emit::{Kernel, kernel};

use crate::cuda::compiler;
use crate::kernels::step_programs;

/// Where the child of a test keeps compiled kernels; a test that finds it empty is no child.
const CHILD: &str = "PARTITION_TEST_NVRTC_CHILD";

/// The functions that are called of NVRTC.
const FUNCTIONS: &str = r#"
#include <cstring>
extern "C" {
int nvrtcVersion(int* major, int* minor) { *major = MAJOR; *minor = MINOR; return 0; }
#ifndef ONLY_VERSION
static char code[] = {MAJOR, MINOR};
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = code;
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcGetProgramLogSize(void*, size_t* size) { *size = 1; return 0; }
int nvrtcGetProgramLog(void*, char* log) { *log = 0; return 0; }
int nvrtcGetCUBINSize(void*, size_t* size) { *size = sizeof code; return 0; }
int nvrtcGetCUBIN(void*, char* to) { memcpy(to, code, sizeof code); return 0; }
const char* nvrtcGetErrorString(int) { return "an error"; }
#endif
}
"#;

/// A library of this version, called `name` by the loader; none without a C++ compiler.
fn library(folder: &Path, name: &str, version: (i32, i32), flags: &[&str]) -> Option<PathBuf> {
    let compiler = compiler()?;
    std::fs::create_dir_all(folder).unwrap();
    let source = folder.join("nvrtc.cpp");
    std::fs::write(&source, FUNCTIONS).unwrap();
    let path = folder.join(name);
    let done = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(&path)
        .args([
            format!("-Wl,-soname,{name}"),
            format!("-DMAJOR={}", version.0),
            format!("-DMINOR={}", version.1),
        ])
        .args(flags)
        .arg(&source)
        .status()
        .unwrap();
    assert!(done.success());
    Some(path)
}

/// What is loaded in a process of its own, in words, and what it compiles to where that is asked for.
struct Process<'p> {
    named: Option<&'p Path>,
    search: Option<&'p Path>,
    cache: &'p Path,
}

impl Process<'_> {
    fn says(&self) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "nvrtc_library::what_is_loaded", "--nocapture", "--test-threads=1"]);
        command.env_remove(VARIABLE).env_remove("LD_LIBRARY_PATH").env(CHILD, self.cache);
        self.named.map(|path| command.env(VARIABLE, path));
        self.search.map(|path| command.env("LD_LIBRARY_PATH", path));
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{text}");
        text.trim().to_owned()
    }
}

/// The child of the tests below.
#[test]
fn what_is_loaded() {
    let Some(cache) = std::env::var_os(CHILD) else { return };
    let text = match nvrtc() {
        Err(error) => format!("error {error}"),
        Ok(compiler) => {
            let cache = Cache::open(PathBuf::from(cache)).unwrap();
            let kernel = one_kernel();
            let code = compile_all(compiler, Some(&cache), &[&kernel], "sm_90", 1, &|_, _| ()).unwrap();
            let (major, minor) = compiler.version();
            let code = if code[0].len() == 2 { format!("{:?}", code[0]) } else { "machine code".to_owned() };
            format!("NVRTC {major}.{minor} of {} makes {code}", compiler.path().unwrap().display())
        }
    };
    // Straight to the pipe: the test harness has its own words on standard output.
    std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
}

fn one_kernel() -> Kernel {
    step_programs().iter().find_map(|program| kernel(program).unwrap()).unwrap()
}

#[test]
fn a_missing_library_is_an_error_that_says_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, cache) = (folder.path().join("empty"), folder.path().join("cache"));
    std::fs::create_dir(&empty).unwrap();
    let text = folder.path().join("libnvrtc.so.13");
    std::fs::write(&text, "no library").unwrap();
    let says = |named: Option<&Path>| Process { named, search: None, cache: &cache }.says();

    let found = says(Some(&empty));
    assert!(found.starts_with("error NVRTC: no libnvrtc.so in "), "{found}");
    assert!(found.contains(&empty.display().to_string()) && found.contains("pip install"), "{found}");
    for path in [&text, &folder.path().join("absent.so")] {
        let found = says(Some(path));
        assert!(found.starts_with("error NVRTC: ") && found.contains(&path.display().to_string()), "{found}");
    }
    // This system may have one.
    let found = says(None);
    let absent = "error NVRTC: its library, libnvrtc, was not found (pip install nvidia-cuda-nvrtc, and PARTITION_NVRTC=";
    assert!(found.starts_with("NVRTC ") || found.starts_with(absent), "{found}");

    let Some(other) = library(&folder.path().join("other"), "libnvrtc.so.13", (13, 7), &["-DONLY_VERSION"])
    else {
        return;
    };
    let found = says(Some(&other));
    assert!(found.contains(&format!("{} has no function nvrtcCreateProgram", other.display())), "{found}");
}

#[test]
fn the_library_in_the_folder_that_is_named_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let Some(named) = library(&folder.path().join("named"), "libnvrtc.so.13", (13, 7), &[]) else { return };
    // The loader's path has a link to it, whatever else this system has.
    let search = folder.path().join("search");
    std::fs::create_dir(&search).unwrap();
    std::os::unix::fs::symlink(&named, search.join("libnvrtc.so")).unwrap();
    let cache = folder.path().join("cache");
    for path in [named.parent().unwrap(), &named] {
        let found = Process { named: Some(path), search: Some(&search), cache: &cache }.says();
        assert_eq!(found, format!("NVRTC 13.7 of {} makes [13, 7]", named.display()));
    }
}

#[test]
fn another_version_on_the_path_is_told_from_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let Some(named) = library(&at("named"), "libnvrtc.so.13", (13, 7), &[]) else { return };
    let unversioned = library(&at("unversioned"), "libnvrtc.so", (12, 9), &[]).unwrap();
    let same_name = library(&at("same_name"), "libnvrtc.so.13", (13, 8), &[]).unwrap();
    let cache = at("cache");
    let says = |named: Option<&Path>, search: &Path| {
        Process { named, search: search.parent(), cache: &cache }.says()
    };

    // cudarc asks the loader for `libnvrtc.so` first, and gets the one on its path.
    let found = says(Some(&named), &unversioned);
    let (taken, wanted) = (unversioned.display(), named.display());
    let told = format!(
        "error NVRTC: {taken} (NVRTC 12.9) was loaded in place of {wanted} (NVRTC 13.7), which PARTITION_NVRTC names ("
    );
    assert!(found.starts_with(&told), "{found}");
    assert!(found.contains("unset PARTITION_NVRTC") && found.contains("LD_LIBRARY_PATH"), "{found}");
    let found = says(None, &unversioned);
    assert_eq!(found, format!("NVRTC 12.9 of {taken} makes [12, 9]"));

    // A name that is loaded already is not looked for. Where this system has a libnvrtc.so, that one comes first.
    let found = says(Some(&named), &same_name);
    assert!(
        found == format!("NVRTC 13.7 of {wanted} makes [13, 7]") || found.contains("in place of"),
        "{found}"
    );
}

#[test]
fn versions_keep_their_kernels_each() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    for (count, version) in [(13, 7), (13, 8), (14, 7), (13, 7)].into_iter().enumerate() {
        let place = folder.path().join(format!("library{count}"));
        let Some(path) = library(&place, "libnvrtc.so", version, &[]) else { return };
        let found = Process { named: None, search: path.parent(), cache: &cache }.says();
        assert!(found.ends_with(&format!("makes [{}, {}]", version.0, version.1)), "{found}");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), (count + 1).min(3));
    }
}
