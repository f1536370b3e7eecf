//! Bounds on the highest load of any device or link in steady state.

use super::super::Objective;
use super::super::problem::Problem;
use super::work::Shares;
use super::{Certificate, boundary, is_pairwise, packing};
use crate::control::Control;

/// Certificates of several kinds, the simplest first.
pub(super) fn bounds(problem: &Problem<'_>, control: &Control<'_>, incumbent: u64) -> Vec<Certificate> {
    let mut found = vec![Shares::new(problem, incumbent).certificate(Objective::Throughput)];
    if is_pairwise(problem) {
        for bound in [packing::bound, boundary::bound] {
            let known = found.iter().map(|one| one.value).max().unwrap_or(0);
            found.extend(bound(problem, known, incumbent, control));
        }
    }
    found
}
