//! Arrays in npz, safetensors, GGUF and Keras (HDF5) files: weights, inputs, expected results.
//!
//! A file is opened by content, its arrays are read one at a time by name. Nothing is allocated on
//! a header's word alone: sizes are checked against the file first, and [`load_params`] compares
//! a header with the parameter before any data is read.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Report, Result};
use crate::files;
use crate::ir::{BlockFormat, DType, Graph, Tensor};

mod adapter;
mod checkpoint;
mod coded;
mod extra;
mod floats;
mod gguf;
mod hdf5;
mod keras;
mod merge;
mod npy;
mod npz;
mod numbers;
mod params;
mod safetensors;
mod scaled;
mod stream;

pub use adapter::{CONFIG as ADAPTER, apply_adapter};
pub use checkpoint::{shard_of, weights_in};
#[cfg(feature = "run")]
pub(crate) use npz::write_npz_with;
pub use npz::{check_npz_names, write_npz};
pub use params::{Loaded, ParamReader, load_params, match_params};
pub use stream::Rows;

/// An open file of named arrays.
#[derive(Debug)]
pub struct Arrays {
    path: PathBuf,
    names: Vec<String>,
    source: Source,
    /// Matrices that several of its arrays make.
    coded: Option<coded::Coded>,
}

#[derive(Debug)]
enum Source {
    Npz(npz::Npz),
    Safetensors(safetensors::Safetensors),
    Hdf5(hdf5::Hdf5),
    Gguf(gguf::Gguf),
    Shards(checkpoint::Shards),
}

