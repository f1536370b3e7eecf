//! 16 bytes in one register.
//!
//! Holds `unsafe`: the instructions are SSE2, which every x86-64 has.

use std::arch::x86_64 as arch;

use crate::ir::packed::{OWN_BITS, Sixteen};

/// 16 bytes.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Register(arch::__m128i);

impl From<[u8; 16]> for Register {
    #[inline(always)]
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytemuck::cast(bytes))
    }
}

impl From<Register> for [u8; 16] {
    #[inline(always)]
    fn from(Register(bytes): Register) -> Self {
        bytemuck::cast(bytes)
    }
}

impl Sixteen for Register {
    #[inline(always)]
    fn bits(self, shift: u32, mask: u8) -> Self {
        // What comes from the byte above is masked.
        // SAFETY: every x86-64 has SSE2.
        unsafe {
            let moved = arch::_mm_srl_epi16(self.0, arch::_mm_cvtsi32_si128(shift as i32));
            Self(arch::_mm_and_si128(moved, arch::_mm_set1_epi8(mask as i8)))
        }
    }

    #[inline(always)]
    fn raised<const BY: i32>(self) -> Self {
        // SAFETY: as above.
        unsafe { Self(arch::_mm_slli_epi16::<BY>(self.0)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(arch::_mm_or_si128(self.0, other.0)) }
    }

    #[inline(always)]
    fn less(self, number: u8) -> Self {
        // SAFETY: as above.
        unsafe { Self(arch::_mm_sub_epi8(self.0, arch::_mm_set1_epi8(number as i8))) }
    }

    #[inline(always)]
    fn where_set(bits: [u8; 2], number: u8) -> Self {
        let [low, high] = bits.map(|byte| (u64::from(byte) * 0x0101_0101_0101_0101).cast_signed());
        let own = Self::from(OWN_BITS).0;
        // SAFETY: as above.
        unsafe {
            let set = arch::_mm_cmpeq_epi8(arch::_mm_and_si128(arch::_mm_set_epi64x(high, low), own), own);
            Self(arch::_mm_and_si128(set, arch::_mm_set1_epi8(number as i8)))
        }
    }
}
