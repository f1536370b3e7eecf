//! How much memory does where operations may be split: less than where each is whole on a device.

use super::super::{Options, compile_with};
use crate::control::Control;
use crate::error::{Error, Repair, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::Effort;
use crate::plan::Plan;
use crate::topology::{Role, Topology};
use crate::units::Bytes;

/// Sizes that are tried: each is a whole search for a way to split.
const SIZES: usize = 6;
/// Smaller sizes that are tried with more than the least effort.
const CONFIRMED: usize = 2;
/// Nodes times devices beyond which none are.
const MOST_CONFIRMED: usize = 1 << 10;
/// Nodes of a network beyond which none is tried.
const MOST_NODES: usize = 2_000;

/// A network that does not fit as it is.
pub(super) struct WithSplits<'t, 'c> {
    pub(super) graph: &'t Graph,
    pub(super) topology: &'t Topology,
    pub(super) options: &'t Options,
    pub(super) control: &'t Control<'c>,
}

impl WithSplits<'_, '_> {
    /// Less memory than `known` that does if it is added to each device that computes, to about one part in sixty-four of
    /// what they have then. None where none was found.
    pub(super) fn least(&self, known: Bytes) -> Result<Option<Repair>> {
        let split = &self.options.split;
        let may_split = split.auto && split.planned.is_none() && self.options.pipeline.is_none();
        if !may_split || self.graph.node_count() > MOST_NODES {
            return Ok(None);
        }
        let (mut fails, mut works, mut excess) = (0, known.get(), 0);
        for _ in 0..SIZES {
            if self.control.stopped() {
                return Ok(None);
            }
            if works - fails <= self.memory(works).get() / 64 {
                break;
            }
            // What the last plan's arenas take is a closer guess than the middle.
            let is_between = excess > fails && excess < works;
            let next = if is_between { excess } else { fails + (works - fails) / 2 };
            match self.planned(next, Effort::Fast)? {
                Some(plan) => (works, excess) = (next, self.excess(&plan)),
                None => fails = next,
            }
        }
        if works == known.get() {
            return Ok(None);
        }
        let Some((fails, works)) = self.confirmed(fails, works)? else { return Ok(None) };
        Ok(Some(Repair::Memory {
            device: None,
            more: Bytes(works),
            memory: self.memory(works),
            fails: Bytes(fails),
            recomputed: 0,
            offloaded: 0,
            split: true,
            unequal: !super::equal(self.topology),
        }))
    }

    /// With the effort that was asked for: what it does with, where that is at most `works`, and the most that was tried in
    /// vain.
    fn confirmed(&self, fails: u64, works: u64) -> Result<Option<(u64, u64)>> {
        let effort = self.options.place.effort;
        if effort == Effort::Fast {
            return Ok(Some((fails, works)));
        }
        let (mut fails, mut least) = (0, None);
        let pairs = self.graph.node_count().saturating_mul(self.topology.computing().count());
        let smaller = if pairs > MOST_CONFIRMED { 0 } else { CONFIRMED };
        for _ in 0..smaller {
            let most = least.unwrap_or(works);
            let next = fails + (most - fails) / 2;
            match self.planned(next, effort)? {
                Some(_) => least = Some(next),
                None => fails = next,
            }
        }
        if least.is_none() && self.planned(works, effort)?.is_none() {
            return Ok(None);
        }
        Ok(Some((fails, least.unwrap_or(works))))
    }

    /// The plan with so much more memory; none where none is found.
    fn planned(&self, more: u64, effort: Effort) -> Result<Option<Plan>> {
        let mut topology = self.topology.clone();
        for device in topology.devices.iter_mut().filter(|device| device.role == Role::Compute) {
            device.memory += Bytes(more);
        }
        let mut options = self.options.clone();
        options.place.effort = effort;
        let model = Model::Graph(self.graph.clone());
        match compile_with(model, &topology, &options, self.control) {
            Ok(compiled) => Ok(Some(compiled.plan)),
            Err(Error::Infeasible(_) | Error::Usage(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the largest device has with so much more.
    fn memory(&self, more: u64) -> Bytes {
        let devices = self.topology.devices.iter().filter(|device| device.role == Role::Compute);
        devices.map(|device| device.memory).max().unwrap_or_default() + Bytes(more)
    }

    /// What a plan's arenas take beyond what devices have, reserve included.
    fn excess(&self, plan: &Plan) -> u64 {
        let devices = self.topology.devices.iter().zip(&plan.devices);
        let over = devices.map(|(device, planned)| {
            let arena = planned.arena + self.options.place.reserve;
            arena.saturating_sub(device.memory).get()
        });
        over.max().unwrap_or(0)
    }
}
