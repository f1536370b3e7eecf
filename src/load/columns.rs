//! The cost graph's binary form: its arrays one after the other, as `docs/cost-graph.md` lists them.
//!
//! The head has the counts, and the length of the file follows from them: a file of another length is refused before
//! anything is allocated. What is read then takes memory in proportion to the file. [`CostGraph::from_columns`] checks
//! what the numbers mean.
//!
//! A file is read, not mapped: its arrays are copied once, to where the graph has them, and a mapped file that another
//! process cuts short would end this one.

use xxhash_rust::xxh3::xxh3_64;

use crate::costgraph::{Columns, CostGraph, NodeIx, TensorIx};
use crate::error::{Error, Result};

/// What such a file begins with: no text does, and a transfer as text damages it.
pub(crate) const MAGIC: [u8; 8] = *b"\x89PCG\r\n\x1a\n";

const VERSION: u32 = 1;

/// Magic, version, length of the head, of the file, checksum; then the counts.
const PREFIX: usize = 32;
/// Arrays begin at multiples of this many bytes.
const ALIGNMENT: usize = 8;

/// How many there are of what, in the head's order.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    nodes: u64,
    kinds: u64,
    operations: u64,
    params: u64,
    outputs: u64,
    inputs: u64,
    pins: u64,
    in_place: u64,
    updates: u64,
    views: u64,
    name_bytes: u64,
    word_bytes: u64,
}

const COUNTS: usize = 12;
const HEAD: usize = PREFIX + 8 * COUNTS;

impl Counts {
    fn from_array(counts: [u64; COUNTS]) -> Self {
        let [nodes, kinds, operations, params, outputs, inputs, pins, in_place, updates, views, ..] = counts;
        let [.., name_bytes, word_bytes] = counts;
        let graph = Self { nodes, kinds, operations, params, outputs, inputs, ..Self::default() };
        Self { pins, in_place, updates, views, name_bytes, word_bytes, ..graph }
    }

    fn to_array(self) -> [u64; COUNTS] {
        [
            self.nodes,
            self.kinds,
            self.operations,
            self.params,
            self.outputs,
            self.inputs,
            self.pins,
            self.in_place,
            self.updates,
            self.views,
            self.name_bytes,
            self.word_bytes,
        ]
    }

    /// Words beside the nodes' names: the network's name, kinds, operations, parameters' names, devices of pins.
    fn words(self) -> u128 {
        [1, self.kinds, self.operations, self.params, self.pins].into_iter().map(u128::from).sum()
    }

    /// The bytes of each array, in the file's order.
    fn arrays(self) -> [u128; 23] {
        let wide = u128::from;
        let nodes = wide(self.nodes);
        [
            8 * nodes.saturating_mul(wide(self.kinds)).min(u128::MAX / 8),
            8 * nodes,
            8 * nodes,
            8 * wide(self.params),
            8 * wide(self.outputs),
            8 * wide(self.views),
            4 * nodes,
            4 * nodes,
            4 * nodes,
            4 * nodes,
            4 * (nodes + 1),
            4 * (nodes + 1),
            4 * wide(self.inputs),
            4 * wide(self.pins),
            12 * wide(self.in_place),
            8 * wide(self.updates),
            4 * wide(self.views),
            4 * self.words(),
            2 * nodes,
            nodes,
            wide(self.outputs),
            wide(self.name_bytes),
            wide(self.word_bytes),
        ]
    }

    /// The length of a file of so many.
    fn length(self) -> u128 {
        let padded = |bytes: u128| bytes.saturating_add(ALIGNMENT as u128 - 1) / 8 * 8;
        self.arrays().into_iter().fold(HEAD as u128, |sum, bytes| sum.saturating_add(padded(bytes)))
    }
}

/// Reads a cost graph in its binary form. O(bytes), in time and in memory.
///
/// Errors: another version; a length that is not that of the file, or not that of the counts; a wrong checksum; what
/// [`CostGraph::from_columns`] refuses.
pub(super) fn read(bytes: &[u8]) -> Result<CostGraph> {
    let counts = head(bytes)?;
    let mut arrays = Arrays { rest: &bytes[HEAD..] };
    CostGraph::from_columns(arrays.columns(counts)?)
}

fn damaged(message: impl Into<String>) -> Error {
    Error::format("cost graph", message).with_help("the file is damaged or incomplete: write it again")
}

