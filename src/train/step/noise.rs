//! Dropout and noise as they train: nodes in place of what loaders leave for them.
//!
//! Every sample of a step has a number of its own, handed over as an input ([`STREAMS`]) and made of
//! the run's seed, the step and the sample's place in the batch. What a layer draws for an element
//! follows from that number, the layer and the element's place in the sample alone
//! ([`random_bits`]), so it is the same on any devices, in any number of replicas, shards or
//! microbatches, with any number of threads, and in a run that was resumed.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ir::{
    Binary, Compare, DType, Graph, Noise, NoiseKind, Shape, Source, SourceId, SourceRole, Tensor, Type,
    Unary, ValueId, random_bits,
};
use crate::pass::gradient::build::Build;
use crate::pass::rewrite::Rewriter;

/// The input that holds each sample's number.
pub(crate) const STREAMS: &str = "training/streams";

/// Samples whose numbers differ in their low bits alone.
const SAMPLES: i64 = 1 << 20;
/// A draw has so many bits.
const BITS: i64 = 24;

/// The numbers of a step's samples: the step's own, with the sample's place in its low bits.
pub(crate) fn streams(seed: u64, step: u64, batch: usize) -> Result<Tensor> {
    let own = random_bits(step as i64, random_bits(0, seed as i64)) & !(SAMPLES - 1);
    let bytes: Vec<u8> =
        (0..batch as i64).flat_map(|sample| own.wrapping_add(sample).to_le_bytes()).collect();
    Tensor::new(DType::I64, vec![batch as u64], bytes)
}

/// Puts the disturbance of every marked layer in place, for a batch of `batch`; whether there is any.
/// O(nodes + operands).
///
/// Errors: a dimension that is not bound.
pub(crate) fn disturb(graph: &mut Graph, batch: i64) -> Result<bool> {
    if graph.node_ids().all(|node| graph.disturbance(node).is_none()) {
        return Ok(false);
    }
    if graph.inputs().iter().any(|(name, _)| name == STREAMS) {
        return Err(Error::usage(format!("input {STREAMS}"), "training has an input of this name"));
    }
    let mut rewriter = Rewriter::new(graph);
    let new = rewriter.graph_mut();
    let source = new.add_source(Source::new(STREAMS, "random", SourceRole::Data));
    let streams = new.add_input(STREAMS, Type::new(DType::I64, Shape::known(&[batch])), source);
    let mut calls: BTreeMap<SourceId, i64> = BTreeMap::new();
    for node in graph.node_ids() {
        let Some(noise) = graph.disturbance(node) else {
            rewriter.keep(node)?;
            continue;
        };
        let source = graph.node(node).source;
        let call = calls.entry(source).or_default();
        // Layers, and calls of one layer, draw from places of their own.
        let site = (i64::from(source.0) << 20) + *call;
        *call += 1;
        let x = rewriter.value(graph.node(node).operands[0])?;
        // What a layer draws within itself is part of the layer.
        let own = graph.source(source);
        let layer = own.consumer.filter(|_| own.role == SourceRole::Data).unwrap_or(source);
        let b = Build { graph: rewriter.graph_mut(), source: layer };
        let y = Draw { b, noise, streams, site }.applied(x)?;
        rewriter.replace_each(node, &[y]);
    }
    *graph = rewriter.finish()?;
    Ok(true)
}

/// One call of one layer.
struct Draw<'g> {
    b: Build<'g>,
    noise: &'g Noise,
    streams: ValueId,
    site: i64,
}

