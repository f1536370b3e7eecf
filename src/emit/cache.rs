//! Compiled kernels on disk. A kernel is known by its source, the compiler's options and version, and
//! the architecture; what is found damaged, or was made for another kernel, is compiled again.
//!
//! What is in the folder runs on the user's GPU, so nobody else may write there: it is made for its
//! owner alone, and one that others own or may write to is refused.
//!
//! Files are written aside and renamed, so that several processes may share a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::Kernel;
use super::nvrtc::{Nvrtc, options};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::files;
use crate::files::write_atomically;

/// What a file begins with.
const MAGIC: &[u8; 8] = b"pkernel2";

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    owner: Option<u32>,
}

impl Cache {
    /// The cache in a folder, which is made for its owner alone where it is not there.
    ///
    /// Errors: [`Error::Io`] where it cannot be made; [`Error::Usage`] where it is another user's, or others
    /// may write to it.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        let io = |error| Error::io(folder.display().to_string(), error);
        private_folder(&folder).map_err(io)?;
        let owner = owner::of(&fs::metadata(&folder).map_err(io)?);
        if let Some(fault) = owner::fault(&folder).map_err(io)? {
            let message = format!("the folder of compiled kernels {fault}");
            return Err(Error::usage(folder.display().to_string(), message)
                .with_help("chmod 700 and empty it, or name a folder of your own in PARTITION_CACHE"));
        }
        Ok(Self { folder, owner })
    }

    /// The cache in [`Cache::default_folder`]; none where there is no such, or it cannot be made.
    ///
    /// Error: [`Error::Usage`] as for [`Cache::open`].
    pub fn open_default() -> Result<Option<Self>> {
        match Self::default_folder().map(Self::open) {
            None | Some(Err(Error::Io { .. })) => Ok(None),
            Some(opened) => opened.map(Some),
        }
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
        if let Some(code) = self.read(&path).as_deref().and_then(|bytes| opened(key, bytes)) {
            return Ok(code.to_vec());
        }
        let code = make()?;
        // A full or read-only disk costs time, not the result.
        let _ = write_atomically(&path, &sealed(key, &code));
        Ok(code)
    }

    /// The bytes of a file of the folder's owner; none where there is none.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let is_own = owner::of(&fs::metadata(path).ok()?) == self.owner;
        if is_own { files::read(path).ok() } else { None }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.cubin", xxh3_128(key.as_bytes())))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Makes a folder, and those around it, where it is not there; itself for its owner alone.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(around) = folder.parent() {
        fs::create_dir_all(around)?;
    }
    match owner::private().create(folder) {
        // Another process was faster.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Whose a folder is, and who may write to it.
#[cfg(unix)]
mod owner {
    use std::fs::{DirBuilder, Metadata};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    use std::path::Path;

    /// Write permission of the group and of all others.
    const OTHERS_WRITE: u32 = 0o022;

    pub(super) fn private() -> DirBuilder {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        builder
    }

    /// The user whose file or folder it is.
    pub(super) fn of(there: &Metadata) -> Option<u32> {
        Some(there.uid())
    }

    /// Why a folder is not to be trusted, in words; none where it is.
    pub(super) fn fault(folder: &Path) -> io::Result<Option<&'static str>> {
        let there = std::fs::metadata(folder)?;
        if there.mode() & OTHERS_WRITE != 0 {
            return Ok(Some("may be written to by other users"));
        }
        Ok((there.uid() != own(folder)?).then_some("is another user's"))
    }

    /// This process's user: that of its entry in `/proc`, else of a file that it makes.
    fn own(folder: &Path) -> io::Result<u32> {
        if let Ok(process) = std::fs::metadata("/proc/self") {
            return Ok(process.uid());
        }
        let probe = folder.join(format!(".owner.{}", std::process::id()));
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
        let uid = made.metadata()?.uid();
        std::fs::remove_file(&probe)?;
        Ok(uid)
    }
}

/// Where files have no owners in this sense, the system's own rules for the user's folders hold.
#[cfg(not(unix))]
mod owner {
    use std::fs::{DirBuilder, Metadata};
    use std::io;
    use std::path::Path;

    pub(super) fn private() -> DirBuilder {
        DirBuilder::new()
    }

