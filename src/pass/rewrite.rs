//! Rebuilding a graph front to back: what every pass that changes a graph shares.
//!
//! A pass visits the nodes of the old graph in order and says of each what becomes of it. The
//! graph under construction is well-formed at any time; the old one stays whole until
//! [`Rewriter::finish`] gives the new one.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ir::{
    DType, Graph, NodeId, Op, Param, Repacked, Shape, Size, SourceId, Tensor, Type, ValueId, infer,
};

/// A graph being rebuilt. A node of the old graph is kept, replaced by values that are already
/// there, or, where nothing is said of it, dropped.
pub(crate) struct Rewriter<'g> {
    old: &'g Graph,
    new: Graph,
    /// By old value: the value that stands for it.
    values: Vec<Option<ValueId>>,
    /// By old node: the node that is it.
    nodes: Vec<Option<NodeId>>,
    /// By new node: whether a control dependency begins or ends there.
    ordered: Vec<bool>,
    /// By old node, likewise.
    old_ordered: Vec<bool>,
}

impl<'g> Rewriter<'g> {
    pub(crate) fn new(old: &'g Graph) -> Self {
        let mut old_ordered = vec![false; old.node_count()];
        for &(before, after) in old.controls() {
            old_ordered[before.index()] = true;
            old_ordered[after.index()] = true;
        }
        Self {
            old,
            new: old.emptied(),
            values: vec![None; old.value_count()],
            nodes: vec![None; old.node_count()],
            ordered: Vec::with_capacity(old.node_count()),
            old_ordered,
        }
    }

    /// The graph so far.
    pub(crate) fn graph(&self) -> &Graph {
        &self.new
    }

    /// The graph so far, to append what stands in for a node: see [`Rewriter::replace_each`].
    pub(crate) fn graph_mut(&mut self) -> &mut Graph {
        &mut self.new
    }

    /// Whether a control dependency begins or ends at a node of the old graph. Such a node may
    /// move neither forward nor back, so nothing stands in for it and nothing reads past it.
    pub(crate) fn is_ordered(&self, old: NodeId) -> bool {
        self.old_ordered[old.index()]
    }

    /// The operation and operands that make a value of the new graph, where a rule may read past
    /// it: not where a control dependency holds its node.
    pub(crate) fn maker(&self, value: ValueId) -> Option<(&Op, &[ValueId])> {
        let id = self.new.value(value).node;
        let node = self.new.node(id);
        (!self.ordered[id.index()]).then_some((&node.op, &*node.operands))
    }

    /// What a node's operands have become.
    pub(crate) fn operands(&self, old: NodeId) -> Result<Vec<ValueId>> {
        self.old.node(old).operands.iter().map(|&value| self.value(value)).collect()
    }

    /// What a value has become. Error: it was dropped, though something still reads it.
    pub(crate) fn value(&self, old: ValueId) -> Result<ValueId> {
        self.values[old.index()]
            .ok_or_else(|| Error::Internal(format!("a pass dropped {old}, which is still read")))
    }

    /// Keeps a node; what it reads is what its operands have become.
    pub(crate) fn keep(&mut self, old: NodeId) -> Result<()> {
        let node = self.old.node(old);
        match &node.op {
            Op::Input => {
                // Inputs are in the order of their nodes.
                let inputs = self.old.inputs();
                let at = inputs.binary_search_by_key(&node.first_result, |input| input.1);
                let (name, value) =
                    inputs.get(at.map_err(|_| misplaced(old))?).ok_or_else(|| misplaced(old))?;
                let value = self.new.add_input(name.clone(), self.old.ty(*value).clone(), node.source);
                self.kept(old, value)
            }
            Op::Param(id) => {
                let param = self.old.param(*id);
                self.keep_param(old, param, self.old.ty(node.first_result).dtype, param.supplied)
            }
            Op::Constant(id) => {
                let value = self.new.add_constant(self.old.constant(*id).clone(), node.source);
                self.kept(old, value)
            }
            op => {
                let (op, operands) = (op.clone(), self.operands(old)?);
                self.keep_as(old, op, &operands)
            }
        }
    }

