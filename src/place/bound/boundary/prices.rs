//! Prices of groups that make sets dear: of all prices under which no engine holds more than its share of those sets
//! that are known, the highest. The master problem of column generation (Gilmore and Gomory, 1961), by the revised
//! simplex method (Dantzig and Orchard-Hays, 1954): covers of the groups by sets, of as few engines as can be.
//! Prices are in floating point; whatever they are, what they prove is counted in whole numbers.

/// What differs by less is equal.
const EPSILON: f64 = 1e-9;

/// Changes of the basis for each new price.
const PIVOTS: usize = 200;

/// A variable of the cover: its coefficients by row.
struct Column {
    rows: Vec<(usize, f64)>,
    cost: f64,
}

/// Covers of groups by sets. Rows: the groups, then the classes of engines.
pub(super) struct Master {
    groups: usize,
    columns: Vec<Column>,
    /// By row, the column that is in the basis.
    basis: Vec<usize>,
    /// By row, how much of it there is.
    amount: Vec<f64>,
    /// The inverse of the basis, row by row.
    inverse: Vec<Vec<f64>>,
}

impl Master {
    /// No set is known: groups are left out, at a price of one. `engines` counts those of each class.
    pub(super) fn new(groups: usize, engines: &[u32]) -> Self {
        let rows = groups + engines.len();
        let single =
            |row: usize| Column { rows: vec![(row, 1.0)], cost: if row < groups { 1.0 } else { 0.0 } };
        let mut columns: Vec<Column> = (0..rows).map(single).collect();
        let share = engines.iter().enumerate().map(|(class, &count)| (groups + class, -f64::from(count)));
        columns.push(Column { rows: share.collect(), cost: 1.0 });
        columns.extend((0..groups).map(|row| Column { rows: vec![(row, -1.0)], cost: 0.0 }));
        // Slightly unequal amounts, lest changes of the basis change nothing.
        let amount = |row: usize| match row < groups {
            true => 1.0 + 1e-7 * (1 + row * 7 % 101) as f64,
            false => 1e-6 * (1 + row - groups) as f64,
        };
        let unit = |row: usize| (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
        Self {
            groups,
            columns,
            basis: (0..rows).collect(),
            amount: (0..rows).map(amount).collect(),
            inverse: (0..rows).map(unit).collect(),
        }
    }

    /// Adds a set of groups that an engine of some class can hold.
    pub(super) fn add(&mut self, set: &[u32], class: usize) {
        let rows = set.iter().map(|&group| (group as usize, 1.0));
        let rows = rows.chain([(self.groups + class, 1.0)]).collect();
        self.columns.push(Column { rows, cost: 0.0 });
    }

    /// The part of the engines that covers all groups, those left out counted at their price, and the best prices of
    /// the groups. O(groups^2) for each change of the basis; `work` counts it.
    pub(super) fn prices(&mut self, work: &mut usize) -> (f64, Vec<f64>) {
        let mut prices = self.current();
        for _ in 0..PIVOTS {
            let reduced = |column: &Column| {
                column.cost - column.rows.iter().map(|&(row, by)| prices[row] * by).sum::<f64>()
            };
            *work += self.inverse.len() * self.inverse.len();
            let costs = self.columns.iter().map(reduced).enumerate();
            let Some((entering, cost)) = costs.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            if cost > -EPSILON || !self.enter(entering) {
                break;
            }
            prices = self.current();
        }
        let total =
            self.basis.iter().zip(&self.amount).map(|(&column, amount)| self.columns[column].cost * amount);
        let total = total.sum();
        prices.truncate(self.groups);
        prices.iter_mut().for_each(|price| *price = price.max(0.0));
        (total, prices)
    }

    /// Prices of the rows under the basis.
    fn current(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.basis.len()];
        for (&column, row) in self.basis.iter().zip(&self.inverse) {
            let cost = self.columns[column].cost;
            if cost != 0.0 {
                prices.iter_mut().zip(row).for_each(|(price, by)| *price += cost * by);
            }
        }
        prices
    }

    /// Takes a column into the basis; false where that has no end.
    fn enter(&mut self, entering: usize) -> bool {
        let column = &self.columns[entering];
        let along: Vec<f64> =
            self.inverse.iter().map(|row| column.rows.iter().map(|&(at, by)| row[at] * by).sum()).collect();
        let ratio = |row: &usize| self.amount[*row] / along[*row];
        let leaving = (0..along.len()).filter(|&row| along[row] > EPSILON);
        let Some(leaving) = leaving.min_by(|a, b| ratio(a).total_cmp(&ratio(b))) else { return false };
        let pivot = along[leaving];
        self.inverse[leaving].iter_mut().for_each(|by| *by /= pivot);
        self.amount[leaving] /= pivot;
        let (row, amount) = (self.inverse[leaving].clone(), self.amount[leaving]);
        for other in (0..along.len()).filter(|&other| other != leaving && along[other] != 0.0) {
            self.inverse[other].iter_mut().zip(&row).for_each(|(by, of_row)| *by -= along[other] * of_row);
            self.amount[other] = (self.amount[other] - along[other] * amount).max(0.0);
        }
        self.basis[leaving] = entering;
        true
    }
}
