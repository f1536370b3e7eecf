//! Dimensions that nobody named a size for: from the arrays of a run, and from the model's own operations; and
//! arrays that no input, output or plan takes.

use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::compile::{Options, check_model, compile};
use partition::unstable::ir::{DType, Graph, Tensor};
use partition::unstable::load::weights::{Arrays, write_npz};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::plan::Plan;
use partition::unstable::run::feed::{Header, infer_dims};
use partition::unstable::topology::Topology;

use crate::cli::{Folder, example};
use crate::onnx::{float, model, node, of_type, with_axis};
use crate::shared;

/// `left [4, r] x (bottom [q, 4] above one row [1, 4])`: runs only where r = q + 1, which no name says.
fn stacked() -> Vec<u8> {
    let nodes = vec![
        with_axis(node("stack", "Concat", &["bottom", "row"], &["stacked"]), 0),
        node("product", "MatMul", &["left", "stacked"], &["y"]),
        node("again", "Add", &["left", "left"], &["twice"]),
    ];
    let inputs = vec![float("left", &["4", "r"]), float("bottom", &["q", "4"]), float("row", &["1", "4"])];
    model(nodes, inputs, vec![], &["y", "twice"])
}

fn graph(bytes: &[u8], dims: &[(&str, i64)]) -> partition::Result<Graph> {
    let dims = dims.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    match load(bytes, Some(Path::new("m.onnx")), &LoadOptions { dims, ..LoadOptions::default() })? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => panic!("an ONNX model is a network"),
    }
}

fn sizes(graph: &Graph, input: usize) -> Vec<String> {
    let names = |dim| graph.dim_name(dim);
    let sizes = graph.ty(graph.inputs()[input].1).shape.sizes();
    sizes.iter().map(|size| size.display(&names).to_string()).collect()
}

#[test]
fn dimensions_that_have_to_be_equal_are_one() {
    let open = graph(&stacked(), &[]).expect("the product fits only so");
    partition::unstable::ir::verify(&open).expect("sound");
    assert_eq!(
        (sizes(&open, 0), sizes(&open, 1)),
        (vec!["4".into(), "r".into()], vec!["r-1".into(), "4".into()])
    );
    assert_eq!(sizes(&graph(&stacked(), &[("q", 6)]).unwrap(), 0), ["4", "7"]);
    assert_eq!(sizes(&graph(&stacked(), &[("r", 6)]).unwrap(), 1), ["5", "4"]);
    let error = graph(&stacked(), &[("r", 6), ("q", 6)]).unwrap_err().to_string();
    assert!(error.contains("node product") && error.contains("expected"), "{error}");
    let error = graph(&stacked(), &[("r", 1)]).unwrap_err().to_string();
    assert!(error.contains("node product"), "a dimension is at least 1: {error}");
}

#[test]
fn a_size_that_is_stated_in_other_dimensions_is_that() {
    let nodes = vec![node("product", "MatMul", &["mask", "x"], &["y"])];
    let inputs = || {
        vec![float("mask", &["4", "past + 2*new"]), float("x", &["p", "4"]), float("past", &["past", "new"])]
    };
    let bytes = model(nodes, inputs(), vec![], &["y"]);
    let open = graph(&bytes, &[]).unwrap();
    assert_eq!(sizes(&open, 0)[1], "past+2*new");
    let array = |input, dims: &[u64]| Header { input, dtype: DType::F32, dims: dims.to_vec() };
    let found = infer_dims(&open, &[array(2, &[3, 2])], &BTreeMap::new()).unwrap();
    assert_eq!(found["past"] + 2 * found["new"], 7);
    let found = infer_dims(&open, &[array(0, &[4, 9]), array(2, &[3, 3])], &BTreeMap::new()).unwrap();
    assert_eq!((found["past"], found["new"]), (3, 3));
    let error = infer_dims(&open, &[array(2, &[3, 3]), array(0, &[4, 8])], &BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("input mask: axis 1: expected 9, found 8"), "{error}");
    assert_eq!(sizes(&graph(&bytes, &[("past", 3), ("new", 2)]).unwrap(), 0)[1], "7");
}

/// Arrays for `stacked`, with its result by plain loops.
fn arrays(r: usize, q: usize) -> Vec<(String, Tensor)> {
    let value = |i: usize| (i % 7) as f32 - 3.0;
    let left: Vec<f32> = (0..4 * r).map(value).collect();
    let bottom: Vec<f32> = (0..q * 4).map(|i| value(i + 2)).collect();
    let row: Vec<f32> = (0..4).map(|i| value(i + 5)).collect();
    let stacked = [bottom.clone(), row.clone()].concat();
    let mut y = vec![0.0; 16];
    for i in 0..4 {
        for j in 0..4 {
            y[4 * i + j] = (0..r.min(q + 1)).map(|k| left[i * r + k] * stacked[4 * k + j]).sum();
        }
    }
    let tensor = |rows: usize, columns: usize, values: &[f32]| {
        Tensor::from_f32(vec![rows as u64, columns as u64], values).unwrap()
    };
    vec![
        ("in_left".into(), tensor(4, r, &left)),
        ("in_bottom".into(), tensor(q, 4, &bottom)),
        ("in_row".into(), tensor(1, 4, &row)),
        ("out_y".into(), tensor(4, 4, &y)),
    ]
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.path("m.onnx"), stacked()).unwrap();
    folder
}

