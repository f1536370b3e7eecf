//! The least that a part must pay that holds a certain unit and obeys a limit on its weight.
//!
//! The limit is relaxed: each unit pays a price by its weight, and what the whole limit would cost
//! is given back. One price takes one minimum cut, whose value is a bound; the best price is where
//! a light set and a heavy one cost the same (Newton's method on the concave dual). Where the two
//! sets are far apart, a unit that only one of them holds is chosen, and both cases, in the part
//! or not, are bounded on their own: branch and bound. The proof is the tree of cases with a
//! price at each leaf.

use super::flow::{Pay, network};
use super::hypergraph::Hypergraph;
use crate::place::flow::{Network, UNLIMITED};

/// What parts weigh.
#[derive(Debug)]
pub(super) struct Weights {
    /// By unit.
    pub(super) of: Vec<u64>,
    /// Of all units.
    pub(super) total: u64,
    /// By unit, what else its part must have room for while it runs.
    pub(super) need: Vec<u64>,
}

/// A kind of room that a part may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// What it holds.
    pub(super) cap: u64,
    /// What all others hold.
    pub(super) others: u64,
}

/// The least and the most that a part weighs.
#[derive(Clone, Copy, Debug)]
struct Window {
    least: u64,
    most: u64,
}

/// What a part may be that holds a certain unit.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// One for each kind of room that the unit may be in.
    pub(super) places: Vec<Place>,
    /// By unit, whether it is in this part whatever is chosen.
    pub(super) inside: Vec<bool>,
    /// By unit, whether it is in another part whatever is chosen.
    pub(super) outside: Vec<bool>,
}

/// A step of a proof by cases, in preorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// First comes the proof without this unit in the part, then the one with it.
    Split(u32),
    /// A minimum cut at this price for all weight; below zero it rewards weight.
    Price(i64),
}

/// A bound with its proof.
#[derive(Clone, Debug)]
pub(super) struct Rooted {
    /// The least that a part with the unit pays; [`u64::MAX`] where there is no such part.
    pub(super) value: u64,
    /// The proofs, one place after the other.
    pub(super) cases: Vec<Case>,
    /// The cheapest part found, and where it is.
    pub(super) part: Option<(Place, Vec<bool>)>,
}

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Cases for each place.
    pub(super) cases: usize,
    /// No further case or price once the network has done this much work.
    pub(super) work: u64,
    /// A bound that is as good as any.
    pub(super) target: u64,
    /// Prices tried for each case.
    pub(super) prices: usize,
    /// The price to begin with, where one like it is right.
    pub(super) hint: i64,
}

/// A set of units with what it pays and weighs.
#[derive(Clone, Debug)]
struct Side {
    pays: u64,
    weighs: u64,
    units: Vec<bool>,
}

/// A case that is not decided further, so far.
#[derive(Debug)]
struct Leaf {
    node: usize,
    value: u64,
    price: i64,
    /// A lighter and a heavier set between which no price decides.
    between: Option<(Side, Side)>,
}

/// A case, split or not.
#[derive(Debug)]
struct Node {
    /// The case that it is part of, and whether the unit that splits that is in the part.
    above: Option<(usize, u32, bool)>,
    /// The unit that splits it, and the first of its two cases.
    split: Option<(u32, usize)>,
    price: i64,
}

/// Bounds parts of one hypergraph, unit by unit.
#[derive(Debug)]
pub(super) struct Search<'h> {
    graph: &'h Hypergraph,
    weights: &'h Weights,
    pay: Pay,
    pub(super) network: Network,
    inside: Vec<bool>,
    outside: Vec<bool>,
    place: Place,
    /// The cheapest part found here, and what it pays.
    part: Option<Vec<bool>>,
    upper: u64,
}

/// The highest price, so that sums over all units stay far below 2^64.
const LIMIT: i128 = 1 << 60;

/// Prices that find the best one for nearly every case.
pub(super) const PRICES: usize = 12;

