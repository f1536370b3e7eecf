//! Low-level arguments turned into the library's options, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::args::{Batch, ModelArgs, PlacementArgs, PrecisionArg, SplitArgs, WeightsArg};
use super::terminal::Console;
use crate::compile;
use crate::cost::Profile;
use crate::error::{Error, Result};
use crate::ir::{BlockFormat, DType};
use crate::pass::{CONTEXT, Params, Precision, WeightsAs};
use crate::place::{DeviceUse, Objective, Options};
use crate::strategy::{Until, pipeline};
use crate::topology::Topology;
use crate::units::Bytes;

/// `NAME=N` pairs. Errors: no `=`, no number, a name given twice with two values.
pub(super) fn dims(pairs: &[String]) -> Result<BTreeMap<String, i64>> {
    let mut dims = BTreeMap::new();
    for pair in pairs {
        let fault = |message: &str| Error::usage(format!("--dim {pair}"), message);
        let (name, value) = pair.rsplit_once('=').ok_or_else(|| fault("expected NAME=N"))?;
        let value: i64 = value.parse().map_err(|_| fault("expected a number after ="))?;
        if value < 0 {
            return Err(fault("a dimension is at least 0"));
        }
        if dims.insert(name.to_owned(), value).is_some_and(|before| before != value) {
            return Err(fault("this dimension is given twice"));
        }
    }
    Ok(dims)
}

/// Error: fewest bytes are asked for by name, and a pipeline too.
pub(super) fn check_pipeline(pipeline: Option<&pipeline::Options>, placement: &PlacementArgs) -> Result<()> {
    if pipeline.is_none() || placement.objective != Some(Objective::Transfer) {
        return Ok(());
    }
    Err(Error::usage("--objective transfer", "microbatches of a pipeline are laid out for time")
        .with_help("--objective latency or throughput, or leave out --microbatches"))
}

/// The options of planning a model.
pub(super) fn compile_options(shape: &ModelArgs, placement: &PlacementArgs) -> Result<compile::Options> {
    let batch = match shape.batch {
        Some(Batch::Samples(batch)) if batch < 1 => {
            return Err(Error::usage("--batch", "a batch is at least 1"));
        }
        Some(Batch::Samples(batch)) => Some(batch),
        Some(Batch::Max) | None => None,
    };
    if shape.microbatches == Some(0) {
        return Err(Error::usage("--microbatches 0", "expected at least 1"));
    }
    let mut dims = dims(&shape.dims)?;
    if let Some(&given) = dims.get("batch").filter(|given| shape.batch.is_some() && batch != Some(**given)) {
        let place = format!("--dim batch={given}");
        return Err(Error::usage(place, "--batch gives another batch").with_help("leave one of them out"));
    }
    if let Some(context) = shape.context {
        if context < 1 {
            return Err(Error::usage(format!("--context {context}"), "caches hold at least 1 token"));
        }
        dims.insert(CONTEXT.to_owned(), context);
    }
    Ok(compile::Options {
        dims,
        batch,
        pipeline: shape.microbatches.map(|count| pipeline::Options {
            microbatches: count,
            order: shape.schedule.unwrap_or_default(),
        }),
        place: place_options(placement)?,
        until: placement.until.as_deref().map(until).transpose()?,
        precision: half(shape.precision).map(|half| Precision { half, params: Params::Rounded }),
        weights_as: shape.weights_as.map(weights_as),
        profile: placement.profile.as_ref().map(Profile::load).transpose()?.map(Arc::new),
        ..compile::Options::default()
    })
}

/// How an argument says that weights are held.
pub(super) fn weights_as(asked: WeightsArg) -> WeightsAs {
    match asked {
        WeightsArg::F32 => WeightsAs::F32,
        WeightsArg::Q8 => WeightsAs::Blocks(BlockFormat::Q8_0),
        WeightsArg::Q4 => WeightsAs::Blocks(BlockFormat::Q4_0),
    }
}

/// What may be split. Errors: `none` beside a rule; a malformed rule.
pub(super) fn split_options(args: &SplitArgs) -> Result<compile::SplitOptions> {
    let given = |word: &str| args.rules.iter().any(|rule| rule == word);
    if given("none") && args.rules.len() > 1 {
        return Err(Error::usage("--split none", "beside others, it says nothing")
            .with_help("leave it out, or the others"));
    }
    let is_rule = |text: &&String| !matches!(text.as_str(), "auto" | "none");
    let parse = |text: &String| text.parse().map_err(|message: String| Error::usage("--split", message));
    let rules: Vec<compile::SplitRule> =
        args.rules.iter().filter(is_rule).map(parse).collect::<Result<_>>()?;
    let auto = given("auto") || args.rules.is_empty();
    Ok(compile::SplitOptions {
        auto,
        exact: args.exact,
        rules,
        keep_whole: args.keep_whole.clone(),
        planned: None,
    })
}

