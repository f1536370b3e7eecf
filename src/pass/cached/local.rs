//! What layers keep of the tokens right before: the rows that a causal convolution still reads, and what a recurrent layer
//! remembers. Both are states of one size, which begin with zeros.

use super::Incremental;
use crate::error::Result;
use crate::ir::{Conv, Direction, Layout, NodeId, Op, PadMode, Shape, Size, Slice, Type, ValueId};

/// Rows beyond those of the tokens: zeros before them, and whatever behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wider {
    before: i64,
    behind: i64,
}

impl Incremental<'_> {
    /// What stands for the results of a node that reads a window of tokens or remembers them. None for other nodes.
    pub(super) fn local(&mut self, id: NodeId) -> Result<Option<Vec<ValueId>>> {
        let node = self.old.node(id);
        let Some(&x) = node.operands.first() else { return Ok(None) };
        let &[axis] = &self.sequence.axes(x)[..] else { return Ok(None) };
        if !node.operands.iter().all(|operand| self.made[operand.index()]) {
            return Ok(None);
        }
        let result = node.first_result;
        match &node.op {
            Op::Pad(pad) if pad.mode == PadMode::Constant && !self.wider.contains_key(&x) => {
                let is_apart = |all: &[i64]| all.iter().enumerate().all(|(at, &pad)| at == axis || pad == 0);
                let wider = Wider { before: pad.before[axis], behind: pad.after[axis] };
                let is_window = is_apart(&pad.before) && is_apart(&pad.after) && pad.value.0 == 0.0;
                if !is_window || wider.before < 0 || wider.behind < 0 || wider == Wider::default() {
                    return Ok(None);
                }
                self.wider.insert(result, wider);
                Ok(Some(vec![self.new.value(x)?]))
            }
            Op::Slice(slice) => {
                let Some(wider) = self.wider.get(&x).copied() else { return Ok(None) };
                let of = &self.old.ty(x).shape;
                let is_whole = (0..of.rank()).all(|at| {
                    let starts = if at == axis { wider.before } else { 0 };
                    let is_long = at == axis || slice.sizes[at] == of[at];
                    slice.starts[at] == Size::Known(starts) && slice.steps[at] == 1 && is_long
                });
                let is_of_tokens = slice.sizes[axis] == Size::dim(self.sequence.dim);
                (is_whole && is_of_tokens).then(|| self.new.value(x).map(|x| vec![x])).transpose()
            }
            Op::Conv(conv) => self.window(id, conv, axis),
            Op::Recurrent(of) if of.direction == Direction::Forward && axis == 0 => {
                if self.wider.contains_key(&x) {
                    return Ok(None);
                }
                self.remembered(id)
            }
            _ => Ok(None),
        }
    }

    /// A convolution whose windows end with their own token: of the last rows before, which are kept, and the new ones.
    fn window(&mut self, id: NodeId, conv: &Conv, axis: usize) -> Result<Option<Vec<ValueId>>> {
        let node = self.old.node(id);
        let (source, x) = (node.source, node.operands[0]);
        let (own, window) = (self.wider.get(&x).copied().unwrap_or_default(), &conv.window);
        // Of the axes of windows, and of those of the weights.
        let (along, of_weights) = match conv.layout {
            Layout::ChannelsFirst => (axis.checked_sub(2), axis),
            Layout::ChannelsLast => (axis.checked_sub(1), axis.saturating_sub(1)),
        };
        let Some(along) = along.filter(|&along| along < window.strides.len()) else { return Ok(None) };
        let weights = &self.old.ty(node.operands[1]).shape;
        let Some(kernel) = weights[of_weights].known() else { return Ok(None) };
        let span = (kernel - 1).saturating_mul(window.dilations[along]);
        let before = own.before.saturating_add(window.pads_before[along]);
        let behind = own.behind.saturating_add(window.pads_after[along]);
        let is_rectangle = node.operands[1..].iter().all(|&operand| self.sequence.axes(operand).is_empty());
        if before != span || window.strides[along] != 1 || !is_rectangle {
            return Ok(None);
        }
        let rows = self.new.value(x)?;
        let mut all = rows;
        if span > 0 {
            let ty = self.new.graph().ty(rows).clone();
            let mut sizes = ty.shape.sizes().to_vec();
            sizes[axis] = Size::Known(span);
            let kept = Type::new(ty.dtype, Shape::new(sizes.clone()));
            let (param, kept) = self.state("window", id, kept, None)?;
            all = self.new.add(Op::Concat { axis: axis as u32 }, &[kept, rows], source)?;
            let mut starts = vec![Size::Known(0); sizes.len()];
            starts[axis] = ty.shape[axis].clone();
            let last = Slice { starts, steps: vec![1; sizes.len()], sizes };
            let next = self.new.add(Op::Slice(Box::new(last)), &[all], source)?;
            self.states.push((param, next));
        }
        let mut own = conv.clone();
        own.window.pads_before[along] = 0;
        own.window.pads_after[along] = 0;
        let mut operands = vec![all];
        for &operand in &node.operands[1..] {
            operands.push(self.new.value(operand)?);
        }
        let made = self.new.add(Op::Conv(Box::new(own)), &operands, source)?;
        if behind > 0 {
            self.wider.insert(node.first_result, Wider { before: 0, behind });
        }
        Ok(Some(vec![made]))
    }

    /// A recurrent layer that goes on from what it remembers.
    fn remembered(&mut self, id: NodeId) -> Result<Option<Vec<ValueId>>> {
        let node = self.old.node(id);
        // Behind the input, its weights and its bias.
        let begins = &node.operands[4..];
        if !begins.iter().all(|&value| self.is_zero(value)) {
            return Ok(None);
        }
        let mut operands = Vec::with_capacity(node.operands.len());
        for &operand in &node.operands[..4] {
            operands.push(self.new.value(operand)?);
        }
        let mut kept = Vec::with_capacity(begins.len());
        for (kind, &value) in ["hidden", "cell"].into_iter().zip(begins) {
            let (param, state) = self.state(kind, id, self.old.ty(value).clone(), None)?;
            kept.push(param);
            operands.push(state);
        }
        let first = self.new.add(node.op.clone(), &operands, node.source)?;
        let made: Vec<ValueId> = (0..=begins.len() as u32).map(|at| ValueId(first.0 + at)).collect();
        self.states.extend(kept.into_iter().zip(made[1..].iter().copied()));
        Ok(Some(made))
    }

    /// Whether every element is a constant 0.
    fn is_zero(&self, value: ValueId) -> bool {
        let mut node = self.old.maker(value);
        while let (Op::Broadcast { .. } | Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice(_), &[x]) =
            (&node.op, &node.operands[..])
        {
            node = self.old.maker(x);
        }
        let Op::Constant(id) = node.op else { return false };
        self.old.constant(id).bytes().iter().all(|&byte| byte == 0)
    }
}
