//! Programs of `torch.export`, stored by `scripts/torch_export.py` with what PyTorch computes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partition::unstable::ir::{SourceRole, Tensor};
use partition::unstable::load::weights::{Arrays, write_npz};
use partition::unstable::load::{Format, LoadOptions, Model, load, recognise};
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::cli::Folder;
use crate::sweep::Share;

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name)
}

/// Gradients that do not go everywhere; those of norms of what is 0, of attention whose batch is repeated, of what is read
/// with an open batch, of extremes among equal elements.
#[test]
fn gradients_go_where_those_of_pytorch_go() {
    for name in ["steered", "lengths", "learned", "opened", "kinks", "ties", "ties.core", "overridden"] {
        has_gradients_of_pytorch(name);
    }
}

/// What gradient descent at rate 1 takes off parameters is their gradient.
fn has_gradients_of_pytorch(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str| folder.path().join(name).display().to_string();
    let io = Arrays::open(&stored(&format!("{name}.npz"))).unwrap();
    let array = |name: &String| (name.clone(), io.get(name).unwrap().unwrap());
    let mut records: Vec<(String, Tensor)> =
        io.names().iter().filter(|name| name.starts_with("in_")).map(array).collect();
    let output = io.names().iter().find(|name| name.starts_with("out_")).unwrap();
    let dims = array(output).1.dims().to_vec();
    let zeros = vec![0.0; dims.iter().product::<u64>() as usize];
    records.push(("out_0".to_owned(), Tensor::from_f32(dims, &zeros).unwrap()));
    partition::unstable::state::write_weights(Path::new(&own("data.npz")), &records).unwrap();
    let program = stored(&format!("{name}.pt2")).display().to_string();
    let weights = |rate: &str| {
        let (data, to) = (own("data.npz"), own(&format!("{rate}.npz")));
        let files = ["train", &program, "-d", "cpu", "--data", &data, "-o", &to];
        let step = ["--loss", "mse", "--optimizer", "sgd", "--lr", rate, "--in-order", "-q"];
        let out = partition(&[&files[..], &step].concat());
        assert!(out.status.success(), "{}", told(&out));
        Arrays::open(Path::new(&to)).unwrap()
    };
    let (before, after) = (weights("0"), weights("1"));
    let gradients = name.strip_suffix(".core").unwrap_or(name);
    let text = fs::read_to_string(stored(&format!("{gradients}.json"))).unwrap();
    let gradients: BTreeMap<String, Vec<f64>> = serde_json::from_str(&text).unwrap();
    assert!(gradients.keys().all(|param| before.names().contains(param)), "{name}");
    for param in before.names() {
        // Constants of the program are no parameters, and stay.
        let stored = gradients.get(param);
        let [before, after] = [&before, &after].map(|arrays| arrays.get(param).unwrap().unwrap().to_f64());
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            let (found, expected) = (before - after, stored.map_or(0.0, |stored| stored[at]));
            assert!(
                (found - expected).abs() <= 1e-5 + 1e-4 * expected.abs(),
                "{name}: {param}[{at}]: {found}, {expected}"
            );
        }
    }
}

/// Normalisations that are called twice, arrays that are no parameters, parts without gradients; buffers that the
/// module itself writes over (`scripts/torch_training.py`).
#[test]
fn a_module_is_after_three_steps_what_it_is_in_pytorch() {
    for (name, count) in [("trained", 10), ("moved", 9)] {
        for devices in ["cpu", "2xcpu:cores=1"] {
            trains_as_in_pytorch(name, count, devices);
        }
    }
}

