//! The npy format (NumPy Enhancement Proposal 1), versions 1 to 3: a short Python literal, then
//! raw elements.

use std::io::Read;

use super::{byte_count, damaged, normalise};
use crate::error::{Error, Report, Result};
use crate::ir::{DType, Tensor};

/// NumPy writes about 100 bytes and itself refuses more than 10,000.
const LONGEST_HEADER: u64 = 64 * 1024;

/// What the header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    /// Of complex numbers with an axis of 2 behind, of their parts.
    pub(super) dims: Vec<u64>,
    is_complex: bool,
    /// Bytes of an element stand most significant first.
    big_endian: bool,
    /// The first axis varies fastest.
    fortran: bool,
}

impl Header {
    /// Whether elements are not in the order of rows.
    pub(super) fn is_column_major(&self) -> bool {
        self.fortran && self.own_dims().len() > 1
    }

    /// The sizes as the file states them.
    fn own_dims(&self) -> &[u64] {
        &self.dims[..self.dims.len() - usize::from(self.is_complex)]
    }

    /// Whether bytes of an element stand most significant first.
    pub(super) fn is_big_endian(&self) -> bool {
        self.big_endian
    }
}

/// Reads the header and leaves `reader` at the data.
pub(super) fn header(reader: &mut impl Read) -> Result<Header> {
    let mut fixed = [0u8; 8];
    reader.read_exact(&mut fixed).map_err(damaged)?;
    let [0x93, b'N', b'U', b'M', b'P', b'Y', version, _] = fixed else {
        return Err(Error::format("", "not in the npy format"));
    };
    let mut length = [0u8; 4];
    let width = match version {
        1 => 2,
        2 | 3 => 4,
        other => return Err(Error::format("", format!("npy version {other} is not known"))),
    };
    reader.read_exact(&mut length[..width]).map_err(damaged)?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > LONGEST_HEADER {
        return Err(Error::format("", format!("a header of {length} bytes is too long")));
    }
    let mut text = Vec::new();
    reader.take(length).read_to_end(&mut text).map_err(damaged)?;
    if text.len() as u64 != length {
        return Err(Error::format("", "its header is cut off"));
    }
    parse(&String::from_utf8_lossy(&text))
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &str) -> Result<Header> {
    let wrong = |key: &str| Error::format("", format!("its header has no valid '{key}'"));
    let field = |key: &str| -> Result<&str> {
        let quoted = [format!("'{key}'"), format!("\"{key}\"")];
        let after = quoted.iter().find_map(|quoted| text.split_once(quoted.as_str()));
        let after = after.and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
        after.map(str::trim_start).ok_or_else(|| wrong(key))
    };
    let descr = field("descr")?;
    let quote = descr.chars().next().filter(|&c| c == '\'' || c == '"');
    let Some(quote) = quote else {
        return Err(Error::Unsupported(Report::new("", "structured element types are not supported")));
    };
    let descr = descr[1..].split_once(quote).ok_or_else(|| wrong("descr"))?.0;
    let Element { dtype, is_complex, big_endian } = element(descr)?;
    let order = field("fortran_order")?;
    let fortran = match (order.starts_with("True"), order.starts_with("False")) {
        (true, _) => true,
        (_, true) => false,
        _ => return Err(wrong("fortran_order")),
    };
    let shape = field("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (shape, _) = shape.ok_or_else(|| wrong("shape"))?;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let dims: Result<Vec<u64>> = sizes.map(|size| size.parse().map_err(|_| wrong("shape"))).collect();
    let mut dims = dims?;
    dims.extend(is_complex.then_some(2));
    Ok(Header { dtype, dims, is_complex, big_endian, fortran })
}

/// What a NumPy type string says.
struct Element {
    /// Of complex numbers that of their parts.
    dtype: DType,
    is_complex: bool,
    big_endian: bool,
}

/// The element type of a NumPy type string. Two opaque bytes are read as bfloat16, which NumPy itself does not know.
fn element(descr: &str) -> Result<Element> {
    let (order, kind) = match descr.chars().next() {
        Some('<' | '>' | '|' | '=') => descr.split_at(1),
        _ => ("<", descr),
    };
    let dtype = match kind {
        "f4" | "c8" => DType::F32,
        "f8" | "c16" => DType::F64,
        "f2" => DType::F16,
        "V2" => DType::Bf16,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" => DType::Bool,
        _ => {
            let message = format!("element type '{descr}' is not supported");
            return Err(Error::Unsupported(Report::new("", message)));
        }
    };
    Ok(Element { dtype, is_complex: kind.starts_with('c'), big_endian: order == ">" })
}

/// Reads the data after `header`. `available` bounds how many bytes there can be.
pub(super) fn data(reader: &mut impl Read, header: &Header, available: u64) -> Result<Tensor> {
    let expected = byte_count(header.dtype, &header.dims)?;
    let cut_off = |found: u64| Error::format("", format!("it has {found} bytes of data, not {expected}"));
    if expected > available {
        return Err(cut_off(available));
    }
    let mut bytes = Vec::new();
    reader.take(expected).read_to_end(&mut bytes).map_err(damaged)?;
    if bytes.len() as u64 != expected {
        return Err(cut_off(bytes.len() as u64));
    }
    let size = header.dtype.size() as usize;
    if header.big_endian && size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    normalise(header.dtype, &mut bytes);
    // Strides of no elements can overflow.
    if header.is_column_major() && !bytes.is_empty() {
        let parts = if header.is_complex { 2 } else { 1 };
        bytes = row_major(&bytes, header.own_dims(), size * parts);
    }
    Tensor::new(header.dtype, header.dims.clone(), bytes)
}

/// The elements of a column-major array in row-major order. O(elements), a stride per axis.
fn row_major(bytes: &[u8], dims: &[u64], size: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(dims.len());
    let mut stride = size;
    for &dim in dims {
        strides.push(stride);
        stride *= dim as usize;
    }
    let mut coordinates = vec![0u64; dims.len()];
    let mut from = 0;
    let mut result = Vec::with_capacity(bytes.len());
    while result.len() < bytes.len() {
        result.extend_from_slice(&bytes[from..from + size]);
        for axis in (0..dims.len()).rev() {
            coordinates[axis] += 1;
            from += strides[axis];
            if coordinates[axis] < dims[axis] {
                break;
            }
            from -= strides[axis] * dims[axis] as usize;
            coordinates[axis] = 0;
        }
    }
    result
}

/// The header of a row-major array, padded so that the data begins at a multiple of 64 bytes.
pub(super) fn encode_header(dtype: DType, dims: &[u64]) -> Vec<u8> {
    encode(descr(dtype), dims)
}

/// As [`encode_header`], of complex numbers whose parts are the last axis; none where NumPy has no such.
pub(super) fn encode_complex_header(dtype: DType, dims: &[u64]) -> Option<Vec<u8>> {
    let [dims @ .., 2] = dims else { return None };
    match dtype {
        DType::F32 => Some(encode("<c8", dims)),
        DType::F64 => Some(encode("<c16", dims)),
        _ => None,
    }
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::Bf16 => "|V2",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
    }
}