    pub(super) fn of(_: &Metadata) -> Option<u32> {
        None
    }

    pub(super) fn fault(_: &Path) -> io::Result<Option<&'static str>> {
        Ok(None)
    }
}

/// The bytes of a file: magic, the checksum of the rest, the key's digest, code.
fn sealed(key: &str, code: &[u8]) -> Vec<u8> {
    let rest = [xxh3_128(key.as_bytes()).to_le_bytes().as_slice(), code].concat();
    [MAGIC.as_slice(), &xxh3_64(&rest).to_le_bytes(), &rest].concat()
}

/// The code of a file, where it is whole and was made for this key.
fn opened<'b>(key: &str, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let code = rest.strip_prefix(xxh3_128(key.as_bytes()).to_le_bytes().as_slice())?;
    (u64::from_le_bytes(*sum) == xxh3_64(rest)).then_some(code)
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
    let (done, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let codes = Control::new().threads(threads).map(kernels.len(), |number| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let code = compile(nvrtc, cache, kernels[number], architecture);
        failed.fetch_or(code.is_err(), Ordering::Relaxed);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, kernels.len());
        Some(code)
    });
    // Kernels are left only where another failed.
    codes.into_iter().flatten().collect()
}

/// The code of kernels of which all were compiled before by the version that this program is tested with: where there is no
/// NVRTC, a folder that was filled elsewhere serves.
///
/// Error: `missing` on the first kernel that is not there.
pub fn kept_all(
    cache: Option<&Cache>,
    kernels: &[&Kernel],
    architecture: &str,
    missing: &dyn Fn() -> Error,
) -> Result<Vec<Vec<u8>>> {
    let one = |kernel: &&Kernel| match cache {
        Some(cache) => {
            let known_by = key(TESTED, &kernel.architecture(architecture), &kernel.source());
            cache.get_or_make(&known_by, || Err(missing()))
        }
        None => Err(missing()),
    };
    kernels.iter().map(one).collect()
}

/// The version of NVRTC that this program is tested with.
const TESTED: (i32, i32) = (13, 0);

fn compile(nvrtc: &Nvrtc, cache: Option<&Cache>, kernel: &Kernel, architecture: &str) -> Result<Vec<u8>> {
    let (source, architecture) = (kernel.source(), kernel.architecture(architecture));
    let make = || nvrtc.cubin(&source, &kernel.name, &architecture);
    let Some(cache) = cache else { return make() };
    cache.get_or_make(&key(nvrtc.version(), &architecture, &source), make)
}

/// What code is known by.
fn key((major, minor): (i32, i32), architecture: &str, source: &str) -> String {
    format!("NVRTC {major}.{minor}\n{}\n{source}", options(architecture).join(" "))
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
    fn an_entry_is_bound_to_its_key() {
        let folder = folder("bound");
        let cache = Cache::open(&folder).unwrap();
        cache.get_or_make("one", || Ok(b"1".to_vec())).unwrap();
        fs::copy(cache.path("one"), cache.path("other")).unwrap();
        assert_eq!(cache.get_or_make("other", || Ok(b"2".to_vec())).unwrap(), b"2");
        assert_eq!(cache.get_or_make("one", || unreachable!()).unwrap(), b"1");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_its_owners_alone_and_one_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = folder("owner").join("inner");
        Cache::open(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        for mode in [0o755, 0o500] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            Cache::open(&folder).unwrap();
        }
        for mode in [0o770, 0o777, 0o1777] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let error = Cache::open(&folder).unwrap_err().to_string();
            assert!(error.starts_with(&folder.display().to_string()), "{error}");
            assert!(error.contains("may be written to by other users"), "{error}");
            assert!(error.contains("PARTITION_CACHE"), "{error}");
        }
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn an_entry_of_another_user_is_made_again() {
        let folder = folder("foreign");
        let cache = Cache::open(&folder).unwrap();
        cache.get_or_make("key", || Ok(b"old".to_vec())).unwrap();
        let other = Cache { owner: cache.owner.map(|uid| uid + 1), ..cache.clone() };
        assert_eq!(other.get_or_make("key", || Ok(b"new".to_vec())).unwrap(), b"new");
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
