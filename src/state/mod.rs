//! What outlives a run: checkpoints, weights files, state shared by name.
//!
//! A [`Checkpoint`] is all that a run needs to continue: arrays, counters and the position in the data. A
//! [`Store`] is a folder of them. Each is written to a temporary file, flushed to disk and renamed, so the
//! newest checkpoint is complete however a run ends. Each file has a checksum; a damaged one is skipped in
//! favour of the one before.
//!
//! ```
//! use partition::unstable::ir::Tensor;
//! use partition::unstable::state::{Checkpoint, Keep, Store};
//! # let dir = tempfile::tempdir().unwrap();
//! let store = Store::open(dir.path(), Keep::default()).unwrap();
//! let mut checkpoint = Checkpoint { step: 100, ..Checkpoint::default() };
//! checkpoint.weights.push(("kernel".into(), Tensor::from_f32(vec![2], &[1.0, 2.0]).unwrap()));
//! store.save(&checkpoint).unwrap();
//! assert_eq!(store.latest().unwrap().unwrap().checkpoint, checkpoint);
//! ```

mod folder;
mod manifest;
mod policy;
mod safetensors;
mod shared;
mod store;
mod weights;

use std::collections::BTreeMap;

use crate::data::Position;
use crate::ir::Tensor;

pub use policy::{Due, Policy};
pub use safetensors::write_safetensors;
pub use shared::Shared;
pub use store::{Found, Goal, Keep, Store};
pub use weights::{WeightsForm, read_weights, write_arrays, write_state, write_weights};

/// What a run needs to go on as if it had never stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Where the next batch is.
    pub position: Position,
    /// The seed of the run: of initial weights, order, dropout.
    pub seed: u64,
    /// The hash of the model, as plans carry it; a run of another model is refused.
    pub model: String,
    /// Whole numbers: counters of random streams, steps of the optimizer, patience.
    pub counters: BTreeMap<String, u64>,
    /// Real numbers: the loss scale, the best loss so far; kept to the bit.
    pub scalars: BTreeMap<String, f64>,
    /// What was measured when this was written: `loss`, `val_loss`, `accuracy`.
    pub metrics: BTreeMap<String, f64>,
    /// The parameters, by name.
    pub weights: Vec<(String, Tensor)>,
    /// The optimizer's arrays, by name (`kernel/momentum`), and whatever else the run keeps in arrays.
    pub optimizer: Vec<(String, Tensor)>,
}

/// What the best loss is called among the scalars, and the epochs since it among the counters.
const BEST: &str = "best";
const SINCE: &str = "epochs_since_best";

impl Checkpoint {
    /// The least watched loss of the run so far, and for how many epochs there was none less.
    pub fn best(&self) -> Option<(f64, u64)> {
        Some((*self.scalars.get(BEST)?, *self.counters.get(SINCE)?))
    }

    /// Keeps that.
    pub fn set_best(&mut self, (loss, since): (f64, u64)) {
        self.scalars.insert(BEST.to_owned(), loss);
        self.counters.insert(SINCE.to_owned(), since);
    }
}
