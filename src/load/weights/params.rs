//! Arrays and parameters: which array is which parameter's, and where each one's data is read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::floats::numbers;
use super::merge::Merge;
use super::{Arrays, damaged, extra};
use crate::error::{Error, Report, Result};
use crate::files;
use crate::ir::packing::Packing;
use crate::ir::{Beside, DType, Data, Graph, LowRank, NodeId, Param, ParamId, Tensor};

/// What [`load_params`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of parameters that have an array now.
    pub params: usize,
    /// Arrays that are no parameter's, but for buffers and for arrays of inputs and outputs.
    pub extra: Vec<String>,
    /// Parameters that have neither array nor data, but for what files of Keras leave out and nothing reads.
    pub missing: Vec<String>,
    /// Parameters without an array that keep the data which the model has of them.
    pub kept: Vec<String>,
}

/// Gives each parameter of the graph its array of a file: by the parameter's name or one that files
/// give it ([`ArrayNames`](crate::ir::ArrayNames)), or in order where the arrays are called `w000:...`,
/// `w001:...` (Keras' order of weights, which is that of [`Graph::params`] there), or by layer in files of
/// Keras itself. Headers are compared, data is read later, by [`ParamReader`]; f16 and bf16 become f32, and so does f64, rounded.
///
/// Parameters without an array keep the data they have. Errors, each naming the parameters or arrays
/// concerned: a parameter has neither array nor data; an array has another type or other sizes; an array
/// that no parameter takes is of a layer that has others; two arrays of one parameter differ.
/// O(arrays + params, sorted).
pub fn load_params(graph: &mut Graph, arrays: &Arrays) -> Result<Loaded> {
    let loaded = match_params(graph, arrays)?;
    match loaded.missing.first() {
        None => Ok(loaded),
        Some(first) => {
            let message = format!("{} parameters have no array, the first is {first}", loaded.missing.len());
            let report = Report::new(arrays.path().display().to_string(), message);
            Err(Error::Model(
                report.help("arrays carry the parameters' names").first_details(loaded.missing, "parameters"),
            ))
        }
    }
}

/// As [`load_params`], but parameters with neither array nor data are told, not an error.
pub fn match_params(graph: &mut Graph, arrays: &Arrays) -> Result<Loaded> {
    let ordered = ordered(arrays);
    let of_keras = if ordered.is_empty() { arrays.of_keras(graph)? } else { None };
    // Some files of Keras leave out what only training goes on from.
    let left_out = if of_keras.is_some() { unread(graph) } else { BTreeSet::new() };
    let chosen: Vec<Option<String>> = match of_keras {
        Some(chosen) => chosen,
        None if ordered.is_empty() => by_name(graph, arrays)?,
        None if ordered.len() == graph.params().len() => ordered.into_iter().map(Some).collect(),
        None => {
            let message =
                format!("{} arrays in order for {} parameters", ordered.len(), graph.params().len());
            return Err(Error::model(arrays.path().display().to_string(), message));
        }
    };
    let (mut missing, mut kept, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (param, array) in graph.params().iter().zip(&chosen) {
        match array {
            Some(array) => wrong.extend(mismatch(graph, param, arrays, array)?),
            None if param.state.is_some() || left_out.contains(&param.node) => {}
            None if has_data(param.data.as_ref()) => kept.push(param.name.clone()),
            None => missing.push(param.name.clone()),
        }
    }
    let place = arrays.path().display().to_string();
    if let Some(first) = wrong.first() {
        return Err(Error::Model(Report::new(place, first.as_str()).details(wrong)));
    }
    let mut loaded = Loaded { missing, kept, ..Loaded::default() };
    for (index, array) in chosen.iter().enumerate() {
        let Some(name) = array.clone() else { continue };
        let data = Data::Array { path: arrays.file_of(&name).to_owned(), name };
        graph.param_mut(ParamId(index as u32)).data = Some(data);
        loaded.params += 1;
    }
    loaded.extra = extra::extra(graph, arrays, &chosen)?;
    let held: BTreeSet<&String> = arrays.names().iter().collect();
    for beside in &mut graph.rules_mut().arrays.beside {
        if held.contains(&beside.name) {
            let path = arrays.file_of(&beside.name).to_owned();
            beside.data = Data::Array { path, name: beside.name.clone() };
        }
    }
    Ok(loaded)
}

/// The nodes of parameters that nothing reads. O(operands, sorted).
fn unread(graph: &Graph) -> BTreeSet<NodeId> {
    let operands = graph.node_ids().flat_map(|id| graph.node(id).operands.iter());
    let outputs = graph.outputs().iter().map(|(_, value)| value);
    let read: BTreeSet<NodeId> = operands.chain(outputs).map(|&value| graph.value(value).node).collect();
    graph.params().iter().map(|param| param.node).filter(|node| !read.contains(node)).collect()
}

/// The arrays called `w` and digits up to a colon, in the order of those digits; empty where
/// there are none.
fn ordered(arrays: &Arrays) -> Vec<String> {
    let mut numbered: Vec<(u64, &String)> = arrays
        .names()
        .iter()
        .filter_map(|name| {
            let digits = name.strip_prefix('w')?.split_once(':')?.0;
            Some((digits.parse().ok()?, name))
        })
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, name)| name.clone()).collect()
}

