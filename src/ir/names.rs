//! What operations name: functions of two elements, kinds of reductions, layouts; each has a name in the text
//! form. And the reals among their attributes.

use std::fmt;
use std::hash::{Hash, Hasher};

impl Compare {
    /// Whether it holds of two numbers; of what is no number, but for `ne`, it does not.
    pub(crate) fn holds<T: PartialOrd>(self, x: T, y: T) -> bool {
        match self {
            Self::Eq => x == y,
            Self::Ne => x != y,
            Self::Lt => x < y,
            Self::Le => x <= y,
            Self::Gt => x > y,
            Self::Ge => x >= y,
        }
    }
}

/// A real attribute, compared by its bits so that operations can be keys.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Prints the shortest decimal that reads back to the same bits.
impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// Every one, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The one with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(super) use names;

names! {
    /// Functions of two elements of one type, with that type as result. `and`, `or`, `xor` are
    /// of bools, or bitwise of integers; `hash` is of i64.
    Binary {
        /// `x + y`
        Add = "add",
        /// `x - y`
        Sub = "sub",
        /// `x * y`
        Mul = "mul",
        /// `x / y`; of integers towards zero
        Div = "div",
        /// remainder with the sign of the divisor
        Mod = "mod",
        /// remainder with the sign of the dividend
        Rem = "rem",
        /// `x ^ y`
        Pow = "pow",
        /// the larger; not a number where either is not
        Max = "max",
        /// the smaller; not a number where either is not
        Min = "min",
        /// both
        And = "and",
        /// either
        Or = "or",
        /// one of the two
        Xor = "xor",
        /// of i64: the bits at position `x` of the random stream `y`, see [`random_bits`](super::random_bits)
        Hash = "hash",
    }
}

impl Binary {
    /// True for those of bools and integers alone, bit by bit.
    pub const fn is_of_bits(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor | Self::Hash)
    }
}

names! {
    /// Comparisons of two elements of one type; the result is a bool.
    Compare {
        /// equal
        Eq = "eq",
        /// not equal
        Ne = "ne",
        /// less
        Lt = "lt",
        /// less or equal
        Le = "le",
        /// greater
        Gt = "gt",
        /// greater or equal
        Ge = "ge",
    }
}

names! {
    /// Reductions over axes.
    ReduceKind {
        /// sum
        Sum = "sum",
        /// arithmetic mean
        Mean = "mean",
        /// product
        Prod = "prod",
        /// largest
        Max = "max",
        /// smallest
        Min = "min",
        /// sum of squares; of halves, in f32
        SumSquares = "sum_squares",
    }
}

names! {
    /// What the position of an extreme element is taken of.
    ArgReduce {
        /// the largest
        Max = "argmax",
        /// the smallest
        Min = "argmin",
    }
}

names! {
    /// Position of the channel axis in the tensors of a convolution or a pooling.
    Layout {
        /// `[batch, channels, spatial...]`; convolution weights `[out, in/groups, spatial...]`
        ChannelsFirst = "channels_first",
        /// `[batch, spatial..., channels]`; convolution weights `[spatial..., in/groups, out]`
        ChannelsLast = "channels_last",
    }
}

names! {
    /// Position of the axis of heads in a tensor of attention.
    HeadOrder {
        /// `[batch, heads, rows, size]`
        HeadsFirst = "heads_first",
        /// `[batch, rows, heads, size]`
        RowsFirst = "rows_first",
    }
}

names! {
    /// What a pooling computes over its window.
    PoolKind {
        /// the largest; padding never counts
        Max = "max",
        /// the mean over the elements that are not padding
        Average = "average",
        /// the sum divided by the window's size, padding counted as zero
        AverageWithPadding = "average_with_padding",
    }
}

names! {
    /// What padding holds.
    PadMode {
        /// a constant
        Constant = "constant",
        /// the mirror image, without the edge
        Reflect = "reflect",
        /// the edge, repeated
        Edge = "edge",
    }
}

names! {
    /// What a scatter does where it writes.
    ScatterKind {
        /// replaces; the last of several updates of one element wins
        Replace = "replace",
        /// adds, in the order of the updates
        Add = "add",
        /// multiplies
        Mul = "mul",
        /// keeps the larger
        Max = "max",
        /// keeps the smaller
        Min = "min",
    }
}

names! {
    /// How a resize finds values between samples.
    Interpolation {
        /// the nearest sample; ties round down (ONNX `round_prefer_floor`)
        Nearest = "nearest",
        /// the nearest sample at or below (ONNX `floor`)
        NearestFloor = "nearest_floor",
        /// linear along each resized axis
        Linear = "linear",
    }
}

names! {
    /// Which sample of the input an output coordinate falls on (ONNX's names).
    ResizeCoordinates {
        /// `(x + 0.5) / scale - 0.5`
        HalfPixel = "half_pixel",
        /// as half_pixel; 0 where the output has one element
        PytorchHalfPixel = "pytorch_half_pixel",
        /// `x / scale`
        Asymmetric = "asymmetric",
        /// `x * (in - 1) / (out - 1)`
        AlignCorners = "align_corners",
    }
}

names! {
    /// The cell of a recurrent layer. Gates are in the weights in the order given here.
    Cell {
        /// tanh cell
        Rnn = "rnn",
        /// long short-term memory; gates input, output, forget, cell
        Lstm = "lstm",
        /// gated recurrent unit; gates update, reset, hidden; the reset gate is applied before
        /// the recurrent product
        Gru = "gru",
        /// the same with the reset gate applied after the recurrent product (and its bias)
        GruResetAfter = "gru_reset_after",
    }
}

names! {
    /// The order in which a recurrent layer reads its sequence.
    Direction {
        /// first to last
        Forward = "forward",
        /// last to first
        Reverse = "reverse",
        /// both; results are stacked
        Bidirectional = "bidirectional",
    }
}
