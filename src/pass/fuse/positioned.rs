//! Masks that follow from positions: a row meets the keys up to its own, where rows begin at a position
//! that is a number of the graph, as those of a decoder with a cache do.

use super::look::Look;
use crate::ir::{Binary, Compare, DType, Op, Tensor, ValueId};

/// Row `i` meets keys `0..=i + offset`, and where there is a position that much further.
#[derive(Clone, Copy, Debug)]
pub(super) struct Causal {
    pub(super) offset: i64,
    /// A value of one element.
    pub(super) position: Option<ValueId>,
}

/// Most operations that a position is looked through.
const DEEPEST: usize = 12;

/// An axis, counted from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Along {
    Keys,
    Rows,
}

/// A sum of what is counted along one axis, of numbers, and of a value of one element.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    along: Option<Along>,
    number: i64,
    position: Option<ValueId>,
}

/// What a bool mask shows, where it is exactly the keys up to a row's own position; `keys` of them.
pub(super) fn causal(look: &Look<'_>, shown: ValueId, keys: i64) -> Option<Causal> {
    let shown = look.unrepeated(shown);
    let node = look.maker(shown);
    let (&Op::Compare(compare), &[one, other]) = (&node.op, &node.operands[..]) else { return None };
    let (row, key, strict) = match compare {
        Compare::Ge => (one, other, 0),
        Compare::Gt => (one, other, 1),
        Compare::Le => (other, one, 0),
        Compare::Lt => (other, one, 1),
        Compare::Eq | Compare::Ne => return None,
    };
    let (row, key) = (sum(look, row, DEEPEST)?, sum(look, key, DEEPEST)?);
    // A single row is counted nowhere.
    let rows = row.along.is_none_or(|along| along == Along::Rows);
    let is_key = key.along == Some(Along::Keys) || keys == 1 && key.along.is_none();
    if !rows || !is_key || key.position.is_some() {
        return None;
    }
    let single = look.dims(shown)?.iter().rev().nth(1).is_none_or(|&rows| rows == 1);
    (single || row.along == Some(Along::Rows)).then_some(Causal {
        offset: row.number.checked_sub(key.number)?.checked_sub(strict)?,
        position: row.position,
    })
}

/// A value as a sum; none where it is no such. Bounded by `left`.
fn sum(look: &Look<'_>, value: ValueId, left: usize) -> Option<Sum> {
    let left = left.checked_sub(1)?;
    let ty = look.graph.ty(value);
    if ty.dtype != DType::I64 {
        return None;
    }
    let dims = look.dims(value)?;
    let node = look.maker(value);
    match (&node.op, &node.operands[..]) {
        (&Op::Iota { axis }, _) => {
            let axis = axis as usize;
            let along = match dims.len() - 1 - axis {
                _ if dims[axis] == 1 => None,
                0 => Some(Along::Keys),
                1 => Some(Along::Rows),
                _ => return None,
            };
            Some(Sum { along, ..Sum::default() })
        }
        (&Op::Constant(id), _) => counted(look.graph.constant(id)),
        (Op::Binary(Binary::Add), &[one, other]) => {
            let (one, other) = (sum(look, one, left)?, sum(look, other, left)?);
            if one.along.is_some() && other.along.is_some()
                || one.position.is_some() && other.position.is_some()
            {
                return None;
            }
            Some(Sum {
                along: one.along.or(other.along),
                number: one.number.checked_add(other.number)?,
                position: one.position.or(other.position),
            })
        }
        (Op::Binary(Binary::Sub), &[one, other]) => {
            let (one, other) = (sum(look, one, left)?, sum(look, other, left)?);
            (other.along.is_none() && other.position.is_none())
                .then(|| one.number.checked_sub(other.number))
                .flatten()
                .map(|number| Sum { number, ..one })
        }
        (Op::Broadcast { .. }, &[from]) => sum(look, from, left),
        (Op::Reshape { .. }, &[from]) => {
            let found = sum(look, from, left)?;
            let moved = |dims: &[i64]| {
                let mut long = dims.iter().rev().enumerate().filter(|&(_, &dim)| dim != 1);
                (long.next().map(|(at, _)| at), long.next().is_none())
            };
            match (found.along, moved(&dims)) {
                (None, _) => Some(found),
                (Some(_), (Some(0), true)) => Some(Sum { along: Some(Along::Keys), ..found }),
                (Some(_), (Some(1), true)) => Some(Sum { along: Some(Along::Rows), ..found }),
                (Some(_), _) => None,
            }
        }
        _ if dims.iter().product::<i64>() == 1 => Some(Sum { position: Some(value), ..Sum::default() }),
        _ => None,
    }
}

/// A constant that counts along one of its last two axes, or is one number everywhere. O(elements).
fn counted(tensor: &Tensor) -> Option<Sum> {
    let all: Vec<i64> = tensor.to_i64()?;
    let &number = all.first()?;
    let size = |from_end: usize| tensor.dims().iter().rev().nth(from_end).map_or(1, |&size| size as usize);
    let (keys, rows) = (size(0), size(1));
    let is = |place: &dyn Fn(usize) -> usize| {
        let mut places = all.iter().enumerate();
        places.all(|(at, &value)| value.checked_sub(number) == i64::try_from(place(at)).ok())
    };
    if all.iter().all(|&other| other == number) {
        return Some(Sum { number, ..Sum::default() });
    }
    let along = if is(&|at| at % keys) {
        Along::Keys
    } else if is(&|at| at / keys % rows) {
        Along::Rows
    } else {
        return None;
    };
    Some(Sum { along: Some(along), number, position: None })
}
