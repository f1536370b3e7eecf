//! Index arithmetic: sums, quotients and remainders, simplified as they are made.

use super::{Expr, ExprId, Exprs, Var};
use crate::ir::Compare;

/// `unit * high + low`, with `0 <= low < unit`.
struct Split {
    unit: i64,
    high: ExprId,
    low: ExprId,
}

impl Exprs {
    /// A constant index.
    pub fn index(&mut self, constant: i64) -> ExprId {
        self.sum(constant, &[])
    }

    /// A variable as an index; the constant 0 where it has one value.
    pub fn at(&mut self, var: Var) -> ExprId {
        if self.extent(var) == 1 { self.index(0) } else { self.add(Expr::Var(var)) }
    }

    /// The constant that an index is.
    pub fn known(&self, id: ExprId) -> Option<i64> {
        match self.get(id) {
            Expr::Sum { constant, terms } if terms.is_empty() => Some(*constant),
            _ => None,
        }
    }

    /// The constant and the terms of an index.
    pub fn terms(&self, id: ExprId) -> (i64, Vec<(ExprId, i64)>) {
        match self.get(id) {
            Expr::Sum { constant, terms } => (*constant, terms.to_vec()),
            _ => (0, vec![(id, 1)]),
        }
    }

    /// `constant + sum of factor * index`.
    pub fn sum(&mut self, constant: i64, parts: &[(ExprId, i64)]) -> ExprId {
        let (mut total, mut terms) = (constant, Vec::new());
        for &(part, factor) in parts {
            let (constant, inner) = self.terms(part);
            total = total.saturating_add(constant.saturating_mul(factor));
            terms.extend(inner.into_iter().map(|(x, f)| (x, f.saturating_mul(factor))));
        }
        // What was joined may join with another term.
        loop {
            collect(&mut terms);
            let Some((i, j, whole, factor)) = self.rejoined(&terms) else { break };
            terms.remove(i.max(j));
            terms.remove(i.min(j));
            let (constant, inner) = self.terms(whole);
            total = total.saturating_add(constant.saturating_mul(factor));
            terms.extend(inner.into_iter().map(|(x, f)| (x, f.saturating_mul(factor))));
        }
        match terms[..] {
            [(x, 1)] if total == 0 => x,
            _ => self.add(Expr::Sum { constant: total, terms: terms.into() }),
        }
    }

    /// Two terms `(x / (c d)) * (d e)` and `((x / c) % d) * e`, which are `(x / c) * e`: their
    /// positions, `x / c` and `e`; likewise where the first is `((x / (c d)) % f) * (d e)`, and both are
    /// `((x / c) % (d f)) * e`.
    fn rejoined(&mut self, terms: &[(ExprId, i64)]) -> Option<(usize, usize, ExprId, i64)> {
        for (i, &(low, e)) in terms.iter().enumerate() {
            let Expr::Mod(inner, d) = *self.get(low) else { continue };
            let (whole, c) = self.quotient(inner);
            for (j, &(high, f)) in terms.iter().enumerate() {
                if i == j || Some(f) != d.checked_mul(e) {
                    continue;
                }
                // `(x / c) / d` of a sum may have been taken apart: compare by making it again.
                let above = |this: &mut Self, part: ExprId| {
                    this.quotient(part) == (whole, c.saturating_mul(d)) || this.div(inner, d) == part
                };
                match self.get(high).clone() {
                    Expr::Mod(part, more) if above(self, part) => {
                        let joined = self.modulo(inner, d.saturating_mul(more));
                        if matches!(self.get(joined), Expr::Mod(..)) {
                            return Some((i, j, joined, e));
                        }
                    }
                    Expr::Div(..) if above(self, high) => return Some((i, j, inner, e)),
                    _ => {}
                }
            }
        }
        None
    }

    fn quotient(&self, id: ExprId) -> (ExprId, i64) {
        match *self.get(id) {
            Expr::Div(x, d) => (x, d),
            _ => (id, 1),
        }
    }

    /// `x + y`.
    pub fn plus(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.sum(0, &[(x, 1), (y, 1)])
    }

    /// `x / d`, rounded down; `x` is not negative and `d` positive.
    pub fn div(&mut self, x: ExprId, d: i64) -> ExprId {
        let (low, high) = self.range(x);
        if d <= 1 {
            return x;
        }
        if low >= 0 && high < d {
            return self.index(0);
        }
        match *self.get(x) {
            Expr::Div(y, c) => return self.div(y, c.saturating_mul(d)),
            Expr::Mod(y, a) if a % d == 0 => {
                let inner = self.div(y, d);
                return self.modulo(inner, a / d);
            }
            _ => {}
        }
        match self.split(x, d) {
            Some(Split { unit, high, .. }) if unit == d => high,
            Some(Split { unit, high, .. }) => self.div(high, d / unit),
            None => self.add(Expr::Div(x, d)),
        }
    }

