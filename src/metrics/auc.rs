//! The area under the ROC curve from ranks: the Mann-Whitney statistic (Hanley and McNeil 1982).

/// The chance that a positive sample scores higher than a negative one, equal scores counted half.
/// None where there is no sample of one kind, or a score is no number. O(samples x log(samples)).
pub(super) fn area(scores: &[(f64, bool)]) -> Option<f64> {
    let positive = scores.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
    let negative = scores.len() as f64 - positive;
    if positive == 0.0 || negative == 0.0 || scores.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    // Zeros of both signs are one score.
    let mut sorted: Vec<(f64, bool)> = scores.iter().map(|&(score, kind)| (score + 0.0, kind)).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut below, mut wins) = (0.0, 0.0);
    for equal in sorted.chunk_by(|one, other| one.0 == other.0) {
        let positive = equal.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
        let negative = equal.len() as f64 - positive;
        wins += positive * (below + negative / 2.0);
        below += negative;
    }
    Some(wins / positive / negative)
}
