//! A plan ready to run on this machine: on the CPU, or on GPUs where its devices are.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::slices::Slices;
use super::{Engines, ExecOptions, Program, RunReport, Weights, exec_plan};
use crate::error::Result;
use crate::ir::{Graph, Tensor};
use crate::kernel::Grouping;
use crate::plan::Plan;

/// What runs the GPUs that plans name; without it the CPU stands in for every device.
#[derive(Clone, Default)]
pub struct Gpus {
    #[cfg(feature = "cuda")]
    machine: Option<super::cuda::Machine>,
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.are_there() { "Gpus" } else { "no GPUs" })
    }
}

impl Gpus {
    /// This machine's.
    ///
    /// Error: there is no driver, or this was built without the feature `cuda`.
    #[cfg(feature = "cuda")]
    pub fn native() -> Result<Self> {
        super::cuda::Machine::native().map(Self::of)
    }

    /// This machine's.
    ///
    /// Error: this was built without the feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    pub fn native() -> Result<Self> {
        let report = crate::error::Report::new("", "this program was built without the feature `cuda`");
        Err(crate::error::Error::Unsupported(report.help("cargo build --features cuda, or --devices cpu")))
    }

    /// Those of a driver.
    #[cfg(feature = "cuda")]
    pub fn of(machine: super::cuda::Machine) -> Self {
        Self { machine: Some(machine) }
    }

    /// False where the CPU stands in for them.
    pub fn are_there(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.machine.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }
}

/// A program on the CPU or on GPUs.
pub struct Runner {
    backend: Backend,
    slices: Slices,
}

enum Backend {
    Cpu(Box<Program>),
    /// With devices on GPUs.
    #[cfg(feature = "cuda")]
    Gpu(Box<super::cuda::CudaProgram>),
}

/// What is done alike on either.
macro_rules! either {
    ($runner:expr, $program:ident => $what:expr) => {
        match $runner {
            Backend::Cpu($program) => $what,
            #[cfg(feature = "cuda")]
            Backend::Gpu($program) => $what,
        }
    };
}

/// A graph, and the groups that are its kernels.
#[derive(Clone, Copy)]
pub struct GroupedGraph<'a> {
    /// The graph, bound.
    pub graph: &'a Graph,
    /// Its groups.
    pub grouping: &'a Grouping,
}

impl Runner {
    /// Allocates, loads and starts. `weights` gives each parameter's data once.
    ///
    /// Errors: those of [`exec_plan`], of [`Program::new`], and of programs on GPUs.
    pub fn new(
        network: GroupedGraph<'_>,
        plan: &Plan,
        weights: Weights<'_>,
        timeout: Option<Duration>,
        gpus: &Gpus,
    ) -> Result<Self> {
        Self::beside(&Engines::default(), network, plan, weights, timeout, gpus)
    }

    /// The same, where other programs of these engines may run at the same time.
    ///
    /// Errors: those of [`Runner::new`].
    pub fn beside(
        engines: &Engines,
        GroupedGraph { graph, grouping }: GroupedGraph<'_>,
        plan: &Plan,
        weights: Weights<'_>,
        timeout: Option<Duration>,
        gpus: &Gpus,
    ) -> Result<Self> {
        let exec = exec_plan(plan, graph, grouping)?;
        let groups = grouping.all_fused();
        let slices = Slices::new(graph);
        #[cfg(feature = "cuda")]
        if let Some(machine) = &gpus.machine
            && let Some(targets) = targets(plan)
        {
            let options = super::cuda::CudaOptions { timeout, ..Default::default() };
            let made =
                super::cuda::CudaProgram::new(machine, graph, &groups, &exec, &targets, weights, &options);
            return made.map(|program| Self { backend: Backend::Gpu(Box::new(program)), slices });
        }
        #[cfg(not(feature = "cuda"))]
        let _ = gpus;
        let options = ExecOptions { timeout, engines: engines.clone(), ..ExecOptions::default() };
        let program = Program::new(graph, &groups, &exec, weights, options)?;
        Ok(Self { backend: Backend::Cpu(Box::new(program)), slices })
    }

