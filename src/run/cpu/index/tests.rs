//! Gathers and scatters beside their definitions.

use super::super::team::Team;
use super::super::view::{View, ViewMut, bytes_of, bytes_of_mut};
use super::gather::{gather, gather_elements, gather_nd};
use super::scatter::{combine, scatter_nd};
use crate::ir::{DType, ScatterKind};

fn numbers(count: i64) -> Vec<f32> {
    (0..count).map(|i| if i % 101 == 5 { f32::NAN } else { (i * 37 % 89) as f32 - 40.5 }).collect()
}

fn bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// A view of data, and one to write.
fn view<'a>(dims: &'a [i64], x: &'a [f32]) -> View<'a> {
    View::new(DType::F32, dims, bytes_of(x)).unwrap()
}

fn view_mut<'a>(dims: &'a [i64], x: &'a mut [f32]) -> ViewMut<'a> {
    ViewMut::new(DType::F32, dims, bytes_of_mut(x)).unwrap()
}

#[test]
fn elements_along_any_axis_are_those_of_the_definition() {
    let cases: [(u32, &[i64], &[i64]); 6] = [
        (0, &[7, 5, 9], &[3, 5, 9]),
        (1, &[2, 50, 17], &[2, 81, 17]),
        (1, &[4, 6, 8], &[3, 9, 5]),
        (2, &[3, 4, 11], &[2, 4, 30]),
        (0, &[9], &[20]),
        (1, &[3, 4, 1], &[3, 7, 1]),
    ];
    for (axis, dims, own) in cases {
        let axis_of = axis as usize;
        let x = numbers(dims.iter().product());
        let count = own.iter().product::<i64>();
        let size = dims[axis_of];
        let indices: Vec<i64> =
            (0..count).map(|i| i * 7919 % size - if i % 3 == 0 { size } else { 0 }).collect();
        let mut found = vec![0.0f32; count as usize];
        let named = View::new(DType::I64, own, bytes_of(&indices)).unwrap();
        gather_elements(&Team::alone(), axis, &view(dims, &x), &named, &mut view_mut(own, &mut found))
            .unwrap();
        let expected: Vec<f32> = (0..count)
            .map(|number| {
                let (mut rest, mut place, mut step) = (number, 0, 1);
                for axis in (0..own.len()).rev() {
                    let index = indices[number as usize].rem_euclid(size);
                    let at = if axis == axis_of { index } else { rest % own[axis] };
                    place += at * step;
                    (rest, step) = (rest / own[axis], step * dims[axis]);
                }
                x[place as usize]
            })
            .collect();
        assert_eq!(bits(&found), bits(&expected), "{axis} {dims:?} {own:?}");
    }
}

#[test]
fn slices_are_combined_in_the_order_of_updates() {
    let kinds =
        [ScatterKind::Replace, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min];
    for (kind, length) in kinds.into_iter().flat_map(|kind| [1, 7, 64, 100].map(|length| (kind, length))) {
        let (rows, steps) = (13, 50);
        let (dims, of_updates) = ([rows, length], [steps, length]);
        let (data, updates) = (numbers(rows * length), numbers(steps * length));
        let indices: Vec<i64> = (0..steps).map(|i| i * 7919 % rows).collect();
        let mut found = vec![0.0f32; data.len()];
        let of_indices = [steps, 1];
        let named = View::new(DType::I64, &of_indices, bytes_of(&indices)).unwrap();
        let inputs = [view(&dims, &data), named, view(&of_updates, &updates)];
        scatter_nd(kind, &inputs, &mut view_mut(&dims, &mut found)).unwrap();
        let mut expected = data.clone();
        for (step, row) in indices.iter().enumerate() {
            for column in 0..length as usize {
                let old = &mut expected[*row as usize * length as usize + column];
                *old = combine(kind, *old, updates[step * length as usize + column]);
            }
        }
        assert_eq!(bits(&found), bits(&expected), "{kind:?} {length}");
    }
}

