//! Bounds on the highest load of any device or link in steady state.

use super::super::problem::Problem;
use super::{Certificate, work};
use crate::control::Control;

/// Certificates of several kinds, the simplest first.
pub(super) fn bounds(problem: &Problem<'_>, _control: &Control<'_>, incumbent: u64) -> Vec<Certificate> {
    vec![work::bound(problem, incumbent)]
}
