//! Parts of split nodes: in memory each is a node of the placement with a name of its own, `fc1[0/2]`; in the
//! JSON form the node's entry is the list of its parts, and launches say which part they compute.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::ir::part_name;

use super::{Action, Launch, Plan, PlanOptions, Step};

/// One part of a node.
pub(super) struct PlanPart<'a> {
    pub(super) name: String,
    pub(super) node: &'a str,
    pub(super) number: u32,
    over: &'a str,
    from: u64,
    to: u64,
}

/// The parts of a plan's nodes, in the order in which the placement has them behind the nodes themselves.
pub(super) struct Parts<'a> {
    pub(super) list: Vec<PlanPart<'a>>,
    /// By node: its first part, and how many there are.
    of: HashMap<&'a str, (usize, u32)>,
    by_name: HashMap<String, usize>,
}

impl<'a> Parts<'a> {
    /// O(nodes that are split x parts).
    pub(super) fn new(options: &'a PlanOptions) -> Self {
        let (mut list, mut of) = (Vec::new(), HashMap::new());
        for split in &options.splits {
            let parts = split.bounds.len().saturating_sub(1) as u32;
            // Layers in steps and inputs in slices have no parts.
            if parts < 2 {
                continue;
            }
            for node in split.nodes.iter().map(|node| placed_name(node, split.apart)) {
                if of.contains_key(node) {
                    continue;
                }
                of.insert(node, (list.len(), parts));
                for (number, bounds) in (0..).zip(split.bounds.windows(2)) {
                    let name = part_name(node, number, parts);
                    list.push(PlanPart {
                        name,
                        node,
                        number,
                        over: &split.over,
                        from: bounds[0],
                        to: bounds[1],
                    });
                }
            }
        }
        let by_name = list.iter().enumerate().map(|(at, part)| (part.name.clone(), at)).collect();
        Self { list, of, by_name }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The part of this name.
    pub(super) fn find(&self, name: &str) -> Option<&PlanPart<'a>> {
        self.by_name.get(name).map(|&at| &self.list[at])
    }

    /// Whether a node is split.
    pub(super) fn is_split(&self, node: &str) -> bool {
        self.of.contains_key(node)
    }

    fn of(&self, node: &str) -> &[PlanPart<'a>] {
        self.of.get(node).map_or(&[], |&(first, parts)| &self.list[first..first + parts as usize])
    }

    /// The number of the part that a launch of these nodes computes.
    fn number(&self, nodes: &[String]) -> Option<u32> {
        nodes.iter().find_map(|node| self.find(node)).map(|part| part.number)
    }
}

/// The name under which an operation of a split stands in the placement.
fn placed_name(node: &str, apart: bool) -> &str {
    match node.rsplit_once('#') {
        Some((name, rank)) if !apart || rank == "0" => name,
        Some(_) | None => node,
    }
}

/// A node's entry in the JSON form.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Entry<'a> {
    Whole(&'a str),
    Parts(Vec<PartEntry<'a>>),
}

/// A part's entry there.
#[derive(Serialize)]
pub(super) struct PartEntry<'a> {
    device: &'a str,
    axis: &'a str,
    from: u64,
    to: u64,
}

