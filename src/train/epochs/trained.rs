//! What a trainer holds, by the network's own names, however replicas and parts hold it: read, saved,
//! restored.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::data::Position;
use crate::error::{Error, Result};
use crate::ir::{ParamId, Tensor};
use crate::load::weights::ParamReader;
use crate::state::Checkpoint;
use crate::train::epochs::trainer::Trainer;
use crate::train::optimize::{SLOTS, Scalar};
use crate::train::plan::{cut, initial};
use crate::train::spread::names::{base_name, part_name, part_of};
use crate::train::spread::spares::is_count;
use crate::train::spread::turns::Workers;
use crate::train::step::scaling::{FACTOR, GOOD, SKIPPED};

impl Trainer {
    /// The network's parameters as they are now, by name, in the network's order.
    ///
    /// Errors: none but internal ones.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = self.arrays(|name| self.own.contains(name))?;
        // Looked up, never iterated.
        let places: HashMap<&str, usize> =
            self.forward.params().iter().map(|param| param.name.as_str()).zip(0..).collect();
        arrays.sort_by_key(|(name, _)| places.get(name.as_str()).copied());
        Ok(arrays)
    }

    /// As [`Trainer::weights`], but what the network's source holds: tied parameters under each of their names there, and what
    /// no node reads, or the loss does not follow from, as it is in the file, or as it is made up.
    ///
    /// Errors: the file cannot be read any more.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let mut reader = ParamReader::new();
        let mut arrays = self.weights()?;
        let held: BTreeSet<String> = arrays.iter().map(|(name, _)| name.clone()).collect();
        for (id, param) in (0..).map(ParamId).zip(self.forward.params()) {
            if !held.contains(&param.name) {
                let tensor = initial(&self.forward, id, &mut reader, self.seed)?;
                arrays.push((param.name.clone(), tensor));
            }
        }
        reader.with_beside(&self.forward, &arrays)
    }

    /// The names of complex numbers among [`Trainer::state`], whose last axis, of 2, has both parts of each.
    pub fn complex(&self) -> &BTreeSet<String> {
        &self.forward.rules().arrays.complex
    }

    pub(crate) fn arrays(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let mut arrays = Vec::new();
        let others = self.workers.iter().flat_map(Workers::names);
        let mut known = BTreeSet::new();
        for part in self.program.params().chain(others).filter(|name| known.insert(name.to_owned())) {
            let (name, count) = match part_of(part) {
                Some((0, count, name)) => (name, count),
                Some(_) => continue,
                None => (part, 1),
            };
            if !wanted(name) {
                continue;
            }
            let found = if name == part { self.param(part)? } else { Some(self.joined(name, count)?) };
            arrays.extend(found.map(|tensor| (name.to_owned(), tensor)));
        }
        Ok(arrays)
    }

    /// A parameter by its own name, however it is held.
    pub(crate) fn param(&self, name: &str) -> Result<Option<Tensor>> {
        if let Some(tensor) = self.program.param(name)? {
            return Ok(Some(tensor));
        }
        let mut parts = self.program.params().filter_map(part_of);
        let found = parts.find(|&(number, _, whole)| number == 0 && whole == name);
        match (found, &self.workers) {
            (Some((_, count, whole)), _) => self.joined(whole, count).map(Some),
            (None, Some(workers)) => workers.param(name),
            (None, None) => Ok(None),
        }
    }

    /// What is held in parts, with the sizes of the parameter that it belongs to.
    fn joined(&self, name: &str, count: usize) -> Result<Tensor> {
        let missing = || Error::Internal(format!("a part of {name} is missing"));
        let mut bytes = Vec::new();
        let mut dtype = None;
        for number in 0..count {
            let part = self.program.param(&part_name(number, count, name))?.ok_or_else(missing)?;
            bytes.extend_from_slice(part.bytes());
            dtype = Some(part.dtype());
        }
        let graph = &self.forward;
        let owners = graph.params().iter().filter(|param| {
            name.strip_prefix(param.name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let owner = owners.max_by_key(|param| param.name.len()).ok_or_else(missing)?;
        let dims = graph.ty(graph.node(owner.node).first_result).shape.dims().ok_or_else(missing)?;
        let dims = dims.iter().map(|dim| dim.unsigned_abs()).collect();
        Tensor::new(dtype.ok_or_else(missing)?, dims, bytes)
    }

    /// Everything that a run needs to go on; `position` is how far it is in its data.
    ///
    /// Errors: none but internal ones.
    pub fn checkpoint(&self, position: Position) -> Result<Checkpoint> {
        let mut optimizer =
            self.arrays(|name| !self.own.contains(name) && self.is_kept(name) && base_name(name) == name)?;
        if let Some(workers) = &self.workers {
            optimizer.extend(workers.arrays()?);
        }
        Ok(Checkpoint {
            step: self.step,
            position,
            seed: self.seed,
            model: self.model.clone(),
            weights: self.weights()?,
            optimizer,
            ..Checkpoint::default()
        })
    }

    /// Goes on from a checkpoint, whatever devices the run that wrote it was laid over.
    ///
    /// Errors: it is of another model, or its arrays are not those of this step.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        if checkpoint.model != self.model {
            return Err(Error::usage("--resume", "the checkpoint is of another model"));
        }
        self.give_up()?;
        let names: Vec<String> =
            self.program.params().filter(|name| self.is_kept(name)).map(str::to_owned).collect();
        let arrays = checkpoint.weights.iter().chain(&checkpoint.optimizer);
        // Looked up, never iterated; the first of a name counts.
        let arrays: HashMap<&str, &Tensor> =
            arrays.rev().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let other = |what: String| {
            let help = "--optimizer and --precision as in the run that wrote it; --weights with its weights.safetensors begins anew from those";
            Error::usage("--resume", format!("the checkpoint of step {} {what}", checkpoint.step))
                .with_help(help)
        };
        if let Some((array, slot)) = self.not_of_this_optimizer(&arrays) {
            return Err(other(format!("has {array}: this optimizer keeps no {slot}")));
        }
        for name in names {
            let whole = whole_of(&name);
            let Some(&tensor) = arrays.get(whole) else {
                return Err(other(format!("has no array {name}")));
            };
            self.set(&name, tensor)?;
        }
        if let Some(workers) = &mut self.workers {
            let array = |name: &str| arrays.get(name).copied();
            workers.restore(checkpoint.step, array)?;
        }
        self.step = checkpoint.step;
        self.seed = checkpoint.seed;
        Ok(())
    }

    /// Takes the parameters that another step has too, each cut into the parts that this one holds.
    pub(super) fn take_over(&mut self, from: &Self) -> Result<()> {
        let mut parts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.program.params() {
            parts.entry(whole_of(name).to_owned()).or_default().push(name.to_owned());
        }
        for (whole, names) in parts {
            let Some(tensor) = from.param(&whole)? else { continue };
            for name in names {
                self.set(&name, &tensor)?;
            }
        }
        Ok(())
    }

    /// Sets what a name of the program holds of a whole.
    fn set(&mut self, name: &str, whole: &Tensor) -> Result<()> {
        match part_of(name) {
            Some((number, count, _)) => self.program.set_param(name, &cut(whole, number, count)?),
            None => self.program.set_param(name, whole),
        }
    }

    /// The first array that an optimizer keeps beside parameters and the one of this run does not, and what it is.
    fn not_of_this_optimizer<'a>(&self, arrays: &HashMap<&'a str, &Tensor>) -> Option<(&'a str, &'a str)> {
        let slot = |name: &'a str| name.rsplit_once('/').map(|(_, slot)| slot);
        let is_kept = |slot: &str| {
            let mut own = self.program.params().filter_map(|name| whole_of(name).rsplit_once('/'));
            own.any(|(_, own)| own == slot)
        };
        let unknown: Vec<&str> = SLOTS.into_iter().filter(|slot| !is_kept(slot)).collect();
        let all = arrays.keys().filter_map(|name| Some((*name, slot(name)?)));
        all.filter(|(_, slot)| unknown.contains(slot)).min()
    }

    /// Whether a checkpoint holds a parameter. A factor that is always 1 is not a run's own: whether a step has one
    /// depends on the devices that it is laid over.
    fn is_kept(&self, name: &str) -> bool {
        !is_set(name) && (self.skips || ![FACTOR, GOOD, SKIPPED].contains(&name))
    }
}

/// The name of what a parameter of a program is, or is a part of.
fn whole_of(name: &str) -> &str {
    part_of(name).map_or(base_name(name), |(_, _, whole)| whole)
}

/// Whether a parameter is set anew in each step.
fn is_set(name: &str) -> bool {
    is_count(name) || Scalar::ALL.iter().any(|scalar| scalar.name() == name)
}
