//! Which of the library's ways of computing a product is the fastest: each is timed once for a product
//! and a GPU, and what was found is kept beside the compiled kernels.

use std::collections::HashMap;
use std::time::Duration;

use super::driver::{Algorithm, Event, Gemm, GemmArgs, Outcome, Pointer, Stream};
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

/// A product of a program that the library computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedProduct {
    /// Name of the GPU.
    pub gpu: String,
    /// The product.
    pub gemm: Gemm,
    /// How often a run computes it.
    pub calls: usize,
    /// The time of the best of the library's ways, alone.
    pub best: Duration,
}

/// A way and its time.
type Timed = (Algorithm, Duration);

/// See the module's documentation.
pub(super) struct Tuner<'a> {
    machine: &'a Machine,
    /// By GPU's name, product and where its operands begin; none where the library has none.
    known: HashMap<(String, Gemm, u32), Option<Timed>>,
    /// What was asked for and is there, in order.
    pub(super) used: Vec<TimedProduct>,
}

impl<'a> Tuner<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self { machine, known: HashMap::new(), used: Vec::new() }
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
        let Some((algorithm, best)) = self.kept(gpu, bench, gemm, args)? else { return Ok(None) };
        match self.used.iter_mut().find(|one| one.gpu == gpu && one.gemm == *gemm) {
            Some(one) => one.calls += 1,
            None => self.used.push(TimedProduct { gpu: gpu.to_owned(), gemm: gemm.clone(), calls: 1, best }),
        }
        Ok(Some(algorithm))
    }

    fn kept(&mut self, gpu: &str, bench: Bench, gemm: &Gemm, args: &GemmArgs) -> Result<Option<Timed>> {
        let operands = [args.left, args.right, args.out].into_iter().chain(args.addend);
        let alignment = operands.map(Pointer::alignment).min().unwrap_or(1);
        let key = (gpu.to_owned(), gemm.clone(), alignment);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let place = format!("product {gemm:?} on GPU {}", bench.stream.gpu);
        let make = || match self.timed(bench, gemm, args) {
            Ok(Some(timed)) => Ok(bytes(&timed)),
            Ok(None) => Err(Error::Cancelled),
            Err(fault) => Err(fault.at(&place)),
        };
        let made = match &self.machine.cache {
            Some(cache) => {
                let library = self.machine.driver.library();
                let at = format!("at multiples of {alignment}");
                cache.get_or_make(&format!("timed product {library} {gpu} {gemm:?} {at}"), make)
            }
            None => make(),
        };
        let best = match made {
            Ok(bytes) => timed(&bytes),
            Err(Error::Cancelled) => None,
            Err(error) => return Err(error),
        };
        self.known.insert(key, best.clone());
        Ok(best)
    }

    fn timed(&self, bench: Bench, gemm: &Gemm, args: &GemmArgs) -> Outcome<Option<Timed>> {
        let driver = &*self.machine.driver;
        let ways = driver.algorithms(bench.stream.gpu, gemm, args)?;
        let mut best: Option<Timed> = None;
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
            if best.as_ref().is_none_or(|(_, shortest)| least < *shortest) {
                best = Some((algorithm, least));
            }
        }
        Ok(best)
    }
}

/// A way and its time as the cache keeps them: nanoseconds, then what describes the way.
fn bytes((Algorithm(way), time): &Timed) -> Vec<u8> {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [&nanos.to_le_bytes()[..], way].concat()
}

/// See [`bytes`].
fn timed(bytes: &[u8]) -> Option<Timed> {
    let (nanos, way) = bytes.split_first_chunk::<8>()?;
    Some((Algorithm(way.to_vec()), Duration::from_nanos(u64::from_le_bytes(*nanos))))
}
