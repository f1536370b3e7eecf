//! Which of the library's ways of computing a product is taken: the first that it does not refuse, in the library's own
//! order, best guess first.
//!
//! The order follows from the product's sizes, how its operands are aligned and how much may be kept of partial sums,
//! all of which are the same on a whole GPU and on a slice of it; times, which differ from run to run, decide nothing.
//! So one product has the same bits wherever it is computed.

use std::collections::HashMap;

use super::driver::{Algorithm, Driver, FaultKind, Gemm, GemmArgs, Outcome, Stream};
use super::issue::launch;
use super::work::{Call, Product};
use crate::error::Result;

/// A product of a program that the library computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryProduct {
    /// Name of the GPU.
    pub gpu: String,
    /// The product.
    pub gemm: Gemm,
    /// How often a run computes it.
    pub calls: usize,
    /// How many of the library's ways were refused before the one that is taken.
    pub refused: usize,
}

/// What the library's answer follows from: the GPU's name, the product, how its operands are aligned, bytes for partial
/// sums.
type Key = (String, Gemm, u32, u64);

/// A way, and how many before it were refused.
type Taken = (Algorithm, usize);

/// See the module's documentation.
pub(super) struct Chooser<'a> {
    driver: &'a dyn Driver,
    /// None where the library has no way, or refuses all.
    known: HashMap<Key, Option<Taken>>,
    /// What was asked for and is there, in order.
    pub(super) used: Vec<LibraryProduct>,
    /// How many groups have products that the library was asked for and does not compute.
    pub(super) declined: usize,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(driver: &'a dyn Driver) -> Self {
        Self { driver, known: HashMap::new(), used: Vec::new(), declined: 0 }
    }

    /// The way that is taken; none where the library has none, or refuses all. The arguments' memory is written.
    ///
    /// Error: the driver's.
    pub(super) fn choose(
        &mut self,
        gpu: &str,
        stream: Stream,
        gemm: &Gemm,
        args: &GemmArgs,
    ) -> Result<Option<Algorithm>> {
        let key = (gpu.to_owned(), gemm.clone(), args.alignment(), args.partial.bytes);
        let taken = match self.known.get(&key) {
            Some(known) => known.clone(),
            None => {
                let place = || format!("product {gemm} on GPU {}", stream.gpu);
                let found = self.tried(stream, gemm, args).map_err(|fault| fault.at(&place()))?;
                self.known.insert(key, found.clone());
                found
            }
        };
        let Some((algorithm, refused)) = taken else { return Ok(None) };
        match self.used.iter_mut().find(|one| one.gpu == gpu && one.gemm == *gemm) {
            Some(one) => one.calls += 1,
            None => {
                self.used.push(LibraryProduct { gpu: gpu.to_owned(), gemm: gemm.clone(), calls: 1, refused })
            }
        }
        Ok(Some(algorithm))
    }

    /// Computes the product in one way after the other, which also loads its code, until one is not refused.
    fn tried(&self, stream: Stream, gemm: &Gemm, args: &GemmArgs) -> Outcome<Option<Taken>> {
        let ways = self.driver.algorithms(stream.gpu, gemm, args)?;
        for (refused, algorithm) in ways.into_iter().enumerate() {
            let product = Product { gemm: gemm.clone(), algorithm: algorithm.clone(), args: *args };
            let call = Call::Product(Box::new(product));
            let done = launch(self.driver, stream, &call).and_then(|()| self.driver.finish(stream));
            match done {
                Ok(()) => return Ok(Some((algorithm, refused))),
                // What failed while it ran is no refusal: the GPU is of no use any more.
                Err(fault) if is_refusal(fault.kind) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }
}

fn is_refusal(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::Unsupported | FaultKind::Launch | FaultKind::Image)
}
