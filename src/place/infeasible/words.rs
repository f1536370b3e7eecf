//! A proven conflict in words.

use super::super::problem::Problem;
use super::conflict::Conflict;
use super::relaxed::{Constraint, Thing};
use crate::costgraph::NodeIx;
use crate::error::{Error, Infeasible, Member, MemberKind};
use crate::units::Bytes;

/// Things that the first line names.
const NAMED: usize = 3;
/// Members that are listed one by one.
const LISTED: usize = 20;

/// The error that tells of a conflict.
pub(super) fn error(problem: &Problem<'_>, conflict: &Conflict) -> Error {
    let mut constraints = conflict.constraints.clone();
    constraints.sort_by_key(|&constraint| match constraint {
        Constraint::Takes(thing) => (true, std::cmp::Reverse(thing.bytes(problem.graph)), constraint),
        _ => (false, std::cmp::Reverse(0), constraint),
    });
    let members: Vec<Member> =
        constraints.into_iter().map(|constraint| member(problem, constraint)).collect();
    let repair = repair(problem, conflict);
    Error::Infeasible(Box::new(Infeasible {
        proven: true,
        conflict: sentence(problem, conflict, &members),
        repair,
        details: lines(&members),
        members,
        ..Infeasible::default()
    }))
}

/// A constraint as the caller knows it.
pub(super) fn member(problem: &Problem<'_>, constraint: Constraint) -> Member {
    let graph = problem.graph;
    let name = |node| graph.node_name(node).to_owned();
    let (kind, name, amount) = match constraint {
        Constraint::Pin(unit) => (MemberKind::Pin, pin(problem, unit), None),
        Constraint::Together(unit) => (MemberKind::Colocation, together(problem, unit), None),
        Constraint::Count => (MemberKind::Use, "--use".to_owned(), problem.count.map(|count| count as u64)),
        Constraint::Cap(id) => {
            let cap = problem.caps[id.index()];
            (MemberKind::Cap, problem.topology.device(id).name.clone(), Some(cap))
        }
        Constraint::Takes(thing) => {
            let (kind, name) = match thing {
                Thing::Param(param) => (MemberKind::Parameter, graph.param_name(param).to_owned()),
                Thing::Owned(node) => (MemberKind::State, name(node)),
                Thing::Workspace(node) => (MemberKind::Workspace, name(node)),
                Thing::Tensor(tensor) => {
                    let (producer, output) = (graph.producer(tensor), graph.output_index(tensor));
                    let name = name(producer);
                    let name = if output == 0 { name } else { format!("{name}:{output}") };
                    (MemberKind::Tensor, name)
                }
            };
            (kind, name, Some(thing.bytes(graph)))
        }
    };
    Member { kind, name, amount }
}

/// The pin that holds a unit: the caller's where one matches, else the graph's own.
fn pin(problem: &Problem<'_>, unit: u32) -> String {
    let graph = problem.graph;
    let Some(id) = problem.fixed(unit as usize) else { return String::new() };
    let device = &problem.topology.device(id).name;
    let nodes: Vec<NodeIx> = problem.unit(unit as usize).collect();
    let pinned = problem.options.pins.iter().rev().filter(|(_, to)| to == device).find(|(pattern, _)| {
        let glob = wildmatch::WildMatch::new(pattern);
        nodes.iter().any(|&node| glob.matches(graph.node_name(node)))
    });
    match pinned {
        Some((pattern, device)) => format!("{pattern}={device}"),
        None => {
            let own = graph.pins().iter().find(|(node, _)| nodes.contains(node)).map(|(node, _)| *node);
            format!("{}={device}", own.or(nodes.first().copied()).map_or("", |node| graph.node_name(node)))
        }
    }
}

/// The first nodes of a unit.
fn together(problem: &Problem<'_>, unit: u32) -> String {
    let names: Vec<&str> = problem.unit(unit as usize).map(|node| problem.graph.node_name(node)).collect();
    some(&names)
}

/// The first of some names, and how many more there are.
fn some(names: &[&str]) -> String {
    match names.len() {
        0 => "nothing".to_owned(),
        count if count <= NAMED => names.join(", "),
        count => format!("{} and {} more", names[..NAMED].join(", "), count - NAMED),
    }
}

