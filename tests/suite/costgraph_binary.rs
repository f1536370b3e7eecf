//! Cost graphs in their binary form: there and back, and every kind of damage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use partition::unstable::costgraph::{Builder, CostGraph, NodeSpec};
use partition::unstable::load::{
    LoadOptions, Model, load, read_costgraph, write_costgraph, write_costgraph_binary,
};
use partition::unstable::units::{Bytes, Nanos};

use crate::allocations;
use crate::random_costgraph::{Rng, cost_graph};

/// Everything that a graph can have.
fn full() -> CostGraph {
    let text = r#"{"costgraph":1,"name":"füll","kinds":["fast","cpu"],"nodes":[
     {"id":"w","op":"param","param_bytes":64,"params":"tied","outputs":[64]},
     {"id":"v","op":"param","param_bytes":64,"params":"tied","outputs":[64]},
     {"id":"x","op":"input","outputs":[16]},
     {"id":"ä","op":"matmul","time_ns":[10,40],"workspace_bytes":8,"outputs":[16,32],"colocate":"here"},
     {"id":"b","op":"softmax","time_ns":[null,5],"outputs":[16],"colocate":"here","pin":"cpu0"},
     {"id":"c","op":"bwd","time_ns":[7,9],"param_bytes":3,"outputs":[16],"forward":"d","backward":true,"in_place":[[0,0]]},
     {"id":"d","op":"relu","time_ns":[1,1],"outputs":[16]}],
    "edges":[["w",0,"ä"],["x",0,"ä"],["v",0,"b"],["ä",1,"b"],["ä",0,"d"],["b",0,"c"],["d",0,"c"]],
    "results":[["d",0]]}"#;
    read_costgraph(text.as_bytes()).unwrap()
}

/// State that a step replaces, and a view.
fn with_state() -> CostGraph {
    let mut b = Builder::new("state", vec!["cpu".into()]);
    let sized =
        |name, op, outputs| NodeSpec { name, op, outputs, times: &[Some(Nanos(1))], ..NodeSpec::default() };
    let cache = b.add(&sized("cache", "input", &[Bytes(256)])).unwrap();
    let next = b.add(&sized("next", "append", &[Bytes(256)])).unwrap();
    let slice = NodeSpec { view: Some(64), ..sized("slice", "slice", &[Bytes(64)]) };
    let slice = b.add(&slice).unwrap();
    b.connect(cache, 0, next);
    b.connect(next, 0, slice);
    b.set_update(cache, next, 0);
    b.finish().unwrap()
}

fn graphs() -> impl Iterator<Item = CostGraph> {
    let random = (0..200).map(|seed| cost_graph(&mut Rng::new(seed), 1 + seed as usize));
    [full(), with_state()].into_iter().chain(random)
}

#[test]
fn what_is_written_is_read_as_the_same_graph() {
    for graph in graphs() {
        let bytes = write_costgraph_binary(graph.clone());
        let read = read_costgraph(&bytes).unwrap();
        assert_eq!(read, graph);
        assert_eq!(read.digest(), graph.digest());
        assert_eq!(write_costgraph_binary(read), bytes);
        let Ok(Model::CostGraph { graph: loaded, topology: None }) =
            load(&bytes, None, &LoadOptions::default())
        else {
            panic!("not recognised by its first bytes")
        };
        assert_eq!(write_costgraph(&loaded), write_costgraph(&graph));
    }
}

#[test]
fn a_graph_is_the_same_in_either_form() {
    for graph in [full(), with_state()] {
        assert_eq!(read_costgraph(write_costgraph(&graph).as_bytes()).unwrap(), graph);
    }
    // Tied by the name of one of them; a parameter of another node that has the name of a tie.
    let tied = r#"{"costgraph":1,"kinds":[],"nodes":[
     {"id":"w","op":"param","param_bytes":64,"params":"w"},{"id":"v","op":"param","param_bytes":64,"params":"w"},
     {"id":"t","op":"param","param_bytes":8},{"id":"u","op":"param","param_bytes":4,"params":"t"}]}"#;
    let tied = read_costgraph(tied.as_bytes()).unwrap();
    assert_eq!(tied.param_count(), 3);
    let binary = read_costgraph(&write_costgraph_binary(tied.clone())).unwrap();
    assert_eq!(read_costgraph(write_costgraph(&binary).as_bytes()).unwrap(), tied);
}

/// The checksum's place; 0 there says that there is none.
const CHECKSUM: std::ops::Range<usize> = 24..32;

/// One clear error or a sound graph, and no allocation that the file's length does not explain.
fn is_answered(bytes: &[u8], told: &str) -> bool {
    let answer = catch_unwind(AssertUnwindSafe(|| allocations::with_largest(|| read_costgraph(bytes))));
    let (outcome, largest) = answer.unwrap_or_else(|_| panic!("{told}: panicked"));
    assert!(largest <= 16 * bytes.len() as u64 + 4096, "{told}: {largest} bytes at once");
    match outcome {
        Ok(graph) => {
            // What is accepted is sound: it survives the way there and back.
            let again = read_costgraph(&write_costgraph_binary(graph.clone())).unwrap();
            assert_eq!(again, graph, "{told}");
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n') && text.len() < 300, "{told}: {text}");
            false
        }
    }
}

