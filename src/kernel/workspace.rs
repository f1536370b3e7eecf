//! Bytes that a kernel needs beside its operands and results.
//!
//! Exact: planning reserves them, the CPU kernels cut them up in the same order, and nothing else
//! is allocated (what packs operands of the matrix product is each thread's own). Each part is rounded up
//! to [`ALIGNMENT`](crate::units::ALIGNMENT).

use super::attention::{Geometry, Tiling};
use super::pieces::{Cut, PIECE, Whole};
use super::sizes::{Sizes, dim};
use crate::ir::{
    AttentionOp, Cell, Conv, ConvTranspose, DType, Family, IndexOp, Interpolation, Layout, Normalization,
    NormalizeOp, Op, Recurrent, ReduceOp, ScatterKind, Type, WindowOp,
};
use crate::units::Bytes;

/// Parts in which a normalisation's gradient sums up its columns, at most.
pub(crate) const NORMALIZE_PARTS: u64 = 16;
/// Numbers of eight bytes that it keeps of each row where these are not contiguous.
pub(crate) const NORMALIZE_ROW: u64 = 4;

/// Numbers that a normalisation whose rows are not contiguous keeps of each: of eight bytes, the sums of each
/// part, and what follows from them; of the elements' own type, what its elements are computed with.
pub(crate) const CHANNEL: [u64; 2] = [2 * NORMALIZE_PARTS + 4, 4];

/// Least bytes of unfolded windows that are multiplied at once, where there are as many.
const UNFOLDED: u64 = 1 << 20;

/// Bytes of workspace of `op` on operands and with results of these types, every dimension bound.
///
/// - Transposed convolutions: windows unfolded into a matrix, about 1 MiB at a time.
/// - Recurrent layers: the gates of every time step, and for a GRU one hidden state.
/// - Attention: the scores of a tile, and two numbers for each of its rows, for each of up to 16 parts; its
///   gradients: two such matrices and three numbers.
/// - Normalisations whose rows are not contiguous: some numbers for each row, sums of rows for each of up to
///   16 parts; gradients of normalisations likewise, and sums of columns.
/// - `topk`: one position for each element along the axis.
/// - Operations that compute in f32 on halves (all but elementwise ones and those that only move
///   elements): what the operation needs in f32. They widen their operands in areas of the threads' own, block by
///   block or piece by piece; only rows and planes that are larger than such an area are planned for.
///
/// Saturates where sizes overflow or are not bound.
pub fn workspace(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    let halves = |types: &[&Type]| types.iter().any(|ty| ty.dtype.is_half());
    if !widens(op) || !(halves(operands) || halves(results)) {
        return own(op, operands, results, None);
    }
    widened(op, operands, results)
}

/// Most bytes in which a library of matrix products keeps partial sums: what cuBLAS advises for a stream on Hopper.
const MOST_PARTIAL: u64 = 32 << 20;
/// Rows and columns of the tiles that such libraries compute a product in, and how many keep the largest GPUs busy: two
/// for each of 132 multiprocessors.
const LIBRARY_TILE: u64 = 128;
const ENOUGH_TILES: u64 = 264;
/// A sum is divided into as many parts at most, of no fewer terms.
const MOST_PARTS: u64 = 16;
const FEWEST_TERMS: u64 = 128;
/// Where a library's partial sums begin is a multiple of this.
pub(crate) const PARTIAL_ALIGNMENT: u64 = 256;

