//! Summaries and drawings for people.

mod batch;
mod dot;
#[cfg(feature = "run")]
mod events;
mod explain;
mod history;
mod html;
mod summary;
#[cfg(feature = "cli")]
mod table;
mod timeline;
mod trace;

/// `1 device`, `2 devices`.
#[cfg_attr(not(feature = "cli"), allow(dead_code))]
pub(crate) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

pub use batch::{BatchLine, MemoryLine, Refusal};
pub use dot::dot;
#[cfg(feature = "run")]
pub use events::Events;
pub use explain::{fewer_text, node_text, overview_text, plan_text, split_text};
#[cfg(feature = "run")]
#[cfg(feature = "cli")]
pub(crate) use history::is_csv;
#[cfg(feature = "run")]
pub use history::read_history;
pub use history::write_history;
pub use html::Html;
#[cfg(feature = "cli")]
pub(crate) use html::{STYLE, escape as html_escaped};
#[cfg(all(feature = "cli", feature = "run"))]
pub(crate) use summary::pipelined;
pub use summary::{AlternativeLine, BoundLine, CurveLine, DeviceLine, Scope, SearchLine, Summary, curve};
#[cfg(all(feature = "cli", feature = "run"))]
pub(crate) use table::clipped;
#[cfg(feature = "cli")]
pub(crate) use table::{Column, TextTable, wrapped};
pub use timeline::timeline;
pub use trace::{Clock, Life, Trace, lives_of_plan, lives_of_schedule};
