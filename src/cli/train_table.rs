//! What `partition train` prints before the first epoch: layers, the plan, ways to spread the step.

use std::fmt::Write;

use crate::plan::{BufferKind, Plan};
use crate::train::{Candidate, Layer, Strategy, Trainer};
use crate::units::Bytes;

/// The layers as a table: name, sizes, parameters, device.
pub(super) fn layer_table(layers: &[Layer]) -> String {
    let mut rows: Vec<[String; 4]> =
        vec![["layer".into(), "output".into(), "parameters".into(), "device".into()]];
    for layer in layers {
        let sizes: Vec<String> = layer.shape.iter().map(ToString::to_string).collect();
        let name = format!("{} ({})", layer.name, layer.op);
        rows.push([name, sizes.join("x"), grouped(layer.parameters), layer.device.clone()]);
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

pub(super) fn plan_line(trainer: &Trainer) -> String {
    let plan = trainer.plan();
    let mut used: Vec<&str> = plan.placement.iter().map(|(_, device)| device.as_str()).collect();
    used.sort_unstable();
    used.dedup();
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
