//! Which rule for links governs each pair of devices: patterns are matched here, and later rules
//! replace earlier ones.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use super::description::{DeviceGroup, Fault, FaultPart, LinkGroup};
use super::preset::PEER_LATENCY;
use super::site::Site;
use super::{Contention, Physical};
use crate::units::{Nanos, Rate};

/// The most pairs that all groups of links together may match.
const MAX_PAIRS: usize = 1 << 24;
/// What makes a pattern of a name.
const GLOB: [char; 2] = ['*', '?'];
/// The most bytes of a pattern.
const LONG: usize = 256;

/// The links of one group.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) rate: Rate,
    pub(super) latency: Nanos,
    pub(super) contention: Contention,
    /// The bus they are on.
    pub(super) shared: Option<String>,
    /// What each device sends, or receives, over all of them at once.
    pub(super) port: Option<Rate>,
}

/// What governs a pair of devices; positions in [`Links::rules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Governing {
    /// The backbone.
    Nothing,
    /// A direct link.
    Plain(u32),
    /// Staging through this device.
    Staged(u32),
}

/// The rules, and the one for each pair.
pub(super) struct Links {
    rules: Vec<Rule>,
    /// Row-major by (from, to).
    pairs: Vec<Governing>,
    count: usize,
    hosts: BTreeMap<(usize, usize), u32>,
}

impl Links {
    /// Matches all groups of links, the groups' own first. O(pairs matched + rules x devices).
    pub(super) fn new(
        hosts: &[String],
        physicals: &[Physical],
        sites: &[Site],
        groups: &[DeviceGroup],
        links: &[LinkGroup],
    ) -> Result<Self, Fault> {
        let count = physicals.len();
        let pairs = vec![Governing::Nothing; count * count];
        let mut all = Self { rules: Vec::new(), pairs, count, hosts: BTreeMap::new() };
        all.add_peers(sites, groups);
        let mut matched = 0;
        let mut staged = Vec::new();
        for (index, link) in links.iter().enumerate() {
            check(index, link)?;
            let rule = rule(link).map(|rule| all.add(rule));
            if let Some((from, to)) = host_pair(link, hosts) {
                all.join_hosts(index, link, rule, from, to)?;
                continue;
            }
            let ends = ends(index, link, physicals, &mut matched)?;
            match &link.via {
                None => all.join(&ends, rule, index)?,
                Some(via) => {
                    let stage = stage(index, via, physicals)?;
                    all.stage_pairs(&ends, stage, rule);
                    staged.push((ends, stage, rule));
                }
            }
        }
        for (ends, stage, rule) in staged {
            all.fill_legs(&ends, stage, rule);
        }
        all.check_buses(links)?;
        Ok(all)
    }

    /// The direct link from one device to another.
    pub(super) fn plain(&self, from: usize, to: usize) -> Option<&Rule> {
        match self.pairs[from * self.count + to] {
            Governing::Plain(rule) => Some(&self.rules[rule as usize]),
            Governing::Nothing | Governing::Staged(_) => None,
        }
    }

    /// The device that copies from one device to another are staged through.
    pub(super) fn stage(&self, from: usize, to: usize) -> Option<usize> {
        match self.pairs[from * self.count + to] {
            Governing::Staged(stage) => Some(stage as usize),
            Governing::Nothing | Governing::Plain(_) => None,
        }
    }

    /// The stated link from one host to another.
    pub(super) fn between_hosts(&self, from: usize, to: usize) -> Option<&Rule> {
        self.hosts.get(&(from, to)).map(|&rule| &self.rules[rule as usize])
    }

    fn add(&mut self, rule: Rule) -> u32 {
        self.rules.push(rule);
        self.rules.len() as u32 - 1
    }

    fn set(&mut self, from: usize, to: usize, governing: Governing) {
        self.pairs[from * self.count + to] = governing;
        self.pairs[to * self.count + from] = governing;
    }

    /// Joins the devices of each group that has links of its own.
    fn add_peers(&mut self, sites: &[Site], groups: &[DeviceGroup]) {
        let mut first = 0;
        while first < sites.len() {
            let group = sites[first].group;
            let members = sites[first..].iter().take_while(|site| site.group == group).count();
            let rate = groups[group].link.filter(|&rate| rate != Rate(0));
            if let Some(rate) = rate.filter(|_| members > 1) {
                let latency = groups[group].latency.unwrap_or(PEER_LATENCY);
                let (contention, port) = (groups[group].contention, groups[group].port);
                let rule = Rule { rate, latency, contention, shared: None, port };
                let rule = self.add(rule);
                for from in first..first + members {
                    for to in first..from {
                        self.set(from, to, Governing::Plain(rule));
                    }
                }
            }
            first += members;
        }
    }

    fn join_hosts(
        &mut self,
        index: usize,
        link: &LinkGroup,
        rule: Option<u32>,
        from: usize,
        to: usize,
    ) -> Result<(), Fault> {
        if link.via.is_some() {
            return Err(Fault::new(FaultPart::Link(index), "via", "a link between hosts cannot be staged")
                .help("name the devices in `between`"));
        }
        if from == to {
            return Err(Fault::new(FaultPart::Link(index), "between", "joins a host to itself"));
        }
        let rule = rule.ok_or_else(|| no_bandwidth(index))?;
        self.hosts.insert((from, to), rule);
        self.hosts.insert((to, from), rule);
        Ok(())
    }

    fn join(&mut self, ends: &Ends, rule: Option<u32>, index: usize) -> Result<(), Fault> {
        let rule = rule.ok_or_else(|| no_bandwidth(index))?;
        ends.each(|from, to| self.set(from, to, Governing::Plain(rule)));
        Ok(())
    }

