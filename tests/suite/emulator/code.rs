//! Kernels in CUDA C as libraries for the CPU: a C++ compiler and the shim take NVRTC's place.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use libloading::Library;
use partition::unstable::emit::{self, Kernel};
use partition::unstable::run::cuda::{Launch, Toolchain};

use crate::cuda::{SHIM, compiler, waits};

/// Kernels of one library.
const TOGETHER: usize = 40;

type Entry = unsafe extern "C" fn(*const c_char, u32, u32, u32, u32, u32, *mut *mut c_void) -> i32;

/// Compiles each kernel once, whatever programs of this process ask for it.
pub(crate) struct CpuToolchain {
    folder: tempfile::TempDir,
    /// By text: the library.
    known: Mutex<BTreeMap<String, PathBuf>>,
}

/// What an image holds: the library's path, and whether the kernel's threads wait for one another.
const ALONE: &str = "alone ";

impl CpuToolchain {
    /// The one of this process; none where there is no C++ compiler.
    pub(crate) fn shared() -> Option<Arc<Self>> {
        static SHARED: OnceLock<Option<Arc<CpuToolchain>>> = OnceLock::new();
        let make = || {
            compiler()?;
            Some(Arc::new(Self { folder: tempfile::tempdir().unwrap(), known: Mutex::default() }))
        };
        SHARED.get_or_init(make).clone()
    }
}

impl Toolchain for CpuToolchain {
    fn compile(
        &self,
        kernels: &[&Kernel],
        architecture: &str,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> partition::Result<Vec<Vec<u8>>> {
        assert_eq!(architecture, "sm_90");
        let mut known = self.known.lock().unwrap();
        let new: Vec<&&Kernel> = kernels.iter().filter(|kernel| !known.contains_key(&kernel.text)).collect();
        for chunk in new.chunks(TOGETHER) {
            let path = self.folder.path().join(format!("kernels{}.cpp", known.len()));
            std::fs::write(&path, text(chunk)).unwrap();
            compile(&path);
            for kernel in chunk {
                known.insert(kernel.text.clone(), path.with_extension("so"));
            }
        }
        progress(kernels.len(), kernels.len());
        let image = |kernel: &&Kernel| {
            let alone = if waits(kernel) { "" } else { ALONE };
            format!("{alone}{}", known[&kernel.text].display()).into_bytes()
        };
        Ok(kernels.iter().map(image).collect())
    }
}

fn text(kernels: &[&&Kernel]) -> String {
    let kernels: Vec<&Kernel> = kernels.iter().map(|kernel| **kernel).collect();
    let mut text = format!("{SHIM}\n{}", emit::module(&kernels));
    text.push_str("static const shim::Entry entries[] = {\n");
    for kernel in kernels {
        let name = &kernel.name;
        writeln!(text, "  {{\"{name}\", [](void** args) {{ shim::call(&{name}, args); }}}},").unwrap();
    }
    text.push_str(
        "};
extern \"C\" __attribute__((visibility(\"default\")))
int emulated(const char* name, unsigned grid, unsigned x, unsigned y, unsigned shared, unsigned flags, void** args) {
  for (const shim::Entry& entry : entries)
    if (strcmp(entry.name, name) == 0) {
      shim::launch(entry.name, grid, Index3{x, y, 1}, shared, flags & 1, flags & 2, [&] { entry.call(args); });
      return 0;
    }
  return 1;
}
",
    );
    text
}

fn compile(file: &Path) {
    let out = Command::new(compiler().unwrap())
        .args(["-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"])
        .args(["-fno-strict-aliasing", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-o"])
        .arg(file.with_extension("so"))
        .arg(file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}", &errors[..errors.len().min(4000)]);
}

/// Libraries loaded for one driver: each has the state of one machine, which no other driver may share.
#[derive(Default)]
pub(super) struct Libraries {
    folder: Option<tempfile::TempDir>,
    loaded: BTreeMap<String, Arc<Library>>,
}

/// A loaded kernel's library.
pub(super) struct Code {
    library: Arc<Library>,
    alone: bool,
}

impl Libraries {
    /// None where the image is none.
    pub(super) fn load(&mut self, image: &[u8]) -> Option<Code> {
        let text = std::str::from_utf8(image).ok()?;
        let (path, alone) = match text.strip_prefix(ALONE) {
            Some(path) => (path, true),
            None => (text, false),
        };
        if let Some(library) = self.loaded.get(path) {
            return Some(Code { library: Arc::clone(library), alone });
        }
        let folder = self.folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let own = folder.path().join(format!("own{}.so", self.loaded.len()));
        std::fs::copy(path, &own).ok()?;
        // SAFETY: the library was made by `compile`; loading it runs nothing but constructors.
        let library = Arc::new(unsafe { Library::new(&own) }.ok()?);
        self.loaded.insert(path.to_owned(), Arc::clone(&library));
        Some(Code { library, alone })
    }
}

impl Code {
    /// Runs a kernel; false where there is none of that name.
    ///
    /// # Safety
    ///
    /// The addresses are of memory that the kernel may use as it does.
    pub(super) unsafe fn run(&self, name: &str, launch: Launch, args: &[u64], reversed: bool) -> bool {
        let name = CString::new(name).unwrap();
        let mut args: Vec<*mut c_void> = args.iter().map(|&arg| arg as *mut c_void).collect();
        let flags = u32::from(reversed) | if self.alone { 2 } else { 0 };
        let [x, y] = launch.block;
        // SAFETY: the symbol has this type in `text`; for the rest as the caller promises.
        unsafe {
            let entry = self.library.get::<Entry>(b"emulated").unwrap();
            entry(name.as_ptr(), launch.grid, x, y, launch.shared, flags, args.as_mut_ptr()) == 0
        }
    }
}
