//! State that replicas keep once between them (ZeRO: Rajbhandari et al. 2020): who updates what, and how
//! the others come to it.
//!
//! Large parameters are updated in parts, one on each replica; small ones of a bucket by one replica for
//! all.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::ir::{
    Binary, Compare, Op, Param, ParamId, Phase, Shape, Source, SourceId, SourceRole, Type, ValueId,
};
use crate::pass::gradient::build::Build;
use crate::train::spread::exchange::Zero;
use crate::train::spread::names::part_name;
use crate::train::spread::reduce::{Due, Sending, Sum, flattened, part};
use crate::train::spread::replicas::{Replicated, Storage};

/// Parameters of fewer elements are kept whole where others are kept in parts.
pub(crate) const SPLIT: u64 = 1 << 10;

/// A parameter, or a part of it, that one replica updates for all.
pub(crate) struct Owned {
    pub(crate) at: usize,
    pub(crate) owner: usize,
    pub(crate) part: bool,
    /// The value before.
    pub(crate) value: ValueId,
}

impl Replicated<'_> {
    /// Whether each replica keeps only a part of a parameter.
    pub(crate) fn is_in_parts(&self, at: usize, ty: &Type) -> bool {
        let count = self.replicas.count;
        self.replicas.zero == Zero::Parameters
            && count > 1
            && self.trainable[at]
            && ty.elements().is_some_and(|elements| elements >= SPLIT.max(count as u64))
    }

    /// A part on each replica, and all of them together where each reads them.
    pub(crate) fn add_parts(&mut self, at: usize, param: &Param, ty: &Type) -> Result<()> {
        let (count, elements) = (self.replicas.count, ty.elements().unwrap_or(0));
        let mut parts = Vec::with_capacity(count);
        for owner in 0..count {
            let (_, length) = part(elements, owner, count);
            let own = Type::new(ty.dtype, Shape::known(&[length]));
            // What it begins as is cut from the whole parameter's value.
            let whole = Param { data: None, ..param.clone() };
            let value = self.add_param(part_name(owner, count, &param.name), own, &whole);
            match self.graph.maker(value).op {
                Op::Param(id) => parts.push((id, value)),
                _ => return Err(Error::Internal("a parameter that is none".into())),
            }
        }
        let values: Vec<ValueId> = parts.iter().map(|(_, value)| *value).collect();
        let dims = ty.shape.dims().unwrap_or_default();
        for replica in 0..count {
            let name = format!("{}/gather@{replica}", param.name);
            let source = self.gather_source(name, at, replica, Phase::Forward);
            let mut b = Build { graph: &mut self.graph, source };
            let flat = b.concat(&values, 0)?;
            let whole = b.reshape(flat, &dims)?;
            self.params[replica].push(whole);
        }
        self.storage[at] = Storage::Sharded(parts);
        Ok(())
    }

    /// Gathers parameters that are kept in parts anew on a replica, so that they need not be kept from
    /// the forward to the backward pass. What is sent then is made of each part's value when its owner's
    /// forward pass is over: `part x 1`, where the one is whether the loss equals itself.
    pub(crate) fn gather_again(&mut self, replica: usize) -> Result<()> {
        if self.gathered_again[replica].is_some() {
            return Ok(());
        }
        let mut gathered = HashMap::new();
        for at in 0..self.storage.len() {
            let Storage::Sharded(parts) = &self.storage[at] else { continue };
            let parts: Vec<ValueId> = parts.iter().map(|(_, value)| *value).collect();
            let before = self.params[replica][at];
            let values = self.sent_again(at, &parts)?;
            let name = format!("{}/gather again@{replica}", self.names[at]);
            let source = self.gather_source(name, at, replica, Phase::Backward);
            let mut b = Build { graph: &mut self.graph, source };
            let flat = b.concat(&values, 0)?;
            let dims = b.dims(before)?;
            gathered.insert(before, b.reshape(flat, &dims)?);
        }
        self.gathered_again[replica] = Some(gathered);
        Ok(())
    }

    /// What the owners of a parameter's parts send for the backward pass.
    fn sent_again(&mut self, at: usize, parts: &[ValueId]) -> Result<Vec<ValueId>> {
        if let Some(values) = &self.sent_again[at] {
            return Ok(values.clone());
        }
        let mut values = Vec::with_capacity(parts.len());
        for (owner, &part) in parts.iter().enumerate() {
            let shard = owner * self.replicas.shards / self.replicas.count;
            let loss = self.losses[shard];
            let name = format!("{}/again@{owner}", self.names[at]);
            let source = self.gather_source(name, at, owner, Phase::Backward);
            let mut b = Build { graph: &mut self.graph, source };
            let over = b.compare(Compare::Eq, loss, loss)?;
            let one = b.convert(over, b.dtype(part))?;
            values.push(b.binary(Binary::Mul, part, one)?);
        }
        self.sent_again[at] = Some(values.clone());
        Ok(values)
    }

    fn gather_source(&mut self, name: String, at: usize, replica: usize, phase: Phase) -> SourceId {
        let pin = self.pin(at, replica);
        self.graph.add_source(Source { pin, phase, ..Source::new(name, "gather", SourceRole::Node) })
    }

    /// Whether a trained parameter is kept in parts.
    pub(crate) fn is_split(&self, at: usize) -> bool {
        let elements = self.type_of(at).elements().unwrap_or(0);
        self.replicas.zero != Zero::None
            && self.replicas.count > 1
            && elements >= SPLIT.max(self.replicas.count as u64)
    }

    /// Whether one replica updates for all: large parameters in parts, small ones where there are
    /// several, so that a launch divides what is sent.
    pub(crate) fn is_kept_once(&self, bucket: &[usize]) -> bool {
        let several = bucket.len() > 1 && self.replicas.count > 1;
        self.replicas.zero != Zero::None && (several || self.is_split(bucket[0]))
    }

    /// Notes who updates what of a bucket that is kept once.
    pub(crate) fn share_out(
        &mut self,
        bucket: &[usize],
        sum: Sum,
        owned: &mut Vec<Owned>,
        due: &mut Vec<Due>,
    ) -> Result<()> {
        let count = self.replicas.count;
        match sum {
            Sum::Whole(owner, flat) => {
                for (&at, gradient) in bucket.iter().zip(self.divide(bucket, flat, owner)?) {
                    let (id, source) = self.update_of(owner, at, gradient)?;
                    owned.push(Owned { at, owner, part: false, value: self.params[owner][at] });
                    due.push((id, source, gradient));
                }
            }
            Sum::Parts(mut gradients) => {
                let at = bucket[0];
                let elements = self.type_of(at).elements().unwrap_or(0);
                if self.replicas.zero == Zero::Optimizer {
                    // Every replica has the whole sum, of which it takes its part.
                    let whole = self.gather(bucket, Sum::Parts(gradients.clone()), Sending::Exact)?;
                    for (owner, gradient) in gradients.iter_mut().enumerate() {
                        let (start, length) = part(elements, owner, count);
                        let source = self.backward(format!("{}/own@{owner}", self.name_of(at)), at, owner);
                        let mut b = Build { graph: &mut self.graph, source };
                        *gradient = b.part(whole[owner], 0, start, length)?;
                    }
                }
                for (owner, gradient) in gradients.into_iter().enumerate() {
                    let source = self.part_source(at, owner);
                    let (id, value) = match &self.storage[at] {
                        Storage::Sharded(parts) => parts[owner],
                        Storage::Replicated => {
                            let (start, length) = part(elements, owner, count);
                            let whole = self.params[owner][at];
                            let mut b = Build { graph: &mut self.graph, source };
                            let flat = flattened(&mut b, whole)?;
                            let own = b.part(flat, 0, start, length)?;
                            (self.param_id(owner, at)?, own)
                        }
                    };
                    owned.push(Owned { at, owner, part: true, value });
                    due.push((id, source, gradient));
                }
            }
        }
        Ok(())
    }

    /// Gives every replica what others updated for it.
    pub(crate) fn spread(&mut self, owned: &[Owned], new: &[ValueId]) -> Result<()> {
        let mut first = 0;
        while first < owned.len() {
            let Owned { at, owner, part, .. } = owned[first];
            let same = |other: &Owned| match part {
                true => other.part && other.at == at,
                false => !other.part && other.owner == owner && self.stages[other.at] == self.stages[at],
            };
            let last = first + owned[first..].iter().take_while(|other| same(other)).count();
            match part {
                true => self.spread_parts(at, &new[first..last])?,
                false => self.spread_whole(&owned[first..last], &new[first..last])?,
            }
            first = last;
        }
        Ok(())
    }

    fn spread_parts(&mut self, at: usize, new: &[ValueId]) -> Result<()> {
        if let Storage::Sharded(parts) = &self.storage[at] {
            let ids: Vec<ParamId> = parts.iter().map(|(id, _)| *id).collect();
            return ids.into_iter().zip(new).try_for_each(|(id, &new)| self.graph.update_param(id, new));
        }
        let dims = self.type_of(at).shape.dims().unwrap_or_default();
        for replica in 0..self.params.len() {
            let (id, source) = self.update_of(replica, at, new[0])?;
            let mut b = Build { graph: &mut self.graph, source };
            let flat = b.concat(new, 0)?;
            let whole = b.reshape(flat, &dims)?;
            self.graph.update_param(id, whole)?;
        }
        Ok(())
    }

    /// Small parameters, one after the other.
    fn spread_whole(&mut self, owned: &[Owned], new: &[ValueId]) -> Result<()> {
        let owner = owned[0].owner;
        let name = self.name_of(owned[0].at);
        let source = self.backward(format!("{name}/new"), owned[0].at, owner);
        let mut b = Build { graph: &mut self.graph, source };
        let flats: Vec<ValueId> = new.iter().map(|&new| flattened(&mut b, new)).collect::<Result<_>>()?;
        let all = b.concat(&flats, 0)?;
        let mut start = 0;
        for (owned, &new) in owned.iter().zip(new) {
            let ty = self.graph.ty(new).clone();
            let length = ty.elements().unwrap_or(0) as i64;
            for replica in 0..self.params.len() {
                if replica == owner {
                    let id = self.param_id(owner, owned.at)?;
                    self.graph.update_param(id, new)?;
                    continue;
                }
                let (id, source) = self.update_of(replica, owned.at, new)?;
                let mut b = Build { graph: &mut self.graph, source };
                let own = b.part(all, 0, start, length)?;
                let own = b.reshape(own, &ty.shape.dims().unwrap_or_default())?;
                self.graph.update_param(id, own)?;
            }
            start += length;
        }
        Ok(())
    }

    pub(crate) fn owned_name(&self, owned: &Owned) -> String {
        let name = self.name_of(owned.at);
        if owned.part { part_name(owned.owner, self.replicas.count, &name) } else { name }
    }

    fn part_source(&mut self, at: usize, owner: usize) -> SourceId {
        let name = format!("{}/update", part_name(owner, self.replicas.count, &self.name_of(at)));
        let source = self.backward(name, at, owner);
        self.graph.source_mut(source).phase = Phase::Update;
        source
    }
}
