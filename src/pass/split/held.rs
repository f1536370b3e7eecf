//! How values are held while a graph is divided, and how readers come to what they ask for.

use std::collections::{BTreeMap, HashMap};

use super::super::dce::dce_named;
use super::sources::{PartOf, Sources};
use super::states::Tiling;
use super::{Divided, SliceOf};
use crate::error::{Error, Result};
use crate::ir::{
    Binary, BoxOf, Graph, NodeId, Op, Param, ParamId, Shape, Size, Slice, SourceId, Type, ValueId,
};
use crate::kernel::split::{Fold, Region};
use crate::units::ALIGNMENT;

/// Partial results of fewer elements are folded once, whole: a slice each would be more copies than bytes.
const SCATTERED: u64 = 1 << 12;

/// Slices that are put together at once where memory is scarce and they are short.
pub(crate) const JOINED_AT_ONCE: usize = 4;

/// Whether slices of these bytes are put together a few at a time where memory is scarce: however short one is, its
/// buffer is as long as the alignment.
pub(crate) fn in_stages(bytes: &[u64]) -> bool {
    let all = bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
    bytes.len() > JOINED_AT_ONCE && all / bytes.len() as u64 <= ALIGNMENT / 2
}

/// Who asks for elements: the source that what puts them together belongs to, and the number of the part,
/// from 1, by which that is shared.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) source: SourceId,
    pub(super) lane: u32,
}

/// How an old value is there.
#[derive(Clone, Debug)]
pub(super) enum Held {
    Whole(ValueId),
    /// A parameter, a constant, or an input that is handed over in slices: cut as it is read.
    Leaf,
    Pieces(Pieces),
    /// Each has the sizes of the whole.
    Partial {
        fold: Fold,
        values: Vec<ValueId>,
    },
}

/// Slices that tile a value.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pub(super) axis: u32,
    /// Where each begins, and the extent.
    pub(super) bounds: Vec<u64>,
    pub(super) values: Vec<ValueId>,
}

/// The new graph, and how it holds the values of the old.
pub(super) struct Holder<'g> {
    old: &'g Graph,
    pub(super) graph: Graph,
    sources: Sources,
    /// By old value.
    held: Vec<Option<Held>>,
    /// What was put together, by old value, lane, and region or all. Looked up, never iterated.
    gathered: HashMap<(ValueId, u32, Option<Region>), ValueId>,
    /// What was cut, by new value.
    cuts: HashMap<(ValueId, Region), ValueId>,
    /// By new value that is an input or a parameter: the source that cuts it.
    cutters: HashMap<ValueId, SourceId>,
    slices: BTreeMap<ValueId, SliceOf>,
    /// What old values are parts of, where the graph was divided before.
    before: &'g BTreeMap<ValueId, SliceOf>,
    /// Parameters and inputs by name: two values may be slices of one, and have parts that are the same. Looked up, never
    /// iterated.
    named: HashMap<String, ValueId>,
    /// Leaves and slices of them, by old value.
    leaves: HashMap<(ValueId, Option<Region>), ValueId>,
}

impl<'g> Holder<'g> {
    pub(super) fn new(old: &'g Graph, sources: Sources, before: &'g BTreeMap<ValueId, SliceOf>) -> Self {
        Self {
            old,
            graph: old.emptied(),
            sources,
            held: vec![None; old.value_count()],
            gathered: HashMap::new(),
            cuts: HashMap::new(),
            cutters: HashMap::new(),
            slices: BTreeMap::new(),
            before,
            named: HashMap::new(),
            leaves: HashMap::new(),
        }
    }

    /// One of several parts of a node as a reader.
    pub(super) fn part_reader(
        &mut self,
        node: NodeId,
        number: usize,
        parts: usize,
        device: Option<&str>,
    ) -> Reader {
        self.sources.part(&mut self.graph, node, PartOf { number, parts, device })
    }

