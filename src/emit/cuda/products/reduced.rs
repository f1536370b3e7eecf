//! Rows that a block reduces before it multiplies them.

use super::super::ceil;
use super::super::map::reached;
use super::super::writer::{Writer, fold_name};
use crate::kernel::program::{Body, Expr, ExprId, Program, Var};

/// What roots load that follows from these variables alone, and from no sum or fold.
pub(super) fn early_loads(program: &Program, roots: &[ExprId], known: &[Var]) -> Vec<ExprId> {
    let exprs = &program.exprs;
    let bits = known.iter().fold(0u64, |bits, var| bits | 1 << var.0.min(63));
    let is_known = |id: ExprId| {
        let all = reached(exprs, &[id]);
        exprs.free(id) & !bits == 0
            && !all.iter().any(|&id| matches!(exprs.get(id), Expr::Hero(_) | Expr::Reduced(..)))
    };
    let loads = reached(exprs, roots).into_iter();
    loads.filter(|&id| matches!(exprs.get(id), Expr::Load { .. }) && is_known(id)).collect()
}

/// Most numbers that a thread holds of the rows that its block reduces.
const HELD: i64 = 24;

/// The method with which a block reduces the rows of the left operand, one after the other, and puts what is
/// multiplied into shared memory. Each thread has its own elements; it loads all that these follow from at once, where it can
/// hold them.
pub(super) fn reduced_rows(program: &Program, index_ty: &'static str, threads: i64) -> String {
    let Body::Product { batch, row, inner, reductions, left, .. } = &program.body else {
        return String::new();
    };
    // An array has one element at least.
    let each = ceil(program.exprs.extent(*inner), threads).max(1);
    let roots: Vec<ExprId> = reductions.iter().map(|reduction| reduction.value).chain([*left]).collect();
    let loads = early_loads(program, &roots, &[*batch, *row, *inner]);
    if each * loads.len() as i64 > HELD {
        return reduced_rows_in_memory(program, index_ty);
    }
    let mut writer = Writer::method(program, index_ty);
    writer.bind(*batch, "0");
    writer.open("for (I m = 0; m < (I)M; ++m)");
    writer.bind(*row, "m");
    let steps = Steps { inner: *inner, each, threads, loads: &loads };
    for (position, &load) in loads.iter().enumerate() {
        writer.line(&format!("{} held{position}[{each}];", writer.type_of(load)));
    }
    steps.open(&mut writer);
    for (position, &load) in loads.iter().enumerate() {
        let value = writer.value(load);
        writer.line(&format!("held{position}[j] = {value};"));
    }
    steps.close(&mut writer);
    for (position, reduction) in reductions.iter().enumerate() {
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        writer.line(&format!("{ty} part{position} = {join}::start<{ty}>();"));
        let value = steps.value(&mut writer, reduction.value);
        writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        steps.close(&mut writer);
        writer.line(&format!("const {ty} r{position} = block_fold<{join}>(part{position});"));
    }
    let value = steps.value(&mut writer, *left);
    writer.line(&format!("rows[m * (I)K + k] = {value};"));
    steps.close(&mut writer);
    writer.close();
    writer.line("__syncthreads();");
    format!("  DEVICE void reduce_rows() const {{\n{}  }}\n", writer.out)
}

/// The elements of a row that a thread has: `each`, so many apart as there are threads.
struct Steps<'a> {
    inner: Var,
    each: i64,
    threads: i64,
    /// What was loaded for each, in the order in which it is held.
    loads: &'a [ExprId],
}

impl Steps<'_> {
    fn open(&self, writer: &mut Writer<'_>) {
        let Self { each, threads, .. } = self;
        writer.line("#pragma unroll");
        writer.open(&format!("for (int j = 0; j < {each}; ++j)"));
        writer.line(&format!("const I k = (I)(j * {threads} + threadIdx.x);"));
        writer.open("if (k < (I)K)");
        writer.bind(self.inner, "k");
    }

    fn close(&self, writer: &mut Writer<'_>) {
        writer.close();
        writer.close();
    }

    /// Opens the loop over the elements, and what follows of each from what is held.
    fn value(&self, writer: &mut Writer<'_>, of: ExprId) -> String {
        writer.hoist(of, self.inner);
        self.open(writer);
        for (position, &load) in self.loads.iter().enumerate() {
            writer.name(load, format!("held{position}[j]"));
        }
        writer.value(of)
    }
}

/// The same of long rows: what is read several times lies in shared memory meanwhile.
pub(super) fn reduced_rows_in_memory(program: &Program, index_ty: &'static str) -> String {
    let Body::Product { batch, row, inner, cached, reductions, left, .. } = &program.body else {
        return String::new();
    };
    let mut writer = Writer::method(program, index_ty);
    writer.bind(*batch, "0");
    writer.open("for (I m = 0; m < (I)M; ++m)");
    writer.bind(*row, "m");
    writer.line("T* row = rows + m * (I)K;");
    // Threads of a row keep one element each time; more than one are computed again.
    let kept = cached.first().copied();
    for (position, reduction) in reductions.iter().enumerate() {
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        writer.line(&format!("{ty} part{position} = {join}::start<{ty}>();"));
        open_row(&mut writer, *inner, reduction.value);
        if let Some(kept) = kept.filter(|_| position == 0) {
            let value = writer.value(kept);
            writer.line(&format!("row[k] = {value};"));
        } else if let Some(kept) = kept {
            writer.name(kept, "row[k]");
        }
        let value = writer.value(reduction.value);
        writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        writer.close();
        writer.line(&format!("const {ty} r{position} = block_fold<{join}>(part{position});"));
    }
    open_row(&mut writer, *inner, *left);
    if let Some(kept) = kept {
        writer.name(kept, "row[k]");
    }
    let value = writer.value(*left);
    writer.line(&format!("row[k] = {value};"));
    writer.close();
    writer.close();
    writer.line("__syncthreads();");
    format!("  DEVICE void reduce_rows() const {{\n{}  }}\n", writer.out)
}

fn open_row(writer: &mut Writer<'_>, inner: Var, value: ExprId) {
    writer.hoist(value, inner);
    writer.line("#pragma unroll 4");
    writer.open("for (I k = threadIdx.x; k < (I)K; k += blockDim.x)");
    writer.bind(inner, "k");
}
