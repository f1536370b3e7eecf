//! Convolutions of halves with their channels last inside: which are, what is transposed, that they compute the same, and
//! that plans say so and are checked and run by it.

use std::collections::BTreeMap;

use partition::unstable::compile::{Options, SplitOptions, check_model, compile, score};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{Graph, Layout, Op, ParamId, Tensor, Type};
use partition::unstable::load::Model;
use partition::unstable::pass::channels_last;
use partition::unstable::plan::Foreign;
use partition::unstable::run::interpret;
use partition::unstable::topology::Topology;

use crate::random_graph::Random;

const HEAD: &str = "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n";

/// Two convolutions, a sum beside them, pooling, a broadcast factor, and the mean of planes.
const CHAIN: &str = "%0: bf16[2, 16, 6, 7] = input \"x\" @s0
%1: bf16[32, 16, 3, 3] = param \"w\" init=normal(0, 0.2) @s0
%2: bf16[32] = param \"b\" init=normal(0, 1) @s0
%3: bf16[2, 32, 6, 7] = conv %0, %1, %2 pads_before=[1, 1] pads_after=[1, 1] @s0
%4: bf16[2, 32, 6, 7] = relu %3 @s0
%5: bf16[32, 32, 1, 1] = param \"v\" init=normal(0, 0.2) @s0
%6: bf16[2, 32, 6, 7] = conv %4, %5 @s0
%7: bf16[2, 32, 6, 7] = add %4, %6 @s0
%8: bf16[32, 1, 1] = param \"s\" init=normal(0, 1) @s0
%9: bf16[2, 32, 6, 7] = mul %7, %8 @s0
%10: bf16[2, 32, 3, 3] = pool %9 kind=max kernel=[2, 2] strides=[2, 2] @s0
%11: bf16[2, 64, 3, 3] = concat %10, %10 axis=1 @s0
%12: bf16[2, 64] = reduce %11 kind=mean axes=[2, 3] @s0
output \"y\" %12
";

/// A convolution whose result is taken as it is.
const ALONE: &str = "%0: bf16[2, 16, 6, 7] = input \"x\" @s0
%1: bf16[32, 16, 3, 3] = param \"w\" init=normal(0, 0.2) @s0
%2: bf16[2, 32, 6, 7] = conv %0, %1 pads_before=[1, 1] pads_after=[1, 1] @s0
output \"y\" %2
";

