//! A group, compiled: kernels and tile programs over the bytes that it reads and writes.
//!
//! Contains `unsafe`: the ranges that a group reads and writes become slices, as its caller promises.

use crate::error::{Error, Result};
use crate::ir::{DType, Graph, NodeId, Op, ValueId};
use crate::kernel::workspace::widens;
use crate::kernel::{Fused, Layout, Place, Segment, is_staged, is_update, layout, slice_at};

use super::arena::{ALIGNMENT, Arena, Range};
use super::cpu::tile::{Epilogue, Operand, Part, Program, Source, Target};
use super::cpu::{self, Notes, Team, View, ViewMut};
use super::interpret::{bytes, dims};
use super::packing::{Form, Packing};

/// A group that can be run on any device's buffers.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) segments: Vec<Step>,
    /// Bytes of each value that is read and written, in the group's order.
    pub(super) reads: Vec<u64>,
    pub(super) writes: Vec<u64>,
    pub(super) workspace: u64,
    /// The source node that people know it by.
    pub(super) name: String,
    /// Where in the bytes of what it reads its result is, where it is a contiguous slice of that.
    pub(super) slice: Option<u64>,
}

/// What a group does, one after the other.
#[derive(Debug)]
pub(super) enum Step {
    Kernel {
        op: Op,
        inputs: Vec<Tensor>,
        outputs: Vec<Tensor>,
        epilogue: Option<EpilogueChain>,
        name: String,
    },
    Chain {
        program: Program,
        sources: Vec<(Place, usize)>,
        targets: Vec<Place>,
    },
}

impl Step {
    /// Of an operation that updates elements of its first operand, and reads nothing else there: that
    /// operand's place, and the result's. Halves are widened first.
    fn update(&self) -> Option<[Place; 2]> {
        let Self::Kernel { op, inputs, outputs, epilogue, .. } = self else { return None };
        let ([data, others @ ..], [made]) = (&inputs[..], &outputs[..]) else { return None };
        let behind = epilogue.iter().flat_map(|epilogue| epilogue.sources.iter().map(|&(place, _)| place));
        let alone = others.iter().map(|other| other.place).chain(behind).all(|place| place != data.place);
        let alike = data.dtype == made.dtype && !(made.dtype.is_half() && widens(op));
        (is_update(op) && alone && alike).then_some([data.place, made.place])
    }

    /// Whether it reads or writes any of these places.
    fn uses(&self, places: [Place; 2]) -> bool {
        match self {
            Self::Kernel { inputs, outputs, epilogue, .. } => {
                let behind =
                    epilogue.iter().flat_map(|epilogue| epilogue.sources.iter().map(|(place, _)| place));
                let own = inputs.iter().chain(outputs).map(|tensor| &tensor.place);
                own.chain(behind).any(|place| places.contains(place))
            }
            Self::Chain { sources, targets, .. } => {
                sources.iter().map(|(place, _)| place).chain(targets).any(|place| places.contains(place))
            }
        }
    }
}

/// A chain on the elements of a kernel's first result, where they lie.
#[derive(Debug)]
pub(super) struct EpilogueChain {
    pub(super) program: Program,
    pub(super) sources: Vec<(Place, usize)>,
    /// Which of them the result is.
    source: usize,
    /// The kernel may make its result apart, so that the chain's takes the bytes of another source.
    staged: bool,
}

/// A tensor of a kernel: where it lies and what it is.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) place: Place,
    pub(super) dtype: DType,
    pub(super) dims: Vec<i64>,
    /// See [`View::packed`].
    pub(super) packed: bool,
    /// See [`View::zeros`].
    zeros: bool,
}

/// What a worker uses again for every kernel, made before it runs.
#[derive(Default)]
pub(super) struct Scratch {
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
                Step::Kernel { inputs, outputs, epilogue, .. } => {
                    scratch.views.reserve(inputs.len());
                    scratch.targets.reserve(outputs.len());
                    scratch.sources.reserve(epilogue.as_ref().map_or(0, |epilogue| epilogue.sources.len()));
                }
                Step::Chain { sources, targets, .. } => {
                    scratch.sources.reserve(sources.len());
                    scratch.stores.reserve(targets.len());
                }
            }
        }
        scratch
    }
}

/// Registers that any of these groups needs.
pub(super) fn registers(groups: &[Compiled]) -> usize {
    let of = |step: &Step| match step {
        Step::Chain { program, .. } => program.registers(),
        // An operation of elements on its own.
        Step::Kernel { epilogue, .. } => {
            epilogue.as_ref().map_or(4, |epilogue| epilogue.program.registers().max(4))
        }
    };
    groups.iter().flat_map(|group| &group.segments).map(of).max().unwrap_or(0)
}

