//! Arrays in npz and safetensors files, and parameters that get their data from them.

use std::path::Path;

use partition::unstable::ir::{DType, Data, Graph, Init, ParamId, Shape, Source, SourceRole, Tensor, Type};
use partition::unstable::load::weights::{Arrays, ParamReader, load_params, write_npz};

use crate::{npz, shared};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn tensors() -> Vec<(String, Tensor)> {
    let bytes = |dtype: DType| (0..6 * dtype.size()).map(|i| (i % 2) as u8).collect::<Vec<u8>>();
    let mut all: Vec<(String, Tensor)> = DType::ALL
        .iter()
        .map(|&dtype| {
            (format!("a/{dtype}"), Tensor::new(dtype, vec![2, 3], bytes(dtype)).expect("6 elements"))
        })
        .collect();
    all.push(("scalar".into(), Tensor::from_f32(vec![], &[1.5]).expect("a scalar")));
    all.push(("empty".into(), Tensor::from_f32(vec![0, 4], &[]).expect("no elements")));
    all
}

#[test]
fn every_type_is_written_and_read_back() {
    let folder = folder();
    let path = folder.path().join("all.npz");
    write_npz(&path, &tensors()).expect("written");
    let arrays = Arrays::open(&path).expect("opens");
    assert_eq!(arrays.names().len(), tensors().len());
    for (name, tensor) in tensors() {
        assert_eq!(arrays.get(&name).expect("reads"), Some(tensor.clone()), "{name}");
        let header = arrays.header(&name).expect("reads");
        assert_eq!(header, Some((tensor.dtype(), tensor.dims().to_vec())), "{name}");
    }
    assert_eq!(arrays.get("absent").expect("reads"), None);
    let first = std::fs::read(&path).expect("reads");
    write_npz(&path, &tensors()).expect("written");
    assert_eq!(std::fs::read(&path).expect("reads"), first, "the same arrays give the same bytes");
    assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 1, "nothing else is left behind");
}

#[cfg(unix)]
#[test]
fn links_and_devices_stay_what_they_are() {
    let folder = folder();
    let (path, link) = (folder.path().join("real.npz"), folder.path().join("link.npz"));
    write_npz(&path, &[]).expect("written");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    write_npz(&link, &tensors()).expect("written");
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink(), "the link was replaced");
    assert_eq!(Arrays::open(&path).expect("opens").names().len(), tensors().len());
    let full = Path::new("/dev/full");
    if full.exists() {
        let error = write_npz(full, &tensors()).expect_err("nothing can be written there").to_string();
        assert!(error.starts_with("/dev/full: "), "{error}");
        assert!(!std::fs::metadata(full).expect("there").is_file(), "a device was replaced by a file");
    }
    assert!(write_npz(folder.path(), &tensors()).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 2, "something was left behind");
}

#[test]
fn another_reader_agrees_with_what_is_written() {
    let folder = folder();
    let path = folder.path().join("one.npz");
    let tensor = Tensor::from_f32(vec![2, 2], &[1.0, -2.0, 3.5, 4.0]).expect("4 elements");
    write_npz(&path, &[("x".into(), tensor)]).expect("written");
    let arrays = npz::arrays(&std::fs::read(&path).expect("reads"));
    let array = &arrays["x"];
    assert_eq!((array.descr.as_str(), array.dims.as_slice()), ("<f4", &[2, 2][..]));
    assert_eq!(array.bytes, [1.0f32, -2.0, 3.5, 4.0].map(f32::to_le_bytes).concat());
}