/// Bytes in which a library of matrix products may keep partial sums of `op` on a GPU: what a product of few tiles
/// needs to divide its sums over the multiprocessors that have no tile. Zero for others and for other operations.
///
/// It follows from the sizes alone, never from a device's memory, so that a product is computed in the same way, to the
/// same bits, on a whole GPU and on a slice of it: `parts x rows x columns` numbers as wide as sums are, for up to 16
/// parts of at least 128 terms; at most 32 MiB, and no more than the operands have.
pub fn partial_sums(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    let (Op::MatMul { transpose_left, .. }, &[left, right], &[out]) = (op, operands, results) else {
        return Bytes::ZERO;
    };
    let (Some(elements), true) =
        (out.elements(), out.dtype.is_float() && left.rank() >= 2 && out.rank() >= 1)
    else {
        return Bytes::ZERO;
    };
    let inner = left.size(left.rank() - if *transpose_left { 2 } else { 1 });
    let columns = out.size(out.rank() - 1).max(1);
    let tiles = (elements / columns).div_ceil(LIBRARY_TILE).saturating_mul(columns.div_ceil(LIBRARY_TILE));
    let parts = (inner / FEWEST_TERMS).min(MOST_PARTS);
    // Enough tiles keep the GPU busy with sums undivided.
    if tiles >= ENOUGH_TILES || parts < 2 {
        return Bytes::ZERO;
    }
    let read = |ty: &Type| ty.bytes().map_or(u64::MAX, Bytes::get);
    let sums = elements.saturating_mul(parts).saturating_mul(out.dtype.size().max(4));
    let bytes = sums.min(MOST_PARTIAL).min(read(left).saturating_add(read(right)));
    Bytes(bytes / PARTIAL_ALIGNMENT * PARTIAL_ALIGNMENT)
}

/// As [`workspace`] on a GPU: with what a library of matrix products or a first kernel leaves for the next behind it,
/// whichever is more. What groups of one node have; of several, the most that one has
/// ([`group_workspace_on_gpu`](super::group_workspace_on_gpu)).
pub fn workspace_on_gpu(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    let own = workspace(op, operands, results).get();
    let partial = partial_sums(op, operands, results).get();
    let partial = if partial > 0 { partial.saturating_add(PARTIAL_ALIGNMENT) } else { 0 };
    Bytes(own.saturating_add(partial.max(partial_folds(op, operands, results).get())))
}

/// Rows of a reduction, what each has, and whether its elements are beside one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    pub(crate) rows: i64,
    pub(crate) columns: i64,
    pub(crate) beside: bool,
    /// Elements follow from what is folded, and are written.
    pub(crate) stored: bool,
    /// Deviations from a mean are folded too, for which a part is read twice.
    pub(crate) centred: bool,
}

/// Elements that a block keeps in registers while it reads them twice.
const KEPT_OF_PART: i64 = 8192;
/// Shortest row whose elements are written by a kernel of their own.
const SHORTEST_STORED: [i64; 2] = [2048, 1 << 16];

/// Fewest elements for which a second kernel pays.
const WORTH_PARTS: i64 = 1 << 16;

/// How many parts a GPU folds each row in, at least; up to twice as many, where these divide the row evenly. One, where
/// the rows themselves keep it busy. It follows from the sizes alone, as the order of what is added does.
pub(crate) fn parts_of(folded: Folded) -> i64 {
    let Folded { rows, columns, beside, stored, centred } = folded;
    // A block has a row, or neighbours of 128 rows; a part is long enough to be worth a block's end.
    let (blocks, shortest) =
        if beside { (rows, 2048) } else { (rows / 128 + i64::from(rows % 128 != 0), 64) };
    if rows <= 0 || blocks >= ENOUGH_TILES as i64 || rows.saturating_mul(columns) < WORTH_PARTS {
        return 1;
    }
    if stored && columns < SHORTEST_STORED[usize::from(beside)] {
        return 1;
    }
    let parts = (2 * ENOUGH_TILES as i64 / blocks).min(columns / shortest).max(1);
    let kept =
        if beside && centred { columns / KEPT_OF_PART + i64::from(columns % KEPT_OF_PART != 0) } else { 1 };
    parts.max(kept)
}

/// Rows and columns of the tiles of a product's own kernel that has few of them.
const OWN_TILE: i64 = 64;
/// Most parts of its sums, and fewest terms of each.
const MOST_SUM_PARTS: i64 = 32;
const FEWEST_SUMMED: i64 = 256;

