//! Operations that draw numbers at random: each call of the program has others, which no stored result can say.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;

/// Names of operations whose results are drawn.
const DRAWN: [&str; 20] = [
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "normal_functional",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "rrelu_with_noise",
    "rrelu_with_noise_functional",
    "uniform",
];

pub(super) fn find(name: &str) -> Option<Lower> {
    DRAWN.contains(&name).then_some(refused as Lower)
}

fn refused(call: &mut Call<'_, '_>) -> Result<()> {
    Err(call.unsupported("numbers that are drawn at random in each call: make them an input of the module"))
}
