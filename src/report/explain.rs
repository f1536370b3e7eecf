//! Explanations for people to read.

use std::fmt::Write;

use super::summary::Scope;
use crate::escape::escaped;
use crate::explain::{Crossing, Fewer, NodeReport, Outcome, Overview, SplitReport};
use crate::plan::{Action, OFFLOADED, Plan, Step};
use crate::units::{Bytes, Nanos};

/// Names on one line.
const NAMED: usize = 4;

/// Parts of the longest chain that are listed.
const PARTS: usize = 8;

/// `1 step`, `2 steps`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A value of an objective with its unit.
fn amount(objective: &str, value: u64) -> String {
    if objective == "transfer" { Bytes(value).to_string() } else { Nanos(value).to_string() }
}

/// How much more or less than the plan has.
fn difference(objective: &str, value: u64, plan: u64) -> String {
    match value.cmp(&plan) {
        std::cmp::Ordering::Less => format!("{} less", amount(objective, plan - value)),
        std::cmp::Ordering::Equal => "the same".to_owned(),
        std::cmp::Ordering::Greater => format!("{} more", amount(objective, value - plan)),
    }
}

/// The first of some names.
fn some(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|name| escaped(name)).collect();
    let more = names.len().saturating_sub(NAMED);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// What bounds a plan. `plan` has its certificate.
pub fn overview_text(overview: &Overview, plan: &Plan) -> String {
    let mut text = String::new();
    let Overview { objective, value, .. } = overview;
    let among = Scope::of_plan(plan).among();
    let quality = match &plan.bound {
        Some(bound) if bound.gap <= 0.0 => format!("proven optimal{among}"),
        Some(bound) => format!(
            "at most {:.1} % above the optimum{among} ({}, at least {})",
            100.0 * (*value as f64 / bound.value.max(1) as f64 - 1.0),
            escaped(&bound.proof),
            amount(objective, bound.value)
        ),
        None if *value == 0 => "nothing can be less".to_owned(),
        None => "no certificate".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "{}: {objective} {}, {quality}", escaped(&plan.model.name), amount(objective, *value));
    text += &plan.options.precision.as_deref().map_or_else(String::new, super::summary::precision_line);
    let _ = writeln!(
        text,
        "moved {}, latency {}, load {}\n\ndevices",
        overview.transfer_bytes, overview.latency_ns, overview.max_load_ns
    );
    for share in &overview.devices {
        let _ = writeln!(
            text,
            "  {:<10} {:>5} launches, busy {} ({:.0} %), arena {} of {}",
            escaped(&share.device),
            share.launches,
            share.busy_ns,
            share.utilisation * 100.0,
            share.arena,
            share.cap
        );
    }
    paths(&mut text, overview);
    moved(&mut text, overview);
    prices(&mut text, overview);
    if let Some(fewer) = &overview.fewer {
        text += &fewer_text(fewer, objective);
    }
    for note in &overview.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text += &waits_text(plan, |_| true);
    text += &freed_text(plan);
    text
}

/// Where the time goes.
fn paths(text: &mut String, overview: &Overview) {
    let _ = writeln!(text, "\nthe longest chain of a step ({})", overview.latency_ns);
    for part in overview.path.iter().take(PARTS) {
        let (time, steps) = (part.time_ns, counted(part.steps, "step"));
        let _ = match part.what {
            "wait" => writeln!(text, "  {time} waiting for a link or a device"),
            what => writeln!(text, "  {time} {what} on {}, {steps}", escaped(&part.on)),
        };
    }
    if overview.path.len() > PARTS {
        let rest = &overview.path[PARTS..];
        let time: Nanos = rest.iter().map(|part| part.time_ns).sum();
        let _ = writeln!(text, "  {time} on {} other devices and links", rest.len());
    }
    let _ = writeln!(text, "\nthe highest loads in steady state");
    for load in &overview.loads {
        let total = load.own_ns + load.copies_ns;
        let copies = if load.copies_ns > Nanos::ZERO {
            format!(", {} of it for copies", load.copies_ns)
        } else {
            String::new()
        };
        let _ = writeln!(text, "  {total} on {} {}{copies}", load.what, escaped(&load.name));
    }
}