fn written(lines: &str) -> Graph {
    let text = format!("{HEAD}{lines}");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn layouts(graph: &Graph) -> Vec<Layout> {
    let nodes = graph.node_ids().map(|id| &graph.node(id).op);
    nodes.filter_map(|op| if let Op::Conv(conv) = op { Some(conv.layout) } else { None }).collect()
}

fn transposed(graph: &Graph) -> usize {
    graph.node_ids().filter(|&id| matches!(graph.node(id).op, Op::Transpose { .. })).count()
}

/// Numbers in bf16.
fn halves(ty: &Type, random: &mut Random) -> Tensor {
    let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
    let count: u64 = dims.iter().product();
    let bytes: Vec<u8> =
        (0..count).flat_map(|_| ((random.float().to_bits() >> 16) as u16).to_le_bytes()).collect();
    Tensor::new(ty.dtype, dims, bytes).unwrap()
}

/// The outputs of a graph whose parameters are supplied so, by name.
fn outputs(graph: &Graph, inputs: &[(String, Tensor)], supplied: &[(String, Tensor)]) -> Vec<f64> {
    let weights = |id: ParamId| {
        let param = graph.param(id);
        let (_, whole) = supplied.iter().find(|(name, _)| *name == param.name).unwrap();
        param.own_part(graph, whole.clone())
    };
    interpret(graph, inputs, &weights).unwrap()[0].1.to_f64()
}

#[test]
fn a_chain_is_transposed_at_its_edge_alone_and_computes_the_same() {
    let before = written(CHAIN);
    let mut after = before.clone();
    assert_eq!(channels_last(&mut after).unwrap(), 2);
    assert_eq!(layouts(&after), [Layout::ChannelsLast; 2]);
    // What comes in; what goes out has no channels first.
    assert_eq!(transposed(&after), 1, "{after}");
    let held: Vec<_> = after.params().iter().map(|param| param.permuted.as_deref()).collect();
    let order: Option<&[u32]> = Some(&[2, 3, 1, 0]);
    assert_eq!(held, [order, None, order, None]);
    // The same again as text.
    assert_eq!(parse(&after.to_string()).unwrap().to_string(), after.to_string());
    let mut random = Random::new(5);
    let mut made = |name: &str, value| (name.to_owned(), halves(before.ty(value), &mut random));
    let inputs = vec![made("x", before.inputs()[0].1)];
    let supplied: Vec<(String, Tensor)> =
        before.params().iter().map(|param| made(&param.name, before.node(param.node).first_result)).collect();
    let (x, y) = (outputs(&before, &inputs, &supplied), outputs(&after, &inputs, &supplied));
    let most = x.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    assert!(most > 0.0 && x.len() == 128);
    for (x, y) in x.iter().zip(&y) {
        // Sums in another order, rounded to halves in between.
        assert!((x - y).abs() <= 0.02 * most, "{x} {y}, of {most}");
    }
}

#[test]
fn what_would_be_transposed_more_than_it_saves_stays() {
    let mut graph = written(ALONE);
    assert_eq!(channels_last(&mut graph).unwrap(), 0);
    assert_eq!(layouts(&graph), [Layout::ChannelsFirst]);
    // Of f32; of channels that no access divides, where the other one still has them last; of few, which have a kernel.
    let of = |channels: u32| {
        let own = |sizes: &str| sizes.replace("16", &channels.to_string());
        let other = CHAIN.replace("[2, 16, 6, 7]", &own("[2, 16, 6, 7]"));
        other.replace("[32, 16, 3, 3]", &own("[32, 16, 3, 3]"))
    };
    for (lines, changed) in [(CHAIN.replace("bf16", "f32"), 0), (of(20), 1), (of(8), 2), (of(3), 2)] {
        assert_eq!(channels_last(&mut written(&lines)).unwrap(), changed, "{lines}");
    }
}

#[test]
fn a_plan_for_gpus_says_so_and_is_checked_and_run_by_it() {
    for (spec, said) in [("h100-80g", Some("channels_last")), ("cpu", None)] {
        let topology = Topology::parse(spec).unwrap();
        let compiled = compile(Model::Graph(written(CHAIN)), &topology, &Options::default()).unwrap();
        assert_eq!(compiled.plan.options.layout.as_deref(), said, "{spec}");
        let options = Options::of_plan(&compiled.plan).unwrap();
        check_model(&compiled.plan, Model::Graph(written(CHAIN)), &options).unwrap();
        let lowered = compiled.network.unwrap();
        assert_eq!(layouts(&lowered.graph).contains(&Layout::ChannelsLast), said.is_some(), "{spec}");
        let mut other = compiled.plan.clone();
        other.options.layout = Some("sideways".to_owned());
        assert!(Options::of_plan(&other).unwrap_err().to_string().contains("channels_last"));
    }
}

/// [`CHAIN`] whose first convolution is named.
fn named_chain() -> Graph {
    let head = HEAD.replace("\"A\"", "\"A\"\nsource s1 node \"c\" \"Conv\"");
    let named = "pads_before=[1, 1] pads_after=[1, 1] @s0";
    let text = format!("{head}{}", CHAIN.replacen(named, &named.replace("@s0", "@s1"), 1));
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn rules_for_splits_count_the_axes_of_the_source() {
    let topology = Topology::parse("h100-80g").unwrap();
    let split = SplitOptions { rules: vec!["c=1:2".parse().unwrap()], ..SplitOptions::default() };
    let options = Options { split, ..Options::default() };
    let compiled = compile(Model::Graph(named_chain()), &topology, &options).unwrap();
    let plan = &compiled.plan;
    // Channels, of which there are 32, and nothing else.
    let cut: Vec<&str> = plan.options.splits.iter().map(|entry| entry.over.as_str()).collect();
    assert_eq!(cut, ["axis 1"]);
    assert_eq!(plan.options.splits[0].bounds, [0, 16, 32]);
    assert_eq!(plan.options.layout, None);
    check_model(plan, Model::Graph(named_chain()), &Options::of_plan(plan).unwrap()).unwrap();
}

#[test]
fn a_placement_is_scored_on_the_network_that_is_planned() {
    let topology = Topology::parse("h100-80g").unwrap();
    let planned = compile(Model::Graph(written(CHAIN)), &topology, &Options::default()).unwrap().plan;
    let placed: BTreeMap<&str, &str> =
        planned.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect();
    let foreign = Foreign::read(serde_json::to_string(&placed).unwrap().as_bytes(), "test.json").unwrap();
    let scored = score(Model::Graph(written(CHAIN)), &topology, &Options::default(), &foreign).unwrap();
    assert_eq!(scored.compiled.plan.options.layout, planned.options.layout);
    assert!(planned.options.layout.is_some());
}

#[test]
fn a_plan_without_its_layout_is_refused() {
    let topology = Topology::parse("h100-80g").unwrap();
    let mut plan = compile(Model::Graph(written(CHAIN)), &topology, &Options::default()).unwrap().plan;
    plan.options.layout = None;
    let options = Options::of_plan(&plan).unwrap();
    assert!(check_model(&plan, Model::Graph(written(CHAIN)), &options).is_err());
}
