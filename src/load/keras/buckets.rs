//! Layers that number what they read: by ranges (`Discretization`), or by a table of whole numbers (`IntegerLookup`).

use serde_json::Value;

use super::config::{Config, Unsupported};
use super::layer::Encoding;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Compare, DType, Op, ReduceKind, Size, ValueId};

/// A numbering, and the vectors that numbers become; none where they stay numbers.
#[derive(Debug)]
pub(super) struct Buckets {
    by: By,
    encoding: Option<Encoding>,
}

#[derive(Debug)]
enum By {
    /// How many bounds are at or below.
    Bounds(Vec<f64>),
    /// The place in the table, behind those of what is masked and of what is not in it.
    Table { numbers: Vec<i64>, mask: Option<i64>, unknown: bool },
}

impl Buckets {
    /// None where the class is not one of these.
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        unsupported: &mut Unsupported,
    ) -> Result<Option<Self>> {
        if config.flag("sparse", false)? {
            unsupported.add(config.place(), "sparse outputs");
        }
        let mode = config.text("output_mode")?.unwrap_or("int");
        let by = match class {
            "Discretization" => {
                // How close boundaries are found from data.
                config.ignore(&["epsilon"]);
                let bounds = config.get("bin_boundaries").and_then(Value::as_array);
                let bounds = bounds.and_then(|bounds| bounds.iter().map(Value::as_f64).collect());
                By::Bounds(bounds.ok_or_else(|| config.missing("bin_boundaries"))?)
            }
            "IntegerLookup" => Self::table(config, mode, unsupported)?,
            _ => return Ok(None),
        };
        let encoding = match mode {
            "int" => None,
            "one_hot" => Some(Encoding::OneHot),
            "multi_hot" => Some(Encoding::Any),
            "count" => Some(Encoding::Count),
            other => {
                unsupported.add(config.place(), format!("output_mode {other}"));
                None
            }
        };
        Ok(Some(Self { by, encoding }))
    }

    fn table(config: Config<'_>, mode: &str, unsupported: &mut Unsupported) -> Result<By> {
        if config.flag("invert", false)? || config.flag("pad_to_max_tokens", false)? {
            unsupported.add(config.place(), "a table that is inverted, or filled up");
        }
        // How several numbers are shared out among what is not in the table; there is one at most.
        config.ignore(&["oov_method", "salt"]);
        config.ignore(&["vocabulary_dtype", "vocabulary_size"]);
        let outside = config.int("num_oov_indices")?.unwrap_or(1);
        if !matches!(outside, 0 | 1) {
            unsupported.add(config.place(), format!("{outside} numbers for what is not in the table"));
        }
        let Some(mut numbers) = config.ints("vocabulary")? else {
            unsupported.add(config.place(), "a table that stands beside the model");
            return Ok(By::Table { numbers: Vec::new(), mask: None, unknown: true });
        };
        let mask = config.int("mask_token")?;
        // The table may begin with what stands for the numbers before it.
        let special: Vec<i64> = mask
            .filter(|_| mode == "int")
            .into_iter()
            .chain((outside == 1).then_some(config.int("oov_token")?.unwrap_or(-1)))
            .collect();
        if numbers.starts_with(&special) {
            numbers.drain(..special.len());
        }
        Ok(By::Table { numbers, mask, unknown: outside == 1 })
    }

    /// How many numbers there are.
    fn count(&self) -> i64 {
        match &self.by {
            By::Bounds(bounds) => bounds.len() as i64 + 1,
            By::Table { numbers, mask, unknown } => {
                let masked = i64::from(mask.is_some() && self.encoding.is_none());
                numbers.len() as i64 + masked + i64::from(*unknown)
            }
        }
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let (numbers, own) = match &self.by {
            By::Bounds(bounds) => {
                let bounds = site.vector(bounds)?;
                (super::operation::at_or_below(site, x, bounds)?, DType::I32)
            }
            By::Table { numbers, mask, unknown } => {
                // In a vector there is no place for what is masked.
                let masked = mask.map(|mask| (mask, if self.encoding.is_none() { 0 } else { -1 }));
                (place(site, x, numbers, masked, *unknown)?, DType::I64)
            }
        };
        match self.encoding {
            None => site.convert(numbers, own),
            Some(mode) => {
                let vectors = site.categories(numbers, self.count(), mode)?;
                match self.by {
                    By::Bounds(_) => Ok(vectors),
                    By::Table { .. } => site.convert(vectors, DType::I64),
                }
            }
        }
    }
}

/// The place of each number in a table, behind that of what is not there; what is masked has one of its own, which may be
/// the first.
fn place(
    site: &mut Site<'_>,
    x: ValueId,
    table: &[i64],
    mask: Option<(i64, i64)>,
    unknown: bool,
) -> Result<ValueId> {
    let x = site.convert(x, DType::I64)?;
    let first = i64::from(mask.is_some_and(|(_, place)| place == 0));
    let before = first + i64::from(unknown);
    let mut sizes = site.sizes(x);
    sizes.push(Size::Known(1));
    let column = site.reshape(x, sizes)?;
    let numbers = site.positions(table)?;
    let is_it = site.apply(Op::Compare(Compare::Eq), &[column, numbers])?;
    // What is nowhere in the table is as far behind as nothing in it.
    let places: Vec<i64> = (0..table.len() as i64).map(|at| at + before - first).collect();
    let places = site.positions(&places)?;
    let zero = site.positions(&[0])?;
    let found = site.apply(Op::Select, &[is_it, places, zero])?;
    let axis = site.rank(found) as u32 - 1;
    let mut place =
        site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![axis], keep: false }, &[found])?;
    if let Some((mask, own)) = mask {
        let before = site.positions(&[first])?;
        place = site.binary(crate::ir::Binary::Add, place, before)?;
        let (mask, own) = (site.positions(&[mask])?, site.positions(&[own])?);
        let is_masked = site.apply(Op::Compare(Compare::Eq), &[x, mask])?;
        place = site.apply(Op::Select, &[is_masked, own, place])?;
    }
    Ok(place)
}
