//! Archives of NumPy's arrays, read anew from the two formats' descriptions (APPNOTE.TXT 6.3 and NEP 1): what the
//! library writes and reads is compared with this, which shares nothing with it but the inflater.

use std::collections::BTreeMap;
use std::io::Read;

/// An array as it is stored: row by row.
pub(crate) struct Array {
    /// `<f4`
    pub(crate) descr: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

fn number(bytes: &[u8], at: usize, width: usize) -> usize {
    bytes[at..at + width].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// The arrays of an archive by name.
pub(crate) fn arrays(archive: &[u8]) -> BTreeMap<String, Array> {
    let end = archive.windows(4).rposition(|four| four == b"PK\x05\x06").expect("an archive's end");
    let (count, mut at) = (number(archive, end + 10, 2), number(archive, end + 16, 4));
    let mut found = BTreeMap::new();
    for _ in 0..count {
        assert_eq!(&archive[at..at + 4], b"PK\x01\x02", "an entry of the directory");
        let [method, packed, name, extra, comment, start] =
            [(10, 2), (20, 4), (28, 2), (30, 2), (32, 2), (42, 4)]
                .map(|(from, width)| number(archive, at + from, width));
        let file = std::str::from_utf8(&archive[at + 46..at + 46 + name]).expect("a name");
        let from = start + 30 + number(archive, start + 26, 2) + number(archive, start + 28, 2);
        let raw = &archive[from..from + packed];
        let bytes = match method {
            0 => raw.to_vec(),
            8 => {
                let mut bytes = Vec::new();
                flate2::read::DeflateDecoder::new(raw).read_to_end(&mut bytes).expect("deflated");
                bytes
            }
            other => panic!("{file}: method {other}"),
        };
        found.insert(file.strip_suffix(".npy").expect("an array").to_owned(), array(file, &bytes));
        at += 46 + name + extra + comment;
    }
    found
}

fn array(file: &str, bytes: &[u8]) -> Array {
    assert_eq!(&bytes[..6], b"\x93NUMPY", "{file}");
    let (from, width) = if bytes[6] == 1 { (10, 2) } else { (12, 4) };
    let end = from + number(bytes, 8, width);
    let header = std::str::from_utf8(&bytes[from..end]).expect("text");
    // {'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }
    let after = |key: &str| header.split(&format!("'{key}':")).nth(1).expect("a key").trim_start();
    assert!(after("fortran_order").starts_with("False"), "{file}: {header}");
    let shape = after("shape").trim_start_matches('(').split(')').next().expect("a shape");
    let dims = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    Array {
        descr: after("descr").split('\'').nth(1).expect("a type").to_owned(),
        dims: dims.map(|size| size.parse().expect("a size")).collect(),
        bytes: bytes[end..].to_vec(),
    }
}
