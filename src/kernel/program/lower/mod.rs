//! From a group to kernel programs.
//!
//! The group's layout says what runs one after the other and where values between lie. A node with
//! a kernel of its own takes the chain of elementwise nodes behind it as its epilogue where that reads
//! each element where it is made, and a product of few rows the norm before it; otherwise each is a program.
//! Values are computed where they are read: a program is built from what it writes back to what it loads, and
//! views, transpositions, slices, padding and gathers are nothing but index arithmetic on the way.

mod at;
mod attention;
mod divided;
mod elementwise;
mod index;
mod layout;
mod normalize;
mod ordered;
mod packed;
mod product;
mod recurrent;
mod reduce;
mod rows;
mod stages;
mod window;

use std::collections::{BTreeMap, HashMap};

use super::{Arg, Body, Expr, ExprId, Exprs, Place, Program, Store, Var, verify};
use crate::error::{Error, Report, Result};
use crate::ir::{DType, Family, Graph, NodeId, Op, ScatterKind, ValueId};
use crate::kernel::fused::{self, Layout, Segment, is_sum_of_rows, layout};
use crate::kernel::{Fused, normalizes_rows, zeros_before};

/// Why nodes do not become one program.
#[derive(Debug)]
enum Halt {
    /// They can be programs of their own.
    Unfused,
    /// They cannot be lowered at all.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Lowered<T> = std::result::Result<T, Halt>;

/// The programs that compute a group, to be run in order. None where it has only views.
///
/// Errors: a dimension that is not bound, a tensor of 2^63 elements or more, an operation that is
/// not lowered.
pub fn lower(graph: &Graph, fused: &Fused<'_>) -> Result<Vec<Program>> {
    let layout = layout(graph, fused);
    let workspace = stage_workspace(graph, fused, &layout);
    let mut programs = Vec::new();
    let mut position = 0;
    while position < layout.segments.len() {
        let segments = &layout.segments[position..];
        let mut found = None;
        for count in together(graph, segments) {
            let nodes: Vec<NodeId> = segments[..count].iter().flat_map(Segment::nodes).copied().collect();
            match ProgramBuilder::new(graph, fused, &layout, &nodes).programs() {
                Ok(programs) => {
                    found = Some((count, programs));
                    break;
                }
                Err(Halt::Unfused) => {}
                Err(Halt::Failed(error)) => return Err(error),
            }
        }
        let (count, made) = match found {
            Some(found) => found,
            None => (1, unfused(graph, fused, &layout, segments[0].nodes())?),
        };
        position += count;
        programs.extend(made.into_iter().flat_map(|program| stages::staged(program, workspace)));
    }
    for program in &programs {
        verify(program)?;
    }
    Ok(programs)
}

/// How many of the first segments may be one program, most first: a node with a kernel of its own and the chain
/// behind it, or a norm, its chain, the product of what they make, and the chain behind that, or zeros, what adds to
/// them, and the chain behind that.
fn together(graph: &Graph, segments: &[Segment]) -> Vec<usize> {
    let chain = |at: usize| matches!(segments.get(at), Some(Segment::Chain(_)));
    let Some(Segment::Primitive(first)) = segments.first() else { return vec![] };
    if segments.get(1).is_some_and(|sums| is_sum_of_rows(graph, &segments[0], sums)) {
        return chain(2).then_some(3).into_iter().chain([2]).collect();
    }
    let at = if chain(1) { 2 } else { 1 };
    let product = match segments.get(at) {
        Some(Segment::Primitive(product)) if normalizes_rows(graph, *first, *product) => {
            let behind = chain(at + 1).then_some(at + 2);
            behind.into_iter().chain([at + 1]).collect()
        }
        _ => vec![],
    };
    product.into_iter().chain(chain(1).then_some(2)).collect()
}

/// As [`lower`], but nothing is an epilogue: each node with a kernel of its own, and each chain, is a program.
/// They may not run where a plan lets the group write over what a chain behind a product reads.
///
/// Errors: those of [`lower`].
pub fn lower_unfused(graph: &Graph, fused: &Fused<'_>) -> Result<Vec<Program>> {
    let layout = layout(graph, fused);
    let workspace = stage_workspace(graph, fused, &layout);
    let mut programs = Vec::new();
    for segment in &layout.segments {
        let made = unfused(graph, fused, &layout, segment.nodes())?;
        programs.extend(made.into_iter().flat_map(|program| stages::staged(program, workspace)));
    }
    programs.iter().try_for_each(verify)?;
    Ok(programs)
}

/// Behind the group's own workspace.
fn stage_workspace(graph: &Graph, fused: &Fused<'_>, layout: &Layout) -> stages::StageWorkspace {
    stages::StageWorkspace { offset: layout.workspace.get(), bytes: fused::folded_parts(graph, fused).get() }
}

fn unfused(graph: &Graph, fused: &Fused<'_>, layout: &Layout, nodes: &[NodeId]) -> Result<Vec<Program>> {
    match ProgramBuilder::new(graph, fused, layout, nodes).programs() {
        Ok(programs) => Ok(programs),
        Err(Halt::Failed(error)) => Err(error),
        Err(Halt::Unfused) => Err(Error::Internal("a segment cannot be lowered by itself".to_owned())),
    }
}

/// What a hero has made, at which linear position of which value.
#[derive(Clone, Copy, Debug)]
struct HeroResult {
    value: ValueId,
    position: ExprId,
    expr: ExprId,
}

/// Makes one program.
struct ProgramBuilder<'a> {
    graph: &'a Graph,
    fused: &'a Fused<'a>,
    layout: &'a Layout,
    /// Nodes that the program computes, ascending.
    nodes: &'a [NodeId],
    exprs: Exprs,
    args: Vec<Arg>,
    arg_of: BTreeMap<(Place, DType), u32>,
    memo: HashMap<(ValueId, Vec<ExprId>, Option<ExprId>), ExprId>,
    /// Positions that were delinearized, by sizes and index.
    positions: HashMap<(Vec<i64>, Vec<ExprId>), ExprId>,
    hero_result: Option<HeroResult>,
}