/// An empty list in the memory of another one, whose elements differ in their lifetimes alone:
/// collecting from a vector's own iterator takes its memory over.
fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map_while(|_| None).collect()
}

/// What a group's places are on the device that runs it.
pub(super) struct Bound<'a> {
    pub(super) team: &'a Team<'a>,
    pub(super) arena: &'a Arena,
    pub(super) reads: &'a [Range],
    pub(super) writes: &'a [Range],
    pub(super) workspace: Range,
}

impl Compiled {
    /// Errors: an unbound size, a value that the group neither reads nor makes.
    pub(super) fn new(graph: &Graph, fused: &Fused<'_>, packing: &Packing) -> Result<Self> {
        let layout = layout(graph, fused);
        let compiler = Compiler { graph, fused, layout: &layout, packing };
        let segments = layout
            .segments
            .iter()
            .map(|segment| match segment {
                Segment::Primitive(node) => compiler.kernel(*node),
                Segment::Chain(nodes) => compiler.chain(nodes),
            })
            .collect::<Result<Vec<_>>>()?;
        let staged = fused.nodes.iter().any(|&node| is_staged(graph, node, fused.nodes));
        let segments = joined(segments, staged);
        let sizes = |values: &[ValueId]| -> Result<Vec<u64>> {
            values.iter().map(|&value| bytes(graph.ty(value))).collect()
        };
        let name = fused.nodes.last().map_or("", |&node| &graph.source(graph.node(node).source).name);
        Ok(Self {
            reads: sizes(fused.reads)?,
            writes: sizes(fused.writes)?,
            workspace: layout.workspace.get(),
            name: name.to_owned(),
            slice: slice_at(graph, fused.nodes),
            segments,
        })
    }

    /// True where the group may write `write` into the bytes of `read`.
    pub(super) fn in_place(&self, read: usize, write: usize) -> bool {
        if self.updates(Place::Read(read), Place::Write(write)) {
            return self.reads[read] == self.writes[write];
        }
        let (program, sources, made) = match &self.segments[..] {
            [Step::Chain { program, sources, targets }] => {
                (program, sources, targets.contains(&Place::Write(write)))
            }
            [
                before @ ..,
                Step::Kernel {
                    inputs,
                    outputs,
                    epilogue: Some(EpilogueChain { program, sources, staged: true, .. }),
                    ..
                },
            ] => {
                let (read, write) = (Place::Read(read), Place::Write(write));
                let reads = inputs.iter().any(|tensor| tensor.place == read);
                let writes = outputs.iter().all(|made| made.place == write);
                (program, sources, !reads && writes && !before.iter().any(|step| step.uses([read, write])))
            }
            _ => return false,
        };
        let same_size = self.reads[read] == self.writes[write] && made;
        same_size
            && sources.iter().enumerate().all(|(position, &(place, size))| {
                place != Place::Read(read)
                    || program.reads_in_place(position) && self.writes[write] == program.bytes(size)
            })
    }

    /// Whether the group updates elements of what lies at one place, and writes the result at another, which
    /// nothing before touches; nothing else reads the first.
    fn updates(&self, read: Place, write: Place) -> bool {
        let own = self.segments.iter().position(|step| step.update() == Some([read, write]));
        own.is_some_and(|own| {
            let before = self.segments[..own].iter().all(|step| !step.uses([read, write]));
            before && self.segments[own + 1..].iter().all(|step| !step.uses([read, read]))
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
        // SAFETY: as the caller promises.
        self.segments.iter().try_for_each(|step| unsafe { bound.step(step, scratch) })
    }

    /// By segment: into how many parts each piece of its work is divided where so many threads may share
    /// it. Parts are noted and not computed; what a kernel does beside them it does on zeros.
    ///
    /// Errors: memory that the system does not give; those of kernels.
    pub(super) fn parts(&self, threads: usize) -> Result<Vec<Vec<usize>>> {
        let mut end = 0u64;
        let mut lay = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT as u64);
            end = start.saturating_add(bytes);
            Range { offset: start as usize, length: bytes as usize }
        };
        let reads: Vec<Range> = self.reads.iter().map(|&bytes| lay(bytes)).collect();
        let writes: Vec<Range> = self.writes.iter().map(|&bytes| lay(bytes)).collect();
        let workspace = lay(self.workspace);
        let arena = Arena::new(end)?;
        let notes = Notes::of(threads);
        let team = Team::noting(&notes);
        let bound = Bound { team: &team, arena: &arena, reads: &reads, writes: &writes, workspace };
        let mut scratch = Scratch::default();
        let mut noted = Vec::with_capacity(self.segments.len());
        for step in &self.segments {
            // SAFETY: the ranges were laid out one behind the other in an arena that is nobody else's.
            unsafe { bound.step(step, &mut scratch)? };
            noted.push(notes.take());
        }
        Ok(noted)
    }
}

