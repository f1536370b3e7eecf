//! What `partition train` prints before the first epoch: layers, the plan, ways to spread the step.

use std::fmt::Write;

use super::terminal::Console;
use super::train_args::TrainArgs;
use crate::error::Result;
use crate::files::write_atomically;
use crate::plan::{BufferKind, Plan};
use crate::report::{Column, TextTable, clipped};
use crate::train::{Candidate, Layer, Strategy};
use crate::units::Bytes;

/// The layers as a table: name, sizes, parameters, device.
pub(super) fn layer_table(layers: &[Layer], width: Option<usize>) -> String {
    let mut table = TextTable::new(&[
        Column::words("layer"),
        Column::figures("output"),
        Column::figures("parameters"),
        Column::words("device"),
    ]);
    for layer in layers {
        let sizes: Vec<String> = layer.shape.iter().map(ToString::to_string).collect();
        let name = format!("{} ({})", clipped(&layer.name), clipped(&layer.op));
        table.row([name, sizes.join("x"), grouped(layer.parameters), clipped(&layer.device)]);
    }
    let total: u64 = layers.iter().map(|layer| layer.parameters).sum();
    table.row(["total".into(), String::new(), grouped(total)]);
    table.text(width)
}

/// `10,211,100`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The devices that compute something.
fn used(plan: &Plan) -> Vec<&str> {
    let mut used: Vec<&str> = plan.placement.iter().map(|(_, device)| device.as_str()).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// A word on devices that are left over where each replica takes several.
fn left_over(args: &TrainArgs, plan: &Plan) -> Option<String> {
    let way = args.spread.parallel.as_deref()?;
    let each: usize = way.strip_prefix("hybrid:")?.parse().ok()?;
    let there = plan.topology.computing().count();
    let idle = there.checked_rem(each).filter(|&idle| idle > 0)?;
    let are = if idle == 1 { "is" } else { "are" };
    Some(format!(
        "--parallel {way}: {idle} of {there} devices {are} idle, since a replica takes {each} (hybrid:K takes all where K divides {there})"
    ))
}

/// A word on devices that have nothing to do, where nothing was said of how they are to be used.
pub(super) fn one_device(args: &TrainArgs, plan: &Plan) -> Option<String> {
    let asked = args.spread.parallel.is_some()
        || args.spread.replicas.is_some()
        || args.placement.use_devices != "auto"
        || !args.placement.pins.is_empty();
    let there = plan.topology.computing().count();
    (!asked && there > 1 && used(plan).len() == 1).then(|| {
        format!(
            "the step runs on one of {there} devices, where nothing moves: --parallel auto compares ways to \
             spread it, --use all lays its layers over all of them"
        )
    })
}

pub(super) fn plan_line(plan: &Plan) -> String {
    let used = used(plan);
    format!(
        "a step: {} launches and copies on {} of {} devices, {} moved, predicted {}\n",
        plan.steps.len(),
        used.len(),
        plan.devices.len(),
        plan.cost.step_bytes,
        plan.cost.latency_ns
    )
}

/// Each way of spreading the step: what is predicted of it, and which one is taken.
pub(super) fn candidates(candidates: &[Candidate], best: Option<Strategy>, width: Option<usize>) -> String {
    let mut table = TextTable::new(&[
        Column::words("  way"),
        Column::figures("devices"),
        Column::figures("step"),
        Column::figures("busiest"),
        Column::figures("moved"),
        Column::figures("state"),
        Column::figures("arena"),
    ]);
    let mut refused = String::new();
    for Candidate { strategy, estimate } in candidates {
        let mark = if Some(*strategy) == best { '*' } else { ' ' };
        match estimate {
            Ok(one) => table.row([
                format!("{mark} {strategy}"),
                one.devices.to_string(),
                one.step.to_string(),
                one.load.to_string(),
                one.moved.to_string(),
                one.state.to_string(),
                one.arena.to_string(),
            ]),
            Err(error) => {
                let text = error.to_string();
                // Writing to a String cannot fail.
                let _ = writeln!(refused, "{mark} {strategy}: {}", text.lines().next().unwrap_or_default());
            }
        }
    }
    format!(
        "{}{refused}* is taken: the shortest step that fits\n{BUSIEST}; state and arena (what is allocated) are of \
         the fullest device\n",
        table.text(width)
    )
}

/// Which load the ways are compared by.
const BUSIEST: &str = "busiest: highest load of a device or link";

/// Bytes of each device, where there are several: parameters that stay, those that are trained with what
/// their optimizer keeps, and all that the run allocates.
pub(super) fn memory_table(plan: &Plan, width: Option<usize>) -> String {
    if plan.devices.iter().filter(|device| device.arena > Bytes(0)).count() < 2 {
        return String::new();
    }
    let mut table = TextTable::new(&[
        Column::words("device"),
        Column::figures("fixed"),
        Column::figures("trained"),
        Column::figures("arena"),
    ]);
    for device in &plan.devices {
        let of = |kind: BufferKind| -> Bytes {
            let own = plan.buffers.iter().filter(|one| one.device == device.name && one.kind == kind);
            own.map(|buffer| buffer.bytes).sum()
        };
        let (fixed, trained) = (of(BufferKind::Param), of(BufferKind::State));
        let figures = [fixed, trained, device.arena].map(|bytes| bytes.to_string());
        table.row([clipped(&device.name)].into_iter().chain(figures));
    }
    format!(
        "{}fixed: parameters that stay; trained: those that do not, with their optimizer's; arena: all that is \
         allocated\n",
        table.text(width)
    )
}

/// A word on sums that are divided, where nobody asked for that.
fn divided_sums(plan: &Plan) -> Option<String> {
    let sums = plan.options.splits.iter().filter(|split| split.over.starts_with("sum"));
    let count: usize = sums.map(|split| split.nodes.len()).sum();
    (count > 0).then(|| {
        format!("the sums of {count} operations are divided, and round differently from those of one device; --exact keeps them whole")
    })
}

/// Prints and writes what a plan is.
pub(super) fn report_plan(args: &TrainArgs, plan: &Plan, console: &Console) -> Result<()> {
    console.print(&plan_line(plan))?;
    plan.notes.iter().for_each(|line| console.note(line));
    if let Some(line) = left_over(args, plan) {
        console.note(&line);
    }
    if let Some(line) = one_device(args, plan).or_else(|| divided_sums(plan)) {
        console.note(&line);
    }
    match &args.plan {
        Some(path) => write_atomically(path, plan.to_json().as_bytes()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_and_content_stays_in_its_column() {
        let layer = |name: String| Layer {
            name,
            op: "Dense".into(),
            shape: vec![2, 3],
            parameters: 6,
            device: "cpu0".into(),
        };
        let table = layer_table(&[layer("x".repeat(70_000)), layer("a\u{1b}[31m\nb".into())], None);
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().all(|line| line.chars().count() < 120), "{table}");
        assert!(table.contains("xxx...xxx") && !table.contains('\u{1b}'));
    }
}