fn trains_as_in_pytorch(name: &str, count: usize, devices: &str) {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("after.npz");
    let io = stored(&format!("training/{name}.npz"));
    let data = format!("{}:input=x,target=y", io.display());
    let program = stored(&format!("training/{name}.pt2")).display().to_string();
    let step =
        ["--loss", "mse", "--optimizer", "sgd:momentum=0.9", "--lr", "0.1", "--in-order", "--batch", "4"];
    let files = ["train", &program, "-d", devices, "--data", &data, "-o", to.to_str().unwrap()];
    let out = partition(&[&files[..], &step].concat());
    assert!(out.status.success(), "{}", told(&out));
    let (own, torch) = (Arrays::open(&to).unwrap(), Arrays::open(&io).unwrap());
    let after: Vec<&str> = torch.names().iter().filter_map(|name| name.strip_prefix("after.")).collect();
    assert_eq!(after.len(), count);
    for name in after {
        let values = |arrays: &Arrays, name: &str| arrays.get(name).unwrap().unwrap().to_f64();
        let (own, torch) = (values(&own, name), values(&torch, &format!("after.{name}")));
        let apart = own.iter().zip(&torch).map(|(own, torch)| (own - torch).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{name}: {own:?}, torch {torch:?}");
    }
}

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn told(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
}

sweep! {
    programs_give_what_pytorch_computes_on_one_device_and_two: one of 3;
}

fn programs_give_what_pytorch_computes_on_one_device_and_two(share: Share) {
    let mut programs: Vec<PathBuf> =
        fs::read_dir(stored("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    programs.retain(|path| path.extension().is_some_and(|extension| extension == "pt2"));
    programs.sort();
    assert_eq!(programs.len(), 89);
    for path in share.among(&programs) {
        let arrays = path.with_extension("npz");
        let (program, arrays) = (path.to_str().unwrap(), arrays.to_str().unwrap());
        // In bf16 the framework rounds a product and its bias once.
        let tolerance = if path.file_stem().is_some_and(|name| name == "typed") { "3e-2" } else { "1e-5" };
        for devices in [&["-d", "cpu"][..], &["-d", "2xcpu:cores=1", "--use", "all"]] {
            let run = [
                "run", program, "--inputs", arrays, "--expect", arrays, "--rtol", tolerance, "--atol",
                tolerance,
            ];
            let out = partition(&[&run, devices].concat());
            assert!(out.status.success(), "{program} on {devices:?}: {}", told(&out));
        }
    }
}

/// Where gradients stop is not written in a decomposed program: `torch.no_grad` is gone.
#[test]
fn a_decomposed_program_that_writes_over_buffers_is_not_trained() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("after.npz");
    let data = format!("{}:input=x,target=y", stored("training/moved.npz").display());
    let program = stored("training/moved.core.pt2").display().to_string();
    let files =
        ["train", &program, "-d", "cpu", "--data", &data, "-o", to.to_str().unwrap(), "--loss", "mse"];
    let out = partition(&files);
    let message = "where gradients end in a decomposed program that writes over buffers is not known here";
    assert!(!out.status.success() && told(&out).contains(message), "{}", told(&out));
}

/// Replicas would each follow their own part of a batch.
#[test]
fn buffers_that_a_module_writes_over_are_not_those_of_replicas() {
    let data = format!("{}:input=x,target=y", stored("training/moved.npz").display());
    let program = stored("training/moved.pt2").display().to_string();
    let files = ["train", &program, "-d", "2xcpu:cores=1", "--data", &data, "--loss", "mse"];
    let out = partition(&[&files[..], &["--replicas", "2", "--batch", "4"]].concat());
    let message = "is written over in each step, which is not known of replicas";
    assert!(!out.status.success() && told(&out).contains(message), "{}", told(&out));
}

/// The program has to know how long its sequences are.
#[test]
fn what_has_to_know_sizes_takes_them_from_records_and_options() {
    let folder = Folder::new();
    let program = stored("sized.pt2").display().to_string();
    let x: Vec<f32> = (0..6 * 11 * 8).map(|at| (at as f32 * 0.37).sin()).collect();
    let records = [("x".to_owned(), Tensor::from_f32(vec![6, 11, 8], &x).unwrap())];
    write_npz(&folder.path("x.npz"), &records).unwrap();
    let open = folder.fails(1, &[&program, "-d", "cpu", "--batch", "3"]);
    assert!(open.contains("pad depends on an open size"), "{open}");
    folder.ok(&[&program, "-d", "2xcpu", "--batch", "3", "--dim", "s27=11", "-o", "plan.json"]);
    folder.ok(&["check", "plan.json", "--model", &program]);
    folder.ok(&["run", &program, "-d", "cpu", "--inputs", "x.npz", "--outputs", "o.npz"]);
    folder.ok(&["run", "plan.json", "--outputs", "o.npz", "--init", "seed=1"]);
}

/// The entries of an archive.
fn entries(name: &str) -> Vec<(String, Vec<u8>)> {
    let mut archive = ZipArchive::new(File::open(stored(name)).unwrap()).unwrap();
    let read = |index: usize| {
        let mut entry = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (entry.name().unwrap().to_string(), bytes)
    };
    (0..ZipArchive::new(File::open(stored(name)).unwrap()).unwrap().len()).map(read).collect()
}

/// The perceptron with its program changed, written anew.
fn changed(folder: &Path, how: CompressionMethod, change: impl Fn(&mut Value)) -> PathBuf {
    let path = folder.join("changed.pt2");
    let mut writer = ZipWriter::new(File::create(&path).unwrap());
    for (name, bytes) in entries("mlp.pt2") {
        let bytes = if name.ends_with("/models/model.json") {
            let mut program: Value = serde_json::from_slice(&bytes).unwrap();
            change(&mut program);
            program.to_string().into_bytes()
        } else {
            bytes
        };
        writer.start_file(name, SimpleFileOptions::default().compression_method(how)).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// Programs are exported for evaluation, where nothing is dropped, and say what a module drops in training.
#[test]
fn what_a_module_drops_is_drawn_in_training_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |operation: &str, rate: f64| {
        let model = changed(folder.path(), CompressionMethod::Stored, |program| {
            let nodes = program["graph_module"]["graph"]["nodes"].as_array_mut().unwrap();
            let node = nodes.iter_mut().find(|node| node["target"] == "torch.ops.aten.relu.default").unwrap();
            let x = node["inputs"][0]["arg"].clone();
            node["target"] = format!("torch.ops.aten.{operation}.default").into();
            node["inputs"] = json!([
                {"name": "input", "arg": x, "kind": 1},
                {"name": "p", "arg": {"as_float": rate}, "kind": 1},
                {"name": "train", "arg": {"as_bool": false}, "kind": 1}]);
        });
        let model = model.to_str().unwrap();
        let asked = ["--data", "ones:records=8", "--loss", "mse", "--lr", "0", "-d", "cpu"];
        let ran = partition(&[&["train", model][..], &asked].concat());
        assert!(ran.status.success(), "{}", told(&ran));
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let loss = text.lines().find(|line| line.starts_with("epoch")).unwrap().split("loss").nth(1).unwrap();
        (loss.split_whitespace().next().unwrap().to_owned(), told(&ran).contains("is not drawn here"))
    };
    let (whole, is_told) = trained("dropout", 0.0);
    assert!(!is_told);
    let (drawn, is_told) = trained("dropout", 0.5);
    assert!(drawn != whole && !is_told, "{drawn}");
    assert_eq!(trained("alpha_dropout", 0.5), (whole, true));
}

#[test]
fn nodes_keep_their_names_and_arrays_theirs() {
    let out = partition(&[stored("mlp.pt2").to_str().unwrap(), "-d", "cpu", "--emit", "plan"]);
    assert!(out.status.success(), "{}", told(&out));
    let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
    for name in ["linear", "relu", "linear_1"] {
        assert_eq!(plan["placement"][name], "cpu0", "{}", plan["placement"]);
    }
    let text = partition(&[stored("mlp.pt2").to_str().unwrap(), "-d", "cpu", "--emit", "ir"]);
    for param in ["inner.weight", "inner.bias", "outer.weight", "outer.bias"] {
        assert!(told(&text).contains(param), "{param} in {}", told(&text));
    }
}

/// `turned` is `nn.Parameter(torch.randn(3, 4).t())`, `moved` one of permuted axes.
#[test]
fn parameters_that_lie_otherwise_have_the_sizes_of_pytorch() {
    let text = partition(&[stored("laid.pt2").to_str().unwrap(), "-d", "cpu", "--emit", "ir"]);
    for param in ["f32[4, 3] = param \"turned\"", "f32[4, 2, 3] = param \"moved\""] {
        assert!(told(&text).contains(param), "{param} in {}", told(&text));
    }
}

#[test]
fn open_sizes_are_dimensions() {
    let path = stored("mlp.pt2");
    let program = path.to_str().unwrap();
    let out = partition(&[program, "-d", "cpu", "--batch", "9"]);
    assert!(out.status.success(), "{}", told(&out));
    let out = partition(&["check", program]);
    assert!(out.status.success(), "{}", told(&out));
}

#[test]
fn what_is_not_supported_is_named_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Operations of core ATen are none that decompositions take apart.
    for (target, decomposes) in [("mine.linear", true), ("aten.avg_pool2d_backward", false)] {
        let target = format!("torch.ops.{target}.default");
        let path = changed(folder.path(), CompressionMethod::Stored, |program| {
            for node in program["graph_module"]["graph"]["nodes"].as_array_mut().unwrap() {
                if node["target"] == "torch.ops.aten.linear.default" {
                    node["target"] = json!(target);
                }
            }
        });
        let out = partition(&["check", path.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(1), "{}", told(&out));
        for node in ["linear", "linear_1"] {
            assert!(told(&out).contains(&format!("node {node}: operation {target}")), "{}", told(&out));
        }
        assert_eq!(told(&out).contains("run_decompositions"), decomposes, "{}", told(&out));
    }
}

/// They are two tensors each inside of the program, and none where it is called.
#[test]
fn complex_numbers_do_not_leave_a_program() {
    let folder = tempfile::tempdir().unwrap();
    for (value, message) in [
        ("x", "input x: complex numbers are not read as an input"),
        ("linear_1", "output linear_1: complex numbers are not given to the caller"),
        ("relu", "node relu: operation torch.ops.aten.relu.default of complex numbers is not supported"),
    ] {
        let path = changed(folder.path(), CompressionMethod::Stored, |program| {
            program["graph_module"]["graph"]["tensor_values"][value]["dtype"] = json!(10);
        });
        let out = partition(&["check", path.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(1), "{}", told(&out));
        assert!(told(&out).contains(message), "{}", told(&out));
    }
}

/// The rows of a bag are added up where it is: nothing is as large as all bags times all indices.
#[test]
fn bags_of_embeddings_take_the_memory_of_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bags.pt2");
    let mut writer = ZipWriter::new(File::create(&path).unwrap());
    for (name, bytes) in entries("mixture.pt2") {
        let bytes = if name.ends_with("/models/model.json") {
            let text = String::from_utf8(bytes).unwrap();
            // 4 bags of 7 indices become 70,000 of 100,000.
            let mut program: Value = serde_json::from_str(&text).unwrap();
            let values = &mut program["graph_module"]["graph"]["tensor_values"];
            values["ids"]["sizes"][0] = json!({"as_int": 100_000});
            values["offsets"]["sizes"][0] = json!({"as_int": 70_000});
            program.to_string().into_bytes()
        } else {
            bytes
        };
        writer
            .start_file(name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored))
            .unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
    let out = partition(&[path.to_str().unwrap(), "-d", "cpu:memory=20MB"]);
    assert!(out.status.success(), "{}", told(&out));
}

/// PyTorch's embeddings count from the first row; -1 is padding that was forgotten, not the last row.
#[test]
fn ids_below_the_first_row_of_a_table_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let io = folder.path().join("io.npz").display().to_string();
    let program = stored("tabled.pt2").display().to_string();
    let run = |ids: &[i64]| {
        let ids = [("ids".to_owned(), Tensor::from_i64(vec![1, ids.len() as u64], ids).unwrap())];
        partition::unstable::state::write_weights(Path::new(&io), &ids).unwrap();
        partition(&["run", &program, "-d", "cpu", "--inputs", &io])
    };
    assert!(run(&[0, 10, 3]).status.success());
    for ids in [[0, -1, 3], [0, 11, 3]] {
        let out = run(&ids);
        assert!(!out.status.success() && told(&out).contains("the rows of"), "{ids:?}: {}", told(&out));
    }
}

/// What gathers, scatters and encodes counts from the first element; what indexes counts from the last one, too.
#[test]
fn places_below_the_first_are_refused_where_pytorch_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let io = folder.path().join("io.npz").display().to_string();
    let program = stored("firsts.pt2").display().to_string();
    let arrays = Arrays::open(&stored("firsts.npz")).unwrap();
    let inputs: Vec<&String> = arrays.names().iter().filter(|name| name.starts_with("in_")).collect();
    let run = |changed: &str| {
        let array = |&name: &&String| {
            let array = arrays.get(name).unwrap().unwrap();
            let below = || {
                let mut places = array.to_i64().unwrap();
                places[0] = -1;
                Tensor::from_i64(array.dims().to_vec(), &places).unwrap()
            };
            (name.clone(), if name.as_str() == changed { below() } else { array.clone() })
        };
        let inputs: Vec<(String, Tensor)> = inputs.iter().map(array).collect();
        partition::unstable::state::write_weights(Path::new(&io), &inputs).unwrap();
        partition(&["run", &program, "-d", "cpu", "--inputs", &io])
    };
    for (input, field) in [
        ("in_gathered", "axis 1 of x"),
        ("in_scattered", "the rows of x"),
        ("in_selected", "axis 1 of x"),
        ("in_added", "the rows of x"),
        ("in_classes", "the classes of one_hot"),
    ] {
        let out = run(input);
        assert!(!out.status.success() && told(&out).contains(field), "{input}: {}", told(&out));
    }
    assert!(run("in_either").status.success());
}

#[test]
fn damaged_programs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let graph =
        |program: &mut Value, change: &dyn Fn(&mut Value)| change(&mut program["graph_module"]["graph"]);
    let faults: [(&dyn Fn(&mut Value), &str); 8] = [
        (
            &|program| program["schema_version"]["major"] = json!(9),
            "version 9.20 of torch.export's schema is not supported",
        ),
        (
            &|program| graph(program, &|g| g["nodes"][1]["inputs"] = json!([])),
            "node relu: its argument self is missing",
        ),
        (
            &|program| {
                graph(program, &|g| g["nodes"][1]["inputs"][0]["arg"]["as_tensor"]["name"] = json!("later"))
            },
            "node relu: later, which it reads, is not computed",
        ),
        (&|program| graph(program, &|g| g["tensor_values"] = json!({})), "nothing is said of x"),
        (
            &|program| graph(program, &|g| g["tensor_values"]["x"]["sizes"][0] = json!({"as_int": -1})),
            "x has a size below 0",
        ),
        (
            &|program| {
                let out = json!({"name": "out", "arg": {"as_tensor": {"name": "linear"}}});
                graph(program, &|g| g["nodes"][1]["inputs"].as_array_mut().unwrap().push(out.clone()));
            },
            "node relu: torch.ops.aten.relu.default: a result in memory that is given (out=)",
        ),
        (
            &|program| {
                program["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] =
                    json!("no")
            },
            "array no: it is not in the archive",
        ),
        (
            &|program| program["graph_module"]["signature"]["output_specs"] = json!([{"loss_output": {}}]),
            "an output of kind loss_output is not supported yet",
        ),
    ];
    for (change, message) in faults {
        let path = changed(folder.path(), CompressionMethod::Stored, change);
        let out = partition(&["check", path.to_str().unwrap()]);
        assert!(told(&out).contains(message) && out.status.code() == Some(1), "{message}: {}", told(&out));
    }
    let path = changed(folder.path(), CompressionMethod::Deflated, |_| ());
    let out = partition(&["check", path.to_str().unwrap()]);
    assert!(told(&out).contains("it is compressed in the archive"), "{}", told(&out));
}

/// An input is written over for the steps that follow; what the file holds would be another in the next run.
#[test]
fn writing_over_a_parameter_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let over = |operand: &'static str| {
        changed(folder.path(), CompressionMethod::Stored, move |program| {
            let graph = &mut program["graph_module"]["graph"];
            graph["nodes"][1]["target"] = json!("torch.ops.aten.relu_.default");
            graph["nodes"][1]["inputs"][0]["arg"]["as_tensor"]["name"] = json!(operand);
        })
    };
    let out = partition(&["check", over("p_inner_weight").to_str().unwrap()]);
    assert!(told(&out).contains("relu_ writes over a parameter or buffer"), "{}", told(&out));
    // What is changed besides does not fit: the next layer reads what was the other's result.
    let out = partition(&["check", over("x").to_str().unwrap()]);
    assert!(told(&out).contains("expected an inner size of 6, found 5"), "{}", told(&out));
    let out = partition(&["check", over("linear").to_str().unwrap()]);
    assert!(out.status.success(), "{}", told(&out));
}