/// The counts, of a file whose length is theirs.
fn head(bytes: &[u8]) -> Result<Counts> {
    let Some(head) = bytes.first_chunk::<HEAD>().filter(|head| head.starts_with(&MAGIC)) else {
        return Err(damaged(format!("the file ends in its head, which has {HEAD} bytes")));
    };
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let (version, head_bytes) = (word(8) as u32, word(8) >> 32);
    if version != VERSION {
        let message = format!("version {version} of the binary form is not supported");
        return Err(Error::format("cost graph", message).with_help("this program reads version 1"));
    }
    let counts = Counts::from_array(std::array::from_fn(|at| word(PREFIX + 8 * at)));
    let length = bytes.len() as u64;
    if head_bytes != HEAD as u64 || word(16) != length || counts.length() != length.into() {
        let message = format!(
            "the file has {length} bytes, its head says {}, and its counts come to {}",
            word(16),
            counts.length()
        );
        return Err(damaged(message));
    }
    let checksum = word(24);
    if checksum != 0 && checksum != xxh3_64(&bytes[PREFIX..]) {
        return Err(damaged("the checksum is not that of what follows"));
    }
    Ok(counts)
}

/// What is still to be read; the counts have been compared with its length.
struct Arrays<'a> {
    rest: &'a [u8],
}

impl<'a> Arrays<'a> {
    /// The next array.
    fn take(&mut self, bytes: u64) -> &'a [u8] {
        let bytes = bytes as usize;
        let (array, rest) = self.rest.split_at(bytes.next_multiple_of(ALIGNMENT).min(self.rest.len()));
        self.rest = rest;
        &array[..bytes]
    }

    /// The next array, of `count` entries of `N` bytes.
    fn list<const N: usize, T>(&mut self, count: u64, entry: impl Fn([u8; N]) -> T) -> Vec<T> {
        let (entries, _) = self.take(count * N as u64).as_chunks::<N>();
        entries.iter().map(|&bytes| entry(bytes)).collect()
    }

    fn longs(&mut self, count: u64) -> Vec<u64> {
        self.list(count, u64::from_le_bytes)
    }

    fn ints(&mut self, count: u64) -> Vec<u32> {
        self.list(count, u32::from_le_bytes)
    }

    fn flags(&mut self, count: u64, field: &str) -> Result<Vec<bool>> {
        let bytes = self.take(count);
        match bytes.iter().find(|&&byte| byte > 1) {
            None => Ok(bytes.iter().map(|&byte| byte == 1).collect()),
            Some(byte) => Err(damaged(format!("{field} has a {byte}, where 0 or 1 can be"))),
        }
    }

    fn text(&mut self, bytes: u64, field: &str) -> Result<&'a str> {
        let text = std::str::from_utf8(self.take(bytes));
        text.map_err(|error| damaged(format!("{field}: {error}")))
    }

    fn columns(&mut self, counts: Counts) -> Result<Columns> {
        let Counts { nodes, params, outputs, .. } = counts;
        let mut columns = Columns {
            times: self.longs(nodes * counts.kinds),
            owned_bytes: self.longs(nodes),
            workspace_bytes: self.longs(nodes),
            param_bytes: self.longs(params),
            output_bytes: self.longs(outputs),
            ..Columns::default()
        };
        let view_begins = self.longs(counts.views);
        columns.name_ends = self.ints(nodes);
        columns.params = self.ints(nodes);
        columns.colocate = self.ints(nodes);
        columns.forward = self.ints(nodes);
        columns.output_starts = self.ints(nodes + 1);
        columns.input_starts = self.ints(nodes + 1);
        columns.inputs = self.list(counts.inputs, |bytes| TensorIx(u32::from_le_bytes(bytes)));
        let pinned = self.ints(counts.pins);
        columns.in_place = self.list(counts.in_place, |bytes| {
            let [node, input, output] = numbers::<12, 3>(bytes);
            (NodeIx(node), input, output)
        });
        columns.updates = self.list(counts.updates, |bytes| {
            let [made, state] = numbers::<8, 2>(bytes);
            (TensorIx(made), TensorIx(state))
        });
        columns.views = self.ints(counts.views).into_iter().map(NodeIx).zip(view_begins).collect();
        let word_ends = self.ints(counts.words() as u64);
        columns.ops = self.list(nodes, u16::from_le_bytes);
        columns.backward = self.flags(nodes, "backward")?;
        columns.results = self.flags(outputs, "results")?;
        columns.names = self.text(counts.name_bytes, "names")?.to_owned();
        let mut words =
            Words { text: self.text(counts.word_bytes, "words")?, ends: word_ends.iter(), begin: 0 };
        columns.name = words.take(1)?.concat();
        columns.kinds = words.take(counts.kinds)?;
        columns.op_names = words.take(counts.operations)?;
        columns.param_names = words.take(params)?;
        columns.pins = pinned.into_iter().map(NodeIx).zip(words.take(counts.pins)?).collect();
        match words.begin == words.text.len() {
            true => Ok(columns),
            false => Err(damaged("there is more text than words")),
        }
    }
}

/// `M` numbers of 32 bits from `N` = 4 `M` bytes.
fn numbers<const N: usize, const M: usize>(bytes: [u8; N]) -> [u32; M] {
    std::array::from_fn(|at| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * at + byte])))
}

