//! Statements for expressions: each is computed once, in the innermost block in which all that it needs
//! is known, and loops get what does not change in them from before.

use std::fmt::Write;

use super::{compute, storage};
use crate::ir::{Binary, Compare, DType, ScatterKind, Unary};
use crate::kernel::program::{Expr, ExprId, Fold, Program, Store, Ty, Var};

/// Writes statements into nested blocks.
pub(super) struct Writer<'a> {
    pub(super) program: &'a Program,
    pub(super) out: String,
    /// `i32` or `i64`.
    pub(super) index: &'static str,
    indent: usize,
    /// By expression: what it is called here.
    names: Vec<Option<String>>,
    /// By variable: what it is called here; none where it is not bound.
    vars: Vec<Option<String>>,
    /// What each open block names.
    blocks: Vec<Block>,
    prefix: &'static str,
    /// All that is written is rounded to halves.
    rounds: bool,
}

/// Expressions named and variables bound in a block, in that order, each with what it is called around the block.
#[derive(Default)]
struct Block {
    names: Vec<(ExprId, Option<String>)>,
    vars: Vec<(Var, Option<String>)>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(program: &'a Program, index: &'static str) -> Self {
        Self {
            program,
            out: String::new(),
            index,
            indent: 1,
            names: vec![None; program.exprs.len()],
            vars: vec![None; program.exprs.vars()],
            blocks: vec![Block::default()],
            prefix: "a",
            rounds: rounds(program),
        }
    }

    /// As [`Writer::new`], for a method of a structure that holds the arguments.
    pub(super) fn method(program: &'a Program, index: &'static str) -> Self {
        Self { indent: 2, ..Self::new(program, index) }
    }

    pub(super) fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Opens a block.
    pub(super) fn open(&mut self, head: &str) {
        self.line(&format!("{head} {{"));
        self.indent += 1;
        self.blocks.push(Block::default());
    }

    /// Closes it: what was named in it is called what it was before, as what was declared around it still is.
    pub(super) fn close(&mut self) {
        if let Some(Block { names, vars }) = self.blocks.pop() {
            names.into_iter().rev().for_each(|(id, before)| self.names[id.0 as usize] = before);
            vars.into_iter().rev().for_each(|(var, before)| self.vars[var.0 as usize] = before);
        }
        self.indent -= 1;
        self.line("}");
    }

    /// Says what a variable is called in this block.
    pub(super) fn bind(&mut self, var: Var, name: &str) {
        let before = self.vars[var.0 as usize].replace(name.to_owned());
        if let Some(block) = self.blocks.last_mut() {
            block.vars.push((var, before));
        }
    }

    /// Says what an expression is called in this block.
    pub(super) fn name(&mut self, id: ExprId, name: impl Into<String>) {
        let before = self.names[id.0 as usize].replace(name.into());
        if let Some(block) = self.blocks.last_mut() {
            block.names.push((id, before));
        }
    }

