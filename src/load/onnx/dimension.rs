//! Dimensions of an ONNX model: what they are called, which are written in terms of others, and which have to
//! be equal for the model's operations to fit.
//!
//! Exporters name the same length anew for every input, so that a cache of keys is `s58` long and that of
//! values `s64`. Where an operation fits only if two sizes are equal, they are.

use std::collections::{BTreeMap, HashMap};

use super::known::Items;
use super::lower::Lowering;
use super::proto::{GraphProto, ValueInfoProto};
use crate::error::Result;
use crate::ir::text::parse_size;
use crate::ir::{DimId, Shape, Size, Type};

/// Dimensions that are replaced by others; each costs a pass over what has been read so far.
const MOST_EQUATIONS: usize = 64;

/// A dimension's name in the text form's alphabet; none where nothing is left of it.
pub(super) fn dimension_name(stated: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name: String = stated.chars().map(plain).collect();
    let named = name.chars().any(|c| c != '_');
    let digit = name.starts_with(|c: char| c.is_ascii_digit());
    named.then(|| if digit { format!("_{name}") } else { name })
}

/// The dimensions that an input states as a name alone; sizes such as `past + 1` may be written in them.
pub(super) struct Stated {
    names: Vec<String>,
    /// Positions in `names`.
    ids: HashMap<String, DimId>,
}

impl Stated {
    /// O(axes of the inputs).
    pub(super) fn of(graph: &GraphProto) -> Self {
        let mut all = Self { names: Vec::new(), ids: HashMap::new() };
        for stated in graph.input.iter().flat_map(names_of) {
            if dimension_name(stated).as_deref() == Some(stated) && !all.ids.contains_key(stated) {
                all.ids.insert(stated.to_owned(), DimId(all.names.len() as u32));
                all.names.push(stated.to_owned());
            }
        }
        all
    }

    /// The size that a text states in terms of named dimensions; none where it is a name, or no such text.
    pub(super) fn size(&self, stated: &str, of: &mut dyn FnMut(&str) -> Size) -> Option<Size> {
        if self.ids.contains_key(stated) {
            return None;
        }
        let size = parse_size(stated, &self.ids).ok().filter(|size| !size.terms().is_empty())?;
        let sizes: BTreeMap<DimId, Size> =
            size.terms().iter().map(|&(dim, _)| (dim, of(&self.names[dim.index()]))).collect();
        size.substituted(&|dim| sizes.get(&dim).cloned())
    }
}

/// What an input states of its axes.
fn names_of(input: &ValueInfoProto) -> impl Iterator<Item = &str> {
    let tensor = input.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
    let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
    dims.iter().filter_map(|dim| dim.dim_param.as_deref())
}

impl Lowering {
    /// Where an operation was refused because two sizes were not equal, replaces a dimension so that they
    /// are; whether it did.
    ///
    /// Error: what was read so far does not fit then.
    pub(super) fn equate(&mut self) -> Result<bool> {
        let Some((left, right)) = self.graph.take_unequal() else { return Ok(false) };
        let Some((dim, size)) = left.sub(&right).and_then(|difference| difference.zero_at()) else {
            return Ok(false);
        };
        if self.equations == MOST_EQUATIONS {
            return Ok(false);
        }
        self.equations += 1;
        self.replace(&BTreeMap::from([(dim, size)]))?;
        Ok(true)
    }

    /// Puts sizes in the place of dimensions, in the graph and in all that is known beside it.
    ///
    /// Error: sizes do not fit then.
    pub(super) fn replace(&mut self, sizes: &BTreeMap<DimId, Size>) -> Result<()> {
        if sizes.is_empty() {
            return Ok(());
        }
        let of = |dim: DimId| sizes.get(&dim).cloned();
        let list: Vec<Option<Size>> = (0..self.graph.dims().len() as u32).map(|dim| of(DimId(dim))).collect();
        self.graph.replace_dims(&list)?;
        // Sizes that overflow are found in the graph, which has them too.
        let replaced = |size: &Size| size.substituted(&of).unwrap_or_else(|| size.clone());
        for binding in self.bindings_mut() {
            let shape = Shape::new(binding.ty.shape.sizes().iter().map(replaced));
            binding.ty = Type::new(binding.ty.dtype, shape);
            if let Some(Items::Sizes(sizes)) = binding.known.as_mut().map(|known| &mut known.items) {
                sizes.iter_mut().for_each(|size| *size = replaced(size));
            }
        }
        Ok(())
    }
}