/// The perceptron as the text that is made of an archive, with its program changed.
fn text_of_mlp(change: impl Fn(&mut Value)) -> String {
    let program =
        entries("mlp.pt2").into_iter().find(|(name, _)| name.ends_with("/models/model.json")).unwrap().1;
    let mut program: Value = serde_json::from_slice(&program).unwrap();
    change(&mut program);
    let meta = |sizes: &[u64]| {
        let sizes: Vec<Value> = sizes.iter().map(|size| json!({"as_int": size})).collect();
        json!({"dtype": 7, "sizes": sizes, "strides": [], "storage_offset": {"as_int": 0}})
    };
    let array = |sizes: &[u64]| json!({"meta": meta(sizes), "offset": 64, "length": sizes.iter().product::<u64>() * 4});
    json!({"torch_export": program, "name": "mlp", "arrays": {
        "inner.weight": array(&[5, 6]), "inner.bias": array(&[5]), "outer.weight": array(&[3, 5]), "outer.bias": array(&[3])}})
    .to_string()
}

#[test]
fn the_text_of_an_archive_is_recognised_and_needs_no_archive_to_plan() {
    let text = text_of_mlp(|_| {});
    assert_eq!(recognise(text.as_bytes()).unwrap(), Format::Torch);
    let Model::Graph(graph) = load(text.as_bytes(), None, &LoadOptions::default()).unwrap() else {
        panic!("a graph")
    };
    let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node).count();
    assert_eq!(nodes, 3);
}

