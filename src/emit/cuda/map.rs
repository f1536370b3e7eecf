//! Maps: one thread for some neighbouring points, which are read and written at once where they lie
//! beside one another on a boundary of 16 bytes.

use std::collections::HashMap;

use super::writer::{Writer, collect, collected, lane_of, store_collected, vector};
use super::{Launch, Printed, blocks, ceil, head, index_type, title};
use crate::error::Result;
use crate::ir::ScatterKind;
use crate::kernel::program::{Expr, ExprId, Program, Store, Var};

/// Threads of a block.
const THREADS: i64 = 256;

/// Bytes that one access moves at most.
const ACCESS: i64 = 16;

pub(super) fn map(program: &Program, point: Var, stores: &[Store]) -> Result<Printed> {
    let points = program.exprs.extent(point);
    let index = index_type(program);
    let lanes = lanes(program, point, stores);
    let groups = points / lanes;
    let rest = points % lanes;
    let threads = groups + i64::from(rest > 0);
    let grid = blocks(ceil(threads, THREADS))?;
    let mut text = title(program, &format!("{lanes} points a thread"));
    text.push_str(&head(program, THREADS as u32));
    let wide = format!("  const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x;\n");
    text.push_str(&wide);
    if lanes > 1 {
        let vectors = Vectors::new(program, point, &[], stores, lanes);
        let mut writer = Writer::new(&vectors.program, index);
        writer.open(&format!("if (thread < {groups})"));
        vectors.write(&mut writer, "thread", None);
        writer.close();
        text.push_str(&writer.out);
    }
    if lanes == 1 || rest > 0 {
        let mut writer = Writer::new(program, index);
        if lanes == 1 {
            writer.open(&format!("if (thread < {points})"));
            writer.bind(point, "thread");
        } else {
            writer.open(&format!("if (thread == {groups})"));
            writer.open(&format!("for ({index} p = {}; p < {points}; ++p)", groups * lanes));
            writer.bind(point, "p");
        }
        writer.stores(stores);
        if lanes > 1 {
            writer.close();
        }
        writer.close();
        text.push_str(&writer.out);
    }
    text.push_str("}\n");
    Ok(Printed { text, template: None, launch: Launch { grid, block: [THREADS as u32, 1], shared: 0 } })
}

/// How many points one thread takes: as many as the widest of what is beside one another fills an
/// access with.
fn lanes(program: &Program, point: Var, stores: &[Store]) -> i64 {
    let mut best = 1;
    for lanes in [2, 4, 8, 16] {
        if program.exprs.extent(point) < lanes * 32 {
            break;
        }
        let vectors = Vectors::new(program, point, &[], stores, lanes);
        let size = |arg: u32| program.args[arg as usize].dtype.size() as i64;
        let fits =
            vectors.loads.iter().map(|load| load.arg).chain(vectors.stores.iter().map(|store| store.arg));
        let sizes: Vec<i64> = fits.map(|arg| size(arg) * lanes).collect();
        if !sizes.is_empty() && sizes.iter().all(|&bytes| bytes <= ACCESS) {
            best = lanes;
        }
    }
    best
}

/// What stores write of `lanes` neighbours along a variable beside others, from a multiple of as many on; none where
/// they do not all write neighbours at once, in two accesses at most.
pub(super) fn stored_beside(
    program: &Program,
    along: Var,
    others: &[Var],
    stores: &[Store],
    lanes: i64,
) -> Option<Vectors> {
    if program.exprs.extent(along) % lanes != 0 {
        return None;
    }
    let vectors = Vectors::new(program, along, others, stores, lanes);
    let size = |store: &VectorStore| program.args[store.arg as usize].dtype.size() as i64;
    let fits = vectors.stores.iter().all(|store| size(store) * lanes <= 2 * ACCESS);
    (fits && vectors.stores.len() == stores.len()).then_some(vectors)
}

/// A load of neighbours.
struct VectorLoad {
    id: ExprId,
    arg: u32,
    base: ExprId,
    guard: Option<ExprId>,
}

/// A store of neighbours.
struct VectorStore {
    arg: u32,
    base: ExprId,
    position: usize,
}

