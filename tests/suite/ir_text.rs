//! The text form of graphs: round trips, errors with their place, and a million nodes.

use std::time::{Duration, Instant};

use partition::unstable::ir::text::parse;
use partition::unstable::ir::*;
use proptest::prelude::*;

use crate::random_graph::{Random, random_graph};

fn round_trip(graph: &Graph) {
    let text = graph.to_string();
    let again = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.to_string(), text);
    assert!(&again == graph, "prints alike but differs:\n{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_random_graph_verifies_and_round_trips(seed in any::<u64>(), nodes in 0usize..60) {
        let mut graph = random_graph(seed, nodes);
        verify(&graph).unwrap();
        mark(&mut graph, seed);
        round_trip(&graph);
    }

    #[test]
    fn damaged_text_is_an_error_or_a_sound_graph(seed in any::<u64>(), at in any::<usize>(), byte in 0x20u8..0x7f) {
        let mut text = random_graph(seed, 10).to_string().into_bytes();
        let at = at % text.len();
        text[at] = byte;
        if let Ok(graph) = parse(std::str::from_utf8(&text).unwrap()) {
            verify(&graph).unwrap();
        }
    }

    #[test]
    fn any_text_is_an_error_or_a_sound_graph(text in "[ -~\n]{0,200}") {
        if let Ok(graph) = parse(&format!("graph \"g\"\n{text}")) {
            verify(&graph).unwrap();
        }
    }
}

/// Pins, marks, controls and names that need escapes.
fn mark(graph: &mut Graph, seed: u64) {
    let mut random = Random::new(seed ^ 1);
    for id in 0..graph.sources().len() as u32 {
        let source = graph.source_mut(SourceId(id));
        if random.one_in(4) {
            source.pin = Some("cuda0".to_owned());
        }
        if random.one_in(4) {
            source.colocate = Some("tower \"a\"\\\n\u{1b}é".to_owned());
        }
    }
    let nodes = graph.node_count();
    let (a, b) = (random.below(nodes) as u32, random.below(nodes) as u32);
    if a != b {
        graph.add_control(NodeId(a.min(b)), NodeId(a.max(b))).unwrap();
    }
}

fn source(graph: &mut Graph) -> SourceId {
    graph.add_source(Source::new("s", "S", SourceRole::Node))
}

#[test]
fn dimensions_print_by_name() {
    let mut graph = Graph::new("symbolic");
    let (batch, odd) = (graph.dim("batch"), graph.dim("past + 1"));
    let s = source(&mut graph);
    let sizes = [Size::dim(batch), Size::new(-1, [(batch, -2), (odd, 3)]).unwrap()];
    let x = graph.add_input("x", Type::new(DType::F32, Shape::new(sizes.clone())), s);
    graph.add_sizes(sizes.to_vec(), false, s);
    graph.add_sizes(vec![Size::Known(-7)], true, s);
    graph.add_output("x", x);
    let text = graph.to_string();
    assert!(text.contains("%0: f32[batch, -2*batch+3*\"past + 1\"-1] = input \"x\" @s0"), "{text}");
    round_trip(&graph);
}

#[test]
fn data_prints_exactly() {
    let mut graph = Graph::new("data");
    let s = source(&mut graph);
    let f32s = [0.1, -0.0, f32::INFINITY, f32::MIN_POSITIVE, 1e38];
    graph.add_constant(Tensor::from_f32(vec![5], &f32s).unwrap(), s);
    graph.add_constant(Tensor::from_f32(vec![1], &[f32::from_bits(0x7fc0_1234)]).unwrap(), s);
    graph.add_constant(Tensor::from_f32(vec![0, 7], &[]).unwrap(), s);
    graph.add_constant(Tensor::from_i64(vec![2], &[i64::MIN, i64::MAX]).unwrap(), s);
    graph.add_constant(Tensor::new(DType::Bool, vec![3], vec![0, 1, 2]).unwrap(), s);
    graph.add_constant(Tensor::new(DType::Bool, vec![2], vec![0, 1]).unwrap(), s);
    graph.add_constant(Tensor::new(DType::Bf16, vec![1], vec![0x80, 0x3f]).unwrap(), s);
    let long = Tensor::from_i64(vec![300], &(0..300).collect::<Vec<i64>>()).unwrap();
    graph.add_constant(long.clone(), s);
    let ty = Type::new(DType::I64, Shape::known(&[300]));
    let datas = [
        Data::Inline(long),
        Data::File { path: "a dir/w.bin".into(), offset: u64::MAX, length: 2400 },
        Data::Array { path: "w.npz".into(), name: "dense/kernel".to_owned() },
        Data::Sum {
            matrix: Box::new(Data::Array { path: "w.npz".into(), name: "dense/kernel".to_owned() }),
            added: Box::new(LowRank {
                path: "an adapter/w.safetensors".into(),
                left: "dense.lora_B".to_owned(),
                right: "dense.lora_A".to_owned(),
                factor: Real(0.1),
                turned: true,
            }),
        },
    ];
    for (index, data) in datas.into_iter().enumerate() {
        graph.add_param(format!("w{index}"), ty.clone(), Init::zeros(), Some(data), s);
    }
    round_trip(&graph);
    let text = graph.to_string();
    assert!(text.contains("constant {0.1, -0.0, inf, 1.1754944e-38, 1e38} @s0"), "{text}");
    assert!(text.contains("constant 0x3412c07f @s0"), "{text}");
    assert!(format!("{graph:#}").contains("constant <2400 bytes> @s0"));
}