impl Arrays {
    /// Opens an npz, safetensors, GGUF, HDF5 or `.keras` file, told apart by content. Errors: it cannot be
    /// read, is none of them, or its directory is damaged. O(arrays).
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let mut file = BufReader::new(files::open(path)?);
        let mut magic = Vec::new();
        let read = (&mut file).take(16).read_to_end(&mut magic);
        read.map_err(|error| Error::io(place.as_str(), error))?;
        Self::open_as(file, &magic, path).map_err(|error| error.within(&place))
    }

    /// Opens a safetensors file. Errors: those of [`Arrays::open`]; it is of another format.
    pub fn open_safetensors(path: &Path) -> Result<Self> {
        let file = BufReader::new(files::open(path)?);
        let (names, safetensors) = safetensors::Safetensors::open(file)
            .map_err(|error| error.within(&path.display().to_string()))?;
        Ok(Self { path: path.to_owned(), names, source: Source::Safetensors(safetensors), coded: None })
    }

    fn open_as(mut file: BufReader<File>, magic: &[u8], path: &Path) -> Result<Self> {
        let (names, source) = match magic {
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => match npz::keras_weights(&mut file, path)? {
                Some(section) => hdf5_source(section)?,
                None => {
                    let (names, npz) = npz::Npz::open(file)?;
                    (names, Source::Npz(npz))
                }
            },
            [_, _, _, _, _, _, _, _, b'{', ..] => {
                let (names, safetensors) = safetensors::Safetensors::open(file)?;
                (names, Source::Safetensors(safetensors))
            }
            [0x89, b'H', b'D', b'F', ..] => {
                let file = file.into_inner();
                let length = file.metadata().map_err(damaged)?.len();
                hdf5_source(hdf5::Section::File { file: Mutex::new(file), start: 0, length })?
            }
            [b'G', b'G', b'U', b'F', ..] => {
                let (names, gguf) = gguf::Gguf::open(file)?;
                (names, Source::Gguf(gguf))
            }
            [0x80, 2..=5, ..] => return Err(pickled()),
            _ => {
                return Err(Error::format("", "no npz, safetensors, GGUF, HDF5 or Keras file")
                    .with_help("numpy.savez, safetensors.save_file and model.save write them"));
            }
        };
        Ok(Self { path: path.to_owned(), names, source, coded: None })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that holds an array: one of several where this is an index of shards, but the index where what belongs to
    /// it may be in another.
    pub fn file_of(&self, name: &str) -> &Path {
        match &self.source {
            Source::Shards(_) if self.is_coded(name) || self.scale_of(name).is_some() => &self.path,
            Source::Shards(shards) => shards.of(name).map_or(&self.path, |arrays| &arrays.path),
            Source::Npz(_) | Source::Safetensors(_) | Source::Hdf5(_) | Source::Gguf(_) => &self.path,
        }
    }

    /// Whether it is a file of GGUF.
    pub fn is_gguf(&self) -> bool {
        matches!(self.source, Source::Gguf(_))
    }

    /// Names of the arrays, in the order of the file.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Element type and sizes of an array, without its data; none where there is no such array.
    /// Errors: a damaged header, an element type that is not supported.
    pub fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        match self.coded_header(name)? {
            Some(header) => Ok(Some(header)),
            None => self.raw_header(name),
        }
    }

    /// As [`Arrays::header`], of an array of the file.
    fn raw_header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        match &self.source {
            Source::Npz(npz) => npz.header(name),
            Source::Safetensors(safetensors) => safetensors.header(name),
            Source::Hdf5(hdf5) => hdf5.header(name),
            Source::Gguf(gguf) => gguf.header(name),
            Source::Shards(shards) => return shards.header(name),
        }
        .map_err(|error| self.at(error, name))
    }

    /// An array; none where there is none of this name. Floats of 8 bits are given as f32, times their scale where
    /// there is one beside them, and so are coded matrices ([`Arrays::read_as`]). Errors: damaged data, an element type that is not supported.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        if let Some(numbers) = self.coded_numbers(name)? {
            return Ok(Some(numbers));
        }
        match (self.raw(name)?, self.scale_of(name)) {
            (Some(weight), Some(scale)) => {
                self.scaled(&weight, &scale).map(Some).map_err(|error| self.at(error, name))
            }
            (found, _) => Ok(found),
        }
    }

    /// An array as it is in the file.
    fn raw(&self, name: &str) -> Result<Option<Tensor>> {
        match &self.source {
            Source::Npz(npz) => npz.get(name),
            Source::Safetensors(safetensors) => safetensors.get(name),
            Source::Hdf5(hdf5) => hdf5.get(name),
            Source::Gguf(gguf) => gguf.get(name),
            Source::Shards(shards) => return shards.raw(name),
        }
        .map_err(|error| self.at(error, name))
    }

    /// The blocks of few bits that an array's numbers are in; none where they are in none, and where there is no such array.
    /// Error: an element type that is not supported.
    pub fn blocks(&self, name: &str) -> Result<Option<BlockFormat>> {
        if let Some(format) = self.coded_blocks(name) {
            return Ok(Some(format));
        }
        match &self.source {
            Source::Gguf(gguf) => gguf.blocks(name).map_err(|error| self.at(error, name)),
            Source::Shards(shards) => shards.of(name).map_or(Ok(None), |arrays| arrays.blocks(name)),
            Source::Npz(_) | Source::Safetensors(_) | Source::Hdf5(_) => Ok(None),
        }
    }

    /// The rows of an array as the bytes of the blocks that its numbers are in ([`Arrays::blocks`]); none where they are in
    /// none. Errors: as [`Arrays::get`].
    pub fn rows_of_blocks(&self, name: &str) -> Result<Option<Tensor>> {
        if let Some(rows) = self.coded_rows(name)? {
            return Ok(Some(rows));
        }
        match &self.source {
            Source::Gguf(gguf) => gguf.rows_of_blocks(name).map_err(|error| self.at(error, name)),
            Source::Shards(shards) => shards.of(name).map_or(Ok(None), |arrays| arrays.rows_of_blocks(name)),
            Source::Npz(_) | Source::Safetensors(_) | Source::Hdf5(_) => Ok(None),
        }
    }

    /// An array read row by row, without holding it; none where there is none of this name. Errors:
    /// as [`Arrays::get`]; an array without axes, or in column-major order.
    pub fn rows(&self, name: &str) -> Result<Option<Rows>> {
        match &self.source {
            Source::Npz(npz) => npz.rows(&self.path, name),
            Source::Safetensors(safetensors) => safetensors.rows(&self.path, name),
            Source::Shards(shards) => return shards.of(name).map_or(Ok(None), |arrays| arrays.rows(name)),
            Source::Hdf5(_) | Source::Gguf(_) => Err(Error::Unsupported(
                Report::new("", "arrays of such files are not read in parts").help("numpy.savez"),
            )),
        }
        .map_err(|error| self.at(error, name))
    }

    /// The array of each parameter of the graph, where this is a file of Keras; none where it is not.
    fn of_keras(&self, graph: &Graph) -> Result<Option<Vec<Option<String>>>> {
        let Source::Hdf5(hdf5) = &self.source else { return Ok(None) };
        let place = |error: Error| error.within(&self.path.display().to_string());
        let Some(layers) = keras::layers(hdf5).map_err(place)? else { return Ok(None) };
        let dims = |path: &str| {
            let header = hdf5.header(path)?;
            header.map(|(_, dims)| dims).ok_or_else(|| Error::Internal("a dataset that was found".into()))
        };
        keras::assign(graph, &layers, &dims).map(Some).map_err(place)
    }

    fn at(&self, error: Error, name: &str) -> Error {
        error.within(&format!("{}: array {name}", self.path.display()))
    }
}

