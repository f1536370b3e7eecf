//! Kernel IR: what a group computes, as loops over explicit indices, before it is printed for a
//! device.
//!
//! A [`Program`] is one kernel: its arguments, the expressions that it computes, and a [`Body`], the
//! hero, that says over what they are computed and who works together. What is read before the hero
//! and what follows from it stands in the same expressions and so costs nothing beyond them.

#[cfg(feature = "run")]
mod attend;
#[cfg(feature = "run")]
mod evaluate;
mod expr;
mod gemm;
mod lower;
mod text;
mod verify;

#[cfg(feature = "run")]
pub use evaluate::{Array, evaluate, evaluate_at, points};
pub use expr::{Expr, ExprId, Exprs, Fold, MAX_VARS, Ty, Var};
pub use gemm::{Activation, At, Gemm, GemmCall, Side, Strides, gemm, with_sums};
pub use lower::{lower, lower_unfused};
pub use verify::verify;

use super::attention::{Geometry, HeadStrides};
use crate::ir::{Attention, DType, Recurrent, ScatterKind};

/// Whose bytes an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// What the group reads, by position.
    Read(u32),
    /// What the group writes, by position.
    Write(u32),
    /// The group's workspace, from this byte.
    Workspace(u64),
}

/// An argument: elements one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Whose bytes it is.
    pub place: Place,
    /// Type of the elements.
    pub dtype: DType,
    /// How many there are.
    pub elements: u64,
    /// Whether the program writes it.
    pub written: bool,
}

/// An element that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Which argument.
    pub arg: u32,
    /// Which element.
    pub index: ExprId,
    /// What is written; of the argument's type.
    pub value: ExprId,
    /// Nothing is written where this is false.
    pub guard: Option<ExprId>,
    /// How the value is combined with what is there.
    pub kind: ScatterKind,
}

/// A reduction of each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// What is computed.
    pub kind: Fold,
    /// Of what, for each row and column; may use the reductions before it.
    pub value: ExprId,
}

/// Which of a row's elements are beside one another, and so who works together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Those of one row: a warp or a block takes a row, which stays in registers where it fits.
    Columns,
    /// Those of one column: each thread of a warp takes a row of its own.
    Rows,
}

/// The hero of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// One thread a point, or for some neighbouring points.
    Map {
        /// The points.
        point: Var,
        /// What is written at each.
        stores: Vec<Store>,
    },
    /// One thread a line, whose steps run in order.
    Lines {
        /// The lines.
        line: Var,
        /// The steps.
        step: Var,
        /// What is summed up along the line, if anything: [`Expr::Hero`] is the sum.
        running: Option<Running>,
        /// What is written at each step.
        stores: Vec<Store>,
    },
    /// Reductions of rows, and what follows from them.
    Rows {
        /// The rows.
        row: Var,
        /// The columns.
        column: Var,
        /// Who works together.
        along: Along,
        /// What is read several times and stays in registers where it fits.
        cached: Vec<ExprId>,
        /// In order.
        reductions: Vec<Reduction>,
        /// What is written for each element, after the reductions.
        stores: Vec<Store>,
        /// What is written for each row.
        row_stores: Vec<Store>,
    },
    /// A transposition through shared memory: [`Expr::Hero`] is the value.
    Tile {
        /// Tiles of different batches share nothing.
        batch: Var,
        /// Neighbours of what is read.
        row: Var,
        /// Neighbours of what is written.
        column: Var,
        /// What is transposed.
        value: ExprId,
        /// What is written.
        stores: Vec<Store>,
    },
    /// A matrix product of what the operands' expressions give: [`Expr::Hero`] is the sum over
    /// `inner` of `left * right`. The left operand's rows may be reduced first.
    Product {
        /// Products apart.
        batch: Var,
        /// Rows of the left operand.
        row: Var,
        /// Columns of the right operand.
        column: Var,
        /// What is summed over.
        inner: Var,
        /// Of `row` and `inner`, what reductions read several times.
        cached: Vec<ExprId>,
        /// Of the left operand's rows over `inner`, in order; there is one batch then.
        reductions: Vec<Reduction>,
        /// Of batch, row and inner, and the reductions.
        left: ExprId,
        /// Of batch, inner and column.
        right: ExprId,
        /// Of batch, row and column.
        stores: Vec<Store>,
        /// One operand is what windows show of images: how, so that what neighbouring windows share may be read once.
        patches: Option<Box<Patches>>,
    },
    /// Rows that are each updated in order.
    Scatter(Box<Scatter>),
    /// Steps, brought into the order of the rows that they update.
    Order(Box<Order>),
    /// A recurrent layer; operands and results in the order of [`Recurrent`].
    Recurrent(Box<Layer>),
    /// Attention, row by row, or its gradients.
    Attention(Box<Heads>),
}

