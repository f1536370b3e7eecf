//! A group, compiled: kernels and tile programs over the bytes that it reads and writes.

use crate::error::{Error, Result};
use crate::ir::{DType, Graph, NodeId, Op, ValueId};
use crate::kernel::{Fused, Layout, Place, Segment, layout};

use super::arena::{Arena, Range};
use super::cpu::tile::{Operand, Part, Program, Registers, Source, Target};
use super::cpu::{self, View, ViewMut};
use super::interpret::{bytes, dims};

/// A group that can be run on any device's buffers.
#[derive(Debug)]
pub(super) struct Compiled {
    segments: Vec<Step>,
    /// Bytes of each value that is read and written, in the group's order.
    pub(super) reads: Vec<u64>,
    pub(super) writes: Vec<u64>,
    pub(super) workspace: u64,
    /// The source node that people know it by.
    pub(super) name: String,
}

#[derive(Debug)]
enum Step {
    Kernel { op: Op, inputs: Vec<Tensor>, outputs: Vec<Tensor>, name: String },
    Chain { program: Program, sources: Vec<(Place, usize)>, targets: Vec<Place> },
}

/// A tensor of a kernel: where it lies and what it is.
#[derive(Debug)]
struct Tensor {
    place: Place,
    dtype: DType,
    dims: Vec<i64>,
}

/// What a worker uses again for every kernel, made before it runs.
#[derive(Default)]
pub(super) struct Scratch {
    registers: Registers,
    views: Vec<View<'static>>,
    targets: Vec<ViewMut<'static>>,
    sources: Vec<Source<'static>>,
    stores: Vec<Target<'static>>,
}

impl Scratch {
    /// Enough for any of these groups.
    pub(super) fn of(groups: &[Compiled]) -> Self {
        let mut scratch = Self::default();
        for step in groups.iter().flat_map(|group| &group.segments) {
            match step {
                Step::Kernel { inputs, outputs, .. } => {
                    scratch.views.reserve(inputs.len());
                    scratch.targets.reserve(outputs.len());
                }
                Step::Chain { program, sources, targets } => {
                    scratch.registers.reserve(program.registers());
                    scratch.sources.reserve(sources.len());
                    scratch.stores.reserve(targets.len());
                }
            }
        }
        scratch
    }
}

/// An empty list in the memory of another one, whose elements differ in their lifetimes alone:
/// collecting from a vector's own iterator takes its memory over.
fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map_while(|_| None).collect()
}

/// What a group's places are on the device that runs it.
pub(super) struct Bound<'a> {
    pub(super) arena: &'a Arena,
    pub(super) reads: &'a [Range],
    pub(super) writes: &'a [Range],
    pub(super) workspace: Range,
}

impl Compiled {
    /// Errors: an unbound size, a value that the group neither reads nor makes.
    pub(super) fn new(graph: &Graph, fused: &Fused<'_>) -> Result<Self> {
        let layout = layout(graph, fused);
        let compiler = Compiler { graph, fused, layout: &layout };
        let segments = layout
            .segments
            .iter()
            .map(|segment| match segment {
                Segment::Primitive(node) => compiler.kernel(*node),
                Segment::Chain(nodes) => compiler.chain(nodes),
            })
            .collect::<Result<Vec<_>>>()?;
        let sizes = |values: &[ValueId]| -> Result<Vec<u64>> {
            values.iter().map(|&value| bytes(graph.ty(value))).collect()
        };
        let name = fused.nodes.last().map_or("", |&node| &graph.source(graph.node(node).source).name);
        Ok(Self {
            reads: sizes(fused.reads)?,
            writes: sizes(fused.writes)?,
            workspace: layout.workspace.get(),
            name: name.to_owned(),
            segments,
        })
    }

