//! Linear equations between sizes and numbers, and the dimensions that they fix.

use std::collections::BTreeMap;

use super::{DimId, Size};

/// Rows of several dimensions that are held; further ones are not looked at.
const MOST_LONG: usize = 1000;

/// Equations `size = number`, solved exactly as they come (Gauss-Jordan elimination).
#[derive(Clone, Debug, Default)]
pub struct Equations {
    /// By its leading dimension: a row in which no other leading dimension stands.
    rows: BTreeMap<DimId, EquationRow>,
    /// Leading dimensions of the rows that have more than one.
    long: Vec<DimId>,
}

/// `sum of coefficient * dimension = value`, divided by what divides all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EquationRow {
    terms: BTreeMap<DimId, i128>,
    value: i128,
}

/// Why an equation was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It contradicts the ones before.
    Contradicts,
    /// No whole number of 0 or more is a solution for this dimension.
    NoSize(DimId),
}

impl Equations {
    /// Adds `size = value`. O(terms), and O(rows of several dimensions) where a dimension is fixed by it.
    /// Numbers beyond 128 bits are not looked at.
    ///
    /// Errors: see [`Refused`].
    pub fn add(&mut self, size: &Size, value: i64) -> Result<(), Refused> {
        let terms = size.terms().iter().map(|&(dim, coefficient)| (dim, i128::from(coefficient)));
        let row =
            EquationRow { terms: terms.collect(), value: i128::from(value) - i128::from(size.constant()) };
        let Some(row) = self.reduced(row) else { return Ok(()) };
        let Some((&lead, _)) = row.terms.first_key_value() else {
            return if row.value == 0 { Ok(()) } else { Err(Refused::Contradicts) };
        };
        row.check()?;
        if row.terms.len() > 1 && self.long.len() == MOST_LONG {
            return Ok(());
        }
        self.eliminate(lead, &row)?;
        if row.terms.len() > 1 {
            self.long.push(lead);
        }
        self.rows.insert(lead, row);
        Ok(())
    }

    /// The value of a dimension, where the equations fix it.
    pub fn value(&self, dim: DimId) -> Option<i64> {
        let row = self.rows.get(&dim)?;
        let coefficient = row.terms.get(&dim).filter(|_| row.terms.len() == 1)?;
        i64::try_from(row.value / coefficient).ok()
    }

    /// The row without the leading dimensions of others; none where a number overflows.
    fn reduced(&self, mut row: EquationRow) -> Option<EquationRow> {
        let leads: Vec<DimId> = row.terms.keys().copied().filter(|dim| self.rows.contains_key(dim)).collect();
        for lead in leads {
            row = row.without(lead, &self.rows[&lead])?;
        }
        Some(row)
    }

    /// Takes a dimension that a new row leads out of all others.
    fn eliminate(&mut self, lead: DimId, by: &EquationRow) -> Result<(), Refused> {
        for other in self.long.clone() {
            let Some(row) = self.rows.get(&other).filter(|row| row.terms.contains_key(&lead)) else {
                continue;
            };
            if let Some(row) = row.clone().without(lead, by) {
                row.check()?;
                self.rows.insert(other, row);
            }
        }
        self.long.retain(|dim| self.rows.get(dim).is_some_and(|row| row.terms.len() > 1));
        Ok(())
    }
}

impl EquationRow {
    /// This row less so much of another one that `dim` is in it no more.
    fn without(mut self, dim: DimId, other: &Self) -> Option<Self> {
        let Some(&own) = self.terms.get(&dim) else { return Some(self) };
        let theirs = *other.terms.get(&dim)?;
        for value in self.terms.values_mut() {
            *value = value.checked_mul(theirs)?;
        }
        for (&one, &coefficient) in &other.terms {
            let term = self.terms.entry(one).or_default();
            *term = term.checked_sub(coefficient.checked_mul(own)?)?;
        }
        self.terms.retain(|_, coefficient| *coefficient != 0);
        self.value = self.value.checked_mul(theirs)?.checked_sub(other.value.checked_mul(own)?)?;
        Some(self.divided())
    }

    fn divided(mut self) -> Self {
        let divisor = self.terms.values().fold(0, |divisor, &term| gcd(divisor, term));
        if divisor > 1 && self.value % divisor == 0 {
            self.terms.values_mut().for_each(|term| *term /= divisor);
            self.value /= divisor;
        }
        self
    }

    /// Error: it fixes a dimension to what is no size.
    fn check(&self) -> Result<(), Refused> {
        match self.terms.iter().next() {
            Some((&dim, &coefficient)) if self.terms.len() == 1 => {
                let whole = self.value % coefficient == 0 && self.value / coefficient >= 0;
                if whole { Ok(()) } else { Err(Refused::NoSize(dim)) }
            }
            _ => Ok(()),
        }
    }
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.saturating_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: DimId = DimId(0);
    const M: DimId = DimId(1);
    const K: DimId = DimId(2);

    fn size(constant: i64, terms: &[(DimId, i64)]) -> Size {
        Size::new(constant, terms.iter().copied()).unwrap()
    }

    #[test]
    fn sizes_of_several_dimensions_are_solved_together() {
        let mut equations = Equations::default();
        equations.add(&size(0, &[(N, 1), (M, 1)]), 9).unwrap();
        assert_eq!(equations.value(N), None);
        equations.add(&size(1, &[(N, 2), (M, -1)]), 1).unwrap();
        assert_eq!((equations.value(N), equations.value(M)), (Some(3), Some(6)));
        equations.add(&size(0, &[(K, 2), (M, 1)]), 10).unwrap();
        assert_eq!(equations.value(K), Some(2));
        assert_eq!(equations.add(&size(1, &[(K, 1)]), 4), Err(Refused::Contradicts));
        equations.add(&size(1, &[(K, 1)]), 3).unwrap();
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let mut equations = Equations::default();
        assert_eq!(equations.add(&size(0, &[(N, 2)]), 7), Err(Refused::NoSize(N)));
        assert_eq!(equations.add(&size(2, &[(N, 1)]), 1), Err(Refused::NoSize(N)));
        equations.add(&size(0, &[(N, 1), (M, 1)]), 3).unwrap();
        assert_eq!(equations.add(&size(0, &[(M, 1)]), 5), Err(Refused::NoSize(N)));
    }

    #[test]
    fn solutions_are_those_of_brute_force() {
        // Every system of two equations with small coefficients that has just one solution in 1..=4.
        let values = [-2i64, -1, 0, 1, 2];
        let sizes = || (1..=4i64).flat_map(|n| (1..=4i64).map(move |m| (n, m)));
        for case in 0..values.len().pow(4) {
            let c = |place: u32| values[case / values.len().pow(place) % values.len()];
            for (n, m) in sizes() {
                let left = c(0) * n + c(1) * m;
                let right = c(2) * n + c(3) * m;
                let mut equations = Equations::default();
                equations.add(&size(0, &[(N, c(0)), (M, c(1))]), left).unwrap();
                equations.add(&size(0, &[(N, c(2)), (M, c(3))]), right).unwrap();
                if c(0) * c(3) != c(1) * c(2) {
                    assert_eq!((equations.value(N), equations.value(M)), (Some(n), Some(m)), "{case}");
                }
            }
        }
    }
}
