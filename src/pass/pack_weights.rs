//! Weights of few bits: matrices of parameters of which products and look-ups read whole rows are held packed, and read as
//! they lie.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{BlockFormat, DType, Graph, Node, NodeId, Op, Packed, Repacked};

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
    /// Products, as their transposed right operand: a row for each number of a result.
    turned: bool,
    /// Products, as their right operand.
    straight: bool,
    /// Look-ups of rows.
    rows: bool,
    /// Others.
    others: bool,
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
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids() {
        let node = graph.node(id);
        if let Some(packed) = packed[id.index()] {
            rewriter.keep_packed(id, packed)?;
            continue;
        }
        let weights = node.operands.get(matrix(node).unwrap_or(usize::MAX));
        let Some(of) = weights.and_then(|&value| packed[graph.value(value).node.index()]) else {
            rewriter.keep(id)?;
            continue;
        };
        let (packed, operands) = (Packed { format: of.format, columns: of.columns }, rewriter.operands(id)?);
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
                Op::MatMul { transpose_right: true, .. } => known.turned = true,
                Op::MatMul { transpose_right: false, .. } => known.straight = true,
                _ => known.rows = true,
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
    let (value, param) = (node.first_result, graph.param(param));
    let (ty, read) = (graph.ty(value), readers[value.index()]);
    let is_whole = param.update.is_none()
        && param.statistic.is_none()
        && param.slice.is_none()
        && param.supplied.is_none()
        && param.repacked.is_none()
        && param.permuted.is_none()
        && param.state.is_none();
    // Rows are those of one orientation.
    let is_packed = !read.others && !(read.straight && (read.turned || read.rows));
    let &[rows, columns] = &ty.shape.dims()?[..] else { return None };
    if !is_whole || !is_packed || ty.dtype != DType::F32 {
        return None;
    }
    let inner = if read.straight { rows } else { columns };
    let fits = |format: &BlockFormat| {
        inner > 0 && u64::try_from(inner).is_ok_and(|inner| inner.is_multiple_of(format.elements()))
    };
    let made = match asked {
        Some(WeightsAs::Blocks(format)) => {
            let is_multiplied = read.straight || read.turned;
            Some(format)
                .filter(|_| is_multiplied && rows.checked_mul(columns).is_some_and(|all| all >= LEAST))
        }
        Some(WeightsAs::F32) | None => None,
    };
    let is_read = read.turned || read.rows;
    let own = graph.rules().arrays.blocks.get(&param.name).copied().filter(|_| is_read);
    let format = made.filter(fits).or(own.filter(fits))?;
    Some(Repacked { format, columns: inner, turned: read.straight })
}
