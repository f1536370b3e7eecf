//! Random networks on random devices that are too small for some of their layers: what is split is planned, checked and
//! computes what one device computes.

use std::fmt::Write as _;

use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::error::Error;
use partition::unstable::load::Model;
use partition::unstable::place::{DeviceUse, Effort};
use partition::unstable::topology::Topology;

use crate::networks::Network;
use crate::random_graph::Random;
use crate::split::{same_results, sound};
use crate::sweep::Share;

/// How many cases there are; `PARTITION_CASES=5000` in a release build for more.
fn cases() -> u64 {
    std::env::var("PARTITION_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(400)
}

/// A network as `model.json`, while it is made up.
pub(crate) struct Made {
    params: Vec<String>,
    nodes: Vec<String>,
    /// Bytes of the largest parameter, and of all.
    pub(crate) largest: u64,
    pub(crate) all: u64,
}

impl Made {
    fn param(&mut self, sizes: &[u64]) -> String {
        let name = format!("w{}", self.params.len());
        let bytes = sizes.iter().product::<u64>() * 4;
        self.largest = self.largest.max(bytes);
        self.all += bytes;
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let ty = format!("f32[{}]", sizes.join(", "));
        self.params.push(format!(r#"{{"name": "{name}", "type": "{ty}", "init": "he_normal"}}"#));
        name
    }

    fn node(&mut self, op: &str, inputs: &[&str], rest: &str) -> String {
        let name = format!("n{}", self.nodes.len());
        let inputs: Vec<String> = inputs.iter().map(|input| format!(r#""{input}""#)).collect();
        let inputs = inputs.join(", ");
        self.nodes.push(format!(r#"{{"name": "{name}", "op": "{op}", "inputs": [{inputs}]{rest}}}"#));
        name
    }
}

/// Layers of products, each behind the last, with what stands between products in networks: functions, norms, softmax,
/// residual sums, parts joined and cut. Inputs and outputs are small.
pub(crate) fn network(random: &mut Random) -> (String, Made) {
    let mut made = Made { params: Vec::new(), nodes: Vec::new(), largest: 0, all: 0 };
    let rows = 1 + random.below(6) as u64;
    let mut width = 8 + random.below(40) as u64;
    let input = width;
    let mut at = "x".to_owned();
    for _ in 0..2 + random.below(4) {
        let next = 16 + 4 * random.below(40) as u64;
        let (entry, entry_width) = (at.clone(), width);
        let weights = made.param(&[width, next]);
        let mut operands = vec![at.as_str(), &weights];
        let bias = if random.one_in(2) { made.param(&[next]) } else { String::new() };
        operands.extend((!bias.is_empty()).then_some(bias.as_str()));
        let function = random.pick(&["relu", "tanh", "gelu", "sigmoid"]);
        at = made.node("dense", &operands, &format!(r#", "activation": "{function}""#));
        width = next;
        match random.below(6) {
            0 => at = made.node("softmax", &[&at], ""),
            1 => at = made.node("layer_norm", &[&at], ""),
            2 => {
                // Back to the width of the entry, and added to it.
                let weights = made.param(&[width, entry_width]);
                let back = made.node("matmul", &[&at, &weights], "");
                at = made.node("add", &[&back, &entry], "");
                width = entry_width;
            }
            3 => {
                let other = made.node("neg", &[&at], "");
                at = made.node("concat", &[&at, &other], r#", "axis": 1"#);
                width *= 2;
            }
            4 => {
                let half = width / 2;
                let rest = format!(r#", "starts": [0, {}], "sizes": [{rows}, {half}]"#, width - half);
                at = made.node("slice", &[&at], &rest);
                width = half;
            }
            _ => {}
        }
    }
    let weights = made.param(&[width, 8]);
    at = made.node("matmul", &[&at, &weights], "");
    let mut text = format!(
        r#"{{"partition_model": 1, "name": "random", "inputs": [{{"name": "x", "type": "f32[{rows}, {input}]"}}], "#
    );
    let (params, nodes) = (made.params.join(", "), made.nodes.join(", "));
    write!(text, r#""params": [{params}], "nodes": [{nodes}], "outputs": ["{at}"]}}"#).unwrap();
    (text, made)
}

/// Devices that have less than the largest parameter takes, and in all several times what is needed.
fn devices(random: &mut Random, made: &Made) -> String {
    let cap = made.largest * (35 + random.below(60) as u64) / 100 + 512;
    let count = 4 * made.all.div_ceil(cap) + 4 + random.below(4) as u64;
    match random.below(4) {
        0 => format!("2xcpu[{}x{cap}B]", count.div_ceil(2)),
        1 => format!("cpu[{count}x{cap}B]+cpu[2x{}B]", cap / 2),
        2 => format!("{count}xcpu:memory={cap}B,cores=1"),
        _ => format!("cpu[{count}x{cap}B]"),
    }
}

fn planned(network: &Network, devices: &str) -> Result<Compiled, Error> {
    let mut options = Options { bind: network.dims.clone(), ..Options::default() };
    options.place.effort = Effort::Fast;
    options.place.devices = DeviceUse::Auto;
    compile(Model::Graph(network.graph.clone()), &Topology::parse(devices)?, &options)
}

sweep! {
    what_is_split_computes_what_one_device_does: one of 60;
}

fn what_is_split_computes_what_one_device_does(share: Share) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.json");
    let (mut split, mut whole, mut none) = (0, 0, Vec::new());
    for seed in share.among(0..cases()) {
        let random = &mut Random::new(seed);
        let (text, made) = network(random);
        std::fs::write(&path, text).unwrap();
        let network = Network::open(&path).unwrap_or_else(|error| panic!("{seed}: {error}"));
        let devices = devices(random, &made);
        let what = format!("seed {seed} on {devices}");
        match planned(&network, &devices) {
            Ok(compiled) => {
                let within = compiled.plan.devices.iter().all(|device| device.arena <= device.memory);
                assert!(within, "{what}: over its cap");
                sound(&what, &network, &compiled);
                same_results(&what, &network, &compiled);
                match compiled.plan.options.splits.is_empty() {
                    true => whole += 1,
                    false => split += 1,
                }
            }
            Err(Error::Infeasible(why)) => none.push(format!("{what}: {:?}", why.details)),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    println!(
        "{split} split, {whole} whole, {} without a plan: {:#?}",
        none.len(),
        none.iter().take(10).collect::<Vec<_>>()
    );
    let all = split + whole + none.len();
    assert!(split * 10 >= all * 8, "{split} of {all} were split; no plan: {none:#?}");
}
