//! What an index may be where a guard holds: the guard's comparisons bound sums of indices, and these what
//! the index is made of.
//!
//! Quotients and remainders of one index are digits of it, so that `x`, `x / 12` and `x % 12` are seen to
//! be made of the same: all are delinearized where any of the guard's is.

use std::collections::BTreeSet;

use super::super::expr::collect;
use super::{Expr, ExprId, Exprs, Ty};
use crate::ir::{Binary, Compare};

/// `(of / unit) % count`, or `of / unit` where there is no count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Digit {
    of: ExprId,
    unit: i64,
    count: Option<i64>,
}

/// Multiples of digits, in order, each digit once.
type Terms = Vec<(Digit, i64)>;
type Range = (i64, i64);

const ANY: Range = (i64::MIN, i64::MAX);

/// Sums in sums that are looked into.
const DEPTH: usize = 3;

/// What a guard says about indices.
pub(super) struct Bounds<'a> {
    exprs: &'a Exprs,
    /// Where digits of an index end: units of higher ones.
    cuts: BTreeSet<(ExprId, i64)>,
    /// Sums without their constants, none twice, those of many terms first; each with its least and greatest value.
    known: Vec<(Terms, Range)>,
    /// The guard never holds.
    never: bool,
}

impl<'a> Bounds<'a> {
    /// Of the comparisons that all hold where the guard does.
    pub(super) fn new(exprs: &'a Exprs, guard: ExprId) -> Self {
        let mut bounds = Self { exprs, cuts: BTreeSet::new(), known: Vec::new(), never: false };
        let (mut seen, mut pending, mut compared) = (BTreeSet::new(), vec![guard], Vec::new());
        while let Some(id) = pending.pop() {
            match *exprs.get(id) {
                _ if !seen.insert(id) => {}
                Expr::Binary(Binary::And, x, y) => pending.extend([x, y]),
                Expr::Compare(f, x, y) if exprs.ty(x) == Ty::Index => compared.push(bounds.sides(f, x, y)),
                _ => {}
            }
        }
        // All cuts before anything is learnt: what is learnt is taken apart at every one of them.
        for (terms, _) in &compared {
            for (digit, _) in terms {
                let end = digit.count.map(|count| digit.unit.saturating_mul(count));
                bounds
                    .cuts
                    .extend([Some(digit.unit), end].into_iter().flatten().map(|unit| (digit.of, unit)));
            }
        }
        for (terms, range) in compared {
            bounds.learn(terms, range);
        }
        // Sums of many terms say the most about an index, so they are tried first.
        bounds.known.sort_by_key(|(terms, _)| std::cmp::Reverse(terms.len()));
        bounds.never = bounds.known.iter().any(|(terms, bound)| {
            let (low, high) = both(bounds.plain(terms, DEPTH), *bound);
            low > high
        });
        bounds
    }

    /// `x - y` without constants, and what that may be.
    fn sides(&self, f: Compare, x: ExprId, y: ExprId) -> (Terms, Range) {
        let ((from, mut terms), (to, others)) = (self.digits(x), self.digits(y));
        terms.extend(others.into_iter().map(|(digit, factor)| (digit, factor.saturating_neg())));
        let end = to.saturating_sub(from);
        let range = match f {
            Compare::Eq => (end, end),
            Compare::Ne => ANY,
            Compare::Lt => (i64::MIN, end.saturating_sub(1)),
            Compare::Le => (i64::MIN, end),
            Compare::Gt => (end.saturating_add(1), i64::MAX),
            Compare::Ge => (end, i64::MAX),
        };
        (terms, range)
    }

    /// Takes in that a sum lies in a range: with a positive first factor, and without a common one.
    fn learn(&mut self, terms: Terms, (low, high): Range) {
        let mut terms = self.delinearized(terms);
        let Some(&(_, first)) = terms.first() else { return };
        let (low, high) = if first < 0 { (high.saturating_neg(), low.saturating_neg()) } else { (low, high) };
        // Without a common factor equal sums are recognised, and the range is rounded inwards.
        let common = terms.iter().fold(0, |common, term| gcd(common, term.1));
        terms.iter_mut().for_each(|term| term.1 = term.1.saturating_mul(first.signum()) / common);
        let range = (low.saturating_neg().div_euclid(common).saturating_neg(), high.div_euclid(common));
        match self.known.iter_mut().find(|(known, _)| *known == terms) {
            Some((_, known)) => *known = both(*known, range),
            None => self.known.push((terms, range)),
        }
    }

    /// The constant of an index, and the digits that it is made of.
    fn digits(&self, index: ExprId) -> (i64, Terms) {
        let (constant, terms) = self.exprs.terms(index);
        let digit = |x: ExprId| {
            let (inner, count) = match *self.exprs.get(x) {
                Expr::Mod(inner, count) => (inner, Some(count)),
                _ => (x, None),
            };
            match *self.exprs.get(inner) {
                Expr::Div(of, unit) => Digit { of, unit, count },
                _ => Digit { of: inner, unit: 1, count },
            }
        };
        (constant, terms.into_iter().map(|(x, factor)| (digit(x), factor)).collect())
    }