/// How many parts a GPU's own kernels may sum a product's `inner` terms in, best first: `results` are matrices, their rows and
/// columns. As many as leave each multiprocessor its blocks, of equal length and no more than `room`; none, where tiles are enough, and
/// of few rows, whose kernels divide their sums themselves. What parts leave is no more than the operands have.
pub(crate) fn sum_parts([batch, rows, columns]: [i64; 3], inner: i64, room: i64) -> Vec<i64> {
    let up = |size: i64| size / OWN_TILE + i64::from(size % OWN_TILE != 0);
    let tiles = batch.saturating_mul(up(rows)).saturating_mul(up(columns));
    if tiles <= 0 || rows <= super::SKINNY_ROWS as i64 || inner < 2 * FEWEST_SUMMED {
        return vec![];
    }
    let operands = inner.saturating_mul(rows.saturating_add(columns)) / rows.saturating_mul(columns).max(1);
    let wanted = ENOUGH_TILES as i64 / tiles;
    let most = [around(wanted), inner / FEWEST_SUMMED, MOST_SUM_PARTS, operands, room];
    let most = most.into_iter().min().unwrap_or(1);
    let mut parts: Vec<i64> = (2..=most).rev().filter(|parts| inner % parts == 0).collect();
    // Parts that begin where vectors do, if not many fewer.
    parts.sort_by_key(|parts| (*parts <= most / 2, inner / parts % 8 != 0));
    parts
}

/// So many parts more may divide a sum evenly.
fn around(wanted: i64) -> i64 {
    wanted + wanted / 4
}

/// Room for the parts of a convolution's sums: see [`sum_parts`], of which it has no more.
fn parts_of_sums(weights: &Type, out: &Type, layout: Layout) -> u64 {
    let outer = match layout {
        Layout::ChannelsFirst => 0,
        Layout::ChannelsLast => weights.rank().saturating_sub(1),
    };
    let (Some(results), Some(all)) = (out.elements(), weights.elements()) else { return 0 };
    if weights.rank() == 0 || !out.dtype.is_float() {
        return 0;
    }
    let inner = all / weights.size(outer).max(1);
    let tiles = results.div_ceil((OWN_TILE * OWN_TILE) as u64).max(1);
    let wanted = around((ENOUGH_TILES / tiles) as i64).unsigned_abs();
    let most = wanted.min(inner / FEWEST_SUMMED as u64).min(MOST_SUM_PARTS as u64);
    let size = if out.dtype == DType::F64 { 8 } else { 4 };
    if most < 2 { 0 } else { part(results.saturating_mul(most), size).get() }
}

