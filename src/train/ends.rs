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

const LINEAR: &str = "is a linear layer's, which the loss takes for probabilities";
const SOFTMAX: &str = "is a softmax's, of which the loss takes another softmax";
const SIGMOID: &str = "is a sigmoid's, of which the loss takes another sigmoid";

/// What is to be told of outputs that are not what the loss takes them for. O(outputs).
pub fn of_ends(graph: &Graph, loss: &Loss) -> Option<String> {
    let ends = fitted(graph).into_iter().map(|(name, value)| (name, end(graph, value)));
    ends.into_iter().find_map(|(name, end)| {
        let (is, instead) = told(*loss, end)?;
        Some(format!("output {name} {is}: {instead}"))
    })
}

/// Error: an output has its classes along another axis than that along which the loss takes them. O(outputs).
pub fn check_classes(graph: &Graph, loss: &Loss) -> Result<()> {
    for (name, value) in fitted(graph) {
        let place = format!("output {name}");
        let rank = graph.ty(value).shape.rank();
        let Some(taken) = loss.class_axis(rank).map_err(|error| error.within(&place))? else { continue };
        let Some(axis) = classes(graph, value).filter(|&axis| axis as usize != taken) else { continue };
        let message =
            format!("its classes are along axis {axis}, --loss {loss} takes them along axis {taken}");
        return Err(Error::model(place, message).with_help(format!("--loss {}", loss.along(axis as i32))));
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
fn told(loss: Loss, end: End) -> Option<(&'static str, String)> {
    let logits = loss.takes_logits();
    if end == End::Linear && matches!(loss, Loss::KullbackLeibler { .. }) {
        return Some((LINEAR, "the network has to end with a softmax".to_owned()));
    }
    let is = match (logits?, end, loss) {
        (true, End::Sigmoid, Loss::BinaryCrossEntropy { .. }) => SIGMOID,
        (true, End::Softmax, Loss::SparseCrossEntropy { .. } | Loss::CrossEntropy { .. }) => SOFTMAX,
        (false, End::Linear, _) => LINEAR,
        _ => return None,
    };
    let (other, what) = match logits? {
        true => (loss.of_logits(false), "probabilities"),
        false => (loss.of_logits(true), "logits"),
    };
    Some((is, format!("--loss {other} takes {what}")))
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