/// Arguments that fit no tensor are errors of the program.
#[test]
fn calls_that_fit_no_tensor_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, Value, &str); 4] = [
        ("rot90", json!({"dims": {"as_ints": [1, 1]}}), "it turns a tensor of 2 axes from axis 1 to axis 1"),
        (
            "unfold_backward",
            json!({"input_sizes": {"as_ints": []}, "size": {"as_int": 1}, "step": {"as_int": 1}}),
            "windows of a tensor without axes",
        ),
        (
            "leaky_relu",
            json!({"negative_slope": {"as_complex": {"real": 0.5, "imag": 1.0}}}),
            "negative_slope is a complex number",
        ),
        (
            "add",
            json!({"other": {"as_float": 1.0}, "alpha": {"as_complex": {"real": 2.0, "imag": 1.0}}}),
            "alpha",
        ),
    ];
    for (operation, arguments, message) in cases {
        let path = changed(folder.path(), CompressionMethod::Stored, |program| {
            let node = &mut program["graph_module"]["graph"]["nodes"][1];
            node["target"] = json!(format!("torch.ops.aten.{operation}.default"));
            let inputs = node["inputs"].as_array_mut().unwrap();
            if operation == "unfold_backward" {
                inputs[0]["name"] = json!("grad_in");
            }
            let given = arguments.as_object().unwrap();
            inputs.extend(given.iter().map(|(name, arg)| json!({"name": name, "arg": arg})));
        });
        let out = partition(&["check", path.to_str().unwrap()]);
        assert!(told(&out).contains(message) && out.status.code() == Some(1), "{message}: {}", told(&out));
    }
}