/// A tensor as the bytes of its indices in some type.
fn indices(dtype: DType, list: &[i64]) -> Vec<u8> {
    let wide = list.iter();
    match dtype {
        DType::I64 => wide.flat_map(|index| index.to_ne_bytes()).collect(),
        DType::I32 => wide.flat_map(|&index| (index as i32).to_ne_bytes()).collect(),
        DType::U8 => wide.flat_map(|&index| (index as u8).to_ne_bytes()).collect(),
        other => panic!("no test has indices of {other}"),
    }
}

/// Blocks of rows, and more indices than a thread takes at a time, so that parts begin within rows.
struct OfRows {
    dtype: DType,
    length: i64,
    x: Vec<f32>,
    list: Vec<i64>,
}

impl OfRows {
    const BLOCKS: i64 = 3;
    const SIZE: i64 = 50;
    const COUNT: i64 = 6_000;

    fn all() -> impl Iterator<Item = Self> {
        let kinds = [(DType::I64, 1), (DType::I32, 3), (DType::U8, 8), (DType::I64, 9), (DType::U8, 100)];
        kinds.into_iter().map(|(dtype, length)| {
            let below = if dtype == DType::U8 { 0 } else { Self::SIZE };
            let list = (0..Self::COUNT).map(|i| i * 7919 % (Self::SIZE + below) - below).collect();
            Self { dtype, length, x: numbers(Self::BLOCKS * Self::SIZE * length), list }
        })
    }

    fn dims(&self) -> [i64; 3] {
        [Self::BLOCKS, Self::SIZE, self.length]
    }

    /// The row that an index names within a block.
    fn row(&self, block: i64, index: i64) -> &[f32] {
        let from = (block * Self::SIZE + index.rem_euclid(Self::SIZE)) * self.length;
        &self.x[from as usize..][..self.length as usize]
    }
}

#[test]
fn rows_of_any_length_are_those_of_the_definition() {
    for case in OfRows::all() {
        let (dims, to) = (case.dims(), [OfRows::BLOCKS, OfRows::COUNT, case.length]);
        let (bytes, of_indices) = (indices(case.dtype, &case.list), [OfRows::COUNT]);
        let named = View::new(case.dtype, &of_indices, &bytes).unwrap();
        let mut found = vec![0.0f32; to.iter().product::<i64>() as usize];
        gather(&Team::alone(), 1, &view(&dims, &case.x), &named, &mut view_mut(&to, &mut found)).unwrap();
        let mut expected = Vec::new();
        for block in 0..OfRows::BLOCKS {
            case.list.iter().for_each(|&index| expected.extend(case.row(block, index)));
        }
        assert_eq!(bits(&found), bits(&expected), "{} {}", case.dtype, case.length);
    }
}

#[test]
fn each_batch_has_indices_of_its_own() {
    for case in OfRows::all() {
        let each = OfRows::COUNT / OfRows::BLOCKS;
        let (dims, to) = (case.dims(), [OfRows::BLOCKS, each, case.length]);
        let (bytes, of_indices) = (indices(case.dtype, &case.list), [OfRows::BLOCKS, each, 1]);
        let named = View::new(case.dtype, &of_indices, &bytes).unwrap();
        let mut found = vec![0.0f32; to.iter().product::<i64>() as usize];
        gather_nd(&Team::alone(), 1, &view(&dims, &case.x), &named, &mut view_mut(&to, &mut found)).unwrap();
        let mut expected = Vec::new();
        for (position, &index) in (0..).zip(&case.list) {
            expected.extend(case.row(position / each, index));
        }
        assert_eq!(bits(&found), bits(&expected), "{} {}", case.dtype, case.length);
    }
}

#[test]
fn the_first_index_outside_is_told() {
    let x = numbers(20);
    let list = [4i64, -5, 5, -6];
    let named = View::new(DType::I64, &[4], bytes_of(&list)).unwrap();
    let mut out = vec![0.0; 16];
    let error =
        gather(&Team::alone(), 0, &view(&[5, 4], &x), &named, &mut view_mut(&[4, 4], &mut out)).unwrap_err();
    assert!(error.to_string().contains("index 5 is outside an axis of 5 elements"), "{error}");
    let error =
        gather_elements(&Team::alone(), 0, &view(&[5], &x[..5]), &named, &mut view_mut(&[4], &mut out[..4]));
    assert!(error.unwrap_err().to_string().contains("index 5 is outside"));
}
