//! The `partition` program.

fn main() {}
