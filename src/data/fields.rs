//! Which arrays a record gives: what the network wants, matched to what the specification declares
//! and the files hold.

use super::encode::{Encoding, Number, push};
use super::spec::{FieldOptions, Spec, elements};
use super::{Field, Role};
use crate::error::{Error, Result};
use crate::ir::{DType, Limit, Tensor};
use crate::topology::near::instead;

/// A field and where its values come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) field: Field,
    /// Columns, arrays, features or parts of the record.
    pub(super) items: Vec<String>,
    pub(super) encoding: Encoding,
    /// What is said about it in the specification.
    pub(super) options: FieldOptions,
    /// Bytes of one record's elements; none where records have different lengths.
    pub(super) row_bytes: Option<usize>,
    /// Where they have: elements of all axes but the first.
    pub(super) rest: usize,
    /// Fills up records that are shorter.
    pub(super) pad: Option<f64>,
}

impl Bound {
    /// Error, in words: a record's elements are integers of which one is too large, or below 0.
    pub(super) fn check_values(&self, elements: &[u8]) -> Result<(), String> {
        let (Some(limit), dtype) = (&self.field.below, self.encoding.dtype) else { return Ok(()) };
        let count = elements.len() as u64 / dtype.size();
        let values = Tensor::new(dtype, vec![count], elements).ok().and_then(|all| all.to_i64());
        let values = values.unwrap_or_default();
        match values.iter().find(|&&value| !limit.holds(value)) {
            None => Ok(()),
            Some(value) => {
                let Limit { count, field, .. } = limit;
                Err(format!("{}: an element is {value}, outside 0..{count} ({field})", self.field.name))
            }
        }
    }

    /// Appends `count` elements of padding.
    pub(super) fn padding(&self, count: usize, out: &mut Vec<u8>) {
        let mut element = Vec::new();
        let pad = Number::Real(self.pad.unwrap_or(0.0));
        // A pad that the type does not hold is zero.
        if push(self.encoding.dtype, pad, &mut element).is_err() {
            element = vec![0; self.encoding.dtype.size() as usize];
        }
        for _ in 0..count {
            out.extend_from_slice(&element);
        }
    }
}

/// What is known of a field before its values are looked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) role: Role,
    /// Declared items; empty where the format is to find them.
    pub(super) items: Vec<String>,
    /// What the network says, or the specification.
    pub(super) dtype: Option<DType>,
    pub(super) dims: Option<Vec<Option<u64>>>,
    pub(super) below: Option<Limit>,
    pub(super) options: FieldOptions,
    /// True where nobody asks for it: it is left out where the files have no such thing.
    pub(super) optional: bool,
    /// Position among the fields of its role, and how many there are.
    pub(super) number: usize,
    pub(super) count: usize,
}

/// The fields to look for: those that the network wants, else those that are declared, else one
/// input and one target. Nothing is looked for in a role of which a network wants nothing.
///
/// Errors: a declared field that the network does not want, an option for a field that is not there.
pub(super) fn wishes(spec: &Spec, wanted: &[Field]) -> Result<Vec<Wish>> {
    let mut wishes = Vec::new();
    let mut named = Vec::new();
    let any = !wanted.is_empty();
    for role in [Role::Input, Role::Target] {
        let declared = if role == Role::Input { &spec.inputs } else { &spec.targets };
        let wanted: Vec<&Field> = wanted.iter().filter(|field| field.role == role).collect();
        match (wanted.is_empty(), any) {
            (true, true) if declared.is_empty() => {}
            (true, _) => declare(spec, role, declared, &mut wishes),
            (false, _) => demand(spec, role, declared, &wanted, &mut wishes, &mut named)?,
        }
    }
    named.extend(wishes.iter().map(|wish| wish.name.clone()));
    if let Some(unknown) = spec.options.keys().find(|name| !named.contains(name)) {
        let message = "there is no such input or target";
        return Err(Error::usage(format!("--data: .{unknown}"), message).with_help(instead(
            unknown,
            "there are",
            &named,
        )));
    }
    Ok(wishes)
}