/// What runs along a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// What is added at each step.
    pub value: ExprId,
    /// The sum leaves out the step's own value.
    pub exclusive: bool,
}

/// `sum[row][column] = start`, and then for each step in order, where `place` is the row, what stood there combined
/// with `update`; at last `out[row][column] = made`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// The rows.
    pub row: Var,
    /// The columns of each.
    pub column: Var,
    /// The updates.
    pub step: Var,
    /// What is there before, of row and column.
    pub start: ExprId,
    /// The row that a step updates.
    pub place: ExprId,
    /// With what, of step and column.
    pub update: ExprId,
    /// How that is combined with what is there.
    pub kind: ScatterKind,
    /// What is written, of row and column: [`Expr::Hero`], which is the sum, or what follows from it.
    pub made: ExprId,
    /// The argument that is written, row by row.
    pub out: u32,
    /// Steps that were ordered by a kernel before, and what is done with them; None where one kernel looks for each row's
    /// steps itself.
    pub ordered: Option<Ordered>,
}

impl Scatter {
    /// What its kernel computes. Ordered steps know their rows.
    fn roots(&self) -> Vec<ExprId> {
        match self.ordered.map(|ordered| ordered.pass) {
            None => vec![self.start, self.place, self.update, self.made],
            Some(ScatterPass::Parts) => vec![self.update],
            Some(ScatterPass::Rows) => vec![self.start, self.update, self.made],
        }
    }
}

/// What a kernel does with steps that are ordered by their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterPass {
    /// Joins the updates of each part of a row that has more steps than a part.
    Parts,
    /// Joins those of the other rows, and the parts of these, to what was there before.
    Rows,
}

/// Steps in the order of their rows, and those of one row as they were; a row of more than `length` of them is joined part by
/// part. Its steps from the `k * length`-th on are part `k`: in the last of the two places of the window of `length`
/// positions in which that begins where it is the row's first part, and in the first one else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// What the kernel does.
    pub pass: ScatterPass,
    /// The argument of the rows, in order.
    pub places: u32,
    /// The argument of the steps.
    pub steps: u32,
    /// The argument of what the parts make, each a row.
    pub parts: u32,
    /// Steps of a part.
    pub length: i64,
}

impl Ordered {
    /// The place of part `k` of a row whose steps begin at this position.
    pub const fn slot(&self, begin: i64, k: i64) -> i64 {
        2 * (begin / self.length + k) + if k == 0 { 1 } else { 0 }
    }
}

/// What a kernel does of a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderPass {
    /// Counts the steps of each digit in each block of positions.
    Count,
    /// Puts them where these counts say.
    Sort,
}

/// One digit of a sort, from the lowest on: steps in the order of this digit of the rows that they update, and those with
/// the same one as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// What the kernel does.
    pub pass: OrderPass,
    /// Positions; the first digit is of steps in their own order.
    pub step: Var,
    /// The row at each, of position.
    pub place: ExprId,
    /// Rows.
    pub rows: i64,
    /// The argument of the steps that the digit before has ordered.
    pub from: Option<u32>,
    /// The digit's lowest bit, and how many it has.
    pub shift: u32,
    /// At most 8.
    pub bits: u32,
    /// Positions of a block.
    pub each: i64,
    /// The argument of the counts, block by block.
    pub counts: u32,
    /// The arguments of rows and steps in the new order.
    pub to: [u32; 2],
}

impl Order {
    /// The digit of a row.
    pub const fn digit(&self, row: i64) -> i64 {
        (row >> self.shift) & ((1 << self.bits) - 1)
    }
}

/// The operand of a convolution, whose terms are the elements of windows over images: what it is beside the expression
/// that reads it by image, position and place in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patches {
    /// The operand: left where the result has its channels last, right where it has them first.
    pub side: Side,
    /// Image, row, column and channel of an element of the images.
    pub element: [Var; 4],
    /// The element.
    pub value: ExprId,
    /// Rows and columns of the result, which are counted after its images.
    pub places: [i64; 2],
    /// Rows and columns of a window.
    pub kernel: [i64; 2],
    /// How far windows are from one another.
    pub strides: [i64; 2],
    /// How far a window's elements are.
    pub dilations: [i64; 2],
    /// Zeros before each axis; there are as many behind it as windows reach.
    pub pads: [i64; 2],
    /// A window is summed element by element, each channel by channel; else channel by channel.
    pub channels_inside: bool,
}

