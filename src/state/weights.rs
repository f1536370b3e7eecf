//! Weights as files of their own, for other programs.

use std::path::Path;

use super::safetensors::write_safetensors;
use crate::error::{Error, Result};
use crate::ir::Tensor;
use crate::load::weights::{Arrays, write_npz};

/// Writes arrays as safetensors or npz, as the end of the name says.
///
/// Errors: another end; the file cannot be written.
pub fn write_weights(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("safetensors") => write_safetensors(path, arrays),
        Some("npz") => write_npz(path, arrays),
        _ => Err(Error::usage(path.display().to_string(), "its name tells no format of weights")
            .with_help(".safetensors or .npz")),
    }
}

/// All arrays of a file of any format that is known, in its order.
///
/// Errors: the file cannot be read, or is damaged.
pub fn read_weights(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let file = Arrays::open(path)?;
    let mut arrays = Vec::new();
    for name in file.names() {
        if let Some(tensor) = file.get(name)? {
            arrays.push((name.clone(), tensor));
        }
    }
    Ok(arrays)
}
