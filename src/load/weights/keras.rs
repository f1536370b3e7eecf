//! Which dataset of a Keras file is which parameter's: `.h5` of Keras 2 (whole models and weights
//! alone), `.weights.h5` and `.keras` of Keras 3.
//!
//! Keras 2 writes a group for each layer, with the names of its weights in order. Keras 3 writes a
//! group for each object, called after its class and counted, whose `vars` are numbered; newer
//! releases note the layer's name beside them. Names decide where all of them are those of the model;
//! else the order of layers does, as in Keras itself, and sizes must agree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::hdf5::Hdf5;
use crate::error::{Error, Report, Result};
use crate::ir::{DType, Graph};

/// Datasets that one layer owns, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// The layer's name, with those of the layers around it, divided by `/`; empty where the file
    /// does not tell.
    name: String,
    /// Where its kind is counted: `layers/dense` for `layers/dense_1`, and its number.
    class: (String, u64),
    /// Paths of the datasets, each with the weight's name where the file tells it.
    arrays: Vec<(String, Option<String>)>,
}

/// The layers of a Keras file that have weights; none where the file is of another kind.
pub(super) fn layers(file: &Hdf5) -> Result<Option<Vec<Layer>>> {
    file.renew();
    for root in ["model_weights", ""] {
        if let Some(names) = file.texts(root, "layer_names")? {
            return second(file, root, names).map(Some);
        }
    }
    third(file)
}

/// True of one integer: how many samples or batches a layer has seen, which no layer computes with.
pub(super) fn is_counter(header: &Option<(DType, Vec<u64>)>) -> bool {
    header.as_ref().is_some_and(|(dtype, dims)| dtype.is_integer() && dims.is_empty())
}

/// Layers as Keras 2 writes them.
fn second(file: &Hdf5, root: &str, names: Vec<String>) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        let group = if root.is_empty() { name.clone() } else { format!("{root}/{name}") };
        let weights = file.texts(&group, "weight_names").ok().flatten().unwrap_or_default();
        let mut arrays = Vec::new();
        for weight in weights {
            let path = format!("{group}/{weight}");
            if !file.has(&path) {
                return Err(Error::format("", format!("layer {name}: there is no dataset {weight}")));
            }
            if is_counter(&file.header(&path)?) {
                continue;
            }
            let own = weight.rsplit_once(':').map_or(weight.as_str(), |(own, _)| own);
            arrays.push((path, Some(own.to_owned())));
        }
        if !arrays.is_empty() {
            layers.push(Layer { name, class: (String::new(), number as u64), arrays });
        }
    }
    Ok(layers)
}

/// Layers as Keras 3 writes them.
fn third(file: &Hdf5) -> Result<Option<Vec<Layer>>> {
    let mut layers = Vec::new();
    // The name that each object notes, where it does: those inside of it have it as well.
    let mut noted: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for vars in file.groups().filter(|group| group.ends_with("/vars")) {
        let mut arrays: Vec<(String, Option<String>)> = Vec::new();
        for path in (0..).map(|at| format!("{vars}/{at}")).take_while(|path| file.has(path)) {
            if !is_counter(&file.header(&path)?) {
                arrays.push((path, None));
            }
        }
        if arrays.is_empty() || vars.starts_with("optimizer/") {
            continue;
        }
        let object = vars.trim_end_matches("/vars");
        let mut names = Vec::new();
        for (end, _) in object.match_indices('/').chain([(object.len(), "")]) {
            let outer = &object[..end];
            let name = noted.entry(outer).or_insert_with(|| {
                let name = file.texts(&format!("{outer}/vars"), "name").ok().flatten();
                name.and_then(|name| name.into_iter().next())
            });
            names.extend(name.clone());
        }
        let own = noted.get(object).is_some_and(Option::is_some);
        let name = if own { names.join("/") } else { String::new() };
        layers.push(Layer { name, class: counted(object), arrays });
    }
    Ok((!layers.is_empty()).then_some(layers))
}