impl<'a> ProgramBuilder<'a> {
    fn new(graph: &'a Graph, fused: &'a Fused<'a>, layout: &'a Layout, nodes: &'a [NodeId]) -> Self {
        Self {
            graph,
            fused,
            layout,
            nodes,
            exprs: Exprs::default(),
            args: Vec::new(),
            arg_of: BTreeMap::new(),
            memo: HashMap::new(),
            positions: HashMap::new(),
            hero_result: None,
        }
    }

    fn programs(self) -> Lowered<Vec<Program>> {
        let Some(&first) = self.nodes.first() else { return Ok(vec![]) };
        if self.results().is_empty() {
            // Nobody reads what they make.
            return Ok(vec![]);
        }
        // A norm before a product is made in the product's kernel, and zeros in that of what adds to them.
        let graph = self.graph;
        let is_hero = |node: NodeId| {
            matches!(graph.node(node).op, Op::MatMul { .. }) || zeros_before(graph, node) == Some(first)
        };
        let first = self.nodes.iter().copied().find(|&node| is_hero(node)).unwrap_or(first);
        match graph.node(first).op.family() {
            Family::Leaf | Family::Generator(_) | Family::Elementwise(_) => self.alone(Self::map),
            Family::Layout(op) => self.layout_programs(first, op),
            Family::Index(op) => self.index_programs(first, op),
            Family::Window(op) => self.window_programs(first, op),
            Family::Reduce(op) => self.reduce_programs(first, op),
            Family::Normalize(op) => self.normalize_programs(first, op),
            Family::Product(_) => self.alone(|this| this.product(first)),
            Family::Packed(op) => self.packed_programs(first, op),
            Family::Attention(op) => self.attention_programs(first, op),
            Family::Recurrent(_) if self.is_fused() => Err(Halt::Unfused),
            Family::Recurrent(_) => self.alone(|this| this.recurrent(first)),
        }
    }

    /// Whether other nodes are to be computed in the hero's kernel.
    fn is_fused(&self) -> bool {
        self.nodes.len() > 1
    }

    /// One program.
    fn alone(mut self, body: impl FnOnce(&mut Self) -> Lowered<Body>) -> Lowered<Vec<Program>> {
        let body = body(&mut self)?;
        Ok(vec![self.finish(body)])
    }

    fn finish(self, body: Body) -> Program {
        let name = name(self.graph, self.nodes);
        Program { name, args: self.args, exprs: self.exprs, body }
    }

    fn dims(&self, value: ValueId) -> Result<Vec<i64>> {
        let ty = self.graph.ty(value);
        let dims = ty.shape.dims().ok_or_else(|| unsupported("a dimension has no value"))?;
        match ty.elements() {
            Some(elements) if elements <= i64::MAX as u64 / 16 => Ok(dims),
            _ => Err(unsupported("a tensor has too many elements")),
        }
    }

    fn dtype(&self, value: ValueId) -> DType {
        self.graph.ty(value).dtype
    }

    /// The argument that a value is written to.
    fn written_arg(&mut self, value: ValueId) -> Result<u32> {
        let position = self.arg(value)?;
        self.args[position as usize].written = true;
        Ok(position)
    }

