//! The largest size that something can be planned for, without planning every size.
//!
//! What is needed grows with the size, but not evenly, and among small sizes it may fall: a product of one
//! row can be planned otherwise than one of many, and need more. So that nothing is refused that fits, a
//! first size is looked for among the powers of two up to one that is proven not to fit, then among the
//! small sizes one by one. From there on sizes are doubled, then halved in between; those just above the
//! one found are tried too.
//!
//! All that is done with the least effort, which is quick both to find a plan and to give up. The effort asked for then
//! begins where that ended, and goes on only as far as it finds plans: a size is too large if neither finds one.

use crate::control::Control;
use crate::error::{Error, Infeasible, Result};
use crate::place::Effort;

/// No size is larger.
const LARGEST: i64 = 1 << 40;

/// Up to so many units need may fall where the size grows: a proof that one of them does not fit says
/// nothing of the next.
const UNEVEN: i64 = 16;

/// Units above the size found that are tried beside the next one.
const BEYOND: [i64; 5] = [2, 3, 4, 6, 8];

/// From so many units on, more effort than the least tries the next size alone: one unit is little there, and need even.
const MANY: i64 = 64;

/// The largest size that something can be planned for.
pub(crate) struct Largest<T> {
    pub(crate) size: i64,
    /// What was planned for it.
    pub(crate) best: T,
    /// Every size that was tried, and whether it fits, in that order.
    pub(crate) tried: Vec<(i64, bool)>,
    /// The next size that was tried, and why it does not fit; none where no larger one was tried.
    pub(crate) refused: Option<(i64, Error)>,
}

/// Finds the largest size, a multiple of `unit`, that `plan` has something for with the effort `asked` for or with the
/// least: exactly, where need grows with the size from the first one on that fits. About 2 log2(size) plans with the
/// least effort; what is found then is planned anew with the effort asked for.
///
/// Errors: that of the smallest size, where nothing fits or it tells of something else than memory.
pub(crate) fn largest<T>(
    unit: i64,
    asked: Effort,
    plan: &dyn Fn(i64, Effort) -> Result<T>,
    control: &Control<'_>,
) -> Result<Largest<T>> {
    let unit = unit.max(1);
    let least = |size: i64| plan(size, Effort::Fast);
    let most = |size: i64| plan(size, asked);
    let mut quick = BatchSearch::new(unit, &least, control);
    match quick.run() {
        Ok(()) if asked == Effort::Fast => quick.found(),
        Ok(()) => {
            let mut search = BatchSearch::new(unit, &most, control);
            search.go_on_from(quick);
            search.found()
        }
        Err(Error::Infeasible(_)) if asked != Effort::Fast && !control.stopped() => {
            let mut search = BatchSearch::new(unit, &most, control);
            search.run()?;
            search.found()
        }
        Err(error) => Err(error),
    }
}

struct BatchSearch<'a, 'c, T> {
    plan: &'a dyn Fn(i64) -> Result<T>,
    control: &'a Control<'c>,
    unit: i64,
    /// Where steps begin that double, in units.
    origin: i64,
    /// Sizes in units, and why they do not fit.
    tried: Vec<(i64, Option<Error>)>,
    /// The largest one that fits so far.
    best: Option<(i64, T)>,
}

impl<'a, 'c, T> BatchSearch<'a, 'c, T> {
    fn new(unit: i64, plan: &'a dyn Fn(i64) -> Result<T>, control: &'a Control<'c>) -> Self {
        Self { plan, control, unit, origin: 0, tried: Vec::new(), best: None }
    }

    fn run(&mut self) -> Result<()> {
        self.first()?;
        self.widen(&BEYOND);
        Ok(())
    }

    /// Goes on where a search with less effort has ended, and plans anew what that found.
    fn go_on_from(&mut self, quick: BatchSearch<'_, '_, T>) {
        let Some((from, found)) = quick.best else { return };
        (self.origin, self.best) = (from, Some((from, found)));
        self.widen(if from < MANY { &BEYOND } else { &[] });
        let largest = self.best.as_ref().map_or(from, |(best, _)| *best);
        if largest == from && !self.control.stopped() {
            // Only the least effort may have a plan of that size.
            self.best = (self.plan)(from * self.unit).ok().map(|found| (from, found)).or(self.best.take());
        }
        let is_known = |size: i64| self.tried.iter().any(|(other, _)| *other == size);
        let before = quick
            .tried
            .into_iter()
            .filter(|(size, error)| !is_known(*size) && (error.is_none() || *size > largest));
        let tried: Vec<_> = before.collect();
        self.tried.splice(0..0, tried);
    }

