//! Tensors of an ONNX file: element types, inline data, references to other files.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::narrow::{Narrow, STRING};
use super::proto::{EXTERNAL, TensorProto};
use crate::error::{Error, Report, Result};
use crate::files::{self, Folder};
use crate::ir::{DType, Data, Fan, Init, Real, Tensor};

/// The element type with ONNX's number. Error: it is not supported.
pub(super) fn dtype(number: i32) -> Result<DType> {
    const NAMES: [&str; 27] = [
        "UNDEFINED",
        "FLOAT",
        "UINT8",
        "INT8",
        "UINT16",
        "INT16",
        "INT32",
        "INT64",
        "STRING",
        "BOOL",
        "FLOAT16",
        "DOUBLE",
        "UINT32",
        "UINT64",
        "COMPLEX64",
        "COMPLEX128",
        "BFLOAT16",
        "FLOAT8E4M3FN",
        "FLOAT8E4M3FNUZ",
        "FLOAT8E5M2",
        "FLOAT8E5M2FNUZ",
        "UINT4",
        "INT4",
        "FLOAT4E2M1",
        "FLOAT8E8M0",
        "UINT2",
        "INT2",
    ];
    Ok(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::Bf16,
        other => {
            let name = usize::try_from(other).ok().and_then(|index| NAMES.get(index));
            let name = name.map_or_else(|| format!("number {other}"), ToString::to_string);
            return Err(Error::Unsupported(Report::new(
                "",
                format!("element type {name} is not supported yet"),
            )));
        }
    })
}

/// ONNX's number of an element type.
pub(in crate::load) const fn number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::Bf16 => 16,
    }
}

/// The type that holds elements of ONNX's number. Error: it is not supported.
pub(super) fn held(number: i32) -> Result<DType> {
    Narrow::from_number(number).map_or_else(|| dtype(number), |narrow| Ok(narrow.held()))
}

/// Type and sizes that a tensor states, whether or not its data is here.
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    pub(super) elements: u64,
}

/// The header of a tensor. Errors: an unsupported type, negative or overflowing sizes.
pub(super) fn header(proto: &TensorProto) -> Result<Header> {
    let dtype = held(proto.data_type)?;
    let wrong = || Error::model("", format!("sizes {:?} are negative or overflow", proto.dims));
    let dims: Vec<u64> =
        proto.dims.iter().map(|&dim| u64::try_from(dim)).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let product = dims.iter().filter(|&&dim| dim != 0).try_fold(dtype.size(), |n, &dim| n.checked_mul(dim));
    let bytes = product.filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or_else(wrong)?;
    let elements = if dims.contains(&0) { 0 } else { bytes / dtype.size() };
    Ok(Header { dtype, dims, elements })
}

/// A vector of texts.
pub(super) fn of_texts(texts: &[String]) -> TensorProto {
    let string_data: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
    TensorProto { dims: vec![texts.len() as i64], data_type: STRING, string_data, ..TensorProto::default() }
}

/// True where the data is in another file.
pub(super) fn is_external(proto: &TensorProto) -> bool {
    proto.data_location == EXTERNAL
}

/// The data of a tensor that holds it inline. Error: there is more or less than its sizes say.
pub(super) fn inline(proto: TensorProto, header: &Header) -> Result<Tensor> {
    if let Some(narrow) = Narrow::from_number(proto.data_type) {
        let packed = match proto.raw_data {
            Some(raw) => raw,
            None => proto.int32_data.iter().map(|&byte| byte as u8).collect(),
        };
        let bits = header.elements.checked_mul(u64::from(narrow.bits()));
        if bits.map(|bits| bits.div_ceil(8)) != Some(packed.len() as u64) {
            return Err(Error::model("", format!("its data has {} bytes", packed.len())));
        }
        let bytes = narrow.unpacked(&packed, header.elements as usize);
        return Tensor::new(header.dtype, header.dims.clone(), bytes);
    }
    let bytes = match proto.raw_data {
        Some(raw) if header.dtype == DType::Bool => raw.iter().map(|&byte| u8::from(byte != 0)).collect(),
        Some(raw) => raw,
        None => typed_data(&proto, header.dtype)?,
    };
    Tensor::new(header.dtype, header.dims.clone(), bytes)
}

