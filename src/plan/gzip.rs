//! Files compressed with gzip (RFC 1952): recognised by their first bytes when read, made where
//! the name ends in `.gz`.

use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// What a file holds, decompressed where it is compressed; `place` (its name) begins messages.
///
/// Errors: [`Error::Format`] where it is damaged, or holds more than 4 GiB;
/// [`Error::Unsupported`] in a build without feature `gzip`.
pub fn decompressed(bytes: Vec<u8>, place: &str) -> Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    unpack(&bytes, place)
}

/// True where a file of this name is to be compressed.
pub fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// The most that a file may hold: a small one can claim to hold anything.
#[cfg(feature = "gzip")]
const MOST: u64 = 1 << 32;

#[cfg(feature = "gzip")]
fn unpack(bytes: &[u8], place: &str) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut plain = Vec::new();
    let mut reader = flate2::read::MultiGzDecoder::new(bytes).take(MOST + 1);
    reader
        .read_to_end(&mut plain)
        .map_err(|error| Error::format(place, format!("is damaged gzip: {error}")))?;
    if plain.len() as u64 > MOST {
        return Err(Error::format(place, format!("holds more than {}", crate::units::Bytes(MOST))));
    }
    Ok(plain)
}

#[cfg(not(feature = "gzip"))]
fn unpack(_: &[u8], place: &str) -> Result<Vec<u8>> {
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
        assert!(is_compressed(Path::new("plan.json.gz")) && !is_compressed(Path::new("plan.json")));
    }
}