    fn found(self) -> Result<Largest<T>> {
        let Self { best, tried, unit, .. } = self;
        let (units, best) = best.ok_or_else(|| Error::Internal("nothing was planned for".into()))?;
        let sizes = tried.iter().map(|(units, error)| (units * unit, error.is_none())).collect();
        let above = tried.into_iter().filter(|(size, _)| *size > units);
        let refused = above.filter_map(|(size, error)| Some((size * unit, error?)));
        let refused = refused.min_by_key(|(size, _)| *size);
        Ok(Largest { size: units * unit, best, tried: sizes, refused })
    }

    /// Tries larger sizes than the one that fits, as far as they do.
    fn widen(&mut self, beyond: &[i64]) {
        while let Some(next) = self.next(beyond).filter(|&units| self.goes_on(units)) {
            self.fits(next);
        }
    }

    fn goes_on(&self, units: i64) -> bool {
        units <= LARGEST / self.unit && !self.control.stopped()
    }

    /// Looks for any size that fits.
    fn first(&mut self) -> Result<()> {
        let mut units = 1;
        while units == 1 || self.goes_on(units) {
            if self.fits(units) {
                return Ok(());
            }
            // Any other error than of memory would come for every size; for small sizes, not even a proof
            // says anything of the next.
            match self.tried.last() {
                Some((1, Some(Error::Infeasible(_)))) => {}
                Some((1, _)) => break,
                Some((_, Some(error))) if units >= UNEVEN && is_proven(error) => break,
                _ => {}
            }
            units *= 2;
        }
        let infeasible = units > 1;
        for units in (2..UNEVEN).rev().filter(|_| infeasible) {
            if self.goes_on(units) && self.fits(units) {
                return Ok(());
            }
        }
        let first = self.tried.swap_remove(0).1;
        Err(first.unwrap_or_else(|| Error::Internal("no size was tried".into())))
    }

    /// Whether so many units fit; those that were tried are not tried again. Errors that tell of
    /// something else than memory count as a size that is too large.
    fn fits(&mut self, units: i64) -> bool {
        if let Some((_, error)) = self.tried.iter().find(|(size, _)| *size == units) {
            return error.is_none();
        }
        let planned = (self.plan)(units * self.unit);
        let fits = planned.is_ok();
        match planned {
            Ok(found) => {
                self.tried.push((units, None));
                if self.best.as_ref().is_none_or(|(best, _)| *best < units) {
                    self.best = Some((units, found));
                }
            }
            Err(error) => self.tried.push((units, Some(error))),
        }
        fits
    }

    /// The size to try next; none where the largest is found.
    fn next(&self, beyond: &[i64]) -> Option<i64> {
        let best = self.best.as_ref().map(|(best, _)| *best)?;
        let fails = self.tried.iter().map(|(size, _)| *size).filter(|&size| size > best).min();
        let tried = |size: i64| self.tried.iter().any(|(other, _)| *other == size);
        match fails {
            None => best.checked_add((best - self.origin).max(1)),
            Some(fails) if fails - best > 1 => Some(best + (fails - best) / 2),
            Some(_) => beyond.iter().map(|more| best + more).find(|&size| !tried(size)),
        }
    }
}