/// Chains joined to the kernels before them, where they only write over what those made.
fn joined(segments: Vec<Step>, staged: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(segments.len());
    for step in segments {
        match (steps.last_mut(), step) {
            (
                Some(Step::Kernel { outputs, epilogue: epilogue @ None, .. }),
                Step::Chain { program, sources, targets },
            ) if follows(outputs, &program, &sources, &targets).is_some() => {
                let source = follows(outputs, &program, &sources, &targets).unwrap_or_default();
                *epilogue = Some(EpilogueChain { program, sources, source, staged });
                begin_with_zeros(&mut steps);
            }
            (_, step) => steps.push(step),
        }
    }
    steps
}

/// Where the last kernel adds to what the one before it fills, and is followed by what it writes over, it makes its sums
/// apart: nothing is filled.
fn begin_with_zeros(steps: &mut Vec<Step>) {
    let [
        ..,
        Step::Kernel { op: Op::Broadcast { .. }, outputs, .. },
        Step::Kernel { op, inputs, epilogue, .. },
    ] = &mut steps[..]
    else {
        return;
    };
    let (Op::ScatterNd { .. }, [filled], [data, ..], Some(chain)) =
        (op, &outputs[..], &mut inputs[..], epilogue)
    else {
        return;
    };
    if filled.place == data.place {
        data.zeros = true;
        chain.staged = true;
        steps.remove(steps.len() - 2);
    }
}

/// The source of a chain that stands for a kernel's first result, where the chain writes over it and
/// nothing else.
fn follows(
    outputs: &[Tensor],
    program: &Program,
    sources: &[(Place, usize)],
    targets: &[Place],
) -> Option<usize> {
    let [made, ..] = outputs else { return None };
    let mut own = sources.iter().enumerate().filter(|(_, (place, _))| *place == made.place);
    let (source, &(_, size)) = own.next()?;
    let elements = cpu::elements(&made.dims)?;
    let alone = own.next().is_none() && targets == [made.place] && matches!(made.place, Place::Write(_));
    let alike = size as u64 == made.dtype.size()
        && program.elements() == elements
        && program.target_size() == Some(size)
        && program.reads_in_place(source);
    (alone && alike).then_some(source)
}

