//! The protobuf messages of ONNX (`onnx.proto3` of ONNX 1.22), written by hand: only the fields
//! that are read; others are skipped. Sub-graphs stay undecoded bytes, so decoding never
//! recurses through them.

/// A model file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(bytes = "vec", tag = "2")]
    pub producer_name: Vec<u8>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(bytes = "vec", repeated, tag = "25")]
    pub functions: Vec<Vec<u8>>,
}

/// An operator that the file defines by others.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FunctionProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, tag = "10")]
    pub domain: String,
    /// Attributes that have a default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    #[prost(string, tag = "13")]
    pub overload: String,
}

/// A version of the operators of one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

/// An operation.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub domain: String,
    #[prost(string, tag = "8")]
    pub overload: String,
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// An attribute of an operation.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub f: f32,
    #[prost(int64, tag = "3")]
    pub i: i64,
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub g: Option<Vec<u8>>,
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    #[prost(int32, tag = "20")]
    pub r#type: i32,
    #[prost(string, tag = "21")]
    pub ref_attr_name: String,
    #[prost(message, optional, boxed, tag = "22")]
    pub sparse_tensor: Option<Box<SparseTensorProto>>,
}

/// Values of [`AttributeProto::type`].
pub(super) mod attribute_type {
    pub(in crate::load::onnx) const FLOAT: i32 = 1;
    pub(in crate::load::onnx) const INT: i32 = 2;
    pub(in crate::load::onnx) const STRING: i32 = 3;
    pub(in crate::load::onnx) const TENSOR: i32 = 4;
    pub(in crate::load::onnx) const GRAPH: i32 = 5;
    pub(in crate::load::onnx) const SPARSE_TENSOR: i32 = 11;
    pub(in crate::load::onnx) const FLOATS: i32 = 6;
    pub(in crate::load::onnx) const INTS: i32 = 7;
    pub(in crate::load::onnx) const STRINGS: i32 = 8;
}

/// A tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub string_data: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// A tensor by its numbers that are not zero.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

/// [`TensorProto::data_location`] of data that is in another file.
pub(super) const EXTERNAL: i32 = 1;

/// A key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Name and type of an input, an output or a value between them.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    #[prost(message, repeated, tag = "4")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A type; only tensors are read, others are handed on as they are.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub sequence_type: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub map_type: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub optional_type: Option<Vec<u8>>,
}

/// The type of a sequence.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SequenceTypeProto {
    #[prost(message, optional, tag = "1")]
    pub elem_type: Option<TypeProto>,
}

/// A tensor's type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A tensor's sizes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// One size: a number, a name, or neither.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// True where the top-level fields of `bytes` are those of a `ModelProto`: an IR version, and a
/// graph (which may be cut off). Allocates nothing. O(top-level fields).
pub(super) fn looks_like_model(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let (mut version, mut graph) = (false, false);
    while !rest.is_empty() {
        let Some(tag) = varint(&mut rest) else { break };
        match (tag >> 3, tag & 7) {
            (1, 0) => match varint(&mut rest) {
                Some(1..=1000) => version = true,
                _ => return false,
            },
            (5, 0) => {
                if varint(&mut rest).is_none() {
                    break;
                }
            }
            (field @ (2 | 3 | 4 | 6 | 7 | 8 | 14 | 20 | 25 | 26), 2) => {
                graph |= field == 7;
                let Some(length) = varint(&mut rest) else { break };
                match usize::try_from(length).ok().and_then(|length| rest.get(length..)) {
                    Some(after) => rest = after,
                    None => break,
                }
            }
            _ => break,
        }
        if version && graph {
            return true;
        }
    }
    version && graph
}

/// The fewest bytes of a node, an attribute or an initialiser: each has at least a name or a type, and
/// another field. Shorter ones would take a hundred times their bytes when decoded.
const LEAST: usize = 4;

/// A node, attribute or initialiser that is shorter than any can be, in words; none where there is none, or
/// as far as the fields are well-formed. Allocates nothing. O(fields).
pub(super) fn shortest(model: &[u8]) -> Option<&'static str> {
    let of_functions = || messages(model, 25).find_map(|function| shortest_node(function, 7));
    messages(model, 7).find_map(shortest_of_graph).or_else(of_functions)
}

/// As [`shortest`], of the bytes of a graph.
pub(super) fn shortest_of_graph(graph: &[u8]) -> Option<&'static str> {
    match messages(graph, 5).any(|tensor| tensor.len() < LEAST) {
        true => Some("an initialiser"),
        false => shortest_node(graph, 1),
    }
}

fn shortest_node(graph: &[u8], field: u64) -> Option<&'static str> {
    for node in messages(graph, field) {
        if node.len() < LEAST {
            return Some("a node");
        }
        if messages(node, 5).any(|attribute| attribute.len() < LEAST) {
            return Some("an attribute");
        }
    }
    None
}

/// The messages with a field's number, as far as the fields are well-formed.
fn messages(bytes: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            let tag = varint(&mut rest)?;
            let length = match tag & 7 {
                0 => {
                    varint(&mut rest)?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(varint(&mut rest)?).ok()?,
                5 => 4,
                _ => return None,
            };
            let message = rest.get(..length)?;
            rest = &rest[length..];
            if (tag >> 3, tag & 7) == (wanted, 2) {
                return Some(message);
            }
        }
    })
}

/// True where the first field is one that a `ModelProto` may begin with.
pub(super) fn may_begin_model(start: &[u8]) -> bool {
    let mut rest = start;
    varint(&mut rest).is_some_and(|tag| is_model_field(tag >> 3, tag & 7))
}

/// Whether a model has a field of this number and wire type.
fn is_model_field(field: u64, wire: u64) -> bool {
    matches!((field, wire), (1 | 5, 0) | (2 | 3 | 4 | 6 | 7 | 8 | 14 | 20 | 25 | 26, 2))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::looks_like_model;

    #[test]
    fn a_model_has_a_version_and_a_graph() {
        assert!(looks_like_model(&[0x08, 0x08, 0x3a, 0x00]));
        assert!(looks_like_model(&[0x08, 0x08, 0x12, 0x01, b'x', 0x3a, 0x7f]), "cut off in its graph");
        assert!(!looks_like_model(&[0x08, 0x08]));
        assert!(!looks_like_model(&[0x3a, 0x00]));
        assert!(!looks_like_model(&[b'['; 1000]));
        assert!(!looks_like_model(&[0xff; 1000]));
        assert!(!looks_like_model(b"{\"nodes\":[]}"));
    }
}