impl Plan {
    /// The placement as the JSON form has it, node by node.
    pub(super) fn entries<'a>(&'a self, parts: &'a Parts<'a>) -> impl Iterator<Item = (&'a str, Entry<'a>)> {
        let devices: HashMap<&str, &str> = match parts.is_empty() {
            true => HashMap::new(),
            false => self.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect(),
        };
        // A part that is divided again has an entry of its own.
        let is_entry = |node: &str| parts.find(node).is_none() || parts.is_split(node);
        let entries = self.placement.iter().filter(move |(node, _)| is_entry(node));
        entries.map(move |(node, device)| {
            let of = parts.of(node);
            if of.is_empty() {
                return (node.as_str(), Entry::Whole(device.as_str()));
            }
            let place = |part: &PlanPart<'a>| devices.get(part.name.as_str()).copied().unwrap_or(device);
            let entry = |part: &PlanPart<'a>| PartEntry {
                device: place(part),
                axis: part.over,
                from: part.from,
                to: part.to,
            };
            (node.as_str(), Entry::Parts(of.iter().map(entry).collect()))
        })
    }

    /// The steps as the JSON form has them, step by step: launches of parts name the nodes.
    pub(super) fn entries_of_steps<'a>(
        &'a self,
        parts: &'a Parts<'a>,
    ) -> impl Iterator<Item = Cow<'a, Step>> {
        self.steps.iter().map(|step| match part_step(parts, step) {
            Some(step) => Cow::Owned(step),
            None => Cow::Borrowed(step),
        })
    }

    /// Names parts as they are named in memory, where the JSON form was read: the placement has the parts
    /// behind the nodes, launches name them.
    pub(super) fn name_parts(&mut self) {
        let options = std::mem::take(&mut self.options);
        let parts = Parts::new(&options);
        if !parts.is_empty() {
            self.name_launches(&parts);
            self.order_placement(&parts);
        }
        self.options = options;
    }

    /// Places a node that is split where what it computes as a whole is launched, or else with its first
    /// part, as readers of the JSON form do.
    fn place_wholes(&mut self, parts: &Parts<'_>) {
        // Looked up, never iterated.
        let mut alone: HashMap<&str, &str> = HashMap::new();
        for step in &self.steps {
            let Action::Launch(launch) = &step.action else { continue };
            let split = launch.nodes.iter().filter(|node| parts.is_split(node));
            split.for_each(|node| _ = alone.entry(node).or_insert(&step.device));
        }
        let placed: HashMap<&str, &str> =
            self.placement.iter().map(|(name, device)| (name.as_str(), device.as_str())).collect();
        // A first part may be divided again, and has its own first part then.
        let own = |node: &str| {
            let mut name = node;
            loop {
                match (alone.get(name), parts.of(name).first()) {
                    (None, Some(first)) => name = &first.name,
                    (Some(device), _) => return Some((*device).to_owned()),
                    (None, None) => return placed.get(name).map(|device| (*device).to_owned()),
                }
            }
        };
        let devices: Vec<Option<String>> =
            self.placement.iter().map(|(node, _)| own(node).filter(|_| parts.is_split(node))).collect();
        for ((_, device), own) in self.placement.iter_mut().zip(devices) {
            if let Some(own) = own {
                *device = own;
            }
        }
    }

    fn name_launches(&mut self, parts: &Parts<'_>) {
        for step in &mut self.steps {
            let Action::Launch(Launch { nodes, part: Some(number), .. }) = &mut step.action else { continue };
            for node in nodes {
                if let Some(part) = parts.of(node).get(*number as usize) {
                    node.clone_from(&part.name);
                }
            }
        }
    }

    /// The nodes first, then the parts in the order of the splits.
    fn order_placement(&mut self, parts: &Parts<'_>) {
        self.place_wholes(parts);
        let read = std::mem::take(&mut self.placement);
        let devices: HashMap<String, String> = read.iter().cloned().collect();
        let mut placement: Vec<(String, String)> =
            read.into_iter().filter(|(node, _)| parts.find(node).is_none()).collect();
        for part in &parts.list {
            if let Some(device) = devices.get(&part.name) {
                placement.push((part.name.clone(), device.clone()));
            }
        }
        self.placement = placement;
    }

    /// Says of each launch which part it computes, by the names of its nodes.
    pub(super) fn number_parts(&mut self) {
        let options = std::mem::take(&mut self.options);
        let parts = Parts::new(&options);
        if !parts.is_empty() {
            for step in &mut self.steps {
                if let Action::Launch(launch) = &mut step.action {
                    launch.part = parts.number(&launch.nodes);
                }
            }
            self.place_wholes(&parts);
        }
        self.options = options;
    }
}