    /// A node that is not divided as a reader.
    pub(super) fn whole_reader(&mut self, node: NodeId) -> Reader {
        Reader { source: self.sources.whole(&mut self.graph, node), lane: 0 }
    }

    pub(super) fn hold(&mut self, old: ValueId, held: Held) {
        if let Held::Whole(value) = held {
            self.is_still(old, value);
        }
        self.held[old.index()] = Some(held);
    }

    /// What is a part of a value stays one.
    fn is_still(&mut self, old: ValueId, value: ValueId) {
        if let Some(slice) = self.before.get(&old) {
            self.slices.insert(value, slice.clone());
        }
    }

    pub(super) fn hold_pieces(&mut self, old: ValueId, pieces: Pieces) {
        for (bounds, &value) in pieces.bounds.windows(2).zip(&pieces.values) {
            let region = Region { axis: pieces.axis, start: bounds[0], size: bounds[1] - bounds[0] };
            self.slices.insert(value, self.slice_of(old, Some(region), None));
        }
        self.hold(old, Held::Pieces(pieces));
    }

    pub(super) fn hold_partial(&mut self, old: ValueId, fold: Fold, values: Vec<ValueId>) {
        for (number, &value) in values.iter().enumerate() {
            let slice = self.slice_of(old, None, Some((number as u32, values.len() as u32)));
            self.slices.insert(value, slice);
        }
        self.hold(old, Held::Partial { fold, values });
    }

    /// What a part of an old value is.
    fn slice_of(&self, old: ValueId, region: Option<Region>, partial: Option<(u32, u32)>) -> SliceOf {
        let mut slice = self.before.get(&old).cloned().unwrap_or_else(|| self.all_of(old));
        if let Some(Region { axis, start, size }) = region {
            let own = &mut slice.bounds[axis as usize];
            *own = (own.0 + start, own.0 + start + size);
        }
        slice.partial = match (slice.partial, partial) {
            // Parts of a partial result: each is one of all of them.
            (Some((outer, all)), Some((inner, parts))) => Some((outer * parts + inner, all * parts)),
            (outer, inner) => inner.or(outer),
        };
        slice
    }

    /// A value that was not divided before, as all of itself.
    fn all_of(&self, old: ValueId) -> SliceOf {
        let node = self.old.maker(old);
        let of = match node.op {
            Op::Param(id) => self.old.param(id).name.clone(),
            _ => {
                let name = &self.old.source(node.source).name;
                match old.0 - node.first_result.0 {
                    0 => name.clone(),
                    result => format!("{name}:{result}"),
                }
            }
        };
        let sizes = self.old.ty(old).shape.dims().unwrap_or_default();
        let bounds = sizes.into_iter().map(|size| (0, size.unsigned_abs())).collect();
        SliceOf { of, bounds, partial: None }
    }

    pub(super) fn add_input(&mut self, old: ValueId) -> Result<ValueId> {
        let name = self.old.inputs()[self.input_number(old)?].0.clone();
        let source = self.old.maker(old).source;
        Ok(self.input(name, self.old.ty(old).clone(), source))
    }

    /// Elements of an old value along an axis.
    pub(super) fn extent(&self, old: ValueId, axis: u32) -> Result<u64> {
        extent(self.old.ty(old), axis)
    }

    /// All of a value, for a reader.
    pub(super) fn whole(&mut self, old: ValueId, reader: Reader) -> Result<ValueId> {
        match self.settled(old)? {
            Held::Whole(value) => Ok(value),
            Held::Leaf => self.leaf(old),
            Held::Pieces(pieces) => {
                let key = (old, reader.lane, None);
                if let Some(&value) = self.gathered.get(&key) {
                    return Ok(value);
                }
                let value = self.join(&pieces.values, pieces.axis, reader)?;
                self.gathered.insert(key, value);
                Ok(value)
            }
            Held::Partial { .. } => Err(Error::Internal(format!("{old} was not folded"))),
        }
    }

