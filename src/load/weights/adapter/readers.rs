//! How a network reads each of its matrices: what an adapter calls its inputs and outputs depends on it.

use crate::ir::{Graph, Op};

/// How a parameter is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// By products, a row for each number of their results.
    Rows,
    /// By products, a column for each.
    Columns,
    /// Row by row, as a table.
    LookUp,
    /// As a table by one layer and by the products of another.
    Tied,
    Other,
}

impl Reading {
    /// How two nodes together read it.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::LookUp, Self::Rows | Self::Columns) | (Self::Rows | Self::Columns, Self::LookUp) => {
                Self::Tied
            }
            (Self::Tied, Self::LookUp | Self::Rows | Self::Columns)
            | (Self::LookUp | Self::Rows | Self::Columns, Self::Tied) => Self::Tied,
            _ => Self::Other,
        }
    }
}

/// By parameter. O(nodes + operands).
pub(super) fn readings(graph: &Graph) -> Vec<Reading> {
    let mut found: Vec<Option<Reading>> = vec![None; graph.params().len()];
    for node in graph.node_ids().map(|id| graph.node(id)) {
        for (position, &operand) in node.operands.iter().enumerate() {
            let Op::Param(id) = graph.maker(operand).op else { continue };
            let own = match (&node.op, position) {
                (Op::MatMul { transpose_left: false, transpose_right: true, .. }, 1) => Reading::Rows,
                (Op::MatMul { transpose_left: false, transpose_right: false, .. }, 1) => Reading::Columns,
                (Op::Gather { axis: 0 }, 0) => Reading::LookUp,
                _ => Reading::Other,
            };
            let known = &mut found[id.index()];
            *known = Some(known.map_or(own, |known| known.with(own)));
        }
    }
    found.into_iter().map(|reading| reading.unwrap_or(Reading::Other)).collect()
}
