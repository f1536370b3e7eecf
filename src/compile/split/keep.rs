//! What a caller keeps whole: nodes under one prefix of their names, such as those of one block.

use std::collections::BTreeSet;

use wildmatch::WildMatch;

use crate::error::{Error, Result};
use crate::ir::{Graph, SourceRole};
use crate::place;

/// Patterns of colocation for the nodes under each prefix that a pattern matches: `encoder/layer_0/*`. A prefix ends
/// before a separator; of those of one name, the shortest counts. O(names x patterns x length).
///
/// Error: a pattern that matches no prefix.
pub(in crate::compile) fn together(graph: &Graph, patterns: &[String]) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let glob = WildMatch::new(pattern);
        let before = found.len();
        let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node);
        let names: Vec<&str> = nodes.map(|source| source.name.as_str()).collect();
        for name in &names {
            let mut ends = name.char_indices().filter(|&(at, end)| at > 0 && SEPARATORS.contains(&end));
            if let Some((at, end)) = ends.find(|&(at, _)| glob.matches(&name[..at])) {
                found.insert(format!("{}{end}*", &name[..at]));
            }
        }
        if found.len() == before && names.iter().any(|name| glob.matches(name)) {
            let message = "it matches whole names, and no prefix of a name that ends before `/` or `.`";
            return Err(Error::usage(format!("--keep-whole {pattern}"), message)
                .with_help("--colocate keeps the nodes of these names together"));
        }
        if found.len() == before {
            return Err(place::no_match(&format!("--keep-whole {pattern}"), pattern, &names));
        }
    }
    Ok(found.into_iter().collect())
}

/// What is between the parts of a name.
const SEPARATORS: [char; 2] = ['/', '.'];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Source;

    fn named(names: &[&str]) -> Graph {
        let mut graph = Graph::default();
        for name in names {
            graph.add_source(Source::new(*name, "Add", SourceRole::Node));
        }
        graph
    }

    #[test]
    fn the_shortest_prefix_that_matches_counts() {
        let graph =
            named(&["/enc/layer.0/q/MatMul", "/enc/layer.0/k", "/enc/layer.10/q", "/enc/norm", "layer"]);
        let ask = |pattern: &str| together(&graph, &[pattern.to_owned()]);
        assert_eq!(ask("/enc/layer.*").unwrap(), ["/enc/layer.0/*", "/enc/layer.10/*"]);
        assert_eq!(ask("/enc").unwrap(), ["/enc/*"]);
        assert_eq!(ask("*/q").unwrap(), ["/enc/layer.0/q/*"]);
        assert!(ask("lay*").unwrap_err().to_string().contains("--colocate"));
        assert!(ask("/enc/leyer.*").unwrap_err().to_string().contains("--keep-whole"));
    }
}