/// `layers/dense_1` as `layers/dense` and 1; `layers/dense` itself is number 0.
fn counted(object: &str) -> (String, u64) {
    let digits = object.rsplit_once('_').and_then(|(class, digits)| Some((class, digits.parse().ok()?)));
    digits.map_or_else(|| (object.to_owned(), 0), |(class, number)| (class.to_owned(), number))
}

/// The dataset of each parameter, in the order of the graph's parameters; none for those that have
/// none. `dims` gives a dataset's sizes.
///
/// Error: neither names nor order tell.
pub(super) fn assign(
    graph: &Graph,
    layers: &[Layer],
    dims: &dyn Fn(&str) -> Result<Vec<u64>>,
) -> Result<Vec<Option<String>>> {
    let by_name = by_name(graph, layers);
    let arrays: usize = layers.iter().map(|layer| layer.arrays.len()).sum();
    let named = by_name.iter().flatten().count();
    // Files hold no states of layers.
    let wanted = graph.params().iter().filter(|param| param.state.is_none()).count();
    if named == wanted || arrays != wanted {
        return Ok(by_name);
    }
    by_order(graph, layers, dims)
}

fn by_name(graph: &Graph, layers: &[Layer]) -> Vec<Option<String>> {
    let names: Vec<&str> = graph.params().iter().map(|param| param.name.as_str()).collect();
    let mut chosen: Vec<Option<String>> = vec![None; names.len()];
    // Positions of the parameters of each layer and of each layer inside of one.
    let mut owned: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (position, name) in names.iter().enumerate() {
        for (end, _) in name.match_indices('/') {
            owned.entry(&name[..end]).or_default().push(position);
        }
    }
    for layer in layers {
        let Some(positions) = owned.get(layer.name.as_str()) else { continue };
        let direct: Vec<usize> = positions
            .iter()
            .copied()
            .filter(|&at| !names[at][layer.name.len() + 1..].contains('/'))
            .collect();
        let mut ends = Ends::new(&names, positions);
        for (number, (path, weight)) in layer.arrays.iter().enumerate() {
            let position = match weight {
                None => direct.get(number).copied().filter(|_| direct.len() == layer.arrays.len()),
                Some(weight) => ends.take(weight, &chosen),
            };
            if let Some(position) = position {
                chosen[position] = Some(path.clone());
            }
        }
    }
    chosen
}

/// The parameters of a layer by each end of their paths, the last first. Looked up, never iterated.
struct Ends<'g>(HashMap<&'g str, Vec<usize>>);

