//! Input of training and evaluation: records from files, or synthetic ones, as batches.
//!
//! A [`Source`] is an open specification ([`Spec`]): it knows its files and the arrays of each record.
//! [`Source::batches`] starts threads that read, parse, shuffle and batch through bounded queues. The
//! order of the records depends on the files, the seed and the epoch, not on the number of threads.
//! Memory is bounded, however large the files are.
//!
//! ```
//! use partition::unstable::data::{Options, Source};
//! let source = Source::open("ones:records=5,shape.input=3", &[]).unwrap();
//! let options = Options { batch: 2, epochs: Some(1), ..Options::default() };
//! let sizes: Vec<usize> = source.batches(&options).unwrap().map(|batch| batch.unwrap().samples).collect();
//! assert_eq!(sizes, [2, 2, 1]);
//! ```

mod arrays;
mod assemble;
mod chunk;
mod csv;
mod encode;
mod example;
mod fields;
mod files;
mod order;
mod pipeline;
mod raw;
mod reader;
mod source;
mod spares;
mod spec;
mod synthetic;
mod tfrecord;

use std::time::Duration;

use crate::ir::{DType, Limit, Tensor};
use crate::units::Bytes;

pub(crate) use csv::cells;
pub(crate) use encode::{Number, push as push_element};
pub use pipeline::Batches;
pub use source::Source;
pub use spec::{Fill, Format, Spec};
pub use tfrecord::{crc32c, masked_crc32c};

/// What an array is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Goes into the network.
    Input,
    /// What the network's output is compared with.
    Target,
}

/// An array that each record gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name: that of the network's input or output, where those are known.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Type of the elements; what a file holds is converted to it.
    pub dtype: DType,
    /// Sizes of one record's array; the first may be unknown: records then have different lengths, and
    /// a batch is padded to its longest.
    pub dims: Vec<Option<u64>>,
    /// Its integers are 0 and more, and below this; a record with others is malformed.
    pub below: Option<Limit>,
}

impl Field {
    /// A field of known sizes and any numbers.
    pub fn new(name: impl Into<String>, role: Role, dtype: DType, dims: &[u64]) -> Self {
        let dims = dims.iter().map(|&dim| Some(dim)).collect();
        Self { name: name.into(), role, dtype, dims, below: None }
    }
}

/// In which order records are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the files hold them.
    Fifo,
    /// Each record is drawn at random from a window of those that come next, anew in each epoch.
    Shuffle {
        /// Of the draws; the same seed and epoch give the same order.
        seed: u64,
        /// Records in the window: none for as many as [`Options::memory`] holds.
        window: Option<usize>,
    },
}

/// What becomes of the records at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// A smaller batch.
    Keep,
    /// Nothing: they are left out of this epoch.
    Drop,
    /// A batch filled up with zeros; [`Batch::samples`] tells how many records are real.
    Fill,
}

/// Which records of a source to take. Record `i` belongs to validation where the multiples of the
/// fraction `f` pass a whole number: `floor((i + 1) f) > floor(i f)`. So the parts are disjoint, spread
/// evenly over the files, and known without counting the records first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    All,
    /// Those that do not belong to validation.
    Train,
    /// Those that belong to validation.
    Validation,
}

/// What is done about a record that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBad {
    /// It is an error that names file and place.
    Fail,
    /// It is left out and counted.
    Skip,
}

/// Where in the order of batches a reader is: `batch` batches of epoch `epoch` are done.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Position {
    /// Epochs done.
    pub epoch: u64,
    /// Batches done in this one.
    pub batch: u64,
}

/// How records become batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Records in a batch.
    pub batch: usize,
    /// The batch that is not full.
    pub last: Last,
    /// The order of the records.
    pub order: Order,
    /// How often all records are given; none for without end.
    pub epochs: Option<u64>,
    /// Where to begin: what comes before is read and left out.
    pub start: Position,
    /// Which records.
    pub part: Part,
    /// The share of the records that is for validation, from 0 to 1.
    pub validation: f64,
    /// Threads that parse, beside one that reads and one that makes batches. Never changes a result.
    pub threads: usize,
    /// Finished batches that may wait for the consumer.
    pub prefetch: usize,
    /// Malformed records.
    pub on_bad: OnBad,
    /// Most memory of a shuffling window.
    pub memory: Bytes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batch: 32,
            last: Last::Keep,
            order: Order::Fifo,
            epochs: Some(1),
            start: Position::default(),
            part: Part::All,
            validation: 0.0,
            threads: usual_threads(),
            prefetch: 4,
            on_bad: OnBad::Fail,
            memory: Bytes(256 << 20),
        }
    }
}

/// Threads that parse where nobody says how many: a quarter of the cores, 2 to 8.
pub fn usual_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() / 4).clamp(2, 8))
}

/// Records put together: each array has an axis more than its field, in front, for the records.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Where this batch stands: its epoch, and its number in it.
    pub at: Position,
    /// Where a reader that has done this batch goes on.
    pub next: Position,
    /// True for the last batch of an epoch.
    pub ends_epoch: bool,
    /// Records; fewer than the arrays' first axis where [`Last::Fill`] filled it up.
    pub samples: usize,
    /// Arrays of the inputs, in the order of the source's fields.
    pub inputs: Vec<(String, Tensor)>,
    /// Arrays of the targets, likewise.
    pub targets: Vec<(String, Tensor)>,
}

/// What a pipeline has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches given.
    pub batches: u64,
    /// Records in them.
    pub samples: u64,
    /// Malformed records left out, in all epochs.
    pub skipped: u64,
    /// The first few of them, in words.
    pub faults: Vec<String>,
    /// How long the consumer waited for its first batch: nothing can be ready before it is read.
    pub first_wait: Duration,
    /// How long it waited for all others.
    pub waited: Duration,
    /// For how many of them it waited at all.
    pub waits: u64,
}

impl Stats {
    /// One line for people.
    pub fn line(&self) -> String {
        let skipped = match self.skipped {
            0 => String::new(),
            1 => ", 1 malformed record skipped".to_owned(),
            count => format!(", {count} malformed records skipped"),
        };
        let waited = match self.waits {
            0 => "the device never waited for input".to_owned(),
            waits => format!(
                "the device waited for input {waits} times of {}, {:.3} s in all",
                self.batches,
                self.waited.as_secs_f64()
            ),
        };
        format!("{} samples in {} batches{skipped}; {waited}", self.samples, self.batches)
    }
}
