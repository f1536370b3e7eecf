//! What a plan runs on: devices of this machine for those of the plan, and the program that runs there.

use serde::Serialize;

use super::args::{Backend, RunArgs};
use super::options::duration;
use super::terminal::Console;
use super::weights::weight;
use crate::compile::Network;
use crate::error::{Error, Report, Result};
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::plan::{self, Plan};
use crate::report::counted;
use crate::run::{ExecOptions, ExecPlan, Gpus, Program, RunReport, exec_plan, probe};
use crate::topology::{Engine, Target, Topology};
use crate::units::Bytes;

/// A device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Real {
    Cpu,
    Gpu(u32),
}

impl Real {
    fn parse(text: &str) -> Option<Self> {
        match text.parse().ok()? {
            Target::Cpu(_) => Some(Self::Cpu),
            Target::Cuda(ordinal) => Some(Self::Gpu(ordinal)),
            Target::Model(_) => None,
        }
    }
}

/// What each device of a plan is on this machine; the CPU where a device has nothing to do.
///
/// Errors: a map that is malformed or names no device; a device that is none of this machine's, or none
/// of the CPU where the backend is the CPU, and is mapped to none; no GPU where the backend is CUDA.
pub(super) fn targets(plan: &Plan, map: &[String], backend: Backend) -> Result<Vec<Real>> {
    let mut mapped: Vec<(&str, Real)> = Vec::new();
    for pair in map {
        let fault = |message: &str| Error::usage(format!("--map {pair}"), message);
        let (planned, real) = pair.rsplit_once('=').ok_or_else(|| fault("expected PLANNED=REAL"))?;
        if !plan.devices.iter().any(|device| covers(planned, &device.name)) {
            let names: Vec<&str> = plan.devices.iter().take(8).map(|device| device.name.as_str()).collect();
            let help = format!("its devices: {}", names.join(", "));
            return Err(fault("the plan has no such device").with_help(help));
        }
        let real =
            Real::parse(real).ok_or_else(|| fault("expected a real device such as cpu:0 or cuda:0"))?;
        if backend == Backend::Cpu && real != Real::Cpu {
            return Err(fault("this runs on the CPU alone: map to cpu:0"));
        }
        mapped.push((planned, real));
    }
    let mut missing: Vec<&plan::PlanDevice> = Vec::new();
    let real = plan.devices.iter().map(|device| {
        let own = mapped.iter().rev().find(|(planned, _)| covers(planned, &device.name));
        let real = own.map(|(_, real)| *real).or_else(|| Real::parse(&device.target));
        match real {
            _ if device.arena.get() == 0 => Real::Cpu,
            Some(real) if backend != Backend::Cpu || real == Real::Cpu => real,
            _ => {
                missing.push(device);
                Real::Cpu
            }
        }
    });
    let real: Vec<Real> = real.collect();
    if let Some(first) = missing.first() {
        let physical = first.name.split('.').next().unwrap_or(&first.name);
        let message =
            format!("device {} of the plan is {}, which cannot be run here", first.name, first.target);
        let details = missing.iter().map(|device| format!("{} is {}", device.name, device.target)).collect();
        let help = format!("--map {physical}=cpu:0 runs it on the CPU");
        return Err(Error::Run(Report::new("", message).help(help).details(details)));
    }
    if backend == Backend::Cuda && !real.iter().any(|real| matches!(real, Real::Gpu(_))) {
        let error = Error::usage("--backend cuda", "no device of the plan is a GPU");
        return Err(error.with_help("--devices cuda, or --map cpu0=cuda:0"));
    }
    Ok(real)
}

/// Error: a device of the plan that does something is not the CPU, and mapped to none of it; nor a GPU, where there
/// are some.
pub(super) fn check_targets(plan: &Plan, map: &[String], gpus: &Gpus) -> Result<()> {
    let backend = if gpus.are_there() { Backend::Auto } else { Backend::Cpu };
    targets(plan, map, backend).map(|_| ())
}

/// The devices to run on: those of the specification, else the CPU, or the GPU where the backend asks for it. A
/// `cuda` of which the specification does not say the memory has what the GPU of this machine has.
///
/// Errors: those of a specification; such a `cuda` where there is no GPU.
pub(super) fn topology(spec: Option<&str>, backend: Backend) -> Result<Topology> {
    let spec = spec.unwrap_or(if backend == Backend::Cuda { Engine::CUDA } else { Engine::CPU });
    Topology::load_with(spec, &mut memory_of_gpu)
}