struct Compiler<'a> {
    graph: &'a Graph,
    fused: &'a Fused<'a>,
    layout: &'a Layout,
    packing: &'a Packing,
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
            return Err(Error::Internal(format!("a kernel uses {value}, which is in a register")));
        }
        let packed = self.packing.form(value) != Form::Plain;
        Ok(Tensor { place, dtype: ty.dtype, dims: dims(ty)?, packed, zeros: false })
    }

    fn kernel(&self, id: NodeId) -> Result<Step> {
        let node = self.graph.node(id);
        Ok(Step::Kernel {
            op: node.op.clone(),
            inputs: node.operands.iter().map(|&value| self.tensor(value)).collect::<Result<_>>()?,
            outputs: self.graph.results(id).map(|value| self.tensor(value)).collect::<Result<_>>()?,
            epilogue: None,
            name: self.graph.source(node.source).name.clone(),
        })
    }

    fn chain(&self, nodes: &[NodeId]) -> Result<Step> {
        let first = |node: NodeId| self.graph.node(node).first_result;
        let mut made: Vec<(ValueId, usize)> =
            nodes.iter().enumerate().map(|(position, &node)| (first(node), position)).collect();
        // Sorted, as each operand is looked up among them.
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
        // All nodes of a chain have as many elements.
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
    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn step(&self, step: &Step, scratch: &mut Scratch) -> Result<()> {
        match step {
            Step::Kernel { op, inputs, outputs, epilogue, name } => {
                // SAFETY: as the caller promises.
                let done = unsafe { self.kernel(op, inputs, outputs, epilogue.as_ref(), scratch) };
                done.map_err(|error| error.within(&format!("node {name}")))
            }
            Step::Chain { program, sources, targets } => {
                // SAFETY: as the caller promises.
                unsafe { self.chain(program, sources, targets, scratch) }
            }
        }
    }

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
        epilogue: Option<&EpilogueChain>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut sources = emptied(std::mem::take(&mut scratch.sources));
        let mut views = emptied(std::mem::take(&mut scratch.views));
        let mut targets = emptied(std::mem::take(&mut scratch.targets));
        if let (Some(chain), Some(made)) = (epilogue, outputs.first()) {
            // SAFETY: as the caller promises.
            unsafe { self.sources(chain, made, &mut sources)? };
        }
        let epilogue = epilogue.zip(outputs.first()).map(|(chain, made)| {
            let own = self.range(made.place).ok();
            let same = |&(place, _): &(Place, usize)| {
                matches!(place, Place::Read(_)) && self.range(place).ok() == own
            };
            Epilogue::new(&chain.program, chain.source, &sources, made.dtype.size() as usize)
                .replacing(chain.sources.iter().any(same))
        });
        // SAFETY: as the caller promises.
        unsafe {
            self.views(inputs, outputs, &mut views)?;
            self.targets(outputs, epilogue.as_ref(), &mut targets)?;
        }
        // Values in the workspace lie behind what the kernel itself needs.
        let offsets = inputs.iter().chain(outputs).filter_map(|tensor| match tensor.place {
            Place::Workspace { offset, .. } => Some(offset as usize),
            _ => None,
        });
        let length = offsets.fold(self.workspace.length, usize::min);
        let own = Range { offset: self.workspace.offset, length };
        // SAFETY: this group's alone, and apart from what lies in the workspace.
        let workspace = unsafe { self.arena.bytes_mut(own) };
        let done = cpu::execute(self.team, op, &views, &mut targets, workspace);
        if let (Ok(()), Some(epilogue), Some(target)) = (&done, &epilogue, targets.first_mut()) {
            epilogue.finish(self.team, target.bytes);
        }
        (scratch.views, scratch.targets) = (emptied(views), emptied(targets));
        scratch.sources = emptied(sources);
        done
    }

    /// What an epilogue reads beside what the kernel makes, which is `made`.
    ///
    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn sources(
        &self,
        chain: &EpilogueChain,
        made: &Tensor,
        sources: &mut Vec<Source<'_>>,
    ) -> Result<()> {
        let made = self.range(made.place)?;
        for (number, &(place, _)) in chain.sources.iter().enumerate() {
            let range = self.range(place)?;
            let own = chain.source == number || made == range;
            // SAFETY: initialised, and not written by other threads, as the caller promises. What
            // the kernel makes, and what that replaces, is read through the result's own bytes, so
            // that none of these are looked at.
            sources.push(unsafe {
                Source::from_raw(self.arena.pointer(range), if own { 0 } else { range.length })
            });
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn views<'t>(
        &'t self,
        inputs: &'t [Tensor],
        outputs: &[Tensor],
        views: &mut Vec<View<'t>>,
    ) -> Result<()> {
        for tensor in inputs {
            if tensor.zeros {
                views.push(View::zeros(tensor.dtype, &tensor.dims));
                continue;
            }
            let range = self.range(tensor.place)?;
            if outputs.iter().any(|made| self.range(made.place).is_ok_and(|made| made == range)) {
                views.push(View::updated(tensor.dtype, &tensor.dims));
                continue;
            }
            // SAFETY: nobody writes it meanwhile: others do not, as the caller promises, and a
            // kernel's results are apart from those operands that are not updated.
            let bytes = unsafe { self.arena.bytes(range) };
            let view = View::new(tensor.dtype, &tensor.dims, bytes)?;
            views.push(View { packed: tensor.packed, ..view });
        }
        Ok(())
    }

    /// The results, of which the first is what an epilogue follows.
    ///
    /// # Safety
    ///
    /// As [`Compiled::run`].
    unsafe fn targets<'t>(
        &'t self,
        outputs: &'t [Tensor],
        epilogue: Option<&'t Epilogue<'t>>,
        targets: &mut Vec<ViewMut<'t>>,
    ) -> Result<()> {
        for tensor in outputs {
            let range = self.range(tensor.place)?;
            // SAFETY: this group's alone, as the caller promises, and apart from the other
            // results: places of a layout are disjoint.
            let bytes = unsafe { self.arena.bytes_mut(range) };
            let view = ViewMut::new(tensor.dtype, &tensor.dims, bytes)?;
            let epilogue = epilogue.filter(|_| targets.is_empty());
            targets.push(ViewMut { epilogue, ..view });
        }
        Ok(())
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
        program.run(self.team, &sources, &targets);
        (scratch.sources, scratch.stores) = (emptied(sources), emptied(targets));
        Ok(())
    }
}