    /// True where the group may write `write` into the bytes of `read`.
    pub(super) fn in_place(&self, read: usize, write: usize) -> bool {
        let [Step::Chain { program, sources, targets }] = &self.segments[..] else { return false };
        let same_size = self.reads[read] == self.writes[write] && targets.contains(&Place::Write(write));
        same_size
            && sources.iter().enumerate().all(|(position, &(place, size))| {
                place != Place::Read(read)
                    || program.reads_in_place(position) && self.writes[write] == program.bytes(size)
            })
    }

    /// Runs it.
    ///
    /// # Safety
    ///
    /// The ranges are of the arena and have the bytes of `reads`, `writes` and `workspace`. Until
    /// it returns, nobody else writes the first or touches the others. Those that are written
    /// overlap neither one another nor those that are read, except one that [`Compiled::in_place`]
    /// allows, which is the same range.
    pub(super) unsafe fn run(&self, bound: &Bound<'_>, scratch: &mut Scratch) -> Result<()> {
        for step in &self.segments {
            match step {
                Step::Kernel { op, inputs, outputs, name } => {
                    // SAFETY: as the caller promises.
                    let done = unsafe { bound.kernel(op, inputs, outputs, scratch) };
                    done.map_err(|error| error.within(&format!("node {name}")))?;
                }
                Step::Chain { program, sources, targets } => {
                    // SAFETY: as the caller promises.
                    unsafe { bound.chain(program, sources, targets, scratch)? };
                }
            }
        }
        Ok(())
    }
}

struct Compiler<'a> {
    graph: &'a Graph,
    fused: &'a Fused<'a>,
    layout: &'a Layout,
}

impl Compiler<'_> {
    fn place(&self, value: ValueId) -> Result<Place> {
        let place = self.layout.place(self.fused, value);
        place.ok_or_else(|| Error::Internal(format!("a group uses {value} and neither reads nor makes it")))
    }

    fn tensor(&self, value: ValueId) -> Result<Tensor> {
        let ty = self.graph.ty(value);
        let place = self.place(value)?;
        if place == Place::Register {
            return Err(Error::Internal(format!("a kernel uses {value}, which lies in a register")));
        }
        Ok(Tensor { place, dtype: ty.dtype, dims: dims(ty)? })
    }

    fn kernel(&self, id: NodeId) -> Result<Step> {
        let node = self.graph.node(id);
        Ok(Step::Kernel {
            op: node.op.clone(),
            inputs: node.operands.iter().map(|&value| self.tensor(value)).collect::<Result<_>>()?,
            outputs: self.graph.results(id).map(|value| self.tensor(value)).collect::<Result<_>>()?,
            name: self.graph.source(node.source).name.clone(),
        })
    }

    fn chain(&self, nodes: &[NodeId]) -> Result<Step> {
        let first = |node: NodeId| self.graph.node(node).first_result;
        let mut made: Vec<(ValueId, usize)> =
            nodes.iter().enumerate().map(|(position, &node)| (first(node), position)).collect();
        made.sort_unstable();
        let mut outside: Vec<(DType, Vec<usize>)> = Vec::new();
        let mut sources: Vec<(Place, usize)> = Vec::new();
        let mut known: Vec<(ValueId, Operand)> = Vec::new();
        let mut parts = Vec::with_capacity(nodes.len());
        for &id in nodes {
            let node = self.graph.node(id);
            let mut operands = Vec::with_capacity(node.operands.len());
            for &value in node.operands.iter() {
                let base = self.fused.base[value.index()];
                if let Ok(position) = made.binary_search_by_key(&base, |(value, _)| *value) {
                    operands.push(Operand::Inside(made[position].1));
                    continue;
                }
                // One tensor may be read with several sizes: each view is a source of its own.
                let found = known.binary_search_by_key(&value, |(value, _)| *value);
                let operand = match found {
                    Ok(position) => known[position].1,
                    Err(position) => {
                        let ty = self.graph.ty(value);
                        let operand = Operand::Outside(outside.len());
                        outside.push((ty.dtype, sizes(&dims(ty)?)?));
                        sources.push((self.place(value)?, ty.dtype.size() as usize));
                        known.insert(position, (value, operand));
                        operand
                    }
                };
                operands.push(operand);
            }
            let ty = self.graph.ty(node.first_result);
            parts.push(Part { op: &node.op, operands, dtype: ty.dtype, dims: sizes(&dims(ty)?)? });
        }
        let mut stores = Vec::new();
        let mut targets = Vec::new();
        for (position, &node) in nodes.iter().enumerate() {
            let place = self.place(first(node))?;
            if place != Place::Register {
                stores.push((position, targets.len()));
                targets.push(place);
            }
        }
        let elements = parts.first().map_or(0, |part| part.dims.iter().product());
        let program = Program::new(elements, &outside, &parts, &stores)?;
        Ok(Step::Chain { program, sources, targets })
    }
}

