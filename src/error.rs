//! The one error type of the library.
//!
//! An error says where (`place`), what (`message`) and the way out (`help`); printing it gives
//! one line. [`Error::details`] gives further lines, one for each thing found wrong.

use std::fmt;

use serde::Serialize;

use crate::escape::escaped;
use crate::units::Bytes;

/// A result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by whose fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be: malformed, truncated, contradictory.
    #[error("{0}")]
    Format(Report),
    /// A device specification is impossible or contradictory. The details show the text with
    /// a mark under the offending characters.
    #[error("{0}")]
    Spec(Report),
    /// A model (or cost graph) is well-formed but wrong: types that do not fit, a cycle.
    #[error("{0}")]
    Model(Report),
    /// The model needs something that is not supported yet; the details list each instance.
    #[error("{0}")]
    Unsupported(Report),
    /// Options contradict one another, or name what is not there.
    #[error("{0}")]
    Usage(Report),
    /// No plan exists under the given caps, or none was found.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
    /// A placement that was made elsewhere needs more memory than there is; the details list each
    /// device.
    #[error("{0}")]
    Overfull(Report),
    /// A plan failed its check; the details list each violation.
    #[error("{0}")]
    Check(Report),
    /// The run failed, or its results differ from what was expected.
    #[error("{0}")]
    Run(Report),
    /// A device's driver refused something, or something on the device failed.
    #[error("{report}")]
    Device {
        /// What it means to a program.
        kind: FaultKind,
        /// The step, the device, and what to do.
        report: Report,
    },
    /// The caller cancelled the work.
    #[error("cancelled")]
    Cancelled,
    /// An invariant of this library does not hold: a bug, never the input's fault.
    #[error("internal error (please report it): {0}")]
    Internal(String),
}

/// What a fault of a device means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// There is no driver.
    NoDriver,
    /// There is no such device.
    NoDevice,
    /// The device has no such memory left, whatever the caps of a plan are.
    OutOfMemory,
    /// The host has no such page-locked memory left.
    OutOfHostMemory,
    /// A launch was refused: too many threads, registers or bytes of shared memory.
    Launch,
    /// A kernel failed while it ran, or used memory that is not there. The device is of no use to this
    /// process from then on.
    Kernel,
    /// Code that is not for this device, or is damaged.
    Image,
    /// A step did not end in time.
    Hung,
    /// The device does not do what was asked.
    Unsupported,
    /// The device is gone, or of no use since an earlier failure.
    Lost,
    /// Anything else.
    Other,
}

/// Where, what, and the way out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The file, node, option or position at fault, outermost first; may be empty.
    pub place: String,
    /// What is wrong with it.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
    /// Further lines.
    pub details: Vec<String>,
}

impl Report {
    /// A report with neither help nor details.
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into(), help: String::new(), details: Vec::new() }
    }

    /// Adds the way out.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Adds further lines.
    #[must_use]
    pub fn details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    /// Adds the first eight of many lines, and how many more there are; `what` they are, in the plural.
    #[must_use]
    #[cfg(feature = "weights")]
    pub(crate) fn first_details(self, mut details: Vec<String>, what: &str) -> Self {
        const LISTED: usize = 8;
        let more = details.len().saturating_sub(LISTED);
        details.truncate(LISTED);
        if more > 0 {
            details.push(format!("and {more} more {what}"));
        }
        self.details(details)
    }
}

/// Prints on one line, whatever a name from a file holds.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", one_line(&self.place))?;
        }
        f.write_str(&one_line(&self.message))?;
        if !self.help.is_empty() {
            write!(f, " ({})", one_line(&self.help))?;
        }
        Ok(())
    }
}

/// `text` with control characters escaped and its middle left out where it is very long.
fn one_line(text: &str) -> String {
    const LONG: usize = 600;
    if text.len() <= LONG {
        return escaped(text);
    }
    let head: String = text.chars().take(LONG / 2).collect();
    let mut tail: Vec<char> = text.chars().rev().take(LONG / 4).collect();
    tail.reverse();
    format!("{} ... {}", escaped(&head), escaped(&tail.into_iter().collect::<String>()))
}