/// A recurrent layer's sizes and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The cell and the direction.
    pub cell: Recurrent,
    /// Steps.
    pub time: i64,
    /// Sequences.
    pub batch: i64,
    /// Features of the input.
    pub features: i64,
    /// Arguments that are read, in the order of the operation's operands.
    pub reads: Vec<u32>,
    /// Arguments that are written, in the order of its results.
    pub writes: Vec<u32>,
}

/// What is made of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Its result.
    Forward,
    /// What each part of a row's keys gives: the largest score, the sum of the exponentials of what scores are less than
    /// that, and the values' sum with these as weights.
    Parts,
    /// Row by row, the gradients of queries, and what the other pass needs of each row: the logarithm of the
    /// sum of its exponentials, and its result times the gradient of that.
    Queries,
    /// Key by key, the gradients of keys and values.
    Keys,
}

impl Pass {
    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "attention",
            Self::Parts => "attention_parts",
            Self::Queries => "attention_gradient_rows",
            Self::Keys => "attention_gradient_keys",
        }
    }
}

/// An attention's sizes and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    /// What is made.
    pub pass: Pass,
    /// What becomes of the scores.
    pub op: Attention,
    /// Its sizes, and where the operands are.
    pub geometry: Geometry,
    /// By axis of batch, head, row and key; 0 where the mask is repeated.
    pub mask_strides: [u64; 4],
    /// Arguments of queries, keys and values.
    pub reads: [u32; 3],
    /// The argument of the mask.
    pub mask: Option<u32>,
    /// The argument of the position of the first row.
    pub position: Option<u32>,
    /// Of gradients: the arguments of the result and of its gradient, which lie alike.
    pub upstream: Option<[u32; 2]>,
    /// Of gradients, and of parts: the arguments of the two numbers of each row, or of each of its parts.
    pub rows: Option<[u32; 2]>,
    /// Parts that share the keys of a row; 1 but in [`Pass::Parts`].
    pub parts: u64,
    /// The arguments that are written, and how they are stored.
    pub writes: Vec<(u32, HeadStrides)>,
}

/// One kernel.
#[derive(Clone, Debug)]
pub struct Program {
    /// What people know it by: the operations that it computes.
    pub name: String,
    /// What it reads and writes.
    pub args: Vec<Arg>,
    /// What it computes.
    pub exprs: Exprs,
    /// How.
    pub body: Body,
}