impl<'h> Search<'h> {
    /// Prepares the network. O(pins).
    pub(super) fn new(graph: &'h Hypergraph, weights: &'h Weights, pay: Pay) -> Self {
        let units = graph.units();
        let network = network(graph, pay);
        Self {
            graph,
            weights,
            pay,
            network,
            inside: vec![false; units],
            outside: vec![false; units],
            place: Place { cap: u64::MAX, others: u64::MAX },
            part: None,
            upper: u64::MAX,
        }
    }

    /// Bounds what a part pays, wherever it is.
    pub(super) fn bound(&mut self, part: &Part, effort: Effort) -> Rooted {
        let mut found = Rooted { value: u64::MAX, cases: Vec::new(), part: None };
        let mut cheapest = u64::MAX;
        for &place in &part.places {
            self.place = place;
            let target = effort.target.min(found.value);
            found.value = self.tree(part, Effort { target, ..effort }, &mut found.cases).min(found.value);
            if let Some(part) = self.part.take().filter(|_| self.upper < cheapest) {
                cheapest = self.upper;
                found.part = Some((place, part));
            }
        }
        found
    }

    /// Splits the weakest case again and again; appends the proof to `cases`.
    fn tree(&mut self, part: &Part, effort: Effort, cases: &mut Vec<Case>) -> u64 {
        (self.upper, self.part) = (u64::MAX, None);
        let mut nodes = vec![Node { above: None, split: None, price: 0 }];
        self.enter(part, &nodes, 0);
        let mut leaves = vec![self.leaf(0, effort.hint, effort)];
        while leaves.len() < effort.cases && self.network.work < effort.work {
            let Some(at) = (0..leaves.len()).min_by_key(|&i| (leaves[i].value, i)) else { break };
            if leaves[at].value >= effort.target.min(self.upper) {
                break;
            }
            let Some((light, heavy)) = leaves[at].between.take() else { break };
            let (node, price) = (leaves[at].node, leaves[at].price);
            self.enter(part, &nodes, node);
            let Some(unit) = self.choose(&light, &heavy, price) else { break };
            leaves.swap_remove(at);
            nodes[node].split = Some((unit, nodes.len()));
            for with in [false, true] {
                nodes.push(Node { above: Some((node, unit, with)), split: None, price: 0 });
            }
            for child in [nodes.len() - 2, nodes.len() - 1] {
                self.enter(part, &nodes, child);
                leaves.push(self.leaf(child, price, effort));
            }
        }
        for leaf in &leaves {
            nodes[leaf.node].price = leaf.price;
        }
        preorder(&nodes, cases);
        leaves.iter().map(|leaf| leaf.value).min().unwrap_or(0)
    }

    /// Sets what is inside and outside in a case.
    fn enter(&mut self, part: &Part, nodes: &[Node], mut node: usize) {
        self.inside.copy_from_slice(&part.inside);
        self.outside.copy_from_slice(&part.outside);
        while let Some((parent, unit, with)) = nodes[node].above {
            let side = if with { &mut self.inside } else { &mut self.outside };
            side[unit as usize] = true;
            node = parent;
        }
    }

    /// What the part may weigh, room for what its units need while they run taken off, and off
    /// that of the others for theirs; none where nothing is left.
    fn limits(&self) -> Option<Window> {
        let need = |side: &[bool]| {
            let units = (0..side.len()).filter(|&unit| side[unit]);
            units.map(|unit| self.weights.need[unit]).max().unwrap_or(0)
        };
        let most = self.place.cap.checked_sub(need(&self.inside))?;
        let others = self.place.others.checked_sub(need(&self.outside))?;
        Some(Window { least: self.weights.total.saturating_sub(others), most })
    }

    fn side(&self, units: Vec<bool>) -> Side {
        let is_inside = |unit: &u32| units[*unit as usize];
        let pays = (0..self.graph.nets()).map(|net| match self.pay {
            Pay::Whole => {
                let pins = self.graph.pins(net);
                let count = pins.iter().filter(|unit| is_inside(unit)).count();
                if count > 0 && count < pins.len() { self.graph.cost[net] } else { 0 }
            }
            Pay::Shares if self.graph.pins(net).iter().any(is_inside) => {
                self.graph.shares(net).filter(|(unit, _)| !is_inside(unit)).map(|(_, share)| share).sum()
            }
            Pay::Shares => 0,
        });
        let pays = pays.sum();
        let weighs = (0..units.len()).filter(|&unit| units[unit]).map(|unit| self.weights.of[unit]).sum();
        Side { pays, weighs, units }
    }