impl Draw<'_> {
    fn applied(&mut self, x: ValueId) -> Result<ValueId> {
        let (rate, dtype) = (self.noise.rate.0, self.b.dtype(x));
        match self.noise.kind {
            NoiseKind::Dropout => {
                // Scaled while training, so that running the network needs no factor (inverted dropout).
                let kept = self.kept(x, rate)?;
                let scaled = self.b.scale(x, if rate < 1.0 { 1.0 / (1.0 - rate) } else { 0.0 })?;
                self.b.masked(kept, scaled)
            }
            NoiseKind::AlphaDropout => {
                // Dropped elements are what SELU tends to, and scale and shift bring the mean back to 0 and the
                // variance to 1 (Klambauer et al., Self-Normalizing Neural Networks, 2017, section 3).
                let low = -SELU.0 * SELU.1;
                let scale = 1.0 / ((1.0 - rate) * (1.0 + rate * low * low)).sqrt();
                let kept = self.kept(x, rate)?;
                let low_value = self.b.number(dtype, low)?;
                let mixed = self.b.select(kept, x, low_value)?;
                let scaled = self.b.scale(mixed, scale)?;
                self.b.with(Binary::Add, scaled, -scale * low * rate)
            }
            NoiseKind::GaussianNoise => {
                let normal = self.normal(x)?;
                let scaled = self.b.scale(normal, rate)?;
                let scaled = self.b.convert(scaled, dtype)?;
                self.b.add(x, scaled)
            }
            NoiseKind::GaussianDropout => {
                // Factors with the mean and the variance that dropout's factors have (Srivastava et al., 2014).
                let normal = self.normal(x)?;
                let factor = self.b.scale(normal, (rate / (1.0 - rate)).sqrt())?;
                let factor = self.b.with(Binary::Add, factor, 1.0)?;
                let factor = self.b.convert(factor, dtype)?;
                self.b.mul(x, factor)
            }
        }
    }

    /// Where an element stays: with probability `1 - rate`.
    fn kept(&mut self, x: ValueId, rate: f64) -> Result<ValueId> {
        let bits = self.bits(x)?;
        // Compared as integers: the share that is kept is the same on every device.
        let drawn = self.b.with(Binary::And, bits, ((1i64 << BITS) - 1) as f64)?;
        let limit = self.b.number(DType::I64, (rate * (1i64 << BITS) as f64).round_ties_even())?;
        self.b.compare(Compare::Ge, drawn, limit)
    }

    /// Normal numbers, by f32 (Box and Muller 1958).
    fn normal(&mut self, x: ValueId) -> Result<ValueId> {
        let bits = self.bits(x)?;
        let one = 1.0 / (1i64 << BITS) as f64;
        let low = self.b.with(Binary::And, bits, ((1i64 << BITS) - 1) as f64)?;
        let low = self.b.convert(low, DType::F32)?;
        // Above 0, up to 1: a logarithm is taken of it.
        let low = self.b.with(Binary::Add, low, 1.0)?;
        let low = self.b.scale(low, one)?;
        let high = self.b.with(Binary::And, bits, (((1i64 << BITS) - 1) << BITS) as f64)?;
        let high = self.b.with(Binary::Div, high, (1i64 << BITS) as f64)?;
        let high = self.b.convert(high, DType::F32)?;
        let turn = self.b.scale(high, one * std::f64::consts::TAU)?;
        let turn = self.b.unary(Unary::Cos, turn)?;
        let log = self.b.unary(Unary::Log, low)?;
        let square = self.b.scale(log, -2.0)?;
        let length = self.b.unary(Unary::Sqrt, square)?;
        self.b.mul(length, turn)
    }

    /// Random bits for each element of `x`, 1 element along shared axes.
    fn bits(&mut self, x: ValueId) -> Result<ValueId> {
        let mut dims = self.b.dims(x)?;
        let batch = self.b.dims(self.streams)?[0];
        let rows = dims.first().copied().unwrap_or(1);
        self.noise.shared.iter().for_each(|&axis| dims[axis as usize] = 1);
        let together = dims.is_empty() || self.noise.shared.contains(&0) || batch == 0 || rows % batch != 0;
        // One stream for each sample, or for the step.
        let (streams, mut own) = if together {
            let first = self.b.part(self.streams, 0, 0, 1)?;
            (self.b.with(Binary::And, first, -SAMPLES as f64)?, vec![1])
        } else if rows == batch {
            (self.streams, vec![batch])
        } else {
            (self.streams, vec![batch, rows / batch])
        };
        let site = self.b.number(DType::I64, self.site as f64)?;
        let streams = self.b.binary(Binary::Hash, site, streams)?;
        own.extend(dims.iter().skip(usize::from(!together)));
        let mut tall = vec![1; own.len()];
        tall[0] = own[0];
        let streams = self.b.reshape(streams, &tall)?;
        let mut wide = own.clone();
        wide[0] = 1;
        let positions = self.b.iota(DType::I64, &[wide.iter().product()], 0);
        let positions = self.b.reshape(positions, &wide)?;
        let bits = self.b.binary(Binary::Hash, positions, streams)?;
        self.b.reshape(bits, &dims)
    }
}

/// Scale and alpha of SELU.
const SELU: (f64, f64) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
