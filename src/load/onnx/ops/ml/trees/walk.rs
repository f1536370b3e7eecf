//! A forest as `Op::TreeLeaves` has it: each test is `x <= split`, and where it holds the walk goes on at the node behind
//! the one where it goes on else.
//!
//! `x < a` is `x <= b` of the largest number `b` below `a`, and the others are these with their branches exchanged. What is
//! no number fails each test; where it is to pass one, the node looks at a copy of the rows that has negative infinity in its
//! place.

use super::super::super::super::node::At;
use super::{Branch, Forest, Mode, numbers};
use crate::error::Result;
use crate::ir::{Compare, DType, Op, Size, Unary, ValueId};

/// The same trees, one behind the other, each from its root downwards, with the two nodes behind a test side by side. A
/// forest stays as it is where nodes are shared and that would make many more of them.
pub(super) fn arranged(forest: Forest) -> Forest {
    let mut made = Forest::default();
    let most = 2 * forest.modes.len() + forest.roots.len();
    for &root in &forest.roots {
        made.roots.push(made.modes.len());
        // What each new node was before.
        let mut before = vec![root];
        let first = made.modes.len();
        while let Some(&old) = before.get(made.modes.len() - first) {
            let pair = first + before.len();
            if pair > most {
                return forest;
            }
            if forest.modes[old] == Mode::Leaf {
                made.push_leaf(forest.weights.get(&old).cloned().unwrap_or_default());
                continue;
            }
            let (yes, no) = if forest.holds_on_yes(old) { (pair + 1, pair) } else { (pair, pair + 1) };
            let (of_yes, of_no) = (forest.yes[old], forest.no[old]);
            before.extend(if yes > no { [of_no, of_yes] } else { [of_yes, of_no] });
            made.push_branch(Branch {
                feature: forest.features[old],
                value: forest.values[old],
                mode: forest.modes[old],
                members: forest.members.get(old).cloned().unwrap_or_default(),
                yes,
                no,
                missing_is_yes: forest.missing[old],
            });
        }
    }
    made
}

impl Forest {
    /// Whether `x <= split` is to hold where a node's own test does, and not where that fails.
    fn holds_on_yes(&self, node: usize) -> bool {
        !matches!(self.modes[node], Mode::Compare(Compare::Ge | Compare::Gt))
    }

    /// Where a node goes on where `x <= split` fails; none where the node behind that is not the one where it holds.
    fn next_of_failed(&self, node: usize) -> Option<usize> {
        let (yes, no) = (self.yes[node], self.no[node]);
        let (passed, failed) = if self.holds_on_yes(node) { (yes, no) } else { (no, yes) };
        (self.modes[node] == Mode::Leaf || passed == failed + 1).then_some(failed)
    }
}

/// The test of one node.
struct Test {
    column: i32,
    split: f64,
    /// What is no number passes it.
    takes_missing: bool,
}

fn test(forest: &Forest, node: usize, dtype: DType, width: Option<i64>) -> Option<Test> {
    let column = i32::try_from(forest.features[node]).ok()?;
    let is_strict = match forest.modes[node] {
        Mode::Leaf => return Some(Test { column: 0, split: f64::NAN, takes_missing: false }),
        Mode::Compare(Compare::Le | Compare::Gt) => false,
        Mode::Compare(Compare::Lt | Compare::Ge) => true,
        Mode::Compare(Compare::Eq | Compare::Ne) | Mode::Member => return None,
    };
    let split = below(forest.values[node], dtype, is_strict);
    let takes_missing = forest.missing[node] == forest.holds_on_yes(node);
    let is_there = column >= 0 && width.is_none_or(|width| i64::from(column) < width);
    let is_passed = !takes_missing || !split.is_nan();
    (is_there && is_passed).then_some(Test { column, split, takes_missing })
}

/// A number as rows of a type are compared with it, or the largest below it: none below negative infinity.
fn below(value: f64, dtype: DType, is_strict: bool) -> f64 {
    match (dtype, is_strict) {
        (DType::F64, false) => value,
        (_, false) => f64::from(value as f32),
        (_, true) if value == f64::NEG_INFINITY => f64::NAN,
        (DType::F64, true) => value.next_down(),
        (_, true) => match value as f32 {
            f32::NEG_INFINITY => f64::NAN,
            narrow => f64::from(narrow.next_down()),
        },
    }
}

/// The leaf of each row in each tree; none where the operation has not what the trees ask.
pub(super) fn leaves(forest: &Forest, at: &mut At<'_>, x: ValueId, depth: usize) -> Result<Option<ValueId>> {
    let dtype = at.graph().ty(x).dtype;
    let width = match at.sizes_of(x)[1] {
        Size::Known(width) => Some(width),
        Size::Affine(_) => None,
    };
    let count = forest.modes.len();
    let tests: Option<Vec<Test>> = (0..count).map(|node| test(forest, node, dtype, width)).collect();
    let next: Option<Vec<i32>> =
        (0..count).map(|node| i32::try_from(forest.next_of_failed(node)?).ok()).collect();
    let depth = u32::try_from(depth).ok().filter(|&depth| depth <= Op::DEEPEST);
    let (Some(mut tests), Some(next), Some(depth)) = (tests, next, depth) else { return Ok(None) };
    let Some(x) = with_missing(at, x, width, &mut tests)? else { return Ok(None) };
    let roots: Vec<i32> = forest.roots.iter().map(|&root| root as i32).collect();
    let columns: Vec<i32> = tests.iter().map(|test| test.column).collect();
    let splits: Vec<f64> = tests.iter().map(|test| test.split).collect();
    let count = count as i64;
    let operands = [
        x,
        numbers(at, &[roots.len() as i64], &roots)?,
        numbers(at, &[count], &columns)?,
        at.real_constant(dtype, &[count], &splits)?,
        numbers(at, &[count], &next)?,
    ];
    at.apply(Op::TreeLeaves { depth }, &operands).map(Some)
}

/// Rows that have what tests look at, which are told where that is; none where the number of columns is open.
fn with_missing(
    at: &mut At<'_>,
    x: ValueId,
    width: Option<i64>,
    tests: &mut [Test],
) -> Result<Option<ValueId>> {
    if !tests.iter().any(|test| test.takes_missing) {
        return Ok(Some(x));
    }
    let Some(width) = width.and_then(|width| i32::try_from(width).ok()) else { return Ok(None) };
    let is_missing = at.unary(Unary::IsNan, x)?;
    let lowest = at.real_constant(at.graph().ty(x).dtype, &[], &[f64::NEG_INFINITY])?;
    let lowered = at.select(is_missing, lowest, x)?;
    if tests.iter().all(|test| test.takes_missing || test.split.is_nan()) {
        return Ok(Some(lowered));
    }
    for test in tests.iter_mut().filter(|test| test.takes_missing) {
        test.column = match test.column.checked_add(width) {
            Some(column) => column,
            None => return Ok(None),
        };
    }
    at.concat(&[x, lowered], 1).map(Some)
}