    /// Bounds the case that was entered.
    fn leaf(&mut self, node: usize, hint: i64, effort: Effort) -> Leaf {
        let impossible = Leaf { node, value: u64::MAX, price: 0, between: None };
        let Some(window) = self.limits() else { return impossible };
        let Window { least, most } = window;
        let inner = self.side(self.inside.clone());
        let outer = self.side(self.outside.iter().map(|&out| !out).collect());
        if inner.weighs > most || outer.weighs < least {
            return impossible;
        }
        // Without a price the cheapest set is the answer wherever it fits.
        let (value, free) = self.cut(0, window);
        let mut leaf = Leaf { node, value, price: 0, between: None };
        if free.weighs >= least && free.weighs <= most {
            self.note(&free);
            return leaf;
        }
        let heavy = free.weighs > most;
        let (light, heavy) = if heavy { (inner, free) } else { (free, outer) };
        self.search(&mut leaf, (light, heavy), hint, window, effort);
        leaf
    }

    /// Seeks the best price between a set that is too light, or as light as can be, and one that
    /// is too heavy.
    fn search(&mut self, leaf: &mut Leaf, between: (Side, Side), hint: i64, window: Window, effort: Effort) {
        let (mut light, mut heavy) = between;
        let Window { least, most } = window;
        let mut price = self.balanced(&light, &heavy);
        // The price that was right for the part before is near, if it pulls the same way.
        if hint.signum() == price.signum() {
            price = hint;
        }
        for _ in 0..effort.prices {
            let (value, side) = self.cut(price, window);
            if value > leaf.value {
                (leaf.value, leaf.price) = (value, price);
            }
            if side.weighs >= least && side.weighs <= most {
                self.note(&side);
            }
            if leaf.value >= effort.target.min(self.upper)
                || side.weighs == light.weighs
                || side.weighs == heavy.weighs
            {
                // At the price of the pair, no third set means that no price does better; a hint may just be
                // a bad one.
                if price != hint {
                    break;
                }
            } else if side.weighs <= if price > 0 { most } else { least } {
                light = side;
            } else {
                heavy = side;
            }
            let next = self.balanced(&light, &heavy);
            if next == price || self.network.work >= effort.work {
                break;
            }
            price = next;
        }
        leaf.between = Some((light, heavy));
    }

    /// Keeps a set within the limits where it is the cheapest.
    fn note(&mut self, side: &Side) {
        if side.pays < self.upper {
            self.upper = side.pays;
            self.part = Some(side.units.clone());
        }
    }

    /// The price at which two sets cost the same.
    fn balanced(&self, light: &Side, heavy: &Side) -> i64 {
        let rise = i128::from(light.pays) - i128::from(heavy.pays);
        let run = i128::from(heavy.weighs) - i128::from(light.weighs);
        let price = rise * i128::from(self.weights.total) / run.max(1);
        price.clamp(-LIMIT, LIMIT) as i64
    }