/// A scan hands on more than it gives.
#[test]
fn a_scan_without_results_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), CompressionMethod::Stored, |program| {
        let inner = program["graph_module"]["graph"].clone();
        let node = &mut program["graph_module"]["graph"]["nodes"][1];
        let x = node["inputs"][0]["arg"]["as_tensor"]["name"].clone();
        node["target"] = json!("torch.ops.higher_order.scan");
        let tensors = |names: Value| json!({"name": "", "arg": {"as_tensors": names}});
        node["inputs"] = json!([
            {"name": "", "arg": {"as_graph": {"name": "step", "graph": inner}}},
            tensors(json!([{"name": x}, {"name": x}])),
            tensors(json!([{"name": x}])),
            tensors(json!([])),
        ]);
    });
    let out = partition(&["check", path.to_str().unwrap()]);
    assert!(told(&out).contains("fewer results") && out.status.code() == Some(1), "{}", told(&out));
}

/// What stands for the beginning and the end of a loop's body is no operation that a file can name.
#[test]
fn the_ends_of_a_loop_without_one_another_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for target in ["<while_loop>", "</while_loop>"] {
        let path = changed(folder.path(), CompressionMethod::Stored, |program| {
            let node = &mut program["graph_module"]["graph"]["nodes"][1];
            node["target"] = json!(target);
            let x = node["inputs"][0]["arg"]["as_tensor"]["name"].clone();
            let carried = json!({"name": "carried", "arg": {"as_tensors": [{"name": x}]}});
            node["inputs"][0]["name"] = json!("condition");
            node["inputs"].as_array_mut().unwrap().push(carried);
        });
        let out = partition(&["check", path.to_str().unwrap()]);
        assert!(told(&out).contains("a loop") && out.status.code() == Some(1), "{target}: {}", told(&out));
    }
}