/// Why no plan came out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Infeasible {
    /// True where no plan can exist; false where the search found none.
    pub proven: bool,
    /// The smallest conflict found, in words.
    pub conflict: String,
    /// The smallest change known to help: a cap, a pin to drop.
    pub repair: String,
    /// What cannot all hold at once. Where the conflict is proven, it is no longer so without any
    /// one of them; else what binds in the placement that came closest: the cap of the device that
    /// lacks most, and the largest things on it.
    pub members: Vec<Member>,
    /// Changes that were planned with and do help, the cheapest of each sort first.
    pub repairs: Vec<Repair>,
    /// Where nothing was proven: (device, bytes over its cap) in what came closest.
    pub short: Vec<(String, Bytes)>,
    /// Further lines.
    pub details: Vec<String>,
}

/// What part of the problem a [`Member`] of a conflict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberKind {
    /// A device's memory, less what is reserved.
    Cap,
    /// A pin.
    Pin,
    /// Nodes that go together.
    Colocation,
    /// A parameter.
    Parameter,
    /// Parameters or state of a node's own.
    State,
    /// A tensor.
    Tensor,
    /// A node's workspace.
    Workspace,
    /// A node's time.
    Time,
    /// `--balance`.
    Balance,
    /// `--use`.
    Use,
}

/// One of the things that cannot all hold at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// What it is.
    pub kind: MemberKind,
    /// Its name: a device, a node, a parameter, an option.
    pub name: String,
    /// The bytes of a thing or of a cap; for times, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<u64>,
}

/// A change under which planning succeeds; it was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Repair {
    /// Memory added.
    Memory {
        /// To this device, or to each that computes.
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// How much more.
        more: Bytes,
        /// What the device has then; the largest, where it is each.
        memory: Bytes,
        /// The most that was tried in vain.
        fails: Bytes,
        /// Kernels that run again then.
        #[serde(skip_serializing_if = "is_zero")]
        recomputed: usize,
        /// Tensors that are offloaded then.
        #[serde(skip_serializing_if = "is_zero")]
        offloaded: usize,
        /// Whether operations are split then.
        #[serde(skip_serializing_if = "is_false")]
        split: bool,
        /// Whether what the other devices have then is less.
        #[serde(skip)]
        unequal: bool,
    },
    /// A smaller `--reserve`.
    Reserve {
        /// What may be kept free.
        reserve: Bytes,
    },
    /// Without these `--pin`; with any one of them back, nothing was found.
    Unpin {
        /// `PATTERN=DEVICE` each.
        pins: Vec<String>,
    },
    /// Without this `--colocate`.
    Uncolocate {
        /// The pattern.
        pattern: String,
    },
    /// A larger `--balance`, or none.
    Balance {
        /// The one that does; none: without any.
        #[serde(skip_serializing_if = "Option::is_none")]
        balance: Option<String>,
    },
    /// Another `--use`.
    Use {
        /// What to ask for.
        devices: String,
    },
    /// `use=compute` for a host, which else takes only what nothing else can.
    Host {
        /// Its name.
        device: String,
    },
    /// A smaller batch.
    Batch {
        /// Its size.
        batch: i64,
        /// The least that was tried in vain.
        fails: i64,
    },
    /// Another division of the step into microbatches: more of them, in another order, or none.
    Microbatches {
        /// How many; none: the step as a whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        microbatches: Option<u32>,
        /// Their order, where it is another one.
        #[serde(skip_serializing_if = "Option::is_none")]
        schedule: Option<String>,
        /// Kernels that run again then.
        #[serde(skip_serializing_if = "is_zero")]
        recomputed: usize,
        /// Tensors that are offloaded then.
        #[serde(skip_serializing_if = "is_zero")]
        offloaded: usize,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// `, recompute 3 kernels and offload 1 tensor`; nothing where nothing is done.
fn rewriting(recomputed: usize, offloaded: usize) -> String {
    let counted = |count: usize, verb: &str, what: &str| match count {
        0 => None,
        1 => Some(format!("{verb} 1 {what}")),
        count => Some(format!("{verb} {count} {what}s")),
    };
    let done = [counted(recomputed, "recompute", "kernel"), counted(offloaded, "offload", "tensor")];
    let done: Vec<String> = done.into_iter().flatten().collect();
    if done.is_empty() { String::new() } else { format!(", {}", done.join(" and ")) }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { device, more, memory, recomputed, offloaded, split, unequal, .. } => {
                let device = device.as_deref().map_or("each device".to_owned(), escaped);
                let rewriting = rewriting(*recomputed, *offloaded);
                let split = if *split { ", with operations split" } else { "" };
                let largest = if *unequal { " on the largest" } else { "" };
                write!(f, "+{more} on {device} (memory={}B{largest}){rewriting}{split}", memory.get())
            }
            Self::Reserve { reserve } => write!(f, "--reserve {}B", reserve.get()),
            Self::Unpin { pins } => write!(f, "unpin {}", escaped(&pins.join(" and "))),
            Self::Uncolocate { pattern } => write!(f, "no --colocate {}", escaped(pattern)),
            Self::Balance { balance: Some(balance) } => write!(f, "--balance {balance}"),
            Self::Balance { balance: None } => f.write_str("no --balance"),
            Self::Use { devices } => write!(f, "--use {devices}"),
            Self::Host { device } => {
                write!(f, "{device} with use=compute (a CPU beside accelerators is a host else)")
            }
            Self::Batch { batch, .. } => write!(f, "a batch of {batch}"),
            Self::Microbatches { microbatches, schedule, recomputed, offloaded } => {
                let count = microbatches.map(|count| format!("--microbatches {count}"));
                let order = schedule.as_ref().map(|order| format!("--schedule {order}"));
                let asked: Vec<String> = count.into_iter().chain(order).collect();
                let asked = if asked.is_empty() { "no --microbatches".to_owned() } else { asked.join(" ") };
                write!(f, "{asked}{}", rewriting(*recomputed, *offloaded))
            }
        }
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.proven { "no plan exists" } else { "no plan was found" };
        write!(f, "{verdict} under the given caps: {}", one_line(&self.conflict))?;
        if !self.repair.is_empty() {
            write!(f, " ({})", one_line(&self.repair))?;
        }
        Ok(())
    }
}