#[test]
fn truncated_files_are_refused() {
    for graph in [full(), with_state()] {
        let bytes = write_costgraph_binary(graph);
        for end in 0..bytes.len() {
            assert!(!is_answered(&bytes[..end], &format!("cut at {end}")));
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert!(!is_answered(&longer, "longer"));
    }
}

#[test]
fn any_changed_byte_is_refused_where_there_is_a_checksum() {
    let bytes = write_costgraph_binary(full());
    for at in 0..bytes.len() {
        // Without its first bytes it is no such file; without a checksum nothing is compared with it.
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(!is_answered(&changed, &format!("byte {at}")));
    }
}

#[test]
fn without_a_checksum_every_number_is_checked() {
    let mut accepted = 0;
    for (number, graph) in graphs().take(60).enumerate() {
        let mut bytes = write_costgraph_binary(graph);
        bytes[CHECKSUM].fill(0);
        assert!(is_answered(&bytes, "no checksum"));
        let mut rng = Rng::new(number as u64);
        for change in 0..400 {
            let mut changed = bytes.clone();
            for _ in 0..1 + rng.below(3) {
                let at = 8 + rng.below(bytes.len() as u64 - 8) as usize;
                changed[at] = match rng.below(3) {
                    0 => changed[at].wrapping_add(1),
                    1 => 0xff,
                    _ => rng.next() as u8,
                };
            }
            changed[CHECKSUM].fill(0);
            accepted += usize::from(is_answered(&changed, &format!("graph {number}, change {change}")));
        }
    }
    // Most bytes are times, sizes and letters of names, where another value is as good.
    assert!(accepted > 1000, "{accepted}");
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    let bytes = write_costgraph_binary(full());
    for count in 0..12 {
        for value in [1 << 31, (1 << 32) - 2, 1 << 40, 1 << 61, u64::MAX / 8, u64::MAX - 1, u64::MAX] {
            let mut changed = bytes.clone();
            changed[CHECKSUM].fill(0);
            changed[32 + 8 * count..][..8].copy_from_slice(&u64::to_le_bytes(value));
            let (outcome, largest) = allocations::with_largest(|| read_costgraph(&changed));
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("its counts come to"), "count {count} of {value}: {error}");
            assert!(largest < 1024, "count {count} of {value}: {largest} bytes");
            // A head that agrees with its counts, of a file that is short.
            changed[16..24].copy_from_slice(&u64::to_le_bytes(value));
            assert!(!is_answered(&changed, "short"));
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = write_costgraph_binary(full());
    bytes[8] = 2;
    let error = read_costgraph(&bytes).unwrap_err().to_string();
    assert!(error.contains("version 2 of the binary form is not supported"), "{error}");
}

fn partition(arguments: &[&str], folder: &std::path::Path) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn the_command_converts_there_and_back_and_plans_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let json = write_costgraph(&cost_graph(&mut Rng::new(3), 40));
    std::fs::write(at("graph.json"), &json).unwrap();
    for arguments in
        [["convert", "graph.json", "-o", "graph.pcg"], ["convert", "graph.pcg", "-o", "back.json"]]
    {
        let output = partition(&arguments, folder.path());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(std::fs::read_to_string(at("back.json")).unwrap(), json);
    let plan = |graph: &str| {
        let output = partition(&[graph, "--devices", "2xcpu:memory=1GB", "--emit", "summary"], folder.path());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(plan("graph.pcg"), plan("graph.json"));
    let emitted = partition(&["graph.json", "-d", "cpu", "-o", "emitted.pcg"], folder.path());
    assert!(emitted.status.success(), "{}", String::from_utf8_lossy(&emitted.stderr));
    assert_eq!(std::fs::read(at("emitted.pcg")).unwrap(), std::fs::read(at("graph.pcg")).unwrap());
}

#[test]
fn a_conversion_that_cannot_be_says_why() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("graph.json"), write_costgraph(&full())).unwrap();
    let model =
        r#"{"partition_model":1,"name":"m","inputs":[{"name":"x","shape":[2]}],"nodes":[],"outputs":["x"]}"#;
    std::fs::write(folder.path().join("model.json"), model).unwrap();
    for (arguments, expected) in [
        (["convert", "graph.json", "-o", "graph.bin"], "the name does not say what to write"),
        (["convert", "graph.json", "-o", "graph.json"], "this file is read"),
        (["convert", "absent.pcg", "-o", "graph.json"], "absent.pcg"),
    ] {
        let output = partition(&arguments, folder.path());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{error}");
    }
}