/// Bytes in which a GPU keeps what a first kernel of `op` makes for the next: what parts make, where it folds in stages
/// (reductions of few long rows, normalisations along them, the gradients of these, and attention of few rows to many
/// keys); the ordered steps of a scatter, and what their parts make; the operands of a convolution that is gathered
/// channels last, transposed; and the parts of a product's sums.
pub fn partial_folds(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    let Some(&x) = operands.first() else { return Bytes::ZERO };
    let of = |axes: Vec<u32>, numbers: u64, follows: Follows| {
        folds_along(x, &axes, follows).saturating_mul(numbers)
    };
    Bytes(match op.family() {
        Family::Reduce(ReduceOp::Reduce { axes, .. }) => of(axes.to_vec(), 1, Follows::Nothing),
        Family::Normalize(NormalizeOp::Normalize(norm)) => {
            of(norm.axes.to_vec(), 2, Follows::Elements { centred: norm.center })
        }
        Family::Normalize(NormalizeOp::NormalizeGradient { of: norm, scaled }) => {
            let others = (0..x.rank() as u32).filter(|axis| !norm.axes.contains(axis)).collect();
            let elements = Follows::Elements { centred: false };
            let rows = if norm.moments { of(norm.axes.to_vec(), 4, elements) } else { 0 };
            rows.max(if scaled { of(others, 2, Follows::Nothing) } else { 0 })
        }
        Family::Window(WindowOp::Conv(conv)) => match operands {
            [x, weights, ..] => {
                let gathered =
                    channels_last(conv, x, weights).map_or(0, |[x, weights]| x.saturating_add(weights));
                let summed = results.first().map_or(0, |out| parts_of_sums(weights, out, conv.layout));
                gathered.saturating_add(summed)
            }
            _ => 0,
        },
        Family::Product(_) => partial_sums(op, operands, results).get(),
        Family::Index(IndexOp::ScatterNd { .. }) => match operands {
            [x, indices, ..] if indices.rank() > 0 => {
                let depth = indices.size(indices.rank() - 1).min(x.rank() as u64) as usize;
                let size = |ty: &Type, axes: std::ops::Range<usize>| product(axes.map(|axis| ty.size(axis)));
                let [rows, columns] = [size(x, 0..depth), size(x, depth..x.rank())];
                let steps = size(indices, 0..indices.rank() - 1);
                ScatterOrder::of([rows, columns, steps], x.dtype).map_or(0, |order| order.bytes())
            }
            _ => 0,
        },
        Family::Attention(AttentionOp::Attention(op)) => match (operands, results) {
            ([q, k, v, ..], [out]) => {
                let geometry = Geometry::new(op, [*q, *k, *v, *out]);
                key_parts_numbers(&geometry, x.dtype.size()).saturating_mul(x.dtype.size().max(4))
            }
            _ => 0,
        },
        _ => 0,
    })
}

/// How a GPU joins many updates to rows, whichever rows these are: it sorts the steps by their rows, digit by digit from
/// the lowest on, joins the updates of rows that have many part by part, and then those of the others. What is joined in which
/// order follows from a row's own updates and from how many steps there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScatterOrder {
    pub(crate) steps: u64,
    /// Elements of a row.
    pub(crate) columns: u64,
    /// Digits of a row's number, and bits of each.
    pub(crate) digits: u32,
    pub(crate) bits: u32,
    /// Positions that a block sorts.
    pub(crate) each: u64,
    /// Steps of a part.
    pub(crate) length: u64,
    /// What is joined, and its bytes.
    pub(crate) dtype: DType,
}

impl ScatterOrder {
    /// Steps that one kernel looks through for the rows of each block.
    const FEW: u64 = 256;
    /// Bits of a digit, at most.
    const DIGIT: u32 = 8;
    /// Positions that a block sorts, a multiple of this; at least so many of these; and so many blocks at most, each of which reads
    /// what all have counted.
    const SORTED: u64 = 512;
    const LEAST_SORTED: u64 = 4;
    const BLOCKS: u64 = 256;

    /// None where one kernel does, or where numbers of rows and steps do not fit 32 bits.
    pub(crate) fn of([rows, columns, steps]: [u64; 3], dtype: DType) -> Option<Self> {
        let most = i32::MAX as u64;
        if steps <= Self::FEW || steps > most || rows > most || rows == 0 || columns == 0 {
            return None;
        }
        let whole = (u64::BITS - (rows - 1).leading_zeros()).max(1);
        let digits = whole.div_ceil(Self::DIGIT);
        // So many steps take a part as its row takes parts, where all are of one row; what waits for memory is long parts.
        let length = (steps.isqrt() / 2).next_power_of_two().clamp(32, 512);
        let dtype = if dtype.is_half() { DType::F32 } else { dtype };
        let each = steps.div_ceil(Self::BLOCKS * Self::SORTED).max(Self::LEAST_SORTED) * Self::SORTED;
        Some(Self { steps, columns, digits, bits: whole.div_ceil(digits), each, length, dtype })
    }

    /// Lists of rows and of steps: each digit reads what the one before has written.
    pub(crate) fn lists(&self) -> u64 {
        if self.digits > 1 { 4 } else { 2 }
    }

    /// Numbers that parts make.
    pub(crate) fn parts(&self) -> u64 {
        self.steps.div_ceil(self.length).saturating_mul(2).saturating_mul(self.columns)
    }

