//! What a network costs: floating-point operations, bytes and times of its groups on each kind
//! of device, and the cost graph made of them.
//!
//! Times are integers computed from integers, so that they are the same on every machine.

mod flops;
mod lower;
mod roofline;

pub use flops::{node_flops, node_traffic};
pub use lower::{Lowered, Origin, lower};
pub use roofline::{Rates, group_time};
