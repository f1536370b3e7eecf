//! The protobuf messages of `tf.train.Example`, written by hand: a map from names to lists.

use std::collections::BTreeMap;

/// A record.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Example {
    #[prost(message, optional, tag = "1")]
    pub(super) features: Option<Features>,
}

/// Its features, by name.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) feature: BTreeMap<String, Feature>,
}

/// A list of one type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    pub(super) kind: Option<Kind>,
}

/// The types of lists.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

/// Byte strings.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) value: Vec<Vec<u8>>,
}

/// Single-precision numbers.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub(super) value: Vec<f32>,
}

/// Whole numbers.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub(super) value: Vec<i64>,
}
