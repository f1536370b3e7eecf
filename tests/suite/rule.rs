//! Weights and inputs made by rule `splitmix-v1`, for corpus models that are stored without them.

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// `count` numbers in [-1, 1), the same for the same name.
pub(crate) fn unit(name: &str, count: usize) -> Vec<f32> {
    let bytes = scaled(name, count, 1.0, 0.0);
    bytes.chunks(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// The bytes of `unit * factor + offset`. Hundreds of millions of numbers are made so in builds
/// without optimisation, hence a plain loop.
fn scaled(name: &str, count: usize, factor: f32, offset: f32) -> Vec<u8> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut bytes = vec![0; count * 4];
    let mut state = hash(name);
    let mut at = 0;
    while at < bytes.len() {
        state = state.wrapping_add(STEP);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = (z >> 40) as f32 * (1.0 / 8_388_608.0) - 1.0;
        let bits = (unit * factor + offset).to_bits();
        bytes[at] = bits as u8;
        bytes[at + 1] = (bits >> 8) as u8;
        bytes[at + 2] = (bits >> 16) as u8;
        bytes[at + 3] = (bits >> 24) as u8;
        at += 4;
    }
    bytes
}

/// The weights of a parameter of these sizes, as bytes of f32.
pub(crate) fn weight(name: &str, dims: &[u64]) -> Vec<u8> {
    let count = dims.iter().product::<u64>() as usize;
    let fan = match dims {
        [] | [_] => {
            let ends = ["weight", "var", "scale", "gamma"].iter().any(|end| name.ends_with(end));
            let scales = !name.contains("bias") && (ends || name.to_lowercase().contains("norm"));
            return if scales { scaled(name, count, 0.1, 1.0) } else { scaled(name, count, 0.05, 0.0) };
        }
        [rows, columns] => (rows + columns) as f64 / 2.0,
        [first, ..] => count as f64 / *first as f64,
    };
    let variance = if dims.len() >= 3 { 6.0 } else { 3.0 };
    scaled(name, count, (variance / fan.max(1.0)).sqrt() as f32, 0.0)
}