/// Stores along a variable that is `lanes * thread + lane`.
pub(super) struct Vectors {
    pub(super) program: Program,
    thread: Var,
    lane: Var,
    lanes: i64,
    all: Vec<Store>,
    loads: Vec<VectorLoad>,
    stores: Vec<VectorStore>,
}

impl Vectors {
    /// Along `point`, beside `others` that are known.
    fn new(program: &Program, point: Var, others: &[Var], stores: &[Store], lanes: i64) -> Self {
        let mut program = program.clone();
        let exprs = &mut program.exprs;
        let thread = exprs.var((exprs.extent(point) / lanes).max(1));
        let lane = exprs.var(lanes);
        let (t, v) = (exprs.at(thread), exprs.at(lane));
        let at = exprs.sum(0, &[(t, lanes), (v, 1)]);
        let mut done = HashMap::new();
        let mut sub = |exprs: &mut _, id: ExprId| {
            crate::kernel::program::Exprs::substitute(exprs, id, point, at, &mut done)
        };
        let all: Vec<Store> = stores
            .iter()
            .map(|store| Store {
                index: sub(exprs, store.index),
                value: sub(exprs, store.value),
                guard: store.guard.map(|guard| sub(exprs, guard)),
                ..store.clone()
            })
            .collect();
        let zero = exprs.index(0);
        let mut first = HashMap::new();
        let mut vector_stores = Vec::new();
        for (position, store) in all.iter().enumerate() {
            let plain = store.guard.is_none() && store.kind == ScatterKind::Replace;
            if plain && is_vector(exprs, store.index, v, lanes) {
                let base = exprs.substitute(store.index, lane, zero, &mut first);
                vector_stores.push(VectorStore { arg: store.arg, base, position });
            }
        }
        let mut loads = Vec::new();
        let roots: Vec<ExprId> = all.iter().flat_map(|store| [store.value, store.index]).collect();
        for id in reached(exprs, &roots) {
            let Expr::Load { arg, index, guard, .. } = *exprs.get(id) else { continue };
            let fixed = guard.is_none_or(|guard| !exprs.depends(guard, lane));
            let known = others.iter().chain([&thread, &lane]);
            let ours = known.fold(0u64, |bits, var| bits | 1 << var.0.min(63));
            let inner = exprs.free(id) & !ours != 0;
            if fixed && !inner && is_vector(exprs, index, v, lanes) {
                let base = exprs.substitute(index, lane, zero, &mut first);
                loads.push(VectorLoad { id, arg, base, guard });
            }
        }
        program.body = crate::kernel::program::Body::Map { point: thread, stores: all.clone() };
        Self { program, thread, lane, lanes, all, loads, stores: vector_stores }
    }

    /// `thread` is what the variable is called, `each` a line at the head of what is done for each lane.
    pub(super) fn write(&self, writer: &mut Writer<'_>, thread: &str, each: Option<&str>) {
        writer.bind(self.thread, thread);
        let dtype = |arg: u32| self.program.args[arg as usize].dtype;
        let mut named = Vec::new();
        for load in &self.loads {
            let (base, guard) = (writer.value(load.base), load.guard.map(|guard| writer.value(guard)));
            let (ty, name) = (vector(self.lanes, dtype(load.arg)), format!("v{}", load.id.0));
            match guard {
                None => writer.line(&format!("const {ty} {name} = *(const {ty}*)(a{} + {base});", load.arg)),
                Some(guard) => {
                    writer.line(&format!("{ty} {name};"));
                    writer.line(&format!("if ({guard}) {name} = *(const {ty}*)(a{} + {base});", load.arg));
                }
            }
            named.push((load.id, name, guard_text(writer, load)));
        }
        for store in &self.stores {
            writer.line(&collected(self.lanes, dtype(store.arg), &format!("s{}", store.position)));
        }
        // What the head of a lane declares is not known before.
        for store in self.all.iter().filter(|_| each.is_none()) {
            writer.hoist(store.value, self.lane);
            writer.hoist(store.index, self.lane);
        }
        writer.line("#pragma unroll");
        writer.open(&format!("for ({} lane = 0; lane < {}; ++lane)", writer.index, self.lanes));
        each.into_iter().for_each(|line| writer.line(line));
        writer.bind(self.lane, "lane");
        for (id, name, guard) in named {
            let read = lane_of(&name, "lane");
            writer.name(
                id,
                guard.map_or(read.clone(), |(guard, other)| format!("({guard} ? {read} : {other})")),
            );
        }
        let mut scalar = Vec::new();
        for (position, store) in self.all.iter().enumerate() {
            if self.stores.iter().any(|vector| vector.position == position) {
                let value = writer.value(store.value);
                writer.line(&collect(dtype(store.arg), &format!("s{position}"), "lane", &value));
            } else {
                scalar.push(store.clone());
            }
        }
        writer.stores(&scalar);
        writer.close();
        for store in &self.stores {
            let to = format!("a{} + {}", store.arg, writer.value(store.base));
            let name = format!("s{}", store.position);
            writer.line(&store_collected(self.lanes, dtype(store.arg), &to, &name));
        }
    }
}

