use super::frontier::{CopiedNet, Frontier};
use super::order::order;
use super::prices::Master;
use super::search::{Budget, Class, Search};
use crate::random::Rng;

/// Groups with times, or none where they cannot be, and nets between some of them.
struct Instance {
    times: Vec<Option<u64>>,
    nets: Vec<CopiedNet>,
}

impl Instance {
    fn new(rng: &mut Rng) -> Self {
        let groups = 3 + rng.below(5);
        let times = (0..groups).map(|_| (rng.below(8) > 0).then(|| rng.below(20) as u64)).collect();
        let net = |rng: &mut Rng| {
            let mut members: Vec<u32> = (0..2 + rng.below(3)).map(|_| rng.below(groups) as u32).collect();
            members.sort_unstable();
            members.dedup();
            (members.len() > 1).then(|| CopiedNet { members, load: rng.below(9) as u64 })
        };
        let nets = (0..2 * groups).filter_map(|_| net(rng)).collect();
        Self { times, nets }
    }

    fn frontier(&self, limit: u64) -> Frontier {
        let order = order(self.times.len(), &self.nets, 3);
        Frontier::new(&order, &self.times, &self.nets, limit, usize::MAX).expect("few states")
    }

    /// The load of a set of groups with its copies.
    fn load(&self, set: u32) -> Option<u64> {
        let is_in = |group: usize| set >> group & 1 == 1;
        let times: Option<u64> =
            (0..self.times.len()).filter(|&group| is_in(group)).map(|at| self.times[at]).sum();
        let is_cut = |net: &&CopiedNet| {
            let count = net.members.iter().filter(|&&group| is_in(group as usize)).count();
            count > 0 && count < net.members.len()
        };
        let copies: u64 = self.nets.iter().filter(is_cut).map(|net| net.load).sum();
        Some(times? + copies)
    }

    fn sets(&self) -> std::ops::Range<u32> {
        0..1 << self.times.len()
    }
}

fn bits(set: &[u32]) -> u32 {
    set.iter().map(|group| 1 << group).sum()
}

#[test]
fn least_loads_are_those_of_all_sets() {
    let mut rng = Rng::new(3);
    for _ in 0..200 {
        let instance = Instance::new(&mut rng);
        let limit = 10 + rng.below(50) as u64;
        let weights: Vec<u32> = instance.times.iter().map(|_| rng.below(4) as u32).collect();
        let weight =
            |set: u32| (0..weights.len()).filter(|at| set >> at & 1 == 1).map(|at| weights[at]).sum::<u32>();
        let frontier = instance.frontier(limit);
        let filled = frontier.fill(&weights);
        for sought in 0..=weights.iter().sum() {
            let of_weight = instance.sets().filter(|&set| weight(set) == sought);
            let least = of_weight.filter_map(|set| instance.load(set)).filter(|&load| load <= limit).min();
            let found = filled.loads().get(sought as usize).copied().filter(|&load| load <= limit);
            assert_eq!(found, least);
            if let Some(load) = found {
                let set = bits(&frontier.set(&filled, &weights, sought as usize));
                assert_eq!((weight(set), instance.load(set)), (sought, Some(load)));
            }
        }
    }
}

#[test]
fn an_order_has_each_group_once() {
    let mut rng = Rng::new(4);
    for _ in 0..50 {
        let instance = Instance::new(&mut rng);
        let mut order = order(instance.times.len(), &instance.nets, 3);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..instance.times.len() as u32));
    }
}

/// An engine that holds any two of three groups: one and a half of it cover all, at a half for each group.
#[test]
fn prices_are_those_of_the_best_cover() {
    let mut master = Master::new(3, &[1]);
    for pair in [[0, 1], [1, 2], [0, 2]] {
        master.add(&pair, 0);
    }
    let (engines, prices) = master.prices(&mut 0);
    assert!((engines - 1.5).abs() < 1e-3, "{engines}");
    assert!(prices.iter().all(|price| (price - 0.5).abs() < 1e-3), "{prices:?}");
}

#[test]
fn no_bound_is_above_the_best_of_all_splits_in_two() {
    let mut rng = Rng::new(5);
    let (mut met, mut splits) = (0, 0);
    for _ in 0..200 {
        let mut instance = Instance::new(&mut rng);
        instance.times.iter_mut().for_each(|time| *time = Some(time.unwrap_or(7)));
        let all = instance.sets().end - 1;
        let highest = |set: u32| instance.load(set).max(instance.load(all & !set));
        let best = instance.sets().filter_map(highest).min().expect("a split");
        for most in [best, best + 1, best + best / 4 + 1].into_iter().filter(|&most| most > 0) {
            let class =
                Class { count: 2, times: instance.times.clone(), frontier: instance.frontier(most - 1) };
            let budget = Budget { weight: 100, work: 1_000_000 };
            let found = Search::new(&[class], budget, 0, most).run(&|| false);
            let value = found.map_or(0, |found| found.value);
            assert!(value <= best, "{value} is above {best}");
            met += usize::from(value == best);
            splits += 1;
        }
    }
    assert!(met * 2 > splits, "{met} of {splits}");
}