/// What does not go together, in one sentence.
fn sentence(problem: &Problem<'_>, conflict: &Conflict, members: &[Member]) -> String {
    let of = |kinds: &[MemberKind]| -> Vec<&Member> {
        members.iter().filter(|member| kinds.contains(&member.kind)).collect()
    };
    let sum = |members: &[&Member]| {
        members.iter().fold(0u64, |sum, member| sum.saturating_add(member.amount.unwrap_or(0)))
    };
    let things = of(&[MemberKind::Parameter, MemberKind::State, MemberKind::Tensor, MemberKind::Workspace]);
    let described: Vec<String> = things.iter().map(|member| thing(member)).collect();
    let what = some(&described.iter().map(String::as_str).collect::<Vec<_>>());
    let verb = if things.len() == 1 { "takes" } else { "take" };
    let caps = of(&[MemberKind::Cap]);
    let devices = some(&caps.iter().map(|cap| cap.name.as_str()).collect::<Vec<_>>());
    let most = caps.iter().filter_map(|cap| cap.amount).max().unwrap_or(0);
    let fits = sum(&things) <= sum(&caps);
    let (needed, capacity) =
        distinguishable(sum(&things), if conflict.one_device { most } else { sum(&caps) });
    let mut text = match caps.as_slice() {
        [cap] => format!("{what} {verb} {needed} on {}, which has {capacity}", cap.name),
        _ if conflict.one_device => {
            format!("{what} {verb} {needed} on one device, and none of {devices} has more than {capacity}")
        }
        _ if !fits => format!("{what} {verb} {needed}, and {devices} have {capacity} together"),
        _ => format!("{what} cannot be laid on {devices}, which have {capacity} together"),
    };
    let reserve = problem.options.reserve;
    if !caps.is_empty() && reserve > Bytes::ZERO {
        text += &format!(" (--reserve keeps {reserve} of each device free)");
    }
    if let Some(node) = conflict.moment {
        text += &format!("; all are live while {} runs", problem.graph.node_name(node));
    }
    let ties = of(&[MemberKind::Pin, MemberKind::Use]);
    if !ties.is_empty() {
        let mut ties: Vec<String> = ties
            .iter()
            .map(|tie| match (tie.kind, tie.amount) {
                (MemberKind::Use, Some(count)) => format!("--use {count}"),
                _ => format!("pin {}", tie.name),
            })
            .collect();
        ties.dedup();
        text += &format!(" ({})", some(&ties.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    if let Some(tie) = of(&[MemberKind::Colocation]).first() {
        text += &format!("; {} go together", tie.name);
    }
    text
}

/// Two sizes in words that tell them apart.
fn distinguishable(a: u64, b: u64) -> (String, String) {
    let (short, other) = (Bytes(a).to_string(), Bytes(b).to_string());
    if short == other && a != b { (format!("{a} bytes"), format!("{b} bytes")) } else { (short, other) }
}

fn thing(member: &Member) -> String {
    let what = match member.kind {
        MemberKind::Parameter => "parameter ",
        MemberKind::State => "state of ",
        MemberKind::Workspace => "workspace of ",
        _ => "tensor ",
    };
    format!("{what}{}", member.name)
}

/// The least that helps, as far as the proof tells it.
fn repair(problem: &Problem<'_>, conflict: &Conflict) -> String {
    let bytes = |constraint: &Constraint| match constraint {
        Constraint::Takes(thing) => thing.bytes(problem.graph),
        _ => 0,
    };
    let needed = conflict.constraints.iter().map(bytes).fold(0, u64::saturating_add);
    let caps = conflict.constraints.iter().filter_map(|constraint| match constraint {
        Constraint::Cap(id) => Some(problem.caps[id.index()]),
        _ => None,
    });
    let capacity =
        if conflict.one_device { caps.max().unwrap_or(0) } else { caps.fold(0, u64::saturating_add) };
    match needed.checked_sub(capacity) {
        Some(lacking) if lacking > 0 => format!("{lacking} bytes more are needed at least"),
        _ => String::new(),
    }
}

/// The members, one line each; equal caps share one.
pub(super) fn lines(members: &[Member]) -> Vec<String> {
    let is_cap = |member: &&Member| member.kind == MemberKind::Cap;
    let mut lines: Vec<String> = Vec::new();
    let mut listed: Vec<Option<u64>> = Vec::new();
    for member in members.iter().filter(is_cap) {
        if listed.contains(&member.amount) {
            continue;
        }
        listed.push(member.amount);
        let equal = members.iter().filter(is_cap).filter(|other| other.amount == member.amount);
        let names: Vec<&str> = equal.map(|other| other.name.as_str()).collect();
        let (verb, each) = if names.len() == 1 { ("has", "") } else { ("have", " each") };
        let cap = member.amount.unwrap_or(0);
        lines.push(format!("{} {verb} {}{each} ({cap} bytes)", some(&names), Bytes(cap)));
    }
    lines.extend(members.iter().filter(|member| !is_cap(member)).map(line));
    if lines.len() > LISTED {
        let more = lines.len() - LISTED;
        lines.truncate(LISTED);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn line(member: &Member) -> String {
    let amount = member.amount.unwrap_or(0);
    match member.kind {
        MemberKind::Pin => format!("pin {}", member.name),
        MemberKind::Colocation => format!("{} go together", member.name),
        MemberKind::Use => format!("--use {amount}"),
        MemberKind::Balance => format!("--balance {}", member.name),
        _ => format!("{} takes {} ({amount} bytes)", thing(member), Bytes(amount)),
    }
}
