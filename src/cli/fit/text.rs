//! Which devices to buy, for people.

use super::Wanted;
use crate::escape::escaped;
use crate::fit::{Fitted, Tried, Verdict};
use crate::report::{Column, TextTable, counted};

/// Sets of which each is named that nothing is proven of.
const NAMED: usize = 4;

/// The answer, how sure it is, and what price buys.
pub(super) fn text(wanted: &Wanted, fitted: &Fitted, width: Option<usize>) -> String {
    let Fitted { goal, found, cheaper, .. } = fitted;
    let named = |tried: &Tried| set_at(wanted, tried);
    let mut text = format!("target     {goal}\ncheapest   {}: {}\n", named(found), found.words(goal));
    if let Some(next) = &cheaper.next {
        text += &format!("cheaper    {} {}: {}\n", named(next), fate(next), escaped(&next.words(goal)));
    }
    text += &format!("proof      {}\n\n", certainty(fitted));
    for tried in cheaper.open.iter().take(NAMED) {
        text += &format!("open       {}: {}\n", named(tried), escaped(&tried.words(goal)));
    }
    if !cheaper.open.is_empty() {
        text += "\n";
    }
    text + &curve(wanted, fitted).text(width)
}

/// Whether a cheaper set fails, or nobody knows.
pub(super) fn fate(tried: &Tried) -> &'static str {
    match tried.verdict {
        Verdict::Open(_) => "is open",
        _ => "fails",
    }
}

/// A set with what it costs.
pub(super) fn set_at(wanted: &Wanted, tried: &Tried) -> String {
    let catalogue = &wanted.catalogue;
    escaped(&format!("{} at {}", catalogue.name(&tried.set.counts), catalogue.priced(tried.set.price)))
}

/// Whether a cheaper set can do it.
pub(super) fn certainty(fitted: &Fitted) -> String {
    let cheaper = &fitted.cheaper;
    let sets = counted(cheaper.count, "cheaper set");
    let cut = if cheaper.is_cut { "; the search ended before it looked at the others" } else { "" };
    match (cheaper.count, cheaper.open_count) {
        (_, 0) if cheaper.is_cut => format!("not complete: no plan on {sets} can do it{cut}"),
        (0, _) => "no set is cheaper".to_owned(),
        (count, 0) => {
            let planned = count - cheaper.excluded;
            format!(
                "no cheaper set can do it: of {sets}, bounds exclude {} and {planned} were planned for",
                cheaper.excluded
            )
        }
        (_, open) if cheaper.is_cut => {
            format!("not complete: for {open} of {sets} no plan that does it was found{cut}")
        }
        (_, open) => {
            format!(
                "not complete: for {open} of {sets} no plan that does it was found; no plan on the others can do it"
            )
        }
    }
}

/// What price buys, of the sets that were planned for.
fn curve(wanted: &Wanted, fitted: &Fitted) -> TextTable {
    let mut table = TextTable::new(&[
        Column::figures("price"),
        Column::words("devices"),
        Column::figures(fitted.goal.measure()),
        Column::words("reaches it"),
    ]);
    for tried in &fitted.curve {
        let Some(reached) = tried.reached() else { continue };
        let verdict = match tried.verdict {
            Verdict::Reaches(_) => "yes",
            _ if tried.is_proven(&fitted.goal) => "no plan can",
            _ => "not found",
        };
        let catalogue = &wanted.catalogue;
        table.row([
            escaped(&catalogue.priced(tried.set.price)),
            escaped(&catalogue.name(&tried.set.counts)),
            reached.to_string(),
            verdict.to_owned(),
        ]);
    }
    table
}
