//! Links, hosts and buses become channels, and a route for each pair of physical devices.
//!
//! Two devices with a direct link use it. All others go the fastest way over the backbone: a graph
//! of devices, hosts and the links between them, searched with Dijkstra's algorithm by the time
//! that [`REFERENCE`] bytes take. Data passes through a host without a stop, so such a way is one
//! hop on several channels; another device on the way stages it, and ends a hop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use petgraph::graph::{EdgeIndex, Graph, NodeIndex};
use petgraph::visit::EdgeRef;

use super::description::{DeviceGroup, Fault, FaultPart, LinkGroup};
use super::links::{Links, Rule};
use super::preset::{NETWORK_LATENCY, NETWORK_RATE};
use super::site::{Port, Site};
use super::{Channel, ChannelId, Contention, Hop, Physical, Route};
use crate::units::{Bytes, Nanos, Rate};

/// The size of copy that decides between ways.
pub const REFERENCE: Bytes = Bytes(1_000_000);

/// A stretch of a way, in one direction: zero, one or two channels that are crossed at once.
#[derive(Clone, Debug)]
struct Leg {
    channels: Vec<ChannelId>,
    latency: Nanos,
    rate: Rate,
}

/// Where a stretch of a way begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Junction {
    Device,
    Host,
}

type Backbone = Graph<Junction, Leg>;

/// The channels and the routes, row-major by (from, to).
/// O(devices^2 x log) time, O(devices^2) memory.
pub(super) fn connect(
    hosts: &[String],
    physicals: &[Physical],
    sites: &[Site],
    groups: &[DeviceGroup],
    links: &[LinkGroup],
) -> Result<(Vec<Channel>, Vec<Route>), Fault> {
    let links = Links::new(hosts, physicals, sites, groups, links)?;
    let mut channels = Channels::default();
    let direct = direct_legs(&links, physicals, &mut channels);
    let backbone = backbone(hosts, physicals, sites, &links, &direct, &mut channels);
    let within = within_devices(physicals, sites, &mut channels);
    let edges = edges_of(&backbone);
    let mut router = Router { physicals, links: &links, direct, backbone, edges, ways: Vec::new() };
    router.ways = (0..physicals.len()).map(|from| router.ways_from(from)).collect();
    let mut routes = Vec::with_capacity(physicals.len() * physicals.len());
    for (from, own) in within.into_iter().enumerate() {
        for to in 0..physicals.len() {
            let mut route = if from == to { own.clone() } else { router.route(from, to)? };
            // There may be a million of them.
            route.hops.shrink_to_fit();
            routes.push(route);
        }
    }
    Ok((channels.list, routes))
}

/// The channels made so far.
#[derive(Default)]
struct Channels {
    list: Vec<Channel>,
    buses: BTreeMap<String, ChannelId>,
}

impl Channels {
    fn add(&mut self, name: String, bandwidth: Rate, contention: Contention) -> ChannelId {
        self.list.push(Channel { name, bandwidth, contention });
        ChannelId(self.list.len() as u32 - 1)
    }

    /// The channel of `rule` from one place to another: its bus, or one of its own.
    fn of_rule(&mut self, rule: &Rule, from: &str, to: &str) -> ChannelId {
        let Some(bus) = &rule.shared else {
            return self.add(format!("{from}->{to}"), rule.rate, rule.contention);
        };
        if let Some(&channel) = self.buses.get(bus) {
            return channel;
        }
        let channel = self.add(bus.clone(), rule.rate, rule.contention);
        self.buses.insert(bus.clone(), channel);
        channel
    }
}

/// The direct link of each pair of devices that has one, row-major.
fn direct_legs(links: &Links, physicals: &[Physical], channels: &mut Channels) -> Vec<Option<Leg>> {
    let count = physicals.len();
    let mut legs = Vec::with_capacity(count * count);
    let mut ports = vec![None; count];
    for from in 0..count {
        for to in 0..count {
            legs.push(links.plain(from, to).map(|rule| {
                let (latency, rate) = (rule.latency, rule.rate);
                let Some(port) = rule.port else {
                    let channel = channels.of_rule(rule, &physicals[from].name, &physicals[to].name);
                    return Leg { channels: vec![channel], latency, rate };
                };
                let mut port_of = |device: usize| {
                    *ports[device].get_or_insert_with(|| {
                        let name = &physicals[device].name;
                        let mut way = |name| channels.add(name, port, rule.contention);
                        (way(format!("{name}->peers")), way(format!("peers->{name}")))
                    })
                };
                let mut crossed = vec![port_of(from).0, port_of(to).1];
                if rate < port {
                    crossed.push(channels.of_rule(rule, &physicals[from].name, &physicals[to].name));
                }
                Leg { channels: crossed, latency, rate: rate.min(port) }
            }));
        }
    }
    legs
}

