//! An order of groups in which few nets are open at a time: nets with groups both before and after some place.

use std::collections::BTreeSet;

use super::frontier::CopiedNet;

/// States of a net between the first of its groups and the last: all in, all out, cut.
const SIDES: f64 = 3.0;

/// Open nets up to which their states are told from one another.
const MOST_OPEN: i64 = 40;

/// Always the group that leaves the fewest nets open, of those that share a net with what comes before. The best order
/// of a few beginnings. O(beginnings x groups x nets of the groups that border on what comes before).
pub(super) fn order(groups: usize, nets: &[CopiedNet], beginnings: usize) -> Vec<u32> {
    let mut of_group = vec![Vec::new(); groups];
    for (number, net) in nets.iter().enumerate() {
        net.members.iter().for_each(|&group| of_group[group as usize].push(number as u32));
    }
    // At an end of the graph few nets are open.
    let ends = (0..groups as u32).filter(|&group| of_group[group as usize].len() < 2);
    let first = ends.take(beginnings).chain((groups > 0).then_some(0));
    let orders = first.map(|first| Growth::new(nets, &of_group).from(first));
    orders.min_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(Vec::new, |(_, order)| order)
}

/// An order while it grows.
struct Growth<'g> {
    nets: &'g [CopiedNet],
    /// By group, its nets.
    of_group: &'g [Vec<u32>],
    /// By net, how many of its groups are still to come.
    left: Vec<usize>,
    waits: BTreeSet<u32>,
    /// Those of them that share a net with what comes before.
    near: BTreeSet<u32>,
}

impl<'g> Growth<'g> {
    fn new(nets: &'g [CopiedNet], of_group: &'g [Vec<u32>]) -> Self {
        Self {
            nets,
            of_group,
            left: nets.iter().map(|net| net.members.len()).collect(),
            waits: (0..of_group.len() as u32).collect(),
            near: BTreeSet::new(),
        }
    }

    /// The order that begins with a group, and about how many states it has.
    fn from(mut self, first: u32) -> (f64, Vec<u32>) {
        let (mut order, mut states, mut open) = (Vec::new(), 0.0, 0);
        let mut next = Some(first);
        while let Some(group) = next {
            open += self.opens(group);
            states += SIDES.powi(open.min(MOST_OPEN) as i32);
            order.push(group);
            self.append(group);
            let cheapest = self.near.iter().copied().min_by_key(|&group| (self.opens(group), group));
            next = cheapest.or_else(|| self.waits.first().copied());
        }
        (states, order)
    }

    fn append(&mut self, group: u32) {
        self.waits.remove(&group);
        self.near.remove(&group);
        for &net in &self.of_group[group as usize] {
            self.left[net as usize] -= 1;
            let members = self.nets[net as usize].members.iter();
            self.near.extend(members.filter(|member| self.waits.contains(member)));
        }
    }

    /// How many more nets are open after a group.
    fn opens(&self, group: u32) -> i64 {
        let change = |&net: &u32| match (self.left[net as usize], self.nets[net as usize].members.len()) {
            (1, _) => -1,
            (left, all) if left == all => 1,
            _ => 0,
        };
        self.of_group[group as usize].iter().map(change).sum()
    }
}
