//! The library's options as values of the command line: clap lists the names that the library reads and prints.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::place::{Effort, Objective};
use crate::strategy::pipeline::Order;

impl ValueEnum for Objective {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Transfer => "Fewest bytes moved under the memory caps",
            Self::Latency => "Shortest step",
            Self::Throughput => "Lowest load of the busiest device or link",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for Effort {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl ValueEnum for Order {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Gpipe => "All forward passes, then all backward passes",
            Self::OneForwardOneBackward => {
                "Forward and backward passes alternate: the fewest microbatches in flight"
            }
            Self::Interleaved => "The same with several stages per device: smaller bubbles, more copies",
            Self::ZeroBubble => "Gradients of parameters fill the bubbles",
            Self::Auto => "The fastest that fits",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}