/// What is written over one buffer is seen in another that lies in the same bytes.
#[test]
fn writing_over_bytes_that_two_arrays_share_is_refused() {
    let program =
        entries("mlp.pt2").into_iter().find(|(name, _)| name.ends_with("/models/model.json")).unwrap().1;
    let mut program: Value = serde_json::from_slice(&program).unwrap();
    let module = &mut program["graph_module"];
    for spec in module["signature"]["input_specs"].as_array_mut().unwrap() {
        if let Some(parameter) = spec.as_object_mut().unwrap().remove("parameter") {
            *spec = json!({"buffer": {"arg": parameter["arg"], "buffer_name": parameter["parameter_name"]}});
        }
    }
    // The first bias is written over after it was read.
    let relu = module["graph"]["nodes"][1].clone();
    let mut write = relu.clone();
    write["target"] = json!("torch.ops.aten.relu_.default");
    write["name"] = json!("write");
    write["inputs"][0]["arg"]["as_tensor"]["name"] = json!("b_inner_bias");
    write["outputs"][0]["as_tensor"]["name"] = json!("write");
    let mut text = program.to_string().replace("p_inner_bias", "b_inner_bias");
    program = serde_json::from_str(&text).unwrap();
    let graph = &mut program["graph_module"]["graph"];
    let meta = graph["tensor_values"]["b_inner_bias"].clone();
    graph["tensor_values"]["write"] = meta;
    graph["nodes"].as_array_mut().unwrap().push(write);
    let mut offset = 0;
    let mut array = |sizes: &[u64], digits: bool| {
        let listed: Vec<Value> = sizes.iter().map(|size| json!({"as_int": size})).collect();
        let meta = json!({"dtype": 7, "sizes": listed, "strides": [], "storage_offset": {"as_int": 0}});
        let length = sizes.iter().product::<u64>() * 4;
        offset += length;
        let mut array = json!({"meta": meta, "offset": offset - length, "length": length});
        if digits {
            array["digits"] = json!("00".repeat(length as usize));
        }
        array
    };
    let arrays = json!({"inner.weight": array(&[5, 6], false), "inner.bias": array(&[5], true),
        "outer.weight": array(&[3, 5], false), "outer.bias": array(&[3], true)});
    let mut document = json!({"torch_export": program, "name": "mlp", "arrays": arrays});
    let loaded = |document: &Value| load(document.to_string().as_bytes(), None, &LoadOptions::default());
    loaded(&document).map(drop).unwrap();
    // The last four bytes of the bias are the first of a weight.
    let start = document["arrays"]["outer.weight"]["offset"].as_u64().unwrap() - 4;
    document["arrays"]["outer.weight"]["offset"] = json!(start);
    text = loaded(&document).map(drop).unwrap_err().to_string();
    assert!(text.contains("relu_ writes over a parameter or buffer"), "{text}");
    // What a buffer of complex numbers becomes is not given to the caller.
    document["arrays"]["outer.weight"]["offset"] = json!(start + 4);
    let values = &mut document["torch_export"]["graph_module"]["graph"]["tensor_values"];
    values["b_inner_bias"]["dtype"] = json!(10);
    text = loaded(&document).map(drop).unwrap_err().to_string();
    assert!(text.contains("complex numbers are not given to the caller"), "{text}");
}

#[test]
fn what_a_module_froze_stays_frozen_unless_it_froze_all() {
    let frozen = |names: &[&str]| {
        let text = text_of_mlp(|program| {
            let values = &mut program["graph_module"]["graph"]["tensor_values"];
            for name in names {
                assert_eq!(values[name]["requires_grad"], true, "{name}");
                values[name]["requires_grad"] = json!(false);
            }
        });
        let Model::Graph(graph) = load(text.as_bytes(), None, &LoadOptions::default()).unwrap() else {
            panic!("a graph")
        };
        graph.rules().frozen.iter().cloned().collect::<Vec<String>>()
    };
    assert!(frozen(&[]).is_empty());
    assert_eq!(frozen(&["p_inner_weight", "p_outer_bias"]), ["inner.weight", "outer.bias"]);
    assert!(frozen(&["p_inner_weight", "p_inner_bias", "p_outer_weight", "p_outer_bias"]).is_empty());
}
