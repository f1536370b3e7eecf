//! Rows: a warp or a block reduces a row, which stays in its registers where it fits.

use std::collections::HashMap;

use super::heroes::no_hero;
use super::map::{is_vector, reached};
use super::unaligned::Unaligned;
use super::writer::{Writer, collect, collected, fold_name, lane_of, store_collected, vector};
use super::{Launch, Printed, blocks, ceil, head, index_type, title};
use crate::error::Result;
use crate::ir::{Binary, ScatterKind, Unary};
use crate::kernel::program::{Along, Body, Expr, ExprId, Exprs, Fold, Program, Reduction, Store, Var};

/// Most elements of a row that one thread keeps in registers.
const KEPT: i64 = 32;

/// Shortest row that is not kept where its accesses are narrow.
const LONG: i64 = 8192;

/// Longest row, in accesses, that a warp takes.
const WARP: i64 = 256;

pub(super) fn rows(program: &Program) -> Result<Printed> {
    match &program.body {
        Body::Rows { along: Along::Columns, .. } => together(program),
        Body::Rows { along: Along::Rows, .. } => super::columns::columns(program),
        _ => Err(no_hero()),
    }
}

/// The body in terms of accesses and lanes: column = lanes * access + lane; or the same of its rows.
pub(super) struct Accesses {
    pub(super) program: Program,
    access: Var,
    pub(super) lane: Var,
    pub(super) lanes: i64,
    /// Loads of neighbours: expression, argument, first element.
    pub(super) loads: Vec<(ExprId, u32, ExprId)>,
    /// By position in the stores of elements: first element, where neighbours are written.
    pub(super) vectors: Vec<Option<ExprId>>,
    /// The same of the stores of rows.
    pub(super) row_vectors: Vec<Option<ExprId>>,
}

impl Accesses {
    pub(super) fn new(program: &Program, split: Var, lanes: i64) -> Self {
        let mut program = program.clone();
        let Body::Rows { row, column, along, cached, reductions, stores, row_stores } = program.body.clone()
        else {
            unreachable!("only rows are printed as rows")
        };
        let exprs = &mut program.exprs;
        let access = exprs.var(exprs.extent(split) / lanes);
        let lane = exprs.var(lanes);
        let (t, v) = (exprs.at(access), exprs.at(lane));
        let at = exprs.sum(0, &[(t, lanes), (v, 1)]);
        let mut done = HashMap::new();
        let mut sub = |exprs: &mut Exprs, id: ExprId| exprs.substitute(id, split, at, &mut done);
        let cached: Vec<ExprId> = cached.iter().map(|&id| sub(exprs, id)).collect();
        let reductions: Vec<Reduction> =
            reductions.iter().map(|r| Reduction { kind: r.kind, value: sub(exprs, r.value) }).collect();
        let mut moved = |stores: &[Store]| -> Vec<Store> {
            let one = |store: &Store| Store {
                index: sub(exprs, store.index),
                value: sub(exprs, store.value),
                guard: store.guard.map(|guard| sub(exprs, guard)),
                ..store.clone()
            };
            stores.iter().map(one).collect()
        };
        let (stores, row_stores) = (moved(&stores), moved(&row_stores));
        let zero = exprs.index(0);
        let mut first = HashMap::new();
        let mut loads = Vec::new();
        let mut firsts = |stores: &[Store]| -> Vec<Option<ExprId>> {
            let one = |store: &Store| {
                let plain = lanes > 1 && store.guard.is_none() && store.kind == ScatterKind::Replace;
                let vector = plain && is_vector(exprs, store.index, v, lanes);
                vector.then(|| exprs.substitute(store.index, lane, zero, &mut first))
            };
            stores.iter().map(one).collect()
        };
        let (vectors, row_vectors) = (firsts(&stores), firsts(&row_stores));
        let roots: Vec<ExprId> = cached
            .iter()
            .copied()
            .chain(reductions.iter().map(|reduction| reduction.value))
            .chain(stores.iter().chain(&row_stores).map(|store| store.value))
            .collect();
        for id in reached(exprs, &roots) {
            let Expr::Load { arg, index, guard: None, .. } = *exprs.get(id) else { continue };
            let ours = [row, column, access, lane].iter().fold(0u64, |mask, var| mask | 1 << var.0.min(63));
            if lanes > 1 && exprs.free(id) & !ours == 0 && is_vector(exprs, index, v, lanes) {
                loads.push((id, arg, exprs.substitute(index, lane, zero, &mut first)));
            }
        }
        let (row, column) = if split == row { (access, column) } else { (row, access) };
        program.body = Body::Rows { row, column, along, cached, reductions, stores, row_stores };
        Self { program, access, lane, lanes, loads, vectors, row_vectors }
    }

