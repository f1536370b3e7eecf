//! Scatters of many steps, in stages: the steps are sorted by their rows, a digit a kernel; the updates of rows that have
//! many are joined part by part, and a last kernel joins the others, and these parts, to what was there before. So all rows of a
//! table may be named once, or one of them always.

use super::super::{Arg, Body, ExprId, Order, OrderPass, Ordered, Place, Program, Scatter, ScatterPass};
use super::stages::StageWorkspace;
use crate::ir::DType;
use crate::kernel::workspace::ScatterOrder;
use crate::units::Bytes;

/// None where one kernel does, or where nothing was planned for more.
pub(super) fn stages(whole: &Program, scatter: &Scatter, workspace: StageWorkspace) -> Option<Vec<Program>> {
    let exprs = &whole.exprs;
    let extents = [scatter.row, scatter.column, scatter.step].map(|var| exprs.extent(var).unsigned_abs());
    let order = ScatterOrder::of(extents, whole.args.get(scatter.out as usize)?.dtype)?;
    let kept = Kept::new(&order, workspace)?;
    let stages = Stages { whole, scatter, order, kept };
    let digits = (0..order.digits)
        .flat_map(|digit| [OrderPass::Count, OrderPass::Sort].map(|pass| stages.digit(digit, pass)));
    Some(digits.chain([ScatterPass::Parts, ScatterPass::Rows].map(|pass| stages.pass(pass))).collect())
}

/// What lies in the workspace.
struct Kept {
    /// Rows and steps in order: as every second digit writes them.
    lists: Vec<[Arg; 2]>,
    counts: Arg,
    parts: Arg,
}

impl Kept {
    fn new(order: &ScatterOrder, workspace: StageWorkspace) -> Option<Self> {
        let mut at = workspace.offset;
        let mut next = |elements: u64, dtype: DType| -> Option<Arg> {
            let place = Place::Workspace(at);
            at = Bytes(at.checked_add(elements.checked_mul(dtype.size())?)?).aligned().get();
            Some(Arg { place, dtype, elements, written: false })
        };
        // Rows of what parts make are read many elements at once, so they come first.
        let parts = next(order.parts(), order.dtype)?;
        let counts = next(order.counts(), DType::I32)?;
        let mut list = || Some([next(order.steps, DType::I32)?, next(order.steps, DType::I32)?]);
        let lists = (0..order.lists() / 2).map(|_| list()).collect::<Option<Vec<_>>>()?;
        (at <= workspace.offset.saturating_add(workspace.bytes)).then_some(Self { lists, counts, parts })
    }
}

struct Stages<'a> {
    whole: &'a Program,
    scatter: &'a Scatter,
    order: ScatterOrder,
    kept: Kept,
}

impl Stages<'_> {
    /// The whole's arguments, none of them written.
    fn begin(&self, name: &str) -> Program {
        let mut program = Program { name: format!("{} {name}", self.whole.name), ..self.whole.clone() };
        program.args.iter_mut().for_each(|arg| arg.written = false);
        program
    }

    fn digit(&self, digit: u32, pass: OrderPass) -> Program {
        let mut program = self.begin(&match pass {
            OrderPass::Count => format!("counts of digit {digit}"),
            OrderPass::Sort => format!("in order of digit {digit}"),
        });
        let rows = program.exprs.extent(self.scatter.row);
        let lists = |digit: u32| self.kept.lists[digit as usize % self.kept.lists.len()];
        let mut place = self.scatter.place;
        let mut from = None;
        if let Some(before) = digit.checked_sub(1) {
            let [places, steps] = lists(before).map(|list| push(&mut program, list));
            place = self.placed(&mut program, places, rows);
            from = Some(steps);
        }
        let sorts = pass == OrderPass::Sort;
        let counts = push(&mut program, Arg { written: !sorts, ..self.kept.counts });
        let to = lists(digit).map(|list| push(&mut program, Arg { written: sorts, ..list }));
        let ScatterOrder { bits, each, .. } = self.order;
        program.body = Body::Order(Box::new(Order {
            pass,
            step: self.scatter.step,
            place,
            rows,
            from,
            shift: digit * bits,
            bits,
            each: each as i64,
            counts,
            to,
        }));
        program
    }

    /// The row that was listed at a position.
    fn placed(&self, program: &mut Program, places: u32, rows: i64) -> ExprId {
        let exprs = &mut program.exprs;
        let at = exprs.at(self.scatter.step);
        let listed = exprs.load(places, DType::I32, at, None, 0.0);
        exprs.wrapped(listed, rows)
    }

    fn pass(&self, pass: ScatterPass) -> Program {
        let mut program = match pass {
            ScatterPass::Parts => self.begin("in parts"),
            ScatterPass::Rows => self.whole.clone(),
        };
        let last = (self.order.digits as usize - 1) % self.kept.lists.len();
        let [places, steps] = self.kept.lists[last].map(|list| push(&mut program, list));
        let parts = push(&mut program, Arg { written: pass == ScatterPass::Parts, ..self.kept.parts });
        let ordered = Ordered { pass, places, steps, parts, length: self.order.length as i64 };
        program.body = Body::Scatter(Box::new(Scatter { ordered: Some(ordered), ..self.scatter.clone() }));
        program
    }
}

fn push(program: &mut Program, arg: Arg) -> u32 {
    program.args.push(arg);
    program.args.len() as u32 - 1
}
