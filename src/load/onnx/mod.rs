//! ONNX models, opsets 7 and later.

use std::path::Path;

use prost::Message;

use super::LoadOptions;
use crate::error::{Error, Result};
use crate::ir::Graph;

mod proto;

/// True where the bytes begin like an ONNX model. O(top-level fields).
pub fn looks_like_onnx(bytes: &[u8]) -> bool {
    proto::looks_like_model(bytes)
}

/// Reads an ONNX model. External data is looked up beside `path`.
pub fn load(bytes: &[u8], _path: Option<&Path>, _options: &LoadOptions) -> Result<Graph> {
    let model = proto::ModelProto::decode(bytes)
        .map_err(|error| Error::format("", format!("truncated or damaged ONNX model: {error}")))?;
    let graph = model.graph.ok_or_else(|| Error::format("", "the ONNX model has no graph"))?;
    let ops: Vec<String> = graph.node.iter().map(|node| format!("{}: {}", node.name, node.op_type)).collect();
    Err(Error::Unsupported(
        crate::error::Report::new("", "the model's operations are not supported yet").details(ops),
    ))
}
