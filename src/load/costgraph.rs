//! The cost graph's JSON form: what other engines hand over instead of a model.
//!
//! Reading streams: nodes and edges go straight into a [`Builder`], so a million nodes take little
//! more memory than the graph itself. The fields may be in any order; where `nodes` stands
//! before `kinds`, or `edges` before `nodes`, the text is gone through again (three times at most).
//! Fields that are not known are ignored, and the first of several with one name counts.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::columns;
use super::json::{Amount, Text};
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role, TensorIx};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::json::json_error;
use crate::units::{Bytes, Nanos};

/// The most that all times, or all bytes, may add up to: beyond it sums would saturate.
const MOST: u128 = i64::MAX as u128;

/// Reads a cost graph in either form: the binary one, which its first bytes tell, or JSON. O(bytes).
///
/// Errors: what [`CostGraph::from_columns`] refuses, and a binary file that is damaged; malformed JSON (with line and column), a version other than 1, missing `kinds` or
/// nodes, an id that is empty or used twice, a number of times other than that of the kinds, a cost that is
/// negative, not finite or too large, an edge, `forward`, result or update that
/// names no node, a cycle.
pub fn read_costgraph(text: &[u8]) -> Result<CostGraph> {
    if text.starts_with(&columns::MAGIC) {
        return columns::read(text);
    }
    let mut reader = Reader::default();
    for _ in 0..3 {
        reader.postponed = false;
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let outcome =
            DocumentSeed(&mut reader).deserialize(&mut deserializer).and_then(|()| deserializer.end());
        if let Some(fault) = reader.fault.take() {
            return Err(reader.cause(fault));
        }
        outcome.map_err(|error| json_error(&error))?;
        if !reader.postponed {
            break;
        }
    }
    reader.finish()
}

/// What has been read so far.
#[derive(Default)]
struct Reader {
    version: Option<Amount>,
    name: Option<String>,
    kinds: Option<Vec<String>>,
    builder: Option<Builder>,
    edges_read: bool,
    results_read: bool,
    updates_read: bool,
    /// Something was left out because what it needs comes later in the text.
    postponed: bool,
    /// `forward` references to nodes that had not been read yet.
    forwards: Vec<(NodeIx, String)>,
    time_total: u128,
    byte_total: u128,
    fault: Option<Error>,
}

impl Reader {
    fn finish(self) -> Result<CostGraph> {
        match self.version.as_ref().map(|version| version.whole("costgraph")) {
            Some(Ok(1)) => {}
            Some(version) => {
                return Err(Error::format("costgraph", format!("version {} is not supported", version?))
                    .with_help("this program reads version 1"));
            }
            None => return Err(Error::format("", "not a cost graph: the field `costgraph` is missing")),
        }
        if self.kinds.is_none() {
            return Err(Error::format("kinds", "the device kinds are missing"));
        }
        let Some(mut builder) = self.builder else {
            return Err(Error::format("nodes", "the nodes are missing"));
        };
        for (node, name) in self.forwards {
            let Some(forward) = builder.find(&name) else {
                return Err(Error::model(format!("\"forward\": \"{name}\""), "there is no such node"));
            };
            builder.set_forward(node, forward);
        }
        let graph = builder.finish()?;
        if graph.node_count() == 0 {
            return Err(no_nodes());
        }
        Ok(graph)
    }

    /// Why what stands behind the nodes is refused: where there are none, nothing can name one.
    fn cause(&self, fault: Error) -> Error {
        match &self.builder {
            Some(builder) if builder.name(NodeIx(0)).is_none() => no_nodes(),
            _ => fault,
        }
    }

    /// Checks the kinds and makes the builder.
    fn start(&mut self) -> Result<Builder> {
        let kinds = self.kinds.clone().unwrap_or_default();
        let mut seen = HashSet::new();
        if let Some(kind) = kinds.iter().find(|kind| kind.is_empty() || !seen.insert(kind.as_str())) {
            return Err(Error::model("kinds", format!("\"{kind}\" is empty or is there twice")));
        }
        Ok(Builder::new(self.name.clone().unwrap_or_default(), kinds))
    }

