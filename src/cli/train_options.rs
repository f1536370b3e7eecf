//! The arguments of `partition train` as the library's options.

use super::args::WeightsArg;
use super::model::ModelFile;
use super::options::{check_pipeline, compile_options, duration, size, split_options};
use super::run::init_seed;
use super::train_args::{SpreadArgs, TrainArgs};
use crate::data::{self, OnBad, Order, Source};
use crate::error::{Error, Result};
use crate::state::{Goal, Keep, Store};
use crate::train::{self, Async, Fit, Parallel, Rate, Replicas};

/// Updates by others that a gradient outlives unless said.
const STALENESS: u64 = 4;

/// How a network is trained, and laid over devices.
pub(super) fn options(args: &TrainArgs, file: &ModelFile) -> Result<train::Options> {
    if !args.lr.is_finite() || args.lr < 0.0 {
        return Err(Error::usage(format!("--lr {}", args.lr), "expected a number of 0 or more"));
    }
    check_spread(&args.spread)?;
    let mut options = train::Options::new(args.loss.parse()?);
    options.recipe.updates = args.optimizer.parse()?;
    options.recipe.freeze.clone_from(&args.freeze);
    options.recipe.scaling = args.loss_scale.as_deref().map(str::parse).transpose()?;
    options.recipe.outputs = !args.metrics.is_empty();
    options.rate = Rate::parse(args.lr, &args.lr_schedule)?;
    options.seed = args.exec.init.as_deref().map_or(Ok(args.placement.seed), init_seed)?;
    match args.spread.replicas {
        Some(workers) if args.spread.sync == "async" => {
            let SpreadArgs { staleness, stale, warm_up, .. } = &args.spread;
            options.asynchronous = Some(Async {
                workers,
                staleness: staleness.unwrap_or(STALENESS),
                stale: stale.as_deref().unwrap_or("drop").parse()?,
                warm_up: warm_up.unwrap_or(0),
            });
        }
        Some(count) => options.replicas = Some(replicas(&args.spread, count)?),
        None => {}
    }
    options.timeout = args.exec.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
    options.check_numerics = args.check_numerics;
    if let Some(WeightsArg::Q8 | WeightsArg::Q4) = args.shape.weights_as {
        let message = "weights are trained, and written, as numbers of their own type";
        return Err(Error::usage("--weights-as", message).with_help("run and generate pack what was trained"));
    }
    options.compile = compile_options(&args.shape, &args.placement)?;
    options.compile.split = split_options(&args.split)?;
    // Whole layers leave nothing to divide.
    options.split = !options.compile.split.rules.is_empty();
    let pipeline = options.compile.pipeline.take();
    match args.shape.schedule {
        Some(_) => options.pipeline = pipeline,
        None => options.recipe.updates.microbatches = args.shape.microbatches.unwrap_or(1),
    }
    check_pipeline(options.pipeline.as_ref(), &args.placement)?;
    options.compile.model_hash = file.hash();
    options.compile.model_path = file.path.as_ref().map(|path| path.display().to_string());
    Ok(options)
}

/// Error: an argument that nothing would heed.
fn check_spread(args: &SpreadArgs) -> Result<()> {
    let exchanged = [
        ("--shards", args.shards.is_some()),
        ("--exchange", args.exchange.is_some()),
        ("--transfer", args.transfer.is_some()),
        ("--bucket", args.bucket.is_some()),
    ];
    let together = [
        ("--devices-each", args.devices_each != 1),
        ("--spare", args.spare > 0),
        ("--zero", args.zero != "0"),
    ];
    let apart = [
        ("--staleness", args.staleness.is_some()),
        ("--stale", args.stale.is_some()),
        ("--warm-up", args.warm_up.is_some()),
    ];
    let first =
        |given: &[(&'static str, bool)]| given.iter().find(|(_, given)| *given).map(|&(name, _)| name);
    let waits = args.sync != "async";
    let way: Option<Parallel> = args.parallel.as_deref().map(str::parse).transpose()?;
    let has_replicas = args.replicas.is_some() || way.is_some_and(Parallel::may_have_replicas);
    let (name, message, help) = if let Some(name) = first(&exchanged).filter(|_| !has_replicas) {
        (name, "there are no replicas, which alone exchange gradients", "--replicas N or --parallel data")
    } else if let Some(name) = first(&apart).filter(|_| waits) {
        (name, "replicas that wait for one another have no stale gradients", "--sync async")
    } else if let Some(name) = first(&exchanged).or_else(|| first(&together)).filter(|_| !waits) {
        (name, "with --sync async nobody waits for anybody", "--sync allreduce")
    } else {
        return Ok(());
    };
    Err(Error::usage(name, message).with_help(help))
}

/// Replicas as the arguments ask for them.
pub(super) fn replicas(args: &SpreadArgs, count: usize) -> Result<Replicas> {
    Ok(Replicas {
        count,
        each: args.devices_each,
        spare: args.spare,
        shards: args.shards.unwrap_or(count),
        sync: args.sync.parse()?,
        exchange: args.exchange.as_deref().unwrap_or("auto").parse()?,
        transfer: args.transfer.as_deref().unwrap_or("own").parse()?,
        zero: args.zero.parse()?,
        bucket: args.bucket.as_deref().map(|text| size("--bucket", text)).transpose()?.map(|size| size.get()),
    })
}

/// Whether losses of other records are measured.
pub(super) fn validated(args: &TrainArgs) -> bool {
    args.data.validation_data.is_some() || args.data.validation_split > 0.0
}

/// Which checkpoints are kept.
pub(super) fn keep(args: &TrainArgs) -> Keep {
    let watched = if validated(args) { "val_loss" } else { "loss" };
    Keep { best: Some((watched.to_owned(), Goal::Less)), ..Keep::default() }
}

/// How the arguments ask to train; `seed` draws the order of the records.
pub(super) fn fitting<'a>(
    args: &TrainArgs,
    validation: Option<&'a Source>,
    store: Option<&'a Store>,
    seed: u64,
) -> Result<Fit<'a>> {
    let split = args.data.validation_split;
    if !(0.0..1.0).contains(&split) {
        return Err(Error::usage(format!("--validation-split {split}"), "expected a share from 0 to 1"));
    }
    let order = match args.data.in_order {
        true => Order::Fifo,
        false => Order::Shuffle { seed, window: args.data.shuffle_window },
    };
    let on_bad = if args.data.on_bad_record == "skip" { OnBad::Skip } else { OnBad::Fail };
    let threads = args.data.readers.unwrap_or_else(data::usual_threads);
    let data = data::Options { order, on_bad, threads, ..data::Options::default() };
    Ok(Fit {
        epochs: args.epochs,
        steps: args.steps,
        data,
        validation_split: split,
        validation,
        drop_remainder: args.data.drop_remainder,
        metrics: args.metrics.iter().map(|metric| metric.parse()).collect::<Result<_>>()?,
        patience: args.patience,
        store,
        policy: args.checkpoint_every.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        limit: args.run_limit.as_deref().map(|text| duration("--run-limit", text)).transpose()?,
        ..Fit::default()
    })
}
