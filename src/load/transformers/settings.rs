//! A stack of blocks as data: what its parameters are called, how its parts are wired, and what a
//! configuration says of sizes. [`Blocks`](super::blocks::Blocks) writes any such description as a network;
//! a family differs from another in this data only.

use super::activation::Activation;
use super::attention::{Heads, Sight};
use super::heads::Language;
use super::net::{Bias, Norm, Order};
use super::rotary::Rotary;

/// How a family's blocks are set.
pub(super) struct Settings {
    pub(super) names: Names,
    pub(super) vocabulary: u64,
    pub(super) hidden: u64,
    pub(super) embedding: Embedding,
    pub(super) heads: Heads,
    pub(super) norm: Norm,
    pub(super) activation: Activation,
    pub(super) positions: Positions,
    /// Rows of a table of token types.
    pub(super) token_types: u64,
    /// One for each layer.
    pub(super) layers: Vec<Layer>,
    pub(super) biases: Biases,
    /// Scores are held below this, by a hyperbolic tangent.
    pub(super) cap: Option<f64>,
    pub(super) language: Language,
    /// The vocabulary is scored by the table of embeddings.
    pub(super) tied: bool,
    /// Factor of what attention and the feed-forward part give, before that is added.
    pub(super) factor_of_parts: f64,
}

/// What the table of words gives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Embedding {
    /// Numbers of a word where they are not the hidden ones; two layers lead there and back.
    pub(super) width: Option<u64>,
    /// Factor of the rows.
    pub(super) scale: Option<f64>,
}

/// Parameters of the blocks. Those of a layer stand behind its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) words: &'static str,
    /// Of positions that are learnt.
    pub(super) positions: Option<&'static str>,
    pub(super) token_types: TokenTypes,
    /// Behind the embeddings.
    pub(super) first_norm: Option<&'static str>,
    pub(super) layer: &'static str,
    pub(super) attention: &'static str,
    pub(super) projections: Projections,
    /// Norms of queries and of keys.
    pub(super) inner_norms: InnerNorms,
    /// Scores of no key, one for each head.
    pub(super) sinks: Option<&'static str>,
    pub(super) out: &'static str,
    /// Attention to another stack's result, between the two parts.
    pub(super) cross: Option<Cross>,
    pub(super) wiring: Wiring,
    /// Behind the blocks.
    pub(super) last_norm: Option<&'static str>,
    pub(super) order: Order,
}

impl Names {
    /// The parts that only some families have, left out; the others are to be named.
    pub(super) const PLAIN: Self = Self {
        words: "",
        positions: None,
        token_types: TokenTypes::None,
        first_norm: None,
        layer: "",
        attention: "",
        projections: Projections::Apart([""; 3]),
        inner_norms: InnerNorms::None,
        sinks: None,
        out: "",
        cross: None,
        wiring: Wiring { attention: Norms::NONE, feed: Norms::NONE, residual: Residual::Stream },
        last_norm: None,
        order: Order::OutIn,
    };
}

/// Attention to another stack's result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cross {
    pub(super) norms: Norms,
    pub(super) attention: &'static str,
    pub(super) projections: [&'static str; 3],
    pub(super) out: &'static str,
}

