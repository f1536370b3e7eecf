//! How the CPU runs the nodes of one group: which of them are one chain, and where the values
//! between them lie.
//!
//! Neighbouring elementwise nodes with as many elements are one chain, whose inner values stay in
//! registers. A value that leaves its chain (or that a primitive makes) and is not written by the
//! group lies in the group's result where that has as many bytes and the chain that makes it reads
//! the value, element by element; else in the workspace. Planning and execution share this, so the
//! workspace is exact.

// A build that only plans needs the size of a layout, not the layout.
#![cfg_attr(not(feature = "run"), allow(dead_code))]

use super::Positions;
use crate::ir::{DType, Graph, NodeId, Op, Phase, ScatterKind, Type, ValueId};
use crate::units::Bytes;

use super::workspace::{PARTIAL_ALIGNMENT, partial_folds, partial_sums, widens, workspace};

/// The nodes of one group, in the order of the arena, with what they read from outside and what
/// others read of them.
#[derive(Clone, Copy, Debug)]
pub struct Fused<'a> {
    /// The nodes.
    pub nodes: &'a [NodeId],
    /// Values read from outside, each the base of its bytes.
    pub reads: &'a [ValueId],
    /// Values that others read, each the base of its bytes.
    pub writes: &'a [ValueId],
    /// By value: the value whose bytes it shares (itself, but for contiguous views).
    pub base: &'a [ValueId],
}

/// Where a value is while its group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In what the group reads, by position.
    Read(usize),
    /// In what the group writes, by position.
    Write(usize),
    /// In the workspace, from this byte.
    Workspace {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
    },
    /// In a register of its chain.
    Register,
}

/// Nodes that run as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// One node with a kernel of its own.
    Primitive(NodeId),
    /// A chain of elementwise nodes.
    Chain(Vec<NodeId>),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// In the order in which they run.
    pub(crate) segments: Vec<Segment>,
    /// Values made by the group's nodes and where they lie, ascending by value.
    places: Vec<(ValueId, Place)>,
    reads: Positions,
    /// Bytes of workspace; what a primitive's own kernel needs comes first.
    pub(crate) workspace: Bytes,
}

impl Layout {
    /// Where a value is; none for one that the group neither reads nor makes.
    pub(crate) fn place(&self, fused: &Fused<'_>, value: ValueId) -> Option<Place> {
        let value = *fused.base.get(value.index())?;
        let made = self.places.binary_search_by_key(&value, |(value, _)| *value);
        match made {
            Ok(position) => Some(self.places[position].1),
            Err(_) => self.reads.get(value).map(Place::Read),
        }
    }
}

/// Bytes of workspace that a group needs: exactly what its execution uses. Saturates where a size
/// is not bound.
pub fn group_workspace(graph: &Graph, fused: &Fused<'_>) -> Bytes {
    layout(graph, fused).workspace
}

/// As [`group_workspace`] for a GPU: with room behind it for what the parts of long reductions make and for a
/// convolution's transposed operands ([`partial_folds`]), or for the partial sums of a library of matrix products
/// ([`partial_sums`]), wherever they may begin.
pub fn group_workspace_on_gpu(graph: &Graph, fused: &Fused<'_>) -> Bytes {
    let own = group_workspace(graph, fused);
    let partial = most_of(graph, fused, partial_sums).get();
    let partial = if partial > 0 { partial.saturating_add(PARTIAL_ALIGNMENT) } else { 0 };
    Bytes(own.get().saturating_add(partial.max(folded_parts(graph, fused).get())))
}

/// Room for what the parts of the group's longest reduction make, or for its convolution's transposed operands.
pub(crate) fn folded_parts(graph: &Graph, fused: &Fused<'_>) -> Bytes {
    most_of(graph, fused, partial_folds)
}

/// The most that one of the nodes needs.
fn most_of(graph: &Graph, fused: &Fused<'_>, of: fn(&Op, &[&Type], &[&Type]) -> Bytes) -> Bytes {
    let of_node = |&node: &NodeId| {
        let operands: Vec<&Type> = graph.node(node).operands.iter().map(|&value| graph.ty(value)).collect();
        let results: Vec<&Type> = graph.results(node).map(|value| graph.ty(value)).collect();
        of(&graph.node(node).op, &operands, &results)
    };
    fused.nodes.iter().map(of_node).max().unwrap_or(Bytes::ZERO)
}

