//! Adapters of peft's kind: a folder with `adapter_config.json` and `adapter_model.safetensors`, which is merged into the
//! weights of a network as they are read.
//!
//! An adapter names layers as the library does, and so do the parameters of a network that was read from a configuration.
//! Each of its arrays is taken, or the adapter is refused.

mod config;
mod readers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use self::config::Config;
use self::readers::{Reading, readings};
use super::Arrays;
use crate::error::{Error, Report, Result};
use crate::ir::{Data, Graph, LowRank, ParamId, Real};

/// What says how an adapter is applied.
pub const CONFIG: &str = "adapter_config.json";
const ARRAYS: &str = "adapter_model.safetensors";
/// What names begin with: the library's own modules around the network.
const PREFIX: &str = "base_model.model.";

/// The two arrays of a layer.
#[derive(Default)]
struct Pair {
    left: Option<String>,
    right: Option<String>,
    /// It is of a table whose rows are looked up.
    is_table: bool,
}

/// What the arrays of an adapter are.
struct Parts {
    /// By layer.
    pairs: BTreeMap<String, Pair>,
    /// By the name of a parameter, the array that takes its place.
    whole: BTreeMap<String, String>,
}

/// Lets the parameters of a network be what an adapter makes of them; the names of those that it has whole, which need no
/// array of their own. O(nodes + parameters + arrays).
///
/// Errors: a folder without an adapter; a setting that is not supported; an array that no parameter takes, or of other sizes.
pub fn apply_adapter(graph: &mut Graph, folder: &Path) -> Result<BTreeSet<String>> {
    let path = folder.join(ARRAYS);
    let config = Config::read(&folder.join(CONFIG))?;
    if !path.is_file() {
        let message = format!("the adapter's {ARRAYS} is not beside its {CONFIG}");
        return Err(Error::format(folder.display().to_string(), message)
            .with_help("in Python, save_pretrained of the adapted model writes both"));
    }
    let arrays = Arrays::open_safetensors(&path)?;
    let parts = Parts::of(&arrays)?;
    let network = Network::of(graph)?;
    let mut low_rank = Vec::new();
    for (layer, pair) in &parts.pairs {
        let found = network.low_rank(graph, &arrays, (layer, pair), &config);
        low_rank.push(found.map_err(|error| error.within(&path.display().to_string()))?);
    }
    let mut whole = Vec::new();
    for (name, array) in &parts.whole {
        let id = network.whole(graph, &arrays, (name, array));
        whole.push((id.map_err(|error| error.within(&path.display().to_string()))?, array));
    }
    let mut names = BTreeSet::new();
    for (id, array) in whole {
        let param = graph.param_mut(id);
        param.data = Some(Data::Array { path: path.clone(), name: array.clone() });
        names.insert(param.name.clone());
    }
    for (id, added) in low_rank {
        let param = graph.param_mut(id);
        let added = Box::new(added);
        param.data = param.data.take().map(|matrix| Data::Sum { matrix: Box::new(matrix), added });
    }
    Ok(names)
}

impl Parts {
    /// Error: an array that is neither.
    fn of(arrays: &Arrays) -> Result<Self> {
        let mut parts = Self { pairs: BTreeMap::new(), whole: BTreeMap::new() };
        let unknown = |name: &str, message: &str| {
            let place = format!("{}: array {name}", arrays.path().display());
            Error::Unsupported(Report::new(place, message).help("merge_and_unload merges it in Python"))
        };
        for name in arrays.names() {
            let Some(own) = name.strip_prefix(PREFIX) else {
                return Err(unknown(name, "it does not begin with the name of an adapted model"));
            };
            const ENDS: [(&str, bool, bool); 4] = [
                (".lora_A.weight", false, false),
                (".lora_B.weight", true, false),
                (".lora_embedding_A", false, true),
                (".lora_embedding_B", true, true),
            ];
            let end = ENDS
                .iter()
                .find_map(|&(end, is_left, is_table)| Some((own.strip_suffix(end)?, is_left, is_table)));
            match end {
                Some((layer, is_left, is_table)) => {
                    let pair = parts.pairs.entry(layer.to_owned()).or_default();
                    let side = if is_left { &mut pair.left } else { &mut pair.right };
                    *side = Some(name.clone());
                    pair.is_table |= is_table;
                }
                None if own.contains("lora_") => {
                    return Err(unknown(name, "this part of an adapter is not applied"));
                }
                None => {
                    parts.whole.insert(own.replace(".base_layer.", "."), name.clone());
                }
            }
        }
        Ok(parts)
    }
}

/// A network's parameters, by all names that files have for them.
struct Network {
    by_name: BTreeMap<String, ParamId>,
    readings: Vec<Reading>,
}