    /// `x % d`; `x` is not negative and `d` positive.
    pub fn modulo(&mut self, x: ExprId, d: i64) -> ExprId {
        let (low, high) = self.range(x);
        if d <= 1 {
            return self.index(0);
        }
        if low >= 0 && high < d {
            return x;
        }
        if let Expr::Mod(y, a) = *self.get(x)
            && a % d == 0
        {
            return self.modulo(y, d);
        }
        match self.split(x, d) {
            Some(Split { unit, low, .. }) if unit == d => low,
            Some(Split { unit, high, low }) => {
                let high = self.modulo(high, d / unit);
                self.sum(0, &[(high, unit), (low, 1)])
            }
            None => self.add(Expr::Mod(x, d)),
        }
    }

    /// A sum taken apart at a divisor of `d`, where that is simpler.
    fn split(&mut self, x: ExprId, d: i64) -> Option<Split> {
        let (constant, terms) = self.terms(x);
        let mut divisors: Vec<i64> = terms.iter().map(|&(_, factor)| gcd(factor, d)).collect();
        divisors.sort_unstable();
        divisors.dedup();
        divisors.retain(|&unit| unit > 1);
        // The largest divisor first: it leaves the least to be divided. A rest below it carries nothing into the quotient.
        let smaller = divisors.iter().rev().find_map(|&unit| self.split_at(x, unit, unit - 1));
        let has_multiples = divisors.last() == Some(&d) || !(0..d).contains(&constant);
        smaller.or_else(|| has_multiples.then(|| self.split_at(x, d, i64::MAX))?)
    }

    /// A sum taken apart at a unit, where what is no multiple of it is from 0 to `most`.
    fn split_at(&mut self, x: ExprId, unit: i64, most: i64) -> Option<Split> {
        let (constant, terms) = self.terms(x);
        let (whole, rest): (Vec<_>, Vec<_>) = terms.into_iter().partition(|&(_, factor)| factor % unit == 0);
        let rest = self.sum(constant.rem_euclid(unit), &rest);
        let (least, greatest) = self.range(rest);
        if least < 0 || greatest > most {
            return None;
        }
        let mut parts: Vec<_> = whole.into_iter().map(|(x, factor)| (x, factor / unit)).collect();
        parts.push((self.div(rest, unit), 1));
        let high = self.sum(constant.div_euclid(unit), &parts);
        (self.range(high).0 >= 0).then(|| Split { unit, high, low: self.modulo(rest, unit) })
    }

    /// The smaller of two indices.
    pub fn min(&mut self, x: ExprId, y: ExprId) -> ExprId {
        let (a, b) = (self.range(x), self.range(y));
        if a.1 <= b.0 {
            return x;
        }
        if b.1 <= a.0 {
            return y;
        }
        self.add(Expr::Min(x, y))
    }

    /// The larger of two indices.
    pub fn max(&mut self, x: ExprId, y: ExprId) -> ExprId {
        let (x, y) = (self.sum(0, &[(x, -1)]), self.sum(0, &[(y, -1)]));
        let least = self.min(x, y);
        self.sum(0, &[(least, -1)])
    }

    /// See [`Expr::Wrapped`].
    pub fn wrapped(&mut self, value: ExprId, size: i64) -> ExprId {
        if size <= 1 { self.index(0) } else { self.add(Expr::Wrapped(value, size)) }
    }

    /// True where `0 <= index < size`; none where that is always so.
    pub fn within(&mut self, index: ExprId, size: i64) -> Option<ExprId> {
        let (low, high) = self.range(index);
        let mut guard = None;
        if low < 0 {
            let zero = self.index(0);
            guard = Some(self.compare(Compare::Ge, index, zero));
        }
        if high >= size {
            let size = self.index(size);
            let below = self.compare(Compare::Lt, index, size);
            guard = Some(self.both(guard, Some(below)).unwrap_or(below));
        }
        guard
    }

    /// The position in row-major order of an index of each axis.
    pub fn linear(&mut self, dims: &[i64], index: &[ExprId]) -> ExprId {
        let mut stride = 1i64;
        let mut parts = Vec::with_capacity(dims.len());
        for (&dim, &at) in dims.iter().zip(index).rev() {
            parts.push((at, stride));
            stride = stride.saturating_mul(dim.max(1));
        }
        self.sum(0, &parts)
    }

    /// The index of each axis of a position in row-major order.
    pub fn delinearize(&mut self, dims: &[i64], position: ExprId) -> Vec<ExprId> {
        let mut stride = 1i64;
        let mut index = vec![ExprId(0); dims.len()];
        for (axis, &dim) in dims.iter().enumerate().rev() {
            let dim = dim.max(1);
            let above = self.div(position, stride);
            index[axis] = self.modulo(above, dim);
            stride = stride.saturating_mul(dim);
        }
        index
    }

