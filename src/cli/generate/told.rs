//! How fast it went.

use std::time::Duration;

use crate::plan::Plan;

/// What is told of one plan.
#[derive(Default)]
pub(super) struct Told {
    pub(super) prompt: (usize, Duration),
    pub(super) tokens: usize,
    pub(super) steps: Vec<Duration>,
    pub(super) wall: Duration,
}

impl Told {
    pub(super) fn line(mut self, plan: &Plan) -> String {
        let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
        let (count, time) = self.prompt;
        let mut line = format!("prompt: {count} tokens, {:.1} tokens/s", rate(count, time));
        if !self.steps.is_empty() {
            let steps = self.steps.len();
            self.steps.sort_unstable();
            let median = self.steps[steps / 2];
            let predicted = 1e9 / plan.cost.latency_ns.get().max(1) as f64;
            line += &format!(
                "; generated: {} tokens, {:.1} tokens/s (median step {:.1}/s, predicted {predicted:.1}/s), {} moved per token",
                self.tokens,
                rate(steps, self.wall),
                rate(1, median),
                plan.cost.step_bytes
            );
        }
        line
    }
}
