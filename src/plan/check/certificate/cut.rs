//! Bytes that parts must move because no device holds all of the model.
//!
//! What a device computes is a part: a set of classes that weighs neither more than the device
//! holds nor less than what the others have no room for. A part pays for each net that it shares
//! with others; in full, and no part pays more than the whole plan; or by the pins that it lacks,
//! and all parts together pay what the plan moves. How little the part with a given node pays is
//! proven by cases: a node is in the part or not, down to cases in which a minimum cut, where
//! classes pay by weight at some price and what the limit is worth is given back, is enough.

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use super::flow::{Network, UNLIMITED};
use super::parts::{Parts, Resource};

/// The most work that one proof may take, in arcs looked at.
const WORK: u64 = 20_000_000_000;

/// The highest price.
const PRICE: u64 = 1 << 60;

/// A step of a proof by cases, in preorder.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Case {
    /// The cases without this node's class, then those with it.
    Split(u32),
    /// The price of all weight in this case; below zero it rewards weight.
    Price(i64),
}

/// The part with one node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CutPart {
    node: u32,
    cases: Vec<Case>,
}

/// `{"of":"memory","part":{"node":4,"cases":[{"split":7},{"price":5000},{"price":0}]}}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cut {
    of: Resource,
    part: CutPart,
}

/// `{"of":"memory","parts":[{"node":4,"cases":[{"price":5000}]}]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cuts {
    of: Resource,
    parts: Vec<CutPart>,
}

impl Proof for Cut {
    fn proven(&self, facts: &Facts<'_>, _: u64) -> Result<u64, String> {
        let parts = Parts::new(facts, self.of)?;
        let mut cutter = Cutter::new(facts, &parts, in_full(&parts));
        cutter.least(&self.part)
    }
}

impl Proof for Cuts {
    fn proven(&self, facts: &Facts<'_>, _: u64) -> Result<u64, String> {
        let parts = Parts::new(facts, self.of)?;
        let mut cutter = Cutter::new(facts, &parts, by_shares(&parts));
        let mut counted = vec![false; parts.first.len()];
        let mut paid: Vec<(u64, Vec<usize>, bool)> = Vec::new();
        for part in &self.parts {
            let pays = cutter.least(part)?;
            let members: Vec<usize> = (0..counted.len()).filter(|&class| cutter.inside[class]).collect();
            for &class in &members {
                if std::mem::replace(&mut counted[class], true) {
                    return Err(format!("node {} is in two parts of the proof", part.node));
                }
            }
            let node = parts.first[members[0]];
            paid.push((pays, members, facts.devices(node).len() == 1));
        }
        paid.sort_by_key(|&(pays, ..)| std::cmp::Reverse(pays));
        let (mut weight, mut missing, mut separate, mut sum) = (0u64, counted.len(), 0u64, 0u128);
        for (i, (pays, members, fixed)) in paid.iter().enumerate() {
            weight += members.iter().map(|&class| parts.weight[class]).sum::<u64>();
            missing -= members.len();
            separate += u64::from(*fixed);
            let next = paid.get(i + 1).map_or(0, |next| next.0);
            let devices = parts.devices_for(weight, missing).max(separate);
            sum = sum.saturating_add(u128::from(devices) * u128::from(pays - next));
        }
        Ok(u64::try_from(sum).unwrap_or(u64::MAX))
    }
}

/// Finds minimum cuts around parts.
struct Cutter<'c, 'a> {
    facts: &'c Facts<'a>,
    parts: &'c Parts,
    network: Network,
    total: u64,
    /// By class, whether it is in the part at hand, before any case is distinguished.
    inside: Vec<bool>,
}

/// What is decided in a case, and undone after it.
enum CutStep {
    Enter(Option<(u32, bool)>),
    Leave(u32),
}

impl<'c, 'a> Cutter<'c, 'a> {
    fn new(facts: &'c Facts<'a>, parts: &'c Parts, network: Network) -> Self {
        Self { facts, parts, network, total: parts.weight.iter().sum(), inside: Vec::new() }
    }

    /// The least that the part with a node pays, on whichever device it is.
    fn least(&mut self, part: &CutPart) -> Result<u64, String> {
        let Parts { first, free, caps, .. } = self.parts;
        let root = self.parts.class(self.facts, part.node)? as usize;
        if !free[root] {
            return Err(format!("node {} is where no other work is done", part.node));
        }
        let devices = self.facts.devices(first[root]);
        let of = |class: usize| self.facts.devices(first[class]);
        let all = 0..first.len();
        // Classes whose only device is the root's only device are with it.
        self.inside =
            all.clone().map(|class| class == root || devices.len() == 1 && of(class) == devices).collect();
        let outside: Vec<bool> =
            all.map(|class| !of(class).iter().any(|device| devices.contains(device))).collect();
        let own = self.facts.workers.iter().zip(caps).filter(|(device, _)| devices.contains(device));
        let mut caps: Vec<u64> = own.map(|(_, &cap)| cap).collect();
        // Devices of one cap give the same part.
        caps.sort_unstable();
        caps.dedup();
        let mut cases = part.cases.iter();
        let mut least = u64::MAX;
        for cap in caps {
            least = least.min(self.tree(outside.clone(), cap, &mut cases)?);
        }
        if cases.next().is_some() { Err("a proof by cases goes on after its end".into()) } else { Ok(least) }
    }

