//! A specification opened: its files, the reader of their format, the arrays of each record.

use std::path::PathBuf;
use std::sync::Arc;

use super::arrays::ArrayReader;
use super::csv::CsvReader;
use super::fields::{Bound, Wish, wishes};
use super::raw::RawReader;
use super::reader::Reader;
use super::spec::{Format, From, Spec};
use super::synthetic::MadeReader;
use super::tfrecord::TfRecordReader;
use super::{Field, Role, files};
use crate::error::{Error, Result};
use crate::load::weights::Arrays;

/// Records that can be read, any number of times.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) files: Arc<[PathBuf]>,
    pub(super) reader: Arc<dyn Reader>,
    pub(super) bound: Arc<[Bound]>,
    fields: Vec<Field>,
}

impl Source {
    /// Opens a specification (see [`Spec`] for its grammar): finds its files, and in the first of
    /// them the arrays that are `wanted`. What the files hold is converted to the types wanted;
    /// without wishes, the files' own types are taken.
    ///
    /// Errors: [`Error::Usage`] where the specification is wrong or names what is not there,
    /// [`Error::Format`] and [`Error::Io`] where a file is damaged or cannot be read.
    pub fn open(spec: &str, wanted: &[Field]) -> Result<Self> {
        Self::of(&spec.parse()?, wanted)
    }

    /// As [`Source::open`], of a specification that was read.
    pub fn of(spec: &Spec, wanted: &[Field]) -> Result<Self> {
        Self::with_wishes(spec, wishes(spec, wanted)?)
    }

    /// Names and sizes of a record's inputs as the first file has them, whatever sizes are `wanted`; no size
    /// where records have different lengths, and no sizes at all where neither file nor specification says any.
    ///
    /// Errors: those of [`Source::open`], but for sizes that do not fit.
    pub fn sizes(spec: &str, wanted: &[Field]) -> Result<Vec<(String, Option<Vec<Option<u64>>>)>> {
        let spec: Spec = spec.parse()?;
        let mut wishes = wishes(&spec, wanted)?;
        for wish in &mut wishes {
            let declared = wish.options.shape.as_ref();
            wish.dims = declared.map(|shape| shape.iter().map(|&dim| Some(dim)).collect());
        }
        let made = matches!(spec.from, From::Made(_));
        let source = Self::with_wishes(&spec, wishes)?;
        let inputs = source.bound.iter().filter(|bound| bound.field.role == Role::Input);
        let sizes = inputs.map(|bound| {
            let options = &bound.options;
            let known = options.shape.is_some() || !made;
            let varies = options.list.is_some() || options.pad.is_some();
            let dims = if varies { vec![None] } else { bound.field.dims.clone() };
            (bound.field.name.clone(), known.then_some(dims))
        });
        Ok(sizes.collect())
    }

    /// What the arrays of a specification's first file are called; none where its format has no names for them.
    ///
    /// Errors: the specification is wrong; the file cannot be read.
    pub fn array_names(spec: &str) -> Result<Vec<String>> {
        let spec: Spec = spec.parse()?;
        let From::Files(patterns) = &spec.from else { return Ok(Vec::new()) };
        let files = files::expand(patterns)?;
        let Some(first) = files.first() else { return Ok(Vec::new()) };
        match spec.format.map_or_else(|| files::format_of(first), Ok)? {
            Format::Npz | Format::Safetensors => Ok(Arrays::open(first)?.names().to_vec()),
            Format::Csv | Format::TfRecord | Format::Raw => Ok(Vec::new()),
        }
    }

    /// Opens what the wishes ask for.
    fn with_wishes(spec: &Spec, wishes: Vec<Wish>) -> Result<Self> {
        let (files, (reader, bound)) = match &spec.from {
            From::Made(fill) => {
                let (reader, bound) = MadeReader::open(spec, *fill, wishes)?;
                (vec![PathBuf::new()], shared(reader, bound))
            }
            From::Files(patterns) => {
                let files = files::expand(patterns)?;
                let Some(first) = files.first() else {
                    return Err(Error::usage("--data", "no file is given"));
                };
                let format = spec.format.map_or_else(|| files::format_of(first), Ok)?;
                let opened = match format {
                    Format::Csv => CsvReader::open(first, spec, wishes).map(|(r, b)| shared(r, b)),
                    Format::Npz | Format::Safetensors => {
                        ArrayReader::open(first, wishes).map(|(r, b)| shared(r, b))
                    }
                    Format::TfRecord => TfRecordReader::open(first, wishes).map(|(r, b)| shared(r, b)),
                    Format::Raw => RawReader::open(spec, wishes).map(|(r, b)| shared(r, b)),
                }?;
                (files, opened)
            }
        };
        if bound.is_empty() {
            return Err(Error::usage("--data", "a record gives nothing"));
        }
        let fields = bound.iter().map(|bound| bound.field.clone()).collect();
        Ok(Self { files: files.into(), reader, bound: bound.into(), fields })
    }

    /// The arrays of a batch, inputs before targets.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The inputs among them.
    pub fn inputs(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.role == Role::Input)
    }

    /// The targets among them.
    pub fn targets(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.role == Role::Target)
    }

    /// The files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Number of records in one epoch, where the files say so without being read whole: not for CSV
    /// and TFRecord files. Malformed records are counted too.
    ///
    /// Error: a file cannot be read.
    pub fn records(&self) -> Result<Option<u64>> {
        let mut all = 0u64;
        for file in self.files.iter() {
            let Some(records) = self.reader.count(file)? else { return Ok(None) };
            all = all.saturating_add(records);
        }
        Ok(Some(all))
    }
}

fn shared(reader: impl Reader + 'static, bound: Vec<Bound>) -> (Arc<dyn Reader>, Vec<Bound>) {
    (Arc::new(reader), bound)
}
