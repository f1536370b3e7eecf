//! Devices that are predicted as machines of their own, and share the cores of one where they run.

use std::collections::BTreeMap;

use crate::plan::Plan;
use crate::topology::{Engine, Topology};

/// Several whole CPUs of one host, none with cores of its own, all in use: each is predicted as a machine, and
/// where the plan runs they are one. None where there are no two.
pub(super) fn shared_cores<'p>(topology: &Topology, used: impl Iterator<Item = &'p str>) -> Option<String> {
    let mut hosts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let devices = topology.by_name();
    for id in used.filter_map(|name| devices.get(name).copied()) {
        let device = topology.device(id);
        let physicals = hosts.entry(topology.physical(id).host).or_default();
        if device.engine() == Engine::Cpu && device.cores.is_none() && !physicals.contains(&device.physical) {
            physicals.push(device.physical);
        }
    }
    let together = hosts.into_values().find(|physicals| physicals.len() > 1)?;
    let names: Vec<&str> =
        together.iter().map(|&number| topology.physicals[number as usize].name.as_str()).collect();
    let [first, .., last] = &names[..] else { return None };
    let names = if names.len() == 2 { format!("{first} and {last}") } else { format!("{first} to {last}") };
    Some(format!(
        "{names} are predicted as a machine each; on one machine they share its cores, as `cpu[{}xSIZE]` or cores=N says",
        together.len()
    ))
}

/// The devices of a plan that compute or copy something.
pub(super) fn used(plan: &Plan) -> impl Iterator<Item = &str> {
    let mut names: Vec<&str> = plan.steps.iter().map(|step| &*step.device).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_cpus_of_one_host_share_its_cores() {
        let shared = |spec: &str| {
            let topology = Topology::parse(spec).unwrap();
            let names: Vec<String> = topology.devices.iter().map(|device| device.name.clone()).collect();
            shared_cores(&topology, names.iter().map(String::as_str))
        };
        assert!(shared("4xcpu").unwrap().starts_with("cpu0 to cpu3 are predicted as a machine each"));
        assert!(shared("2xcpu[3x1GB]").unwrap().starts_with("cpu0 and cpu1 are"));
        for spec in ["cpu", "cpu[4x1GB]", "2xcpu:cores=1", "cpu+cpu:host=h1", "2xa100-80g"] {
            assert_eq!(shared(spec), None, "{spec}");
        }
    }
}