    /// Every digit as several, where its index is cut.
    fn delinearized(&self, terms: Terms) -> Terms {
        let mut all = Vec::with_capacity(terms.len());
        for (digit, factor) in terms {
            let Digit { of, mut unit, count } = digit;
            let (begin, end) = (unit, count.map(|count| unit.saturating_mul(count)));
            for &(_, cut) in self.cuts.range((of, unit + 1)..=(of, i64::MAX)) {
                if cut % unit == 0 && end.is_none_or(|end| cut < end && end % cut == 0) {
                    let part = Digit { of, unit, count: Some(cut / unit) };
                    all.push((part, factor.saturating_mul(unit / begin)));
                    unit = cut;
                }
            }
            let part = Digit { of, unit, count: end.map(|end| end / unit) };
            all.push((part, factor.saturating_mul(unit / begin)));
        }
        collect(&mut all);
        all
    }

    /// The least and the greatest value of an index where the guard holds; none where it never does.
    /// O(what the index is made of x comparisons).
    pub(super) fn range(&self, index: ExprId) -> Option<Range> {
        let range = both(self.of(index, DEPTH), self.exprs.range(index));
        (!self.never && range.0 <= range.1).then_some(range)
    }

    fn of(&self, index: ExprId, depth: usize) -> Range {
        let (constant, terms) = self.digits(index);
        let (constant, terms) = self.rejoined(constant, terms);
        let terms = self.delinearized(terms);
        let mut rest = terms.clone();
        let mut total = (constant, constant);
        for (known, bound) in &self.known {
            let Some(&(first, unit)) = known.first() else { continue };
            let Some(&(_, own)) = rest.iter().find(|term| term.0 == first) else { continue };
            let factor = own / unit;
            let is_term = |&(digit, part): &(Digit, i64)| {
                rest.iter().any(|&(other, own)| other == digit && part.checked_mul(factor) == Some(own))
            };
            if factor == 0 || !known.iter().all(is_term) {
                continue;
            }
            // A term is bounded once.
            rest.retain(|(digit, _)| known.iter().all(|(other, _)| digit != other));
            total = added(total, times(both(self.plain(known, depth), *bound), factor));
        }
        added(total, self.plain(&rest, depth))
    }

    /// A sum whose digits a guard bounds, in the place of its terms.
    fn rejoined(&self, mut constant: i64, mut terms: Terms) -> (i64, Terms) {
        let sums: BTreeSet<ExprId> = self.cuts.iter().map(|&(of, _)| of).collect();
        for of in sums {
            let Expr::Sum { .. } = self.exprs.get(of) else { continue };
            let (own, parts) = self.digits(of);
            let Some(&(first, unit)) = parts.first() else { continue };
            let Some(&(_, factor)) = terms.iter().find(|term| term.0 == first) else { continue };
            let factor = factor / unit;
            let is_term = |(digit, part): &(Digit, i64)| {
                part.checked_mul(factor).is_some_and(|part| terms.contains(&(*digit, part)))
            };
            if factor != 0 && parts.iter().all(is_term) {
                terms.retain(|(digit, _)| parts.iter().all(|(other, _)| digit != other));
                terms.push((Digit { of, unit: 1, count: None }, factor));
                constant = constant.saturating_sub(own.saturating_mul(factor));
            }
        }
        (constant, terms)
    }

    /// Of terms, each for itself.
    fn plain(&self, terms: &[(Digit, i64)], depth: usize) -> Range {
        terms.iter().map(|&(digit, factor)| times(self.digit(digit, depth), factor)).fold((0, 0), added)
    }

    fn digit(&self, digit: Digit, depth: usize) -> Range {
        let Digit { of, unit, count } = digit;
        let mut whole = self.exprs.range(of);
        if depth > 0 && matches!(self.exprs.get(of), Expr::Sum { .. }) {
            whole = both(whole, self.of(of, depth - 1));
        }
        let (low, high) = (whole.0.div_euclid(unit), whole.1.div_euclid(unit));
        let range = match count {
            None => (low, high),
            Some(count) if low.div_euclid(count) == high.div_euclid(count) => {
                (low.rem_euclid(count), high.rem_euclid(count))
            }
            Some(count) => (0, count - 1),
        };
        let alone = self.known.iter().filter(|(terms, _)| terms[..] == [(digit, 1)]);
        alone.fold(range, |range, &(_, bound)| both(range, bound))
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.saturating_abs(), b.saturating_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

fn both(x: Range, y: Range) -> Range {
    (x.0.max(y.0), x.1.min(y.1))
}

fn added(x: Range, y: Range) -> Range {
    (x.0.saturating_add(y.0), x.1.saturating_add(y.1))
}

fn times((low, high): Range, factor: i64) -> Range {
    let (a, b) = (low.saturating_mul(factor), high.saturating_mul(factor));
    (a.min(b), a.max(b))
}