fn encode(descr: &str, dims: &[u64]) -> Vec<u8> {
    let mut shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    if dims.len() > 1 {
        shape.truncate(shape.len() - 2);
    } else {
        shape.truncate(shape.trim_end().len());
    }
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Version 1 holds 65,535 bytes of header; ranks that need more do not exist.
    let padding = 63 - (10 + text.len()) % 64;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(descr: &str, order: &str, shape: &str, data: &[u8]) -> Result<Tensor> {
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        let mut reader = bytes.as_slice();
        let header = header(&mut reader)?;
        super::data(&mut reader, &header, 1000)
    }

    #[test]
    fn either_byte_order_and_axis_order_is_read() {
        let row = read("|i1", "False", "(2, 3)", &[1, 2, 3, 4, 5, 6]).unwrap();
        let column = read("|i1", "True", "(2, 3)", &[1, 4, 2, 5, 3, 6]).unwrap();
        assert_eq!(row, column);
        let big = read(">i2", "False", "(2,)", &[0, 1, 1, 0]).unwrap();
        assert_eq!(big.to_i64().unwrap(), [1, 256]);
        assert_eq!(read("<f4", "False", "()", &[0, 0, 128, 63]).unwrap().to_f32().unwrap(), [1.0]);
        let none = read("<f4", "True", "(1099511627776, 1099511627776, 0)", &[]);
        assert!(none.is_ok_and(|none| none.bytes().is_empty()));
        assert_eq!(read("|b1", "False", "(2,)", &[0, 7]).unwrap().bytes(), [0, 1]);
    }

    #[test]
    fn sizes_are_not_trusted() {
        assert!(read("|i1", "False", "(2,)", &[1]).is_err());
        assert!(read("<f8", "False", "(99999999999, 99999999999)", &[]).is_err());
        assert!(read("<f8", "False", "(100000000,)", &[0; 8]).is_err());
        assert!(read("<f8", "False", "(-1,)", &[]).is_err());
        assert!(read("<c8", "False", "(1,)", &[0; 4]).is_err());
        assert!(header(&mut b"\x93NUMPY\x02\x00\xff\xff\xff\xff".as_slice()).is_err());
        assert!(header(&mut b"\x93NUM".as_slice()).is_err());
    }

    #[test]
    fn a_written_header_reads_back() {
        for dims in [vec![], vec![3], vec![3, 4], vec![0, 1, 2]] {
            let bytes = encode_header(DType::F16, &dims);
            assert_eq!(bytes.len() % 64, 0);
            let (is_complex, big_endian, fortran) = (false, false, false);
            let expected = Header { dtype: DType::F16, dims, is_complex, big_endian, fortran };
            assert_eq!(header(&mut bytes.as_slice()).unwrap(), expected);
        }
    }

    #[test]
    fn complex_numbers_are_read_and_written_with_an_axis_of_their_parts() {
        let data: Vec<u8> = (0..6u8).flat_map(|number| f32::from(number).to_le_bytes()).collect();
        let row = read("<c8", "False", "(3,)", &data).unwrap();
        assert_eq!((row.dims(), row.to_f32().unwrap()), (&[3, 2][..], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        let data: Vec<u8> = (0..8u8).flat_map(|number| f64::from(number).to_be_bytes()).collect();
        let column = read(">c16", "True", "(2, 2)", &data).unwrap();
        assert_eq!((column.dtype(), column.dims()), (DType::F64, &[2, 2, 2][..]));
        assert_eq!(column.to_f64(), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        let text = encode_complex_header(DType::F32, &[3, 2]).unwrap();
        let expected = header(&mut text.as_slice()).unwrap();
        assert!(expected.is_complex && expected.dims == [3, 2] && expected.own_dims() == [3]);
        assert!(encode_complex_header(DType::F32, &[3]).is_none());
        assert!(encode_complex_header(DType::F16, &[3, 2]).is_none());
    }
}
