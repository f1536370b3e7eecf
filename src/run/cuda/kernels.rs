//! The kernels of a plan's groups: each source once, compiled for each architecture, loaded on each GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::Function;
use super::program::{Machine, Products};
use super::resources::Resources;
use super::toolchain::Toolchain;
use crate::emit::{self, Gives, Kernel};
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::kernel::program::{Body, GemmCall, Place, Program, gemm, lower, lower_unfused, with_sums};
use crate::kernel::{Fused, in_place};

/// One launch of a group.
pub(super) enum Part {
    /// A kernel.
    Own {
        /// Position in [`Kernels::list`].
        kernel: usize,
        /// Whose bytes each argument is.
        args: Vec<Place>,
        /// Nothing is to be done where all arguments are at one place.
        is_copy: bool,
    },
    /// A product of the library.
    Library(Box<GemmCall>),
}

/// What computes a group, in order.
pub(super) type Way = Vec<Part>;

/// See the module's documentation.
pub(super) struct Kernels {
    pub(super) list: Vec<Kernel>,
    /// By group: ways of computing it, best first, the last one with kernels alone.
    pub(super) groups: BTreeMap<usize, Vec<Way>>,
    /// By GPU: a function for each kernel.
    functions: BTreeMap<u32, Vec<Function>>,
    /// What all GPUs that they are for give.
    gives: Gives,
}