    /// A part of a value, for a reader.
    pub(super) fn region(&mut self, old: ValueId, region: Region, reader: Reader) -> Result<ValueId> {
        if region.start == 0 && region.size == self.extent(old, region.axis)? {
            return self.whole(old, reader);
        }
        match self.settled(old)? {
            Held::Whole(value) => self.cut(old, value, region, reader),
            Held::Leaf => self.leaf_part(old, region, reader),
            Held::Pieces(pieces) => {
                let key = (old, reader.lane, Some(region));
                if let Some(&value) = self.gathered.get(&key) {
                    return Ok(value);
                }
                let value = self.region_of(old, &pieces, region, reader)?;
                let slice = self.slice_of(old, Some(region), None);
                self.slices.insert(value, slice);
                self.gathered.insert(key, value);
                Ok(value)
            }
            Held::Partial { .. } => Err(Error::Internal(format!("{old} was not folded"))),
        }
    }

    fn region_of(
        &mut self,
        old: ValueId,
        pieces: &Pieces,
        region: Region,
        reader: Reader,
    ) -> Result<ValueId> {
        let mut found = Vec::new();
        for (bounds, &value) in pieces.bounds.windows(2).zip(&pieces.values) {
            // Cut across the pieces: some of each is in it.
            if pieces.axis != region.axis {
                found.push(self.cut(old, value, region, reader)?);
                continue;
            }
            let start = region.start.max(bounds[0]);
            let end = (region.start + region.size).min(bounds[1]);
            if start < end {
                let own = Region { axis: region.axis, start: start - bounds[0], size: end - start };
                found.push(self.cut(old, value, own, reader)?);
            }
        }
        match found[..] {
            [one] => Ok(one),
            _ => self.join(&found, pieces.axis, reader),
        }
    }

    /// Slices put together; where memory is scarce short ones a few at a time ([`in_stages`]).
    fn join(&mut self, values: &[ValueId], axis: u32, reader: Reader) -> Result<ValueId> {
        let mut left = values.to_vec();
        while self.sources.are_apart() && in_stages(&self.bytes(&left)?) {
            let few = left.chunks(JOINED_AT_ONCE);
            left = few.map(|few| self.join_at_once(few, axis, reader)).collect::<Result<_>>()?;
        }
        self.join_at_once(&left, axis, reader)
    }

    fn join_at_once(&mut self, values: &[ValueId], axis: u32, reader: Reader) -> Result<ValueId> {
        if let [one] = *values {
            return Ok(one);
        }
        let source = self.sources.helper(&mut self.graph, reader.source, "join");
        self.graph.apply(Op::Concat { axis }, values, source)
    }

    /// Bytes of new values.
    fn bytes(&self, values: &[ValueId]) -> Result<Vec<u64>> {
        let of_one = |&value: &ValueId| {
            let ty = self.graph.ty(value);
            let elements = ty.elements().ok_or_else(|| Error::Internal(format!("{value} is not bound")))?;
            Ok(elements.saturating_mul(ty.dtype.size()))
        };
        values.iter().map(of_one).collect()
    }

    /// A part of a new value that holds an old one or some of it, cut where that is made: an input, or a slice of a
    /// parameter, by whoever is the first to ask for a part of it.
    fn cut(&mut self, old: ValueId, value: ValueId, region: Region, reader: Reader) -> Result<ValueId> {
        let ty = self.graph.ty(value);
        if region.start == 0 && region.size == extent(ty, region.axis)? {
            return Ok(value);
        }
        if let Some(&cut) = self.cuts.get(&(value, region)) {
            return Ok(cut);
        }
        let op = slice_of(ty, region);
        let source = match self.cutters.get(&value) {
            Some(&cutter) => cutter,
            None => {
                let maker = self.graph.maker(value);
                let beside =
                    if matches!(maker.op, Op::Input | Op::Param(_)) { reader.source } else { maker.source };
                let cutter = self.sources.helper(&mut self.graph, beside, "cut");
                self.cutters.insert(value, cutter);
                cutter
            }
        };
        let cut = self.graph.apply(op, &[value], source)?;
        self.cuts.insert((value, region), cut);
        let mut slice = match self.slices.get(&value) {
            Some(slice) => slice.clone(),
            None => self.slice_of(old, None, None),
        };
        let from = slice.bounds[region.axis as usize].0 + region.start;
        slice.bounds[region.axis as usize] = (from, from + region.size);
        self.slices.insert(cut, slice);
        Ok(cut)
    }

