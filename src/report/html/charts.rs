//! Drawings of the report, as SVG.

use std::io::{self, Write};

use super::{CurveLine, Life, escape};
use crate::plan::PlanDevice;
use crate::units::{Bytes, Nanos};

/// Sizes in the drawings' own units.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 90.0;
const ROW: f64 = 18.0;
const HEIGHT: f64 = 90.0;
/// What is narrower is drawn with its neighbour.
const NARROW: f64 = 0.6;

/// Colours that stay apart, reused from the start beyond ten.
pub(super) fn colour(number: usize) -> &'static str {
    const COLOURS: [&str; 10] = [
        "#3b7dd8", "#e08a2e", "#3f9b57", "#c8453b", "#8a63c9", "#c9a227", "#2a9d9d", "#c2578f", "#7a7f87",
        "#5a8f29",
    ];
    COLOURS[number % COLOURS.len()]
}

/// Something that takes time.
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) label: String,
}

/// A lane of a device.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) device: usize,
    pub(super) copies: bool,
    pub(super) spans: Vec<Span>,
}

/// Lanes over time; what is under the pointer is shown.
pub(super) fn timeline(rows: Vec<Row>, span: u64, out: &mut dyn Write) -> io::Result<()> {
    let height = ROW * rows.len() as f64 + 24.0;
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">")?;
    let scale = (WIDTH - LEFT) / span as f64;
    for tick in 0..=4u64 {
        let (x, time) = (LEFT + (WIDTH - LEFT) * tick as f64 / 4.0, Nanos(span / 4 * tick));
        let anchor = if tick == 4 { "end" } else { "start" };
        writeln!(
            out,
            "<line class=\"grid\" x1=\"{x}\" y1=\"0\" x2=\"{x}\" y2=\"{}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{time}</text>",
            height - 18.0,
            height - 6.0
        )?;
    }
    for (number, mut row) in rows.into_iter().enumerate() {
        let y = ROW * number as f64 + 2.0;
        writeln!(out, "<text x=\"4\" y=\"{}\">{}</text>", y + 12.0, escape(&row.name))?;
        row.spans.sort_by_key(|span| span.start);
        let class = if row.copies { "c" } else { "l" };
        for (from, to, label) in merged(&row.spans, scale) {
            writeln!(
                out,
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>",
                LEFT + from,
                (to - from).max(NARROW),
                ROW - 4.0,
                colour(row.device),
                escape(&label)
            )?;
        }
    }
    writeln!(out, "</svg>")
}

/// From, to and words of what is drawn: neighbours that are narrow become one.
fn merged(spans: &[Span], scale: f64) -> Vec<(f64, f64, String)> {
    let mut drawn: Vec<(f64, f64, usize, String)> = Vec::new();
    for span in spans {
        let (from, to) = (span.start as f64 * scale, span.end as f64 * scale);
        let narrow = to - from < NARROW;
        match drawn.last_mut() {
            Some(last) if narrow && last.2 > 0 && from - last.1 < NARROW && to - last.0 < 4.0 * NARROW => {
                last.1 = last.1.max(to);
                last.2 += 1;
                last.3 = format!("{} steps", last.2);
            }
            _ => {
                let time = Nanos(span.end.saturating_sub(span.start));
                let label = format!("{}: {time}, from {}", span.label, Nanos(span.start));
                drawn.push((from, to, usize::from(narrow), label));
            }
        }
    }
    drawn.into_iter().map(|(from, to, _, label)| (from, to, label)).collect()
}

/// Bytes of a device that hold something, over time, under its arena and its cap.
pub(super) fn memory(
    device: &PlanDevice,
    number: usize,
    lives: &[&Life],
    span: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let columns = (WIDTH - LEFT) as usize;
    let most = most_by_column(lives, span, columns);
    let top = device.memory.get().min(device.arena.get().saturating_mul(4)).max(device.arena.get()).max(1);
    let y = |bytes: u64| HEIGHT - 4.0 - (HEIGHT - 20.0) * bytes as f64 / top as f64;
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"memory of {}\">",
        escape(&device.name)
    )?;
    let mut path = format!("M{LEFT} {:.1}", HEIGHT - 4.0);
    let mut before = None;
    for (column, &bytes) in most.iter().enumerate() {
        if before != Some(bytes) {
            path += &format!(
                "L{:.1} {:.1}L{:.1} {:.1}",
                LEFT + column as f64,
                y(before.unwrap_or(0)),
                LEFT + column as f64,
                y(bytes)
            );
            before = Some(bytes);
        }
    }
    path += &format!("L{WIDTH} {:.1}L{WIDTH} {:.1}Z", y(before.unwrap_or(0)), HEIGHT - 4.0);
    writeln!(
        out,
        "<path d=\"{path}\" fill=\"{}\" opacity=\"0.6\"><title>{}: at most {}</title></path>",
        colour(number),
        escape(&device.name),
        device.peak
    )?;
    for (bytes, class, name) in [(device.memory.get(), "cap", "cap"), (device.arena.get(), "grid", "arena")] {
        if bytes <= top {
            writeln!(
                out,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"><title>{name} {1}</title></line>",
                y(bytes),
                Bytes(bytes)
            )?;
        }
    }
    writeln!(
        out,
        "<text x=\"4\" y=\"14\">{}</text><text x=\"4\" y=\"30\">{}</text></svg>",
        escape(&device.name),
        device.peak
    )
}

