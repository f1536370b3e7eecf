//! Whether a network ends as its loss expects: a loss of probabilities takes anything, and learns nothing of logits.

use super::step::fitted;
use super::step::loss::Loss;
use crate::error::{Error, Result};
use crate::ir::{Binary, Graph, Layout, Node, Op, Unary, ValueId};

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

/// Error: an output has its classes along another axis than the last, along which the loss takes them. O(outputs).
pub fn check_classes(graph: &Graph, loss: &Loss) -> Result<()> {
    if !matches!(loss, Loss::SparseCrossEntropy { .. } | Loss::CrossEntropy { .. }) {
        return Ok(());
    }
    for (name, value) in fitted(graph) {
        let rank = graph.ty(value).shape.rank();
        let Some(axis) = classes(graph, value).filter(|&axis| axis as usize + 1 != rank) else { continue };
        let message = format!("its classes are along axis {axis}, --loss {loss} takes them along the last");
        return Err(Error::model(format!("output {name}"), message)
            .with_help("a network that ends with the axes in that order: in PyTorch, movedim(1, -1)"));
    }
    Ok(())
}

/// The axis of an output that its end says to hold classes: that of a softmax, or of a convolution's channels.
fn classes(graph: &Graph, value: ValueId) -> Option<u32> {
    let mut maker = graph.maker(value);
    while let Op::Convert { .. } | Op::Binary(Binary::Add) = maker.op
        && let Some(&operand) = maker.operands.first()
    {
        maker = graph.maker(operand);
    }
    match &maker.op {
        Op::Softmax { axis, .. } => Some(*axis),
        Op::Conv(conv) if conv.layout == Layout::ChannelsFirst => Some(1),
        Op::ConvTranspose(conv) if conv.layout == Layout::ChannelsFirst => Some(1),
        _ => None,
    }
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