    /// Keeps an input, held in another type than callers supply it in.
    pub(crate) fn keep_input_rounded(&mut self, old: NodeId, stored: DType) -> Result<()> {
        let node = self.old.node(old);
        let inputs = self.old.inputs();
        let at = inputs.binary_search_by_key(&node.first_result, |input| input.1);
        let at = at.map_err(|_| misplaced(old))?;
        let supplied = self.old.input_type(at);
        let name = inputs[at].0.clone();
        self.new.supply_input(&name, supplied.dtype);
        let value = self.new.add_input(name, Type { dtype: stored, ..supplied }, node.source);
        self.kept(old, value)
    }

    /// Keeps a parameter, held in another type than it is given in.
    pub(crate) fn keep_rounded(&mut self, old: NodeId, stored: DType) -> Result<()> {
        let node = self.old.node(old);
        let Op::Param(id) = node.op else { return Err(misplaced(old)) };
        self.keep_param(old, self.old.param(id), stored, Some(self.old.ty(node.first_result).dtype))
    }

    /// Keeps a parameter with its axes in another order: each of these was at that place before.
    pub(crate) fn keep_permuted(&mut self, old: NodeId, order: &[u32]) -> Result<()> {
        let node = self.old.node(old);
        let Op::Param(id) = node.op else { return Err(misplaced(old)) };
        let (param, ty) = (self.old.param(id), self.old.ty(node.first_result));
        let sizes = order.iter().map(|&axis| ty.shape.sizes().get(axis as usize).cloned());
        let sizes = sizes.collect::<Option<Vec<Size>>>().ok_or_else(|| misplaced(old))?;
        let held = Type { dtype: ty.dtype, shape: Shape::new(sizes) };
        let (name, init, data) = (param.name.clone(), param.init.clone(), param.data.clone());
        let value = self.new.add_param(name, held, init, data, node.source);
        if let Op::Param(new) = self.new.maker(value).op {
            let new = self.new.param_mut(new);
            new.supplied = param.supplied;
            new.permuted = Some(order.to_vec());
        }
        self.kept(old, value)
    }

    /// Keeps a matrix of parameters as the blocks of its rows.
    pub(crate) fn keep_packed(&mut self, old: NodeId, repacked: Repacked) -> Result<()> {
        let node = self.old.node(old);
        let Op::Param(id) = node.op else { return Err(misplaced(old)) };
        let (param, sizes) = (self.old.param(id), self.old.ty(node.first_result).shape.sizes());
        let Some(rows) = sizes.get(usize::from(repacked.turned)) else { return Err(misplaced(old)) };
        let value = self.add_piece(node.source, param, param.name.clone(), rows, repacked)?;
        self.kept(old, value)
    }

    /// Adds a piece of a packed matrix, beside the bytes that [`Rewriter::keep_packed`] keeps.
    pub(crate) fn add_packed(&mut self, old: NodeId, repacked: Repacked) -> Result<ValueId> {
        let node = self.old.node(old);
        let Op::Param(id) = node.op else { return Err(misplaced(old)) };
        let (param, sizes) = (self.old.param(id), self.old.ty(node.first_result).shape.sizes());
        let Some(rows) = sizes.get(usize::from(repacked.turned)) else { return Err(misplaced(old)) };
        let name = format!("{}/{}", param.name, repacked.piece.name());
        self.add_piece(node.source, param, name, rows, repacked)
    }

    fn add_piece(
        &mut self,
        source: SourceId,
        param: &Param,
        name: String,
        rows: &Size,
        repacked: Repacked,
    ) -> Result<ValueId> {
        let (dtype, row) = repacked.held_row();
        let row = i64::try_from(row).map_err(|_| misplaced(param.node))?;
        let ty = Type::new(dtype, Shape::new([rows.clone(), Size::Known(row)]));
        let value = self.new.add_param(name, ty, param.init.clone(), param.data.clone(), source);
        if let Op::Param(new) = self.new.maker(value).op {
            self.new.param_mut(new).repacked = Some(repacked);
        }
        Ok(value)
    }