    /// Numbers of each block and digit.
    pub(crate) fn counts(&self) -> u64 {
        self.steps.div_ceil(self.each) << self.bits
    }

    fn bytes(&self) -> u64 {
        let lists = part(self.steps, 4).get().saturating_mul(self.lists());
        lists
            .saturating_add(part(self.counts(), 4).get())
            .saturating_add(part(self.parts(), self.dtype.size()).get())
    }
}

/// Fewest channels of a group that a GPU gathers channels last.
const FEW_CHANNELS: u64 = 16;
/// Fewest results for each of them: so often it reads what it transposes once.
const FEW_RESULTS: u64 = 32;

/// Bytes of the input and of the weights as a GPU keeps them for a convolution of halves whose channels come first: with
/// channels last, so that neighbours of what is summed over are neighbours in memory. None where it gathers them as they
/// are.
pub(crate) fn channels_last(conv: &Conv, x: &Type, weights: &Type) -> Option<[u64; 2]> {
    if conv.layout != Layout::ChannelsFirst
        || !x.dtype.is_half()
        || x.dtype != weights.dtype
        || weights.rank() < 3
    {
        return None;
    }
    let groups = conv.groups.max(1).unsigned_abs();
    let (outer, inner) = (weights.size(0) / groups, weights.size(1));
    let window: u64 = product((2..weights.rank()).map(|axis| weights.size(axis)));
    // One element of a window is read where it is.
    let is_gathered = window > 1 && inner.is_multiple_of(8) && inner >= FEW_CHANNELS && outer >= FEW_RESULTS;
    let kept = |ty: &Type| ty.bytes().map(|bytes| bytes.aligned().get());
    if is_gathered { Some([kept(x)?, kept(weights)?]) } else { None }
}

/// Numbers that the parts of an attention's keys leave: two and a value for each row of each part.
pub(crate) fn key_parts_numbers(geometry: &Geometry, size: u64) -> u64 {
    let parts = geometry.key_parts(size);
    let rows = geometry.batch.saturating_mul(geometry.heads).saturating_mul(geometry.rows);
    let each = geometry.value_size.saturating_add(2);
    if parts < 2 { 0 } else { rows.saturating_mul(parts).saturating_mul(each) }
}

/// What follows from what is folded of a row.
#[derive(Clone, Copy)]
enum Follows {
    Nothing,
    /// An element for each of the row's; `centred`: what is folded are deviations from the row's mean.
    Elements {
        centred: bool,
    },
}

/// What one number of each part takes, and one of each row.
fn folds_along(x: &Type, axes: &[u32], follows: Follows) -> u64 {
    let (stored, centred) = match follows {
        Follows::Nothing => (false, false),
        Follows::Elements { centred } => (true, centred),
    };
    let (columns, rows) = elements_along(axes, x);
    let (Ok(rows), Ok(columns)) = (i64::try_from(rows), i64::try_from(columns)) else { return 0 };
    let fastest = (0..x.rank()).rev().find(|&axis| x.size(axis) != 1);
    let beside = fastest.is_none_or(|axis| axes.contains(&(axis as u32)));
    let parts = parts_of(Folded { rows, columns, beside, stored, centred });
    if parts < 2 {
        return 0;
    }
    let rows = rows.unsigned_abs();
    let folded = if stored { part(rows, 8).get() } else { 0 };
    part(rows.saturating_mul(2 * parts.unsigned_abs()), 8).get().saturating_add(folded)
}

