//! Reductions of few long rows, in stages: parts of each row are folded by blocks of their own, whose results
//! lie in the workspace, and a second kernel folds these in order. Both orders follow from the sizes alone. Where elements
//! follow from what is folded, as those of a normalisation do, a third kernel writes them, again part by part. Scatters of many
//! steps have stages of their own ([`ordered`]), as have products of few results ([`divided`]).

use std::collections::HashMap;

use super::super::{Along, Arg, Body, Expr, ExprId, Exprs, Fold, Place, Program, Reduction, Store, Var};
use super::{divided, ordered};
use crate::ir::{Binary, DType, Real, ScatterKind};
use crate::kernel::workspace::{Folded, parts_of};
use crate::units::Bytes;

/// The part of the workspace that takes what parts make.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageWorkspace {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The program, or its stages where it has more to fold than its blocks can do in good time.
pub(super) fn staged(program: Program, workspace: StageWorkspace) -> Vec<Program> {
    if let Body::Scatter(scatter) = &program.body
        && let Some(stages) = ordered::stages(&program, scatter, workspace)
    {
        return stages;
    }
    if let Some(stages) = divided::stages(&program, workspace) {
        return stages;
    }
    match Stages::of(&program, workspace) {
        Some(stages) if stages.stores.is_empty() => vec![stages.first(&program), stages.second(&program)],
        Some(stages) => vec![stages.first(&program), stages.second(&program), stages.third(&program)],
        None => vec![program],
    }
}

/// The second reduction of a row sums up squared deviations of an element from its mean, which the first one gives.
#[derive(Clone, Copy, Debug)]
struct Centred {
    element: ExprId,
    /// Elements of a row.
    count: f64,
}

/// How a program is cut.
struct Stages {
    row: Var,
    column: Var,
    along: Along,
    reductions: Vec<Reduction>,
    centred: Option<Centred>,
    stores: Vec<Store>,
    row_stores: Vec<Store>,
    parts: i64,
    /// What the parts make, one argument for each reduction.
    made: Vec<Arg>,
    /// What they are folded to, where elements follow from that.
    folded: Vec<Arg>,
}

/// A line of the first and the third stage, a part of a row; and its steps.
struct Part {
    line: Var,
    within: Var,
    /// The line as an index.
    at: ExprId,
    row: ExprId,
    /// Where in the row a step is, and whether that is still in it.
    position: ExprId,
    known: Option<ExprId>,
}

/// In which order blocks have the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forth,
    /// Where a block has one; neighbouring threads have neighbours of a row.
    Back,
}

impl Stages {
    fn of(program: &Program, workspace: StageWorkspace) -> Option<Self> {
        let Body::Rows { row, column, along, cached: _, reductions, stores, row_stores } = &program.body
        else {
            return None;
        };
        let exprs = &program.exprs;
        let (rows, columns) = (exprs.extent(*row), exprs.extent(*column));
        // What reads another reduction needs all of it first.
        let alone = |reduction: &Reduction| !reads_reduced(program, reduction.value);
        // Folding the parts again would give the number of a part instead of a position.
        let plain = |reduction: &Reduction| {
            !reduction.kind.is_position() && exprs.dtype(reduction.value) != DType::Bool
        };
        let centred = centred(program, reductions);
        if !reductions.iter().all(|one| plain(one) && (centred.is_some() || alone(one))) {
            return None;
        }
        let beside = *along == Along::Columns;
        let wanted = parts_of(Folded {
            rows,
            columns,
            beside,
            stored: !stores.is_empty(),
            centred: centred.is_some(),
        });
        // Parts as long as one another, which vectors divide where they can.
        let divides = |parts: &i64| columns % parts == 0;
        let even = |parts: &i64| divides(parts) && columns / parts % 8 == 0;
        let near = || wanted..2 * wanted;
        let whole = blocks_of(program);
        let parts = near()
            .filter(even)
            .min_by_key(|parts| (!whole.iter().all(|block| fits(columns / parts, *block)), *parts))
            .or_else(|| near().find(divides))
            .unwrap_or(wanted);
        if wanted < 2 || centred.is_some() && columns % parts != 0 {
            return None;
        }
        let mut at = workspace.offset;
        let mut kept = |elements: u64| -> Option<Vec<Arg>> {
            let one = |reduction: &Reduction| {
                let dtype = kept_as(exprs.dtype(reduction.value));
                let place = Place::Workspace(at);
                at = Bytes(at.checked_add(elements.checked_mul(dtype.size())?)?).aligned().get();
                Some(Arg { place, dtype, elements, written: true })
            };
            reductions.iter().map(one).collect()
        };
        let made = kept(rows.checked_mul(parts)?.unsigned_abs())?;
        let folded = if stores.is_empty() { vec![] } else { kept(rows.unsigned_abs())? };
        (at <= workspace.offset.saturating_add(workspace.bytes)).then(|| Self {
            row: *row,
            column: *column,
            along: *along,
            reductions: reductions.clone(),
            centred,
            stores: stores.clone(),
            row_stores: row_stores.clone(),
            parts,
            made,
            folded,
        })
    }

