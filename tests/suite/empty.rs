//! Axes that have no elements: networks whose open dimensions are 0, and decoders whose caches are empty yet, against
//! onnxruntime (`scripts/onnx_empty.py`).

use std::path::{Path, PathBuf};

use crate::cli::Folder;

fn stored(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// What a model gives is what is stored, on one device and on two; sizes follow from the inputs.
fn gives_what_is_stored(model: &str, arrays: &str) {
    let folder = Folder::new();
    let [model, io] = [model, arrays].map(|path| stored(path).display().to_string());
    for devices in [&["-d", "cpu"][..], &["-d", "2xcpu:cores=1", "--use", "all"]] {
        let run = [
            "run", &model, "--inputs", &io, "--expect", &io, "--rtol", "1e-5", "--atol", "1e-5", "--effort",
            "fast",
        ];
        folder.ok(&[&run[..], devices].concat());
    }
}

#[test]
fn operators_over_nothing_give_what_onnxruntime_gives() {
    for empty in ["n", "b", "p", "bnp"] {
        gives_what_is_stored("onnx/empty/operators.onnx", &format!("onnx/empty/operators.{empty}.npz"));
    }
}

#[test]
fn the_first_step_of_a_decoder_has_empty_caches() {
    for name in ["caches_alone", "caches_and_mask"] {
        gives_what_is_stored(&format!("generate/{name}.onnx"), &format!("onnx/empty/{name}.npz"));
    }
}

/// The sizes are said before the model is read; the plan holds them.
#[test]
fn a_plan_of_nothing_is_checked_explained_and_run() {
    let folder = Folder::new();
    let [model, io] = ["onnx/empty/operators.onnx", "onnx/empty/operators.bnp.npz"]
        .map(|path| stored(path).display().to_string());
    let dims = ["--dim", "n=0", "--dim", "b=0", "--dim", "p=0"];
    let plan = ["-d", "2xcpu", "--use", "all", "--effort", "fast", "-o", "plan.json"];
    folder.ok(&[&[model.as_str()][..], &dims, &plan].concat());
    folder.ok(&["check", "plan.json", "--model", &model]);
    folder.ok(&["explain", "plan.json", "--model", &model]);
    folder.ok(&["run", "plan.json", "--inputs", &io, "--expect", &io]);
    let kernels = ["run", &model, "-d", "h200-141g", "--emit", "kernels"];
    let text = folder.ok(&[&kernels[..], &dims].concat());
    assert!(text.contains("__global__"), "the branches that sum over nothing still give zeros");
}

#[test]
fn sizes_below_0_are_refused() {
    let (folder, model) = (Folder::new(), stored("onnx/empty/operators.onnx").display().to_string());
    let error = folder.fails(2, &[&model, "-d", "cpu", "--dim", "n=-1"]);
    assert!(error.contains("a dimension is at least 0"), "{error}");
}
