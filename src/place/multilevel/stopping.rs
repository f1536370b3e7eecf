//! When a local search has gone on long enough without a better partition.
//!
//! The gains of its moves are taken for a random walk: once they fall as steadily as is unlikely to be made up for, the
//! search ends, long before it has made as many moves as it may. Where gains scatter (few heavy nets among light ones)
//! it goes on.
//!
//! Source: the adaptive rule of Osipov, Sanders, n-Level Graph Partitioning, 2010, which KaHyPar has too.

/// Moves after which a search is judged at the earliest: of fewer the variance says little.
const EARLIEST: f64 = 10.0;

/// A search ends once `moves x mean^2` exceeds the variance so many times: where weights are alike. A fifth of it moves 15 %
/// more on unet_1k in 16 parts; without it, graphs of 1,000 and 10,000 nodes take a seventh more time for the same bytes,
/// random ones two fifths more.
pub(super) const USUAL: f64 = 5.0;

/// No search ends so. Of weights that span orders a heavy one may make up for many moves: a training step of a state space
/// in 8 parts moves 10 % more with [`USUAL`].
pub(super) const ENDLESS: f64 = f64::INFINITY;

/// The gains of the moves since the best partition that a search saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GainWalk {
    moves: f64,
    sum: f64,
    squares: f64,
}

impl GainWalk {
    /// One move more.
    pub(super) fn add(&mut self, gain: i64) {
        let gain = gain as f64;
        self.moves += 1.0;
        self.sum += gain;
        self.squares += gain * gain;
    }

    /// True where what was lost will hardly be won back: the more `patience`, the later.
    pub(super) fn is_hopeless(&self, patience: f64) -> bool {
        let mean = self.sum / self.moves;
        let variance = self.squares / self.moves - mean * mean;
        self.moves > EARLIEST && mean < 0.0 && self.moves * mean * mean > patience * variance
    }
}

#[cfg(test)]
mod tests {
    use super::{EARLIEST, ENDLESS, GainWalk, USUAL};

    fn walked(gains: impl IntoIterator<Item = i64>) -> GainWalk {
        let mut walk = GainWalk::default();
        gains.into_iter().for_each(|gain| walk.add(gain));
        walk
    }

    #[test]
    fn a_search_that_always_loses_ends_once_it_is_judged() {
        let earliest = EARLIEST as usize;
        assert!(!walked(std::iter::repeat_n(-5, earliest)).is_hopeless(USUAL));
        let steady = walked(std::iter::repeat_n(-5, earliest + 1));
        assert!(steady.is_hopeless(USUAL) && !steady.is_hopeless(ENDLESS));
    }

    #[test]
    fn gains_that_scatter_leave_hope() {
        let scattered = (0..40).map(|number| if number % 8 == 0 { 60 } else { -10 });
        assert!(!walked(scattered).is_hopeless(USUAL));
        assert!(!walked([0; 40]).is_hopeless(USUAL));
        assert!(!GainWalk::default().is_hopeless(USUAL));
    }
}