    /// How a value is held once partial results are folded.
    fn settled(&mut self, old: ValueId) -> Result<Held> {
        let held = self.held[old.index()].clone();
        let held = held.ok_or_else(|| Error::Internal(format!("{old} is read before it is made")))?;
        let Held::Partial { fold, values } = held else { return Ok(held) };
        let ty = self.old.ty(old).clone();
        let held = match scattered(&ty, values.len() as u64) {
            Some((axis, bounds)) => self.scatter(old, fold, &values, axis, bounds)?,
            None => {
                // Not that of a part: no part's kernel waits for the others to be done.
                let source = self.old.maker(old).source;
                Held::Whole(self.folded(fold, &values, source)?)
            }
        };
        // Whoever reads it next gets what was folded.
        self.held[old.index()] = Some(held.clone());
        Ok(held)
    }

    /// Each slice folded with the part of its number.
    fn scatter(
        &mut self,
        old: ValueId,
        fold: Fold,
        values: &[ValueId],
        axis: u32,
        bounds: Vec<u64>,
    ) -> Result<Held> {
        let mut pieces = Vec::with_capacity(values.len());
        for (number, bounds) in bounds.windows(2).enumerate() {
            let region = Region { axis, start: bounds[0], size: bounds[1] - bounds[0] };
            let source = self.graph.maker(values[number]).source;
            let reader = Reader { source, lane: number as u32 + 1 };
            let cut = |&value: &ValueId| self.cut(old, value, region, reader);
            let cuts: Vec<ValueId> = values.iter().map(cut).collect::<Result<_>>()?;
            let piece = self.folded(fold, &cuts, source)?;
            let slice = self.slice_of(old, Some(region), None);
            self.slices.insert(piece, slice);
            pieces.push(piece);
        }
        Ok(Held::Pieces(Pieces { axis, bounds, values: pieces }))
    }

    /// Values of the same sizes, folded in their order; where memory is scarce two at a time, so that all need not be
    /// in one place at once.
    fn folded(&mut self, fold: Fold, values: &[ValueId], source: SourceId) -> Result<ValueId> {
        let op = match fold {
            Fold::Sum | Fold::Mean => Binary::Add,
            Fold::Product => Binary::Mul,
            Fold::Max => Binary::Max,
            Fold::Min => Binary::Min,
        };
        let (&first, rest) = values.split_first().ok_or_else(|| Error::Internal("no parts".to_owned()))?;
        rest.iter().try_fold(first, |sum, &value| {
            let source = self.sources.helper(&mut self.graph, source, "fold");
            self.graph.apply(Op::Binary(op), &[sum, value], source)
        })
    }

    fn leaf(&mut self, old: ValueId) -> Result<ValueId> {
        if let Some(&value) = self.leaves.get(&(old, None)) {
            return Ok(value);
        }
        let node = self.old.maker(old);
        let value = match node.op {
            Op::Param(id) => {
                // What takes its place is another value now.
                let param = Param { update: None, ..self.old.param(id).clone() };
                self.add_param(param, self.old.ty(old).clone(), node.source)
            }
            Op::Constant(id) => self.graph.add_constant(self.old.constant(id).clone(), node.source),
            Op::Input => self.add_input(old)?,
            _ => return Err(Error::Internal(format!("{old} is no leaf"))),
        };
        self.is_still(old, value);
        self.leaves.insert((old, None), value);
        Ok(value)
    }

