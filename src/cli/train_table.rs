//! What `partition train` prints before the first epoch: layers, the plan, ways to spread the step.

use std::fmt::Write;

use super::train_args::TrainArgs;
use crate::escape::escaped;
use crate::plan::{BufferKind, Plan};
use crate::train::{Candidate, Layer, Strategy};
use crate::units::Bytes;

/// The layers as a table: name, sizes, parameters, device.
pub(super) fn layer_table(layers: &[Layer]) -> String {
    let mut rows: Vec<[String; 4]> =
        vec![["layer".into(), "output".into(), "parameters".into(), "device".into()]];
    for layer in layers {
        let sizes: Vec<String> = layer.shape.iter().map(ToString::to_string).collect();
        let name = format!("{} ({})", clipped(&layer.name), clipped(&layer.op));
        rows.push([name, sizes.join("x"), grouped(layer.parameters), clipped(&layer.device)]);
    }
    let total: u64 = layers.iter().map(|layer| layer.parameters).sum();
    rows.push(["total".into(), String::new(), grouped(total), String::new()]);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [name, sizes, parameters, device] in &rows {
        let [a, b, c] = widths;
        let line = format!("{name:<a$}  {sizes:>b$}  {parameters:>c$}  {device}");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The most characters of a name in a table.
const LONGEST: usize = 48;

/// A name as it stands in a table: the middle of a long one is left out.
fn clipped(name: &str) -> String {
    let name = escaped(name);
    let count = name.chars().count();
    if count <= LONGEST {
        return name;
    }
    let half = (LONGEST - 3) / 2;
    let head: String = name.chars().take(half).collect();
    let tail: String = name.chars().skip(count - half).collect();
    format!("{head}...{tail}")
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
pub(super) fn candidates(candidates: &[Candidate], best: Option<Strategy>) -> String {
    let mut out = format!(
        "  {:<16} {:>7} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
        "way", "devices", "step", "busiest", "moved", "state", "arena"
    );
    for Candidate { strategy, estimate } in candidates {
        let mark = if Some(*strategy) == best { '*' } else { ' ' };
        let name = strategy.to_string();
        // Writing to a String cannot fail.
        let _ = match estimate {
            Ok(one) => writeln!(
                out,
                "{mark} {name:<16} {:>7} {:>12} {:>12} {:>12} {:>12} {:>12}",
                one.devices,
                one.step.to_string(),
                one.load.to_string(),
                one.moved.to_string(),
                one.state.to_string(),
                one.arena.to_string()
            ),
            Err(error) => {
                let text = error.to_string();
                writeln!(out, "{mark} {name:<16} {}", text.lines().next().unwrap_or_default())
            }
        };
    }
    out.push_str("  * is taken: the shortest step that fits; state and arena are of the fullest device\n");
    out
}

/// Bytes of each device, where there are several: parameters that stay, those that are trained with what
/// their optimizer keeps, and all that the run allocates.
pub(super) fn memory_table(plan: &Plan) -> String {
    if plan.devices.iter().filter(|device| device.arena > Bytes(0)).count() < 2 {
        return String::new();
    }
    let mut out = format!("{:<10} {:>12} {:>12} {:>12}\n", "device", "fixed", "trained", "arena");
    for device in &plan.devices {
        let of = |kind: BufferKind| -> Bytes {
            let own = plan.buffers.iter().filter(|one| one.device == device.name && one.kind == kind);
            own.map(|buffer| buffer.bytes).sum()
        };
        let (params, state) = (of(BufferKind::Param), of(BufferKind::State));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:<10} {:>12} {:>12} {:>12}",
            device.name,
            params.to_string(),
            state.to_string(),
            device.arena.to_string()
        );
    }
    out
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
        let table = layer_table(&[layer("x".repeat(70_000)), layer("a\u{1b}[31m\nb".into())]);
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().all(|line| line.chars().count() < 120), "{table}");
        assert!(table.contains("xxx...xxx") && !table.contains('\u{1b}'));
    }
}