/// The array of each parameter: that of its name, or of another that files give it. Error: several,
/// which differ. O(arrays + params + bytes of arrays that there are twice).
fn by_name(graph: &Graph, arrays: &Arrays) -> Result<Vec<Option<String>>> {
    let names: BTreeSet<&str> = arrays.names().iter().map(String::as_str).collect();
    let aliases = &graph.rules().arrays.aliases;
    let choose = |param: &Param| {
        let own = param.whole_name();
        let others = aliases.get(own).into_iter().flatten().map(String::as_str);
        let mut found = std::iter::once(own).chain(others).filter(|name| names.contains(name));
        let Some(first) = found.next() else { return Ok(None) };
        for other in found {
            if arrays.get(first)? != arrays.get(other)? {
                let message =
                    format!("arrays {first} and {other} are one parameter of the model, and differ");
                let place = arrays.path().display().to_string();
                return Err(Error::model(place, message)
                    .with_help("layers that are not tied say \"tie_word_embeddings\": false"));
            }
        }
        Ok(Some(first.to_owned()))
    };
    graph.params().iter().map(choose).collect()
}

/// True for types whose every number the other has, and for what libraries of arrays make where no type is named.
fn is_read_as(from: DType, to: DType) -> bool {
    from == to || to == DType::F32 && (from.is_half() || from == DType::F64)
}

/// What is wrong with an array as a parameter, in words; none where it fits.
pub(super) fn mismatch(graph: &Graph, param: &Param, arrays: &Arrays, array: &str) -> Result<Option<String>> {
    let ty = param.whole_type(graph);
    let Some((dtype, dims)) = arrays.header(array)? else { return Ok(None) };
    let expected: Option<Vec<u64>> =
        ty.shape.dims().and_then(|dims| dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect());
    Ok((!is_read_as(dtype, ty.dtype) || expected.as_ref() != Some(&dims)).then(|| {
        let expected = expected.map_or_else(|| "unbound sizes".to_owned(), |dims| format!("{dims:?}"));
        format!("parameter {}: expected {}{expected}, array {array} is {dtype}{dims:?}", param.name, ty.dtype)
    }))
}

/// The nearest numbers of f32.
fn rounded(tensor: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = tensor.to_f64().into_iter().map(|value| value as f32).collect();
    Tensor::from_f32(tensor.dims().to_vec(), &values)
}

/// True where there is data that can be read.
fn has_data(data: Option<&Data>) -> bool {
    match data {
        None => false,
        Some(Data::Inline(_)) => true,
        Some(Data::File { path, .. } | Data::Array { path, .. }) => path.exists(),
        Some(Data::Sum { matrix, added }) => has_data(Some(matrix)) && added.path.exists(),
    }
}

/// Reads parameters' data from wherever it is. Files stay open between reads.
#[derive(Debug, Default)]
pub struct ParamReader {
    arrays: BTreeMap<PathBuf, Arrays>,
    files: BTreeMap<PathBuf, File>,
}

