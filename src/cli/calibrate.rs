//! `partition run --calibrate`: measures this machine, or one model's kernels, into a profile.

use super::args::RunArgs;
use super::machine::check_targets;
use super::model::ModelFile;
use super::run::{Given, Request, from_plan, init_seed, weight};
use super::terminal::{Console, write_stdout};
use crate::calibrate::{self, Source};
use crate::compile::Network;
use crate::cost::Profile;
use crate::error::{Error, Result};
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::plan::{Plan, write_atomically};
use crate::run::Gpus;

pub(super) fn calibrate(args: &RunArgs, console: &Console) -> Result<()> {
    let profile = {
        let _working = console.working("measuring");
        match &args.model {
            Some(path) => of_model(&ModelFile::read(path)?, args)?,
            None => calibrate::machine()?,
        }
    };
    match &args.output {
        Some(path) => write_atomically(path, profile.to_json().as_bytes()),
        None => write_stdout(profile.to_json().as_bytes()),
    }
}

/// The kernels of a model, or of a plan. What has no data is made up.
fn of_model(file: &ModelFile, args: &RunArgs) -> Result<Profile> {
    let seed = args.exec.init.as_deref().map(init_seed).transpose()?.unwrap_or(0);
    let given = Given::open(args)?;
    let source = Files { given: &given, seed };
    if Plan::is_json(&file.bytes) {
        let (plan, network) = from_plan(file, args, &given, true)?;
        check_targets(&plan, &args.map, &Gpus::default())?;
        if plan.options.microbatches.is_some() {
            return Err(Error::usage("--calibrate", "a plan with microbatches is not measured")
                .with_help("calibrate with a plan of the same model without --microbatches"));
        }
        return calibrate::plan(&plan, &network, &source);
    }
    if args.shape.microbatches.is_some() {
        return Err(Error::usage("--calibrate", "kernels are measured without --microbatches")
            .with_help("with --batch at the size of one microbatch they are the same"));
    }
    let Request { graph, topology, options } = Request::new(file, args, &given, true)?;
    calibrate::network(graph, &topology, &options, &source).map_err(|error| error.within(&file.name()))
}

/// Data from the files given, made up where they have none.
struct Files<'a> {
    given: &'a Given,
    seed: u64,
}

impl Source for Files<'_> {
    fn inputs(&self, network: &Network) -> Result<Vec<(String, Tensor)>> {
        let graph = &network.graph;
        let types: Vec<_> = graph.inputs().iter().map(|(_, value)| graph.ty(*value).clone()).collect();
        self.given.inputs(graph, &types, Some(self.seed))
    }

    fn weight(&self, network: &Network, param: ParamId, reader: &mut ParamReader) -> Result<Tensor> {
        weight(&network.graph, param, reader, Some(self.seed))
    }
}