/// The memory of a GPU of this machine that other programs leave.
fn memory_of_gpu(ordinal: usize) -> Result<Bytes> {
    let found = probe::probe();
    if let Some(gpu) = found.gpus.get(ordinal) {
        return Ok(gpu.memory);
    }
    let why = if found.notes.is_empty() { String::new() } else { format!(": {}", found.notes.join("; ")) };
    let message = match found.gpus.len() {
        0 => format!("no GPU is found here{why}"),
        count => format!("cuda{ordinal} is asked for, and {} found here", counted(count, "GPU")),
    };
    Err(Error::run("--devices", message).with_help(
        "--devices cpu runs here; partition MODEL --devices cuda:memory=16GB plans for a GPU elsewhere",
    ))
}

/// Error: devices on several hosts, where this process is one of them and does not stand for the others.
pub(super) fn check_hosts(topology: &Topology, simulated: bool) -> Result<()> {
    if topology.hosts.len() <= 1 || simulated {
        return Ok(());
    }
    let names: Vec<&str> = topology.hosts.iter().map(String::as_str).collect();
    let message =
        format!("they are on {} hosts ({}), and this program is on one", names.len(), names.join(", "));
    Err(Error::usage("--devices", message)
        .with_help("--simulate-hosts runs all of them here, or name devices of one host"))
}

/// This machine's GPUs, where devices are to be on them.
///
/// Error: there is no driver.
pub(super) fn gpus(topology: &Topology) -> Result<Gpus> {
    match topology.devices.iter().any(|device| matches!(device.target, Target::Cuda(_))) {
        true => Gpus::native().map_err(|error| error.with_help("--devices cpu, cut into as many slices")),
        false => Ok(Gpus::default()),
    }
}

/// Whether a name in a map means this device: itself, or the physical one that it is a slice of.
fn covers(planned: &str, device: &str) -> bool {
    device == planned || device.strip_prefix(planned).is_some_and(|rest| rest.starts_with('.'))
}

/// A plan that is ready to run.
pub(super) enum Ready {
    Cpu(Box<Program>),
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::run::cuda::CudaProgram>),
}

impl Ready {
    /// Allocates and loads.
    ///
    /// Errors: those of the programs; parameters without data and no seed to make them up.
    pub(super) fn new(
        plan: &Plan,
        network: &Network,
        targets: &[Real],
        args: &RunArgs,
        seed: Option<u64>,
        console: &Console,
    ) -> Result<Self> {
        let exec = exec_plan(plan, &network.graph, &network.grouping)?;
        let reader = std::cell::RefCell::new(ParamReader::new());
        let weights = |param: ParamId| weight(&network.graph, param, &mut reader.borrow_mut(), seed);
        if targets.iter().any(|real| matches!(real, Real::Gpu(_))) {
            return cuda(network, &exec, targets, &weights, args, console);
        }
        let timeout = args.exec.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
        let options = ExecOptions { timeout, ..ExecOptions::default() };
        let groups = network.grouping.all_fused();
        Program::new(&network.graph, &groups, &exec, &weights, options)
            .map(|program| Self::Cpu(Box::new(program)))
    }

