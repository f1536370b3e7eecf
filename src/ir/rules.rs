//! What a network expects beside its types: how large a dimension may become, which integers an
//! input may hold, what an input that was left out would have been, and what files of weights call
//! its parameters. Configurations say this; a graph carries it through every pass.

use std::collections::{BTreeMap, BTreeSet};

use super::{BlockFormat, DType, Data, Tensor};
use crate::error::{Error, Report, Result};

/// A count that a field of a configuration sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The largest size of a dimension, or the first integer that is too large.
    pub count: i64,
    /// The field, for messages.
    pub field: String,
    /// One more integer that may be there, and means none of those below the first.
    pub ignored: Option<i64>,
}

impl Limit {
    /// Whether an integer is one that may be there.
    pub fn holds(&self, value: i64) -> bool {
        (0..self.count).contains(&value) || self.ignored == Some(value)
    }
}

/// What an optional input is where the caller has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// This integer everywhere, which the network may be built without.
    Filled(i64),
    /// This integer everywhere; the network always has the input.
    Usual(i64),
    /// What the network computes of other inputs' sizes, or holds itself, where it is built without this one.
    Computed,
}

/// What an input expects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputRule {
    /// Its integers are 0 and more, and below this.
    pub below: Option<Limit>,
    /// Set where the caller need not have it.
    pub absent: Option<Absent>,
}

/// What a parameter adds to the loss that training makes small: `l1 sum |w| + l2 sum w^2`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalty {
    /// The factor of the sum of magnitudes, finite.
    pub l1: f64,
    /// The factor of the sum of squares, finite.
    pub l2: f64,
}

impl Eq for Penalty {}

/// How a loss reads targets, where the model's framework or file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetRules {
    /// Targets of a hinge that are all 0 or 1 mean -1 and 1.
    pub hinge_takes_bits: bool,
    /// The class that the loss of the file leaves out.
    pub ignored: Option<i64>,
}

/// What a network expects, by name; names without an entry expect nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Dimensions.
    pub dims: BTreeMap<String, Limit>,
    /// Inputs.
    pub inputs: BTreeMap<String, InputRule>,
    /// Arrays of weights.
    pub arrays: ArrayNames,
    /// Parameters that training leaves as they are.
    pub frozen: BTreeSet<String>,
    /// Outputs that are what a parameter becomes which no gradient moves, by the output's name the parameter's: what a
    /// PyTorch buffer holds after the call. Training fits no target to them.
    pub buffers: BTreeMap<String, String>,
    /// What parameters add to the loss.
    pub penalties: BTreeMap<String, Penalty>,
    /// How a loss reads targets.
    pub targets: TargetRules,
    /// What training would have to heed and does not know, for messages.
    pub untrained: Vec<String>,
    /// What its training is without, though it may be trained: lines to tell.
    pub unheeded: Vec<String>,
    /// True where the graph itself, and not only its sizes, depends on which dimensions were open when it was read.
    pub open_dims_matter: bool,
    /// Of a decoder whose context is longer than this: up to here it would be another network (with short factors of
    /// rotary frequencies).
    pub short_context: Option<i64>,
}

/// What files of weights call a network's parameters, beside the parameters' own names, and how they store them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayNames {
    /// Other names of a parameter's array, by the parameter's own. A file may hold several of one
    /// parameter, if they are equal: tied layers were written twice.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Arrays that the source's own library holds, in some version, in a model of this class: each with the parameter that it
    /// holds a second time or is another name of; none where it is of no parameter.
    pub held: Vec<(String, Option<String>)>,
    /// The names under which the source's own library holds a parameter, by the parameter's own, where that is not its only
    /// one: several of tied layers, none of what the library computes anew. Training writes arrays under these.
    pub written: BTreeMap<String, Vec<String>>,
    /// Names that training writes arrays of complex numbers under, whose last axis, of 2, has both parts of each.
    pub complex: BTreeSet<String>,
    /// What the library holds besides: training writes it as it is.
    pub beside: Vec<Beside>,
    /// Patterns (`*`, `?`) of arrays that such files hold and nothing reads: masks, frequencies.
    pub unread: Vec<String>,
    /// Blocks of few bits that the rows of a parameter's array are, by the parameter's own name.
    pub blocks: BTreeMap<String, BlockFormat>,
    /// How files hold matrices in several arrays each; none where a matrix is one array.
    pub coding: Option<Coding>,
}

/// An array of the source that no node of the network reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// What the source's library calls it.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub dims: Vec<u64>,
    /// Where its elements are.
    pub data: Data,
}

