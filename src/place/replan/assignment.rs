//! The assignment problem: each row to a column of its own, for the largest sum.

/// The columns of a largest-weight perfect matching, by row, of a square matrix given row by row.
/// Where the rows' own numbers are as good as any, they are the answer. O(n^3).
///
/// Source: the Hungarian method with potentials and shortest augmenting paths (Kuhn 1955; Jonker
/// and Volgenant 1987).
pub(super) fn largest(weights: &[Vec<i128>]) -> Vec<usize> {
    let n = weights.len();
    let found = matching(weights);
    let sum = |columns: &[usize]| columns.iter().enumerate().map(|(row, &at)| weights[row][at]).sum::<i128>();
    let identity: Vec<usize> = (0..n).collect();
    if sum(&identity) >= sum(&found) { identity } else { found }
}

fn matching(weights: &[Vec<i128>]) -> Vec<usize> {
    let n = weights.len();
    let cost = |row: usize, column: usize| -weights[row - 1][column - 1];
    // Rows and columns from 1; 0 stands for none.
    let (mut row_potential, mut column_potential) = (vec![0i128; n + 1], vec![0i128; n + 1]);
    let mut row_of = vec![0usize; n + 1];
    let mut before = vec![0usize; n + 1];
    for row in 1..=n {
        row_of[0] = row;
        let mut column = 0;
        let mut slack = vec![i128::MAX; n + 1];
        let mut done = vec![false; n + 1];
        while row_of[column] != 0 {
            done[column] = true;
            let at = row_of[column];
            let (mut least, mut next) = (i128::MAX, 0);
            for other in 1..=n {
                if done[other] {
                    continue;
                }
                let reduced = cost(at, other) - row_potential[at] - column_potential[other];
                if reduced < slack[other] {
                    slack[other] = reduced;
                    before[other] = column;
                }
                if slack[other] < least {
                    least = slack[other];
                    next = other;
                }
            }
            for other in 0..=n {
                if done[other] {
                    row_potential[row_of[other]] += least;
                    column_potential[other] -= least;
                } else if other > 0 {
                    slack[other] -= least;
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut columns = vec![0; n];
    for column in 1..=n {
        columns[row_of[column] - 1] = column - 1;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    fn best(weights: &[Vec<i128>], row: usize, taken: &mut Vec<bool>) -> i128 {
        if row == weights.len() {
            return 0;
        }
        let mut most = i128::MIN;
        for column in 0..weights.len() {
            if !std::mem::replace(&mut taken[column], true) {
                most = most.max(weights[row][column] + best(weights, row + 1, taken));
                taken[column] = false;
            }
        }
        most
    }

    #[test]
    fn no_permutation_is_better() {
        let mut rng = Rng::new(7);
        for case in 0..300 {
            let n = case % 7;
            let weights: Vec<Vec<i128>> =
                (0..n).map(|_| (0..n).map(|_| rng.below(30) as i128).collect()).collect();
            let found = largest(&weights);
            let mut columns = found.clone();
            columns.sort_unstable();
            assert_eq!(columns, (0..n).collect::<Vec<_>>());
            let sum: i128 = found.iter().enumerate().map(|(row, &column)| weights[row][column]).sum();
            assert_eq!(sum, best(&weights, 0, &mut vec![false; n]));
        }
    }

    #[test]
    fn nothing_is_relabelled_without_need() {
        assert_eq!(largest(&vec![vec![5; 4]; 4]), [0, 1, 2, 3]);
    }
}
