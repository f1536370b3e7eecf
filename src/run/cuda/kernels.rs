//! The kernels of a plan's groups: each source once, compiled for each architecture, loaded on each GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::Function;
use super::program::{Machine, Products};
use super::resources::Resources;
use crate::emit::{self, Kernel};
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::kernel::Fused;
use crate::kernel::program::{GemmCall, Place, gemm, lower};

/// One launch of a group.
pub(super) struct Part {
    /// Position in [`Kernels::list`].
    pub(super) kernel: usize,
    /// Whose bytes each argument is.
    pub(super) args: Vec<Place>,
    /// The same as a product of the library, where it has one as good.
    pub(super) product: Option<GemmCall>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Kernels {
    pub(super) list: Vec<Kernel>,
    /// By group.
    pub(super) groups: BTreeMap<usize, Vec<Part>>,
    /// By GPU: a function for each kernel.
    functions: BTreeMap<u32, Vec<Function>>,
}

impl Kernels {
    /// The kernels of groups.
    ///
    /// Errors: those of lowering and printing, with the group's node.
    pub(super) fn of(
        graph: &Graph,
        groups: &[Fused<'_>],
        needed: &BTreeSet<usize>,
        products: Products,
    ) -> Result<Self> {
        let mut kernels = Self::default();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for &group in needed {
            let fused = &groups[group];
            let name = fused.nodes.last().map_or("", |&node| &graph.source(graph.node(node).source).name);
            let within = |error: Error| error.within(&format!("node {name}"));
            let mut parts = Vec::new();
            for program in lower(graph, fused).map_err(within)? {
                let Some(kernel) = emit::kernel(&program).map_err(within)? else { continue };
                let next = known.len();
                let position = *known.entry(kernel.text.clone()).or_insert(next);
                let args = kernel.args.iter().map(|arg| arg.place).collect();
                if position == kernels.list.len() {
                    kernels.list.push(kernel);
                }
                let product = gemm(&program).filter(|call| products.take(&call.gemm));
                parts.push(Part { kernel: position, args, product });
            }
            kernels.groups.insert(group, parts);
        }
        Ok(kernels)
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
