//! Where each element of a result comes from, axis by axis.

/// For each position along one axis of the result, how far it moves the place in the operand; none
/// where nothing is read.
pub(super) type Table = Vec<Option<usize>>;

/// Row-major strides in elements. They mean nothing where a size is 0.
pub(super) fn strides(dims: &[u64]) -> Vec<usize> {
    let mut strides = vec![1usize; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(dims[axis] as usize);
    }
    strides
}

/// The place that each element of the result is read from, in row-major order: the sums of one
/// entry of each table. O(elements) for any number of axes of size 1.
pub(super) fn places(tables: &[Table]) -> Vec<Option<usize>> {
    let add = |a: Option<usize>, b: Option<usize>| a?.checked_add(b?);
    let single = tables.iter().filter(|table| table.len() == 1);
    let fixed = single.map(|table| table[0]).try_fold(0usize, |sum, step| add(Some(sum), step));
    let mut places = vec![fixed];
    for table in tables.iter().filter(|table| table.len() != 1) {
        places = places.iter().flat_map(|&place| table.iter().map(move |&step| add(place, step))).collect();
    }
    places
}

/// The elements at these places, each of `size` bytes; `filling` where nothing is read. None
/// where a place is outside.
pub(super) fn pick(
    source: &[u8],
    size: usize,
    places: &[Option<usize>],
    filling: Option<&[u8]>,
) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(places.len() * size);
    for place in places {
        let element = match place {
            Some(place) => source.get(place.checked_mul(size)?..)?.get(..size)?,
            None => filling?,
        };
        bytes.extend_from_slice(element);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_axes_of_one_element_cost_nothing() {
        let mut tables = vec![vec![Some(0)]; 1_000_000];
        tables.insert(0, (0..1000).map(Some).collect());
        assert_eq!(places(&tables), (0..1000).map(Some).collect::<Vec<_>>());
        assert_eq!(places(&[vec![Some(0), None], vec![Some(3)]]), [Some(3), None]);
    }

    #[test]
    fn a_place_outside_is_no_element() {
        assert_eq!(pick(&[1, 2], 1, &[Some(1), None], Some(&[9])), Some(vec![2, 9]));
        assert_eq!(pick(&[1, 2], 1, &[Some(2)], None), None);
        assert_eq!(pick(&[1, 2], 1, &[None], None), None);
        assert_eq!(pick(&[1, 2], 2, &[Some(usize::MAX)], None), None);
    }
}