/// The workspace of an operation on halves that computes in f32.
fn widened(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    match (op, operands, results) {
        // Block by block.
        (Op::MatMul { .. } | Op::Conv(_), ..) => Bytes::ZERO,
        (Op::ConvTranspose(conv), [_, weights, ..], [out]) => {
            let planes = Planes::new(conv, *weights, *out);
            part(planes.planned_plane, 4) + part(planes.planned_columns, 4)
        }
        (Op::Attention(op), [q, k, v, ..], [out]) => {
            let geometry = Geometry::new(op, [*q, *k, *v, *out]);
            let tiling = Tiling::new(&geometry);
            part(tiling.parts.saturating_mul(planned(tiling.of_halves(&geometry))), 4)
        }
        (Op::AttentionGradient(op), [q, k, v, out, ..], _) => {
            let geometry = Geometry::new(op, [*q, *k, *v, *out]);
            let tiling = Tiling::of_gradients(&geometry);
            let rows = geometry.batch.saturating_mul(geometry.heads).saturating_mul(geometry.rows);
            let numbers = part(rows.saturating_mul(2), 4);
            part(tiling.parts.saturating_mul(planned(tiling.of_gradients_of_halves(&geometry))), 4)
                .max(numbers)
        }
        (Op::Recurrent(layer), [x, ..], _) => part(planned(Steps::new(layer, *x).elements), 4),
        _ => {
            let pieces = Cut::new(op, &wholes(operands), &wholes(results)).planned();
            own(op, operands, results, Some(4)) + Bytes(pieces)
        }
    }
}

/// So many numbers of f32 where they have to be planned for: a thread's own area does not hold them.
pub(crate) fn planned(elements: u64) -> u64 {
    if elements.saturating_mul(4) > PIECE { elements } else { 0 }
}

fn wholes<'a>(types: &[&'a Type]) -> Vec<Whole<'a, Type>> {
    types.iter().map(|ty| Whole { sizes: *ty, dtype: ty.dtype }).collect()
}

/// Output channels of a transposed convolution of halves that are made together, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    /// How many.
    pub(crate) channels: u64,
    /// Positions of the input that are multiplied together.
    pub(crate) positions: u64,
    /// Elements of a plane, and of the windows of a position, where they are too many for a thread's own area.
    pub(crate) planned_plane: u64,
    pub(crate) planned_columns: u64,
}

impl Planes {
    /// Fewest positions that are worth a product.
    const FEWEST: u64 = 16;

    pub(crate) fn new<S: Sizes + ?Sized>(conv: &ConvTranspose, weights: &S, out: &S) -> Self {
        let spatial = weights.rank().saturating_sub(2);
        let (outer, kernel, first) = match conv.layout {
            Layout::ChannelsFirst => (weights.size(1), 2, 2),
            Layout::ChannelsLast => (weights.size(spatial), 0, 1),
        };
        let window: u64 = product((kernel..kernel + spatial).map(|axis| weights.size(axis))).max(1);
        let area = product((first..first + spatial).map(|axis| out.size(axis))).max(1);
        let capacity = PIECE / 4;
        // So few channels that a plane of each fits, and the windows of some positions at once.
        let channels =
            (capacity / area).min(capacity / window.saturating_mul(Self::FEWEST)).clamp(1, outer.max(1));
        let positions = (capacity / window.saturating_mul(channels)).max(1);
        Self { channels, positions, planned_plane: planned(area), planned_columns: planned(window) }
    }
}

/// Steps of a recurrent layer of halves whose gates are made together, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    /// How many.
    pub(crate) count: u64,
    /// Numbers of a state, and of a step's gates.
    pub(crate) state: u64,
    pub(crate) gates: u64,
    /// Numbers of states and gates.
    pub(crate) elements: u64,
}

impl Steps {
    /// States that are kept: the hidden one before and after a step, the cell's, and one that is worked in.
    pub(crate) const STATES: u64 = 4;

    pub(crate) fn new<S: Sizes + ?Sized>(layer: &Recurrent, x: &S) -> Self {
        let state = x.size(1).saturating_mul(layer.hidden.unsigned_abs());
        let gates = state.saturating_mul(match layer.cell {
            Cell::Rnn => 1,
            Cell::Lstm => 4,
            Cell::Gru | Cell::GruResetAfter => 3,
        });
        let states = state.saturating_mul(Self::STATES);
        // One step at least: where even that exceeds the area, `elements` is planned for.
        let count = ((PIECE / 4).saturating_sub(states) / gates.max(1)).clamp(1, x.size(0).max(1));
        Self { count, state, gates, elements: states.saturating_add(gates.saturating_mul(count)) }
    }
}