fn default_name(role: Role) -> &'static str {
    match role {
        Role::Input => "input",
        Role::Target => "target",
    }
}

/// Fields as declared, where no network wants any of this role.
fn declare(spec: &Spec, role: Role, declared: &[(String, Vec<String>)], wishes: &mut Vec<Wish>) {
    let default = [(default_name(role).to_owned(), Vec::new())];
    let optional = declared.is_empty() && role == Role::Target;
    let declared = if declared.is_empty() { &default[..] } else { declared };
    for (number, (name, items)) in declared.iter().enumerate() {
        let options = spec.options.get(name).cloned().unwrap_or_default();
        wishes.push(Wish {
            name: name.clone(),
            role,
            items: items.clone(),
            dtype: options.dtype,
            dims: options.shape.as_ref().map(|shape| shape.iter().map(|&dim| Some(dim)).collect()),
            below: None,
            options,
            optional,
            number,
            count: declared.len(),
        });
    }
}

/// Whether a name is that of the output that a target is for.
fn is_target_of(role: Role, name: &str, field: &str) -> bool {
    role == Role::Target && field.strip_prefix("target_") == Some(name)
}

/// Fields as the network wants them.
fn demand(
    spec: &Spec,
    role: Role,
    declared: &[(String, Vec<String>)],
    wanted: &[&Field],
    wishes: &mut Vec<Wish>,
    named: &mut Vec<String>,
) -> Result<()> {
    let default = default_name(role);
    let sole = wanted.len() == 1;
    let names: Vec<&str> = wanted.iter().map(|field| field.name.as_str()).collect();
    let is_of = |name: &str, field: &str| {
        name == field || (sole && name == default) || is_target_of(role, name, field)
    };
    let is_wanted = |name: &str| names.iter().any(|field| is_of(name, field));
    if let Some((name, _)) = declared.iter().find(|(name, _)| !is_wanted(name)) {
        let message = format!("the network has no {default} {name}");
        return Err(Error::usage(format!("--data: {default}.{name}"), message).with_help(instead(
            name,
            &format!("its {default}s are"),
            &names,
        )));
    }
    if sole {
        named.push(default.to_owned());
    }
    let outputs = wanted.iter().filter_map(|field| field.name.strip_prefix("target_"));
    named.extend(outputs.filter(|name| is_wanted(name)).map(str::to_owned));
    for (number, field) in wanted.iter().enumerate() {
        let items =
            declared.iter().find(|(name, _)| is_of(name, &field.name)).map(|(_, items)| items.clone());
        let options = spec.options.get(&field.name);
        let options = options
            .or_else(|| spec.options.iter().find(|(name, _)| is_of(name, &field.name)).map(|(_, own)| own));
        wishes.push(Wish {
            name: field.name.clone(),
            role,
            items: items.unwrap_or_default(),
            dtype: Some(field.dtype),
            dims: Some(field.dims.clone()),
            below: field.below.clone(),
            options: options.cloned().unwrap_or_default(),
            optional: false,
            number,
            count: wanted.len(),
        });
    }
    Ok(())
}