    /// Bytes of the widest access.
    pub(super) fn widest(&self) -> i64 {
        let Body::Rows { stores, .. } = &self.program.body else { return 0 };
        let written = stores.iter().zip(&self.vectors).filter(|(_, vector)| vector.is_some());
        let args = self.loads.iter().map(|load| load.1).chain(written.map(|(store, _)| store.arg));
        args.map(|arg| self.program.args[arg as usize].dtype.size() as i64 * self.lanes).max().unwrap_or(0)
    }
}

fn chosen(program: &Program, column: Var) -> Accesses {
    let columns = program.exprs.extent(column);
    let mut best = Accesses::new(program, column, 1);
    for lanes in [2, 4, 8] {
        if columns % lanes != 0 || columns < 32 * lanes {
            break;
        }
        let wider = Accesses::new(program, column, lanes);
        if (1..=16).contains(&wider.widest()) {
            best = wider;
        }
    }
    best
}

/// How a row's accesses are shared out.
struct Share {
    /// Threads of a row.
    threads: i64,
    /// Rows of a block.
    rows: i64,
    /// Accesses of one thread, the last ones perhaps outside.
    each: i64,
    /// Whether a thread keeps its elements in registers.
    kept: bool,
}

fn share(accesses: i64, lanes: i64) -> Share {
    let threads = match accesses {
        ..=WARP => 32,
        // What a block does once, as folds of its warps are, counts for more than registers do.
        257..=512 if lanes == 8 => 128,
        257..=2048 => 256,
        2049..=8192 => 512,
        _ => 1024,
    };
    let each = ceil(accesses, threads);
    // No more warps than have work all the time.
    let threads = threads.min(ceil(ceil(accesses, each.max(1)), 32).max(1) * 32);
    Share { threads, rows: if threads == 32 { 4 } else { 1 }, each, kept: each * lanes <= KEPT }
}