/// Where the bytes go.
fn moved(text: &mut String, overview: &Overview) {
    if !overview.cuts.is_empty() {
        let _ = writeln!(text, "\nwhat is copied");
    }
    for cut in &overview.cuts {
        let (from, to) = (escaped(&cut.from), escaped(&cut.to));
        let copies = if cut.tensors == 1 { "one copy".to_owned() } else { format!("{} copies", cut.tensors) };
        let _ = writeln!(text, "  {from} -> {to}: {} in {copies}, {}", cut.bytes, cut.time_ns);
    }
    if !overview.crossing.is_empty() {
        let _ = writeln!(text, "\nthe largest tensors that cross");
    }
    for crossing in &overview.crossing {
        crossing_line(text, crossing);
        let of = |outcome: &Option<Outcome>, who: String| {
            outcome.as_ref().map(|outcome| format!("    {who} on {}", result(overview, outcome)))
        };
        let reader = crossing.to.first().and_then(|to| to.readers.first()).cloned().unwrap_or_default();
        let lines = [
            of(&crossing.reader_moved, escaped(&reader)),
            of(&crossing.maker_moved, escaped(&crossing.node)),
        ];
        for line in lines.into_iter().flatten() {
            let _ = writeln!(text, "{line}");
        }
    }
}

fn result(overview: &Overview, outcome: &Outcome) -> String {
    outcome_text(overview.objective, overview.value, outcome)
}

fn crossing_line(text: &mut String, crossing: &Crossing) {
    let output = if crossing.output == 0 { String::new() } else { format!(":{}", crossing.output) };
    let to: Vec<String> = crossing
        .to
        .iter()
        .map(|receiver| format!("{} ({})", escaped(&receiver.device), some(&receiver.readers)))
        .collect();
    let _ = writeln!(
        text,
        "  {}{output} {}: {} -> {}",
        escaped(&crossing.node),
        crossing.bytes,
        escaped(&crossing.from),
        to.join(", ")
    );
}

fn prices(text: &mut String, overview: &Overview) {
    let telling: Vec<_> = overview.prices.iter().filter(|price| price.saves > 0).collect();
    if overview.prices.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nwhat 10 % more would save");
    for price in &telling {
        let _ = writeln!(
            text,
            "  {} on {}: {}{} ({})",
            price.more,
            escaped(&price.device),
            if price.by == "same plan" { "at least " } else { "" },
            amount(overview.objective, price.saves),
            price.by
        );
    }
    let idle = overview.prices.len() - telling.len();
    if idle > 0 {
        let _ = writeln!(text, "  nothing for {idle} others that were tried");
    }
}

/// Whether fewer devices are as good.
pub fn fewer_text(fewer: &Fewer, objective: &str) -> String {
    let tried: Vec<String> = fewer
        .tried
        .iter()
        .map(|(count, value)| {
            let value = value.map_or("no plan".to_owned(), |value| amount(objective, value));
            format!("{count}: {value}")
        })
        .collect();
    let verdict = match fewer.as_good {
        Some(1) => "one device is as good: more does not help".to_owned(),
        Some(count) => format!("{count} devices are as good: more does not help"),
        None => "every device helps".to_owned(),
    };
    format!("fewer      {verdict} ({})\n", tried.join(", "))
}

/// What a device would give.
fn outcome_text(objective: &str, plan: u64, outcome: &Outcome) -> String {
    let device = escaped(&outcome.device);
    match (outcome.value, &outcome.binds) {
        (None, binds) => format!("{device}: impossible, {}", binds.as_deref().unwrap_or("unknown")),
        (Some(value), None) => {
            format!("{device}: {} ({})", amount(objective, value), difference(objective, value, plan))
        }
        (Some(value), Some(binds)) => {
            format!("{device}: forbidden ({}); else {}", escaped(binds), amount(objective, value))
        }
    }
}