    /// Elements of a part, the last one perhaps fewer.
    fn length(&self, whole: &Program) -> i64 {
        let columns = whole.exprs.extent(self.column);
        columns / self.parts + i64::from(columns % self.parts != 0)
    }

    /// Lines that are parts of rows. Neighbours in memory stay neighbours.
    fn part(&self, whole: &Program, exprs: &mut Exprs, direction: Direction) -> Part {
        let (rows, columns) = (exprs.extent(self.row), exprs.extent(self.column));
        let length = self.length(whole);
        let (line, within) = (exprs.var(rows * self.parts), exprs.var(length));
        let (at, step) = (exprs.at(line), exprs.at(within));
        let (row, part) = match self.along {
            Along::Columns => {
                let at = match direction {
                    Direction::Forth => at,
                    Direction::Back => exprs.sum(rows * self.parts - 1, &[(at, -1)]),
                };
                (exprs.div(at, self.parts), exprs.modulo(at, self.parts))
            }
            Along::Rows => (exprs.modulo(at, rows), exprs.div(at, rows)),
        };
        let position = exprs.sum(0, &[(part, length), (step, 1)]);
        // The last part may be shorter.
        let known = exprs.within(position, columns);
        let end = exprs.index(columns - 1);
        // What is beyond the end loads the last element, and does not count.
        let position = exprs.min(position, end);
        Part { line, within, at, row, position, known }
    }

    /// What the parts fold: each part its deviations from its own mean.
    fn folded_in_parts(&self, whole: &Program, exprs: &mut Exprs) -> Vec<Reduction> {
        let mut reductions = self.reductions.clone();
        if let (Some(centred), [_, squares]) = (self.centred, &mut reductions[..]) {
            let dtype = exprs.dtype(centred.element);
            let sum = exprs.reduced(0, dtype);
            let count = exprs.constant(self.length(whole) as f64, dtype);
            let mean = exprs.binary(Binary::Div, sum, count);
            let rest = exprs.binary(Binary::Sub, centred.element, mean);
            squares.value = exprs.binary(Binary::Mul, rest, rest);
        }
        reductions
    }

    /// Each part's folds.
    fn first(&self, whole: &Program) -> Program {
        let mut program = Program { name: format!("{} in parts", whole.name), ..whole.clone() };
        let exprs = &mut program.exprs;
        let Part { line, within, at, row, position, known } = self.part(whole, exprs, Direction::Forth);
        let (mut rows_done, mut columns_done) = (HashMap::new(), HashMap::new());
        let mut cached = Vec::new();
        if let Some(centred) = self.centred {
            let element = exprs.substitute(centred.element, self.row, row, &mut rows_done);
            cached.push(exprs.substitute(element, self.column, position, &mut columns_done));
        }
        let mut reductions = Vec::new();
        let mut row_stores = Vec::new();
        // This stage stores nothing but what its parts make.
        for arg in program.args.iter_mut() {
            arg.written = false;
        }
        let parts = self.folded_in_parts(whole, exprs);
        for (number, (reduction, made)) in parts.iter().zip(&self.made).enumerate() {
            let value = exprs.substitute(reduction.value, self.row, row, &mut rows_done);
            let mut value = exprs.substitute(value, self.column, position, &mut columns_done);
            if let Some(known) = known {
                let dtype = exprs.dtype(value);
                let none = nothing(exprs, reduction.kind, dtype);
                value = exprs.select(known, value, none);
            }
            reductions.push(Reduction { kind: reduction.kind, value });
            let folded = exprs.reduced(number as u32, exprs.dtype(value));
            let folded =
                if exprs.dtype(value) == made.dtype { folded } else { exprs.convert(made.dtype, folded) };
            program.args.push(*made);
            let arg = program.args.len() as u32 - 1;
            row_stores.push(Store { arg, index: at, value: folded, guard: None, kind: ScatterKind::Replace });
        }
        program.body = Body::Rows {
            row: line,
            column: within,
            along: self.along,
            cached,
            reductions,
            stores: vec![],
            row_stores,
        };
        program
    }