fn together(program: &Program) -> Result<Printed> {
    let Body::Rows { row, column, .. } = program.body else { return Err(no_hero()) };
    let rows = program.exprs.extent(row);
    let view = chosen(program, column);
    let Body::Rows { cached, reductions, stores, row_stores, .. } = &view.program.body else {
        return Err(no_hero());
    };
    let accesses = view.program.exprs.extent(view.access);
    let share = share(accesses, view.lanes);
    if view.lanes == 1
        && (!share.kept || program.exprs.extent(column) >= LONG)
        && let Some(unaligned) = Unaligned::of(program)
    {
        return unaligned.print();
    }
    let threads = share.threads * share.rows;
    let index = index_type(&view.program);
    let who = if share.threads == 32 { "a warp" } else { "a block" };
    let kept = if share.kept && !cached.is_empty() { ", kept in registers" } else { "" };
    let how = format!("{who} a row of {accesses} accesses of {}{kept}", view.lanes);
    let mut text = title(program, &how);
    text.push_str(&head(program, threads as u32));
    let mut writer = Writer::new(&view.program, index);
    if share.rows > 1 {
        writer.line(&format!("const {index} row = ({index})blockIdx.x * {} + threadIdx.y;", share.rows));
        writer.line(&format!("if (row >= {rows}) return;"));
    } else {
        writer.line(&format!("const {index} row = ({index})blockIdx.x;"));
    }
    writer.bind(row, "row");
    let phases = Phases { view: &view, share: &share, fused: fused_softmax(&view.program.exprs, reductions) };
    let keeps = share.kept && (reductions.len() + usize::from(!stores.is_empty())) > 1;
    let kept = if keeps { kept_of(&view.program.exprs, cached, reductions, stores) } else { vec![] };
    for (position, one) in kept.iter().enumerate() {
        // An array has one element at least, where rows have none.
        let count = (share.each * view.lanes).max(1);
        writer.line(&format!("{} kept{position}[{count}];", writer.type_of(one.id)));
    }
    let once = !keeps && phases.fused.is_some();
    if once {
        phases.reduce_online(&mut writer, reductions);
    }
    for (position, reduction) in reductions.iter().enumerate().skip(if once { 2 } else { 0 }) {
        phases.reduce(&mut writer, position, reduction, &kept);
    }
    if !stores.is_empty() {
        phases.store(&mut writer, stores, &kept, reductions.len());
    }
    if !row_stores.is_empty() {
        writer.open("if (threadIdx.x == 0)");
        writer.stores(row_stores);
        writer.close();
    }
    text.push_str(&writer.out);
    text.push_str("}\n");
    let grid = blocks(ceil(rows, share.rows))?;
    let block = [share.threads as u32, share.rows as u32];
    Ok(Printed { text, template: None, launch: Launch { grid, block, shared: 0 } })
}

struct Phases<'a> {
    view: &'a Accesses,
    share: &'a Share,
    /// The elements whose largest is the first reduction, where the second sums up exponentials of what they are
    /// less than that.
    fused: Option<ExprId>,
}

/// What a thread keeps of its elements, and by which reduction it is computed.
#[derive(Clone, Copy)]
struct Kept {
    id: ExprId,
    phase: usize,
}

/// What is read several times; and what a reduction computes with special functions that the stores need again.
fn kept_of(exprs: &Exprs, cached: &[ExprId], reductions: &[Reduction], stores: &[Store]) -> Vec<Kept> {
    let mut list: Vec<Kept> = cached.iter().map(|&id| Kept { id, phase: 0 }).collect();
    let roots: Vec<ExprId> = stores.iter().map(|store| store.value).collect();
    let stored = reached(exprs, &roots);
    for (phase, reduction) in reductions.iter().enumerate() {
        let dear = matches!(exprs.get(reduction.value), Expr::Unary(..));
        if dear && stored.contains(&reduction.value) && !cached.contains(&reduction.value) {
            list.push(Kept { id: reduction.value, phase });
        }
    }
    list
}

/// See [`Phases::fused`].
pub(super) fn fused_softmax(exprs: &Exprs, reductions: &[Reduction]) -> Option<ExprId> {
    let [most, sum, ..] = reductions else { return None };
    let Expr::Unary(Unary::Exp, rest) = *exprs.get(sum.value) else { return None };
    let Expr::Binary(Binary::Sub, x, less) = *exprs.get(rest) else { return None };
    let is_most = matches!(exprs.get(less), Expr::Reduced(0, _));
    let folds = most.kind == Fold::Max && sum.kind == Fold::Sum;
    (is_most && folds && x == most.value && exprs.dtype(x).is_float()).then_some(x)
}