fn typed_data(proto: &TensorProto, dtype: DType) -> Result<Vec<u8>> {
    let narrow = |value: i32| Error::model("", format!("{value} does not fit {dtype}"));
    let ints = &proto.int32_data;
    Ok(match dtype {
        DType::F32 => proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F64 => proto.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I32 => ints.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::Bool => ints.iter().map(|&v| u8::from(v != 0)).collect(),
        DType::U8 => ints.iter().map(|&v| u8::try_from(v).map_err(|_| narrow(v))).collect::<Result<_>>()?,
        DType::I8 => ints
            .iter()
            .map(|&v| i8::try_from(v).map(|v| v as u8).map_err(|_| narrow(v)))
            .collect::<Result<_>>()?,
        DType::I16 => {
            let values: Vec<i16> =
                ints.iter().map(|&v| i16::try_from(v).map_err(|_| narrow(v))).collect::<Result<_>>()?;
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        DType::U32 | DType::U64 => {
            let width = dtype.size() as usize;
            let fits = |value: u64| dtype == DType::U64 || u32::try_from(value).is_ok();
            if let Some(value) = proto.uint64_data.iter().find(|&&value| !fits(value)) {
                return Err(Error::model("", format!("{value} does not fit {dtype}")));
            }
            proto.uint64_data.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
        }
        DType::F16 | DType::Bf16 | DType::U16 => {
            let values: Vec<u16> =
                ints.iter().map(|&v| u16::try_from(v).map_err(|_| narrow(v))).collect::<Result<_>>()?;
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
    })
}

/// Reads elements of less than eight bits that are in another file: they are unpacked when they are bound. Errors: those of
/// [`external`]; the file is not there, or ends before.
pub(super) fn read_packed(proto: &mut TensorProto, header: &Header, folder: &Folder) -> Result<()> {
    let Some(narrow) = Narrow::from_number(proto.data_type).filter(|narrow| narrow.bits() < 8) else {
        return Ok(());
    };
    let bits = header.elements.checked_mul(u64::from(narrow.bits()));
    let bytes = bits.ok_or_else(|| Error::model("", "its elements are too many"))?.div_ceil(8);
    embed_bytes(proto, bytes, folder)
}

/// Takes the data of a tensor that is in another file into it. Errors: those of [`read_packed`].
pub(super) fn embed(proto: &mut TensorProto, folder: &Folder) -> Result<()> {
    if !is_external(proto) {
        return Ok(());
    }
    let header = header(proto)?;
    read_packed(proto, &header, folder)?;
    if is_external(proto) {
        embed_bytes(proto, header.elements * header.dtype.size(), folder)?;
    }
    proto.external_data.clear();
    Ok(())
}

fn embed_bytes(proto: &mut TensorProto, bytes: u64, folder: &Folder) -> Result<()> {
    let Place { path, offset, length } = place_of(proto, bytes, folder)?;
    let failed = |error: std::io::Error| Error::model(path.display().to_string(), error.to_string());
    let mut file = files::open(&path)?;
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut packed = Vec::new();
    file.take(length).read_to_end(&mut packed).map_err(failed)?;
    if packed.len() as u64 != length {
        return Err(Error::model(
            path.display().to_string(),
            format!("it ends before byte {}", offset + length),
        ));
    }
    proto.raw_data = Some(packed);
    proto.data_location = 0;
    Ok(())
}

/// Where the data of an external tensor is. Errors: a location that leaves the model's
/// directory, a length that is not the tensor's.
pub(super) fn external(proto: &TensorProto, header: &Header, folder: &Folder) -> Result<Data> {
    let Place { path, offset, length } = place_of(proto, header.elements * header.dtype.size(), folder)?;
    Ok(Data::File { path, offset, length })
}

/// Bytes of another file.
struct Place {
    path: PathBuf,
    offset: u64,
    length: u64,
}

/// Where a tensor of so many bytes lies.
fn place_of(proto: &TensorProto, bytes: u64, folder: &Folder) -> Result<Place> {
    let entry =
        |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|e| e.value.as_str());
    let number = |key: &str| -> Result<Option<u64>> {
        let Some(text) = entry(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Error::model("", format!("external {key} {text:?} is no number")))
    };
    let path = folder.path(entry("location").unwrap_or_default())?;
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?.unwrap_or(bytes);
    if length != bytes || offset.checked_add(length).is_none() {
        return Err(Error::model(
            "",
            format!("external data has {length} bytes at {offset}, the tensor takes {bytes}"),
        ));
    }
    Ok(Place { path, offset, length })
}

/// How a parameter without data starts: kernels and embeddings (two axes or more) Glorot uniform;
/// vectors that scale, by their name, one; others, biases among them, zero.
pub(super) fn initialiser(name: &str, header: &Header) -> Init {
    if !header.dtype.is_float() {
        return Init::zeros();
    }
    match header.dims.len() {
        0 | 1 => {
            let name = name.to_lowercase();
            let scales =
                ["weight", "var", "variance", "scale", "gamma"].iter().any(|end| name.ends_with(end));
            let one = !name.contains("bias") && (scales || name.contains("norm"));
            if one { Init::ones() } else { Init::zeros() }
        }
        2 => Init::glorot_uniform(),
        // Convolution kernels stand [out, in, ...] here, so the inputs of a unit are what
        // one output reads, and He's uniform initialiser is the customary one.
        _ => Init::VarianceScaling {
            scale: Real(2.0),
            fan: Fan::In,
            distribution: crate::ir::Distribution::Uniform,
        },
    }
}

/// A tensor of one number, rounded to nearest even where the type is a float, towards zero else.
pub(super) fn scalar(dtype: DType, value: f64) -> Result<Tensor> {
    Tensor::new(dtype, Vec::new(), encode(dtype, value))
}

/// The bytes of one number.
pub(super) fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F16 => f16_bits(value as f32).to_le_bytes().to_vec(),
        DType::Bf16 => bf16_bits(value as f32).to_le_bytes().to_vec(),
        DType::I8 => (value as i8).to_le_bytes().to_vec(),
        DType::I16 => (value as i16).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U8 => (value as u8).to_le_bytes().to_vec(),
        DType::U16 => (value as u16).to_le_bytes().to_vec(),
        DType::U32 => (value as u32).to_le_bytes().to_vec(),
        DType::U64 => (value as u64).to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(value != 0.0)],
    }
}