    /// Pairs of which the stage itself is one are not staged: they are legs.
    fn stage_pairs(&mut self, ends: &Ends, stage: usize, rule: Option<u32>) {
        ends.each(|from, to| {
            if from != stage && to != stage {
                self.set(from, to, Governing::Staged(stage as u32));
            } else if let Some(rule) = rule {
                self.set(from, to, Governing::Plain(rule));
            }
        });
    }

    /// Gives the legs to and from a stage the rule's link where they have none.
    fn fill_legs(&mut self, ends: &Ends, stage: usize, rule: Option<u32>) {
        let Some(rule) = rule else { return };
        for &end in ends.from.iter().chain(&ends.to) {
            if end != stage && self.plain(end, stage).is_none() {
                self.set(end, stage, Governing::Plain(rule));
            }
        }
    }

    /// All links on one bus have its bandwidth.
    fn check_buses(&self, links: &[LinkGroup]) -> Result<(), Fault> {
        let mut buses: BTreeMap<&str, (Option<Rate>, Contention)> = BTreeMap::new();
        for (index, link) in links.iter().enumerate() {
            let Some(bus) = &link.shared else { continue };
            let own = (link.bandwidth, link.contention);
            let first = *buses.entry(bus).or_insert(own);
            if first != own {
                let message = format!("the links on bus `{bus}` differ in bandwidth or contention");
                return Err(Fault::new(FaultPart::Link(index), "shared", message)
                    .help("a bus has one bandwidth, which all its links share"));
            }
        }
        Ok(())
    }
}

/// The devices that the two patterns of a group of links match.
struct Ends {
    from: Vec<usize>,
    to: Vec<usize>,
}

impl Ends {
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for &from in &self.from {
            for &to in self.to.iter().filter(|&&to| to != from) {
                visit(from, to);
            }
        }
    }
}

fn no_bandwidth(index: usize) -> Fault {
    Fault::new(FaultPart::Link(index), "bandwidth", "a link without a bandwidth")
        .help("say `bandwidth = \"25GB/s\"`")
}

fn check(index: usize, link: &LinkGroup) -> Result<(), Fault> {
    let fault = |key, message: &str| Err(Fault::new(FaultPart::Link(index), key, message));
    if link.bandwidth == Some(Rate(0)) {
        return fault("bandwidth", "bandwidth is zero");
    }
    if link.between.iter().chain(&link.via).any(|pattern| pattern.len() > LONG) {
        return fault("between", "a pattern is longer than 256 bytes");
    }
    let Some(bus) = &link.shared else { return Ok(()) };
    if bus.is_empty() || bus.len() > LONG {
        return fault("shared", "the name of a bus has 1 to 256 bytes");
    }
    if link.bandwidth.is_none() { Err(no_bandwidth(index)) } else { Ok(()) }
}

fn rule(link: &LinkGroup) -> Option<Rule> {
    Some(Rule {
        rate: link.bandwidth?,
        latency: link.latency.unwrap_or(PEER_LATENCY),
        contention: link.contention,
        shared: link.shared.clone(),
        port: None,
    })
}

fn host_pair(link: &LinkGroup, hosts: &[String]) -> Option<(usize, usize)> {
    let [from, to] = link.between.each_ref().map(|name| hosts.iter().position(|host| host == name));
    Some((from?, to?))
}

/// The device that a name stands for; a slice's name stands for its physical device.
fn position(name: &str, physicals: &[Physical]) -> Option<usize> {
    let exact = |name: &str| physicals.iter().position(|physical| physical.name == name);
    exact(name).or_else(|| {
        let (device, slice) = name.rsplit_once('.')?;
        slice.parse::<u32>().ok()?;
        exact(device)
    })
}

fn stage(index: usize, via: &str, physicals: &[Physical]) -> Result<usize, Fault> {
    position(via, physicals).ok_or_else(|| unknown(index, "via", via, physicals))
}

fn unknown(index: usize, key: &'static str, name: &str, physicals: &[Physical]) -> Fault {
    if name.contains(GLOB) {
        return Fault::new(FaultPart::Link(index), key, format!("`{name}` matches no device"));
    }
    let names = physicals.iter().map(|physical| physical.name.as_str());
    Fault::new(FaultPart::Link(index), key, format!("no device is named `{name}`"))
        .help(super::near::suggestion(name, names))
}

fn ends(index: usize, link: &LinkGroup, physicals: &[Physical], matched: &mut usize) -> Result<Ends, Fault> {
    let [from, to] = link.between.each_ref().map(|pattern| matching(pattern, physicals));
    for (found, pattern) in [&from, &to].into_iter().zip(&link.between) {
        if found.is_empty() {
            return Err(unknown(index, "between", pattern, physicals));
        }
    }
    if from == to && from.len() == 1 {
        let name = &physicals[from[0]].name;
        return Err(Fault::new(FaultPart::Link(index), "between", format!("joins `{name}` to itself"))
            .help("slices of one device are joined by its memory"));
    }
    *matched = matched.saturating_add(from.len().saturating_mul(to.len()));
    if *matched > MAX_PAIRS {
        return Err(Fault::new(
            FaultPart::Link(index),
            "between",
            format!("links match more than {MAX_PAIRS} pairs"),
        ));
    }
    Ok(Ends { from, to })
}

fn matching(pattern: &str, physicals: &[Physical]) -> Vec<usize> {
    if !pattern.contains(GLOB) {
        return position(pattern, physicals).into_iter().collect();
    }
    let glob = WildMatch::new(pattern);
    let names = physicals.iter().enumerate();
    names.filter(|(_, physical)| glob.matches(&physical.name)).map(|(index, _)| index).collect()
}