/// The rule by which each of the first devices computes a part of the batch; none for one replica. Error: there are none, or
/// fewer devices.
pub(super) fn replicas(count: u32, topology: &Topology) -> Result<Option<compile::SplitRule>> {
    let place = format!("--replicas {count}");
    let devices: Vec<String> = topology.computing().map(|id| topology.device(id).name.clone()).collect();
    match count {
        0 => Err(Error::usage(place, "at least one replica is needed")),
        1 => Ok(None),
        _ if count as usize > devices.len() => {
            let message = format!("there are {} devices that compute", devices.len());
            Err(Error::usage(place, message).with_help("a replica has a device of its own"))
        }
        _ => Ok(Some(compile::SplitRule {
            pattern: "*".to_owned(),
            axis: compile::SplitAxis::Result(0),
            parts: count,
            devices: devices.into_iter().take(count as usize).collect(),
            asked_as: Some(place),
        })),
    }
}

/// The devices as these options time their links; notes where what was measured is of other devices.
pub(super) fn with_profile(
    topology: Topology,
    options: &compile::Options,
    console: &Console,
) -> Result<Topology> {
    match &options.profile {
        Some(profile) => {
            profile.unlike(&topology).iter().for_each(|line| console.note(line));
            profile.applied(&topology)
        }
        None => Ok(topology),
    }
}

/// The type of halves that is asked for.
pub(super) const fn half(asked: PrecisionArg) -> Option<DType> {
    match asked {
        PrecisionArg::F32 => None,
        PrecisionArg::Bf16 => Some(DType::Bf16),
        PrecisionArg::F16 => Some(DType::F16),
    }
}

/// The options of a placement.
fn place_options(args: &PlacementArgs) -> Result<Options> {
    if args.threads == Some(0) {
        return Err(Error::usage("--threads", "at least one thread is needed"));
    }
    if let Some(balance) = args.balance
        && (!balance.is_finite() || balance < 0.0)
    {
        return Err(Error::usage(format!("--balance {balance}"), "expected a number of at least 0"));
    }
    let reserve = args.reserve.as_deref().map(|text| size("--reserve", text));
    Ok(Options {
        objective: args.objective.unwrap_or_default(),
        devices: device_use(&args.use_devices)?,
        pins: args.pins.iter().map(|pin| split_pin(pin)).collect::<Result<_>>()?,
        colocate: args.colocate.clone(),
        balance: args.balance,
        soft: args.soft,
        reserve: reserve.transpose()?.unwrap_or_default(),
        caps: None,
        effort: args.effort,
        enough: None,
        seed: args.seed,
        from: None,
    })
}

fn device_use(text: &str) -> Result<DeviceUse> {
    match text.parse() {
        Ok(DeviceUse::Count(0)) | Err(_) => {
            Err(Error::usage(format!("--use {text}"), "expected auto, all, or a number of at least 1"))
        }
        Ok(devices) => Ok(devices),
    }
}

/// A pattern may hold `=`: the last one splits.
fn split_pin(pin: &str) -> Result<(String, String)> {
    match pin.rsplit_once('=') {
        Some((pattern, device)) if !pattern.is_empty() && !device.is_empty() => {
            Ok((pattern.to_owned(), device.to_owned()))
        }
        _ => Err(Error::usage(format!("--pin {pin}"), "expected PATTERN=DEVICE")),
    }
}

/// A gap such as `gap<1%`.
fn until(text: &str) -> Result<Until> {
    text.parse().map_err(|message: String| Error::usage(format!("--until {text}"), message))
}

/// A size such as `64MB`.
pub(super) fn size(option: &str, text: &str) -> Result<Bytes> {
    text.parse().map_err(|why| Error::usage(format!("{option} {text}"), why))
}

/// A duration such as `30s` or `500ms`.
pub(super) fn duration(option: &str, text: &str) -> Result<std::time::Duration> {
    text.parse::<crate::units::Nanos>()
        .map(|time| std::time::Duration::from_nanos(time.get()))
        .map_err(|why| Error::usage(format!("{option} {text}"), why))
}