impl ParamReader {
    /// A reader without open files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trained parameters as the source's own library holds them: under all of its names, with what it holds besides.
    ///
    /// Errors: what is besides cannot be read.
    pub fn with_beside(
        &mut self,
        graph: &Graph,
        trained: &[(String, Tensor)],
    ) -> Result<Vec<(String, Tensor)>> {
        let names = &graph.rules().arrays;
        let mut arrays = Vec::with_capacity(trained.len() + names.beside.len());
        for (own, tensor) in trained {
            match names.written.get(own) {
                Some(written) => arrays.extend(written.iter().map(|name| (name.clone(), tensor.clone()))),
                None => arrays.push((own.clone(), tensor.clone())),
            }
        }
        for Beside { name, dtype, dims, data } in &names.beside {
            let tensor = self.tensor(data, graph, (*dtype, dims));
            arrays.push((name.clone(), tensor.map_err(|error| error.within(&format!("array {name}")))?));
        }
        Ok(arrays)
    }

    /// The data of a parameter, of the type that it is given in ([`Param::supplied`](crate::ir::Param::supplied)), or of the
    /// halves that it holds, where its array is of these; none where it has none, or it is in a file that is absent.
    /// Errors: a file that cannot be read or is too short, an array that is gone or has another
    /// type than the parameter.
    pub fn read(&mut self, graph: &Graph, id: ParamId) -> Result<Option<Tensor>> {
        let param = graph.param(id);
        let ty = param.whole_type(graph);
        let dims = ty.shape.dims().and_then(|dims| {
            dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect::<Option<Vec<u64>>>()
        });
        let place = |error: Error| error.within(&format!("parameter {}", param.name));
        let Some(dims) = dims else {
            return Err(place(Error::Internal("a parameter of unbound sizes".to_owned())));
        };
        if !has_data(param.data.as_ref()) {
            return Ok(None);
        }
        if let Some(rows) = self.rows_as_held(graph, param).map_err(place)? {
            return param.part_as_held(graph, rows).map(Some);
        }
        if let Some(rows) = self.rows_packed(graph, param).map_err(place)? {
            return param.part_as_held(graph, rows).map(Some);
        }
        let Some(data) = &param.data else { return Ok(None) };
        let tensor = self.tensor(data, graph, (ty.dtype, &dims)).map_err(place)?;
        let held = graph.ty(graph.node(param.node).first_result).dtype;
        let is_held = tensor.dtype().is_half() && tensor.dtype() == held;
        let halves = tensor.dtype().is_half() && ty.dtype == DType::F32;
        let tensor = match tensor.dtype() {
            _ if halves && !is_held => tensor.widened().map_err(place)?,
            DType::F64 if ty.dtype == DType::F32 => rounded(&tensor).map_err(place)?,
            _ => tensor,
        };
        if tensor.dtype() != ty.dtype && !is_held || tensor.dims() != dims {
            let found = format!("{}{:?}", tensor.dtype(), tensor.dims());
            return Err(place(Error::model("", format!("expected {}{dims:?}, found {found}", ty.dtype))));
        }
        param.own_part(graph, tensor).map(Some).map_err(place)
    }

    /// The blocks that are made of a matrix of numbers, packed a stretch of rows at a time as it is read; none where it is in no
    /// blocks that are made, or not read in parts.
    fn rows_packed(&mut self, graph: &Graph, param: &Param) -> Result<Option<Tensor>> {
        let Some(repacked) = param.repacked.filter(|repacked| repacked.format.is_made()) else {
            return Ok(None);
        };
        let (matrix, added) = match &param.data {
            Some(Data::Sum { matrix, added }) => (Some(&**matrix), Some(added)),
            matrix => (matrix.as_ref(), None),
        };
        let Some(Data::Array { path, name }) = matrix else { return Ok(None) };
        let merge = added.map(|added| self.merge(added)).transpose()?;
        let Some(mut rows) = self.opened(path, graph)?.rows_of_numbers(name) else { return Ok(None) };
        let mut packing = Packing::new(repacked, rows.dims())?;
        let mut taken = 0;
        while rows.left() > 0 {
            let mut numbers = rows.read(packing.stretch())?;
            if let Some(merge) = &merge {
                merge.add_to(taken, &mut numbers);
            }
            packing.add(&numbers)?;
            taken += packing.stretch();
        }
        packing.finish().map(Some)
    }