/// True for a primitive whose result may be made piece by piece before what follows from it, so
/// that this may take the bytes of what else it reads: a product of matrices of floats, whose sums are written as they
/// are; of two matrices, or where an update is among the nodes `behind` it.
pub(crate) fn is_staged(graph: &Graph, node: NodeId, behind: &[NodeId]) -> bool {
    let node = graph.node(node);
    let floats = |value: ValueId| graph.ty(value).dtype.is_float();
    let made = graph.ty(node.first_result);
    // A library computes products of several matrices, and a kernel of its own what follows; only an update is worth more.
    let updates = |&node: &NodeId| graph.source(graph.node(node).source).phase == Phase::Update;
    let rank = made.shape.rank();
    let ranks_alike = node.operands.iter().all(|&operand| graph.ty(operand).shape.rank() == 2);
    let summed = node.operands.first().and_then(|&left| graph.ty(left).elements());
    matches!(node.op, Op::MatMul { .. })
        && matches!(made.dtype, DType::F32 | DType::F64)
        && node.operands.iter().all(|&operand| floats(operand))
        && (rank == 2 && ranks_alike || behind.iter().any(updates))
        && summed.is_some_and(|elements| elements > 0)
}

/// The zeros that a node adds updates to, where these are of floats and nothing but a filled tensor: the sums of each
/// row may then be made apart, as [`is_staged`] says, and the zeros need no memory where both are of one group.
pub(crate) fn zeros_before(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let node = graph.node(node);
    let (Op::ScatterNd { kind: ScatterKind::Add }, &[data, _, updates]) = (&node.op, &node.operands[..])
    else {
        return None;
    };
    let zeros = graph.value(data).node;
    let filled = matches!(graph.node(zeros).op, Op::Broadcast { .. });
    let number = graph.node(zeros).operands.first().and_then(|&number| graph.as_constant(number))?;
    let is_zero = number.bytes().iter().all(|&byte| byte == 0);
    let is_wide = matches!(graph.ty(data).dtype, DType::F32 | DType::F64);
    let updated = graph.ty(updates).elements().is_some_and(|elements| elements > 0);
    (filled && is_zero && is_wide && updated).then_some(zeros)
}

/// What two segments that follow one another are, where the first one fills what the second one adds to.
pub(crate) fn is_sum_of_rows(graph: &Graph, zeros: &Segment, scatter: &Segment) -> bool {
    match (zeros, scatter) {
        (Segment::Primitive(zeros), &Segment::Primitive(scatter)) => {
            zeros_before(graph, scatter) == Some(*zeros)
        }
        _ => false,
    }
}

/// (read, write) pairs, by position, of which the write may be where the read does: the group is one
/// chain of elementwise nodes that reads each element of the one where it writes that of the other,
/// and their elements are as large; or such a chain behind a product that does not read it
/// (`is_staged`) and that it writes over, whatever runs before the product, or behind sums of rows (`zeros_before`); or it updates
/// elements of the read alone (`is_update`).
/// O((nodes + operands) log nodes + reads x writes).
pub fn in_place(graph: &Graph, fused: &Fused<'_>) -> Vec<(u32, u32)> {
    let segments = segments(graph, fused);
    if let Some(updated) = updated_in_place(graph, fused, &segments) {
        return vec![updated];
    }
    let (nodes, before) = match &segments[..] {
        [Segment::Chain(nodes)] => (nodes, &[][..]),
        [before @ .., Segment::Chain(nodes)] if writes_over(graph, fused, before, nodes) => (nodes, before),
        _ => return Vec::new(),
    };
    let elements = |value: ValueId| graph.ty(value).elements();
    let Some(walked) = nodes.first().and_then(|&node| elements(graph.node(node).first_result)) else {
        return Vec::new();
    };
    let reads = Positions::of(fused.reads);
    let mut whole = vec![true; fused.reads.len()];
    for operand in nodes.iter().flat_map(|&node| graph.node(node).operands.iter()) {
        let base = fused.base.get(operand.index()).copied();
        if let Some(position) = base.and_then(|base| reads.get(base)) {
            whole[position] &= elements(*operand) == Some(walked);
        }
    }
    // The product is made piece by piece: what it reads must outlast the first pieces that the chain writes.
    let earlier = || before.iter().flat_map(Segment::nodes);
    for operand in earlier().flat_map(|&node| graph.node(node).operands.iter()) {
        let base = fused.base.get(operand.index()).copied();
        if let Some(position) = base.and_then(|base| reads.get(base)) {
            whole[position] = false;
        }
    }
    let mut pairs = Vec::new();
    for (read, &value) in fused.reads.iter().enumerate().filter(|&(read, _)| whole[read]) {
        let size = graph.ty(value).dtype.size();
        let alike = |&write: &ValueId| {
            let ty = graph.ty(write);
            ty.dtype.size() == size && ty.elements() == Some(walked) && elements(value) == Some(walked)
        };
        // What an earlier segment writes is there before the chain reads.
        let by_chain =
            |write: &ValueId| earlier().all(|&node| graph.results(node).all(|made| made != *write));
        let writes = fused.writes.iter().enumerate().filter(|(_, write)| by_chain(write) && alike(write));
        pairs.extend(writes.map(|(write, _)| (read as u32, write as u32)));
    }
    pairs
}

