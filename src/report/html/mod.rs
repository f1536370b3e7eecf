//! A plan, and what a training run measured, as one HTML file that needs nothing else: devices,
//! timeline, memory over time, curves, placement.

mod charts;

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Clock, CurveLine, Life};
use crate::escape::is_harmless;
use crate::plan::{Action, Lane, Plan};
use crate::units::Nanos;

/// How pages look.
pub(crate) const STYLE: &str = include_str!("style.css");

/// Nodes listed in the table of the placement.
const MOST_NODES: usize = 20_000;

/// What a report shows.
#[derive(Clone, Copy, Debug)]
pub struct Html<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Whose clock the times are of.
    pub clock: Clock,
    /// By step of the plan: start and end.
    pub times: &'a [(Nanos, Nanos)],
    /// When each buffer is live.
    pub lives: &'a [Life],
    /// How the plan was found over time; empty where nobody asked for it.
    pub search: &'a [CurveLine],
    /// Rows of named numbers, as for [`super::write_history`]; empty where nothing was trained.
    pub history: &'a [Vec<(String, f64)>],
    /// Why the training run ended before its end; none where it did not fail.
    pub failure: Option<&'a str>,
}

impl Html<'_> {
    /// Streams the page. O((steps + buffers) log (steps + buffers) + nodes); what is narrower than a
    /// pixel is drawn together, so the page stays small for large plans.
    ///
    /// Error: `out` cannot be written to.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = escape(&self.plan.model.name);
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{name}</title>\n<style>\n{}</style></head><body>\n",
            STYLE
        )?;
        writeln!(out, "<h1>{name}</h1>\n<p class=\"facts\">{}</p>", escape(&self.facts()))?;
        if let Some(failure) = self.failure {
            writeln!(out, "<p><strong>The run failed:</strong> {}</p>", escape(failure))?;
        }
        self.devices(out)?;
        self.timeline(out)?;
        self.memory(out)?;
        charts::search(self.search, &self.plan.options.objective, out)?;
        charts::curves(self.history, out)?;
        self.placement(out)?;
        if !self.plan.notes.is_empty() {
            writeln!(out, "<h2>Notes</h2><ul>")?;
            for note in &self.plan.notes {
                writeln!(out, "<li>{}</li>", escape(note))?;
            }
            writeln!(out, "</ul>")?;
        }
        out.write_all(b"</body></html>\n")
    }

    fn facts(&self) -> String {
        let (plan, cost) = (self.plan, &self.plan.cost);
        let proven = match &plan.bound {
            Some(bound) => format!(", within {:.1} % of the optimum ({})", bound.gap * 100.0, bound.proof),
            None => String::new(),
        };
        format!(
            "objective {}{proven}; a step takes {}, moves {}, loads {}; {} nodes in {} steps",
            plan.options.objective,
            cost.latency_ns,
            cost.step_bytes,
            cost.load_bytes,
            plan.placement.len(),
            plan.steps.len()
        )
    }

    /// How long each device computes.
    fn busy(&self) -> BTreeMap<&str, (u64, usize)> {
        let mut busy: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
        for (step, (start, end)) in self.plan.steps.iter().zip(self.times) {
            if step.lane == Lane::Compute {
                let own = busy.entry(&step.device).or_default();
                own.0 = own.0.saturating_add(end.get().saturating_sub(start.get()));
                own.1 += 1;
            }
        }
        busy
    }

    fn span(&self) -> u64 {
        self.times.iter().map(|(_, end)| end.get()).max().unwrap_or(0).max(1)
    }

    fn devices(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "<h2>Devices</h2><table><tr><th>device</th><th>is</th><th class=\"n\">memory</th><th class=\"n\">arena</th>\
             <th class=\"n\">peak</th><th></th><th class=\"n\">launches</th><th class=\"n\">busy</th></tr>"
        )?;
        let (busy, span) = (self.busy(), self.span());
        for (number, device) in self.plan.devices.iter().enumerate() {
            let (time, launches) = busy.get(device.name.as_str()).copied().unwrap_or_default();
            let full = device.arena.get() as f64 / device.memory.get().max(1) as f64 * 100.0;
            let colour = charts::colour(number);
            writeln!(
                out,
                "<tr><td><span class=\"key\" style=\"background:{colour}\"></span>{}</td><td>{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td><span class=\"bar\"><i style=\"width:{:.1}%;background:{colour}\">\
                 </i></span></td><td class=\"n\">{launches}</td><td class=\"n\">{:.0} %</td></tr>",
                escape(&device.name),
                escape(&device.target),
                device.memory,
                device.arena,
                device.peak,
                full.min(100.0),
                time as f64 / span as f64 * 100.0
            )?;
        }
        writeln!(out, "</table>")
    }

    fn timeline(&self, out: &mut dyn Write) -> io::Result<()> {
        let clock = match self.clock {
            Clock::Simulated => "as simulated",
            Clock::Measured => "as measured",
        };
        writeln!(out, "<h2>Timeline, {clock}</h2>")?;
        let mut rows: Vec<charts::Row> = Vec::new();
        for (number, device) in self.plan.devices.iter().enumerate() {
            for lane in [Lane::Compute, Lane::Copy] {
                let spans: Vec<charts::Span> = (self.plan.steps.iter().zip(self.times))
                    .filter(|(step, _)| *step.device == *device.name && step.lane == lane)
                    .map(|(step, &(start, end))| charts::Span {
                        start: start.get(),
                        end: end.get(),
                        label: label(&step.action),
                    })
                    .collect();
                if !spans.is_empty() {
                    let copies = lane == Lane::Copy;
                    let name = if copies { "copies".to_owned() } else { device.name.clone() };
                    rows.push(charts::Row { name, device: number, copies, spans });
                }
            }
        }
        charts::timeline(rows, self.span(), out)
    }

    fn memory(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.lives.is_empty() {
            return Ok(());
        }
        writeln!(out, "<h2>Memory over the step</h2>")?;
        let mut lives: BTreeMap<u32, Vec<&Life>> = BTreeMap::new();
        for life in self.lives {
            lives.entry(life.device).or_default().push(life);
        }
        for (number, lives) in lives {
            if let Some(device) = self.plan.devices.get(number as usize) {
                charts::memory(device, number as usize, &lives, self.span(), out)?;
            }
        }
        Ok(())
    }

    fn placement(&self, out: &mut dyn Write) -> io::Result<()> {
        let placement = &self.plan.placement;
        writeln!(
            out,
            "<h2>Placement</h2><input id=\"filter\" placeholder=\"filter nodes and devices\" aria-label=\"filter\">\
             <div class=\"scroll\"><table id=\"nodes\"><tr><th>node</th><th>device</th></tr>"
        )?;
        let numbers: BTreeMap<&str, usize> = self
            .plan
            .devices
            .iter()
            .enumerate()
            .map(|(number, device)| (device.name.as_str(), number))
            .collect();
        for (node, device) in placement.iter().take(MOST_NODES) {
            let colour = charts::colour(numbers.get(device.as_str()).copied().unwrap_or(0));
            writeln!(
                out,
                "<tr><td>{}</td><td><span class=\"key\" style=\"background:{colour}\"></span>{}</td></tr>",
                escape(node),
                escape(device)
            )?;
        }
        writeln!(out, "</table></div>")?;
        if placement.len() > MOST_NODES {
            let more = placement.len() - MOST_NODES;
            writeln!(out, "<p class=\"facts\">and {more} more, which the plan lists</p>")?;
        }
        out.write_all(
            b"<script>document.getElementById('filter').oninput=e=>{const t=e.target.value.toLowerCase();\
              for(const r of document.querySelectorAll('#nodes tr+tr'))r.hidden=!r.textContent.toLowerCase().includes(t)}</script>\n",
        )
    }
}

/// What a step does, in a few words.
fn label(action: &Action) -> String {
    match action {
        Action::Launch(launch) => {
            let again = if launch.again { " (again)" } else { "" };
            let microbatch = launch.microbatch.map_or_else(String::new, |number| format!(" #{number}"));
            match &launch.nodes[..] {
                [] => "launch".to_owned(),
                [one] => format!("{one}{microbatch}{again}"),
                [first, .., last] => {
                    format!("{first} .. {last} ({} nodes){microbatch}{again}", launch.nodes.len())
                }
            }
        }
        Action::Copy(copy) => format!("{} to {}, {}", copy.from, copy.to, copy.bytes),
    }
}

/// Text that is safe in HTML, attributes included: names come from files.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if !is_harmless(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escape("<a href='x'>\"&\u{1}"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp; ");
    }
}
