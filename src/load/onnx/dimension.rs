//! Dimensions of an ONNX model: what they are called, which are written in terms of others, and which have to
//! be equal for the model's operations to fit.
//!
//! Exporters name the same length anew for every input, so that a cache of keys is `s58` long and that of
//! values `s64`. Where an operation fits only if two sizes are equal, they are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::known::Items;
use super::lower::Lowering;
use super::proto::{GraphProto, ValueInfoProto};
use crate::error::{Error, Result};
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

/// The dimension that a size is, and nothing else.
fn name_alone(size: &Size) -> Option<DimId> {
    let [(dim, _)] = size.terms() else { return None };
    (*size == Size::dim(*dim)).then_some(*dim)
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

/// Axes of inputs that are called as another one before them.
pub(super) enum Repeats {
    /// They are as long.
    Equal,
    /// Each is a dimension of its own, until the arrays of a run say how long they are.
    Apart(Apart),
}

/// Dimensions that inputs have named so far, and the axes that are called as one of them.
#[derive(Default)]
pub(super) struct Apart {
    seen: BTreeSet<DimId>,
    repeats: Vec<Repeat>,
}

/// An axis that is called as one before it.
pub(super) struct Repeat {
    input: String,
    axis: usize,
    own: DimId,
    first: DimId,
}

/// What an input states of its axes.
fn names_of(input: &ValueInfoProto) -> impl Iterator<Item = &str> {
    let tensor = input.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
    let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
    dims.iter().filter_map(|dim| dim.dim_param.as_deref())
}

impl Lowering {
    /// The type of an input, where axes that are called as ones before them have dimensions of their own.
    pub(super) fn with_repeats(&mut self, input: &ValueInfoProto, ty: Type, repeats: &mut Repeats) -> Type {
        let Repeats::Apart(apart) = repeats else { return ty };
        let mut sizes = ty.shape.sizes().to_vec();
        for (axis, size) in sizes.iter_mut().enumerate() {
            let Some(first) = name_alone(size) else { continue };
            if apart.seen.insert(first) {
                continue;
            }
            let name = self.unused_name(self.graph.dim_name(first), &input.name, axis);
            let own = self.graph.dim(&name);
            apart.repeats.push(Repeat { input: input.name.clone(), axis, own, first });
            *size = Size::dim(own);
        }
        Type::new(ty.dtype, Shape::new(sizes))
    }

    fn unused_name(&self, name: &str, input: &str, axis: usize) -> String {
        let of = dimension_name(input).unwrap_or_else(|| "input".to_owned());
        let mut name = format!("{name}_of_{of}_{axis}");
        while self.graph.dims().iter().any(|dim| dim.name == name) {
            name.push('_');
        }
        name
    }

    /// Binds dimensions to the lengths that were found. Axes that are called alike and have no length of their own are as
    /// long as the first of them that has one. Gives what is wrong with an axis that is longer or shorter than another of
    /// its name, if the network needs them equal.
    ///
    /// Error: sizes do not fit.
    pub(super) fn settle(
        &mut self,
        repeats: &Repeats,
        found: &BTreeMap<String, i64>,
    ) -> Result<Option<Error>> {
        let dims = self.graph.dims().iter().enumerate();
        let mut sizes: BTreeMap<DimId, Size> = dims
            .filter_map(|(id, dim)| Some((DimId(id as u32), Size::Known(*found.get(&dim.name)?))))
            .collect();
        let Repeats::Apart(Apart { repeats, .. }) = repeats else {
            return self.replace(&sizes).map(|()| None);
        };
        for repeat in repeats {
            if let (Some(own), false) = (sizes.get(&repeat.own), sizes.contains_key(&repeat.first)) {
                sizes.insert(repeat.first, own.clone());
            }
        }
        let mut contradiction = None;
        for Repeat { input, axis, own, first } in repeats {
            let of_first = sizes.get(first).cloned();
            let of_own =
                sizes.entry(*own).or_insert_with(|| of_first.clone().unwrap_or_else(|| Size::dim(*first)));
            let (Some(expected), Some(found)) = (of_first.as_ref().and_then(Size::known), of_own.known())
            else {
                continue;
            };
            if expected != found && contradiction.is_none() {
                let name = self.graph.dim_name(*first);
                let message =
                    format!("expected {expected}, found {found} (another axis is called {name} too)");
                contradiction = Some(Error::run(format!("input {input}: axis {axis}"), message));
            }
        }
        self.replace(&sizes)?;
        Ok(contradiction)
    }

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