    /// True where an index is a multiple of `of` whatever its variables are.
    pub fn is_multiple(&self, id: ExprId, of: i64) -> bool {
        match self.get(id) {
            Expr::Sum { constant, terms } => {
                constant % of == 0 && terms.iter().all(|&(x, f)| f % of == 0 || self.is_multiple(x, of))
            }
            Expr::Mod(x, d) => d % of == 0 && self.is_multiple(*x, of),
            _ => of == 1,
        }
    }
}

/// Sorts terms, adds those of one index, and leaves out what is zero.
pub(in crate::kernel::program) fn collect<T: Copy + Ord>(terms: &mut Vec<(T, i64)>) {
    terms.sort_unstable();
    terms.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 = first.1.saturating_add(later.1);
        }
        same
    });
    terms.retain(|term| term.1 != 0);
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows, columns and samples of a sum whose parts are whole rows.
    #[test]
    fn digits_of_a_sum_in_parts_join_again() {
        for [rows, columns, samples, parts] in
            [[28, 28, 128, 7], [14, 14, 96, 2], [32, 32, 128, 32], [6, 10, 4, 3]]
        {
            let mut exprs = Exprs::default();
            let length = rows * columns * samples / parts;
            let (part, step) = (exprs.var(parts), exprs.var(length));
            let (part, step) = (exprs.at(part), exprs.at(step));
            let position = exprs.sum(0, &[(part, length), (step, 1)]);
            let sizes = [rows, columns, samples];
            let index = exprs.delinearize(&sizes, position);
            assert_eq!(exprs.linear(&sizes, &index), position, "{sizes:?} in {parts}");
            for (&at, size) in index.iter().zip(sizes) {
                assert_eq!(exprs.range(at), (0, size - 1), "{sizes:?} in {parts}");
            }
        }
    }

    #[test]
    fn what_is_taken_apart_joins_again() {
        let mut exprs = Exprs::default();
        let var = exprs.var(2 * 3 * 5 * 7);
        let p = exprs.at(var);
        let index = exprs.delinearize(&[2, 3, 5, 7], p);
        assert_eq!(exprs.linear(&[2, 3, 5, 7], &index), p);
        let inner = exprs.linear(&[3, 5, 7], &index[1..]);
        assert_eq!(*exprs.get(inner), Expr::Mod(p, 105));
        let outer = exprs.linear(&[2, 3], &index[..2]);
        assert_eq!(*exprs.get(outer), Expr::Div(p, 35));
    }

    #[test]
    fn vectors_of_neighbours_are_seen() {
        let mut exprs = Exprs::default();
        let (t, v) = (exprs.var(64 * 12 / 4), exprs.var(4));
        let (t, v) = (exprs.at(t), exprs.at(v));
        let p = exprs.sum(0, &[(t, 4), (v, 1)]);
        let column = exprs.modulo(p, 12);
        let (constant, terms) = exprs.terms(column);
        assert_eq!((constant, terms.len()), (0, 2));
        assert!(terms.contains(&(v, 1)));
        let row = exprs.div(p, 12);
        assert_eq!(*exprs.get(row), Expr::Div(t, 3));
    }

    #[test]
    fn simplified_indices_keep_their_values() {
        // Every expression of a small family against direct evaluation.
        for d in 1..=12 {
            for (a, b, c) in [(4, 1, 0), (6, 1, 3), (12, 4, 1), (3, 2, 5), (8, 8, 7)] {
                let mut exprs = Exprs::default();
                let (x, y) = (exprs.var(5), exprs.var(7));
                let (xe, ye) = (exprs.at(x), exprs.at(y));
                let sum = exprs.sum(c, &[(xe, a), (ye, b)]);
                let (q, r) = (exprs.div(sum, d), exprs.modulo(sum, d));
                let again = exprs.sum(0, &[(q, d), (r, 1)]);
                for i in 0..5 {
                    for j in 0..7 {
                        let value = |id| evaluate(&exprs, id, &[i, j]);
                        let expected = a * i + b * j + c;
                        assert_eq!(value(q), expected / d);
                        assert_eq!(value(r), expected % d);
                        assert_eq!(value(again), expected);
                    }
                }
            }
        }
    }

    fn evaluate(exprs: &Exprs, id: ExprId, vars: &[i64]) -> i64 {
        match exprs.get(id) {
            Expr::Var(var) => vars[var.0 as usize],
            Expr::Sum { constant, terms } => {
                constant + terms.iter().map(|&(x, f)| f * evaluate(exprs, x, vars)).sum::<i64>()
            }
            Expr::Div(x, d) => evaluate(exprs, *x, vars) / d,
            Expr::Mod(x, d) => evaluate(exprs, *x, vars) % d,
            other => panic!("{other:?}"),
        }
    }
}
