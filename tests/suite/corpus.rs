//! Real networks, grouped and cut over virtual devices, against the stored outputs of another
//! runtime.

use std::collections::BTreeMap;
use std::path::Path;

use partition::ir::{DType, Graph, ParamId, Size, Tensor, ValueId};
use partition::load::weights::{Arrays, ParamReader};
use partition::load::{LoadOptions, Model};
use partition::run::{ExecOptions, Program, interpret};

use crate::executor::{Groups, random_plan};
use crate::random_graph::Random;
use crate::{rule, shared};

/// A model of the corpus with its stored inputs, its dimensions bound to them.
struct Case {
    pub graph: Graph,
    pub inputs: Vec<(String, Tensor)>,
    arrays: Arrays,
}

/// None where the corpus is absent.
fn case(name: &str) -> Option<Case> {
    let model = shared::file(&format!("corpus/onnx/{name}.onnx"))?;
    let arrays = Arrays::open(&shared::file(&format!("corpus/onnx/{name}.io.npz"))?).unwrap();
    let mut graph = load(&model);
    let mut dims = BTreeMap::new();
    let stored = |prefix: &str, name: &str| {
        arrays.get(&format!("{prefix}{name}")).unwrap().or_else(|| arrays.get(name).unwrap())
    };
    let ends = graph.inputs().iter().map(|end| ("in_", end));
    for (prefix, (name, value)) in ends.chain(graph.outputs().iter().map(|end| ("out_", end))) {
        let Some(tensor) = stored(prefix, name) else { continue };
        for (size, &found) in graph.ty(*value).shape.sizes().iter().zip(tensor.dims()) {
            if let (Size::Affine(_), [(dim, 1)], 0) = (size, size.terms(), size.constant()) {
                dims.insert(graph.dim_name(*dim).to_owned(), found as i64);
            }
        }
    }
    graph.bind(&dims).unwrap_or_else(|error| panic!("{name}: {error}"));
    let input = |(name, value): &(String, ValueId)| {
        let tensor = stored("in_", name).unwrap_or_else(|| {
            let ty = graph.ty(*value);
            assert_eq!(ty.dtype, DType::F32, "{name}: only floats are made up");
            let dims = ty.shape.dims().unwrap();
            let values = rule::unit(&format!("input:{name}:0"), dims.iter().product::<i64>() as usize);
            Tensor::from_f32(dims.iter().map(|&dim| dim as u64).collect(), &values).unwrap()
        });
        (name.clone(), tensor)
    };
    let inputs = graph.inputs().iter().map(input).collect();
    assert!(graph.unbound_dims().is_empty(), "{name}: {:?}", graph.unbound_dims());
    Some(Case { graph, inputs, arrays })
}

fn load(path: &Path) -> Graph {
    let bytes = std::fs::read(path).unwrap();
    match partition::load::load(&bytes, Some(path), &LoadOptions::default()) {
        Ok(Model::Graph(graph)) => graph,
        Ok(Model::CostGraph { .. }) => panic!("{} is a network", path.display()),
        Err(error) => panic!("{error}: {:?}", error.details()),
    }
}