/// The JSON of the model in a `.keras` archive, or in the HDF5 of `model.save`; none for other files.
///
/// Errors: a damaged file, an entry that is larger than any model.
#[cfg(feature = "keras")]
pub(super) fn keras_model(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut file = BufReader::new(files::open(path)?);
    let mut magic = [0; 2];
    file.read_exact(&mut magic).map_err(damaged)?;
    if magic == *b"PK" {
        return npz::entry(file, "config.json");
    }
    let file = file.into_inner();
    let length = file.metadata().map_err(damaged)?.len();
    let section = hdf5::Section::File { file: Mutex::new(file), start: 0, length };
    let texts = hdf5::Hdf5::open(section)?.texts("", "model_config")?;
    Ok(texts.and_then(|texts| texts.into_iter().next()).map(String::into_bytes))
}

fn hdf5_source(section: hdf5::Section) -> Result<(Vec<String>, Source)> {
    let hdf5 = hdf5::Hdf5::open(section)?;
    Ok((hdf5.names(), Source::Hdf5(hdf5)))
}

/// So many bytes of a file from a place on, which the caller knows to be there.
fn bytes_at(file: &Mutex<BufReader<File>>, start: u64, count: u64) -> Result<Vec<u8>> {
    let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(start)).map_err(damaged)?;
    let mut bytes = Vec::with_capacity(usize::try_from(count).map_err(damaged)?);
    (&mut *file).take(count).read_to_end(&mut bytes).map_err(damaged)?;
    Ok(bytes)
}

/// A failed read of an open file, as an error without a place: the caller adds it.
fn damaged(error: impl std::fmt::Display) -> Error {
    Error::format("", format!("cannot be read: {error}"))
}

/// The error for a file of `torch.save`.
fn pickled() -> Error {
    Error::Unsupported(
        Report::new("", "this is a pickle of PyTorch, which is not read: it holds programs beside arrays")
            .help("save_pretrained or safetensors.torch.save_file write what is"),
    )
}

/// Number of bytes of an array. Error: it overflows.
fn byte_count(dtype: DType, dims: &[u64]) -> Result<u64> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let bytes = dims.iter().try_fold(dtype.size(), |product, &dim| product.checked_mul(dim));
    let bytes = bytes.filter(|&bytes| i64::try_from(bytes).is_ok());
    bytes.ok_or_else(|| Error::format("", format!("its sizes {dims:?} overflow")))
}

/// Any byte but 0 as 1, which is what a bool is here.
fn normalise(dtype: DType, bytes: &mut [u8]) {
    if dtype == DType::Bool {
        for byte in bytes {
            *byte = u8::from(*byte != 0);
        }
    }
}