/// What becomes of `token_type_ids`.
#[derive(Clone, Copy, Debug)]
pub(super) enum TokenTypes {
    /// They are no input.
    None,
    /// Rows of a table, the first where they are absent.
    Table(&'static str),
    /// Rows of the words' table, none where they are absent.
    Words,
}

/// How queries, keys and values are projected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Projections {
    /// By one layer.
    Joined(&'static str, Sections),
    Apart([&'static str; 3]),
}

/// How queries, keys and values lie in what one layer projects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sections {
    /// All queries, all keys, all values.
    Kinds,
    /// Head of keys by head of keys: the queries that it serves, itself, its values.
    Heads,
}

/// What becomes of queries, keys and values before they meet: norms of queries and keys, by the layers' names, or limits.
#[derive(Clone, Copy, Debug)]
pub(super) enum InnerNorms {
    None,
    /// Of all heads together, as they are projected.
    Joint([&'static str; 2]),
    /// Of each head, with one factor for all.
    Head([&'static str; 2], Norm),
    /// Of each head, with a factor of its own, by its number.
    Heads([&'static str; 2], Norm),
    /// The same, where one array `[heads, width]` holds the factors.
    HeadsTogether([&'static str; 2], Norm),
    /// Numbers of all three are held between this and its negative.
    Within(f64),
}

/// What stands around the two parts of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wiring {
    pub(super) attention: Norms,
    pub(super) feed: Norms,
    pub(super) residual: Residual,
}

/// Norms around one part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Norms {
    /// Of what the part reads.
    pub(super) before: Option<&'static str>,
    /// Of what it gives, before that is added.
    pub(super) within: Option<&'static str>,
    /// Of the sum.
    pub(super) behind: Option<&'static str>,
}

impl Norms {
    const NONE: Self = Self { before: None, within: None, behind: None };

    /// One norm, of what the part reads.
    pub(super) const fn before(name: &'static str) -> Self {
        Self { before: Some(name), ..Self::NONE }
    }

    /// One norm, of the sum.
    pub(super) const fn behind(name: &'static str) -> Self {
        Self { behind: Some(name), ..Self::NONE }
    }
}

/// What parts are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residual {
    /// Each part reads the sum that the other left.
    Stream,
    /// The same, where a part's own norm before it is what it is added to.
    Normed,
    /// Both read the block's input, and are added to it together. A feed-forward part without a norm of its
    /// own shares that of attention.
    Parallel,
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) sight: Sight,
    /// Factor of the scores.
    pub(super) scale: f64,
    /// Which of the rotations turns queries and keys.
    pub(super) rotary: usize,
    pub(super) feed: Feed,
}

/// The feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Feed {
    Plain {
        inner: u64,
        up: &'static str,
        act: &'static str,
        down: &'static str,
    },
    Gated(Gated),
    /// As gated, where one layer gives the gate and behind it what is gated.
    GatedJoined {
        inner: u64,
        both: &'static str,
        act: &'static str,
        down: &'static str,
    },
    Experts(Experts),
}

impl Feed {
    /// A gate and what is gated by one layer, under the names of Phi 3.
    pub(super) const fn gate_up(inner: u64) -> Self {
        Self::GatedJoined { inner, both: "mlp.gate_up_proj", act: "mlp.activation_fn", down: "mlp.down_proj" }
    }
}

/// The function of one layer's result times another's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gated {
    pub(super) inner: u64,
    pub(super) gate: &'static str,
    pub(super) act: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
}

/// Several feed-forward parts, of which a router chooses some for each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) count: u64,
    pub(super) chosen: u64,
    pub(super) router: &'static str,
    pub(super) router_bias: Bias,
    pub(super) weighing: Weighing,
    pub(super) arrays: ExpertArrays,
    pub(super) shared: Option<SharedExpert>,
}

/// What the chosen experts weigh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weighing {
    /// Their shares of a softmax over all.
    Shares,
    /// The same, divided by their sum.
    SharesOfChosen,
    /// A softmax over the chosen.
    Softmax,
}

/// How experts are stored, and what each computes.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpertArrays {
    /// Layers of their own, under their number.
    Each { under: &'static str, layers: Gated },
    /// One array for all, `[experts, in, out]`, where gate and gated alternate.
    Stacked { inner: u64, both: &'static str, down: &'static str, clamp: Clamp },
    /// Layers of their own, under their number, with biases that are one array for all.
    Biased { under: &'static str, layers: Gated, clamp: Clamp },
}

/// Gates `g * sigmoid(alpha g)`, and what they let through, which gains 1: both are clamped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clamp {
    pub(super) alpha: f64,
    pub(super) limit: f64,
}

/// An expert that each row passes, times the logistic function of a score.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedExpert {
    pub(super) layers: Gated,
    pub(super) score: &'static str,
}

/// Which linear layers add a bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Biases {
    /// Queries, keys, values. A joined layer has that of queries.
    pub(super) qkv: [Bias; 3],
    pub(super) out: Bias,
    pub(super) feed: Bias,
}

impl Biases {
    pub(super) const EVERYWHERE: Self = Self { qkv: [Bias::With; 3], out: Bias::With, feed: Bias::With };
    pub(super) const NOWHERE: Self =
        Self { qkv: [Bias::Without; 3], out: Bias::Without, feed: Bias::Without };
}

/// How positions enter.
pub(super) enum Positions {
    /// Rows of a table.
    Learnt(Learnt),
    /// Rotations, of which each layer names one.
    Rotary(Vec<Rotary>),
    /// Press, Smith and Lewis 2022: what is added to scores grows with the key's position.
    Slopes(Slopes),
    /// Raffel and others 2020: what is added to scores is learnt for ranges of distances.
    Distances(Distances),
}

/// A table of positions.
pub(super) struct Learnt {
    /// How many there are.
    pub(super) count: u64,
    /// The field that says so.
    pub(super) field: &'static str,
    /// Rows before the first position's.
    pub(super) skipped: u64,
    pub(super) counted: Counted,
}

/// Which position a token has where the caller gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Its place in the row.
    Place,
    /// How many tokens before it the mask shows; -1 for one that it hides.
    Shown,
    /// This token is padding: it stays at the first position, and others count from the one behind.
    Tokens { padding: i64 },
}

/// Ranges of distances, each head's summand of which is learnt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distances {
    /// The table, `[ranges, heads]`.
    pub(super) table: &'static str,
    pub(super) ranges: u64,
    /// From this distance on all are one range.
    pub(super) farthest: u64,
    /// Keys behind a row have ranges of their own.
    pub(super) both_ways: bool,
}

/// How slopes are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slopes {
    /// They are bf16, and so is what they give.
    pub(super) rounded: bool,
    /// They have the factor of the scores.
    pub(super) scaled: bool,
}