impl Case {
    /// A parameter's data: the model's own, or by the corpus' rule.
    pub fn weights(&self) -> impl Fn(ParamId) -> partition::Result<Tensor> + '_ {
        let reader = std::cell::RefCell::new(ParamReader::new());
        move |param| {
            if let Some(tensor) = reader.borrow_mut().read(&self.graph, param)? {
                return Ok(tensor);
            }
            let param = self.graph.param(param);
            let ty = self.graph.ty(self.graph.node(param.node).first_result);
            assert_eq!(ty.dtype, DType::F32, "{}", param.name);
            let dims = ty.shape.dims().unwrap();
            let values = rule::weight(&param.name, &dims);
            Tensor::from_f32(dims.iter().map(|&dim| dim as u64).collect(), &values)
        }
    }

    /// The output that an array holds, and of how many values it holds one.
    fn stored<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        if self.graph.outputs().iter().any(|(output, _)| output == name) {
            return Some((1, name));
        }
        if let Some(output) = name.strip_prefix("out_") {
            return Some((1, output));
        }
        let (step, output) = name.strip_prefix("outsample")?.split_once('_')?;
        Some((step.parse().ok()?, output))
    }

    /// The largest error in units of the tolerance (1e-4 relative, 1e-5 absolute), and how many
    /// values were compared.
    pub fn error(&self, outputs: &[(String, Tensor)]) -> (f64, usize) {
        let (mut worst, mut count) = (0.0f64, 0);
        for name in self.arrays.names() {
            let Some((step, output)) = self.stored(name) else { continue };
            let found = outputs.iter().find(|(other, _)| other == output);
            let found = values(&found.unwrap_or_else(|| panic!("no output {output}")).1);
            let stored = values(&self.arrays.get(name).unwrap().unwrap());
            // Sums of thousands do not cancel to the last digit: a millionth of the largest is noise.
            let noise = 1e-6 * stored.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let noise = if noise > 1e-3 { noise } else { 0.0 };
            assert_eq!(found.len().div_ceil(step), stored.len(), "{name}");
            for (found, stored) in found.iter().step_by(step).zip(&stored) {
                let same = found == stored || found.is_nan() && stored.is_nan();
                let error =
                    if same { 0.0 } else { (found - stored).abs() / (1e-5 + noise + 1e-4 * stored.abs()) };
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
                count += 1;
            }
        }
        (worst, count)
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let floats = tensor.to_f32().map(|list| list.into_iter().map(f64::from).collect());
    let integers = || tensor.to_i64().map(|list| list.into_iter().map(|value| value as f64).collect());
    let wide = |c: &[u8]| f64::from_le_bytes(c.try_into().unwrap());
    floats.or_else(integers).unwrap_or_else(|| tensor.bytes().chunks(8).map(wide).collect())
}

/// The interpreter's outputs are within the tolerance, and plans on several devices give the same
/// bits.
fn check(names: &[&str]) {
    for name in names {
        let Some(case) = case(name) else { return };
        let expected = interpret(&case.graph, &case.inputs, &case.weights())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let (error, count) = case.error(&expected);
        println!("{name}: {count} values within {error:.3} of the tolerance");
        assert!(count > 0, "{name}: nothing was compared");
        assert!(error <= 1.0, "{name}: {error} times the tolerance");
        let groups = Groups::planned(&case.graph);
        for devices in [1, 2, 3, 5] {
            let plan = random_plan(&case.graph, &groups, devices, &mut Random::new(devices as u64));
            let (weights, options) = (case.weights(), ExecOptions::default());
            let mut program = Program::new(&case.graph, &groups.fused(), &plan, &weights, options)
                .unwrap_or_else(|error| panic!("{name} on {devices}: {error}"));
            let (found, _) = program.run(&case.inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == expected, "{name} on {devices} devices: other bits");
        }
    }
}

#[test]
fn networks_cut_over_devices_give_the_stored_outputs() {
    check(&[
        "s_autoencoder_convt",
        "s_bert",
        "s_gpt2",
        "s_llama",
        "s_lstm",
        "s_mixtral",
        "s_mobilenet_v2",
        "s_resnet_hf",
        "s_sd_unet",
        "s_t5_encoder",
        "s_vit",
    ]);
}

#[test]
fn the_test_models_of_another_engine_give_the_stored_outputs() {
    check(&["tract_averagepool_count_include_pad", "tract_deconv_group"]);
}

#[test]
#[ignore = "full-size networks: ten minutes without optimisation"]
fn full_networks_cut_over_devices_give_the_stored_outputs() {
    check(&[
        "bert_base",
        "gpt2",
        "llama_small",
        "lstm_text_full",
        "mixtral_small",
        "mobilenet_v3_large",
        "resnet50",
        "resnet50_ts13",
        "sd_unet_small",
        "shufflenet_v2_x1_0",
        "vgg16",
        "vit_b_16",
    ]);
}