impl Phases<'_> {
    /// Opens the loop over a thread's accesses, the loads of neighbours, and the loop over lanes.
    fn open(&self, writer: &mut Writer<'_>, roots: &[ExprId], kept: &[Kept], phase: usize) {
        let (view, index) = (self.view, writer.index);
        let exprs = &view.program.exprs;
        let accesses = exprs.extent(view.access);
        if accesses > 0 {
            roots.iter().for_each(|&id| hoist_both(writer, id, view.access, view.lane));
        }
        if self.share.kept {
            writer.line("#pragma unroll");
        }
        writer.open(&format!("for (int j = 0; j < {}; ++j)", self.share.each));
        writer.line(&format!("const {index} access = ({index})j * {} + threadIdx.x;", self.share.threads));
        if accesses % self.share.threads != 0 {
            writer.open(&format!("if (access < {accesses})"));
        } else {
            writer.open("");
        }
        writer.bind(view.access, "access");
        let known = |id: ExprId| kept.iter().any(|one| one.id == id && one.phase < phase);
        let needed = needed(exprs, roots, &known);
        for &(id, arg, base) in view.loads.iter().filter(|load| needed.contains(&load.0)) {
            let base = writer.value(base);
            let ty = vector(view.lanes, view.program.args[arg as usize].dtype);
            writer.line(&format!("const {ty} v{} = *(const {ty}*)(a{arg} + {base});", id.0));
        }
    }

    fn open_lanes(&self, writer: &mut Writer<'_>, roots: &[ExprId], kept: &[Kept], phase: usize) {
        let view = self.view;
        if view.lanes > 1 {
            writer.line("#pragma unroll");
            writer.open(&format!("for ({} lane = 0; lane < {}; ++lane)", writer.index, view.lanes));
            writer.bind(view.lane, "lane");
        } else {
            writer.open("");
            writer.bind(view.lane, "0");
        }
        let place = if view.lanes > 1 { format!("j * {} + lane", view.lanes) } else { "j".to_owned() };
        let known = |id: ExprId| kept.iter().any(|one| one.id == id && one.phase < phase);
        let needed = needed(&view.program.exprs, roots, &known);
        for &(id, ..) in view.loads.iter().filter(|load| needed.contains(&load.0)) {
            writer.name(id, lane_of(&format!("v{}", id.0), "lane"));
        }
        for (position, one) in kept.iter().enumerate().filter(|(_, one)| one.phase < phase) {
            writer.name(one.id, format!("kept{position}[{place}]"));
        }
        for (position, one) in kept.iter().enumerate().filter(|(_, one)| one.phase == phase) {
            let value = writer.value(one.id);
            writer.line(&format!("kept{position}[{place}] = {value};"));
        }
    }

    fn close(&self, writer: &mut Writer<'_>) {
        writer.close();
        writer.close();
    }

    /// Largest element and sum of exponentials in one pass: what is summed so far is scaled when a larger one comes
    /// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    fn reduce_online(&self, writer: &mut Writer<'_>, reductions: &[Reduction]) {
        let (view, most) = (self.view, reductions[0].value);
        let ty = writer.type_of(most);
        let near = view.program.exprs.dtype(most).is_half();
        writer.line(&format!("online<{ty}, {near}> so_far;"));
        self.open(writer, &[most], &[], 0);
        writer.line(&format!("{ty} taken[{}];", view.lanes));
        self.open_lanes(writer, &[most], &[], 0);
        let value = writer.value(most);
        let lane = if view.lanes > 1 { "lane" } else { "0" };
        writer.line(&format!("taken[{lane}] = {value};"));
        writer.close();
        writer.line("so_far.take(taken);");
        self.close(writer);
        writer.line(&format!("const {ty} r0 = {}(so_far.most);", self.fold("fold_max")));
        writer.line(&format!("const {ty} r1 = {}(so_far.scaled(r0));", self.fold("fold_sum")));
    }

    /// What folds the parts of a row's threads.
    fn fold(&self, join: &str) -> String {
        match self.share.threads {
            32 => format!("warp_fold<{join}>"),
            threads => format!("block_fold<{join}, {}>", threads / 32),
        }
    }

    fn reduce(&self, writer: &mut Writer<'_>, position: usize, reduction: &Reduction, kept: &[Kept]) {
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        let spots = reduction.kind.is_position();
        let start = if spots { format!("spot<{ty}>") } else { ty.to_owned() };
        let roots = [reduction.value];
        let made = kept.iter().filter(|one| one.phase == position).map(|one| one.id);
        let all: Vec<ExprId> = roots.iter().copied().chain(made).collect();
        writer.line(&format!("{start} part{position} = {join}::start<{start}>();"));
        self.open(writer, &all, kept, position);
        self.open_lanes(writer, &all, kept, position);
        let value = writer.value(reduction.value);
        if spots {
            let place = if self.view.lanes > 1 {
                format!("access * {} + lane", self.view.lanes)
            } else {
                "access".to_owned()
            };
            writer.line(&format!("spot<{ty}> here; here.value = {value}; here.place = (i64)({place});"));
            writer.line(&format!("part{position} = {join}::join(part{position}, here);"));
        } else {
            writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        }
        writer.close();
        self.close(writer);
        if spots {
            writer.line(&format!("part{position} = {}(part{position});", self.fold(&join)));
            writer.line(&format!(
                "const i64 r{position} = part{position}.place < 0 ? 0 : part{position}.place;"
            ));
        } else {
            writer.line(&format!("const {ty} r{position} = {}(part{position});", self.fold(&join)));
        }
    }

    fn store(&self, writer: &mut Writer<'_>, stores: &[Store], kept: &[Kept], phase: usize) {
        let view = self.view;
        let roots: Vec<ExprId> = stores.iter().flat_map(|store| [store.value, store.index]).collect();
        self.open(writer, &roots, kept, phase);
        for (position, vector_base) in view.vectors.iter().enumerate() {
            if vector_base.is_some() {
                let dtype = view.program.args[stores[position].arg as usize].dtype;
                writer.line(&collected(view.lanes, dtype, &format!("s{position}")));
            }
        }
        self.open_lanes(writer, &roots, kept, phase);
        let mut scalar = Vec::new();
        for (position, store) in stores.iter().enumerate() {
            if view.vectors[position].is_some() {
                let value = writer.value(store.value);
                let dtype = view.program.args[store.arg as usize].dtype;
                writer.line(&collect(dtype, &format!("s{position}"), "lane", &value));
            } else {
                scalar.push(store.clone());
            }
        }
        writer.stores(&scalar);
        writer.close();
        for (position, base) in view.vectors.iter().enumerate() {
            let Some(base) = *base else { continue };
            let arg = stores[position].arg;
            let (to, dtype) =
                (format!("a{arg} + {}", writer.value(base)), view.program.args[arg as usize].dtype);
            writer.line(&store_collected(view.lanes, dtype, &to, &format!("s{position}")));
        }
        self.close(writer);
    }
}

/// What roots follow from, but not beyond what is known.
pub(super) fn needed(exprs: &Exprs, roots: &[ExprId], known: &dyn Fn(ExprId) -> bool) -> Vec<ExprId> {
    let mut found = Vec::new();
    let mut pending: Vec<ExprId> = roots.to_vec();
    let mut seen = vec![false; exprs.len()];
    while let Some(id) = pending.pop() {
        if known(id) || std::mem::replace(&mut seen[id.0 as usize], true) {
            continue;
        }
        found.push(id);
        pending.extend(exprs.operands(id));
    }
    found
}

/// Computes what depends on neither variable.
fn hoist_both(writer: &mut Writer<'_>, id: ExprId, access: Var, lane: Var) {
    let exprs = &writer.program.exprs;
    let mut pending = vec![id];
    let mut ready = Vec::new();
    let mut seen = vec![false; exprs.len()];
    while let Some(id) = pending.pop() {
        if std::mem::replace(&mut seen[id.0 as usize], true) {
            continue;
        }
        if exprs.depends(id, access) || exprs.depends(id, lane) {
            pending.extend(exprs.operands(id));
        } else {
            ready.push(id);
        }
    }
    for id in ready {
        writer.hoist(id, lane);
    }
}