/// Words of one text, by where each ends.
struct Words<'a> {
    text: &'a str,
    ends: std::slice::Iter<'a, u32>,
    begin: usize,
}

impl Words<'_> {
    /// The next `count` words. Error: one ends before it begins, after the text or inside a character.
    fn take(&mut self, count: u64) -> Result<Vec<String>> {
        (&mut self.ends)
            .take(count as usize)
            .map(|&end| {
                let word = self.text.get(self.begin..end as usize);
                self.begin = end as usize;
                word.map(str::to_owned).ok_or_else(|| damaged("a word does not end in the text"))
            })
            .collect()
    }
}

/// Writes a cost graph in its binary form; reading gives the same graph. O(size).
pub fn write_costgraph_binary(graph: CostGraph) -> Vec<u8> {
    let columns = graph.into_columns();
    let counts = counts(&columns);
    let mut out = Writer(Vec::with_capacity(counts.length() as usize));
    out.0.extend_from_slice(&MAGIC);
    out.0.extend_from_slice(&VERSION.to_le_bytes());
    out.0.extend_from_slice(&(HEAD as u32).to_le_bytes());
    out.longs([counts.length() as u64, 0].into_iter());
    out.longs(counts.to_array().into_iter());
    out.columns(&columns);
    let mut out = out.0;
    let checksum = xxh3_64(&out[PREFIX..]);
    out[24..PREFIX].copy_from_slice(&checksum.to_le_bytes());
    out
}

fn counts(columns: &Columns) -> Counts {
    let each = |count: usize| count as u64;
    Counts {
        nodes: each(columns.ops.len()),
        kinds: each(columns.kinds.len()),
        operations: each(columns.op_names.len()),
        params: each(columns.param_bytes.len()),
        outputs: each(columns.output_bytes.len()),
        inputs: each(columns.inputs.len()),
        pins: each(columns.pins.len()),
        in_place: each(columns.in_place.len()),
        updates: each(columns.updates.len()),
        views: each(columns.views.len()),
        name_bytes: each(columns.names.len()),
        word_bytes: words(columns).map(|word| each(word.len())).sum(),
    }
}

/// The words beside the nodes' names, in the file's order.
fn words(columns: &Columns) -> impl Iterator<Item = &str> {
    let devices = columns.pins.iter().map(|(_, device)| device);
    let lists = columns.kinds.iter().chain(&columns.op_names).chain(&columns.param_names).chain(devices);
    std::iter::once(&columns.name).chain(lists).map(String::as_str)
}

/// Appends arrays, each padded to the next multiple of [`ALIGNMENT`].
struct Writer(Vec<u8>);

impl Writer {
    fn list<const N: usize>(&mut self, entries: impl Iterator<Item = [u8; N]>) {
        entries.for_each(|entry| self.0.extend_from_slice(&entry));
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }

    fn longs(&mut self, numbers: impl Iterator<Item = u64>) {
        self.list(numbers.map(u64::to_le_bytes));
    }

    fn ints(&mut self, numbers: impl Iterator<Item = u32>) {
        self.list(numbers.map(u32::to_le_bytes));
    }

    fn flags(&mut self, flags: &[bool]) {
        self.list(flags.iter().map(|&flag| [u8::from(flag)]));
    }

    /// Everything after the counts.
    fn columns(&mut self, columns: &Columns) {
        for numbers in [
            &columns.times,
            &columns.owned_bytes,
            &columns.workspace_bytes,
            &columns.param_bytes,
            &columns.output_bytes,
        ] {
            self.longs(numbers.iter().copied());
        }
        self.longs(columns.views.iter().map(|&(_, begin)| begin));
        for numbers in [
            &columns.name_ends,
            &columns.params,
            &columns.colocate,
            &columns.forward,
            &columns.output_starts,
            &columns.input_starts,
        ] {
            self.ints(numbers.iter().copied());
        }
        self.ints(columns.inputs.iter().map(|tensor| tensor.0));
        self.ints(columns.pins.iter().map(|(node, _)| node.0));
        self.ints(columns.in_place.iter().flat_map(|&(node, input, output)| [node.0, input, output]));
        self.ints(columns.updates.iter().flat_map(|&(made, state)| [made.0, state.0]));
        self.ints(columns.views.iter().map(|(node, _)| node.0));
        let ends = words(columns).scan(0, |end, word| {
            *end += word.len() as u32;
            Some(*end)
        });
        self.ints(ends);
        self.list(columns.ops.iter().map(|op| op.to_le_bytes()));
        self.flags(&columns.backward);
        self.flags(&columns.results);
        self.list(columns.names.bytes().map(|byte| [byte]));
        self.list(words(columns).flat_map(str::bytes).map(|byte| [byte]));
    }
}
