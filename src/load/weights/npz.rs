//! The npz format: a zip archive of npy files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::hdf5::Section;
use super::stream::{Rows, section};
use super::{damaged, npy};
use crate::error::{Error, Report, Result};
use crate::ir::{DType, Tensor};

/// Deflate cannot shrink data by more than about this factor, so no entry holds more.
const GREATEST_RATIO: u64 = 1040;

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
        let archive = ZipArchive::new(file).map_err(damaged)?;
        let (mut names, mut entries) = (Vec::new(), BTreeMap::new());
        for index in 0..archive.len() {
            let Some(Ok(entry)) = archive.name_for_index(index) else { continue };
            let Some(name) = entry.strip_suffix(".npy") else { continue };
            if entries.insert(name.to_owned(), index).is_none() {
                names.push(name.to_owned());
            }
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

/// The weights in a `.keras` archive; none where the archive is another one.
pub(super) fn keras_weights(file: &mut BufReader<File>, path: &Path) -> Result<Option<Section>> {
    file.seek(SeekFrom::Start(0)).map_err(damaged)?;
    let mut archive = ZipArchive::new(&mut *file).map_err(damaged)?;
    let Some(index) = archive.index_for_name("model.weights.h5") else { return Ok(None) };
    let mut entry = archive.by_index(index).map_err(damaged)?;
    if entry.compression() == CompressionMethod::Stored
        && let Some(start) = entry.data_start()
    {
        let length = entry.size().min(entry.compressed_size());
        let file = Mutex::new(File::open(path).map_err(damaged)?);
        return Ok(Some(Section::File { file, start, length }));
    }
    let most = entry.compressed_size().saturating_mul(GREATEST_RATIO).min(entry.size());
    let mut bytes = Vec::new();
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

/// Writes arrays as an npz file: aside, then renamed, so that nothing half-written is left. What
/// is there and is no regular file (a pipe, a device) is written directly. The same arrays give
/// the same bytes. Errors: the file cannot be written, a name is there twice.
pub fn write_npz(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    let written = match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => write_directly(path, arrays),
        Ok(_) => fs::canonicalize(path).and_then(|target| write_aside(&target, arrays)),
        Err(_) => write_aside(path, arrays),
    };
    written.map_err(|error| Error::io(path.display().to_string(), error))
}

/// A zip archive needs to seek, which a pipe cannot: it is made in memory first.
fn write_directly(path: &Path, arrays: &[(String, Tensor)]) -> io::Result<()> {
    let archive = write_all(io::Cursor::new(Vec::new()), arrays)?.into_inner();
    let mut file = File::options().write(true).open(path)?;
    file.write_all(&archive)?;
    file.flush()
}

fn write_aside(path: &Path, arrays: &[(String, Tensor)]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.tmp", std::process::id()));
    let aside = Path::new(&aside);
    let written = File::create(aside)
        .and_then(|file| write_all(BufWriter::new(file), arrays))
        .and_then(|buffered| buffered.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all())
        .and_then(|()| fs::rename(aside, path));
    if written.is_err() {
        // What could not be finished is taken away; the first error is the one to tell.
        let _ = fs::remove_file(aside);
    }
    written
}

fn write_all<W: Write + Seek>(target: W, arrays: &[(String, Tensor)]) -> io::Result<W> {
    let mut zip = ZipWriter::new(target);
    for (name, tensor) in arrays {
        let header = npy::encode_header(tensor.dtype(), tensor.dims());
        let large = (header.len() + tensor.bytes().len()) as u64 >= u64::from(u32::MAX);
        let options = SimpleFileOptions::DEFAULT
            .compression_method(CompressionMethod::Stored)
            .large_file(large)
            .unix_permissions(0o644);
        zip.start_file(format!("{name}.npy"), options)?;
        zip.write_all(&header)?;
        zip.write_all(tensor.bytes())?;
    }
    Ok(zip.finish()?)
}
