//! Clusters of units: pairs joined by heavy nets, level by level.
//!
//! Source: heavy-edge matching (Karypis and Kumar, A Fast and High Quality Multilevel Scheme for
//! Partitioning Irregular Graphs, 1998), with the time that a net takes, shared among its units, as
//! weight, and lighter clusters preferred.

use super::model::Model;
use crate::place::problem::NONE;
use crate::random::Rng;

/// Units of a net beyond which it does not say who belongs together.
const WIDEST: usize = 32;

/// Cluster of each unit, and how many there are: every unit is alone or with one other, whose
/// device in `device` and choice of devices are the same. No cluster of two takes more time than
/// `most`. O(pins x widest).
pub(super) fn matched(model: &Model<'_>, most: u64, device: &[u32], rng: &mut Rng) -> (Vec<u32>, usize) {
    let units = model.unit_count();
    let mut order: Vec<u32> = (0..units as u32).collect();
    rng.shuffle(&mut order);
    let mut partner = vec![NONE; units];
    let mut rating = vec![0.0f64; units];
    let mut rated = Vec::new();
    for unit in order.into_iter().map(|unit| unit as usize) {
        if partner[unit] != NONE {
            continue;
        }
        rate(model, unit, &mut rating, &mut rated);
        let time = model.least_time(unit);
        let suits = |&other: &u32| {
            let other = other as usize;
            partner[other] == NONE
                && model.choice[other] == model.choice[unit]
                && model.least_time(other).saturating_add(time) <= most
                && device[other] == device[unit]
        };
        let mut best: Option<(f64, u32)> = None;
        for other in rated.drain(..) {
            let value = std::mem::take(&mut rating[other as usize]);
            if suits(&other) && best.is_none_or(|(most, _)| value > most) {
                best = Some((value, other));
            }
        }
        if let Some((_, other)) = best {
            partner[unit] = other;
            partner[other as usize] = unit as u32;
        }
    }
    numbered(&partner)
}

/// Rates the units that share nets with one.
fn rate(model: &Model<'_>, unit: usize, rating: &mut [f64], rated: &mut Vec<u32>) {
    for &net in model.of_unit.row(unit) {
        let units = model.nets.row(net as usize);
        if units.len() > WIDEST {
            continue;
        }
        let time = model.net_times(net as usize).iter().copied().max().unwrap_or(0);
        // One more, so that nets of no time join units too.
        let share = (time as f64 + 1.0) / (units.len() - 1).max(1) as f64;
        for &other in units.iter().filter(|&&other| other as usize != unit) {
            if rating[other as usize] == 0.0 {
                rated.push(other);
            }
            let weight = model.least_time(other as usize).saturating_add(1) as f64;
            rating[other as usize] += share / weight;
        }
    }
}

/// Numbers pairs and single units by their first member.
fn numbered(partner: &[u32]) -> (Vec<u32>, usize) {
    let mut of = vec![NONE; partner.len()];
    let mut count = 0;
    for unit in 0..partner.len() {
        if of[unit] == NONE {
            of[unit] = count;
            if partner[unit] != NONE {
                of[partner[unit] as usize] = count;
            }
            count += 1;
        }
    }
    (of, count as usize)
}
