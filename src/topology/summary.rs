//! A topology in a few lines for people.

use super::{Device, Physical, Role, Topology};

impl Topology {
    /// One line for each run of equal devices, in order:
    /// `cuda0..cuda3: 4 x a100-80g, 60 MB each, 19.5 TFLOP/s, 2.03 TB/s`.
    /// O(devices).
    pub fn summary(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut start = 0;
        while start < self.devices.len() {
            let same = |device: &&Device| self.is_like(device, &self.devices[start]);
            let length = self.devices[start..].iter().take_while(same).count();
            lines.push(self.line(&self.devices[start..start + length]));
            start += length;
        }
        lines
    }

    fn physical_of(&self, device: &Device) -> &Physical {
        &self.physicals[device.physical as usize]
    }

    /// True where two devices differ in nothing but their names and numbers.
    fn is_like(&self, left: &Device, right: &Device) -> bool {
        let (p, q) = (self.physical_of(left), self.physical_of(right));
        let devices = |device: &Device| (device.memory, device.role, device.communication, device.cores);
        let physicals = |physical: &Physical| {
            (physical.host, physical.flops, physical.half_flops, physical.bandwidth, physical.cores)
        };
        left.kind == right.kind && devices(left) == devices(right) && physicals(p) == physicals(q)
    }

    /// The line for a run of equal devices.
    fn line(&self, run: &[Device]) -> String {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return String::new() };
        let physical = self.physical_of(first);
        let names =
            if run.len() == 1 { first.name.clone() } else { format!("{}..{}", first.name, last.name) };
        let parts = (last.physical - first.physical) as usize + 1;
        let is_cut = first.name != physical.name;
        let count = match (parts, is_cut) {
            (1, false) => first.kind.clone(),
            (_, false) => format!("{parts} x {}", first.kind),
            (1, true) => format!("{} of {}", slices(run.len()), first.kind),
            (_, true) => format!("{} of {parts} x {}", slices(run.len()), first.kind),
        };
        let each = if run.len() == 1 { "" } else { " each" };
        let mut line =
            format!("{names}: {count}, {}{each}, {}/s, {}", first.memory, physical.flops, physical.bandwidth);
        if let Some(cores) = first.cores {
            line.push_str(&format!(", {cores} {} of its own", if cores == 1 { "core" } else { "cores" }));
        }
        if first.role == Role::Host {
            line.push_str(", host only");
        }
        line
    }
}

fn slices(count: usize) -> String {
    if count == 1 { "1 slice".to_owned() } else { format!("{count} slices") }
}
