//! Sums over many elements of few rows, in two stages: parts of each row are folded by blocks of their own,
//! whose results lie in the workspace, and a second kernel folds these in order. Both orders follow from the
//! sizes alone.

use std::collections::HashMap;

use super::super::{Along, Arg, Body, Expr, ExprId, Fold, Place, Program, Reduction, Store, Var};
use crate::ir::{DType, ScatterKind};
use crate::kernel::workspace::{Folded, parts_of};
use crate::units::Bytes;

/// Where the workspace has room for what parts make, and how many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The program, or its two stages where it has more to fold than its blocks can do in good time.
pub(super) fn staged(program: Program, room: Room) -> Vec<Program> {
    match Stages::of(&program, room) {
        Some(stages) => vec![stages.first(&program), stages.second(&program)],
        None => vec![program],
    }
}

/// How a program is cut.
struct Stages {
    row: Var,
    column: Var,
    along: Along,
    reductions: Vec<Reduction>,
    row_stores: Vec<Store>,
    parts: i64,
    /// What the parts make, one argument for each reduction.
    made: Vec<Arg>,
}

impl Stages {
    fn of(program: &Program, room: Room) -> Option<Self> {
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
        if !stores.is_empty() || !reductions.iter().all(|one| alone(one) && plain(one)) {
            return None;
        }
        let wanted = parts_of(Folded { rows, columns, beside: *along == Along::Columns });
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
        if wanted < 2 {
            return None;
        }
        let mut at = room.offset;
        let mut made = Vec::new();
        for reduction in reductions {
            let dtype = kept_as(exprs.dtype(reduction.value));
            let elements = rows.checked_mul(parts)?.unsigned_abs();
            made.push(Arg { place: Place::Workspace(at), dtype, elements, written: true });
            at = Bytes(at.checked_add(elements.checked_mul(dtype.size())?)?).aligned().get();
        }
        // Without room for what the parts make, the program stays whole.
        (at <= room.offset.saturating_add(room.bytes)).then(|| Self {
            row: *row,
            column: *column,
            along: *along,
            reductions: reductions.clone(),
            row_stores: row_stores.clone(),
            parts,
            made,
        })
    }

    /// Each part's folds. Neighbours in memory stay neighbours.
    fn first(&self, whole: &Program) -> Program {
        let mut program = Program { name: format!("{} in parts", whole.name), ..whole.clone() };
        let exprs = &mut program.exprs;
        let (rows, columns) = (exprs.extent(self.row), exprs.extent(self.column));
        let length = columns / self.parts + i64::from(columns % self.parts != 0);
        let (line, within) = (exprs.var(rows * self.parts), exprs.var(length));
        let (at, step) = (exprs.at(line), exprs.at(within));
        let (row, part) = match self.along {
            Along::Columns => (exprs.div(at, self.parts), exprs.modulo(at, self.parts)),
            Along::Rows => (exprs.modulo(at, rows), exprs.div(at, rows)),
        };
        let position = exprs.sum(0, &[(part, length), (step, 1)]);
        // The last part may be shorter.
        let known = exprs.within(position, columns);
        let end = exprs.index(columns - 1);
        // What is beyond the end loads the last element, and does not count.
        let position = exprs.min(position, end);
        let (mut rows_done, mut columns_done) = (HashMap::new(), HashMap::new());
        let mut reductions = Vec::new();
        let mut row_stores = Vec::new();
        // This stage stores nothing but what its parts make.
        for arg in program.args.iter_mut() {
            arg.written = false;
        }
        for (number, (reduction, made)) in self.reductions.iter().zip(&self.made).enumerate() {
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
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores,
        };
        program
    }

    /// The folds of each row's parts, and what follows from them.
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
        program.body = Body::Rows {
            row: self.row,
            column: part,
            along: self.along,
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores: self.row_stores.clone(),
        };
        program
    }
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
