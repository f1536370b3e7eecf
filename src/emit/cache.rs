//! Compiled kernels on disk. A kernel is known by its source, the compiler's options and version, and
//! the architecture; what is found damaged is compiled again.
//!
//! Files are written aside and renamed, so that several processes may share a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::Kernel;
use super::nvrtc::{Nvrtc, options};
use crate::error::{Error, Result};
use crate::plan::write_atomically;

/// What a file begins with.
const MAGIC: &[u8; 8] = b"pkernel1";

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in a folder, which is made where it is not there.
    ///
    /// Error: it cannot be made.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(|error| Error::io(folder.display().to_string(), error))?;
        Ok(Self { folder })
    }

    /// `PARTITION_CACHE`, else `partition` in the user's cache folder; none where there is no such.
    pub fn default_folder() -> Option<PathBuf> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        variable("PARTITION_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("partition")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/partition")))
    }

    /// The code of `key`, made by `make` where the cache has none that is whole. That it cannot be kept
    /// is no error.
    ///
    /// Error: that of `make`.
    pub fn get_or_make(&self, key: &str, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let path = self.path(key);
        if let Some(code) = fs::read(&path).ok().as_deref().and_then(opened) {
            return Ok(code.to_vec());
        }
        let code = make()?;
        // A full or read-only disk costs time, not the result.
        let _ = write_atomically(&path, &sealed(&code));
        Ok(code)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.cubin", xxh3_128(key.as_bytes())))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The bytes of a file: magic, checksum, code.
fn sealed(code: &[u8]) -> Vec<u8> {
    [MAGIC.as_slice(), &xxh3_64(code).to_le_bytes(), code].concat()
}

/// The code of a file, where it is whole.
fn opened(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, code) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == xxh3_64(code)).then_some(code)
}

/// Compiles kernels for an architecture on several threads, and tells how many are done. The result is
/// in the kernels' order, whatever the threads do; with an error, the rest is left.
///
/// Error: the compiler's on the first kernel in order that it refuses, of those that were tried.
pub fn compile_all(
    nvrtc: &Nvrtc,
    cache: Option<&Cache>,
    kernels: &[&Kernel],
    architecture: &str,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Vec<u8>>> {
    let results: Mutex<Vec<Option<Result<Vec<u8>>>>> = Mutex::new(kernels.iter().map(|_| None).collect());
    let (next, done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(kernel) = kernels.get(position) else { break };
            let code = compile(nvrtc, cache, kernel, architecture);
            failed.fetch_or(code.is_err(), Ordering::Relaxed);
            if let Ok(mut results) = results.lock() {
                results[position] = Some(code);
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, kernels.len());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(kernels.len()) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_default();
    let mut codes = Vec::with_capacity(results.len());
    let mut left = false;
    for result in results {
        match result {
            Some(code) => codes.push(code?),
            None => left = true,
        }
    }
    if left { Err(Error::Internal("a kernel was not compiled".to_owned())) } else { Ok(codes) }
}

fn compile(nvrtc: &Nvrtc, cache: Option<&Cache>, kernel: &Kernel, architecture: &str) -> Result<Vec<u8>> {
    let source = kernel.source();
    let make = || nvrtc.cubin(&source, &kernel.name, architecture);
    let Some(cache) = cache else { return make() };
    let (major, minor) = nvrtc.version();
    let key = format!("NVRTC {major}.{minor}\n{}\n{source}", options(architecture).join(" "));
    cache.get_or_make(&key, make)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("partition_cache_{name}_{}", std::process::id()))
    }

    #[test]
    fn what_was_made_is_found_and_what_is_damaged_is_made_again() {
        let folder = folder("damage");
        let cache = Cache::open(&folder).unwrap();
        let made = AtomicUsize::new(0);
        let get = || {
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(b"code".to_vec())
            };
            cache.get_or_make("key", make).unwrap()
        };
        assert_eq!((get(), get()), (b"code".to_vec(), b"code".to_vec()));
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let path = cache.path("key");
        let whole = fs::read(&path).unwrap();
        for damage in
            [&whole[..whole.len() - 1], &whole[..5], b"", &[&whole[..whole.len() - 1], b"X"].concat()]
        {
            fs::write(&path, damage).unwrap();
            let before = made.load(Ordering::Relaxed);
            assert_eq!(get(), b"code");
            assert_eq!(made.load(Ordering::Relaxed), before + 1, "{damage:?}");
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_failure_is_not_kept() {
        let folder = folder("failure");
        let cache = Cache::open(&folder).unwrap();
        let fail = || Err(Error::Internal("no".to_owned()));
        assert!(cache.get_or_make("key", fail).is_err());
        assert_eq!(cache.get_or_make("key", || Ok(vec![1])).unwrap(), [1]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn many_at_once_leave_whole_files() {
        let folder = folder("many");
        let cache = Cache::open(&folder).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..40 {
                        let key = format!("key {}", (round + thread) % 5);
                        let code = vec![(round + thread) % 5; 3000];
                        assert_eq!(cache.get_or_make(&key, || Ok(code.clone())).unwrap(), code);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 5);
        fs::remove_dir_all(&folder).unwrap();
    }
}
