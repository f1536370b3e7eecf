//! The npz format: a zip archive of npy files.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::hdf5::{SIGNATURE, Section};
use super::stream::{Rows, section};
use super::{damaged, npy};
use crate::error::{Error, Report, Result};
use crate::files::{self, write_seekable};
use crate::ir::{DType, Tensor};

/// What the name of an array's entry ends in.
const ENDING: &str = ".npy";

/// The longest name of an entry, in bytes: the archive keeps its length in 16 bits.
const LONGEST_ENTRY: usize = u16::MAX as usize;

/// Deflate cannot shrink data by more than about this factor, so no entry holds more.
const GREATEST_RATIO: u64 = 1040;

/// Weights hardly shrink, and Keras itself stores them as they are: where the file in a `.keras` archive
/// is compressed, it is held as a whole, so no more than this many times its compressed bytes.
const WEIGHTS_RATIO: u64 = 32;

/// Compressed weights up to this size are read in any case.
const SMALL_WEIGHTS: u64 = 1 << 26;

/// An open archive. The lock is held while one array is read.
pub(super) struct Npz {
    archive: Mutex<ZipArchive<BufReader<File>>>,
    entries: BTreeMap<String, usize>,
}

impl std::fmt::Debug for Npz {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Npz").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Npz {
    /// The names of the arrays, in the order of the archive, and the archive.
    pub(super) fn open(mut file: BufReader<File>) -> Result<(Vec<String>, Self)> {
        file.seek(SeekFrom::Start(0)).map_err(damaged)?;
        let mut archive = opened(file)?;
        if archive.has_overlapping_entries().map_err(damaged)? {
            // Each would be decompressed from the same bytes: a small archive would hold any amount.
            return Err(Error::format("", "the entries of the zip archive overlap"));
        }
        let (mut names, mut entries) = (Vec::new(), BTreeMap::new());
        for index in 0..archive.len() {
            let Some(Ok(entry)) = archive.name_for_index(index) else { continue };
            let Some(name) = entry.strip_suffix(".npy") else { continue };
            entries.insert(name.to_owned(), index);
            names.push(name.to_owned());
        }
        if names.is_empty() && archive.file_names().flatten().any(|name| name.ends_with("data.pkl")) {
            return Err(super::pickled());
        }
        if names.is_empty() && !archive.is_empty() {
            return Err(Error::format("", "the zip archive holds no npy files"));
        }
        Ok((names, Self { archive: Mutex::new(archive), entries }))
    }

    pub(super) fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        self.read(name, |mut reader, _| npy::header(&mut reader).map(|header| (header.dtype, header.dims)))
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Tensor>> {
        self.read(name, |mut reader, available| {
            let header = npy::header(&mut reader)?;
            let tensor = npy::data(&mut reader, &header, available)?;
            // Reading to the end has the archive compare its checksum.
            match reader.read(&mut [0]).map_err(damaged)? {
                0 => Ok(tensor),
                _ => Err(Error::format("", "it has more data than its sizes say")),
            }
        })
    }

    /// The rows of an array, which is read from the file anew.
    pub(super) fn rows(&self, path: &Path, name: &str) -> Result<Option<Rows>> {
        let Some(&index) = self.entries.get(name) else { return Ok(None) };
        let mut archive = self.archive.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = archive.by_index_raw(index).map_err(damaged)?;
        let start = entry.data_start().ok_or_else(|| damaged("its place in the archive is not known"))?;
        let data = section(path, start, entry.compressed_size())?;
        let mut data: Box<dyn Read + Send> = match entry.compression() {
            CompressionMethod::Stored => data,
            CompressionMethod::Deflated => Box::new(flate2::read::DeflateDecoder::new(data)),
            other => return Err(damaged(format!("compression {other} is not supported"))),
        };
        let mut noted = Noted { reader: &mut data, sum: flate2::Crc::new() };
        let header = npy::header(&mut noted)?;
        let sum = (noted.sum, entry.crc32());
        if header.is_column_major() {
            let message = "its first axis varies fastest, so it has no rows in order";
            return Err(Error::Unsupported(Report::new("", message).help("numpy.ascontiguousarray")));
        }
        let big_endian = header.is_big_endian();
        Rows::new((header.dtype, header.dims), big_endian, data, Some(sum)).map(Some)
    }

    fn read<T>(&self, name: &str, read: impl FnOnce(&mut dyn Read, u64) -> Result<T>) -> Result<Option<T>> {
        let Some(&index) = self.entries.get(name) else { return Ok(None) };
        let mut archive = self.archive.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut entry = archive.by_index(index).map_err(damaged)?;
        let most = entry.compressed_size().saturating_mul(GREATEST_RATIO);
        let available = entry.size().min(most);
        read(&mut entry, available).map(Some)
    }
}

/// The directory of an archive. Error: two of its entries have one name, of which only the last would be seen.
fn opened<R: Read + Seek>(file: R) -> Result<ZipArchive<R>> {
    let archive = ZipArchive::new(file).map_err(damaged)?;
    if archive.has_duplicate_names() {
        let message = "the zip archive holds two entries of one name, and which is meant is not known";
        return Err(Error::format("", message).with_help("write it anew, each array once"));
    }
    Ok(archive)
}

