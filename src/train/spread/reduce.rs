//! From the gradients of shards to updated parameters: buckets, sums, what is sent, who updates what.
//!
//! Gradients of shards are added in pairs of neighbours, and pairs of pairs, whatever the devices and
//! the way that the sums take, so their bits follow from the shards alone. Each bucket is a job of its
//! own that begins as soon as its gradients are made: the schedule lays its copies beside the rest of
//! the backward pass.

use crate::error::{Error, Result};
use crate::ir::{
    Binary, DType, Graph, Init, Op, ParamId, Phase, Real, ReduceKind, Source, SourceId, SourceRole, Type,
    Unary, ValueId,
};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::train::optimize::{Scalars, wide_type};
use crate::train::spread::exchange::{Exchange, Sync};
use crate::train::spread::replicas::{Network, Replicated, Storage};
use crate::train::spread::zero::Owned;
use crate::train::step::{LOSS, Recipe, keep_statistic, update_source};

/// A sum of gradients.
pub(crate) enum Sum {
    /// All of it on one replica.
    Whole(usize, ValueId),
    /// A part on each.
    Parts(Vec<ValueId>),
}

/// What is sent: its values, with the factor that they were divided by, and the replica that has it.
#[derive(Clone, Copy)]
struct Sent {
    value: ValueId,
    factor: Option<ValueId>,
    replica: usize,
}

/// What a bucket's parameters are given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketKind {
    /// Gradients, whose sum every replica gets.
    Gradients,
    /// Gradients, whose sum is kept in one place ([`Replicated::is_kept_once`]).
    KeptOnce,
    Statistics,
}

/// How what is summed is sent on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Rounded to the type of transfers, if there is one.
    Rounded,
    Exact,
}

/// A gradient whose update is due.
pub(crate) type Due = (ParamId, SourceId, ValueId);

