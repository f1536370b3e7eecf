//! The text form of a kernel program: arguments, domain, expressions in order, what is written.

use std::fmt::{self, Write};

use super::{
    Body, Expr, ExprId, OrderPass, Ordered, Patches, Place, Program, Reduction, Scatter, ScatterPass, Store,
    Ty,
};
use crate::ir::ScatterKind;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(position) => write!(f, "read {position}"),
            Self::Write(position) => write!(f, "write {position}"),
            Self::Workspace(offset) => write!(f, "workspace {offset}"),
        }
    }
}

/// Prints every expression that is used on a line of its own, but for sums, which stand where they
/// are used.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {{", self.hero(), self.name)?;
        for (position, arg) in self.args.iter().enumerate() {
            let access = if arg.written { "out" } else { "in" };
            writeln!(f, "  {access} a{position}: {}[{}] = {}", arg.dtype, arg.elements, arg.place)?;
        }
        for var in self.domain() {
            writeln!(f, "  for {var} < {}", self.exprs.extent(var))?;
        }
        for (id, used) in self.used().into_iter().enumerate() {
            let id = ExprId(id as u32);
            if used && !is_inline(self, id) {
                writeln!(f, "  {id} = {}", expression(self, id))?;
            }
        }
        self.write_body(f)?;
        writeln!(f, "}}")
    }
}

impl Program {
    fn write_reductions(
        &self,
        f: &mut fmt::Formatter<'_>,
        cached: &[ExprId],
        reductions: &[Reduction],
    ) -> fmt::Result {
        for value in cached {
            writeln!(f, "  keep {}", name(self, *value))?;
        }
        for (position, reduction) in reductions.iter().enumerate() {
            writeln!(f, "  r{position} = {} {}", reduction.kind.name(), name(self, reduction.value))?;
        }
        Ok(())
    }

    fn write_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            Body::Rows { cached, reductions, .. } => self.write_reductions(f, cached, reductions)?,
            Body::Lines { running: Some(running), .. } => {
                let kind = if running.exclusive { "running_before" } else { "running" };
                writeln!(f, "  hero = {kind} {}", name(self, running.value))?;
            }
            Body::Tile { value, .. } => writeln!(f, "  hero = {}", name(self, *value))?,
            Body::Product { cached, reductions, left, right, patches, .. } => {
                self.write_reductions(f, cached, reductions)?;
                writeln!(f, "  hero = sum {} * {}", name(self, *left), name(self, *right))?;
                if let Some(patches) = patches {
                    self.write_patches(f, patches)?;
                }
            }
            Body::Recurrent(layer) => {
                let list =
                    |args: &[u32]| args.iter().map(|arg| format!("a{arg}")).collect::<Vec<_>>().join(", ");
                writeln!(
                    f,
                    "  {} = {} {} time {} batch {} features {} hidden {} of {}",
                    list(&layer.writes),
                    layer.cell.cell,
                    layer.cell.direction,
                    layer.time,
                    layer.batch,
                    layer.features,
                    layer.cell.hidden,
                    list(&layer.reads)
                )?;
            }
            Body::Attention(heads) => {
                let reads = heads
                    .reads
                    .iter()
                    .chain(heads.upstream.iter().flatten())
                    .chain(&heads.mask)
                    .chain(&heads.position);
                let rows = heads.rows.iter().flatten();
                let list: Vec<String> = reads.chain(rows).map(|arg| format!("a{arg}")).collect();
                let written: Vec<String> = heads.writes.iter().map(|(arg, _)| format!("a{arg}")).collect();
                let sizes = &heads.geometry;
                writeln!(
                    f,
                    "  {} = {} batch {} heads {} sharing {} rows {} keys {} of {}, values of {}, of {}",
                    written.join(", "),
                    heads.pass.name(),
                    sizes.batch,
                    sizes.heads,
                    sizes.group,
                    sizes.rows,
                    sizes.keys,
                    sizes.size,
                    sizes.value_size,
                    list.join(", ")
                )?;
            }
            Body::Scatter(scatter) => {
                let kind = match scatter.kind {
                    ScatterKind::Replace => String::new(),
                    kind => format!(" {kind}"),
                };
                let of = |id| name(self, id);
                if let Some(ordered) = &scatter.ordered {
                    return self.write_ordered(f, scatter, ordered);
                }
                writeln!(f, "  a{} = {}", scatter.out, of(scatter.start))?;
                writeln!(f, "  a{}[{}] ={kind} {}", scatter.out, of(scatter.place), of(scatter.update))?;
                if !matches!(self.exprs.get(scatter.made), Expr::Hero(_)) {
                    writeln!(f, "  a{} = {}", scatter.out, of(scatter.made))?;
                }
            }
            Body::Order(order) => {
                let from = order.from.map_or(String::new(), |from| format!(" of a{from}"));
                let [places, steps] = order.to;
                let (low, high) = (order.shift, order.shift + order.bits);
                let place = name(self, order.place);
                let made = match order.pass {
                    OrderPass::Count => format!("a{} = counts", order.counts),
                    OrderPass::Sort => format!("a{places}, a{steps} = steps"),
                };
                writeln!(f, "  {made}{from} by bits {low} to {high} of {place}")?;
            }
            Body::Map { .. } | Body::Lines { .. } => {}
        }
        for store in self.stores() {
            self.write_store(f, store)?;
        }
        Ok(())
    }

    fn write_ordered(&self, f: &mut fmt::Formatter<'_>, scatter: &Scatter, ordered: &Ordered) -> fmt::Result {
        let (kind, out, of) = (scatter.kind, scatter.out, |id| name(self, id));
        let Ordered { pass, places, steps, parts, length } = ordered;
        let (update, start, made) = (of(scatter.update), of(scatter.start), of(scatter.made));
        match pass {
            ScatterPass::Parts => {
                writeln!(f, "  a{parts} = {kind} {update} for {length} steps of a{places}, a{steps}")
            }
            ScatterPass::Rows => {
                writeln!(f, "  a{out} = {start}")?;
                writeln!(f, "  a{out}[a{places}] = {kind} {update} for steps of a{steps}, or a{parts}")?;
                writeln!(f, "  a{out} = {made}")
            }
        }
    }

    fn write_patches(&self, f: &mut fmt::Formatter<'_>, patches: &Patches) -> fmt::Result {
        let Patches { element, value, kernel, strides, dilations, pads, .. } = patches;
        let of: Vec<String> =
            element.iter().map(|&var| format!("{var} < {}", self.exprs.extent(var))).collect();
        let by = |[rows, columns]: [i64; 2]| format!("{rows} x {columns}");
        writeln!(
            f,
            "  windows {} of {} over {}, strides {}, dilations {}, pads {}",
            by(*kernel),
            name(self, *value),
            of.join(", "),
            by(*strides),
            by(*dilations),
            by(*pads)
        )
    }

    fn write_store(&self, f: &mut fmt::Formatter<'_>, store: &Store) -> fmt::Result {
        let kind = match store.kind {
            ScatterKind::Replace => String::new(),
            kind => format!(" {kind}"),
        };
        write!(f, "  a{}[{}] ={kind} {}", store.arg, name(self, store.index), name(self, store.value))?;
        match store.guard {
            Some(guard) => writeln!(f, " if {}", name(self, guard)),
            None => writeln!(f),
        }
    }
}