    fn keep_param(
        &mut self,
        old: NodeId,
        param: &Param,
        dtype: DType,
        supplied: Option<DType>,
    ) -> Result<()> {
        let node = self.old.node(old);
        let ty = Type { dtype, shape: self.old.ty(node.first_result).shape.clone() };
        let (name, init, data) = (param.name.clone(), param.init.clone(), param.data.clone());
        let value = self.new.add_param(name, ty, init, data, node.source);
        if let Op::Param(new) = self.new.maker(value).op {
            let new = self.new.param_mut(new);
            (new.supplied, new.update, new.statistic) = (supplied, param.update, param.statistic);
            new.slice.clone_from(&param.slice);
            new.permuted.clone_from(&param.permuted);
            new.repacked = param.repacked;
            new.state = param.state;
        }
        self.kept(old, value)
    }

    /// Keeps a node as another operation, no leaf, with results of whatever types follow from its operands.
    /// Error: they do not fit.
    pub(crate) fn keep_inferred(&mut self, old: NodeId, op: Op, operands: &[ValueId]) -> Result<()> {
        let first = self.new.push(op, operands, self.old.node(old).source)?;
        self.kept(old, self.new.node(first).first_result)
    }

    /// Keeps a node as another operation, no leaf, with results of the same types.
    pub(crate) fn keep_as(&mut self, old: NodeId, op: Op, operands: &[ValueId]) -> Result<()> {
        let types: Vec<Type> = self.old.results(old).map(|value| self.old.ty(value).clone()).collect();
        let node = self.new.append(op, operands, types, self.old.node(old).source);
        let first = self.new.node(node).first_result;
        self.kept(old, first)
    }

    /// Appends a node with one result that stands for none of the old graph.
    pub(crate) fn add(&mut self, op: Op, operands: &[ValueId], source: SourceId) -> Result<ValueId> {
        let value = self.new.apply(op, operands, source)?;
        self.ordered.resize(self.new.node_count(), false);
        Ok(value)
    }

    /// Keeps a node with one result as a constant of the same type.
    pub(crate) fn keep_constant(&mut self, old: NodeId, tensor: Tensor) -> Result<()> {
        let value = self.new.add_constant(tensor, self.old.node(old).source);
        self.kept(old, value)
    }

    fn kept(&mut self, old: NodeId, first: ValueId) -> Result<()> {
        let node = self.new.value(first).node;
        self.nodes[old.index()] = Some(node);
        self.ordered.resize(node.index(), false);
        self.ordered.push(self.old_ordered[old.index()]);
        self.replace(old, first);
        Ok(())
    }

    /// Lets values of the new graph, from `first` on, stand for a node's results.
    pub(crate) fn replace(&mut self, old: NodeId, first: ValueId) {
        for (position, result) in self.old.results(old).enumerate() {
            self.values[result.index()] = Some(ValueId(first.0 + position as u32));
        }
    }

    /// Lets values of the new graph stand for a node's results, one for each.
    pub(crate) fn replace_each(&mut self, old: NodeId, values: &[ValueId]) {
        self.ordered.resize(self.new.node_count(), false);
        for (result, &value) in self.old.results(old).zip(values) {
            self.values[result.index()] = Some(value);
        }
    }

    /// Lets a value of the new graph stand for one of the old, from now on.
    pub(crate) fn stand_in(&mut self, old: ValueId, value: ValueId) {
        self.values[old.index()] = Some(value);
    }

    /// The rebuilt graph, with outputs and control dependencies. Error: an output was dropped.
    pub(crate) fn finish(mut self) -> Result<Graph> {
        for (name, value) in self.old.outputs() {
            let value = self.value(*value)?;
            self.new.add_output(name.clone(), value);
        }
        for (before, after) in surviving_controls(self.old.controls(), &self.nodes) {
            self.new.add_control(before, after)?;
        }
        Ok(self.new)
    }
}

