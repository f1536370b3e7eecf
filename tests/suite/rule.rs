//! Weights and inputs made by rule `splitmix-v1`, for corpus models that are stored without them.

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// `count` numbers in [-1, 1), the same for the same name.
pub(crate) fn unit(name: &str, count: usize) -> Vec<f32> {
    let seed = hash(name);
    (1..=count as u64)
        .map(|i| {
            let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            (z >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// The weights of a parameter of these sizes.
pub(crate) fn weight(name: &str, dims: &[i64]) -> Vec<f32> {
    let count = dims.iter().product::<i64>() as usize;
    let values = unit(name, count);
    let scaled = |factor: f32, offset: f32| values.iter().map(|value| value * factor + offset).collect();
    let fan = match dims {
        [] | [_] => {
            let ends = ["weight", "var", "scale", "gamma"].iter().any(|end| name.ends_with(end));
            let scales = !name.contains("bias") && (ends || name.to_lowercase().contains("norm"));
            return if scales { scaled(0.1, 1.0) } else { scaled(0.05, 0.0) };
        }
        [rows, columns] => (rows + columns) as f64 / 2.0,
        [first, ..] => count as f64 / *first as f64,
    };
    let variance = if dims.len() >= 3 { 6.0 } else { 3.0 };
    scaled((variance / fan.max(1.0)).sqrt() as f32, 0.0)
}