fn is_inline(program: &Program, id: ExprId) -> bool {
    matches!(
        program.exprs.get(id),
        Expr::Sum { .. }
            | Expr::Var(_)
            | Expr::Constant(..)
            | Expr::Whole(..)
            | Expr::Reduced(..)
            | Expr::Hero(_)
    )
}

/// How an operand is written.
fn name(program: &Program, id: ExprId) -> String {
    if is_inline(program, id) { expression(program, id) } else { id.to_string() }
}

fn expression(program: &Program, id: ExprId) -> String {
    let name = |id: &ExprId| name(program, *id);
    let dtype = match program.exprs.ty(id) {
        Ty::Index => String::new(),
        Ty::Value(dtype) => format!(": {dtype}"),
    };
    match program.exprs.get(id) {
        Expr::Sum { constant, terms } => {
            let mut text = String::new();
            for (x, factor) in terms {
                let sign = if text.is_empty() { "" } else { " + " };
                // Writing to a String cannot fail.
                let _ = match factor {
                    1 => write!(text, "{sign}{}", name(x)),
                    factor => write!(text, "{sign}{factor} {}", name(x)),
                };
            }
            match constant {
                0 if !text.is_empty() => text,
                constant if text.is_empty() => constant.to_string(),
                constant => format!("{text} + {constant}"),
            }
        }
        Expr::Var(var) => var.to_string(),
        Expr::Div(x, d) => format!("({}) / {d}", name(x)),
        Expr::Mod(x, d) => format!("({}) % {d}", name(x)),
        Expr::Min(x, y) => format!("min({}, {})", name(x), name(y)),
        Expr::Wrapped(x, size) => format!("wrapped({}, {size})", name(x)),
        Expr::Position(x) => format!("position({})", name(x)),
        Expr::Constant(value, dtype) => format!("{value}:{dtype}"),
        Expr::Whole(value, dtype) => format!("{value}:{dtype}"),
        Expr::Load { arg, index, guard: None, .. } => format!("a{arg}[{}]{dtype}", name(index)),
        Expr::Load { arg, index, guard: Some(guard), other } => {
            format!("{} ? a{arg}[{}] : {other}{dtype}", name(guard), name(index))
        }
        Expr::Unary(f, x) => format!("{f} {}", name(x)),
        Expr::Binary(f, x, y) => format!("{f} {}, {}", name(x), name(y)),
        Expr::Compare(f, x, y) => format!("{f} {}, {}", name(x), name(y)),
        Expr::Select(c, x, y) => format!("select {}, {}, {}", name(c), name(x), name(y)),
        Expr::Convert(to, x) => format!("convert {} to {to}", name(x)),
        Expr::Fold { kind, var, body } => {
            format!("{} over {var} < {} of {}", kind.name(), program.exprs.extent(*var), name(body))
        }
        Expr::Reduced(position, _) => format!("r{position}"),
        Expr::Hero(_) => "hero".to_owned(),
    }
}