    fn add(&mut self, builder: &mut Builder, raw: &RawNode<'_>, buffers: &mut Buffers) -> Result<()> {
        let place = |error: Error| error.within(&format!("node {}", raw.id.0));
        buffers.times.clear();
        let mut longest = 0;
        for time in raw.time_ns.as_deref().unwrap_or_default() {
            let time = time.as_ref().map(|time| time.whole("time_ns")).transpose().map_err(place)?;
            longest = longest.max(time.unwrap_or(0));
            buffers.times.push(time.map(Nanos));
        }
        buffers.outputs.clear();
        let mut bytes = 0u128;
        for output in raw.outputs.as_deref().unwrap_or_default() {
            let output = output.whole("outputs").map_err(place)?;
            bytes += u128::from(output);
            buffers.outputs.push(Bytes(output));
        }
        let whole = |amount: &Option<Amount>, field: &str| match amount {
            Some(amount) => amount.whole(field).map_err(place),
            None => Ok(0),
        };
        let param_bytes = whole(&raw.param_bytes, "param_bytes")?;
        let workspace = whole(&raw.workspace_bytes, "workspace_bytes")?;
        let view = raw.view.as_ref().map(|view| view.whole("view")).transpose().map_err(place)?;
        self.time_total += u128::from(longest);
        self.byte_total += bytes + u128::from(param_bytes) + u128::from(workspace);
        // From here on sums of times and of bytes are 64 bits without a check.
        if self.time_total > MOST {
            return Err(place(Error::model(
                "time_ns",
                "the times up to here add up to more than 2^63 - 1 ns",
            )));
        }
        if self.byte_total > MOST {
            return Err(place(Error::model("", "the bytes up to here add up to more than 2^63 - 1")));
        }
        let node = builder.add(&NodeSpec {
            name: &raw.id.0,
            op: raw.op.as_ref().map_or("", |op| &op.0),
            times: &buffers.times,
            param_bytes: Bytes(param_bytes),
            params: raw.params.as_ref().map(|text| &*text.0),
            workspace: Bytes(workspace),
            outputs: &buffers.outputs,
            colocate: raw.colocate.as_ref().map(|text| &*text.0),
            backward: raw.backward.unwrap_or(false),
            pin: raw.pin.as_ref().map(|text| &*text.0),
            in_place: raw.in_place.as_deref().unwrap_or_default(),
            view,
        })?;
        if let Some(forward) = &raw.forward {
            match builder.find(&forward.0) {
                Some(forward) => builder.set_forward(node, forward),
                None => self.forwards.push((node, forward.0.to_string())),
            }
        }
        Ok(())
    }
}

/// A node as it stands in the text.
#[derive(Deserialize)]
struct RawNode<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow, default)]
    op: Option<Text<'a>>,
    #[serde(default)]
    time_ns: Option<Vec<Option<Amount>>>,
    #[serde(default)]
    param_bytes: Option<Amount>,
    #[serde(borrow, default)]
    params: Option<Text<'a>>,
    #[serde(default)]
    workspace_bytes: Option<Amount>,
    #[serde(default)]
    outputs: Option<Vec<Amount>>,
    #[serde(borrow, default)]
    colocate: Option<Text<'a>>,
    #[serde(borrow, default)]
    forward: Option<Text<'a>>,
    #[serde(default)]
    backward: Option<bool>,
    #[serde(borrow, default)]
    pin: Option<Text<'a>>,
    #[serde(default)]
    in_place: Option<Vec<(u32, u32)>>,
    #[serde(default)]
    view: Option<Amount>,
}

/// Kept from node to node, to spare allocations.
#[derive(Default)]
struct Buffers {
    times: Vec<Option<Nanos>>,
    outputs: Vec<Bytes>,
}