#[test]
fn arrays_fix_what_is_open_before_anything_is_planned() {
    let folder = folder();
    write_npz(&folder.path("io.npz"), &arrays(6, 5)).unwrap();
    let ran = folder.run(&["run", "m.onnx", "--inputs", "io.npz", "--expect", "io.npz"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("note: by the sizes of the inputs, q = 5, r = 6\n"), "{}", ran.stderr);
    assert!(ran.stdout.contains("16 elements, 0 beyond tolerance"), "{}", ran.stdout);
    // Without arrays the model's own equation is told.
    let planned = folder.run(&["m.onnx", "-d", "cpu", "--dim", "r=6", "-o", "plan.json"]);
    assert_eq!(planned.code, 0, "{}", planned.stderr);
    assert!(planned.stderr.contains("note: as the model's operations need, q = 5\n"), "{}", planned.stderr);
    folder.ok(&["check", "plan.json", "--model", "m.onnx"]);
    folder.ok(&["run", "plan.json", "--inputs", "io.npz", "--expect", "io.npz"]);
}

#[test]
fn arrays_of_other_sizes_are_told_apart_from_mistakes_of_usage() {
    let folder = folder();
    let with = |change: &dyn Fn(&mut Vec<(String, Tensor)>)| {
        let mut all = arrays(6, 5);
        change(&mut all);
        write_npz(&folder.path("io.npz"), &all).unwrap();
    };
    let fails = |code: i32, part: &str| {
        let error = folder.fails(code, &["run", "m.onnx", "--inputs", "io.npz", "--expect", "io.npz"]);
        assert!(error.contains(part), "{error}");
    };
    let ones = |dims: &[u64]| {
        Tensor::from_f32(dims.to_vec(), &vec![1.0; dims.iter().product::<u64>() as usize]).unwrap()
    };
    with(&|all| all[0].1 = ones(&[24]));
    fails(1, "--inputs: input left: expected 2 axes ([4, r]), found sizes [24]");
    with(&|all| all[0].1 = ones(&[3, 6]));
    fails(1, "--inputs: input left: axis 0: expected 4, found 3");
    with(&|all| all[0].1 = Tensor::from_i64(vec![4, 6], &[1; 24]).unwrap());
    fails(1, "--inputs: input left: expected f32, found i64");
    with(&|all| all[0].1 = ones(&[4, 7]));
    fails(1, "node product");
    with(&|all| all[0].0 = "in_lefft".into());
    fails(2, "array in_lefft: the model has no such input (did you mean `left`?");
    with(&|all| all[3].0 = "out_z".into());
    fails(2, "array out_z: the model has no such output");
    with(&|all| all.push(("extra".into(), ones(&[1]))));
    fails(2, "array extra: this array is neither an input nor an output of the model");
    with(&|all| all.push(("left".into(), ones(&[4, 6]))));
    fails(2, "array left: input left is there twice, also as in_left");
    with(&|all| all[0].0 = "left".into());
    let error = folder.fails(2, &["run", "m.onnx", "--init", "seed=1", "--expect", "io.npz"]);
    assert!(error.contains("array left: this is an input of the model"), "{error}");
    with(&|_| {});
    for value in ["inf", "nan", "-1"] {
        let rtol = format!("--rtol={value}");
        let error = folder.fails(2, &["run", "m.onnx", "--inputs", "io.npz", "--expect", "io.npz", &rtol]);
        assert!(error.contains("--rtol"), "{error}");
    }
}

#[test]
fn a_plan_takes_arrays_of_its_sizes() {
    let folder = folder();
    folder.ok(&["m.onnx", "-d", "cpu", "--dim", "r=4", "-o", "plan.json"]);
    write_npz(&folder.path("io.npz"), &arrays(6, 5)).unwrap();
    let error = folder.fails(1, &["run", "plan.json", "--inputs", "io.npz"]);
    assert!(error.contains("input left: the plan is for sizes [4, 4], the array has [4, 6]"), "{error}");
    assert!(error.contains("r = 4"), "{error}");
}

#[test]
fn a_batch_that_is_asked_for_is_that_of_the_arrays() {
    let folder = Folder::new();
    let arrays = [("x".to_owned(), Tensor::from_f32(vec![3, 64], &[0.5; 192]).unwrap())];
    write_npz(&folder.path("x.npz"), &arrays).unwrap();
    let run = ["run", &example("mlp.json"), "--init", "seed=1", "--inputs", "x.npz"];
    folder.ok(&run);
    folder.ok(&[&run[..], &["--batch", "3"]].concat());
    for batch in [&["--batch", "4"], &["--dim", "batch=4"]] {
        let error = folder.fails(1, &[&run[..], batch].concat());
        assert!(error.contains("input x: axis 0: expected 4, found 3"), "{error}");
    }
    let error = folder.fails(2, &[&run[..], &["--batch", "3", "--dim", "batch=4"]].concat());
    assert!(error.contains("--batch gives another batch"), "{error}");
    let microbatches = ["--microbatches", "3", "-d", "2xcpu:cores=1"];
    folder.ok(&[&run[..], &microbatches].concat());
    let fixed =
        model(vec![node("y", "Relu", &["left"], &["y"])], vec![float("left", &["4", "r"])], vec![], &["y"]);
    std::fs::write(folder.path("m.onnx"), fixed).unwrap();
    folder.ok(&["m.onnx", "-d", "cpu", "--batch", "4"]);
    let error = folder.fails(2, &["m.onnx", "-d", "cpu", "--batch", "5"]);
    assert!(
        error.contains("--batch 5: the model's batch is fixed: the first axis of input left is 4"),
        "{error}"
    );
}

#[test]
fn an_export_with_caches_of_many_names_runs() {
    let Some(file) = shared::present("corpus/exports/llama_kv_dyn.onnx") else { return };
    let (file, arrays) = (file.display().to_string(), file.with_extension("io.npz").display().to_string());
    let folder = Folder::new();
    folder.ok(&["run", &file, "--inputs", &arrays, "--expect", &arrays]);
    folder.ok(&[&file, "-d", "cpu", "--dim", "s64=7", "--dim", "s53=8", "-o", "plan.json"]);
    folder.ok(&["run", "plan.json", "--inputs", &arrays, "--expect", &arrays]);
}

/// What a model computes of its sizes is folded while it is read, where they are known. A plan says which were not.
#[test]
fn a_plan_of_open_sizes_is_of_its_model_when_both_are_read_again() {
    let Some(corpus) = shared::file("corpus") else { return };
    let topology = Topology::parse("2xcpu").unwrap();
    let mut found = 0;
    for folder in ["onnx", "exports"] {
        let mut files: Vec<_> = std::fs::read_dir(corpus.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.metadata().unwrap().len() < 2 << 20)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "onnx"))
            .collect();
        files.sort();
        for path in files {
            let bytes = std::fs::read(&path).unwrap();
            let read = |dims| load(&bytes, Some(&path), &LoadOptions { dims, ..LoadOptions::default() });
            let Ok(Model::Graph(open)) = read(BTreeMap::new()) else { continue };
            if open.unbound_dims().is_empty() {
                continue;
            }
            let Ok(compiled) = compile(Model::Graph(open), &topology, &Options::default()) else { continue };
            let plan = Plan::from_json(compiled.plan.to_json().as_bytes(), "plan").unwrap();
            let options = Options::of_plan(&plan).unwrap();
            let model = read(options.dims.clone()).unwrap();
            check_model(&plan, model, &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}

/// NumPy has no bf16: floats of any width are rounded to it, and it is written as f32.
#[test]
fn floats_are_taken_in_any_width_and_given_as_numpy_has_them() {
    const BF16: i32 = 16;
    let folder = Folder::new();
    let graph = model(
        vec![node("double", "Add", &["x", "x"], &["y"])],
        vec![of_type(BF16, float("x", &["3"]))],
        vec![],
        &["y"],
    );
    std::fs::write(folder.path("m.onnx"), graph).unwrap();
    let run =
        |to: &str| ["run", "m.onnx", "-d", "cpu", "--inputs", "x.npz", "--outputs", to].map(str::to_owned);
    let given = |x: Tensor| write_npz(&folder.path("x.npz"), &[("x".to_owned(), x)]).unwrap();
    let output = |name: &str| Arrays::open(&folder.path(name)).unwrap().get("y").unwrap().unwrap();
    // Of bf16 in 8 bits: 1.01 is 1.0078125.
    let wide = [1.01f64, -0.5, 300.0].map(f64::to_le_bytes).concat();
    let expected = [2.015_625f32, -1.0, 600.0];
    for x in [
        Tensor::from_f32(vec![3], &[1.01, -0.5, 300.0]).unwrap(),
        Tensor::new(DType::F64, vec![3], wide).unwrap(),
    ] {
        given(x);
        let ran = folder.run(&run("y.npz").each_ref().map(String::as_str));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains("note: output y: bf16 is written as f32"), "{}", ran.stderr);
        assert_eq!(output("y.npz").to_f32().unwrap(), expected);
        let ran = folder.run(&run("y.safetensors").each_ref().map(String::as_str));
        assert!(!ran.stderr.contains("bf16"), "{}", ran.stderr);
        assert_eq!(output("y.safetensors").dtype(), DType::Bf16);
    }
    let fails = |code: i32, part: &str| {
        let error = folder.fails(code, &run("y.npz").each_ref().map(String::as_str));
        assert!(error.contains(part), "{error}");
    };
    given(Tensor::new(DType::F64, vec![3], [1e300f64, 0.0, 0.0].map(f64::to_le_bytes).concat()).unwrap());
    fails(2, "input x: 1e300 does not fit bf16, the type of the input");
    given(Tensor::from_i64(vec![3], &[1, 2, 3]).unwrap());
    fails(1, "input x: expected bf16, found i64");
}