    /// The array that some data is; what has no header is of this type and sizes.
    fn tensor(&mut self, data: &Data, graph: &Graph, (dtype, dims): (DType, &[u64])) -> Result<Tensor> {
        match data {
            Data::Inline(tensor) => Ok(tensor.clone()),
            Data::File { path, offset, length } => self.raw(path, *offset, *length, dtype, dims),
            Data::Array { path, name } => self.array(path, name, graph),
            Data::Sum { matrix, added } => {
                let matrix = self.tensor(matrix, graph, (dtype, dims))?;
                self.merged(matrix, added, dtype)
            }
        }
    }

    /// A matrix with what an adapter adds to it, in f32, or rounded where it is supplied in halves.
    fn merged(&mut self, matrix: Tensor, added: &LowRank, supplied: DType) -> Result<Tensor> {
        let dims = matrix.dims().to_vec();
        let mut numbers = numbers(matrix)?;
        self.merge(added)?.add_to(0, &mut numbers);
        let merged = Tensor::from_f32(dims, &numbers)?;
        if supplied.is_half() { merged.rounded(supplied) } else { Ok(merged) }
    }

    fn merge(&mut self, added: &LowRank) -> Result<Merge> {
        let arrays = match self.arrays.entry(added.path.clone()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(Arrays::open_safetensors(&added.path)?),
        };
        Merge::read(arrays, added)
    }

    /// The blocks of a parameter that holds a matrix as its array does; none where it holds it otherwise.
    fn rows_as_held(&mut self, graph: &Graph, param: &Param) -> Result<Option<Tensor>> {
        let (Some(repacked), Some(Data::Array { path, name })) = (param.repacked, &param.data) else {
            return Ok(None);
        };
        let arrays = self.opened(path, graph)?;
        let rows = match repacked.format.has_scales_beside() {
            true => arrays.piece(name, repacked.format, repacked.piece)?,
            false if repacked.turned || arrays.blocks(name)? != Some(repacked.format) => None,
            false => arrays.rows_of_blocks(name)?,
        };
        match rows {
            Some(rows) if !rows.is_of(&param.whole_held(graph)) => {
                let message =
                    format!("the array has {:?} bytes of blocks, the parameter others", rows.dims());
                Err(Error::model("", message))
            }
            rows => Ok(rows),
        }
    }

    fn array(&mut self, path: &Path, name: &str, graph: &Graph) -> Result<Tensor> {
        let found = self.opened(path, graph)?.get(name)?;
        found.ok_or_else(|| Error::model(path.display().to_string(), format!("there is no array {name}")))
    }

    fn opened(&mut self, path: &Path, graph: &Graph) -> Result<&Arrays> {
        match self.arrays.entry(path.to_owned()) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(place) => {
                Ok(place.insert(Arrays::open_weights(path)?.read_as(graph.rules().arrays.coding)))
            }
        }
    }

    fn raw(
        &mut self,
        path: &PathBuf,
        offset: u64,
        length: u64,
        dtype: DType,
        dims: &[u64],
    ) -> Result<Tensor> {
        let place = path.display().to_string();
        if !self.files.contains_key(path) {
            self.files.insert(path.clone(), files::open(path)?);
        }
        let Some(file) = self.files.get_mut(path) else {
            return Err(Error::Internal("a file that was just opened".to_owned()));
        };
        let within = |error: Error| error.within(&place);
        let whole = file.metadata().map_err(|error| within(damaged(error)))?.len();
        if offset.checked_add(length).is_none_or(|end| end > whole) {
            let message = format!("{length} bytes at {offset} are beyond its {whole} bytes");
            return Err(Error::format(place, message));
        }
        file.seek(SeekFrom::Start(offset)).map_err(|error| within(damaged(error)))?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes).map_err(|error| within(damaged(error)))?;
        Tensor::new(dtype, dims.to_vec(), bytes).map_err(within)
    }
}
