//! Which of the library's ways of computing a product is the fastest: each is timed once for a product
//! and a GPU, and what was found is kept beside the compiled kernels.

use std::collections::HashMap;
use std::time::Duration;

use super::driver::{Algorithm, Event, Gemm, GemmArgs, Outcome, Stream};
use super::issue::trial;
use super::program::Machine;
use super::work::Call;
use crate::error::{Error, Result};

/// How often each way is timed; the shortest counts.
const TRIALS: usize = 3;

/// Where products are timed: a stream, and events before and after.
#[derive(Clone, Copy)]
pub(super) struct Bench {
    pub(super) stream: Stream,
    pub(super) begin: Event,
    pub(super) end: Event,
}

/// See the module's documentation.
pub(super) struct Tuner<'a> {
    machine: &'a Machine,
    /// By GPU's name and product; none where the library has none.
    known: HashMap<(String, Gemm), Option<Algorithm>>,
}

impl<'a> Tuner<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self { machine, known: HashMap::new() }
    }

    /// The best way; none where the library has none. The arguments' memory is written.
    ///
    /// Error: the driver's.
    pub(super) fn best(
        &mut self,
        gpu: &str,
        bench: Bench,
        gemm: &Gemm,
        args: &GemmArgs,
    ) -> Result<Option<Algorithm>> {
        let key = (gpu.to_owned(), gemm.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let place = format!("product {gemm:?} on GPU {}", bench.stream.gpu);
        let make = || match self.timed(bench, gemm, args) {
            Ok(Some(Algorithm(bytes))) => Ok(bytes),
            Ok(None) => Err(Error::Cancelled),
            Err(fault) => Err(fault.at(&place)),
        };
        let made = match &self.machine.cache {
            Some(cache) => {
                let library = self.machine.driver.library();
                cache.get_or_make(&format!("product {library} {gpu} {gemm:?}"), make)
            }
            None => make(),
        };
        let best = match made {
            Ok(bytes) => Some(Algorithm(bytes)),
            Err(Error::Cancelled) => None,
            Err(error) => return Err(error),
        };
        self.known.insert(key, best.clone());
        Ok(best)
    }

    fn timed(&self, bench: Bench, gemm: &Gemm, args: &GemmArgs) -> Outcome<Option<Algorithm>> {
        let driver = &*self.machine.driver;
        let mut ways = driver.algorithms(bench.stream.gpu, gemm)?;
        if ways.len() < 2 {
            return Ok(ways.pop());
        }
        let mut best: Option<(Duration, Algorithm)> = None;
        for algorithm in ways {
            let call = Call::Product { gemm: gemm.clone(), algorithm: algorithm.clone(), args: *args };
            // The first launch may load code.
            trial(driver, bench.stream, &call)?;
            let mut least = Duration::MAX;
            for _ in 0..TRIALS {
                driver.record(bench.begin, bench.stream)?;
                trial(driver, bench.stream, &call)?;
                driver.record(bench.end, bench.stream)?;
                driver.finish(bench.stream)?;
                least = least.min(driver.elapsed(bench.begin, bench.end)?);
            }
            if best.as_ref().is_none_or(|(shortest, _)| least < *shortest) {
                best = Some((least, algorithm));
            }
        }
        Ok(best.map(|(_, algorithm)| algorithm))
    }
}
