//! The text form of a graph: what `--emit ir` shows and tests are written in.
//!
//! [`Graph`](super::Graph)'s `Display` prints it and [`parse`] reads it. A printed graph parses
//! to an equal graph, and that prints to the same bytes. `{:#}` leaves long data out; that form
//! is for people and does not parse.
//!
//! ```text
//! graph "name"
//!
//! dim batch
//!
//! source s0 node "dense" "Dense" pin="cuda0" colocate="tower" consumer=s1
//! source s1 data "x" "Input"
//!
//! %0: f32[batch, 4] = input "x" @s1
//! %1: f32[4] = constant {1.0, 2.0, 3.0, 4.0} @s0
//! %2: f32[batch, 4] = add %0, %1 @s0
//! %3: f32[batch, 2], %4: i64[batch, 2] = topk %2 axis=1 k=2 @s0
//!
//! output "y" %3
//!
//! control %2 -> %3
//! ```
//!
//! One line for each thing, in this order; blank lines and lines that begin with `#` are passed
//! over. Values are numbered in order. Attributes are in a fixed order, and one that has its
//! default value is left out. Data is written as numbers where it is short, else as hexadecimal
//! bytes (`0x...`), little-endian and row-major. A control dependency names nodes by their first
//! results.

mod cursor;
mod defaults;
mod parse;
mod parse_op;
mod print;
mod print_op;

pub use parse::parse;
pub(crate) use parse::{parse_size, parse_type};

/// Data of up to this many elements is printed as numbers.
const SHORT: usize = 16;

/// A name as it appears in sizes: bare where it is an identifier, else quoted.
fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