    /// A part of a leaf, as one of its own; of a parameter that steps update, cut from it.
    fn leaf_part(&mut self, old: ValueId, region: Region, reader: Reader) -> Result<ValueId> {
        if let Some(&value) = self.leaves.get(&(old, Some(region))) {
            return Ok(value);
        }
        let (node, ty) = (self.old.maker(old), self.old.ty(old));
        let value = match node.op {
            Op::Constant(id) => {
                let part = self.old.constant(id).sliced(region.axis as usize, region.start, region.size)?;
                self.graph.add_constant(part, node.source)
            }
            Op::Input => self.add_box(old, region)?,
            Op::Param(id) => {
                let param = self.old.param(id);
                // An update writes the whole parameter: a slice held by itself would keep the old values.
                if param.update.is_some() || param.statistic.is_some() {
                    let (whole, op) = (self.leaf(old)?, slice_of(ty, region));
                    let cutter = self.sources.helper(&mut self.graph, reader.source, "cut");
                    return self.graph.apply(op, &[whole], cutter);
                }
                self.param_slice(old, id, region)?
            }
            _ => return Err(Error::Internal(format!("{old} is no leaf"))),
        };
        self.leaves.insert((old, Some(region)), value);
        let slice = self.slice_of(old, Some(region), None);
        self.slices.insert(value, slice);
        Ok(value)
    }

    /// A slice of a parameter, as a parameter.
    fn param_slice(&mut self, old: ValueId, id: ParamId, region: Region) -> Result<ValueId> {
        let (param, ty) = (self.old.param(id), self.old.ty(old));
        let mut slice = param.slice.clone().unwrap_or_else(|| BoxOf::all(&param.name, ty));
        slice.axes[region.axis as usize].0 += region.start;
        let ty = resized(ty, region);
        let param = Param { name: slice.label(&ty), slice: Some(slice), update: None, ..param.clone() };
        Ok(self.add_param(param, ty, self.old.maker(old).source))
    }

    /// Holds a parameter in the slices that steps update.
    pub(super) fn hold_state(&mut self, old: ValueId, tiling: &Tiling) -> Result<()> {
        let Op::Param(id) = self.old.maker(old).op else {
            return Err(Error::Internal(format!("{old} is no parameter")));
        };
        let Tiling { axis, bounds } = tiling;
        let slices = tiling.regions().map(|region| self.param_slice(old, id, region));
        let values = slices.collect::<Result<_>>()?;
        self.hold_pieces(old, Pieces { axis: *axis, bounds: bounds.clone(), values });
        Ok(())
    }

    /// Lets the slices of a new value take the place of those of a parameter, which are as many and as long.
    pub(super) fn update_slices(&mut self, param: ValueId, value: ValueId) -> Result<()> {
        let differ = || Error::Internal(format!("{param} is not held in the slices of {value}"));
        let (Held::Pieces(own), Held::Pieces(new)) = (self.settled(param)?, self.settled(value)?) else {
            return Err(differ());
        };
        if own.axis != new.axis || own.bounds != new.bounds {
            return Err(differ());
        }
        own.values.iter().zip(new.values).try_for_each(|(&slice, value)| self.update(slice, value))
    }

    /// Lets a new value take the place of a parameter that is held whole.
    pub(super) fn update_whole(&mut self, param: ValueId, value: ValueId) -> Result<()> {
        let whole = self.leaf(param)?;
        self.update(whole, value)
    }

    fn update(&mut self, param: ValueId, value: ValueId) -> Result<()> {
        match self.graph.maker(param).op {
            Op::Param(id) => self.graph.update_param(id, value),
            _ => Err(Error::Internal(format!("{param} is no parameter"))),
        }
    }

