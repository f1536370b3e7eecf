//! Cost graph JSON: reading, writing, and every kind of bad input.

use std::time::{Duration, Instant};

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::load::{read_costgraph, write_costgraph};
use partition::unstable::place::Options;
use partition::unstable::strategy::{Problem, solve};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};
use partition::{Control, Error, Result};

use crate::bad;

const SMALL: &str = r#"{"costgraph":1,"name":"small","kinds":["fast","cpu"],"later":{"a":[1,{}]},
"nodes":[
 {"id":"w","op":"param","param_bytes":64,"params":"tied","outputs":[64]},
 {"id":"v","op":"param","param_bytes":64,"params":"tied","outputs":[64]},
 {"id":"x","op":"input","outputs":[16]},
 {"id":"a","op":"matmul","time_ns":[10,40],"workspace_bytes":8,"outputs":[16,32.0],"colocate":"here"},
 {"id":"b","op":"softmax","time_ns":[null,5],"outputs":[16],"colocate":"here","pin":"cpu0","unknown":1},
 {"id":"c","op":"bwd","time_ns":[7.6,9],"param_bytes":3,"outputs":[4],"forward":"d","backward":true},
 {"id":"d","op":"relu","time_ns":[1,1],"outputs":[16],"forward":null,"colocate":null}],
"edges":[["w",0,"a"],["x",0,"a"],["v",0,"b"],["a",1,"b"],["a",0,"d"],["b",0,"c"],["d",0,"c"]],
"results":[["d",0]]}"#;

fn small() -> CostGraph {
    read_costgraph(SMALL.as_bytes()).unwrap()
}

#[test]
fn a_graph_is_read_as_it_stands() {
    let graph = small();
    let find = |name: &str| graph.nodes().find(|&node| graph.node_name(node) == name).unwrap();
    assert_eq!((graph.node_count(), graph.edge_count(), graph.param_count()), (7, 7, 1));
    assert_eq!(graph.role(find("w")), Role::Param);
    assert_eq!(graph.role(find("x")), Role::Input);
    assert_eq!(graph.time(find("a"), 1), Some(Nanos(40)));
    assert_eq!(graph.time(find("b"), 0), None);
    assert_eq!(graph.time(find("c"), 0), Some(Nanos(8)), "fractions round to the nearest");
    assert_eq!(graph.owned_bytes(find("c")), Bytes(3));
    assert_eq!(graph.workspace_bytes(find("a")), Bytes(8));
    assert_eq!(graph.colocation(find("a")), graph.colocation(find("b")));
    assert_eq!(graph.forward(find("c")), Some(find("d")), "a forward node may come later");
    assert!(graph.is_backward(find("c")));
    assert_eq!(graph.pins(), &[(find("b"), "cpu0".to_owned())]);
    let kept = graph.outputs(find("d")).next().unwrap();
    assert!(graph.is_result(kept), "named in results");
}