/// The bytes of one integer.
pub(super) fn encode_integer(dtype: DType, value: i64) -> Vec<u8> {
    match dtype {
        DType::I64 | DType::U64 => value.to_le_bytes().to_vec(),
        other => encode(other, value as f64),
    }
}

/// IEEE binary16 bits of the nearest number, ties to even; NaN stays one.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    if magnitude < 6.103_515_6e-5 {
        // Subnormal: units of 2^-24.
        return sign | (magnitude * 16_777_216.0).round_ties_even() as u16;
    }
    let bits = magnitude.to_bits() - (112 << 23);
    let rounded = bits + 0xfff + ((bits >> 13) & 1);
    sign | (rounded >> 13) as u16
}

/// The upper half of the nearest binary32, ties to even; NaN stays one.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::files::Links;

    #[test]
    fn halves_round_to_nearest_even() {
        for (value, bits) in [
            (0.0, 0),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65520.0, 0x7c00),
            (5.960_464_5e-8, 1),
            (2.980_232_2e-8, 0),
            (6.103_515_6e-5, 0x0400),
            (0.1, 0x2e66),
            (2049.0, 0x6800),
            (2051.0, 0x6802),
        ] {
            assert_eq!(f16_bits(value), bits, "{value}");
        }
        assert_eq!(bf16_bits(1.0), 0x3f80);
        assert_eq!(bf16_bits(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(bf16_bits(f32::from_bits(0x3f81_8000)), 0x3f82);
    }

    #[test]
    fn external_data_stays_in_the_models_directory() {
        let header = Header { dtype: DType::F32, dims: vec![2], elements: 2 };
        let at = |location: &str| {
            let entry = super::super::proto::StringStringEntryProto {
                key: "location".into(),
                value: location.into(),
            };
            let proto = TensorProto { external_data: vec![entry], ..TensorProto::default() };
            external(&proto, &header, &Folder::of(Some(Path::new("dir/m.onnx")), Links::Inside))
        };
        assert!(matches!(at("w.bin"), Ok(Data::File { offset: 0, length: 8, .. })));
        for outside in ["", "/etc/passwd", "../w.bin", "a/../../w.bin"] {
            assert!(at(outside).is_err(), "{outside}");
        }
    }
}
