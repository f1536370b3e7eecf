//! Small scheduling problems as text, for `tests/cases/schedule` and `tests/cases/place`.
//!
//! ```text
//! devices 2xcpu:memory=1PB,link=1GB/s,latency=50ns
//! caps 640 800
//! param weight 640 B on 0
//! node split 100 ns 1000 B on 0 reads input weight
//! ```
//!
//! Devices of a file stand in a section `devices.toml`. `on` numbers the device where the placement is given.

use std::fmt::Write;

use partition::unstable::costgraph::{Builder, CostGraph, NodeSpec};
use partition::unstable::place::Placement;
use partition::unstable::schedule::{Options, schedule};
use partition::unstable::topology::{Description, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::schedule::{assert_sound, text};

/// A problem that was read.
pub(crate) struct Problem {
    pub(crate) graph: CostGraph,
    pub(crate) topology: Topology,
    placement: Placement,
    caps: Vec<Bytes>,
}

/// A line `input|param|node NAME [TIME ns] BYTES B [on DEVICE] [reads NAME ...]`.
struct Line<'a> {
    op: &'a str,
    name: &'a str,
    time: u64,
    bytes: u64,
    device: u32,
    reads: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn read(text: &'a str) -> Self {
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = |word: &str| words.iter().position(|other| *other == word);
        let number = |position: Option<usize>| position.map_or(0, |at| words[at].parse().expect(text));
        let reads = at("reads").map_or(Vec::new(), |at| words[at + 1..].to_vec());
        Self {
            op: words[0],
            name: words[1],
            time: number(at("ns").map(|at| at - 1)),
            bytes: number(at("B").map(|at| at - 1)),
            device: number(at("on").map(|at| at + 1)) as u32,
            reads,
        }
    }
}

impl Problem {
    /// Reads a problem; `devices` is the text of a device file.
    pub(crate) fn read(input: &str, devices: Option<&str>) -> Self {
        let mut topology = devices.map(|text| Description::from_toml(text).unwrap().build().unwrap());
        let mut caps = Vec::new();
        let mut lines = Vec::new();
        for line in input.lines().filter(|line| !line.trim().is_empty()) {
            match line.split_once(' ') {
                Some(("devices", spec)) => topology = Some(Topology::parse(spec).unwrap()),
                Some(("caps", list)) => {
                    caps = list.split_whitespace().map(|cap| Bytes(cap.parse().expect(line))).collect();
                }
                Some(("input" | "param" | "node", _)) => lines.push(Line::read(line)),
                _ => panic!("{line}: expected devices, caps, input, param or node"),
            }
        }
        let topology = topology.expect("a line `devices SPEC` or a section devices.toml");
        let placement = Placement {
            device: lines.iter().map(|line| DeviceId(line.device)).collect(),
            ..Placement::default()
        };
        Self { graph: cost_graph(&lines, &topology), topology, placement, caps }
    }
}

/// Every kind of device takes the same time.
fn cost_graph(lines: &[Line<'_>], topology: &Topology) -> CostGraph {
    let mut kinds: Vec<String> = topology.ids().map(|id| topology.device(id).kind.clone()).collect();
    kinds.sort();
    kinds.dedup();
    let count = kinds.len();
    let mut builder = Builder::new("case", kinds);
    for line in lines {
        let param_bytes = Bytes(if line.op == "param" { line.bytes } else { 0 });
        let spec = NodeSpec {
            name: line.name,
            op: if line.op == "node" { "f" } else { line.op },
            times: &vec![Some(Nanos(line.time)); count],
            param_bytes,
            outputs: &[Bytes(line.bytes)],
            ..NodeSpec::default()
        };
        builder.add(&spec).unwrap();
    }
    for line in lines {
        let to = builder.find(line.name).unwrap();
        for read in &line.reads {
            let from =
                builder.find(read).unwrap_or_else(|| panic!("{} reads {read}: no such node", line.name));
            builder.connect(from, 0, to);
        }
    }
    builder.finish().unwrap()
}

/// The schedule of a problem, proven sound, or why there is none.
pub(crate) fn scheduled(problem: &Problem) -> String {
    let Problem { graph, topology, placement, caps } = problem;
    let options = Options { caps: caps.clone(), ..Options::default() };
    match schedule(graph, topology, placement, &options) {
        Ok(made) => {
            let unlimited = vec![Bytes(1 << 60); topology.len()];
            assert_sound(graph, topology, placement, if caps.is_empty() { &unlimited } else { caps }, &made);
            text(graph, topology, &made)
        }
        Err(error) => {
            let mut text = format!("error: {error}\n");
            error.details().iter().for_each(|line| writeln!(text, "    {line}").unwrap());
            text
        }
    }
}
