//! Why a step waits where its data does not ask for it, as plans say it in words.

use std::fmt;

use serde::Serialize;

use super::{Action, Plan, Step};

/// How the reason of a copy to a host begins, and that of one back.
pub(crate) const OFFLOADED: &str = "offloaded to make room";
pub(crate) const BACK: &str = "comes back from";

/// Why a step waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// So that bytes can be used again.
    Memory,
    /// So that a more urgent copy has the link first.
    Urgency,
}

impl Reason {
    const ALL: [Self; 2] = [Self::Urgency, Self::Memory];

    /// What stands before the numbers of the steps, and after them.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => ("waits for the memory that steps ", " use"),
            Self::Urgency => ("waits for steps ", ", so that a more urgent copy goes first"),
        }
    }
}

/// What a step waits for beside its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// Why.
    pub reason: Reason,
    /// The steps, by their ids.
    pub steps: Vec<u64>,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.reason.words();
        let steps: Vec<String> = self.steps.iter().map(u64::to_string).collect();
        write!(f, "{before}{}{after}", steps.join(", "))
    }
}

impl Step {
    /// What the step waits for beside its data, each with its reason.
    pub fn waits(&self) -> Vec<Wait> {
        let parts = self.why.iter().flat_map(|why| why.split("; "));
        parts.filter_map(read).collect()
    }

    /// True where the step is held back for a more urgent copy.
    pub fn is_delayed(&self) -> bool {
        self.waits().iter().any(|wait| wait.reason == Reason::Urgency)
    }

    /// True for launches of a node, and copies of what it makes.
    pub fn is_about(&self, node: &str) -> bool {
        match &self.action {
            Action::Launch(launch) => launch.nodes.iter().any(|one| one == node),
            Action::Copy(copy) => copy.node.as_deref() == Some(node),
        }
    }

    /// What it does, in words: `conv1`, `copy of conv1 to cuda1`.
    pub fn subject(&self) -> String {
        match &self.action {
            Action::Launch(launch) => launch.nodes.first().cloned().unwrap_or_default(),
            Action::Copy(copy) => {
                let what = copy.node.as_deref().unwrap_or(&copy.from);
                format!("copy of {what} to {}", self.device)
            }
        }
    }
}

impl Plan {
    /// The dependencies that the data does not ask for, by the step that waits.
    pub fn waits(&self) -> Vec<(&Step, Wait)> {
        self.steps.iter().flat_map(|step| step.waits().into_iter().map(move |wait| (step, wait))).collect()
    }
}

/// One reason, read from its words; none where they say something else.
fn read(words: &str) -> Option<Wait> {
    Reason::ALL.into_iter().find_map(|reason| {
        let (before, after) = reason.words();
        let numbers = words.strip_prefix(before)?.strip_suffix(after)?;
        let steps = numbers.split(", ").map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Wait { reason, steps })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_read_as_they_are_written() {
        for reason in Reason::ALL {
            let wait = Wait { reason, steps: vec![3, 17] };
            assert_eq!(read(&wait.to_string()), Some(wait));
        }
        assert_eq!(read("offloaded to make room on cuda0"), None);
        assert_eq!(read("waits for steps , so that a more urgent copy goes first"), None);
    }
}
