//! How a node's work can be divided: which of its loops are parallel or summed, and which elements of each
//! operand a part of such a loop reads.
//!
//! Each family says of its loops how operands are indexed (`Access`): all of an operand, a slice that
//! follows the loop in proportion, one that begins further on, or windows, which overlap. Slices, their
//! sizes and the operation of a part follow from that here, once for all families. After Tofu (Wang, Huang,
//! Li 2019), which finds such slices from a description of the loops.
//!
//! `tests/suite/split_kernels.rs` puts parts of real networks' nodes together and compares with the whole,
//! and changes what a part is said not to read.

mod attention;
mod elementwise;
mod index;
mod layout;
mod normalize;
mod packed;
mod product;
mod recurrent;
mod reduce;
mod window;

use crate::error::{Error, Result};
use crate::ir::{Family, Graph, NodeId, Op, Type};

/// A loop of a node that can be divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Which loop.
    pub over: Loop,
    /// How long it is, in elements.
    pub extent: u64,
    /// Parts begin at multiples of this.
    pub unit: u64,
    /// No part is shorter than this: kernels of fewer elements add in another order.
    pub least: u64,
    /// What parts make of each result.
    pub made: Vec<Made>,
}

impl Split {
    /// Whether parts make partial results, whose sums may have other bits than those of the whole.
    pub fn is_partial(&self) -> bool {
        self.made.iter().any(|made| matches!(made, Made::Partial(_)))
    }
}

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loop {
    /// Over an axis of the first result: parts are independent.
    Axis(u32),
    /// Over an axis of the first operand that is combined: parts make partial results.
    Summed(u32),
}

/// What the parts of a loop make of one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Made {
    /// Slices of it along this axis.
    Slice(u32),
    /// Tensors of its sizes, to be combined element by element.
    Partial(Fold),
}

impl Made {
    /// The axis of slices.
    pub const fn axis(self) -> Option<u32> {
        match self {
            Self::Slice(axis) => Some(axis),
            Self::Partial(_) => None,
        }
    }
}

/// How partial results are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Added.
    Sum,
    /// Added, each by its share of the elements of the mean.
    Mean,
    /// Multiplied.
    Product,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Elements of a tensor along one axis, all of them along the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The axis.
    pub axis: u32,
    /// The first element.
    pub start: u64,
    /// How many.
    pub size: u64,
}

/// One part of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it does.
    pub op: Op,
    /// By operand: what it reads, or all of it. One of which it reads no element is none of the part's operands.
    pub operands: Vec<Option<Region>>,
    /// By result: what it makes, or a partial result of all of it.
    pub results: Vec<Option<Region>>,
}

/// The loops of a node that can be divided: more than one part is possible of each. The node's dimensions are
/// bound; of one that is not, there is none.
///
/// O(operands x rank). Errors: none but internal ones.
pub fn splits(graph: &Graph, node: NodeId) -> Result<Vec<Split>> {
    let Some(shapes) = Shapes::of(graph, node) else { return Ok(Vec::new()) };
    // With fewer than two parts of the least size there is nothing to divide.
    let ways = shapes.ways();
    Ok(ways
        .into_iter()
        .filter(|way| way.extent >= 2 * way.least.max(1) && way.extent > way.unit)
        .map(Way::split)
        .collect())
}

/// One part of a node: `start..end` of a loop that it has ([`splits`]).
///
/// O(operands x rank). Errors: the node has no such loop, or the part is not within it.
pub fn part(graph: &Graph, node: NodeId, split: &Split, start: u64, end: u64) -> Result<Part> {
    let name = || graph.source(graph.node(node).source).name.clone();
    let shapes = Shapes::of(graph, node).ok_or_else(|| Error::model(name(), "its sizes are not known"))?;
    let way = shapes.ways().into_iter().find(|way| way.over == split.over);
    let way = way.ok_or_else(|| Error::model(name(), format!("it has no loop {:?} to split", split.over)))?;
    // A part begins and ends between units; only the last unit may be short.
    let unit = |at: u64| at.is_multiple_of(way.unit) || at == way.extent;
    let is_short = end.saturating_sub(start) < way.least;
    if start >= end || end > way.extent || !unit(start) || !unit(end) || is_short {
        let Way { extent, unit, least, .. } = way;
        let message =
            format!("{start}..{end} is no part of {extent} in units of {unit} and of {least} at least");
        return Err(Error::model(name(), message));
    }
    way.part(&shapes, &graph.node(node).op, start, end)
}

