//! Relative positions of T5 (Raffel and others 2020): a summand of each head's scores that is learnt for ranges of
//! distances, near ones one by one and farther ones in ranges that widen.

use serde_json::json;

use super::attention::{Heads, Masks};
use super::net::Net;
use super::settings::Distances;

/// What is added to scores: `[shared, per, rows, keys]`. `table`: the parameter, `[ranges, heads]`.
pub(super) fn write(
    net: &mut Net,
    distances: &Distances,
    table: &str,
    heads: Heads,
    masks: &Masks,
) -> String {
    let label = masks.sides.label;
    let name = |end: &str| format!("{label}distances.{end}");
    let table = net.param(table, &[distances.ranges, heads.count], "normal");
    let rows = masks.places(net, &name("row"), "i64", 0);
    let keys = masks.places(net, &name("key"), "i64", 1);
    // Behind the farthest nothing differs.
    let most = net.constant(&name("farthest"), "i64[]", json!(distances.farthest));
    let apart = net.node(&name("apart"), "sub", &[&keys, &rows], json!({}));
    let apart = net.node(&name("at_most"), "min", &[&apart, &most], json!({}));
    let least = net.constant(&name("nearest"), "i64[]", json!(-(distances.farthest as i64)));
    let apart = net.node(&name("at_least"), "max", &[&apart, &least], json!({}));
    let index = net.sum(&name("index"), &apart, &most);
    let farthest = distances.farthest as i64;
    let ranges: Vec<u64> = (-farthest..=farthest).map(|apart| range(distances, apart)).collect();
    let ranges = net.constant(&name("range_of"), &format!("i64[{}]", ranges.len()), json!(ranges));
    let range = net.node(&name("range"), "gather", &[&ranges, &index], json!({"axis": 0}));
    let added = net.node(&name("added"), "gather", &[&table, &range], json!({"axis": 0}));
    let added = net.node(&name("by_head"), "transpose", &[&added], json!({"perm": [2, 0, 1]}));
    let shape =
        json!({"shape": [heads.shared, heads.count / heads.shared, masks.sides.rows, masks.sides.keys]});
    net.node(&name("summand"), "reshape", &[&added], shape)
}

/// The range of a key this far behind a row, in the library's arithmetic.
fn range(distances: &Distances, apart: i64) -> u64 {
    let (ranges, first, distance) = if distances.both_ways {
        let half = distances.ranges / 2;
        (half, if apart > 0 { half } else { 0 }, apart.unsigned_abs())
    } else {
        (distances.ranges, 0, (-apart).max(0) as u64)
    };
    let exact = ranges / 2;
    if distance < exact {
        return first + distance;
    }
    let widening = (distances.farthest as f64 / exact.max(1) as f64).ln() as f32;
    let ratio = f64::from(distance as f32 / exact.max(1) as f32).ln() as f32;
    let beyond = (ratio / widening * (ranges - exact) as f32) as u64;
    first + (exact + beyond).min(ranges - 1)
}