    /// The least over the cases of one tree.
    fn tree<'p>(
        &mut self,
        mut outside: Vec<bool>,
        cap: u64,
        cases: &mut impl Iterator<Item = &'p Case>,
    ) -> Result<u64, String> {
        let mut inside = self.inside.clone();
        let mut least = u64::MAX;
        let mut steps = vec![CutStep::Enter(None)];
        while let Some(step) = steps.pop() {
            match step {
                CutStep::Leave(class) => (inside[class as usize], outside[class as usize]) = (false, false),
                CutStep::Enter(chosen) => {
                    if let Some((class, with)) = chosen {
                        let side = if with { &mut inside } else { &mut outside };
                        side[class as usize] = true;
                        steps.push(CutStep::Leave(class));
                    }
                    match cases.next() {
                        Some(&Case::Price(price)) => {
                            least = least.min(self.cut(&inside, &outside, cap, price)?)
                        }
                        Some(&Case::Split(node)) => {
                            let class = self.parts.class(self.facts, node)?;
                            if inside[class as usize] || outside[class as usize] {
                                return Err(format!("node {node} is decided twice"));
                            }
                            // The case without the class comes first in the proof, so it is pushed last.
                            steps.push(CutStep::Enter(Some((class, true))));
                            steps.push(CutStep::Enter(Some((class, false))));
                        }
                        None => return Err("a proof by cases lacks a case".into()),
                    }
                }
            }
        }
        Ok(least)
    }

    /// What a part pays at least in one case; the most there is where no part is like that.
    fn cut(&mut self, inside: &[bool], outside: &[bool], cap: u64, price: i64) -> Result<u64, String> {
        let Parts { weight, need, .. } = self.parts;
        let rate = price.unsigned_abs();
        if rate > PRICE {
            return Err(format!("price {price} is out of range"));
        }
        let classes = |side: &'_ [bool]| (0..weight.len()).filter(|&class| side[class]).collect::<Vec<_>>();
        let (members, others) = (classes(inside), classes(outside));
        let needs = |side: &[usize]| side.iter().map(|&class| need[class]).max().unwrap_or(0);
        let rest = self.parts.beside(cap).checked_sub(needs(&others));
        let (Some(high), Some(rest)) = (cap.checked_sub(needs(&members)), rest) else { return Ok(u64::MAX) };
        let low = self.total.saturating_sub(rest);
        let lightest: u64 = members.iter().map(|&class| weight[class]).sum();
        let left_out: u64 = others.iter().map(|&class| weight[class]).sum();
        if lightest > high || self.total - left_out < low {
            return Ok(u64::MAX);
        }
        let (rate, all) = (u128::from(rate), u128::from(self.total.max(1)));
        let mut constant = 0;
        for (class, &weight) in weight.iter().enumerate() {
            let paid = rate * u128::from(weight);
            let (mut supply, mut demand) =
                if price < 0 { (paid.div_ceil(all) as u64, 0) } else { (0, (paid / all) as u64) };
            constant += supply;
            if inside[class] {
                supply = UNLIMITED;
            }
            if outside[class] {
                demand = UNLIMITED;
            }
            (self.network.supply[class], self.network.demand[class]) = (supply, demand);
        }
        // Nodes of nets neither give nor take.
        for node in weight.len()..self.network.supply.len() {
            (self.network.supply[node], self.network.demand[node]) = (0, 0);
        }
        let flow = self.network.most();
        if self.network.work > WORK {
            return Err("it takes more work than is sensible".into());
        }
        // Rounded on the side of the bound, so that no plan is excluded.
        let worth = |weight: u64| rate * u128::from(weight);
        Ok(if price < 0 {
            let reward = u64::try_from(worth(low).div_ceil(all)).unwrap_or(u64::MAX);
            flow.saturating_add(reward).saturating_sub(constant)
        } else {
            flow.saturating_sub(u64::try_from(worth(high) / all).unwrap_or(u64::MAX))
        })
    }
}

/// Cutting off some of a net's classes costs all of its bytes.
fn in_full(parts: &Parts) -> Network {
    let mut network = Network::default();
    for _ in &parts.first {
        network.node();
    }
    for (bytes, classes) in &parts.nets {
        if let &[a, b] = &classes[..] {
            network.connect(a, b, *bytes, *bytes);
            continue;
        }
        let (enter, exit) = (network.node(), network.node());
        network.connect(enter, exit, *bytes, 0);
        for &class in classes {
            network.connect(class, enter, *bytes, 0);
            network.connect(exit, class, *bytes, 0);
        }
    }
    network
}

/// Cutting off some of a net's classes costs the shares of the others, which are equal, but for
/// the first ones' remainder.
fn by_shares(parts: &Parts) -> Network {
    let mut network = Network::default();
    for _ in &parts.first {
        network.node();
    }
    for (bytes, classes) in &parts.nets {
        let middle = network.node();
        let count = classes.len() as u64;
        for (i, &class) in classes.iter().enumerate() {
            let share = bytes / count + u64::from((i as u64) < bytes % count);
            network.connect(class, middle, *bytes, share);
        }
    }
    network
}