fn guard_text(writer: &mut Writer<'_>, load: &VectorLoad) -> Option<(String, String)> {
    let guard = writer.value(load.guard?);
    let Expr::Load { other, .. } = writer.program.exprs.get(load.id) else { return None };
    let dtype = writer.program.exprs.dtype(load.id);
    let other = match dtype.is_float() {
        true => super::writer::real(other.0, dtype),
        false => super::writer::whole(other.0 as i64, dtype),
    };
    Some((guard, other))
}

/// True where an index is a multiple of `lanes`, and the lane.
pub(super) fn is_vector(
    exprs: &crate::kernel::program::Exprs,
    index: ExprId,
    lane: ExprId,
    lanes: i64,
) -> bool {
    let (constant, terms) = exprs.terms(index);
    let (own, rest): (Vec<_>, Vec<_>) = terms.into_iter().partition(|term| term.0 == lane);
    let lane_bits = exprs.free(lane);
    matches!(own[..], [(_, 1)])
        && constant % lanes == 0
        && rest.iter().all(|&(x, factor)| {
            exprs.free(x) & lane_bits == 0 && (factor % lanes == 0 || exprs.is_multiple(x, lanes))
        })
}

/// A load whose neighbours along a variable are beside one another, so many on a boundary of as many: its argument,
/// the first one's index and its guard, which is one for all. What it is computed from loads nothing.
pub(super) fn neighbours(
    program: &Program,
    id: ExprId,
    along: Var,
    lanes: i64,
) -> Option<(u32, ExprId, Option<ExprId>)> {
    let Expr::Load { arg, index, guard, .. } = *program.exprs.get(id) else { return None };
    let size = program.exprs.extent(along);
    let inner: Vec<ExprId> = guard.into_iter().chain([index]).collect();
    let computed = reached(&program.exprs, &inner);
    let loaded = computed.iter().any(|&id| matches!(program.exprs.get(id), Expr::Load { .. }));
    if size % lanes != 0 || loaded {
        return None;
    }
    let mut exprs = program.exprs.clone();
    let (part, lane) = (exprs.var(size / lanes), exprs.var(lanes));
    let (p, l) = (exprs.at(part), exprs.at(lane));
    let position = exprs.sum(0, &[(p, lanes), (l, 1)]);
    let mut done = HashMap::new();
    let first = exprs.substitute(index, along, position, &mut done);
    let fixed = guard.is_none_or(|guard| {
        let guard = exprs.substitute(guard, along, position, &mut done);
        !exprs.depends(guard, lane)
    });
    (fixed && is_vector(&exprs, first, l, lanes)).then_some((arg, index, guard))
}

/// What roots follow from, ascending.
pub(super) fn reached(exprs: &crate::kernel::program::Exprs, roots: &[ExprId]) -> Vec<ExprId> {
    let mut seen = vec![false; exprs.len()];
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        if !std::mem::replace(&mut seen[id.0 as usize], true) {
            pending.extend(exprs.operands(id));
        }
    }
    (0..exprs.len() as u32).map(ExprId).filter(|id| seen[id.0 as usize]).collect()
}
