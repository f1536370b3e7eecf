//! NVRTC through cudarc: CUDA C to machine code, without a GPU. Its library is loaded at run time.
//!
//! cudarc takes the first library it finds by name, `libnvrtc.so` before those with a version, and panics where
//! there is none or one without a function. So the library that `PARTITION_NVRTC` names (itself, or its folder) is
//! loaded first; cudarc is asked whether it finds one, and each function is looked up, before anything is called;
//! and what cudarc took is compared with what was named.
//!
//! Contains `unsafe`: loading that library, and calls into it.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use libloading::Library;

use crate::error::{Error, Report, Result};

/// The environment variable that says where the library is.
pub const VARIABLE: &str = "PARTITION_NVRTC";

/// What is called of the library; cudarc panics where one of these is missing.
const FUNCTIONS: [&str; 9] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetErrorString",
];

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    version: (i32, i32),
    path: Option<PathBuf>,
}

/// The compiler, loaded once.
///
/// Error: its library is not there, lacks what is needed, or is not the one that `PARTITION_NVRTC` names.
pub fn nvrtc() -> Result<&'static Nvrtc> {
    static LOADED: OnceLock<std::result::Result<Nvrtc, Report>> = OnceLock::new();
    let load = || Nvrtc::load(std::env::var_os(VARIABLE).map(PathBuf::from).as_deref());
    LOADED.get_or_init(load).as_ref().map_err(|report| Error::Run(report.clone()))
}

impl Nvrtc {
    fn load(named: Option<&Path>) -> std::result::Result<Self, Report> {
        let named = named.map(Loaded::at).transpose()?;
        // SAFETY: loads NVIDIA's library, whose initialisers are trusted, and unloads it.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing("its library, libnvrtc, was not found".to_owned()));
        }
        // SAFETY: as above; it is there, and stays loaded.
        let taken = Loaded::of(unsafe { sys::culib() })?;
        match named {
            Some(named) if named.address != taken.address => Err(another(&named, &taken)),
            _ => Ok(Self { version: taken.version, path: taken.path }),
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The library's file, where the system says.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// A source as CUBIN, the machine code of one architecture (`sm_90`). May be called from several
    /// threads at once.
    ///
    /// Error: what the compiler says.
    pub fn cubin(&self, source: &str, name: &str, architecture: &str) -> Result<Vec<u8>> {
        let refused = |message: String| Error::Internal(format!("NVRTC on kernel {name}: {message}"));
        let failed = |error: NvrtcError| refused(message(error));
        let text = |text: &str| CString::new(text).map_err(|_| refused("a zero byte".to_owned()));
        let (source, label) = (text(source)?, text(name)?);
        // cudarc would panic on it.
        text(architecture)?;
        let program = Program::new(&source, &label).map_err(failed)?;
        match program.compile(&options(architecture)) {
            Ok(()) => program.cubin().map_err(failed),
            Err(error) => Err(refused(format!("{}\n{}", message(error), program.log()))),
        }
    }
}

/// What every kernel is compiled with.
pub fn options(architecture: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned(), "--fmad=true".to_owned()]
}

/// A source that is compiled, destroyed at its end.
struct Program<'s> {
    handle: sys::nvrtcProgram,
    /// The library may refer to source and name until then.
    texts: PhantomData<&'s CStr>,
}

impl<'s> Program<'s> {
    fn new(source: &'s CStr, name: &'s CStr) -> std::result::Result<Self, NvrtcError> {
        Ok(Self { handle: result::create_program(source, Some(name))?, texts: PhantomData })
    }

    fn compile(&self, options: &[String]) -> std::result::Result<(), NvrtcError> {
        // SAFETY: `handle` was created and is not destroyed.
        unsafe { result::compile_program(self.handle, options) }
    }