impl Replicated<'_> {
    /// Sums, updates, outputs; how many parameters are trained.
    pub(crate) fn finish(&mut self, network: &Network, recipe: &Recipe, whole: &Graph) -> Result<usize> {
        self.add_outputs(recipe, whole)?;
        let graph = &network.graph;
        let sets = self.params.len();
        let moved = (0..self.losses.len()).filter(|&shard| self.tells_statistics(shard)).count();
        let mut due: Vec<Vec<Due>> = vec![Vec::new(); sets];
        let mut means: Vec<(usize, ParamId, ValueId)> = Vec::new();
        let (mut owned, mut owned_due) = (Vec::new(), Vec::new());
        let mut trained = 0;
        for bucket in self.buckets(graph) {
            let statistic = graph.params()[bucket[0]].statistic.is_some();
            trained += if statistic { 0 } else { bucket.len() };
            let kind = match statistic {
                true => BucketKind::Statistics,
                false if self.is_kept_once(&bucket) => BucketKind::KeptOnce,
                false => BucketKind::Gradients,
            };
            let sum = self.reduce(&bucket, kind)?;
            if kind == BucketKind::KeptOnce {
                self.share_out(&bucket, sum, &mut owned, &mut owned_due)?;
                continue;
            }
            let sending = if statistic { Sending::Exact } else { Sending::Rounded };
            let gathered = self.gather(&bucket, sum, sending)?;
            for (set, flat) in gathered.into_iter().enumerate() {
                for (&at, gradient) in bucket.iter().zip(self.divide(&bucket, flat, set)?) {
                    let (id, source) = self.update_of(set, at, gradient)?;
                    if statistic {
                        let name = format!("{}/mean", self.graph.param(id).name);
                        self.graph.source_mut(source).name = name;
                        let mut b = Build { graph: &mut self.graph, source };
                        let mean = b.scale(gradient, 1.0 / moved as f64)?;
                        means.push((set, id, mean));
                    } else {
                        due[set].push((id, source, gradient));
                    }
                }
            }
        }
        let scalars = self.update(recipe, due, &owned, owned_due)?;
        for (set, id, mean) in means {
            match scalars.get(set) {
                Some(scalars) => keep_statistic(&mut self.graph, scalars, id, mean)?,
                None => self.graph.update_param(id, mean)?,
            }
        }
        if trained == 0 {
            return Err(Error::usage("model", "the loss depends on no parameter that is trained"));
        }
        Ok(trained)
    }

    fn add_outputs(&mut self, recipe: &Recipe, whole: &Graph) -> Result<()> {
        let all = self.source("loss".to_owned(), "loss", 0);
        let losses = self.losses.clone();
        let mut b = Build { graph: &mut self.graph, source: all };
        let loss = in_pairs(losses, |x, y| b.add(x, y))?;
        let mut outputs = vec![(LOSS.to_owned(), loss)];
        if recipe.outputs {
            for (position, (name, _)) in whole.outputs().iter().enumerate() {
                let parts: Vec<ValueId> = self.outputs.iter().map(|shard| shard[position]).collect();
                let value = Build { graph: &mut self.graph, source: all }.concat(&parts, 0)?;
                outputs.push((name.clone(), value));
            }
        }
        self.graph.set_outputs(outputs);
        Ok(())
    }

    /// Parameters whose gradients travel together, in the order in which those are made: from the last
    /// parameter to the first. O(parameters x shards).
    fn buckets(&self, network: &Graph) -> Vec<Vec<usize>> {
        let bytes = |at: usize| self.type_of(at).bytes().map_or(0, |bytes| bytes.get());
        let whole: Vec<usize> =
            (0..network.params().len()).rev().filter(|&at| self.has_gradient(at)).collect();
        let total: u64 = whole.iter().map(|&at| bytes(at)).fold(0, u64::saturating_add);
        let most = self.replicas.bucket.unwrap_or_else(|| self.links.bucket(total));
        let together = self.params.len() > 1;
        let mut buckets: Vec<Vec<usize>> = Vec::new();
        let mut open: Vec<((DType, usize, bool), Vec<usize>, u64)> = Vec::new();
        for at in whole {
            let statistic = network.params()[at].statistic.is_some();
            let own = bytes(at);
            if !together || own >= most || !statistic && self.is_split(at) {
                buckets.push(vec![at]);
                continue;
            }
            let key = (self.type_of(at).dtype, self.stages[at], statistic);
            let position = open.iter().position(|(other, ..)| *other == key).unwrap_or_else(|| {
                open.push((key, Vec::new(), 0));
                open.len() - 1
            });
            let (_, list, bytes) = &mut open[position];
            list.push(at);
            *bytes = bytes.saturating_add(own);
            if *bytes >= most {
                buckets.push(std::mem::take(list));
                *bytes = 0;
            }
        }
        buckets.extend(open.into_iter().map(|(_, list, _)| list).filter(|list| !list.is_empty()));
        buckets
    }

    fn has_gradient(&self, at: usize) -> bool {
        self.gradients.iter().all(|shard| shard[at].is_some())
    }

    pub(crate) fn type_of(&self, at: usize) -> &Type {
        self.graph.ty(self.params[0][at])
    }

    /// Whether a shard has the statistics that its replica ends with: of a pipeline, the last microbatch.
    fn tells_statistics(&self, shard: usize) -> bool {
        !self.groups.pipelines
            || shard + 1 == self.losses.len()
            || self.replica(shard) != self.replica(shard + 1)
    }

    /// By shard: the gradients of a bucket one after the other.
    fn flat(&mut self, bucket: &[usize], kind: BucketKind) -> Result<Vec<Sent>> {
        let mut flats = Vec::with_capacity(self.gradients.len());
        for shard in 0..self.gradients.len() {
            if kind == BucketKind::Statistics && !self.tells_statistics(shard) {
                continue;
            }
            let replica = self.replica(shard);
            let name = format!("{}/bucket@{shard}", self.name_of(bucket[0]));
            let source = self.backward(name, bucket[0], replica);
            self.graph.source_mut(source).microbatch = self.microbatch(shard);
            let mut parts = Vec::with_capacity(bucket.len());
            for &at in bucket {
                let gradient = self.gradients[shard][at];
                let gradient = gradient.ok_or_else(|| Error::Internal("a gradient is missing".into()))?;
                parts.push(flattened(&mut Build { graph: &mut self.graph, source }, gradient)?);
            }
            let value = Build { graph: &mut self.graph, source }.concat(&parts, 0)?;
            flats.push(Sent { value, factor: None, replica });
        }
        Ok(flats)
    }

    /// The sum of the shards' gradients, or of what replicas make of statistics.
    fn reduce(&mut self, bucket: &[usize], kind: BucketKind) -> Result<Sum> {
        let (at, count) = (bucket[0], self.replicas.count);
        let mut flats = self.flat(bucket, kind)?;
        let ty = self.graph.ty(flats[0].value).clone();
        let elements = ty.elements().unwrap_or(0);
        let transfer = self.replicas.transfer.dtype().filter(|_| kind != BucketKind::Statistics && count > 1);
        let sent = transfer.unwrap_or(ty.dtype);
        let bytes = elements.saturating_mul(sent.size());
        // What is kept once is wanted in one place, or a part of it in each, which is the first half of a ring.
        let way = match () {
            () if self.params.len() == 1 || count == 1 => Exchange::Star,
            () if kind == BucketKind::KeptOnce && self.is_split(at) => Exchange::Ring,
            () if kind == BucketKind::KeptOnce => Exchange::Star,
            () => match self.links.exchange(self.replicas.exchange, bytes) {
                // Sums on the way would have to be rounded again.
                Exchange::Tree if transfer.is_some() => Exchange::Star,
                Exchange::Ring if elements < count as u64 => Exchange::Star,
                way => way,
            },
        };
        if transfer.is_some() {
            // Shards of one replica are added before they are rounded: they do not travel.
            if self.groups.pipelines {
                flats = self.sums_of_replicas(flats, at)?;
            }
            for (shard, flat) in flats.iter_mut().enumerate() {
                let name = format!("feedback{shard}/{}", self.name_of(at));
                *flat = self.encoded(*flat, &name, at)?;
            }
        }
        let name = self.name_of(at);
        if way != Exchange::Ring {
            let owner = match way {
                Exchange::Tree => None,
                _ => Some(self.owner(at, bytes)),
            };
            let value = self.sum_at(&flats, owner, at, &format!("{name}/sum"))?;
            return Ok(Sum::Whole(owner.unwrap_or(0), value));
        }
        let mut parts = Vec::with_capacity(count);
        for owner in 0..count {
            let (start, length) = part(elements, owner, count);
            let mut chunks = Vec::with_capacity(flats.len());
            for (shard, &flat) in flats.iter().enumerate() {
                let source = self.backward(format!("{name}/part {owner}@{shard}"), at, flat.replica);
                let value = Build { graph: &mut self.graph, source }.part(flat.value, 0, start, length)?;
                chunks.push(Sent { value, ..flat });
            }
            parts.push(self.sum_at(&chunks, Some(owner), at, &format!("{name}/sum {owner}"))?);
        }
        Ok(Sum::Parts(parts))
    }

    /// By replica: the sum of its own shards, so that it is what is rounded.
    fn sums_of_replicas(&mut self, flats: Vec<Sent>, at: usize) -> Result<Vec<Sent>> {
        let mut sums = Vec::with_capacity(self.replicas.count);
        for own in flats.chunk_by(|one, other| one.replica == other.replica) {
            let (name, replica) = (self.name_of(at), own[0].replica);
            let value = self.sum_at(own, Some(replica), at, &format!("{name}/own sum"))?;
            sums.push(Sent { value, factor: None, replica });
        }
        Ok(sums)
    }

    /// Rounds a value to what is sent. What is lost is kept, and added before the next rounding.
    fn encoded(&mut self, flat: Sent, name: &str, at: usize) -> Result<Sent> {
        let Some(to) = self.replicas.transfer.dtype() else { return Ok(flat) };
        let source = self.backward(format!("{name}/round"), at, flat.replica);
        let mut b = Build { graph: &mut self.graph, source };
        let ty = b.graph.ty(flat.value).clone();
        let kept = b.graph.add_param(name, ty.clone(), Init::Constant(Real(0.0)), None, source);
        let whole = b.add(flat.value, kept)?;
        let (value, factor) = match to {
            // The largest becomes 127; without any, the factor is a number that can be divided by.
            DType::I8 => {
                let size = b.unary(Unary::Abs, whole)?;
                let most = b.reduce(ReduceKind::Max, size, &[0], ReducedAxes::Dropped)?;
                let factor = b.with(Binary::Mul, most, 1.0 / 127.0)?;
                let factor = b.with(Binary::Max, factor, f64::from(f32::MIN_POSITIVE))?;
                let scaled = b.div(whole, factor)?;
                let rounded = b.unary(Unary::Round, scaled)?;
                (b.convert(rounded, to)?, Some(factor))
            }
            _ => (b.convert(whole, to)?, None),
        };
        let sent = Sent { value, factor, replica: flat.replica };
        let found = decoded(&mut b, sent, ty.dtype)?;
        // Error feedback (Seide et al., 1-Bit Stochastic Gradient Descent, 2014): in the long run nothing is lost.
        let lost = b.sub(whole, found)?;
        match b.graph.maker(kept).op {
            Op::Param(id) => self.graph.update_param(id, lost)?,
            _ => return Err(Error::Internal("a parameter that is none".into())),
        }
        Ok(sent)
    }

    /// The sum of what the shards sent, in pairs of neighbours; pairs on one replica are added there,
    /// others on `owner`, or on the replica of the first of them.
    fn sum_at(&mut self, parts: &[Sent], owner: Option<usize>, at: usize, name: &str) -> Result<ValueId> {
        let dtype = self.type_of(at).dtype;
        let rounded = parts.iter().any(|part| self.graph.ty(part.value).dtype != dtype);
        let mut sources: Vec<(usize, SourceId)> = Vec::new();
        let mut on = |step: &mut Self, replica: usize| match sources.iter().find(|(own, _)| *own == replica) {
            Some(&(_, source)) => source,
            None => {
                let source = step.backward(format!("{name}@{replica}"), at, replica);
                sources.push((replica, source));
                source
            }
        };
        let mut level = parts.to_vec();
        if let (true, Some(owner)) = (rounded, owner) {
            let source = on(self, owner);
            for part in &mut level {
                let value = decoded(&mut Build { graph: &mut self.graph, source }, *part, dtype)?;
                *part = Sent { value, factor: None, replica: owner };
            }
        }
        // Pairs follow from the shards' numbers alone: the same bits on any number of replicas.
        let sum = in_pairs(level, |x: Sent, y: Sent| {
            let replica = if x.replica == y.replica { x.replica } else { owner.unwrap_or(x.replica) };
            let source = on(self, replica);
            let value = Build { graph: &mut self.graph, source }.add(x.value, y.value)?;
            Ok(Sent { value, factor: None, replica })
        })?;
        Ok(sum.value)
    }

    /// By set of parameters: the sum, flat.
    pub(crate) fn gather(&mut self, bucket: &[usize], sum: Sum, sending: Sending) -> Result<Vec<ValueId>> {
        let (at, sets) = (bucket[0], self.params.len());
        let parts = match sum {
            Sum::Whole(_, value) if sets == 1 => return Ok(vec![value]),
            Sum::Whole(owner, value) => vec![Sent { value, factor: None, replica: owner }],
            Sum::Parts(values) => values
                .into_iter()
                .enumerate()
                .map(|(replica, value)| Sent { value, factor: None, replica })
                .collect(),
        };
        let name = self.name_of(at);
        let dtype = self.type_of(at).dtype;
        let rounds = self.replicas.transfer.dtype().is_some() && self.replicas.count > 1;
        let rounded = rounds && sending == Sending::Rounded;
        if !rounded && parts.len() == 1 {
            return Ok(vec![parts[0].value; sets]);
        }
        let mut sent = Vec::with_capacity(parts.len());
        for (number, &part) in parts.iter().enumerate() {
            let kept = format!("feedback/{number}of{}/{name}", parts.len());
            sent.push(if rounded { self.encoded(part, &kept, at)? } else { part });
        }
        let mut gathered = Vec::with_capacity(sets);
        for replica in 0..sets {
            let source = self.backward(format!("{name}/gather@{replica}"), at, replica);
            let mut b = Build { graph: &mut self.graph, source };
            let values: Vec<ValueId> =
                sent.iter().map(|&part| decoded(&mut b, part, dtype)).collect::<Result<_>>()?;
            gathered.push(b.concat(&values, 0)?);
        }
        Ok(gathered)
    }

    /// The gradients of a bucket that are stored one after the other, with the sizes of their parameters.
    pub(crate) fn divide(&mut self, bucket: &[usize], flat: ValueId, replica: usize) -> Result<Vec<ValueId>> {
        let source = match bucket.len() {
            1 => self.graph.maker(flat).source,
            _ => self.backward(format!("{}/divide@{replica}", self.name_of(bucket[0])), bucket[0], replica),
        };
        let mut start = 0;
        let mut found = Vec::with_capacity(bucket.len());
        for &at in bucket {
            let ty = self.type_of(at).clone();
            let length = ty.elements().unwrap_or(0) as i64;
            let mut b = Build { graph: &mut self.graph, source };
            let own = b.part(flat, 0, start, length)?;
            found.push(b.reshape(own, &ty.shape.dims().unwrap_or_default())?);
            start += length;
        }
        Ok(found)
    }

    /// Clips, and updates what every set keeps and what is kept once; by set, its scalars.
    fn update(
        &mut self,
        recipe: &Recipe,
        due: Vec<Vec<Due>>,
        owned: &[Owned],
        owned_due: Vec<Due>,
    ) -> Result<Vec<Scalars>> {
        let gradients = || due.iter().flatten().chain(&owned_due).map(|&(_, _, gradient)| gradient);
        if gradients().next().is_none() {
            return Ok(Vec::new());
        }
        let dtype = wide_type(gradients().map(|gradient| self.graph.ty(gradient).dtype));
        let hyper = self.graph.add_source(Source::new("optimizer", "optimizer", SourceRole::Data));
        let mut b = Build { graph: &mut self.graph, source: hyper };
        let scalars = Scalars::add(&mut b, &recipe.updates, dtype);
        let mut owned_due = owned_due;
        let names: Vec<String> = owned.iter().map(|owned| self.owned_name(owned)).collect();
        let mut b = Build { graph: &mut self.graph, source: hyper };
        recipe.updates.accumulate(&mut b, &scalars, &mut owned_due, &names)?;
        let mut new = Vec::with_capacity(owned.len());
        let mut all = Vec::with_capacity(due.len());
        for (set, mut list) in due.into_iter().enumerate() {
            let mut b = Build { graph: &mut self.graph, source: hyper };
            let own: Vec<String> = list.iter().map(|(id, ..)| b.graph.param(*id).name.clone()).collect();
            recipe.updates.accumulate(&mut b, &scalars, &mut list, &own)?;
            // The length of all gradients takes those that are kept once with it.
            list.extend(&owned_due);
            let mut scalars = scalars;
            if let Some(scale) = &self.scale {
                scalars.finite = scale.finite(&mut b, &list)?;
                if set == 0 {
                    scale.follow(&mut b, &recipe.updates, &scalars)?;
                }
            }
            all.push(scalars);
            recipe.updates.clip(&mut b, &mut list)?;
            for &(id, source, gradient) in &list[..own.len()] {
                b.source = source;
                recipe.updates.apply(&mut b, &scalars, id, gradient)?;
            }
            if set > 0 {
                continue;
            }
            for ((&(_, source, gradient), owned), name) in list[own.len()..].iter().zip(owned).zip(&names) {
                let mut b = Build { graph: &mut self.graph, source };
                let stepped = recipe.updates.stepped(&mut b, &scalars, name, owned.value, gradient)?;
                new.push(recipe.updates.at_the_end(&mut b, &scalars, owned.value, stepped)?);
            }
        }
        self.spread(owned, &new)?;
        Ok(all)
    }

    pub(crate) fn param_id(&self, set: usize, at: usize) -> Result<ParamId> {
        match (&self.graph.maker(self.params[set][at]).op, &self.storage[at]) {
            (Op::Param(id), _) => Ok(*id),
            (_, Storage::Sharded(parts)) => Ok(parts[set].0),
            _ => Err(Error::Internal("a parameter that is none".into())),
        }
    }

    /// The parameter of a set, and the source of its update: on the set's device, or where the sum is.
    pub(crate) fn update_of(&mut self, set: usize, at: usize, sum: ValueId) -> Result<(ParamId, SourceId)> {
        let id = self.param_id(set, at)?;
        let forward = self.readers[at].unwrap_or(self.graph.maker(sum).source);
        let pin = match self.params.len() {
            1 => self.graph.source(self.graph.maker(sum).source).pin.clone(),
            _ => self.pin(at, set),
        };
        let source = update_source(&mut self.graph, id, forward);
        self.graph.source_mut(source).pin = pin;
        Ok((id, source))
    }

    /// Who adds a gradient up: the device with the least to do so far, or the next one.
    fn owner(&mut self, at: usize, bytes: u64) -> usize {
        let owner = match self.replicas.sync {
            Sync::ServerRoundRobin => at % self.load.len().max(1),
            Sync::AllReduce | Sync::Server => {
                (0..self.load.len()).min_by_key(|&device| self.load[device]).unwrap_or(0)
            }
        };
        self.load[owner] = self.load[owner].saturating_add(bytes);
        owner
    }

    /// A source of the backward pass on a device.
    pub(crate) fn backward(&mut self, name: String, at: usize, device: usize) -> SourceId {
        let pin = self.pin(at, device);
        let (forward, phase) = (self.readers[at], Phase::Backward);
        let source = Source { pin, forward, phase, ..Source::new(name, "all-reduce", SourceRole::Node) };
        self.graph.add_source(source)
    }
}