/// True where the operation computes in f32 on halves.
pub(crate) fn widens(op: &Op) -> bool {
    match op.family() {
        // Packed weights are multiplied in f32 alone.
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Layout(_)
        | Family::Packed(_) => false,
        Family::Index(op) => match op {
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TreeLeaves { .. } => false,
            IndexOp::ScatterElements { kind, .. } | IndexOp::ScatterNd { kind } => {
                kind != ScatterKind::Replace
            }
            IndexOp::TopK(_) => true,
        },
        Family::Window(op) => match op {
            WindowOp::Conv(_)
            | WindowOp::ConvTranspose(_)
            | WindowOp::Pool(_)
            | WindowOp::MaxPoolGradient(_) => true,
            WindowOp::Resize(resize) => resize.interpolation == Interpolation::Linear,
        },
        Family::Reduce(_)
        | Family::Normalize(_)
        | Family::Product(_)
        | Family::Attention(_)
        | Family::Recurrent(_) => true,
    }
}

fn own(op: &Op, operands: &[&Type], results: &[&Type], width: Option<u64>) -> Bytes {
    let size = |ty: &Type| width.unwrap_or(ty.dtype.size());
    let &[x, ref others @ ..] = operands else { return Bytes::ZERO };
    match op.family() {
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Layout(_)
        | Family::Reduce(_)
        | Family::Product(_)
        | Family::Packed(_) => Bytes::ZERO,
        Family::Index(op) => match op {
            IndexOp::TopK(topk) => part(dim(x, topk.axis as usize), 8),
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TreeLeaves { .. } => Bytes::ZERO,
        },
        Family::Window(op) => match op {
            WindowOp::ConvTranspose(conv) => {
                let Some(&weights) = others.first() else { return Bytes::ZERO };
                let unfolded = conv_transpose_unfolded(conv, x, weights, size(x));
                part(unfolded.depth.saturating_mul(unfolded.positions), size(x))
            }
            WindowOp::Conv(_) | WindowOp::Pool(_) | WindowOp::MaxPoolGradient(_) | WindowOp::Resize(_) => {
                Bytes::ZERO
            }
        },
        Family::Normalize(op) => match op {
            NormalizeOp::Normalize(of) => channels(of.axes, of.moments, x, size(x)),
            NormalizeOp::NormalizeGradient { of, scaled } => normalize_gradient(of, scaled, x, size(x)),
            NormalizeOp::Softmax(_)
            | NormalizeOp::SoftmaxGradient(_)
            | NormalizeOp::CrossEntropy
            | NormalizeOp::CrossEntropyGradient
            | NormalizeOp::LocalResponseNorm(_) => Bytes::ZERO,
        },
        Family::Attention(op) => match (op, others, results) {
            (AttentionOp::Attention(op), [k, v, ..], [out]) => {
                let tiling = Tiling::new(&Geometry::new(op, [x, *k, *v, *out]));
                part(tiling.parts.saturating_mul(tiling.slot), size(x))
            }
            (AttentionOp::AttentionGradient(op), [k, v, out, ..], _) => {
                let geometry = Geometry::new(op, [x, *k, *v, *out]);
                let tiling = Tiling::of_gradients(&geometry);
                let rows = geometry.batch.saturating_mul(geometry.heads).saturating_mul(geometry.rows);
                let numbers = part(rows.saturating_mul(2), size(x));
                part(tiling.parts.saturating_mul(tiling.slot), size(x)).max(numbers)
            }
            (
                AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) | AttentionOp::Rotary { .. },
                ..,
            ) => Bytes::ZERO,
        },
        Family::Recurrent(layer) => recurrent(layer, x, size(x)),
    }
}

