//! Steps after the first one take nothing from the heap.

use std::sync::Mutex;
use std::time::Duration;

use partition::unstable::compile::{Options, compile};
use partition::unstable::ir::{Graph, ParamId, Tensor};
use partition::unstable::load::Model;
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::{ExecOptions, Hook, Program, exec_plan};
use partition::unstable::topology::Topology;

use crate::allocations::{counted, watch};
use crate::executor::tensor;
use crate::networks::Network;
use crate::random_graph::{Random, random_graph};
use crate::shared;
use crate::sweep::Share;

/// One count at a time.
static COUNTING: Mutex<()> = Mutex::new(());

/// Allocations of the caller and all workers in three steps that follow a first one.
fn allocations(program: &mut Program, inputs: &[(String, Tensor)]) -> u64 {
    program.feed(inputs).unwrap();
    program.step().unwrap();
    let before = counted();
    for _ in 0..3 {
        watch(true);
        let wall = program.step();
        watch(false);
        assert!(wall.unwrap() > Duration::ZERO);
    }
    counted() - before
}

/// Watches each worker from its first step on.
fn options() -> ExecOptions {
    let hook: Hook = Box::new(|_| watch(true));
    ExecOptions { timeout: None, before_step: Some(hook), ..ExecOptions::default() }
}

/// The allocations of a network planned for two CPUs.
fn of_graph(graph: Graph, inputs: &[(String, Tensor)], params: &[Tensor]) -> u64 {
    let place = place::Options { devices: DeviceUse::All, balance: Some(0.5), ..place::Options::default() };
    let options_ = Options { place, ..Options::default() };
    let topology = Topology::parse("2xcpu:cores=1").unwrap();
    let compiled = compile(Model::Graph(graph.clone()), &topology, &options_)
        .or_else(|_| compile(Model::Graph(graph), &topology, &Options::default()))
        .unwrap();
    let network = compiled.network.unwrap();
    let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping).unwrap();
    let weights = |param: ParamId| {
        let name = network.graph.param(param).name.strip_prefix('w').and_then(|n| n.parse::<usize>().ok());
        Ok(params[name.unwrap() - 1].clone())
    };
    let fused = network.grouping.all_fused();
    let mut program = Program::new(&network.graph, &fused, &exec, &weights, options()).unwrap();
    let known: Vec<(String, Tensor)> = inputs
        .iter()
        .filter(|(name, _)| network.graph.inputs().iter().any(|(other, _)| other == name))
        .cloned()
        .collect();
    allocations(&mut program, &known)
}

sweep! {
    networks_allocate_nothing_in_a_step: one of 4;
    networks_of_the_corpus_allocate_nothing_in_a_step: one of 3;
}

fn networks_allocate_nothing_in_a_step(share: Share) {
    let _alone = COUNTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut seen = std::collections::BTreeSet::new();
    for seed in share.among(0..400) {
        let graph = random_graph(seed, 12);
        seen.extend(graph.node_ids().map(|node| graph.node(node).op.name()));
        let mut random = Random::new(seed);
        let inputs: Vec<(String, Tensor)> = graph
            .inputs()
            .iter()
            .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
            .collect();
        let params: Vec<Tensor> = graph
            .params()
            .iter()
            .map(|param| tensor(graph.ty(graph.node(param.node).first_result), &mut random))
            .collect();
        assert_eq!(of_graph(graph, &inputs, &params), 0, "seed {seed}");
    }
    for op in [
        "transpose",
        "slice",
        "concat",
        "gather",
        "pool",
        "reduce",
        "softmax",
        "topk",
        "matmul",
        "conv",
        "recurrent",
    ] {
        assert!(seen.contains(op), "no network has {op}: {seen:?}");
    }
}

/// A counter that cannot count would find nothing.
#[test]
fn an_allocation_on_a_watched_thread_is_counted() {
    let _alone = COUNTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = counted();
    watch(true);
    let list = std::hint::black_box(vec![1u8; 100]);
    watch(false);
    assert_eq!(list.len(), 100);
    assert_eq!(counted() - before, 1);
}

/// Every operation that multiplies, in every form of its operands.
fn networks_of_the_corpus_allocate_nothing_in_a_step(share: Share) {
    let _alone = COUNTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for file in share.among([
        "onnx/s_bert.onnx",
        "onnx/s_gpt2.onnx",
        "onnx/s_lstm.onnx",
        "onnx/s_mixtral.onnx",
        "onnx/s_mobilenet_v2.onnx",
        "onnx/s_sd_unet.onnx",
        "onnx/s_autoencoder_convt.onnx",
        "keras/gru_conv1d_small.k3.json",
        "keras/transformer_small.k2.json",
    ]) {
        let Some(path) = shared::file(&format!("corpus/{file}")) else { return };
        let network = Network::open(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut program = network
            .program("2xcpu:cores=1", DeviceUse::All, options())
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(allocations(&mut program, &network.inputs), 0, "{file}");
    }
}
