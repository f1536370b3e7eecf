//! `partition run --calibrate`: measures this machine, or one model's kernels, into a profile.

use super::args::RunArgs;
use super::arrays::UserArrays;
use super::machine::check_targets;
use super::modes::{Explicit, check_run};
use super::run::{Request, RunFiles, Source as Planned, destinations, init_seed};
use super::terminal::{Console, write_stdout};
use super::weights::{Missing, weight};
use crate::calibrate::{self, Source};
use crate::compile::Network;
use crate::cost::Profile;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::run::Gpus;

pub(super) fn calibrate(args: &RunArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    let profile = {
        let _working = console.working("measuring");
        match &args.model {
            Some(_) => of_model(Planned::open(args, explicit)?, args, console)?,
            None => {
                check_run(args, explicit, false)?;
                destinations(args)?;
                calibrate::machine()?
            }
        }
    };
    match &args.output {
        Some(path) => write_atomically(path, profile.to_json().as_bytes()),
        None => write_stdout(profile.to_json().as_bytes()),
    }
}

/// The kernels of a model, or of a plan. What has no data is made up.
fn of_model(planned: Planned, args: &RunArgs, console: &Console) -> Result<Profile> {
    let seed = args.exec.init.as_deref().map(init_seed).transpose()?.unwrap_or(0);
    if planned.is_plan {
        let (arrays, (plan, network)) = planned.planned(args, Missing::MadeUp, console)?;
        check_targets(&plan, &args.map, &Gpus::default())?;
        if plan.options.microbatches.is_some() {
            return Err(Error::usage("--calibrate", "a plan with microbatches is not measured")
                .with_help("calibrate with a plan of the same model without --microbatches"));
        }
        return calibrate::plan(&plan, &network, &Files { arrays: &arrays, seed });
    }
    if args.shape.microbatches.is_some() {
        return Err(Error::usage("--calibrate", "kernels are measured without --microbatches")
            .with_help("with --batch at the size of one microbatch they are the same"));
    }
    let Planned { arrays, file, destinations, .. } = planned;
    let name = file.name();
    let files = RunFiles { arrays: &arrays, written: &destinations };
    let Request { graph, topology, options } = Request::new(file, args, files, Missing::MadeUp, console)?;
    let source = Files { arrays: &arrays, seed };
    calibrate::network(graph, &topology, &options, &source).map_err(|error| error.within(&name))
}

/// Data from the files given, made up where they have none.
struct Files<'a> {
    arrays: &'a UserArrays,
    seed: u64,
}

impl Source for Files<'_> {
    fn inputs(&self, network: &Network) -> Result<Vec<(String, Tensor)>> {
        let whole = network.graph.callers_ports();
        let graph = whole.as_ref().unwrap_or(&network.graph);
        let types: Vec<_> = (0..graph.inputs().len()).map(|number| graph.input_type(number)).collect();
        self.arrays.inputs(graph, &types, Some(self.seed))
    }

    fn weight(&self, network: &Network, param: ParamId, reader: &mut ParamReader) -> Result<Tensor> {
        weight(&network.graph, param, reader, Some(self.seed))
    }
}