/// Devices (at their own positions), then hosts, and the links between them but for direct links
/// between two devices that are both joined to a host: nothing is relayed over those.
fn backbone(
    hosts: &[String],
    physicals: &[Physical],
    sites: &[Site],
    links: &Links,
    direct: &[Option<Leg>],
    channels: &mut Channels,
) -> Backbone {
    let count = physicals.len();
    let mut graph = Backbone::new();
    for _ in 0..count {
        graph.add_node(Junction::Device);
    }
    for _ in hosts {
        graph.add_node(Junction::Host);
    }
    let node = |index: usize| NodeIndex::new(index);
    for (index, (physical, site)) in physicals.iter().zip(sites).enumerate() {
        let Some(port) = site.port else { continue };
        let host = physical.host as usize;
        let (up, down) = match processor_link(index, physicals, sites, direct) {
            Some(legs) => legs,
            None => port_legs(&physical.name, &hosts[host], port, site.contention, channels),
        };
        graph.add_edge(node(index), node(count + host), up);
        graph.add_edge(node(count + host), node(index), down);
    }
    for (index, leg) in direct.iter().enumerate() {
        let (from, to) = (index / count, index % count);
        if let Some(leg) = leg
            && (sites[from].port.is_none() || sites[to].port.is_none())
        {
            graph.add_edge(node(from), node(to), leg.clone());
        }
    }
    for (from, to, leg) in network(hosts, links, channels) {
        graph.add_edge(node(count + from), node(count + to), leg);
    }
    graph
}

/// An accelerator's stated link to a CPU of its host is its link to that host, in both directions.
fn processor_link(
    device: usize,
    physicals: &[Physical],
    sites: &[Site],
    direct: &[Option<Leg>],
) -> Option<(Leg, Leg)> {
    if sites[device].is_cpu {
        return None;
    }
    let count = physicals.len();
    (0..count)
        .filter(|&cpu| sites[cpu].is_cpu && physicals[cpu].host == physicals[device].host)
        .find_map(|cpu| Some((direct[device * count + cpu].clone()?, direct[cpu * count + device].clone()?)))
}

fn port_legs(
    device: &str,
    host: &str,
    port: Port,
    contention: Contention,
    channels: &mut Channels,
) -> (Leg, Leg) {
    let mut leg = |from: &str, to: &str| Leg {
        channels: vec![channels.add(format!("{from}->{to}"), port.rate, contention)],
        latency: port.latency,
        rate: port.rate,
    };
    (leg(device, host), leg(host, device))
}

/// The ways between hosts: the link that is stated for a pair, else out of the one's network port
/// and into the other's.
fn network(hosts: &[String], links: &Links, channels: &mut Channels) -> Vec<(usize, usize, Leg)> {
    if hosts.len() < 2 {
        return Vec::new();
    }
    let mut port = |name: String| channels.add(name, NETWORK_RATE, Contention::Link);
    let ports: Vec<(ChannelId, ChannelId)> = hosts
        .iter()
        .map(|host| (port(format!("{host}->network")), port(format!("network->{host}"))))
        .collect();
    let mut legs = Vec::new();
    for from in 0..hosts.len() {
        for to in (0..hosts.len()).filter(|&to| to != from) {
            let leg = match links.between_hosts(from, to) {
                Some(rule) => Leg {
                    channels: vec![channels.of_rule(rule, &hosts[from], &hosts[to])],
                    latency: rule.latency,
                    rate: rule.rate,
                },
                None => Leg {
                    channels: vec![ports[from].0, ports[to].1],
                    latency: NETWORK_LATENCY + NETWORK_LATENCY,
                    rate: NETWORK_RATE,
                },
            };
            legs.push((from, to, leg));
        }
    }
    legs
}

/// The route between slices of each device: its memory is read and written, so at half its
/// bandwidth. Empty where a device is whole.
fn within_devices(physicals: &[Physical], sites: &[Site], channels: &mut Channels) -> Vec<Route> {
    let mut route = |physical: &Physical, site: &Site| {
        if !site.is_shared {
            return Route::default();
        }
        let bandwidth = match physical.bandwidth {
            Rate::INFINITE => Rate::INFINITE,
            Rate(rate) => Rate((rate / 2).max(1)),
        };
        let channel = channels.add(physical.name.clone(), bandwidth, site.contention);
        Route { hops: vec![Hop { channels: vec![channel], latency: physical.launch, bandwidth }], via: None }
    };
    physicals.iter().zip(sites).map(|(physical, site)| route(physical, site)).collect()
}

