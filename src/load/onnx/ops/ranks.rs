//! How many axes the inputs of operators have that leave no choice: what is wrong is told before anything reads an axis
//! that is not there.

use super::super::node::At;
use crate::error::Result;

/// Inputs and their axes by operator, in ascending order of name.
const TABLE: &[(&str, &[(usize, usize)])] = &[
    ("CausalConvWithState", &[(0, 3), (3, 3)]),
    ("Col2Im", &[(0, 3), (1, 1), (2, 1)]),
    ("EmbedLayerNormalization", &[(0, 2), (2, 2), (3, 2), (4, 2)]),
    ("GRU", &[(0, 3), (1, 3), (2, 3), (3, 2), (4, 1), (5, 3)]),
    ("GroupQueryAttention", &[(3, 4), (4, 4)]),
    ("LSTM", &[(0, 3), (1, 3), (2, 3), (3, 2), (4, 1), (5, 3), (6, 3), (7, 2)]),
    ("LinearAttention", &[(3, 4)]),
    ("MaxRoiPool", &[(0, 4), (1, 2)]),
    ("MultiHeadAttention", &[(3, 1), (6, 4), (7, 4)]),
    ("NonMaxSuppression", &[(0, 3), (1, 3)]),
    ("QAttention", &[(0, 3), (1, 2), (2, 1), (8, 5)]),
    ("RNN", &[(0, 3), (1, 3), (2, 3), (3, 2), (4, 1), (5, 3)]),
    ("RoiAlign", &[(0, 4), (1, 2), (2, 1)]),
];

/// Error: an input has another number of axes.
pub(super) fn check(at: &At<'_>) -> Result<()> {
    let found = TABLE.binary_search_by(|(name, _)| (*name).cmp(at.op_type())).ok();
    let inputs = found.map_or(&[][..], |index| TABLE[index].1);
    for &(input, expected) in inputs {
        if at.has(input) && at.rank(input)? != expected {
            let found = at.rank(input)?;
            return Err(at.wrong(format!("input {input} has {found} axes, not {expected}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::TABLE;

    #[test]
    fn the_table_is_sorted() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
