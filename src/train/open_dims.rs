//! Sizes of a network's open dimensions, as the records have them.

use std::collections::BTreeMap;

use crate::compile;
use crate::error::{Error, Result};
use crate::ir::{Graph, Size};

/// The dimensions that a network leaves open beside its batch.
pub fn open_dims(graph: &Graph) -> Vec<String> {
    let batch = compile::batch_dim(graph);
    graph.unbound_dims().into_iter().filter(|name| batch.as_ref() != Some(name)).collect()
}

/// Values of the dimensions that a network leaves open beside its batch, from the sizes of a record's inputs by
/// name: axis by axis where there are as many, else from the number of elements where one axis is open. Inputs
/// without sizes say nothing.
///
/// Errors: records of different lengths, sizes that no value gives, two values for one dimension.
pub fn infer_dims(
    graph: &Graph,
    records: &[(String, Option<Vec<Option<u64>>>)],
) -> Result<BTreeMap<String, i64>> {
    let batch = compile::batch_dim(graph);
    let mut values = BTreeMap::new();
    for (name, value) in graph.inputs() {
        let record = records.iter().find(|(own, _)| own == name).and_then(|(_, sizes)| sizes.as_deref());
        let (Some(record), Some((_, sizes))) = (record, graph.ty(*value).shape.sizes().split_first()) else {
            continue;
        };
        let is_open = |size: &&Size| {
            let names = size.terms().iter().map(|(dim, _)| graph.dim_name(*dim));
            names.into_iter().any(|dim| batch.as_deref() != Some(dim))
        };
        let open: Vec<&Size> = sizes.iter().filter(is_open).collect();
        if open.is_empty() {
            continue;
        }
        let input = Input { graph, name };
        let known: Option<Vec<u64>> = record.iter().copied().collect();
        let known = known.ok_or_else(|| input.different_lengths(&open))?;
        if known.len() == sizes.len() {
            for (size, &found) in sizes.iter().zip(&known).filter(|(size, _)| is_open(size)) {
                input.solve(size, found, &mut values)?;
            }
        } else if let [only] = open[..] {
            let fixed = sizes.iter().filter_map(Size::known).map(i64::unsigned_abs);
            let fixed = fixed.fold(1u64, u64::saturating_mul).max(1);
            let all = known.iter().fold(1u64, |all, &size| all.saturating_mul(size));
            if all % fixed != 0 {
                let message = format!("a record has {all} elements, no multiple of {fixed}");
                return Err(Error::usage(format!("--data: {name}"), message));
            }
            input.solve(only, all / fixed, &mut values)?;
        } else {
            return Err(input.unknown(&open, "the sizes of a record do not determine them"));
        }
    }
    Ok(values)
}

/// An input, for messages.
struct Input<'a> {
    graph: &'a Graph,
    name: &'a str,
}

impl Input<'_> {
    /// Takes in the value of the dimension of a size.
    fn solve(&self, size: &Size, found: u64, values: &mut BTreeMap<String, i64>) -> Result<()> {
        let [(dim, coefficient)] = size.terms() else { return Ok(()) };
        let dim = self.graph.dim_name(*dim);
        let fault = |message: String| {
            Error::usage(format!("--data: {}", self.name), message).with_help(format!("--dim {dim}=N"))
        };
        let rest = i64::try_from(found).ok().and_then(|found| found.checked_sub(size.constant()));
        let value = rest.filter(|rest| rest % coefficient == 0).map(|rest| rest / coefficient);
        let value = value
            .filter(|&value| value > 0)
            .ok_or_else(|| fault(format!("no value of {dim} gives a record's size {found}")))?;
        let known = *values.entry(dim.to_owned()).or_insert(value);
        if known != value {
            return Err(fault(format!("{dim} would be {value} here, {known} by another input")));
        }
        Ok(())
    }

    fn different_lengths(&self, open: &[&Size]) -> Error {
        self.unknown(open, "records have different lengths")
    }

    fn unknown(&self, open: &[&Size], message: &str) -> Error {
        let terms = open.iter().flat_map(|size| size.terms());
        let mut names: Vec<&str> = terms.map(|(dim, _)| self.graph.dim_name(*dim)).collect();
        names.sort_unstable();
        names.dedup();
        let message = format!("{message}: how large {} is must be said", names.join(", "));
        let help: Vec<String> = names.iter().map(|name| format!("--dim {name}=N")).collect();
        Error::usage(format!("--data: {}", self.name), message).with_help(help.join(" "))
    }
}
