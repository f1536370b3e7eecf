//! Several independent networks side by side, one on each device.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::control::Control;
use crate::data::Source;
use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};
use crate::topology::Topology;
use crate::train::epochs::fit::{Epoch, Event, Fit, fit};
use crate::train::epochs::trainer::Trainer;
use crate::train::optimize::Updates;
use crate::train::optimize::rate::Rate;
use crate::train::options::Options;
use crate::train::step::loss::Loss;

/// What is different for one member: `2:lr=0.1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Which member, counted from 1.
    pub member: usize,
    /// What.
    pub change: Change,
}

/// A setting of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Of its initial weights and of the order of its records.
    Seed(u64),
    /// Its learning rate.
    Rate(f64),
    /// How its learning rate goes over the steps.
    Schedule(String),
    /// Its optimizer.
    Optimizer(Updates),
    /// Its loss.
    Loss(Loss),
}

impl FromStr for Override {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fault = |message: &str| {
            Error::usage(format!("--member {text}"), message)
                .with_help("N:seed=, N:lr=, N:lr-schedule=, N:optimizer= or N:loss=")
        };
        let (member, change) = text.split_once(':').ok_or_else(|| fault("expected N:KEY=VALUE"))?;
        let (key, value) = change.split_once('=').ok_or_else(|| fault("expected N:KEY=VALUE"))?;
        let member = member.parse().map_err(|_| fault("expected the number of a member"))?;
        let change = match key {
            "seed" => Change::Seed(value.parse().map_err(|_| fault("expected a number"))?),
            "lr" => {
                let rate: f64 = value.parse().map_err(|_| fault("expected a number"))?;
                if !rate.is_finite() || rate < 0.0 {
                    return Err(fault("expected a number of 0 or more"));
                }
                Change::Rate(rate)
            }
            "lr-schedule" => {
                Rate::parse(0.0, value)?;
                Change::Schedule(value.to_owned())
            }
            "optimizer" => Change::Optimizer(value.parse()?),
            "loss" => Change::Loss(value.parse()?),
            _ => return Err(fault("there is no such setting")),
        };
        Ok(Self { member, change })
    }
}

/// One network of an ensemble: its options, and the device that all of it is on.
#[derive(Clone, Debug)]
pub struct Member {
    /// Counted from 1.
    pub number: usize,
    /// Its device.
    pub device: String,
    /// How it is trained.
    pub options: Options,
}

/// The members of an ensemble: each on a device of its own, in the specification's order, with a seed
/// of its own (that of `options` and the next ones), but for what `overrides` say.
///
/// Errors: none or more members than devices; an override of a member that does not exist.
pub fn members(
    count: usize,
    topology: &Topology,
    options: &Options,
    schedule: &str,
    overrides: &[Override],
) -> Result<Vec<Member>> {
    if count == 0 || count > topology.len() {
        let message = format!("there are {} devices", topology.len());
        return Err(Error::usage(format!("--ensemble {count}"), message)
            .with_help("--devices with one for each member"));
    }
    if let Some(wrong) = overrides.iter().find(|one| one.member == 0 || one.member > count) {
        let message = format!("there are members 1 to {count}");
        return Err(Error::usage(format!("--member {}", wrong.member), message));
    }
    let member = |(at, device): (usize, &crate::topology::Device)| {
        let mut own = options.clone();
        own.seed = options.seed.wrapping_add(at as u64);
        own.replicas = None;
        own.compile.place.pins.push(("*".to_owned(), device.name.clone()));
        let mut schedule = schedule;
        for one in overrides.iter().filter(|one| one.member == at + 1) {
            match &one.change {
                Change::Seed(seed) => own.seed = *seed,
                Change::Rate(rate) => own.rate.base = *rate,
                Change::Schedule(text) => schedule = text,
                Change::Optimizer(updates) => own.recipe.updates = *updates,
                Change::Loss(loss) => own.recipe.loss = *loss,
            }
        }
        own.rate = Rate::parse(own.rate.base, schedule)?;
        Ok(Member { number: at + 1, device: device.name.clone(), options: own })
    };
    topology.devices.iter().take(count).enumerate().map(member).collect()
}

/// What a member came to.
#[derive(Debug)]
pub struct Trained {
    /// Each of its epochs.
    pub history: Vec<Epoch>,
    /// Its parameters.
    pub weights: Vec<(String, Tensor)>,
    /// Which of these are complex numbers.
    pub complex: BTreeSet<String>,
}

/// Trains all members at once, each in a thread of its own; what each came to, in their order. A
/// member that fails does not end the others. `source` opens the records of a member, `fitting` says how
/// it is trained and may first restore it from a checkpoint of its own, `on_event` hears what happens to which.
pub fn ensemble<'f>(
    members: &[Member],
    graph: &Graph,
    topology: &Topology,
    source: &(dyn Fn(&Trainer) -> Result<Source> + Sync),
    fitting: &(dyn Fn(&Member, &mut Trainer) -> Result<Fit<'f>> + Sync),
    on_event: &(dyn Fn(&Member, &Event<'_>) + Sync),
) -> Vec<Result<Trained>> {
    let one = |member: &Member| -> Result<Trained> {
        let control = Control::new();
        let mut trainer = Trainer::with(graph.clone(), topology, &member.options, &control)?;
        let source = source(&trainer)?;
        let fitting = fitting(member, &mut trainer)?;
        let history = fit(&mut trainer, &source, &fitting, &mut |event: Event<'_>| on_event(member, &event))?;
        Ok(Trained { history, weights: trainer.state()?, complex: trainer.complex().clone() })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || one(member))).collect();
        let panicked = |_| Err(Error::Internal("a member's thread panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}
