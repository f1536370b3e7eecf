//! Integers of few bits in words of 32.

use super::{Error, Result, whole};
use crate::ir::{DType, Tensor};

/// In which order a word holds its integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The first in the lowest bits.
    Neighbours,
    /// AWQ's for products of matrices, of eight: those of even places first.
    EvenFirst,
}

/// Along which axis of a matrix the integers of a word are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    Columns,
    Rows,
}

/// How a matrix of integers is in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    pub(super) bits: u8,
    pub(super) order: Order,
    pub(super) along: Along,
}

/// Where AWQ has the integers of a word.
const EVEN_FIRST: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Packing {
    /// Integers of a word.
    pub(super) fn each(self) -> u64 {
        32 / u64::from(self.bits.max(1))
    }

    /// Sizes of the words of a matrix.
    pub(super) fn words(self, [rows, columns]: [u64; 2]) -> [u64; 2] {
        match self.along {
            Along::Columns => [rows, columns.div_ceil(self.each())],
            Along::Rows => [rows.div_ceil(self.each()), columns],
        }
    }

    /// The integers of a matrix of these sizes, row by row. Error: the words are of another one.
    pub(super) fn unpack(self, words: &Tensor, dims: [u64; 2]) -> Result<Vec<u8>> {
        let expected = self.words(dims);
        if words.dims() != expected {
            let message = format!("words of sizes {:?}, expected {expected:?}", words.dims());
            return Err(Error::model("", message));
        }
        let mut integers = vec![0; whole(&dims)?];
        let width = dims[1] as usize;
        let row_of_words = (expected[1] as usize).max(1);
        let mask = u32::from(u8::MAX >> (8 - self.bits));
        for (at, word) in words.bytes().as_chunks::<4>().0.iter().enumerate() {
            let word = u32::from_le_bytes(*word);
            let (row, column) = (at / row_of_words, at % row_of_words);
            for number in 0..self.each() as usize {
                let integer = (word >> (number * usize::from(self.bits)) & mask) as u8;
                let beyond = match self.order {
                    Order::Neighbours => number,
                    Order::EvenFirst => EVEN_FIRST[number % 8],
                };
                let (row, column) = match self.along {
                    Along::Columns => (row, column * self.each() as usize + beyond),
                    Along::Rows => (row * self.each() as usize + beyond, column),
                };
                // The last word of a row or column may be longer.
                if column < width
                    && let Some(to) = integers.get_mut(row * width + column)
                {
                    *to = integer;
                }
            }
        }
        Ok(integers)
    }
}

/// A matrix of so many rows and columns with its axes in turn.
pub(super) fn turned<T: Copy>(matrix: &[T], [rows, columns]: [u64; 2]) -> Vec<T> {
    let (rows, columns) = (rows as usize, columns as usize);
    let column = |at: usize| matrix.get(at..).unwrap_or_default().iter().step_by(columns).take(rows).copied();
    (0..columns).flat_map(column).collect()
}

/// Rows of integers of 2, 4 or 8 bits as bytes, the first integer of a byte in its lowest bits; each row ends with a byte.
pub(super) fn packed(integers: &[u8], columns: u64, bits: u8, rows: u64) -> Result<Tensor> {
    let each = usize::from(8 / bits.max(1));
    let row_bytes = (columns as usize).div_ceil(each);
    let mut bytes = Vec::with_capacity(row_bytes * rows as usize);
    for row in integers.chunks(columns.max(1) as usize) {
        for some in row.chunks(each) {
            let place = |(at, &integer): (usize, &u8)| integer << (at * usize::from(bits));
            bytes.push(some.iter().enumerate().map(place).fold(0, |byte, own| byte | own));
        }
    }
    Tensor::new(DType::U8, vec![rows, row_bytes as u64], bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that hold a matrix of four bits, made integer by integer.
    fn words(dims: [u64; 2], packing: Packing, at: impl Fn(u64, u64) -> u32) -> Tensor {
        let sizes = packing.words(dims);
        let mut words = vec![0u32; whole(&sizes).unwrap()];
        for row in 0..dims[0] {
            for column in 0..dims[1] {
                let along = if packing.along == Along::Columns { column } else { row };
                let place = (along % packing.each()) as usize;
                let place = match packing.order {
                    Order::Neighbours => place,
                    Order::EvenFirst => EVEN_FIRST.iter().position(|&own| own == place).unwrap(),
                };
                let word = match packing.along {
                    Along::Columns => row * sizes[1] + column / packing.each(),
                    Along::Rows => row / packing.each() * sizes[1] + column,
                };
                words[word as usize] |= at(row, column) << (place * usize::from(packing.bits));
            }
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Tensor::new(DType::I32, sizes.to_vec(), bytes).unwrap()
    }

    #[test]
    fn integers_are_where_they_were_put() {
        let at = |row: u64, column: u64| ((row * 7 + column * 3) % 16) as u32;
        for (along, order) in [
            (Along::Columns, Order::Neighbours),
            (Along::Rows, Order::Neighbours),
            (Along::Columns, Order::EvenFirst),
        ] {
            for dims in [[5, 16], [16, 5], [3, 8], [9, 11]] {
                let packing = Packing { bits: 4, order, along };
                let found = packing.unpack(&words(dims, packing, at), dims).unwrap();
                let expected: Vec<u8> =
                    (0..dims[0] * dims[1]).map(|place| at(place / dims[1], place % dims[1]) as u8).collect();
                assert_eq!(found, expected, "{packing:?} of {dims:?}");
            }
        }
        let packing = Packing { bits: 4, order: Order::Neighbours, along: Along::Rows };
        assert!(packing.unpack(&words([8, 4], packing, at), [17, 4]).is_err());
    }

    #[test]
    fn rows_are_packed_as_groups_are_read() {
        let bytes = packed(&[1, 2, 3, 4, 5, 6], 3, 4, 2).unwrap();
        assert_eq!((bytes.bytes(), bytes.dims()), (&[0x21, 0x03, 0x54, 0x06][..], &[2, 2][..]));
        assert_eq!(turned(&[1, 2, 3, 4, 5, 6], [2, 3]), [1, 4, 2, 5, 3, 6]);
    }
}
