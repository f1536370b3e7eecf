//! From an order to a draft whose arenas stay under their caps.

use crate::costgraph::NodeIx;
use crate::error::{Error, Result};
use crate::place::binding;
use crate::schedule::assemble::{AsListed, Draft};
use crate::schedule::memory::residents::Residents;
use crate::schedule::memory::{Reuse, lay_out};
use crate::schedule::problem::Problem;
use crate::schedule::waits::needed;
use crate::topology::DeviceId;
use crate::units::Bytes;

/// Lays out an order so that every device stays under its cap: at first with no step waiting for
/// memory, then, where that is too much even when packed anew with at most `work` visits of pairs, with waiting, and
/// where that is not enough with every step of a device in the order of the list.
///
/// Errors with the first device whose arena is still over its cap.
pub(crate) fn fit(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    caps: &[Bytes],
    work: usize,
) -> Result<Result<Draft, Shortage>> {
    let draft = closest(problem, residents, order, caps, work)?;
    Ok(match (0..caps.len()).find(|&device| draft.arena()[device] > caps[device]) {
        Some(first) => Err(Shortage { device: DeviceId(first as u32), arena: draft.arena()[first] }),
        None => Ok(draft),
    })
}

/// As [`fit`], but where no waiting helps, the draft whose arenas are over their caps.
pub(crate) fn closest(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    caps: &[Bytes],
    work: usize,
) -> Result<Draft> {
    let mut reuse = vec![Reuse::Implied; caps.len()];
    // Each round lets more devices wait; once all that are over their caps do, nothing more can be done.
    loop {
        let layout = lay_out(problem, residents, order, &reuse)?;
        let mut draft = Draft::new(problem, residents, order, &layout);
        // Packing comes first: it costs no time, where waiting may.
        draft.press(problem, residents, caps, work);
        let mut changed = false;
        for device in (0..caps.len()).filter(|&device| draft.arena()[device] > caps[device]) {
            changed |= std::mem::replace(&mut reuse[device], Reuse::Waiting) == Reuse::Implied;
        }
        if changed {
            continue;
        }
        let Some(packed) = draft.packed_as_listed(problem, residents, caps, work) else { return Ok(draft) };
        let mut other = as_listed(problem, residents, order, &mut reuse, &packed)?;
        // Devices that fit because they were packed have to be once more.
        other.press(problem, residents, caps, work);
        let excess = |draft: &Draft| -> Bytes {
            draft.arena().iter().zip(caps).map(|(arena, &cap)| arena.saturating_sub(cap)).sum()
        };
        return Ok(if excess(&other) < excess(&draft) { other } else { draft });
    }
}

/// The draft whose arenas are packed by the order of the list where they fit only so.
fn as_listed(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    reuse: &mut [Reuse],
    packed: &AsListed,
) -> Result<Draft> {
    // What these devices' bytes are waited for follows from the packing alone.
    let listed = reuse.iter_mut().zip(&packed.devices).filter(|(_, listed)| **listed);
    listed.for_each(|(reuse, _)| *reuse = Reuse::Implied);
    let mut layout = lay_out(problem, residents, order, reuse)?;
    let mut draft = Draft::new(problem, residents, order, &layout);
    layout.waits.extend(&packed.waits);
    layout.waits = needed(problem, order, &layout.data, layout.waits);
    draft.lie_as_listed(problem, order, &layout, packed);
    Ok(draft)
}

/// A device whose arena does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) device: DeviceId,
    pub(crate) arena: Bytes,
}

impl Shortage {
    /// By how much the arena is above the device's cap.
    pub(crate) fn lack(self, caps: &[Bytes]) -> u64 {
        self.arena.0.saturating_sub(caps[self.device.index()].0)
    }

    /// As an error, with what the device holds in any case.
    pub(crate) fn error(self, problem: &Problem<'_>, residents: &Residents, caps: &[Bytes]) -> Error {
        let name = &problem.topology.device(self.device).name;
        let cap = caps[self.device.index()];
        let here = |node: NodeIx| problem.device(node) == self.device;
        Error::Infeasible(Box::new(crate::error::Infeasible {
            proven: false,
            conflict: format!(
                "with this placement {name} needs {} ({} bytes), {} of it for parameters, state and inputs, and has {} ({} bytes)",
                self.arena,
                self.arena.0,
                residents.bytes[self.device.index()],
                cap,
                cap.0
            ),
            repair: format!("give {name} {} bytes", self.arena.0),
            short: vec![(name.clone(), self.arena.saturating_sub(cap))],
            members: binding(problem.graph, problem.topology, here, (self.device, cap)),
            ..crate::error::Infeasible::default()
        }))
    }
}
