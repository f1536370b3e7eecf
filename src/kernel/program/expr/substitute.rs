//! Copies of expressions with others in the place of some.

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
        let copy = match self.get(id) {
            Expr::Var(_) => to,
            _ => self.copied(id, &mut |exprs, x| exprs.substitute(x, from, to, done)),
        };
        done.insert(id, copy);
        copy
    }

    /// A copy of `id` with what stands in `known` in the place of the results of reductions, by their number.
    /// `done` remembers what was copied.
    pub fn with_reduced(
        &mut self,
        id: ExprId,
        known: &[ExprId],
        done: &mut HashMap<ExprId, ExprId>,
    ) -> ExprId {
        if let Some(&copy) = done.get(&id) {
            return copy;
        }
        let reduced = match *self.get(id) {
            Expr::Reduced(position, _) => known.get(position as usize).copied(),
            _ => None,
        };
        let copy = match reduced {
            Some(known) => known,
            None => self.copied(id, &mut |exprs, x| exprs.with_reduced(x, known, done)),
        };
        done.insert(id, copy);
        copy
    }

    /// A copy of `id` with the result of the first reduction in the place of the hero's. `done` remembers what was copied.
    pub fn reduced_for_hero(&mut self, id: ExprId, done: &mut HashMap<ExprId, ExprId>) -> ExprId {
        if let Some(&copy) = done.get(&id) {
            return copy;
        }
        let copy = match *self.get(id) {
            Expr::Hero(dtype) => self.reduced(0, dtype),
            _ => self.copied(id, &mut |exprs, x| exprs.reduced_for_hero(x, done)),
        };
        done.insert(id, copy);
        copy
    }

    /// The same operation on the operands that `sub` gives for its own.
    fn copied(&mut self, id: ExprId, sub: &mut dyn FnMut(&mut Self, ExprId) -> ExprId) -> ExprId {
        match self.get(id).clone() {
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
            leaf @ (Expr::Var(_)
            | Expr::Constant(..)
            | Expr::Whole(..)
            | Expr::Reduced(..)
            | Expr::Hero(_)) => self.add(leaf),
        }
    }
}