/// The most bytes alive in each of so many slices of the time. O(lives log lives + columns).
fn most_by_column(lives: &[&Life], span: u64, columns: usize) -> Vec<u64> {
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for life in lives {
        changes.push((life.start.get(), true, life.bytes.get()));
        changes.push((life.end.get(), false, life.bytes.get()));
    }
    // What ends makes room for what begins.
    changes.sort_unstable();
    let column =
        |time: u64| ((u128::from(time) * columns as u128 / u128::from(span)) as usize).min(columns - 1);
    let mut most = vec![0; columns];
    let (mut alive, mut at) = (0u64, 0);
    for (time, begins, bytes) in changes {
        let now = column(time);
        most[at..=now].iter_mut().for_each(|slice| *slice = alive.max(*slice));
        at = now;
        alive = if begins { alive.saturating_add(bytes) } else { alive.saturating_sub(bytes) };
        most[now] = most[now].max(alive);
    }
    most[at..].iter_mut().for_each(|slice| *slice = alive.max(*slice));
    most
}

/// A drawing of each column of a history over its rows; a number that is not finite is left out.
pub(super) fn curves(history: &[Vec<(String, f64)>], out: &mut dyn Write) -> io::Result<()> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in history.iter().flatten() {
        if !names.contains(&name.as_str()) && !matches!(name.as_str(), "epoch" | "step") {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Training</h2>")?;
    for (number, name) in names.iter().enumerate() {
        let points: Vec<(usize, f64)> = history
            .iter()
            .enumerate()
            .filter_map(|(at, row)| Some((at, row.iter().find(|(own, _)| own == name)?.1)))
            .filter(|(_, value)| value.is_finite())
            .collect();
        curve(name, number, history.len(), &points, out)?;
    }
    Ok(())
}

/// The gap of the best plan found over the time of the search, in steps; each step says what it is.
pub(super) fn search(lines: &[CurveLine], objective: &str, out: &mut dyn Write) -> io::Result<()> {
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Ok(()) };
    writeln!(out, "<h2>Search</h2>")?;
    let end = last.after_ns.get().max(1) as f64;
    let widest = lines.iter().map(|line| line.gap).fold(1e-9, f64::max);
    let x = |line: &CurveLine| LEFT + (WIDTH - LEFT - 10.0) * line.after_ns.get() as f64 / end;
    let y = |line: &CurveLine| HEIGHT - 8.0 - (HEIGHT - 24.0) * line.gap / widest;
    let mut path = format!("M{:.1} {:.1}", x(first), y(first));
    let mut points = String::new();
    for line in lines {
        path += &format!("H{:.1}V{:.1}", x(line), y(line));
        let value = match objective {
            "transfer" => Bytes(line.value).to_string(),
            _ => Nanos(line.value).to_string(),
        };
        points += &format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"><title>{value}, gap {:.2} %, after {}</title></circle>",
            x(line),
            y(line),
            colour(0),
            line.gap * 100.0,
            line.after_ns
        );
    }
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"gap over the time of the search\"><path d=\"{path}\" fill=\"none\" \
         stroke=\"{}\" stroke-width=\"2\"/>{points}<text x=\"4\" y=\"14\">gap over time</text><text x=\"4\" y=\"30\">{:.2} %</text>\
         <text x=\"4\" y=\"60\">max {:.2} %</text><text x=\"4\" y=\"76\">{}</text></svg>",
        colour(0),
        last.gap * 100.0,
        widest * 100.0,
        last.after_ns
    )
}

fn curve(
    name: &str,
    number: usize,
    rows: usize,
    points: &[(usize, f64)],
    out: &mut dyn Write,
) -> io::Result<()> {
    let Some(&(_, first)) = points.first() else { return Ok(()) };
    let (low, high) =
        points.iter().fold((first, first), |(low, high), (_, value)| (low.min(*value), high.max(*value)));
    let range = if high > low { high - low } else { 1.0 };
    let place = |(at, value): (usize, f64)| {
        let x = LEFT + (WIDTH - LEFT - 10.0) * at as f64 / (rows.max(2) - 1) as f64;
        format!("{x:.1},{:.1}", HEIGHT - 8.0 - (HEIGHT - 24.0) * (value - low) / range)
    };
    let line: Vec<String> = points.iter().map(|&point| place(point)).collect();
    let last = points.last().map_or(first, |(_, value)| *value);
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><polyline points=\"{1}\" fill=\"none\" stroke=\"{2}\" stroke-width=\"2\"/>\
         <text x=\"4\" y=\"14\">{0}</text><text x=\"4\" y=\"30\">{last:.5}</text><text x=\"4\" y=\"60\">max {high:.4}</text><text x=\"4\" y=\"76\">min {low:.4}</text></svg>",
        escape(name),
        line.join(" "),
        colour(number)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(start: u64, end: u64, bytes: u64) -> Life {
        Life {
            device: 0,
            offset: Bytes(0),
            bytes: Bytes(bytes),
            start: Nanos(start),
            end: Nanos(end),
            outlasts: false,
        }
    }

    #[test]
    fn memory_shows_the_most_of_each_slice() {
        let lives = [life(0, 10, 1), life(2, 5, 4), life(5, 10, 3), life(9, 10, 8)];
        let lives: Vec<&Life> = lives.iter().collect();
        assert_eq!(most_by_column(&lives, 10, 5), [1, 5, 5, 4, 12]);
    }

    #[test]
    fn narrow_steps_are_drawn_together() {
        let span = |start, end| Span { start, end, label: "a".into() };
        let spans: Vec<Span> = (0..1000).map(|at| span(at, at + 1)).chain([span(1000, 2000)]).collect();
        let drawn = merged(&spans, 0.1);
        assert!(drawn.len() < 100, "{}", drawn.len());
        assert!(drawn.last().unwrap().2.starts_with("a: 1 us"), "{}", drawn.last().unwrap().2);
    }
}