/// An entry of a `.keras` archive that is a text; none where the archive has none of this name.
#[cfg(feature = "keras")]
pub(super) fn entry(file: BufReader<File>, name: &str) -> Result<Option<Vec<u8>>> {
    /// Larger ones are no model.
    const MOST: u64 = 1 << 28;
    let mut archive = opened(file)?;
    if archive.index_for_name("model.weights.h5").is_none() {
        return Ok(None);
    }
    let Some(index) = archive.index_for_name(name) else { return Ok(None) };
    let entry = archive.by_index(index).map_err(damaged)?;
    let most = entry.compressed_size().saturating_mul(WEIGHTS_RATIO).clamp(SMALL_WEIGHTS, MOST);
    if entry.size() > most {
        return Err(Error::format("", format!("{name} is larger than any model")));
    }
    let mut bytes = Vec::new();
    entry.take(most).read_to_end(&mut bytes).map_err(damaged)?;
    Ok(Some(bytes))
}

/// The weights in a `.keras` archive; none where the archive is another one.
pub(super) fn keras_weights(file: &mut BufReader<File>, path: &Path) -> Result<Option<Section>> {
    file.seek(SeekFrom::Start(0)).map_err(damaged)?;
    let mut archive = opened(&mut *file)?;
    let Some(index) = archive.index_for_name("model.weights.h5") else { return Ok(None) };
    let mut entry = archive.by_index(index).map_err(damaged)?;
    if entry.compression() == CompressionMethod::Stored
        && let Some(start) = entry.data_start()
    {
        let length = entry.size().min(entry.compressed_size());
        let file = Mutex::new(files::open(path)?);
        return Ok(Some(Section::File { file, start, length }));
    }
    let most = entry.compressed_size().saturating_mul(WEIGHTS_RATIO).max(SMALL_WEIGHTS);
    if entry.size() > most {
        let message = format!("model.weights.h5 is more than {WEIGHTS_RATIO} times as large as its entry");
        return Err(Error::format("", message).with_help("unzip it, and give model.weights.h5 itself"));
    }
    let mut bytes = Vec::new();
    (&mut entry).take(SIGNATURE.len() as u64).read_to_end(&mut bytes).map_err(damaged)?;
    if bytes != SIGNATURE {
        return Err(Error::format("", "model.weights.h5 is not in the HDF5 format"));
    }
    (&mut entry).take(most).read_to_end(&mut bytes).map_err(damaged)?;
    Ok(Some(Section::Memory(bytes)))
}

/// Sums up what is read.
struct Noted<'r> {
    reader: &'r mut dyn Read,
    sum: flate2::Crc,
}

impl Read for Noted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.sum.update(&buffer[..read]);
        Ok(read)
    }
}

/// Writes arrays as an npz file, whole or not at all ([`write_seekable`]). The same arrays give the same bytes.
/// Errors: the file cannot be written, [`check_npz_names`].
pub fn write_npz(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_npz_with(path, arrays, &BTreeSet::new())
}

/// As [`write_npz`]; those of some names, whose last axis, of 2, has both parts of each number, as complex numbers.
/// Errors: as of that.
pub(crate) fn write_npz_with(
    path: &Path,
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
) -> Result<()> {
    check_npz_names(arrays.iter().map(|(name, _)| name.as_str()))
        .map_err(|error| error.within(&path.display().to_string()))?;
    write_seekable(path, |out| write_all(out, arrays, complex).map(|_| ()))
}

/// Whether arrays of these names can be an npz file, each an entry `NAME.npy` of a zip archive.
///
/// Errors: a name that is there twice, has more bytes than an archive keeps, has a zero byte, or has a part `..`: an
/// archiver that unpacks it would write outside of its folder.
pub fn check_npz_names<'n>(names: impl Iterator<Item = &'n str>) -> Result<()> {
    let mut known = HashSet::new();
    for name in names {
        let refused = |message: &str| {
            Err(Error::usage(format!("array {name:?}"), format!("{message}, so npz cannot hold it"))
                .with_help("a name that ends in .safetensors holds any array, or rename the output"))
        };
        if name.len() + ENDING.len() > LONGEST_ENTRY {
            let start: String = name.chars().take(40).collect();
            let message = format!("its name of {} bytes is too long for npz", name.len());
            return Err(Error::usage(format!("array {start:?}..."), message).with_help("rename the output"));
        }
        if name.split(['/', '\\']).any(|part| part == "..") {
            return refused("its name leads out of an archive's folder");
        }
        if name.contains('\0') {
            return refused("its name has a zero byte");
        }
        if !known.insert(name) {
            return refused("two arrays have this name");
        }
    }
    Ok(())
}

fn write_all<W: Write + Seek>(
    target: W,
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
) -> io::Result<W> {
    let mut zip = ZipWriter::new(target);
    if let Err(error) = add_entries(&mut zip, arrays, complex) {
        // Dropping the writer would try to finish the archive, and print that it cannot.
        std::mem::forget(zip);
        return Err(error);
    }
    Ok(zip.finish()?)
}

fn add_entries<W: Write + Seek>(
    zip: &mut ZipWriter<W>,
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
) -> io::Result<()> {
    for (name, tensor) in arrays {
        let (dtype, dims) = (tensor.dtype(), tensor.dims());
        let of_both = complex.contains(name).then(|| npy::encode_complex_header(dtype, dims)).flatten();
        let header = of_both.unwrap_or_else(|| npy::encode_header(dtype, dims));
        let large = (header.len() + tensor.bytes().len()) as u64 >= u64::from(u32::MAX);
        let options = SimpleFileOptions::DEFAULT
            .compression_method(CompressionMethod::Stored)
            .large_file(large)
            .unix_permissions(0o644);
        zip.start_file(format!("{name}{ENDING}"), options)?;
        zip.write_all(&header)?;
        zip.write_all(tensor.bytes())?;
    }
    Ok(())
}
