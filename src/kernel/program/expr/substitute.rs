//! Expressions with an index in a variable's place.

use std::collections::HashMap;

use super::{Expr, ExprId, Exprs, Var};

impl Exprs {
    /// A copy of `id` with `from` replaced by the index `to`. `done` remembers what was copied.
    pub fn substitute(
        &mut self,
        id: ExprId,
        from: Var,
        to: ExprId,
        done: &mut HashMap<ExprId, ExprId>,
    ) -> ExprId {
        if !self.depends(id, from) {
            return id;
        }
        if let Some(&copy) = done.get(&id) {
            return copy;
        }
        let mut sub = |exprs: &mut Self, x: ExprId| exprs.substitute(x, from, to, done);
        let copy = match self.get(id).clone() {
            Expr::Var(_) => to,
            Expr::Sum { constant, terms } => {
                let terms: Vec<_> = terms.iter().map(|&(x, f)| (sub(self, x), f)).collect();
                self.sum(constant, &terms)
            }
            Expr::Div(x, d) => {
                let x = sub(self, x);
                self.div(x, d)
            }
            Expr::Mod(x, d) => {
                let x = sub(self, x);
                self.modulo(x, d)
            }
            Expr::Min(x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.min(x, y)
            }
            Expr::Wrapped(x, size) => {
                let x = sub(self, x);
                self.wrapped(x, size)
            }
            Expr::Position(x) => {
                let x = sub(self, x);
                self.position(x)
            }
            Expr::Load { arg, index, guard, other } => {
                let dtype = self.dtype(id);
                let index = sub(self, index);
                let guard = guard.map(|guard| sub(self, guard));
                self.load(arg, dtype, index, guard, other.0)
            }
            Expr::Unary(f, x) => {
                let x = sub(self, x);
                self.unary(f, x)
            }
            Expr::Binary(f, x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.binary(f, x, y)
            }
            Expr::Compare(f, x, y) => {
                let (x, y) = (sub(self, x), sub(self, y));
                self.compare(f, x, y)
            }
            Expr::Select(c, x, y) => {
                let (c, x, y) = (sub(self, c), sub(self, x), sub(self, y));
                self.select(c, x, y)
            }
            Expr::Convert(dtype, x) => {
                let x = sub(self, x);
                self.convert(dtype, x)
            }
            Expr::Fold { kind, var, body } => {
                let body = sub(self, body);
                self.fold(kind, var, body)
            }
            constant @ (Expr::Constant(..) | Expr::Whole(..) | Expr::Reduced(..) | Expr::Hero(_)) => {
                self.add(constant)
            }
        };
        done.insert(id, copy);
        copy
    }
}