/// A step whose launch computes a part, with the nodes' names; none for others.
fn part_step(parts: &Parts<'_>, step: &Step) -> Option<Step> {
    let Action::Launch(launch) = &step.action else { return None };
    launch.part?;
    let name = |node: &String| parts.find(node).map_or_else(|| node.clone(), |part| part.node.to_owned());
    let launch = Launch { nodes: launch.nodes.iter().map(name).collect(), ..launch.clone() };
    Some(Step { action: Action::Launch(launch), ..step.clone() })
}

/// A node's entry as it is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawEntry {
    Whole(String),
    Parts(Vec<RawPart>),
}

/// What it is a part of, [`PlanOptions::splits`] says as well: see [`check_shown`].
#[derive(Deserialize)]
struct RawPart {
    device: String,
    axis: String,
    from: u64,
    to: u64,
}

/// What the JSON form shows of the parts of nodes; all else in it is passed over.
#[derive(Deserialize)]
struct ShownParts {
    #[serde(deserialize_with = "read_shown")]
    placement: Vec<(String, Vec<RawPart>)>,
}

/// That the placement of the JSON form shows the same parts as the options list. None where it does; else the node in
/// whose entry it does not. O(size of the form) where something is split, and O(1) else.
pub(super) fn wrongly_shown(plan: &Plan, json: &[u8]) -> Option<String> {
    let parts = Parts::new(&plan.options);
    if parts.is_empty() {
        return None;
    }
    let shown: ShownParts = serde_json::from_slice(json).ok()?;
    let is_shown =
        |part: &RawPart, of: &PlanPart<'_>| part.axis == of.over && part.from == of.from && part.to == of.to;
    let is_wrong = |node: &str, shown: &[RawPart]| {
        let parts = parts.of(node);
        parts.len() != shown.len() || !shown.iter().zip(parts).all(|(part, of)| is_shown(part, of))
    };
    let mut entries = shown.placement.into_iter();
    entries.find(|(node, shown)| is_wrong(node, shown)).map(|(node, _)| node)
}

/// Reads a placement: parts follow the node that they are of. Errors: a node twice; parts that do not tile.
pub(super) fn read_placement<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(String, String)>, D::Error> {
    deserializer.deserialize_map(Entries)
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found: Vec<(String, String)> = Vec::new();
        let (mut seen, mut parts_seen) = (HashSet::new(), HashSet::new());
        while let Some((node, entry)) = map.next_entry::<String, RawEntry>()? {
            if !seen.insert(node.clone()) {
                return Err(A::Error::custom(format!("{node:?} appears twice")));
            }
            match entry {
                RawEntry::Whole(device) => found.push((node, device)),
                RawEntry::Parts(parts) => {
                    let tile = parts.windows(2).all(|pair| pair[0].to == pair[1].from);
                    let Some(first) = parts.first().filter(|_| tile && parts.len() > 1) else {
                        return Err(A::Error::custom(format!("the parts of {node:?} do not tile it")));
                    };
                    // A part that is divided again was told with the whole.
                    if !parts_seen.contains(&node) {
                        found.push((node.clone(), first.device.clone()));
                    }
                    let count = parts.len() as u32;
                    for (number, part) in (0..).zip(parts) {
                        let name = part_name(&node, number, count);
                        parts_seen.insert(name.clone());
                        found.push((name, part.device));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Reads of a placement the entries that list parts.
fn read_shown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Vec<RawPart>)>, D::Error> {
    struct Shown;

    impl<'de> Visitor<'de> for Shown {
        type Value = Vec<(String, Vec<RawPart>)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some((node, entry)) = map.next_entry::<String, RawEntry>()? {
                if let RawEntry::Parts(parts) = entry {
                    found.push((node, parts));
                }
            }
            Ok(found)
        }
    }

    deserializer.deserialize_map(Shown)
}
