//! What is known of a vector while a model is read, in its order: its extremes, its distinct elements, and elements that are
//! replaced. As many results as there are are known too.

use std::cmp::Ordering;

use super::super::known::{Items, Known};
use super::super::node::At;
use crate::error::Result;
use crate::ir::Size;

/// A known vector of numbers that can be compared.
enum Numbers<'k> {
    Integers(Vec<i64>),
    Reals(&'k [f64]),
}

impl Numbers<'_> {
    /// The numbers of a vector; none where one is no number.
    fn of(known: &Known) -> Option<Numbers<'_>> {
        match &known.items {
            Items::Sizes(sizes) => {
                sizes.iter().map(Size::known).collect::<Option<_>>().map(Numbers::Integers)
            }
            Items::Reals(reals) => (!reals.iter().any(|real| real.is_nan())).then_some(Numbers::Reals(reals)),
        }
    }

    fn compare(&self, one: usize, other: usize) -> Ordering {
        match self {
            Self::Integers(numbers) => numbers[one].cmp(&numbers[other]),
            Self::Reals(numbers) => numbers[one].partial_cmp(&numbers[other]).unwrap_or(Ordering::Equal),
        }
    }
}

/// The `k` largest or smallest elements of a vector and where they are, the first of equals first; false where they are not
/// known.
pub(super) fn top_k(at: &mut At<'_>, k: i64, largest: bool) -> bool {
    let Some(x) = at.known(0).filter(|x| x.rank() == 1) else { return false };
    let (Some(numbers), Ok(k)) = (Numbers::of(x), usize::try_from(k)) else { return false };
    let mut order: Vec<usize> = (0..x.len()).collect();
    // Both keep the order of equals.
    order.sort_by(|&one, &other| match largest {
        true => numbers.compare(other, one),
        false => numbers.compare(one, other),
    });
    if k > order.len() {
        return false;
    }
    order.truncate(k);
    let Some(values) = x.pick(&order, vec![k as u64]) else { return false };
    let places = places(order);
    at.set_known(0, values);
    at.set_known(1, places);
    true
}

/// The distinct elements of a vector, where each is first, which each element is, and how often each is there; in ascending
/// order, or in that of their first. False where they are not known.
pub(super) fn unique(at: &mut At<'_>, sorts: bool) -> bool {
    let Some(x) = at.known(0).filter(|x| x.rank() == 1) else { return false };
    let Some(numbers) = Numbers::of(x) else { return false };
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&one, &other| numbers.compare(one, other));
    let mut groups: Vec<Vec<usize>> = order
        .chunk_by(|&one, &other| numbers.compare(one, other) == Ordering::Equal)
        .map(<[usize]>::to_vec)
        .collect();
    if !sorts {
        groups.sort_by_key(|group| group[0]);
    }
    let mut group_of = vec![0; x.len()];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&element| group_of[element] = number);
    }
    let first: Vec<usize> = groups.iter().map(|group| group[0]).collect();
    let often = groups.iter().map(Vec::len).collect();
    let Some(values) = x.pick(&first, vec![first.len() as u64]) else { return false };
    at.set_known(0, values);
    for (output, found) in [(1, first), (2, group_of), (3, often)] {
        at.set_known(output, places(found));
    }
    true
}

fn places(places: Vec<usize>) -> Known {
    Known::vector(places.into_iter().map(|place| Size::Known(place as i64)).collect())
}

/// A vector with the elements at some places replaced; of several at one place the last counts.
pub(super) fn scatter_elements(at: &At<'_>) -> Result<Option<Known>> {
    let (Some(data), Some(indices), Some(updates)) = (at.known(0), at.known(1), at.known(2)) else {
        return Ok(None);
    };
    // Of vectors it is the first.
    at.int("axis")?;
    if [data, indices, updates].iter().any(|known| known.rank() != 1)
        || at.text("reduction", "none")? != "none"
    {
        return Ok(None);
    }
    Ok(replaced(data, indices, updates))
}

/// A vector with the elements that a list of places names replaced.
pub(super) fn replaced(data: &Known, indices: &Known, updates: &Known) -> Option<Known> {
    let count = i64::try_from(data.len()).ok()?;
    // Of each element, that of the data or of the updates which it is.
    let mut from: Vec<usize> = (0..data.len()).collect();
    for (number, index) in indices.sizes()?.iter().enumerate() {
        let index = index.known()?;
        let place = usize::try_from(if index < 0 { index + count } else { index }).ok()?;
        *from.get_mut(place)? = data.len() + number;
    }
    let items = match (&data.items, &updates.items) {
        (Items::Sizes(data), Items::Sizes(updates)) => {
            Items::Sizes(picked(&[&data[..], updates].concat(), &from)?)
        }
        (Items::Reals(data), Items::Reals(updates)) => {
            Items::Reals(picked(&[&data[..], updates].concat(), &from)?)
        }
        _ => return None,
    };
    (data.dtype == updates.dtype).then(|| Known { items, ..data.clone() })
}

fn picked<T: Clone>(from: &[T], places: &[usize]) -> Option<Vec<T>> {
    places.iter().map(|&place| from.get(place).cloned()).collect()
}
