//! Products of few results whose sums are long, as gradients of weights are: parts of the sums are products of their own, whose
//! results lie in the workspace, and a second kernel adds these up in order and stores what follows of each result. How many parts
//! follows from the sizes alone. ("Split-K"; CUTLASS, "Efficient GEMM in CUDA", "Parallelized reductions".)

use std::collections::HashMap;

use super::super::{Along, Arg, Body, ExprId, Fold, Place, Program, Reduction, Store, Var, gemm, verify};
use super::stages::StageWorkspace;
use crate::ir::{DType, ScatterKind};
use crate::kernel::SKINNY_ROWS;
use crate::kernel::workspace::sum_parts;
use crate::units::Bytes;

/// A product whose sums are divided.
struct Divided<'p> {
    whole: &'p Program,
    batch: Var,
    row: Var,
    column: Var,
    inner: Var,
    operands: [ExprId; 2],
    stores: &'p [Store],
    parts: i64,
    /// The type that is added in.
    dtype: DType,
    /// What the parts make: part by part, as the results lie.
    made: Arg,
}

/// The two stages; none where the product's own blocks are enough, where a library computes it, or where the workspace is too small.
/// O(expressions x ways to divide the sums).
pub(super) fn stages(program: &Program, workspace: StageWorkspace) -> Option<Vec<Program>> {
    Divided::all(program, workspace)?.into_iter().find_map(|divided| {
        let first = divided.first();
        // Parts that begin anywhere within the axes that a sum runs over have indices of which no bounds may be known.
        verify(&first).is_ok().then(|| vec![first, divided.second()])
    })
}

/// Whether a library of matrix products has the product, and has no slow kernels for it alone.
fn is_librarys(program: &Program) -> bool {
    gemm(program).is_some_and(|call| {
        let gemm = call.gemm;
        let odd = [gemm.left, gemm.right].iter().any(|side| side.pitch() % 2 != 0);
        gemm.rows.min(gemm.columns) > SKINNY_ROWS as i64 && !(gemm.dtype.is_half() && odd)
    })
}

impl<'p> Divided<'p> {
    /// In all numbers of parts, best first.
    fn all(whole: &'p Program, workspace: StageWorkspace) -> Option<Vec<Self>> {
        let Body::Product { batch, row, column, inner, reductions, left, right, stores, .. } = &whole.body
        else {
            return None;
        };
        let exprs = &whole.exprs;
        let dtype = if exprs.dtype(*left) == DType::F64 { DType::F64 } else { DType::F32 };
        if !reductions.is_empty() || !exprs.dtype(*left).is_float() || is_librarys(whole) {
            return None;
        }
        let [b, m, n, k] = [batch, row, column, inner].map(|&var| exprs.extent(var));
        // Behind what kernels before have left for this one.
        let ends = whole.args.iter().filter_map(|arg| match arg.place {
            Place::Workspace(at) => Some(at.checked_add(arg.elements.checked_mul(arg.dtype.size())?)?),
            Place::Read(_) | Place::Write(_) => None,
        });
        let begin = Bytes(ends.fold(workspace.offset, u64::max)).aligned().get();
        let end = workspace.offset.checked_add(workspace.bytes)?;
        let results = b.checked_mul(m)?.checked_mul(n)?;
        let room = end.checked_sub(begin)? / dtype.size() / u64::try_from(results.max(1)).ok()?;
        let parts = sum_parts([b, m, n], k, i64::try_from(room).unwrap_or(i64::MAX));
        let of = |parts: i64| {
            let elements = results.checked_mul(parts).and_then(|elements| u64::try_from(elements).ok())?;
            let made = Arg { place: Place::Workspace(begin), dtype, elements, written: true };
            Some(Self {
                whole,
                batch: *batch,
                row: *row,
                column: *column,
                inner: *inner,
                operands: [*left, *right],
                stores,
                parts,
                dtype,
                made,
            })
        };
        Some(parts.into_iter().filter_map(of).collect())
    }

    fn extent(&self, var: Var) -> i64 {
        self.whole.exprs.extent(var)
    }

    /// Each part's sums: one more product for each.
    fn first(&self) -> Program {
        let mut program = Program { name: format!("{} in parts", self.whole.name), ..self.whole.clone() };
        let exprs = &mut program.exprs;
        let [b, m, n, k] = [self.batch, self.row, self.column, self.inner].map(|var| self.extent(var));
        let length = k / self.parts;
        let (batch, inner) = (exprs.var(b * self.parts), exprs.var(length));
        let (at, step) = (exprs.at(batch), exprs.at(inner));
        let (own, part) = (exprs.modulo(at, b), exprs.div(at, b));
        let position = exprs.sum(0, &[(part, length), (step, 1)]);
        let [left, right] = self.operands.map(|operand| {
            let operand = exprs.substitute(operand, self.batch, own, &mut HashMap::new());
            exprs.substitute(operand, self.inner, position, &mut HashMap::new())
        });
        let (r, c) = (exprs.at(self.row), exprs.at(self.column));
        let index = exprs.sum(0, &[(at, m * n), (r, n), (c, 1)]);
        let value = exprs.hero(self.dtype);
        // This stage stores nothing but what its parts make.
        program.args.iter_mut().for_each(|arg| arg.written = false);
        program.args.push(self.made);
        let arg = program.args.len() as u32 - 1;
        program.body = Body::Product {
            batch,
            row: self.row,
            column: self.column,
            inner,
            cached: vec![],
            reductions: vec![],
            left,
            right,
            stores: vec![Store { arg, index, value, guard: None, kind: ScatterKind::Replace }],
            patches: None,
        };
        program
    }

    /// The sums of the parts' sums, and what follows from them.
    fn second(&self) -> Program {
        let mut program = self.whole.clone();
        let exprs = &mut program.exprs;
        let [b, m, n] = [self.batch, self.row, self.column].map(|var| self.extent(var));
        let (result, part) = (exprs.var(b * m * n), exprs.var(self.parts));
        let (at, step) = (exprs.at(result), exprs.at(part));
        let index = exprs.sum(0, &[(step, b * m * n), (at, 1)]);
        program.args.push(Arg { written: false, ..self.made });
        let arg = program.args.len() as u32 - 1;
        let value = exprs.load(arg, self.dtype, index, None, 0.0);
        let reductions = vec![Reduction { kind: Fold::Sum, value }];
        let place = exprs.delinearize(&[b, m, n], at);
        let mut done = [HashMap::new(), HashMap::new(), HashMap::new()];
        let mut heroes = HashMap::new();
        let mut moved = |exprs: &mut super::Exprs, id: ExprId| {
            let id = exprs.reduced_for_hero(id, &mut heroes);
            let vars = [self.batch, self.row, self.column];
            vars.iter()
                .zip(&place)
                .zip(&mut done)
                .fold(id, |id, ((&var, &to), done)| exprs.substitute(id, var, to, done))
        };
        let mut row_stores = Vec::new();
        for store in self.stores {
            let (index, value) = (moved(exprs, store.index), moved(exprs, store.value));
            let guard = store.guard.map(|guard| moved(exprs, guard));
            row_stores.push(Store { index, value, guard, ..store.clone() });
        }
        program.body = Body::Rows {
            row: result,
            column: part,
            along: Along::Rows,
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores,
        };
        program
    }
}