    /// The folds of each row's parts, and what follows from them of the row.
    fn second(&self, whole: &Program) -> Program {
        let mut program = whole.clone();
        let exprs = &mut program.exprs;
        let rows = exprs.extent(self.row);
        let part = exprs.var(self.parts);
        let (row, step) = (exprs.at(self.row), exprs.at(part));
        let index = match self.along {
            Along::Columns => exprs.sum(0, &[(row, self.parts), (step, 1)]),
            Along::Rows => exprs.sum(0, &[(step, rows), (row, 1)]),
        };
        let mut reductions = Vec::new();
        for (reduction, made) in self.reductions.iter().zip(&self.made) {
            program.args.push(Arg { written: false, ..*made });
            let arg = program.args.len() as u32 - 1;
            let value = exprs.load(arg, made.dtype, index, None, 0.0);
            reductions.push(Reduction { kind: reduction.kind, value });
        }
        if let (Some(centred), [sums, squares]) = (self.centred, &mut reductions[..]) {
            let of_parts = [sums.value, squares.value];
            squares.value = joined(exprs, of_parts, centred.count, self.length(whole) as f64);
        }
        let mut row_stores = self.row_stores.clone();
        for (number, kept) in self.folded.iter().enumerate() {
            program.args.push(*kept);
            let arg = program.args.len() as u32 - 1;
            let value = exprs.reduced(number as u32, kept.dtype);
            row_stores.push(Store { arg, index: row, value, guard: None, kind: ScatterKind::Replace });
        }
        program.body = Body::Rows {
            row: self.row,
            column: part,
            along: self.along,
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores,
        };
        program
    }

    /// The elements that follow from what was folded of their rows, part by part.
    fn third(&self, whole: &Program) -> Program {
        let mut program = Program { name: format!("{} of parts", whole.name), ..whole.clone() };
        let exprs = &mut program.exprs;
        let own = exprs.at(self.row);
        let mut known = Vec::new();
        for (reduction, kept) in self.reductions.iter().zip(&self.folded) {
            program.args.push(Arg { written: false, ..*kept });
            let arg = program.args.len() as u32 - 1;
            known.push(exprs.load(arg, exprs.dtype(reduction.value), own, None, 0.0));
        }
        // What the first stage has read last, caches still hold.
        let part = self.part(whole, exprs, Direction::Back);
        let (mut reduced, mut rows, mut columns) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut moved = |exprs: &mut Exprs, id: ExprId| {
            let id = exprs.with_reduced(id, &known, &mut reduced);
            let id = exprs.substitute(id, self.row, part.row, &mut rows);
            exprs.substitute(id, self.column, part.position, &mut columns)
        };
        let mut stores = Vec::new();
        for store in &self.stores {
            let (index, value) = (moved(exprs, store.index), moved(exprs, store.value));
            let guard = store.guard.map(|guard| moved(exprs, guard));
            let guard = exprs.both(guard, part.known);
            stores.push(Store { index, value, guard, ..store.clone() });
        }
        program.body = Body::Rows {
            row: part.line,
            column: part.within,
            along: self.along,
            cached: vec![],
            reductions: vec![],
            stores,
            row_stores: vec![],
        };
        program
    }
}