#[test]
fn initialisers_and_odd_attributes_round_trip() {
    let mut graph = Graph::new("");
    let s = source(&mut graph);
    let ty = Type::new(DType::F32, Shape::known(&[2, 2]));
    let one = Real(1.5);
    let inits = [
        Init::Constant(Real(f64::NAN)),
        Init::Constant(Real(f64::from_bits(0xfff8_0000_0000_0001))),
        Init::Uniform { low: Real(-1e-300), high: Real(f64::INFINITY) },
        Init::Normal { mean: one, deviation: one, truncated: false },
        Init::Normal { mean: one, deviation: one, truncated: true },
        Init::VarianceScaling { scale: one, fan: Fan::In, distribution: Distribution::TruncatedNormal },
        Init::VarianceScaling { scale: one, fan: Fan::Out, distribution: Distribution::Normal },
        Init::glorot_uniform(),
        Init::Orthogonal { gain: one },
        Init::Identity { gain: one },
        Init::UnitForgetBias,
    ];
    for (index, init) in inits.into_iter().enumerate() {
        graph.add_param(format!("w{index}"), ty.clone(), init, None, s);
    }
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[1, 2, 4, 4])), s);
    let ints = graph.add_constant(Tensor::from_i64(vec![1, 2, 4, 4], &[0; 32]).unwrap(), s);
    let pair = graph.add_constant(Tensor::from_i64(vec![1, 1], &[0]).unwrap(), s);
    let start = graph.add_constant(Tensor::from_i64(vec![], &[0]).unwrap(), s);
    let rows = graph.add_constant(Tensor::from_f32(vec![2, 2], &[0.5; 4]).unwrap(), s);
    let splits = graph.add_constant(Tensor::from_f32(vec![1], &[0.5]).unwrap(), s);
    let nodes = graph.add_constant(Tensor::new(DType::I32, vec![1], vec![0; 4]).unwrap(), s);
    let window = Window {
        strides: vec![2, 1],
        dilations: vec![1, 2],
        pads_before: vec![0, 1],
        pads_after: vec![1, 0],
    };
    let w = graph.add_param("w", Type::new(DType::F32, Shape::known(&[2, 3, 2, 2])), Init::ones(), None, s);
    let resize = |scales| {
        Op::Resize(Box::new(Resize {
            shape: Shape::known(&[1, 2, 8, 8]),
            interpolation: Interpolation::Linear,
            coordinates: ResizeCoordinates::AlignCorners,
            scales,
        }))
    };
    let ops: Vec<(Op, Vec<ValueId>)> = vec![
        (resize(None), vec![x]),
        (resize(Some(vec![Real(1.0), Real(1.0), Real(2.0), Real(2.0)])), vec![x]),
        (
            Op::ConvTranspose(Box::new(ConvTranspose {
                layout: Layout::ChannelsFirst,
                window,
                output_padding: vec![1, 0],
                groups: 1,
            })),
            vec![x, w],
        ),
        (Op::LocalResponseNorm { size: 3, alpha: Real(1e-4), beta: Real(0.75), bias: Real(1.0) }, vec![x]),
        (Op::ArgReduce { kind: ArgReduce::Min, axis: 2, keep: true, last: true }, vec![x]),
        (Op::GatherElements { axis: 1 }, vec![x, ints]),
        (Op::GatherNd { batch_dims: 0 }, vec![x, pair]),
        (Op::ScatterElements { axis: 1, kind: ScatterKind::Max }, vec![x, ints, x]),
        (Op::ScatterNd { kind: ScatterKind::Add }, vec![x, pair, x]),
        (Op::UpdateSlice { axis: 1 }, vec![x, start, x]),
        (Op::TreeLeaves { depth: 3 }, vec![rows, nodes, nodes, splits, nodes]),
    ];
    for (op, operands) in ops {
        graph.push(op, &operands, s).unwrap();
    }
    graph.add_iota(Type::new(DType::I32, Shape::known(&[2, 5])), 1, s);
    round_trip(&graph);
}

