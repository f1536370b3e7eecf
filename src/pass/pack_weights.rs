//! Weights of few bits: matrices of parameters of which products and look-ups read whole rows are held packed, and read as
//! they lie.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{BlockFormat, Coding, DType, Graph, Node, NodeId, Op, Param, Piece, Repacked, ValueId};

/// Numbers that a matrix has at least to be packed where it is supplied otherwise.
const LEAST: i64 = 1 << 12;

/// How matrices of weights are held, where that is not as they are supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsAs {
    /// As numbers of f32, blocks of few bits too.
    F32,
    /// Packed, where products read them.
    Blocks(BlockFormat),
}

impl WeightsAs {
    /// All that can be asked for.
    pub const ALL: [Self; 3] = [Self::F32, Self::Blocks(BlockFormat::Q8_0), Self::Blocks(BlockFormat::Q4_0)];

    /// Its name in plans and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Blocks(format) => format.name(),
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|asked| asked.name() == name)
    }
}

/// How the readers of a value read it.
#[derive(Clone, Copy, Default)]
struct Readers {
    /// Products, as their transposed right operand: a row for each number of a row of the result.
    multiply_rows: bool,
    /// Products, as their right operand: a column for each.
    multiply_columns: bool,
    /// Look-ups of rows.
    look_up_rows: bool,
    others: bool,
}

impl Readers {
    /// Whether it is columns that are read as wholes, or rows; none where neither are, or both.
    fn of_columns(self) -> Option<bool> {
        let of_rows = self.multiply_rows || self.look_up_rows;
        (!self.others && of_rows != self.multiply_columns).then_some(self.multiply_columns)
    }
}

/// Packs every matrix of f32 parameters that nothing reads but products, as their right operand and in sums of whole
/// blocks, and look-ups of its rows. The parameter holds the blocks: those of the file where it has some
/// ([`ArrayNames::blocks`](crate::ir::ArrayNames::blocks)) and no others are `asked` for, else what is made of the numbers
/// when these are loaded. What a step updates stays as it is. Returns how many were packed. O(nodes + operands).
///
/// Errors: none but internal ones.
pub fn pack_weights(graph: &mut Graph, asked: Option<WeightsAs>) -> Result<usize> {
    if asked == Some(WeightsAs::F32) || asked.is_none() && graph.rules().arrays.blocks.is_empty() {
        return Ok(0);
    }
    let readers = readers(graph);
    let packed: Vec<Option<Repacked>> =
        graph.node_ids().map(|id| repacked(graph, id, asked, &readers)).collect();
    let count = packed.iter().flatten().count();
    if count == 0 {
        return Ok(0);
    }
    let has_zeros = graph.rules().arrays.coding.is_some_and(Coding::has_zeros);
    let mut rewriter = Rewriter::new(graph);
    // By node: the scales of its groups, and their zero points if any.
    let mut beside: Vec<Vec<ValueId>> = vec![Vec::new(); graph.node_count()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        if let Some(packed) = packed[id.index()] {
            rewriter.keep_packed(id, packed)?;
            for &piece in pieces_beside(packed.format, has_zeros) {
                beside[id.index()].push(rewriter.add_packed(id, Repacked { piece, ..packed })?);
            }
            continue;
        }
        let weights = matrix(node).and_then(|at| node.operands.get(at));
        let weights = weights.map(|&value| graph.value(value).node.index());
        let Some((weights, of)) = weights.and_then(|at| Some((at, packed[at]?))) else {
            rewriter.keep(id)?;
            continue;
        };
        let packed = of.packed();
        let mut operands = rewriter.operands(id)?;
        operands.extend(&beside[weights]);
        match node.op {
            Op::Gather { .. } => {
                let rows = rewriter.add(node.op.clone(), &operands, node.source)?;
                rewriter.keep_as(id, Op::Unpack(packed), &[rows])?;
            }
            _ => rewriter.keep_as(id, Op::PackedMatMul(packed), &operands)?,
        }
    }
    *graph = rewriter.finish()?;
    Ok(count)
}

/// What there is of a matrix beside the bytes of its blocks.
fn pieces_beside(format: BlockFormat, has_zeros: bool) -> &'static [Piece] {
    match (format.has_scales_beside(), has_zeros) {
        (false, _) => &[],
        (true, false) => &[Piece::Scales],
        (true, true) => &[Piece::Scales, Piece::Zeros],
    }
}

/// Which operand of a node may be a packed matrix.
fn matrix(node: &Node) -> Option<usize> {
    match node.op {
        Op::MatMul { transpose_left: false, .. } => Some(1),
        Op::Gather { axis: 0 } => Some(0),
        _ => None,
    }
}

fn readers(graph: &Graph) -> Vec<Readers> {
    let mut readers = vec![Readers::default(); graph.value_count()];
    for node in graph.node_ids().map(|id| graph.node(id)) {
        let matrix = matrix(node);
        for (position, operand) in node.operands.iter().enumerate() {
            let known = &mut readers[operand.index()];
            match node.op {
                _ if matrix != Some(position) => known.others = true,
                Op::MatMul { transpose_right: true, .. } => known.multiply_rows = true,
                Op::MatMul { transpose_right: false, .. } => known.multiply_columns = true,
                _ => known.look_up_rows = true,
            }
        }
    }
    graph.outputs().iter().for_each(|(_, value)| readers[value.index()].others = true);
    readers
}

/// How a node's result is packed, where it is such a matrix.
fn repacked(graph: &Graph, id: NodeId, asked: Option<WeightsAs>, readers: &[Readers]) -> Option<Repacked> {
    let node = graph.node(id);
    let Op::Param(param) = node.op else { return None };
    let (param, ty) = (graph.param(param), graph.ty(node.first_result));
    let read = readers[node.first_result.index()];
    let turned = read.of_columns()?;
    let &[height, width] = &ty.shape.dims()?[..] else { return None };
    if ty.dtype != DType::F32 || !stays_as_supplied(param) {
        return None;
    }
    let columns = if turned { height } else { width };
    let numbers = u64::try_from(columns).ok().filter(|&numbers| numbers > 0)?;
    let fits = |format: &BlockFormat| numbers.is_multiple_of(format.elements());
    let is_multiplied = read.multiply_rows || read.multiply_columns;
    let is_large = height.checked_mul(width).is_some_and(|all| all >= LEAST);
    let made = match asked {
        Some(WeightsAs::Blocks(format)) if is_multiplied && is_large => Some(format),
        Some(_) | None => None,
    };
    let of_file = graph.rules().arrays.blocks.get(&param.name).copied().filter(|_| !turned);
    // Rows are looked up where blocks hold all there is of them.
    let of_file = of_file.filter(|format| !(read.look_up_rows && format.has_scales_beside()));
    let format = made.filter(fits).or(of_file.filter(fits))?;
    Some(Repacked { format, columns, turned, piece: Piece::Bytes })
}

/// Whether a parameter is whole, held as it is supplied, and stays so.
fn stays_as_supplied(param: &Param) -> bool {
    let is_fixed = param.update.is_none() && param.statistic.is_none() && param.state.is_none();
    let is_whole = param.slice.is_none() && param.permuted.is_none();
    is_fixed && is_whole && param.supplied.is_none() && param.repacked.is_none()
}
