//! The verifier of kernel programs: what reaches outside an argument, binds nothing or has another size is
//! refused. Programs of the corpus are spoiled one thing at a time; what the verifier still takes is
//! evaluated, which reaches outside where the verifier is wrong.

use std::collections::{BTreeMap, BTreeSet};

use partition::unstable::ir::{Binary, Compare, DType, ScatterKind};
use partition::unstable::kernel::program::{
    self, Arg, Body, Expr, ExprId, Exprs, Fold, Place, Program, Store, Var, evaluate_at, verify,
};

use crate::corpus::SMALL;
use crate::cuda::some_points;
use crate::cuda_forms::{hero_cases, made_up};
use crate::kernels::{lowered, model_programs, step_programs};

/// What becomes of a load's index and guard.
type Loads<'a> = &'a dyn Fn(&mut Exprs, ExprId, ExprId, Option<ExprId>) -> (ExprId, Option<ExprId>);

/// The program again, with one variable that runs over one more value, and with other loads.
fn rebuilt(program: &Program, wider: Option<Var>, loads: Loads<'_>) -> Program {
    let (old, mut new) = (&program.exprs, Exprs::default());
    for var in (0..old.vars() as u32).map(Var) {
        new.var(old.extent(var) + i64::from(wider == Some(var)));
    }
    let mut copies: Vec<ExprId> = Vec::with_capacity(old.len());
    for id in (0..old.len() as u32).map(ExprId) {
        let at = |x: ExprId| copies[x.0 as usize];
        let copy = match old.get(id).clone() {
            Expr::Sum { constant, terms } => {
                let terms: Vec<_> = terms.iter().map(|&(x, factor)| (at(x), factor)).collect();
                new.sum(constant, &terms)
            }
            Expr::Var(var) => new.at(var),
            Expr::Div(x, d) => new.div(at(x), d),
            Expr::Mod(x, d) => new.modulo(at(x), d),
            Expr::Min(x, y) => new.min(at(x), at(y)),
            Expr::Wrapped(x, size) => new.wrapped(at(x), size),
            Expr::Position(x) => new.position(at(x)),
            Expr::Constant(value, dtype) => new.constant(value.0, dtype),
            Expr::Whole(value, dtype) => new.whole(value, dtype),
            Expr::Load { arg, index, guard, other } => {
                let (index, guard) = loads(&mut new, id, at(index), guard.map(at));
                new.load(arg, old.dtype(id), index, guard, other.0)
            }
            Expr::Unary(f, x) => new.unary(f, at(x)),
            Expr::Binary(f, x, y) => new.binary(f, at(x), at(y)),
            Expr::Compare(f, x, y) => new.compare(f, at(x), at(y)),
            Expr::Select(c, x, y) => new.select(at(c), at(x), at(y)),
            Expr::Convert(to, x) => new.convert(to, at(x)),
            Expr::Fold { kind, var, body } => new.fold(kind, var, at(body)),
            Expr::Reduced(position, dtype) => new.reduced(position, dtype),
            Expr::Hero(dtype) => new.hero(dtype),
        };
        copies.push(copy);
    }
    let mut body = program.body.clone();
    each_root(&mut body, &mut |id| *id = copies[id.0 as usize]);
    Program { exprs: new, body, ..program.clone() }
}

/// Every expression that a body names.
fn each_root(body: &mut Body, change: &mut dyn FnMut(&mut ExprId)) {
    let stored = |stores: &mut Vec<Store>, change: &mut dyn FnMut(&mut ExprId)| {
        for store in stores {
            change(&mut store.index);
            change(&mut store.value);
            store.guard.iter_mut().for_each(&mut *change);
        }
    };
    match body {
        Body::Map { stores, .. } => stored(stores, change),
        Body::Lines { running, stores, .. } => {
            running.iter_mut().for_each(|running| change(&mut running.value));
            stored(stores, change);
        }
        Body::Rows { cached, reductions, stores, row_stores, .. } => {
            cached.iter_mut().for_each(&mut *change);
            reductions.iter_mut().for_each(|reduction| change(&mut reduction.value));
            stored(stores, change);
            stored(row_stores, change);
        }
        Body::Tile { value, stores, .. } => {
            change(value);
            stored(stores, change);
        }
        Body::Product { left, right, stores, patches, .. } => {
            change(left);
            change(right);
            patches.iter_mut().for_each(|patches| change(&mut patches.value));
            stored(stores, change);
        }
        Body::Scatter(scatter) => {
            [&mut scatter.start, &mut scatter.place, &mut scatter.update].into_iter().for_each(change);
        }
        Body::Order(order) => change(&mut order.place),
        Body::Recurrent(_) | Body::Attention(_) => {}
    }
}