    /// A minimum cut at a price: the bound, and the cheapest set.
    fn cut(&mut self, price: i64, Window { least, most }: Window) -> (u64, Side) {
        let Weights { of, total, .. } = self.weights;
        let rate = u128::from(price.unsigned_abs());
        let total = u128::from((*total).max(1));
        // Rounded so that sums over a set err on the side of the bound: up where weight is rewarded, down
        // where it costs.
        let down = |weight: u64| (rate * u128::from(weight) / total) as u64;
        let up = |weight: u64| (rate * u128::from(weight)).div_ceil(total) as u64;
        let network = &mut self.network;
        let mut constant = 0u64;
        for unit in 0..of.len() {
            let (supply, demand) = (&mut network.supply[unit], &mut network.demand[unit]);
            (*supply, *demand) = if price < 0 { (up(of[unit]), 0) } else { (0, down(of[unit])) };
            constant += *supply;
            if self.inside[unit] {
                *supply = UNLIMITED;
            }
            if self.outside[unit] {
                *demand = UNLIMITED;
            }
        }
        let demands = |network: &Network, side: bool| -> u64 {
            let units = (0..of.len()).filter(|&unit| network.is_reached(unit) == side);
            units.map(|unit| if price < 0 { up(of[unit]) } else { down(of[unit]) }).sum()
        };
        let flow = network.run(usize::MAX);
        // The cut is what the set pays, and the price of what it takes or leaves.
        let pays = flow.saturating_sub(demands(network, price >= 0));
        let value = if price < 0 {
            (flow + up(least)).saturating_sub(constant)
        } else {
            flow.saturating_sub(down(most))
        };
        let units: Vec<bool> = (0..of.len()).map(|unit| network.is_reached(unit)).collect();
        let weighs = (0..of.len()).filter(|&unit| units[unit]).map(|unit| of[unit]).sum();
        (value, Side { pays, weighs, units })
    }

    /// The unit in the heavy set and not in the light one whose two cases promise most.
    fn choose(&mut self, light: &Side, heavy: &Side, price: i64) -> Option<u32> {
        let order = self.by_distance(light, heavy);
        let last = *order.last()?;
        // The farthest unit, those at the quarters of the weight, and the heaviest.
        let mut asked = vec![last];
        let weight: u128 = order.iter().map(|&unit| u128::from(self.weights.of[unit as usize])).sum();
        for part in [3, 2, 1] {
            let mut sum = 0u128;
            let unit = order.iter().find(|&&unit| {
                sum += u128::from(self.weights.of[unit as usize]);
                sum * 4 > weight * part
            });
            asked.extend(unit);
        }
        asked.extend(order.iter().max_by_key(|&&unit| self.weights.of[unit as usize]));
        asked.sort_unstable();
        asked.dedup();
        let mut best: Option<((u64, u64), u32)> = None;
        for unit in asked {
            let mut try_in = |set: fn(&mut Self) -> &mut Vec<bool>| {
                set(self)[unit as usize] = true;
                let value = self.limits().map_or(u64::MAX, |window| self.cut(price, window).0);
                set(self)[unit as usize] = false;
                value
            };
            let (out, inn) = (try_in(|this| &mut this.outside), try_in(|this| &mut this.inside));
            let score = (out.min(inn), out.max(inn));
            if best.is_none_or(|(other, _)| score > other) {
                best = Some((score, unit));
            }
        }
        best.map(|(_, unit)| unit)
    }

    /// What only the heavy set holds, nearest to the light one first.
    fn by_distance(&self, light: &Side, heavy: &Side) -> Vec<u32> {
        let mut seen: Vec<bool> = light.units.clone();
        let mut through = vec![false; self.graph.nets()];
        let mut queue: Vec<u32> = (0..seen.len() as u32).filter(|&unit| seen[unit as usize]).collect();
        let from = queue.len();
        let mut next = 0;
        while let Some(&unit) = queue.get(next) {
            next += 1;
            for &net in self.graph.nets_of(unit as usize) {
                if std::mem::replace(&mut through[net as usize], true) {
                    continue;
                }
                for &other in self.graph.pins(net as usize) {
                    if !std::mem::replace(&mut seen[other as usize], true) {
                        queue.push(other);
                    }
                }
            }
        }
        let mut order = queue.split_off(from);
        order.retain(|&unit| heavy.units[unit as usize] && !self.outside[unit as usize]);
        order
    }
}

fn preorder(nodes: &[Node], cases: &mut Vec<Case>) {
    let mut stack = vec![0];
    while let Some(at) = stack.pop() {
        match nodes[at].split {
            None => cases.push(Case::Price(nodes[at].price)),
            Some((unit, first)) => {
                cases.push(Case::Split(unit));
                stack.extend([first + 1, first]);
            }
        }
    }
}
