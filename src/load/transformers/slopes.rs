//! Attention with linear biases (Press, Smith and Lewis 2022): each head's scores grow with the key's
//! position, by a slope of its own.

use serde_json::json;

use super::attention::{Heads, Masks};
use super::net::Net;
use super::settings::Slopes;

/// What is added to scores: `[shared, per, 1, keys]`, or with the caller's mask, by which positions are
/// counted then, `[batch, shared, per, 1, keys]`. `scale`: the factor of scores.
pub(super) fn write(net: &mut Net, slopes: Slopes, heads: Heads, scale: f64, masks: &Masks) -> String {
    let Slopes { rounded, scaled } = slopes;
    let positions = match masks.shown {
        None => {
            let keys = &masks.sides.keys;
            let keys = keys.as_str().map_or_else(|| keys.to_string(), str::to_owned);
            net.node("slopes.position", "iota", &[], json!({"type": format!("f32[{keys}]")}))
        }
        Some(mask) => {
            let one = net.constant("slopes.one", "i64[]", json!(1));
            let count = net.counted(mask);
            let before = net.node("slopes.before", "sub", &[&count, &one], json!({}));
            let before = net.node("slopes.shown", "mul", &[&before, mask], json!({}));
            let real = net.node("slopes.real", "convert", &[&before], json!({"to": "f32"}));
            let shape = json!({"shape": ["batch", 1, 1, 1, masks.sides.keys]});
            net.node("slopes.position", "reshape", &[&real], shape)
        }
    };
    // A softmax does not change with what is added to all of a row: the key's position stands for its distance.
    let values: Vec<f32> = (0..heads.count).map(|head| of_head(head, heads.count, rounded)).collect();
    let ty = format!("f32[{}, {}, 1, 1]", heads.shared, heads.count / heads.shared);
    let slopes = net.constant("slopes", &ty, json!(values));
    let mut added = net.node("slopes.added", "mul", &[&slopes, &positions], json!({}));
    // As the library of Falcon computes them, in 16 bits.
    if rounded {
        added = net.node("slopes.half", "convert", &[&added], json!({"to": "bf16"}));
        added = net.node("slopes.rounded", "convert", &[&added], json!({"to": "f32"}));
    }
    if scaled { net.scaled("slopes.scaled", &added, scale) } else { added }
}

/// Powers of a base; where heads are no power of two, those left over have every other power of the root of
/// the base of twice as many.
fn of_head(head: u64, heads: u64, rounded: bool) -> f32 {
    let closest = 1u64 << heads.ilog2();
    let base = |count: u64| (-(-((count as f64).log2() - 3.0)).exp2()).exp2() as f32;
    let slope = if head < closest {
        base(closest).powi(head as i32 + 1)
    } else {
        base(2 * closest).powi(2 * (head - closest) as i32 + 1)
    };
    if rounded { crate::ir::half::bf16_to_f32(crate::ir::half::f32_to_bf16(slope)) } else { slope }
}