/// Where a replica's part of so many elements begins, and how long it is.
pub(crate) fn part(elements: u64, replica: usize, count: usize) -> (i64, i64) {
    let at = |number: usize| (u128::from(elements) * number as u128 / count.max(1) as u128) as i64;
    (at(replica), at(replica + 1) - at(replica))
}

pub(crate) fn flattened(b: &mut Build<'_>, value: ValueId) -> Result<ValueId> {
    let elements: i64 = b.dims(value)?.iter().product();
    b.reshape(value, &[elements])
}

/// What was sent, in the type that it had before.
fn decoded(b: &mut Build<'_>, sent: Sent, dtype: DType) -> Result<ValueId> {
    let wide = b.convert(sent.value, dtype)?;
    match sent.factor {
        Some(factor) => b.mul(wide, factor),
        None => Ok(wide),
    }
}

/// Adds up neighbours, then pairs of neighbours, and so on: the order follows from the number alone.
fn in_pairs<T: Copy>(mut level: Vec<T>, mut add: impl FnMut(T, T) -> Result<T>) -> Result<T> {
    while level.len() > 1 {
        let pairs = level.chunks(2).map(|pair| match *pair {
            [x, y] => add(x, y),
            _ => Ok(pair[0]),
        });
        level = pairs.collect::<Result<_>>()?;
    }
    level.first().copied().ok_or_else(|| Error::Internal("a sum of nothing".into()))
}