struct DocumentSeed<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// The fields of a cost graph.
const FIELDS: [&str; 7] = ["costgraph", "name", "kinds", "nodes", "edges", "results", "updates"];

impl<'de> Visitor<'de> for DocumentSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cost graph")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut seen = [false; FIELDS.len()];
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if let Some(field) = FIELDS.iter().position(|field| *field == key)
                && std::mem::replace(&mut seen[field], true)
            {
                return Err(A::Error::duplicate_field(FIELDS[field]));
            }
            match &*key {
                "costgraph" if reader.version.is_none() => reader.version = Some(map.next_value()?),
                "name" if reader.name.is_none() => reader.name = map.next_value()?,
                "kinds" if reader.kinds.is_none() => reader.kinds = Some(map.next_value()?),
                "nodes" if reader.builder.is_none() && reader.kinds.is_some() => {
                    map.next_value_seed(NodesSeed(reader))?;
                }
                "edges" if !reader.edges_read && reader.builder.is_some() => {
                    map.next_value_seed(EdgesSeed(reader))?;
                    reader.edges_read = true;
                }
                "results" if !reader.results_read && reader.builder.is_some() => {
                    map.next_value_seed(ResultsSeed(reader))?;
                    reader.results_read = true;
                }
                "updates" if !reader.updates_read && reader.builder.is_some() => {
                    map.next_value_seed(UpdatesSeed(reader))?;
                    reader.updates_read = true;
                }
                // Read in one pass where keys are in order; what came too early is read in a second one.
                other => {
                    reader.postponed |= match other {
                        "nodes" => reader.builder.is_none(),
                        "edges" => !reader.edges_read,
                        "results" => !reader.results_read,
                        "updates" => !reader.updates_read,
                        _ => false,
                    };
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Declares a seed that feeds each element of an array to `$each`.
macro_rules! sequence_seed {
    ($name:ident, $expecting:literal) => {
        struct $name<'r>(&'r mut Reader);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.deserialize_seq(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
                self.each(seq)
            }
        }
    };
}

sequence_seed!(NodesSeed, "an array of nodes");
sequence_seed!(EdgesSeed, "an array of edges");
sequence_seed!(ResultsSeed, "an array of results");
sequence_seed!(UpdatesSeed, "an array of updates");

/// Keeps a typed error aside and stops the parser.
fn stop<E: serde::de::Error>(reader: &mut Reader, error: Error) -> E {
    reader.fault = Some(error);
    E::custom("stopped")
}

impl NodesSeed<'_> {
    fn each<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut builder = reader.start().map_err(|error| stop(reader, error))?;
        let mut buffers = Buffers::default();
        while let Some(raw) = seq.next_element::<RawNode<'de>>()? {
            reader.add(&mut builder, &raw, &mut buffers).map_err(|error| stop(reader, error))?;
        }
        reader.builder = Some(builder);
        Ok(())
    }
}

impl EdgesSeed<'_> {
    fn each<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut position = 0u64;
        let (mut producers, mut consumers) = (NearbyNames::default(), NearbyNames::default());
        while let Some((from, output, to)) = seq.next_element::<(Text<'de>, Amount, Text<'de>)>()? {
            let Some(builder) = reader.builder.as_mut() else {
                return Err(A::Error::custom("edges before nodes"));
            };
            let edge = || format!("edge {position} from {} to {}", from.0, to.0);
            let missing = |name: &str| Error::model(edge(), format!("there is no node {name}"));
            let producer = producers.find(builder, &from.0, NodeIx(producers.last));
            let next = NodeIx(producers.last.wrapping_add(1));
            let consumer = consumers.find(builder, &to.0, next);
            let fault = match (producer, consumer, output.whole("output")) {
                (None, _, _) => missing(&from.0),
                (_, None, _) => missing(&to.0),
                (_, _, Err(error)) => error.within(&edge()),
                (Some(from), Some(to), Ok(output)) => {
                    // Too large an output does not exist, like any other above the node's last.
                    builder.connect(from, u32::try_from(output).unwrap_or(u32::MAX), to);
                    position += 1;
                    continue;
                }
            };
            return Err(stop(reader, fault));
        }
        Ok(())
    }
}

