//! Files compressed with gzip (RFC 1952): recognised by their first bytes when read, made where
//! the name ends in `.gz`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// The most that a file may hold: an ONNX file ends at 2 GiB, and a pipe at nothing.
const MOST: u64 = 1 << 32;

/// The most that a compressed file may hold for each of its own bytes. JSON shrinks by 10 to 30; deflate
/// could make 1,000 bytes of one.
#[cfg(feature = "gzip")]
const RATIO: u64 = 100;

/// Allowed in any case.
#[cfg(feature = "gzip")]
const SMALL: u64 = 1 << 26;

/// By so many bytes it shows what a file is.
const START: usize = 1 << 16;

/// What a file holds, decompressed where it is compressed; `place` (its name) begins messages.
///
/// Errors: [`Error::Format`] where it is damaged, or holds more than 100 times its own size (and 64 MiB),
/// or 4 GiB; [`Error::Unsupported`] in a build without feature `gzip`.
pub fn decompressed(bytes: Vec<u8>, place: &str) -> Result<Vec<u8>> {
    if !bytes.starts_with(&MAGIC) {
        return Ok(bytes);
    }
    read_decompressed(&mut &bytes[..], place, |_| Sense::ReadOn)
}

/// What the first bytes of a file say about the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    /// It may be what is wanted.
    ReadOn,
    /// It is not, so no more than its start is returned.
    Stop,
}

/// Reads a file to its end as [`decompressed`] does, unless its first bytes make no sense to `judge`.
///
/// Errors: those of [`decompressed`]; it cannot be read, or does not fit into memory.
pub(crate) fn read_decompressed(
    source: &mut dyn Read,
    place: &str,
    judge: impl Fn(&[u8]) -> Sense,
) -> Result<Vec<u8>> {
    let mut source = BufReader::with_capacity(START, source);
    let start = source.fill_buf().map_err(|error| Error::io(place, error))?;
    if start.starts_with(&MAGIC) {
        return unpack(source, place, judge);
    }
    read_judged(&mut source, judge, |read| match read {
        0..=MOST => Ok(()),
        _ => Err(too_much(place)),
    })
    .map_err(|stopped| match stopped {
        Stopped::Failed(error) => Error::io(place, error),
        Stopped::Refused(error) => error,
    })
}

const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why reading ended early.
enum Stopped {
    Failed(io::Error),
    Refused(Error),
}

/// Reads to the end, piece by piece; `bound` is asked after each about what has been read.
fn read_judged(
    source: &mut dyn Read,
    judge: impl Fn(&[u8]) -> Sense,
    bound: impl Fn(u64) -> Result<()>,
) -> Result<Vec<u8>, Stopped> {
    let mut read = Vec::new();
    let mut piece = START;
    loop {
        let before = read.len();
        source.take(piece as u64).read_to_end(&mut read).map_err(Stopped::Failed)?;
        if read.len() - before < piece || (before == 0 && judge(&read) == Sense::Stop) {
            return Ok(read);
        }
        bound(read.len() as u64).map_err(Stopped::Refused)?;
        piece = 1 << 20;
    }
}

fn too_much(place: &str) -> Error {
    Error::format(place, format!("holds more than {}", crate::units::Bytes(MOST)))
}

/// True where a file of this name is to be compressed.
pub fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

#[cfg(feature = "gzip")]
fn unpack(source: impl Read, place: &str, judge: impl Fn(&[u8]) -> Sense) -> Result<Vec<u8>> {
    let packed = std::cell::Cell::new(0);
    let counted = Counted { source, count: &packed };
    let mut reader = flate2::read::MultiGzDecoder::new(counted);
    let bound = |read: u64| {
        if read > MOST {
            return Err(too_much(place));
        }
        if read > packed.get().saturating_mul(RATIO).max(SMALL) {
            let message = format!("holds more than {RATIO} times its own size");
            return Err(Error::format(place, message).with_help("decompress it with gunzip"));
        }
        Ok(())
    };
    read_judged(&mut reader, judge, bound).map_err(|stopped| match stopped {
        Stopped::Failed(error) => Error::format(place, format!("is damaged gzip: {error}")),
        Stopped::Refused(error) => error,
    })
}

/// Counts what is read.
#[cfg(feature = "gzip")]
struct Counted<'c, R> {
    source: R,
    count: &'c std::cell::Cell<u64>,
}

#[cfg(feature = "gzip")]
impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

#[cfg(not(feature = "gzip"))]
fn unpack(_: impl Read, place: &str, _: impl Fn(&[u8]) -> Sense) -> Result<Vec<u8>> {
    Err(unsupported(place))
}

#[cfg(not(feature = "gzip"))]
fn unsupported(place: &str) -> Error {
    let report = crate::error::Report::new(place, "this build does not read or write gzip");
    Error::Unsupported(report.help("build with feature `gzip`, or decompress it"))
}

/// Streams what `fill` writes, compressed. The same input gives the same bytes: neither a time nor
/// a name is in them.
#[cfg(feature = "gzip")]
pub(super) fn compress(
    out: &mut dyn Write,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let encoder = flate2::GzBuilder::new().write(out, flate2::Compression::fast());
    // Plans are written in small pieces, each of which would cost the compressor a call.
    let mut buffered = io::BufWriter::with_capacity(1 << 16, encoder);
    fill(&mut buffered)?;
    let encoder = buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
    encoder.finish().map(|_| ())
}

#[cfg(not(feature = "gzip"))]
pub(super) fn compress(
    _: &mut dyn Write,
    _: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this build does not write gzip (feature `gzip`)"))
}

#[cfg(all(test, feature = "gzip"))]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_reads_back_and_is_the_same_each_time() {
        let text = b"a plan ".repeat(1000);
        let pack = || {
            let mut bytes = Vec::new();
            compress(&mut bytes, |out| out.write_all(&text)).unwrap();
            bytes
        };
        let packed = pack();
        assert!(packed.len() < text.len() / 10);
        assert_eq!(packed, pack());
        assert_eq!(decompressed(packed.clone(), "x").unwrap(), text);
        assert_eq!(decompressed(text.clone(), "x").unwrap(), text);
        let error = decompressed(packed[..packed.len() / 2].to_vec(), "plan.json.gz").unwrap_err();
        assert!(error.to_string().starts_with("plan.json.gz: is damaged gzip"), "{error}");
        let mut zeros = Vec::new();
        compress(&mut zeros, |out| (0..80).try_for_each(|_| out.write_all(&[b' '; 1 << 20]))).unwrap();
        let error = decompressed(zeros.clone(), "zeros.gz").unwrap_err().to_string();
        assert!(error.starts_with("zeros.gz: holds more than 100 times its own size"), "{error}");
        let start = read_decompressed(&mut &zeros[..], "zeros.gz", |_| Sense::Stop).unwrap();
        assert_eq!(start.len(), START);
        assert!(is_compressed(Path::new("plan.json.gz")) && !is_compressed(Path::new("plan.json")));
    }
}