/// The report of an error, borrowed as the error is.
macro_rules! report_of {
    ($error:expr) => {
        match $error {
            Self::Format(report)
            | Self::Spec(report)
            | Self::Model(report)
            | Self::Unsupported(report)
            | Self::Usage(report)
            | Self::Overfull(report)
            | Self::Check(report)
            | Self::Run(report)
            | Self::Device { report, .. } => Some(report),
            Self::Io { .. } | Self::Infeasible(_) | Self::Cancelled | Self::Internal(_) => None,
        }
    };
}

impl Error {
    /// A malformed file.
    pub fn format(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Format(Report::new(place, message))
    }

    /// A wrong model.
    pub fn model(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Model(Report::new(place, message))
    }

    /// Contradicting or dangling options.
    pub fn usage(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Usage(Report::new(place, message))
    }

    /// A failed run.
    pub fn run(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Run(Report::new(place, message))
    }

    /// A file that could not be read or written.
    pub fn io(path: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Names the way out. No effect on errors that carry no report.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        if let Some(report) = self.report_mut() {
            report.help = help.into();
        }
        self
    }

    /// Puts an outer place (the file, say) before the place that is there.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        if let Some(report) = self.report_mut() {
            let is_named = report.place == outer
                || report.place.strip_prefix(outer).is_some_and(|rest| rest.starts_with(": "));
            if report.place.is_empty() {
                report.place = outer.to_owned();
            } else if !is_named {
                report.place = format!("{outer}: {}", report.place);
            }
        }
        self
    }

    /// Further lines, one for each thing found wrong.
    pub fn details(&self) -> &[String] {
        match self {
            Self::Infeasible(infeasible) => &infeasible.details,
            other => other.report().map_or(&[], |report| &report.details),
        }
    }

    /// The exit code of a program that ends with this error: 2 for usage, 3 where no plan was
    /// found, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Spec(_) => 2,
            Self::Infeasible(_) | Self::Overfull(_) => 3,
            _ => 1,
        }
    }

    fn report(&self) -> Option<&Report> {
        report_of!(self)
    }

    fn report_mut(&mut self) -> Option<&mut Report> {
        report_of!(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        let error = Error::model("node \"a\nb\"", "bad").with_help("rename it").within("m.onnx");
        assert_eq!(error.to_string(), "m.onnx: node \"a\\nb\": bad (rename it)");
    }

    #[test]
    fn a_very_long_name_is_shortened() {
        let error = Error::format("x".repeat(1_000_000), "bad");
        assert!(error.to_string().len() < 700);
    }
}