fn is_proven(error: &Error) -> bool {
    matches!(error, Error::Infeasible(why) if matches!(**why, Infeasible { proven: true, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where a size of so many units needs `need` of it, and 100 are there.
    fn found(unit: i64, need: &dyn Fn(i64) -> i64) -> Result<Largest<i64>> {
        let plan = |size: i64| {
            assert_eq!(size % unit, 0);
            let units = size / unit;
            // Twice as much is more than can be; a little more was just not found to fit.
            let why = Infeasible { proven: need(units) > 200, ..Infeasible::default() };
            if need(units) <= 100 { Ok(size) } else { Err(Error::Infeasible(Box::new(why))) }
        };
        largest(unit, Effort::Fast, &|size, _| plan(size), &Control::new())
    }

    #[test]
    fn the_largest_size_is_that_of_all() {
        for (fixed, each) in [(0, 1), (3, 7), (99, 1), (40, 20), (0, 51), (60, 3)] {
            for unit in [1, 3] {
                let need = |units: i64| fixed + each * units;
                let most = (1..1000).filter(|&units| need(units) <= 100).max().unwrap();
                let found = found(unit, &need).unwrap();
                assert_eq!((found.size, found.best), (most * unit, most * unit));
                assert!(found.refused.is_some() && found.tried.len() < 20);
            }
        }
    }

    #[test]
    fn small_sizes_may_need_more_than_larger_ones() {
        for (from, to) in [(8, 8), (8, 20), (5, 7), (15, 15), (2, 100), (64, 90)] {
            let need = |units: i64| if (from..=to).contains(&units) { 80 } else { 150 + units };
            assert_eq!(found(2, &need).unwrap().size, 2 * to, "{from} to {to}");
        }
        // The first one alone is proven not to fit.
        let need = |units: i64| if units == 1 { 500 } else { units };
        assert_eq!(found(1, &need).unwrap().size, 100);
        // A size does not fit, but others just above.
        let need = |units: i64| if units == 48 { 101 } else { units * 100 / 53 };
        assert_eq!(found(1, &need).unwrap().size, 53);
    }

    #[test]
    fn where_nothing_fits_the_smallest_tells_why() {
        let error = found(1, &|units| 101 + units).err().unwrap();
        assert!(matches!(error, Error::Infeasible(why) if !why.proven));
        let usage = |_| -> Result<()> { Err(Error::usage("model", "no")) };
        let mut tries = 0;
        let counted = std::cell::RefCell::new(&mut tries);
        let plan = |size| {
            **counted.borrow_mut() += 1;
            usage(size)
        };
        assert!(matches!(
            largest(1, Effort::Default, &|size, _| plan(size), &Control::new()).err(),
            Some(Error::Usage(_))
        ));
        assert_eq!(tries, 1);
        // Nothing is too large: it ends.
        assert_eq!(found(1, &|_| 1).unwrap().size, LARGEST);
    }

    /// Where the effort asked for has plans for `more` than the least effort has.
    #[test]
    fn most_sizes_are_tried_with_the_least_effort() {
        for (quick, more) in [(1_000_003, 0), (1_000_003, 1), (1_000_003, 195), (70, 30), (5, 3), (5, -2)] {
            let tries = std::cell::Cell::new([0; 2]);
            let plan = |size: i64, effort: Effort| {
                let is_quick = effort == Effort::Fast;
                let [least, asked] = tries.get();
                tries.set([least + i32::from(is_quick), asked + i32::from(!is_quick)]);
                let fits = size <= if is_quick { quick } else { quick + more };
                if fits { Ok((size, effort)) } else { Err(Error::Infeasible(Box::default())) }
            };
            let found = largest(1, Effort::Default, &plan, &Control::new()).unwrap();
            let most = quick + more.max(0);
            let effort = if more < 0 { Effort::Fast } else { Effort::Default };
            assert_eq!((found.size, found.best), (most, (most, effort)));
            assert_eq!(found.refused.map(|(size, _)| size), Some(most + 1));
            let mut sizes: Vec<i64> = found.tried.iter().map(|(size, _)| *size).collect();
            assert!(found.tried.iter().all(|&(size, fits)| fits == (size <= most)), "{:?}", found.tried);
            sizes.sort_unstable();
            assert!(sizes.is_sorted_by(|one, other| one < other), "{sizes:?}");
            let enough = if quick < MANY { 10 } else { 20 };
            assert!(
                tries.get()[1] <= if more == 0 && quick >= MANY { 2 } else { enough },
                "{:?}",
                tries.get()
            );
        }
    }

    #[test]
    fn where_the_least_effort_finds_nothing_the_other_is_asked() {
        let plan = |size: i64, effort: Effort| match effort {
            Effort::Default if size <= 12 => Ok(size),
            _ => Err(Error::Infeasible(Box::default())),
        };
        assert_eq!(largest(1, Effort::Default, &plan, &Control::new()).unwrap().size, 12);
    }
}
