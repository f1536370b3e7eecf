//! What parameters of replicas, and parts of parameters, are called.

/// The name of a replica's parameter; the first replica's is the network's own.
pub(crate) fn replica_name(replica: usize, name: &str) -> String {
    if replica == 0 { name.to_owned() } else { format!("replica{replica}/{name}") }
}

/// The network's own name of a replica's parameter.
pub(crate) fn base_name(name: &str) -> &str {
    let inner = name.strip_prefix("replica").and_then(|rest| rest.split_once('/'));
    match inner {
        Some((number, own)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => own,
        _ => name,
    }
}

/// The name of a part of a parameter, or of what is kept for it.
pub(crate) fn part_name(number: usize, count: usize, name: &str) -> String {
    format!("part{number}of{count}/{name}")
}

/// Which part of what, and of how many, a name is of.
pub(crate) fn part_of(name: &str) -> Option<(usize, usize, &str)> {
    let (number, rest) = name.strip_prefix("part")?.split_once("of")?;
    let (count, name) = rest.split_once('/')?;
    Some((number.parse().ok()?, count.parse().ok()?, name))
}