/// Finds the nodes that edges name at one end. Edges stand in the order of the nodes as a rule, and what is repeated in a
/// network is read in equal steps: a few nodes are looked at first, which spares most searches.
#[derive(Default)]
struct NearbyNames {
    last: u32,
    /// From the one before to the last.
    step: u32,
}

impl NearbyNames {
    /// The node with a name, which may well be `likely`.
    fn find(&mut self, builder: &Builder, name: &str, likely: NodeIx) -> Option<NodeIx> {
        let is_it = |node: &NodeIx| builder.name(*node) == Some(name);
        let found = self.near(likely).into_iter().find(is_it).or_else(|| builder.find(name))?;
        self.step = found.0.wrapping_sub(self.last);
        self.last = found.0;
        Some(found)
    }

    fn near(&self, likely: NodeIx) -> [NodeIx; 3] {
        [likely, NodeIx(self.last.wrapping_add(self.step)), NodeIx(self.last.wrapping_add(1))]
    }
}

impl ResultsSeed<'_> {
    fn each<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let reader = self.0;
        while let Some((name, output)) = seq.next_element::<(Text<'de>, Amount)>()? {
            let Some(builder) = reader.builder.as_mut() else {
                return Err(A::Error::custom("results before nodes"));
            };
            match output_of(builder, &name.0, output) {
                Ok((node, output)) => builder.set_result(node, output),
                Err(error) => return Err(stop(reader, error.within(&format!("result {}", name.0)))),
            }
        }
        Ok(())
    }
}

impl UpdatesSeed<'_> {
    fn each<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let reader = self.0;
        while let Some((node, output, input, state)) =
            seq.next_element::<(Text<'de>, Amount, Text<'de>, Amount)>()?
        {
            let Some(builder) = reader.builder.as_mut() else {
                return Err(A::Error::custom("updates before nodes"));
            };
            let of = |(name, output): (&str, Amount)| output_of(builder, name, output);
            match of((&node.0, output)).and_then(|new| Ok((new, of((&input.0, state))?))) {
                Ok((new, old)) => builder.replace(new, old),
                Err(error) => {
                    let place = format!("update of {} by {}", input.0, node.0);
                    return Err(stop(reader, error.within(&place)));
                }
            }
        }
        Ok(())
    }
}

fn no_nodes() -> Error {
    Error::model("nodes", "the graph has no nodes")
}

/// An output of the node with a name. Errors: there is none.
fn output_of(builder: &Builder, name: &str, output: Amount) -> Result<(NodeIx, u32)> {
    let output = output.whole("output")?;
    let node = builder.find(name).ok_or_else(|| Error::model("", format!("there is no node {name}")))?;
    match u32::try_from(output) {
        Ok(output) if output < builder.output_count(node) => Ok((node, output)),
        _ => Err(Error::model("", format!("output {output} of {name} does not exist"))),
    }
}

