//! Notes on stderr where something was read or planned otherwise than the caller might expect.

use std::collections::BTreeMap;

use super::terminal::Console;
use crate::compile::{Compiled, Options, gap_passed_over};
use crate::ir::{DimId, Graph};
use crate::place::{DeviceUse, Objective};

/// Notes the dimensions that nobody bound.
pub(super) fn note_assumptions(compiled: &Compiled, console: &Console) {
    let assumed = compiled.network.as_ref().map_or(&[][..], |network| &network.assumed);
    if !assumed.is_empty() {
        let names = assumed.join(", ");
        console.note(&format!("planned with {names} = 1; --dim NAME=N plans for another size"));
    }
}

/// Notes that the search went on at the gap that was asked for, because that was no gap to all plans.
pub(super) fn note_gap(compiled: &Compiled, options: &Options, console: &Console) {
    let Some((own, all)) = gap_passed_over(compiled, options) else { return };
    let percent = |gap: f64| format!("{:.1}%", gap * 100.0);
    let plans =
        if compiled.plan.options.splits.is_empty() { "of whole operations" } else { "with these splits" };
    let all = all.map_or("of all plans no bound is known".to_owned(), |all| {
        format!("among all it is {}", percent(all))
    });
    console.note(&format!(
        "--until was not reached: the gap of {} is that among plans {plans}, {all} (--split none plans whole operations alone)",
        percent(own)
    ));
}

/// The part of a fair share of the work below which a device does next to nothing.
const LITTLE: u64 = 10;

/// Notes that devices which are all to be used have next to nothing to do, where few bytes are asked for: they move fewest
/// where one device has nearly all.
pub(super) fn note_shares(compiled: &Compiled, options: &Options, console: &Console) {
    let place = &options.place;
    let is_asked = place.devices != DeviceUse::Auto && place.objective == Objective::Transfer;
    if !is_asked || place.balance.is_some() {
        return;
    }
    let busy = || compiled.schedule.devices.iter().map(|usage| usage.busy.get()).filter(|&busy| busy > 0);
    let (total, most) = (busy().sum::<u64>(), busy().max().unwrap_or(0));
    let fair = total / busy().count().max(1) as u64;
    let little = busy().filter(|&busy| busy < fair / LITTLE).count();
    if little > 0 {
        let percent = most as f64 / total.max(1) as f64 * 100.0;
        console.note(&format!(
            "one device computes {percent:.1}% of the time: the fewest bytes leave {} next to nothing (--balance 0.1 shares \
             the work evenly, --objective latency or throughput as it pays)",
            if little == 1 { "one other".to_owned() } else { format!("{little} others") }
        ));
    }
}

/// Notes what should be known of a model's file, and the dimensions that are others because the model's operations fit
/// only so; not those of `known`.
pub(super) fn note_network(graph: &Graph, known: &BTreeMap<String, i64>, console: &Console) {
    graph.notes().iter().for_each(|line| console.note(line));
    let names = |dim: DimId| graph.dim_name(dim);
    let equal = graph.dims().iter().filter(|dim| !known.contains_key(&dim.name)).filter_map(|dim| {
        let size = dim.is.as_ref()?;
        Some(format!("{} = {}", dim.name, size.display(&names)))
    });
    let equal: Vec<String> = equal.collect();
    if !equal.is_empty() {
        console.note(&format!("as the model's operations need, {}", equal.join(", ")));
    }
}
