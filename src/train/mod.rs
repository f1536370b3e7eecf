//! Training: a step that also updates the network's parameters, planned and run like any other.
//!
//! [`training_step`] adds loss, gradients and updates to a network's graph; a [`Trainer`] plans that
//! step for devices and runs it, batch by batch; [`fit`] runs several epochs over a source of records, with
//! validation, checkpoints and early stopping. Dropout and noise apply to training steps only; their random
//! bits depend on the seed, the step and the sample.
//!
//! ```
//! use partition::unstable::data::Source;
//! use partition::unstable::load::{LoadOptions, Model, load};
//! use partition::unstable::topology::Topology;
//! use partition::unstable::train::{Fit, Trainer, fit};
//! let model = std::fs::read("examples/mlp.json").unwrap();
//! let Model::Graph(graph) = load(&model, None, &LoadOptions::default()).unwrap() else { panic!() };
//! let mut options = partition::unstable::train::Options::new("mse".parse().unwrap());
//! options.compile.batch = Some(2);
//! let topology = Topology::parse("2xcpu").unwrap();
//! let mut trainer = Trainer::new(graph, &topology, &options).unwrap();
//! let source = Source::open("ones:records=4", &trainer.fields()).unwrap();
//! let history = fit(&mut trainer, &source, &Fit { epochs: 2, ..Fit::default() }, &mut |_| {}).unwrap();
//! assert!(history[1].loss < history[0].loss);
//! ```

mod before;
mod dry;
mod ends;
mod epochs;
mod largest;
mod layers;
mod open_dims;
mod optimize;
mod options;
mod parts;
mod plan;
mod spec;
mod spread;
mod step;

pub use before::{check_data, fields_of, weight_bytes};
pub use dry::{DryRun, dry_run};
pub use ends::{check_classes, of_ends};
pub use epochs::ensemble::{Change, Member, Override, Trained, ensemble, members};
pub use epochs::fit::{Epoch, Event, Fit, Stop, fit};
pub use epochs::trainer::{Outcome, Trainer};
pub use largest::{LargestBatch, largest_batch};
pub use layers::{Layer, layers};
pub use open_dims::{infer_dims, open_dims};
pub use optimize::rate::{Rate, Shape};
pub use optimize::{Epsilon, Optimizer, Updates};
pub use options::Options;
pub use parts::of_parts;
pub use plan::again::step_of_plan;
pub use plan::parallel::{Candidate, Estimate, Parallel, Strategy, best, candidates, spread};
pub use spread::asynchronous::{Async, Stale};
pub use spread::exchange::{Exchange, Replicas, Sync, Transfer, Zero};
#[cfg(feature = "cli")]
pub(crate) use step::check_trained;
pub use step::loss::Loss;
pub use step::scaling::Scaling;
pub use step::{LOSS, Recipe, Step, Target, targets, training_step};
