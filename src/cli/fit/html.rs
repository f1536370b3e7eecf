//! Which devices to buy, as one page: the curve of price against speed, and the sets in a table.

use std::fmt::Write as _;

use super::{Wanted, text};
use crate::fit::{Fitted, Tried, Verdict};
use crate::report::{STYLE, html_escaped};

/// Where the curve lies on the page.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 780.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 320.0;

/// A set on the curve.
struct Point<'t> {
    tried: &'t Tried,
    price: f64,
    nanos: f64,
}

impl<'t> Point<'t> {
    fn of(tried: &'t Tried) -> Option<Self> {
        let nanos = tried.reached()?.get() as f64;
        Some(Self { tried, price: tried.set.price.amount(), nanos })
    }
}

/// The page.
pub(super) fn html(wanted: &Wanted, fitted: &Fitted) -> String {
    let Fitted { goal, found, cheaper, .. } = fitted;
    let title = html_escaped(&text::set_at(wanted, found));
    let mut facts = format!("{goal}: {}. Proof: {}.", found.words(goal), text::certainty(fitted));
    if let Some(next) = &cheaper.next {
        let _ = write!(
            facts,
            " The next cheaper set, {}, {}: {}.",
            text::set_at(wanted, next),
            text::fate(next),
            next.words(goal)
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n<style>\n{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n<p class=\"facts\">{}</p>\n<h2>Price and {}</h2>\n{}\n<h2>Sets that were planned for</h2>\n{}\n</body></html>\n",
        html_escaped(&facts),
        goal.measure(),
        drawing(wanted, fitted),
        table(wanted, fitted)
    )
}

/// Each set as a point, the fastest for its price joined by a line, the target as a line across.
fn drawing(wanted: &Wanted, fitted: &Fitted) -> String {
    let points: Vec<Point<'_>> = fitted.curve.iter().filter_map(Point::of).collect();
    let limit = fitted.goal.limit().map(|limit| limit.get() as f64);
    let dearest = points.iter().map(|point| point.price).fold(1e-9, f64::max);
    let slowest = points.iter().map(|point| point.nanos).fold(limit.unwrap_or(1.0), f64::max);
    let x = |price: f64| LEFT + (RIGHT - LEFT) * price / dearest;
    let y = |nanos: f64| BOTTOM - (BOTTOM - TOP) * nanos / slowest;
    let mut svg = format!(
        "<svg viewBox=\"0 0 800 360\" role=\"img\" aria-label=\"price against {}\">\
         <path class=\"grid\" fill=\"none\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>",
        fitted.goal.measure()
    );
    let mut best = f64::INFINITY;
    let mut front = Vec::new();
    for point in &points {
        if point.nanos < best {
            best = point.nanos;
            front.push(format!("{:.1},{:.1}", x(point.price), y(point.nanos)));
        }
    }
    let _ = write!(svg, "<polyline fill=\"none\" stroke=\"#1a7f37\" points=\"{}\"/>", front.join(" "));
    if let Some(limit) = limit {
        let _ = write!(svg, "<path class=\"cap\" d=\"M{LEFT} {0:.1}H{RIGHT}\"/>", y(limit));
    }
    for Point { tried, price, nanos } in &points {
        let fill = if is_reached(tried) { "#1a7f37" } else { "#b35900" };
        let label = format!("{}: {}", text::set_at(wanted, tried), tried.words(&fitted.goal));
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{fill}\"><title>{}</title></circle>",
            x(*price),
            y(*nanos),
            html_escaped(&label)
        );
    }
    let axis = format!("price for an hour, up to {dearest}; {}, up to", fitted.goal.measure());
    let slowest = crate::units::Nanos(slowest as u64);
    let _ = write!(svg, "<text x=\"{LEFT}\" y=\"345\">{} {slowest}</text></svg>", html_escaped(&axis));
    svg
}

fn is_reached(tried: &Tried) -> bool {
    matches!(tried.verdict, Verdict::Reaches(_))
}

fn table(wanted: &Wanted, fitted: &Fitted) -> String {
    let mut rows =
        "<table><tr><th>devices</th><th class=\"n\">price</th><th>what becomes of it</th></tr>\n".to_owned();
    for tried in &fitted.curve {
        let catalogue = &wanted.catalogue;
        let name = html_escaped(&catalogue.name(&tried.set.counts));
        let price = html_escaped(&catalogue.priced(tried.set.price));
        let words = html_escaped(&tried.words(&fitted.goal));
        let mark = if is_reached(tried) { "reaches it: " } else { "" };
        let _ = writeln!(rows, "<tr><td>{name}</td><td class=\"n\">{price}</td><td>{mark}{words}</td></tr>");
    }
    rows + "</table>"
}
