//! Whether a network ends as its loss expects: a loss of probabilities takes anything, and learns nothing of logits.

use super::step::fitted;
use super::step::loss::Loss;
use crate::ir::{Binary, Graph, Node, Op, Unary, ValueId};

/// How a network ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With a product, or a product and a bias: with numbers of any size.
    Linear,
    Softmax,
    Sigmoid,
    Other,
}

/// What is to be told of outputs that are not what the loss takes them for. O(outputs).
pub fn of_ends(graph: &Graph, loss: &Loss) -> Option<String> {
    let ends = fitted(graph).into_iter().map(|(name, value)| (name, end(graph, value)));
    ends.into_iter().find_map(|(name, end)| {
        let (is, instead) = told(loss, end)?;
        Some(format!("output {name} {is}: {instead}"))
    })
}

/// What an output is, and what would go with it.
fn told(loss: &Loss, end: End) -> Option<(&'static str, &'static str)> {
    let linear = "is a linear layer's, which the loss takes for probabilities";
    let soft = "is a softmax's, of which the loss takes another softmax";
    let sigmoid = "is a sigmoid's, of which the loss takes another sigmoid";
    Some(match (*loss, end) {
        (Loss::SparseCrossEntropy { logits: false, .. }, End::Linear) => {
            (linear, "--loss sparse:logits takes logits")
        }
        (Loss::CrossEntropy { logits: false, .. }, End::Linear) => {
            (linear, "--loss categorical:logits takes logits")
        }
        (Loss::BinaryCrossEntropy { logits: false, .. }, End::Linear) => {
            (linear, "--loss binary:logits takes logits")
        }
        (Loss::KullbackLeibler, End::Linear) => (linear, "the network has to end with a softmax"),
        (Loss::SparseCrossEntropy { logits: true, .. }, End::Softmax) => {
            (soft, "--loss sparse takes probabilities")
        }
        (Loss::CrossEntropy { logits: true, .. }, End::Softmax) => {
            (soft, "--loss categorical takes probabilities")
        }
        (Loss::BinaryCrossEntropy { logits: true, .. }, End::Sigmoid) => {
            (sigmoid, "--loss binary takes probabilities")
        }
        _ => return None,
    })
}

fn end(graph: &Graph, value: ValueId) -> End {
    let maker = shown(graph, value);
    match maker.op {
        Op::Softmax { log: false, .. } => End::Softmax,
        Op::Unary(Unary::Sigmoid) => End::Sigmoid,
        Op::Binary(Binary::Add) if maker.operands.iter().any(|&part| is_product(shown(graph, part))) => {
            End::Linear
        }
        _ if is_product(maker) => End::Linear,
        _ => End::Other,
    }
}

/// The node whose elements a value shows, in whatever order and type. O(views).
fn shown(graph: &Graph, value: ValueId) -> &Node {
    let mut maker = graph.maker(value);
    while let Op::Reshape { .. } | Op::Transpose { .. } | Op::Convert { .. } = maker.op
        && let Some(&operand) = maker.operands.first()
    {
        maker = graph.maker(operand);
    }
    maker
}

fn is_product(node: &Node) -> bool {
    matches!(node.op, Op::MatMul { .. } | Op::PackedMatMul(_) | Op::Conv(_) | Op::ConvTranspose(_))
}
