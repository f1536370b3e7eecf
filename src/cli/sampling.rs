//! Which token comes next.

use crate::random::Rng;

/// How tokens are drawn.
pub(super) struct Sampling {
    /// 0 takes the likeliest token.
    pub(super) temperature: f32,
    /// Among so many of the likeliest.
    pub(super) top_k: Option<usize>,
    /// Among the likeliest that together have this probability.
    pub(super) top_p: Option<f32>,
    pub(super) random: Rng,
}

impl Sampling {
    /// The token of the highest score, the first among equals; or one that is drawn. None where a score is not a number.
    /// O(scores log scores) where it is drawn.
    pub(super) fn next(&mut self, scores: &[f32]) -> Option<usize> {
        if scores.iter().any(|score| score.is_nan()) {
            return None;
        }
        if self.temperature <= 0.0 {
            let best = |best: usize, at: usize| if scores[at] > scores[best] { at } else { best };
            return (0..scores.len()).reduce(best);
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&one, &other| scores[other].total_cmp(&scores[one]).then(one.cmp(&other)));
        order.truncate(self.top_k.unwrap_or(order.len()).max(1));
        let most = order.first().map_or(0.0, |&first| scores[first]);
        let weight = |&token: &usize| f64::from((scores[token] - most) / self.temperature).exp();
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let kept = self.kept(&weights);
        let total: f64 = weights[..kept].iter().sum();
        let drawn = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let mut sum = 0.0;
        let found = weights[..kept].iter().position(|weight| {
            sum += weight;
            drawn < sum
        });
        order.get(found.unwrap_or(kept.saturating_sub(1))).copied()
    }

    /// How many of the likeliest have the probability that is asked for; at least one.
    fn kept(&self, weights: &[f64]) -> usize {
        let Some(share) = self.top_p else { return weights.len() };
        let enough = weights.iter().sum::<f64>() * f64::from(share);
        let mut sum = 0.0;
        let last = weights.iter().position(|weight| {
            sum += weight;
            sum >= enough
        });
        last.map_or(weights.len(), |last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Sampling;
    use crate::random::Rng;

    fn counts(temperature: f32, top_k: Option<usize>, top_p: Option<f32>) -> [usize; 4] {
        let mut sampling = Sampling { temperature, top_k, top_p, random: Rng::new(7) };
        let mut counts = [0; 4];
        (0..4000).for_each(|_| counts[sampling.next(&[0.0, 2.0, 1.0, 2.0]).unwrap()] += 1);
        counts
    }

    #[test]
    fn the_likeliest_or_one_of_the_likely() {
        assert_eq!(counts(0.0, None, None), [0, 4000, 0, 0]);
        let [a, b, c, d] = counts(1.0, None, None);
        // e^0 : e^2 : e^1 : e^2 of 4000.
        let near = |count: usize, expected: usize| count.abs_diff(expected) < 150;
        assert!(near(a, 216) && near(b, 1598) && near(c, 588) && near(d, 1598), "{a} {b} {c} {d}");
        assert_eq!(counts(1.0, Some(1), None), [0, 4000, 0, 0]);
        for temperature in [0.0, 1.0] {
            let mut sampling = Sampling { temperature, top_k: None, top_p: None, random: Rng::new(7) };
            assert_eq!(sampling.next(&[0.0, f32::NAN, 1.0]), None);
        }
        let [a, b, c, d] = counts(1.0, None, Some(0.75));
        assert!(a == 0 && c == 0 && near(b, 2000) && near(d, 2000), "{b} {d}");
    }
}