impl Wish {
    /// The field, once its items are known, and what the files hold of it: type and sizes of a
    /// record where the format says them.
    ///
    /// Errors: sizes that the file's values do not fill; more elements than a record can have.
    pub(super) fn bind(self, items: Vec<String>, found: Option<(DType, Vec<u64>)>) -> Result<Bound> {
        let dtype = self.dtype.or(found.as_ref().map(|found| found.0)).unwrap_or(DType::F32);
        let encoding = Encoding {
            dtype,
            scale: self.options.scale,
            onehot: self.options.onehot,
            classes: self.options.classes.clone(),
        };
        let place = || format!("--data: {}", self.name);
        let record = found.map(|(_, dims)| widened(dims, encoding.onehot));
        let pad = self.options.pad;
        let dims = match (self.dims.clone(), record) {
            (Some(dims), Some(record)) => {
                self.compare(&dims, &record)?;
                dims
            }
            (Some(dims), None) => dims,
            (None, Some(record)) => record.into_iter().map(Some).collect(),
            (None, None) if pad.is_some() => vec![None],
            (None, None) => Vec::new(),
        };
        if dims.iter().skip(1).any(Option::is_none) {
            return Err(Error::usage(place(), "only the first size of a record may be unknown"));
        }
        let known: Vec<u64> = dims.iter().copied().flatten().collect();
        let too_large = || Error::usage(place(), format!("sizes {known:?} are too large for a record"));
        let count = elements(&known).ok_or_else(too_large)?;
        let bytes = usize::try_from(count.saturating_mul(dtype.size())).map_err(|_| too_large())?;
        let variable = dims.first() == Some(&None);
        Ok(Bound {
            field: Field { name: self.name, role: self.role, dtype, dims, below: self.below },
            items,
            encoding,
            options: self.options,
            row_bytes: (!variable).then_some(bytes),
            rest: usize::try_from(count).unwrap_or(usize::MAX),
            pad,
        })
    }

    /// The axis of a batch's scores that class numbers of a record's sizes would leave to the classes, where those are
    /// taken to be along the last.
    fn class_axis(&self, dims: &[Option<u64>], record: &[u64]) -> Option<usize> {
        let classes = u64::try_from(self.below.as_ref()?.count).ok().filter(|_| self.role == Role::Target)?;
        let scores: Vec<u64> = dims.iter().copied().chain([Some(classes)]).collect::<Option<_>>()?;
        left_out(&scores, record).map(|axis| axis + 1)
    }

    /// Error: the file's sizes cannot become those that are wanted.
    fn compare(&self, dims: &[Option<u64>], record: &[u64]) -> Result<()> {
        let known: Option<Vec<u64>> = dims.iter().copied().collect();
        let fits = match known {
            None => true,
            Some(known) => {
                let (wanted, found) = (elements(&known), elements(record));
                wanted.is_some() && (wanted == found || (self.options.pad.is_some() && found < wanted))
            }
        };
        if fits {
            return Ok(());
        }
        let wanted: Vec<String> =
            dims.iter().map(|dim| dim.map_or_else(|| "?".to_owned(), |dim| dim.to_string())).collect();
        let message = format!("a record has sizes {record:?}, the network takes [{}]", wanted.join(", "));
        let error = Error::usage(format!("--data: {}", self.name), message);
        // A class number, where a number for each class is compared.
        let class = self.role == Role::Target && elements(record) == Some(1) && self.options.onehot.is_none();
        if let Some(axis) = self.class_axis(dims, record) {
            return Err(
                error.with_help(format!("where axis {axis} holds the classes: --loss sparse:axis={axis}"))
            );
        }
        Err(match dims {
            [Some(classes)] if class && *classes > 1 => error.with_help(format!(
                "where it is the number of a class: onehot.{}={classes}, or --loss sparse",
                self.name
            )),
            _ => error,
        })
    }
}

/// The one axis of a batch's `scores` without which they have the sizes of its targets; none where there are several.
fn left_out(scores: &[u64], targets: &[u64]) -> Option<usize> {
    let lacks = |axis: &usize| {
        let others = scores.iter().enumerate().filter(|(at, _)| at != axis);
        others.map(|(_, size)| size).eq(targets)
    };
    let mut axes = (0..scores.len()).filter(lacks);
    axes.next().filter(|_| axes.next().is_none())
}

/// Sizes after one-hot encoding: an axis more, in place of a last one of size 1.
fn widened(mut dims: Vec<u64>, onehot: Option<u64>) -> Vec<u64> {
    if let Some(classes) = onehot {
        if dims.last() == Some(&1) {
            dims.pop();
        }
        dims.push(classes);
    }
    dims
}