    /// The type that an expression is computed in.
    pub(super) fn type_of(&self, id: ExprId) -> &'static str {
        match self.program.exprs.ty(id) {
            Ty::Index => self.index,
            Ty::Value(dtype) => compute(dtype),
        }
    }

    /// True where all variables that an expression depends on are bound.
    fn is_bound(&self, id: ExprId) -> bool {
        let free = self.program.exprs.free(id);
        (0..self.vars.len()).all(|var| free >> var.min(63) & 1 == 0 || self.vars[var].is_some())
    }

    /// An expression's text, after the statements that compute it.
    pub(super) fn value(&mut self, id: ExprId) -> String {
        if let Some(name) = &self.names[id.0 as usize] {
            return name.clone();
        }
        let exprs = &self.program.exprs;
        let text = match exprs.get(id) {
            Expr::Var(var) => return self.vars[var.0 as usize].clone().unwrap_or_else(|| "0".to_owned()),
            Expr::Constant(value, dtype) => return real(value.0, *dtype),
            Expr::Whole(value, dtype) => return whole(*value, *dtype),
            Expr::Sum { constant, terms } => return self.sum(*constant, terms),
            Expr::Div(x, d) => self.quotient(*x, "/", *d),
            Expr::Mod(x, d) => self.quotient(*x, "%", *d),
            Expr::Min(x, y) => {
                let (x, y) = (self.value(*x), self.value(*y));
                format!("{x} < {y} ? {x} : {y}")
            }
            Expr::Wrapped(x, size) => {
                let x = self.value(*x);
                format!("wrapped<{}>({x}, {size})", self.index)
            }
            Expr::Position(x) => format!("(i64){}", self.value(*x)),
            Expr::Load { arg, index, guard, other } => {
                let read = {
                    let index = self.value(*index);
                    format!("get({}{arg}[{index}])", self.prefix)
                };
                match guard {
                    None => read,
                    Some(guard) => {
                        let dtype = exprs.dtype(id);
                        let other = if dtype.is_float() {
                            real(other.0, dtype)
                        } else {
                            whole(other.0 as i64, dtype)
                        };
                        format!("{} ? {read} : {other}", self.value(*guard))
                    }
                }
            }
            Expr::Unary(f, x) => format!("{}({})", unary(*f, exprs.dtype(id), self.rounds), self.value(*x)),
            Expr::Binary(f, x, y) => {
                let (x, y) = (self.value(*x), self.value(*y));
                format!("{}({x}, {y})", binary(*f, exprs.dtype(id)))
            }
            Expr::Compare(f, x, y) => {
                let (x, y) = (self.value(*x), self.value(*y));
                format!("{x} {} {y}", compare(*f))
            }
            Expr::Select(c, x, y) => {
                let (c, x, y) = (self.value(*c), self.value(*x), self.value(*y));
                format!("{c} ? {x} : {y}")
            }
            Expr::Convert(to, x) => self.conversion(*to, *x),
            Expr::Fold { kind, var, body } => return self.fold(id, *kind, *var, *body),
            Expr::Reduced(position, _) => format!("r{position}"),
            Expr::Hero(_) => return "hero".to_owned(),
        };
        self.define(id, &text)
    }

    /// A division of what is not negative: unsigned ones take fewer instructions.
    fn quotient(&mut self, x: ExprId, operator: &str, divisor: i64) -> String {
        let x = self.value(x);
        let suffix = if self.index == "i64" { "ull" } else { "u" };
        format!("({0})((u{1}){x} {operator} {divisor}{suffix})", self.index, &self.index[1..])
    }

    fn define(&mut self, id: ExprId, text: &str) -> String {
        let name = format!("e{}", id.0);
        self.line(&format!("const {} {name} = {text};", self.type_of(id)));
        self.name(id, name.clone());
        name
    }

    fn sum(&mut self, constant: i64, terms: &[(ExprId, i64)]) -> String {
        let mut text = String::new();
        for &(x, factor) in terms {
            let x = self.value(x);
            let (sign, magnitude) =
                if factor < 0 { (" - ", factor.unsigned_abs()) } else { (" + ", factor as u64) };
            let sign = match (text.is_empty(), factor < 0) {
                (true, true) => "-",
                (true, false) => "",
                _ => sign,
            };
            // Writing to a String cannot fail.
            let _ = match magnitude {
                1 => write!(text, "{sign}{x}"),
                magnitude => write!(text, "{sign}{x} * {magnitude}"),
            };
        }
        match constant {
            constant if terms.is_empty() => return constant.to_string(),
            0 => {}
            constant if constant < 0 => {
                let _ = write!(text, " - {}", constant.unsigned_abs());
            }
            constant => {
                let _ = write!(text, " + {constant}");
            }
        }
        format!("({text})")
    }

    fn conversion(&mut self, to: DType, x: ExprId) -> String {
        let from = self.type_of(x);
        let x = self.value(x);
        match to {
            // Rounded as if it were stored.
            DType::F16 | DType::Bf16 => format!("widen(to_{}(convert<float, {from}>({x})))", to.name()),
            to => format!("convert<{}, {from}>({x})", compute(to)),
        }
    }

    /// Computes what of an expression does not depend on a variable, before the loop over it.
    pub(super) fn hoist(&mut self, id: ExprId, var: Var) {
        let mut pending = vec![id];
        let mut seen = vec![false; id.0 as usize + 1];
        let mut ready = Vec::new();
        while let Some(id) = pending.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            if !self.program.exprs.depends(id, var) && self.is_bound(id) {
                ready.push(id);
            } else {
                pending.extend(self.program.exprs.operands(id));
            }
        }
        ready.sort_unstable();
        for id in ready {
            if !matches!(self.program.exprs.get(id), Expr::Sum { .. }) {
                self.value(id);
            }
        }
    }

    fn fold(&mut self, id: ExprId, kind: Fold, var: Var, body: ExprId) -> String {
        let (name, at) = (format!("e{}", id.0), format!("i{}", var.0));
        let extent = self.program.exprs.extent(var);
        if extent > 0 {
            self.hoist(body, var);
        }
        let (ty, join) = (self.type_of(body), fold_name(kind));
        let made = if kind.is_position() { format!("spot<{ty}>") } else { ty.to_owned() };
        let acc = if kind.is_position() { format!("{name}_spot") } else { name.clone() };
        self.line(&format!("{made} {acc} = {join}::start<{made}>();"));
        if extent > 0 {
            self.open(&format!("for ({0} {at} = 0; {at} < {extent}; ++{at})", self.index));
            self.bind(var, &at);
            let value = self.value(body);
            if kind.is_position() {
                self.line(&format!("spot<{ty}> here; here.value = {value}; here.place = (i64){at};"));
                self.line(&format!("{acc} = {join}::join({acc}, here);"));
            } else {
                self.line(&format!("{acc} = {join}::join({acc}, {value});"));
            }
            self.close();
        }
        if kind.is_position() {
            self.line(&format!("const i64 {name} = {acc}.place < 0 ? 0 : {acc}.place;"));
        }
        self.name(id, name.clone());
        name
    }

    /// Writes what stores write.
    pub(super) fn stores(&mut self, stores: &[Store]) {
        // All is computed before anything is written: results may be where operands did.
        let ready: Vec<(String, String, Option<String>)> = stores
            .iter()
            .map(|store| {
                (self.value(store.value), self.value(store.index), store.guard.map(|guard| self.value(guard)))
            })
            .collect();
        for (store, (value, index, guard)) in stores.iter().zip(ready) {
            let to = format!("{}{}[{index}]", self.prefix, store.arg);
            let value = match scatter_join(store.kind) {
                None => value,
                Some(join) => format!("{join}(get({to}), {value})"),
            };
            let guard = guard.map_or(String::new(), |guard| format!("if ({guard}) "));
            self.line(&format!("{guard}put({to}, {value});"));
        }
    }
}

