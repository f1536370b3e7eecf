//! Passes: free functions over a graph. `compile` decides their order.
//!
//! A graph verifies ([`crate::ir::verify`]) on entry and on exit, and computes the same outputs, bit for
//! bit, from the same inputs and parameters. Exceptions: the payload bits of a NaN, which differ between
//! machines; products that read a transposed operand by strides, whose kernel may add in another order;
//! [`fuse()`] and [`multiply_bytes`], whose operations round differently; and [`lower_precision`], which rounds. Nodes keep their
//! source; a removed node leaves its source. Inputs stay; outputs keep their names, order and types.

mod bytes;
mod cached;
mod cse;
mod dce;
mod fold;
mod fuse;
pub mod gradient;
mod group;
mod layout;
mod pack_weights;
mod paired;
mod positions;
mod precision;
pub(crate) mod rewrite;
mod simplify;
mod split;

pub use bytes::multiply_bytes;
pub use cached::{CONTEXT, PAST, cached, sequence};
pub use cse::cse;
pub use dce::dce;
pub use fold::fold;
pub use fuse::fuse;
pub use group::{GroupOptions, group, group_placed};
pub use layout::channels_last;
pub use pack_weights::{WeightsAs, pack_weights};
pub use paired::{has_pairs, paired};
pub use positions::positions;
pub use precision::{Params, Precision, lower_precision};
pub use simplify::simplify;
pub use split::{Before, Divided, Division, PartSource, SliceOf, split, split_again, split_within};
pub(crate) use split::{JOINED_AT_ONCE, in_stages, ranks, scattered};

use crate::ir::{Graph, SourceId};

/// Scores that are lower are taken for keys that a row does not meet: their weights are zeros in f32 unless all scores of the row
/// are nearly as low. Models hide keys by -1e4, by -1e9 and by the least number of a half, each perhaps rounded to a half.
const HIDDEN: f64 = -9.9e3;

/// Whether two sources may become one: neither pin nor mark nor place sets them apart.
fn same_marks(graph: &Graph, place: &[u32], one: SourceId, other: SourceId) -> bool {
    if place.get(one.index()) != place.get(other.index()) {
        return false;
    }
    let (one, other) = (graph.source(one), graph.source(other));
    one.pin == other.pin && one.colocate == other.colocate
}
