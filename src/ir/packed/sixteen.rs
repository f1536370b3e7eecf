//! 16 bytes that are computed with side by side. Compilers make no vectors of shifts by a number that they do not know, so
//! that instruction sets have forms of their own.

/// 16 bytes.
pub(crate) trait Sixteen: Copy + From<[u8; 16]> + Into<[u8; 16]> {
    /// The bits of each that a mask has, from one bit on.
    fn bits(self, shift: u32, mask: u8) -> Self;
    /// Moved up by so many bits, which nothing leaves.
    fn raised<const BY: i32>(self) -> Self;
    /// The bits of both.
    fn or(self, other: Self) -> Self;
    /// Less a number, modulo 256.
    fn less(self, number: u8) -> Self;
    /// A number where a bit is set, the first of two bytes' for the first byte, and zero where it is not.
    fn where_set(bits: [u8; 2], number: u8) -> Self;

    /// Those from one on. Panics where there are fewer.
    #[inline(always)]
    fn at(bytes: &[u8], at: usize) -> Self {
        let mut some = [0; 16];
        some.copy_from_slice(&bytes[at..at + 16]);
        some.into()
    }
}

/// The bit of its byte that each of 16 has.
pub(crate) const OWN_BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

// Loops without closures: those of arrays are not always made part of the kernels of an instruction set.
impl Sixteen for [u8; 16] {
    #[inline(always)]
    fn bits(mut self, shift: u32, mask: u8) -> Self {
        for byte in &mut self {
            *byte = *byte >> shift & mask;
        }
        self
    }

    #[inline(always)]
    fn raised<const BY: i32>(mut self) -> Self {
        for byte in &mut self {
            *byte <<= BY;
        }
        self
    }

    #[inline(always)]
    fn or(mut self, other: Self) -> Self {
        for at in 0..16 {
            self[at] |= other[at];
        }
        self
    }

    #[inline(always)]
    fn less(mut self, number: u8) -> Self {
        for byte in &mut self {
            *byte = byte.wrapping_sub(number);
        }
        self
    }

    #[inline(always)]
    fn where_set(bits: [u8; 2], number: u8) -> Self {
        let mut made = [0; 16];
        for at in 0..16 {
            if bits[at / 8] & OWN_BITS[at] != 0 {
                made[at] = number;
            }
        }
        made
    }
}
