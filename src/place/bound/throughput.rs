//! Bounds on the highest load of any device or link in steady state.

use super::super::Objective;
use super::super::problem::Problem;
use super::work::Shares;
use super::{Certificate, is_pairwise, packing};
use crate::control::Control;

/// Certificates of several kinds, the simplest first.
pub(super) fn bounds(problem: &Problem<'_>, control: &Control<'_>, incumbent: u64) -> Vec<Certificate> {
    let work = Shares::new(problem, incumbent).certificate(Objective::Throughput);
    let known = work.value;
    let packed = match is_pairwise(problem) {
        true => packing::bound(problem, known, incumbent, control),
        false => None,
    };
    std::iter::once(work).chain(packed).collect()
}
