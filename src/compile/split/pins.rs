//! Pins of parts: `hidden_3[1/2]=cpu1`.

use wildmatch::WildMatch;

use super::parted::Parted;
use crate::error::{Error, Result};
use crate::ir::{Graph, SourceId};
use crate::place;

/// Whether a pattern is of parts: it ends as their names do, and no node of the network has such a name.
pub(in crate::compile) fn is_of_parts(graph: &Graph, pattern: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'*');
    let ends_so = pattern
        .strip_suffix(']')
        .and_then(|rest| rest.rsplit_once('['))
        .and_then(|(_, part)| part.split_once('/'))
        .is_some_and(|(number, parts)| is_number(number) && is_number(parts));
    let glob = WildMatch::new(pattern);
    ends_so && !graph.sources().iter().any(|source| glob.matches(&source.name))
}

/// Those of some pins that are of parts.
pub(in crate::compile) fn pins_of_parts<'p>(
    graph: &Graph,
    pins: &'p [(String, String)],
) -> Vec<&'p (String, String)> {
    pins.iter().filter(|(pattern, _)| is_of_parts(graph, pattern)).collect()
}

impl Parted {
    /// With the parts that pins name on their devices. O(pins x sources).
    ///
    /// Error: there is no such part.
    pub(in crate::compile) fn pinned(mut self, pins: &[&(String, String)]) -> Result<Self> {
        for (pattern, device) in pins {
            let glob = WildMatch::new(pattern);
            let mut any = false;
            for id in (0..self.graph.sources().len() as u32).map(SourceId) {
                if glob.matches(&self.graph.source(id).name) {
                    self.graph.source_mut(id).pin = Some(device.clone());
                    any = true;
                }
            }
            if !any {
                let what = format!("--pin {pattern}={device}");
                if self.parts().next().is_none() {
                    return Err(Error::usage(what, "nothing is split that was asked for")
                        .with_help("parts are those of --split PATTERN=AXIS:PARTS"));
                }
                return Err(place::no_match(&what, pattern, &self.parts().collect::<Vec<_>>()));
            }
        }
        Ok(self)
    }
}