/// Sizes of what a node reads and makes.
pub(super) struct Shapes {
    op: Op,
    operands: Vec<Vec<u64>>,
    results: Vec<Vec<u64>>,
    /// Whether the first result is of floats.
    floats: bool,
}

impl Shapes {
    /// None where a size is not bound.
    fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        let of = |ty: &Type| ty.shape.dims()?.into_iter().map(|dim| u64::try_from(dim).ok()).collect();
        let node_of = graph.node(node);
        let operands = node_of.operands.iter().map(|&value| of(graph.ty(value))).collect::<Option<_>>()?;
        let results = graph.results(node).map(|value| of(graph.ty(value))).collect::<Option<_>>()?;
        let floats = graph.results(node).next().is_some_and(|value| graph.ty(value).dtype.is_float());
        Some(Self { op: node_of.op.clone(), operands, results, floats })
    }

    fn ways(&self) -> Vec<Way> {
        match self.op.family() {
            // Nothing is computed.
            Family::Leaf | Family::Generator(_) => Vec::new(),
            Family::Elementwise(_) => elementwise::ways(self),
            Family::Layout(op) => layout::ways(op, self),
            Family::Index(op) => index::ways(op, self),
            Family::Window(op) => window::ways(op, self),
            Family::Reduce(op) => reduce::ways(op, self),
            Family::Normalize(op) => normalize::ways(op, self),
            Family::Product(op) => product::ways(op, self),
            Family::Packed(op) => packed::ways(op, self),
            Family::Attention(op) => attention::ways(op, self),
            Family::Recurrent(_) => recurrent::ways(self),
        }
    }

    fn rank(&self) -> usize {
        self.results[0].len()
    }
}

/// A loop, how operands are indexed by it, and how the operation of a part differs.
struct Way {
    over: Loop,
    extent: u64,
    unit: u64,
    least: u64,
    /// By result.
    made: Vec<Made>,
    operands: Vec<Access>,
    adapt: Adapt,
}

/// What a part `start..end` of a loop reads of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// All of it.
    Whole,
    /// Along an axis, `first + start * of / per` and so on.
    Slice { axis: u32, first: u64, of: u64, per: u64 },
    /// Along an axis, what strided elements span: `first + i * step` of `i` in the part.
    Strided { axis: u32, first: i64, step: i64 },
    /// Along an axis of `size`, what lies within the part where its first element is element `first` of the loop.
    Joined { axis: u32, first: u64, size: u64 },
    /// Along an axis of `size`, windows, cut off where they reach beyond it.
    Windows { axis: u32, size: u64, stride: i64, before: i64, reach: i64 },
    /// Along an axis of `size`, elements that are spread over windows, of which those touch the part; one at least.
    Spread { axis: u32, size: u64, stride: i64, before: i64, reach: i64 },
}

impl Access {
    /// Element `i` of the loop reads element `i`.
    const fn along(axis: usize) -> Self {
        Self::Slice { axis: axis as u32, first: 0, of: 1, per: 1 }
    }

    /// Elements of an axis, in proportion.
    const fn scaled(axis: usize, of: u64, per: u64) -> Self {
        Self::Slice { axis: axis as u32, first: 0, of, per }
    }

    fn region(self, start: u64, end: u64) -> Option<Region> {
        match self {
            Self::Whole => None,
            Self::Slice { axis, first, of, per } => {
                let at = |i: u64| i * of / per;
                Some(Region { axis, start: first + at(start), size: at(end) - at(start) })
            }
            Self::Strided { axis, first, step } => {
                let (from, to) = (first + start as i64 * step, first + (end as i64 - 1) * step);
                let low = from.min(to).max(0) as u64;
                Some(Region { axis, start: low, size: from.max(to).max(0) as u64 + 1 - low })
            }
            Self::Joined { axis, first, size } => {
                let within = |at: u64| at.clamp(first, first + size) - first;
                Some(Region { axis, start: within(start), size: within(end) - within(start) })
            }
            Self::Windows { axis, size, stride, before, reach } => {
                let from = start as i64 * stride - before;
                let to = (end as i64 - 1) * stride - before + reach;
                let low = from.clamp(0, size as i64) as u64;
                Some(Region { axis, start: low, size: to.clamp(0, size as i64) as u64 - low })
            }
            Self::Spread { axis, size, stride, before, reach } => {
                let (from, to) = (start as i64 + before, end as i64 + before);
                // The first that reaches the part, or lies at its front where none before it does.
                let first = (from - reach).div_euclid(stride) + 1;
                let first = first.min(from.div_euclid(stride)).clamp(0, size as i64 - 1);
                let behind = ((to - 1).div_euclid(stride) + 1).clamp(first + 1, size as i64);
                Some(Region { axis, start: first as u64, size: (behind - first) as u64 })
            }
        }
    }
}