impl Kernels {
    /// The kernels of groups, for GPUs of these architectures.
    ///
    /// Errors: those of lowering and printing, with the group's node.
    pub(super) fn of(
        graph: &Graph,
        groups: &[Fused<'_>],
        needed: &BTreeSet<usize>,
        products: Products,
        architectures: &[&str],
    ) -> Result<Self> {
        let all = architectures.iter().map(|one| Gives::of(one));
        let gives = all.reduce(Gives::both).unwrap_or(Gives::SM_80);
        let mut kernels =
            Self { list: Vec::new(), groups: BTreeMap::new(), functions: BTreeMap::new(), gives };
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for &group in needed {
            let fused = &groups[group];
            let name = fused.nodes.last().map_or("", |&node| &graph.source(graph.node(node).source).name);
            let within = |error: Error| error.within(&format!("node {name}"));
            let whole = lower(graph, fused).map_err(within)?;
            let mut ways = Vec::new();
            if let Some(unfused) = unfused_products(graph, fused, &whole, products, gives).map_err(within)? {
                kernels.add_ways(&unfused, products, &mut known, &mut ways).map_err(within)?;
            }
            kernels.add_ways(&whole, products, &mut known, &mut ways).map_err(within)?;
            let own = whole.iter().map(|program| kernels.own(program, &mut known));
            ways.push(own.filter_map(Result::transpose).collect::<Result<_>>().map_err(within)?);
            kernels.groups.insert(group, ways);
        }
        Ok(kernels)
    }

    /// Ways with products of the library, if there are any: those that also sum up an operand, those that do not.
    fn add_ways(
        &mut self,
        programs: &[Program],
        products: Products,
        known: &mut BTreeMap<String, usize>,
        ways: &mut Vec<Way>,
    ) -> Result<()> {
        let calls: Vec<Option<GemmCall>> = programs
            .iter()
            .map(|program| gemm(program).filter(|call| products.take(&call.gemm, self.gives)))
            .collect();
        if calls.iter().all(Option::is_none) {
            return Ok(());
        }
        // The sums of an operand come with the product where the library has both at once.
        let mut summing = calls.clone();
        let mut summed = vec![false; programs.len()];
        for call in summing.iter_mut().flatten() {
            let mut both = programs.iter().map(|program| with_sums(call, program)).enumerate();
            if let Some((sums, Some(together))) = both.find(|(_, both)| both.is_some()) {
                *call = together;
                summed[sums] = true;
            }
        }
        let mut add = |calls: &[Option<GemmCall>], without: &[bool]| -> Result<()> {
            let mut way = Vec::new();
            for ((program, call), _) in programs.iter().zip(calls).zip(without).filter(|(_, out)| !**out) {
                match call {
                    Some(call) => way.push(Part::Library(Box::new(call.clone()))),
                    None => way.extend(self.own(program, known)?),
                }
            }
            ways.push(way);
            Ok(())
        };
        if summed.contains(&true) {
            add(&summing, &summed)?;
        }
        add(&calls, &vec![false; programs.len()])
    }

    /// The kernel of a program; none where that does nothing.
    fn own(&mut self, program: &Program, known: &mut BTreeMap<String, usize>) -> Result<Option<Part>> {
        let Some(kernel) = emit::kernel_within(program, self.gives)? else { return Ok(None) };
        // Kernels of equal text are compiled once.
        let next = known.len();
        let position = *known.entry(kernel.text.clone()).or_insert(next);
        let args = kernel.args.iter().map(|arg| arg.place).collect();
        if position == self.list.len() {
            self.list.push(kernel);
        }
        Ok(Some(Part::Own { kernel: position, args, is_copy: program.is_copy() }))
    }

    /// Compiles for the architectures and loads on the GPUs.
    ///
    /// Errors: the compiler's and the driver's.
    pub(super) fn load(
        &mut self,
        machine: &Machine,
        resources: &mut Resources,
        gpus: &BTreeMap<u32, String>,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<()> {
        let list: Vec<&Kernel> = self.list.iter().collect();
        let mut compiled: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
        for (&gpu, architecture) in gpus {
            // GPUs of one architecture share the code.
            if !compiled.contains_key(architecture.as_str()) {
                let images = machine.toolchain.compile(&list, architecture, progress)?;
                compiled.insert(architecture, images);
            }
            let mut functions = Vec::with_capacity(list.len());
            for (kernel, image) in list.iter().zip(&compiled[architecture.as_str()]) {
                let loaded = resources
                    .module(gpu, image)
                    .and_then(|module| resources.function(module, &kernel.name, kernel.launch));
                let at = || format!("kernel {} on GPU {gpu}", kernel.name);
                functions.push(loaded.map_err(|fault| fault.at(&at()))?);
            }
            self.functions.insert(gpu, functions);
        }
        Ok(())
    }

    /// A kernel on a GPU on which it was loaded.
    pub(super) fn function(&self, gpu: u32, kernel: usize) -> Result<Function> {
        let found = self.functions.get(&gpu).and_then(|functions| functions.get(kernel));
        found.copied().ok_or_else(|| Error::Internal("a kernel was not loaded".to_owned()))
    }
}

/// Compiles every kernel that groups may need on a GPU of an architecture, which a later run finds where the toolchain
/// keeps code; how many there are. Needs no GPU.
///
/// Errors: those of lowering and printing, with the group's node; the compiler's.
pub fn compile_ahead(
    graph: &Graph,
    groups: &[Fused<'_>],
    products: Products,
    toolchain: &dyn Toolchain,
    architecture: &str,
) -> Result<usize> {
    let all = (0..groups.len()).collect();
    let kernels = Kernels::of(graph, groups, &all, products, &[architecture])?;
    let list: Vec<&Kernel> = kernels.list.iter().collect();
    toolchain.compile(&list, architecture, &|_, _| {}).map(|codes| codes.len())
}

/// The programs of a group with its product a program of its own, without what follows: where the library has
/// the product and not what follows, the product is large, and nothing is written over that is read behind
/// it.
fn unfused_products(
    graph: &Graph,
    fused: &Fused<'_>,
    whole: &[Program],
    products: Products,
    gives: Gives,
) -> Result<Option<Vec<Program>>> {
    let is_product = |program: &&Program| matches!(program.body, Body::Product { .. });
    let refused = |program: &Program| gemm(program).is_none();
    if products == Products::Own
        || !whole.iter().filter(is_product).any(refused)
        || !in_place(graph, fused).is_empty()
    {
        return Ok(None);
    }
    let unfused = lower_unfused(graph, fused)?;
    let large =
        |program: &Program| gemm(program).is_some_and(|call| products.takes_unfused(&call.gemm, gives));
    Ok((unfused.len() > whole.len() && unfused.iter().any(large)).then_some(unfused))
}