fn sizes(dims: &[i64]) -> Result<Vec<usize>> {
    dims.iter()
        .map(|&dim| usize::try_from(dim).map_err(|_| Error::Internal(format!("a size of {dim}"))))
        .collect()
}

impl Bound<'_> {
    fn range(&self, place: Place) -> Result<Range> {
        let missing = || Error::Internal("a group's place is missing".to_owned());
        match place {
            Place::Read(position) => self.reads.get(position).copied().ok_or_else(missing),
            Place::Write(position) => self.writes.get(position).copied().ok_or_else(missing),
            Place::Workspace { offset, bytes } => {
                let (offset, length) = (offset as usize, bytes as usize);
                if offset.checked_add(length).is_none_or(|end| end > self.workspace.length) {
                    return Err(missing());
                }
                Ok(Range { offset: self.workspace.offset + offset, length })
            }
            Place::Register => Err(missing()),
        }
    }

    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn kernel(
        &self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut views = emptied(std::mem::take(&mut scratch.views));
        for tensor in inputs {
            let range = self.range(tensor.place)?;
            // SAFETY: nobody writes it meanwhile: others do not, as the caller promises, and a
            // kernel's results lie apart from its operands.
            let bytes = unsafe { self.arena.bytes(range) };
            views.push(View::new(tensor.dtype, &tensor.dims, bytes)?);
        }
        let mut targets = emptied(std::mem::take(&mut scratch.targets));
        let mut kernel_end = self.workspace.length;
        for tensor in outputs {
            let range = self.range(tensor.place)?;
            // SAFETY: this group's alone, as the caller promises, and apart from the other
            // results: places of a layout are disjoint.
            let bytes = unsafe { self.arena.bytes_mut(range) };
            targets.push(ViewMut::new(tensor.dtype, &tensor.dims, bytes)?);
        }
        // Values in the workspace lie behind what the kernel itself needs.
        for tensor in inputs.iter().chain(outputs) {
            if let Place::Workspace { offset, .. } = tensor.place {
                kernel_end = kernel_end.min(offset as usize);
            }
        }
        let own = Range { offset: self.workspace.offset, length: kernel_end };
        // SAFETY: this group's alone, and apart from what lies in the workspace.
        let workspace = unsafe { self.arena.bytes_mut(own) };
        let done = cpu::execute(op, &views, &mut targets, workspace);
        (scratch.views, scratch.targets) = (emptied(views), emptied(targets));
        done
    }

    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn chain(
        &self,
        program: &Program,
        places: &[(Place, usize)],
        results: &[Place],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut sources = emptied(std::mem::take(&mut scratch.sources));
        for &(place, _) in places {
            let range = self.range(place)?;
            // SAFETY: initialised, and not written by other threads, as the caller promises.
            sources.push(unsafe { Source::from_raw(self.arena.pointer(range), range.length) });
        }
        let mut targets = emptied(std::mem::take(&mut scratch.stores));
        for &place in results {
            let range = self.range(place)?;
            // SAFETY: this group's alone, as the caller promises; nothing borrows it.
            targets.push(unsafe { Target::from_raw(self.arena.pointer(range), range.length) });
        }
        let done = program.run(&sources, &targets, &mut scratch.registers);
        (scratch.sources, scratch.stores) = (emptied(sources), emptied(targets));
        done
    }
}