/// Squared deviations from the row's mean, of `count` elements, from the sums of a part of `length` elements and its
/// squared deviations from its own mean (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979).
fn joined(exprs: &mut Exprs, [sum, squares]: [ExprId; 2], count: f64, length: f64) -> ExprId {
    let dtype = exprs.dtype(sum);
    let (count, length) = (exprs.constant(count, dtype), exprs.constant(length, dtype));
    let all = exprs.reduced(0, dtype);
    let (mean, own) = (exprs.binary(Binary::Div, all, count), exprs.binary(Binary::Div, sum, length));
    let apart = exprs.binary(Binary::Sub, own, mean);
    let apart = exprs.binary(Binary::Mul, apart, apart);
    let apart = exprs.binary(Binary::Mul, apart, length);
    exprs.binary(Binary::Add, squares, apart)
}

/// See [`Centred`].
fn centred(program: &Program, reductions: &[Reduction]) -> Option<Centred> {
    let exprs = &program.exprs;
    let [sum, squares] = reductions else { return None };
    let (Fold::Sum, Fold::Sum) = (sum.kind, squares.kind) else { return None };
    let Expr::Binary(Binary::Mul, rest, again) = *exprs.get(squares.value) else { return None };
    let Expr::Binary(Binary::Sub, element, mean) = *exprs.get(rest) else { return None };
    let Expr::Binary(Binary::Div, whole, count) = *exprs.get(mean) else { return None };
    let (Expr::Reduced(0, _), Expr::Constant(Real(count), _)) = (exprs.get(whole), exprs.get(count)) else {
        return None;
    };
    let alone = !reads_reduced(program, element);
    (rest == again && element == sum.value && alone).then_some(Centred { element, count: *count })
}

/// Whether an expression follows from a reduction.
fn reads_reduced(program: &Program, from: ExprId) -> bool {
    let mut seen = vec![false; program.exprs.len()];
    let mut pending = vec![from];
    while let Some(id) = pending.pop() {
        if matches!(program.exprs.get(id), Expr::Reduced(..)) {
            return true;
        }
        if !std::mem::replace(&mut seen[id.0 as usize], true) {
            pending.extend(program.exprs.operands(id));
        }
    }
    false
}

/// What positions are divided by: lengths of what is contiguous, which parts had better not cut.
fn blocks_of(program: &Program) -> Vec<i64> {
    let used = program.used();
    let ids = (0..program.exprs.len()).filter(|&id| used[id]);
    let divisors = ids.filter_map(|id| match program.exprs.get(ExprId(id as u32)) {
        Expr::Div(_, by) | Expr::Mod(_, by) => Some(*by),
        _ => None,
    });
    divisors.collect()
}

fn fits(length: i64, block: i64) -> bool {
    length % block == 0 || block % length == 0
}

/// Parts of halves are kept in what they are added in.
fn kept_as(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// What changes no fold.
fn nothing(exprs: &mut super::Exprs, kind: Fold, dtype: DType) -> ExprId {
    let (low, high) = match dtype.is_float() {
        true => (f64::NEG_INFINITY, f64::INFINITY),
        false => return exprs.whole(whole_nothing(kind, dtype), dtype),
    };
    let value = match kind {
        Fold::Prod => 1.0,
        Fold::Max => low,
        Fold::Min => high,
        Fold::Sum | Fold::ArgMax { .. } | Fold::ArgMin { .. } => 0.0,
    };
    exprs.constant(value, dtype)
}

fn whole_nothing(kind: Fold, dtype: DType) -> i64 {
    let bits = 8 * dtype.size();
    let high = if bits >= 64 { i64::MAX } else { (1i64 << (bits - 1)) - 1 };
    let unsigned = dtype == DType::U8;
    match kind {
        Fold::Prod => 1,
        Fold::Max => {
            if unsigned {
                0
            } else {
                -high - 1
            }
        }
        Fold::Min => {
            if unsigned {
                255
            } else {
                high
            }
        }
        Fold::Sum | Fold::ArgMax { .. } | Fold::ArgMin { .. } => 0,
    }
}
