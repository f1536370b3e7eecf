//! NVRTC: CUDA C to machine code, without a GPU. Its library is loaded at run time.
//!
//! Looked for where `PARTITION_NVRTC` says (the library, or a folder that holds it), else by its usual
//! names. Contains `unsafe`: calls into that library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{Error, Report, Result};

/// The environment variable that says where the library is.
pub const VARIABLE: &str = "PARTITION_NVRTC";

/// What the library is called, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll"];

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Fetch = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    create: Create,
    compile: Compile,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: Size,
    log: Fetch,
    code_size: Size,
    code: Fetch,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
    version: (i32, i32),
}

/// The compiler, loaded once.
///
/// Error: its library is not there, or lacks what is needed.
pub fn nvrtc() -> Result<&'static Nvrtc> {
    static LOADED: OnceLock<std::result::Result<Nvrtc, String>> = OnceLock::new();
    LOADED.get_or_init(|| Nvrtc::load(std::env::var_os(VARIABLE).map(PathBuf::from))).as_ref().map_err(
        |message| {
            Error::Run(Report::new("NVRTC", message.clone()).help(format!(
                "pip install nvidia-cuda-nvrtc, and {VARIABLE}=PATH of libnvrtc.so.* or its folder"
            )))
        },
    )
}

impl Nvrtc {
    fn load(path: Option<PathBuf>) -> std::result::Result<Self, String> {
        let candidates = match path {
            Some(path) => found_at(&path),
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        let mut last = format!("no libnvrtc.so where {VARIABLE} says");
        for candidate in candidates {
            keep_builtins(&candidate);
            // SAFETY: loads the library that the user names, or NVIDIA's; its initialisers are trusted.
            match unsafe { Library::new(&candidate) } {
                Ok(library) => return Self::of(library),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    fn of(library: Library) -> std::result::Result<Self, String> {
        // Never unloaded: its functions are used until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        let mut version = (0, 0);
        // SAFETY: the names have these signatures in nvrtc.h; the version is written to two integers.
        unsafe {
            let query: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                symbol(library, "nvrtcVersion")?;
            query(&mut version.0, &mut version.1);
            Ok(Self {
                create: symbol(library, "nvrtcCreateProgram")?,
                compile: symbol(library, "nvrtcCompileProgram")?,
                destroy: symbol(library, "nvrtcDestroyProgram")?,
                log_size: symbol(library, "nvrtcGetProgramLogSize")?,
                log: symbol(library, "nvrtcGetProgramLog")?,
                code_size: symbol(library, "nvrtcGetCUBINSize")?,
                code: symbol(library, "nvrtcGetCUBIN")?,
                text: symbol(library, "nvrtcGetErrorString")?,
                version,
            })
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// A source as CUBIN, the machine code of one architecture (`sm_90`). May be called from several
    /// threads at once.
    ///
    /// Error: what the compiler says.
    pub fn cubin(&self, source: &str, name: &str, architecture: &str) -> Result<Vec<u8>> {
        let refused = |message: String| Error::Internal(format!("NVRTC on kernel {name}: {message}"));
        let text = |text: &str| CString::new(text).map_err(|_| refused("a zero byte".to_owned()));
        let (source, name) = (text(source)?, text(name)?);
        let options: Vec<CString> =
            options(architecture).iter().map(|option| text(option)).collect::<Result<_>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the strings live until the program is destroyed, at the end of this function.
        let made = unsafe {
            (self.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        };
        if made != 0 {
            return Err(refused(self.message(made)));
        }
        // SAFETY: `program` was created above, and `options` holds as many strings as it says.
        let done = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let result = if done == 0 {
            self.fetched(program, self.code_size, self.code).map_err(|code| refused(self.message(code)))
        } else {
            let log = self.fetched(program, self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
            Err(refused(format!("{}\n{log}", self.message(done))))
        };
        // SAFETY: it is not used afterwards.
        unsafe { (self.destroy)(&mut program) };
        result
    }

    fn fetched(&self, program: Program, size: Size, fetch: Fetch) -> std::result::Result<Vec<u8>, c_int> {
        let mut length = 0;
        // SAFETY: `program` is alive, and the buffer has the length that it asks for.
        unsafe {
            match size(program, &mut length) {
                0 => {}
                code => return Err(code),
            }
            let mut bytes = vec![0u8; length];
            match fetch(program, bytes.as_mut_ptr().cast()) {
                0 => Ok(bytes),
                code => Err(code),
            }
        }
    }

    fn message(&self, code: c_int) -> String {
        // SAFETY: gives a static string for any number.
        let text = unsafe { (self.text)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: a string that ends with a zero byte and is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// What every kernel is compiled with.
pub fn options(architecture: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned(), "--fmad=true".to_owned()]
}

fn found_at(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() { beginning_with(path, &["libnvrtc.so", "nvrtc64"]) } else { vec![path.to_owned()] }
}

/// The files of a folder whose names begin so, in order.
fn beginning_with(folder: &Path, beginnings: &[&str]) -> Vec<PathBuf> {
    let begins = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        beginnings.iter().any(|beginning| name.starts_with(beginning))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(begins).collect();
    found.sort();
    found
}

/// Loads the library that NVRTC itself looks for by name while it compiles, from beside it.
fn keep_builtins(library: &Path) {
    let Some(folder) = library.parent().filter(|folder| folder.is_dir()) else { return };
    for path in beginning_with(folder, &["libnvrtc-builtins.so"]) {
        // SAFETY: NVIDIA's own library, whose initialisers are trusted. What cannot be loaded is missed
        // when something is compiled, with a message of its own.
        if let Ok(library) = unsafe { Library::new(path) } {
            std::mem::forget(library);
        }
    }
}

/// # Safety
///
/// The symbol is of type `T`.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> std::result::Result<T, String> {
    // SAFETY: as the caller promises.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
}