fn same(_: &mut Exprs, _: ExprId, index: ExprId, guard: Option<ExprId>) -> (ExprId, Option<ExprId>) {
    (index, guard)
}

/// The program spoiled in every way: what was done, and what it has become.
fn spoiled(program: &Program) -> Vec<(&'static str, Program)> {
    let exprs = &program.exprs;
    let mut all = Vec::new();
    for arg in 0..program.args.len() {
        let mut less = program.clone();
        less.args[arg].elements = less.args[arg].elements.saturating_sub(1);
        all.push(("an argument shrinks", less));
    }
    let used = program.used();
    for id in (0..exprs.len() as u32).map(ExprId).filter(|id| used[id.0 as usize]) {
        let Expr::Load { guard, .. } = exprs.get(id) else { continue };
        for by in [-1, 1] {
            let moved = |new: &mut Exprs, one: ExprId, index: ExprId, guard: Option<ExprId>| {
                (if one == id { new.sum(by, &[(index, 1)]) } else { index }, guard)
            };
            all.push(("an index is shifted", rebuilt(program, None, &moved)));
        }
        if guard.is_some() {
            let open = |_: &mut Exprs, one: ExprId, index: ExprId, guard: Option<ExprId>| {
                (index, if one == id { None } else { guard })
            };
            all.push(("a guard is dropped", rebuilt(program, None, &open)));
        }
    }
    for var in (0..exprs.vars() as u32).map(Var) {
        let bound = program.bound().contains(&var)
            || (0..exprs.len()).any(|id| {
                used[id] && matches!(exprs.get(ExprId(id as u32)), Expr::Fold { var: own, .. } if *own == var)
            });
        if bound {
            all.push(("a loop is wider", rebuilt(program, Some(var), &same)));
        }
    }
    let stores = program.stores().count();
    for number in 0..stores {
        let mut moved = program.clone();
        let (mut exprs, mut body) = (moved.exprs, moved.body);
        let lists: Vec<&mut Vec<Store>> = match &mut body {
            Body::Map { stores, .. }
            | Body::Lines { stores, .. }
            | Body::Tile { stores, .. }
            | Body::Product { stores, .. } => vec![stores],
            Body::Rows { stores, row_stores, .. } => vec![stores, row_stores],
            Body::Scatter(_) | Body::Order(_) | Body::Recurrent(_) | Body::Attention(_) => vec![],
        };
        if let Some(store) = lists.into_iter().flatten().nth(number) {
            store.index = exprs.sum(1, &[(store.index, 1)]);
        }
        (moved.exprs, moved.body) = (exprs, body);
        all.push(("a store is shifted", moved));
    }
    all
}

/// Whether a program keeps to its arguments where it is evaluated.
fn keeps(program: &Program) -> bool {
    let args = program.args.iter().enumerate();
    let mut args: Vec<_> =
        args.map(|(position, arg)| made_up(arg.dtype, arg.elements, position as u64)).collect();
    match some_points(program, 1000) {
        Some(points) => evaluate_at(program, &mut args, &points).is_ok(),
        None => program::evaluate(program, &mut args).is_ok(),
    }
}

/// Spoils programs; counts, by what was done, those refused and those taken.
fn spoil(programs: Vec<Program>) -> BTreeMap<&'static str, [usize; 2]> {
    let mut seen = BTreeSet::new();
    let mut counts: BTreeMap<&'static str, [usize; 2]> = BTreeMap::new();
    for program in programs {
        let elements: u64 = program.args.iter().map(|arg| arg.elements).sum();
        if elements > 20_000 || program.is_empty() || !seen.insert(program.to_string()) {
            continue;
        }
        let copy = rebuilt(&program, None, &same);
        verify(&copy).unwrap_or_else(|error| panic!("{error}\n{copy}"));
        for (what, wrong) in spoiled(&program) {
            let taken = verify(&wrong).is_ok();
            assert!(!taken || keeps(&wrong), "{what}, and nobody sees it:\n{program}\n{wrong}");
            counts.entry(what).or_default()[usize::from(taken)] += 1;
        }
    }
    counts
}