/// How the operation of a part differs from the whole's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adapt {
    /// Not at all.
    Same,
    /// It names the sizes of its result.
    Sizes,
    /// A strided slice along an axis, of what its elements span.
    Strided,
    /// Windows of a spatial axis: the padding, or what is cut off, is that of the part.
    Windows { spatial: usize },
    /// So many channels of the result to a group.
    Groups { each: u64 },
    /// So many numbers of each packed row.
    Columns,
    /// Heads of attention.
    Heads,
    /// Rows of attention: a causal part begins further down.
    Rows,
}

impl Way {
    /// A loop over an axis of a node with one result, all of whose parts do the same.
    fn axis(shapes: &Shapes, axis: usize, operands: Vec<Access>) -> Self {
        Self {
            over: Loop::Axis(axis as u32),
            extent: shapes.results[0][axis],
            unit: 1,
            least: 1,
            made: vec![Made::Slice(axis as u32)],
            operands,
            adapt: Adapt::Same,
        }
    }

    /// A loop over an axis of the first operand that is combined.
    fn summed(shapes: &Shapes, axis: usize, fold: Fold, operands: Vec<Access>) -> Self {
        Self {
            over: Loop::Summed(axis as u32),
            extent: shapes.operands[0][axis],
            unit: 1,
            least: 1,
            made: vec![Made::Partial(fold)],
            operands,
            adapt: Adapt::Same,
        }
    }

    fn split(self) -> Split {
        let Self { over, extent, unit, least, made, .. } = self;
        Split { over, extent, unit, least, made }
    }

    fn part(&self, shapes: &Shapes, op: &Op, start: u64, end: u64) -> Result<Part> {
        let operands: Vec<Option<Region>> =
            self.operands.iter().map(|access| access.region(start, end)).collect();
        let slice = |(made, dims): (&Made, &Vec<u64>)| {
            let axis = made.axis()?;
            // Results whose axis is longer or shorter follow in proportion: fewer heads of keys.
            let size = u128::from(dims[axis as usize]);
            let at = |i: u64| (u128::from(i) * size / u128::from(self.extent)) as u64;
            Some(Region { axis, start: at(start), size: at(end) - at(start) })
        };
        let results = self.made.iter().zip(&shapes.results).map(slice).collect();
        let op = match self.adapt {
            Adapt::Same => op.clone(),
            Adapt::Sizes => layout::resized(op, self.over, end - start)?,
            Adapt::Strided => layout::strided(op, self.over, operands[0], end - start)?,
            Adapt::Windows { spatial } => window::of_windows(op, spatial, self.operands[0], (start, end))?,
            Adapt::Groups { each } => window::grouped(op, (end - start) / each)?,
            Adapt::Columns => packed::of_columns(op, end - start),
            Adapt::Heads => attention::of_heads(op, start, end, self.extent)?,
            Adapt::Rows => attention::of_rows(op, start)?,
        };
        Ok(Part { op, operands, results })
    }
}

/// An operation that a way of its family does not take.
fn foreign(op: &Op) -> Error {
    Error::Internal(format!("{} has no such parts", op.name()))
}

/// How an operand of these sizes that broadcasts to a result of that rank is read along one of its axes.
fn broadcast(dims: &[u64], rank: usize, axis: usize, extent: u64) -> Access {
    match (axis + dims.len()).checked_sub(rank) {
        Some(own) if dims[own] == extent && extent != 1 => Access::along(own),
        Some(_) | None => Access::Whole,
    }
}

/// The least of parts along axes that a sum leaves: where a part of one element would let the others of its row lie one
/// after the other, which are added in another order than those of columns.
fn fewest_left(sizes: &[u64], gone: &[u32]) -> u64 {
    let goes = |axis: usize| gone.contains(&(axis as u32));
    let first_gone = (0..sizes.len()).find(|&axis| goes(axis) && sizes[axis] > 1).unwrap_or(sizes.len());
    let is_column = (first_gone..sizes.len()).any(|axis| !goes(axis) && sizes[axis] > 1);
    if is_column { 2 } else { 1 }
}

/// Axes of rank `rank` that are not among `gone`.
fn others(rank: usize, gone: &[u32]) -> impl Iterator<Item = usize> {
    (0..rank).filter(move |&axis| !gone.contains(&(axis as u32)))
}
