//! Weights as files of their own, for other programs.

use std::collections::BTreeSet;
use std::path::Path;

use super::safetensors::write_safetensors_with;
use crate::error::{Error, Result};
use crate::ir::Tensor;
use crate::load::weights::{Arrays, check_npz_names, write_npz_with};

/// A form of files of weights that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsForm {
    /// `.safetensors`
    Safetensors,
    /// `.npz`
    Npz,
}

impl WeightsForm {
    /// The form that the end of a name says.
    ///
    /// Error: it says none that can be written.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let message = match ending.as_deref() {
            Some("safetensors") => return Ok(Self::Safetensors),
            Some("npz") => return Ok(Self::Npz),
            Some("h5" | "hdf5" | "keras") => "weights of Keras are read, not written",
            Some("pt" | "pth" | "bin" | "ckpt") => "weights of torch are not written",
            Some("onnx") => "ONNX models are read, not written",
            _ => "its name does not say in which format",
        };
        Err(Error::usage(path.display().to_string(), message).with_help("name it .safetensors or .npz"))
    }

    /// Error: arrays of these names cannot be written in this form.
    pub fn check_names<'n>(self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        if self == Self::Npz {
            return check_npz_names(names.into_iter());
        }
        let mut seen = BTreeSet::new();
        for name in names {
            let message = match name {
                "__metadata__" => "is not an array's in safetensors",
                name if !seen.insert(name) => "is there twice",
                _ => continue,
            };
            return Err(Error::usage(format!("array {name}"), format!("the name {message}"))
                .with_help("rename it in the model, or write the other of .safetensors and .npz"));
        }
        Ok(())
    }
}

/// Writes arrays as safetensors or npz, as the end of the name says.
///
/// Errors: another end; the file cannot be written.
pub fn write_weights(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_arrays(path, WeightsForm::of(path)?, arrays)
}

/// As [`write_weights`], as the source's own library holds them: those that it calls so are complex numbers, whose last axis, of 2,
/// has both parts of each. Those of 64 bits are written as such, in npz those of 128 too, and all others with that axis.
///
/// Errors: as of that.
pub fn write_state(path: &Path, arrays: &[(String, Tensor)], complex: &BTreeSet<String>) -> Result<()> {
    write_form(path, WeightsForm::of(path)?, arrays, complex)
}

/// Writes arrays in a form, whatever the file is called.
///
/// Errors: names that the form cannot hold; the file cannot be written.
pub fn write_arrays(path: &Path, form: WeightsForm, arrays: &[(String, Tensor)]) -> Result<()> {
    write_form(path, form, arrays, &BTreeSet::new())
}

fn write_form(
    path: &Path,
    form: WeightsForm,
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
) -> Result<()> {
    match form {
        WeightsForm::Safetensors => write_safetensors_with(path, arrays, complex),
        WeightsForm::Npz => write_npz_with(path, arrays, complex),
    }
}

/// All arrays of a file of any format that is known, in its order.
///
/// Errors: the file cannot be read, or is damaged.
pub fn read_weights(path: &Path) -> Result<Vec<(String, Tensor)>> {
    all(&Arrays::open(path)?)
}

/// As [`read_weights`], but of a file that must be safetensors, as those of checkpoints are: what
/// is in it is no longer than it is itself.
pub(super) fn read_safetensors(path: &Path) -> Result<Vec<(String, Tensor)>> {
    all(&Arrays::open_safetensors(path)?)
}

fn all(file: &Arrays) -> Result<Vec<(String, Tensor)>> {
    let mut arrays = Vec::new();
    for name in file.names() {
        if let Some(tensor) = file.get(name)? {
            arrays.push((name.clone(), tensor));
        }
    }
    Ok(arrays)
}