#[test]
fn programs_of_the_corpus_that_are_spoiled_are_refused() {
    let models = SMALL.iter().flat_map(|name| model_programs(&format!("corpus/{name}")));
    let counts = spoil(models.chain(step_programs()).collect());
    println!("refused and taken: {counts:?}");
    if crate::shared::dir().is_none() {
        return;
    }
    for (what, least) in [
        ("an argument shrinks", 500),
        ("an index is shifted", 500),
        ("a guard is dropped", 50),
        ("a loop is wider", 300),
        ("a store is shifted", 150),
    ] {
        // What is still taken reads a part of an argument, or what it reads is bounded otherwise.
        let [refused, taken] = counts[what];
        assert!(refused >= least && refused > taken, "{what}: {refused} refused, {taken} taken");
    }
}

#[test]
fn operations_of_their_own_kernels_that_are_spoiled_are_refused() {
    let programs = hero_cases().into_iter().flat_map(|case| {
        let graph = case.graph();
        let grouping =
            partition::unstable::pass::group(&graph, &partition::unstable::pass::GroupOptions::default());
        lowered(&graph, &grouping)
    });
    let counts = spoil(programs.collect());
    println!("refused and taken: {counts:?}");
    assert!(counts["an argument shrinks"][0] > 300, "{counts:?}");
}

/// One element of `x` for each of `points`, at the index that `at` makes.
fn one_load(
    points: i64,
    elements: u64,
    at: impl Fn(&mut Exprs, ExprId) -> (ExprId, Option<ExprId>),
) -> Program {
    let mut exprs = Exprs::default();
    let point = exprs.var(points);
    let p = exprs.at(point);
    let (index, guard) = at(&mut exprs, p);
    let value = exprs.load(0, DType::F32, index, guard, 0.0);
    let arg = |place, elements, written| Arg { place, dtype: DType::F32, elements, written };
    let args = vec![arg(Place::Read(0), elements, false), arg(Place::Write(0), points.unsigned_abs(), true)];
    let store = Store { arg: 1, index: p, value, guard: None, kind: ScatterKind::Replace };
    Program { name: "one".to_owned(), args, exprs, body: Body::Map { point, stores: vec![store] } }
}

fn refused(program: &Program, part: &str) {
    let error = verify(program).expect_err("it is refused").to_string();
    assert!(error.contains(part), "{error}");
}

#[test]
fn a_guard_counts_for_what_it_says() {
    // Twelve points read eight elements, two before and two after.
    let padded = |shift: i64, size: i64| {
        one_load(12, 8, |exprs, p| {
            let at = exprs.sum(-shift, &[(p, 1)]);
            (at, exprs.within(at, size))
        })
    };
    verify(&padded(2, 8)).unwrap();
    refused(&padded(2, 9), "runs from 0 to 8 where");
    // A guard about something else says nothing.
    let other = one_load(12, 8, |exprs, p| {
        let (at, row) = (exprs.sum(-2, &[(p, 1)]), exprs.div(p, 2));
        let zero = exprs.index(0);
        (at, Some(exprs.compare(Compare::Ge, row, zero)))
    });
    refused(&other, "a0 has 8 elements, and");
    // Neither does one that may hold for another reason.
    let either = one_load(12, 8, |exprs, p| {
        let at = exprs.sum(-2, &[(p, 1)]);
        let (within, zero) = (exprs.within(at, 8).unwrap(), exprs.index(0));
        let first = exprs.compare(Compare::Eq, p, zero);
        (at, Some(exprs.binary(Binary::Or, within, first)))
    });
    refused(&either, "a0 has 8 elements, and");
    let differs = one_load(12, 11, |exprs, p| {
        let last = exprs.index(11);
        (p, Some(exprs.compare(Compare::Ne, p, last)))
    });
    refused(&differs, "runs from 0 to 11 where");
}

#[test]
fn a_guard_of_an_axis_bounds_the_position() {
    // Rows 1 to 3 of six rows of five lie in fifteen elements: positions divided, and what remains of them.
    for (first, rows, fits) in [(1, 3, true), (0, 3, false), (1, 4, false), (2, 3, false)] {
        let program = one_load(2 * 30, 15, |exprs, p| {
            let within = exprs.modulo(p, 30);
            let row = exprs.div(within, 5);
            let (low, high) = (exprs.index(first), exprs.index(first + rows));
            let above = exprs.compare(Compare::Ge, row, low);
            let below = exprs.compare(Compare::Lt, row, high);
            (exprs.sum(-5, &[(within, 1)]), exprs.both(Some(above), Some(below)))
        });
        assert_eq!(verify(&program).is_ok(), fits, "{program}");
    }
}