/// The edges out of each node in the order of their ids: where they lead, and the time that
/// [`REFERENCE`] bytes take.
fn edges_of(graph: &Backbone) -> Vec<Vec<(EdgeIndex, usize, Nanos)>> {
    let mut edges = vec![Vec::new(); graph.node_count()];
    for edge in graph.edge_references() {
        let leg = edge.weight();
        let time = leg.latency + leg.rate.time(REFERENCE);
        edges[edge.source().index()].push((edge.id(), edge.target().index(), time));
    }
    edges
}

struct Router<'a> {
    physicals: &'a [Physical],
    links: &'a Links,
    direct: Vec<Option<Leg>>,
    backbone: Backbone,
    /// [`edges_of`] the backbone.
    edges: Vec<Vec<(EdgeIndex, usize, Nanos)>>,
    /// For each device, [`Router::ways_from`] it.
    ways: Vec<Vec<Option<EdgeIndex>>>,
}

impl Router<'_> {
    fn direct(&self, from: usize, to: usize) -> Option<&Leg> {
        self.direct[from * self.physicals.len() + to].as_ref()
    }

    /// The last edge of the fastest way from a device to each node. Ties go to the node, then the
    /// edge, with the lower number. petgraph's `dijkstra` gives times alone, and promises nothing of ties.
    fn ways_from(&self, from: usize) -> Vec<Option<EdgeIndex>> {
        let graph = &self.backbone;
        let mut last = vec![None; graph.node_count()];
        if (0..self.physicals.len()).all(|to| to == from || self.direct(from, to).is_some()) {
            return last;
        }
        let mut best = vec![Nanos::MAX; graph.node_count()];
        let mut done = vec![false; graph.node_count()];
        best[from] = Nanos::ZERO;
        let mut queue = BinaryHeap::from([Reverse((Nanos::ZERO, from))]);
        while let Some(Reverse((time, node))) = queue.pop() {
            if std::mem::replace(&mut done[node], true) {
                continue;
            }
            for &(edge, to, cost) in &self.edges[node] {
                let time = time + cost;
                let is_first = last[to].is_none() && to != from;
                if !done[to] && (time < best[to] || is_first) {
                    best[to] = time;
                    last[to] = Some(edge);
                    queue.push(Reverse((time, to)));
                }
            }
        }
        last
    }

    /// The hops of the fastest way over the backbone, and the first device that stages it.
    fn way(&self, from: usize, to: usize) -> Option<Route> {
        let mut legs = Vec::new();
        let mut node = to;
        while node != from {
            let edge = self.ways[from][node]?;
            legs.push((node, &self.backbone[edge]));
            node = self.backbone.edge_endpoints(edge)?.0.index();
        }
        let mut route = Route::default();
        let mut open: Vec<&Leg> = Vec::new();
        for (end, leg) in legs.into_iter().rev() {
            open.push(leg);
            if self.backbone[NodeIndex::new(end)] == Junction::Device {
                route.hops.push(hop(&open));
                open.clear();
                if end != to && route.via.is_none() {
                    route.via = Some(self.physicals[end].name.clone());
                }
            }
        }
        Some(route)
    }

    /// The direct link, else the fastest way.
    fn unstaged(&self, from: usize, to: usize) -> Result<Route, Fault> {
        if let Some(leg) = self.direct(from, to) {
            return Ok(Route { hops: vec![hop(&[leg])], via: None });
        }
        self.way(from, to).ok_or_else(|| {
            let (from, to) = (&self.physicals[from].name, &self.physicals[to].name);
            Fault::new(FaultPart::Whole, "", format!("nothing joins `{from}` to `{to}`"))
                .help("add a link between them, or give both a `host_link`")
        })
    }

    fn route(&self, from: usize, to: usize) -> Result<Route, Fault> {
        let Some(stage) = self.links.stage(from, to) else { return self.unstaged(from, to) };
        let mut route = self.unstaged(from, stage)?;
        route.hops.extend(self.unstaged(stage, to)?.hops);
        route.via = Some(self.physicals[stage].name.clone());
        Ok(route)
    }
}

/// One hop over legs that are crossed at once.
fn hop(legs: &[&Leg]) -> Hop {
    Hop {
        channels: legs.iter().flat_map(|leg| leg.channels.iter().copied()).collect(),
        latency: legs.iter().map(|leg| leg.latency).sum(),
        bandwidth: legs.iter().map(|leg| leg.rate).min().unwrap_or(Rate::INFINITE),
    }
}