impl Network {
    /// Error: its matrices are coded, as an adapter's sum is not.
    fn of(graph: &Graph) -> Result<Self> {
        let names = &graph.rules().arrays;
        if names.coding.is_some() {
            let message = "an adapter is not merged into weights of few bits";
            let help = "merge_and_unload of the model in more bits, which --weights-as packs";
            return Err(Error::Unsupported(Report::new("--adapter", message).help(help)));
        }
        let mut by_name = BTreeMap::new();
        let ids = (0..graph.params().len() as u32).map(ParamId);
        for (id, param) in ids.clone().zip(graph.params()) {
            by_name.insert(param.name.clone(), id);
        }
        for (id, param) in ids.zip(graph.params()) {
            for other in names.aliases.get(&param.name).into_iter().flatten() {
                by_name.entry(other.clone()).or_insert(id);
            }
        }
        Ok(Self { by_name, readings: readings(graph) })
    }

    fn find(&self, array: &str, name: &str) -> Result<ParamId> {
        self.by_name.get(name).copied().ok_or_else(|| {
            Error::model(format!("array {array}"), format!("the network has no parameter {name}")).with_help(
                "an adapter belongs to the model that it was trained with; one of experts' weights \
                     (target_parameters) is merged in Python: merge_and_unload",
            )
        })
    }

    /// What a layer's arrays add to its matrix, and which parameter that is. Errors: one is missing, no parameter takes them, or
    /// their sizes do not fit.
    fn low_rank(
        &self,
        graph: &Graph,
        arrays: &Arrays,
        (layer, pair): (&str, &Pair),
        config: &Config,
    ) -> Result<(ParamId, LowRank)> {
        let (Some(left), Some(right)) = (&pair.left, &pair.right) else {
            let message = "of the two arrays of a layer the other one is missing";
            let known = pair.left.as_ref().or(pair.right.as_ref()).map_or(layer, String::as_str);
            return Err(Error::model(format!("array {known}"), message));
        };
        let id = self.find(left, &format!("{layer}.weight"))?;
        let param = graph.param(id);
        let turned = match (self.readings[id.index()], pair.is_table) {
            (Reading::Rows, false) => false,
            (Reading::Columns, false) | (Reading::LookUp, true) => true,
            (Reading::Tied, _) => {
                let message =
                    format!("parameter {} is tied: a layer reads it that the adapter is not of", param.name);
                return Err(Error::Unsupported(Report::new(format!("array {left}"), message)));
            }
            (Reading::Rows | Reading::Columns | Reading::LookUp | Reading::Other, _) => {
                let message =
                    format!("parameter {} is none of a layer that adapters are merged into", param.name);
                return Err(Error::Unsupported(Report::new(format!("array {left}"), message)));
            }
        };
        let dims = param.whole_type(graph).shape.dims().unwrap_or_default();
        let [height, width] = match (&dims[..], turned) {
            (&[rows, columns], false) => [rows, columns],
            (&[rows, columns], true) => [columns, rows],
            _ => {
                return Err(Error::model(
                    format!("array {left}"),
                    format!("parameter {} is no matrix", param.name),
                ));
            }
        };
        let sizes = |name: &str| -> Result<Vec<i64>> {
            let header = arrays.header(name)?.map(|(_, dims)| dims).unwrap_or_default();
            Ok(header.into_iter().map(|dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect())
        };
        let (of_left, of_right) = (sizes(left)?, sizes(right)?);
        let rank = of_right.first().copied().unwrap_or(0);
        if of_left != [height, rank] || of_right != [rank, width] || rank == 0 {
            let message = format!(
                "{of_left:?} times {of_right:?} is not [{height}, {width}], as parameter {}",
                param.name
            );
            return Err(Error::model(format!("array {left}"), message));
        }
        let factor = Real(config.factor(layer, rank)?);
        let (left, right, path) = (left.clone(), right.clone(), arrays.path().to_owned());
        Ok((id, LowRank { path, left, right, factor, turned }))
    }

    /// The parameter in whose place an array stands. Errors: there is none, it is tied, or of other sizes.
    fn whole(&self, graph: &Graph, arrays: &Arrays, (name, array): (&str, &str)) -> Result<ParamId> {
        let id = self.find(array, name)?;
        let param = graph.param(id);
        if self.readings[id.index()] == Reading::Tied {
            let message =
                format!("parameter {} is tied: a layer reads it that the array is not of", param.name);
            return Err(Error::Unsupported(Report::new(format!("array {array}"), message)));
        }
        match super::params::mismatch(graph, param, arrays, array)? {
            None => Ok(id),
            Some(message) => Err(Error::model(format!("array {array}"), message)),
        }
    }
}