/// Whether an operation updates elements of its first operand, and keeps the others.
pub(crate) fn is_update(op: &Op) -> bool {
    matches!(op, Op::ScatterNd { .. } | Op::ScatterElements { .. } | Op::UpdateSlice { .. })
}

/// Of a group with one update: what it updates and what it writes. Nothing else of the group reads the one, and nothing
/// before it touches the other. Halves that are widened first are elsewhere meanwhile.
fn updated_in_place(graph: &Graph, fused: &Fused<'_>, segments: &[Segment]) -> Option<(u32, u32)> {
    let is_own =
        |segment: &Segment| matches!(segment, Segment::Primitive(node) if is_update(&graph.node(*node).op));
    let own = segments.iter().position(is_own)?;
    let node = graph.node(*segments[own].nodes().first()?);
    let base = |operand: &ValueId| fused.base.get(operand.index()).copied();
    let data = node.operands.first().and_then(base)?;
    let read = Positions::of(fused.reads).get(data)?;
    let all = segments.iter().flat_map(Segment::nodes).flat_map(|&node| graph.node(node).operands.iter());
    let uses = all.filter(|operand| base(operand) == Some(data)).count();
    let layout = layout(graph, fused);
    let place = layout.place(fused, node.first_result)?;
    let Place::Write(write) = place else { return None };
    let made = segments[..own].iter().flat_map(Segment::nodes).flat_map(|&node| graph.results(node));
    let size = |value: ValueId| (graph.ty(value).dtype.size(), graph.ty(value).elements());
    let alike = size(data) == size(node.first_result) && size(data) == size(fused.writes[write]);
    let free = made.into_iter().all(|value| layout.place(fused, value) != Some(place));
    let whole = !(graph.ty(node.first_result).dtype.is_half() && widens(&node.op));
    (uses == 1 && alike && free && whole).then_some((read as u32, write as u32))
}

/// Whether a chain writes over what a product or sums of rows before it make, which may be staged, and the chain makes
/// nothing else; what stands before the product is one sum at most, and zeros before sums of rows.
fn writes_over(graph: &Graph, fused: &Fused<'_>, before: &[Segment], chain: &[NodeId]) -> bool {
    let (product, beside) = match before {
        [zeros, scatter @ Segment::Primitive(sums)] if is_sum_of_rows(graph, zeros, scatter) => (*sums, 0),
        [Segment::Primitive(product)] => (*product, 0),
        [Segment::Primitive(sum), Segment::Primitive(product)] => {
            (*product, graph.results(*sum).filter(|made| fused.writes.contains(made)).count())
        }
        _ => return false,
    };
    // The chain reads it, in one shape, as the executor sees it; and each element where it writes one.
    let of_product = graph.node(product).first_result;
    let operands = chain.iter().flat_map(|&node| graph.node(node).operands.iter());
    let mut shapes = operands.filter(|operand| fused.base.get(operand.index()) == Some(&of_product));
    let Some(shape) = shapes.next() else { return false };
    if shapes.any(|other| other != shape) {
        return false;
    }
    let made = |value: &&ValueId| chain.iter().any(|&node| graph.results(node).any(|made| made == **value));
    let size = |value: ValueId| (graph.ty(value).dtype.size(), graph.ty(value).elements());
    let written: Vec<&ValueId> = fused.writes.iter().filter(made).collect();
    (is_staged(graph, product, chain) || zeros_before(graph, product).is_some())
        && matches!(written[..], [&one] if size(one) == size(of_product))
        && fused.writes.len() == 1 + beside
}

/// O((nodes + operands) log nodes).
pub(crate) fn layout(graph: &Graph, fused: &Fused<'_>) -> Layout {
    let segments = segments(graph, fused);
    let mut made: Vec<(ValueId, usize)> = Vec::new();
    for (position, segment) in segments.iter().enumerate() {
        for &node in segment.nodes() {
            made.extend(graph.results(node).map(|value| (value, position)));
        }
    }
    made.sort_unstable();
    let inner = kernel_workspace(graph, &segments);
    let mut end = inner;
    let mut taken = vec![false; fused.writes.len()];
    let writes = Positions::of(fused.writes);
    let readers = readers(graph, fused, &segments, &made);
    // What is added to zeros begins where the sums are made.
    let begun = segments.windows(2).find(|pair| is_sum_of_rows(graph, &pair[0], &pair[1]));
    let first = |segment: &Segment| segment.nodes().first().map(|&node| graph.node(node).first_result);
    let begun = begun.and_then(|pair| first(&pair[0]).zip(first(&pair[1])));
    let mut places = Vec::with_capacity(made.len());
    for (index, &(value, segment)) in made.iter().enumerate() {
        if begun.is_some_and(|(zeros, _)| zeros == value) {
            continue;
        }
        let written = writes.get(value);
        let chained = matches!(segments[segment], Segment::Chain(_));
        let place = match (written, &readers[index]) {
            (Some(position), _) => Place::Write(position),
            // Made and read in one loop over the elements: it is never stored.
            (None, readers) if chained && readers.iter().all(|&reader| reader == segment) => Place::Register,
            (None, readers) => match shared(graph, fused, &segments, value, readers, &mut taken, &made) {
                Some(position) => Place::Write(position),
                None => {
                    let bytes = bytes(graph.ty(value));
                    let offset = end;
                    end = end.saturating_add(Bytes(bytes).aligned().get());
                    Place::Workspace { offset, bytes }
                }
            },
        };
        places.push((value, place));
    }
    if let Some((zeros, sums)) = begun
        && let Some(&(_, place)) = places.iter().find(|(value, _)| *value == sums)
    {
        places.push((zeros, place));
        places.sort_unstable_by_key(|&(value, _)| value);
    }
    Layout { segments, places, reads: Positions::of(fused.reads), workspace: Bytes(end) }
}