impl<'g> Ends<'g> {
    /// O(parts of the paths).
    fn new(names: &[&'g str], positions: &[usize]) -> Self {
        let mut ends: HashMap<&str, Vec<usize>> = HashMap::new();
        for &at in positions.iter().rev() {
            let name = names[at];
            let parts = name.match_indices('/').map(|(slash, _)| slash + 1);
            std::iter::once(0).chain(parts).for_each(|from| ends.entry(&name[from..]).or_default().push(at));
        }
        Self(ends)
    }

    /// The parameter that a weight's name means: the same path, or its end, or at least the same last part;
    /// the first that has no dataset yet.
    fn take(&mut self, weight: &str, chosen: &[Option<String>]) -> Option<usize> {
        let last = weight.rsplit('/').next().unwrap_or_default();
        [weight, last].into_iter().find_map(|end| {
            let positions = self.0.get_mut(end)?;
            // Those that have a dataset never lose it.
            while positions.last().is_some_and(|&at| chosen[at].is_some()) {
                positions.pop();
            }
            positions.last().copied()
        })
    }
}

/// Layers one after another, in the order of the model: each takes the next of a kind whose sizes
/// are its own.
fn by_order(
    graph: &Graph,
    layers: &[Layer],
    dims: &dyn Fn(&str) -> Result<Vec<u64>>,
) -> Result<Vec<Option<String>>> {
    let mut queues: BTreeMap<&str, Vec<(&Layer, Vec<Vec<u64>>)>> = BTreeMap::new();
    for layer in layers {
        let sizes: Vec<Vec<u64>> = layer.arrays.iter().map(|(path, _)| dims(path)).collect::<Result<_>>()?;
        queues.entry(&layer.class.0).or_default().push((layer, sizes));
    }
    // The layers of a class are numbered as they were made, which is the model's order; the first is taken from the end.
    for queue in queues.values_mut() {
        queue.sort_by_key(|(layer, _)| std::cmp::Reverse(layer.class.1));
    }
    let names_layers = queues.len() == 1 && queues.contains_key("");
    let mut chosen = vec![None; graph.params().len()];
    for (name, positions) in owners(graph, names_layers) {
        let wanted: Vec<Option<Vec<u64>>> = positions.iter().map(|&at| sizes_of(graph, at)).collect();
        let fits = |sizes: &[Vec<u64>]| {
            sizes.len() == wanted.len()
                && sizes.iter().zip(&wanted).all(|(one, other)| Some(one) == other.as_ref())
        };
        let heads = |queue: &[(&Layer, Vec<Vec<u64>>)]| queue.last().is_some_and(|(_, sizes)| fits(sizes));
        let fitting: Vec<&str> =
            queues.iter().filter(|(_, queue)| heads(queue)).map(|(class, _)| *class).collect();
        let words = words(&name);
        let shared = |class: &str| self::words(class).intersection(&words).count();
        // Of equally alike ones the first.
        let class =
            fitting.into_iter().min_by_key(|class| (std::cmp::Reverse(shared(class)), natural(class)));
        let layer = class.and_then(|class| queues.get_mut(class)?.pop());
        let Some((layer, _)) = layer else {
            let message = format!("no layer of the file has the sizes of layer {name}");
            return Err(Error::Model(
                Report::new("", message).help("save the weights of the same model, or by name as npz"),
            ));
        };
        for (&position, (path, _)) in positions.iter().zip(&layer.arrays) {
            chosen[position] = Some(path.clone());
        }
    }
    Ok(chosen)
}

/// The words that a path is made of, without numbers.
fn words(path: &str) -> BTreeSet<&str> {
    let words = path.split(['/', '_']).filter(|word| !word.is_empty());
    words.filter(|word| !word.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

/// A path with its numbers as numbers, to be compared.
fn natural(path: &str) -> Vec<(&str, u64)> {
    let number = |part: &'_ str| {
        part.rsplit_once('_').and_then(|(stem, digits)| Some((stem.len(), digits.parse().ok()?)))
    };
    path.split('/')
        .map(|part| number(part).map_or((part, 0), |(end, number)| (&part[..end], number)))
        .collect()
}

/// Positions of the parameters of each layer, in order: of outermost ones, or of those that own
/// parameters themselves.
fn owners(graph: &Graph, outermost: bool) -> Vec<(String, Vec<usize>)> {
    let mut owners: Vec<(String, Vec<usize>)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let weights = graph.params().iter().enumerate().filter(|(_, param)| param.state.is_none());
    for (position, param) in weights {
        let divided = if outermost { param.name.split_once('/') } else { param.name.rsplit_once('/') };
        let owner = divided.map_or(param.name.as_str(), |(owner, _)| owner);
        let at = *known.entry(owner.to_owned()).or_insert(owners.len());
        if at == owners.len() {
            owners.push((owner.to_owned(), Vec::new()));
        }
        owners[at].1.push(position);
    }
    owners
}

fn sizes_of(graph: &Graph, position: usize) -> Option<Vec<u64>> {
    let ty = graph.params()[position].supplied_type(graph);
    ty.shape.dims()?.into_iter().map(|dim| u64::try_from(dim).ok()).collect()
}