    /// One step on these inputs, and what it did; `again` on the same as before.
    pub(super) fn step(&mut self, inputs: &[(String, Tensor)], again: bool) -> Result<RunReport> {
        match self {
            Self::Cpu(program) => {
                if again {
                    program.feed_again(inputs)?;
                } else {
                    program.feed(inputs)?;
                }
                program.step().map(|wall| program.report(wall))
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(program) => {
                program.feed(inputs)?;
                program.step().map(|wall| program.report(wall))
            }
        }
    }

    /// The outputs of the last step.
    pub(super) fn outputs(&self) -> Result<Vec<(String, Tensor)>> {
        match self {
            Self::Cpu(program) => program.outputs(),
            #[cfg(feature = "cuda")]
            Self::Cuda(program) => program.outputs(),
        }
    }

    /// The time of a step by the GPUs' clock, of so many in a row, which come after all that was asked for; none
    /// without a GPU.
    ///
    /// Errors: a step's.
    pub(super) fn clocked(&mut self, count: u32) -> Result<Option<std::time::Duration>> {
        match self {
            Self::Cpu(_) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(program) => program.clocked(count).map(Some),
        }
    }

    /// What the library of products does in each step; none where it is not asked.
    pub(super) fn products(&self) -> Option<Products> {
        match self {
            Self::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(program) => {
                let products = program.products().iter().map(|one| Product {
                    product: format!("{} on {}", one.gemm, one.gpu),
                    calls: one.calls,
                    refused: one.refused,
                    flops: one.gemm.flops(),
                });
                let products: Vec<Product> = products.collect();
                let (library, declined) = (program.library().map(str::to_owned), program.declined());
                (!products.is_empty() || declined > 0).then_some(Products { library, products, declined })
            }
        }
    }
}

/// What a library of products does in each step.
pub(super) struct Products {
    /// Its name and version; none where it is not there.
    pub(super) library: Option<String>,
    pub(super) products: Vec<Product>,
    /// How many it was asked for and does not compute.
    pub(super) declined: usize,
}

impl Products {
    /// What is to be told of products that the library does not compute.
    pub(super) fn note(&self) -> Option<String> {
        let products = counted(self.declined, "product");
        match (&self.library, self.declined) {
            (_, 0) => None,
            (None, _) => Some(format!(
                "cuBLASLt was not found: {products} of it are computed by this program's own kernels, which are slower \
                 (put its folder into LD_LIBRARY_PATH)"
            )),
            (Some(library), _) => {
                Some(format!("{library} computes none of {products}; this program's own kernels do"))
            }
        }
    }
}

/// A product that a library computes.
#[derive(Serialize)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code))]
pub(super) struct Product {
    /// What it is.
    pub(super) product: String,
    /// How often a step computes it.
    pub(super) calls: usize,
    /// How many of the library's ways it refused before the one that is taken.
    pub(super) refused: usize,
    /// Of one.
    pub(super) flops: u64,
}

/// A program on GPUs.
#[cfg(feature = "cuda")]
fn cuda(
    network: &Network,
    exec: &ExecPlan,
    targets: &[Real],
    weights: crate::run::Weights<'_>,
    args: &RunArgs,
    console: &Console,
) -> Result<Ready> {
    use crate::run::cuda::{CudaOptions, CudaProgram, Machine, Target};
    let machine = Machine::native()?;
    let target = |real: &Real| match real {
        Real::Cpu => Target::Cpu,
        Real::Gpu(gpu) => Target::Gpu(*gpu),
    };
    let targets: Vec<Target> = targets.iter().map(target).collect();
    let working = console.working("compiling kernels");
    let options = CudaOptions {
        timeout: args.exec.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?,
        timed: args.stats || args.trace.is_some(),
        progress: &|done, all| working.show(&format!("compiling kernels: {done} of {all}")),
        ..CudaOptions::default()
    };
    let groups = network.grouping.all_fused();
    let program = CudaProgram::new(&machine, &network.graph, &groups, exec, &targets, weights, &options)?;
    Ok(Ready::Cuda(Box::new(program)))
}

#[cfg(not(feature = "cuda"))]
fn cuda(
    _: &Network,
    _: &ExecPlan,
    _: &[Real],
    _: crate::run::Weights<'_>,
    _: &RunArgs,
    _: &Console,
) -> Result<Ready> {
    let report = Report::new("--backend cuda", "this program was built without the feature `cuda`");
    Err(Error::Unsupported(report.help("cargo build --features cuda, or --map cuda0=cpu:0")))
}

#[cfg(test)]
mod tests {
    use super::Products;

    #[test]
    fn a_library_that_is_missing_is_told() {
        let note = |library: Option<&str>, declined| {
            Products { library: library.map(str::to_owned), products: vec![], declined }.note()
        };
        assert_eq!(note(Some("cuBLASLt 130100"), 0), None);
        assert!(note(None, 3).unwrap().starts_with("cuBLASLt was not found: 3 products of it"));
        assert!(note(Some("cuBLASLt 130100"), 1).unwrap().contains("none of 1 product"));
    }
}