/// Why a node is where it is. `plan` says what its steps wait for.
pub fn node_text(report: &NodeReport, plan: &Plan) -> String {
    let mut text = String::new();
    let NodeReport { objective, value, .. } = report;
    let _ = writeln!(
        text,
        "{} ({}) is on {}",
        escaped(&report.node),
        escaped(&report.op),
        escaped(&report.device)
    );
    if report.unit.len() > 1 {
        let _ = writeln!(text, "with it go {}", some(&report.unit));
    }
    if let Some(held_by) = &report.held_by {
        let _ = writeln!(text, "held there: {}", escaped(held_by));
    }
    let _ = writeln!(text, "\n{objective} {} here; on each other device", amount(objective, *value));
    for outcome in &report.others {
        let _ = writeln!(text, "  {}", outcome_text(objective, *value, outcome));
    }
    if report.others.is_empty() {
        let _ = writeln!(text, "  there is no other");
    }
    if report.crossing.is_empty() {
        let _ = writeln!(text, "\nnothing crosses at it");
    } else {
        let _ = writeln!(text, "\nwhat crosses at it");
    }
    for crossing in &report.crossing {
        crossing_line(&mut text, crossing);
    }
    text += &waits_text(plan, |step| step.is_about(&report.node));
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// How a node is split, and what each other way would cost.
pub fn split_text(report: &SplitReport) -> String {
    let mut text = String::new();
    let SplitReport { objective, value, .. } = report;
    let _ = writeln!(text, "{} is split", escaped(&report.node));
    let mut last = None;
    for own in &report.operations {
        // Operations that are split alike are one line.
        if last.replace((&own.over, own.parts, &own.devices)) == Some((&own.over, own.parts, &own.devices)) {
            continue;
        }
        let _ = writeln!(
            text,
            "  {} along {} of {} in {} parts",
            escaped(&own.operation),
            own.over,
            own.extent,
            own.parts
        );
        for share in &own.devices {
            let parts = counted(share.parts, "part");
            let _ = writeln!(
                text,
                "    {}: {parts}, {} of {}",
                escaped(&share.device),
                share.elements,
                own.extent
            );
        }
    }
    let _ = writeln!(
        text,
        "\n{objective} {} so; planned anew with this node otherwise",
        amount(objective, *value)
    );
    for other in &report.otherwise {
        let way = other
            .over
            .as_ref()
            .map_or_else(|| "whole".to_owned(), |over| format!("{over} in {} parts", other.parts));
        let bits = if other.other_bits { "; rounds differently" } else { "" };
        let _ = match (other.value, &other.refused) {
            (Some(other), _) => {
                let difference = difference(objective, other, *value);
                writeln!(text, "  {way}: {} ({difference}{bits})", amount(objective, other))
            }
            (None, refused) => {
                writeln!(text, "  {way}: {}", escaped(refused.as_deref().unwrap_or("no plan")))
            }
        };
    }
    text
}

/// What a plan tells without its model.
pub fn plan_text(plan: &Plan) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} moved, latency {}, load {}",
        escaped(&plan.model.name),
        plan.cost.transfer_bytes,
        plan.cost.latency_ns,
        plan.cost.max_load_ns
    );
    for device in &plan.devices {
        let launches = plan.steps.iter().filter(|step| *step.device == *device.name);
        let _ = writeln!(
            text,
            "  {:<10} {:>4} steps, arena {} of {}",
            escaped(&device.name),
            launches.count(),
            device.arena,
            device.memory
        );
    }
    text += &waits_text(plan, |_| true);
    text += &freed_text(plan);
    text
}

/// Steps that are listed one by one.
const LISTED: usize = 20;

/// What waits although its data does not ask for it, with the reason, of the steps that `which`
/// takes.
fn waits_text(plan: &Plan, which: impl Fn(&Step) -> bool) -> String {
    let mut lines = Vec::new();
    for (step, wait) in plan.waits().into_iter().filter(|(step, _)| which(step)) {
        let (id, what, on) = (step.id, escaped(&step.subject()), escaped(&step.device));
        lines.push(format!("  step {id} ({what} on {on}) {wait}\n"));
    }
    if lines.is_empty() {
        return String::new();
    }
    let more = lines.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!("\nwhat waits beside its data\n{}{more}", lines[..lines.len().min(LISTED)].concat())
}

/// What is done to make room: computed again or offloaded, with what it frees and costs.
fn freed_text(plan: &Plan) -> String {
    let entries = plan.steps.iter().filter_map(|step| {
        let why = step.why.as_deref()?;
        let (name, microbatch) = match &step.action {
            Action::Launch(launch) if launch.again => {
                (launch.nodes.first().map_or("", String::as_str), launch.microbatch)
            }
            Action::Copy(copy) if why.contains(OFFLOADED) => {
                (copy.node.as_deref().unwrap_or(&copy.from), copy.microbatch)
            }
            Action::Launch(_) | Action::Copy(_) => return None,
        };
        let of = microbatch.map_or_else(String::new, |number| format!(" of microbatch {number}"));
        Some(format!(
            "  step {} on {}: {}{of}: {}\n",
            step.id,
            escaped(&step.device),
            escaped(name),
            escaped(why)
        ))
    });
    let lines: Vec<String> = entries.collect();
    if lines.is_empty() {
        return String::new();
    }
    let more = lines.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!("\nto make room\n{}{more}", lines[..lines.len().min(LISTED)].concat())
}