    /// Runs one step: hands over the inputs, works through the plan, takes the outputs out.
    ///
    /// Errors: those of the programs.
    pub fn run(&mut self, inputs: &[(String, Tensor)]) -> Result<(Vec<(String, Tensor)>, RunReport)> {
        either!(&mut self.backend, program => program.run(inputs))
    }

    /// Hands over the inputs of the steps that follow.
    ///
    /// Errors: those of the programs.
    pub fn feed(&mut self, inputs: &[(String, Tensor)]) -> Result<()> {
        either!(&mut self.backend, program => program.feed(inputs))
    }

    /// Works through the plan once; how long it took.
    ///
    /// Errors: those of the programs.
    pub fn step(&mut self) -> Result<Duration> {
        either!(&mut self.backend, program => program.step())
    }

    /// As [`Runner::step`]; beside it the host makes ready what [`Runner::feed`] is given next, where GPUs work.
    ///
    /// Errors: those of the programs.
    pub fn step_beside(&mut self, next: &[(String, Tensor)]) -> Result<Duration> {
        match &mut self.backend {
            Backend::Cpu(program) => {
                let _ = next;
                program.step()
            }
            #[cfg(feature = "cuda")]
            Backend::Gpu(program) => program.step_beside(next),
        }
    }

    /// Whether [`Runner::step_beside`] does more than a step.
    pub fn stages_inputs(&self) -> bool {
        match &self.backend {
            Backend::Cpu(_) => false,
            #[cfg(feature = "cuda")]
            Backend::Gpu(_) => true,
        }
    }

    /// The outputs of the last step, but for those that take a parameter's place.
    ///
    /// Errors: those of the programs.
    pub fn outputs(&self) -> Result<Vec<(String, Tensor)>> {
        either!(&self.backend, program => program.outputs())
    }

    /// A parameter as it is now, by the network's name of it; none where the plan holds none of that name, or only
    /// some slices.
    ///
    /// Errors: those of the programs.
    pub fn param(&self, name: &str) -> Result<Option<Tensor>> {
        self.slices.joined(name, |own| either!(&self.backend, program => program.param(own)))
    }

    /// Names of the parameters that the plan holds, whole or in slices, in the order of the graph.
    pub fn params(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        let own: Box<dyn Iterator<Item = &str> + '_> =
            either!(&self.backend, program => Box::new(program.params()));
        let mut known = BTreeSet::new();
        Box::new(own.map(|name| self.slices.whole_of(name)).filter(move |&name| known.insert(name)))
    }

    /// Puts a parameter's value wherever the plan holds it or a slice of it, for the steps that follow.
    ///
    /// Errors: those of the programs.
    pub fn set_param(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let Some(slices) = self.slices.cut(name, value) else {
            return either!(&mut self.backend, program => program.set_param(name, value));
        };
        let whole = self.slices.is_whole_too(name).then(|| (name, value.clone()));
        for (own, value) in whole.into_iter().chain(slices?) {
            either!(&mut self.backend, program => program.set_param(own, &value))?;
        }
        Ok(())
    }

    /// What the last step did; `wall` is how long it took.
    pub fn report(&self, wall: Duration) -> RunReport {
        either!(&self.backend, program => program.report(wall))
    }
}

/// What each device of a plan is; none where none that does something is a GPU.
#[cfg(feature = "cuda")]
fn targets(plan: &Plan) -> Option<Vec<super::cuda::Target>> {
    use super::cuda::Target;
    use crate::topology::Target as Planned;
    let gpu = |device: &crate::plan::PlanDevice| match device.target.parse() {
        Ok(Planned::Cuda(ordinal)) if device.arena.get() > 0 => Some(ordinal),
        _ => None,
    };
    let target = |device: &crate::plan::PlanDevice| gpu(device).map_or(Target::Cpu, Target::Gpu);
    let targets: Vec<Target> = plan.devices.iter().map(target).collect();
    targets.iter().any(|target| *target != Target::Cpu).then_some(targets)
}