/// Writes a cost graph so that reading gives the same graph. Colocation classes get the names
/// `c0`, `c1`, ...; outputs that something reads and that must still stay to the end stand in
/// `results`. O(nodes + edges).
pub fn write_costgraph(graph: &CostGraph) -> String {
    let mut out = String::new();
    let _ = write!(out, "{{\"costgraph\":1,\"name\":{},\"kinds\":[", quoted(&graph.name));
    out.push_str(&graph.kinds.iter().map(|kind| quoted(kind)).collect::<Vec<_>>().join(","));
    out.push_str("],\n\"nodes\":[");
    let own = graph.own_params();
    let mut pins = graph.pins().iter().peekable();
    for node in graph.nodes() {
        out.push_str(if node.0 == 0 { "\n" } else { ",\n" });
        let pin = pins.next_if(|(pinned, _)| *pinned == node).map(|(_, device)| device.as_str());
        write_node(&mut out, graph, node, pin, &own);
    }
    out.push_str("\n],\n\"edges\":[");
    let mut separator = "\n";
    for node in graph.nodes() {
        for &tensor in graph.inputs(node) {
            let producer = quoted(graph.node_name(graph.producer(tensor)));
            let consumer = quoted(graph.node_name(node));
            let _ = write!(out, "{separator}[{producer},{},{consumer}]", graph.output_index(tensor));
            separator = ",\n";
        }
    }
    out.push_str("\n]");
    // What is computed and read by nothing is a result in any case.
    let is_stated =
        |&t: &TensorIx| !graph.consumers(t).is_empty() || graph.role(graph.producer(t)) != Role::Compute;
    let place =
        |t: TensorIx| format!("{},{}", quoted(graph.node_name(graph.producer(t))), graph.output_index(t));
    let kept = graph.tensors().filter(|&t| graph.is_result(t)).filter(is_stated);
    write_list(&mut out, "results", kept.map(|t| format!("[{}]", place(t))));
    let updates = graph.updates().iter();
    write_list(&mut out, "updates", updates.map(|&(new, old)| format!("[{},{}]", place(new), place(old))));
    out.push_str("}\n");
    out
}

/// A field of the graph, where the list has entries.
fn write_list(out: &mut String, field: &str, entries: impl Iterator<Item = String>) {
    let entries: Vec<String> = entries.collect();
    if !entries.is_empty() {
        let _ = write!(out, ",\n\"{field}\":[{}]", entries.join(","));
    }
}

fn write_node(out: &mut String, graph: &CostGraph, node: NodeIx, pin: Option<&str>, own: &[bool]) {
    let name = graph.node_name(node);
    let _ = write!(out, "{{\"id\":{},\"op\":{},\"time_ns\":[", quoted(name), quoted(graph.op(node)));
    if graph.role(node) == Role::Compute {
        for kind in 0..graph.kinds.len() {
            out.push_str(if kind == 0 { "" } else { "," });
            match graph.time(node, kind) {
                Some(time) => {
                    let _ = write!(out, "{}", time.0);
                }
                None => out.push_str("null"),
            }
        }
    }
    let param = graph.param(node);
    let bytes = param.map_or(graph.owned_bytes(node), |param| graph.param_bytes(param));
    let _ = write!(out, "],\"param_bytes\":{},", bytes.0);
    if let Some(param) = param.filter(|param| !own[param.index()]) {
        let _ = write!(out, "\"params\":{},", quoted(graph.param_name(param)));
    }
    let outputs: Vec<String> = graph.outputs(node).map(|t| graph.tensor_bytes(t).0.to_string()).collect();
    let colocate = graph.colocation(node).map_or("null".into(), |class| format!("\"c{class}\""));
    let forward = graph.forward(node).map_or("null".into(), |forward| quoted(graph.node_name(forward)));
    let _ = write!(
        out,
        "\"workspace_bytes\":{},\"outputs\":[{}],\"colocate\":{colocate},\"forward\":{forward},\"backward\":{}",
        graph.workspace_bytes(node).0,
        outputs.join(","),
        graph.is_backward(node)
    );
    if let Some(pin) = pin {
        let _ = write!(out, ",\"pin\":{}", quoted(pin));
    }
    let pairs: Vec<String> =
        graph.in_place(node).map(|(input, output)| format!("[{input},{output}]")).collect();
    if !pairs.is_empty() {
        let _ = write!(out, ",\"in_place\":[{}]", pairs.join(","));
    }
    if let Some(first) = graph.view(node) {
        let _ = write!(out, ",\"view\":{first}");
    }
    out.push('}');
}
