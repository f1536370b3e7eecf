//! How replicas come to one gradient: the ways there are, in which type it travels, and what is kept once.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ir::DType;
use crate::topology::Topology;

/// A choice that is made by name.
macro_rules! named {
    ($type:ident, $option:literal, $($variant:ident = $name:literal),+) => {
        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(Error::usage(format!(concat!($option, " {}"), text), "there is no such way")
                        .with_help([$($name),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $name,)+
                })
            }
        }
    };
}

/// How replicas come to one gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Every replica holds the parameters and updates them alike; gradients are added up and sent to
    /// all. See [`Exchange`].
    #[default]
    AllReduce,
    /// Every parameter, with what its optimizer keeps, lives on one replica, which adds its gradients
    /// up, updates it, and sends it to the others in each step. Parameters are spread by their bytes.
    Server,
    /// The same, spread one by one in the network's order.
    ServerRoundRobin,
}

named!(Sync, "--sync", AllReduce = "allreduce", Server = "ps", ServerRoundRobin = "ps:round-robin");

/// The way of an all-reduce. All of them add shards up in the same order, so they give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// Whichever takes the least time by the topology's links, for each bucket.
    #[default]
    Auto,
    /// A part for each replica, which adds that part up and sends it to all others: what each sends and
    /// receives is that of a ring (Patarasuk and Yuan 2009). Best for many bytes.
    Ring,
    /// Neighbours add up in pairs, and pairs of pairs, up to one that sends to all: fewest messages one
    /// after the other. Best for few bytes on many replicas.
    Tree,
    /// One replica, the one with the least to do so far, adds all of it up and sends it to all.
    Star,
}

named!(Exchange, "--exchange", Auto = "auto", Ring = "ring", Tree = "tree", Star = "star");

/// In which type gradients travel between replicas. What rounding loses stays with its replica and is
/// added to the next gradient (error feedback: Seide et al. 2014, Karimireddy et al. 2019).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    /// Their own.
    #[default]
    Own,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Whole numbers up to 127, with one factor for each tensor that is sent.
    Int8,
}

named!(Transfer, "--transfer", Own = "own", F16 = "f16", Bf16 = "bf16", Int8 = "int8");

impl Transfer {
    /// The type that is sent.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            Self::Own => None,
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::Bf16),
            Self::Int8 => Some(DType::I8),
        }
    }
}

/// What replicas keep once between them, in place of a copy each (ZeRO: Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    /// Nothing.
    #[default]
    None,
    /// What the optimizer keeps (stage 1).
    Optimizer,
    /// Also sums of gradients (stage 2).
    Gradients,
    /// Also parameters, which are gathered for the forward pass and again for the backward pass
    /// (stage 3).
    Parameters,
}

named!(Zero, "--zero", None = "0", Optimizer = "1", Gradients = "2", Parameters = "3");

/// How a step is spread over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many; each on devices of its own.
    pub count: usize,
    /// Devices of each: over several, the network is laid as the planner lays one replica. Of pipelines, 1
    /// stands for an even part of all devices.
    pub each: usize,
    /// So many of them are not waited for: the gradients of the others count, by a clock that is drawn.
    pub spare: usize,
    /// Into how many parts the batch is cut; a multiple of `count`. Of pipelines they are the microbatches,
    /// whose number need not be told here.
    pub shards: usize,
    /// How they come to one gradient.
    pub sync: Sync,
    /// The way of an all-reduce.
    pub exchange: Exchange,
    /// In which type gradients travel.
    pub transfer: Transfer,
    /// What is kept once.
    pub zero: Zero,
    /// Gradients travel together up to so many bytes; by the links where none is given.
    pub bucket: Option<u64>,
}

impl Replicas {
    /// One shard for each replica.
    pub const fn new(count: usize) -> Self {
        Self {
            count,
            each: 1,
            spare: 0,
            shards: count,
            sync: Sync::AllReduce,
            exchange: Exchange::Auto,
            transfer: Transfer::Own,
            zero: Zero::None,
            bucket: None,
        }
    }

    /// Errors: none or more replicas than devices; shards that the replicas do not divide, or more than
    /// samples; sharded state without an all-reduce.
    pub(crate) fn check(&self, topology: &Topology, batch: i64) -> Result<()> {
        let place = || format!("--replicas {}", self.count);
        let devices = topology.computing().count();
        if self.count == 0 || self.each == 0 || self.count.saturating_mul(self.each) > devices {
            let message = format!("there are {devices} devices, {} for each", self.each);
            return Err(Error::usage(place(), message).with_help("--devices with one for each replica"));
        }
        if self.shards == 0 || !self.shards.is_multiple_of(self.count) || self.shards as i64 > batch {
            let message = format!(
                "{} shards of a batch of {batch}: expected a multiple, at most the batch",
                self.shards
            );
            return Err(Error::usage(place(), message).with_help("--shards N, --batch N"));
        }
        if self.spare > 0 && (self.spare >= self.count || batch % self.shards as i64 != 0) {
            let message =
                format!("of {} replicas, and a batch of {batch} in {} parts", self.count, self.shards);
            return Err(Error::usage(format!("--spare {}", self.spare), message)
                .with_help("fewer than replicas, and a --batch that is a multiple of the parts"));
        }
        if self.zero != Zero::None && self.sync != Sync::AllReduce {
            let message = format!("--sync {} keeps all state once as it is", self.sync);
            return Err(Error::usage(format!("--zero {}", self.zero), message).with_help("--sync allreduce"));
        }
        Ok(())
    }
}