    /// The argument that has a value.
    fn arg(&mut self, value: ValueId) -> Result<u32> {
        let place = match self.layout.place(self.fused, value) {
            Some(fused::Place::Read(position)) => Place::Read(position as u32),
            Some(fused::Place::Write(position)) => Place::Write(position as u32),
            Some(fused::Place::Workspace { offset, .. }) => Place::Workspace(offset),
            Some(fused::Place::Register) | None => {
                return Err(Error::Internal(format!("{value} has no place in its group")));
            }
        };
        let (dtype, elements) = (self.dtype(value), self.graph.ty(value).elements().unwrap_or(u64::MAX));
        let next = self.args.len() as u32;
        let position = *self.arg_of.entry((place, dtype)).or_insert(next);
        if position == next {
            self.args.push(Arg { place, dtype, elements, written: false });
        }
        Ok(position)
    }

    /// The values that the program writes: those that others read, or that leave the group.
    fn results(&self) -> Vec<ValueId> {
        let inside = |node: NodeId| self.nodes.binary_search(&node).is_ok();
        let read_outside = |value: ValueId| {
            self.fused.nodes.iter().filter(|&&node| !inside(node)).any(|&node| {
                self.graph.node(node).operands.iter().any(|operand| self.fused.base[operand.index()] == value)
            })
        };
        let made = self.nodes.iter().flat_map(|&node| self.graph.results(node));
        made.filter(|&value| self.fused.writes.contains(&value) || read_outside(value)).collect()
    }

    /// Stores of the program's results at a position that runs over all their elements.
    fn stores_at(&mut self, position: ExprId) -> Lowered<Vec<Store>> {
        let results = self.results();
        self.stores_of(&results, position)
    }

    fn stores_of(&mut self, values: &[ValueId], position: ExprId) -> Lowered<Vec<Store>> {
        let mut stores = Vec::new();
        for &value in values {
            let dims = self.dims(value)?;
            let index = self.delinearized(&dims, position);
            let stored = self.at(value, &index, None)?;
            let arg = self.written_arg(value)?;
            stores.push(Store {
                arg,
                index: position,
                value: stored,
                guard: None,
                kind: ScatterKind::Replace,
            });
        }
        Ok(stores)
    }

    /// As many elements as each of the program's results has. `Halt::Unfused` where they differ.
    fn elements(&self) -> Lowered<i64> {
        let mut count = None;
        for value in self.results() {
            let elements = self.dims(value)?.iter().product::<i64>();
            if *count.get_or_insert(elements) != elements {
                return Err(Halt::Unfused);
            }
        }
        Ok(count.unwrap_or(0))
    }

    /// One thread for each element of the results.
    fn map(&mut self) -> Lowered<Body> {
        let elements = self.elements()?;
        let point = self.exprs.var(elements);
        let position = self.exprs.at(point);
        let stores = self.stores_at(position)?;
        Ok(Body::Map { point, stores })
    }

    /// As [`Exprs::delinearize`], remembered, so that it joins again whatever it looks like.
    fn delinearized(&mut self, dims: &[i64], position: ExprId) -> Vec<ExprId> {
        let index = self.exprs.delinearize(dims, position);
        self.positions.insert((dims.to_vec(), index.clone()), position);
        index
    }

    fn linear(&mut self, dims: &[i64], index: &[ExprId]) -> ExprId {
        match self.positions.get(&(dims.to_vec(), index.to_vec())) {
            Some(&position) => position,
            None => self.exprs.linear(dims, index),
        }
    }

    /// The variable as an index, and the index of each axis that it runs over.
    fn over(&mut self, dims: &[i64]) -> (Var, Vec<ExprId>) {
        let var = self.exprs.var(dims.iter().product());
        let position = self.exprs.at(var);
        (var, self.delinearized(dims, position))
    }

    /// The value at an index where the guard holds, else a constant.
    fn guarded(
        &mut self,
        value: ValueId,
        index: &[ExprId],
        guard: Option<ExprId>,
        other: f64,
    ) -> Lowered<ExprId> {
        let found = self.at(value, index, guard)?;
        let Some(guard) = guard else { return Ok(found) };
        let dtype = self.exprs.dtype(found);
        if let Expr::Load { arg, index, guard: Some(own), .. } = *self.exprs.get(found)
            && own == guard
        {
            return Ok(self.exprs.load(arg, dtype, index, Some(guard), other));
        }
        let other = self.exprs.constant(other, dtype);
        Ok(self.exprs.select(guard, found, other))
    }
}

/// The operations of nodes, the first ones by name.
fn name(graph: &Graph, nodes: &[NodeId]) -> String {
    let names: Vec<&str> = nodes.iter().map(|&node| graph.node(node).op.name()).collect();
    match names.len() {
        0..=4 => names.join("_"),
        more => format!("{}_and_{}_more", names[..3].join("_"), more - 3),
    }
}

fn unsupported(message: &str) -> Error {
    Error::Unsupported(Report::new("", message))
}