#[test]
fn a_builder_names_what_does_not_exist() {
    let nowhere = NodeIx(99);
    let made = |kinds: &[&str], mark: &dyn Fn(&mut Builder, NodeIx, NodeIx)| {
        let mut builder = Builder::new("made", kinds.iter().map(|kind| (*kind).to_owned()).collect());
        let times = vec![Some(Nanos(1)); kinds.len()];
        let mut add = |name: &str, op: &str| {
            let (times, outputs) = (if op == "input" { &[][..] } else { &times[..] }, &[Bytes(4)][..]);
            builder.add(&NodeSpec { name, op, times, outputs, ..NodeSpec::default() }).unwrap()
        };
        let (x, y) = (add("x", "input"), add("y", "f"));
        builder.connect(x, 0, y);
        mark(&mut builder, x, y);
        builder.finish().map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(made(&["cpu"], &|builder, x, y| builder.set_update(x, y, 0)), Ok(()));
    let fails = |kinds: &[&str], mark: &dyn Fn(&mut Builder, NodeIx, NodeIx), part: &str| {
        let error = made(kinds, mark).expect_err(part);
        assert!(error.contains(part), "{error}");
    };
    fails(&["cpu"], &|builder, _, y| builder.set_forward(y, nowhere), "forward node of y: does not exist");
    fails(&["cpu"], &|builder, _, y| builder.set_forward(nowhere, y), "does not exist");
    fails(&["cpu"], &|builder, x, _| builder.set_result(x, 1), "result of x: output 1 of x does not exist");
    fails(&["cpu"], &|builder, x, y| builder.set_update(x, y, 7), "output 7 of y does not exist");
    fails(&["cpu"], &|builder, x, _| builder.connect(x, 0, nowhere), "edge from x to ?");
    fails(&["cpu", "cpu"], &|_, _, _| {}, "kind cpu: is there twice");
    assert_eq!(Builder::new("empty", Vec::new()).output_count(nowhere), 0);
}

#[test]
fn writing_and_reading_gives_the_same_graph() {
    let graph = small();
    let text = write_costgraph(&graph);
    let again = read_costgraph(text.as_bytes()).unwrap();
    assert_eq!(graph, again);
    assert_eq!(write_costgraph(&again), text);
}

#[test]
fn the_fields_may_stand_in_any_order() {
    let (head, tail) = SMALL.split_once("\"nodes\"").unwrap();
    let (nodes, edges) = tail.split_once(",\n\"edges\"").unwrap();
    let edges = edges.strip_suffix('}').unwrap();
    let reversed =
        format!("{{\"edges\"{edges},\"nodes\"{nodes},{}}}", head[1..].trim_end().trim_end_matches(','));
    assert_eq!(read_costgraph(reversed.as_bytes()).unwrap(), small());
}

#[test]
fn names_with_escapes_survive() {
    let text = r#"{"costgraph":1,"kinds":["k"],"nodes":[{"id":"a\n\"\u00e9","op":"f","time_ns":[1],"outputs":[1]}]}"#;
    let graph = read_costgraph(text.as_bytes()).unwrap();
    assert_eq!(graph.node_name(graph.nodes().next().unwrap()), "a\n\"é");
    assert_eq!(read_costgraph(write_costgraph(&graph).as_bytes()).unwrap(), graph);
}

/// The graph with one node's text, or the edges', replaced.
fn with(nodes: &str, edges: &str) -> Result<CostGraph> {
    let text = format!(r#"{{"costgraph":1,"kinds":["k"],"nodes":[{nodes}],"edges":[{edges}]}}"#);
    read_costgraph(text.as_bytes())
}

/// A node, an input, and what takes the place of it.
fn updating(updates: &str) -> Result<CostGraph> {
    let nodes = r#"{"id":"x","op":"input","outputs":[1]},{"id":"a","op":"f","time_ns":[1],"outputs":[1]}"#;
    let text = format!(r#"{{"costgraph":1,"kinds":["k"],"updates":[{updates}],"nodes":[{nodes}]}}"#);
    read_costgraph(text.as_bytes())
}

/// The same of a graph without nodes.
fn updating_none(updates: &str) -> Result<CostGraph> {
    let text = format!(r#"{{"costgraph":1,"kinds":["k"],"updates":[{updates}],"nodes":[]}}"#);
    read_costgraph(text.as_bytes())
}

/// A view with these fields of a node that makes 128 bytes.
fn viewed(fields: &str) -> Result<CostGraph> {
    let a = r#"{"id":"a","op":"f","time_ns":[1],"outputs":[128]}"#;
    with(&format!(r#"{a},{{"id":"v","op":"f",{fields}}}"#), r#"["a",0,"v"]"#)
}

#[test]
fn wrong_graphs_are_named() {
    let a = r#"{"id":"a","op":"f","time_ns":[1],"outputs":[1]}"#;
    let b = r#"{"id":"b","op":"f","time_ns":[1],"outputs":[1]}"#;
    let node = |fields: &str| format!(r#"{{"id":"a","op":"f",{fields}}}"#);
    let cases = [
        (with(&node(r#""time_ns":[-1]"#), ""), "node a: time_ns: -1 is negative"),
        (with(&node(r#""time_ns":[-1.5]"#), ""), "node a: time_ns: -1.5 is negative"),
        (with(&node(r#""time_ns":[1e300]"#), ""), "larger than 2^63 - 1"),
        (with(&node(r#""time_ns":[18446744073709551615]"#), ""), "larger than 2^63 - 1"),
        (with(&node(r#""time_ns":[1e999]"#), ""), "number out of range"),
        (with(&node(r#""time_ns":[NaN]"#), ""), "line 1, column"),
        (with(&node(r#""time_ns":["1"]"#), ""), "expected a number"),
        (with(&node(r#""time_ns":[1,2]"#), ""), "node a: expected 1 times"),
        (with(&node(r#""outputs":[1]"#), ""), "node a: expected 1 times"),
        (with(&node(r#""time_ns":[1],"outputs":[-4]"#), ""), "node a: outputs: -4 is negative"),
        (with(&node(r#""time_ns":[1],"param_bytes":-4"#), ""), "node a: param_bytes: -4 is negative"),
        (with(&node(r#""time_ns":[1],"workspace_bytes":-4"#), ""), "node a: workspace_bytes: -4"),
        (with(&node(r#""time_ns":[1],"outputs":[9e18,9e18]"#), ""), "node a: the bytes up to here add up"),
        (with(&node(r#""time_ns":[1],"forward":"z""#), ""), "\"forward\": \"z\": there is no such node"),
        (with(r#"{"op":"f"}"#, ""), "missing field `id`"),
        (with(&format!("{a},{a}"), ""), "node a: this id is used twice"),
        (with(a, r#"["a",0,"z"]"#), "edge 0 from a to z: there is no node z"),
        (with(a, r#"["z",0,"a"]"#), "edge 0 from z to a: there is no node z"),
        (with(&format!("{a},{b}"), r#"["a",1,"b"]"#), "edge from a to b: output 1 of a does not exist"),
        (with(&format!("{a},{b}"), r#"["a",-1,"b"]"#), "output: -1 is negative"),
        (with(&format!("{a},{b}"), r#"["a",99999999999,"b"]"#), "does not exist"),
        (with(&format!("{a},{b}"), r#"["a",0,"b"],["b",0,"a"]"#), "is on a cycle of 2 nodes"),
        (with(a, r#"["a",0,"a"]"#), "is on a cycle of 1 nodes: a"),
        (with(r#"{"id":"p","op":"param","outputs":[1]}"#, r#"["p",0,"p"]"#), "read nothing"),
        (with("", ""), "the graph has no nodes"),
        (with(r#"{"id":"","op":"f","time_ns":[1]}"#, ""), "node 0: its id is empty"),
        (
            with(&node(r#""time_ns":[1],"outputs":[1],"view":0"#), ""),
            "node a: a view is of one input, found 0",
        ),
        (viewed(r#""outputs":[64],"view":10"#), "node v: a view begins at a multiple of 64 bytes, found 10"),
        (
            viewed(r#""outputs":[64],"view":128"#),
            "node v: a view of 64 bytes from byte 128 on goes beyond its input, which has 128",
        ),
        (viewed(r#""outputs":[64,64],"view":0"#), "node v: a view has one output, found 2"),
        (viewed(r#""outputs":[],"view":0"#), "node v: a view has one output, found 0"),
        (
            with(
                r#"{"id":"p","op":"param","outputs":[64]},{"id":"v","op":"f","outputs":[64],"view":0}"#,
                r#"["p",0,"v"]"#,
            ),
            "node v: a view is of what is made or an input, and p is a parameter",
        ),
        (with(&node(r#""time_ns":[1,2],"outputs":[1],"view":0"#), ""), "node a: expected 1 times"),
        (updating(r#"["a",0,"z",0]"#), "update of z by a: there is no node z"),
        (updating(r#"["a",0,"x",1]"#), "update of x by a: output 1 of x does not exist"),
        (updating(r#"["x",0,"x",0]"#), "node x: an update is of an input as large"),
        (read_costgraph(br#"{"costgraph":2,"kinds":[],"nodes":[]}"#), "version 2 is not supported"),
        (read_costgraph(br#"{"costgraph":1,"nodes":[]}"#), "the device kinds are missing"),
        (
            read_costgraph(br#"{"costgraph":1,"kinds":[],"nodes":[{"id":"a","op":"f","time_ns":[1]}]}"#),
            "node a: has times on each kind of device, and the graph has no kinds",
        ),
        (with("", r#"["a",0,"b"]"#), "nodes: the graph has no nodes"),
        (updating_none(r#"["a",0,"b",0]"#), "nodes: the graph has no nodes"),
        (read_costgraph(br#"{"costgraph":1,"kinds":["a","a"],"nodes":[]}"#), "is there twice"),
        (read_costgraph(br#"{"costgraph":1,"kinds":["a"]}"#), "the nodes are missing"),
        (read_costgraph(br#"{"kinds":["a"],"nodes":[]}"#), "not a cost graph"),
    ];
    for (outcome, expected) in cases {
        let error = outcome.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn damaged_text_is_an_error() {
    bad::truncations(SMALL.as_bytes(), |text| read_costgraph(text).map(drop));
    bad::nonsense(|text| read_costgraph(text).map(drop));
}

#[test]
fn a_long_chain_is_read_without_recursion() {
    use std::fmt::Write;
    let count = 200_000;
    let mut text = String::from(r#"{"costgraph":1,"kinds":["k"],"nodes":["#);
    for i in 0..count {
        let comma = if i == 0 { "" } else { "," };
        write!(text, r#"{comma}{{"id":"n{i}","op":"f","time_ns":[1],"outputs":[1]}}"#).unwrap();
    }
    text.push_str(r#"],"edges":["#);
    for i in 1..count {
        let comma = if i == 1 { "" } else { "," };
        write!(text, r#"{comma}["n{}",0,"n{i}"]"#, i - 1).unwrap();
    }
    text.push_str("]}");
    let graph = read_costgraph(text.as_bytes()).unwrap();
    assert_eq!((graph.node_count(), graph.edge_count()), (count, count - 1));
    let error = read_costgraph(text.replace(r#"["n0",0,"n1"]"#, r#"["n7",0,"n1"],["n5",0,"n1"]"#).as_bytes());
    assert!(matches!(error, Err(Error::Model(_))));
}

/// Plans a graph on two devices in a few seconds.
fn is_planned_soon(graph: &CostGraph, what: &str) {
    let topology = Topology::parse("cpu[2x1GB]").unwrap();
    let begun = Instant::now();
    let options = Options::default();
    let (placement, schedule) = solve(Problem::new(graph, &topology, &options), &Control::new()).unwrap();
    assert_eq!(placement.device.len(), graph.node_count());
    assert!(!schedule.steps.is_empty());
    assert!(begun.elapsed() < Duration::from_secs(15), "{what}: {:?}", begun.elapsed());
}

/// As an optimizer that updates all tensors in one launch.
#[test]
fn a_node_of_many_updates_is_planned_in_the_time_of_many_nodes() {
    let count = 40_000;
    let mut builder = Builder::new("updates", vec!["cpu".into()]);
    let made = vec![Bytes(64); count];
    let pairs: Vec<(u32, u32)> = (0..count as u32).rev().map(|at| (at, at)).collect();
    let state = |builder: &mut Builder, number: usize| {
        let name = format!("s{number}");
        let spec = NodeSpec { name: &name, op: "input", outputs: &made[..1], ..NodeSpec::default() };
        builder.add(&spec).unwrap()
    };
    let states: Vec<NodeIx> = (0..count).map(|number| state(&mut builder, number)).collect();
    let update = NodeSpec {
        name: "update",
        op: "f",
        times: &[Some(Nanos(1000))],
        outputs: &made,
        in_place: &pairs,
        ..NodeSpec::default()
    };
    let update = builder.add(&update).unwrap();
    for (number, &state) in states.iter().enumerate() {
        builder.connect(state, 0, update);
        builder.set_update(state, update, number as u32);
    }
    is_planned_soon(&builder.finish().unwrap(), "updates");
}

#[test]
fn a_view_without_times_takes_no_time() {
    let read = |times: &str| {
        let text = format!(
            r#"{{"costgraph":1,"kinds":["cpu","gpu"],"nodes":[{{"id":"a","op":"f","time_ns":[1,2],"outputs":[128]}},
               {{"id":"v","op":"slice"{times},"outputs":[64],"view":64}}],"edges":[["a",0,"v"]]}}"#
        );
        read_costgraph(text.as_bytes()).expect("a graph")
    };
    let expected = read(r#","time_ns":[0,0]"#);
    for times in ["", r#","time_ns":null"#, r#","time_ns":[]"#] {
        assert_eq!(read(times).digest(), expected.digest(), "{times}");
    }
}

#[test]
fn views_of_views_are_planned_in_the_time_of_views() {
    let mut builder = Builder::new("views", vec!["cpu".into()]);
    let input = NodeSpec { name: "x", op: "input", outputs: &[Bytes(64)], ..NodeSpec::default() };
    let input = builder.add(&input).unwrap();
    let times = [Some(Nanos(1000))];
    let first =
        NodeSpec { name: "first", op: "f", times: &times, outputs: &[Bytes(512)], ..NodeSpec::default() };
    let mut last = builder.add(&first).unwrap();
    builder.connect(input, 0, last);
    for number in 0..40_000 {
        let name = format!("v{number}");
        let view = NodeSpec {
            name: &name,
            op: "view",
            times: &[Some(Nanos(0))],
            outputs: &[Bytes(512)],
            view: Some(0),
            ..NodeSpec::default()
        };
        let view = builder.add(&view).unwrap();
        builder.connect(last, 0, view);
        last = view;
    }
    is_planned_soon(&builder.finish().unwrap(), "views");
}