    /// What the compiler said; empty where it does not tell.
    fn log(&self) -> String {
        // SAFETY: `handle` was created and is not destroyed.
        let log = unsafe { result::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, NvrtcError> {
        let mut length = 0;
        // SAFETY: `handle` was created and is not destroyed, and the buffer has the length that is asked for.
        unsafe {
            sys::nvrtcGetCUBINSize(self.handle, &mut length).result()?;
            let mut code = vec![0u8; length];
            sys::nvrtcGetCUBIN(self.handle, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once. There is nothing to do about a failure.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

fn message(error: NvrtcError) -> String {
    // SAFETY: gives a static string for any code.
    unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(error.0)) }.to_string_lossy().into_owned()
}

/// A library that is loaded and has every function.
struct Loaded {
    /// Of its `nvrtcVersion`: no two libraries share it.
    address: *const c_void,
    version: (i32, i32),
    path: Option<PathBuf>,
}

impl Loaded {
    /// What a path names, loaded for as long as the process lives.
    fn at(path: &Path) -> std::result::Result<Self, Report> {
        let candidates = if path.is_dir() {
            files_beginning_with(path, &["libnvrtc.so", "nvrtc64"])
        } else {
            vec![path.to_owned()]
        };
        let mut fault = format!("no libnvrtc.so in {}, which {VARIABLE} names", path.display());
        for candidate in candidates {
            load_builtins(&candidate);
            // SAFETY: loads the library that the user names; its initialisers are trusted.
            match unsafe { Library::new(&candidate) } {
                Ok(library) => return Self::of(Box::leak(Box::new(library))),
                Err(error) => {
                    // The loader's own words stand in the source.
                    let cause = std::error::Error::source(&error)
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    fault = format!("{}: {cause}", candidate.display());
                }
            }
        }
        Err(missing(fault))
    }

    fn of(library: &'static Library) -> std::result::Result<Self, Report> {
        let mut version = (0, 0);
        let address = address(library, FUNCTIONS[0]);
        let path = address.and_then(file_of);
        if let Some(function) = FUNCTIONS.iter().find(|function| self::address(library, function).is_none()) {
            let shown = path.as_ref().map_or("the library".into(), |path| path.to_string_lossy());
            return Err(missing(format!("{shown} has no function {function}")));
        }
        // SAFETY: the function has this signature in nvrtc.h, and writes two integers.
        unsafe {
            let query =
                library.get::<unsafe extern "C" fn(*mut i32, *mut i32) -> i32>(FUNCTIONS[0].as_bytes());
            query.map_err(|error| missing(error.to_string()))?(&mut version.0, &mut version.1);
        }
        Ok(Self { address: address.unwrap_or(std::ptr::null()), version, path })
    }
}

impl std::fmt::Display for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.version;
        let path = self.path.as_ref().map_or("libnvrtc".into(), |path| path.to_string_lossy());
        write!(f, "{path} (NVRTC {major}.{minor})")
    }
}

fn missing(message: String) -> Report {
    Report::new("NVRTC", message)
        .help(format!("pip install nvidia-cuda-nvrtc, and {VARIABLE}=PATH of libnvrtc.so.* or its folder"))
}

/// The loader's search path has a library that comes before the one that is named.
fn another(named: &Loaded, taken: &Loaded) -> Report {
    let message = format!("{taken} was loaded in place of {named}, which {VARIABLE} names");
    Report::new("NVRTC", message).help(format!(
        "unset {VARIABLE} to compile with the former; for the latter, begin LD_LIBRARY_PATH with a folder in which \
         libnvrtc.so is a link to it"
    ))
}

/// Where a function of a library is; none where it has no such.
fn address(library: &Library, function: &str) -> Option<*const c_void> {
    // SAFETY: it is not called by this type.
    let symbol = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.ok()?;
    Some(*symbol as *const c_void)
}

/// The file that a function was loaded from.
#[cfg(unix)]
fn file_of(function: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: looks an address up, and fills `info` where it says that it found it.
    let info = unsafe { (libc::dladdr(function, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }?;
    // SAFETY: a string that lives as long as the library, which stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_: *const c_void) -> Option<PathBuf> {
    None
}

/// The files of a folder whose names begin so, in order.
fn files_beginning_with(folder: &Path, beginnings: &[&str]) -> Vec<PathBuf> {
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
fn load_builtins(library: &Path) {
    let Some(folder) = library.parent().filter(|folder| folder.is_dir()) else { return };
    for path in files_beginning_with(folder, &["libnvrtc-builtins.so"]) {
        // SAFETY: NVIDIA's own library, whose initialisers are trusted. What cannot be loaded is missed
        // when something is compiled, with a message of its own.
        if let Ok(library) = unsafe { Library::new(path) } {
            std::mem::forget(library);
        }
    }
}