/// The type of what an operation makes of operands of these types; none where it takes no such, or makes
/// more than one result.
pub(super) fn result_type(graph: &Graph, op: &Op, operands: &[&Type]) -> Option<Type> {
    let mut results = infer(op, operands, &|dim| graph.dim_name(dim).to_owned()).ok()?;
    if results.len() == 1 { results.pop() } else { None }
}

fn misplaced(node: NodeId) -> Error {
    Error::Internal(format!("{node} is a leaf without an entry"))
}

/// Most nodes that are remembered as standing before a dropped one.
const REMEMBERED: usize = 16;

/// The control dependencies among the nodes that are left. Where a dropped node stood between
/// two that are left, the first still precedes the second.
///
/// O((controls + nodes) log): a dropped node with more than [`REMEMBERED`] predecessors is stood
/// in for by the last of them, which then waits for the others.
pub(super) fn surviving_controls(
    controls: &[(NodeId, NodeId)],
    left: &[Option<NodeId>],
) -> Vec<(NodeId, NodeId)> {
    if left.iter().all(Option::is_some) {
        let id = |old: NodeId| left[old.index()];
        return controls.iter().filter_map(|&(a, b)| Some((id(a)?, id(b)?))).collect();
    }
    let mut by_after: Vec<(NodeId, NodeId)> = controls.to_vec();
    // Sorted by `after`, which is topological: what stands before a dropped node is complete when it is looked up.
    by_after.sort_by_key(|&(before, after)| (after, before));
    let mut found = Vec::new();
    let mut before_dropped: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for run in by_after.chunk_by(|a, b| a.1 == b.1) {
        let mut before: Vec<NodeId> = Vec::new();
        for (node, _) in run {
            match left[node.index()] {
                Some(node) => before.push(node),
                None => before.extend(before_dropped.get(node).into_iter().flatten()),
            }
        }
        before.sort();
        before.dedup();
        let after = run[0].1;
        if let Some(after) = left[after.index()] {
            found.extend(before.into_iter().map(|before| (before, after)));
            continue;
        }
        if before.len() > REMEMBERED
            && let Some(last) = before.pop()
        {
            found.extend(before.drain(..).map(|before| (before, last)));
            before.push(last);
        }
        before_dropped.insert(after, before);
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survive(controls: &[(u32, u32)], dropped: &[u32], nodes: u32) -> Vec<(u32, u32)> {
        let mut next = 0;
        let left: Vec<Option<NodeId>> = (0..nodes)
            .map(|node| {
                (!dropped.contains(&node)).then(|| {
                    next += 1;
                    NodeId(next - 1)
                })
            })
            .collect();
        let controls: Vec<_> = controls.iter().map(|&(a, b)| (NodeId(a), NodeId(b))).collect();
        surviving_controls(&controls, &left).into_iter().map(|(a, b)| (a.0, b.0)).collect()
    }

    #[test]
    fn order_holds_across_dropped_nodes() {
        assert_eq!(survive(&[(0, 1), (1, 2), (2, 3)], &[1, 2], 4), [(0, 1)]);
        assert_eq!(survive(&[(0, 2), (1, 2), (2, 3), (2, 4)], &[2], 5), [(0, 2), (0, 3), (1, 2), (1, 3)]);
        assert_eq!(survive(&[(0, 1), (1, 2)], &[0], 3), [(0, 1)]);
        assert_eq!(survive(&[(0, 1), (1, 2)], &[2], 3), [(0, 1)]);
    }

    #[test]
    fn a_dropped_node_between_many_costs_their_sum() {
        let many = 1000;
        let mut controls: Vec<(u32, u32)> = (0..many).map(|before| (before, many)).collect();
        controls.extend((0..many).map(|after| (many, many + 1 + after)));
        let found = survive(&controls, &[many], 2 * many + 1);
        assert_eq!(found.len() as u32, many - 1 + many);
        assert!(found.contains(&(0, many - 1)) && found.contains(&(many - 1, 2 * many - 1)));
    }
}