    /// A part of an input that is handed over in slices, as an input.
    fn add_box(&mut self, old: ValueId, region: Region) -> Result<ValueId> {
        let number = self.input_number(old)?;
        let name = &self.old.inputs()[number].0;
        let of = self.old.input_box(name).cloned();
        let mut of = of.ok_or_else(|| Error::Internal(format!("{name} is handed over whole")))?;
        of.axes[region.axis as usize].0 += region.start;
        let ty = resized(self.old.ty(old), region);
        let part = of.label(&ty);
        let supplied = self.old.input_type(number).dtype;
        if supplied != ty.dtype {
            self.graph.supply_input(&part, supplied);
        }
        self.graph.box_input(&part, of);
        let source = self.old.maker(old).source;
        Ok(self.input(part, ty, source))
    }

    /// The number of an input.
    fn input_number(&self, old: ValueId) -> Result<usize> {
        let at = self.old.inputs().binary_search_by_key(&old, |input| input.1);
        at.map_err(|_| Error::Internal(format!("{old} is an input without an entry")))
    }

    /// Whether an input is handed over in slices.
    pub(super) fn is_boxed(&self, old: ValueId) -> Result<bool> {
        Ok(self.old.input_box(&self.old.inputs()[self.input_number(old)?].0).is_some())
    }

    /// The input of this name.
    fn input(&mut self, name: String, ty: Type, source: SourceId) -> ValueId {
        if let Some(&value) = self.named.get(&name) {
            return value;
        }
        let value = self.graph.add_input(name.clone(), ty, source);
        self.named.insert(name, value);
        value
    }

    fn add_param(&mut self, param: Param, ty: Type, source: SourceId) -> ValueId {
        if let Some(&value) = self.named.get(&param.name) {
            return value;
        }
        let value = self.graph.add_param(param.name.clone(), ty, param.init.clone(), None, source);
        self.named.insert(param.name.clone(), value);
        if let Op::Param(id) = self.graph.maker(value).op {
            let node = self.graph.param(id).node;
            *self.graph.param_mut(id) = Param { node, ..param };
        }
        value
    }

    /// The divided graph, without pieces that nobody reads.
    pub(super) fn finish(mut self) -> Result<Divided> {
        let places = self.sources.places();
        let slices = dce_named(&mut self.graph, self.slices)?;
        Ok(Divided { graph: self.graph, places, parts: self.sources.into_parts(), slices })
    }
}

/// Where partial results of `parts` parts are cut to be folded in slices: the first axis that is long enough.
pub(crate) fn scattered(ty: &Type, parts: u64) -> Option<(u32, Vec<u64>)> {
    if ty.elements()? < SCATTERED || parts <= 2 {
        return None;
    }
    let sizes = ty.shape.dims()?;
    let axis = sizes.iter().position(|&size| u64::try_from(size).is_ok_and(|size| size >= parts))?;
    let size = u64::try_from(sizes[axis]).ok()?;
    Some((axis as u32, (0..=parts).map(|part| size * part / parts).collect()))
}

fn extent(ty: &Type, axis: u32) -> Result<u64> {
    let size = ty.shape.sizes().get(axis as usize).and_then(Size::known);
    size.and_then(|size| u64::try_from(size).ok())
        .ok_or_else(|| Error::Internal(format!("axis {axis} of {ty:?} has no size")))
}

/// The type of a part.
fn resized(ty: &Type, region: Region) -> Type {
    let sizes = ty.shape.sizes().iter().enumerate().map(|(axis, size)| match axis == region.axis as usize {
        true => Size::Known(region.size as i64),
        false => size.clone(),
    });
    Type { dtype: ty.dtype, shape: Shape::new(sizes) }
}

fn slice_of(ty: &Type, region: Region) -> Op {
    let rank = ty.shape.rank();
    let mut starts = vec![Size::Known(0); rank];
    starts[region.axis as usize] = Size::Known(region.start as i64);
    let sizes = resized(ty, region).shape.sizes().to_vec();
    Op::Slice(Box::new(Slice { starts, sizes, steps: vec![1; rank] }))
}