impl Segment {
    pub(crate) fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Primitive(node) => std::slice::from_ref(node),
            Self::Chain(nodes) => nodes,
        }
    }
}

fn bytes(ty: &Type) -> u64 {
    ty.bytes().map_or(u64::MAX, Bytes::get)
}

/// Views make nothing and are left out.
fn segments(graph: &Graph, fused: &Fused<'_>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for &id in fused.nodes {
        let node = graph.node(id);
        let view = fused.base.get(node.first_result.index()).is_some_and(|&base| base != node.first_result);
        if view || node.op.is_leaf() {
            continue;
        }
        if !node.op.is_elementwise() {
            segments.push(Segment::Primitive(id));
            continue;
        }
        let elements = |node: NodeId| graph.ty(graph.node(node).first_result).elements();
        match segments.last_mut() {
            // As many elements: one loop makes them all.
            Some(Segment::Chain(nodes)) if elements(nodes[0]) == elements(id) => nodes.push(id),
            _ => segments.push(Segment::Chain(vec![id])),
        }
    }
    segments
}

/// The most that one of the primitives' own kernels needs.
fn kernel_workspace(graph: &Graph, segments: &[Segment]) -> u64 {
    let of = |segment: &Segment| match segment {
        Segment::Primitive(id) => {
            let node = graph.node(*id);
            let operands: Vec<&Type> = node.operands.iter().map(|&value| graph.ty(value)).collect();
            let results: Vec<&Type> = graph.results(*id).map(|value| graph.ty(value)).collect();
            workspace(&node.op, &operands, &results).get()
        }
        Segment::Chain(_) => 0,
    };
    segments.iter().map(of).max().unwrap_or(0)
}

/// By position in `made`: the segments that read the value.
fn readers(
    graph: &Graph,
    fused: &Fused<'_>,
    segments: &[Segment],
    made: &[(ValueId, usize)],
) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); made.len()];
    for (position, segment) in segments.iter().enumerate() {
        for &node in segment.nodes() {
            for operand in graph.node(node).operands.iter() {
                let Some(base) = fused.base.get(operand.index()) else { continue };
                if let Ok(index) = made.binary_search_by_key(base, |(value, _)| *value) {
                    readers[index].push(position);
                }
            }
        }
    }
    readers
}

/// A result of the one chain that reads `value`, in whose bytes it can be: as many bytes, elements
/// as large, read at the position that is written, and no other segment between that reads or
/// writes there.
fn shared(
    graph: &Graph,
    fused: &Fused<'_>,
    segments: &[Segment],
    value: ValueId,
    readers: &[usize],
    taken: &mut [bool],
    made: &[(ValueId, usize)],
) -> Option<usize> {
    let &reader = readers.first()?;
    if readers.iter().any(|&other| other != reader) || !matches!(segments[reader], Segment::Chain(_)) {
        return None;
    }
    let ty = graph.ty(value);
    let reads_whole = |&node: &NodeId| {
        let node = graph.node(node);
        node.operands.iter().all(|operand| {
            fused.base.get(operand.index()) != Some(&value)
                || graph.ty(node.first_result).elements() == ty.elements()
        })
    };
    if !segments[reader].nodes().iter().all(reads_whole) {
        return None;
    }
    let position = (0..fused.writes.len()).find(|&position| {
        let write = fused.writes[position];
        let by_reader =
            made.binary_search_by_key(&write, |(value, _)| *value).is_ok_and(|index| made[index].1 == reader);
        let other = graph.ty(write);
        // One inner value for each result: two could be needed at once.
        !taken[position]
            && by_reader
            && other.dtype.size() == ty.dtype.size()
            && other.elements() == ty.elements()
    })?;
    taken[position] = true;
    Some(position)
}