#[test]
fn an_error_names_line_and_column() {
    let head = "graph \"g\"\nsource s0 node \"a\" \"A\"\n";
    let x = "%0: f32[2] = input \"x\" @s0\n";
    let cases = [
        ("".to_owned(), "1:1: expected `graph \"name\"`"),
        ("grph".to_owned(), "1:1: expected `graph`, found `grph`"),
        ("graph \"g".to_owned(), "1:9: expected a closing quote, found the end of the line"),
        ("graph \"\\x\"".to_owned(), "1:8: expected an escape"),
        (format!("{head}%1: f32[2] = input \"x\" @s0"), "3:3: expected value %0, found %1"),
        (format!("{head}%0: f33[2] = input \"x\" @s0"), "3:5: expected an element type, found `f33[2]"),
        (format!("{head}%0: f32[n] = input \"x\" @s0"), "3:9: expected a number or a dimension, found `n]"),
        (format!("{head}%0: f32[-2] = input \"x\" @s0"), "sizes of 0 or more, found f32[-2]"),
        (
            format!("{head}%0: f32[99999999999999999999] = input \"x\" @s0"),
            "3:9: expected an integer in range",
        ),
        (format!("{head}%0: f32[2] = input \"x\" @s1"), "3:27: there is no source s1 before this line"),
        (format!("{head}{x}%1: f32[2] = neg %1 @s0"), "4:20: %1 is not made before this line"),
        (
            format!("{head}{x}%1: f32[3] = neg %0 @s0"),
            "4:24: node a: neg: expected type f32[2], found f32[3]",
        ),
        (format!("{head}{x}%1: f32[2] = blub %0 @s0"), "4:22: there is no operation blub"),
        (format!("{head}{x}%1: f32[2] = softmax %0 axis=4 log=false @s0"), "an axis below 1, found 4"),
        (
            format!("{head}{x}%1: f32[2] = neg %0 @s0 more"),
            "4:25: expected the end of the line, found `more`",
        ),
        (format!("{head}{x}output \"y\" %9"), "4:14: %9 is not made before this line"),
        (format!("{head}{x}control %0 -> %0"), "does not point forward"),
        (format!("{head}{x}output \"y\" %0\noutput \"y\" %0"), "output y: the name is there twice"),
        (
            format!("{head}%0: i8[2] = constant {{1, 128}} @s0"),
            "3:26: expected an integer in range, found `128}",
        ),
        (format!("{head}%0: i8[2] = constant {{1}} @s0"), "does not take 1 bytes"),
        (format!("{head}%0: i8[2] = constant 0x123 @s0"), "two digits for each byte"),
        (format!("{head}%0: i8[9223372036854775807, 9] = constant 0x12 @s0"), "does not take 1 bytes"),
    ];
    for (text, expected) in cases {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn deep_brackets_and_long_lines_are_errors() {
    for text in ["[".repeat(10_000_000), format!("graph \"g\"\n%0: f32{}", "[".repeat(10_000_000))] {
        assert!(parse(&text).is_err());
    }
}

/// Layers of 4 nodes, each with a source of its own, as from a loader.
fn big_graph(nodes: usize) -> Graph {
    let mut graph = Graph::new("big");
    let ty = Type::new(DType::F32, Shape::known(&[8, 16, 32, 32]));
    let source = graph.add_source(Source::new("input", "Input", SourceRole::Data));
    let mut x = graph.add_input("x", ty, source);
    while graph.node_count() < nodes {
        let layer = graph.node_count();
        for (op, both) in [
            (Op::Unary(Unary::Tanh), false),
            (Op::Binary(Binary::Add), true),
            (Op::Softmax { axis: 3, log: false }, false),
            (Op::Transpose { perm: vec![0, 1, 3, 2] }, false),
        ] {
            let name = format!("/model/layers.{layer}/{}", op.name());
            let source = graph.add_source(Source::new(name, op.name(), SourceRole::Node));
            let operands = if both { vec![x, x] } else { vec![x] };
            x = graph.apply(op, &operands, source).unwrap();
        }
    }
    graph.add_output("y", x);
    graph
}

/// Peak memory of this process in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Runs itself in a process of its own, whose peak memory is that of the graph.
#[test]
fn a_million_nodes_fit_in_a_gigabyte_and_print_in_seconds() {
    const CHILD: &str = "PARTITION_TEST_MILLION_NODES";
    if std::env::var_os(CHILD).is_none() {
        let test = "ir_text::a_million_nodes_fit_in_a_gigabyte_and_print_in_seconds";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let graph = big_graph(1_000_000);
    if let Some(peak) = peak_memory() {
        println!("a graph of {} nodes: {} MB", graph.node_count(), peak / 1_000_000);
        assert!(peak < 1_000_000_000, "{peak} bytes");
    }
    let started = Instant::now();
    let mut sink = Counter(0);
    std::fmt::write(&mut sink, format_args!("{graph}")).unwrap();
    println!("printed {} MB in {:?}", sink.0 / 1_000_000, started.elapsed());
    assert!(sink.0 > 50_000_000);
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// Counts what is written.
struct Counter(usize);

impl std::fmt::Write for Counter {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
