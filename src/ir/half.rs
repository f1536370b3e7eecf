//! Conversions between the 16-bit floating-point types and f32. Rounding is to nearest, ties to
//! even; not-a-number stays not-a-number.

/// Bits of an infinity, and those that every quiet not-a-number has.
const INFINITY: u32 = 0x7f80_0000;
const QUIET: u32 = 0x7fc0_0000;

/// An IEEE binary16 as f32; exact.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    // Moves exponent and mantissa into place, then scales by 2^112; that is exact for
    // subnormals too. Infinities and not-a-numbers are put right afterwards.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = match bits & 0x7fff {
        0..0x7c00 => 0,
        0x7c00 => INFINITY,
        _ => QUIET,
    };
    f32::from_bits(magnitude.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

/// The nearest IEEE binary16.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > INFINITY {
        // What says why it is none is kept, as processors do.
        0x7e00 | (magnitude >> 13 & 0x1ff)
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, at the bottom.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    } else {
        let odd = (magnitude >> 13) & 1;
        (magnitude - 0x3800_0000 + 0xfff + odd) >> 13
    };
    (sign | rounded) as u16
}

/// A bfloat16 as f32; exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A float of 8 bits with 4 of exponent and no infinities (E4M3FN) as f32; exact.
#[inline(always)]
pub(crate) fn e4m3_to_f32(bits: u8) -> f32 {
    if bits & 0x7f == 0x7f {
        return f32::NAN;
    }
    // As a binary16 its exponent is 8 too small.
    let half = (u16::from(bits & 0x80) << 8) | (u16::from(bits & 0x7f) << 7);
    f16_to_f32(half) * 256.0
}

/// A float of 8 bits with 5 of exponent (E5M2), which begins as a binary16 does, as f32; exact.
#[inline(always)]
pub(crate) fn e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32(u16::from(bits) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{value}");
            }
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits);
            }
        }
    }

    #[test]
    fn halves_between_two_values_round_to_even() {
        let cases: [(f32, u16); 8] = [
            (1.0, 0x3c00),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (65504.0, 0x7bff),
            (65520.0, 0x7c00),
            (65519.0, 0x7bff),
            (-6.0e-8, 0x8001),
            (2.0e-8, 0x0000),
        ];
        for (value, bits) in cases {
            assert_eq!(f32_to_f16(value), bits, "{value}");
        }
        assert_eq!(f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
    }

    #[test]
    fn floats_of_eight_bits() {
        for (bits, value) in [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x38, 1.0), (0xb9, -1.125), (0x7e, 448.0)]
        {
            assert_eq!(e4m3_to_f32(bits), value, "{bits:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
        for (bits, value) in [(0x01, 2f32.powi(-16)), (0x3c, 1.0), (0xbd, -1.25), (0x7b, 57344.0)] {
            assert_eq!(e5m2_to_f32(bits), value, "{bits:#x}");
        }
        assert!(e5m2_to_f32(0x7c).is_infinite() && e5m2_to_f32(0x7d).is_nan());
    }
}