/// How a tool that quantises checkpoints stores a matrix: integers, and beside them what makes numbers of these. A layer `L`
/// has the arrays that each variant lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// GPTQ: `L.qweight`, `L.qzeros`, `L.scales`, `L.g_idx`.
    Gptq {
        /// 2, 4 or 8.
        bits: u8,
        /// Zero points are stored less 1.
        zeros_less_one: bool,
    },
    /// AWQ for products of matrices, of 4 bits: `L.qweight`, `L.qzeros`, `L.scales`.
    Awq,
    /// compressed-tensors, several integers to a word: `L.weight_packed`, `L.weight_scale`, `L.weight_shape`, and where
    /// there are such `L.weight_zero_point`, `L.weight_g_idx`.
    Words {
        /// 2, 4 or 8.
        bits: u8,
        /// There are zero points.
        has_zeros: bool,
    },
    /// compressed-tensors, a signed byte for each number: `L.weight`, `L.weight_scale`, and where there are such
    /// `L.weight_zero_point`.
    Bytes {
        /// There are zero points.
        has_zeros: bool,
    },
    /// bitsandbytes: `L.weight` of signed bytes with `L.SCB`, or of places in a table of 16 numbers with
    /// `L.weight.absmax`, `L.weight.quant_map`, `L.weight.quant_state.bitsandbytes__nf4` or `__fp4`.
    BitsAndBytes,
    /// Floats of 4 bits times powers of two, as gpt-oss has its experts': `L_blocks`, `L_scales`.
    Mxfp4,
    /// The same by compressed-tensors: `L.weight_packed`, `L.weight_scale`.
    Mxfp4Rows,
    /// Floats of 4 bits, of which 16 neighbours have a float of 8 bits, and all of a layer one of f32. Of ModelOpt `L.weight`,
    /// `L.weight_scale`, `L.weight_scale_2`; of compressed-tensors `L.weight_packed`, `L.weight_scale`,
    /// `L.weight_global_scale`, which divides.
    Nvfp4 {
        /// Of compressed-tensors.
        is_divided: bool,
    },
}

impl Coding {
    /// Whether groups of numbers have zero points of their own.
    pub const fn has_zeros(self) -> bool {
        match self {
            Self::Gptq { .. } | Self::Awq => true,
            Self::Words { has_zeros, .. } | Self::Bytes { has_zeros } => has_zeros,
            Self::BitsAndBytes | Self::Mxfp4 | Self::Mxfp4Rows | Self::Nvfp4 { .. } => false,
        }
    }
}

impl Rules {
    /// Error: a dimension is larger than it may be.
    pub fn check_dim(&self, name: &str, value: i64) -> Result<()> {
        match self.dims.get(name) {
            Some(limit) if value > limit.count => {
                let message = format!("{value} is more than {}, the model's {}", limit.count, limit.field);
                Err(Error::usage(format!("dimension {name}"), message))
            }
            _ => Ok(()),
        }
    }

    /// Error: an input holds an integer that it may not; the first is named. O(elements).
    pub fn check_values(&self, input: &str, tensor: &Tensor) -> Result<()> {
        let Some(limit) = self.inputs.get(input).and_then(|rule| rule.below.as_ref()) else { return Ok(()) };
        let Some(values) = tensor.to_i64() else { return Ok(()) };
        match values.iter().position(|&value| !limit.holds(value)) {
            None => Ok(()),
            Some(position) => {
                let index = index_of(position, tensor.dims());
                let message = format!(
                    "element {index:?} is {}, outside 0..{} ({})",
                    values[position], limit.count, limit.field
                );
                Err(Error::Run(Report::new(format!("input {input}"), message)))
            }
        }
    }

    /// Names of the inputs that the network could be built without, sorted.
    pub fn optional_inputs(&self) -> Vec<String> {
        let can_go = |rule: &InputRule| matches!(rule.absent, Some(Absent::Filled(_) | Absent::Computed));
        let optional = self.inputs.iter().filter(|(_, rule)| can_go(rule));
        optional.map(|(name, _)| name.clone()).collect()
    }
}

/// The index along each axis of an element in row-major order.
fn index_of(mut position: usize, dims: &[u64]) -> Vec<u64> {
    let mut index = vec![0; dims.len()];
    for (axis, &dim) in dims.iter().enumerate().rev() {
        index[axis] = position as u64 % dim.max(1);
        position /= dim.max(1) as usize;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_integer_out_of_range_is_named() {
        let below = Some(Limit { count: 5, field: "vocab_size".to_owned(), ignored: None });
        let rule = InputRule { below, absent: None };
        let rules = Rules { inputs: BTreeMap::from([("ids".to_owned(), rule)]), ..Rules::default() };
        let tensor = Tensor::from_i64(vec![2, 3], &[0, 1, 4, 2, -1, 9]).unwrap();
        let error = rules.check_values("ids", &tensor).unwrap_err().to_string();
        assert_eq!(error, "input ids: element [1, 1] is -1, outside 0..5 (vocab_size)");
        assert!(rules.check_values("others", &tensor).is_ok());
    }
}