#[test]
fn safetensors_are_read() {
    use safetensors::tensor::{Dtype, TensorView};
    let folder = folder();
    let path = folder.path().join("w.safetensors");
    let (ones, halves) = ([0, 0, 128, 63, 0, 0, 0, 64], [1, 2, 3, 4]);
    let views = [
        ("b", TensorView::new(Dtype::F32, vec![2], &ones).expect("2 elements")),
        ("a", TensorView::new(Dtype::BF16, vec![1, 2], &halves).expect("2 elements")),
    ];
    safetensors::serialize_to_file(views, None, &path).expect("written");
    let arrays = Arrays::open(&path).expect("opens");
    assert_eq!(arrays.get("b").expect("reads").and_then(|t| t.to_f32()), Some(vec![1.0, 2.0]));
    let half = arrays.get("a").expect("reads").expect("is there");
    assert_eq!((half.dtype(), half.dims(), half.bytes()), (DType::Bf16, &[1, 2][..], &halves[..]));

    let whole = std::fs::read(&path).expect("reads");
    for end in 0..whole.len() {
        std::fs::write(&path, &whole[..end]).expect("written");
        let error = Arrays::open(&path).expect_err("a truncated file was accepted").to_string();
        assert!(error.contains("w.safetensors") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn damaged_archives_are_refused() {
    let folder = folder();
    let path = folder.path().join("all.npz");
    write_npz(&path, &tensors()).expect("written");
    let whole = std::fs::read(&path).expect("reads");
    for end in (0..whole.len()).step_by(10) {
        std::fs::write(&path, &whole[..end]).expect("written");
        let error = Arrays::open(&path).expect_err("a truncated file was accepted").to_string();
        assert!(error.contains("all.npz") && !error.contains('\n'), "{error}");
    }
    let brackets = vec![b'['; 10_000_000];
    for text in
        [&b""[..], b"PK", b"PK\x03\x04", b"\xff\xff\xff\xff\xff\xff\xff\xff{", b"\x89HDF\r\n", &brackets]
    {
        std::fs::write(&path, text).expect("written");
        Arrays::open(&path).expect_err("nonsense was accepted");
    }
    // One flipped bit of the data: the checksum finds it.
    let mut flipped = whole.clone();
    let at = whole.windows(7).position(|part| part == b"'shape'").expect("a header") + 100;
    flipped[at] ^= 1;
    std::fs::write(&path, &flipped).expect("written");
    let arrays = Arrays::open(&path).expect("opens");
    assert!(arrays.names().iter().any(|name| arrays.get(name).is_err()));
}

/// Parameters `dense/kernel [2, 3]` and `dense/bias [3]`.
fn graph() -> Graph {
    let mut graph = Graph::new("two");
    for (name, dims) in [("dense/kernel", &[2, 3][..]), ("dense/bias", &[3])] {
        let source = graph.add_source(Source::new(name, "Variable", SourceRole::Data));
        graph.add_param(name, Type::new(DType::F32, Shape::known(dims)), Init::zeros(), None, source);
    }
    graph
}

fn floats(dims: &[u64], first: f32) -> Tensor {
    let count = dims.iter().product::<u64>();
    let values: Vec<f32> = (0..count).map(|i| first + i as f32).collect();
    Tensor::from_f32(dims.to_vec(), &values).expect("as many values as elements")
}

fn write(folder: &Path, arrays: &[(&str, Tensor)]) -> Arrays {
    let path = folder.join("weights.npz");
    let arrays: Vec<_> = arrays.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    write_npz(&path, &arrays).expect("written");
    Arrays::open(&path).expect("opens")
}

#[test]
fn parameters_get_their_arrays_by_name() {
    let folder = folder();
    let (kernel, bias) = (floats(&[2, 3], 0.0), floats(&[3], 10.0));
    let arrays = write(
        folder.path(),
        &[("x", bias.clone()), ("dense/bias", bias.clone()), ("dense/kernel", kernel.clone())],
    );
    let mut graph = graph();
    let loaded = load_params(&mut graph, &arrays).expect("fits");
    assert_eq!((loaded.params, loaded.extra), (2, vec!["x".to_owned()]));
    let mut reader = ParamReader::new();
    assert_eq!(reader.read(&graph, ParamId(0)).expect("reads"), Some(kernel));
    assert_eq!(reader.read(&graph, ParamId(1)).expect("reads"), Some(bias));
}

#[test]
fn numbered_arrays_are_matched_in_order() {
    let folder = folder();
    let (kernel, bias) = (floats(&[2, 3], 0.0), floats(&[3], 10.0));
    let arrays = write(
        folder.path(),
        &[("w001:d|b", bias.clone()), ("in_0", bias.clone()), ("w000:d|k", kernel.clone())],
    );
    let mut graph = graph();
    let loaded = load_params(&mut graph, &arrays).expect("fits");
    // Inputs and outputs beside the parameters are none of theirs.
    assert_eq!((loaded.params, loaded.extra), (2, Vec::<String>::new()));
    assert_eq!(ParamReader::new().read(&graph, ParamId(1)).expect("reads"), Some(bias.clone()));

    let arrays = write(folder.path(), &[("w000:d|k", kernel)]);
    let error = load_params(&mut graph, &arrays).expect_err("one is missing").to_string();
    assert!(error.contains("1 arrays in order for 2 parameters"), "{error}");
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = folder();
    let arrays =
        write(folder.path(), &[("dense/kernel", floats(&[3, 2], 0.0)), ("dense/bias", floats(&[3], 0.0))]);
    let error = load_params(&mut graph(), &arrays).expect_err("another shape").to_string();
    assert!(
        error.contains("parameter dense/kernel: expected f32[2, 3], array dense/kernel is f32[3, 2]"),
        "{error}"
    );
    let arrays = write(folder.path(), &[("dense/bias", floats(&[3], 0.0))]);
    let error = load_params(&mut graph(), &arrays).expect_err("one is missing");
    assert!(error.to_string().contains("1 parameters have no array, the first is dense/kernel"), "{error}");
    assert_eq!(error.details(), ["dense/kernel"]);
}

#[test]
fn raw_data_of_another_file_is_read_where_it_is() {
    let folder = folder();
    let mut graph = graph();
    let path = folder.path().join("raw.bin");
    let data = Data::File { path: path.clone(), offset: 4, length: 12 };
    graph.param_mut(ParamId(1)).data = Some(data);
    let read = |graph: &Graph| ParamReader::new().read(graph, ParamId(1));
    assert_eq!(read(&graph).expect("an absent file is no error"), None);
    let bytes: Vec<u8> = (0..4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    std::fs::write(&path, &bytes).expect("written");
    assert_eq!(read(&graph).expect("reads").and_then(|t| t.to_f32()), Some(vec![1.0, 2.0, 3.0]));
    std::fs::write(&path, &bytes[..12]).expect("written");
    let error = read(&graph).expect_err("too short").to_string();
    assert!(error.contains("12 bytes at 4 are beyond its 12 bytes"), "{error}");
}

#[test]
fn the_corpus_arrays_are_read() {
    let Some(path) = shared::file("corpus/keras/mlp_small.k3.io.npz") else { return };
    let arrays = Arrays::open(&path).expect("opens");
    assert!(arrays.names().iter().any(|name| name.starts_with("w000:")));
    for name in arrays.names() {
        let tensor = arrays.get(name).expect("reads").expect("is there");
        assert!(tensor.elements() > 0, "{name}");
    }
}