#[test]
fn what_is_not_bound_or_not_there_is_refused() {
    let plain = one_load(8, 8, |_, p| (p, None));
    verify(&plain).unwrap();
    let changed = |change: &dyn Fn(&mut Program)| {
        let mut program = plain.clone();
        change(&mut program);
        program
    };
    refused(&changed(&|program| program.args.truncate(1)), "there is no a1");
    refused(&changed(&|program| program.args[1].written = false), "not marked as such");
    refused(&changed(&|program| program.args[1].dtype = DType::I32), "is of");
    refused(&changed(&|program| program.args[0].dtype = DType::I32), "does not fit its operands");
    let Body::Map { stores, .. } = &plain.body else { panic!() };
    let unbound = changed(&|program| {
        let other = program.exprs.var(4);
        let index = program.exprs.at(other);
        let store = Store { index, ..stores[0].clone() };
        program.body = Body::Map { point: Var(0), stores: vec![store] };
    });
    refused(&unbound, "uses a variable that is not bound");
    let folded = changed(&|program| {
        let value = program.exprs.fold(Fold::Sum, Var(0), stores[0].value);
        let store = Store { value, ..stores[0].clone() };
        program.body = Body::Map { point: Var(0), stores: vec![store] };
    });
    refused(&folded, "does not fit its operands");
    let combined = changed(&|program| {
        let store = Store { kind: ScatterKind::Add, ..stores[0].clone() };
        program.body = Body::Map { point: Var(0), stores: vec![store] };
    });
    refused(&combined, "but not in order");
}

/// Recurrent layers and attention, whose sizes stand beside their arguments.
#[test]
fn sizes_of_layers_and_of_attention_are_those_of_their_arguments() {
    let mut layers = 0;
    for &generator in crate::run_ops::GENERATORS {
        for case in crate::kernels::cases(generator) {
            let graph = case.graph();
            let grouping =
                partition::unstable::pass::group(&graph, &partition::unstable::pass::GroupOptions::default());
            if !matches!(case.op, partition::unstable::ir::Op::Recurrent(_)) {
                continue;
            }
            for program in lowered(&graph, &grouping) {
                let Body::Recurrent(layer) = &program.body else { continue };
                layers += 1;
                for change in [
                    |layer: &mut program::Layer| layer.time += 1,
                    |layer: &mut program::Layer| layer.batch += 1,
                    |layer: &mut program::Layer| layer.features += 1,
                    |layer: &mut program::Layer| layer.cell.hidden += 1,
                    |layer: &mut program::Layer| layer.reads.truncate(4),
                    |layer: &mut program::Layer| layer.writes.truncate(1),
                    |layer: &mut program::Layer| layer.writes[0] = layer.reads[0],
                ] {
                    let mut layer = layer.clone();
                    change(&mut layer);
                    let wrong = Program { body: Body::Recurrent(layer), ..program.clone() };
                    assert!(verify(&wrong).is_err(), "{wrong}");
                }
            }
        }
    }
    assert!(layers > 5, "{layers}");
}

#[test]
fn what_is_read_for_each_row_is_there_however_short_rows_are() {
    let arg = |place, elements| Arg { place, dtype: DType::F32, elements, written: place != Place::Read(0) };
    let program = |by_row: bool| {
        let mut exprs = Exprs::default();
        let (row, column) = (exprs.var(2), exprs.var(0));
        let (at, first) = (exprs.at(row), exprs.sum(0, &[]));
        let loaded = exprs.load(0, DType::F32, first, None, 0.0);
        let nothing = exprs.constant(0.0, DType::F32);
        let store = |arg, index, value| Store { arg, index, value, guard: None, kind: ScatterKind::Replace };
        let (stores, made) = match by_row {
            true => (vec![], loaded),
            false => (vec![store(2, first, loaded)], nothing),
        };
        let row_stores = vec![store(1, at, made)];
        let args = vec![arg(Place::Read(0), 0), arg(Place::Write(0), 2), arg(Place::Write(1), 0)];
        let (along, cached, reductions) = (program::Along::Columns, vec![], vec![]);
        let body = Body::Rows { row, column, along, cached, reductions, stores, row_stores };
        Program { name: "rows".to_owned(), args, exprs, body }
    };
    // Nothing is done for each element of none; something is for each of two rows.
    verify(&program(false)).unwrap();
    assert!(verify(&program(true)).unwrap_err().to_string().contains("a0 has 0 elements"));
}