impl Program {
    /// The name of the hero.
    pub fn hero(&self) -> &'static str {
        match &self.body {
            Body::Map { .. } => "map",
            Body::Lines { .. } => "lines",
            Body::Rows { along: Along::Columns, .. } => "row",
            Body::Rows { along: Along::Rows, .. } => "column",
            Body::Tile { .. } => "transpose",
            Body::Product { .. } => "product",
            Body::Scatter(scatter) => match scatter.ordered {
                None => "scatter",
                Some(Ordered { pass: ScatterPass::Parts, .. }) => "scatter_parts",
                Some(Ordered { pass: ScatterPass::Rows, .. }) => "scatter_rows",
            },
            Body::Order(order) => match order.pass {
                OrderPass::Count => "count",
                OrderPass::Sort => "order",
            },
            Body::Recurrent(_) => "recurrent",
            Body::Attention(heads) => heads.pass.name(),
        }
    }

    /// The variables over whose values the body runs, outermost first.
    pub fn domain(&self) -> Vec<Var> {
        match self.body {
            Body::Map { point, .. } => vec![point],
            Body::Lines { line, step, .. } => vec![line, step],
            Body::Rows { row, column, .. } => vec![row, column],
            Body::Tile { batch, row, column, .. } => vec![batch, row, column],
            Body::Product { batch, row, column, inner, .. } => vec![batch, row, column, inner],
            Body::Scatter(ref scatter) => vec![scatter.row, scatter.column, scatter.step],
            Body::Order(ref order) => vec![order.step],
            Body::Recurrent(_) | Body::Attention(_) => vec![],
        }
    }

    /// The variables that no expression binds: those of the domain, and those of an operand's elements.
    pub fn bound(&self) -> Vec<Var> {
        let mut bound = self.domain();
        if let Body::Product { patches: Some(patches), .. } = &self.body {
            bound.extend(patches.element);
        }
        bound
    }

    /// What is written, but by scatters, recurrent layers and attention.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        let (first, second): (&[Store], &[Store]) = match &self.body {
            Body::Map { stores, .. }
            | Body::Lines { stores, .. }
            | Body::Tile { stores, .. }
            | Body::Product { stores, .. } => (stores, &[]),
            Body::Rows { stores, row_stores, .. } => (stores, row_stores),
            Body::Scatter(_) | Body::Order(_) | Body::Recurrent(_) | Body::Attention(_) => (&[], &[]),
        };
        first.iter().chain(second)
    }

    /// By expression: whether what is written once for each row follows from it.
    fn used_by_rows(&self) -> Vec<bool> {
        let Body::Rows { row_stores, .. } = &self.body else { return vec![false; self.exprs.len()] };
        let roots =
            row_stores.iter().flat_map(|store| store.guard.into_iter().chain([store.index, store.value]));
        self.followed_by(&roots.collect::<Vec<_>>())
    }

    /// The expressions from which all that the program does follows, but for its domain.
    pub fn roots(&self) -> Vec<ExprId> {
        let mut roots: Vec<ExprId> = self
            .stores()
            .flat_map(|store| store.guard.into_iter().chain([store.index, store.value]))
            .collect();
        match &self.body {
            Body::Rows { cached, reductions, .. } => {
                roots.extend(cached);
                roots.extend(reductions.iter().map(|reduction| reduction.value));
            }
            Body::Lines { running, .. } => roots.extend(running.iter().map(|running| running.value)),
            Body::Tile { value, .. } => roots.push(*value),
            Body::Product { cached, reductions, left, right, patches, .. } => {
                roots.extend(cached);
                roots.extend(reductions.iter().map(|reduction| reduction.value));
                roots.extend([*left, *right]);
                roots.extend(patches.iter().map(|patches| patches.value));
            }
            Body::Scatter(scatter) => roots.extend(scatter.roots()),
            Body::Order(order) => roots.push(order.place),
            Body::Map { .. } | Body::Recurrent(_) | Body::Attention(_) => {}
        }
        roots
    }

    /// By expression: whether anything follows from it.
    pub fn used(&self) -> Vec<bool> {
        self.followed_by(&self.roots())
    }

    /// By expression: whether one of these follows from it.
    fn followed_by(&self, roots: &[ExprId]) -> Vec<bool> {
        let mut used = vec![false; self.exprs.len()];
        for root in roots {
            used[root.0 as usize] = true;
        }
        for id in (0..self.exprs.len()).rev().filter(|&id| used[id]).collect::<Vec<_>>() {
            mark(&self.exprs, id, &mut used);
        }
        used
    }

    /// True where every element of an argument is written to the same place of another one, and nothing else is done:
    /// nothing is to be done where the two are at one place.
    pub fn is_copy(&self) -> bool {
        let Body::Map { point, stores } = &self.body else { return false };
        let [store] = &stores[..] else { return false };
        let Expr::Load { arg, index, guard: None, .. } = *self.exprs.get(store.value) else { return false };
        let is_point = matches!(self.exprs.get(store.index), Expr::Var(var) if var == point);
        let alike = self.args[arg as usize].dtype == self.args[store.arg as usize].dtype;
        is_point
            && index == store.index
            && alike
            && store.guard.is_none()
            && store.kind == ScatterKind::Replace
    }

    /// True where nothing is to be done: no point in the domain.
    pub fn is_empty(&self) -> bool {
        match &self.body {
            Body::Product { batch, row, column, .. } => {
                [batch, row, column].iter().any(|&&var| self.exprs.extent(var) == 0)
            }
            Body::Rows { row, column, row_stores, .. } => {
                let extent = |var: Var| self.exprs.extent(var);
                extent(*row) == 0 || extent(*column) == 0 && row_stores.is_empty()
            }
            Body::Scatter(scatter) => {
                [scatter.row, scatter.column].iter().any(|&var| self.exprs.extent(var) == 0)
            }
            Body::Recurrent(layer) => layer.batch == 0 || layer.cell.hidden == 0,
            Body::Attention(heads) => {
                let geometry = &heads.geometry;
                let made = match heads.pass {
                    Pass::Forward | Pass::Parts => [geometry.rows, geometry.value_size],
                    Pass::Queries => [geometry.rows, geometry.rows],
                    Pass::Keys => [geometry.keys, geometry.keys],
                };
                geometry.batch == 0 || geometry.heads == 0 || made.contains(&0)
            }
            _ => self.domain().iter().any(|&var| self.exprs.extent(var) == 0),
        }
    }
}

/// Marks what an expression follows from; operands come before users, so a walk from the last to the
/// first reaches everything, however deep.
fn mark(exprs: &Exprs, from: usize, used: &mut [bool]) {
    let mut pending = vec![from];
    while let Some(id) = pending.pop() {
        for operand in exprs.operands(ExprId(id as u32)) {
            let operand = operand.0 as usize;
            if !std::mem::replace(&mut used[operand], true) {
                pending.push(operand);
            }
        }
    }
}