/// Numbers of each row, or sums of columns for each part, whichever is more.
fn normalize_gradient(of: Normalization<'_>, scaled: bool, x: &Type, size: u64) -> Bytes {
    let (columns, rows) = elements_along(of.axes, x);
    let slots = rows.min(NORMALIZE_PARTS).saturating_mul(2).saturating_mul(columns);
    let slots = if scaled && are_rows(of.axes, x) { slots } else { 0 };
    let rows = part(rows.saturating_mul(NORMALIZE_ROW), 8).max(part(slots, size));
    rows.max(channels(of.axes, of.moments, x, size))
}

/// What is kept of rows that are not contiguous, or whose moments are results or operands.
fn channels(axes: &[u32], moments: bool, x: &Type, size: u64) -> Bytes {
    if are_rows(axes, x) && !moments {
        return Bytes::ZERO;
    }
    let (_, rows) = elements_along(axes, x);
    part(rows.saturating_mul(CHANNEL[0]), 8) + part(rows.saturating_mul(CHANNEL[1]), size)
}

/// Whether no axis that stays stands behind one that goes, those of one element aside.
fn are_rows(axes: &[u32], x: &Type) -> bool {
    let mut long = (0..x.rank()).filter(|&axis| x.size(axis) != 1).map(|axis| axes.contains(&(axis as u32)));
    !long.any(|goes| goes) || !long.any(|goes| !goes)
}

fn recurrent(layer: &Recurrent, x: &Type, size: u64) -> Bytes {
    let hidden = layer.hidden.unsigned_abs();
    let state = dim(x, 1).saturating_mul(hidden);
    let steps = dim(x, 0);
    let gates = match layer.cell {
        Cell::Rnn => part(steps.saturating_mul(state), size),
        Cell::Lstm => part(steps.saturating_mul(state).saturating_mul(4), size),
        Cell::Gru | Cell::GruResetAfter => {
            part(steps.saturating_mul(state).saturating_mul(3), size) + part(state, size)
        }
    };
    // States that a thread's own area does not hold.
    let states = state.saturating_mul(Steps::STATES);
    gates + part(if states.saturating_mul(size) > PIECE { states } else { 0 }, size)
}

/// How a transposed convolution's windows are unfolded into a matrix, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfolded {
    /// Elements of one window: the size that is spread out.
    pub(crate) depth: u64,
    /// Windows in one part.
    pub(crate) positions: u64,
}

fn unfolded(depth: u64, positions: u64, size: u64) -> Unfolded {
    let most = (UNFOLDED / depth.saturating_mul(size).max(1)).max(16);
    Unfolded { depth, positions: positions.min(most) }
}

/// Positions are those of the input.
pub(crate) fn conv_transpose_unfolded<S: Sizes + ?Sized>(
    conv: &ConvTranspose,
    x: &S,
    weights: &S,
    size: u64,
) -> Unfolded {
    let spatial = weights.rank().saturating_sub(2);
    let (outer, kernel, first) = match conv.layout {
        Layout::ChannelsFirst => (weights.size(1), 2, 2),
        Layout::ChannelsLast => (weights.size(spatial), 0, 1),
    };
    let window: u64 = product((kernel..kernel + spatial).map(|axis| weights.size(axis)));
    let positions = product((first..first + spatial).map(|axis| x.size(axis)));
    unfolded(outer.saturating_mul(window), positions, size)
}

/// Elements along these axes, and along the others.
fn elements_along(axes: &[u32], x: &Type) -> (u64, u64) {
    let of = |goes: bool| {
        let own = (0..x.rank()).filter(|&axis| axes.contains(&(axis as u32)) == goes);
        product(own.map(|axis| x.size(axis)))
    };
    (of(true), of(false))
}

fn product(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(1, u64::saturating_mul)
}

/// Bytes of one part, rounded up.
fn part(elements: u64, size: u64) -> Bytes {
    Bytes(elements.saturating_mul(size)).aligned()
}
