//! Kernels in CUDA C as libraries for the CPU: a C++ compiler and the shim take NVRTC's place.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use libloading::Library;
use partition::unstable::emit::{self, Kernel};
use partition::unstable::run::cuda::{Launch, Toolchain};

use crate::cuda::{SHIM, build, compiler, waits};

/// Kernels of one library.
const TOGETHER: usize = 40;

type Entry = unsafe extern "C" fn(*const c_char, u32, u32, u32, u32, u32, *mut *mut c_void) -> *const c_char;

/// Compiles each kernel once, whatever programs of this process ask for it.
pub(crate) struct CpuToolchain {
    folder: tempfile::TempDir,
    /// By text: the library.
    known: Mutex<BTreeMap<String, PathBuf>>,
    /// Files of C++ so far.
    files: AtomicUsize,
    /// What kernels' images say where it is not what their text does.
    limits: Option<Limits>,
}

/// What bounds a kernel's launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most threads of a block, as the kernel was compiled.
    pub(crate) threads: u32,
    /// Registers of a thread; zero where nobody knows.
    pub(crate) registers: u32,
    /// Static shared memory, in bytes.
    pub(crate) shared: u32,
}

/// What an image says: how the kernel may be launched, whether its threads wait for one another, the library's path.
fn image(kernel: &Kernel, limits: Limits, path: &Path) -> Vec<u8> {
    let Limits { threads, registers, shared } = limits;
    let alone = u32::from(!waits(kernel));
    format!("{threads} {registers} {shared} {alone} {}", path.display()).into_bytes()
}

/// The threads that a kernel says it has at most.
fn bounds(kernel: &Kernel) -> u32 {
    let threads =
        kernel.text.split("__launch_bounds__(").nth(1).and_then(|rest| rest.split([')', ',']).next());
    threads.and_then(|text| text.parse().ok()).unwrap_or(1024)
}

impl CpuToolchain {
    /// The one of this process; none where there is no C++ compiler.
    pub(crate) fn shared() -> Option<Arc<Self>> {
        static SHARED: OnceLock<Option<Arc<CpuToolchain>>> = OnceLock::new();
        SHARED.get_or_init(|| Self::with(None)).clone()
    }

    /// One whose images say this of kernels' limits.
    pub(crate) fn limited(limits: Limits) -> Option<Arc<Self>> {
        Self::with(Some(limits))
    }

    fn with(limits: Option<Limits>) -> Option<Arc<Self>> {
        compiler()?;
        Some(Arc::new({
            let folder = tempfile::tempdir().unwrap();
            Self { folder, known: Mutex::default(), files: AtomicUsize::new(0), limits }
        }))
    }
}

impl Toolchain for CpuToolchain {
    fn compile(
        &self,
        kernels: &[&Kernel],
        architecture: &str,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> partition::Result<Vec<Vec<u8>>> {
        assert!(architecture.starts_with("sm_"), "{architecture}");
        // Nobody waits for what others compile; two that need the same kernel at once compile it twice.
        let new: Vec<&&Kernel> = {
            let known = self.known.lock().unwrap();
            kernels.iter().filter(|kernel| !known.contains_key(&kernel.text)).collect()
        };
        for chunk in new.chunks(TOGETHER) {
            let number = self.files.fetch_add(1, Ordering::Relaxed);
            let path = self.folder.path().join(format!("kernels{number}.cpp"));
            std::fs::write(&path, text(chunk)).unwrap();
            build(compiler().unwrap(), &path, &path.with_extension("so"), &["-shared"]);
            let library = path.with_extension("so");
            let made = chunk.iter().map(|kernel| (kernel.text.clone(), library.clone()));
            self.known.lock().unwrap().extend(made);
        }
        progress(kernels.len(), kernels.len());
        let known = self.known.lock().unwrap();
        let made = |kernel: &&Kernel| {
            let limits = Limits { threads: bounds(kernel), registers: 0, shared: 0 };
            image(kernel, self.limits.unwrap_or(limits), &known[&kernel.text])
        };
        Ok(kernels.iter().map(made).collect())
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
const char* emulated(const char* name, unsigned grid, unsigned x, unsigned y, unsigned shared, unsigned flags, void** args) {
  shim::machine.is_guest = true;
  shim::machine.is_early = flags & 4;
  for (const shim::Entry& entry : entries)
    if (strcmp(entry.name, name) == 0) {
      shim::launch(entry.name, grid, Index3{x, y, 1}, shared, flags & 1, flags & 2, [&] { entry.call(args); });
      return shim::machine.fault.empty() ? nullptr : shim::machine.fault.c_str();
    }
  return \"no such kernel\";
}
",
    );
    text
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
    limits: Limits,
    alone: bool,
}

impl Libraries {
    /// None where the image is none.
    pub(super) fn load(&mut self, image: &[u8]) -> Option<Code> {
        let text = std::str::from_utf8(image).ok()?;
        let mut words = text.splitn(5, ' ');
        let mut number = || words.next()?.parse::<u32>().ok();
        let limits = Limits { threads: number()?, registers: number()?, shared: number()? };
        let alone = number()? == 1;
        let path = words.next()?;
        if let Some(library) = self.loaded.get(path) {
            return Some(Code { library: Arc::clone(library), limits, alone });
        }
        let folder = self.folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let own = folder.path().join(format!("own{}.so", self.loaded.len()));
        std::fs::copy(path, &own).ok()?;
        // SAFETY: the library was made by `build`; loading it runs nothing but constructors.
        let library = Arc::new(unsafe { Library::new(&own) }.ok()?);
        self.loaded.insert(path.to_owned(), Arc::clone(&library));
        Some(Code { library, limits, alone })
    }
}

impl Code {
    /// What bounds the launches of its kernel.
    pub(super) fn limits(&self, _: &str) -> Limits {
        self.limits
    }

    /// Runs a kernel. Error: what is wrong with it.
    ///
    /// # Safety
    ///
    /// The addresses are of memory that the kernel may use as it does.
    pub(super) unsafe fn run(
        &self,
        name: &str,
        launch: Launch,
        args: &[u64],
        reversed: bool,
        early: bool,
    ) -> Result<(), String> {
        let name = CString::new(name).unwrap();
        let mut args: Vec<*mut c_void> = args.iter().map(|&arg| arg as *mut c_void).collect();
        let flags = u32::from(reversed) | if self.alone { 2 } else { 0 } | if early { 4 } else { 0 };
        let [x, y] = launch.block;
        // SAFETY: the symbol has this type in `text`; for the rest as the caller promises. What it says is text that
        // ends with a zero, and stays until its library runs again.
        unsafe {
            let entry = self.library.get::<Entry>(b"emulated").unwrap();
            let fault = entry(name.as_ptr(), launch.grid, x, y, launch.shared, flags, args.as_mut_ptr());
            match fault.is_null() {
                true => Ok(()),
                false => Err(std::ffi::CStr::from_ptr(fault).to_string_lossy().into_owned()),
            }
        }
    }
}