/// A load through a vector that was read before: `name` and the lane.
pub(super) fn lane_of(name: &str, lane: &str) -> String {
    format!("get({name}.v[{lane}])")
}

/// A vector's type.
pub(super) fn vector(count: i64, dtype: DType) -> String {
    format!("vec<{count}, {}>", storage(dtype))
}

/// What combines an update with what is there; none where it replaces that.
pub(super) fn scatter_join(kind: ScatterKind) -> Option<&'static str> {
    match kind {
        ScatterKind::Replace => None,
        ScatterKind::Add => Some("f_add"),
        ScatterKind::Mul => Some("f_mul"),
        ScatterKind::Max => Some("f_max"),
        ScatterKind::Min => Some("f_min"),
    }
}

/// The prelude's fold.
pub(super) fn fold_name(kind: Fold) -> String {
    match kind {
        Fold::ArgMax { last } => format!("fold_spot<true, {last}>"),
        Fold::ArgMin { last } => format!("fold_spot<false, {last}>"),
        other => format!("fold_{}", other.name()),
    }
}

/// A floating-point constant.
pub(super) fn real(value: f64, dtype: DType) -> String {
    let wide = dtype == DType::F64;
    let narrow = value as f32;
    if value.is_nan() {
        return "not_a_number_f()".to_owned();
    }
    if value.is_infinite() || (!wide && narrow.is_infinite()) {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("({sign}infinity_f())");
    }
    let text = if wide { format!("{value:?}") } else { format!("{narrow:?}f") };
    if text.starts_with('-') { format!("({text})") } else { text }
}

/// An integer constant.
pub(super) fn whole(value: i64, dtype: DType) -> String {
    match dtype {
        DType::Bool => (value != 0).to_string(),
        DType::I64 if value == i64::MIN => "limits<i64>::low()".to_owned(),
        DType::I64 => format!("{value}ll"),
        DType::U64 => format!("{}ull", value as u64),
        dtype => format!("({}){value}", storage(dtype)),
    }
}

/// Whether a program writes halves alone: what it computes in f32 on the way, too, is rounded in the end.
fn rounds(program: &Program) -> bool {
    let mut written = program.args.iter().filter(|arg| arg.written).peekable();
    written.peek().is_some() && written.all(|arg| arg.dtype.is_half())
}

/// Of halves, which are rounded in the end, some are computed with fewer instructions.
fn unary(f: Unary, dtype: DType, rounds: bool) -> String {
    let near = match f {
        Unary::Exp | Unary::Sigmoid | Unary::Silu | Unary::Gelu | Unary::GeluTanh | Unary::Reciprocal => {
            dtype.is_half() || rounds && dtype == DType::F32
        }
        Unary::Tanh => dtype == DType::Bf16,
        _ => false,
    };
    format!("{}_{}", if near { "near" } else { "f" }, f.name())
}

fn binary(f: Binary, dtype: DType) -> String {
    let near = f == Binary::Div && dtype.is_half();
    format!("{}_{}", if near { "near" } else { "f" }, f.name())
}

/// Declares what neighbours are collected in before they are stored at once.
pub(super) fn collected(count: i64, dtype: DType, name: &str) -> String {
    match dtype.is_half() {
        true => format!("float {name}[{count}];"),
        false => format!("{} {name};", vector(count, dtype)),
    }
}

/// Collects a value.
pub(super) fn collect(dtype: DType, name: &str, lane: &str, value: &str) -> String {
    match dtype.is_half() {
        true => format!("{name}[{lane}] = {value};"),
        false => format!("put({name}.v[{lane}], {value});"),
    }
}

/// Stores what was collected.
pub(super) fn store_collected(count: i64, dtype: DType, to: &str, name: &str) -> String {
    let ty = vector(count, dtype);
    match dtype.is_half() {
        true => format!("*({ty}*)({to}) = rounded<{}>({name});", storage(dtype)),
        false => format!("*({ty}*)({to}) = {name};"),
    }
}

fn compare(f: Compare) -> &'static str {
    match f {
        Compare::Eq => "==",
        Compare::Ne => "!=",
        Compare::Lt => "<",
        Compare::Le => "<=",
        Compare::Gt => ">",
        Compare::Ge => ">=",
    }
}
