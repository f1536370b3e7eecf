//! Real networks, run node by node, against the stored outputs of another runtime.

use std::collections::BTreeMap;
use std::path::Path;

use partition::ir::{DType, Graph, ParamId, Size, Tensor};
use partition::load::weights::{Arrays, ParamReader};
use partition::load::{LoadOptions, Model};
use partition::run::interpret;

use crate::shared;

/// The rule by which the corpus makes up the weights that it does not store.
pub fn rule_weight(name: &str, dims: &[u64]) -> Tensor {
    let seed = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let count = dims.iter().product::<u64>();
    let unit = |i: u64| {
        let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let scale = match dims {
        [a, b] => (3.0 / ((a + b) as f64 / 2.0).max(1.0)).sqrt() as f32,
        [first, _, _, ..] => (6.0 / (count as f64 / *first as f64).max(1.0)).sqrt() as f32,
        _ => 0.0,
    };
    let ends = ["weight", "var", "scale", "gamma"].iter().any(|end| name.ends_with(end));
    let near_one = !name.contains("bias") && (ends || name.to_lowercase().contains("norm"));
    let value = |u: f32| match dims.len() {
        2.. => u * scale,
        _ if near_one => 1.0 + 0.1 * u,
        _ => 0.05 * u,
    };
    let values: Vec<f32> = (0..count).map(|i| value(unit(i))).collect();
    Tensor::from_f32(dims.to_vec(), &values).unwrap()
}

/// A model of the corpus with its stored inputs, its dimensions bound to them.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<(String, Tensor)>,
    arrays: Arrays,
}

/// None where the corpus is absent.
pub fn case(name: &str) -> Option<Case> {
    let model = shared::file(&format!("corpus/onnx/{name}.onnx"))?;
    let arrays = Arrays::open(&shared::file(&format!("corpus/onnx/{name}.io.npz"))?).unwrap();
    let free = load(&model, &BTreeMap::new());
    let mut dims = BTreeMap::new();
    let mut inputs = Vec::new();
    for (input, value) in free.inputs() {
        let stored = arrays.get(&format!("in_{input}")).unwrap().or_else(|| arrays.get(input).unwrap());
        let tensor = stored.unwrap_or_else(|| panic!("{name}: {input}"));
        for (size, &found) in free.ty(*value).shape.sizes().iter().zip(tensor.dims()) {
            if let (Size::Affine(_), [(dim, 1)], 0) = (size, size.terms(), size.constant()) {
                dims.insert(free.dim_name(*dim).to_owned(), found as i64);
            }
        }
        inputs.push((input.clone(), tensor));
    }
    let mut graph = free;
    graph.bind(&dims).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(graph.unbound_dims().is_empty(), "{name}: {:?}", graph.unbound_dims());
    Some(Case { graph, inputs, arrays })
}

fn load(path: &Path, dims: &BTreeMap<String, i64>) -> Graph {
    let bytes = std::fs::read(path).unwrap();
    match partition::load::load(&bytes, Some(path), &LoadOptions { dims: dims.clone() }) {
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
            let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
            Ok(rule_weight(&param.name, &dims))
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
            assert_eq!(found.len().div_ceil(step), stored.len(), "{name}");
            for (found, stored) in found.iter().step_by(step).zip(&stored) {
                let same = found == stored || found.is_nan() && stored.is_nan();
                let error = if same { 0.0 } else { (found - stored).abs() / (1e-5 + 1e-4 * stored.abs()) };
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

fn check(names: &[&str]) {
    let mut wrong = Vec::new();
    for name in names {
        let Some(case) = case(name) else { return };
        let outputs = interpret(&case.graph, &case.inputs, &case.weights())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let (error, count) = case.error(&outputs);
        println!("{name}: {count} values within {error:.3} of the tolerance");
        assert!(count > 0, "{name}: nothing was compared");
        if error > 1.0 {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn small_networks_give_the_stored_outputs() {
    check(&[
        "s_autoencoder_convt",
        "s_bert",
        "s_gpt2",
        "s_llama",
        "s_lstm",
        "s_mixtral",
        "s_mobilenet_v2",
        "s_resnet_hf",
        "s_t5_encoder",
        "s_vit",
    ]);
}

#[test]
fn a_small_diffusion_network_gives_the_stored_outputs() {
    check(&["s_sd_unet"]);
}

#[test]
fn the_test_models_of_another_engine_give_the_stored_outputs() {
    check(&["tract_averagepool_count_include_pad", "tract_deconv_group", "tract_qrelu_1"]);
}

#[test]
#[ignore = "full-size networks: some minutes without optimisation"]
fn full_networks_give_the_stored_outputs() {
    let all = [
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
    ];
    match std::env::var("PARTITION_CORPUS") {
        Ok(name) => check(&[name.as_str()]),
        Err(_) => check(&all),
    }
}
